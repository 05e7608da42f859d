"""Draw the picture at the top of docs/results.md from the published results.

    python tools/draw_answer.py results --output docs/images/answer.png

A panel for a domain that the encoder has not seen, and one for domains that it has. A point is a row's mean difference
to DAPT, its line the 95 % interval.
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
from hf_domain.comparison.summary import Report, read_report
from hf_domain.files import read_json, write_whole
from hf_domain.methods import BASELINE

UNSEEN = "terms of service, by a probe"
SEEN = "scientific tasks, fine-tuned"
# The rows of `results/pretrainings/pooled.json`, which covers three pre-trainings.
POOLED = {
    "tapt_after_dapt": "TAPT after DAPT",
    "clm_detour": "causal detour",
    "fine_tune": "no adaptation",
}
# The plan that fine-tuned each row from its recommended start.
PLANS = {
    "tapt": ("verdict", "TAPT"),
    "varmae": ("varmae_detour", "VarMAE"),
    "gmap": ("counterparts", "G-MAP after DAPT"),
    "rada": ("counterparts", "RADA after DAPT"),
    "adalm": ("verdict", "AdaLM"),
    "clm_detour": ("varmae_detour", "causal detour"),
    "fine_tune": ("verdict", "no adaptation"),
}


def read_published(folder: Path) -> Report:
    """Return the report of a folder of published results."""
    with lzma.open(folder / "results.jsonl.xz", "rt", encoding="utf-8") as lines:
        results = {content.pop("name"): Result.from_json(content) for content in map(json.loads, lines)}
    return read_report(read_json(folder / "plan.json"), results)


def list_rows(results: Path) -> list[dict[str, Any]]:
    """Return the differences to DAPT, with their intervals, in the order of the picture."""
    pooled = read_json(results / "pretrainings" / "pooled.json")["over_dapt"]
    rows = [
        {"panel": UNSEEN, "row": title} | {side: pooled[name][side] for side in ("mean", "low", "high")}
        for name, title in POOLED.items()
    ]
    reports = {plan: read_published(results / plan) for plan in {plan for plan, _ in PLANS.values()}}
    for name, (plan, title) in PLANS.items():
        found = reports[plan].decisions[name, BASELINE]
        assert found is not None  # every row has two tasks and more
        row = f"{title}, {len(found.tasks)} tasks"
        rows.append({"panel": SEEN, "row": row, "mean": found.mean, "low": found.low, "high": found.high})
    return rows


def draw(rows: list[dict[str, Any]]) -> Any:
    """Return the picture as a chart of altair."""
    panels = []
    for panel in (UNSEEN, SEEN):
        own = [row for row in rows if row["panel"] == panel]
        names = altair.Y("row:N", sort=None, title=None, axis=altair.Axis(labelLimit=300))
        across = altair.Scale(domain=[-4, 4])
        base = altair.Chart(pd.DataFrame(own)).encode(y=names)
        layers = [
            altair.Chart(pd.DataFrame({"zero": [0]})).mark_rule(color="grey").encode(x="zero:Q"),
            base.mark_rule(strokeWidth=2, color="#2f5fa8").encode(
                x=altair.X("low:Q", title="points over DAPT", scale=across), x2="high:Q"
            ),
            base.mark_point(filled=True, size=80, opacity=1, color="#2f5fa8").encode(
                x=altair.X("mean:Q", title="points over DAPT", scale=across)
            ),
        ]
        panels.append(altair.layer(*layers).properties(width=230, height=20 * len(own) + 10, title=panel))
    return altair.hconcat(*panels).configure(font="sans-serif").configure_view(stroke=None).configure_axis(grid=False)


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
