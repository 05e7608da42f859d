# /// script
# requires-python = ">=3.11"
# dependencies = ["hf-domain"]
# ///
"""Make a small encoder of a domain from a large general one: the four strategies of Adapt-and-Distill (AdaLM).

    python examples/run_distill.py --model_name_or_path bert-base-uncased --strategy adapt_and_distill \
        --train_file corpus.txt.gz --general_file general.txt.gz --num_hidden_layers 6 --hidden_size 384 \
        --intermediate_size 1536 --teacher_steps 10000 --student_steps 30000 --output_dir distilled --dry_run

`--dry_run` prints the steps. Each step leaves a checkpoint below the output directory; what is done is skipped when the
command is given again, and a killed step goes on from its last checkpoint. The strategies share the output directory
and its adapted teacher. The batch size, `--learning_rate` (distillation) and all other options of Trainer hold for
every step; masked LM has a rate of its own.

The student is fresh, of the shape named above; or `--student_layers 1 3 5` picks layers of the teacher; or
`--student_name_or_path` names one. With `--expanded_vocabulary` teacher and student get the same new rows.

A distilled student is for fine-tuning. It cannot predict masked tokens, because distillation gives the end of its last
layer and its LM head no gradient; `--masked_lm_steps` trains both at the end, if you need them.
"""

import copy
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from transformers import (
    AutoModelForMaskedLM,
    AutoTokenizer,
    DataCollatorWithPadding,
    Trainer,
    TrainingArguments,
    set_seed,
)

from hf_domain.data.corpora import check_batch, check_held_out, find_files, load_files
from hf_domain.distillation.losses import DistillationConfig
from hf_domain.distillation.model import DistillationModel
from hf_domain.distillation.strategies import (
    Step,
    Strategy,
    begin_step,
    describe_plan,
    fingerprint_checkpoint,
    finish_step,
    make_plan,
    restart_step,
)
from hf_domain.distillation.students import check_pair, check_same_vocabulary, make_student, pick_layers
from hf_domain.environment import describe_environment
from hf_domain.examples import run_mlm
from hf_domain.files import fingerprint_files, lock_folder, read_json, write_folder, write_json
from hf_domain.new_rows import apply_delta, check_not_expanded
from hf_domain.rada.passages import PassageArguments
from hf_domain.tokenization import VocabularyDelta
from hf_domain.training.arguments import ModelArguments, parse_arguments
from hf_domain.training.callbacks import log_auxiliary_losses
from hf_domain.training.finiteness import check_weights
from hf_domain.training.run_folders import MADE, describe_run, find_checkpoint
from hf_domain.training.runs import load_tokenizer, run_evaluation, run_training, start_run, write_card

SHAPE = (
    "student_name_or_path",
    "student_layers",
    "num_hidden_layers",
    "hidden_size",
    "num_attention_heads",
    "intermediate_size",
)
# What of the text changes a checkpoint.
TEXT_OPTIONS = (
    "dataset_name",
    "dataset_config_name",
    "text_column_name",
    "streaming",
    "max_seq_length",
    "line_by_line",
    "max_train_samples",
    "do_eval",
    "validation_split_percentage",
)
# What a step sets itself, or does not read.
SET_BY_STEP = ("max_steps", "learning_rate", "do_train", "do_predict")


@dataclass
class StrategyArguments(ModelArguments):
    """The teacher (`model_name_or_path`), the student, and the way from one to the other."""

    strategy: Strategy = field(default="adapt_and_distill", metadata={"help": "See hf_domain.distillation.strategies."})
    teacher_steps: int = field(default=0, metadata={"help": "Steps that adapt the teacher."})
    student_steps: int = field(default=0, metadata={"help": "Steps of the student, divided among its own."})
    masked_lm_steps: int = field(default=0, metadata={"help": "Steps of masked LM after the last distillation."})
    mlm_learning_rate: float = field(default=1e-4, metadata={"help": "Of every step of masked LM."})
    dry_run: bool = field(default=False, metadata={"help": "Print the steps and stop."})
    student_name_or_path: str | None = field(default=None, metadata={"help": "Student that exists."})
    student_layers: list[int] | None = field(default=None, metadata={"help": "Layers of the teacher, 1 is the first."})
    num_hidden_layers: int | None = field(default=None, metadata={"help": "Layers of a fresh student."})
    hidden_size: int | None = field(default=None, metadata={"help": "Its width, if not the teacher's."})
    num_attention_heads: int | None = field(default=None, metadata={"help": "Its heads, if not the teacher's."})
    intermediate_size: int | None = field(default=None, metadata={"help": "Its feed-forward width, likewise."})
    method: Literal["minilm", "minilmv2"] = field(default="minilm", metadata={"help": "See DistillationConfig."})
    num_relation_heads: int | None = field(default=None, metadata={"help": "Of minilmv2."})
    teacher_layer: int | None = field(default=None, metadata={"help": "The layer that teaches, if not the last."})
    teacher_dtype: Literal["auto", "float32", "bfloat16"] = field(
        default="float32", metadata={"help": "Type of the weights of a teacher that teaches."}
    )
    expanded_vocabulary: str | None = field(default=None, metadata={"help": "Folder written by run_expand_vocab.py."})

    def __post_init__(self) -> None:
        ways = {name: getattr(self, name) for name in SHAPE[:3]}
        if sum(way is not None for way in ways.values()) != 1:
            raise ValueError(f"a student is named, picked from the teacher's layers or made fresh; got {ways}")
        self.distillation_config = DistillationConfig(self.method, self.num_relation_heads, self.teacher_layer)

    @property
    def student_hub_options(self) -> dict:
        return {**self.hub_options, "revision": "main"}  # the revision is the teacher's


