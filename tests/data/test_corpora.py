"""Corpora: every format gives the same documents, and unusable ones are refused before work starts."""

import gzip
import json
import os
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import fsspec
import pandas
import pyarrow
import pyarrow.parquet
import pytest
from datasets import Dataset, DatasetDict, IterableDatasetDict
from tiny_tokenizers import MAKERS, SENTENCES, make_bert_tokenizer, make_tokenizer

from hf_domain.data import corpora
from hf_domain.data.corpora import check_batch, check_known, load_corpus, tokenize_corpus
from hf_domain.data.csv_files import drop_packing
from hf_domain.data.files import load_files, locate_row


def pack(content):
    return pyarrow.compress(content, "zstd", asbytes=True)


def write(path, documents):
    """Write documents in the format that the name of the file asks for."""
    name, rows = drop_packing(path.name), pandas.DataFrame({"id": range(len(documents)), "text": documents})
    if name.endswith(".txt"):
        text = "".join(f"{document}\n" for document in documents).encode()
        path.write_bytes({".gz": gzip.compress, ".zst": pack, ".txt": bytes}[path.suffix](text))
    elif name.endswith(".parquet"):
        rows.to_parquet(path)
    elif name.endswith(".csv"):
        rows.to_csv(path, index=False)
    elif name.endswith(".json"):
        rows.to_json(path, orient="records", indent=1)
    else:
        rows.to_json(path, orient="records", lines=True)
    return path


FILES = ["c.txt", "c.jsonl", "c.json", "c.csv", "c.txt.gz", "c.jsonl.gz", "c.json.gz", "c.csv.gz", "c.parquet"]
FILES += ["c.txt.zst", "c.jsonl.zst", "c.csv.zst"]


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize("name", FILES)
def test_every_format_gives_the_same_documents(tmp_path, name, streaming):
    file = write(tmp_path / name, [*SENTENCES, "  "])
    corpus = load_corpus(str(file), validation_split_percentage=0, streaming=streaming)
    assert set(corpus) == {"train"}
    assert list(corpus["train"]) == [{"text": sentence} for sentence in SENTENCES]


def test_several_files_and_globs_keep_their_order(tmp_path):
    (tmp_path / "deep").mkdir()
    files = [write(tmp_path / "b.txt", ["one"]), write(tmp_path / "deep" / "a.txt.gz", ["two"])]
    assert load_files([str(file) for file in files])["text"][:] == ["one", "two"]
    assert load_files(f"{tmp_path}/**/*.txt*")["text"][:] == ["one", "two"]
    assert load_files([str(files[1]), f"{tmp_path}/b*"])["text"][:] == ["two", "one"]


def test_held_out_documents_are_a_fixed_random_part(tmp_path):
    documents = [f"document {number}" for number in range(40)]
    file = str(write(tmp_path / "c.txt", documents))
    corpus = load_corpus(file, validation_split_percentage=10)
    held_out = corpus["validation"]["text"][:]
    assert len(held_out) == 4 and held_out != documents[:4]
    assert sorted(held_out + corpus["train"]["text"][:]) == sorted(documents)
    assert load_corpus(file, validation_split_percentage=10)["validation"]["text"][:] == held_out


def test_stream_holds_out_its_beginning(tmp_path):
    file = str(write(tmp_path / "c.jsonl.gz", [f"document {number}" for number in range(40)]))
    corpus = load_corpus(file, streaming=True, num_validation_examples=3)
    assert isinstance(corpus, IterableDatasetDict)
    assert [row["text"] for row in corpus["validation"]] == [f"document {number}" for number in range(3)]
    assert [row["text"] for row in corpus["train"]] == [f"document {number}" for number in range(3, 40)]


def test_own_validation_file_is_not_mixed_in(tmp_path):
    train, validation = (
        write(tmp_path / "train.jsonl", SENTENCES[:3]),
        write(tmp_path / "validation.jsonl", SENTENCES[3:]),
    )
    for corpus in (load_corpus(str(train), str(validation)), load_corpus(dataset_name=str(tmp_path))):
        assert corpus["train"]["text"][:] == SENTENCES[:3] and corpus["validation"]["text"][:] == SENTENCES[3:]


