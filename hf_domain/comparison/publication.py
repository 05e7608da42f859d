"""A model of a comparison, ready for the Hub: weights, tokenizer, code, pictures, and a card with what was measured."""

import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from transformers import AutoTokenizer

from hf_domain.comparison.answer import list_unlearned
from hf_domain.comparison.default_flags import CHECKPOINTS, TRAINER_OPTIONS
from hf_domain.comparison.figures import draw
from hf_domain.comparison.models import find_models
from hf_domain.comparison.report import explain, format_markdown_table, make_tables, write_report
from hf_domain.comparison.results import Description, Result, read_results
from hf_domain.comparison.rows import RECIPES
from hf_domain.comparison.summary import Report
from hf_domain.hub import MODEL_FILES, has_own_code, read_config
from hf_domain.methods import METHODS
from hf_domain.safe_io import name_replaced, read_json, replace_folder, restore_folder, write_json
from hf_domain.tasks.files import SENTENCES
from hf_domain.training.cards import make_usage, write_model_card
from hf_domain.training.run_files import STATE

# What a publication has beside the model; a license in its folder is somebody's own.
MADE_FILES = ("README.md", "report.json", "*.png")
# What a comparison keeps in its own folder.
KEPT = ("steps", "results", "data", "texts", "passages", "memories", "locks")
# What the Hub calls a kind of tasks; the others classify texts.
ENCODER = "fill-mask"
HUB_TASKS = {"ner": "token-classification", "qa": "question-answering"}
WITHOUT_PACKAGE = "import sys\nsys.modules['hf_domain'] = None\n"


@dataclass(frozen=True)
class Source:
    """A model that a comparison trained."""

    result: Result
    folder: Path
    method: str
    """A row of the plan."""
    card: str | None
    """A key of `METHODS`: what the card is about; None: fine-tuning alone."""
    hub_task: str
    """As the Hub names it."""
    tasks: list[str]
    """Tasks of the plan that the model was tested on."""


