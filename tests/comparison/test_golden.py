"""The numbers of a published comparison, as earlier versions of this package reported them."""

import json
import lzma
from pathlib import Path

import pytest

from hf_domain.comparison.results import Result, upgrade_plan
from hf_domain.comparison.summary import read_report

ROOT = Path(__file__).parents[2]


def read_packed(name):
    """Return the report of a published comparison."""
    folder = ROOT / "results" / name
    plan = {"root": "plan", **upgrade_plan(json.loads((folder / "plan.json").read_text(encoding="utf-8")))}
    names, results = {step_id: name for name, step_id in plan["steps"].items()}, {}
    for line in lzma.decompress((folder / "results.jsonl.xz").read_bytes()).splitlines():
        content = json.loads(line)
        step_id = content.pop("name").removesuffix(".json")
        results[names[step_id]] = Result.from_json(content, step_id)
    return read_report(plan, results)


def test_a_packed_comparison_has_the_numbers_that_were_reported():
    """Scores, differences with their intervals and corrected p values, costs and losses."""
    report = read_packed("adalm_words")
    expected = json.loads(Path(__file__).with_name("golden.json").read_text(encoding="utf-8"))
    difference = report.decisions["adalm", "dapt"]
    found = {
        "scores": report.scores,
        "decision": {name: getattr(difference, name) for name in ("mean", "low", "high", "p", "corrected", "freedom")},
        "costs": report.costs,
        "losses": report.losses,
        "floors": report.floors,
    }
    assert found.keys() == expected.keys()
    assert flatten(found) == pytest.approx(flatten(expected), rel=1e-9)


def flatten(value, place=""):
    if not isinstance(value, dict):
        return {place: value}
    return {name: own for key, each in value.items() for name, own in flatten(each, f"{place}/{key}").items()}


def test_a_training_of_an_earlier_version_is_part_of_the_costs():
    """The detour by next tokens was a step of a kind that this version does not write, but counts."""
    costs = read_packed("varmae_detour").costs["clm_detour"]
    assert costs["tokens"] == 819_200 and costs["pre-training s"] == pytest.approx(656.4725033)
