"""How much does the advice lose against the best row?

    python benchmarks/advice.py results/comparison results/terms_curve results/plan
    python benchmarks/advice.py results/comparison results/terms_curve results/plan --without tapt  # without this rule
    python benchmarks/advice.py --examples docs/advice_examples.md  # write what the advice says on the facts

It takes the folders of comparisons and the facts that `hf-domain advise` measured on each domain. One domain at a time
is left out, and three rules choose a row for it: always DAPT, the row that leads on the other domains, and the advice,
which takes the leading row among those that its rules recommend there. The regret of a choice is the gain of the
domain's best row over DAPT, minus that of the chosen row, in points. Gains are means over the tasks that a row shares
with DAPT. The control, which trains on general text, is no choice.

Intervals resample test examples and seeds, for the same domains and rows; each resample has its own best row. The best
of many rows is also the luckiest: `by chance` is the mean gain of the best rows of the resamples over that of the best
row. Intervals leave it out.
"""

import argparse
import json
import lzma
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from hf_domain.advice import make_advice
from hf_domain.advice.facts import CorpusFacts, Facts, TaskFacts, Words
from hf_domain.advice.rules import apply_rules
from hf_domain.comparison.objects import Files
from hf_domain.comparison.scores import ExampleCounts, ExampleScores, Predictions
from hf_domain.comparison.statistics import CONFIDENCE, draw_scores
from hf_domain.methods import BASELINE
from hf_domain.safe_io import read_json

FACTS = Path(__file__).with_name("advice_facts.json")
CONTROL = "control"
TITLES = {"cs": "Computer science", "biomed": "Biomedicine", "terms": "Terms of service", "zh": "Chinese statutes"}
EXAMPLES = """# What the advice says

`hf-domain advise --hours 8` on four corpora, with Wikipedia and novels as `--general`. The encoder is English and
small (six layers). The speed is that of one CPU core, in seconds of processor time. The facts are in
`benchmarks/advice_facts.json`; `python benchmarks/advice.py --examples docs/advice_examples.md` writes this page.
[What to try first](advice.md) explains the rules, and how little they are proven.

The Chinese task is ours: does a passage come from a law, a regulation, a judicial interpretation, or rules? The
endings of the titles are the labels, the titles are left out, and each title gives one passage.
"""
ADVICE, LEADER, DAPT = "the advice", "the row that leads elsewhere", "always DAPT"


class Setting(NamedTuple):
    """A domain, and how its encoders were scored: those of a probe are not compared with fine-tuned ones."""

    domain: str
    is_probed: bool

    def __str__(self) -> str:
        return f"{self.domain}, {'by a probe' if self.is_probed else 'fine-tuned'}"


class Scored(NamedTuple):
    """A run of a row on a task."""

    setting: Setting
    task: str
    row: str
    run: str
    scores: ExampleScores


def read_runs(folder: Path) -> Iterator[Scored]:
    """Yield the runs of a comparison with the most tokens and all labels."""
    plan = read_json(folder / "plan.json")
    contents = read_contents(folder)
    steps = {name: content.get("step", content) for name, content in contents.items()}
    largest = max((step.get("rung") or 0 for step in steps.values()), default=0)
    for name, content in contents.items():
        step = steps[name]
        is_partial = step.get("fold") is not None or step.get("labels") not in (None, 1)
        if step["kind"] != "fine_tuning" or content["status"] != "done" or is_partial:
            continue
        if (step.get("rung") or largest) == largest and (scores := read_scores(content)) is not None:
            setting = Setting(plan["tasks"][step["task"]]["corpus"], step.get("command") == "probe")
            yield Scored(setting, step["task"], step["method"], f"{folder.name}/{name}", scores)


def read_contents(folder: Path) -> dict[str, dict[str, Any]]:
    """Return the results of a comparison by name; those of the first version are the lines of one file."""
    if (file := folder / "results.jsonl.xz").is_file():
        with lzma.open(file, "rt", encoding="utf-8") as lines:
            return {content["name"]: content for content in map(json.loads, lines)}
    return {file.name: read_json(file) for file in sorted((folder / "results").glob("*.json"))}


def read_scores(content: Mapping[str, Any]) -> ExampleScores | None:
    """Return the scores of a run by example, also from a result of the first version; None if it kept none."""
    if "predictions" in content:
        return Predictions.from_json(content["predictions"]).score()
    if (examples := content.get("examples")) is None:
        return None
    if "classes" in examples:  # one label for each example; labels beyond the classes have no F1 of their own
        known = np.eye(examples["classes"])
        predicted, gold = (
            np.array([known[int(number)] if int(number) < len(known) else 0 * known[0] for number in values.split()])
            for values in (examples["predicted"], examples["gold"])
        )
        return ExampleCounts(predicted * gold, predicted, gold, examples["average"])
    counts = (
        np.array([[float(number) for number in row.split()] for row in examples[name].split(";")])
        for name in ("right", "predicted", "gold")
    )
    return ExampleCounts(*counts, examples["average"])


def measure_gains(folders: list[Path], seed: int = 0) -> dict[Setting, dict[str, np.ndarray]]:
    """Return the gain of each row over DAPT in each setting: as measured, then resampled."""
    runs: dict[tuple[Setting, str], dict[str, dict[str, ExampleScores]]] = defaultdict(lambda: defaultdict(dict))
    for scored in (scored for folder in folders for scored in read_runs(folder)):
        runs[scored.setting, scored.task][scored.row][scored.run] = scored.scores
    generator, gains = np.random.default_rng(seed), defaultdict[Setting, dict[str, list[np.ndarray]]](dict)
    for (setting, _), rows in runs.items():
        if BASELINE not in rows:
            continue
        means = {row: draw_seeds(np.array([*draws.values()]), generator) for row, draws in draw_scores(rows).items()}
        for row, values in means.items():
            gains[setting].setdefault(row, []).append(values - means[BASELINE])
    return {setting: {row: np.mean(each, axis=0) for row, each in rows.items()} for setting, rows in gains.items()}


