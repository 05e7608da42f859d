"""The steps of Adapt-and-Distill: arguments, checks before work, and how each kind of step runs."""

import copy
from contextlib import nullcontext
from dataclasses import dataclass, field, fields, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

from transformers import (
    AutoModelForMaskedLM,
    AutoTokenizer,
    DataCollatorWithPadding,
    PreTrainedModel,
    Trainer,
    TrainingArguments,
    set_seed,
)

from hf_domain.checks import check_weights
from hf_domain.data.corpora import check_batch
from hf_domain.data.files import check_held_out, load_files
from hf_domain.environment import describe_environment
from hf_domain.methods.adalm.losses import DistillationConfig
from hf_domain.methods.adalm.model import DistillationModel
from hf_domain.methods.adalm.students import check_pair, check_same_vocabulary, make_student, pick_layers
from hf_domain.methods.new_embeddings import apply_delta, check_not_expanded
from hf_domain.methods.rada.passages import PassageArguments
from hf_domain.safe_io import lock_folder, read_json, write_folder, write_json
from hf_domain.tokenization import VocabularyDelta
from hf_domain.training.arguments import ModelArguments
from hf_domain.training.callbacks import log_auxiliary_losses
from hf_domain.training.masked_lm_corpus import CorpusArguments, load_examples
from hf_domain.training.orders import (
    Strategy,
    StrategyStep,
    make_plan,
)
from hf_domain.training.out_of_memory import fit_to_memory
from hf_domain.training.pretraining import train_masked_lm
from hf_domain.training.pretraining_arguments import PretrainingArguments, check_files, check_options
from hf_domain.training.run import load_tokenizer, run_evaluation, run_training, start_run, write_card
from hf_domain.training.run_folder import MADE, METRICS, run_in_folder

SHAPE = (
    "student_name_or_path",
    "student_layers",
    "num_hidden_layers",
    "hidden_size",
    "num_attention_heads",
    "intermediate_size",
)
# What decides on the list of steps, and on no step itself.
OF_PLAN = ("strategy", "teacher_steps", "student_steps", "masked_lm_steps", "dry_run", "general_file")
OF_LOSS = ("method", "num_relation_heads", "teacher_layer", "teacher_dtype")
OF_MASKS = ("mlm_learning_rate", "objective", "mlm_probability", "whole_word_mask")
OF_TRAINING = {item.name for item in fields(TrainingArguments)} - {"seed"} | {"num_processes"}
# Options that do not change a kind of steps.
UNREAD = {
    "make": {*OF_PLAN, *OF_LOSS, *OF_TRAINING, "mlm_learning_rate"},
    "adapt": {*OF_PLAN, *OF_LOSS, *SHAPE},
    "distill": {*OF_PLAN, *OF_MASKS, *SHAPE, "expanded_vocabulary"},
}