def make_publication(
    output_dir: Path,
    folder: Path,
    *,
    model_name: str,
    license: str | None,
    license_note: str,
    limits: str,
    example: str,
    language: str = "en",
    method: str | None = None,
    corpus: str | None = None,
    task: str | None = None,
    source: Source | None = None,
) -> Path:
    """Gather a model that a comparison trained, and write its card from the results.

    The usage snippet of the card runs on the folder in a process that cannot import this package; the card shows its
    output.

    Args:
        output_dir: Output folder of the comparison.
        folder: Where the publication is made; an earlier one there is replaced, nothing else is.
        model_name: Name of the model, as its users will write it.
        license: Identifier of the license of the weights; None if it is not settled.
        license_note: Licenses of base model and data.
        limits: What it was not tested for.
        example: A sentence for the snippet; of an encoder with the tokenizer's mask token.
        language: Code of the language of the corpus.
        method: Row of the plan whose encoder is published.
        corpus: Corpus of the plan that the encoder was trained on. For TAPT, and for what starts from it, the task.
        task: Task of the plan whose fine-tuned model with the best validation score is published instead of an encoder.
        source: The model itself, instead of a method and a corpus, or a task.

    Returns:
        The folder.

    Raises:
        ValueError: The comparison did not train such a model, or `folder` holds something else.
        RuntimeError: The snippet fails.
    """
    folder = folder.resolve()
    unfinished = folder.with_name(f"{folder.name}.unfinished")
    check_publication_folder(name_replaced(folder), output_dir, is_whole=False)
    restore_folder(folder)
    check_publication_folder(folder, output_dir)
    check_publication_folder(unfinished, output_dir, is_whole=False)
    results = read_results(output_dir)
    if source is None and task is not None:
        source = find_fine_tuned(output_dir, results, task)
    elif source is None:
        source = find_pretrained(output_dir, results, str(method), str(corpus))
    report, result = write_report(output_dir), source.result
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir(parents=True)
    tokenizer = AutoTokenizer.from_pretrained(source.folder, trust_remote_code=False)
    for pattern in (*MODEL_FILES, *tokenizer.vocab_files_names.values()):
        for file in source.folder.glob(pattern):
            shutil.copy(file, unfinished)
    config = read_config(source.folder)
    if not has_own_code(config) and config.pop("auto_map", None):  # of the base: its code computes nothing here
        write_json(unfinished / "config.json", config)
    report = keep_tasks(report, source.tasks)
    pictures = [f"{name}.png" for name in draw(report, unfinished)]
    # The end of a failed step's log explains the failure, but may give away what nobody has checked.
    scores = read_json(output_dir / "report.json")
    write_json(unfinished / "report.json", scores | {"failed": sorted(scores["failed"])})
    if draw_training(source.folder / STATE, unfinished / "training.png"):
        pictures.append("training.png")
    encoder, stages = find_start(report.plan, source.method)
    recipe = RECIPES[report.plan["methods"][source.method]["recipe"]]
    if source.hub_task != ENCODER and (recipe.method is not None or recipe.averages):
        stages.append(recipe.title)
    # The cards of the others say so themselves.
    elif source.card and METHODS[source.card].trains_stock_model and "expanded_vocabulary" in result.step.flags:
        stages.append("an expansion of its vocabulary by words of the domain")
    start = output_dir / report.plan["folder"] / encoder
    write_model_card(
        unfinished,
        # The model's type decides: DAPT that starts after a VarMAE continues the VarMAE.
        method=config["model_type"] if has_own_code(config) else source.card,
        task=source.hub_task,
        model_name=model_name,
        base_model=str(start.resolve()) if start.exists() else encoder,
        stages=stages,
        note=recipe.note if task is None else "",
        corpus=describe_text(result.step, report.plan),
        settings=list_settings(result),
        limits=limits,
        license=license,
        license_note=license_note,
        example=example,
        usage_output=run_usage(unfinished, example, source.hub_task),
        language=language,
        results_table=make_results(report) if report.plan["tasks"] else None,
        results_note=f"{describe_row(source, report)} {explain(report)}",
        pictures=pictures,
    )
    replace_folder(unfinished, folder)
    return folder


def find_pretrained(output_dir: Path, results: Mapping[str, Result], method: str, corpus: str) -> Source:
    """Find the encoder of a method.

    Raises:
        ValueError: The comparison did not train it.
    """
    name = f"{method}-{corpus}"
    trained = output_dir / "steps" / (results[name].step.address if name in results else name)
    if name not in results or not results[name].is_done or not (trained / "config.json").is_file():
        made = sorted(n for n, r in results.items() if r.step.kind == "pretraining" and r.is_done)
        raise ValueError(f"{output_dir} has no trained model {name}; there are {', '.join(made) or 'none'}")
    recipes = {name: method["recipe"] for name, method in read_json(output_dir / "plan.json")["methods"].items()}
    card = RECIPES[recipes[method]].card
    if card is None:
        made = sorted(name for name, recipe in recipes.items() if RECIPES[recipe].card is not None)
        raise ValueError(
            f"--method must be a row that trains an encoder by masked LM, but is {method}. Publish one of "
            f"{', '.join(made) or 'another plan'}."
        )
    return Source(results[name], trained, method, card, ENCODER, list_tasks(name, method, results))


def find_fine_tuned(output_dir: Path, results: Mapping[str, Result], task: str) -> Source:
    """Find the fine-tuned model of a task with the best validation score.

    Raises:
        ValueError: The comparison did not keep it.
    """
    models = find_models(output_dir, results)
    if task not in models:
        raise ValueError(
            f"--task must be a task whose best fine-tuned model was kept, {', '.join(models) or 'and there is none'}, "
            f"but is {task}. Set keep_models: best in the plan, and run the comparison again."
        )
    run, kind = models[task], read_json(output_dir / "plan.json")["tasks"][task]["kind"]
    if kind in SENTENCES:
        raise ValueError(
            f"--task must be a task whose model has a head, but {task} is a {kind}, whose model sentence-transformers "
            f"publishes: SentenceTransformer({str(output_dir / 'steps' / run.step.address)!r}).push_to_hub(...)"
        )
    hub_task = HUB_TASKS.get(kind, "text-classification")
    return Source(run, output_dir / "steps" / run.step.address, str(run.step.method), None, hub_task, [task])


