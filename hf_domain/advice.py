"""Recommend what to compare on a corpus and its tasks in a given time: facts measured on samples, and a plan.

`hf-domain advise` prints the facts and writes the plan; `hf-domain quickstart` runs it.
"""

import math
import os
import random
import statistics
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForMaskedLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from hf_domain.comparison.plan import ONLY_CORPUS, Plan, write_plan
from hf_domain.comparison.prepare import load_plan
from hf_domain.comparison.rows import RECIPES
from hf_domain.comparison.run import count_workers
from hf_domain.comparison.statistics import find_visible_difference
from hf_domain.data.corpora import check_length, load_corpus
from hf_domain.data.objects import Files, Tasks, find_file, place_corpus, place_tasks, write_files
from hf_domain.data.tables import Rows, Splits
from hf_domain.extras import explain_missing
from hf_domain.methods import METHODS
from hf_domain.methods.stock_models import decode_labeled_rows_only
from hf_domain.safe_io import read_json, write_json
from hf_domain.tasks.files import find_texts, get_text, read_examples
from hf_domain.tasks.kind import PLAN_KINDS

# Documents and examples of a sample: enough for two digits.
SAMPLE = 500
# A word of this many pieces counts as broken; from this share on, new words are worth a row.
PIECES, MANY_BROKEN = 3, 0.05
# From this share of unknown pieces on, an encoder cannot read the text.
UNREADABLE = 0.01
# VarMAE's paper is about small corpora. More than ten passes over a corpus teach little.
SMALL, PASSES = 50_000_000, 10
# TAPT needs some batches of text.
ENOUGH_TOKENS = 32 * 128 * 4
# Fine-tuning: the fewest steps that a classifier begins to learn in, and the fewest seeds.
FEWEST_STEPS, FEWEST_SEEDS = 250, 2
# Two steps at once, each on a core, do this share of the work of two alone: the cores share caches and memory.
SHARED = 0.8
# Share of the time that fine-tuning may take, and seconds of a step beside its work: start, loading, saving.
FINE_TUNING_SHARE, SECONDS_OF_START = 0.85, 4.0
# What a quickstart does beside the steps of its plan: measure, write the report, gather the best model.
SECONDS_BESIDE_STEPS = 25.0
FEWEST_TOKENS, FEWEST_ROWS = 20_000, 4
RECORD_FILE = "quickstart.json"


@dataclass(frozen=True)
class Recommendation:
    """A row of the plan, and why it is there."""

    name: str
    reason: str
    tasks: list[str] | None = None
    """None: all."""


@dataclass(frozen=True)
class TaskFacts:
    """What was measured of a task."""

    name: str
    kind: str
    train: int
    test: int
    lengths: tuple[int, ...]
    """Tokens of a sample of the examples, ascending."""
    leaked: int
    """Test items whose texts are also training texts."""

    def count_tokens(self, limit: int = 128) -> float:
        """Return the mean number of tokens of an example that is cut at a limit."""
        return statistics.mean(min(length, limit) for length in self.lengths)

    def choose_length(self, limit: int) -> int:
        """Return the length to cut at: what nearly every example needs, at most the limit."""
        longest = self.lengths[int(0.97 * (len(self.lengths) - 1))]
        return max(16, min(limit, 8 * math.ceil(longest / 8)))


@dataclass(frozen=True)
class Facts:
    """What was measured of an encoder, a corpus and its tasks."""

    parameters: int
    layers: int
    seconds_per_token: float
    """What a training step takes on one core, or on the GPU."""
    documents: int
    tokens: int
    broken: float
    """Share of the words of the corpus that have `PIECES` pieces or more."""
    unknown: float
    """Share of the pieces of the corpus that are unknown."""
    tasks: tuple[TaskFacts, ...]

    def describe(self) -> list[str]:
        """Return the facts as sentences."""
        lines = [
            f"The encoder has {self.parameters / 1e6:.1f} million parameters and trains on "
            f"{1 / self.seconds_per_token:,.0f} tokens a second here.",
            f"The corpus has {self.documents:,} documents, about {float(f'{self.tokens:.2g}'):,.0f} tokens. "
            f"{self.broken:.0%} of its words have {PIECES} pieces or more, {self.unknown:.1%} of the pieces are "
            "unknown.",
        ]
        for task in self.tasks:
            line = (
                f"{task.name}: {task.kind.replace('_', ' ')}, {task.train:,} training and {task.test:,} test examples "
            )
            line += f"of {task.count_tokens():.0f} tokens."
            if task.leaked:
                line += f" {task.leaked} test items are also training texts: remove them."
            lines.append(line)
        if self.unknown >= UNREADABLE:
            lines.append("Use another encoder: this one has no words for many characters of the corpus.")
        return lines


