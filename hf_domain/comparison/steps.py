"""The steps of a comparison: what has to be run, in which order, by which command; and what identifies each."""

import hashlib
import json
import math
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from itertools import chain, product
from pathlib import Path
from typing import Any, Literal

from hf_domain.comparison.plan import Plan
from hf_domain.data.files import SPLITS, find_files
from hf_domain.data.json_lines import read_rows
from hf_domain.environment import find_version
from hf_domain.methods import BASELINE, METHODS
from hf_domain.safe_io import fingerprint_files, read_json
from hf_domain.tasks.kind import PLAN_KINDS
from hf_domain.training.arguments import FineTunerArguments, PretrainerArguments
from hf_domain.training.masked_lm_corpus import CorpusArguments
from hf_domain.training.overrides import parse_overrides
from hf_domain.training.recipes import TRAINING_RECIPES
from hf_domain.training.run_folder import CHECKPOINT_FILES

# In the flags of a step, the folder of the comparison: a result is the same in another folder.
ROOT = "{root}"
# ----------------------------------------------------------------------------- flags, which a plan may set otherwise
# Steps of training whose speed is measured, where the budget is a time; the first five are not timed.
TIMING_STEPS = 20
# Nothing is kept on the way, and nothing is reported elsewhere.
TRAINER_OPTIONS: dict[str, Any] = {"save_strategy": "no", "report_to": "none", "disable_tqdm": True}
# Masked LM of a real corpus takes hours: a killed one resumes from its last tenth, and a short one has a curve too.
CHECKPOINTS: dict[str, Any] = {"save_strategy": "steps", "save_steps": 0.1, "save_total_limit": 1, "logging_steps": 20}
# The defaults of the commands that decide on the cost, spelled out: they are part of what a step is.
PRETRAINING: dict[str, Any] = {
    "per_device_train_batch_size": PretrainerArguments.per_device_train_batch_size,
    "max_seq_length": CorpusArguments.max_seq_length,
    "warmup_steps": PretrainerArguments.warmup_steps,
    "max_eval_samples": 256,
}
FINE_TUNING: dict[str, Any] = {
    "per_device_train_batch_size": FineTunerArguments.per_device_train_batch_size,
    "warmup_steps": FineTunerArguments.warmup_steps,
    "train_sampling_strategy": FineTunerArguments.train_sampling_strategy,
}
CACHE_FLAGS = ("memory_cache", "passage_cache")
# Flags of masked LM that a held-out loss takes: another learning rate must not measure the same loss again.
EVALUATION_FLAGS = {
    *("text_column_name", "line_by_line", "streaming", "max_seq_length", "mlm_probability", "whole_word_mask"),
    *("document_boundaries", "decay_mlm_probability"),
    *("max_eval_samples", "per_device_eval_batch_size", "bf16", "bf16_full_eval", "fp16", "fp16_full_eval", "dtype"),
    *("use_cpu", "preprocessing_num_workers", "overwrite_cache", "cache_dir", "trust_remote_code"),
    *("report_to", "disable_tqdm"),
}
# --------------------------------------------------------------------------------------------------------- identity
# Results of other versions of what computes them are not comparable.
COMPARED_VERSIONS = ("hf-domain", "transformers", "torch")
# Fields that steps had in earlier versions, empty in all steps of this one. They stay in the digests, so that ids stay.
EMPTY_FIELDS = {"budget": None, "train_fraction": None, "fold": None}

Kind = Literal["vocabulary", "datastore", "timing", "pretraining", "held_out_loss", "lr_trial", "fine_tuning"]


