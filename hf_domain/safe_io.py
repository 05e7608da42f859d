"""Write files completely or not at all, replace the files of a folder together, and lock a folder."""

import errno
import hashlib
import json
import os
import shutil
import socket
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout
from fsspec.core import url_to_fs

# Neither Trainer nor this package pushes names that begin with an underscore.
UNFINISHED, FINISHED, LOCK = "_unfinished", "_finished", "_run.lock"
LIST = "_files.json"
# What libraries say of a full disk without its error number; torch.save names no cause.
FULL = ("No space left", "PytorchStreamWriter failed writing", "unexpected pos")


def write_text(file: str | Path, text: str) -> None:
    """Write a file completely or not at all; an existing file is replaced."""
    with write_whole(file) as unfinished:
        unfinished.write_text(text, encoding="utf-8")


@contextmanager
def write_whole(file: str | Path) -> Iterator[Path]:
    """Yield a path to write to, which replaces `file` afterwards. If writing fails, `file` stays unchanged."""
    # Each writer has its own name; otherwise two writers of one file would move each other's file away.
    unfinished = Path(f"{file}.{uuid.uuid4().hex}.unfinished")
    try:
        yield unfinished
        os.replace(unfinished, file)
    finally:
        unfinished.unlink(missing_ok=True)


@contextmanager
def write_folder(folder: str | Path, replaced: Sequence[str] = ()) -> Iterator[Path]:
    """Yield a folder to write into, whose files then move to `folder`, all of them or none.

    If the process is killed during the move, the remaining files are complete in `_finished`, and `finish_writing`
    moves them. A model that was in `folder` stays complete until the move begins.

    Args:
        folder: Created if it does not exist.
        replaced: Patterns of old files to delete, such as the second shard of an old model.
    """
    unfinished = begin_writing(folder)
    try:
        yield unfinished
    except BaseException:
        shutil.rmtree(unfinished, ignore_errors=True)
        raise
    end_writing(folder, replaced)


def begin_writing(folder: str | Path) -> Path:
    """Return an empty folder for `end_writing`."""
    finish_writing(folder)
    unfinished = Path(folder, UNFINISHED)
    unfinished.mkdir(parents=True)
    return unfinished


def end_writing(folder: str | Path, replaced: Sequence[str] = ()) -> None:
    """Move the files written since `begin_writing`; see `write_folder`."""
    unfinished = Path(folder, UNFINISHED)
    files = sorted(path.relative_to(unfinished).as_posix() for path in unfinished.rglob("*") if path.is_file())
    paths = [path for pattern in replaced for path in Path(folder).glob(pattern) if path.is_file()]
    old = {path.relative_to(folder).as_posix() for path in paths}
    write_text(unfinished / LIST, json.dumps({"new": files, "old": sorted(old - {*files})}))
    os.replace(unfinished, Path(folder, FINISHED))
    finish_writing(folder)


def finish_writing(folder: str | Path) -> None:
    """Move the files that a killed process had completed, and delete the others."""
    folder, finished = Path(folder), Path(folder, FINISHED)
    if (finished / LIST).is_file():
        names = json.loads((finished / LIST).read_text(encoding="utf-8"))
        for name in names["old"]:
            (folder / name).unlink(missing_ok=True)
        # The configuration comes last: without it nothing loads a half-moved model.
        for name in sorted(names["new"], key=lambda name: name == "config.json"):
            if (finished / name).exists():  # otherwise a killed process moved it already
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                os.replace(finished / name, folder / name)
        (finished / LIST).unlink()
    for left in (finished, Path(folder, UNFINISHED)):
        if left.is_dir():
            shutil.rmtree(left)
    remove_unfinished(folder)


def remove_unfinished(folder: Path) -> None:
    """Delete the leftovers of killed writers; the caller holds the folder's lock."""
    for file in folder.glob("*.unfinished"):  # from `write_whole`
        if file.is_file():
            file.unlink()