@dataclass(frozen=True)
class Advice:
    """Measured facts, a plan with the reason of each row, and what the time left out."""

    facts: Facts
    rows: list[Recommendation]
    cuts: list[str]
    """What a plan with more time would have, in words."""
    plan: dict[str, Any]
    """The content of the plan's YAML file."""
    seconds: float
    """Expected duration of the plan here."""
    limit: float
    """Seconds that the plan was made for."""
    files: Files = field(default_factory=dict)
    """The rows of objects, by the files that the plan names."""
    missing: str | None = None
    """Which rows were left out because a package is not installed, and how to install it."""

    def __str__(self) -> str:
        tokens, seeds, fine_tuning = self.plan["budget"]["tokens"], len(self.plan["seeds"]), self.plan["fine_tuning"]
        lines = [*self.facts.describe(), "", *(f"{row.name}: {row.reason}" for row in self.rows), ""]
        lines.append(
            f"The plan takes about {max(1, round(self.seconds / 60))} minutes here: {tokens:,} tokens of pre-training "
            f"a row, at most {fine_tuning['max_steps']} fine-tuning steps of "
            f"{fine_tuning['per_device_train_batch_size']} examples, {seeds} seeds."
        )
        lines += [f"Left out for the time: {cut}." for cut in self.cuts]
        if self.seconds > 1.1 * self.limit:
            lines.append(
                f"This is the smallest plan: it does not fit into {self.limit / 60:g} minutes. Give more, or a smaller "
                "encoder or task."
            )
        return "\n".join([*lines, f"Left out: {self.missing}"] if self.missing else lines)

    def save(self, folder: str | os.PathLike, record: Mapping[str, Any] | None = None) -> Path:
        """Write plan.yaml, and rows that no file holds, into a folder; return the plan's path.

        Args:
            record: What the plan was made for, by which `find_saved_plan` knows it.
        """
        path = Path(folder, "plan.yaml")
        write_files(self.files, path.parent)  # before the plan, which names them
        write_plan(self.plan, path)
        if record is not None:
            write_json(path.with_name(RECORD_FILE), record)
        return path


def find_saved_plan(folder: Path, record: Mapping[str, Any]) -> Path | None:
    """Return the plan that an advice with the same record saved in a folder, which a user may have edited."""
    path, file = folder / "plan.yaml", folder / RECORD_FILE
    return path if path.is_file() and file.is_file() and read_json(file) == record else None


def advise(
    encoder: str | os.PathLike,
    corpus: Rows | Splits,
    tasks: Tasks,
    *,
    general: Rows | Splits | None = None,
    minutes: float = 10.0,
    max_seq_length: int = 128,
) -> Advice:
    """Recommend what to compare on a corpus and its tasks.

    Args:
        encoder: A masked LM: a folder or a name on the Hub.
        corpus: Text of the domain, see `load_corpus`.
        tasks: Folders with train, validation and test as .jsonl, or rows, as `compare` takes them.
        general: General text. It adds a control that trains on it, and the report then says what encoders forget.
        minutes: Duration of the plan here. The smallest plan may take more, which the advice then says.
        max_seq_length: Number of tokens of an example of pre-training.

    Raises:
        TypeError: The corpus or a task contains no texts.
        ValueError: Corpus, tasks or encoder cannot be compared; lists all problems.
    """
    if not minutes > 0:
        raise ValueError(f"minutes must be above 0, but is {minutes}")
    files = Files()
    corpora = {ONLY_CORPUS: place_corpus(corpus, "corpus", files)}
    if general is not None:
        corpora["general"] = place_corpus(general, "general", files)
        if corpora["general"] == corpora[ONLY_CORPUS]:
            raise ValueError(f"general text and corpus must be different files, but both are {corpus}")
    content: dict[str, Any] = {
        "encoder": find_file(encoder) if Path(encoder).is_dir() else os.fspath(encoder),
        "corpora": {
            name: {"train_file": place} if isinstance(place, str) else place for name, place in corpora.items()
        },
        **({"general": "general"} if general is not None else {}),
        "tasks": {name: {"folder": folder} for name, folder in place_tasks(tasks, files).items()},
        "methods": {"no_adaptation": {}, "dapt": {}},
        "budget": {"tokens": 1_000_000},
    }
    with tempfile.TemporaryDirectory() as folder:
        draft = Path(folder, "plan.yaml")
        write_files(files, draft.parent)
        write_plan(content, draft)
        try:
            plan = load_plan(draft)
        except ValueError as error:  # a user knows nothing of the draft
            raise ValueError(str(error).replace(f"the plan {draft}", "the plan of the advice")) from error
        facts = measure_facts(plan, max_seq_length)
    for name, task in plan.tasks.items():  # a reader sees what was found
        content["tasks"][name] |= {"kind": task.kind}
    return make_advice(facts, content, 60 * minutes, max_seq_length, files)


