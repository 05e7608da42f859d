"""Sentence embeddings: scores of sentence-transformers' evaluators, and training by its trainer."""

import hashlib
import json
import shutil
import sys
from functools import partial

import numpy as np
import pytest
import torch
from huggingface_hub import ModelCard
from scipy.stats import pearsonr, spearmanr
from script_runs import run_script, save_tiny_bert
from sentence_tasks import make_texts, write_pairs, write_search
from transformers import AutoModel, AutoTokenizer

from hf_domain.examples import run_sentences
from hf_domain.tasks.retrieval import load_texts, read_queries
from hf_domain.tasks.sentences import SimilarityTask
from hf_domain.training.sentences import describe_gain

FROZEN = {"max_seq_length": 32, "do_eval": True, "do_predict": True, "per_device_eval_batch_size": 5}


@pytest.fixture(scope="module")
def encoder(tmp_path_factory):
    return save_tiny_bert(tmp_path_factory.mktemp("encoder"), make_texts(80))


def name_files(folder, names=("train.jsonl", "validation.jsonl", "test.jsonl")):
    return {f"{split}_file": folder / name for split, name in zip(("train", "validation", "test"), names, strict=True)}


TABLES = ("qrels/train.tsv", "qrels/dev.tsv", "qrels/test.tsv")


def embed(encoder, texts):
    """Mean states of unit length, by transformers alone."""
    tokenizer, model = AutoTokenizer.from_pretrained(encoder), AutoModel.from_pretrained(encoder, dtype=torch.float32)
    rows = []
    with torch.no_grad():
        for text in texts:
            rows.append(model.eval()(**tokenizer(text, return_tensors="pt")).last_hidden_state[0].mean(0).numpy())
    return np.stack([row / np.linalg.norm(row) for row in rows])


def read_predictions(folder, name="predict_results.txt"):
    header, *lines = (folder / name).read_text().splitlines()
    assert header == "index\tprediction"
    return [json.loads(line.partition("\t")[2]) for line in lines]


def test_scores_of_pairs_are_correlations_of_cosines(encoder, tmp_path, monkeypatch):
    folder = write_pairs(tmp_path / "pairs")
    metrics = run_script(
        run_sentences.main, monkeypatch, tmp_path / "out", model_name_or_path=encoder, **name_files(folder), **FROZEN
    )
    for split, prefix, file in (
        ("test", "predict", "predict_results.txt"),
        ("validation", "eval", "eval_predictions.txt"),
    ):
        rows = [json.loads(line) for line in (folder / f"{split}.jsonl").open()]
        cosines = (embed(encoder, [r["sentence1"] for r in rows]) * embed(encoder, [r["sentence2"] for r in rows])).sum(
            1
        )
        np.testing.assert_allclose(read_predictions(tmp_path / "out", file), cosines, atol=1e-5)
        gold = [row["score"] for row in rows]
        assert metrics[f"{prefix}_spearman"] == pytest.approx(spearmanr(cosines, gold).statistic, abs=1e-4)
        assert metrics[f"{prefix}_pearson"] == pytest.approx(pearsonr(cosines, gold).statistic, abs=1e-4)
    assert not list((tmp_path / "out").glob("*.safetensors"))  # an encoder as it is makes no model


def test_scores_of_a_search_are_kept_for_each_query(encoder, tmp_path, monkeypatch):
    folder = write_search(tmp_path / "search")
    metrics = run_script(
        run_sentences.main,
        monkeypatch,
        tmp_path / "out",
        model_name_or_path=encoder,
        **name_files(folder, TABLES),
        **FROZEN,
    )
    corpus = load_texts(folder / "corpus.jsonl")
    queries = read_queries(folder / TABLES[2], corpus, load_texts(folder / "queries.jsonl"))
    names = np.array([*corpus])
    cosines = embed(encoder, [query["query"] for query in queries]) @ embed(encoder, corpus.values()).T
    gains, ranks = [], []
    for query, row, predicted in zip(queries, cosines, read_predictions(tmp_path / "out"), strict=True):
        first = names[np.argsort(-row)][:10]
        assert predicted["passages"] == [*first]
        hits = np.isin(first, query["relevant"])
        discounts = 1 / np.log2(np.arange(10) + 2)
        gains.append((hits * discounts).sum() / discounts[: len(query["relevant"])].sum())
        ranks.append(1 / (1 + hits.argmax()) if hits.any() else 0)
        assert predicted["ndcg_at_10"] == pytest.approx(gains[-1])
        assert predicted["mrr_at_10"] == pytest.approx(ranks[-1])
    assert 0 < np.mean(gains) < 1  # neither all nor nothing
    assert metrics["predict_ndcg_at_10"] == pytest.approx(np.mean(gains))
    assert metrics["predict_mrr_at_10"] == pytest.approx(np.mean(ranks))
    assert metrics["predict_samples"] == len(queries)


