"""Results in the repository, and an encoder that is trained again from them."""

import json
import lzma
import shutil
import sys

import pack_results
import pytest
import rebuild_model
from pretended_runs import write_plan
from safetensors.torch import load_file
from script_runs import save_tiny_bert, write_jsonl
from tiny_tokenizers import SENTENCES

from hf_domain.comparison import publication
from hf_domain.examples import compare


def run(monkeypatch, main, *arguments):
    monkeypatch.setattr(sys, "argv", ["script.py", *map(str, arguments)])
    main()


def make_inputs(folder):
    """Write a plan, and what it names, into a new folder."""
    (folder / "task").mkdir(parents=True)
    save_tiny_bert(folder / "encoder", SENTENCES)
    (folder / "corpus.txt").write_text("\n".join(f"{number} {SENTENCES[number % 4]}" for number in range(200)))
    rows = [{"text": f"{SENTENCES[number % 4]} {number}", "label": "ab"[number % 2]} for number in range(20)]
    for split in ("train", "validation", "test"):
        write_jsonl(folder / "task" / f"{split}.jsonl", rows)
    content = {"encoder": "encoder", "corpora": {"pets": "corpus.txt"}, "tasks": ["task"]}
    content |= {"methods": ["fine_tune", "dapt"]}
    sizes = {"max_seq_length": 16, "per_device_train_batch_size": 4, "use_cpu": True}
    return write_plan(content | {"budget": {"tokens": 256}, "evaluation": "probe", "pretraining": sizes}, folder)


@pytest.mark.commands
def test_an_encoder_is_trained_again_from_packed_results(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(publication, "run_usage", lambda *_: "a word")
    run(monkeypatch, compare.main, make_inputs(tmp_path / "first"))
    first = tmp_path / "first" / "plan"
    run(monkeypatch, pack_results.main, first, tmp_path / "packed")
    packed = (tmp_path / "packed" / "results.jsonl.xz").read_bytes()
    run(monkeypatch, pack_results.main, first, tmp_path / "packed")
    assert (tmp_path / "packed" / "results.jsonl.xz").read_bytes() == packed
    assert "](" in (first / "report.md").read_text() and ".png" not in (tmp_path / "packed/report.md").read_text()
    names = {json.loads(line)["name"] for line in lzma.decompress(packed).splitlines()}
    assert names == {file.name for file in (first / "results").glob("*.json")}

    plan = make_inputs(tmp_path / "second")
    options = ["--results", tmp_path / "packed", "--method", "dapt", "--output_dir", tmp_path / "hub"]
    with pytest.raises(ValueError, match="must name an encoder of the plan, dapt-pets, not dapt-task"):
        run(monkeypatch, rebuild_model.main, plan, *options, "--corpus", "task")
    assert not (tmp_path / "second" / "plan" / "results").exists()
    encoder = tmp_path / "second" / "encoder" / "model.safetensors"
    weights = encoder.read_bytes()
    encoder.write_bytes(weights[:-1] + bytes([weights[-1] ^ 1]))
    with pytest.raises(ValueError, match=r"none of its \d+ results was computed from them"):
        run(monkeypatch, rebuild_model.main, plan, *options, "--corpus", "pets")
    assert not (tmp_path / "second" / "plan" / "results").exists()
    encoder.write_bytes(weights)
    capsys.readouterr()
    run(monkeypatch, rebuild_model.main, plan, *options, "--corpus", "pets", "--example", "the [MASK]")
    assert [file.name.split("-")[0] for file in (tmp_path / "second/plan/steps").iterdir()] == ["dapt"]
    (trained,) = first.glob("steps/dapt-pets-????????/model.safetensors")
    before, after = load_file(trained), load_file(tmp_path / "hub" / "model.safetensors")
    assert all((before[name] == after[name]).all() for name in before)
    scores = [json.loads((folder / "report.json").read_text())["scores"] for folder in (first, tmp_path / "hub")]
    assert scores[0] == scores[1]
    # What is there is not trained again.
    (again,) = (tmp_path / "second").glob("plan/steps/dapt-pets-????????/model.safetensors")
    trained_at = again.stat().st_mtime_ns
    shutil.rmtree(tmp_path / "hub")
    run(monkeypatch, rebuild_model.main, plan, *options, "--corpus", "pets", "--example", "the [MASK]")
    assert again.stat().st_mtime_ns == trained_at and (tmp_path / "hub" / "README.md").is_file()
