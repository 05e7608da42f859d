"""The card of a run: metadata that the Hub takes, what was measured, and nothing that somebody still has to fill in."""

import hashlib
import math
import sys
from email.message import Message
from importlib.resources import files
from pathlib import Path

import pytest
from huggingface_hub import ModelCard
from script_runs import run_script, save_tiny_bert, write_jsonl
from tiny_tokenizers import SENTENCES

from hf_domain.examples import run_classification, run_distill, run_mlm, run_ner, run_qa
from hf_domain.extras import name_package
from hf_domain.hub import check_license, list_licenses
from hf_domain.training.calls import describe_command
from hf_domain.training.cards import find_origin

TEMPLATES = ("more information needed", "none of", "generated automatically", "unknown dataset", "{{", "{%", "nan")


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Run a script on a tiny encoder; returns its metrics and its card, which the Hub's client has read."""
    encoder = save_tiny_bert(tmp_path / "encoder", SENTENCES)

    def call(script, **flags):
        output = tmp_path / "output"
        options = {"model_name_or_path": encoder, "do_train": True, "do_eval": True, "max_steps": 4, **flags}
        metrics = run_script(script.main, monkeypatch, output, **options)
        card = ModelCard.load(output / "README.md")
        assert not any(text in card.content.lower() for text in TEMPLATES)
        assert str(tmp_path) not in card.content
        assert card.data.library_name == "transformers" and "hf-domain" in card.data.tags
        return metrics, card

    return call


@pytest.mark.parametrize("method", ["dapt", "varmae"])
def test_masked_lm(run, tmp_path, method):
    (tmp_path / "corpus.txt").write_text("\n".join(SENTENCES * 40), encoding="utf-8")
    flags = {"max_seq_length": 16, "token": "hf_secret", "learning_rate": "1e-3"}
    metrics, card = run(run_mlm, method=method, train_file=tmp_path / "corpus.txt", **flags)
    assert card.data.pipeline_tag == "fill-mask" and method in card.data.tags
    (score,) = card.data.eval_results
    assert (score.task_type, score.metric_type, score.dataset_type) == ("fill-mask", "loss", "corpus")
    assert score.metric_value == metrics["eval_loss"]
    for line in (
        f"| before the first step | {metrics['start_loss']:.4f} | {math.exp(metrics['start_loss']):.4g} |",
        f"| after training | {metrics['eval_loss']:.4f} | {metrics['perplexity']:.4g} |",
    ):
        assert line in card.text
    assert metrics["start_loss"] != metrics["eval_loss"]
    digest = hashlib.sha256((tmp_path / "corpus.txt").read_bytes()).hexdigest()
    assert f"corpus.txt (190 documents, {metrics['train_samples']} examples, sha256 {digest})" in card.text
    title = {"dapt": "DAPT (Gururangan et al. 2020", "varmae": "VarMAE (Hu et al. 2022"}[method]
    assert f"- **Method:** {title}" in card.text and "@inproceedings" in card.text
    assert f"--method {method} --train_file corpus.txt" in card.text and "hf_secret" not in card.text
    assert ("trust_remote_code=True" in card.text) is ("import hf_domain\n" in card.text) is (method == "varmae")


def test_card_of_a_causal_stage_names_its_loss(run, tmp_path):
    (tmp_path / "corpus.txt").write_text("\n".join(SENTENCES * 40), encoding="utf-8")
    flags = {"train_file": tmp_path / "corpus.txt", "max_seq_length": 16}
    metrics, card = run(run_mlm, objective="clm", **flags)
    assert "cross-entropy of next tokens" in card.text and "masked tokens" not in card.text
    assert "| objective | clm |" in card.text
    tokens = run(run_mlm, **flags)[0]["num_input_tokens_seen"]
    assert metrics["num_input_tokens_seen"] == tokens and f"| tokens trained on | {tokens:,} |" in card.text


def test_card_shows_what_was_forgotten(run, tmp_path):
    """The loss on general text before and after; without such text, the card says that it was not measured."""
    (tmp_path / "corpus.txt").write_text("\n".join(SENTENCES[:3] * 60), encoding="utf-8")
    (tmp_path / "general.txt").write_text("\n".join(SENTENCES[3:] * 20), encoding="utf-8")
    flags = {"train_file": tmp_path / "corpus.txt", "max_seq_length": 16, "learning_rate": 1e-2}
    _, card = run(run_mlm, **flags)
    assert "Forgetting of general text was not measured; `--general_validation_file`" in card.text
    metrics, card = run(run_mlm, general_validation_file=tmp_path / "general.txt", **flags)
    before, after = metrics["start_general_loss"], metrics["general_loss"]
    assert f"| general text, before the first step | {before:.4f} | {math.exp(before):.4g} |" in card.text
    assert f"| general text, after training | {after:.4f} | {math.exp(after):.4g} |" in card.text
    assert before != after and "was not measured" not in card.text
    assert metrics["eval_loss"] not in (before, after) and metrics["start_loss"] != before


def test_package_has_no_invented_address(monkeypatch):
    assert name_package() == "hf-domain"  # the project has no URL yet
    assert "pypi.org" not in "".join(text.read_text() for text in (files("hf_domain") / "model_card.md",))
    own = Message()
    own["Project-URL"] = "Repository, https://example.org/hf-domain"
    monkeypatch.setattr("hf_domain.extras.metadata", lambda name: own)
    assert name_package() == "[hf-domain](https://example.org/hf-domain)"


ONE = [{"text": SENTENCES[number % 5], "label": "ab"[number % 3 == 0]} for number in range(24)]
SEVERAL = [{"text": row["text"], "label": ["a", "b"] if number % 2 else ["a"]} for number, row in enumerate(ONE)]


