"""Files and folders are written as a whole or not at all."""

import os

import pytest

from hf_domain.safe_io import finish_writing, write_folder, write_text, write_whole


def test_text_is_written_as_a_whole(tmp_path):
    write_text(tmp_path / "file", "old")
    with pytest.raises(UnicodeEncodeError):
        write_text(tmp_path / "file", "new \ud800")
    assert (tmp_path / "file").read_text() == "old"
    write_text(tmp_path / "file", "neü")
    assert (tmp_path / "file").read_bytes() == "neü".encode()


def test_file_that_could_not_be_written_stays(tmp_path):
    file = tmp_path / "picture.png"
    file.write_bytes(b"good")
    with pytest.raises(OSError, match="full"), write_whole(file) as unfinished:
        unfinished.write_bytes(b"ba")
        raise OSError("the disk is full")
    assert [(path, path.read_bytes()) for path in tmp_path.iterdir()] == [(file, b"good")]


def test_folder_is_written_as_a_whole(tmp_path, monkeypatch):
    """Killed while the files move, the rest is complete; a model that was there is whole until then."""
    (tmp_path / "config.json").write_text("old")
    (tmp_path / "adapter_old.bin").write_text("old")
    with pytest.raises(OSError, match="full"), write_folder(tmp_path) as folder:
        (folder / "config.json").write_text("half")
        raise OSError("the disk is full")
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {
        "config.json": "old",
        "adapter_old.bin": "old",
    }

    def kill(source, target):
        if target == tmp_path / "weights":
            raise KeyboardInterrupt
        replace(source, target)

    replace = os.replace
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(os, "replace", kill)
        with write_folder(tmp_path, replaced=("adapter_*", "*.json")) as folder:
            (folder / "sub").mkdir()
            for name in ("weights", "config.json", "a", "sub/b"):
                (folder / name).write_text("new")
    assert (tmp_path / "config.json").read_text() == "old"
    finish_writing(tmp_path)
    files = {path.relative_to(tmp_path).as_posix(): path for path in tmp_path.rglob("*") if path.is_file()}
    assert {name: path.read_text() for name, path in files.items()} == dict.fromkeys(
        ("weights", "config.json", "a", "sub/b"), "new"
    )
    assert not list(tmp_path.glob("_*"))
