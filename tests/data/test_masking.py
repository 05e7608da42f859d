"""Whole-word masking: words are masked as one, at the stated rates, for every kind of tokenizer."""

import multiprocessing

import pytest
import torch
from datasets import Dataset, DatasetDict, IterableDatasetDict
from script_runs import save_tiny_bert
from tiny_tokenizers import MAKERS, SENTENCES, make_bert_tokenizer, make_tokenizer
from transformers import (
    AutoModelForMaskedLM,
    AutoTokenizer,
    DataCollatorForLanguageModeling,
    Trainer,
    TrainingArguments,
)

from hf_domain.data.corpora import tokenize_corpus
from hf_domain.data.masking import DataCollatorForTokenMask, DataCollatorForWholeWordMask, make_generator


def encode(tokenizer, *texts):
    encoding = tokenizer(*texts)
    return {**encoding, "word_ids": encoding.word_ids()}


def find_words(word_ids):
    """Positions of each word, the slow and obvious way."""
    words, previous = [], None
    for position, word in enumerate(word_ids):
        if word is not None:
            if word != previous:
                words.append([])
            words[-1].append(position)
        previous = word
    return words


@pytest.mark.parametrize("padding_side", ["right", "left"])
@pytest.mark.parametrize("kind", MAKERS)
def test_pieces_of_a_word_share_their_fate(kind, padding_side):
    tokenizer = make_tokenizer(kind)
    tokenizer.padding_side = padding_side
    examples = [encode(tokenizer, sentence) for sentence in SENTENCES * 60]
    collator = DataCollatorForWholeWordMask(tokenizer, mlm_probability=0.5, seed=0)
    batch = collator(examples)

    assert set(batch) == {*tokenizer.model_input_names, "labels"}
    length = batch["input_ids"].shape[1]
    fates = set()
    for row, example in enumerate(examples):
        size = len(example["input_ids"])
        real = slice(0, size) if padding_side == "right" else slice(length - size, length)
        original = torch.tensor(example["input_ids"])
        masked, labels = batch["input_ids"][row][real], batch["labels"][row][real]
        assert batch["attention_mask"][row].sum() == batch["attention_mask"][row][real].sum() == size
        assert (batch["labels"][row] != -100).sum() == (labels != -100).sum()  # padding is not predicted
        assert torch.equal(labels[labels != -100], original[labels != -100])
        assert torch.equal(masked[labels == -100], original[labels == -100])
        special = [position for position, word in enumerate(example["word_ids"]) if word is None]
        assert (labels[special] == -100).all()
        for word in find_words(example["word_ids"]):
            word = [position for position in word if original[position] not in tokenizer.all_special_ids]
            predicted = labels[word] != -100
            assert predicted.all() or not predicted.any()
            is_mask = masked[word] == tokenizer.mask_token_id
            if predicted.any() and len(word) > 2:
                assert is_mask.all() or is_mask.sum() <= 1  # one may be drawn at random
                fates.add(
                    "mask" if is_mask.all() else "keep" if torch.equal(masked[word], original[word]) else "random"
                )
    assert fates == {"mask", "random", "keep"}


def test_rates_are_15_and_80_10_10():
    tokenizer = make_bert_tokenizer()
    example = encode(tokenizer, SENTENCES[3])
    original = torch.tensor(example["input_ids"])
    batch = DataCollatorForWholeWordMask(tokenizer, seed=0)([example] * 20000)
    first_pieces = [word[0] for word in find_words(example["word_ids"])]
    predicted = (batch["labels"] != -100)[:, first_pieces]
    ids = batch["input_ids"][:, first_pieces][predicted]
    is_mask = ids == tokenizer.mask_token_id
    is_kept = ids == original[first_pieces].expand(20000, -1)[predicted]
    # A standard error is 0.0009 for the first and about 0.002 for the others; a random id may hit one of the two.
    assert predicted.float().mean() == pytest.approx(0.15, abs=0.004)
    assert is_mask.float().mean() == pytest.approx(0.8 + 0.1 / len(tokenizer), abs=0.008)
    assert is_kept.float().mean() == pytest.approx(0.1 + 0.1 / len(tokenizer), abs=0.006)


def test_words_end_where_documents_and_sentences_do():
    tokenizer = make_bert_tokenizer()
    separator, a, b = tokenizer.sep_token_id, *tokenizer.convert_tokens_to_ids(["text", "words"])
    # Word 0 of one document, then word 0 of the next; a block that begins inside word 70000 of a long document.
    examples = [
        {"input_ids": [a, separator, b, b], "word_ids": [0, None, 0, 0]},
        {"input_ids": [a, a, b, separator], "word_ids": [70000, 70000, 70001, None]},
    ] * 500
    labels = DataCollatorForWholeWordMask(tokenizer, 0.5, seed=0)(examples)["labels"]
    predicted = labels != -100
    packed, long = predicted[::2], predicted[1::2]
    assert torch.equal(packed[:, 2], packed[:, 3]) and not torch.equal(packed[:, 0], packed[:, 2])
    assert torch.equal(long[:, 0], long[:, 1]) and not torch.equal(long[:, 1], long[:, 2])
    assert not packed[:, 1].any() and not long[:, 3].any()