@dataclass(frozen=True)
class Step:
    """One run of a command. Steps with different ids have different results."""

    name: str
    kind: Kind
    command: str
    """Command of `hf-domain`."""
    flags: dict[str, Any]
    """Without the output folder, which follows from the id; `ROOT` stands for the folder of the comparison."""
    needs: list[str] = field(default_factory=list)
    """Steps whose output it reads: their names, and once it is identified their ids."""
    method: str | None = None
    """The row that it is part of; None if rows share it."""
    corpus: str | None = None
    """The text or data it trains on; of a held-out loss, that it is tested on."""
    task: str | None = None
    seed: int | None = None
    pretraining_seed: int | None = None
    """Seed of the encoder's pre-training; None without one."""
    metric: str | None = None
    """Metric of a fine-tuning or a trial of one."""
    minutes: float | None = None
    """Minutes of a pre-training whose budget is a time."""
    inputs: dict[str, str] = field(default_factory=dict)
    """Digests of the files that it reads and no other step makes, by flag."""
    versions: dict[str, str] = field(default_factory=dict)
    """Versions of the packages that compute it."""
    id: str = ""
    """The name of its folder and of its result: its own name, and a digest of all of the above."""

    def change(self, **flags: Any) -> "Step":
        """Return the step with other flags; None removes one."""
        changed = {**self.flags, **flags}
        return replace(self, flags={name: value for name, value in changed.items() if value is not None})

    def list_arguments(self, root: str, *names: str) -> list[str]:
        """Return the command line after the command's name, or only the given flags; `root` is that of `find_root`."""
        arguments = []
        for name in names or self.flags:
            value = put_root(self.flags[name], root)
            arguments += [f"--{name}", *map(str, value if isinstance(value, list) else [value])]
        if not names:
            # A datastore needs a new folder, and the step's own holds the log.
            arguments += ["--output_dir", f"{root}/steps/{self.id}" + "/datastore" * (self.kind == "datastore")]
        return arguments


def put_root(value: Any, root: str) -> Any:
    """Return the value of a flag with a folder in the place of `ROOT`."""
    if isinstance(value, list):
        return [put_root(item, root) for item in value]
    return value.replace(f"{ROOT}/", f"{root}/") if isinstance(value, str) else value


def take_root(value: Any, root: str) -> Any:
    """Undo `put_root`."""
    if isinstance(value, list):
        return [take_root(item, root) for item in value]
    is_inside = isinstance(value, str) and value.startswith(f"{root}/")
    return f"{ROOT}/{value.removeprefix(f'{root}/')}" if is_inside else value


def find_root(plan: Plan, output_dir: Path) -> str:
    """Return a comparison's folder relative to its plan's; `..` after a symbolic link leads elsewhere."""
    return os.path.relpath(output_dir.resolve(), plan.folder.resolve())


def list_steps(plan: Plan, output_dir: Path) -> list[Step]:
    """List all steps of a plan, each after those it needs, row by row: a comparison that was stopped has whole rows.

    Raises:
        ValueError: Two different steps have the same name.
    """
    return identify(plan, output_dir, name_steps(plan, output_dir))


def name_steps(plan: Plan, output_dir: Path) -> list[Step]:
    """List the steps of a plan without their ids, see `list_steps`."""
    root = find_root(plan, output_dir)
    listers = [StepLister(plan, root, seed) for seed in plan.pretraining_seeds]
    steps: dict[str, Step] = {}

    def add(step: Step) -> None:
        if steps.setdefault(step.name, step).flags != step.flags:
            raise ValueError(
                f"every step must have its own name, but two would be {step.name}, because names of method, task and "
                'corpus are joined by "-". Rename one.'
            )

    for row in plan.methods:
        tasks = [task for task in plan.tasks if row in plan.list_methods(task)]
        for step in chain(*(lister.make_encoder(row, task) for lister, task in product(listers, tasks))):
            add(step)
        for lister, task, seed in product(listers, tasks, plan.list_seeds(row)):
            # The encoder of the first pre-training chooses the rates for all.
            trials = listers[0].try_rates(row, task, [*steps])
            for trial in trials:
                add(trial)
            add(lister.fine_tune(row, task, seed, [*steps], [trial.name for trial in trials]))
    return [*steps.values()]


def list_suffixes(pretraining_seeds: list[int]) -> dict[int, str]:
    """Return the suffixes of encoders' names by seed; the first has none, so that adding seeds renames nothing."""
    return {seed: f"-pretrained{seed}" if number else "" for number, seed in enumerate(pretraining_seeds)}


def name_folder(step: str) -> str:
    """Return the folder of a step, as flags name it."""
    return f"{ROOT}/steps/{step}"


