"""The folder of a datastore: what is in it, what changes it, and what a crash leaves."""

import json
import math
import pickle
import shutil
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pytest
from datasets import Dataset, IterableDataset, List, Value
from tiny_tokenizers import SENTENCES, make_bert_tokenizer, make_tokenizer

from hf_domain.datastore import Datastore, build_datastore
from hf_domain.datastore import build as build_module
from hf_domain.datastore.splitting import split_documents, split_texts
from hf_domain.safe_io import lock_folder

pytest.importorskip("tantivy")

WORDS = ["alpha", "beta", "gamma", "delta", "epsilon", "zeta", "eta", "theta", "iota", "kappa", "lambda"]
TEXTS = [f"{WORDS[i % 11]} {WORDS[i % 7]} {WORDS[i // 11]} unit{i}" for i in range(100)]


@pytest.fixture(scope="module")
def tokenizer():
    return make_bert_tokenizer([*SENTENCES, *TEXTS])


def make_documents(texts, names=None):
    return Dataset.from_dict({"text": texts, "name": names or [f"d{number}" for number in range(len(texts))]})


def build(folder, tokenizer, texts=TEXTS, **options):
    return build_datastore(make_documents(texts), folder, tokenizer, id_column="name", max_length=32, **options)


@pytest.fixture
def datastore(tmp_path, tokenizer):
    return build(tmp_path / "store", tokenizer)


def find(datastore, text, k=3):
    return datastore.search([text], k)[0][0]


