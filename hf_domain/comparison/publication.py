"""A model of a comparison, ready for the Hub: weights, tokenizer, code, pictures, and a card with what was measured."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

from hf_domain.comparison.report import Report, explain, format_markdown_table, make_tables, write_report
from hf_domain.comparison.results import read_results
from hf_domain.comparison.steps import TRAINER_OPTIONS
from hf_domain.publishing import make_usage, write_model_card
from hf_domain.results import read_json

# Of a saved model: what it takes to load it. Metrics, logs and the state of the trainer stay at home.
PUBLISHED = ("config.json", "*.safetensors", "*.safetensors.index.json", "*.py", "tokenizer*", "vocab*", "merges.txt")
WITHOUT_PACKAGE = "import sys\nsys.modules['hf_domain'] = None\n"


def make_publication(
    output_dir: Path,
    method: str,
    corpus: str,
    folder: Path,
    *,
    model_name: str,
    licence: str | None,
    licence_note: str,
    limits: str,
    example: str,
    language: str = "en",
) -> Path:
    """Gather a model that a comparison trained, and write its card from the results.

    The usage snippet of the card is run on the folder in a process that cannot import this package; what it prints
    stands in the card.

    Args:
        output_dir: Of the comparison.
        method: Of the plan.
        corpus: Of the plan; what the model was trained on.
        folder: Where the publication is made; an earlier one there is replaced.
        model_name: Name of the model, as its users will write it.
        licence: Identifier of the licence of the weights; None if it is not settled.
        licence_note: Licences of base model and data.
        limits: What it was not tested for.
        example: A sentence with the tokenizer's mask token, for the snippet.
        language: Code of the language of the corpus.

    Returns:
        The folder.

    Raises:
        ValueError: The comparison did not train such a model.
        RuntimeError: The snippet fails.
    """
    name, results = f"{method}-{corpus}", read_results(output_dir)
    trained = output_dir / "steps" / name
    if results.get(name, {}).get("status") != "done" or not (trained / "config.json").is_file():
        made = sorted(n for n, r in results.items() if r["kind"] == "pretraining" and r["status"] == "done")
        raise ValueError(f"{output_dir} has no trained model {name}; there are {', '.join(made) or 'none'}")
    report, result = write_report(output_dir), results[name]
    unfinished = folder.with_name(f"{folder.name}.unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir(parents=True)
    for pattern in PUBLISHED:
        for file in trained.glob(pattern):
            shutil.copy(file, unfinished)
    pictures = [name for name in ("differences.png", "forgetting.png") if (output_dir / name).is_file()]
    for picture in (*pictures, "report.json"):
        shutil.copy(output_dir / picture, unfinished)
    if draw_training(trained / "trainer_state.json", unfinished / "training.png"):
        pictures.append("training.png")
    run_method = result["flags"]["method"]
    settings = {key.replace("_", " "): value for key, value in result["flags"].items() if is_setting(key)}
    settings |= {
        "max steps": result["max_steps"],
        "tokens": f"{result['tokens']:,}",
        "seconds": f"{result['seconds']:.0f}",
    }
    settings["versions"] = ", ".join(f"{k} {v}" for k, v in result["environment"]["versions"].items())
    base = report.plan["encoder"].rstrip("/")
    write_model_card(
        unfinished,
        method=run_method,
        model_name=model_name,
        base_model=Path(base).name if Path(base).exists() or base.startswith(".") else base,
        corpus=corpus,
        settings=settings,
        limits=limits,
        licence=licence,
        licence_note=licence_note,
        example=example,
        usage_output=run_usage(unfinished, run_method, example),
        language=language,
        results_table=format_markdown_table(make_tables(report)["Scores"]),
        results_note=f"{find_row(report, method)} is this model. {explain(report)}",
        pictures=pictures,
    )
    shutil.rmtree(folder, ignore_errors=True)
    os.replace(unfinished, folder)
    return folder


def is_setting(name: str) -> bool:
    """Return whether a flag says how a model was trained, rather than where files are."""
    return not (
        name in TRAINER_OPTIONS
        or name.endswith(("_file", "_dir", "_path", "_vocabulary"))
        or name.startswith(("log", "do_", "use_"))
    )


def find_row(report: Report, method: str) -> str:
    """Return how the table calls a method."""
    return report.plan["titles"][method]


def run_usage(folder: Path, method: str, example: str) -> str:
    """Run the snippet of the card on a folder, without this package; returns what it prints.

    Raises:
        RuntimeError: It fails.
    """
    snippet = make_usage(method, str(folder.resolve()), example)
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
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(6, 3))
    axes.plot(*zip(*points, strict=True))
    axes.set_xlabel("step")
    axes.set_ylabel("training loss")
    axes.spines[["top", "right"]].set_visible(False)
    figure.tight_layout()
    figure.savefig(picture, dpi=120)
    pyplot.close(figure)
    return True