@dataclass
class StepLister:
    """Makes the steps of a plan that writes into `root`, relative to the folder of the plan."""

    plan: Plan
    root: str
    pretraining_seed: int

    @property
    def suffix(self) -> str:
        """The suffix of the encoders' names."""
        return list_suffixes(self.plan.pretraining_seeds)[self.pretraining_seed]

    def join_flags(self, *groups: Mapping[str, Any]) -> dict[str, Any]:
        """Return the flags of all groups, of which the last decides; null removes a flag."""
        flags = {name: value for group in groups for name, value in group.items()}
        return {name: take_root(value, self.root) for name, value in flags.items() if value is not None}

    def find_start(self, row: str, task: str) -> str:
        """Return the encoder that a row starts from."""
        start = self.plan.methods[row]
        if start.after is not None:
            return self.get_encoder(start.after, task)
        return start.encoder or self.plan.encoder

    def get_encoder(self, row: str, task: str) -> str:
        """Return the encoder of a row for a task; if it trains none, the one it starts from."""
        is_made = self.plan.get_recipe(row).method is not None
        return name_folder(str(self.name_encoder(row, task))) if is_made else self.find_start(row, task)

    def name_encoder(self, row: str | None, task: str) -> str | None:
        """Return the step that makes the encoder of a row for a task; None if no step does."""
        if row is None:
            return None
        recipe, after = self.plan.get_recipe(row), self.plan.methods[row].after
        if recipe.method is None:
            return self.name_encoder(after, task)
        if recipe.text == "general" and after is None:
            return f"{row}-{self.plan.general}{self.suffix}"  # once for the tasks of all corpora
        return f"{row}-{task if self.plan.is_made_of_task(row) else self.plan.tasks[task].corpus}{self.suffix}"

    def label_encoder(self, row: str, task: str) -> str:
        """Return a name for the encoder of a row; rows with the same encoder share it."""
        own = "encoder" if self.get_encoder(row, task) == self.plan.encoder else row
        return self.name_encoder(row, task) or own

    def has_frozen_passages(self, row: str, flags: dict[str, Any]) -> bool:
        """Return whether a frozen copy encodes the passages of a RADA; otherwise they change and cannot be cached.

        The flags of the run decide, else those of the masked LM before it, else how the first of them starts, or the
        RADA that it continues.
        """
        trainings, starts = [flags], self.plan.list_starts(row)
        for each in starts:
            method = self.plan.get_recipe(each).method
            if method is not None and METHODS[method].reads_passages:
                trainings.append(self.join_flags(self.plan.pretraining, self.plan.methods[each].pretraining))
        # The first training builds the model, unless it continues one.
        reader = next(method for method in METHODS.values() if method.reads_passages)
        chosen = {} if trainings[-1].get("start") == "paper" else reader.start
        encoder = self.plan.folder / (self.plan.methods[starts[-1]].encoder or self.plan.encoder) / "config.json"
        if encoder.is_file() and (config := read_json(encoder)).get("model_type") == reader.model_type:
            chosen = config
        for training in reversed(trainings):
            chosen = chosen | parse_overrides(training.get("config_overrides"))
        return chosen.get("passage_encoder") == "frozen"

    def make_encoder(self, row: str, task: str) -> Iterator[Step]:
        """Yield the steps that make the encoder of a row for a task, and measure its masked-LM losses."""
        plan = self.plan
        recipe, after = plan.get_recipe(row), plan.methods[row].after
        if after is not None:
            yield from self.make_encoder(after, task)
        start = self.name_encoder(after, task)
        if recipe.reads_datastore:
            yield self.build_datastore(row, task)
        if recipe.method is not None:
            yield from self.pretrain(row, task, str(self.name_encoder(row, task)), [] if start is None else [start])
        for text in sorted(map(str, {plan.tasks[task].corpus, plan.general} - {None})):
            yield self.measure_loss(row, task, text)

    def pretrain(self, row: str, task: str, name: str, needs: list[str]) -> Iterator[Step]:
        """Yield the steps that train an encoder."""
        plan, corpus = self.plan, self.plan.tasks[task].corpus
        recipe, options = plan.get_recipe(row), plan.methods[row]
        method = METHODS[str(recipe.method)]
        flags: dict[str, Any] = {"method": recipe.method, "model_name_or_path": self.find_start(row, task)}
        if method.reads_memory:
            flags["memory_name_or_path"] = plan.encoder
        starts = [plan.get_recipe(each) for each in plan.list_starts(row)[1:]]
        if recipe.expands_vocabulary and not any(each.expands_vocabulary for each in starts):
            vocabulary = self.expand_vocabulary(corpus)
            yield vocabulary
            needs = [*needs, vocabulary.name]
            flags["expanded_vocabulary"] = name_folder(vocabulary.name)
        if recipe.reads_datastore:
            needs = [*needs, self.build_datastore(row, task).name]
            flags["datastore"] = f"{name_folder(needs[-1])}/datastore"
        text = {"domain": corpus, "general": plan.general}.get(recipe.text)
        flags["train_file"] = f"{ROOT}/texts/{task}.txt" if text is None else plan.corpora[text].train_file
        if self.splits_corpus(row):
            flags["train_file"] = self.build_datastore(row, task).flags["held_out_file"]
        published = list_published(plan.pretraining | options.pretraining)
        flags = self.join_flags(
            flags, TRAINER_OPTIONS, CHECKPOINTS, PRETRAINING, published, plan.pretraining, options.pretraining,
            {"seed": self.pretraining_seed},
        )  # fmt: skip
        if recipe.reads_datastore and self.has_frozen_passages(row, flags):
            flags["passage_cache"] = f"{ROOT}/passages/{name}"
        flags["do_train"] = True
        step = Step(
            name, "pretraining", "mlm", flags, needs, row, text, None if text else task, minutes=plan.budget.minutes
        )
        if plan.budget.tokens is None:
            timing = replace(step, name=f"{name}-timing", kind="timing", minutes=None).change(
                max_steps=TIMING_STEPS, save_strategy="no"
            )
            yield timing
            yield replace(step, needs=[*needs, timing.name]).change(max_steps=TIMING_STEPS)
        else:
            yield step.change(max_steps=count_steps(plan.budget.tokens, step.flags, step.name))

    def expand_vocabulary(self, corpus: str) -> Step:
        """Return the step that expands the vocabulary of the plan's encoder by words of a corpus.

        By default the expansion keeps the entries that the budget shows five times. A small budget shows most other
        entries less than once: their rows stay untrained, and cost more than the pieces that they replace. `size` in
        the plan, or `training_tokens: null`, turns the limit off.
        """
        plan, files = self.plan, self.plan.corpora[corpus]
        flags = self.join_flags(
            {
                "model_name_or_path": plan.encoder,
                "train_file": files.train_file,
                "validation_file": files.validation_file,
                "embedding_init": "none",
            },
            {} if "size" in plan.vocabulary else {"training_tokens": plan.budget.tokens},
            plan.vocabulary,
        )
        return Step(f"vocabulary-{corpus}", "vocabulary", "expand_vocab", flags, corpus=corpus)

    def splits_corpus(self, row: str) -> bool:
        """Return whether masked LM and its passages take separate parts of the corpus, as in RADA's paper.

        The nearest passage of a text is the text itself, with its masked words. If it were in the datastore, the model
        would learn nothing else. A plan that names a file for either of them has separated them itself.
        """
        plan, options = self.plan, self.plan.methods[row]
        groups = (options.pretraining, plan.datastore, options.datastore)
        name = plan.get_recipe(row).method
        reads = name is not None and METHODS[name].reads_passages
        return reads and not any("train_file" in flags for flags in groups)

    def build_datastore(self, row: str, task: str) -> Step:
        """Return the step that builds the datastore of a row, with the tokenizer of the plan's encoder."""
        corpus, is_split, own = self.plan.tasks[task].corpus, self.splits_corpus(row), self.plan.methods[row].datastore
        name = f"datastore-{f'{row}-' if own or is_split else ''}{corpus}"
        flags = self.join_flags(
            {"model_name_or_path": self.plan.encoder, "train_file": self.plan.corpora[corpus].train_file},
            {"held_out_file": f"{name_folder(name)}/held_out.jsonl"} if is_split else {},
            self.plan.datastore,
            own,
        )
        return Step(name, "datastore", "build_datastore", flags, corpus=corpus)

    def measure_loss(self, row: str, task: str, corpus: str) -> Step:
        """Return the step that measures the masked-LM loss of an encoder on held-out text; rows share it."""
        encoder, name = self.name_encoder(row, task), f"{self.label_encoder(row, task)}-on-{corpus}"
        published = list_published(self.plan.pretraining)
        options = self.join_flags(TRAINER_OPTIONS, PRETRAINING, published, self.plan.pretraining)
        file = self.plan.corpora[corpus].validation_file
        flags = self.join_flags(
            {"method": BASELINE, "model_name_or_path": self.get_encoder(row, task)},
            {"train_file": file, "validation_file": file},
            {flag: value for flag, value in options.items() if flag in EVALUATION_FLAGS},
            {"do_eval": True},
        )
        return Step(name, "held_out_loss", "mlm", flags, [encoder] if encoder else [], corpus=corpus)

    def try_rates(self, row: str, task: str, known: list[str]) -> list[Step]:
        """Return the steps that try the learning rates at the first seed, on the validation set only."""
        step = self.fine_tune(row, task, self.plan.seeds[0], known)
        return [
            replace(step, name=f"{row}-{task}-rate{rate:g}", kind="lr_trial").change(
                learning_rate=rate, do_predict=None
            )
            for rate in self.plan.learning_rates
        ]

    def fine_tune(self, row: str, task_name: str, seed: int, known: list[str], trials: Sequence[str] = ()) -> Step:
        """Return the step that fine-tunes an encoder and tests it."""
        plan, task, encoder = self.plan, self.plan.tasks[task_name], self.name_encoder(row, task_name)
        recipe, kind = self.plan.get_recipe(row), PLAN_KINDS[task.kind]
        name = f"{row}-{task_name}{self.suffix if encoder else ''}-seed{seed}"
        reads_old_words = kind.labels_words and any(plan.get_recipe(each).old_words for each in plan.list_starts(row))
        flags = self.join_flags(
            {"model_name_or_path": self.get_encoder(row, task_name)},
            {f"{split}_file": task.get_file(split) for split in SPLITS},
            TRAINER_OPTIONS,
            FINE_TUNING,
            plan.fine_tuning,
            task.options,
            {"tokenizer_name": plan.encoder} if reads_old_words else {},
            recipe.fine_tuning,
            plan.methods[row].fine_tuning,
        )
        needs = [*([encoder] if encoder in known else []), *trials]
        reader = METHODS.get(str(flags.get("method")))
        if reader is not None and reader.reads_memory:
            flags["memory_name_or_path"] = plan.encoder
            overrides = parse_overrides(flags.get("config_overrides"))
            if overrides.get("freeze_memory", overrides.get("strategy") != "ensemble"):
                flags["memory_cache"] = f"{ROOT}/memories/{row}-{task_name}"
        if recipe.reads_datastore:
            needs.append(self.build_datastore(row, task_name).name)
            flags["datastore"] = f"{name_folder(needs[-1])}/datastore"
            if reader is not None and self.has_frozen_passages(row, flags):
                flags["passage_cache"] = f"{ROOT}/passages/{self.label_encoder(row, task_name)}-{needs[-1]}-{task_name}"
        flags |= kind.list_flags(row for _, row in read_rows(task.get_file("train"), plan.folder))
        # The validation set decides thresholds, early stopping, and which model is kept.
        flags |= {"seed": seed, "do_train": True, "do_eval": True, "do_predict": True}
        pretraining_seed = self.pretraining_seed if encoder else None
        return Step(name, "fine_tuning", kind.command, flags, needs, row, None, task_name, seed, pretraining_seed)


