"""Explain what a RADA does with a text: its probability for each passage, its weights for words, its prediction."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from transformers import DataCollatorWithPadding, PreTrainedTokenizerBase

from hf_domain.methods.rada.collator import DataCollatorWithPassages
from hf_domain.modeling.modeling_rada import RadaForSequenceClassification, RadaPreTrainedModel
from hf_domain.tasks.classification import find_vote

logger = logging.getLogger(__name__)


@dataclass
class Explanation:
    """What a model does with the passages of a text; empty if none was found."""

    found: dict[int, float] = field(default_factory=dict)
    """Passage id -> score, best first."""
    probabilities: dict[int, float] = field(default_factory=dict)
    """Passage id -> the probability that the model chooses it (beta); they sum to 1."""
    weights: dict[int, list[tuple[int, int, float]]] = field(default_factory=dict)
    """Id of the chosen passage -> (start, end, weight) of its tokens' characters, averaged over the heads."""
    predictions: list[tuple[str, float]] = field(default_factory=list)
    """A classifier's labels with their probabilities, likeliest first; a regression's values."""


@torch.no_grad()
def explain(
    model: RadaPreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    datastore: Any,
    texts: Sequence[str],
    num_passages: int | None = None,
) -> Explanation:
    """Run a model on a text and return how it chose a passage, weighed its words, and predicted.

    Args:
        model: A RADA with any head or none.
        datastore: See `load_datastore`.
        texts: One text, or the two texts of a pair, which are looked up together. Passages that are part of them are
            left out, as in training and prediction.
        num_passages: Default: as many as in the model's fine-tuning.
    """
    # Imported here: loading a model needs no engine that searches.
    from hf_domain.datastore.retrieval import find_passages

    num_passages = int(model.config.num_passages) if num_passages is None else num_passages
    found = find_passages(datastore, texts, num_passages)
    ids = [*found]
    if find_vote(model.config.to_dict(), type(model).__name__):
        logger.warning("This model has a vote of the nearest texts, which is not in the probabilities shown here.")
    model.eval()
    passages = datastore.passages
    collator = DataCollatorWithPassages(DataCollatorWithPadding(tokenizer), tokenizer, passages, num_passages)
    columns = {"passage_ids": ids, "passage_scores": [*found.values()]}
    batch = collator([{**tokenizer(*texts, truncation=True), **columns}]).to(model.device)
    output = model(**batch)
    predictions = _list_predictions(model, output.logits[0]) if isinstance(model, RadaForSequenceClassification) else []
    if not ids:
        return Explanation(predictions=predictions)
    chosen = int(ids[int(output.selected_passages[0])])
    # Not the model's tokenizer, which may put a blank before the first word; see `prepare_for_words`.
    offsets = datastore.tokenizer(passages[chosen]["text"], return_offsets_mapping=True)["offset_mapping"]
    weights = output.word_weights[0].mean(dim=0).tolist()
    spans = [(start, end, weight) for (start, end), weight in zip(offsets, weights, strict=False) if end > start]
    probabilities = dict(zip(map(int, ids), output.passage_weights[0].tolist(), strict=False))
    return Explanation(found, probabilities, {chosen: spans}, predictions)


def _list_predictions(model: RadaForSequenceClassification, logits: torch.Tensor) -> list[tuple[str, float]]:
    config: Any = model.config
    logits, problem = logits.float(), config.problem_type
    if problem == "regression" or (problem is None and len(logits) == 1):
        values = logits
    else:
        values = logits.sigmoid() if problem == "multi_label_classification" else logits.softmax(dim=-1)
    labels = (str(config.id2label[number]) for number in range(len(values)))
    return sorted(zip(labels, values.tolist(), strict=True), key=lambda prediction: -prediction[1])