@dataclass
class DistillationArguments(ModelArguments):
    """The teacher (`model_name_or_path`), the student, and how the student is trained."""

    strategy: Strategy = field(
        default="adapt_and_distill", metadata={"help": "Order of the stages, see docs/guides/distill_and_export.md."}
    )
    teacher_steps: int = field(default=0, metadata={"help": "Training steps that adapt the teacher."})
    student_steps: int = field(
        default=0, metadata={"help": "Training steps of the student in all, divided evenly among its stages."}
    )
    masked_lm_steps: int = field(
        default=0, metadata={"help": "Training steps of masked LM after the last distillation."}
    )
    mlm_learning_rate: float = field(default=1e-4, metadata={"help": "Learning rate of masked LM."})
    dry_run: bool = field(default=False, metadata={"help": "Print the stages and stop."})
    student_name_or_path: str | None = field(default=None, metadata={"help": "An existing student."})
    student_layers: list[int] | None = field(
        default=None, metadata={"help": "Build the student from these layers of the teacher; 1 is the first."}
    )
    num_hidden_layers: int | None = field(default=None, metadata={"help": "Number of layers of a new student."})
    hidden_size: int | None = field(default=None, metadata={"help": "Its width. Default: the teacher's."})
    num_attention_heads: int | None = field(default=None, metadata={"help": "Its heads. Default: the teacher's."})
    intermediate_size: int | None = field(
        default=None,
        metadata={"help": "Its feed-forward width, also with --student_layers. Default: the teacher's."},
    )
    method: Literal["minilm", "minilmv2"] = field(
        default="minilm", metadata={"help": "Loss: MiniLM needs equally many heads, MiniLMv2 does not."}
    )
    num_relation_heads: int | None = field(
        default=None, metadata={"help": "Relation heads of minilmv2. Default: four times the teacher's heads."}
    )
    teacher_layer: int | None = field(default=None, metadata={"help": "The layer that teaches. Default: the last."})
    teacher_dtype: Literal["auto", "float32", "bfloat16"] = field(
        default="float32", metadata={"help": "Data type of the teacher's weights during distillation."}
    )
    expanded_vocabulary: str | None = field(default=None, metadata={"help": "Folder written by expand_vocab."})

    def __post_init__(self) -> None:
        ways = {name: getattr(self, name) for name in SHAPE[:3]}
        if sum(way is not None for way in ways.values()) != 1:
            raise ValueError(
                "exactly one of student_name_or_path, student_layers and num_hidden_layers must be given, but "
                f"they are {ways}"
            )
        shape = [name for name in SHAPE[3:] if getattr(self, name) is not None]
        if self.student_layers is not None:
            shape = [name for name in shape if name != "intermediate_size"]
        if shape and self.num_hidden_layers is None:
            raise ValueError(
                f"{' and '.join(f'--{name}' for name in shape)} must come with --num_hidden_layers, because another "
                "student has the shape of its model. Leave them out, or make a new student."
            )
        if self.masked_lm_steps and not self.strategy.startswith("adapt"):
            raise ValueError(
                f"--masked_lm_steps must come with a strategy that ends with a distillation, but {self.strategy} ends "
                "with masked LM. Leave the flag out."
            )
        self.distillation_config = DistillationConfig(self.method, self.num_relation_heads, self.teacher_layer)

    @property
    def student_hub_options(self) -> dict[str, Any]:
        """The options for loading the student; the revision belongs to the teacher only."""
        return {**self.hub_options, "revision": "main"}


@dataclass
class DistillationCorpusArguments(CorpusArguments):
    """The text of the domain (`train_file`), and general text for the general teacher."""

    general_file: list[str] | None = field(
        default=None,
        metadata={"help": "General text for distilling the general teacher. Default: the text of the domain."},
    )


def plan_steps(
    args: DistillationArguments, data_args: DistillationCorpusArguments, output_dir: str
) -> list[StrategyStep]:
    """List the steps that the arguments ask for."""
    plan = make_plan(
        args.strategy,
        teacher=args.model_name_or_path,
        output_dir=output_dir,
        student=args.student_name_or_path,
        expand=args.expanded_vocabulary is not None,
        teacher_steps=args.teacher_steps,
        student_steps=args.student_steps,
        masked_lm_steps=args.masked_lm_steps,
    )
    if data_args.general_file is None:
        plan = [replace(step, corpus="domain") if step.corpus == "general" else step for step in plan]
    return plan


def build_student(args: DistillationArguments, teacher: str) -> PreTrainedModel:
    """Build the untrained student, with the vocabulary of `teacher`."""
    if args.student_name_or_path is not None:
        return AutoModelForMaskedLM.from_pretrained(args.student_name_or_path, **args.student_hub_options)
    teacher_model = AutoModelForMaskedLM.from_pretrained(teacher, **args.hub_options)
    if args.student_layers is not None:
        return pick_layers(teacher_model, args.student_layers, args.intermediate_size)
    assert args.num_hidden_layers is not None  # one of the three is given
    return make_student(
        teacher_model,
        num_hidden_layers=args.num_hidden_layers,
        hidden_size=args.hidden_size,
        num_attention_heads=args.num_attention_heads,
        intermediate_size=args.intermediate_size,
    )


def check_text(data_args: DistillationCorpusArguments) -> None:
    """Raise for a missing text file now, not after days of adapting the teacher."""
    for files in (data_args.train_file, data_args.validation_file, data_args.general_file):
        if files:
            load_files(files, streaming=True)
    if not (data_args.train_file or data_args.dataset_name):
        raise ValueError("distillation needs text, but none is given. Add --train_file or --dataset_name.")
    check_held_out(data_args.train_file, {"validation_file": data_args.validation_file})


