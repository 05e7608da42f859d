"""An output folder belongs to one run, which continues there and is not overwritten."""

import json
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from checkpoints import write_checkpoint
from safetensors import SafetensorError
from safetensors.torch import save_file

from hf_domain import cli
from hf_domain.examples import predict
from hf_domain.safe_io import lock_folder
from hf_domain.training.run_folder import clear_folder, find_checkpoint, run_in_folder


@dataclass
class Options:
    output_dir: str
    rate: float = 0.1
    train_file: str | None = None
    mix: str | None = None
    words_file: list[str] | None = None
    model_name_or_path: str | None = None
    cache_dir: str | None = None
    overwrite_output_dir: bool = False
    resume_from_checkpoint: str | None = None
    learning_rate: float | None = None
    push_to_hub: bool = False
    hub_model_id: str | None = None


@pytest.fixture
def run(tmp_path):
    """Run a command that writes a model; returns whether it ran."""

    def call(work=None, output="output", **options):
        ran = []

        def write(options):
            ran.append(True)
            if work is not None:
                work()
            (tmp_path / output / "config.json").write_text(f"{options.rate:.1f}")

        run_in_folder(write, Options(str(tmp_path / output), **options))
        return bool(ran)

    return call


def test_finished_run_is_left_alone(run, tmp_path, capsys):
    assert run(cache_dir="a")
    assert not run(cache_dir="b")
    assert "output; nothing to do. --overwrite_output_dir repeats it" in capsys.readouterr().out
    assert run(overwrite_output_dir=True)
    assert not list((tmp_path / "output").glob("*lock*"))


@pytest.mark.parametrize(
    "name", ["config.json", "model.safetensors", "model.safetensors.index.json", "adapter/adapter_model.safetensors"]
)
@pytest.mark.parametrize("lose", [Path.unlink, lambda file: file.write_bytes(file.read_bytes()[:-1])])
def test_finished_run_without_its_model_runs_again(run, tmp_path, caplog, name, lose):
    def save():
        file = tmp_path / "output" / name
        file.parent.mkdir(exist_ok=True)
        save_file({"weight": torch.ones(1)}, file) if file.suffix == ".safetensors" else file.write_text("{}")

    run(save)
    assert not run(save)
    lose(tmp_path / "output" / name)
    assert run(save)
    assert f"output was finished, but {name} is missing or damaged: it runs again" in caplog.text
    assert not run(save)


def test_another_run_is_refused(run, tmp_path):
    run()
    before = (tmp_path / "output" / "_run.json").read_text()
    with pytest.raises(ValueError, match=r"another run, finished, with rate 0.1, now 0.2. Name another"):
        run(rate=0.2)
    assert (tmp_path / "output" / "config.json").read_text() == "0.1"
    assert (tmp_path / "output" / "_run.json").read_text() == before
    run(rate=0.2, overwrite_output_dir=True)
    assert (tmp_path / "output" / "config.json").read_text() == "0.2"


def test_what_a_named_checkpoint_holds_is_not_changed(run, tmp_path):
    """Optimizer and scheduler restore the rate, and the card would state the other one."""
    run(lambda: write_checkpoint(tmp_path / "output" / "checkpoint-1"), learning_rate=0.1)
    named = {"resume_from_checkpoint": str(tmp_path / "output" / "checkpoint-1")}
    with pytest.raises(ValueError, match=r"learning_rate 0.1, now 0.2. .* --model_name_or_path .*checkpoint-1,"):
        run(**named, learning_rate=0.2)
    assert run(**named, learning_rate=0.1, rate=0.2)