def list_files(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def test_a_datastore_of_nothing_is_refused(tmp_path, tokenizer):
    with pytest.raises(ValueError, match="documents must contain at least one example, but is empty"):
        build_datastore([], tmp_path / "store", tokenizer)
    assert not (tmp_path / "store").exists()


def test_rows_are_passages(tmp_path, tokenizer):
    texts = [*SENTENCES, " ".join(SENTENCES[:4] * 5), "  ", None]
    datastore = build(tmp_path / "store", tokenizer, texts)
    expected = [
        (f"d{row}", passage.text, passage.input_ids)
        for row, document in enumerate(split_texts([text or "" for text in texts], tokenizer, 32))
        for passage in document
    ]
    unique = [row for number, row in enumerate(expected) if row[1] not in [each[1] for each in expected[:number]]]
    passages = Datastore.load(tmp_path / "store", tokenizer).passages
    types = {"id": Value("int64"), "document_id": Value("string"), "text": Value("string")}
    assert passages.features == types | {"input_ids": List(Value("int32"))}
    assert passages["id"][:] == list(range(len(unique)))
    assert [(row["document_id"], row["text"], row["input_ids"]) for row in passages] == unique
    assert len(datastore) == len(unique) and datastore.manifest.num_duplicates == len(expected) - len(unique)
    assert datastore.manifest.num_documents == len(texts)
    assert not (tmp_path / "store.unfinished").exists()


def test_documents_without_a_name_are_numbered(tmp_path, tokenizer):
    datastore = build_datastore(Dataset.from_dict({"body": TEXTS[:3]}), tmp_path / "s", tokenizer, text_column="body")
    datastore.add(Dataset.from_dict({"text": TEXTS[3:5]}))
    assert datastore.passages["document_id"][:] == ["0", "1", "2", "3", "4"]


def test_streams_and_parts_make_the_same_datastore(tmp_path, tokenizer, datastore, monkeypatch):
    monkeypatch.setattr(build_module, "COMMIT_CHARACTERS", 300)
    stream = make_documents(TEXTS).to_iterable_dataset()
    parts = build_datastore(stream, tmp_path / "parts", tokenizer, id_column="name", max_length=32)
    assert len(parts.manifest.parts) > 5
    assert [path.name for path in parts.folder.glob("index-*")] == [parts.manifest.index]
    assert parts.fingerprint == datastore.fingerprint
    assert list(parts.passages) == list(datastore.passages)
    queries = [*TEXTS, "alpha beta beta", "unit5 lambda"]
    for one, other in zip(parts.search(queries, 7), datastore.search(queries, 7), strict=True):
        assert one[0] == other[0] and one[1] == pytest.approx(other[1], rel=1e-5)
    parts.verify()


def test_commits_grow_with_the_datastore(tmp_path, tokenizer, monkeypatch):
    monkeypatch.setattr(build_module, "COMMIT_SHARE", 1.0)
    monkeypatch.setattr(build_module, "COMMIT_CHARACTERS", 50)
    datastore = build(tmp_path / "store", tokenizer)
    assert datastore.manifest.num_characters == sum(map(len, TEXTS))
    assert len(datastore.manifest.parts) == 6  # about 75, 75, 150, 300, ... characters


def test_scores_are_bm25(datastore):
    documents = [text.split() for text in TEXTS]
    query = ["alpha", "beta", "beta", "unit14"]
    scores = []
    for document in documents:
        score = 0.0
        for term in query:
            df = sum(term in other for other in documents)
            tf = document.count(term)
            idf = math.log(1 + (len(documents) - df + 0.5) / (df + 0.5))
            score += idf * 2.2 * tf / (tf + 1.2 * (1 - 0.75 + 0.75 * len(document) / 4))
        scores.append(score)
    best = sorted((number for number, score in enumerate(scores) if score), key=lambda n: (-round(scores[n], 4), n))
    ((ids, found),) = datastore.search([" ".join(query)], 10)
    assert ids == best[:10] and found == pytest.approx([scores[number] for number in ids], rel=1e-4)


def test_nothing_to_find_and_large_k(datastore):
    assert datastore.search(["", "the of and", "\N{GRINNING FACE}", "unknownword"], 5) == [([], [])] * 4
    ((ids, scores),) = datastore.search(["unit3 unit7"], 1000)
    assert sorted(ids) == [3, 7] and len(scores) == 2
    with pytest.raises(ValueError, match="at least 1, but is 0"):
        datastore.search(["alpha"], 0)


def test_add_keeps_what_is_there(datastore, tokenizer):
    old_rows, old_fingerprint = list(datastore.passages), datastore.fingerprint
    new = make_documents([TEXTS[3], "omega unit200", "omega unit201", "omega unit200"], ["x", "y", "z", "v"])
    assert datastore.add(new, id_column="name") == 2
    for store in (datastore, Datastore.load(datastore.folder)):
        assert list(store.passages)[:100] == old_rows and store.passages["document_id"][100:] == ["y", "z"]
        assert find(store, "omega unit201") == [101, 100] and find(store, "unit3", 1) == [3]
        assert store.fingerprint != old_fingerprint
    assert datastore.manifest.num_duplicates == 2
    assert datastore.add(new, id_column="name") == 0 and len(datastore) == 102
    datastore.verify()


def test_delete_hides_and_keeps_ids(datastore, tokenizer, tmp_path):
    fingerprint = datastore.fingerprint
    assert datastore.delete([5, 6, 5], document_ids=["d7"]) == 3
    # Words of deleted passages count no longer: the scores are those of a datastore that never had them.
    kept = build(tmp_path / "kept", tokenizer, [text for row, text in enumerate(TEXTS) if row not in (5, 6, 7)])
    assert datastore.search(["alpha beta"], 9)[0][1] == kept.search(["alpha beta"], 9)[0][1]
    assert datastore.delete([5]) == 0
    for store in (datastore, Datastore.load(datastore.folder)):
        assert find(store, "unit5 unit6 unit7 unit8") == [8]
        assert len(store) == 97 and store.passages[5]["id"] == 5 and store.passages[8]["document_id"] == "d8"
        assert store.find_texts([TEXTS[5], TEXTS[8], "no"]) == [None, 8, None]
        assert store.fingerprint != fingerprint
    assert datastore.add(make_documents([TEXTS[5]])) == 1  # what was deleted may come back, with another id
    assert find(datastore, "unit5") == [100]
    with pytest.raises(ValueError, match="100000, d1000 is not") as error:
        datastore.delete([100000, 1], ["d1000", "d1"])
    assert "d1," not in str(error.value) and len(datastore) == 98


def test_deleting_all_leaves_a_datastore(datastore):
    datastore.delete(range(100))
    assert len(datastore) == 0 and find(datastore, "alpha") == [] and datastore.find_texts(TEXTS[:2]) == [None, None]


def test_documents_have_the_ids_of_their_file(tmp_path, tokenizer):
    """A column of whole numbers with a gap is read as fractions."""
    for ids, found in (([12.0, 13.5], ["12", "13.5"]), (["007", "x"], ["007", "x"])):
        store = build_datastore(
            Dataset.from_dict({"text": TEXTS[:2], "pmid": ids}), tmp_path / str(ids), tokenizer, id_column="pmid"
        )
        assert store.passages["document_id"] == found
    for missing in (None, float("nan")):
        rows = Dataset.from_dict({"text": TEXTS[:2], "pmid": [12.0, missing]})
        with pytest.raises(ValueError, match="pmid of row 1 is empty"):
            build_datastore(rows, tmp_path / f"{missing}", tokenizer, id_column="pmid")


def test_what_was_found_is_cached_for_one_analyzer(datastore, monkeypatch):
    """A function is pickled by its name, whatever it computes."""
    before = pickle.dumps(datastore)
    assert pickle.dumps(datastore) == before
    monkeypatch.setattr(type(datastore.analyzer), "fingerprint", property(lambda self: "another"))
    assert pickle.dumps(datastore) != before


def test_pickled_datastore_opens_its_folder(datastore):
    content = pickle.dumps(datastore)
    assert len(content) < 1000
    assert find(pickle.loads(content), "unit5") == [5]
    datastore.delete([5])
    with pytest.raises(ValueError, match="must not change"):
        pickle.loads(content)


def test_tokenizer_must_be_the_one(datastore, tokenizer):
    assert Datastore.load(datastore.folder, datastore.tokenizer).fingerprint == datastore.fingerprint
    with pytest.raises(ValueError, match="read with the tokenizer that cut it"):
        Datastore.load(datastore.folder, make_tokenizer("roberta"))


def split_words(text):
    return text.lower().split()


def test_analyzer_must_be_the_one(tmp_path, datastore, tokenizer, monkeypatch):
    with pytest.raises(ValueError, match="the analyzer that made it, english, but cjk makes other terms"):
        Datastore.load(datastore.folder, analyzer="cjk")
    other = Datastore.load(datastore.folder, analyzer="standard", rebuild_index=True)
    assert other.manifest.analyzer == "standard" and find(Datastore.load(datastore.folder), "unit5") == [5]
    assert other.fingerprint == datastore.fingerprint

    own = build(tmp_path / "own", tokenizer, analyzer=split_words)
    assert find(own, "UNIT5") == [5]
    with pytest.raises(ValueError, match="made with the function split_words"):
        Datastore.load(own.folder)
    again = Datastore.load(own.folder, analyzer=split_words)
    assert find(pickle.loads(pickle.dumps(again)), "unit5") == [5]
    with pytest.raises(ValueError, match="split makes other terms"):
        Datastore.load(own.folder, analyzer=str.split)


def test_analyzer_fits_the_language(tmp_path, tokenizer, caplog):
    chinese = ["合同应当采用书面形式。", "当事人应当采用 written form 书面形式。", "", "ok"]
    datastore = build(tmp_path / "chinese", tokenizer, chinese)
    assert datastore.manifest.analyzer == "cjk" and find(datastore, "采用合同") == [0, 1]
    korean, german = ["계약은 서면으로 한다", "한국어"], ["Der Vertrag bedarf der Schriftform", "合同"]
    assert build(tmp_path / "korean", tokenizer, korean).manifest.analyzer == "cjk"
    assert build(tmp_path / "german", tokenizer, german).manifest.analyzer == "standard"
    assert not [record for record in caplog.records if record.levelname == "WARNING"]
    assert build(tmp_path / "asked", tokenizer, chinese, analyzer="english").manifest.analyzer == "english"
    assert "Use cjk" in caplog.text


def replace_file(file, content):
    """Not in place: who has the file memory-mapped dies of it when it is cut."""
    new = file.with_name("new")
    new.write_bytes(content)
    new.replace(file)


def damage_file(file):
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 255
    replace_file(file, content)


def test_damaged_index_is_reported_and_rebuilt(datastore):
    expected = datastore.search(TEXTS, 5)
    (file,) = datastore.folder.glob("index-*/*.idx")
    damage_file(file)
    with pytest.raises(ValueError, match=r"\.idx does not have the checksum .* rebuild_index=True"):
        Datastore.load(datastore.folder)
    again = Datastore.load(datastore.folder, rebuild_index=True)
    assert again.search(TEXTS, 5) == expected
    shutil.rmtree(again.folder / again.manifest.index)
    with pytest.raises(ValueError, match=r"is missing\. .* rebuild_index=True"):
        Datastore.load(datastore.folder)
    assert Datastore.load(datastore.folder, rebuild_index=True).search(TEXTS, 5) == expected


def test_rebuilt_index_leaves_out_what_was_deleted(datastore):
    datastore.delete([5])
    datastore.add(make_documents(["omega"]))
    again = Datastore.load(datastore.folder, rebuild_index=True)
    assert find(again, "unit5") == [] and find(again, "omega unit6") == [100, 6]


def test_damaged_passages_are_reported(datastore):
    part = datastore.folder / "passages-00000.arrow"
    damage_file(part)
    with pytest.raises(ValueError, match=r"arrow does not have the checksum .* Build the datastore again"):
        Datastore.load(datastore.folder).verify()
    replace_file(part, part.read_bytes()[:-8])
    with pytest.raises(ValueError, match=r"arrow has \d+ bytes instead of"):
        Datastore.load(datastore.folder)


def test_other_formats_are_reported(tmp_path, datastore, monkeypatch):
    manifest = datastore.folder / "datastore.json"
    content = json.loads(manifest.read_text())
    manifest.write_text(json.dumps(content | {"format_version": 99}))
    with pytest.raises(ValueError, match=r"must be 2, but that of .* is 99"):
        Datastore.load(datastore.folder)
    with pytest.raises(FileNotFoundError, match="must be a datastore, but has no"):
        Datastore.load(tmp_path / "missing")


def test_index_of_another_tantivy_is_reported(datastore, monkeypatch):
    import tantivy

    monkeypatch.setattr(tantivy, "Index", SimpleNamespace(is_compatible=lambda path: False))
    with pytest.raises(ValueError, match=r"which another version wrote. Rebuild"):
        Datastore.load(datastore.folder)


def test_unusable_options_and_documents_are_reported(tmp_path, tokenizer, datastore):
    assert build(datastore.folder, tokenizer).fingerprint == datastore.fingerprint  # built already
    for texts, options in ((TEXTS[:-1], {}), ([*TEXTS, "more"], {}), (TEXTS, {"analyzer": "cjk"})):
        with pytest.raises(FileExistsError, match="store exists"):
            build(datastore.folder, tokenizer, texts, **options)
    documents = make_documents(["", "  "])
    with pytest.raises(ValueError, match="at least one passage, but 2 documents have none"):
        build_datastore(documents, tmp_path / "new", tokenizer)
    assert not (tmp_path / "new.unfinished").exists()
    with pytest.raises(TypeError, match="item 0 is 7"):
        build_datastore([7], tmp_path / "new", tokenizer)
    with pytest.raises(ValueError, match="the column body, but have text, name"):
        build_datastore(documents, tmp_path / "new", tokenizer, text_column="body")
    with pytest.raises(ValueError, match="number of row 0 is 1"):
        build_datastore(Dataset.from_dict({"number": [1]}), tmp_path / "new", tokenizer, text_column="number")
    late = IterableDataset.from_generator(lambda: iter([*make_documents(TEXTS[:20]), {"text": 1, "name": "d20"}]))
    with pytest.raises(ValueError, match="text of row 20 is 1"):
        build_datastore(late, tmp_path / "new", tokenizer)
    with pytest.raises(ValueError, match="must have an index, but has none"):
        Datastore.load(tmp_path / "new.unfinished")
    # What never came to a commit binds nobody.
    assert build(tmp_path / "new", tokenizer, TEXTS[:2], analyzer="cjk").manifest.analyzer == "cjk"
    shutil.rmtree(tmp_path / "new")
    with pytest.raises(ValueError, match="to 512, the encoder's limit, but is 513"):
        build_datastore(documents, tmp_path / "other", tokenizer, max_length=513)
    with pytest.raises(ValueError, match="one of english, standard, cjk or a function, but is german"):
        build_datastore(documents, tmp_path / "other", tokenizer, analyzer="german")
    assert not (tmp_path / "new").exists() and not (tmp_path / "other.unfinished").exists()


def test_one_writer_at_a_time(datastore):
    with lock_folder(datastore.folder), pytest.raises(ValueError, match="is writing into"):
        Datastore.load(datastore.folder).delete([1])
    assert Datastore.load(datastore.folder).delete([1]) == 1


def test_two_handles_keep_what_the_other_wrote(datastore):
    one, two = Datastore.load(datastore.folder), Datastore.load(datastore.folder)
    assert one.add(make_documents(["omega first"])) == 1
    assert two.add(make_documents(["omega first", "omega second"])) == 1
    for store in (two, Datastore.load(datastore.folder)):
        assert store.passages["text"][100:] == ["omega first", "omega second"]
        assert find(store, "omega second") == [101, 100]
    assert one.delete([10]) == 1 and find(one, "omega second unit10") == [101, 100]
    assert two.delete([10, 11]) == 1 and two.delete([101]) == 1
    assert Datastore.load(datastore.folder).manifest.deleted == [10, 11, 101]
    with pytest.raises(ValueError, match="can be deleted, and 102 is not there"):
        one.delete([102])
    Datastore.load(datastore.folder).verify()


def test_failing_write_keeps_what_another_handle_wrote(datastore):
    other = Datastore.load(datastore.folder)
    assert datastore.add(make_documents(["omega first"])) == 1
    with pytest.raises(ValueError, match="the column text, but have body"):
        other.add(Dataset.from_dict({"body": ["x"]}))
    for store in (other, datastore, Datastore.load(datastore.folder)):
        assert find(store, "omega") == [100]


def test_interrupt_right_after_a_commit_keeps_it(datastore, monkeypatch):
    def interrupt(self, manifest):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Datastore, "_adopt", interrupt)
        with pytest.raises(KeyboardInterrupt):
            datastore.add(make_documents(["omega"]))
    assert find(Datastore.load(datastore.folder), "omega") == [100]
    assert datastore.add(make_documents(["omega", "psi"])) == 1 and find(datastore, "omega psi") == [100, 101]


