"""Check a datastore that somebody else made: what it shows is what a model reads."""

from collections.abc import Callable, Container
from pathlib import Path

from transformers import AutoTokenizer, PreTrainedTokenizerBase

from hf_domain.datastore.analysis import Analyzer
from hf_domain.datastore.manifest import TOKENIZER, Manifest


def load_tokenizer(folder: Path) -> PreTrainedTokenizerBase:
    """Load the tokenizer of a datastore, without ever running code that comes with it.

    Raises:
        ValueError: It does not load.
    """
    try:
        return AutoTokenizer.from_pretrained(folder / TOKENIZER, trust_remote_code=False)
    except Exception as error:  # tokenizers and transformers raise many types
        raise ValueError(
            f"the tokenizer of a datastore must load without code of its own, but {folder / TOKENIZER} does not: "
            f"{error or type(error).__name__}. Build the datastore again."
        ) from error


def find_analyzer(manifest: Manifest, analyzer: str | Callable[[str], list[str]] | None, rebuild: bool) -> Analyzer:
    """Return the analyzer of a datastore; raise if the index was made with another one and is not rebuilt."""
    try:
        found = Analyzer(analyzer or manifest.analyzer)
    except ValueError as error:
        raise ValueError(
            f"the index was made with the function {manifest.analyzer}, which must be passed as analyzer, but is not."
        ) from error
    if found.fingerprint != manifest.analyzer_fingerprint and not rebuild:
        raise ValueError(
            f"an index must be searched with the analyzer that made it, {manifest.analyzer}, but {found.name} "
            "makes other terms now. Rebuild the index with Datastore.load(..., rebuild_index=True)."
        )
    return found


def check_rows(
    rows: dict[str, list], found: Manifest, tokenizer: PreTrainedTokenizerBase, deleted: Container[int]
) -> None:
    """Count passages in a manifest, and raise unless their tokens belong to their texts.

    Args:
        rows: Columns of passages that follow those in `found`.
        deleted: Ids of deleted passages; only they may be blank.

    Raises:
        ValueError: An id is not the number of its row, or a passage's tokens are not those of its text.
    """
    first = found.num_passages
    kept: list[tuple[int, str, list[int]]] = []
    for number, (name, document_id, text, input_ids) in enumerate(
        zip(rows["id"], rows["document_id"], rows["text"], rows["input_ids"], strict=True), first
    ):
        if name != number:
            raise ValueError(f"the id of a passage must be the number of its row, but row {number} has {name}.")
        found.count_passage(document_id, text, input_ids)
        if text or input_ids or number not in deleted:
            kept.append((number, text, input_ids))
    options = {"return_attention_mask": False, "return_token_type_ids": False, "verbose": False}
    expected = tokenizer([text for _, text, _ in kept], **options)["input_ids"] if kept else []
    for (number, _, theirs), ours in zip(kept, expected, strict=True):
        if theirs != ours:
            raise ValueError(
                f"the tokens of a passage must be those of its text, but passage {number} has others. Build the "
                "datastore again from its documents."
            )
