"""Start OpenSearch on the loopback address, run the contract suite against it, stop it.

    python tests/datastore/servers/run_suite.py [options of pytest]

Needs Java and Maven. Maven fetches the server once: OpenSearch 3.8 for Java 21 and newer, 2.19 for Java 17.
Without Java or Maven nothing is tested, and one line says so.
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


def choose_runner() -> str:
    """Return the newest release of the runner, and so of OpenSearch, for the Java on the path."""
    words = subprocess.run(["java", "--version"], check=True, capture_output=True, text=True).stdout.split()
    return "3.8.0.0" if int(words[1].partition(".")[0]) >= 21 else "2.19.1.0"


def start_server(folder: str) -> subprocess.Popen:
    """Start a node with at most 1 GB of heap and return its process."""
    classpath = Path(folder, "classpath")
    maven = ["mvn", "-q", "-B", "-f", str(HERE / "pom.xml"), f"-Drunner={choose_runner()}"]
    output = f"-Dmdep.outputFile={classpath}"
    subprocess.run([*maven, "dependency:build-classpath", output], check=True)
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
            suite = str(HERE.parent / "test_elasticsearch_index.py")
            options = ["-m", "pytest", suite, "-k", "opensearch and server and not stub"]
            environment = os.environ | {"OPENSEARCH_URL": url}
            return subprocess.run([sys.executable, *options, *sys.argv[1:]], env=environment, check=False).returncode
        finally:
            server.kill()
            server.wait()


if __name__ == "__main__":
    sys.exit(main())
