"""Positive controls: each method learns what it is for from the defaults of its command; its encoder alone does not.

`benchmarks/properties.py` makes the tasks and runs the commands.
"""

from argparse import Namespace

import pytest
from properties import DATA, PROPERTIES

pytestmark = pytest.mark.controls


@pytest.fixture
def measure(tmp_path):
    """Run the rows of a property that are named, or all, and return their measures."""
    args = Namespace(encoder=DATA / "encoder", corpus=DATA / "corpus.txt.gz", steps=150, examples=2500)

    def measure(name, *rows, seed=1):
        folder = tmp_path / f"{name}-{seed}"
        folder.mkdir()
        runs = PROPERTIES[name](args, folder, seed)
        measured = {row: run() for row, run in runs if not rows or row in rows}
        print(name, seed, measured)
        return measured

    return measure


def test_new_words_learn_what_they_mean(measure):
    accuracy = {row: measures["accuracy"] for row, measures in measure("new_words").items()}
    assert accuracy["AdaLM"] >= accuracy["DAPT"] + 0.1
    assert accuracy["exBERT"] >= accuracy["DAPT"] + 0.1
    assert accuracy["exBERT"] >= accuracy["DAPT at exBERT's rate"] + 0.1  # it is not the rate that wins
    assert accuracy["exBERT"] >= accuracy["exBERT from the paper's start"]
    assert accuracy["no adaptation"] <= 0.5  # pieces say little


def test_exbert_learns_new_words_first(measure):
    rows = measure("early", "LoRA with new words", "AdaLM", "exBERT")
    accuracy = {row: measures["accuracy"] for row, measures in rows.items()}
    assert accuracy["exBERT"] >= max(accuracy["LoRA with new words"], accuracy["AdaLM"]) + 0.1


def test_a_memory_is_read(measure):
    """On the mean of three seeds: a single run may be a point above the bar."""
    runs = [measure("forgotten", "domain encoder", "G-MAP", seed=seed) for seed in (1, 2, 3)]
    assert sum(each["G-MAP"]["accuracy"] for each in runs) / len(runs) >= 0.8
    assert all(each["domain encoder"]["accuracy"] <= 0.5 for each in runs)


@pytest.mark.parametrize(("name", "bar"), [("found", 0.8), ("alike", 0.6)])
def test_a_passage_is_chosen(name, bar, measure):
    rows = measure(name, "no passages", "RADA")
    assert rows["RADA"]["accuracy"] >= bar
    assert rows["RADA"]["edited"] >= bar  # the answers follow the datastore
    assert rows["no passages"]["accuracy"] <= 0.35
