"""What a run does for a model that reads passages: look up texts in a datastore, and encode passages once."""

import logging
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from datasets import DatasetDict
from transformers import PreTrainedModel, PreTrainedTokenizerBase, TrainingArguments

from hf_domain.clusters import open_executor
from hf_domain.methods import METHODS
from hf_domain.methods.rada.collator import DataCollatorWithPassages
from hf_domain.methods.stock_models import autocast_as_trained
from hf_domain.modeling.modeling_rada import RadaPreTrainedModel

logger = logging.getLogger(__name__)

# WordPiece decodes Chinese and Japanese with blanks between the characters. The analyzer, which pairs neighbors, would
# then find none of the pairs of the index, and training would read no passage.
HAN_OR_KANA = r"[\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff]"
BLANKS_BETWEEN = re.compile(rf"(?<={HAN_OR_KANA}) (?={HAN_OR_KANA})")


@dataclass
class PassageArguments:
    """Which passages a model reads."""

    datastore: str | None = field(default=None, metadata={"help": "Folder of the datastore that rada reads."})
    num_passages: int | None = field(
        default=None,
        metadata={
            "help": "Passages retrieved for an example. Default: 3 in masked LM; in a task as many as in the model's "
            "fine-tuning, else 10."
        },
    )
    passage_cache: str | None = field(
        default=None,
        metadata={"help": "Folder for encoded passages: the frozen encoder of the start encodes each once."},
    )


@dataclass
class PassageReader:
    """A model that reads passages, and the datastore it reads."""

    args: PassageArguments
    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    datastore: Any
    """Has `passages` and `fingerprint`."""
    num_passages: int = field(init=False)

    def __post_init__(self) -> None:
        config = getattr(self.model, "config", None)
        self.num_passages = int(getattr(config, "num_passages", 10))
        if self.args.num_passages is not None:
            self.num_passages = self.args.num_passages
        if self.num_passages < 1:
            raise ValueError(f"num_passages must be at least 1, but is {self.num_passages}. Use 10, the default.")
        self.args.num_passages = self.num_passages  # the model card lists the arguments

    def look_up(self, splits: DatasetDict, text_columns: list[str], num_proc: int | None = None) -> DatasetDict:
        """Look up the texts of every split.

        Returns:
            The splits with `passage_ids` and `passage_scores`.
        """
        # Imported here: a run without passages needs no engine that searches.
        from hf_domain.datastore import add_passages

        return add_passages(splits, self.datastore, text_columns, self.num_passages, num_proc=num_proc)

    def look_up_blocks(self, examples: DatasetDict, num_proc: int | None = None) -> DatasetDict:
        """Look up tokenized examples, such as packed blocks of a corpus, which no longer have their text.

        Args:
            examples: With the column `input_ids`.

        Returns:
            The examples with `passage_ids` and `passage_scores`.
        """
        if not isinstance(examples, DatasetDict):
            raise ValueError(
                "RADA must look up the passages of all texts before training, but the corpus is a stream. Leave out "
                "--streaming."
            )
        tokenizer = self.tokenizer

        def decode(batch: dict[str, list[Any]]) -> dict[str, list[str]]:
            texts = tokenizer.batch_decode(batch["input_ids"], skip_special_tokens=True)
            return {"text": [BLANKS_BETWEEN.sub("", text) for text in texts]}

        texts = examples.map(
            decode,
            batched=True,
            num_proc=num_proc,
            desc="Decoding",
        )
        return self.look_up(texts, ["text"], num_proc).remove_columns("text")

    def fill_cache(
        self, splits: Mapping[str, Any], training_args: TrainingArguments, dask_scheduler: str | None = None
    ) -> None:
        """Encode the passages that were looked up into `--passage_cache`, if given, and let the model read them there.

        Args:
            splits: With `passage_ids`.
            training_args: Give the device and the process that encode.
            dask_scheduler: Encode on this cluster, see `hf_domain.clusters.open_client`.

        Raises:
            ValueError: The encoder of the passages is trained.
        """
        model, datastore = self.model, self.datastore
        if self.args.passage_cache is None:
            return
        if training_args.do_train and model.config.passage_encoder != "frozen":
            raise ValueError(
                "--passage_cache needs passage_encoder=frozen, because a trained encoder changes the states of "
                f"passages, but passage_encoder is {model.config.passage_encoder}. Add --config_overrides "
                "passage_encoder=frozen, or drop the cache."
            )
        # Imported here: only a run with a cache hashes and maps files.
        from hf_domain.methods.rada.states import build_passage_cache, list_retrieved

        model.to(training_args.device)  # type: ignore[arg-type]
        with (
            training_args.main_process_first(desc="encoding passages"),
            autocast_as_trained(training_args),
            open_executor(dask_scheduler=dask_scheduler) as executor,
        ):
            cache = build_passage_cache(
                self.args.passage_cache,
                model,  # type: ignore[arg-type]
                self.tokenizer,
                datastore.passages,
                datastore.fingerprint,
                list_retrieved(splits.values(), self.num_passages),
                executor=executor,
            )
        model.use_passage_cache(cache)  # type: ignore[operator]

    def collate(self, collator: Callable[[list[dict[str, Any]]], Any]) -> DataCollatorWithPassages:
        """Return a collator that adds passages to a batch, or only their ids if the model reads them from a cache."""
        passages = None if self.args.passage_cache is not None else self.datastore.passages
        return DataCollatorWithPassages(collator, self.tokenizer, passages, self.num_passages)