def list_published(flags: Mapping[str, Any]) -> dict[str, Any]:
    """Return the defaults of the `recipe` among flags; a comparison's blocks keep their length, as budgets need."""
    published = TRAINING_RECIPES.get(str(flags.get("recipe")), {})
    return {name: value for name, value in published.items() if name != "max_seq_length"}


def count_tokens(flags: Mapping[str, Any]) -> int:
    """Return the number of tokens in one step of pre-training."""
    accumulated = int(flags.get("gradient_accumulation_steps", 1))
    return int(flags["per_device_train_batch_size"]) * int(flags["max_seq_length"]) * accumulated


def count_steps(tokens: int, flags: Mapping[str, Any], name: str) -> int:
    """Return the number of steps of pre-training that read this many tokens; errors call it by its name.

    Raises:
        ValueError: One step reads more tokens.
    """
    if tokens < (of_step := count_tokens(flags)):
        raise ValueError(
            f"budget: tokens must be at least those of one step, {of_step} with the batch and the length of "
            f"{name}, but is {tokens}. Raise the budget, or lower per_device_train_batch_size."
        )
    return math.ceil(tokens / of_step)


# ----------------------------------------------------------------------------------------------------------- identity


def identify(plan: Plan, output_dir: Path, steps: Sequence[Step]) -> list[Step]:
    """Return steps with their ids, which also replace names in `needs` and in the paths of flags.

    A step that a change of the plan affects gets another id, and so a new folder: earlier results stay. Each step must
    come after those it needs.
    """
    root, versions = find_root(plan, output_dir), list_versions()
    made = {step.flags["held_out_file"] for step in steps if "held_out_file" in step.flags}
    ids: dict[str, str] = {}
    identified = []
    for step in steps:
        step = replace(
            step,
            flags=json.loads(json.dumps({flag: put_ids(value, ids) for flag, value in step.flags.items()})),
            needs=[ids[name] for name in step.needs],
            metric=plan.tasks[str(step.task)].metric if step.kind in ("fine_tuning", "lr_trial") else None,
            inputs=digest_inputs(plan, step, root, made),
            versions=versions,
        )
        own = {flag: put_ids(value, {step.name: "."}) for flag, value in step.flags.items()}
        text = json.dumps(EMPTY_FIELDS | asdict(replace(step, flags=own)), sort_keys=True)
        ids[step.name] = f"{step.name}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"
        flags = {flag: put_ids(value, ids) for flag, value in step.flags.items()}
        identified.append(replace(step, flags=flags, id=ids[step.name]))
    return identified


