"""Start OpenSearch on the loopback address, run the contract suite against it, then kill it during work.

    python tests/datastore/servers/run_suite.py [options of pytest]

Needs Java and Maven. Maven fetches the server once: OpenSearch 3.8 for Java 21 and newer, 2.19 for Java 17.
Without Java or Maven nothing is tested, and one line says so.
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from node import HERE, Node, list_missing_tools


def main() -> int:
    """Return pytest's exit code, 0 where there is no Java or Maven."""
    if missing := list_missing_tools():
        print(f"SKIPPED: {' and '.join(missing)} not found, so nothing was tested on a real server")
        return 0
    with tempfile.TemporaryDirectory() as folder:
        node = Node(Path(folder), port=9201)
        node.start()
        try:
            print(node.wait())
            suite = str(HERE.parent / "test_elasticsearch_index.py")
            options = ["-m", "real_server", "-k", "opensearch"]
            contract = run_pytest([suite, *options, *sys.argv[1:]], {"OPENSEARCH_URL": node.url})
        finally:
            node.kill()
    return contract or run_pytest([str(HERE / "test_failing_server.py"), "-m", "servers", *sys.argv[1:]], {})


def run_pytest(options: list[str], environment: dict[str, str]) -> int:
    """Run pytest in a process of its own and return its exit code."""
    return subprocess.run(
        [sys.executable, "-m", "pytest", *options], env=os.environ | environment, check=False
    ).returncode


if __name__ == "__main__":
    sys.exit(main())
