"""Every script of benchmarks/ runs at its smallest size: one that nothing runs goes stale, and its figures with it."""

import gzip
import json
import os
import runpy
import subprocess
import sys
from argparse import Namespace
from pathlib import Path

import pytest
from pretended_runs import pretend, run_comparison, write_plan
from script_runs import save_tiny_bert, write_jsonl
from tiny_tokenizers import SENTENCES
from transformers import BertConfig

from hf_domain.comparison import runner
from hf_domain.comparison.plan_loading import load_plan
from hf_domain.methods import METHODS

ROOT = Path(__file__).parent.parent
# What each takes beside its output; `{name}` is made below.
ARGUMENTS = {
    "advice": "{compared} {other}",
    "agreement": "{compared} {compared}",
    "datastore": "--model_name_or_path {encoder} --corpus {corpus} --heldout {heldout} --documents 40 --passages 40 "
    "--queries 8",
    "distillation": "--lengths 8 --tokens 16 --repetitions 1",
    "exbert": "--base {base} --extension_vocab_size 20 --batch_size 2 --length 8 --repetitions 1",
    "gmap": "--base {base} --batch_size 2 --length 8 --repetitions 1",
    "gpu": "--tiny",
    "growth": "--model_name_or_path {encoder} --megabytes 0.05 0.1 --passages 8 16 --runs 2 4",
    "inference": "--tokenizer {encoder} --expanded_vocabulary {encoder} --texts {texts} --num_texts 2 --repetitions 1",
    "p_values": "--trials 2 --sizes 30 40",
    "padding": "--model_name_or_path {encoder} --texts {texts} --batch_sizes 2 --max_seq_length 8",
    "pretrainings": "{compared} {other}",
    "rada": "--batch_size 2 --length 8 --passage_length 8 --cached 1 2 --encoded 2 --num_hidden_layers 1 --repeats 1",
    "servers": "--model_name_or_path {encoder} --corpus {corpus} --heldout {heldout} --documents 40 --queries 8",
    "starts": "--model_name_or_path {encoder} --corpus {corpus} --heldout {heldout} --documents 40 --blocks 24 "
    "--batch_size 2 --length 32 --steps 40 --measured_steps 1 --general {heldout} "
    "--starts dapt varmae gmap_mlm rada_mlm adalm domain_words",
    "students": "--teacher {encoder} --students {encoder} --validation_file {heldout} --max_seq_length 8 "
    "--timed_samples 2",
    "varmae": "--batch_size 2 --length 8 --num_hidden_layers 1 --repeats 1",
    "vocabulary": "--model_name_or_path {encoder} --corpus {corpus} --heldout {heldout} --max_size 150 --workers 1",
}


def make_comparison(folder, monkeypatch, domain="cs", **changes):
    """Leave a finished comparison whose steps were only pretended."""
    monkeypatch.setattr(runner, "digest_vocabulary", lambda encoder: "usual")
    (folder / "task").mkdir(parents=True)
    (folder / "corpus.txt").write_text("\n".join(SENTENCES * 20))
    rows = [{"text": f"{text} {i}", "label": ("cat", "dog", "bird")[i % 3]} for i, text in enumerate(SENTENCES * 3)]
    for split in ("train", "validation", "test"):
        write_jsonl(folder / "task" / f"{split}.jsonl", rows)
    methods = ["fine_tune", "dapt", "varmae", "lora"]
    content = {"encoder": "encoder", "corpora": {domain: "corpus.txt"}, "tasks": ["task"], "methods": methods}
    content |= {"budget": {"tokens": 100_000}, "evaluation": "probe"} | changes
    plan = load_plan(write_plan(content, folder))
    run_comparison(plan, folder / "plan", pretend)
    return folder / "plan"


def check_starts(figures):
    """The starts that keep the encoder's predictions have its loss; dropout and noise count in training mode."""
    starts, encoder = figures["starts"], figures["encoder"]
    assert starts.keys() == {"dapt", "varmae", "gmap_mlm", "rada_mlm", "adalm", "domain_words"}
    for name in ("dapt", "varmae", "gmap_mlm", "domain_words"):
        row = starts[name]
        assert row["heldout"]["0"] == pytest.approx(encoder["heldout"], abs=1e-3)
        assert row["heldout_words"]["0"] == pytest.approx(encoder["heldout_words"], abs=1e-3)
        assert row["heldout"].keys() == row["heldout_words"].keys() == {"0", "1", "40"}
        assert row["start_training_mode"] != pytest.approx(row["heldout"]["0"], abs=1e-6)
    # Longer words are harder to predict than their pieces, and new words start untrained.
    assert encoder["heldout_words"] > encoder["heldout"]
    assert starts["adalm"]["entries"] > starts["dapt"]["entries"]
    assert starts["adalm"]["heldout_words"]["40"] < starts["adalm"]["heldout_words"]["0"]
    # Masks of other words change the training alone.
    assert starts["domain_words"]["heldout"]["40"] != starts["dapt"]["heldout"]["40"]
    assert "heldout_words" not in starts["rada_mlm"]


