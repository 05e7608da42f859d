"""What is run, killed, resumed, failed and shared."""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from multiprocessing.process import BaseProcess
from types import SimpleNamespace

import pytest
from checkpoints import write_checkpoint
from pretended_runs import SENTENCES, get_address, get_result, pretend, read_files, run_comparison, write_plan
from script_runs import save_tiny_bert

from hf_domain.comparison import run as runner
from hf_domain.comparison.report import write_report
from hf_domain.comparison.run import Interrupted, digest_vocabulary
from hf_domain.comparison.steps import Step, list_steps
from hf_domain.safe_io import read_json, write_json
from hf_domain.training import run_folder
from hf_domain.training.run_folder import METRICS, find_checkpoint


@pytest.mark.figures
def test_comparison_killed_anywhere_ends_in_the_same_report(plan, tmp_path):
    results = run_comparison(plan, tmp_path / "whole", execute=pretend)
    assert all(result.is_done for result in results)
    write_report(tmp_path / "whole")
    numbers = random.Random(0)
    for _ in range(10):
        remaining = numbers.randrange(1, 12)

        def kill(step, plan, folder, numbers=numbers):
            nonlocal remaining
            remaining -= 1
            if numbers.random() < 0.5 or remaining:
                pretend(step, plan, folder)
            if not remaining:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            run_comparison(plan, tmp_path / "killed", execute=kill)
    run_comparison(plan, tmp_path / "killed", execute=pretend)
    write_report(tmp_path / "killed")
    whole, killed = read_files(tmp_path / "whole"), read_files(tmp_path / "killed")
    assert whole.keys() == killed.keys() >= {"report.md", "report.html", "report.json", "gains.png"}
    for name, value in whole.items():
        assert value == killed[name].replace(b"killed", b"whole"), name


def test_what_is_done_is_not_run_again(plan, tmp_path, ran, note):
    run_comparison(plan, tmp_path / "output", execute=pretend)
    run_comparison(plan, tmp_path / "output", execute=note)
    assert ran == []
    get_result(tmp_path / "output", "dapt-animals-seed2").unlink()
    run_comparison(plan, tmp_path / "output", execute=note)
    assert ran == ["dapt-animals-seed2"]


@pytest.mark.parametrize("lost", ["folders", "weights"])
def test_missing_encoder_is_made_again_when_needed(plan, tmp_path, ran, note, lost):
    run_comparison(plan, tmp_path / "output", execute=pretend)
    if lost == "folders":
        shutil.rmtree(tmp_path / "output" / "steps")
    else:
        (tmp_path / "output" / "steps" / get_address(tmp_path / "output", "dapt-pets") / "model.safetensors").unlink()
    plan.keep_models = "none"
    run_comparison(plan, tmp_path / "output", execute=note)
    assert ran == []
    get_result(tmp_path / "output", "gmap-animals-seed2").unlink()

    def kill(step, plan, folder):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):  # an encoder of which nothing but the folder is there yet
        run_comparison(plan, tmp_path / "output", execute=kill)
    run_comparison(plan, tmp_path / "output", execute=note)
    assert ran == ["dapt-pets", "gmap-animals-seed2"]


def test_failed_runs_are_reported_and_tried_again(plan, tmp_path):
    def fail(step, plan, folder):
        if step.name == "exbert-pets":
            raise IndexError
        if step.name in ("varmae-pets", "dapt-animals-seed2"):
            raise RuntimeError("out of <memory>")
        pretend(step, plan, folder)

    run_comparison(plan, tmp_path / "output", execute=fail)
    report = write_report(tmp_path / "output")
    assert report.failed["dapt-animals-seed2"] == "out of <memory>" and report.failed["exbert-pets"] == "IndexError"
    assert report.failed["varmae-animals-seed1"] == "it needs varmae-pets, which failed"
    text = (tmp_path / "output" / "report.md").read_text()
    assert "[1 of 2 runs]" in text
    assert "| VarMAE | no result | no result |" in text
    assert "out of &lt;memory&gt;" in (tmp_path / "output" / "report.html").read_text()
    assert "<memory>" not in (tmp_path / "output" / "report.html").read_text()
    run_comparison(plan, tmp_path / "output", execute=pretend)
    assert write_report(tmp_path / "output").failed == {}


