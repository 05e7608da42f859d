"""A node of OpenSearch in a Java process of its own, which Maven fetches once."""

import shutil
import subprocess
import time
import urllib.request
from pathlib import Path

HERE = Path(__file__).parent
SECONDS = 120  # to start


def list_missing_tools() -> list[str]:
    """Return which of Java and Maven are not on the path."""
    return [tool for tool in ("java", "mvn") if shutil.which(tool) is None]


def choose_runner() -> str:
    """Return the newest release of the runner, and so of OpenSearch, for the Java on the path."""
    words = subprocess.run(["java", "--version"], check=True, capture_output=True, text=True).stdout.split()
    return "3.8.0.0" if int(words[1].partition(".")[0]) >= 21 else "2.19.1.0"


class Node:
    """A node that can be killed and started again on the same data.

    Args:
        folder: Where its data and its log go.
        port: Port of the loopback address, 9201 to 9299, because the runner looks no further.
    """

    def __init__(self, folder: Path, port: int):
        self.folder, self.port, self.url = folder, port, f"http://127.0.0.1:{port}"
        self.process: subprocess.Popen | None = None
        classpath = folder / "classpath"
        maven = ["mvn", "-q", "-B", "-f", str(HERE / "pom.xml"), f"-Drunner={choose_runner()}"]
        subprocess.run([*maven, "dependency:build-classpath", f"-Dmdep.outputFile={classpath}"], check=True)
        self.classpath = classpath.read_text(encoding="utf-8")

    def start(self) -> None:
        """Start the process, with at most 1 GB of heap, without waiting for its first answer."""
        runner = ["org.codelibs.opensearch.runner.OpenSearchRunner", "-basePath", str(self.folder / "node")]
        java = ["java", "-Xms512m", "-Xmx1g", "-cp", self.classpath, *runner, "-numOfNode", "1"]
        options = ["-baseHttpPort", str(self.port - 1)]  # the runner adds the number of the node, 1
        with open(self.folder / "log", "ab") as log:
            self.process = subprocess.Popen([*java, *options], stdin=subprocess.PIPE, stdout=log, stderr=log)

    def wait(self) -> str:
        """Return what the node says of itself once it answers."""
        for _ in range(SECONDS):
            if self.process is None or self.process.poll() is not None:
                break
            try:
                with urllib.request.urlopen(self.url, timeout=5) as answer:
                    return answer.read().decode()
            except OSError:
                time.sleep(1)
        raise SystemExit(f"OpenSearch must answer at {self.url} within {SECONDS} s, but does not. Is the port free?")

    def kill(self) -> None:
        """Kill the process without a warning, as a crash or the memory's limit would."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
