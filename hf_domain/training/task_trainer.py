"""Load the data of a task and the model with its labels, and train: the parts of a fine-tuning."""

import logging
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from datasets import Dataset, DatasetDict
from transformers import PreTrainedModel, PreTrainedTokenizerBase, Trainer, TrainingArguments
from transformers.tokenization_utils_base import LARGE_INTEGER
from transformers.trainer_utils import EvalLoopOutput, EvalPrediction

from hf_domain.checks import check_weights
from hf_domain.data.columns import name_example
from hf_domain.data.corpora import check_known
from hf_domain.data.files import check_held_out, load_files, load_named, locate_row
from hf_domain.methods import METHODS
from hf_domain.methods.new_embeddings import grow_tables, join_added_tokens
from hf_domain.methods.rada.collator import PASSAGE_COLUMNS, DataCollatorWithPassages
from hf_domain.methods.stock_models import match_tokenizer, normalize_stock_loss
from hf_domain.modeling.backbone import get_native_config, train_top_layers
from hf_domain.tasks.classification import find_vote
from hf_domain.tasks.heads import choose_start, list_head_weights, start_head
from hf_domain.tasks.kind import DataArguments
from hf_domain.tasks.vote import NearestVote
from hf_domain.training.arguments import FineTuningArguments, ModelArguments, check_work, keep_last_batch
from hf_domain.training.callbacks import has_schedule
from hf_domain.training.method_rate import choose_method_rate
from hf_domain.training.overrides import load_config
from hf_domain.training.padding_free import remove_padding
from hf_domain.training.run import limit_length
from hf_domain.training.terminal import explain_pickles, hide_load_report, report_new_weights

logger = logging.getLogger(__name__)