# ------------------------------------------------------------------------------------------------------------- facts


def measure_facts(plan: Plan, max_seq_length: int = 128) -> Facts:
    """Measure the facts about the encoder, the corpus and the tasks of a plan."""
    encoder = str(plan.folder / plan.encoder) if (plan.folder / plan.encoder).is_dir() else plan.encoder
    tokenizer = AutoTokenizer.from_pretrained(encoder, trust_remote_code=False)
    check_length(tokenizer, max_seq_length)
    model = AutoModelForMaskedLM.from_pretrained(encoder, dtype=torch.float32, trust_remote_code=False)
    domain = next(name for name in plan.corpora if name != plan.general)
    file = str(plan.folder / plan.corpora[domain].train_file)
    documents = load_corpus(file, validation_split_percentage=0)["train"]["text"]
    sample = random.Random(0).sample([*documents], min(SAMPLE, len(documents)))
    counts, unknown = count_pieces(sample, tokenizer)
    return Facts(
        parameters=sum(parameter.numel() for parameter in model.parameters()),
        layers=int(getattr(model.config, "num_hidden_layers", 0) or 0),
        seconds_per_token=time_training(model, max_seq_length),
        documents=len(documents),
        tokens=round(sum(counts) / len(sample) * len(documents)),
        broken=sum(count >= PIECES for count in counts) / max(1, len(counts)),
        unknown=unknown,
        tasks=tuple(measure_task(name, plan, tokenizer) for name in plan.tasks),
    )


def count_pieces(texts: Sequence[str], tokenizer: PreTrainedTokenizerBase) -> tuple[list[int], float]:
    """Return the number of pieces of each word, and the share of unknown pieces."""
    pieces: list[int] = []
    unknown = 0
    for text in texts:
        words = [word for word in text.split() if word]
        ids = tokenizer(words, add_special_tokens=False, verbose=False)["input_ids"] if words else []
        pieces += [len(own) for own in ids if own]
        unknown += sum(own.count(tokenizer.unk_token_id) for own in ids)
    return pieces, unknown / max(1, sum(pieces))


def measure_task(name: str, plan: Plan, tokenizer: PreTrainedTokenizerBase) -> TaskFacts:
    """Measure the facts about a task."""
    task = plan.tasks[name]
    train, test = (read_examples(plan.folder / task.get_file(split)) for split in ("train", "test"))
    columns = find_texts(task.kind, task.get_file("train"), plan.folder, task.options.get("text_column_names"))
    texts, tested = (
        [" ".join(" ".join(get_text(row.get(column)).split()) for column in columns) for row in rows]
        for rows in (train, test)
    )
    sample = random.Random(0).sample(texts, min(SAMPLE, len(texts)))
    known = {*texts}
    return TaskFacts(
        name=name,
        kind=task.kind,
        train=len(train),
        test=len(test),
        lengths=tuple(sorted(len(ids) for ids in tokenizer(sample, verbose=False)["input_ids"])),
        leaked=sum(text in known for text in tested),
    )