def test_a_finished_run_is_not_pushed_to_another_repository(run, tmp_path, capsys):
    assert run()
    with pytest.raises(ValueError, match=r"finished without a push\. Push the folder with hf upload"):
        run(push_to_hub=True, hub_model_id="me/one")
    for repository in (None, "me/one"):
        pushes = {"push_to_hub": True, "output": f"pushed-{repository is None}"}
        assert run(**pushes, hub_model_id=repository)
        assert not run(**pushes, hub_model_id=repository)
        with pytest.raises(ValueError, match=r"finished and pushed to another repository\. Push the folder"):
            run(**pushes, hub_model_id="me/two")
    record = json.loads((tmp_path / "pushed-True" / "_run.json").read_text())
    del record["hub_model_id"]  # of an earlier release
    (tmp_path / "pushed-True" / "_run.json").write_text(json.dumps(record))
    assert not run(push_to_hub=True, output="pushed-True", hub_model_id="me/two")


def test_a_run_is_what_the_files_of_its_options_hold(run, tmp_path):
    domain, general, text = (tmp_path / name for name in ("domain", "general", "text"))
    for file in (domain, general, text, tmp_path / "moved"):
        file.write_text("one")
    options = {"mix": f"{general}:0.2", "words_file": [str(domain), str(general)], "train_file": str(text)}
    run(**options)
    assert not run(**options | {"mix": f"{tmp_path}/moved:0.2", "train_file": f"{tmp_path}/moved"})
    with pytest.raises(ValueError, match=r"with mix '0.2', now '0.3'"):
        run(**options | {"mix": f"{general}:0.3"})
    domain.write_text("two")
    with pytest.raises(ValueError, match=r"with other content of words_file\. "):
        run(**options)
    general.write_text("two")
    text.write_text("two")
    with pytest.raises(ValueError, match=r"with other content of mix_file; .* of train_file; .* of words_file"):
        run(**options)


def test_files_of_somebody_are_not_overwritten(run, tmp_path):
    (tmp_path / "output").mkdir()
    (tmp_path / "output" / "README.md").write_text("mine")
    with pytest.raises(ValueError, match=r"must not contain files of a model, but .*output has README.md"):
        run()
    with pytest.raises(ValueError, match="must differ from the folders that the run reads"):
        run(model_name_or_path=str(tmp_path / "output"), overwrite_output_dir=True)
    assert [path.name for path in (tmp_path / "output").iterdir()] == ["README.md"]


def test_failed_run_leaves_nothing_and_may_be_corrected(run, tmp_path):
    def fail():
        raise ValueError("refused")

    with pytest.raises(ValueError, match="refused"):
        run(fail, rate=7.0)
    assert not (tmp_path / "output").exists()
    assert run(rate=0.1)


def test_a_replaced_run_leaves_no_results(run, tmp_path):
    """An evaluation beside a later prediction would pass for one of the same model."""
    names = (
        "all_results.json",
        "eval_results.json",
        "eval_predictions.txt",
        "predict_predictions.json",
        "eval_nbest_predictions.json",
        "predict_null_odds.json",
    )
    run(lambda: [(tmp_path / "output" / name).write_text("{}") for name in (*names, "notes.json")])
    run(overwrite_output_dir=True)
    assert {path.name for path in (tmp_path / "output").iterdir()} == {"_run.json", "config.json", "notes.json"}


