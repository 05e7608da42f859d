"""Models that read passages, in every script from the command line."""

import json
import random

import pytest
import torch
from datasets import Dataset, DatasetDict, IterableDatasetDict
from script_runs import run_script, save_tiny_bert, write_jsonl
from tiny_models import make_masked_lm
from tiny_tokenizers import make_bert_tokenizer, make_tokenizer
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from hf_domain import RadaForMaskedLM, RadaForQuestionAnswering, RadaForSequenceClassification, RadaModel
from hf_domain.datastore import Datastore, build_datastore
from hf_domain.examples import run_classification, run_mlm, run_ner, run_qa
from hf_domain.methods import PLAIN
from hf_domain.methods.rada.explanation import explain
from hf_domain.methods.rada.passages import (
    PassageArguments,
    PassageReader,
    append_passages,
    load_datastore,
    load_passage_reader,
)
from hf_domain.prediction import predict
from hf_domain.tasks.classification import tokenize_texts
from hf_domain.tasks.token_classification import prepare_for_words

TOPICS = ["law", "gene", "stock"]
NAMES = [first + second for first in "abcdefgh" for second in "aeiou"]
FILLERS = ["then", "and", "so", "but", "where"]


def write_case(name, topic):
    return f"{name} and {topic} so {topic} then {name}"


@pytest.fixture(scope="module")
def topics():
    return dict(zip(NAMES, random.Random(0).choices(TOPICS, k=len(NAMES)), strict=True))


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return save_tiny_bert(tmp_path_factory.mktemp("model"), [" ".join([*TOPICS, *NAMES, *FILLERS])])


@pytest.fixture
def datastore(tmp_path, model, topics):
    """What each name stands for is written here alone."""
    texts = [write_case(name, topic) for name, topic in topics.items()]
    documents = Dataset.from_dict({"text": texts})
    # No stop words: "and", "so" and "then" occur in every passage as well, and some names are like stop words.
    tokenizer = AutoTokenizer.from_pretrained(model)
    build_datastore(documents, tmp_path / "datastore", tokenizer, max_length=64, analyzer="standard")
    return str(tmp_path / "datastore")


@pytest.fixture
def run(tmp_path, monkeypatch, model, datastore):
    def call(script, splits=None, name="output", **flags):
        files = {f"{split}_file": write_jsonl(tmp_path / f"{split}.jsonl", rows) for split, rows in splits.items()}
        defaults = {"model_name_or_path": model, "method": "rada", "datastore": datastore, "num_passages": 2}
        defaults |= {"do_train": True, "do_eval": True, "max_seq_length": 32, "per_device_train_batch_size": 8}
        flags = {flag: value for flag, value in (defaults | files | flags).items() if value is not None}
        return run_script(script.main, monkeypatch, tmp_path / name, **flags)

    return call


def make_texts(topics, names, count):
    rng = random.Random(count)
    chosen = rng.choices(names, k=count)
    return [{"text": f"where {name}", "label": topics[name]} for name in chosen]


@pytest.mark.commands
def test_classification_learns_from_passages_alone(run, topics, tmp_path):
    # The names of the evaluation are new: only the datastore contains their topic.
    splits = {"train": make_texts(topics, NAMES[:25], 300), "validation": make_texts(topics, NAMES[25:], 60)}
    flags = {"num_train_epochs": 10, "learning_rate": 2e-3, "warmup_steps": 0, "passage_cache": tmp_path / "states"}
    results = run(run_classification, splits, config_overrides="passage_encoder=frozen,num_heads=1", **flags)
    assert results["eval_accuracy"] > 0.75
    retrieved = {row["text"] for rows in splits.values() for row in rows}
    assert json.loads((tmp_path / "states" / "states.json").read_text())["sequences"] == len(retrieved)
    loaded = AutoModelForSequenceClassification.from_pretrained(tmp_path / "output")
    assert isinstance(loaded, RadaForSequenceClassification)
    assert loaded.config.passage_encoder == "frozen"
    assert list(loaded.config.id2label.values()) == sorted(TOPICS)

    # The finished model again, without training and without a cache: the same passages give the same answers.
    finished = {"model_name_or_path": tmp_path / "output", "do_train": False}
    again = run(run_classification, splits, "again", **finished)
    assert again["eval_accuracy"] == pytest.approx(results["eval_accuracy"], abs=0.04)
    without = run(run_classification, splits, "without", **finished, method=None, datastore=None)
    assert without["eval_accuracy"] < 0.6