@dataclass
class CorpusArguments(run_mlm.DataTrainingArguments):
    """The text of the domain (`train_file`), and general text for the general teacher."""

    general_file: list[str] | None = field(
        default=None, metadata={"help": "Text for the general teacher's distillation, if not that of the domain."}
    )


def build_student(args: StrategyArguments, teacher: str):
    """Build the student before training, on the vocabulary of `teacher`."""
    if args.student_name_or_path is not None:
        return AutoModelForMaskedLM.from_pretrained(args.student_name_or_path, **args.student_hub_options)
    teacher_model = AutoModelForMaskedLM.from_pretrained(teacher, **args.hub_options)
    if args.student_layers is not None:
        return pick_layers(teacher_model, args.student_layers)
    return make_student(
        teacher_model,
        num_hidden_layers=args.num_hidden_layers,
        hidden_size=args.hidden_size,
        num_attention_heads=args.num_attention_heads,
        intermediate_size=args.intermediate_size,
    )


def check_text(data_args: CorpusArguments) -> None:
    """Find out now that a file is missing, and not after the teacher was adapted."""
    for files in (data_args.train_file, data_args.validation_file, data_args.general_file):
        if files:
            load_files(files, streaming=True)
    if not (data_args.train_file or data_args.dataset_name):
        raise ValueError("distillation needs text: give --train_file or --dataset_name")
    check_held_out(data_args.train_file, {"validation_file": data_args.validation_file})


def check_before_work(args: StrategyArguments, plan: list[Step], max_seq_length: int) -> None:
    """Find out now what would end the last step after days: a pair that does not fit, vocabularies that differ."""
    fingerprint_checkpoint(args.model_name_or_path)
    load_tokenizer(args, max_seq_length)
    teacher = AutoModelForMaskedLM.from_pretrained(args.model_name_or_path, **args.hub_options)
    if args.student_name_or_path is not None:
        theirs = AutoTokenizer.from_pretrained(args.tokenizer_name or args.model_name_or_path, **args.hub_options)
        ours = AutoTokenizer.from_pretrained(args.student_name_or_path, **args.student_hub_options)
        check_same_vocabulary(ours, theirs)
    student = build_student(args, args.model_name_or_path)
    if any(step.kind == "distill" for step in plan):
        check_pair(student, teacher, args.distillation_config)
    if args.expanded_vocabulary is not None:
        own = AutoTokenizer.from_pretrained(args.tokenizer_name or args.model_name_or_path, **args.hub_options)
        check_not_expanded(own, VocabularyDelta.load(args.expanded_vocabulary))


def make(step: Step, args: StrategyArguments) -> None:
    """Save the student before training, with its tokenizer."""
    student = build_student(args, step.teacher)
    tokenizer, options = step.model or step.teacher, args.hub_options
    if tokenizer == args.student_name_or_path:
        options = args.student_hub_options
    elif tokenizer == args.model_name_or_path:
        tokenizer = args.tokenizer_name or tokenizer
    if step.expand:
        apply_delta(student, VocabularyDelta.load(args.expanded_vocabulary))
        tokenizer = args.expanded_vocabulary
    with write_folder(step.output_dir, replaced=MADE) as folder:
        AutoTokenizer.from_pretrained(tokenizer, **options).save_pretrained(folder)
        student.save_pretrained(folder)


def adapt(step: Step, args: StrategyArguments, data_args: CorpusArguments, training_args: TrainingArguments) -> None:
    """Continue the pre-training of teacher or student on the domain, by masked LM."""
    model_args = run_mlm.MethodArguments(
        step.model,
        tokenizer_name=args.tokenizer_name if step.model == args.model_name_or_path else None,
        cache_dir=args.cache_dir,
        model_revision=args.model_revision,
        token=args.token,
        trust_remote_code=args.trust_remote_code,
        expanded_vocabulary=args.expanded_vocabulary if step.expand else None,
    )
    training_args.learning_rate = args.mlm_learning_rate
    run_mlm.run(model_args, data_args, PassageArguments(), training_args)


