"""What a step is: a change of anything that it reads gives it another address."""

import json

from pretended_runs import write_plan
from script_runs import write_jsonl

from hf_domain.comparison.descriptions import list_jobs
from hf_domain.comparison.plan_loading import load_plan


def list_addresses(content, tmp_path):
    """Return the address of each step by its name."""
    plan = load_plan(write_plan(content, tmp_path))
    return {job.name: job.address for job in list_jobs(plan, tmp_path / "plan")}


def test_the_text_of_a_task_is_that_of_its_columns(content, tmp_path):
    content["methods"] = {"dapt": None, "tapt": None, "rada_task": None}
    for file in (tmp_path / "animals").glob("*.jsonl"):
        rows = [json.loads(line) for line in file.read_text().splitlines()]
        write_jsonl(file, [row | {"title": "a title"} for row in rows])
    options = content["tasks"]["animals"]["options"] = {"text_column_names": "text"}
    before = list_addresses(content, tmp_path)
    options["text_column_names"] = "text,title"
    after = list_addresses(content, tmp_path)
    changed = {name for name in before if before[name] != after[name]}
    read = {"tapt-animals", "datastore-animals", "dapt-animals-seed1", "rada_task-animals-seed2"}
    assert read <= changed and not {"dapt-pets", "tapt-entities", "datastore-entities"} & changed


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
