"""What the scripts do for a model that reads passages: look texts up in a datastore, wrap the collator, use a cache."""

import importlib
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from datasets import Dataset, DatasetDict
from transformers import PreTrainedModel, PreTrainedTokenizerBase, TrainingArguments

from hf_domain.modeling.modeling_rada import RadaPreTrainedModel
from hf_domain.passages import DataCollatorWithPassages

logger = logging.getLogger(__name__)

CHECKED_PASSAGES = 100
"""Passages that are tokenized again to see whether a datastore has the tokenizer of the model (our choice)."""


@dataclass
class PassageArguments:
    """Which passages a model reads."""

    datastore: str | None = field(default=None, metadata={"help": "Folder of the datastore that rada reads."})
    num_passages: int = field(default=10, metadata={"help": "Passages retrieved for an example."})
    passage_cache: str | None = field(
        default=None,
        metadata={"help": "Folder for encoded passages; to train, set passage_encoder=frozen in --config_overrides."},
    )


def import_datastore() -> Any:
    """Import `hf_domain.datastore`, here alone: a run without passages needs no index."""
    return importlib.import_module("hf_domain.datastore")


def load_datastore(
    args: PassageArguments, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, method: str | None
) -> Any:
    """Load the datastore that a run reads.

    Args:
        args: Say the folder.
        model: That of the run.
        tokenizer: Its tokenizer.
        method: What the run asked for.

    Returns:
        An object with `passages` and `fingerprint`; None for a run that reads nothing.

    Raises:
        ValueError: A model that reads has no datastore, or the other way round; the datastore is empty or has another
            tokenizer; a cache that would go stale.
    """
    reads = isinstance(model, RadaPreTrainedModel)
    if args.datastore is None:
        if method == "rada":
            raise ValueError("--method rada reads passages; got no --datastore. Build one with build_datastore.py.")
        if args.passage_cache is not None:
            raise ValueError(f"--passage_cache holds passages of a --datastore; got {args.passage_cache} alone.")
        if reads:
            logger.warning("this model reads passages and there is no --datastore: it works as its encoder alone")
        return None
    if not reads:
        raise ValueError(
            f"a --datastore is read by rada; {type(model).__name__} reads no passages. Add --method rada or drop it."
        )
    datastore = import_datastore().Datastore.load(args.datastore)
    check_passages(datastore.passages, tokenizer)
    return datastore


def check_passages(passages: Dataset, tokenizer: PreTrainedTokenizerBase) -> None:
    """Raise unless passages were made with the tokenizer.

    A passage may be the part of a text, and then its first tokens may differ from those of that part alone; of another
    tokenizer nearly all differ.

    Args:
        passages: With the columns `text` and `input_ids`.
        tokenizer: That of the model.

    Raises:
        ValueError: There are none, or most of the first ones have other tokens.
    """
    rows = passages[:CHECKED_PASSAGES]
    if not rows["text"]:
        raise ValueError("a datastore holds passages; this one is empty. Build it from a corpus first.")
    own = tokenizer(rows["text"], add_special_tokens=False)["input_ids"]
    special = set(tokenizer.all_special_ids)
    theirs = [[number for number in ids if number not in special] for ids in rows["input_ids"]]
    same = sum(
        [number for number in ids if number not in special] == other for ids, other in zip(own, theirs, strict=True)
    )
    if 2 * same < len(theirs):
        raise ValueError(
            f"the datastore and the model have one tokenizer; {len(theirs) - same} of {len(theirs)} passages have "
            f"other tokens than {tokenizer.name_or_path} gives. Build the datastore with this tokenizer."
        )


def retrieve_passages(
    splits: DatasetDict, datastore: Any, text_columns: list[str], args: PassageArguments
) -> DatasetDict:
    """Look the texts of every split up.

    Args:
        splits: The data.
        datastore: See `load_datastore`; None returns the splits as they are.
        text_columns: What is looked up, together; a column of words is joined by spaces.
        args: Say how many passages.

    Returns:
        The splits with `passage_ids` and `passage_scores`.
    """
    if datastore is None:
        return splits
    add_passages = import_datastore().add_passages
    found = DatasetDict()
    for split, dataset in splits.items():
        if isinstance(dataset[0][text_columns[0]], list):
            joined = [" ".join(words) for words in dataset[text_columns[0]]]
            with_text = dataset.add_column("retrieved_for", joined)
            found[split] = add_passages(with_text, datastore, ["retrieved_for"], args.num_passages).remove_columns(
                "retrieved_for"
            )
        else:
            found[split] = add_passages(dataset, datastore, text_columns, args.num_passages)
    return found


def retrieve_for_blocks(
    examples: DatasetDict, tokenizer: PreTrainedTokenizerBase, datastore: Any, args: PassageArguments
) -> DatasetDict:
    """Look up what tokenized examples say, such as packed blocks of a corpus, which no longer are a document's text.

    Args:
        examples: With the column `input_ids`.
        tokenizer: Turns them into text again.
        datastore: See `load_datastore`; None returns the examples as they are.
        args: Say how many passages.

    Returns:
        The examples with `passage_ids` and `passage_scores`.

    Raises:
        ValueError: They are a stream.
    """
    if datastore is None:
        return examples
    if not isinstance(examples, DatasetDict):
        raise ValueError("texts are looked up before training; got a stream. Leave out --streaming.")
    texts = examples.map(
        lambda batch: {"text": tokenizer.batch_decode(batch["input_ids"], skip_special_tokens=True)},
        batched=True,
        desc="Decoding",
    )
    return DatasetDict(
        {
            split: dataset.remove_columns("text")
            for split, dataset in retrieve_passages(texts, datastore, ["text"], args).items()
        }
    )


def wrap_collator(
    collator: Callable[[list[dict[str, Any]]], Any],
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    datastore: Any,
    splits: DatasetDict,
    args: PassageArguments,
    training_args: TrainingArguments,
) -> Callable[[list[dict[str, Any]]], Any]:
    """Let a collator bring passages, or their ids if the model is given a cache of them.

    Args:
        collator: That of the task.
        model: Gets the cache, if the run has one.
        tokenizer: Its tokenizer.
        datastore: See `load_datastore`; None returns the collator as it is.
        splits: With `passage_ids`.
        args: Say how many passages, and the folder of the cache.
        training_args: Say the device that encodes, and which process does.

    Returns:
        The collator of the run.
    """
    if datastore is None:
        return collator
    passages = datastore.passages
    if args.passage_cache is not None:
        # Imported here: only a run with a cache hashes and maps files.
        from hf_domain.passage_cache import build_passage_cache, list_retrieved

        assert isinstance(model, RadaPreTrainedModel)
        if training_args.do_train and model.config.passage_encoder != "frozen":
            raise ValueError(
                "cached passages go stale while the encoder that made them trains; got passage_encoder="
                f"{model.config.passage_encoder}. Add --config_overrides passage_encoder=frozen or drop the cache."
            )
        model.to(training_args.device)  # type: ignore[arg-type]
        with training_args.main_process_first(desc="encoding passages"):
            cache = build_passage_cache(
                args.passage_cache,
                model,
                tokenizer,
                passages,
                datastore.fingerprint,
                list_retrieved(splits.values(), args.num_passages),
            )
        model.use_passage_cache(cache)
        passages = None
    return DataCollatorWithPassages(collator, tokenizer, passages, args.num_passages)
