"""A method trains with the same defaults behind every door: the command, Python and a plan."""

import sys

import pytest
from pretended_runs import write_plan
from script_runs import save_tiny_bert
from tiny_tokenizers import SENTENCES

import hf_domain
from hf_domain import adaptation, fine_tuning
from hf_domain.comparison.prepare import load_plan
from hf_domain.comparison.steps import list_steps
from hf_domain.examples import run_classification, run_mlm
from hf_domain.training.arguments import parse_arguments
from hf_domain.training.overrides import load_config


class Stop(Exception):
    """Ends a run before it loads anything."""


@pytest.fixture
def catch(monkeypatch):
    """Return the values that decide on the training of a call, which stops before it."""

    def stop(*arguments, **_):
        caught.extend(arguments[-4:])
        raise Stop

    def catch(call, *args, **options):
        caught.clear()
        with pytest.raises(Stop):
            call(*args, **options)
        return list_deciding(*caught)

    caught = []
    monkeypatch.setattr(adaptation, "pretrain", stop)
    monkeypatch.setattr(fine_tuning, "run_fine_tuning", stop)
    return catch


def list_deciding(model_args, data_args, passage_args, training_args):
    return {
        "options": load_config(model_args)[1],
        "batch": training_args.per_device_train_batch_size,
        "warm-up": training_args.warmup_steps,
        "rate": training_args.learning_rate,
        "rate of the method": model_args.method_learning_rate,
        "passages": passage_args.num_passages,
        "sampling": str(training_args.train_sampling_strategy),
    }


def parse(monkeypatch, script, flags):
    command = [f"--{name}={value}" for name, value in flags.items() if value is not None]
    monkeypatch.setattr(sys, "argv", ["script", *command])
    return list_deciding(*parse_arguments(*script.ARGUMENTS))


@pytest.fixture
def list_flags(content, tmp_path):
    """Return the flags of a step of a row, in a plan that says nothing else."""
    content["encoder"] = str(save_tiny_bert(tmp_path / "encoder", SENTENCES))

    def list_flags(row, start, command):
        kind = "pretraining" if command == "mlm" else "fine_tuning"
        for name in ("pretraining", "fine_tuning"):
            content.pop(name, None)
        content["budget"] = {"tokens": 4096}
        content["methods"] = {"row": {"recipe": row, kind: {"start": start}}}
        steps = list_steps(load_plan(write_plan(content, tmp_path)), tmp_path / "plan")
        return next(step.flags for step in steps if step.kind == kind and step.command == command)

    return list_flags


@pytest.mark.parametrize("start", ["recommended", "paper"])
@pytest.mark.parametrize(
    ("method", "row"),
    [*((name, name) for name in ("dapt", "lora", "varmae", "exbert")), ("gmap", "gmap_mlm"), ("rada", "rada_mlm")],
)
def test_of_masked_lm(method, row, start, catch, list_flags, tmp_path, monkeypatch):
    planned = parse(monkeypatch, run_mlm, list_flags(row, start, "mlm"))
    encoder = str(tmp_path / "encoder")
    own = {"model_name_or_path": encoder, "train_file": tmp_path / "corpus.txt", "output_dir": tmp_path / "output"}
    own |= {"method": method, "start": start, "datastore": tmp_path if method == "rada" else None}
    own |= {"memory_name_or_path": encoder if method == "gmap" else None}
    commanded = parse(monkeypatch, run_mlm, own)
    given = {"memory": own["memory_name_or_path"], "start": start, "output_dir": tmp_path / "called"}
    called = catch(hf_domain.adapt, encoder, ["a text"], method, **given)
    assert commanded == called == planned
    assert commanded["options"].get("unmasked_ratio") == ({"recommended": 0.15}.get(start) if row == "varmae" else None)


@pytest.mark.parametrize("start", ["recommended", "paper"])
@pytest.mark.parametrize(("method", "row"), [("plain", "no_adaptation"), ("rada", "rada")])
def test_of_tasks(method, row, start, catch, list_flags, tmp_path, monkeypatch):
    planned = parse(monkeypatch, run_classification, list_flags(row, start, "classification"))
    encoder = str(tmp_path / "encoder")
    own = {"model_name_or_path": encoder, "train_file": tmp_path / "animals/train.jsonl", "method": method}
    own |= {"output_dir": tmp_path / "output", "start": start, "datastore": tmp_path if method == "rada" else None}
    commanded = parse(monkeypatch, run_classification, own)
    given = {"method": method, "start": start, "datastore": own["datastore"], "output_dir": tmp_path / "called"}
    called = catch(hf_domain.fine_tune, encoder, tmp_path / "animals", **given)
    assert commanded == called == planned
