"""The steps of a comparison: what has to be run, in which order, by which command."""

import json
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, product
from pathlib import Path
from typing import Any

from hf_domain.comparison.budgets import count_steps
from hf_domain.comparison.default_flags import (
    CACHE_FLAGS,
    CHECKPOINTS,
    DECAY,
    EVALUATION_FLAGS,
    FINE_TUNING,
    FROZEN_FLAGS,
    PRETRAINING,
    PROBE_FLAGS,
    PROBE_STEPS,
    TASK_COMMANDS,
    TRAINER_OPTIONS,
    put_files,
)
from hf_domain.comparison.plan import Plan
from hf_domain.comparison.step import Step
from hf_domain.data.files import SPLITS
from hf_domain.methods import BASELINE, METHODS
from hf_domain.methods.overrides import parse_overrides
from hf_domain.tasks.files import SENTENCES, VALUES, find_label_column, read_rows
from hf_domain.tasks.retrieval import CORPUS, QUERIES


def list_steps(plan: Plan, output_dir: Path) -> list[Step]:
    """List all steps of a plan, each after those it needs, row by row: a comparison that was stopped has whole rows.

    Args:
        plan: The plan, complete and checked.
        output_dir: Folder for the steps' output.

    Raises:
        ValueError: Two different steps have the same name.
    """
    root = find_root(plan, output_dir)
    rungs: Sequence[int | None] = plan.budget.rungs or [None]
    listers = [StepLister(plan, root, seed, rung) for rung in rungs for seed in plan.pretraining_seeds]
    # Equal learning rates at all numbers of tokens, so that a curve shows the effect of the tokens only.
    first = listers[-len(plan.pretraining_seeds)]
    steps: dict[str, Step] = {}

    def add(step: Step) -> None:
        if steps.setdefault(step.name, step).flags != step.flags:
            raise ValueError(
                f"every step must have its own name, but two would be {step.name}, because names of method, task and "
                'corpus are joined by "-". Rename one.'
            )

    seeds = [None] if plan.evaluation == "probe" else plan.seeds
    for method in plan.methods:
        tasks = [task for task in plan.tasks if method in plan.list_methods(task)]
        for step in chain(*(lister.make_encoder(method, task) for lister, task in product(listers, tasks))):
            add(step)
        for lister, task, seed in product(listers, tasks, seeds):
            # Curves over the labels are of the largest budget: what both change is a comparison for each pair of them.
            shares = sorted(share for share in plan.labels if share < 1) if lister.rung == first.rung else []
            for fold in plan.tasks[task].list_folds():
                for step in lister.score(method, task, fold, seed, list(steps), first):
                    add(step)
                    for share in shares if step.kind == "fine_tuning" else []:
                        add(lister.take_share(step, share))
    return list(steps.values())


def list_suffixes(pretraining_seeds: list[int]) -> dict[int, str]:
    """Return the suffixes of encoders' names by seed; the first has none, so that adding seeds renames nothing."""
    return {seed: f"-pretrained{seed}" if number else "" for number, seed in enumerate(pretraining_seeds)}


def name_fold(task: str, fold: int | None) -> str:
    """Return the name of a task, or of one of its folds, in names of steps."""
    return task if fold is None else f"{task}-fold{fold}"


def find_root(plan: Plan, output_dir: Path) -> str:
    """Return a comparison's folder relative to its plan's; `..` after a symbolic link leads elsewhere."""
    return os.path.relpath(output_dir.resolve(), plan.folder.resolve())


