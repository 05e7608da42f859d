"""Draw the picture at the top of docs/results.md from the published results.

    python tools/draw_answer.py results --output docs/images/answer.png

What a vote, and fine-tunings together, gain over DAPT. Two panels for a domain that the encoder has not seen: what DAPT
gains, and what other rows gain over DAPT. One for domains that it has seen. A point is a mean difference, its line the
95 % interval.
"""

import argparse
import json
import lzma
from pathlib import Path
from typing import Any

import altair
import pandas as pd
import vl_convert

from hf_domain.comparison.figures import SCALE
from hf_domain.comparison.results import Result
from hf_domain.comparison.statistics import Difference
from hf_domain.comparison.summary import Report, read_report
from hf_domain.methods import BASELINE
from hf_domain.safe_io import read_json, write_whole

GAIN = "DAPT over no adaptation: terms of service, fine-tuned"
UNSEEN = "others over DAPT: terms of service, by a probe"
SEEN = "others over DAPT: scientific tasks, fine-tuned"
PAYS = "over one fine-tuning of DAPT"
# Of each panel: the ends of its axis, in points.
ENDS = {GAIN: [-1, 7], UNSEEN: [-4, 3], SEEN: [-4, 3], PAYS: [-2, 7]}
# The rows of `results/pretrainings/pooled.json`, which covers three pre-trainings.
POOLED = {"tapt_after_dapt": "TAPT after DAPT", "clm_detour": "causal detour", "fine_tune": "no adaptation"}
# What is compared with one fine-tuning of DAPT for three epochs: the plan, the row, and its title.
ALONE = (
    ("longer", "longer", "9 epochs, no adaptation, 5 tasks"),
    ("longer_rows", "dapt_longer", "9 epochs after DAPT, 5 tasks"),
    ("longer", "vote", "DAPT with a vote, 5 tasks"),
    ("longer", "fine_tune_vote", "no adaptation with a vote, 5 tasks"),
)
# The same of three fine-tunings together.
TOGETHER = (
    ("longer", "longer", "3 of 9 epochs, no adaptation, 5 tasks"),
    ("longer", "vote", "3 of DAPT with a vote, 5 tasks"),
    ("verdict", "tapt", "3 of TAPT, 4 tasks"),
    ("longer", "dapt", "3 of DAPT, 5 tasks"),
    ("verdict", "dapt", "3 of DAPT, 4 tasks"),
    ("verdict", "fine_tune", "3 of no adaptation, 4 tasks"),
)
# The plan that fine-tuned each row from its recommended start, the one with the most pre-trainings.
PLANS = (
    ("tapt", "task_text", "TAPT"),
    ("adalm", "adalm_words", "AdaLM, old words in fine-tuning"),
    ("rada", "counterparts", "RADA after DAPT"),
    ("varmae", "varmae_detour", "VarMAE"),
    ("exbert_whole", "exbert_layers", "exBERT"),
    ("gmap", "counterparts", "G-MAP after DAPT"),
    ("clm_detour", "varmae_detour", "causal detour"),
    ("adalm", "task_text", "AdaLM, new words"),
    ("fine_tune", "task_text", "no adaptation"),
)


def read_published(folder: Path) -> Report:
    """Return the report of a folder of published results."""
    with lzma.open(folder / "results.jsonl.xz", "rt", encoding="utf-8") as lines:
        results = {content.pop("name"): Result.from_json(content) for content in map(json.loads, lines)}
    return read_report(read_json(folder / "plan.json"), results)


def list_rows(results: Path) -> list[dict[str, Any]]:
    """Return the differences with their intervals, in the order of the picture."""
    curve = read_published(results / "dapt_curve")
    rows = [
        {"panel": GAIN, "row": f"{at.plan['budget']['tokens'] / 1e6:.0f} million tokens"} | get_ends(at.gains[BASELINE])
        for at in (*curve.smaller, curve)
    ]
    pooled = read_json(results / "pretrainings" / "pooled.json")["over_dapt"]
    for name, title in POOLED.items():
        rows.append({"panel": UNSEEN, "row": title} | {end: pooled[name][end] for end in ("mean", "low", "high")})
    names = {plan for _, plan, _ in PLANS} | {plan for plan, _, _ in (*ALONE, *TOGETHER)}
    reports = {plan: read_published(results / plan) for plan in names}
    for name, plan, title in PLANS:
        found = reports[plan].decisions[name, BASELINE]
        assert found is not None  # every row has two tasks and more
        rows.append({"panel": SEEN, "row": f"{title}, {len(found.tasks)} tasks"} | get_ends(found))
    for plan, name, title in ALONE:
        over = reports[plan].decisions[name, BASELINE]
        assert over is not None
        rows.append({"panel": PAYS, "row": title} | get_ends(over))
    for plan, name, title in TOGETHER:
        gain = reports[plan].together[name].over_baseline
        assert gain is not None
        rows.append({"panel": PAYS, "row": title} | get_ends(gain))
    return rows


def get_ends(difference: Difference) -> dict[str, Any]:
    """Return the mean of a difference and its interval."""
    return {"mean": difference.mean, "low": difference.low, "high": difference.high}


def draw(rows: list[dict[str, Any]]) -> Any:
    """Return the picture as a chart of altair."""
    panels = {panel: draw_panel(panel, [row for row in rows if row["panel"] == panel]) for panel in ENDS}
    picture = altair.hconcat(altair.vconcat(panels[PAYS], panels[SEEN]), altair.vconcat(panels[GAIN], panels[UNSEEN]))
    return picture.configure(font="sans-serif").configure_view(stroke=None).configure_axis(grid=False)


def draw_panel(panel: str, rows: list[dict[str, Any]]) -> Any:
    """Return a panel: a line for each row."""
    scale = altair.Scale(domain=ENDS[panel])
    names = altair.Y("row:N", sort=None, title=None, axis=altair.Axis(labelLimit=300))
    base = altair.Chart(pd.DataFrame(rows)).encode(y=names)
    layers = [
        altair.Chart(pd.DataFrame({"zero": [0]})).mark_rule(color="grey").encode(x="zero:Q"),
        base.mark_rule(strokeWidth=2, color="#2f5fa8").encode(
            x=altair.X("low:Q", title="points", scale=scale), x2="high:Q"
        ),
        base.mark_point(filled=True, size=80, opacity=1, color="#2f5fa8").encode(
            x=altair.X("mean:Q", title="points", scale=scale)
        ),
    ]
    return altair.layer(*layers).properties(width=230, height=20 * len(rows) + 10, title=panel)


def main() -> None:
    """Draw the picture."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path, help="Folder of published results.")
    parser.add_argument("--output", type=Path, required=True, help="PNG file.")
    args = parser.parse_args()
    rows = list_rows(args.results)
    version = "_".join(altair.SCHEMA_VERSION.split(".")[:2])
    with write_whole(args.output) as unfinished:
        unfinished.write_bytes(vl_convert.vegalite_to_png(draw(rows).to_dict(), vl_version=version, scale=SCALE))
    for row in rows:
        print(f"{row['panel']}: {row['row']}: {row['mean']:+.1f} ({row['low']:+.1f} to {row['high']:+.1f})")


if __name__ == "__main__":
    main()