@contextmanager
def lock_folder(folder: str | Path) -> Iterator[None]:
    """Keep other processes from writing into a folder. The lock is released when the process ends or is killed.

    Args:
        folder: Created if it does not exist.

    Raises:
        ValueError: Another process holds the lock.
        OSError: The disk became full.
    """
    path = Path(folder, LOCK)
    is_new = not path.parent.exists()
    path.parent.mkdir(parents=True, exist_ok=True)
    lock = FileLock(path)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        raise ValueError(
            f"only one run may write into a folder, but {_read_holder(path)} is writing into {folder}. Wait for that "
            "run, or name another folder."
        ) from None
    try:
        with explain_full_disk(folder):
            # Windows may refuse to open a locked file; the lock works without a name in it.
            with suppress(PermissionError):
                path.write_text(
                    f"process {os.getpid()} on {socket.gethostname()} since {time.strftime('%Y-%m-%d %H:%M:%S')}",
                    encoding="utf-8",
                )
            yield
    finally:
        # Delete the file before the release; afterwards another process may own it. A process that opened the file
        # earlier checks that it still exists once it has the lock.
        with suppress(OSError):
            path.unlink()
        lock.release()
        if is_new:
            with suppress(OSError):
                path.parent.rmdir()  # if it is empty: a refused run leaves nothing behind


def _read_holder(lock: Path) -> str:
    with suppress(OSError):
        return lock.read_text(encoding="utf-8") or "another process"
    return "another process"


@contextmanager
def explain_full_disk(folder: str | Path) -> Iterator[None]:
    """Raise an OSError that names the place instead of any error that a full disk caused.

    Args:
        folder: See `describe_full_disk`.
    """
    try:
        yield
    except Exception as error:
        if is_disk_full(error):
            raise describe_full_disk(error, folder) from error
        raise


def list_causes(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an error, its cause, the cause of this, and so on."""
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def is_disk_full(error: BaseException) -> bool:
    """Return whether a full disk caused an error, even if a library dropped the error number."""
    return any(
        getattr(cause, "errno", None) in (errno.ENOSPC, errno.EDQUOT) or any(sign in str(cause) for sign in FULL)
        for cause in list_causes(error)
    )


def describe_full_disk(error: BaseException, folder: str | Path = ".") -> OSError:
    """Return an error that names the file, or the folder, whose disk is full.

    Args:
        error: An error for which `is_disk_full` is true.
        folder: Output folder of the command, for when the error names no file.
    """
    if isinstance(error, OSError) and "room on the disk" in str(error):
        return error  # names the place already
    place = next(filter(None, (getattr(cause, "filename", None) for cause in list_causes(error))), folder)
    full = OSError(
        f"a file needs room on the disk of {place}, but the disk is full. Nothing complete is lost: make room and "
        "repeat the command."
    )
    full.errno = errno.ENOSPC
    return full


def write_json(path: str | os.PathLike, content: Any) -> None:
    """Write `content` to `path` completely or not at all: a killed run never leaves half a result."""
    write_text(Path(path), json.dumps(content, indent=2, ensure_ascii=False) + "\n")


def read_json(path: str | os.PathLike) -> Any:
    """Read a JSON file; raise a ValueError if it is not complete."""
    try:
        return json.loads(Path(path).read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(
            f"{path} must be complete JSON, but cannot be read: {error}. Delete it; the command writes it again."
        ) from None


def is_url(path: Any) -> bool:
    """Return whether a path is a URL, which fsspec opens, such as s3://bucket/corpus.parquet."""
    return "://" in str(path)


def open_url(url: str) -> tuple[Any, str]:
    """Return the file system of a URL, and the path in it; raise a ValueError if its package is missing."""
    try:
        return url_to_fs(url)
    except (ImportError, ValueError) as error:
        raise ValueError(
            f"a URL must be of a file system that fsspec knows, but {url} is not: {error}. Install the package of the "
            "file system, or correct the URL."
        ) from None


def identify_url(url: str) -> str:
    """Return a digest of what the other machine says of a file: size, date, ETag. Reading it would take too long."""
    system, path = open_url(url)
    return hashlib.sha256(f"{url} {system.ukey(path)}".encode()).hexdigest()


def fingerprint_files(files: Sequence[str | Path]) -> str:
    """Return a digest of the contents of files in their order; for URLs see `identify_url`."""
    digest = hashlib.sha256()
    for file in files:
        if is_url(file):
            digest.update(identify_url(str(file)).encode())
            continue
        with Path(file).open("rb") as stream:
            while block := stream.read(1 << 20):
                digest.update(block)
    return digest.hexdigest()