class FineTuningTrainer(Trainer):
    """transformers' Trainer, which also starts a new head from the states it reads and evaluates all examples in order.

    `evaluated` is the output of the last evaluation, with its predictions, and `evaluated_split` names its split. A
    `vote` is mixed into all predictions and their metrics, but not into the loss.

    The stock Trainer averages the losses of batches: one with few words counts as much as one with many, and with
    several processes the rows that fill up the last batch count twice. `measure_loss` measures that of all predictions.
    Trainer also reorders evaluated examples with `train_sampling_strategy="group_by_length"`, so that
    predictions stand beside the wrong examples, and drops the last ones with `dataloader_drop_last`.
    """

    train_dataset: Dataset
    eval_dataset: Dataset
    evaluated: EvalLoopOutput
    evaluated_split: str

    def __init__(
        self,
        model: PreTrainedModel,
        args: TrainingArguments,
        *,
        vote: NearestVote | None = None,
        measure_loss: Callable[[Any, Any], float | None] | None = None,
        **options: Any,
    ):
        if args.learning_rate is None:
            width = get_native_config(model.config).hidden_size
            args.learning_rate = choose_learning_rate(width)
            logger.info(
                f"The learning rate is {args.learning_rate:.2g}, chosen for an encoder of width {width}. "
                "Set another with --learning_rate."
            )
        self.is_open_ended = getattr(args, "is_open_ended", False)
        if args.num_train_epochs is None:
            args.num_train_epochs = choose_epochs(args, len(options.get("train_dataset") or []), has_schedule(model))
        self.vote, self.measure_loss, compute_metrics = vote, measure_loss, options.get("compute_metrics")
        if vote is not None and compute_metrics is not None:
            options["compute_metrics"] = lambda output: compute_metrics(
                EvalPrediction(vote.mix(output.predictions, self.evaluated_split), output.label_ids)
            )
        super().__init__(model, args, **options)
        self.check_label_smoothing()
        if args.do_train and isinstance(self.data_collator, DataCollatorWithPassages):
            model.config.num_passages = self.data_collator.num_passages  # predictions read as many
        tokenizer: Any = self.processing_class
        if self.train_dataset is not None:
            check_known(self.train_dataset, tokenizer, "train", must_know=False)

    def check_label_smoothing(self) -> None:
        """Raise a ValueError if Trainer would smooth labels that are no classes, or ignore the option."""
        config: Any = self.model.config  # type: ignore[union-attr]
        is_of_classes = config.problem_type not in ("regression", "multi_label_classification")
        if self.args.label_smoothing_factor and self.compute_loss_func is not None:
            raise ValueError(
                "--label_smoothing_factor has no effect with --class_weights, but both are given. Leave one out."
            )
        if self.args.label_smoothing_factor and not (is_of_classes and self.label_names == ["labels"]):
            raise ValueError(
                "--label_smoothing_factor needs examples with one class each, or words with one, but the labels are "
                f"{config.problem_type or ' and '.join(self.label_names)}. Leave it out."
            )

    def train(self, *args, **kwargs) -> Any:
        """Start the head if the checkpoint has no weights for it, then train."""
        model: Any = self.model
        if new_weights := model.__dict__.pop("new_weights", ()):
            # In order, so no random number is drawn. Persistent workers would keep an evaluation's loader, and every
            # later evaluation would read these examples.
            batch = next(iter(self.get_test_dataloader(self.train_dataset)))
            start_head(model, new_weights, batch)
        return super().train(*args, **kwargs)

    def get_eval_dataloader(self, *args, **kwargs) -> torch.utils.data.DataLoader:
        """Return the batches of all examples."""
        with keep_last_batch(self.args):
            return super().get_eval_dataloader(*args, **kwargs)

    def get_test_dataloader(self, *args, **kwargs) -> torch.utils.data.DataLoader:
        """Return the batches of all examples."""
        with keep_last_batch(self.args):
            return super().get_test_dataloader(*args, **kwargs)

    def evaluation_loop(self, *args, **kwargs) -> EvalLoopOutput:
        """Evaluate or predict, and keep the output."""
        self.evaluated_split = "test" if kwargs.get("metric_key_prefix") == "predict" else "validation"
        self.evaluated = super().evaluation_loop(*args, **kwargs)
        name = f"{kwargs.get('metric_key_prefix', 'eval')}_loss"
        has_loss = self.evaluated.predictions is not None and name in (self.evaluated.metrics or {})
        if self.measure_loss is not None and has_loss:  # no predictions with --prediction_loss_only
            found = self.measure_loss(self.evaluated.predictions, self.evaluated.label_ids)
            if found is not None:
                self.evaluated = self.evaluated._replace(metrics=(self.evaluated.metrics or {}) | {name: found})
        if self.vote is not None:
            mixed = self.vote.mix(self.evaluated.predictions, self.evaluated_split)
            self.evaluated = self.evaluated._replace(predictions=mixed)
        return self.evaluated

    def _get_eval_sampler(self, eval_dataset: Any) -> torch.utils.data.Sampler | None:
        return None if eval_dataset is None else torch.utils.data.SequentialSampler(eval_dataset)


def load_splits(
    model_args: ModelArguments, data_args: DataArguments, training_args: TrainingArguments, needs_train: bool = True
) -> DatasetDict:
    """Return the splits that a run needs, in the order `train`, `validation`, `test`.

    Args:
        training_args: `do_train`, `do_eval` and `do_predict` choose the splits.
        needs_train: Also load the training data, if they are given, for an evaluation: they define the labels.

    Raises:
        ValueError: A needed split is missing, or a file cannot be used.
    """
    check_work(training_args, "do_train", "do_eval", "do_predict")
    if training_args.do_train:
        check_held_out(data_args.train_file, {name: vars(data_args)[name] for name in ("validation_file", "test_file")})
    is_given = data_args.train_file is not None or data_args.dataset_name is not None
    needed = {
        "train": training_args.do_train or (needs_train and is_given),
        "validation": training_args.do_eval,
        "test": training_args.do_predict,
    }
    files = {split: getattr(data_args, f"{split}_file") for split in needed}
    options: dict[str, Any] = {"cache_dir": model_args.cache_dir}
    if (data_args.dataset_name is None) == (not any(files.values())):
        raise ValueError(
            f"the data must be either files or a dataset of the Hub, but the flags give files={files} and "
            f"dataset_name={data_args.dataset_name}. Give one of the two."
        )
    available: Any = files
    if data_args.dataset_name is not None:
        names = (data_args.dataset_name, data_args.dataset_config_name)
        available = load_named(*names, token=model_args.token, **options)
    splits = DatasetDict()
    for split, is_needed in needed.items():
        if not is_needed:
            continue
        if not available.get(split):
            raise ValueError(f"the split {split} must have examples, but is missing or empty. Give --{split}_file.")
        splits[split] = available[split] if data_args.dataset_name else load_files(available[split], **options)
    return splits