def test_checkpoint_is_resumed_and_that_of_other_settings_is_not(content, tmp_path, load):
    def stop(step, plan, folder):
        if step.name != "dapt-pets":
            return pretend(step, plan, folder)
        write_checkpoint(folder / "checkpoint-16")
        raise KeyboardInterrupt

    found = []

    def look(step, plan, folder):
        found.append((step.name, (folder / "checkpoint-16").is_dir()))
        pretend(step, plan, folder)

    content["methods"] = {"dapt": {"pretraining": {"learning_rate": 1e-4}}}
    with pytest.raises(KeyboardInterrupt):
        run_comparison(load(), tmp_path / "output", execute=stop)
    for learning_rate, kept in ((1e-5, False), (1e-4, True)):
        content["methods"]["dapt"] = {"pretraining": {"learning_rate": learning_rate}}
        found.clear()
        run_comparison(load(), tmp_path / "output", execute=look)
        assert ("dapt-pets", kept) in found


@pytest.mark.faults
@pytest.mark.parametrize("end", ["kill", "Ctrl-C"])
def test_step_ends_with_a_comparison_that_is_killed(content, tmp_path, end):
    """An orphan would later write its model over that of the next run; one that is interrupted did not fail."""
    import psutil

    save_tiny_bert(tmp_path / "encoder", SENTENCES)
    content["methods"], content["budget"] = {"dapt": None}, {"tokens": 10_000_000}
    path = write_plan(content, tmp_path)
    with (tmp_path / "log.txt").open("w") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "hf_domain.examples.compare", str(path)],
            stderr=log,
            stdout=log,
            start_new_session=True,
        )
    steps, deadline = path.with_suffix("") / "steps", time.monotonic() + 120
    while not any(", loss " in log.read_text() for log in steps.glob("dapt-pets-*/log.txt")):
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.2)
    family = psutil.Process(process.pid).children(recursive=True)
    assert family
    if end == "kill":
        process.kill()  # the comparison alone
    else:
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does
    process.wait(timeout=60)
    assert not any((path.with_suffix("") / "results").iterdir())
    assert not psutil.wait_procs(family, timeout=30)[1]


def test_a_step_that_wrote_everything_is_done_however_its_process_ends(tmp_path, monkeypatch):
    """On a GPU a step was lost: it had written its model and scores, and its process ended with exit code 255."""
    plan, folder = SimpleNamespace(folder=tmp_path), tmp_path / "steps" / "version"
    folder.mkdir(parents=True)
    monkeypatch.setattr(BaseProcess, "exitcode", property(lambda self: 255))
    step = Step("version", "fine_tuning", "export", {"help": []})
    runner.run_command(step, plan, folder)
    assert "hf-domain" in (folder / "log.txt").read_text()
    with pytest.raises(RuntimeError, match="exit code 255"):  # the file of the step before does not count
        runner.run_command(replace(step, command="no_command"), plan, folder)


def test_a_script_that_compares_outside_main_is_told_so(plan, tmp_path, monkeypatch):
    """A step has imported the script again, and ended there: `exit code 1` was all that the report said."""
    script = tmp_path / "script.py"
    script.write_text("raise RuntimeError('compare starts processes')")
    monkeypatch.setattr(sys.modules["__main__"], "__file__", str(script), raising=False)
    monkeypatch.setattr(sys.modules["__main__"], "__spec__", None)
    monkeypatch.setattr(runner, "PRELOADED", [])
    with pytest.raises(RuntimeError, match=r"must start, but ended with exit code 1 .*below `if __name__"):
        runner.run_command(list_steps(plan, tmp_path)[0], plan, tmp_path)