@pytest.mark.parametrize("task", ["pairs", "search"])
def test_training_improves_what_it_trains_on(encoder, tmp_path, monkeypatch, task, caplog):
    """The model in the folder is the one that was scored."""
    from sentence_transformers import SentenceTransformer

    if task == "pairs":
        files, metric = name_files(write_pairs(tmp_path / "pairs")), "predict_spearman"
    else:
        files, metric = name_files(write_search(tmp_path / "search"), TABLES), "predict_ndcg_at_10"
    first, *others = files["train_file"].read_text().splitlines()  # the first of a table is its header
    files["test_file"].write_text("\n".join([first, *reversed(others)]))
    options = {"model_name_or_path": encoder, "max_seq_length": 32, "do_predict": True, "num_train_epochs": 12}
    before = run_script(run_sentences.main, monkeypatch, tmp_path / "before", **files, **options)
    after = run_script(
        run_sentences.main, monkeypatch, tmp_path / "after", **files, **options, do_train=True, learning_rate=3e-3,
        reference_name_or_path=encoder,
    )  # fmt: skip
    assert after[metric] > before[metric] + 0.1
    assert after[metric.replace("_", "_reference_", 1)] == pytest.approx(before[metric])
    assert f"{after[metric]:.4f} is better than that of {encoder}, {before[metric]:.4f}: +0." in caplog.text
    assert {"train_runtime", "learning_rate", "trainable_parameters"} <= after.keys()
    model, texts = SentenceTransformer(str(tmp_path / "after"), device="cpu"), make_texts(6)
    np.testing.assert_allclose(
        model.encode(texts, normalize_embeddings=True), embed(tmp_path / "after", texts), atol=1e-5
    )
    assert model.max_seq_length == 32


@pytest.mark.parametrize("task", ["pairs", "search"])
def test_an_encoder_is_not_better_than_itself_and_worse_than_a_trained_one(
    encoder, tmp_path, monkeypatch, task, caplog
):
    files = (
        name_files(write_pairs(tmp_path / "pairs")) if task == "pairs" else name_files(write_search(tmp_path), TABLES)
    )
    options = {"model_name_or_path": encoder, "max_seq_length": 32, "test_file": files["test_file"], "do_predict": True}
    run_script(run_sentences.main, monkeypatch, tmp_path / "out", **options, reference_name_or_path=encoder)
    assert "is not clearly different from that of" in caplog.text and "interval +0.0000 to +0.0000" in caplog.text
    assert describe_gain("test", "spearman", 0.1, 0.5, (-0.6, -0.2), "it").startswith("Test: the spearman")
    assert "is worse than that of it, 0.5000: -0.4000" in describe_gain("test", "f1", 0.1, 0.5, (-0.6, -0.2), "it")


def test_the_interval_of_a_gain_is_that_of_resampled_pairs():
    numbers = np.random.default_rng(0)
    gold = numbers.normal(size=200)
    own, other = gold + 0.5 * numbers.normal(size=200), gold + 2 * numbers.normal(size=200)
    low, high = SimilarityTask(["a", "b"], "score").find_gain([{"score": value} for value in gold], own, other)
    draws = [
        spearmanr(gold[rows], own[rows]).statistic - spearmanr(gold[rows], other[rows]).statistic
        for rows in numbers.integers(0, 200, (2000, 200))
    ]
    assert (low, high) == pytest.approx(np.quantile(draws, [0.025, 0.975]), abs=0.03) and 0 < low < high