def check_agreement(figures):
    assert (figures["tau"], figures["low"], figures["high"]) == (1, 1, 1)


def check_pretrainings(figures):
    assert figures["over_dapt"].keys() == {"fine_tune", "varmae", "lora"}
    for found in figures["over_dapt"].values():  # the comparisons have one task
        assert found["by_task"]["task"]["mean"] == pytest.approx(found["mean"])
        assert found["low"] <= found["mean"] <= found["high"]


def check_advice(figures):
    """Both domains have the same scores: the best row leads elsewhere, too."""
    best = figures["cs, by a probe"]["best"]
    assert best == figures["terms, by a probe"]["choices"]["the row that leads elsewhere"]
    assert figures["regret"]["the row that leads elsewhere"] == 0 <= figures["regret"]["always DAPT"]


CHECKS = {
    "advice": check_advice,
    "agreement": check_agreement,
    "pretrainings": check_pretrainings,
    "starts": check_starts,
}


def test_every_benchmark_is_run():
    assert {file.stem for file in (ROOT / "benchmarks").glob("*.py")} == ARGUMENTS.keys()


# How each benchmark of a method's cost builds its model.
BUILT = {
    "varmae": ("VarMAEForMaskedLM.from_backbone", lambda module, args: module.make_step("varmae", args)),
    "rada": ("RadaForSequenceClassification.from_backbone", lambda module, args: module.Workload("cached", args, None)),
    "gmap": ("GMapConfig", lambda module, args: module.Workload("gmap", args)),
}


@pytest.mark.benchmarks
@pytest.mark.parametrize("name", BUILT)
def test_costs_are_those_of_the_recommended_start(name, monkeypatch):
    module = runpy.run_path(str(ROOT / "benchmarks" / f"{name}.py"))
    built, make = BUILT[name]
    owner, _, method = built.partition(".")

    class Built(Exception):
        pass

    def stop(*args, **options):
        raise Built(options)

    if method:
        monkeypatch.setattr(module[owner], method, stop)
    else:
        monkeypatch.setitem(module["Workload"].__init__.__globals__, owner, stop)
    args = Namespace(num_hidden_layers=1, scores="logsumexp", base=None, strategy="chunk_gated", fusion="memory")
    with pytest.raises(Built) as caught:
        make(Namespace(**module), args)
    assert METHODS[name].start.items() <= caught.value.args[0].items()


@pytest.mark.benchmarks
@pytest.mark.parametrize("name", ARGUMENTS)
def test_benchmark_runs(name, tmp_path, monkeypatch):
    save_tiny_bert(tmp_path / "encoder", SENTENCES)
    tokenizer = json.loads((tmp_path / "encoder/tokenizer_config.json").read_text()) | {"model_max_length": 512}
    (tmp_path / "encoder/tokenizer_config.json").write_text(json.dumps(tokenizer))
    # Ids are drawn from those of BERT's words.
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
    BertConfig(**sizes).save_pretrained(tmp_path / "base")
    paths = {name: tmp_path / name for name in ("encoder", "base")} | {"texts": tmp_path / "texts.jsonl"}
    paths |= {each: tmp_path / f"{each}.txt.gz" for each in ("corpus", "heldout")}
    for each in ("corpus", "heldout"):
        with gzip.open(paths[each], "wt") as file:
            file.write("\n".join(f"{each} {number} {text}" for number, text in enumerate(SENTENCES * 20)) + "\n")
    paths["texts"].write_text("\n".join(json.dumps({"text": text}) for text in SENTENCES) + "\n")
    if name in ("agreement", "advice", "pretrainings"):
        paths["compared"] = make_comparison(tmp_path / "comparison", monkeypatch)
        paths["other"] = make_comparison(tmp_path / "other", monkeypatch, "terms")
    arguments = ARGUMENTS[name].format(**paths).split()
    output = ["--output", str(tmp_path / "result.json")]
    command = [sys.executable, str(ROOT / "benchmarks" / f"{name}.py"), *arguments, *output]
    run = subprocess.run(command, cwd=tmp_path, env=os.environ, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr[-3000:]
    figures = json.loads((tmp_path / "result.json").read_text())
    assert figures
    if name in CHECKS:
        CHECKS[name](figures)
    if name == "gpu":
        subprocess.run([*command, "--rows", "infer student"], cwd=tmp_path, env=os.environ, check=True)
        rows = json.loads((tmp_path / "result.json").read_text())["rows"]
        assert rows.keys() == {"infer student 1", "infer student 2"}