@pytest.mark.parametrize("bf16", [True, False])
def test_cache_is_computed_in_the_precision_of_the_training(run, topics, tmp_path, monkeypatch, bf16):
    encode, seen = RadaModel.encode_passages, set()

    def watch(self, *args):
        seen.add(torch.is_autocast_enabled("cpu"))
        return encode(self, *args)

    monkeypatch.setattr(RadaModel, "encode_passages", watch)
    splits = {"train": make_texts(topics, NAMES, 16), "validation": make_texts(topics, NAMES, 8)}
    flags = {"passage_cache": tmp_path / "states", "config_overrides": "passage_encoder=frozen"}
    run(run_classification, splits, max_steps=1, bf16=bf16, use_cpu=True, **flags)
    assert seen == {bf16}


def test_masked_lm_then_task(run, topics, tmp_path):
    texts = [{"text": write_case(name, topic)} for name, topic in topics.items()] * 4
    flags = {"max_steps": 3, "max_seq_length": 16, "validation_split_percentage": 10}
    results = run(run_mlm, {"train": texts}, "mlm", **flags)
    assert results["perplexity"] > 1
    model = RadaForMaskedLM.from_pretrained(tmp_path / "mlm")
    splits = {"train": make_texts(topics, NAMES, 16), "validation": make_texts(topics, NAMES, 8)}
    still = {"learning_rate": 1e-30, "method_learning_rate": 1e-30}
    run(run_classification, splits, "task", model_name_or_path=tmp_path / "mlm", max_steps=1, **still)
    task = RadaForSequenceClassification.from_pretrained(tmp_path / "task")
    for name, value in task.model.state_dict().items():
        assert value.equal(model.model.state_dict()[name]), name  # the interface came along


@pytest.mark.parametrize("family", [None, "roberta", "modernbert"])
def test_entities(run, topics, tmp_path, family):
    """With several windows a sentence, and where a tokenizer of words is not quite the one that cut the passages."""
    rows = [{"tokens": ["where", name] * 9, "tags": ["O", f"B-{topic}"] * 9} for name, topic in topics.items()]
    flags = {"max_seq_length": 16}
    if family:
        tokenizer, encoder = make_tokenizer(family), make_masked_lm(family)
        encoder.resize_token_embeddings(len(tokenizer))
        encoder.save_pretrained(tmp_path / "encoder")
        tokenizer.save_pretrained(tmp_path / "encoder")
        documents = Dataset.from_dict({"text": [write_case(NAMES[0], topics[NAMES[0]])]})
        build_datastore(documents, tmp_path / "of_encoder", tokenizer, max_length=64)
        flags |= {"model_name_or_path": tmp_path / "encoder", "datastore": tmp_path / "of_encoder"}
    results = run(run_ner, {"train": rows, "validation": rows[:9]}, max_steps=2, **flags)
    assert 0 <= results["eval_f1"] <= 1


def test_questions_of_several_windows(run, topics, tmp_path):
    rows = [
        {
            "id": name,
            "question": f"where {name}",
            "context": " ".join([*FILLERS * 6, topic]),
            "answers": {"text": [topic], "answer_start": [len(" ".join(FILLERS * 6)) + 1]},
        }
        for name, topic in topics.items()
    ]
    run(run_qa, {"train": rows, "validation": rows[:4]}, max_steps=2, doc_stride=4, max_seq_length=20)
    assert RadaForQuestionAnswering.from_pretrained(tmp_path / "output").config.passage_encoder == "frozen"