def test_a_search_in_another_corpus_is_another_run(encoder, tmp_path, monkeypatch):
    """The passages are named by no flag, but the score is theirs."""
    folder = write_search(tmp_path / "search")
    flags = {"model_name_or_path": encoder, "test_file": folder / TABLES[2], "do_predict": True, "max_seq_length": 32}
    call = partial(run_script, run_sentences.main, monkeypatch, tmp_path / "out", **flags, overwrite_output_dir=False)
    assert call() == call()
    lines = (folder / "corpus.jsonl").read_text().splitlines()
    (folder / "corpus.jsonl").write_text("\n".join([*lines, '{"_id": "new", "text": "one more"}']))
    with pytest.raises(ValueError, match="contains another run, finished, with other content of corpus_file"):
        call()


@pytest.mark.parametrize("task", ["pairs", "search"])
def test_card_is_ours_and_stays_when_published(encoder, tmp_path, monkeypatch, task):
    from sentence_transformers import SentenceTransformer

    if task == "pairs":
        files, metric, loss = name_files(write_pairs(tmp_path / "pairs")), "spearman", "CosineSimilarityLoss"
        trained, count = [files["train_file"]], 24
    else:
        folder, metric, loss = write_search(tmp_path / "search"), "ndcg_at_10", "MultipleNegativesRankingLoss"
        files = name_files(folder, TABLES)
        trained, count = [files["train_file"], folder / "corpus.jsonl", folder / "queries.jsonl"], 12
    header = "---\nbase_model: google-bert/bert-base-uncased\nlicense: apache-2.0\n---\n"
    own = shutil.copytree(encoder, tmp_path / "encoder")
    (own / "README.md").write_text(header)
    flags = {"model_name_or_path": own, "max_seq_length": 32, "max_steps": 1, "do_train": True, "do_predict": True}
    metrics = run_script(run_sentences.main, monkeypatch, tmp_path / "out", **files, **flags)
    card = ModelCard.load(tmp_path / "out" / "README.md")
    assert (card.data.library_name, card.data.pipeline_tag) == ("sentence-transformers", "sentence-similarity")
    assert (card.data.base_model, card.data.base_model_relation) == ("google-bert/bert-base-uncased", "finetune")
    assert card.data.license == "apache-2.0" and card.data.eval_results[0].metric_value == metrics[f"predict_{metric}"]
    for template in ("sentence_transformers_model_id", "*List", "Unknown", str(tmp_path)):
        assert template not in card.content
    digest = hashlib.sha256(b"".join(file.read_bytes() for file in trained)).hexdigest()
    assert f"{', '.join(file.name for file in trained)} ({count} pairs, sha256 {digest})" in card.text
    assert f"| loss | {loss} |" in card.text and 'SentenceTransformer("out")' in card.text
    assert f"--train_file {trained[0].name}" in card.text
    SentenceTransformer(str(tmp_path / "out"), device="cpu").save_pretrained(str(tmp_path / "published"))
    assert (tmp_path / "published" / "README.md").read_text() == (tmp_path / "out" / "README.md").read_text()


BEST = {"load_best_model_at_end": True, "eval_strategy": "epoch", "save_strategy": "epoch"}


@pytest.mark.parametrize("choice", [{"early_stopping_patience": 1}, BEST], ids=["early stopping", "best checkpoint"])
def test_the_best_epoch_is_kept(encoder, tmp_path, monkeypatch, choice):
    files = name_files(write_pairs(tmp_path / "pairs"))
    metrics = run_script(
        run_sentences.main,
        monkeypatch,
        tmp_path / "out",
        model_name_or_path=encoder,
        **files,
        **FROZEN,
        do_train=True,
        num_train_epochs=3,
        learning_rate=1e-3,
        **choice,
    )
    state = json.loads((tmp_path / "out" / "trainer_state.json").read_text())
    logged = [entry["eval_spearman_cosine"] for entry in state["log_history"] if "eval_spearman_cosine" in entry]
    assert metrics["eval_spearman"] == pytest.approx(max(logged)) and len(logged) >= 2


def test_the_extra_is_named_where_it_is_missing(encoder, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "sentence_transformers", None)
    files = name_files(write_pairs(tmp_path / "pairs"))
    with pytest.raises(ModuleNotFoundError, match=r"needs sentence-transformers, which is not installed: pip install"):
        run_script(
            run_sentences.main, monkeypatch, tmp_path / "out", model_name_or_path=encoder, **files, do_predict=True
        )
    assert not (tmp_path / "out" / "all_results.json").exists()
