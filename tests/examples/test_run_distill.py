"""examples/run_distill.py as a user runs it."""

import hashlib
import json
from pathlib import Path

import pytest
import torch
from huggingface_hub import ModelCard
from safetensors.torch import load_file
from script_runs import call_main, save_tiny_bert
from tiny_tokenizers import SENTENCES
from transformers import AutoModel, AutoModelForMaskedLM, AutoTokenizer

from hf_domain.examples import run_distill
from hf_domain.tokenization import VocabularyDelta, count_shard, expand_vocabulary

STRATEGIES = ["from_scratch", "distill_then_adapt", "adapt_then_distill", "adapt_and_distill"]


@pytest.fixture
def teacher(tmp_path):
    return save_tiny_bert(tmp_path / "large", SENTENCES)


@pytest.fixture
def run(monkeypatch, tmp_path, teacher):
    """Run the script with these options."""
    (tmp_path / "corpus.txt").write_text("\n".join(SENTENCES * 20), encoding="utf-8")
    defaults = {"model_name_or_path": teacher, "strategy": "adapt_and_distill", "train_file": tmp_path / "corpus.txt"}
    defaults |= {"num_hidden_layers": 1, "hidden_size": 16, "intermediate_size": 24, "max_seq_length": 16}
    defaults |= {"per_device_train_batch_size": 8, "teacher_steps": 2, "student_steps": 6, "learning_rate": 1e-3}
    defaults |= {"logging_steps": 1, "save_strategy": "no", "report_to": "none", "use_cpu": True, "disable_tqdm": True}
    defaults |= {"output_dir": tmp_path / "output"}

    def run(**options):
        call_main(run_distill.main, monkeypatch, **(defaults | options))
        return tmp_path / "output" / str(options.get("strategy", "adapt_and_distill"))

    return run


def list_checkpoints(folder):
    return {str(file.parent.relative_to(folder)) for file in folder.rglob("model.safetensors")}


def read_log(folder):
    return [line for line in json.loads((folder / "trainer_state.json").read_text())["log_history"] if "loss" in line]


@pytest.mark.commands
def test_all_strategies_share_a_folder(run, tmp_path, capsys):
    for strategy in STRATEGIES:
        run(strategy=strategy, do_eval=True)
    assert list_checkpoints(tmp_path / "output") == {
        "adapted-teacher",
        "from_scratch/student",
        "from_scratch/adapted",
        "distill_then_adapt/student",
        "distill_then_adapt/distilled",
        "distill_then_adapt/adapted",
        "adapt_then_distill/student",
        "adapt_then_distill/adapted-distilled",
        "adapt_and_distill/student",
        "adapt_and_distill/distilled",
        "adapt_and_distill/adapted",
        "adapt_and_distill/adapted-distilled",
    }
    final = tmp_path / "output" / "adapt_and_distill" / "adapted-distilled"
    assert {"attention_loss", "value_loss"} <= read_log(final)[0].keys()
    assert "The student is for fine-tuning" in capsys.readouterr().out
    results = json.loads((final.parent / "results.json").read_text())
    assert results["steps"][str(final)]["eval_loss"] > 0
    model = AutoModel.from_pretrained(final)
    assert (model.config.hidden_size, model.config.num_hidden_layers) == (16, 1)
    assert len(AutoTokenizer.from_pretrained(final)) == model.config.vocab_size
    # Every step starts where the one before it ended: what a step does not train is what it was given.
    frozen = "cls.predictions.transform.dense.weight"
    given, left = (load_file(final.parent / name / "model.safetensors") for name in ("adapted", "adapted-distilled"))
    assert torch.equal(given[frozen], left[frozen])
    assert not torch.equal(
        given["bert.embeddings.word_embeddings.weight"], left["bert.embeddings.word_embeddings.weight"]
    )