def test_what_a_run_may_not_ask_for(run, topics, tmp_path):
    splits = {"train": make_texts(topics, NAMES, 16), "validation": make_texts(topics, NAMES, 8)}
    with pytest.raises(ValueError, match=r"BertForSequenceClassification reads none\. Add --method rada"):
        run(run_classification, splits, method=None)
    with pytest.raises(ValueError, match=f"needs a --datastore, but {tmp_path} is given alone"):
        load_datastore(PassageArguments(passage_cache=str(tmp_path)), make_masked_lm("bert"), None, None)
    with pytest.raises(ValueError, match=r"passage_encoder is shared"):
        run(run_classification, splits, passage_cache=tmp_path / "states", max_steps=1, start="paper")


def test_a_reader_without_datastore_is_its_encoder(caplog):
    model = RadaForMaskedLM.from_backbone(make_masked_lm("bert"))
    assert load_passage_reader(PassageArguments(), model, None, PLAIN) is None
    assert "without a --datastore" in caplog.text


def test_a_stream_is_not_looked_up():
    with pytest.raises(ValueError, match="Leave out --streaming"):
        PassageReader(PassageArguments(), None, None, None).look_up_blocks(IterableDatasetDict())


def test_processes_that_search(monkeypatch):
    asked = []
    monkeypatch.setattr("hf_domain.datastore.add_passages", lambda *args, num_proc: asked.append(num_proc) or args[0])
    splits = DatasetDict(train=Dataset.from_dict({"text": ["a"]}))
    assert PassageReader(PassageArguments(), None, None, None).look_up(splits, ["text"], 3) is splits
    assert asked == [3]


def test_best_passage_is_appended_for_any_encoder(run, topics, tmp_path, datastore):
    splits = {"train": make_texts(topics, NAMES[:25], 300), "validation": make_texts(topics, NAMES[25:], 60)}
    flags = {"method": None, "append_passage": True, "max_seq_length": 48, "learning_rate": 3e-3}
    results = run(run_classification, splits, num_train_epochs=10, **flags)
    assert results["eval_accuracy"] > 0.75  # only the passage contains the topic
    assert AutoModelForSequenceClassification.from_pretrained(tmp_path / "output").config.model_type == "bert"
    # Predictions append it too, and do not go without.
    rows = splits["validation"]
    found = predict(tmp_path / "output", [{"text": row["text"]} for row in rows], datastore=str(datastore))
    right = [label == row["label"] for label, row in zip(found["prediction"], rows, strict=True)]
    assert sum(right) / len(rows) == pytest.approx(results["eval_accuracy"])
    with pytest.raises(ValueError, match="trained with the best passage appended to each text, and must have"):
        predict(tmp_path / "output", ["where ba"])
    card = (tmp_path / "output" / "README.md").read_text()
    assert 'datastore="datastore"' in card and "Training appended the best passage" in card
    with pytest.raises(
        ValueError, match="--append_passage needs a --datastore and an encoder that reads no passages itself"
    ):
        run(run_classification, splits, "other", append_passage=True)
    with pytest.raises(ValueError, match="needs a --datastore"):
        run(run_classification, splits, "other", datastore=None, **flags)


def test_appended_text_is_that_of_the_best_passage(datastore, model):
    store, tokenizer = Datastore.load(datastore), AutoTokenizer.from_pretrained(model)
    splits = DatasetDict(
        test=Dataset.from_dict({"text": ["where ba"], "passage_ids": [[3, 1]], "passage_scores": [[2.0, 1.0]]})
    )
    empty = DatasetDict(test=Dataset.from_dict({"text": ["x"], "passage_ids": [[]], "passage_scores": [[]]}))
    appended = append_passages(splits, store, "text", tokenizer, 32)
    assert appended["test"][0] == {"text": "where ba", "passage": store.passages[3]["text"]}
    assert append_passages(empty, store, "text", tokenizer, 32)["test"][0] == {"text": "x", "passage": ""}


