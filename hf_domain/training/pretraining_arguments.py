"""The flags of masked LM, and which of them exclude each other."""

import logging
from dataclasses import dataclass, field
from typing import Literal

from transformers import TrainingArguments
from transformers.trainer_utils import SchedulerType

from hf_domain.data.causal import check_causal
from hf_domain.data.files import check_held_out, find_files
from hf_domain.methods import BASELINE, METHODS, PRETRAINING_METHODS
from hf_domain.training.arguments import PADDING_FREE, ModelArguments, check_best_metric, check_work
from hf_domain.training.masked_lm_corpus import CorpusArguments, split_mix
from hf_domain.training.masked_lm_trainer import read_trunk
from hf_domain.training.overrides import load_config
from hf_domain.training.recipes import TRAINING_RECIPES

logger = logging.getLogger(__name__)


@dataclass
class PretrainingArguments(ModelArguments):
    """The encoder, and how to change it."""

    method: str = field(
        default=BASELINE,
        metadata={
            "help": "Train the encoder (dapt), low-rank changes of it (lora), or a method of this package.",
            "choices": PRETRAINING_METHODS,
        },
    )
    expanded_vocabulary: str | None = field(default=None, metadata={"help": "Folder written by expand_vocab."})
    head_first_steps: int | None = field(
        default=None,
        metadata={"help": "Train only a head that the checkpoint lacks for this many steps. Default: a tenth of them."},
    )
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = field(
        default="float32", metadata={"help": "Data type of the weights; use --bf16 for mixed precision."}
    )
    padding_free: bool = field(default=False, metadata={"help": PADDING_FREE})
    dropout: bool = field(default=False, metadata={"help": "Train with the dropout of the encoder's config."})
    recipe: str | None = field(
        default=None,
        metadata={"help": "Published settings as defaults of the other flags.", "choices": [*TRAINING_RECIPES]},
    )
    document_boundaries: bool = field(
        default=False, metadata={"help": "Pack whole documents into blocks, without attention between them."}
    )
    decay_mlm_probability: float | None = field(
        default=None,
        metadata={
            "help": "Share of tokens to mask while a warmup_stable_decay schedule decays, and in evaluations. "
            "Default: --mlm_probability."
        },
    )
    resume_decay_from: str | None = field(
        default=None,
        metadata={"help": "A checkpoint of another run, before its decay: this run lets its rate decay, on this text."},
    )
    attn_implementation: str | None = field(
        default=None, metadata={"help": "Attention: sdpa, eager or flash_attention_2. Default: transformers' choice."}
    )

    def __post_init__(self) -> None:
        if self.expanded_vocabulary is not None:
            self.tokenizer_name = self.expanded_vocabulary


def check_options(
    model_args: PretrainingArguments, data_args: CorpusArguments, training_args: TrainingArguments
) -> None:
    """Check the flags that depend on each other.

    Raises:
        FileNotFoundError: A file is missing.
        ValueError: A flag needs or excludes another one, or the validation text is also training text.
    """
    check_work(training_args, "do_train", "do_eval")
    check_best_metric(training_args, [])
    if training_args.do_train:
        check_share(data_args, training_args)
        names = ("validation_file", "general_validation_file")
        check_held_out(data_args.train_file, {name: getattr(data_args, name) for name in names})
    if data_args.objective == "clm" and (
        data_args.whole_word_mask or not METHODS[model_args.method].trains_stock_model
    ):
        raise ValueError(
            "--objective clm needs --method dapt or lora, without --whole_word_mask, but --method is "
            f"{model_args.method} and whole_word_mask is {data_args.whole_word_mask}. Change them, or use --objective "
            "mlm."
        )
    if data_args.objective == "clm":
        check_causal(load_config(model_args)[0].model_type)
    if data_args.objective == "clm" and model_args.padding_free:
        raise ValueError("--padding_free needs --objective mlm, but the objective is clm. Leave --padding_free out.")
    check_packing(model_args, data_args)
    check_trunk(model_args, training_args)
    if data_args.mix is not None:
        path, _ = split_mix(data_args.mix)
        names = ("validation_file", "general_validation_file")
        check_held_out([path], {name: getattr(data_args, name) for name in names})
    check_stream(data_args, training_args)
    check_smoothing(model_args, training_args)
    if METHODS[model_args.method].finish and training_args.push_to_hub and not training_args.do_train:
        raise ValueError(
            f"--push_to_hub must come with --do_train for --method {model_args.method}, which pushes what it trained. "
            "Add --do_train."
        )
    check_files(data_args, training_args.do_eval)


