"""The cards of models that no run of pre-training or fine-tuning made."""

import hashlib
import shutil

import pytest
from huggingface_hub import ModelCard
from script_runs import save_tiny_bert
from tiny_tokenizers import SENTENCES
from transformers import AutoModelForMaskedLM, AutoTokenizer

from hf_domain.examples import run_expand_vocab

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


@pytest.mark.parametrize(("counts", "method"), [(False, "adalm"), (True, "adalm"), (False, "words")])
def test_an_expansion_names_corpus_and_new_entries(encoders, tmp_path, monkeypatch, counts, method):
    corpus, source = tmp_path / "corpus.txt", tmp_path / ("counts.parquet" if counts else "corpus.txt")
    corpus.write_text("the lymphoma sat on the mat\n" * 9, encoding="utf-8")
    flags = ["--model_name_or_path", encoders[0], "--train_file", corpus, "--step", 5, "--num_workers", 1]
    flags += ["--counts_file", source] if counts else []
    (tmp_path / "words.txt").write_text("lymphoma", encoding="utf-8")
    flags += ["--method", method, "--words", tmp_path / "words.txt"] if method == "words" else []
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