def test_a_text_loses_nothing_to_the_passage_appended(datastore, model):
    store, tokenizer = Datastore.load(datastore), AutoTokenizer.from_pretrained(model)
    texts = ["where ba", "but so " * 6, "but so " * 8, None]
    splits = Dataset.from_dict({"text": texts, "passage_ids": [[3]] * 4, "passage_scores": [[1.0]] * 4})
    rows = list(append_passages(DatasetDict(test=splits), store, "text", tokenizer, 16)["test"])
    alone = tokenize_texts([texts], tokenizer, max_seq_length=16)["input_ids"]
    pairs = tokenize_texts([texts, [row["passage"] for row in rows]], tokenizer, max_seq_length=16)
    words = tokenizer(store.passages[3]["text"], add_special_tokens=False)["input_ids"]
    for text, ids in zip(alone, pairs["input_ids"], strict=True):
        room = max(16 - len(text) - 1, 0)
        assert ids[: min(len(text), 15) - 1] == text[: min(len(text), 15) - 1]
        assert ids[len(text) :] == [*words[:room], tokenizer.sep_token_id][: 16 - len(text)]
    assert rows[2]["passage"] == ""


def test_what_a_model_reads_is_shown(datastore, model, topics):
    torch.manual_seed(0)
    rada = RadaForMaskedLM.from_backbone(model)
    tokenizer = AutoTokenizer.from_pretrained(model)
    store, text = Datastore.load(datastore), f"where {NAMES[3]}"
    ((number, spans),) = explain(rada, tokenizer, store, [text]).weights.items()
    passage = store.passages[number]
    assert NAMES[3] in passage["text"]
    assert [passage["text"][start:end] for start, end, _ in spans] == passage["text"].split()
    # The same from the model alone, with the one passage that is found.
    encoded = tokenizer(text, return_tensors="pt")
    reading = rada.eval().model(**encoded, passage_input_ids=torch.tensor([[passage["input_ids"]]]))
    expected = reading.word_weights[0].mean(0)[1:-1].tolist()
    assert [weight for *_, weight in spans] == pytest.approx(expected, rel=1e-4)
    assert explain(rada, tokenizer, store, ["nothing known"]).weights == {}
    # A pair is looked up as one text and read as a pair.
    ((found, spans),) = explain(rada, tokenizer, store, ["where", NAMES[3]]).weights.items()
    assert found == number
    encoded = tokenizer("where", NAMES[3], return_tensors="pt")
    reading = rada.model(**encoded, passage_input_ids=torch.tensor([[passage["input_ids"]]]))
    expected = reading.word_weights[0].mean(0)[1:-1].tolist()
    assert [weight for *_, weight in spans] == pytest.approx(expected, rel=1e-4)

    told = explain(rada, tokenizer, store, [text])
    assert told.probabilities == {number: pytest.approx(1)} and told.predictions == []
    head = RadaForSequenceClassification.from_backbone(model, num_labels=2)
    head.config.id2label = {0: "gene", 1: "stock"}
    told = explain(head, tokenizer, store, [" ".join(NAMES[:9])])
    assert len(told.probabilities) == 9 and sum(told.probabilities.values()) == pytest.approx(1)
    (chosen,) = told.weights
    assert told.probabilities[chosen] == max(told.probabilities.values())
    batch = tokenizer(" ".join(NAMES[:9]), return_tensors="pt")
    batch["passage_input_ids"] = torch.tensor([store.passages[[*told.found]]["input_ids"]])
    expected = head.eval()(**batch).logits[0].softmax(-1).tolist()
    assert dict(told.predictions) == pytest.approx({"gene": expected[0], "stock": expected[1]}, abs=0.001)


