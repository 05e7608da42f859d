"""Two processes that train together, forked from a server that has imported what they need.

They are not forked from the tests: autograd does not run in a fork of a process in which it has started threads.
"""

import multiprocessing
import os
import socket
import sys
import traceback
from multiprocessing.connection import wait
from pathlib import Path

import pytest
from accelerate.state import AcceleratorState, PartialState
from accelerate.utils import DistributedType
from faults import PRELOADED
from without_noise import remove_noise


def run_two(main, arguments, folder, variables=None):
    """Call main() with these arguments in two processes, without noise; returns what they print.

    Args:
        variables: Environment variables beside those of torchrun.
    """
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    environment = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    environment |= {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
    environment |= variables or {}
    files = [Path(folder, f"printed-{rank}.txt") for rank in (0, 1)]
    context = get_context()
    processes = [
        context.Process(
            target=work, args=(main, arguments, str(file), environment | {"RANK": rank, "LOCAL_RANK": rank})
        )
        for rank, file in zip("01", files, strict=True)
    ]
    for process in processes:
        process.start()
    running = {*processes}
    while running:
        ended = [process for process in running if process.sentinel in wait([each.sentinel for each in running])]
        running -= {*ended}
        for process in ended:
            process.join()
            if process.exitcode:
                for other in running:
                    other.kill()  # it would wait for this one
    failed = [rank for rank, process in enumerate(processes) if (process.exitcode or 0) > 0]
    assert not failed, files[failed[0]].read_text()[-20000:]
    return "".join(file.read_text() for file in files)


def get_context():
    """Return the context of the server."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    return context


def work(main, arguments, file, environment):
    """Run main() in a process of its own."""
    os.environ.update(environment)
    sys.stdout = sys.stderr = open(file, "w", buffering=1)  # noqa: SIM115  until the process ends
    for number in (1, 2):
        os.dup2(sys.stdout.fileno(), number)
    sys.argv = ["script.py", *arguments]
    remove_noise(pytest.MonkeyPatch())
    if "ACCELERATE_USE_FSDP" in environment:
        shard_on_cpu(pytest.MonkeyPatch())
    try:
        main()
    except BaseException:
        traceback.print_exc()
        raise SystemExit(1) from None


def shard_on_cpu(patch):
    """Let accelerate shard on a CPU as on GPUs; by itself it would ignore FSDP there, and train with DDP."""
    init = AcceleratorState.__init__

    def init_sharded(state, *arguments, fsdp_plugin=None, **options):
        init(state, *arguments, fsdp_plugin=fsdp_plugin, **options)
        if fsdp_plugin is not None:
            state.fsdp_plugin = fsdp_plugin
            state.distributed_type = PartialState._shared_state["distributed_type"] = DistributedType.FSDP

    patch.setattr(AcceleratorState, "__init__", init_sharded)
