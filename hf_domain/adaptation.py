"""Adapt an encoder to a domain from Python, as `hf-domain mlm` does from the command line."""

import os
from contextlib import nullcontext
from pathlib import Path
from typing import Any, Literal

from datasets import DatasetDict, IterableDatasetDict
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from hf_domain.data.tables import Rows, find_paths
from hf_domain.hub import check_license
from hf_domain.methods import BASELINE, METHODS
from hf_domain.methods.rada.passages import PassageArguments
from hf_domain.safe_io import lock_folder
from hf_domain.training.arguments import PretrainerArguments, check_model
from hf_domain.training.calls import check_names, describe_call, name_arguments
from hf_domain.training.masked_lm_corpus import CorpusArguments
from hf_domain.training.pretraining import pretrain
from hf_domain.training.pretraining_arguments import PretrainingArguments
from hf_domain.training.recipes import TRAINING_RECIPES, list_defaults, pick_defaults
from hf_domain.training.run import start_run


@name_arguments(
    train_file="corpus",
    validation_file="validation_data",
    general_validation_file="general_validation_data",
    memory_name_or_path="memory",
    per_device_train_batch_size="batch_size",
)
def adapt(
    encoder: str | os.PathLike,
    corpus: Rows | DatasetDict | IterableDatasetDict,
    method: str = BASELINE,
    *,
    output_dir: str | os.PathLike,
    num_tokens: int = 1_000_000,
    validation_data: Rows | None = None,
    general_validation_data: Rows | None = None,
    learning_rate: float | None = None,
    batch_size: int | None = None,
    max_seq_length: int | None = None,
    recipe: str | None = None,
    expanded_vocabulary: str | os.PathLike | None = None,
    memory: str | None = None,
    datastore: str | os.PathLike | None = None,
    num_passages: int | None = None,
    start: Literal["recommended", "paper"] = "recommended",
    data_license: str | None = None,
    trust_remote_code: bool = False,
    seed: int = 42,
    **training_options: Any,
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Continue the pre-training of an encoder on text of a domain.

    Args:
        encoder: A folder or a name on the Hub.
        corpus: Documents, see `load_corpus`.
        method: `dapt`, `lora`, `varmae`, `exbert`, `exbert_adapter`, `gmap` or `rada`.
        output_dir: A new folder for model, tokenizer, model card, metrics and checkpoints.
        num_tokens: Number of tokens to train on, at least one step.
        validation_data: Documents to evaluate on. Default: a twentieth of the corpus.
        general_validation_data: Held-out general text. The card then shows how the loss on it rises: what the encoder
            forgets.
        learning_rate: Default: by the encoder's size and the method, see `choose_pretraining_rate`.
        batch_size: Number of examples in a batch; a step has several with `gradient_accumulation_steps`. Default: 32.
        max_seq_length: Number of tokens per example. Default: 128, or the recipe's.
        recipe: `modernbert` for the settings of ModernBERT's authors; what you set wins. See `hf-domain mlm --recipe`.
        expanded_vocabulary: Folder written by `hf-domain expand_vocab`.
        memory: The general encoder of G-MAP.
        datastore: Folder of the passages that RADA reads, see `build_datastore`.
        num_passages: Number of passages to retrieve for an example. Default: 3.
        start: How a new module starts, see `hf-domain mlm --start`.
        data_license: License of the corpus, an identifier of the Hub, for the model card.
        trust_remote_code: Run code that comes with the encoder; the folder then carries it.
        training_options: Fields of `TrainingArguments`; `num_tokens` decides on the steps.

    Returns:
        The trained model with its masked-LM head, ready to predict, and its tokenizer. Both are saved.

    Raises:
        FileExistsError: The folder is not empty.
        FileNotFoundError: A file is missing.
        TypeError: The corpus contains no texts, or an option is unknown.
        ValueError: The method, the corpus or the encoder cannot be used.
    """
    call = describe_call(adapt, locals())
    check_names(adapt, training_options, {"max_steps": "num_tokens", "num_train_epochs": "num_tokens"})
    methods = [name for name, row in METHODS.items() if row.build is not None]
    if method not in methods:
        raise ValueError(f"method must be one of {', '.join(methods)}, but is {method}. Choose one of them.")
    if recipe is not None and recipe not in TRAINING_RECIPES:
        raise ValueError(f"recipe must be one of {', '.join(TRAINING_RECIPES)}, but is {recipe}. Choose one of them.")
    check_license(data_license)
    check_model(encoder)
    folder = Path(output_dir)
    if folder.exists() and any(folder.iterdir()):
        raise FileExistsError(
            f"output_dir must be a new or empty folder, but {folder} is not empty. Name another folder."
        )
    defaults = list_defaults(recipe)
    model_options: dict[str, Any] = pick_defaults(defaults, PretrainingArguments)
    model_args = PretrainingArguments(
        model_name_or_path=os.fspath(encoder),
        method=method,
        recipe=recipe,
        expanded_vocabulary=None if expanded_vocabulary is None else os.fspath(expanded_vocabulary),
        memory_name_or_path=memory,
        start=start,
        trust_remote_code=trust_remote_code,
        **model_options,
    )
    files, held_out, general_files = (
        None if data is None else find_paths(data) for data in (corpus, validation_data, general_validation_data)
    )
    corpus_options: dict[str, Any] = pick_defaults(defaults, CorpusArguments)
    if max_seq_length is not None:
        corpus_options["max_seq_length"] = max_seq_length
    data_args = CorpusArguments(*(files, held_out, general_files), data_license=data_license, **corpus_options)
    passage_args = PassageArguments(None if datastore is None else os.fspath(datastore), num_passages)
    options: dict[str, Any] = {"report_to": "none", "save_strategy": "no", "logging_steps": 0.1}
    options |= pick_defaults(defaults, PretrainerArguments) | {**training_options}
    if learning_rate is not None:
        options["learning_rate"] = learning_rate
    if batch_size is not None:
        options["per_device_train_batch_size"] = batch_size
    training_args = PretrainerArguments(
        str(folder),
        do_train=True,
        do_eval=True,
        max_steps=1,  # `pretrain` counts them
        seed=seed,
        **options,
    )
    start_run(training_args)
    with lock_folder(folder) if training_args.process_index == 0 else nullcontext():
        trainer = pretrain(
            *(model_args, data_args, passage_args, training_args),
            corpus=corpus,
            validation=validation_data,
            general=general_validation_data,
            num_tokens=num_tokens,
            call=call,
        )
    model = trainer.accelerator.unwrap_model(trainer.model, keep_fp32_wrapper=False)  # it computes as the saved one
    model.name_or_path = str(folder)  # where `predict` and `fine_tune` find its tokenizer and its card
    return model.eval(), trainer.processing_class  # type: ignore[return-value]