def draw_seeds(draws: np.ndarray, generator: np.random.Generator) -> np.ndarray:
    """Return the mean over runs `[runs, 1 + resamples]`; each resample also draws the runs."""
    chosen = generator.integers(len(draws), size=draws[:, 1:].shape)
    return np.concatenate([draws[:, :1].mean(0), np.take_along_axis(draws[:, 1:], chosen, 0).mean(0)])


def load_facts(file: Path) -> dict[str, Facts]:
    """Return the facts of each domain."""
    return {domain: make_facts(content) for domain, content in read_json(file).items()}


def make_facts(content: Mapping[str, Any]) -> Facts:
    """Undo `dataclasses.asdict`."""
    tasks = tuple(
        TaskFacts(**task | {name: task[name] and Words(**task[name]) for name in ("words", "entity_words")})
        for task in content["tasks"]
    )
    words = {name: content["corpus"][name] for name in ("words", "general_words")}
    corpus = CorpusFacts(**content["corpus"] | {name: each and Words(**each) for name, each in words.items()})
    return Facts(**{**content, "corpus": corpus, "tasks": tasks})


def choose_rows(
    setting: Setting,
    gains: Mapping[Setting, Mapping[str, np.ndarray]],
    facts: Mapping[str, Facts],
    without: Sequence[str] = (),
) -> dict[str, str]:
    """Return the row that each rule chooses for a setting, without the results of its domain.

    Args:
        without: Rows that the rules of the advice do not recommend.

    Raises:
        ValueError: There is no other domain, or there are no facts of this one.
    """
    others = [rows for other, rows in gains.items() if other.domain != setting.domain]
    if setting.domain not in facts:
        raise ValueError(f"there must be facts of {setting.domain}, but are none. Add those of hf-domain advise.")
    if not others:
        raise ValueError(f"there must be another domain than {setting.domain} to learn from. Name more folders.")
    known = {row for other in others for row in other} & gains[setting].keys() - {CONTROL}
    advised = {reason.row for reason in apply_rules(facts[setting.domain])} - {*without}

    def lead(rows: set[str]) -> str:
        return max(sorted(rows), key=lambda row: np.mean([other[row][0] for other in others if row in other]))

    return {DAPT: BASELINE, LEADER: lead(known), ADVICE: lead(known & advised)}


def write_examples(facts: Mapping[str, Facts]) -> str:
    """Return a page with the advice on each domain, for eight hours."""
    parts = [EXAMPLES]
    for domain, each in facts.items():
        parts.append(f"## {TITLES[domain]}\n\n{make_advice(each, {}, 8.0, 128, Files())}\n")
    return "\n".join(parts)


def format_interval(values: np.ndarray) -> str:
    """Write a value with the interval of its resamples."""
    low, high = np.quantile(values[1:], [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
    return f"{values[0]:.1f} [{low:.1f} to {high:.1f}]"


def format_regret(regret: np.ndarray) -> str:
    """Write a regret, which is never below 0."""
    return format_interval(np.maximum(0, regret))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", type=Path, nargs="*", help="of comparisons on two domains or more")
    parser.add_argument("--facts", type=Path, default=FACTS, help="JSON file: the facts of `advise` by domain")
    parser.add_argument("--without", nargs="*", default=[], help="rows that the advice shall not recommend")
    parser.add_argument("--output", help="file for the figures, as JSON")
    parser.add_argument("--examples", type=Path, help="instead: write a page with the advice on the facts")
    args = parser.parse_args()
    facts = load_facts(args.facts)
    if args.examples:
        args.examples.write_text(write_examples(facts), encoding="utf-8")
        return
    gains = measure_gains(args.folders)
    regrets: dict[str, list[np.ndarray]] = defaultdict(list)
    figures: dict[str, Any] = {}
    print(f"| domain | best row | by chance | {DAPT} | {LEADER} | {ADVICE} |\n| --- | --- | --- | --- | --- | --- |")
    for setting, rows in gains.items():
        choices = choose_rows(setting, gains, facts, args.without)
        rows = {row: values for row, values in rows.items() if row != CONTROL}
        best = max(sorted(rows), key=lambda row: rows[row][0])
        highest = np.max([*rows.values()], axis=0)
        luck = float(highest[1:].mean() - highest[0])
        highest[1:] -= luck
        cells = []
        for rule, row in choices.items():
            regrets[rule].append(highest - rows[row])
            cells.append(f"{row}: {format_regret(regrets[rule][-1])}")
        print(f"| {setting} | {best} {rows[best][0]:+.1f} of {len(rows)} rows | {luck:.1f} | {' | '.join(cells)} |")
        figures[str(setting)] = {"best": best, "luck": luck, "rows": len(rows), "choices": choices}
    means = {rule: np.mean(values, axis=0) for rule, values in regrets.items()}
    print(f"| mean | | | {' | '.join(map(format_regret, means.values()))} |")
    for rule in (DAPT, LEADER):
        print(f"The regret of {rule} minus that of the advice: {format_interval(means[rule] - means[ADVICE])}")
    if args.output:
        figures["regret"] = {rule: float(values[0]) for rule, values in means.items()}
        Path(args.output).write_text(json.dumps(figures, indent=2), encoding="utf-8")


if __name__ == "__main__":
    main()
