"""A causal stage: no token sees a later one, and labels are next tokens."""

import pytest
import torch
from tiny_models import make_masked_lm
from tiny_tokenizers import SENTENCES, make_bert_tokenizer

from hf_domain.data.causal import CAUSAL_FAMILIES, DataCollatorForNextToken, check_causal


@pytest.fixture
def tokenizer():
    return make_bert_tokenizer()


def tokenize(tokenizer):
    return [{"input_ids": ids} for ids in tokenizer(SENTENCES)["input_ids"]]


def test_labels_are_the_next_tokens_of_the_text(tokenizer):
    examples = tokenize(tokenizer)
    batch = DataCollatorForNextToken(tokenizer, 1.0)(examples)
    for row, example in enumerate(examples):
        text = example["input_ids"][1:-1]  # no special token is predicted
        expected = [*text, *[-100] * (batch["labels"].shape[1] - len(text))]
        assert batch["labels"][row].tolist() == expected
    again = DataCollatorForNextToken(tokenizer, 1.0)(examples)
    assert batch["labels"].equal(again["labels"])


def test_a_share_of_the_positions_predicts(tokenizer):
    examples = tokenize(tokenizer) * 100
    full, sampled = (DataCollatorForNextToken(tokenizer, share, seed=1)(examples)["labels"] for share in (1.0, 0.3))
    assert (sampled != -100).sum() / (full != -100).sum() == pytest.approx(0.3, abs=0.02)
    assert sampled[sampled != -100].equal(full[sampled != -100])


@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("family", CAUSAL_FAMILIES)
@torch.no_grad()
def test_no_token_sees_a_later_one(family, attention, side, tokenizer):
    tokenizer.padding_side = side
    torch.manual_seed(0)
    model = make_masked_lm(family).eval()
    model.set_attn_implementation(attention)
    batch = DataCollatorForNextToken(tokenizer)(tokenize(tokenizer)[:2])
    inputs = {"input_ids": batch["input_ids"], "attention_mask": batch["attention_mask"]}
    before = model(**inputs).logits
    row, place = 0, batch["input_ids"].shape[1] // 2
    inputs["input_ids"] = inputs["input_ids"].clone()
    inputs["input_ids"][row, place] += 1
    change = (model(**inputs).logits - before)[row].abs().amax(-1)
    assert change[:place].max() == 0 and change[place:].min() > 0
    assert before.isfinite().all()


def test_an_encoder_that_cannot_be_causal_is_refused():
    check_causal("bert")
    with pytest.raises(ValueError, match="the encoder is a deberta-v2"):
        check_causal("deberta-v2")
    with pytest.raises(ValueError, match="must be above 0"):
        DataCollatorForNextToken(make_bert_tokenizer(), 0.0)