def test_rerun_skips_and_killed_step_continues(run, tmp_path, capsys):
    folder = run(save_strategy="steps", save_steps=1)
    files = {file: file.stat().st_mtime_ns for file in folder.rglob("model.safetensors")}
    expected = load_file(folder / "adapted-distilled" / "model.safetensors")
    capsys.readouterr()
    run(save_strategy="steps", save_steps=1)
    assert capsys.readouterr().out.count("[done]") == 5
    assert files == {file: file.stat().st_mtime_ns for file in folder.rglob("model.safetensors")}
    # Killed after the first of two steps: the checkpoint is there, what comes at the end is not.
    last = folder / "adapted-distilled"
    record = json.loads((last / "_run.json").read_text())
    (last / "_run.json").write_text(json.dumps(record | {"finished": False}))
    # The second checkpoint was being saved: it lacks what Trainer writes last.
    for file in [last / "checkpoint-2" / "trainer_state.json", last / "model.safetensors"]:
        file.unlink()
    run(save_strategy="steps", save_steps=1)
    assert all(torch.equal(weight, expected[name]) for name, weight in load_file(last / "model.safetensors").items())
    assert json.loads((last / "_run.json").read_text())["finished"]


def test_dry_run_writes_nothing(run, tmp_path, capsys):
    run(dry_run=True, masked_lm_steps=5)
    lines = [line for line in capsys.readouterr().out.splitlines() if line[:1].isdigit()]
    assert [line.split()[1] for line in lines] == ["adapt", "make", "distill", "adapt", "distill", "adapt"]
    assert not (tmp_path / "output").exists()


def test_expanded_teacher_is_not_expanded_again(run, tmp_path, teacher):
    tokenizer = AutoTokenizer.from_pretrained(teacher)
    VocabularyDelta(len(tokenizer) - 2, {"cat": [5], "dog": [6]}).save(tmp_path / "vocabulary")
    tokenizer.save_pretrained(tmp_path / "vocabulary")
    with pytest.raises(ValueError, match="a vocabulary must be expanded only once"):
        run(expanded_vocabulary=tmp_path / "vocabulary")


@pytest.mark.commands
def test_expanded_vocabulary_reaches_teacher_and_student(run, tmp_path, teacher):
    tokenizer = AutoTokenizer.from_pretrained(teacher)
    counts = count_shard(SENTENCES, tokenizer.backend_tokenizer)
    size = len(tokenizer) + 10
    expanded, delta, _ = expand_vocabulary(tokenizer, counts, size=size, step=5, min_frequency=1, progress=False)
    expanded.save_pretrained(tmp_path / "vocabulary")
    delta.save(tmp_path / "vocabulary")
    assert delta.pieces
    for strategy in STRATEGIES:
        folder = run(strategy=strategy, expanded_vocabulary=tmp_path / "vocabulary")
        final = folder / ("adapted-distilled" if strategy.startswith("adapt") else "adapted")
        assert AutoModel.from_pretrained(final).config.vocab_size == delta.new_size
        assert AutoTokenizer.from_pretrained(final).get_vocab() == expanded.get_vocab()


@pytest.mark.commands
def test_other_students_and_relations(run, tmp_path, teacher):
    folder = run(
        num_hidden_layers=None, hidden_size=None, intermediate_size=None, student_layers=[2], masked_lm_steps=1
    )
    picked = AutoModelForMaskedLM.from_pretrained(folder / "student")
    original = AutoModelForMaskedLM.from_pretrained(teacher)
    layer = original.bert.encoder.layer[1].output.dense.weight
    assert torch.equal(picked.bert.encoder.layer[0].output.dense.weight, layer)
    assert read_log(folder / "masked-lm")
    options = {"method": "minilmv2", "num_relation_heads": 4, "num_attention_heads": 1, "teacher_layer": 1}
    folder = run(strategy="adapt_then_distill", output_dir=tmp_path / "output", **options)
    assert {"query_loss", "key_loss", "value_loss"} <= read_log(folder / "adapted-distilled")[0].keys()
    options = {"num_hidden_layers": None, "hidden_size": None, "intermediate_size": None}
    folder = run(
        strategy="distill_then_adapt",
        student_name_or_path=folder / "student",
        method="minilmv2",
        num_relation_heads=4,
        teacher_dtype="bfloat16",
        **options,
    )
    assert AutoModel.from_pretrained(folder / "adapted").config.num_attention_heads == 1


