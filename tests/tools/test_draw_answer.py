"""The picture of docs/results.md, and whether the page still says what the published results say."""

import sys
from pathlib import Path

import draw_answer
import pytest

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.commands  # the intervals of four reports take some seconds


@pytest.fixture(scope="module")
def rows():
    return draw_answer.list_rows(ROOT / "results")


def test_the_page_has_the_differences_of_the_picture(rows):
    """Computed again from the raw scores, they are those of the tables."""
    page = (ROOT / "docs" / "results.md").read_text(encoding="utf-8").replace("**", "")
    listed = (draw_answer.POOLED, draw_answer.PLANS, draw_answer.ALONE, draw_answer.TOGETHER)
    assert len(rows) == 3 + sum(map(len, listed))  # and three budgets of DAPT
    for row in rows:
        mean, low, high = (
            f"{row[name]:+.1f}".replace("+0.0", "0.0").replace("-0.0", "0.0") for name in ("mean", "low", "high")
        )
        assert f"{mean} ({low} to {high})" in page, row


def test_the_picture(rows, monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(draw_answer, "list_rows", lambda results: rows)
    monkeypatch.setattr(sys, "argv", ["draw_answer.py", "results", "--output", str(tmp_path / "answer.png")])
    draw_answer.main()
    assert (tmp_path / "answer.png").read_bytes().startswith(b"\x89PNG")
    assert len(capsys.readouterr().out.splitlines()) == len(rows)