@pytest.mark.parametrize("streaming", [False, True])
def test_a_saved_dataset_is_a_corpus(tmp_path, streaming):
    table = Dataset.from_dict({"text": SENTENCES})
    table.save_to_disk(tmp_path / "table")
    DatasetDict(train=table.select(range(3)), validation=table.select(range(3, 5)), test=table).save_to_disk(
        tmp_path / "splits"
    )
    for name in ({"data": tmp_path / "splits"}, {"dataset_name": str(tmp_path / "splits")}):
        corpus = load_corpus(**name, streaming=streaming)
        assert [[row["text"] for row in corpus[split]] for split in ("train", "validation")] == [
            SENTENCES[:3],
            SENTENCES[3:5],
        ]
    for place in (tmp_path / "table", tmp_path / "splits" / "test"):
        assert [row["text"] for row in load_files(str(place), streaming=streaming)] == SENTENCES
        assert locate_row(str(place), 1) == f"row 2 of {place}"
    with pytest.raises(ValueError, match=r"one split, but .*splits has train, validation, test. Name one of .*/train"):
        load_files(str(tmp_path / "splits"))
    with pytest.raises(ValueError, match="must be the only data"):
        load_files([str(tmp_path / "table"), str(tmp_path / "splits")])
    with pytest.raises(FileNotFoundError, match=r"but it is a folder. Name its files"):
        load_files(str(tmp_path))


def test_views_of_strings_are_text(tmp_path):
    """pyarrow and polars write them."""
    table = pyarrow.table({"text": pyarrow.array(SENTENCES, pyarrow.string_view()), "label": [1] * len(SENTENCES)})
    pyarrow.parquet.write_table(table, tmp_path / "c.parquet")
    corpus = load_corpus(str(tmp_path / "c.parquet"), validation_split_percentage=0)
    assert corpus["train"]["text"][:] == SENTENCES
    assert len(tokenize_corpus(corpus, make_bert_tokenizer(), max_seq_length=8)["train"])


@pytest.mark.parametrize("streaming", [False, True])
def test_both_texts_of_a_pair_are_documents(tmp_path, streaming):
    rows = [{"text": "one", "text_pair": "two", "label": "a"}, {"text": "three", "text_pair": None, "label": "b"}]
    file = tmp_path / "c.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    options = {"validation_split_percentage": 0, "streaming": streaming}
    assert [row["text"] for row in load_corpus(str(file), **options)["train"]] == ["one", "two", "three"]
    named = load_corpus(str(file), text_column="text_pair,label", **options)
    assert list(named["train"]) == [{"text": "two"}, {"text": "a"}, {"text": "b"}]


@pytest.mark.parametrize("streaming", [False, True])
def test_words_that_pandas_takes_for_missing_are_documents(tmp_path, streaming):
    file = tmp_path / "c.csv"
    file.write_text("text,source\nnull,a\nNA,a\n,a\nNone,a\n")
    corpus = load_corpus(str(file), validation_split_percentage=0, streaming=streaming)
    assert [row["text"] for row in corpus["train"]] == ["null", "NA", "None"]


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize(
    ("cells", "values"),
    [
        (["000123", "", "7"], ["000123", None, "7"]),
        (["01", "1", "10"], ["01", "1", "10"]),
        (["+49", "5", "-5"], ["+49", "5", "-5"]),
        (["2310009E13", "5", "6"], ["2310009E13", "5", "6"]),
        (["9007199254740993", "", "2"], ["9007199254740993", None, "2"]),
        (["9007199254740993", "0.5", "2"], ["9007199254740993", "0.5", "2"]),
        (["12345678901234567890", "", "2"], ["12345678901234567890", None, "2"]),
        # Numbers stay numbers if they lose nothing.
        (["9007199254740993", "-3", "0"], [9007199254740993, -3, 0]),
        (["1", "", "2"], [1.0, None, 2.0]),
        (["0.50", "1e-05", "-.5"], [0.5, 1e-05, -0.5]),
        (["True", "", "False"], [True, None, False]),
    ],
)
def test_a_number_in_a_csv_stays_text_if_it_would_lose_digits(tmp_path, cells, values, streaming):
    file = tmp_path / "c.csv"
    file.write_text("text,code\n" + "".join(f"word,{cell}\n" for cell in cells))
    found = [row["code"] for row in load_files(str(file), streaming=streaming)]
    assert found == values and [*map(type, found)] == [*map(type, values)]


def test_one_cell_decides_for_all_files_and_blocks_of_a_csv(tmp_path):
    """datasets reads 10,000 rows at a time."""
    codes = {"a.csv": ["1"] * 10_001 + ["02"], "b.csv": ["3"]}
    for name, cells in codes.items():
        (tmp_path / name).write_text("code\n" + "".join(f"{cell}\n" for cell in cells))
    for streaming in (False, True):
        found = load_files(f"{tmp_path}/*.csv", streaming=streaming)
        assert [row["code"] for row in found] == codes["a.csv"] + codes["b.csv"]


