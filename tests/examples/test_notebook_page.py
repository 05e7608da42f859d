"""docs/notebooks.md shows the notebook of tables, whole and as it is; make test-notebooks runs it."""

import json
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_page_shows_the_code_of_the_notebook():
    page = (ROOT / "docs" / "notebooks.md").read_text(encoding="utf-8")
    notebook = json.loads((ROOT / "examples" / "notebooks" / "own_table.ipynb").read_text(encoding="utf-8"))
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    shown = ["".join(cell["source"]) for cell in cells if "install" not in cell["metadata"].get("tags", [])]
    assert len(shown) == 6 and [source for source in shown if f"```python\n{source}\n```" not in page] == []


def test_the_page_lists_all_notebooks():
    page = (ROOT / "docs" / "notebooks.md").read_text(encoding="utf-8")
    assert [
        file.name for file in (ROOT / "examples" / "notebooks").glob("*.ipynb") if f"`{file.name}`" not in page
    ] == []
