"""A Dask scheduler and workers as processes of their own, as on a cluster."""

import subprocess
import sys
import time
from contextlib import contextmanager, suppress

import psutil


@contextmanager
def start_cluster(folder, *options, num_workers=2, environment=None):
    """Start a scheduler and workers of one thread; gives the scheduler's file and the workers' processes."""
    file = folder / "scheduler.json"
    command = [sys.executable, "-m", "distributed.cli."]
    local = ["--host", "127.0.0.1", "--no-dashboard"]
    commands = [["dask_scheduler", "--port", "0", "--scheduler-file", str(file), *local]]
    worker = ["dask_worker", "--scheduler-file", str(file), "--nthreads", "1", "--local-directory", str(folder), *local]
    commands += [[*worker, *options]] * num_workers
    processes = []
    try:
        for program, *arguments in commands:
            with (folder / f"{program}{len(processes)}.txt").open("w") as log:
                started = [*command[:-1], command[-1] + program, *arguments]
                processes.append(subprocess.Popen(started, stdout=log, stderr=log, env=environment))
            while not file.is_file():
                assert processes[0].poll() is None
                time.sleep(0.05)
        yield str(file), processes[1:]
    finally:
        family = [psutil.Process(process.pid) for process in processes if process.poll() is None]
        family += [child for process in family for child in process.children(recursive=True)]
        for process in family:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        for process in processes:
            process.wait()