@pytest.mark.parametrize("name", ["c.txt", "c.jsonl", "c.json", "c.csv.gz", "c.parquet"])
def test_a_file_that_was_replaced_with_its_time_is_read_again(tmp_path, name):
    file = write(tmp_path / name, SENTENCES)
    time = file.stat().st_mtime_ns
    assert load_files(str(file))["text"][:] == SENTENCES
    write(file, SENTENCES[::-1])
    os.utime(file, ns=(time, time))
    assert load_files(str(file))["text"][:] == SENTENCES[::-1]


def test_rows_are_located(tmp_path):
    for name, place in (("c.jsonl", "line 2"), ("c.json", "row 2"), ("c.csv.gz", "line 3"), ("c.parquet", "row 2")):
        file = write(tmp_path / name, SENTENCES)
        assert locate_row(str(file), 1) == f"{place} of {file}"
    file = tmp_path / "b.csv"
    file.write_text('text,label\n"a\nb",x\n\nc,y\n')
    assert [locate_row(str(file), row) for row in (0, 1, 2)] == [
        f"line 2 of {file}",
        f"line 5 of {file}",
        f"row 3 of {file}",
    ]


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("c.txt", b"", "c.txt is empty"),
        ("c.txt", b" \n\n", "c.txt is empty"),
        ("c.json", b"[]", "c.json is empty"),
        ("c.txt", b"text\nab\0cd\n", "c.txt, line 2 has a zero byte"),
        ("c.txt", "Größe\n".encode("latin-1"), "c.txt, line 1 has the byte 0xf6"),
        ("c.csv", b"text\nfine\n\xff\n", "c.csv, line 3 has the byte 0xff"),
        ("c.csv", b"text,label\nhello, world,a\n", "but .*c.csv, line 2 has 3 cells and the header 2"),
        ("c.csv", b'text,label\n"one\ntwo",a\n   \n\nb\n', "but .*c.csv, line 6 has 1 cells and the header 2"),
        ("c.csv", b"text;label\nhello; world;a\n", "line 2 has 3 cells and the header 2. Put .* semicolons into"),
        ("c.jsonl", b'{"text": "a"}\n\n{"text": "b"\n', "c.jsonl, line 3 must be JSON, .* Expecting ',' delimiter"),
        ("c.jsonl", b'{"text": "a"}\n["b"]\n', "c.jsonl, line 2 must be JSON, .* Expecting one object per line"),
        ("c.jsonl", b'{"text": "a"}\n{"text": "\xff"}\n', "c.jsonl, line 2 has the byte 0xff"),
        ("c.json", b'[{"text": "a"},\n {"text": b}]', "c.json, line 2 must be JSON, .* Expecting value at column 11"),
        ("c.json", b'[{"text": "a"},\n {"text": "\xff"}]', "c.json, line 2 has the byte 0xff"),
        ("c.txt.gz", b"no gzip", "c.txt.gz must be a complete .gz file"),
        ("c.txt.zst", b"no zstandard", "c.txt.zst must be a complete .zst file"),
        ("c.txt.zst", pack(b"text\n" * 1000)[:-20], "c.txt.zst must be a complete .zst file"),
        ("c.txt.gz", gzip.compress(b"text\n" * 1000, mtime=0)[:-20], "c.txt.gz must be a complete .gz file"),
        ("c.parquet", b"no parquet", "c.parquet must be a Parquet file"),
        ("c.pdf", b"%PDF", "but .*c.pdf does not"),
        ("c.parquet.gz", b"", "but .*c.parquet.gz does not"),
    ],
)
def test_unusable_file_is_reported(tmp_path, name, content, message, streaming):
    file = tmp_path / name
    file.write_bytes(content)
    with pytest.raises(ValueError, match=message):
        load_corpus(str(file), streaming=streaming)
    assert [path.name for path in tmp_path.iterdir()] == [name]  # no cache was begun


def test_fault_that_only_the_parser_sees_is_reported(tmp_path):
    file = write(tmp_path / "c.parquet", SENTENCES * 100)
    content = file.read_bytes()
    file.write_bytes(content[:4] + bytes(200) + content[204:])  # the list of columns stands at the end
    with pytest.raises(ValueError, match=r"c.parquet cannot be read as parquet: "):
        load_corpus(str(file))


PACK = corpora._pack_documents


