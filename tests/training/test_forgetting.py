"""The masked-LM loss of a model on a text."""

import pytest
import torch
from datasets import Dataset
from tiny_models import make_config
from tiny_tokenizers import SENTENCES, make_bert_tokenizer
from torch.nn import functional as F
from transformers import AutoModelForMaskedLM

from hf_domain.data.masking import DataCollatorForTokenMask
from hf_domain.training.forgetting import measure_masked_lm_loss

TOKENIZER = make_bert_tokenizer()


def make_model():
    config = make_config("bert")
    config.vocab_size = len(TOKENIZER)
    return AutoModelForMaskedLM.from_config(config)


def make_examples(sentences=SENTENCES):
    return Dataset.from_dict({"input_ids": TOKENIZER(sentences)["input_ids"]})


@pytest.mark.parametrize("batch_size", [1, 5])
def test_loss_is_the_mean_over_masked_tokens(batch_size):
    model, examples = make_model().train(), make_examples()
    collator = DataCollatorForTokenMask(TOKENIZER, mlm_probability=0.3, seed=3)
    measured = measure_masked_lm_loss(model, examples, collator, batch_size=batch_size)
    losses = []
    for start in range(0, 5, batch_size):
        batch = collator([examples[row] for row in range(start, start + batch_size)])
        with torch.no_grad():
            logits = model.eval()(batch["input_ids"], batch["attention_mask"]).logits
        labeled = batch["labels"] != -100
        losses += F.cross_entropy(logits[labeled], batch["labels"][labeled], reduction="none").tolist()
    assert measured["masked_tokens"] == len(losses) > 5
    assert measured["loss"] == pytest.approx(sum(losses) / len(losses), rel=1e-4)


def test_text_without_a_masked_token():
    collator = DataCollatorForTokenMask(TOKENIZER, mlm_probability=0.15)
    with pytest.raises(ValueError, match="must have a masked token, but its 1 examples have none"):
        measure_masked_lm_loss(make_model(), make_examples([""]), collator)
