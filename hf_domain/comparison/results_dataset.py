"""The raw results of a comparison as a dataset for the Hub: a table of its steps, and a table of its predictions.

It holds labels, but no text of a task, no path and no log.
"""

import json
import shutil
from collections.abc import Iterator
from itertools import zip_longest
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from datasets import Features, List, Value
from huggingface_hub import DatasetCard, DatasetCardData, HfApi

from hf_domain.cards import name_package
from hf_domain.comparison.answer import answer
from hf_domain.comparison.publication import check_is_outside, is_setting
from hf_domain.comparison.report import explain, format_markdown_table, make_tables
from hf_domain.comparison.results import Result, read_results
from hf_domain.comparison.scores import MAJORITY
from hf_domain.comparison.summary import read_report
from hf_domain.hub import retry_on_the_hub
from hf_domain.safe_io import explain_full_disk, name_replaced, read_json, replace_folder, restore_folder

FILES = ("README.md", "steps.parquet", "predictions.parquet")
TEXT, WHOLE, REAL = Value("string"), Value("int64"), Value("float64")
STEPS = Features(
    {name: TEXT for name in ("step", "kind", "method", "title", "corpus", "task", "metric", "settings", "status")}
    | {name: WHOLE for name in ("budget", "seed", "pretraining_seed", "fold", "max_steps", "tokens")}
    | {name: REAL for name in ("labels", "score", "majority", "masked_lm_loss", "seconds")}
)
PREDICTIONS = Features(
    {"step": TEXT, "split": TEXT, "example": WHOLE}
    | {"gold": List(TEXT), "predicted": List(TEXT), "gold_value": REAL, "score": REAL}
)
CARD = """---
{metadata}
---

# {name}

The raw results of a comparison of domain adaptation methods by {package}.

{answer}

{table}

{explanation}

```python
from datasets import load_dataset

steps = load_dataset("{name}", "steps", split="train")
predictions = load_dataset("{name}", "predictions", split="train")
```

- `steps` has a row for each training, evaluation and score. `budget` is the number of tokens of the row of the report,
  `labels` the share of the training examples, `majority` the score of the majority baseline, `settings` the flags as
  JSON.
- `predictions` has a row for each example of a scored step: the names of its gold and predicted labels (of a sentence,
  one for each word). For regression and similarity, `gold_value` is the value and `score` the prediction; for questions
  and searches, `score` is the score of the example.
"""


def make_results_dataset(output_dir: Path, folder: Path, *, name: str, license: str | None = None) -> Path:
    """Write the results of a comparison as a dataset, which `load_dataset` reads.

    Args:
        output_dir: Output folder of the comparison.
        folder: Where the dataset is made; an earlier one there is replaced, nothing else is.
        name: Name of the dataset, for its card.
        license: Identifier of the license of the results; None if it is not settled.

    Returns:
        The folder.

    Raises:
        FileNotFoundError: There is no comparison.
        ValueError: No step has a score, or `folder` holds something else.
    """
    folder = folder.resolve()
    unfinished = folder.with_name(f"{folder.name}.unfinished")
    check_dataset_folder(name_replaced(folder), output_dir)
    restore_folder(folder)
    for path in (folder, unfinished):
        check_dataset_folder(path, output_dir)
    results = read_results(output_dir)
    if not any(result.score is not None for result in results.values()):
        raise ValueError(f"{output_dir} must have a score, but no step has one yet. Finish the comparison first.")
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir(parents=True)
    report = read_report(read_json(output_dir / "plan.json"), results)
    done = [result for result in results.values() if result.is_done]
    steps = [describe_step(result, report.titles) for result in results.values()]
    predictions = [row for result in done for row in list_predictions(result)]
    configs = [{"config_name": table, "data_files": f"{table}.parquet"} for table in ("steps", "predictions")]
    tables = make_tables(report)
    card = CARD.format(
        metadata=DatasetCardData(license=license, tags=["hf-domain", "domain-adaptation"], configs=configs),
        name=name,
        package=name_package(),
        answer=answer(report)[0],
        table=format_markdown_table(tables["Means over the tasks"]) + "\n\n" + format_markdown_table(tables["Scores"]),
        explanation=explain(report),
    )
    with explain_full_disk(folder):
        for table, rows, features in (("steps", steps, STEPS), ("predictions", predictions, PREDICTIONS)):
            pq.write_table(pa.Table.from_pylist(rows, features.arrow_schema), unfinished / f"{table}.parquet")
        DatasetCard(card).save(unfinished / "README.md")
        replace_folder(unfinished, folder)
    return folder


def push_results(folder: Path, repo_id: str, *, private: bool | None = None, token: str | None = None) -> str:
    """Push a folder of `make_results_dataset` to the Hub in one commit, and return its URL.

    Args:
        private: Whether a new repository is private; None uses the owner's setting.
        token: Hub token; None uses the token of `hf auth login`.

    Raises:
        PermissionError, ConnectionError: See `retry_on_the_hub`.
    """
    api = HfApi(token=token)

    def push() -> str:
        name = api.create_repo(repo_id, repo_type="dataset", private=private, exist_ok=True).repo_id
        commit = api.upload_folder(
            repo_id=name,
            repo_type="dataset",
            folder_path=folder,
            allow_patterns=list(FILES),
            delete_patterns="*",
            commit_message="Publish the results",
        )
        return commit.commit_url

    return retry_on_the_hub(push, repo_id)


def check_dataset_folder(folder: Path, output_dir: Path) -> None:
    """Raise a ValueError unless a folder is new, empty, or holds only a dataset that this module wrote."""
    check_is_outside(folder, output_dir)
    files = [] if not folder.exists() else sorted(folder.iterdir()) if folder.is_dir() else [folder]
    others = [file.name for file in files if file.name not in FILES]
    if others:
        raise ValueError(
            f"--output_dir must be empty or an earlier dataset of results, but {folder} contains "
            f"{', '.join(others[:5])}. Name another folder."
        )


def describe_step(result: Result, titles: dict[str, str]) -> dict[str, Any]:
    """Return the row of a step: what it is, what it cost, and what it measured."""
    step = result.step
    settings = {name: value for name, value in step.flags.items() if is_setting(name)}
    return {
        "step": step.address,
        "kind": step.kind,
        "method": step.method,
        "title": titles.get(str(step.method)),
        "corpus": step.corpus,
        "task": step.task,
        "metric": step.metric,
        "settings": json.dumps(settings, sort_keys=True),
        "status": result.status,
        "budget": step.rung,
        "seed": step.seed,
        "pretraining_seed": step.pretraining_seed,
        "fold": step.fold,
        "max_steps": result.max_steps,
        "tokens": result.tokens,
        "labels": step.labels,
        "score": result.score,
        "majority": result.floors.get(MAJORITY),
        "masked_lm_loss": result.masked_lm_loss,
        "seconds": result.seconds,
    }


def list_predictions(result: Result) -> Iterator[dict[str, Any]]:
    """Yield a row for each example of the test and validation sets of a step, if it has predictions."""
    for split, own in (("test", result.predictions), ("validation", result.validation)):
        if own is None:
            continue
        columns = zip_longest(own.gold, own.predicted, own.values, own.scores)
        for example, (gold, predicted, value, score) in enumerate(columns):
            yield {
                "step": result.step.address,
                "split": split,
                "example": example,
                "gold": [own.labels[number] for number in gold or ()],
                "predicted": [own.labels[number] for number in predicted or ()],
                "gold_value": value,
                "score": score,
            }
