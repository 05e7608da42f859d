"""Sentence embeddings: scores of sentence-transformers' evaluators, and training by its trainer."""

import json
import sys
from functools import partial

import numpy as np
import pytest
import torch
from huggingface_hub import ModelCard
from scipy.stats import spearmanr
from script_runs import run_script, save_tiny_bert
from sentence_tasks import make_texts, write_pairs, write_search
from transformers import AutoModel, AutoTokenizer

from hf_domain.data.files import load_files
from hf_domain.examples import run_sentences
from hf_domain.tasks.sentences import find_relevant, load_texts

SCORED = {"max_seq_length": 32, "do_eval": True, "do_predict": True, "per_device_eval_batch_size": 5}
METRICS = {"pairs": "predict_spearman_cosine", "search": "predict_cosine_ndcg@10"}


@pytest.fixture(scope="module")
def encoder(tmp_path_factory):
    return save_tiny_bert(tmp_path_factory.mktemp("encoder"), make_texts(80))


@pytest.fixture
def run(encoder, tmp_path, monkeypatch):
    """Run the command on the files of a task; returns its metrics."""

    def call(task, output="out", **flags):
        options = {"model_name_or_path": encoder, "max_seq_length": 32, **list_files(tmp_path, task), **flags}
        return run_script(run_sentences.main, monkeypatch, tmp_path / output, **options)

    write_pairs(tmp_path / "pairs")
    write_search(tmp_path / "search")
    return call


def list_files(folder, task):
    """Return the flags of the files of a task."""
    if task == "pairs":
        return {f"{split}_file": folder / "pairs" / f"{split}.jsonl" for split in ("train", "validation", "test")}
    tables = {"train": "train", "validation": "dev", "test": "test"}
    files = {f"{split}_file": folder / "search" / "qrels" / f"{name}.tsv" for split, name in tables.items()}
    return files | {f"{name}_file": folder / "search" / f"{name}.jsonl" for name in ("corpus", "queries")}


def embed(encoder, texts):
    """Mean states of unit length, by transformers alone."""
    tokenizer, model = AutoTokenizer.from_pretrained(encoder), AutoModel.from_pretrained(encoder, dtype=torch.float32)
    rows = []
    with torch.no_grad():
        for text in texts:
            rows.append(model.eval()(**tokenizer(text, return_tensors="pt")).last_hidden_state[0].mean(0).numpy())
    return np.stack([row / np.linalg.norm(row) for row in rows])


def test_scores_of_pairs_are_correlations_of_cosines(encoder, run, tmp_path):
    metrics = run("pairs", **SCORED)
    for split, prefix in (("test", "predict"), ("validation", "eval")):
        rows = load_files(str(tmp_path / "pairs" / f"{split}.jsonl"))
        cosines = (embed(encoder, rows["sentence1"]) * embed(encoder, rows["sentence2"])).sum(1)
        expected = spearmanr(cosines, rows["score"]).statistic
        assert metrics[f"{prefix}_spearman_cosine"] == pytest.approx(expected, abs=1e-4)
    assert not list((tmp_path / "out").glob("*.safetensors"))  # an encoder as it is makes no model


def test_scores_of_a_search_are_those_of_its_first_passages(encoder, run, tmp_path):
    metrics = run("search", **SCORED)
    corpus, queries = (load_texts(str(tmp_path / "search" / f"{name}.jsonl")) for name in ("corpus", "queries"))
    relevant = find_relevant(load_files(str(tmp_path / "search" / "qrels" / "test.tsv")))
    names, gains = np.array([*corpus]), []
    for row, passages in zip(
        embed(encoder, [queries[query] for query in relevant]) @ embed(encoder, corpus.values()).T,
        relevant.values(),
        strict=True,
    ):
        hits, discounts = np.isin(names[np.argsort(-row)][:10], [*passages]), 1 / np.log2(np.arange(10) + 2)
        gains.append((hits * discounts).sum() / discounts[: len(passages)].sum())
    assert 0 < np.mean(gains) < 1  # neither all nor nothing
    assert metrics["predict_cosine_ndcg@10"] == pytest.approx(np.mean(gains))


@pytest.mark.parametrize("task", ["pairs", "search"])
def test_training_improves_what_it_trains_on(encoder, run, tmp_path, task, caplog):
    """The model in the folder is the one that was scored, and its card shows the scores."""
    from sentence_transformers import SentenceTransformer

    files = list_files(tmp_path, task)
    first, *others = files["train_file"].read_text().splitlines()  # the first of a table is its header
    files["test_file"].write_text("\n".join([first, *reversed(others)]))
    options = {"do_predict": True, "num_train_epochs": 12}
    before = run(task, "before", **options)
    after = run(task, "after", **options, do_train=True, learning_rate=3e-3, reference_name_or_path=encoder)
    assert after[METRICS[task]] > before[METRICS[task]] + 0.1
    assert after[METRICS[task].replace("predict_", "predict_reference_")] == before[METRICS[task]]
    gain = after[METRICS[task]] - before[METRICS[task]]
    assert f"{after[METRICS[task]]:.4f}, {gain:.4f} better than {encoder}" in caplog.text
    assert {"train_runtime", "learning_rate", "trainable_parameters"} <= after.keys()
    model, texts = SentenceTransformer(str(tmp_path / "after"), device="cpu"), make_texts(6)
    np.testing.assert_allclose(
        model.encode(texts, normalize_embeddings=True), embed(tmp_path / "after", texts), atol=1e-5
    )
    assert model.max_seq_length == 32
    card = ModelCard.load(tmp_path / "after" / "README.md")
    assert card.data.library_name == "sentence-transformers" and str(tmp_path) not in card.content
    name = METRICS[task].removeprefix("predict_")
    assert any(result.metric_value == pytest.approx(after[METRICS[task]]) for result in card.data.eval_results), name


def test_a_search_in_another_corpus_is_another_run(run, tmp_path):
    call = partial(run, "search", do_predict=True, overwrite_output_dir=False)
    assert call() == call()
    with (tmp_path / "search" / "corpus.jsonl").open("a") as corpus:
        corpus.write('{"_id": "new", "text": "one more"}\n')
    with pytest.raises(ValueError, match="contains another run, finished, with other content of corpus_file"):
        call()


def test_the_best_epoch_is_kept(run, tmp_path):
    """By the score, since an evaluator measures no loss."""
    best = {"load_best_model_at_end": True, "eval_strategy": "epoch", "save_strategy": "epoch"}
    metrics = run("pairs", **SCORED, **best, do_train=True, num_train_epochs=3, learning_rate=1e-3)
    state = json.loads((tmp_path / "out" / "trainer_state.json").read_text())
    logged = [entry["eval_spearman_cosine"] for entry in state["log_history"] if "eval_spearman_cosine" in entry]
    assert metrics["eval_spearman_cosine"] == pytest.approx(max(logged)) and len(logged) >= 2


def test_the_extra_is_named_where_it_is_missing(run, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "sentence_transformers", None)
    with pytest.raises(ModuleNotFoundError, match=r"needs sentence-transformers, which is not installed: pip install"):
        run("pairs", do_predict=True)
    assert not (tmp_path / "out" / "all_results.json").exists()
