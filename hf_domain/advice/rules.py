"""The rules of the advice: a table of reasons for the rows of a plan, with their sources.

A rule reads the facts and returns a sentence with its numbers, or None if it does not apply. A new rule is a function
and a row of `RULES`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from hf_domain.advice.facts import SEEDS, Facts, TaskFacts
from hf_domain.comparison.costs import STEP_COSTS

# Thresholds; our choices, unless a rule names a source.
# A corpus is far from what the encoder knows if its masked-LM loss is this much above that of general text, in nats.
FAR = 0.3
# Expand the vocabulary if at least this share of the words is broken.
MANY_BROKEN = 0.05
# A corpus is small up to this many tokens. VarMAE is for small corpora; more than ten passes over one teach little.
SMALL, PASSES = 50_000_000, 10
# Train on the texts of the tasks if there are at least this many.
ENOUGH_TEXTS = 500
# Read passages if a vote of retrieved texts scores this many points above the majority baseline.
HELPFUL_VOTE = 10.0
# A plan should detect differences of this many points.
SHARP = 1.0
# Maximum number of training examples of a task, so that it takes hours
MAX_TRAIN_SAMPLES = 2000


@dataclass(frozen=True)
class Reason:
    """A sentence of the advice."""

    text: str
    source: str
    row: str = ""
    """Row of the plan that the sentence recommends."""
    options: dict[str, Any] = field(default_factory=dict)
    """Options of the row."""


@dataclass(frozen=True)
class Rule:
    """A condition, and the row that it recommends or the warning that it gives."""

    check: Callable[[Facts], str | None]
    source: str
    row: str = ""
    options: Callable[[Facts], dict[str, Any]] = field(default=lambda facts: {})


def _always_fine_tune(facts: Facts) -> str:
    return "Fine-tune the encoder without adaptation: this row shows whether adaptation pays at all."


def _always_dapt(facts: Facts) -> str:
    return f"Continue masked language modeling on the corpus (DAPT), the row to beat. {judge_distance(facts)}"


def judge_distance(facts: Facts) -> str:
    """Return what the distance of the corpus from general text lets us expect."""
    distance = facts.corpus.distance
    if distance is None:
        return "Add --general to measure how far the corpus is from general text: gains grow with the distance."
    if distance >= FAR:
        return f"The encoder predicts the corpus {distance:.2f} nats worse than general text: expect a gain."
    return (
        f"The encoder predicts the corpus about as well as general text ({distance:+.2f} nats), which tells little "
        "about the gain."
    )


def _compare_general_text(facts: Facts) -> str | None:
    if facts.corpus.general_loss is None:
        return None
    return "Train as many steps on general text: what this row gains, any further training gains."


def _continue_on_task_texts(facts: Facts) -> str | None:
    texts = sum(task.train for task in facts.tasks)
    if texts < ENOUGH_TEXTS:
        return None
    return f"After the corpus, train on the {texts:,} task texts (TAPT): the paper's best row was DAPT, then TAPT."


def _train_on_task_texts(facts: Facts) -> str | None:
    texts = sum(task.train for task in facts.tasks)
    if texts < ENOUGH_TEXTS:
        return None
    return (
        f"Or train on the {texts:,} task texts alone (TAPT): the best row in both domains where we compared it, though "
        "not surely better than DAPT."
    )


def _save_a_small_corpus(facts: Facts) -> str | None:
    if facts.corpus.tokens > SMALL:
        return None
    return (
        f"Try VarMAE: the corpus is small (about {facts.corpus.tokens:,} tokens), and a step takes "
        f"{STEP_COSTS['varmae']:.0%} of the time of DAPT's."
    )


def find_most_broken(facts: Facts) -> tuple[float, str]:
    """Return the largest share of broken words, and where it was found."""
    shares = [(facts.corpus.words.broken, "of the corpus")]
    for task in facts.tasks:
        shares.append((task.words.broken, f"of {task.name}"))
        if task.entity_words is not None:
            shares.append((task.entity_words.broken, f"inside the entities of {task.name}"))
    return max(shares)


def _add_words(facts: Facts) -> str | None:
    share, place = find_most_broken(facts)
    if facts.corpus.analyzer == "cjk" or share < MANY_BROKEN:
        return None
    return f"Add domain words to the vocabulary (AdaLM): {share:.0%} of the words {place} have three pieces or more."


def _add_a_side_module(facts: Facts) -> str | None:
    if _add_words(facts) is None or facts.corpus.tokens <= SMALL:
        return None
    return "Try exBERT: many words are broken, and there is enough text to train its side modules."


def _average_with_the_base(facts: Facts) -> str:
    return "Average DAPT's weights with the encoder's: this takes no training and forgets less."


def _keep_general_knowledge(facts: Facts) -> str | None:
    if facts.corpus.distance is None or facts.corpus.distance < FAR:
        return None
    return (
        "Let the adapted encoder read the general one as memory (G-MAP): DAPT forgets much on a corpus this far from "
        "general text."
    )


def list_helped(facts: Facts) -> list[TaskFacts]:
    """Return the tasks whose nearest training texts tell much about the label."""
    return [task for task in facts.tasks if task.nearest is not None and task.nearest - task.majority >= HELPFUL_VOTE]


def _read_passages(facts: Facts) -> str | None:
    if not (helped := list_helped(facts)):
        return None
    gains = ", ".join(f"{task.name}: {task.nearest:.0f} over {task.majority:.0f}" for task in helped)
    return (
        f"Let the encoder read retrieved passages (RADA): the labels of the nearest texts are good guesses ({gains})."
    )


def _warn_of_leaks(facts: Facts) -> str | None:
    leaks = [f"{task.leaked} of {task.test} in {task.name}" for task in facts.tasks if task.leaked]
    return f"Remove test items that are also in the training data: {', '.join(leaks)}." if leaks else None


def _warn_of_rare_labels(facts: Facts) -> str | None:
    skewed = [f"{t.largest_label:.0%} in {t.name}" for t in facts.tasks if (t.largest_label or 0) > 0.8]
    return (
        f"Most examples have the same label: {', '.join(skewed)}. Weight the classes, and trust macro F1."
        if skewed
        else None
    )


def _warn_of_noise(facts: Facts) -> str | None:
    if facts.visible <= SHARP:
        return None
    return (
        f"With {SEEDS} seeds these test sets detect differences of {facts.visible:.1f} points or more, but adaptation "
        "often gains less. Add tasks, or cross-validate small ones (`folds: 5`)."
    )


RULES = (
    Rule(_always_fine_tune, "docs/comparison.md", "fine_tune"),
    Rule(_always_dapt, "Gururangan et al. 2020; Zheng et al. 2021, arXiv 2104.08671", "dapt"),
    Rule(_compare_general_text, "docs/comparison.md", "control"),
    Rule(_continue_on_task_texts, "Gururangan et al. 2020, table 5", "tapt_after_dapt"),
    Rule(_train_on_task_texts, "Gururangan et al. 2020, table 5; docs/advice.md", "tapt"),
    Rule(_save_a_small_corpus, "Hu et al. 2022 (VarMAE); docs/papers.md", "varmae"),
    Rule(_add_words, "Yao et al. 2021 (AdaLM); docs/vocabulary.md", "adalm"),
    Rule(_add_a_side_module, "Tai et al. 2020 (exBERT); docs/methods.md", "exbert"),
    Rule(_average_with_the_base, "Wortsman et al. 2022", "average"),
    Rule(_keep_general_knowledge, "Wan et al. 2022 (G-MAP)", "gmap"),
    Rule(
        _read_passages,
        "Xu et al. 2023 (RADA)",
        "rada",
        lambda facts: {"tasks": [task.name for task in list_helped(facts)]},
    ),
    Rule(_warn_of_leaks, "the files"),
    Rule(_warn_of_rare_labels, "the files"),
    Rule(_warn_of_noise, "benchmarks/p_values.py"),
)


def apply_rules(facts: Facts) -> list[Reason]:
    """Return the sentences of the rules that apply."""
    found = [(rule, rule.check(facts)) for rule in RULES]
    return [Reason(text, rule.source, rule.row, rule.options(facts)) for rule, text in found if text is not None]


def choose_budget(facts: Facts, rows: Sequence[str], hours: float) -> int:
    """Return the pre-training tokens of each row: as many as fit into the time, at most `PASSES` passes."""
    costs = sum(STEP_COSTS.get(row, 1.0) for row in rows)
    fitting = hours * 3600 / facts.seconds_per_token / costs
    tokens = min(fitting, PASSES * facts.corpus.tokens)
    digits = 10 ** max(0, len(str(int(tokens))) - 2)
    return max(10_000, int(tokens) // digits * digits)


def foretell_hours(facts: Facts, plan: dict[str, Any]) -> float:
    """Return the expected hours of pre-training and fine-tuning of a plan, from the measured speed."""
    rows, length = plan["methods"], plan["pretraining"]["max_seq_length"]
    pretraining = plan["budget"]["tokens"] * sum(STEP_COSTS.get(row, 1.0) for row in rows)
    # Three epochs are the default of the scripts.
    limit = plan["fine_tuning"]["max_train_samples"]
    of_one = sum(3 * min(task.train, limit) * min(task.tokens, length) for task in facts.tasks)
    return (pretraining + of_one * len(rows) * len(plan["seeds"])) * facts.seconds_per_token / 3600
