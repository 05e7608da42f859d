"""A plan with its files, and encoders that are only pretended."""

import re
import time
from types import SimpleNamespace

import pytest
from pretended_runs import METHODS, SENTENCES, pretend, run_comparison, write_plan
from script_runs import write_jsonl

from hf_domain.comparison import report
from hf_domain.comparison import run as runner
from hf_domain.comparison.checks import check_step_flags
from hf_domain.comparison.prepare import load_plan
from hf_domain.comparison.report import write_report
from hf_domain.comparison.steps import name_steps


@pytest.fixture(autouse=True)
def _figures(request, monkeypatch):
    """Reports have a figure in tests marked `figures` only: drawing takes a quarter of the time of these tests."""
    if request.node.get_closest_marker("figures") is None:
        monkeypatch.setattr(report, "draw_gains", lambda *_: "")


@pytest.fixture
def content(tmp_path):
    """A plan as YAML has it; its files are beside it."""
    for name in ("corpus", "heldout", "general", "general_heldout"):
        (tmp_path / f"{name}.txt").write_text("\n".join(SENTENCES) + "\n" * ("heldout" in name))
    texts = [{"text": f"{text} {i}", "label": text.split()[1]} for i, text in enumerate(SENTENCES[:24])]
    tagged = [
        {"tokens": [*text.split(), str(i)], "tags": ["O", "B-A", *"OOOOO"]} for i, text in enumerate(SENTENCES[:12])
    ]
    for split in ("train", "validation", "test"):
        for task, rows in (("animals", texts), ("entities", tagged)):
            (tmp_path / task).mkdir(exist_ok=True)
            write_jsonl(tmp_path / task / f"{split}.jsonl", rows)
    return {
        "encoder": "encoder",
        "corpora": {
            "pets": {"train_file": "corpus.txt", "validation_file": "heldout.txt"},
            "general": {"train_file": "general.txt", "validation_file": "general_heldout.txt"},
        },
        "general": "general",
        "tasks": {
            "animals": {"kind": "classification", "folder": "animals", "corpus": "pets"},
            "entities": {"kind": "ner", "folder": "entities", "corpus": "pets"},
        },
        "methods": dict(METHODS),
        "seeds": [1, 2],
        "budget": {"tokens": 1000},
        "pretraining": {"per_device_train_batch_size": 4, "max_seq_length": 16, "use_cpu": True},
        "fine_tuning": {"num_train_epochs": 1, "use_cpu": True},
    }


@pytest.fixture
def load(content, tmp_path):
    """Loads the plan, with changes of its fields."""
    return lambda **changes: load_plan(write_plan(content | changes, tmp_path))


@pytest.fixture
def refuse(load):
    """Returns the message that refuses the plan, with changes of its fields."""

    def refuse(**changes):
        with pytest.raises(ValueError, match="nothing was run") as error:
            load(**changes)
        return str(error.value)

    return refuse


@pytest.fixture
def list_by_name(load, tmp_path):
    """Returns the steps of the plan by their names, with changes of its fields; commands take their flags."""

    def list_by_name(**changes):
        steps = name_steps(load(**changes), tmp_path / "plan")
        check_step_flags(steps)
        return {step.name: step for step in steps}

    return list_by_name


@pytest.fixture
def run_plan(load, tmp_path):
    """Runs the plan, with changes of its fields, in the folder `plan`; returns its report."""

    def run_plan(execute=pretend, **changes):
        run_comparison(load(**changes), tmp_path / "plan", execute=execute)
        return write_report(tmp_path / "plan")

    return run_plan


@pytest.fixture(autouse=True)
def vocabularies(monkeypatch):
    """Digests of the vocabularies of encoders that are only pretended."""
    known = {}

    def digest(encoder):
        name = re.sub(r"-[0-9a-f]{8}$", "", encoder.rpartition("/")[2])
        return known.get(name, "expanded" if name.startswith(("adalm", "exbert", "lora")) else "usual")

    monkeypatch.setattr(runner, "digest_vocabulary", digest)
    return known


@pytest.fixture
def plan(content, tmp_path, monkeypatch):
    monkeypatch.setattr(runner, "time", SimpleNamespace(time=time.time, perf_counter=lambda: 0.0))
    return load_plan(write_plan(content, tmp_path))


@pytest.fixture
def ran():
    """The names of the steps that `note` ran."""
    return []


@pytest.fixture
def note(ran):
    def note(step, plan, folder):
        ran.append(step.name)
        pretend(step, plan, folder)

    return note