def test_a_second_process_is_refused_with_the_name_of_the_first(run, tmp_path):
    # As the command is called, so that importing the package leaves torch out.
    code = "import sys, time; sys.argv[0] = 'hf-domain'; from hf_domain.safe_io import lock_folder\n"
    code += "with lock_folder(sys.argv[1]):\n    print('locked', flush=True)\n    time.sleep(600)"
    command = [sys.executable, "-c", code, str(tmp_path / "output")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout.readline() == "locked\n"
            holder = f"process {process.pid} on .* is writing into {tmp_path}/output. Wait"
            with pytest.raises(ValueError, match=holder):
                run()
        finally:
            process.kill()
    assert run()


def test_full_disk_is_named(run, tmp_path):
    def fail():
        raise RuntimeError("safetensors lost the number: No space left on device (os error 28)")

    with pytest.raises(OSError, match=rf"room on the disk of {tmp_path}/output.*repeat the command"):
        run(fail)
    with pytest.raises(OSError, match="the disk of some/file"), lock_folder(tmp_path):
        raise RuntimeError("lost") from OSError(28, "No space left on device", "some/file")


def test_full_disk_ends_every_command_in_one_line(monkeypatch):
    def fail():
        raise SafetensorError("I/O error: No space left on device (os error 28)")

    monkeypatch.setattr(predict, "main", fail)
    monkeypatch.setattr(sys, "argv", ["hf-domain", "predict", "model", "texts.txt", "--output_file", "labels.jsonl"])
    with pytest.raises(SystemExit, match=r"error: a file needs room on the disk of \., but"):
        cli.main()
    monkeypatch.setattr("hf_domain.cli.check_flags", lambda *_: None)
    for arguments in (["--output_dir", "mine"], ["--output_dir=mine"]):
        monkeypatch.setattr(sys, "argv", ["hf-domain", "predict", *arguments])
        with pytest.raises(SystemExit, match="error: a file needs room on the disk of mine, but"):
            cli.main()


@pytest.mark.parametrize("broken", ["", "{"])
def test_newest_whole_checkpoint(tmp_path, broken):
    assert find_checkpoint(tmp_path / "nothing") is None
    for number in (2, 10, 20):
        write_checkpoint(tmp_path / f"checkpoint-{number}")
    assert find_checkpoint(tmp_path) == str(tmp_path / "checkpoint-20")
    (tmp_path / "checkpoint-20" / "config.json").write_text(broken)
    write_checkpoint(tmp_path / "checkpoint-30", state=None)
    write_checkpoint(tmp_path / "checkpoint-40", state='{"epoch": ')
    write_checkpoint(tmp_path / "checkpoint-best")
    for number, name in enumerate(("model.safetensors", "optimizer.pt", "scheduler.pt", "rng_state.pth")):
        half = write_checkpoint(tmp_path / f"checkpoint-5{number}") / name
        half.write_bytes(half.read_bytes()[:-20])
        (write_checkpoint(tmp_path / f"checkpoint-6{number}") / name).unlink()
    assert find_checkpoint(tmp_path) == str(tmp_path / "checkpoint-10")


def test_a_checkpoint_without_the_random_state_of_a_killed_process(tmp_path, monkeypatch):
    for number in (1, 2):
        checkpoint = write_checkpoint(tmp_path / f"checkpoint-{number}")
        (checkpoint / "rng_state.pth").rename(checkpoint / "rng_state_0.pth")
    shutil.copy(tmp_path / "checkpoint-1" / "rng_state_0.pth", tmp_path / "checkpoint-1" / "rng_state_1.pth")
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert find_checkpoint(tmp_path) == str(tmp_path / "checkpoint-1")
    clear_folder(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint-1"]


def test_leftovers_of_a_kill_are_removed_and_chosen_weights_stay(run, tmp_path):
    def stop():
        write_checkpoint(tmp_path / "output" / "checkpoint-1")
        write_checkpoint(tmp_path / "output" / "checkpoint-2", state=None)
        (write_checkpoint(tmp_path / "output" / "checkpoint-3") / "optimizer.pt").unlink()  # --save_only_model
        (tmp_path / "output" / "_unfinished").mkdir()
        (tmp_path / "output" / "all_results.json").write_text("{")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(stop)
    run()
    names = {path.name for path in (tmp_path / "output").iterdir()}
    assert names == {"_run.json", "checkpoint-1", "checkpoint-3", "config.json"}
    run(overwrite_output_dir=True)
    assert {path.name for path in (tmp_path / "output").iterdir()} == {"_run.json", "config.json"}
    shutil.rmtree(tmp_path / "output")
    write_checkpoint(tmp_path / "output" / "checkpoint-1")
    with pytest.raises(ValueError, match=r"has checkpoint-1\. Name another"):
        run()
    assert json.loads((tmp_path / "output" / "checkpoint-1" / "trainer_state.json").read_text()) == {}
