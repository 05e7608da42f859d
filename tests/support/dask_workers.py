"""A Dask scheduler in this process, and workers forked from a server that has imported torch: cheap, and killable."""

import asyncio
import multiprocessing
import os
from collections import Counter
from contextlib import contextmanager

from distributed import LocalCluster, Worker
from faults import PRELOADED

from hf_domain.clusters import open_executor

context = multiprocessing.get_context("forkserver")
context.set_forkserver_preload([*PRELOADED, "distributed"])  # a process of pytest has one server, whoever starts it


def work(address, folder):
    os.environ["OMP_NUM_THREADS"] = "1"

    async def run():
        async with Worker(address, nthreads=1, local_directory=folder, dashboard=False) as worker:
            await worker.finished()

    asyncio.run(run())


class Killing:
    """An executor that kills a worker in each stage of the work, with the third task of the stage."""

    def __init__(self, executor, workers):
        self.executor, self.workers, self.tasks = executor, iter(workers), Counter()
        self._client = executor._client

    def submit(self, function, *arguments):
        packed = arguments[0] if isinstance(arguments[0], bytes) else b""  # of `map_in_order`: its function and options
        self.tasks[function, packed] += 1
        if self.tasks[function, packed] == 3:
            next(self.workers).kill()
        return self.executor.submit(function, *arguments)


@contextmanager
def start_workers(folder, count, kill=False):
    """Give the executor of a cluster with some workers."""
    options = {"host": "127.0.0.1", "protocol": "tcp", "dashboard_address": None, "processes": False}
    with LocalCluster(n_workers=0, **options) as cluster:
        address = cluster.scheduler_address
        workers = [context.Process(target=work, args=(address, str(folder)), daemon=True) for _ in range(count)]
        try:
            for worker in workers:
                worker.start()
            with open_executor(dask_scheduler=address) as executor:
                executor._client.wait_for_workers(count)
                yield Killing(executor, workers) if kill else executor
        finally:
            for worker in workers:
                worker.kill()
                worker.join()