def check_before_work(
    args: DistillationArguments,
    plan: list[StrategyStep],
    data_args: DistillationCorpusArguments,
    training_args: TrainingArguments,
) -> None:
    """Raise now for options, files, a pair or vocabularies that do not fit: they would end a later step after days."""
    tokenizer = load_tokenizer(args, data_args.max_seq_length)
    for step in plan:
        if step.kind == "adapt":
            there = replace(step, model=args.model_name_or_path)  # a student is not made yet
            model_args = make_model_args(there, args)
            step_args = copy.copy(training_args)
            step_args.max_steps, step_args.do_train = step.steps, True
            check_options(model_args, data_args, step_args)
    check_files(data_args, training_args.do_eval)
    teacher = AutoModelForMaskedLM.from_pretrained(args.model_name_or_path, **args.hub_options)
    if args.student_name_or_path is not None:
        ours = AutoTokenizer.from_pretrained(args.student_name_or_path, **args.student_hub_options)
        check_same_vocabulary(ours, tokenizer)
    student = build_student(args, args.model_name_or_path)
    if any(step.kind == "distill" for step in plan):
        check_pair(student, teacher, args.distillation_config)
    if args.expanded_vocabulary is not None:
        check_not_expanded(tokenizer, VocabularyDelta.load(args.expanded_vocabulary))


def make(step: StrategyStep, args: DistillationArguments, training_args: TrainingArguments) -> None:
    """Save the untrained student with its tokenizer, from one process; the next step waits for it."""
    assert step.teacher is not None
    if training_args.process_index > 0:
        return
    student = build_student(args, step.teacher)
    tokenizer, options = step.model or step.teacher, args.hub_options
    if tokenizer == args.student_name_or_path:
        options = args.student_hub_options
    elif tokenizer == args.model_name_or_path:
        tokenizer = args.tokenizer_name or tokenizer
    if step.expand:
        assert args.expanded_vocabulary is not None
        apply_delta(student, VocabularyDelta.load(args.expanded_vocabulary))
        tokenizer = args.expanded_vocabulary
    with write_folder(step.output_dir, replaced=MADE) as folder:
        AutoTokenizer.from_pretrained(tokenizer, **options).save_pretrained(folder)
        student.save_pretrained(folder)


def make_model_args(step: StrategyStep, args: DistillationArguments) -> PretrainingArguments:
    """Return the arguments of a masked-LM step."""
    assert step.model is not None
    return PretrainingArguments(
        step.model,
        tokenizer_name=args.tokenizer_name if step.model == args.model_name_or_path else None,
        cache_dir=args.cache_dir,
        model_revision=args.model_revision,
        token=args.token,
        trust_remote_code=args.trust_remote_code,
        expanded_vocabulary=args.expanded_vocabulary if step.expand else None,
    )


def continue_pretraining(
    step: StrategyStep, args: DistillationArguments, data_args: CorpusArguments, training_args: TrainingArguments
) -> None:
    """Continue the pre-training of teacher or student on the domain by masked LM."""
    model_args = make_model_args(step, args)
    trainer, _ = fit_to_memory(partial(train_masked_lm, model_args, data_args, PassageArguments()), training_args)
    if step.model == args.model_name_or_path:
        write_card(trainer, "fill-mask", model_args, data_args)
    else:
        student = describe_student(trainer.model, step, args)  # type: ignore[arg-type]
        write_card(trainer, "fill-mask", args, data_args, student=student)


def describe_student(student: PreTrainedModel, step: StrategyStep, args: DistillationArguments) -> str:
    """Return a sentence for the card of a student; its `{base_model}` is the teacher."""
    count = student.config.num_hidden_layers
    return (
        f"A student of {{base_model}} with {count} {'layer' if count == 1 else 'layers'} and "
        f"{student.num_parameters():,} parameters, after the stage {Path(step.output_dir).name} of {args.strategy}."
    )