def test_a_model_reads_for_its_explanation_what_it_reads_to_predict(datastore, model, topics, caplog):
    """As many passages as in fine-tuning, and not the text itself, which the retrieval's score would prefer."""
    torch.manual_seed(0)
    rada = RadaForSequenceClassification.from_backbone(model, num_labels=3, num_passages=2, prior_scale_init=4.0)
    for parameter in [*rada.classifier.parameters(), *rada.model.interface.parameters()]:
        torch.nn.init.normal_(parameter, std=0.3)
    tokenizer, store = AutoTokenizer.from_pretrained(model), Datastore.load(datastore)
    text = " ".join(NAMES[:12])
    store.add(Dataset.from_dict({"text": [text]}))
    (row,) = predict(rada, [{"text": text}], tokenizer=tokenizer, datastore=datastore)
    told = explain(rada, tokenizer, store, [text])
    with pytest.raises(ValueError, match="must be at least 1, but is 0"):
        explain(rada, tokenizer, store, [text], num_passages=0)
    assert len(told.found) == 2 and len(store) - 1 not in told.found
    assert told.predictions[0][0] == row["prediction"]
    assert dict(told.predictions) == pytest.approx(row["probabilities"], abs=1e-4)
    assert "vote" not in caplog.text
    rada.config.nearest_vote = {"count": 5, "weight": 0.4, "label_column": "label"}
    explain(rada, tokenizer, store, [text])
    assert "a vote of the nearest texts, which is not in the probabilities shown here" in caplog.text


def test_chinese_blocks_find_what_their_text_finds(tmp_path):
    """WordPiece decodes them with blanks between the characters."""
    texts = ["租赁期限超过二十年的当事人应当采用书面形式", "出租人应当按照约定将租赁物交付承租人"]
    texts += ["当事人应当采用书面形式订立合同"]
    tokenizer = make_bert_tokenizer(texts)
    documents = Dataset.from_dict({"text": texts})
    store = build_datastore(documents, tmp_path / "store", tokenizer, max_length=64, analyzer="cjk")
    reader = PassageReader(PassageArguments(num_passages=2), None, tokenizer, store)
    rows = Dataset.from_dict({"text": texts})
    blocks = rows.map(lambda row: {"input_ids": tokenizer(row["text"])["input_ids"]}, remove_columns="text")
    found = reader.look_up_blocks(DatasetDict(train=blocks))["train"]["passage_ids"]
    assert found == reader.look_up(DatasetDict(train=rows), ["text"])["train"]["passage_ids"]
    assert all(found)


def test_weighed_words_are_those_of_the_passage_as_it_was_cut(tmp_path):
    """After run_ner, a byte-level tokenizer would cut its first word otherwise."""
    encoder, tokenizer = make_masked_lm("roberta"), make_tokenizer("roberta")
    encoder.resize_token_embeddings(len(tokenizer))
    documents = Dataset.from_dict({"text": ["domain text"]})
    store = build_datastore(documents, tmp_path / "store", tokenizer, max_length=64)
    prepare_for_words(tokenizer)
    assert len(tokenizer("domain text").input_ids) < len(store.passages[0]["input_ids"])
    (spans,) = explain(RadaForMaskedLM.from_backbone(encoder), tokenizer, store, ["text"]).weights.values()
    assert len(spans) == len(store.passages[0]["input_ids"]) - 2


@pytest.mark.parametrize(("family", "positions"), [("bert", 96), ("roberta", 98), ("modernbert", 0)])
def test_passages_longer_than_the_model_are_reported(tmp_path, family, positions):
    """RoBERTa's positions begin after that of its padding, 1."""
    tokenizer = make_tokenizer(family)
    encoder = make_masked_lm(family, **({"max_position_embeddings": positions} if positions else {}))
    encoder.resize_token_embeddings(len(tokenizer))
    model = RadaForMaskedLM.from_backbone(encoder)
    for length in (96, 97):
        folder = str(tmp_path / f"{length}")
        build_datastore(Dataset.from_dict({"text": ["domain text " * 80]}), folder, tokenizer, max_length=length)
        args = PassageArguments(folder)
        if length == 96 or not positions:
            store = load_datastore(args, model, tokenizer, None)
            assert explain(model, tokenizer, store, ["text"]).weights
        else:
            with pytest.raises(ValueError, match=r"at most 96 tokens, .* have up to 97\. .* --max_length 96 or less"):
                load_datastore(args, model, tokenizer, None)
    assert load_datastore(PassageArguments(folder), encoder, tokenizer, None, appends_passage=True)  # truncates