@dataclass
class StepLister:
    """Makes the steps of a plan that writes into `root`, relative to the folder of the plan."""

    plan: Plan
    root: str
    pretraining_seed: int
    rung: int | None = None

    @property
    def suffix(self) -> str:
        """The suffix of the encoders' names."""
        rung = "" if self.rung is None else f"-{self.rung}"
        return rung + list_suffixes(self.plan.pretraining_seeds)[self.pretraining_seed]

    def step_back(self, method: str) -> "StepLister":
        """Return the lister for the method that a method starts from; of a rung, each of the two has a share."""
        if self.rung is None or self.plan.get_recipe(method).method is None:
            return self
        return replace(self, rung=round(self.rung * (1 - self.plan.methods[method].share)))

    def get_folder(self, step: str) -> str:
        """Return the output folder of a step."""
        return f"{self.root}/steps/{step}"

    def find_start(self, method: str, task: str) -> str:
        """Return the encoder that a method starts from."""
        start = self.plan.methods[method]
        if start.after is not None:
            return self.step_back(method).get_encoder(start.after, task)
        return start.encoder or self.plan.encoder

    def get_encoder(self, method: str, task: str) -> str:
        """Return the encoder of a method for a task; if it trains none, the one it starts from."""
        recipe = self.plan.get_recipe(method)
        is_made = recipe.method is not None or recipe.averages
        return self.get_folder(str(self.name_encoder(method, task))) if is_made else self.find_start(method, task)

    def name_encoder(self, method: str | None, task: str) -> str | None:
        """Return the step that makes the encoder of a method for a task; None if no step does."""
        if method is None:
            return None
        recipe, after = self.plan.get_recipe(method), self.plan.methods[method].after
        if recipe.method is None and not recipe.averages:
            return self.name_encoder(after, task)  # it trains nothing, so the other method has the whole rung
        if recipe.text == "general" and after is None:
            return f"{method}-{self.plan.general}{self.suffix}"  # once for the tasks of all corpora
        return f"{method}-{task if self.plan.is_made_of_task(method) else self.plan.tasks[task].corpus}{self.suffix}"

    def label_encoder(self, method: str, task: str) -> str:
        """Return a name for the encoder of a method; methods with the same encoder share it."""
        own = "encoder" if self.get_encoder(method, task) == self.plan.encoder else method
        return self.name_encoder(method, task) or own

    def has_expanded_vocabulary(self, method: str | None) -> bool:
        """Return whether a method, or one that it starts from, expands the vocabulary."""
        if method is None:
            return False
        after = self.plan.methods[method].after
        return self.plan.get_recipe(method).expands_vocabulary or self.has_expanded_vocabulary(after)

    def reads_old_words(self, method: str | None, kind: str) -> bool:
        """Return whether a method, or one that it starts from, leaves its new words out of this kind of task."""
        while method is not None:
            if kind in self.plan.get_recipe(method).old_words:
                return True
            method = self.plan.methods[method].after
        return False

    def has_frozen_passages(self, method: str | None, flags: dict[str, Any]) -> bool:
        """Return whether a frozen copy encodes the passages of a RADA; otherwise they change and cannot be cached.

        Either the flags of the run or those of the masked LM that made its checkpoint decide.
        """
        overrides = parse_overrides(flags.get("config_overrides"))
        while "passage_encoder" not in overrides and method is not None:
            recipe, options = self.plan.get_recipe(method), self.plan.methods[method]
            if recipe.method is not None and METHODS[recipe.method].reads_passages:
                before = recipe.pretraining | self.plan.pretraining | options.pretraining
                overrides = parse_overrides(before.get("config_overrides"))
            method = options.after
        return overrides.get("passage_encoder") == "frozen"

    def make_encoder(self, method: str, task: str) -> Iterator[Step]:
        """Yield the steps that make the encoder of a method for a task, and measure its masked-LM losses."""
        plan, corpus = self.plan, self.plan.tasks[task].corpus
        recipe, after = plan.get_recipe(method), plan.methods[method].after
        if after is not None:
            yield from self.step_back(method).make_encoder(after, task)
        name, start = self.name_encoder(method, task), self.step_back(method).name_encoder(after, task)
        needs = [] if start is None else [start]
        if recipe.needs_datastore:
            yield self.build_datastore(method, task)
        if recipe.averages:
            sources = [self.find_start(method, task), plan.encoder]
            flags = {"model_name_or_path": sources, "output_dir": self.get_folder(str(name))}
            yield Step(str(name), "average", "average_models", flags, needs, method, corpus, rung=self.rung)
        elif recipe.method is not None:
            yield from self.pretrain(method, task, str(name), needs)
        texts = {corpus, plan.general} - {None}
        for text in sorted(map(str, texts)):
            yield self.evaluate(method, task, text)

    def pretrain(self, method: str, task: str, name: str, needs: list[str]) -> Iterator[Step]:
        """Yield the steps that train an encoder."""
        plan, corpus = self.plan, self.plan.tasks[task].corpus
        recipe = plan.get_recipe(method)
        flags: dict[str, Any] = {
            "method": recipe.method,
            "model_name_or_path": self.find_start(method, task),
        }
        if METHODS[str(recipe.method)].reads_memory:
            flags["memory_name_or_path"] = plan.encoder
        if recipe.expands_vocabulary and not self.has_expanded_vocabulary(plan.methods[method].after):
            vocabulary = self.expand_vocabulary(corpus)
            yield vocabulary
            needs = [*needs, vocabulary.name]
            flags["expanded_vocabulary"] = self.get_folder(vocabulary.name)
        if recipe.reads_datastore:
            needs = [*needs, self.build_datastore(method, task).name]
            flags["datastore"] = f"{self.get_folder(needs[-1])}/datastore"
        text = {"domain": corpus, "general": plan.general}.get(recipe.text)
        flags["train_file"] = f"{self.root}/texts/{task}.txt" if text is None else plan.corpora[text].train_file
        if recipe.text == "nearest":
            selection = self.select_text(method, task)
            yield selection
            needs, flags["train_file"] = [*needs, selection.name], selection.flags["output_file"]
        files = {"domain": plan.corpora[corpus].train_file}
        files |= {"general": plan.corpora[plan.general].train_file} if plan.general is not None else {}
        flags |= TRAINER_OPTIONS | CHECKPOINTS | PRETRAINING | put_files(recipe.pretraining, files)
        if self.splits_corpus(method):
            flags["train_file"] = self.build_datastore(method, task).flags["held_out_file"]
        flags |= plan.pretraining | plan.methods[method].pretraining | {"seed": self.pretraining_seed}
        if recipe.reads_datastore and self.has_frozen_passages(method, flags):
            flags["passage_cache"] = f"{self.root}/passages/{name}"
        flags |= {"do_train": True, "output_dir": self.get_folder(name)}
        step = Step(name, "pretraining", "mlm", flags, needs, method, text, None if text else task, rung=self.rung)
        if recipe.first_stage or (self.rung is not None and plan.methods[method].after is None):
            yield from self.branch(step, task, recipe.first_stage)
        elif plan.budget.tokens is None:
            probe = replace(step, name=f"{name}-probe", kind="probe").change(
                max_steps=PROBE_STEPS, save_strategy="no", output_dir=self.get_folder(f"{name}-probe")
            )
            yield probe
            yield replace(step, needs=[*needs, probe.name]).change(max_steps=PROBE_STEPS)
        else:
            tokens = round(self.rung * plan.methods[method].share) if self.rung else plan.budget.tokens
            assert isinstance(tokens, int)
            yield step.change(max_steps=count_steps(tokens, step.flags, step.name))

    def branch(self, step: Step, task: str, first_stage: Mapping[str, Any]) -> Iterator[Step]:
        """Yield the steps that train an encoder up to a rung: a trunk that all rungs share, and the rung's end.

        A budget of one number is a single rung without a name.

        The schedule is warm-up, stable, decay: the trunk keeps its learning rate, and at `1 - DECAY` of each rung a
        copy branches off, whose rate falls to 0 at the rung. Each budget gets the training that it would get alone,
        and together they cost little more than the largest.

        Args:
            step: The whole training.
            task: That the encoder is for.
            first_stage: Flags of the trunk alone.
        """
        total = self.rung or self.plan.budget.tokens
        assert isinstance(total, int)
        rungs = [total] if self.rung is None else self.list_rungs(str(step.method))
        ends = {rung: count_steps(rung, step.flags, step.name) for rung in rungs}
        starts = {rung: math.ceil((1 - DECAY) * count) for rung, count in ends.items()}
        given = float(step.flags["warmup_steps"])
        # Of the plan's smallest budget: its own, which rows that start from it may need, would differ from row to row.
        first = count_steps(min(self.plan.budget.rungs, default=total), step.flags, step.name)
        warmup = math.ceil(given * first if given < 1 else given)
        is_apart = len({*starts.values()}) == len(starts) and all(starts[rung] < ends[rung] for rung in ends)
        if warmup >= min(starts.values()) or not is_apart:
            raise ValueError(
                "budget: tokens must leave steps to warm up and decay, and those of a list be some steps apart, but "
                f"those of {step.method} are {', '.join(map(str, ends.values()))} steps. Raise them, or lower "
                "per_device_train_batch_size."
            )
        shared = {"warmup_steps": warmup, "save_strategy": "steps"}
        before: Step | None = None
        for rung in [rung for rung in ends if rung <= total]:
            own = replace(self, rung=self.rung and rung)
            name = f"{own.name_encoder(step.method, task)}-trunk"
            resumed = {} if before is None else {"resume_from_checkpoint": find_end(before)}
            needs = step.needs if before is None else [*step.needs, before.name]
            before = replace(step, name=name, kind="trunk", needs=needs, rung=own.rung).change(
                **shared, **resumed, **first_stage, lr_scheduler_type="constant_with_warmup", max_steps=starts[rung],
                output_dir=self.get_folder(name),
            )  # fmt: skip
            yield before
        assert before is not None
        schedule = {"num_decay_steps": ends[total] - starts[total], "decay_type": "linear"}
        yield replace(step, needs=[*step.needs, before.name]).change(
            **shared, lr_scheduler_type="warmup_stable_decay", lr_scheduler_kwargs=json.dumps(schedule),
            max_steps=ends[total], resume_from_checkpoint=find_end(before),
        )  # fmt: skip

    def list_rungs(self, method: str) -> list[int]:
        """List the numbers of tokens at which a method's encoder is scored or started from."""
        rungs = {*self.plan.budget.rungs}
        for name, other in self.plan.methods.items():
            if other.after == method:
                rungs |= {int(replace(self, rung=rung).step_back(name).rung or 0) for rung in self.list_rungs(name)}
        return sorted(rungs)

    def expand_vocabulary(self, corpus: str) -> Step:
        """Return the step that expands the vocabulary of the plan's encoder by words of a corpus."""
        name = f"vocabulary-{corpus}"
        files = self.plan.corpora[corpus]
        flags: dict[str, Any] = {
            "model_name_or_path": self.plan.encoder,
            "train_file": files.train_file,
            "validation_file": files.validation_file,
            "embedding_init": "none",
            **self.limit_vocabulary(),
            "output_dir": self.get_folder(name),
        }
        return Step(name, "vocabulary", "expand_vocab", flags, corpus=corpus)

    def limit_vocabulary(self) -> dict[str, Any]:
        """Return the plan's flags of an expansion; by default it keeps the entries that the budget shows five times.

        A small budget shows most other entries less than once: their rows stay untrained, and cost more than the pieces
        that they replace. `size` in the plan, or `training_tokens: null`, turns the limit off.
        """
        flags, tokens = self.plan.vocabulary, self.plan.budget.tokens
        if tokens is not None and "size" not in flags:
            flags = {"training_tokens": max(tokens) if isinstance(tokens, list) else tokens, **flags}
        return {flag: value for flag, value in flags.items() if value is not None}

    def splits_corpus(self, method: str) -> bool:
        """Return whether masked LM and its passages take separate parts of the corpus, as in RADA's paper.

        The nearest passage of a text is the text itself, with its masked words. If it were in the datastore, the model
        would learn nothing else. A plan that names a file for either of them has separated them itself.
        """
        plan, options = self.plan, self.plan.methods[method]
        groups = (options.pretraining, plan.datastore, options.datastore)
        name = plan.get_recipe(method).method
        reads = name is not None and METHODS[name].reads_passages
        return reads and not any("train_file" in flags for flags in groups)

    def build_datastore(self, method: str, task: str) -> Step:
        """Return the step that builds the datastore of a method, with the tokenizer of the plan's encoder."""
        corpus, is_split = self.plan.tasks[task].corpus, self.splits_corpus(method)
        own, is_of_task = self.plan.methods[method].datastore, self.plan.get_recipe(method).text == "task"
        name = f"datastore-{f'{method}-' if own or is_split else ''}{task if is_of_task else corpus}"
        file = f"{self.root}/texts/{task}.txt" if is_of_task else self.plan.corpora[corpus].train_file
        flags = {"model_name_or_path": self.plan.encoder, "train_file": file}
        if is_split:
            flags["held_out_file"] = f"{self.get_folder(name)}/held_out.jsonl"
        # A subfolder, because a datastore needs a new folder and the step's own holds the log.
        flags |= self.plan.datastore | own | {"output_dir": f"{self.get_folder(name)}/datastore"}
        return Step(name, "datastore", "build_datastore", flags, corpus=corpus, task=task if is_of_task else None)

    def select_text(self, method: str, task: str) -> Step:
        """Return the step that chooses the text nearest to a task's, as much as the budget reads."""
        datastore, tokens = self.build_datastore(method, task), self.plan.budget.tokens
        total = tokens if isinstance(tokens, int) else max(tokens or [], default=None)
        name = f"{method}-text-{task}"
        flags: dict[str, Any] = {
            "datastore": datastore.flags["output_dir"],
            "text_file": f"{self.root}/texts/{task}.txt",
            **({} if total is None else {"training_tokens": total}),
            "output_file": f"{self.get_folder(name)}/nearest.jsonl",
        }
        corpus = self.plan.tasks[task].corpus
        return Step(name, "selection", "select_text", flags, [datastore.name], method, corpus, task)

    def evaluate(self, method: str, task: str, corpus: str) -> Step:
        """Return the step that measures the masked-LM loss of an encoder on held-out text."""
        encoder, name = self.name_encoder(method, task), f"{self.label_encoder(method, task)}-on-{corpus}"
        file = self.plan.corpora[corpus].validation_file
        flags: dict[str, Any] = {"method": BASELINE, "model_name_or_path": self.get_encoder(method, task)}
        flags |= {"train_file": file, "validation_file": file}
        options = {**TRAINER_OPTIONS, **PRETRAINING, **self.plan.pretraining}
        flags |= {flag: value for flag, value in options.items() if flag in EVALUATION_FLAGS}
        flags |= {"do_eval": True, "output_dir": self.get_folder(name)}
        rung = self.rung if encoder else None
        return Step(name, "evaluation", "mlm", flags, [encoder] if encoder else [], method, corpus, rung=rung)

    def score(
        self, method: str, task: str, fold: int | None, seed: int | None, known: list[str], first: "StepLister"
    ) -> Iterator[Step]:
        """Yield the steps that score an encoder on a task.

        Args:
            method: The method that made the encoder.
            task: The task that tests it.
            fold: Number of the fold, if the task has folds.
            seed: Seed of fine-tuning; None probes the encoder.
            known: The steps so far.
            first: Makes the encoder on which learning rates are tried.
        """
        if seed is None:
            yield self.probe(method, task, fold, known)
            return
        tuning = first.tune(method, task, fold, known)
        yield from tuning
        yield self.fine_tune(method, task, fold, seed, known, [step.name for step in tuning])

    def take_share(self, step: Step, share: float) -> Step:
        """Return a step that takes the first examples of the training file only."""
        count = sum(1 for _ in read_rows(step.flags["train_file"], self.plan.folder))
        count = min(count, int(step.flags.get("max_train_samples") or count))
        name = f"{step.name}-labels{share:g}"
        changed = {"max_train_samples": max(1, round(share * count)), "output_dir": self.get_folder(name)}
        # States are cached example by example, in the order of the files.
        changed |= {cache: f"{step.flags[cache]}-labels{share:g}" for cache in CACHE_FLAGS if cache in step.flags}
        return replace(step, name=name, labels=share).change(**changed)

    def probe(self, method: str, task: str, fold: int | None, known: list[str]) -> Step:
        """Return the step that scores a frozen encoder."""
        step = self.fine_tune(method, task, fold, 0, known)
        name = step.name.removesuffix("-seed0") + "-frozen"
        is_of_sentences = self.plan.tasks[task].kind in SENTENCES
        taken = FROZEN_FLAGS if is_of_sentences else PROBE_FLAGS
        flags = {flag: value for flag, value in step.flags.items() if flag in taken}
        if is_of_sentences and not (self.plan.folder / flags["validation_file"]).is_file():
            del flags["validation_file"], flags["do_eval"]
        command = step.command if is_of_sentences else "probe"
        return replace(step, name=name, command=command, seed=None, flags=flags | {"output_dir": self.get_folder(name)})

    def tune(self, method: str, task: str, fold: int | None, known: list[str]) -> list[Step]:
        """Return the steps that try the learning rates at the first seed, on the validation set only."""
        steps = []
        for rate in self.plan.learning_rates:
            step = self.fine_tune(method, task, fold, self.plan.seeds[0], known)
            name = f"{method}-{name_fold(task, fold)}-rate{rate:g}"
            flags = {**step.flags, "learning_rate": rate, "output_dir": self.get_folder(name)}
            del flags["do_predict"]
            steps.append(replace(step, name=name, kind="tuning", flags=flags))
        return steps

    def fine_tune(
        self, method: str, task_name: str, fold: int | None, seed: int, known: list[str], tuning: Sequence[str] = ()
    ) -> Step:
        """Return the step that fine-tunes an encoder and tests it."""
        plan, task, encoder = self.plan, self.plan.tasks[task_name], self.name_encoder(method, task_name)
        examples = name_fold(task_name, fold)
        name = f"{method}-{examples}{self.suffix if encoder else ''}-seed{seed}"
        flags: dict[str, Any] = {"model_name_or_path": self.get_encoder(method, task_name)}
        flags |= {f"{split}_file": task.get_file(split, fold) for split in SPLITS}
        recipe = plan.get_recipe(method)
        flags |= TRAINER_OPTIONS | FINE_TUNING | plan.fine_tuning | task.options
        flags |= {"tokenizer_name": plan.encoder} if self.reads_old_words(method, task.kind) else {}
        flags |= recipe.fine_tuning | plan.methods[method].fine_tuning
        needs = [*([encoder] if encoder in known else []), *tuning]
        reader = METHODS.get(str(flags.get("method")))
        if reader is not None and reader.reads_memory:
            flags["memory_name_or_path"] = plan.encoder
            overrides = parse_overrides(flags.get("config_overrides"))
            if overrides.get("freeze_memory", overrides.get("strategy") != "ensemble"):
                flags["memory_cache"] = f"{self.root}/memories/{method}-{examples}"
        if recipe.reads_datastore:
            needs.append(self.build_datastore(method, task_name).name)
            flags["datastore"] = f"{self.get_folder(needs[-1])}/datastore"
        if reader is not None and reader.reads_passages and self.has_frozen_passages(method, flags):
            flags["passage_cache"] = (
                f"{self.root}/passages/{self.label_encoder(method, task_name)}-{needs[-1]}-{examples}"
            )
        if task.kind in VALUES:
            flags["label_column_name"] = find_label_column(task.kind, flags["train_file"], plan.folder)
        if task.kind == "regression":
            flags["do_regression"] = True
        if task.kind == "retrieval":
            flags |= {"corpus_file": f"{task.folder}/{CORPUS}", "queries_file": f"{task.folder}/{QUERIES}"}
        # The validation set decides thresholds, early stopping, and which model is kept.
        flags |= {"seed": seed, "do_train": True, "do_eval": True, "do_predict": True}
        flags["output_dir"] = self.get_folder(name)
        command = TASK_COMMANDS.get(task.kind, task.kind)
        # Rows without pre-training have no seed and no rung of pre-training.
        pretraining_seed, rung = (self.pretraining_seed, self.rung) if encoder else (None, None)
        return Step(
            name, "fine_tuning", command, flags, needs, method, None, task_name, seed, pretraining_seed, rung, fold
        )


def find_end(trunk: Step) -> str:
    """Return the last checkpoint of a part of a trunk."""
    return f"{trunk.flags['output_dir']}/checkpoint-{trunk.flags['max_steps']}"
