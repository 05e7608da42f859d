"""Passages in batches: deduplicated, padded, beside the batch of any task."""

import pytest
import torch
from datasets import Dataset
from tiny_tokenizers import make_bert_tokenizer
from transformers import (
    BertConfig,
    BertForMaskedLM,
    DataCollatorForTokenClassification,
    DataCollatorWithPadding,
    Trainer,
    TrainingArguments,
)

from hf_domain import (
    RadaForMaskedLM,
    RadaForQuestionAnswering,
    RadaForSequenceClassification,
    RadaForTokenClassification,
)
from hf_domain.data.masking import DataCollatorForTokenMask, DataCollatorForWholeWordMask
from hf_domain.methods.rada.collator import DataCollatorWithPassages, read_token_ids

TEXTS = [f"domain text number {word}" for word in ("one", "two", "three", "of the encoder and the decoder", "five")]


@pytest.fixture
def tokenizer():
    return make_bert_tokenizer([*TEXTS, "some more words for a task"])


@pytest.fixture
def passages(tokenizer):
    return Dataset.from_dict({"id": range(5), "text": TEXTS, "input_ids": tokenizer(TEXTS)["input_ids"]})


def make_examples(tokenizer, **columns):
    encodings = tokenizer(["some words", "more words for a task", "a task"])
    found = [[3, 0], [], [0, 4, 1]]
    scores = [[2.0, 1.0], [], [3.0, 2.0, 1.0]]
    rows = {"input_ids": encodings["input_ids"], "passage_ids": found, "passage_scores": scores, **columns}
    return [dict(zip(rows, values, strict=True)) for values in zip(*rows.values(), strict=True)]


def test_every_passage_once(tokenizer, passages):
    collator = DataCollatorWithPassages(DataCollatorWithPadding(tokenizer), tokenizer, passages, num_passages=3)
    examples = make_examples(tokenizer)
    batch = collator(examples)
    assert batch["passage_index"].tolist() == [[2, 0, -1], [-1, -1, -1], [0, 3, 1]]
    for row, number in enumerate([0, 1, 3, 4]):
        expected = tokenizer(TEXTS[number], padding="max_length", max_length=batch["passage_input_ids"].shape[1])
        assert batch["passage_input_ids"][row].tolist() == expected["input_ids"]
        assert batch["passage_attention_mask"][row].tolist() == expected["attention_mask"]
    assert len(batch["passage_input_ids"]) == 4
    inner = DataCollatorWithPadding(tokenizer)([{"input_ids": example["input_ids"]} for example in examples])
    for name, value in inner.items():
        assert torch.equal(batch[name], value)
    tokens = {"passage_input_ids", "passage_attention_mask", "passage_index"}
    assert set(batch) == {*inner, *tokens, "passage_scores"}
    assert batch["passage_scores"].tolist() == [[2.0, 1.0, 0.0], [0.0] * 3, [3.0, 2.0, 1.0]]
    without = collator([{name: value for name, value in row.items() if name != "passage_scores"} for row in examples])
    assert set(without) == {*inner, *tokens}
    assert "passage_ids" in examples[0]  # the dataset's rows are not touched


def test_the_best_passages_are_kept(tokenizer, passages):
    collator = DataCollatorWithPassages(DataCollatorWithPadding(tokenizer), tokenizer, passages, num_passages=1)
    batch = collator(make_examples(tokenizer))
    assert batch["passage_index"].tolist() == [[1], [-1], [0]]
    assert batch["passage_attention_mask"].shape[0] == 2


def test_ids_alone_for_a_cache(tokenizer):
    collator = DataCollatorWithPassages(DataCollatorWithPadding(tokenizer), tokenizer, None, num_passages=4)
    batch = collator(make_examples(tokenizer))
    assert batch["passage_ids"].tolist() == [[3, 0, -1, -1], [-1] * 4, [0, 4, 1, -1]]
    assert {name for name in batch if name.startswith("passage_")} == {"passage_ids", "passage_scores"}


def test_nothing_was_found(tokenizer, passages):
    collator = DataCollatorWithPassages(DataCollatorWithPadding(tokenizer), tokenizer, passages)
    batch = collator(make_examples(tokenizer, passage_ids=[[], [], []]))
    assert (batch["passage_index"] == -1).all()
    model = RadaForSequenceClassification.from_backbone(make_model(tokenizer)).eval()
    plain = {"input_ids": batch["input_ids"], "attention_mask": batch["attention_mask"]}
    assert torch.equal(model(**batch).logits, model(**plain).logits)