def test_tokens_of_short_batches_are_not_counted():
    flags = {"max_steps": 7, "per_device_train_batch_size": 4, "max_seq_length": 16}
    assert runner.count_trained_tokens(flags, 1000) == runner.count_trained_tokens(flags, None) == 7 * 4 * 16
    # Ten blocks are batches of 4, 4 and 2: two epochs of ten, then one of 4.
    assert runner.count_trained_tokens(flags, 10) == (10 + 10 + 4) * 16


def test_seconds_of_a_killed_step_count_up_to_its_checkpoint(plan, content, tmp_path, monkeypatch):
    clock = [1000.0]
    monkeypatch.setattr(runner, "time", SimpleNamespace(time=lambda: clock[0], perf_counter=lambda: clock[0]))

    def work(step, plan, folder):
        if step.name != "dapt-pets":
            return pretend(step, plan, folder)
        attempts.append(step.name)
        checkpoint = write_checkpoint(folder / f"checkpoint-{len(attempts)}")
        clock[0] += 10
        os.utime(checkpoint / "trainer_state.json", (clock[0], clock[0]))
        clock[0] += 5
        if len(attempts) < 3:
            raise KeyboardInterrupt
        pretend(step, plan, folder)

    attempts = []
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            run_comparison(plan, tmp_path / "output", execute=work)
        clock[0] += 500
    run_comparison(plan, tmp_path / "output", execute=work)
    assert read_json(get_result(tmp_path / "output", "dapt-pets"))["seconds"] == 10 + 10 + 15
    assert not list((tmp_path / "output").rglob("checkpoint-*"))


@pytest.mark.parametrize("moment", ["saving", "ending", "deleting"])
def test_step_killed_at_its_end_continues_or_starts_over(plan, tmp_path, monkeypatch, moment):
    """Its folder holds files of the model that it ends with, or a checkpoint of which a part is gone."""
    output_dir, found = tmp_path / "output", []

    def train(step, plan, folder):
        if step.name == "dapt-pets":
            write_checkpoint(folder / "checkpoint-16", "{" if moment == "saving" else "{}")
            (folder / "config.json").write_text("of another type")
            if moment != "deleting":
                raise KeyboardInterrupt
        pretend(step, plan, folder)

    def go_on(step, plan, folder):
        if step.name == "dapt-pets":
            found.extend([(folder / "config.json").exists(), find_checkpoint(folder) is not None])
        pretend(step, plan, folder)

    def delete_a_part(folder):
        (folder / "model.safetensors").unlink()
        raise Interrupted

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(run_folder, "shutil", SimpleNamespace(rmtree=delete_a_part))
        run_comparison(plan, output_dir, execute=train)
    if moment == "deleting":
        # The result is there by then; where the weights of the step are not, it is made again from the beginning.
        assert read_json(get_result(output_dir, "dapt-pets"))["status"] == "done"
        get_result(output_dir, "dapt-pets").unlink()
    results = run_comparison(plan, output_dir, execute=go_on)
    assert found == [False, moment == "ending"]
    assert all(result.is_done for result in results)
    assert not list(output_dir.rglob("checkpoint-*"))


def test_lines_of_text_are_not_counted_as_full_blocks(content, tmp_path, load):
    content["methods"] = {"dapt": {"pretraining": {"line_by_line": True}}}
    content["budget"] = {"minutes": 1}
    run_comparison(load(), tmp_path / "output", execute=pretend)
    assert "tokens" not in read_json(get_result(tmp_path / "output", "dapt-pets"))
    assert "tokens" not in write_report(tmp_path / "output").costs["dapt"]


def test_vocabularies_differ_where_their_words_do(tmp_path):
    digests = [digest_vocabulary(save_tiny_bert(tmp_path / name, [name[:3]])) for name in ("cat", "cat-again", "dog")]
    assert digests[0] == digests[1] != digests[2]