def test_another_analyzer_of_another_handle_is_reported(datastore):
    other = Datastore.load(datastore.folder)
    Datastore.load(datastore.folder, analyzer="standard", rebuild_index=True)
    with pytest.raises(ValueError, match=r"changed after it was loaded: .* has analyzer_fingerprint .* Load it again"):
        other.add(make_documents(["omega"]))
    assert Datastore.load(datastore.folder).manifest.analyzer == "standard"


def test_build_that_runs_keeps_its_tokenizer(tmp_path, tokenizer, datastore):
    def start_another(rows):
        for number, row in enumerate(rows):
            if number == 10:
                with pytest.raises(ValueError, match="is writing into"):
                    build(tmp_path / "new", make_tokenizer("roberta"))
            yield row

    rows = IterableDataset.from_generator(lambda: start_another(make_documents(TEXTS)))
    build_datastore(rows, tmp_path / "new", tokenizer, id_column="name", max_length=32)
    assert Datastore.load(tmp_path / "new").tokenizer.get_vocab() == tokenizer.get_vocab()
    assert Datastore.load(tmp_path / "new", tokenizer).fingerprint == datastore.fingerprint


def test_files_of_others_stay(datastore):
    theirs = ["NOTES.md", "README.unfinished", ".git/HEAD", "states/cache.json", "index-old/notes", "passages.arrow"]
    ours = ["passages-00009.arrow", "index-000009/meta.json", "datastore.json.unfinished"]
    for name in theirs + ours:
        (datastore.folder / name).parent.mkdir(exist_ok=True)
        (datastore.folder / name).write_text("x")
    datastore.add(make_documents(["omega"]))
    assert [name for name in theirs + ours if (datastore.folder / name).exists()] == theirs
    with pytest.raises(ValueError, match="the column text"):
        datastore.add(Dataset.from_dict({"body": ["x"]}))
    assert all((datastore.folder / name).exists() for name in theirs)
    Datastore.load(datastore.folder).verify()


