"""Datastores that somebody else made: what they show is what is read."""

import builtins
import hashlib
import json
import shutil

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from datasets import Dataset
from tiny_tokenizers import SENTENCES, make_bert_tokenizer, make_roberta_tokenizer

from hf_domain.datastore import Datastore, build_datastore, load_from_hub
from hf_domain.datastore.hub import export_datastore
from hf_domain.safe_io import read_json, write_json

pytest.importorskip("tantivy")

TEXTS = [f"{SENTENCES[number % 4]} number{number}" for number in range(20)]
PARQUET = "data/train-00000-of-00001.parquet"


@pytest.fixture
def store(tmp_path):
    """A folder."""
    tokenizer = make_bert_tokenizer([*SENTENCES, *TEXTS])
    return build_datastore(Dataset.from_dict({"text": TEXTS}), tmp_path / "store", tokenizer).folder


@pytest.fixture
def export(tmp_path, store):
    """A folder, as on the Hub."""
    export_datastore(Datastore.load(store), tmp_path / "export")
    return tmp_path / "export"


def change_manifest(folder, **changes):
    file = folder / "datastore.json"
    write_json(file, {name: value for name, value in (read_json(file) | changes).items() if value != "delete"})


def change_tokens(table):
    rows = table.to_pydict()
    rows["input_ids"][3] = [101, 999_999, 102]
    return pa.table(rows, table.schema)


def test_passages_from_elsewhere_have_the_tokens_of_their_texts(tmp_path, export):
    table = pq.read_table(export / PARQUET)
    pq.write_table(change_tokens(table), export / PARQUET)
    with pytest.raises(ValueError, match="must be those of its text, but passage 3 has others"):
        load_from_hub(str(export), tmp_path / "new")
    pq.write_table(table.set_column(0, "id", pa.array([*range(1, 20), 0])), export / PARQUET)
    with pytest.raises(ValueError, match="the number of its row, but row 0 has 1"):
        load_from_hub(str(export), tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_verify_compares_tokens_with_texts(store):
    part = store / "passages-00000.arrow"
    table = pa.ipc.open_stream(part.read_bytes()).read_all()

    def write(table):
        with pa.OSFile(str(store / "other"), "wb") as sink, pa.ipc.new_stream(sink, table.schema) as writer:
            writer.write_table(table)
        (store / "other").replace(part)  # not in place: the old one is memory-mapped
        files = read_json(store / "datastore.json")["files"]
        files[part.name] = {
            "size": part.stat().st_size,
            "sha256": hashlib.sha256(part.read_bytes()).hexdigest(),
        }
        change_manifest(store, files=files)
        return Datastore.load(store)

    write(table).verify()
    with pytest.raises(ValueError, match="passage 3 has others"):
        write(change_tokens(table)).verify()
    with pytest.raises(ValueError, match=r"must be those of its datastore\.json"):
        write(table.slice(0, 19)).verify()


def test_fingerprint_is_of_the_tokens_too(tmp_path):
    documents = Dataset.from_dict({"text": TEXTS})
    one, other = (
        build_datastore(documents, tmp_path / str(blank), make_roberta_tokenizer(add_prefix_space=blank))
        for blank in (True, False)
    )
    assert one.passages["text"][:] == other.passages["text"][:]
    assert one.passages["input_ids"][:] != other.passages["input_ids"][:]
    assert one.fingerprint != other.fingerprint


def test_links_within_the_cache_of_the_hub_are_followed(tmp_path, export):
    snapshot = tmp_path / "datasets--someone--cs" / "snapshots" / "abc"
    (snapshot.parents[1] / "blobs").mkdir(parents=True)
    shutil.copytree(export, snapshot)
    for number, file in enumerate(sorted(path for path in snapshot.rglob("*") if path.is_file())):
        file.rename(snapshot.parents[1] / "blobs" / str(number))
        file.symlink_to(snapshot.parents[1] / "blobs" / str(number))
    assert load_from_hub(str(snapshot), tmp_path / "new").passages["text"][:] == TEXTS
    assert not any(path.is_symlink() for path in (tmp_path / "new").rglob("*"))


def test_parts_outside_the_folder_are_refused(store):
    part = store / "passages-00000.arrow"
    part.rename(store.parent / "outside.arrow")
    manifest = read_json(store / "datastore.json")
    files = {name.replace(part.name, "../outside.arrow"): details for name, details in manifest["files"].items()}
    change_manifest(store, parts=["../outside.arrow"], files=files)
    with pytest.raises(ValueError, match=r"damaged: parts is \['\.\./outside\.arrow'\]"):
        Datastore.load(store)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("max_length", "256"), ("max_length", "delete"), ("max_length", True), ("max_length", 10**9),
        ("tokenizer", None), ("analyzer", ["english"]), ("engine", "lucene"), ("engine", {}),
        ("index", "../index-000001"), ("index", 1), ("parts", "passages-00000.arrow"), ("parts", [1]),
        ("parts", ["passages-00000.arrow"] * 2), ("num_passages", "20"), ("num_passages", -1),
        ("num_documents", 1.5), ("deleted", 3), ("deleted", [3, 3]), ("deleted", [20]), ("deleted", ["3"]),
        ("files", []), ("files", {}), ("files", {"passages-00000.arrow": None}),
        ("files", {"passages-00000.arrow": {"size": 1}}), ("passages_hash", 5),
    ],
)  # fmt: skip
def test_odd_manifests_are_reported(store, name, value):
    change_manifest(store, **{name: value})
    with pytest.raises(ValueError, match=rf"datastore\.json is damaged: .*{name}.* Build the datastore again"):
        Datastore.load(store)


