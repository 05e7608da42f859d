"""The cards of models that no run of pre-training or fine-tuning made."""

import hashlib
import json
import shutil

import pytest
from huggingface_hub import ModelCard
from script_runs import save_tiny_bert
from tiny_tokenizers import SENTENCES
from transformers import AutoModelForMaskedLM, AutoTokenizer

from hf_domain.examples import average_models, run_expand_vocab
from hf_domain.training.cards import find_origin

HEADER = "---\nbase_model: {}\nlicense: {}\n---\n"


@pytest.fixture
def encoders(tmp_path):
    """Two encoders of one architecture, whose cards name what they were made from."""
    first = tmp_path / "general"
    save_tiny_bert(first, SENTENCES)
    second = shutil.copytree(first, tmp_path / "adapted")
    (first / "README.md").write_text(HEADER.format("google-bert/bert-base-uncased", "apache-2.0"))
    (second / "README.md").write_text(HEADER.format("allenai/scibert_scivocab_uncased", "mit"))
    return [str(first), str(second)]


def call(script, monkeypatch, output, *flags):
    """Run a script; returns its card, which loads and names no folder of this machine."""
    monkeypatch.setattr("sys.argv", [f"hf-domain {script.__name__}", "--output_dir", str(output), *map(str, flags)])
    script.main()
    card = ModelCard.load(output / "README.md")
    assert str(output.parent) not in card.content and "{base_model}" not in card.text
    assert (card.data.library_name, card.data.pipeline_tag) == ("transformers", "fill-mask")
    assert f'pipeline("fill-mask", model="{output.name}")' in card.text and "versions" in card.text
    AutoModelForMaskedLM.from_pretrained(output)
    return card


def test_an_average_names_its_encoders(encoders, tmp_path, monkeypatch):
    flags = ("--model_name_or_path", *encoders, "--weights", 1, 3)
    card = call(average_models, monkeypatch, tmp_path / "averaged", *flags)
    assert card.data.base_model == ["google-bert/bert-base-uncased", "allenai/scibert_scivocab_uncased"]
    assert card.data.base_model_relation == "merge" and card.data.license is None
    made = "general, made from google-bert/bert-base-uncased and adapted, made from allenai/scibert_scivocab_uncased"
    assert f"The average of the weights of {made}." in card.text and "| weights | 1, 3 |" in card.text
    assert "google-bert/bert-base-uncased has the license apache-2.0." in card.text
    assert "allenai/scibert_scivocab_uncased has the license mit." in card.text
    assert "- **Method:** averaging of weights\n" in card.text
    assert "Corpus" not in card.text and "--model_name_or_path general adapted" in card.text


def test_an_average_of_two_vocabularies_is_refused(encoders, tmp_path, monkeypatch):
    """Equal sizes are not enough: a row would be the mean of two unrelated words."""
    file = tmp_path / "adapted" / "tokenizer.json"
    content = json.loads(file.read_text())
    vocabulary = content["model"]["vocab"]
    first, second = [token for token in vocabulary if token.isalpha()][:2]
    vocabulary[first], vocabulary[second] = vocabulary[second], vocabulary[first]
    file.write_text(json.dumps(content))
    with pytest.raises(ValueError, match=r"must have the same vocabulary, but the tokens of .*adapted have other ids"):
        call(average_models, monkeypatch, tmp_path / "averaged", "--model_name_or_path", *encoders)
    assert not (tmp_path / "averaged" / "config.json").exists()
    for file in (tmp_path / "adapted").glob("tokenizer*"):
        file.unlink()  # a model alone fits, as far as one can see
    call(average_models, monkeypatch, tmp_path / "averaged", "--model_name_or_path", *encoders)


def test_an_average_of_one_license_has_it(encoders, tmp_path, monkeypatch):
    card = call(average_models, monkeypatch, tmp_path / "averaged", "--model_name_or_path", encoders[0], encoders[0])
    assert card.data.license == "apache-2.0" and card.data.base_model == "google-bert/bert-base-uncased"
    assert find_origin(str(tmp_path / "averaged"), None) == ("google-bert/bert-base-uncased", "apache-2.0")


@pytest.mark.parametrize("counts", [False, True], ids=["text", "counts"])
def test_an_expansion_names_corpus_and_new_entries(encoders, tmp_path, monkeypatch, counts):
    corpus, source = tmp_path / "corpus.txt", tmp_path / ("counts.parquet" if counts else "corpus.txt")
    corpus.write_text("the lymphoma sat on the mat\n" * 9, encoding="utf-8")
    flags = ["--model_name_or_path", encoders[0], "--train_file", corpus, "--step", 5, "--num_workers", 1]
    flags += ["--counts_file", source] if counts else []
    card = call(run_expand_vocab, monkeypatch, tmp_path / "expanded", *flags)
    count = len(AutoTokenizer.from_pretrained(tmp_path / "expanded")) - len(AutoTokenizer.from_pretrained(encoders[0]))
    assert count > 0 and f"| new entries | {count} |" in card.text
    assert f"{source.name} (9 documents, sha256 {hashlib.sha256(source.read_bytes()).hexdigest()})" in card.text
    assert (card.data.base_model, card.data.base_model_relation) == ("google-bert/bert-base-uncased", "finetune")
    assert card.data.license == "apache-2.0" and "adalm" in card.data.tags
    assert "- **Method:** vocabulary expansion (Yao et al. 2021" in card.text
    assert "--train_file corpus.txt" in card.text and "The training data are local files" in card.text


def test_without_a_model_there_is_no_card(encoders, tmp_path, monkeypatch):
    (tmp_path / "corpus.txt").write_text("the lymphoma sat on the mat\n" * 9, encoding="utf-8")
    flags = ("--model_name_or_path", encoders[0], "--train_file", tmp_path / "corpus.txt", "--embedding_init", "none")
    with pytest.raises(ValueError, match=r"expanded/README.md"):
        call(run_expand_vocab, monkeypatch, tmp_path / "expanded", *flags, "--num_workers", 1)
    assert (tmp_path / "expanded" / "vocabulary_delta.json").is_file()