def list_settings(result: Result) -> dict[str, Any]:
    """List how a model was trained, and what it cost."""
    settings = {key.replace("_", " "): value for key, value in result.step.flags.items() if is_setting(key)}
    if "learning_rate" in result.metrics:  # as it was chosen
        settings["learning rate"] = result.metrics["learning_rate"]
    if result.max_steps is not None:
        settings["max steps"] = result.max_steps
    if result.tokens is not None:
        settings["tokens"] = f"{result.tokens:,}"
    settings["seconds"] = f"{result.seconds:.0f}"
    settings["versions"] = ", ".join(f"{k} {v}" for k, v in result.environment["versions"].items())
    return settings


def describe_row(source: Source, report: Report) -> str:
    """Say which row of the table a model is of, and how a fine-tuned one was chosen."""
    row = find_row(report, source.method)
    if source.result.step.kind == "best":
        return (
            f"This model is made as {row}, and was fine-tuned on all labeled examples, also those for validation. "
            "So it has no score of its own: those of the row are of models that were trained without them."
        )
    if source.result.score is None:
        step, tokens, seeds = source.result.step, report.plan["budget"]["tokens"], report.plan["pretraining_seeds"]
        if step.rung not in (None, tokens):
            return f"This model is {row} after {step.rung:,} tokens; the table has its scores after {tokens:,}."
        if len(seeds) > 1:
            return (
                f"This model is one of the {len(seeds)} encoders of {row}, with the seed {step.pretraining_seed}; the "
                "row has their means."
            )
        return f"{row} is this model."
    return (
        f"This model is a run of {row}. It has the best validation score of all runs, and a test score of "
        f"{source.result.score:.1f}."
    )


def check_is_outside(folder: Path, output_dir: Path) -> None:
    """Raise a ValueError unless a folder to write lies outside a comparison, and does not contain it."""
    home = output_dir.resolve()
    if home.is_relative_to(folder) or any(folder.is_relative_to(home / name) for name in KEPT):
        raise ValueError(f"--output_dir must lie outside the comparison {home}, but is {folder}. Name another folder.")


def check_publication_folder(folder: Path, output_dir: Path, *, is_whole: bool = True) -> None:
    """Raise unless a folder can be replaced by a publication: nothing that anybody else wrote is ever deleted.

    Args:
        folder: Absolute; need not exist.
        output_dir: Output folder of the comparison.
        is_whole: Whether an earlier publication there was finished.

    Raises:
        ValueError: It holds the comparison, is a part of it, or has files that no publication wrote.
    """
    check_is_outside(folder, output_dir)
    if not folder.exists():
        return
    files = sorted(folder.iterdir()) if folder.is_dir() else [folder]
    # A killed process leaves the file that it was writing.
    names, patterns = [file.name for file in files], [*MODEL_FILES, *MADE_FILES, *["*.unfinished"] * (not is_whole)]
    others = [f.name for f in files if not (f.is_file() and any(fnmatch(f.name, pattern) for pattern in patterns))]
    if others or (names and is_whole and not {"README.md", "config.json", "report.json"} <= {*names}):
        raise ValueError(
            f"--output_dir must be empty or an earlier publication, but {folder} contains "
            f"{', '.join((others or names)[:5])}. Name another folder."
        )


def list_tasks(name: str, method: str, results: Mapping[str, Result]) -> list[str]:
    """List the tasks on which this model was tested: a row of the report may be of several, one for each corpus."""
    tested = (r.step for r in results.values() if r.step.kind == "fine_tuning" and r.step.method == method)
    return sorted({str(step.task) for step in tested if results[name].step.address in step.needs})


