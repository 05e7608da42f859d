"""Put what a comparison measured on the cards of its models.

Every step that trains leaves a model with a card. A publication is that folder: its card gets the table of scores.
"""

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Final

from huggingface_hub import ModelCard

from hf_domain.comparison.decision import list_unlearned
from hf_domain.comparison.report import explain, format_markdown_table, make_score_table
from hf_domain.comparison.results import Result, find_models, read_plan_file, read_results
from hf_domain.comparison.summary import Report, read_report
from hf_domain.hub import carries_foreign_code, check_license, check_publication, has_own_code, read_config
from hf_domain.safe_io import write_json, write_text

# The section of a card that shows the scores of the comparison.
SECTION: Final = "## Comparison"


def find_model(
    output_dir: Path, *, task: str | None = None, method: str | None = None, corpus: str | None = None
) -> tuple[Path, str]:
    """Return the folder of a model that a comparison trained, and the section of its card on the scores.

    Args:
        output_dir: Output folder of the comparison.
        task: Task of the plan: the fine-tuned model with the best validation score.
        method: Row of the plan: its encoder.
        corpus: Corpus of the plan that the encoder was trained on. For TAPT, and for what starts from it, the task.

    Raises:
        ValueError: The comparison did not train such a model, or did not keep it.
    """
    results, name = read_results(output_dir), f"{method}-{corpus}"
    models = find_models(output_dir, results)
    encoders = {name: r for name, r in results.items() if r.step.kind == "pretraining" and r.is_done}
    encoders = {name: r for name, r in encoders.items() if (output_dir / "steps" / r.step.id / "config.json").is_file()}
    if task is not None and task not in models:
        raise ValueError(
            f"--task must be a task whose best fine-tuned model was kept, {', '.join(models) or 'and there is none'}, "
            f"but is {task}. Set keep_models: best in the plan, and run the comparison again."
        )
    if task is None and name not in encoders:
        raise ValueError(f"{output_dir} has no trained model {name}; there are {', '.join(sorted(encoders)) or 'none'}")
    result = encoders[name] if task is None else models[task]
    # A row of the report may be of several encoders, one for each corpus.
    runs = [run.step for run in results.values() if run.step.kind == "fine_tuning" and result.step.id in run.step.needs]
    tasks = sorted({str(step.task) for step in runs if step.method == method}) if task is None else [task]
    folder = output_dir / "steps" / result.step.id
    config = read_config(folder)
    has_code = has_own_code(config) or carries_foreign_code(folder)
    if not has_code and config.pop("auto_map", None):  # of the base: its code computes nothing here
        write_json(folder / "config.json", config)
    if not tasks:
        return folder, ""
    report = read_report(read_plan_file(output_dir), results)
    kept = {name: options for name, options in report.plan["tasks"].items() if name in tasks}
    scored = {key: run for key, run in report.runs.items() if key[1] in kept}
    report = replace(report, plan=report.plan | {"tasks": kept}, runs=scored)
    return folder, f"{make_results(report)}\n\n{describe_row(result, report)} {explain(report)}"


def complete_card(folder: Path, *, name: str | None = None, license: str | None = None, results: str = "") -> None:
    """Put facts into the card that a run wrote; the rest of the card stays as it is.

    Args:
        name: What users of the model will write. Default: what the card says, the name of the run's folder.
        license: Identifier of the license of the weights. Default: that of the base model, as far as it is known.
        results: What a comparison measured; replaces the results of an earlier call.

    Raises:
        ValueError: The folder lacks a part of a publication, the Hub does not accept the license, or
            sentence-transformers publishes the model.
    """
    check_license(license)
    check_publication(folder)
    card = ModelCard((folder / "README.md").read_text(encoding="utf-8"), ignore_metadata_errors=True)
    if getattr(card.data, "library_name", None) == "sentence-transformers":
        raise ValueError(
            f"a publication must be a model of transformers, but sentence-transformers publishes that of {folder}: "
            f"SentenceTransformer({str(folder)!r}).push_to_hub(...)"
        )
    if license is not None:
        card.data["license"] = license
    if name is not None and (title := re.search(r"^# (.+)$", card.text, re.MULTILINE)):
        card.text = card.text.replace(title[0], f"# {name}", 1).replace(json.dumps(title[1]), json.dumps(name))
        if card.data.get("model_name"):
            card.data["model_name"] = name
    if results:
        text = re.sub(rf"^{SECTION}\n.*?(?=^## |\Z)", "", card.text, flags=re.MULTILINE | re.DOTALL)
        before, heading, after = text.partition("## Training\n")
        card.text = f"{before.rstrip()}\n\n{SECTION}\n\n{results}\n\n{heading}{after}"
    write_text(folder / "README.md", str(card))


def describe_row(result: Result, report: Report) -> str:
    """Say which row of the table a model is of, and how a fine-tuned one was chosen."""
    row, step, score = report.titles[str(result.step.method)], result.step, result.score
    seeds = report.plan["pretraining_seeds"]
    if score is not None:
        return (
            f"This model is a run of {row}. It has the best validation score of all runs, and a test score of "
            f"{score:.1f}."
        )
    if len(seeds) > 1:
        return (
            f"This model is one of the {len(seeds)} encoders of {row}, with the seed {step.pretraining_seed}; the row "
            "has their means."
        )
    return f"{row} is this model."


def make_results(report: Report) -> str:
    """Write the table of scores for a card, below the sentence on the runs that did not learn, if there are any."""
    scores, unlearned = make_score_table(report), list_unlearned(report)
    table = format_markdown_table(scores[(scores != "").any(axis=1)])  # rows of other tasks alone would be empty
    return f"**{unlearned}**\n\n{table}" if unlearned else table