def check_files(data_args: CorpusArguments, do_eval: bool) -> None:
    """Raise a FileNotFoundError for a missing file that would be read only after the corpus is tokenized."""
    files = [*(data_args.general_validation_file or [])] if do_eval else []
    find_files([*files, split_mix(data_args.mix)[0]] if data_args.mix is not None else files)


def check_packing(model_args: PretrainingArguments, data_args: CorpusArguments) -> None:
    """Raise a ValueError if a flag excludes blocks of whole documents, or another share of masks in the decay."""
    is_causal = data_args.objective == "clm"
    if model_args.document_boundaries and (data_args.line_by_line or model_args.padding_free or is_causal):
        raise ValueError(
            "--document_boundaries must be used without --line_by_line, --padding_free and --objective clm, but one of "
            "them is set. Leave it out, or set --document_boundaries false."
        )
    if model_args.decay_mlm_probability is not None and is_causal:
        raise ValueError(
            "--decay_mlm_probability, which a recipe sets, needs --objective mlm, but the objective is clm. Leave the "
            "flag or the recipe out."
        )


def check_trunk(model_args: PretrainingArguments, training_args: TrainingArguments) -> None:
    """Check the checkpoint whose rate decays, and take its rate and the schedule; see `check_options`."""
    if (trunk := model_args.resume_decay_from) is None:
        return
    if training_args.fsdp or training_args.deepspeed or not training_args.do_train:
        raise ValueError(
            "--resume_decay_from needs --do_train and whole weights, but the run does not train, or shards them. Add "
            "--do_train, and leave FSDP and DeepSpeed out."
        )
    state = read_trunk(trunk)
    training_args.lr_scheduler_type = SchedulerType.WARMUP_STABLE_DECAY
    training_args.warmup_steps = 0
    if training_args.learning_rate is None:
        training_args.learning_rate = state["param_groups"][0]["initial_lr"]


def check_smoothing(model_args: PretrainingArguments, training_args: TrainingArguments) -> None:
    """Raise a ValueError if Trainer would replace the model's own loss in order to smooth the labels."""
    if not training_args.label_smoothing_factor:
        return
    own = {name for name, row in METHODS.items() if row.has_own_loss}
    if found := own & {model_args.method, load_config(model_args)[0].model_type}:
        raise ValueError(
            "--label_smoothing_factor needs a model whose loss is the cross-entropy of the labels, but "
            f"{found.pop()} has a loss of its own. Leave the flag out."
        )


def check_stream(data_args: CorpusArguments, training_args: TrainingArguments) -> None:
    """Check the flags of a stream, see `check_options`."""
    if data_args.streaming and training_args.do_train and training_args.max_steps <= 0:
        raise ValueError(
            "--streaming must come with --max_steps, because the length of a stream is unknown. Add --max_steps."
        )
    is_cut = data_args.streaming and training_args.do_train and training_args.do_eval and not data_args.validation_file
    if is_cut and training_args.world_size > 1:
        raise ValueError(
            "--streaming on several processes needs a --validation_file, because each process reads other files, and "
            "would train on documents that another one holds out. Add it, or leave out --do_eval."
        )
    if data_args.streaming and data_args.dask_scheduler is not None:
        raise ValueError(
            "--dask_scheduler tokenizes the text before training, but --streaming reads it during training. Leave one "
            "flag out."
        )


def check_share(data_args: CorpusArguments, training_args: TrainingArguments) -> None:
    """Raise a ValueError if a step is expected to have no token to predict."""
    examples = training_args.train_batch_size * training_args.gradient_accumulation_steps * training_args.world_size
    tokens, share = examples * data_args.max_seq_length, data_args.mlm_probability
    if share * tokens < 1:
        raise ValueError(
            f"--mlm_probability must mask at least one of the {tokens:,} tokens of a step, but {share:g} masks "
            f"{share * tokens:.1g} on average. Raise it, or use larger batches."
        )