def make_model(tokenizer):
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    return BertForMaskedLM(BertConfig(vocab_size=len(tokenizer), **sizes))


@pytest.mark.parametrize("head", ["mlm", "whole words", "classification", "tokens", "questions"])
def test_batches_of_every_task_train(head, tokenizer, passages, tmp_path):
    model_class, collator, columns = {
        "mlm": (RadaForMaskedLM, DataCollatorForTokenMask(tokenizer, mlm_probability=0.5), {}),
        "whole words": (
            RadaForMaskedLM,
            DataCollatorForWholeWordMask(tokenizer, mlm_probability=0.5),
            {"word_ids": [[None, *range(len(row["input_ids"]) - 2), None] for row in make_examples(tokenizer)]},
        ),
        "classification": (RadaForSequenceClassification, DataCollatorWithPadding(tokenizer), {"labels": [0, 1, 1]}),
        "tokens": (
            RadaForTokenClassification,
            DataCollatorForTokenClassification(tokenizer),
            {"labels": [[-100, *[1] * (len(row["input_ids"]) - 2), -100] for row in make_examples(tokenizer)]},
        ),
        "questions": (
            RadaForQuestionAnswering,
            DataCollatorWithPadding(tokenizer),
            {"start_positions": [1, 1, 2], "end_positions": [2, 1, 2], "example_id": ["a", "b", "c"]},
        ),
    }[head]
    dataset = Dataset.from_list(make_examples(tokenizer, **columns))
    trainer = Trainer(
        model_class.from_backbone(make_model(tokenizer)),
        TrainingArguments(
            str(tmp_path),
            per_device_train_batch_size=2,
            max_steps=2,
            use_cpu=True,
            report_to="none",
            disable_tqdm=True,
            remove_unused_columns=head != "whole words",
        ),
        train_dataset=dataset,
        eval_dataset=dataset,
        data_collator=DataCollatorWithPassages(collator, tokenizer, passages, num_passages=2),
    )
    assert trainer.train().training_loss > 0
    assert trainer.evaluate()["eval_loss"] > 0
    assert trainer.predict(dataset).predictions is not None


def test_masks_do_not_depend_on_passages(tokenizer, passages):
    inner = DataCollatorForTokenMask(tokenizer, seed=3)
    wrapped = DataCollatorWithPassages(inner, tokenizer, passages)
    plain = [{"input_ids": example["input_ids"]} for example in make_examples(tokenizer)]
    assert torch.equal(inner(plain)["labels"], wrapped(make_examples(tokenizer))["labels"])


@pytest.mark.parametrize("form", ["dataset", "mapping"])
def test_unknown_passage(form, tokenizer, passages):
    if form == "mapping":
        passages = {row["id"]: row["input_ids"] for row in passages}
    assert read_token_ids(passages, [4, 2]) == tokenizer([TEXTS[4], TEXTS[2]])["input_ids"]
    assert read_token_ids(passages, []) == []
    with pytest.raises(ValueError, match=r"7 is not among its 5.*Retrieve again"):
        read_token_ids(passages, [1, 7])


def test_deleted_passage(passages):
    rest = passages.select([0, 1, 3, 4])  # rows are no longer ids
    with pytest.raises(ValueError, match="2 is not among its 4"):
        read_token_ids(rest, [0, 2])


def test_bad_input(tokenizer, passages):
    inner = DataCollatorWithPadding(tokenizer)
    with pytest.raises(ValueError, match="num_passages must be at least 1, but is 0"):
        DataCollatorWithPassages(inner, tokenizer, passages, num_passages=0)
    with pytest.raises(ValueError, match=r"must have the column passage_ids, but have \['input_ids'\]"):
        DataCollatorWithPassages(inner, tokenizer, passages)([{"input_ids": [1]}])
    tokenizer.model_max_length = 6
    with pytest.raises(ValueError, match="at most 6 tokens, the encoder's limit, but one has"):
        DataCollatorWithPassages(inner, tokenizer, passages)(make_examples(tokenizer))