def put_ids(value: Any, ids: Mapping[str, str]) -> Any:
    """Return the value of a flag with the ids of steps in the place of their names, as far as these are known."""
    if isinstance(value, list):
        return [put_ids(item, ids) for item in value]
    if not isinstance(value, str):
        return value
    return re.sub(rf"^{re.escape(ROOT)}/steps/([^/]+)", lambda found: name_folder(ids.get(found[1], found[1])), value)


def list_versions() -> dict[str, str]:
    """Return the versions that results depend on."""
    return {package: find_version(package) for package in COMPARED_VERSIONS}


def digest_inputs(plan: Plan, step: Step, root: str, made: set[str]) -> dict[str, str]:
    """Return digests of the files and checkpoints that a step reads, by flag; without those that other steps make."""
    text = f"{ROOT}/texts/{step.task}.txt"
    digests = list_options(plan, step, text)
    for flag, value in step.flags.items():
        names = [name for name in map(str, value if isinstance(value, list) else [value]) if name not in made]
        paths = [plan.folder / put_root(name, root) for name in names if not name.startswith(f"{ROOT}/steps/")]
        if flag == "mix":  # a file and its share
            paths = [path.with_name(path.name.rpartition(":")[0]) for path in paths]
        if flag.endswith("_file") or flag == "mix":
            if names == [text]:
                paths = [plan.folder / plan.tasks[str(step.task)].get_file("train")]
            try:
                files = [Path(file) for file in find_files([str(path) for path in paths])]
            except FileNotFoundError:  # the step that reads it says so
                continue
        elif flag in ("model_name_or_path", "memory_name_or_path"):
            # Older encoders have their weights in pytorch_model.bin.
            there = [path for path in paths if any(path.glob("*.safetensors")) or any(path.glob("pytorch_model*.bin"))]
            files = [file for path in there for file in _list_checkpoint(path)]
        elif flag in ("tokenizer_name", "expanded_vocabulary", "datastore"):
            files = [file for path in paths for file in _list_checkpoint(path)]
        else:
            continue
        if files:
            digests[flag] = _digest_files(tuple((file, file.stat().st_size, file.stat().st_mtime_ns) for file in files))
    return digests


def list_options(plan: Plan, step: Step, text: str) -> dict[str, str]:
    """Return the options of a task that a result depends on but no flag of its step has; `text` is the task's text."""
    options: dict[str, Any] = {} if step.task is None else plan.tasks[step.task].options
    columns = {name: value for name, value in options.items() if "text_column" in name}
    # Other columns make another text.
    return {"text_columns": json.dumps(columns, sort_keys=True)} if columns and text in step.flags.values() else {}


def _list_checkpoint(folder: Path) -> list[Path]:
    """List what a step reads of an encoder, and the manifest of a datastore."""
    patterns = (*CHECKPOINT_FILES, "datastore.json")
    return [file for pattern in patterns for file in sorted(folder.glob(pattern)) if file.is_file()]


@cache
def _digest_files(files: tuple[tuple[Path, int, int], ...]) -> str:
    """Digest files, once for each size and time of a change."""
    return fingerprint_files([path for path, _, _ in files])