def pack_slowly(texts, **options):
    """Note each call in a file. As a function of a module it is hashed by name: dill's hash of others needs stdout."""
    with open(os.environ["CALLS"], "a") as file:
        file.write("batch\n")
    time.sleep(0.3)
    return PACK(texts, **options)


def test_a_corpus_is_tokenized_once_for_all_that_begin_together(tmp_path, monkeypatch):
    monkeypatch.setenv("CALLS", str(tmp_path / "calls"))
    monkeypatch.setattr(corpora, "_pack_documents", pack_slowly)
    file = write(tmp_path / "c.txt", SENTENCES * 20)
    with ThreadPoolExecutor() as pool:
        found = [*pool.map(lambda _: tokenize_corpus(str(file), make_bert_tokenizer(), max_seq_length=8), range(3))]
    assert (tmp_path / "calls").read_text().splitlines() == ["batch"]
    assert found[0]["train"]["input_ids"] == found[2]["train"]["input_ids"]


@pytest.mark.parametrize("streaming", [False, True])
def test_a_long_row_behind_an_address_loses_no_text(monkeypatch, streaming):
    monkeypatch.setattr("datasets.config.HF_HUB_OFFLINE", False)  # the address is this process's memory
    with fsspec.open("memory://long/c.csv", "w") as file:
        file.write("text,label\nhello, world one,a\nhello, world two,b\n")
    with pytest.raises(ValueError, match=r"as many cells as its header, but a row of memory:///?long/c.csv has more"):
        load_corpus("memory://long/c.csv", validation_split_percentage=0, streaming=streaming)


def test_long_cells_are_read_whole(tmp_path):
    file = write(tmp_path / "c.csv", ["word, " * 50_000, "two"])
    assert [len(text) for text in load_files(str(file))["text"]] == [300_000, 3]
    assert locate_row(str(file), 1) == f"line 3 of {file}"


def test_unusable_corpus_is_reported(tmp_path):
    file = str(write(tmp_path / "c.txt", ["one"]))
    with pytest.raises(FileNotFoundError, match=r"one file must match .*missing.txt"):
        load_corpus(str(tmp_path / "missing.txt"))
    with pytest.raises(FileNotFoundError, match="one file must match"):
        load_corpus(str(tmp_path))
    with pytest.raises(ValueError, match="one format"):
        load_corpus([Path(file), write(tmp_path / "c.jsonl", ["one"])])
    with pytest.raises(ValueError, match=r"--train_file.*--dataset_name.*neither is given"):
        load_corpus()
    for share in (float("nan"), 150, -5):
        with pytest.raises(ValueError, match=f"validation_split_percentage must be .* but is {share}"):
            load_corpus(file, validation_split_percentage=share)
    with pytest.raises(FileNotFoundError, match="but no file is given"):
        load_files([])
    with pytest.raises(ValueError, match="takes 1 of 1"):
        load_corpus(file)
    with pytest.raises(ValueError, match="than the 1000 documents"):
        load_corpus(file, streaming=True)
    with pytest.raises(ValueError, match="all documents of train are blank"):
        load_corpus(str(write(tmp_path / "blank.jsonl", ["", " "])))


@pytest.mark.parametrize("kind", MAKERS)
def test_lines_become_examples(kind):
    tokenizer = make_tokenizer(kind)
    corpus = DatasetDict(train=Dataset.from_dict({"text": SENTENCES}))
    examples = tokenize_corpus(corpus, tokenizer, max_seq_length=16, line_by_line=True, whole_words=True)["train"]
    for sentence, example in zip(SENTENCES, examples, strict=True):
        expected = tokenizer(sentence, truncation=True, max_length=16)
        assert example == {"input_ids": expected["input_ids"], "word_ids": expected.word_ids()}
    assert max(len(example["input_ids"]) for example in examples) == 16
    plain = tokenize_corpus(corpus, tokenizer, max_seq_length=16, line_by_line=True)["train"]
    assert plain.column_names == ["input_ids"]


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize("kind", MAKERS)
def test_packed_examples_hold_all_text_but_the_remainder(kind, streaming):
    tokenizer = make_tokenizer(kind)
    documents = Dataset.from_dict({"text": SENTENCES})
    corpus = IterableDatasetDict(train=documents.to_iterable_dataset()) if streaming else DatasetDict(train=documents)
    examples = list(tokenize_corpus(corpus, tokenizer, max_seq_length=16, whole_words=True)["train"])

    cls, sep = tokenizer.cls_token_id, tokenizer.sep_token_id
    stream, words = [], []
    for sentence in SENTENCES:
        encoding = tokenizer(sentence)
        assert encoding["input_ids"][0] == cls and encoding["input_ids"][-1] == sep
        stream += encoding["input_ids"][1:]
        words += encoding.word_ids()[1:]
    assert len(examples) == len(stream) // 14
    assert all(example["input_ids"][0] == cls and example["input_ids"][-1] == sep for example in examples)
    assert all(len(example["input_ids"]) == len(example["word_ids"]) == 16 for example in examples)
    assert [token for example in examples for token in example["input_ids"][1:-1]] == stream[: len(examples) * 14]
    assert [word for example in examples for word in example["word_ids"][1:-1]] == words[: len(examples) * 14]