@pytest.mark.parametrize("rows", [ONE, SEVERAL], ids=["one", "several"])
def test_classification(run, tmp_path, rows):
    files = {
        f"{split}_file": write_jsonl(tmp_path / f"{split}.jsonl", rows) for split in ("train", "validation", "test")
    }
    metrics, card = run(run_classification, max_seq_length=16, do_predict=True, **files)
    assert card.data.pipeline_tag == "text-classification"
    (score,) = card.data.eval_results
    assert (score.metric_type, score.metric_name, score.dataset_split) == ("f1", "macro F1", "test")
    assert score.metric_value == metrics["predict_macro_f1"]
    value, baseline = metrics["predict_macro_f1"], metrics["predict_baseline_macro_f1"]
    assert f"| **macro F1** | **{value:.4g}** | {baseline:.4g} |" in card.text
    assert ("did not learn" in card.text) is not metrics["predict_beats_baseline"]
    assert "- **Method:** fine-tuning\n" in card.text and "## Citation" not in card.text
    assert "hf_domain.predict(" in card.text


def test_what_the_validation_set_chose_is_said_beside_its_scores(run, tmp_path):
    files = {f"{split}_file": write_jsonl(tmp_path / f"{split}.jsonl", SEVERAL) for split in ("train", "validation")}
    _, card = run(run_classification, max_seq_length=16, early_stopping_patience=1, **files)
    assert "The same set also chose the checkpoint and the thresholds of the labels: expect lower scores" in card.text
    files["test_file"] = write_jsonl(tmp_path / "test.jsonl", SEVERAL)
    _, card = run(run_classification, max_seq_length=16, early_stopping_patience=1, do_predict=True, **files)
    assert "Measured on the test set" in card.text and "The same set also chose" not in card.text


def test_what_a_local_encoder_was_made_from(run, tmp_path):
    """Its own card says so, and its license."""
    header = "---\nbase_model: google-bert/bert-base-uncased\nlicense: apache-2.0\n---\n"
    (tmp_path / "encoder" / "README.md").write_text(header)
    files = {f"{split}_file": write_jsonl(tmp_path / f"{split}.jsonl", ONE) for split in ("train", "validation")}
    _, card = run(run_classification, max_seq_length=16, **files)
    assert (card.data.base_model, card.data.base_model_relation) == ("google-bert/bert-base-uncased", "finetune")
    assert card.data.license == "apache-2.0"
    assert "encoder, made from google-bert/bert-base-uncased" in card.text
    assert find_origin("google-bert/bert-base-uncased", None) == ("google-bert/bert-base-uncased", None)  # offline


@pytest.mark.parametrize("script", [run_mlm, run_classification])
def test_license_of_the_data(run, tmp_path, script):
    """It is in the text and in the metadata, beside that of the encoder."""
    (tmp_path / "encoder" / "README.md").write_text("---\nlicense: apache-2.0\n---\n")
    (tmp_path / "corpus.txt").write_text("\n".join(SENTENCES * 40), encoding="utf-8")
    files = {f"{split}_file": write_jsonl(tmp_path / f"{split}.jsonl", ONE) for split in ("train", "validation")}
    if script is run_mlm:
        files = {"train_file": tmp_path / "corpus.txt"}
    _, card = run(script, max_seq_length=16, data_license="cc-by-4.0", **files)
    assert "has the license apache-2.0. The training data have the license cc-by-4.0." in card.text
    assert (card.data.license, card.data.data_license) == ("apache-2.0", "cc-by-4.0")
    assert "--data_license cc-by-4.0" in card.text and "not known" not in card.text


@pytest.mark.parametrize("script", [run_mlm, run_classification, run_ner, run_qa, run_distill])
def test_unknown_license_of_the_data_is_refused_before_work(script, tmp_path, monkeypatch, capsys):
    flags = ["--model_name_or_path", str(tmp_path), "--output_dir", str(tmp_path / "new"), "--data_license", "CC-BY-4"]
    monkeypatch.setattr(sys, "argv", ["script", *flags])
    with pytest.raises(SystemExit):
        script.main()
    assert "--data_license: a license must be an identifier of the Hub" in (error := capsys.readouterr().err)
    assert "is 'CC-BY-4'. Did you mean cc-by-4.0?" in error and not (tmp_path / "new").exists()


def test_licenses_are_those_of_the_hub():
    assert {"apache-2.0", "mit", "cc-by-nc-sa-4.0", "other"} <= {*list_licenses()}
    check_license(None)
    check_license("cc-by-4.0")
    with pytest.raises(ValueError, match=r"but is 'Apache-2'. Did you mean apache-2.0\?"):
        check_license("Apache-2")


def test_command_shows_neither_secrets_nor_folders(tmp_path, monkeypatch):
    arguments = [
        "hf-domain ner",
        "--token",
        "hf_a",
        "--hub_token=hf_b",
        "--train_file",
        "/home/someone/a b.jsonl",
        "--do_eval",
    ]
    assert describe_command(arguments) == "hf-domain ner --train_file 'a b.jsonl' --do_eval"
    (tmp_path / "run.yaml").write_text("train_file: [a.txt, b.txt]\ntoken: hf_c\nlearning_rate: 1e-4\n")
    command = describe_command(["examples/run_mlm.py", str(tmp_path / "run.yaml"), "--seed", "2"])
    assert command == "hf-domain mlm --train_file a.txt b.txt --learning_rate 1e-4 --seed 2"
    monkeypatch.setattr(sys, "argv", ["hf-domain qa", "--do_eval", "--token"])
    assert describe_command() == "hf-domain qa --do_eval"
    assert Path("/home/someone").name not in command
