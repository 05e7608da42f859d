"""Python processes at the price of a fork: `run` takes the place of `subprocess.run` for `python -c`.

Most of what a process imports before it can load a model is torch, and what torch and the HuggingFace libraries use:
four seconds of six. A server imports that once and is forked for each process. It leaves out this package, and the
HuggingFace libraries: they read the environment when they are imported, and that of each process is its own. One
whose environment is that of the tests can have them imported as well; only the folder of their modules differs.
"""

import atexit
import functools
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

SERVER = """
import gc, importlib, json, os, sys

for name in sys.argv[1].split(","):
    importlib.import_module(name)
gc.freeze()  # a collection of a fork would copy all of it
for line in sys.stdin:
    if os.fork() == 0:
        break
    print(os.waitstatus_to_exitcode(os.wait()[1]), flush=True)
else:
    sys.exit()

request = json.loads(line)
for number, file in enumerate(request["streams"]):
    os.dup2(os.open(file, os.O_RDWR), number)
os.chdir(request["cwd"])
os.environ.clear()
os.environ.update(request["env"])
for module in list(sys.modules.values()):
    if module.__name__.startswith("transformers.") and "HF_MODULES_CACHE" in vars(module):
        module.HF_MODULES_CACHE = request["env"].get("HF_MODULES_CACHE", module.HF_MODULES_CACHE)
sys.path[1:1] = filter(None, request["env"].get("PYTHONPATH", "").split(os.pathsep))
sys.argv = request["argv"]
exec(compile(request["code"], "<string>", "exec"), globals())
"""
PRELOADED = ("torch", "torch._dynamo", "torch.distributed.tensor", "torch.export", "numpy", "pandas", "pyarrow.dataset")
PRELOADED += ("scipy.optimize", "scipy.stats", "sklearn.metrics", "sympy", "yaml", "jinja2")
LIBRARIES = ("transformers.modeling_utils", "transformers.pipelines", "peft", "transformers.models.bert.modeling_bert")


@functools.cache
def start_server(preloaded):
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    server = subprocess.Popen(
        [sys.executable, "-c", SERVER, ",".join(preloaded)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=environment,
        text=True,
    )
    atexit.register(server.kill)
    return server


def run(command, *, cwd=".", env=None, has_libraries=False, **options):
    """Run `[sys.executable, "-c", code, *arguments]` as `subprocess.run` does; its output is captured as text.

    Args:
        has_libraries: Begin with the HuggingFace libraries imported, under the environment of the tests.
    """
    if sys.platform != "linux":  # forks elsewhere are none, or not safe with torch
        return subprocess.run(command, cwd=cwd, env=env, **options | {"capture_output": True, "text": True})
    assert command[:2] == [sys.executable, "-c"]
    server = start_server(PRELOADED + LIBRARIES * has_libraries)
    with tempfile.TemporaryDirectory() as folder:
        files = [Path(folder, name) for name in ("stdout", "stderr")]
        for file in files:
            file.touch()
        request = {
            "code": command[2],
            "argv": ["-c", *map(str, command[3:])],
            "cwd": str(cwd),
            "env": dict(os.environ if env is None else env),
            "streams": [os.devnull, *map(str, files)],
        }
        print(json.dumps(request), file=server.stdin, flush=True)
        code = int(server.stdout.readline())
        return subprocess.CompletedProcess(command, code, *(file.read_text(errors="replace") for file in files))
