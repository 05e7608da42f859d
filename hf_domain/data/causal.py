"""Next-token prediction with an encoder: a causal stage, followed by masked language modeling."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from transformers import BatchEncoding, PreTrainedTokenizerBase
from transformers.data.data_collator import pad_without_fast_tokenizer_warning

from hf_domain.data.masking import check_probability, make_generator

# Their attention takes a mask of pairs of tokens; that of DeBERTa-v2 makes one of its own.
CAUSAL_FAMILIES = ("bert", "roberta", "xlm-roberta", "electra", "distilbert", "modernbert")


def check_causal(model_type: str) -> None:
    """Raise unless a family of encoders can be trained causally.

    Raises:
        ValueError: Its attention takes no mask of pairs.
    """
    if model_type not in CAUSAL_FAMILIES:
        raise ValueError(
            f"--objective clm must have an encoder whose attention can be made causal ({', '.join(CAUSAL_FAMILIES)}), "
            f"but this is a {model_type}. Use --objective mlm."
        )


@dataclass
class DataCollatorForNextToken:
    """Pad a batch; every token attends to those before it, and a share of positions predicts the next token.

    The head of masked-language modeling is not shifted, so a label stands where the token before it is read. The
    causal mask is an additive one of four dimensions, which transformers hands to every layer as it is; the local
    layers of a ModernBERT see more than their window then.

    Args:
        tokenizer: The tokenizer that made the examples.
        probability: Share of the positions that predict: the vocabulary is most of the cost of a small encoder, and
            with the share of masked-language modeling both cost the same.
        seed: Of the draws, which depend on it and on the batch alone.

    Raises:
        ValueError: The share is out of range.
    """

    tokenizer: PreTrainedTokenizerBase
    probability: float = 0.15
    seed: int = 0

    def __post_init__(self) -> None:
        check_probability(self.probability)

    def __call__(self, examples: Sequence[dict[str, Any]]) -> BatchEncoding:
        """Make a batch with `attention_mask` [batch, 1, length, length] and `labels` [batch, length]."""
        inputs = [{k: v for k, v in example.items() if k in self.tokenizer.model_input_names} for example in examples]
        batch = pad_without_fast_tokenizer_warning(self.tokenizer, inputs, return_tensors="pt")
        input_ids, is_text = batch["input_ids"], batch["attention_mask"].bool()
        length = input_ids.shape[1]
        special = torch.isin(input_ids, torch.tensor(self.tokenizer.all_special_ids))
        labels = torch.full_like(input_ids, -100)
        labels[:, :-1] = input_ids[:, 1:].masked_fill(special[:, 1:] | ~is_text[:, :-1], -100)
        draws = torch.rand(input_ids.shape, generator=make_generator(examples, self.seed))
        batch["labels"] = labels.masked_fill(draws >= self.probability, -100)
        visible = torch.ones(length, length, dtype=torch.bool).tril() & is_text[:, None, None, :]
        # A padded row on the left sees nothing: a softmax over nothing is nan, so it sees itself.
        visible = visible | torch.eye(length, dtype=torch.bool)
        batch["attention_mask"] = torch.zeros(visible.shape).masked_fill(~visible, torch.finfo(torch.float32).min)
        return batch