def test_a_step_of_other_options_or_from_another_base_is_refused(run, tmp_path, teacher):
    def refuse(what, **options):
        with pytest.raises(ValueError, match=f"contains another run, finished, with .*{what}"):
            run(strategy="from_scratch", **options)

    run(strategy="from_scratch")
    refuse(r"hidden_size 16, now 32", hidden_size=32)
    (tmp_path / "general.txt").write_text("other words\n" * 9)
    refuse(r"mix None, now '0\.5'", mix=f"{tmp_path / 'general.txt'}:0.5")
    refuse(r"objective 'mlm', now 'clm'", objective="clm")
    refuse(r"max_steps 6, now 8", student_steps=8)
    refuse(r"weight_decay 0\.0, now 0\.5", weight_decay=0.5)
    run(strategy="from_scratch", teacher_steps=9, teacher_layer=1, save_steps=3)  # none of them changes a step
    corpus = tmp_path / "corpus.txt"
    texts = corpus.read_text(encoding="utf-8")
    corpus.write_text(texts.upper(), encoding="utf-8")
    refuse("other content of train_file")
    corpus.write_text(texts, encoding="utf-8")
    model = AutoModelForMaskedLM.from_pretrained(teacher)
    model.get_input_embeddings().weight.data.mul_(2)
    model.save_pretrained(teacher)
    refuse("other content of .*teacher")
    run(strategy="from_scratch", overwrite_output_dir=True)


def test_general_text(run, tmp_path, capsys):
    """It is what the general teacher teaches; a missing file is found before the teacher is adapted."""
    with pytest.raises(FileNotFoundError, match=r"one file must match nowhere\.txt"):
        run(general_file="nowhere.txt")
    assert not (tmp_path / "output").exists()
    run(dry_run=True)
    assert "general text" not in capsys.readouterr().out
    general = tmp_path / "general.txt"
    general.write_text("\n".join(SENTENCES[::-1] * 20), encoding="utf-8")
    run(dry_run=True, general_file=general)
    assert "(general text)" in capsys.readouterr().out
    # The domain may be a dataset of the Hub, here a folder, while the general text is a file.
    (tmp_path / "dataset").mkdir()
    (tmp_path / "corpus.txt").rename(tmp_path / "dataset" / "train.txt")
    folder = run(general_file=general, dataset_name=tmp_path / "dataset", train_file=None)
    records = {name: json.loads((folder / name / "_run.json").read_text()) for name in ("distilled", "adapted")}
    digest = hashlib.sha256(general.read_bytes()).hexdigest()
    assert records["distilled"]["options"]["train_file"] == [[f"sha256:{digest}"]]
    assert records["adapted"]["options"]["train_file"] is None


def test_a_teacher_may_have_its_tokenizer_elsewhere(run, teacher, tmp_path):
    """It was looked for beside the teacher, in vain, after all steps of the teacher."""
    (tmp_path / "tokenizer").mkdir()
    for file in list(Path(teacher).glob("tokenizer*")):
        file.rename(tmp_path / "tokenizer" / file.name)
    folder = run(strategy="distill_then_adapt", tokenizer_name=tmp_path / "tokenizer", student_steps=2)
    assert AutoTokenizer.from_pretrained(Path(folder) / "distilled").get_vocab()


def test_the_cards_of_students_name_their_teacher(run, tmp_path):
    """They are not DAPT of the folder of an earlier stage, and have no new vocabulary."""
    folder = run(strategy="distill_then_adapt")
    for stage, tag in (("distilled", "feature-extraction"), ("adapted", "fill-mask")):
        card = ModelCard.load(folder / stage / "README.md")
        parameters = AutoModelForMaskedLM.from_pretrained(folder / stage).num_parameters()
        summary = (
            f"A student of large with 1 layer and {parameters:,} parameters, after the stage {stage} of distill_then"
        )
        assert summary in card.text and "vocabulary expansion" not in card.text
        assert (
            "- **Base model:** large\n" in card.text and "- **Method:** distillation into a student (Yao" in card.text
        )
        assert (card.data.pipeline_tag, card.data.tags) == (tag, ["hf-domain", "adalm"])
    adapted = ModelCard.load(run(strategy="adapt_then_distill").parent / "adapted-teacher" / "README.md")
    assert "large, trained further with masked language modeling" in adapted.text