def distill(step: Step, args: StrategyArguments, data_args: CorpusArguments, training_args: TrainingArguments) -> None:
    """Let the student learn from the teacher."""
    teacher = AutoModelForMaskedLM.from_pretrained(step.teacher, dtype=args.teacher_dtype, **args.hub_options)
    student = AutoModelForMaskedLM.from_pretrained(step.model, dtype="float32")
    check_weights(teacher, str(step.teacher))
    check_weights(student, str(step.model))
    model_args = ModelArguments(step.model, cache_dir=args.cache_dir)
    tokenizer = load_tokenizer(model_args, data_args.max_seq_length)
    check_same_vocabulary(tokenizer, AutoTokenizer.from_pretrained(step.teacher, **args.hub_options))
    model = DistillationModel(student, teacher, args.distillation_config)
    if step.corpus == "general":
        data_args = copy.copy(data_args)
        data_args.train_file, data_args.validation_file = data_args.general_file, None
        data_args.dataset_name = data_args.dataset_config_name = None
    with training_args.main_process_first(desc="loading and tokenizing the corpus"):
        examples = run_mlm.load_data(data_args, model_args, training_args.do_eval, tokenizer)
    check_batch(examples["train"], training_args.train_batch_size * training_args.gradient_accumulation_steps)
    trainer = Trainer(
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
    write_card(trainer, args, "feature-extraction", tags=["hf-domain", "distillation", args.method])


def list_settings(
    step: Step, args: StrategyArguments, data_args: CorpusArguments, training_args: TrainingArguments
) -> dict:
    """List the options that change what a step leaves, and digests of the files it reads."""
    names = {
        "make": [*SHAPE, "expanded_vocabulary"],
        "adapt": ["mlm_learning_rate", "mlm_probability", "whole_word_mask", "expanded_vocabulary"],
        "distill": ["learning_rate", "method", "num_relation_heads", "teacher_layer", "teacher_dtype"],
    }[step.kind]
    files = ["general_file"] if step.corpus == "general" else ["train_file"]
    if step.kind != "make":
        names = [*names, *TEXT_OPTIONS, *files]
    everything = {**vars(training_args), **vars(data_args), **vars(args)}
    settings = {name: everything[name] for name in [*names, "model_revision", "tokenizer_name", "seed"]}
    if step.kind != "make":
        options = describe_run([training_args])["options"]
        settings |= {name: value for name, value in options.items() if name not in SET_BY_STEP}
        settings["text"] = [fingerprint_files([file]) for file in find_files(everything[files[0]] or [])]
    if step.expand:
        settings["new_entries"] = fingerprint_files(sorted(Path(str(args.expanded_vocabulary)).glob("*.json")))
    return settings


def main() -> None:
    args, data_args, training_args = parse_arguments(
        StrategyArguments, CorpusArguments, TrainingArguments, description=__doc__
    )
    plan = make_plan(
        args.strategy,
        teacher=args.model_name_or_path,
        output_dir=training_args.output_dir,
        student=args.student_name_or_path,
        expand=args.expanded_vocabulary is not None,
        teacher_steps=args.teacher_steps,
        student_steps=args.student_steps,
        masked_lm_steps=args.masked_lm_steps,
    )
    if data_args.general_file is None:
        plan = [replace(step, corpus="domain") if step.corpus == "general" else step for step in plan]
    check_text(data_args)
    is_main = training_args.process_index == 0
    if is_main:
        print(describe_plan(plan), flush=True)
    if args.dry_run:
        return
    start_run(training_args)
    with lock_folder(training_args.output_dir) if is_main else nullcontext():
        run(args, data_args, training_args, plan)


def run(
    args: StrategyArguments, data_args: CorpusArguments, training_args: TrainingArguments, plan: list[Step]
) -> None:
    check_before_work(args, plan, data_args.max_seq_length)
    is_main, metrics = training_args.process_index == 0, {}
    for step in plan:
        if is_main and args.overwrite_output_dir:
            restart_step(step)
    for step in plan:
        # One process after the other: the first may still write what this step starts from.
        with training_args.main_process_first(desc=f"beginning {step.output_dir}"):
            is_open = begin_step(step, list_settings(step, args, data_args, training_args))
            if is_open and step.kind == "make":
                set_seed(training_args.seed)
                make(step, args)
                finish_step(step)
        if is_open and step.kind != "make":
            set_seed(training_args.seed)
            step_args = copy.copy(training_args)
            step_args.output_dir, step_args.max_steps, step_args.do_train = step.output_dir, step.steps, True
            step_args.resume_from_checkpoint = find_checkpoint(step.output_dir)
            {"adapt": adapt, "distill": distill}[step.kind](step, args, copy.copy(data_args), step_args)
            if is_main:
                finish_step(step)
        results = Path(step.output_dir, "all_results.json")
        metrics[step.output_dir] = read_json(results) if results.is_file() else {}
    if is_main:
        result = {"strategy": args.strategy, "environment": describe_environment(), "steps": metrics}
        write_json(Path(training_args.output_dir, args.strategy, "results.json"), result)
        print(f"the student: {plan[-1].output_dir}")
        if plan[-1].kind == "distill":
            print("It is for fine-tuning: its last layer and LM head need --masked_lm_steps to predict masked tokens.")


def _mp_fn(index: int) -> None:
    main()


if __name__ == "__main__":
    main()
