"""Start OpenSearch on the loopback address, run the contract suite against it, stop it.

    python tests/datastore/servers/run_suite.py [options of pytest]

Needs Java and Maven, which fetches the server once. Without them nothing is tested, and one line says so.
"""

import os
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

HERE = Path(__file__).parent
PORT = 9201  # the runner adds the number of the node to its base port, 9200
SECONDS = 120  # to start


def start_server(folder: str) -> subprocess.Popen:
    """Start a node with at most 1 GB of heap and return its process."""
    classpath = Path(folder, "classpath")
    maven = ["mvn", "-q", "-B", "-f", str(HERE / "pom.xml"), "dependency:build-classpath"]
    subprocess.run([*maven, f"-Dmdep.outputFile={classpath}"], check=True)
    runner = ["org.codelibs.opensearch.runner.OpenSearchRunner", "-basePath", f"{folder}/node", "-numOfNode", "1"]
    java = ["java", "-Xms512m", "-Xmx1g", "-cp", classpath.read_text(encoding="utf-8"), *runner]
    with open(f"{folder}/log", "wb") as log:
        return subprocess.Popen([*java, "-baseHttpPort", str(PORT - 1)], stdin=subprocess.PIPE, stdout=log, stderr=log)


def wait_for(server: subprocess.Popen, url: str) -> str:
    """Return what the server says of itself once it answers."""
    for _ in range(SECONDS):
        if server.poll() is not None:
            break
        try:
            with urllib.request.urlopen(url, timeout=5) as answer:
                return answer.read().decode()
        except OSError:
            time.sleep(1)
    raise SystemExit(f"OpenSearch must answer at {url} within {SECONDS} s, but does not. Is the port free?")


def main() -> int:
    """Return pytest's exit code, 0 where there is no Java or Maven."""
    missing = [tool for tool in ("java", "mvn") if shutil.which(tool) is None]
    if missing:
        print(f"SKIPPED: {' and '.join(missing)} not found, so nothing was tested on a real server")
        return 0
    url = f"http://127.0.0.1:{PORT}"
    with tempfile.TemporaryDirectory() as folder:
        server = start_server(folder)
        try:
            print(wait_for(server, url))
            options = ["-m", "pytest", str(HERE.parent / "test_elasticsearch_index.py"), "-k", "opensearch server"]
            environment = os.environ | {"OPENSEARCH_URL": url}
            return subprocess.run([sys.executable, *options, *sys.argv[1:]], env=environment, check=False).returncode
        finally:
            server.kill()
            server.wait()


if __name__ == "__main__":
    sys.exit(main())
