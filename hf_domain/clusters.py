"""Work by several processes: of this machine, or of a Dask cluster that is named by its address or file."""

import functools
import importlib
import json
import multiprocessing
import os
import pickle
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor, Future, ProcessPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import dill

from hf_domain.extras import require

if TYPE_CHECKING:
    from distributed import Client

CONNECT_SECONDS = 10
TASKS_PER_WORKER = 2  # one runs, one waits; bounds the memory for a corpus of any size


def read_address(dask_scheduler: str) -> str:
    """Return the address of a scheduler, which a file may hold; raise a ValueError if it does not."""
    if ":" in dask_scheduler and not Path(dask_scheduler).is_file():
        return dask_scheduler
    try:
        return json.loads(Path(dask_scheduler).read_text(encoding="utf-8"))["address"]
    except (OSError, ValueError, KeyError, TypeError):
        raise ValueError(
            "--dask_scheduler must be the address of a scheduler, such as tcp://host:8786, or the file that "
            f"`dask scheduler --scheduler-file` writes, but is {dask_scheduler}"
        ) from None


@contextmanager
def open_client(dask_scheduler: str) -> Iterator["Client"]:
    """Open a client of a cluster.

    Args:
        dask_scheduler: Address of the scheduler, such as tcp://host:8786, or the file that `dask scheduler
            --scheduler-file` writes.

    Raises:
        ValueError: There is no such file.
        OSError: No scheduler answers.
    """
    require("work on a cluster", "distributed")
    from distributed import Client

    address = read_address(dask_scheduler)
    try:
        client = Client(address, timeout=CONNECT_SECONDS)
    except (OSError, ValueError) as error:
        raise OSError(
            f"--dask_scheduler must name a running scheduler, but none answers at {address} ({error}). Start one with "
            "`dask scheduler`, or correct the address."
        ) from None
    with client:
        yield client


@contextmanager
def open_executor(num_workers: int = 1, dask_scheduler: str | None = None) -> Iterator[Executor | None]:
    """Open the executor for work on a corpus: `count_words` and `map_in_order` take it.

    Args:
        num_workers: Number of processes; 1 works in this process.
        dask_scheduler: Work on this cluster instead, see `open_client`.
    """
    if dask_scheduler:
        with open_client(dask_scheduler) as client, client.get_executor() as executor:
            yield executor
    elif num_workers > 1:
        with ProcessPoolExecutor(num_workers, initializer=end_with_parent) as executor:
            yield executor
    else:
        yield None


def end_with_parent() -> None:
    """Let this process end when the one that started it is killed, and else would wait for work forever."""
    parent = multiprocessing.parent_process()

    def wait() -> None:
        if parent is not None:
            parent.join()
            os._exit(1)

    threading.Thread(target=wait, daemon=True).start()


def count_tasks(executor: Executor | None) -> int:
    """Return how many tasks keep all workers busy; workers of a cluster may come and go. None is this process."""
    client: Any = getattr(executor, "_client", None)
    workers = getattr(executor, "_max_workers", 1) if client is None else sum(client.nthreads().values())
    return TASKS_PER_WORKER * max(1, workers)


def map_in_order(
    executor: Executor | None, function: Callable[..., Any], items: Iterable[Any], *shared: Any
) -> Iterator[Any]:
    """Yield `function(item, *shared)` for each item, in order, with few items in memory at once.

    Args:
        executor: See `open_executor`; None calls the function in this process. If a worker is lost, another one repeats
            its items.
        shared: What all items need, such as a tokenizer. Every worker unpacks it once.
    """
    if executor is None:
        yield from (function(item, *shared) for item in items)
        return
    # Both also take functions that no module has. dill comes with datasets; Dask's workers read what Dask writes.
    pickler: Any = dill if getattr(executor, "_client", None) is None else importlib.import_module("cloudpickle")
    packed = pickler.dumps((function, shared))
    pending: deque[Future[Any]] = deque()
    for item in items:
        pending.append(executor.submit(call_packed, packed, item))
        if len(pending) >= count_tasks(executor):
            yield pending.popleft().result()
    while pending:
        yield pending.popleft().result()


def call_packed(packed: bytes, item: Any) -> Any:
    """Call the function of a `map_in_order` in a worker."""
    function, shared = unpack(packed)
    return function(item, *shared)


@functools.lru_cache(maxsize=2)
def unpack(packed: bytes) -> Any:
    """Return what `map_in_order` packed, the same objects for every item."""
    return pickle.loads(packed)
