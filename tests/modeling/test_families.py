"""Every family of transformers' masked LMs with every method: each works, or is refused in a sentence.

    python tests/modeling/test_families.py    # writes the table of docs/methods/families.md

`make test-families` compares every family with the table, `make test` a sample.
"""

import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parent.parent / "support"))
from families import BUILDERS, FAMILIES, make_batch, make_family, try_method

PAGE = Path(__file__).parents[2] / "docs" / "methods" / "families.md"
HEAD = f"| family | {' | '.join(BUILDERS)} |\n| --- |{' --- |' * len(BUILDERS)}\n"
SAMPLE = ("albert", "eurobert", "mpnet")


def describe(family: str) -> str:
    """Return the row of a family, after trying every method."""
    cells = []
    try:
        make_family(family)(**make_batch())
    except Exception:
        return f"| {family} | reads more than text |{' |' * (len(BUILDERS) - 1)}\n"
    for method in BUILDERS:
        try:
            try_method(family, method)
            cells.append("✓")
        except (RuntimeError, ValueError) as error:
            assert str(error), method
            cells.append("no")
    return f"| {family} | {' | '.join(cells)} |\n"


@pytest.mark.parametrize(
    "family", [pytest.param(each, marks=[pytest.mark.families] * (each not in SAMPLE)) for each in FAMILIES]
)
def test_a_family_works_with_the_methods_of_its_row(family):
    assert describe(family) in PAGE.read_text(encoding="utf-8")


def main() -> None:
    """Write the table."""
    text = PAGE.read_text(encoding="utf-8").partition(HEAD)[0]
    PAGE.write_text(text + HEAD + "".join(map(describe, FAMILIES)), encoding="utf-8")


if __name__ == "__main__":
    main()
