"""The rules of the advice: a table of reasons for the rows of a plan, with their sources.

A rule reads the facts and returns a sentence with its numbers, or None if it does not apply. A new rule is a function
and a row of `RULES`.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from hf_domain.advice.facts import SEEDS, Facts, TaskFacts, write_number
from hf_domain.comparison.rows import RECIPES
from hf_domain.methods import METHODS
from hf_domain.tasks.files import SENTENCES

# Thresholds; our choices, unless a rule names a source.
# A corpus is far from what the encoder knows if its masked-LM loss is this much above that of general text, in nats.
FAR = 0.3
# Expand the vocabulary if at least this share of the words is broken.
MANY_BROKEN = 0.05
# A corpus is small up to this many tokens. VarMAE is for small corpora; more than ten passes over one teach little.
SMALL, PASSES = 50_000_000, 10
# A corpus is too small below this: the budget of results/README.md would be more than ten passes over it.
LITTLE = 80_000
# Train on the texts of the tasks if there are at least this many.
ENOUGH_TEXTS = 500
# Read passages if a vote of retrieved texts scores this many points above the majority baseline.
HELPFUL_VOTE = 10.0
# A plan should detect differences of this many points.
SHARP = 1.0
# Maximum numbers of training examples of a task, the first if the time allows. Fewer than the last teach little.
MAX_TRAIN_SAMPLES = (2000, 1000, 500, 250)
# Share of the time that fine-tuning may take, unless the fewest examples take more.
FINE_TUNING_SHARE = 0.5
# Defaults of the scripts: epochs, and the maximum length of a text in tokens.
EPOCHS, MAX_TOKENS = 3, 128
# Three epochs of fewer training examples are less than a thousand steps of 8.
MANY_EXAMPLES = 2_600
# From this share of unknown pieces on, the encoder cannot read the text.
UNREADABLE = 0.01
# What to do with time for one pre-training only: no rule chose better on our results.
PLAIN_RULE = ("tapt", "tapt_after_dapt", "dapt")


Rows = Mapping[str, Mapping[str, Any] | None]
"""Rows of a plan with their options."""


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


def list_small(facts: Facts) -> list[TaskFacts]:
    """Return the tasks that three epochs teach little."""
    return [task for task in facts.tasks if task.train < MANY_EXAMPLES and task.kind not in SENTENCES]


def _fine_tune_for_longer(facts: Facts) -> str | None:
    if not (small := list_small(facts)):
        return None
    names = ", ".join(task.name for task in small)
    return (
        f"Fine-tune for nine epochs on {names}, without a pre-training: on five classifications of a thousand texts "
        "this scored 2.7 points above DAPT with three epochs, on one of them 1.2 below."
    )


def _always_dapt(facts: Facts) -> str:
    return (
        "Continue masked language modeling on the corpus (DAPT), the row to beat. In our one long run, on terms of "
        f"service, it gained 4.8 points with 41 million tokens. {judge_distance(facts)}"
    )


def judge_distance(facts: Facts) -> str:
    """Return what the distance of the corpus and of the task texts from general text lets us expect."""
    corpus = facts.corpus
    if find_unreadable(facts):
        return "With so many unknown pieces the losses do not say how far the corpus is."
    if corpus.general_loss is None or corpus.general_words is None:
        return (
            f"The encoder's vocabulary lacks {corpus.words.new:.0%} of its words. Add --general to measure how far the "
            "corpus is from general text: gains grow with the distance."
        )
    tasks = {task.name: task.loss - corpus.general_loss for task in facts.tasks}
    distances = ", ".join(
        f"{name} {value:+.2f}" for name, value in {"the corpus": facts.corpus.distance, **tasks}.items()
    )
    found = (
        f"Loss minus that of general text, in nats: {distances}; the vocabulary lacks {corpus.words.new:.0%} of the "
        f"words, {corpus.general_words.new:.0%} of general text."
    )
    far = [name for name, value in tasks.items() if value >= FAR]
    if far:
        return f"{found} Expect a gain on {', '.join(far)}, whose texts are far from what the encoder knows."
    return f"{found} The encoder predicts the task texts about as well as general text, which tells little of the gain."


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
    found = f"Or train on the {texts:,} task texts alone (TAPT): in four pre-trainings it scored like DAPT"
    return found + (", on tasks with entities 0.6 points above it." if find_entity_tasks(facts) else ".")


def _save_a_small_corpus(facts: Facts) -> str | None:
    if facts.corpus.tokens > SMALL:
        return None
    return (
        f"Try VarMAE: the corpus is small (about {write_number(facts.corpus.tokens)} tokens), and a step takes "
        f"{METHODS['varmae'].step_cost:.0%} of the time of DAPT's."
    )


def find_entity_tasks(facts: Facts) -> list[TaskFacts]:
    """Return the tasks that find entities."""
    return [task for task in facts.tasks if task.kind == "ner"]


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
    if facts.corpus.analyzer == "cjk" or share < MANY_BROKEN or find_unreadable(facts):
        return None
    found = f"Add domain words to the vocabulary (AdaLM): {share:.0%} of the words {place} have three pieces or more."
    if find_entity_tasks(facts):
        found += " Tasks with entities are fine-tuned with the old tokenizer: "
        found += "with the new words they lost 1.2 points to DAPT after 0.8 million tokens."
    return found


def _add_a_side_module(facts: Facts) -> str | None:
    if _add_words(facts) is None or facts.corpus.tokens <= SMALL:
        return None
    return "Try exBERT: many words are broken, and there is enough text to train its side modules."


def _average_with_the_base(facts: Facts) -> str:
    return "Average DAPT's weights with the encoder's: this takes no training and forgets less."


def list_with_heads(facts: Facts) -> list[str]:
    """List the tasks that an encoder with a memory can be fine-tuned for: sentence-transformers trains none."""
    return [task.name for task in facts.tasks if task.kind not in SENTENCES]


def _keep_general_knowledge(facts: Facts) -> str | None:
    if facts.corpus.distance is None or facts.corpus.distance < FAR or find_unreadable(facts):
        return None
    if not list_with_heads(facts):
        return None
    return (
        f"Let the adapted encoder read the general one as memory (G-MAP): DAPT forgets much on a corpus this far from "
        f"general text ({facts.corpus.distance:+.2f} nats)."
    )


def find_unreadable(facts: Facts) -> dict[str, float]:
    """Return the texts that the vocabulary cannot write, with their shares of unknown pieces."""
    shares = {"the corpus": facts.corpus.words.unknown, **{task.name: task.words.unknown for task in facts.tasks}}
    return {name: share for name, share in shares.items() if share >= UNREADABLE}


def _warn_of_unknown_pieces(facts: Facts) -> str | None:
    if not (found := find_unreadable(facts)):
        return None
    shares = ", ".join(f"{share:.0%} in {name}" for name, share in found.items())
    return (
        f"Use another encoder, whose vocabulary has the characters of this language ({facts.corpus.language}): to this "
        f"one, many pieces are unknown ({shares}). No row of the plan repairs this."
    )


def _warn_of_little_text(facts: Facts) -> str | None:
    if facts.corpus.tokens >= LITTLE:
        return None
    return (
        f"Collect more text: about {write_number(facts.corpus.tokens)} tokens are few for any row. The published "
        "comparison trains each row on 819,200."
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


def list_voting(facts: Facts) -> list[TaskFacts]:
    """Return the tasks of `list_helped` whose classifiers can be mixed with a vote."""
    kinds = RECIPES["vote"].kinds or ()
    return [task for task in list_helped(facts) if task.kind in kinds]


def _mix_in_a_vote(facts: Facts) -> str | None:
    if not (voting := list_voting(facts)):
        return None
    names = ", ".join(task.name for task in voting)
    return f"Let the nearest training texts vote with the classifier on {names}: nothing is trained for it."


def _warn_of_leaks(facts: Facts) -> str | None:
    leaks = [f"{task.leaked} of {task.test} in {task.name}" for task in facts.tasks if task.leaked]
    return f"Remove test items that are also in the training data: {', '.join(leaks)}." if leaks else None


def _warn_of_rare_labels(facts: Facts) -> str | None:
    tasks = [task for task in facts.tasks if task.kind == "classification"]
    skewed = [f"{task.largest_label:.0%} in {task.name}" for task in tasks if (task.largest_label or 0) > 0.8]
    return (
        f"Most examples have the same label: {', '.join(skewed)}. Weight the classes, and trust macro F1."
        if skewed
        else None
    )


def _warn_of_noise(facts: Facts) -> str | None:
    if facts.visible <= SHARP:
        return None
    return (
        f"Adaptation often gains less than the {facts.visible:.1f} points that these test sets detect with {SEEDS} "
        "seeds. Add tasks, or cross-validate small ones (`folds: 5`)."
    )


RULES = (
    Rule(_warn_of_unknown_pieces, "the tokenizer"),
    Rule(_warn_of_little_text, "results/README.md"),
    Rule(_always_fine_tune, "docs/guides/compare.md", "fine_tune"),
    Rule(
        _fine_tune_for_longer,
        "Mosbach et al. 2021, arXiv 2006.04884; results/README.md",
        "longer",
        lambda facts: {"tasks": [task.name for task in list_small(facts)]},
    ),
    Rule(_always_dapt, "Gururangan et al. 2020; Zheng et al. 2021, arXiv 2104.08671; results/README.md", "dapt"),
    Rule(_compare_general_text, "docs/guides/compare.md", "control"),
    Rule(_continue_on_task_texts, "Gururangan et al. 2020, table 5", "tapt_after_dapt"),
    Rule(_train_on_task_texts, "Gururangan et al. 2020, table 5; results/README.md", "tapt"),
    Rule(_save_a_small_corpus, "Hu et al. 2022 (VarMAE); docs/methods/varmae.md", "varmae"),
    Rule(_add_words, "Yao et al. 2021 (AdaLM); docs/guides/vocabulary.md", "adalm"),
    Rule(_add_a_side_module, "Tai et al. 2020 (exBERT); docs/methods/exbert.md", "exbert"),
    Rule(_average_with_the_base, "Wortsman et al. 2022", "average"),
    Rule(
        _keep_general_knowledge,
        "Wan et al. 2022 (G-MAP)",
        "gmap",
        lambda facts: {} if len(own := list_with_heads(facts)) == len(facts.tasks) else {"tasks": own},
    ),
    Rule(
        _read_passages,
        "Xu et al. 2023 (RADA)",
        "rada",
        lambda facts: {"tasks": [task.name for task in list_helped(facts)]},
    ),
    Rule(
        _mix_in_a_vote,
        "Khandelwal et al. 2020; results/README.md",
        "vote",
        lambda facts: {"tasks": [task.name for task in list_voting(facts)]},
    ),
    Rule(_warn_of_leaks, "the files"),
    Rule(_warn_of_rare_labels, "the files"),
    Rule(_warn_of_noise, "benchmarks/p_values.py"),
)


def apply_rules(facts: Facts) -> list[Reason]:
    """Return the sentences of the rules that apply."""
    found = [(rule, rule.check(facts)) for rule in RULES]
    return [Reason(text, rule.source, rule.row, rule.options(facts)) for rule, text in found if text is not None]


def choose_samples(facts: Facts, rows: Rows, hours: float) -> int:
    """Return the largest number of training examples whose fine-tuning fits into its share of the time."""
    for samples in MAX_TRAIN_SAMPLES:
        if sum(estimate_fine_tuning(facts, rows, samples).values()) <= FINE_TUNING_SHARE * hours:
            return samples
    return MAX_TRAIN_SAMPLES[-1]


def choose_budget(facts: Facts, rows: Rows, hours: float) -> int:
    """Return the pre-training tokens of each row: as many as fit into the time, at most `PASSES` passes."""
    costs = sum(get_cost(facts, row, options) for row, options in rows.items())
    fitting = max(0.0, hours) * 3600 / facts.seconds_per_token / costs
    tokens = min(fitting, PASSES * facts.corpus.tokens)
    digits = 10 ** max(0, len(str(int(tokens))) - 2)
    return max(10_000, int(tokens) // digits * digits)


def list_tasks(facts: Facts, options: Mapping[str, Any] | None) -> list[TaskFacts]:
    """List the tasks that test a row with these options."""
    names = (options or {}).get("tasks")
    return [task for task in facts.tasks if names is None or task.name in names]


def estimate_fine_tuning(facts: Facts, rows: Rows, max_train_samples: int) -> dict[str, float]:
    """Return the expected hours of fine-tuning of each row with all seeds, from the measured speed."""
    hours = {}
    for row, options in rows.items():
        tasks = list_tasks(facts, options)
        epochs = RECIPES[row].fine_tuning.get("num_train_epochs", EPOCHS)
        tokens = sum(epochs * min(task.train, max_train_samples) * min(task.tokens, MAX_TOKENS) for task in tasks)
        hours[row] = SEEDS * tokens * facts.seconds_per_token / 3600
    return hours


def estimate_pretraining(facts: Facts, rows: Rows, tokens: int) -> dict[str, float]:
    """Return the expected hours of pre-training of each row, from the measured speed."""
    return {
        row: get_cost(facts, row, options) * tokens * facts.seconds_per_token / 3600 for row, options in rows.items()
    }


def get_cost(facts: Facts, row: str, options: Mapping[str, Any] | None) -> float:
    """Return the time of a row's pre-training relative to DAPT's; 0 if the row has no masked LM of its own."""
    if (method := RECIPES[row].method) is None:
        return 0.0
    encoders = len(list_tasks(facts, options)) if RECIPES[row].reads_task else 1
    return encoders * METHODS[method].step_cost


def choose_plain_rule(rows: Iterable[str]) -> str:
    """Return the row to take with time for one only."""
    return next(row for row in PLAIN_RULE if row in {*rows})