def locate_example(data_args: Any, split: str, row: int) -> str:
    """Return where an example is: file and line, or split and number for a dataset of the Hub."""
    files = getattr(data_args, f"{split}_file")
    return name_example(split, row) if files is None else locate_row(files, row)


def map_splits(
    splits: DatasetDict,
    tokenize: Callable[..., Any],
    training_args: TrainingArguments,
    data_args: DataArguments,
    **options: Any,
) -> DatasetDict:
    """Tokenize every split.

    Args:
        tokenize: Takes a batch of columns and returns the columns that replace them. Columns of passages are kept.
        options: Further arguments of `tokenize`, such as another tokenizer.
    """
    with training_args.main_process_first(desc="tokenizing"):
        return DatasetDict(
            {
                split: dataset.map(
                    tokenize,
                    batched=True,
                    fn_kwargs=options,
                    remove_columns=[name for name in dataset.column_names if name not in PASSAGE_COLUMNS],
                    num_proc=data_args.preprocessing_num_workers,
                    load_from_cache_file=not data_args.overwrite_cache,
                    desc=f"Tokenizing {split}",
                )
                for split, dataset in splits.items()
            }
        )


def limit_splits(splits: DatasetDict, data_args: DataArguments) -> DatasetDict:
    """Return the splits with at most `max_*_samples` examples each, the first ones."""
    limits = {
        "train": data_args.max_train_samples,
        "validation": data_args.max_eval_samples,
        "test": data_args.max_predict_samples,
    }
    return DatasetDict(
        {split: dataset.take(min(limits[split] or len(dataset), len(dataset))) for split, dataset in splits.items()}
    )


LEAST_EPOCHS, LEAST_STEPS = 3, 1000


def choose_epochs(args: TrainingArguments, num_examples: int, explores: bool = False) -> float:
    """Return the epochs of a training that names no length: three, or as many as make 1,000 steps if that is longer.

    Three epochs of a few hundred examples leave an encoder at the majority class. The numbers are our choice.

    Args:
        num_examples: Size of the training set.
        explores: Whether the model chooses with noise at first, as RADA does: it needs twice the steps. A seed of our
            control had not begun to choose after 700 of 1,000, and reached 94 % in 2,000 (results/NOTES.md).
    """
    batches = math.ceil(num_examples / (args.train_batch_size * args.world_size))
    steps = max(1, math.ceil(batches / args.gradient_accumulation_steps))
    least = LEAST_STEPS * (2 if explores else 1)
    return max(LEAST_EPOCHS, least / steps) if args.do_train else LEAST_EPOCHS


def choose_learning_rate(hidden_size: int) -> float:
    """Return the default learning rate for fine-tuning an encoder of this width.

    The rate is 5e-5 at width 768: transformers' default, and the largest rate that BERT's authors tried for BERT base
    (Devlin et al. 2019, appendix A.3). It falls with the square of the width. Width 1,024 gets 2.8e-5; BERT's authors
    found 5e-5 unstable there. Widths 384 and 256 get 2e-4 and 4.5e-4. There, 5e-5 stays at the majority class on 400
    examples in three epochs of batches of 8, and these rates do not (results/NOTES.md). The rate is at most 5e-4,
    because at 9e-4 the width 256 gets worse again.
    """
    return min(5e-5 * (768 / hidden_size) ** 2, 5e-4)