def test_files_that_are_no_manifests_are_reported(store, export, tmp_path):
    for content in ("[]", "null", '{"format_version": 2, "author": 1}', "[" * 100_000, "\ud800"):
        (store / "datastore.json").write_bytes(content.encode("utf-8", "surrogatepass"))
        with pytest.raises(ValueError, match=r"datastore\.json is damaged|the format of a datastore"):
            Datastore.load(store)
    change_manifest(export, fingerprint="delete")
    with pytest.raises(ValueError, match=r"needs a published datastore, but .* is a working folder"):
        load_from_hub(str(export), tmp_path / "new")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda table: table.drop_columns(["input_ids"]), "its columns are id, document_id, text\\."),
        (lambda table: table.set_column(3, "input_ids", table["text"]), "its columns are"),
        (lambda table: table.set_column(2, "text", pa.array([None] * 20, pa.string())), "missing values"),
        (lambda table: pa.concat_tables([table, table]), "must be the number of its row, but row 20 has 0"),
        (lambda table: table.slice(0, 19), "must be those that its datastore"),
        (lambda table: pa.concat_tables([table.slice(0, 1)] * 20).set_column(0, "id", table["id"]), "must be those"),
        (lambda table: b"PAR1", "must be Parquet as push_to_hub writes it"),
        (lambda table: b"", "must be Parquet as push_to_hub writes it"),
    ],
)
def test_odd_passages_are_reported(tmp_path, export, change, message):
    table = change(pq.read_table(export / PARQUET))
    if isinstance(table, bytes):
        (export / PARQUET).write_bytes(table)
    else:
        pq.write_table(table, export / PARQUET)
    with pytest.raises(ValueError, match=message):
        load_from_hub(str(export), tmp_path / "new")


def test_code_of_a_tokenizer_is_not_run(tmp_path, export, store, monkeypatch):
    asked = []
    monkeypatch.setattr(builtins, "input", lambda *question: asked.append(question) or "y")
    for folder in (export, store):
        config = read_json(folder / "tokenizer" / "tokenizer_config.json")
        config |= {"tokenizer_class": "Evil", "auto_map": {"AutoTokenizer": ["evil.Evil", "evil.Evil"]}}
        (folder / "tokenizer" / "tokenizer_config.json").write_text(json.dumps(config))
        (folder / "tokenizer" / "evil.py").write_text(f"open({str(tmp_path / 'owned')!r}, 'w')\nclass Evil: pass\n")
    with pytest.raises(ValueError, match="must load without code of its own"):
        load_from_hub(str(export), tmp_path / "new")
    with pytest.raises(ValueError, match="must load without code of its own"):
        Datastore.load(store).tokenizer  # noqa: B018
    assert not asked and not (tmp_path / "owned").exists()
