"""Train an encoder on next tokens: a causal stage before masked language modeling."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from transformers import BatchEncoding, PreTrainedTokenizerBase
from transformers.data.data_collator import pad_without_fast_tokenizer_warning

from hf_domain.data.masking import check_probability, make_generator

# Their attention accepts a mask over pairs of tokens; DeBERTa-v2 builds its own.
CAUSAL_FAMILIES = ("bert", "roberta", "xlm-roberta", "electra", "distilbert", "modernbert")


def check_causal(model_type: str) -> None:
    """Raise a ValueError unless a family of encoders can be trained causally."""
    if model_type not in CAUSAL_FAMILIES:
        raise ValueError(
            f"--objective clm needs an encoder whose attention can be made causal ({', '.join(CAUSAL_FAMILIES)}), but "
            f"the encoder is a {model_type}. Use --objective mlm."
        )


@dataclass
class DataCollatorForNextToken:
    """Pad a batch; each token attends only to earlier ones, and a share of the positions predicts the next token.

    The masked-LM head does not shift labels, so a label stands at the position before its token. The causal mask is
    additive and has four dimensions; transformers passes such a mask to every layer unchanged. The local layers of
    ModernBERT then see more than their window.

    Args:
        tokenizer: The tokenizer that made the examples.
        probability: Share of the positions that predict. Projecting to the vocabulary is most of the cost of a small
            encoder, so the share of masked-language modeling makes both objectives cost the same.
        seed: The draws depend only on this seed, the epoch and the batch.
        epoch: Number of the epoch, which `MaskRenewal` sets.
        by_example: Make the draws of each example from it alone, whatever stands beside it; for evaluations.
    """

    tokenizer: PreTrainedTokenizerBase
    probability: float = 0.15
    seed: int = 0
    epoch: int = 0
    by_example: bool = False

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
        if self.by_example:
            draws = torch.ones(input_ids.shape)
            for row, real, example in zip(draws, is_text, examples, strict=True):
                generator = make_generator([example], self.seed, self.epoch)
                row[real] = torch.rand(int(real.sum()), generator=generator)
        else:
            draws = torch.rand(input_ids.shape, generator=make_generator(examples, self.seed, self.epoch))
        batch["labels"] = labels.masked_fill(draws >= self.probability, -100)
        visible = torch.ones(length, length, dtype=torch.bool).tril() & is_text[:, None, None, :]
        # Padding on the left would see no token, and a softmax over nothing is nan: let it see itself.
        visible = visible | torch.eye(length, dtype=torch.bool)
        batch["attention_mask"] = torch.zeros(visible.shape).masked_fill(~visible, torch.finfo(torch.float32).min)
        return batch