class DistillationTrainer(Trainer):
    """transformers' Trainer with a held-out loss that does not depend on the number of processes."""

    def prediction_step(self, model: Any, inputs: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        """Leave out the examples that fill up the last batch of several processes: its loss is a mean over examples."""
        state, size = self.accelerator.gradient_state, len(inputs["input_ids"])
        if self.accelerator.num_processes > 1 and state.end_of_dataloader and state.remainder > 0:
            # A process without an example of its own computes one, which Trainer drops when it gathers the losses.
            own = max(1, state.remainder - self.accelerator.process_index * size)
            inputs = {name: values[:own] for name, values in inputs.items()}
        return super().prediction_step(model, inputs, *args, **kwargs)


def distill(
    step: StrategyStep,
    args: DistillationArguments,
    data_args: DistillationCorpusArguments,
    training_args: TrainingArguments,
) -> None:
    """Distill the teacher into the student."""
    assert step.teacher is not None and step.model is not None
    teacher = AutoModelForMaskedLM.from_pretrained(step.teacher, dtype=args.teacher_dtype, **args.hub_options)
    student = AutoModelForMaskedLM.from_pretrained(step.model, dtype="float32")
    check_weights(teacher, str(step.teacher))
    check_weights(student, str(step.model))
    model_args = ModelArguments(step.model, cache_dir=args.cache_dir)
    tokenizer = load_tokenizer(model_args, data_args.max_seq_length)
    named = args.tokenizer_name if step.teacher == args.model_name_or_path else None
    check_same_vocabulary(tokenizer, AutoTokenizer.from_pretrained(named or step.teacher, **args.hub_options))
    model = DistillationModel(student, teacher, args.distillation_config)
    if training_args.ddp_find_unused_parameters is None:
        # MiniLM gives the parts above the last attention no gradient. Trainer does not let processes look for such
        # parts with gradient checkpointing, and they would then stop at the second step.
        training_args = copy.copy(training_args)
        training_args.ddp_find_unused_parameters = True
    with training_args.main_process_first(desc="loading and tokenizing the corpus"):
        examples, _ = load_examples(data_args, model_args, training_args.do_eval, tokenizer)
    check_batch(examples["train"], training_args.train_batch_size * training_args.gradient_accumulation_steps)
    trainer = DistillationTrainer(
        model=model,
        args=training_args,
        train_dataset=examples["train"],
        eval_dataset=examples["validation"] if training_args.do_eval else None,
        processing_class=tokenizer,
        data_collator=DataCollatorWithPadding(tokenizer),
    )
    log_auxiliary_losses(trainer)
    run_training(trainer)
    if training_args.do_eval:
        run_evaluation(trainer)
    write_card(trainer, "feature-extraction", args, data_args, student=describe_student(student, step, args))


def run_strategy(
    plan: list[StrategyStep],
    args: DistillationArguments,
    data_args: DistillationCorpusArguments,
    training_args: TrainingArguments,
) -> None:
    """Run the steps of `plan_steps` that are not finished, and write results.json with the metrics of all.

    Raises:
        ValueError: Options, files, a pair or vocabularies do not fit.
    """
    start_run(training_args, args.verbose)
    is_main, folder = training_args.process_index == 0, Path(str(training_args.output_dir))
    with lock_folder(folder) if is_main else nullcontext():
        check_before_work(args, plan, data_args, training_args)
        metrics = {step.output_dir: run_strategy_step(step, args, data_args, training_args) for step in plan}
        if is_main:
            result = {"strategy": args.strategy, "environment": describe_environment(), "steps": metrics}
            write_json(folder / args.strategy / "results.json", result)


def run_strategy_step(
    step: StrategyStep,
    args: DistillationArguments,
    data_args: DistillationCorpusArguments,
    training_args: TrainingArguments,
) -> dict[str, Any]:
    """Run a step, or the rest of it, unless it is finished, and return its metrics."""
    data_args, training_args = copy.copy(data_args), copy.copy(training_args)
    training_args.output_dir, training_args.resume_from_checkpoint = step.output_dir, None
    training_args.do_train, training_args.max_steps = step.kind != "make", step.steps
    if step.kind == "adapt":
        training_args.learning_rate = args.mlm_learning_rate
    if step.corpus == "general":
        data_args.train_file, data_args.validation_file = data_args.general_file, None
        data_args.dataset_name = data_args.dataset_config_name = data_args.data_license = None
    set_seed(training_args.seed)
    if step.kind == "make":
        run_in_folder(make, step, args, training_args, free=UNREAD["make"])
    else:
        train = continue_pretraining if step.kind == "adapt" else distill
        run_in_folder(train, step, args, data_args, training_args, free=UNREAD[step.kind])
    results = Path(step.output_dir, METRICS)
    return read_json(results) if results.is_file() else {}
