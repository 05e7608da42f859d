"""examples/build_datastore.py, as the command line runs it."""

import json

import pytest
from script_runs import call_main
from tiny_tokenizers import SENTENCES, make_bert_tokenizer

from hf_domain.datastore import Datastore
from hf_domain.datastore.hub import export_datastore
from hf_domain.examples import build_datastore

pytest.importorskip("tantivy")

TEXTS = [f"{SENTENCES[number % 4]} number{number}" for number in range(20)]


@pytest.fixture
def folder(tmp_path):
    make_bert_tokenizer([*SENTENCES, *TEXTS]).save_pretrained(tmp_path / "encoder")
    (tmp_path / "corpus.txt").write_text("\n".join(TEXTS), encoding="utf-8")
    return tmp_path


def run(module, monkeypatch, capsys, **flags):
    call_main(module.main, monkeypatch, **flags)
    return capsys.readouterr().out


def test_build_add_rebuild_search(folder, monkeypatch, capsys):
    store = folder / "store"
    options = {"output_dir": store, "train_file": [folder / "corpus.txt"]}
    out = run(build_datastore, monkeypatch, capsys, **options, model_name_or_path=folder / "encoder", max_length=64)
    assert "20 passages from 20 documents (0 duplicates left out, analyzer english)" in out

    rows = [
        {"body": TEXTS[0], "key": "old"},
        {"body": "<omega>\x1b[31m and number3", "key": "new"},
        {"body": "合同", "key": "zh"},
    ]
    (folder / "more.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    more = {"train_file": [folder / "more.jsonl"], "text_column_name": "body", "id_column_name": "key"}
    out = run(build_datastore, monkeypatch, capsys, output_dir=store, add=True, **more)
    assert "2 new passages" in out and "(1 duplicates left out," in out
    datastore = Datastore.load(store)
    assert datastore.passages["document_id"][-2:] == ["new", "zh"] and datastore.manifest.max_length == 64

    out = run(
        build_datastore, monkeypatch, capsys, output_dir=store, query=["omega", "number7", "nowhere"], num_passages=1
    )
    assert "1. passage 20, document new, score " in out and "1. passage 7, document 7, score " in out
    assert ": <omega> [31m and number3" in out and "\x1b" not in out  # no passage commands the terminal
    assert "Passages for: nowhere\nNone has a word in common with this text." in out
    assert "22 passages from" in out and Datastore.load(store).passages.num_rows == 22  # a search adds nothing

    for flag, value in (("max_length", 32), ("engine", "opensearch"), ("analyzer", "standard")):
        with pytest.raises(ValueError, match=f"--{flag} of .* must be the one it was built with, .* is {value}"):
            run(build_datastore, monkeypatch, capsys, output_dir=store, add=True, **more, **{flag: value})
    make_bert_tokenizer(["words of its own"]).save_pretrained(folder / "other")
    with pytest.raises(ValueError, match="with the tokenizer that cut it"):
        run(
            build_datastore,
            monkeypatch,
            capsys,
            output_dir=store,
            add=True,
            **more,
            model_name_or_path=folder / "other",
        )

    with pytest.raises(ValueError, match=r"--max_length of .* must be the one it was built with"):
        run(build_datastore, monkeypatch, capsys, output_dir=store, rebuild_index=True, analyzer="cjk", max_length=32)
    assert Datastore.load(store).manifest.analyzer == "english"  # refused before the index was made again

    run(build_datastore, monkeypatch, capsys, output_dir=store, rebuild_index=True, analyzer="cjk")
    assert Datastore.load(store).manifest.analyzer == "cjk"
    run(build_datastore, monkeypatch, capsys, output_dir=store, rebuild_index=True)
    assert Datastore.load(store).manifest.analyzer == "cjk"  # of which nothing was said
    assert Datastore.load(store).search(["合同"])[0][0] == [21]


def test_a_dataset_and_a_stream_are_corpora(folder, monkeypatch, capsys):
    flags = {"model_name_or_path": folder / "encoder", "streaming": True}
    run(build_datastore, monkeypatch, capsys, output_dir=folder / "a", train_file=[folder / "corpus.txt"], **flags)
    export_datastore(Datastore.load(folder / "a"), folder / "dataset")
    flags |= {"text_column_name": "text", "id_column_name": "document_id"}
    run(build_datastore, monkeypatch, capsys, output_dir=folder / "b", dataset_name=folder / "dataset", **flags)
    assert Datastore.load(folder / "a").fingerprint == Datastore.load(folder / "b").fingerprint


@pytest.mark.parametrize("streaming", [True, False])
def test_every_tenth_document_is_held_out(folder, monkeypatch, capsys, streaming):
    rows = [{"body": text, "key": f"d{number}"} for number, text in enumerate(["合 first", *TEXTS, *TEXTS[:2]])]
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    flags = {"train_file": [folder / "rows.jsonl"], "text_column_name": "body", "id_column_name": "key"}
    flags |= {"streaming": True} if streaming else {}
    flags |= {"model_name_or_path": folder / "encoder", "held_out_file": folder / "rest.jsonl"}
    run(build_datastore, monkeypatch, capsys, output_dir=folder / "store", **flags)
    run(build_datastore, monkeypatch, capsys, output_dir=folder / "again", **flags)  # as after a kill
    held = [json.loads(line)["text"] for line in (folder / "rest.jsonl").read_text(encoding="utf-8").splitlines()]
    assert held == [TEXTS[8], TEXTS[18]]
    passages = Datastore.load(folder / "store").passages
    assert passages["text"][:] == ["合 first", *TEXTS[:8], *TEXTS[9:18], TEXTS[19]]
    assert passages["document_id"][:] == [f"d{number}" for number in range(21) if number not in (9, 19)]
