"""Open Dask clients: of a cluster by its address or file, or of workers inside this process."""

import json
import logging
from collections.abc import Iterator
from concurrent.futures import Executor, ProcessPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from distributed import Client

CONNECT_SECONDS = 10
# Workers inside a process need neither statistics nor heartbeats.
QUIET = {
    "distributed.worker.profile.enabled": False,
    "distributed.admin.system-monitor.interval": "10s",
    "distributed.admin.system-monitor.gil.enabled": False,
    "distributed.scheduler.worker-ttl": None,
}
LOOPBACK = "127.0.0.1:0"


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
    from distributed import Client

    address = dask_scheduler
    if ":" not in dask_scheduler or Path(dask_scheduler).is_file():
        try:
            address = json.loads(Path(dask_scheduler).read_text(encoding="utf-8"))["address"]
        except (OSError, ValueError, KeyError, TypeError):
            raise ValueError(
                "--dask_scheduler must be the address of a scheduler, such as tcp://host:8786, or the file that "
                f"`dask scheduler --scheduler-file` writes, but is {dask_scheduler}"
            ) from None
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
def open_local_client(num_workers: int) -> Iterator["Client"]:
    """Open a client of worker threads in this process, for tasks that only wait for their own processes.

    Only Dask's dashboard listens, and only on this machine.
    """
    import dask
    from distributed import Client, LocalCluster

    with (
        dask.config.set(QUIET),
        LocalCluster(
            n_workers=num_workers,
            threads_per_worker=1,
            processes=False,
            memory_limit=0,  # the tasks run in other processes
            dashboard_address=LOOPBACK,
            worker_dashboard_address=LOOPBACK,
            silence_logs=logging.ERROR,
        ) as cluster,
        Client(cluster) as client,
    ):
        yield client


@contextmanager
def open_executor(num_workers: int = 1, dask_scheduler: str | None = None) -> Iterator[Executor | None]:
    """Open the executor that counts the shards of `count_words`.

    Args:
        num_workers: Number of processes; 1 counts in this process.
        dask_scheduler: Count on this cluster instead, see `open_client`.
    """
    if dask_scheduler:
        with open_client(dask_scheduler) as client, client.get_executor() as executor:
            yield executor
    elif num_workers > 1:
        with ProcessPoolExecutor(num_workers) as executor:
            yield executor
    else:
        yield None
