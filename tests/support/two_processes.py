"""Two processes that train together, forked from this one: they need not import anything again."""

import os
import signal
import socket
import sys
import traceback
from pathlib import Path

from accelerate.state import AcceleratorState, GradientState, PartialState


def run_two(main, arguments, folder):
    """Call main() with these arguments in two processes; returns what they print."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    environment = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    environment |= {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
    files, children = [Path(folder, f"printed-{rank}.txt") for rank in (0, 1)], {}
    sys.stdout.flush()
    for rank, file in enumerate(files):
        if (child := os.fork()) == 0:
            os.environ.update(environment | {"RANK": str(rank), "LOCAL_RANK": str(rank)})
            work(main, arguments, file)
        children[child] = rank
    failed = None
    while children:
        child, status = os.wait()
        rank = children.pop(child, None)
        if rank is not None and status and failed is None:
            failed = rank
            for other in children:
                os.kill(other, signal.SIGKILL)  # it would wait for this one
    assert failed is None, files[failed].read_text()[-20000:]
    return "".join(file.read_text() for file in files)


def work(main, arguments, file):
    """Run main() in a forked process, which then ends at once: the tests of its parent are not its own."""
    code = 1
    try:
        sys.stdout = sys.stderr = file.open("w", buffering=1)
        for number in (1, 2):
            os.dup2(sys.stdout.fileno(), number)
        for state in (AcceleratorState, GradientState, PartialState):
            state._shared_state.clear()  # of earlier tests
        sys.argv = ["script.py", *arguments]
        main()
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        os._exit(code)
