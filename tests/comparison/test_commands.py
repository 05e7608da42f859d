"""The commands of the answer make the encoder that the comparison made."""

import shlex
import sys

import pytest
from pretended_runs import SENTENCES, Shared, get_address, pretend, run_comparison, write_plan
from safetensors.torch import load_file
from script_runs import save_tiny_bert, write_jsonl

from hf_domain import cli
from hf_domain.comparison import engine
from hf_domain.comparison.plan_loading import load_plan
from hf_domain.comparison.report import write_report
from hf_domain.safe_io import read_json


def test_commands_train_the_row_from_the_encoder_of_the_plan(content, tmp_path, monkeypatch):
    """Bit for bit: two rows of two stages, a trunk that the branch replaces, and one with another objective."""
    save_tiny_bert(tmp_path / "encoder", SENTENCES)
    del content["tasks"]["entities"]
    content |= {"methods": {"dapt": None, "tapt_after_dapt": None, "clm_detour": None}, "general": None}
    content |= {"budget": {"tokens": [1280]}, "evaluation": "probe"}
    monkeypatch.chdir(tmp_path)

    def run(command):
        monkeypatch.setattr(sys, "argv", command)
        cli.main()

    def execute(step, plan, folder):
        if step.kind in ("trunk", "pretraining"):
            run(["hf-domain", step.command, *step.list_arguments()])
        else:
            pretend(step, plan, folder)

    engine.run_comparison(load_plan(write_plan(content, tmp_path)), tmp_path / "plan", Shared(execute))
    report = write_report(tmp_path / "plan")
    assert [len(commands) for commands in report.commands.values()] == [1, 2, 2]
    for method, name in (("tapt_after_dapt", "tapt_after_dapt-animals-1280"), ("clm_detour", "clm_detour-pets-1280")):
        for command in report.commands[method]:
            run(shlex.split(shlex.join(command)))
        made = load_file(tmp_path / "plan" / "steps" / get_address(tmp_path / "plan", name) / "model.safetensors")
        own = load_file(tmp_path / method / "model.safetensors")
        assert own.keys() == made.keys() and all(own[key].equal(made[key]) for key in made)
        assert not made["bert.embeddings.word_embeddings.weight"].equal(
            load_file(tmp_path / "encoder" / "model.safetensors")["bert.embeddings.word_embeddings.weight"]
        )


def test_a_corpus_may_lie_where_texts_of_tasks_are_written(content, tmp_path):
    """With the name of a task, too: its command must not read the text of the task."""
    (tmp_path / "texts").mkdir()
    (tmp_path / "corpus.txt").rename(tmp_path / "texts" / "animals.txt")
    content["corpora"]["pets"]["train_file"] = "texts/animals.txt"
    content |= {"methods": {"dapt": None, "tapt": None}, "general": None}
    del content["tasks"]["entities"]
    run_comparison(load_plan(write_plan(content, tmp_path)), tmp_path / "plan", pretend)
    commands = write_report(tmp_path / "plan").commands
    files = {row: command[0][command[0].index("--train_file") + 1] for row, command in commands.items()}
    assert files == {"dapt": "texts/animals.txt", "tapt": "plan/texts/animals.txt"}


@pytest.fixture
def compared(content, tmp_path):
    """Pretend a comparison of rows that start from vocabularies, datastores and folds."""
    rows = {"dapt": None, "adalm": None, "more": {"recipe": "varmae", "after": "adalm"}, "rada": None}
    content |= {"methods": rows, "general": None, "budget": {"minutes": 1}}
    content["tasks"]["animals"]["folds"] = 2
    texts = [{"text": f"{text} {number}", "label": text.split()[1]} for number, text in enumerate(SENTENCES)]
    write_jsonl(tmp_path / "animals" / "train.jsonl", texts)
    run_comparison(load_plan(write_plan(content, tmp_path), tmp_path / "elsewhere"), tmp_path / "elsewhere", pretend)
    return write_report(tmp_path / "elsewhere")


def test_commands_follow_each_other_and_name_files_that_are_there(compared, tmp_path):
    for commands in compared.commands.values():
        made = {"encoder"}
        for command in commands:
            words = [word for word in command if word.startswith(("--", "elsewhere/")) or "/" in word]
            assert all((tmp_path / word).exists() for word in words if word.startswith("elsewhere/"))
            read = [command[command.index("--model_name_or_path") + 1]]
            read += [command[command.index(f) + 1] for f in ("--expanded_vocabulary", "--datastore") if f in command]
            assert {*read} <= made
            made.add(command[-1])
    assert [command[1] for command in compared.commands["more"]] == ["expand_vocab", "mlm", "mlm"]
    assert [command[1] for command in compared.commands["rada"]] == ["build_datastore", "classification"]
    assert "elsewhere/data/" in str(compared.commands["rada"][1])  # the folds


def test_commands_train_as_many_steps_as_fitted_into_the_minutes(compared, tmp_path):
    steps = read_json(tmp_path / "elsewhere" / "results" / f"{get_address(tmp_path / 'elsewhere', 'dapt-pets')}.json")
    (command,) = compared.commands["dapt"]
    assert command[command.index("--max_steps") + 1] == str(steps["max_steps"]) == "120"


def test_commands_are_left_out_where_a_stage_has_no_result(content, tmp_path):
    content["methods"] = {"dapt": None, "more": {"recipe": "varmae", "after": "dapt"}}
    run_comparison(load_plan(write_plan(content, tmp_path)), tmp_path / "plan", execute=pretend)
    (tmp_path / "plan" / "results" / f"{get_address(tmp_path / 'plan', 'dapt-pets')}.json").unlink()
    report = write_report(tmp_path / "plan")
    assert report.commands["more"] == [] and "tokens" not in report.costs["more"]