def time_training(model: PreTrainedModel, length: int, batch: int = 8, steps: int = 8) -> float:
    """Return the seconds that a training step of masked LM takes for each token, on one core or on the GPU."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    model = decode_labeled_rows_only(model).train()
    model.to(device)  # type: ignore[arg-type]
    ids = torch.randint(5, model.config.vocab_size, (batch, min(length, 64)), device=device)
    labels = ids.masked_fill(torch.rand(ids.shape, device=device) > 0.15, -100)
    labels[:, 1] = ids[:, 1]  # at least one in each text
    seconds = []
    try:
        for _ in range(1 + steps):
            started = time.perf_counter()
            loss = model(input_ids=ids, attention_mask=torch.ones_like(ids), labels=labels).loss
            loss.backward()
            model.zero_grad()
            float(loss.detach())  # waits for a GPU
            seconds.append(time.perf_counter() - started)
    finally:
        torch.set_num_threads(threads)
    return statistics.median(seconds[1:]) / ids.numel()


# -------------------------------------------------------------------------------------------------------------- plan


def list_rows(facts: Facts, has_general: bool) -> list[Recommendation]:
    """List the rows that the facts speak for, the most important first."""
    voting = [task.name for task in facts.tasks if PLAN_KINDS[task.kind].problem_type]
    is_small = facts.tokens <= SMALL
    is_broken = facts.broken >= MANY_BROKEN and facts.unknown < UNREADABLE
    text = sum(task.train * task.count_tokens() for task in facts.tasks)
    broken, cost = f"{facts.broken:.0%}", f"{METHODS['varmae'].step_cost:.0%}"
    # Whether the facts speak for a row, its name, and the reason.
    candidates = [
        (True, "no_adaptation", "the encoder as it is: does adaptation pay at all?"),
        (True, "dapt", "plain continued masked language modeling on the corpus, the row to beat."),
        (voting, "vote", "the nearest training texts vote with a classifier on DAPT's encoder."),
        (is_small, "varmae", f"the corpus is small, as in its paper, and a step takes {cost} of the time of DAPT's."),
        (text >= ENOUGH_TOKENS, "tapt", "the texts of the tasks are many enough to train on."),
        (is_broken, "adalm", f"{broken} of the words are broken into {PIECES} pieces or more."),
        (has_general, "general_text", "as many steps on general text: what this gains, any training gains."),
        (is_broken and not is_small, "exbert", "many words are broken, and there is enough text for side modules."),
        (has_general, "gmap", "the adapted encoder reads the general one as memory."),
        (True, "rada", "the classifier reads passages of the corpus."),
    ]
    tasks = {"vote": voting} if len(voting) < len(facts.tasks) else {}
    return [Recommendation(name, why, tasks.get(name)) for is_apt, name, why in candidates if is_apt]


@dataclass
class Effort:
    """How much a plan fine-tunes."""

    seeds: int = 5
    steps: int = 1000
    batch: int = 16
    max_tokens: int = 128
    """Longer texts are cut."""
    share: float = 0.85
    """The work that is done of these steps: on the average of our runs, early stopping ends them then."""
    is_quick: bool = False
    """Whether labels are balanced, and the lower half of the layers is frozen."""

    def estimate(self, facts: Facts, rows: Sequence[Recommendation]) -> float:
        """Return the seconds of all fine-tunings, one after the other on one core or GPU."""
        total = 0.0
        for row in rows:
            for task in (task for task in facts.tasks if row.tasks is None or task.name in row.tasks):
                trained = self.steps * self.batch * self.share
                read = (trained + (5 * task.test + task.test) / 3) * task.count_tokens(self.max_tokens)
                total += SECONDS_OF_START + read * facts.seconds_per_token
        return self.seeds * total


# What little time changes. Many small steps learn more of rare labels than few large ones, and rare labels must count
# as much as others to be learned. Validation F1 of ACL-ARC as published, two seeds: 350 steps of 16 with balanced
# labels 49.3, 700 of 8 53.0, and 47.5 without balance. With a frozen lower half, 700 steps take 0.6 of the time, and
# scored 58.0 instead of 56.5.
QUICK: dict[str, Any] = {"steps": 700, "batch": 8, "max_tokens": 64, "share": 0.6, "is_quick": True}


def fit(facts: Facts, rows: list[Recommendation], limit: float) -> tuple[Effort, list[str]]:
    """Return the effort that fits into some seconds of one core or GPU, and what was cut; drops rows from the list.

    Cut are, in this order: seeds, the work of a fine-tuning, rows, seeds, steps.
    """
    effort, cuts, dropped = Effort(), list[str](), list[str]()

    def is_too_long() -> bool:
        return effort.estimate(facts, rows) > limit

    def lower(name: str, to: int, by: int = 1) -> None:
        while is_too_long() and getattr(effort, name) > to:
            setattr(effort, name, max(to, getattr(effort, name) - by))

    lower("seeds", 3)
    if is_too_long():
        effort = replace(effort, **QUICK)
    while is_too_long() and len(rows) > FEWEST_ROWS:
        dropped.append(rows.pop().name)
    lower("seeds", FEWEST_SEEDS)
    lower("steps", FEWEST_STEPS, 50)
    if effort.is_quick:
        cuts.append(f"what texts have beyond {effort.max_tokens} tokens, and training of the lower half of the layers")
    if dropped:
        cuts.append(f"the rows {', '.join(reversed(dropped))}" if len(dropped) > 1 else f"the row {dropped[0]}")
    if effort.seeds < Effort.seeds:
        cuts.append(f"{Effort.seeds - effort.seeds} of {Effort.seeds} seeds")
    if effort.steps < Effort.steps:
        cuts.append(f"steps of fine-tuning after {effort.steps}, so classifiers may not have learned all they can")
    return effort, cuts


def make_advice(facts: Facts, draft: dict[str, Any], seconds: float, max_seq_length: int, files: Files) -> Advice:
    """Return the advice that follows from facts.

    Args:
        draft: A plan's encoder, corpora and tasks.
        seconds: The duration of the plan.
    """
    rows, workers = list_rows(facts, "general" in draft), count_workers()
    searching = [row for row in rows if RECIPES[row.name].reads_datastore or row.name == "vote"]
    missing = explain_missing(f"the search of {' and '.join(row.name for row in searching)}", "tantivy")
    if missing is not None:
        rows = [row for row in rows if row not in searching]
    at_once = workers * (SHARED if workers > 1 and not torch.cuda.is_available() else 1.0)
    limit = max(0.0, seconds - SECONDS_BESIDE_STEPS) * at_once
    effort, cuts = fit(facts, rows, FINE_TUNING_SHARE * limit)
    costs = {row.name: get_cost(facts, row) for row in rows}
    # Each pre-training has a step that measures its loss.
    spent = effort.estimate(facts, rows) + sum(cost > 0 for cost in costs.values()) * 2 * SECONDS_OF_START
    rest = max(0.0, limit - spent)
    tokens = min(rest / facts.seconds_per_token / sum(costs.values()), PASSES * facts.tokens)
    digits = 10 ** max(0, len(str(int(tokens))) - 2)
    tokens = max(FEWEST_TOKENS, int(tokens) // digits * digits)
    spent += tokens * facts.seconds_per_token * sum(costs.values())
    visible = find_visible_difference([task.test for task in facts.tasks], effort.seeds)
    if visible is not None and visible > 1.5:
        cuts.append(f"differences below {visible:.0f} points, which so few seeds and test examples cannot see")
    fine_tuning = {
        "num_train_epochs": math.ceil(max(3, *(effort.batch * Effort.steps / task.train for task in facts.tasks))),
        "max_steps": effort.steps,
        "per_device_train_batch_size": effort.batch,
        "early_stopping_patience": 3,
    }
    if effort.is_quick and facts.layers > 1:
        fine_tuning["train_top_layers"] = facts.layers // 2
    pretraining = {"max_seq_length": max_seq_length}
    if tokens < 2e5:
        pretraining["per_device_train_batch_size"] = 8
    content = draft | {
        "methods": {row.name: {} if row.tasks is None else {"tasks": row.tasks} for row in rows},
        "tasks": {task.name: draft["tasks"][task.name] | get_options(task, effort) for task in facts.tasks},
        "budget": {"tokens": tokens},
        "seeds": [*range(1, effort.seeds + 1)],
        "pretraining": pretraining,
        "fine_tuning": fine_tuning,
    }
    return Advice(facts, rows, cuts, content, spent / at_once + SECONDS_BESIDE_STEPS, seconds, files, missing)


def get_options(task: TaskFacts, effort: Effort) -> dict[str, Any]:
    """Return the options of a task: a length that holds nearly every example, and with quick steps balanced labels."""
    kind = PLAN_KINDS[task.kind]
    if kind.keeps_length:
        return {}
    is_rare = effort.is_quick and kind.problem_type == "single_label_classification"
    balance = {"class_weights": "balanced"} if is_rare else {}
    return {"options": {"max_seq_length": task.choose_length(effort.max_tokens)} | balance}


def get_cost(facts: Facts, row: Recommendation) -> float:
    """Return the time of a row's pre-training relative to DAPT's; 0 if the row has no masked LM of its own."""
    if (method := RECIPES[row.name].method) is None:
        return 0.0
    encoders = len(facts.tasks) if RECIPES[row.name].text == "task" else 1
    return encoders * METHODS[method].step_cost
