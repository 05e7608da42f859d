"""The notebooks run from the first cell to the last, on little data."""

import os
import re
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "examples" / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))
LITTLE = {"num_tokens": 8192, "max_steps": 2}
missing = [name for name in ("nbclient", "ipykernel") if find_spec(name) is None]
pytestmark = [
    pytest.mark.notebooks,
    pytest.mark.skipif(bool(missing), reason=f"notebooks need {', '.join(missing)}, which this environment lacks"),
]


def test_there_is_a_notebook_for_each_method_and_one_for_tables():
    assert [file.stem for file in NOTEBOOKS] == ["adalm", "exbert", "gmap", "own_table", "rada", "varmae"]


@pytest.mark.parametrize("file", NOTEBOOKS, ids=lambda file: file.stem)
def test_notebook(file, tmp_path, monkeypatch):
    import nbformat
    from nbclient import NotebookClient

    notebook = nbformat.read(file, as_version=4)
    assert not any(cell.get("outputs") for cell in notebook.cells)
    (install,) = (cell for cell in notebook.cells if "install" in cell.metadata.get("tags", []))
    # From a wheel of ours: what a package index has under this name is not this project.
    assert re.search(r'^%pip install -q "\./\{wheel\}(\[\w+\])?"$', install.source, re.MULTILINE)
    notebook.cells.remove(install)
    (settings,) = (cell for cell in notebook.cells if "parameters" in cell.metadata.get("tags", []))
    names = re.findall(r"^(\w+) = ", settings.source, re.MULTILINE)
    settings.source = "\n".join(f"{name} = {LITTLE[name]}" for name in names)
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    NotebookClient(notebook, timeout=600, resources={"metadata": {"path": str(tmp_path)}}).execute()
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    assert not [output for output in outputs if "error:" in output.get("text", "")]
    assert outputs
