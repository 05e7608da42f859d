"""Fetch the tests of the installed transformers and peft into build/peers: their wheels come without them."""

import subprocess
import sys
import tarfile
import tempfile
from importlib.metadata import version
from pathlib import Path

TARGET = Path(__file__).parents[1] / "build" / "peers"


def run_pip(*arguments: str) -> bool:
    """Run pip quietly; return whether it succeeded."""
    command = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", *arguments]
    return subprocess.run(command, stderr=subprocess.DEVNULL).returncode == 0


def fetch_tests(name: str) -> None:
    """Extract the folder tests/ of the source distribution of a package, as the package NAME_tests."""
    package = TARGET / f"{name}_tests"
    mark = TARGET / f"{name}-{version(name)}"
    if mark.exists():
        return
    with tempfile.TemporaryDirectory() as folder:
        requirement = f"{name}=={version(name)}"
        options = ("--no-deps", "--no-build-isolation", "--no-binary", ":all:", "--dest", folder)
        if not run_pip("download", *options, requirement):
            sys.exit(f"the tests of {requirement} cannot be fetched: is there a network? Nothing was tested")
        (archive,) = Path(folder).glob("*.tar.gz")
        with tarfile.open(archive) as file:
            root = archive.name.removesuffix(".tar.gz")
            file.extractall(folder, [each for each in file if each.name.startswith(f"{root}/tests/")], filter="data")
        package.mkdir(parents=True, exist_ok=True)
        for source in (Path(folder) / root / "tests").glob("*.py"):
            (package / source.name).write_bytes(source.read_bytes())
    (package / "__init__.py").touch()
    mark.touch()


def main() -> None:
    """Fetch both, and the one package that transformers' tests need beside ours."""
    if not (TARGET / "parameterized").exists() and not run_pip(
        "install", "--no-deps", "--target", str(TARGET), "parameterized"
    ):
        sys.exit("the package parameterized cannot be fetched: is there a network? Nothing was tested")
    for name in ("transformers", "peft"):
        fetch_tests(name)


if __name__ == "__main__":
    main()