@pytest.mark.parametrize("streaming", [False, True])
def test_blocks_of_whole_documents_hold_all_text(streaming):
    """A long document is cut; every piece is between special tokens, and has a number of its own in its block."""
    tokenizer = make_bert_tokenizer()
    texts = [*SENTENCES[:4], " ".join(SENTENCES[:4]), *(sentence.split()[0] for sentence in SENTENCES[:4])]
    documents = Dataset.from_dict({"text": texts})
    corpus = IterableDatasetDict(train=documents.to_iterable_dataset()) if streaming else DatasetDict(train=documents)
    options = {"max_seq_length": 24, "whole_words": True, "document_boundaries": True}
    blocks = list(tokenize_corpus(corpus, tokenizer, **options)["train"])
    expected, found = [], []
    for text in texts:
        encoding = tokenizer(text, add_special_tokens=False)
        pieces = [(encoding["input_ids"][start : start + 22], encoding.word_ids()[start : start + 22])
                  for start in range(0, len(encoding["input_ids"]), 22)]  # fmt: skip
        expected += [([2, *tokens, 3], [None, *words, None]) for tokens, words in pieces]
    for block in blocks:
        numbers = block["attention_mask"]
        assert len(numbers) == len(block["input_ids"]) == len(block["word_ids"]) <= 24
        assert numbers == sorted(numbers) and {*numbers} == {*range(1, max(numbers) + 1)}
        for number in {*numbers}:
            places = [place for place, each in enumerate(numbers) if each == number]
            found.append(tuple([block[name][place] for place in places] for name in ("input_ids", "word_ids")))
    assert sorted(map(str, found)) == sorted(map(str, expected))
    assert len(blocks) < len(expected) and any(len(block["input_ids"]) == 24 for block in blocks)


def test_word_ids_of_a_long_document(tmp_path):
    tokenizer = make_bert_tokenizer()
    corpus = DatasetDict(train=Dataset.from_dict({"text": ["text " * 70000]}))
    examples = tokenize_corpus(corpus, tokenizer, max_seq_length=500, whole_words=True)["train"]
    assert examples[-1]["word_ids"][-2] == len(examples) * 498 - 1 > 2**16


def test_tokenizer_that_does_not_fit_is_reported():
    corpus = DatasetDict(train=Dataset.from_dict({"text": SENTENCES}))
    tokenizer = make_bert_tokenizer()
    for length, limit in ((513, "at most 512"), (2, "at least 3"), (-8, "at least 3")):
        with pytest.raises(ValueError, match=f"max_seq_length must be {limit}.* but is {length}"):
            tokenize_corpus(corpus, tokenizer, max_seq_length=length)
    tokenizer.sep_token = None
    with pytest.raises(ValueError, match=r"cls_token=\[CLS\], sep_token=None"):
        tokenize_corpus(corpus, tokenizer)
    tokenizer.mask_token = None
    with pytest.raises(ValueError, match="must have a mask token"):
        tokenize_corpus(corpus, tokenizer)


def test_less_than_a_batch_is_reported():
    examples = Dataset.from_dict({"input_ids": [[1]] * 4})
    for dataset in (examples, examples.to_iterable_dataset()):
        check_batch(dataset, 4)
        with pytest.raises(ValueError, match="at least one batch of 5 examples, but has 4"):
            check_batch(dataset, 5)


def test_text_that_the_tokenizer_does_not_know(caplog):
    tokenizer = make_bert_tokenizer()
    examples = Dataset.from_dict({"input_ids": [[tokenizer.cls_token_id, *[tokenizer.unk_token_id] * 4]]})
    with pytest.raises(ValueError, match=r"every token of train is \[UNK\]"):
        check_known(examples, tokenizer, "train")
    check_known(examples, tokenizer, "train", must_know=False)
    assert "100% of the tokens of train are [UNK]" in caplog.text