def load_passage_reader(
    args: PassageArguments,
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    method: str,
    appends_passage: bool = False,
) -> PassageReader | None:
    """Return the passage reader of a run, or None if the run reads no passages; see `load_datastore`."""
    datastore = load_datastore(args, model, tokenizer, method, appends_passage)
    return None if datastore is None else PassageReader(args, model, tokenizer, datastore)


def load_datastore(
    args: PassageArguments,
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    method: str | None,
    appends_passage: bool = False,
) -> Any:
    """Load the datastore of a run.

    Args:
        appends_passage: Whether the run appends a passage to the text, for an encoder that does not read passages.

    Returns:
        A `Datastore`; None if the run reads no passages.

    Raises:
        ValueError: A model that reads passages has no datastore, or a datastore has no such model; its passages are
            longer than the model allows; see also `Datastore.load`.
    """
    reads = isinstance(model, RadaPreTrainedModel)
    if appends_passage and (reads or args.datastore is None):
        found = f"{type(model).__name__} reads passages" if reads else "no datastore is given"
        raise ValueError(
            f"--append_passage needs a --datastore and an encoder that reads no passages itself, but {found}. Drop "
            "--append_passage, or add what it needs."
        )
    if args.datastore is None:
        if method in METHODS and METHODS[method].reads_passages:
            raise ValueError(
                "--method rada needs a --datastore, but none is given. Build one with hf-domain build_datastore."
            )
        if args.passage_cache is not None:
            raise ValueError(
                f"--passage_cache needs a --datastore, but {args.passage_cache} is given alone. Add --datastore, or "
                "drop the cache."
            )
        if reads:
            logger.warning("this model reads passages, but without a --datastore it works like its encoder")
        return None
    if not (reads or appends_passage):
        raise ValueError(
            f"--datastore needs a model that reads passages, but {type(model).__name__} reads none. Add --method "
            "rada, or drop the datastore."
        )
    # Imported here: a run without passages needs no engine that searches.
    from hf_domain.datastore import Datastore

    datastore = Datastore.load(args.datastore, tokenizer)
    positions, longest = count_positions(model) if reads else None, datastore.manifest.max_length
    if positions is not None and longest > positions:
        raise ValueError(
            f"passages must have at most {positions} tokens, the encoder's limit, but those of {args.datastore} "
            f"have up to {longest}. Build it again with --max_length {positions} or less."
        )
    return datastore


def count_positions(model: PreTrainedModel) -> int | None:
    """Return the encoder's longest input in tokens; None without a position table. RoBERTa's starts after padding."""
    tables = (table for name, table in model.base_model.named_modules() if name.endswith(".position_embeddings"))
    sizes = [len(table.weight) - (0 if table.padding_idx is None else table.padding_idx + 1) for table in tables]
    return min(sizes, default=None)


def check_single_text(text_columns: Sequence[str], append_passage: bool) -> None:
    """Raise unless there is one text where a passage is appended to it."""
    if append_passage and len(text_columns) > 1:
        raise ValueError(
            "--append_passage must have one column of text, to which it appends the passage, but there are "
            f"{', '.join(text_columns)}. Name one column with --text_column_names, or use --method rada."
        )


def append_passages(
    splits: DatasetDict, datastore: Any, text_column: str, tokenizer: PreTrainedTokenizerBase, max_seq_length: int
) -> DatasetDict:
    """Add the column `passage`: the text of the best passage, cut to the room that the example's text leaves.

    Tokenizers cut the longer of two texts first. An uncut passage could cost a text half of its tokens, and the
    comparison with runs that read the whole text would be unfair.

    Args:
        splits: Must have the column `passage_ids`.
        text_column: The text that the passage is appended to.
        tokenizer: A fast one, as datastores need.
        max_seq_length: Limit of text and passage together, with special tokens.

    Returns:
        The splits without the ids. `passage` is "" if none was found or the text leaves no room.
    """
    passages = datastore.passages
    longest = max_seq_length - tokenizer.num_special_tokens_to_add(pair=True)

    def read(batch: dict[str, list[Any]]) -> dict[str, list[str]]:
        best = [ids[0] if ids else None for ids in batch["passage_ids"]]
        found = ["" if number is None else passages[number]["text"] for number in best]
        options = {"add_special_tokens": False, "verbose": False}
        texts = tokenizer([text or "" for text in batch[text_column]], **options)["input_ids"]
        spans = tokenizer(found, return_offsets_mapping=True, **options)["offset_mapping"]
        ends = [
            max([end for _, end in offsets[: max(longest - len(text), 0)]], default=0)
            for text, offsets in zip(texts, spans, strict=True)
        ]
        return {"passage": [passage[:end] for passage, end in zip(found, ends, strict=True)]}

    columns = ["passage_ids", "passage_scores"]
    return splits.map(read, batched=True, remove_columns=columns, desc="Appending passages")
