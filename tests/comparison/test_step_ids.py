"""What a step is: a change of anything that it reads gives it another address."""

import json

from pretended_runs import write_plan
from script_runs import write_jsonl

from hf_domain.comparison import steps
from hf_domain.comparison.prepare import load_plan
from hf_domain.comparison.steps import list_steps


def list_addresses(content, tmp_path):
    """Return the address of each step by its name."""
    plan = load_plan(write_plan(content, tmp_path))
    return {step.name: step.id for step in list_steps(plan, tmp_path / "plan")}


def test_the_text_of_a_task_is_that_of_its_columns(content, tmp_path):
    content["methods"] = {"dapt": None, "tapt": None}
    for file in (tmp_path / "animals").glob("*.jsonl"):
        rows = [json.loads(line) for line in file.read_text().splitlines()]
        write_jsonl(file, [row | {"title": "a title"} for row in rows])
    options = content["tasks"]["animals"]["options"] = {"text_column_names": "text"}
    before = list_addresses(content, tmp_path)
    options["text_column_names"] = "text,title"
    after = list_addresses(content, tmp_path)
    changed = {name for name in before if before[name] != after[name]}
    assert {"tapt-animals", "dapt-animals-seed1"} <= changed and not {"dapt-pets", "tapt-entities"} & changed


def test_an_encoder_in_older_files_is_what_they_hold(content, tmp_path):
    """Many models of 2019 have their weights in pytorch_model.bin."""
    folder = tmp_path / "encoder"
    folder.mkdir()
    files = {"config.json": "{}", "vocab.txt": "a", "pytorch_model.bin": "one"}
    for name, text in files.items():
        (folder / name).write_text(text)
    before = list_addresses(content, tmp_path)
    for name, text in files.items():
        (folder / name).write_text(f"{text} ")
        after = list_addresses(content, tmp_path)
        assert before["dapt-pets"] != after["dapt-pets"], name
        before = after


def test_labels_that_a_score_leaves_out_are_part_of_a_fine_tuning(content, tmp_path):
    content["methods"] = {"dapt": None}
    task = content["tasks"]["animals"]
    task |= {"metric": "positive_micro_f1", "options": {"negative_labels": "cat"}}
    before = list_addresses(content, tmp_path)
    task["options"]["negative_labels"] = "cat,dog"
    after = list_addresses(content, tmp_path)
    changed = {f"dapt-animals-seed{seed}" for seed in (1, 2)}
    assert {name for name in before if before[name] != after[name]} == changed


def test_a_file_named_as_the_text_of_a_task_is_the_one_that_is_read(content, tmp_path):
    content["methods"] = {"tapt": {"tasks": ["animals"], "pretraining": {"train_file": "texts/animals.txt"}}}
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts" / "animals.txt").write_text("a cat\n")
    before = list_addresses(content, tmp_path)
    (tmp_path / "texts" / "animals.txt").write_text("a dog\n")
    assert before["tapt-animals"] != list_addresses(content, tmp_path)["tapt-animals"]


def test_a_mixed_text_is_read(content, tmp_path):
    content["methods"] = {"dapt": None, "replay": {"recipe": "dapt", "pretraining": {"mix": "general.txt:0.1"}}}
    before = list_addresses(content, tmp_path)
    (tmp_path / "general.txt").write_text("a cat")
    after = list_addresses(content, tmp_path)
    changed = {name.partition("-")[0] for name in before if before[name] != after[name]}
    assert changed == {"replay"}


def test_ids_are_those_of_earlier_versions(content, tmp_path, monkeypatch):
    """A field that leaves the steps must not make their results unknown."""
    monkeypatch.setattr(steps, "list_versions", lambda: {"hf-domain": "1"})
    content["methods"], content["learning_rates"] = {"dapt": None, "gmap": None}, [1e-4, 2e-4]
    addresses = list_addresses(content, tmp_path)
    known = {
        "dapt-pets": "f9f0d4f4",
        "dapt-pets-on-general": "ce1a64f9",
        "gmap-entities-rate0.0001": "fd5c2ce3",
        "gmap-animals-seed1": "ee737431",
    }
    assert {name: addresses[name] for name in known} == {name: f"{name}-{digest}" for name, digest in known.items()}