def test_ids_and_queries_of_other_kinds(datastore):
    assert datastore.delete(np.array([1, 2])) == 2 and datastore.delete([np.int64(3)]) == 1
    assert Datastore.load(datastore.folder).manifest.deleted == [1, 2, 3]
    for ids in (
        {"passage_ids": [4.0]},
        {"passage_ids": 5},
        {"passage_ids": ["6"]},
        {"document_ids": "12"},
        {"document_ids": [12]},
    ):
        with pytest.raises(TypeError):
            datastore.delete(**ids)
    assert datastore.manifest.deleted == [1, 2, 3]
    with pytest.raises(ValueError, match="a list of queries, but is the text 'unit5'"):
        datastore.search("unit5", 2)


def fail_at(monkeypatch, number, error):
    """Let the so-manieth batch of rows fail to be written."""
    calls, make = iter(range(1000)), pa.RecordBatch.from_pylist

    def write(*arguments):
        if next(calls) == number:
            raise error
        return make(*arguments)

    monkeypatch.setattr(pa, "RecordBatch", SimpleNamespace(from_pylist=write))


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_failed_add_leaves_the_datastore_as_it_was(datastore, monkeypatch, error):
    monkeypatch.setattr("hf_domain.datastore.store.BATCH_SIZE", 4)
    before, rows = list_files(datastore.folder), list(datastore.passages)
    expected = OSError if isinstance(error, OSError) else KeyboardInterrupt
    with monkeypatch.context() as patch:
        fail_at(patch, 2, error)
        with pytest.raises(expected, match=r"is full. Nothing .* lost" if expected is OSError else None):
            datastore.add(make_documents([f"omega{number}" for number in range(20)]))
    assert list_files(datastore.folder) == before
    for store in (datastore, Datastore.load(datastore.folder)):
        assert list(store.passages) == rows and find(store, "omega1") == [] and find(store, "unit5") == [5]
    assert datastore.add(make_documents([f"omega{number}" for number in range(20)])) == 20