def test_report_marks_results_of_changed_code(plan, tmp_path):
    run_comparison(plan, tmp_path / "output", execute=pretend)
    write_report(tmp_path / "output")
    assert "The code changed" not in (tmp_path / "output" / "report.md").read_text()
    path = get_result(tmp_path / "output", "dapt-pets")
    result = read_json(path)
    result["environment"]["code"] = "0123456789"
    path.write_text(json.dumps(result))
    write_report(tmp_path / "output")
    assert "without a new version: 01234567, " in (tmp_path / "output" / "report.md").read_text()


def test_budget_of_minutes(content, tmp_path, load):
    content["budget"] = {"minutes": 0.5}
    content["methods"] = {"dapt": None, "tapt": {"tasks": ["animals"]}}
    plan = load()
    trained = {}

    def note(step, plan, folder):
        trained[step.name] = step.flags.get("max_steps")
        pretend(step, plan, folder)

    run_comparison(plan, tmp_path / "output", execute=note)
    assert trained["dapt-pets-timing"] == trained["tapt-animals-timing"] == 20
    assert trained["tapt-animals"] == 60
    assert (tmp_path / "output" / "texts" / "animals.txt").read_text().startswith("the cat sat on the mat 0\n")
    assert trained["dapt-pets"] == 60  # 30 seconds at 2 steps a second
    path = get_result(tmp_path / "output", "dapt-pets")
    result = read_json(path)
    assert result["tokens"] == 60 * 4 * 16
    write_report(tmp_path / "output")
    assert "the same budget: 0.5 minutes." in (tmp_path / "output" / "report.md").read_text()


def test_learning_rates_are_chosen_on_validation(content, tmp_path, load):
    """DAPT is best at 0.1, no adaptation at 0.01; what is best on the test set is not read, nor what failed."""
    content["methods"] = {"dapt": None, "no_adaptation": None}
    content["learning_rates"], content["pretraining_seeds"] = [0.1, 0.01, 10.0], [1, 2]
    best, used = {"dapt": 0.1, "no_adaptation": 0.01}, {}

    def run(step, plan, folder):
        pretend(step, plan, folder)
        rate = step.flags.get("learning_rate")
        if step.kind == "lr_trial":
            assert step.flags["do_eval"] and "do_predict" not in step.flags and step.seed == 1
            if rate == 10.0:
                raise RuntimeError("the loss is nan")
            score = float(rate == best[step.method])
            write_json(folder / METRICS, {"eval_macro_f1": score, "eval_f1": score, "predict_macro_f1": -score})
        if step.kind == "fine_tuning":
            used.setdefault((step.method, step.task), set()).add(rate)
            write_json(folder / METRICS, read_json(folder / METRICS) | {"learning_rate": rate})

    plan = load()
    results = run_comparison(plan, tmp_path / "plan", execute=run)
    tuned = [result for result in results if result.step.kind == "lr_trial"]
    assert len(tuned) == 2 * 2 * 3 and {result.is_done for result in tuned if "rate10" in result.step.name} == {False}
    assert used == {(method, task): {rate} for method, rate in best.items() for task in ("animals", "entities")}
    report = write_report(tmp_path / "plan")
    assert len(report.scores["dapt"]["animals"]) == 4 and "from 0.1, 0.01, 10.0" in read_text(tmp_path / "plan")


def read_text(output_dir):
    return (output_dir / "report.md").read_text()


def test_no_learning_rate_at_which_training_ends(content, tmp_path, load):
    content["methods"], content["learning_rates"] = {"no_adaptation": None}, [1.0, 2.0]

    def run(step, plan, folder):
        if step.kind == "lr_trial":
            raise RuntimeError("the loss is nan")
        pretend(step, plan, folder)

    run_comparison(load(), tmp_path / "plan", execute=run)
    failed = write_report(tmp_path / "plan").failed["no_adaptation-animals-seed1"]
    assert failed == "training failed at every learning rate, the first time with: the loss is nan"