def test_special_tokens_spelled_in_a_text_are_not_predicted():
    tokenizer = make_bert_tokenizer()
    example = encode(tokenizer, "text [SEP] words [MASK] ☃")
    special = torch.tensor([token in tokenizer.all_special_ids for token in example["input_ids"]])
    assert special.sum() == 5  # the two at the ends, two spelled out, one unknown
    labels = DataCollatorForWholeWordMask(tokenizer, mlm_probability=1.0)([example])["labels"][0]
    assert torch.equal(labels == -100, special)


@pytest.mark.parametrize("collator_class", [DataCollatorForTokenMask, DataCollatorForWholeWordMask])
def test_seed_and_batch_decide_alone(collator_class):
    tokenizer = make_bert_tokenizer()
    examples = [encode(tokenizer, sentence) for sentence in SENTENCES]
    if collator_class is DataCollatorForTokenMask:
        examples = [{"input_ids": example["input_ids"]} for example in examples]

    def collate(seed, examples=examples):
        torch.manual_seed(torch.seed())
        return collator_class(tokenizer, seed=seed)(examples)

    first, again = collate(1), collate(1)
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not torch.equal(first["labels"], collate(2)["labels"])
    assert not torch.equal(first["labels"], collate(1, examples[::-1])["labels"].flip(0))
    before = torch.get_rng_state()
    collator_class(tokenizer)(examples)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("kind", MAKERS)
@pytest.mark.parametrize("lengths", [(9, 9, 9), (9, 5, 7)])
def test_masks_are_those_of_the_stock_collator(kind, lengths):
    """Blocks of one length are stacked without the tokenizer, which is slow."""
    tokenizer = make_tokenizer(kind)
    special = [tokenizer.cls_token_id, tokenizer.sep_token_id]
    examples = [{"input_ids": [*special, *range(5, 3 + length)]} for length in lengths]
    ours = DataCollatorForTokenMask(tokenizer, mlm_probability=0.5, seed=3)(examples)
    stock = DataCollatorForLanguageModeling(tokenizer, mlm_probability=0.5)
    stock.generator = make_generator(examples, seed=3)
    expected = stock(examples)
    assert {*ours} == {*expected} and all(torch.equal(ours[name], expected[name]) for name in expected)


@pytest.mark.parametrize("process", ["MainProcess", "a step of a comparison"])
def test_masks_depend_neither_on_earlier_batches_nor_on_the_process(process, monkeypatch):
    """transformers 5.24 makes a generator for each process, and only in the main one and in workers of a loader."""
    monkeypatch.setattr(multiprocessing.current_process(), "name", process)
    tokenizer = make_bert_tokenizer()
    examples = [{"input_ids": tokenizer(sentence)["input_ids"]} for sentence in SENTENCES]
    collator = DataCollatorForTokenMask(tokenizer, seed=1)
    first, second = collator(examples), collator(examples)
    assert all(torch.equal(first[name], second[name]) for name in first)


@pytest.mark.parametrize("streaming", [False, True])
def test_corpus_trains_with_the_stock_trainer(tmp_path, streaming):
    folder = save_tiny_bert(tmp_path / "model", SENTENCES)
    tokenizer, model = AutoTokenizer.from_pretrained(folder), AutoModelForMaskedLM.from_pretrained(folder)
    documents = Dataset.from_dict({"text": SENTENCES * 4})
    corpus = IterableDatasetDict(train=documents.to_iterable_dataset()) if streaming else DatasetDict(train=documents)
    trainer = Trainer(
        model=model,
        args=TrainingArguments(
            output_dir=str(tmp_path / "output"),
            max_steps=5,
            learning_rate=1e-2,
            logging_steps=1,
            remove_unused_columns=False,
            use_cpu=True,
            report_to="none",
            disable_tqdm=True,
        ),
        train_dataset=tokenize_corpus(corpus, tokenizer, max_seq_length=32, whole_words=True)["train"],
        data_collator=DataCollatorForWholeWordMask(tokenizer),
    )
    trainer.train()
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    assert len(losses) == 5 and losses[-1] < losses[0]


def test_what_cannot_be_masked_is_refused():
    tokenizer = make_bert_tokenizer()
    with pytest.raises(ValueError, match=r"word_ids, but they have .*'input_ids'"):
        DataCollatorForWholeWordMask(tokenizer)([dict(tokenizer("text"))])
    with pytest.raises(ValueError, match=r"above 0 and at most 1, but is 1\.5"):
        DataCollatorForWholeWordMask(tokenizer, mlm_probability=1.5)
    tokenizer.mask_token = None
    with pytest.raises(ValueError, match=r"must have a mask token for .*but BertTokenizer has none"):
        DataCollatorForWholeWordMask(tokenizer)