def renew_config(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    data_args: Any,
    does_train: bool,
    text_columns: list[str] | None = None,
) -> None:
    """Forget what an earlier training left in a model's configuration, and note what predictions must do as well.

    Earlier thresholds and votes would decide the scores of all epochs. `hf_domain.predict` reads `trained_columns`,
    cuts texts to `trained_length` tokens, whose windows share `trained_stride`, and appends passages if there is an
    `appended_passage_length`, that of text and passage.

    Raises:
        ValueError: The length exceeds the model's limit.
    """
    config: Any = model.config
    limit_length(tokenizer, model, data_args.max_seq_length)
    for name in ("version_2_with_negative", "null_score_diff_threshold"):
        if hasattr(data_args, name):
            setattr(config, name, getattr(data_args, name))
    length = data_args.max_seq_length if getattr(data_args, "append_passage", False) else None
    learned = getattr(config, "appended_passage_length", None)
    if does_train:
        longest = data_args.max_seq_length or tokenizer.model_max_length
        config.trained_columns, config.trained_length = text_columns, longest if longest < LARGE_INTEGER else None
        config.trained_stride = getattr(data_args, "doc_stride", None)
        for name in ("label_thresholds", "nearest_vote"):
            if hasattr(config, name):
                setattr(config, name, None)
        if length or learned:
            config.appended_passage_length = length
    elif learned and not length:
        logger.warning(
            "This model was trained with the best passage appended to each text, and now reads the texts alone. Add "
            "--append_passage and --datastore to evaluate it as it was trained."
        )
    if (
        not does_train
        and find_vote(config.to_dict(), type(model).__name__)
        and not getattr(data_args, "nearest_vote", False)
    ):
        logger.warning(
            "This model was trained with a vote of the nearest training texts, and is now evaluated alone. Add "
            "--nearest_vote true to evaluate it as it was trained."
        )


@contextmanager
def explain_missing_head(auto_class: Any, name: str) -> Iterator[None]:
    """Turn transformers' list of all models with a head into one sentence.

    Raises:
        ValueError: The encoder has no head for the task, neither in transformers nor in its own code.
    """
    try:
        yield
    except ValueError as error:
        if not str(error).startswith("Unrecognized configuration class"):
            raise
        raise ValueError(
            f"a model must have a class for {auto_class.__name__}, but {name} has none. First adapt it by mlm with "
            "--method varmae or exbert, whose heads fit every encoder."
        ) from None


def load_task_model(
    auto_class: Any,
    model_args: FineTuningArguments,
    tokenizer: PreTrainedTokenizerBase,
    label_names: list[str] | None = None,
    **options: Any,
) -> PreTrainedModel:
    """Load the model of a task: the checkpoint with a head, or the model that the method builds around it.

    Weights are always float32, so that small updates are not rounded away. `FineTuningTrainer` starts the head if the
    checkpoint has none.

    Args:
        auto_class: `AutoModelFor*` of the task.
        label_names: Labels in the order of their ids; None if the task has none.
        options: Other fields of the configuration that the task sets.

    Raises:
        ValueError: The tokenizer has more entries than the model, or the model has no head for the task, or fewer
            layers than should train. See also `load_config`.
    """
    if label_names is not None:
        options["id2label"] = dict(enumerate(label_names))
        options["label2id"] = {name: number for number, name in enumerate(label_names)}
    config, overrides = load_config(model_args, **options)
    method, name = METHODS.get(model_args.method), model_args.model_name_or_path
    if method is not None and method.is_built_around(config.model_type):
        head = auto_class.__name__.removeprefix("AutoModel")
        model = method.build_for_task(head, model_args, {**options, **overrides})  # type: ignore[misc]
        new_weights = list_head_weights(model) & model.new_weights
    else:
        with hide_load_report(), explain_pickles(name), explain_missing_head(auto_class, name):
            model, info = auto_class.from_pretrained(
                name,
                config=config,
                dtype=torch.float32,
                output_loading_info=True,
                ignore_mismatched_sizes=model_args.ignore_mismatched_sizes,
                **model_args.hub_options,
            )
        lost = {*info["missing_keys"], *(key for key, *_ in info["mismatched_keys"])}
        report_new_weights(model, lost, is_head_new=True)
        new_weights = lost & list_head_weights(model)
    if model_args.train_top_layers:
        train_top_layers(model, model_args.train_top_layers)
    if (delta := join_added_tokens(None, tokenizer, model)) is not None:
        grow_tables(model, delta)
    match_tokenizer(tokenizer, model)
    check_weights(model, name)
    choose_start(model, new_weights, model_args.head_initializer_range)
    choose_method_rate(model, model_args)
    if model_args.padding_free:
        remove_padding(model)
    return normalize_stock_loss(model)