def keep_tasks(report: Report, tasks: list[str]) -> Report:
    """Return a report of some of its tasks."""
    kept = {name: options for name, options in report.plan["tasks"].items() if name in tasks}
    differences = {
        method: {task: difference for task, difference in row.items() if task in kept}
        for method, row in report.differences.items()
    }

    def keep(rows: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
        return {method: {task: row[task] for task in row if task in kept} for method, row in rows.items()}

    scores, unlearned = keep(report.scores), keep(report.unlearned)
    plan = report.plan | {"tasks": kept}
    return replace(report, plan=plan, scores=scores, unlearned=unlearned, differences=differences)


def make_results(report: Report) -> str:
    """Write the table of scores for a card, below the sentence on the runs that did not learn, if there are any."""
    scores, unlearned = make_tables(report)["Scores"], list_unlearned(report)
    table = format_markdown_table(scores[(scores != "").any(axis=1)])  # rows of other tasks alone would be empty
    return f"**{unlearned}**\n\n{table}" if unlearned else table


def describe_text(step: Description, plan: dict[str, Any]) -> str:
    """Say what a model was trained on: a corpus of the plan, files of its own, or the texts of a task."""
    if step.task is not None:
        texts = f"{'all labeled' if step.kind == 'best' else 'the training'} texts of {step.task}"
        more = step.flags.get("pseudo_labeled_file")
        return f"{texts}, and those of {Path(more).name}, which a model labeled" if more else texts
    files = step.flags["train_file"]
    if files == plan["corpora"][step.corpus]["train_file"]:
        return str(step.corpus)
    files = files if isinstance(files, list) else [files]
    return f"{step.corpus} ({', '.join(Path(file).name for file in files)})"


def find_start(plan: dict[str, Any], method: str) -> tuple[str, list[str]]:
    """Return the encoder that a method of a plan started from, and what trained it before the method did."""
    stages: list[str] = []
    while (after := plan["methods"][method]["after"]) is not None:
        method, recipe = after, RECIPES[plan["methods"][after]["recipe"]]
        if recipe.method is not None or recipe.averages:
            stages.insert(0, recipe.title)
    return (plan["methods"][method]["encoder"] or plan["encoder"]).rstrip("/"), stages


def is_setting(name: str) -> bool:
    """Return whether a flag says how a model was trained, rather than where files are."""
    return not (
        name in {*TRAINER_OPTIONS, *CHECKPOINTS, "mix", "word_counts"}
        or name.endswith(("_file", "_dir", "_path", "_vocabulary", "_cache", "datastore"))
        or name.startswith(("log", "do_", "use_"))
    )


def find_row(report: Report, method: str) -> str:
    """Return how the table calls a method."""
    return report.plan["titles"][method]


def run_usage(folder: Path, example: str, hub_task: str) -> str:
    """Run the snippet of the card on a folder, without this package; returns what it prints.

    Raises:
        RuntimeError: It fails.
    """
    snippet = make_usage(folder, str(folder.resolve()), example, hub_task)
    command = [sys.executable, "-c", WITHOUT_PACKAGE + snippet]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    if run.returncode:
        raise RuntimeError(f"the snippet of the card fails on {folder}:\n{run.stderr[-2000:]}")
    return run.stdout.strip()


def draw_training(state: Path, picture: Path) -> bool:
    """Draw the training loss that Trainer logged; returns whether there was one."""
    history = read_json(state)["log_history"] if state.is_file() else []
    points = [(entry["step"], entry["loss"]) for entry in history if "loss" in entry]
    if len(points) < 2:
        return False
    from matplotlib.figure import Figure  # unlike pyplot, it leaves the backend of a notebook alone

    figure = Figure(figsize=(6, 3), layout="constrained")
    axes = figure.subplots()
    axes.plot(*zip(*points, strict=True))
    axes.set_xlabel("step")
    axes.set_ylabel("training loss")
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(picture, dpi=120)
    return True