def test_disk_that_is_full_while_indexing_is_reported(datastore, monkeypatch):
    def fill(*arguments, **options):
        raise ValueError("An IO error occurred: 'No space left on device (os error 28)'")

    with monkeypatch.context() as patch:
        patch.setattr("hf_domain.datastore.store.write_index", fill)
        with pytest.raises(OSError, match="is full"):
            datastore.add(make_documents(["omega"]))
    assert datastore.add(make_documents(["omega"])) == 1


def test_full_disk_while_building_continues_later(tmp_path, tokenizer, datastore, monkeypatch):
    monkeypatch.setattr(build_module, "COMMIT_CHARACTERS", 300)
    with monkeypatch.context() as patch:
        fail_at(patch, 5, OSError(28, "No space left on device"))
        with pytest.raises(OSError, match="make room and repeat the command"):
            build(tmp_path / "new", tokenizer)
    assert not (tmp_path / "new").exists()
    with pytest.raises(FileNotFoundError, match=r"was interrupted\. Run it again"):
        Datastore.load(tmp_path / "new")
    unfinished = Datastore.load(tmp_path / "new.unfinished")  # at its last commit
    count = len(unfinished)
    assert 40 <= count < 100 and list(unfinished.passages) == list(datastore.passages)[:count]
    assert find(unfinished, f"unit{count - 1} unit{count}") == [count - 1]
    tokenized = []
    monkeypatch.setattr(
        "hf_domain.datastore.store.split_documents",
        lambda documents, *options: tokenized.extend(documents) or split_documents(documents, *options),
    )
    assert build(tmp_path / "new", tokenizer).fingerprint == datastore.fingerprint
    assert 0 < len(tokenized) < 70


def test_interrupted_build_continues_only_with_the_same_input(tmp_path, tokenizer, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(build_module, "COMMIT_CHARACTERS", 300)
        fail_at(patch, 2, KeyboardInterrupt())
        with pytest.raises(KeyboardInterrupt):
            build(tmp_path / "new", tokenizer)
    with pytest.raises(ValueError, match="begun with analyzer english, now cjk"):
        build(tmp_path / "new", tokenizer, analyzer="cjk")
    with pytest.raises(ValueError, match=r"the first .* have changed"):
        build(tmp_path / "new", tokenizer, ["other", *TEXTS[1:]])
    with pytest.raises(ValueError, match=r"the first .* have changed"):
        build(tmp_path / "new", tokenizer, TEXTS[:2])
    assert len(build(tmp_path / "new", tokenizer)) == 100
