"""The body of masked-LM training: held-out losses."""

import pytest
import torch
from method_models import VOCABULARY, make_exbert, make_gmap, make_rada, make_varmae
from tiny_models import SIZES, make_masked_lm
from tiny_tokenizers import SENTENCES, make_bert_tokenizer
from torch.nn.functional import cross_entropy
from transformers import AutoTokenizer, BertConfig, BertForMaskedLM, TrainingArguments

from hf_domain.data.causal import DataCollatorForNextToken
from hf_domain.data.masking import DataCollatorForTokenMask, DataCollatorForWholeWordMask
from hf_domain.methods import PRETRAINING_METHODS
from hf_domain.methods.lora import add_lora
from hf_domain.methods.rada.collator import DataCollatorWithPassages
from hf_domain.tokenization import expand_vocabulary
from hf_domain.training.masked_lm_trainer import MaskedLMTrainer, evaluate_general
from hf_domain.training.pretraining import load_masked_lm
from hf_domain.training.pretraining_arguments import PretrainingArguments

MODELS = {
    "stock": lambda: make_masked_lm("bert"),
    "lora": lambda: add_lora(make_masked_lm("bert")),
    "varmae": make_varmae,
    "exbert": make_exbert,
    "gmap": make_gmap,
    "rada": make_rada,
}
LENGTHS = (22, 3, 9, 4, 15, 3, 31, 5, 6, 12, 3)
PASSAGES = {0: [2, 7, 8, 3], 1: [2, 9, 3], 2: [2, 11, 12, 13, 14, 3]}


def make_rows(lengths):
    """Examples of words of one token each."""
    generator = torch.Generator().manual_seed(1)
    rows = [[2, *torch.randint(5, 40, (length,), generator=generator).tolist(), 3] for length in lengths]
    return [{"input_ids": row, "word_ids": [None, *range(len(row) - 2), None]} for row in rows]


def evaluate(model, masking, rows, folder, batch_size, collator=None, **options):
    args = TrainingArguments(
        folder,
        per_device_eval_batch_size=batch_size,
        **options,
        **{"use_cpu": True, "report_to": "none", "disable_tqdm": True, "remove_unused_columns": False},
    )
    trainer = MaskedLMTrainer(model, args, collator or masking, eval_dataset=rows, masking=masking)
    return trainer.evaluate()["eval_loss"], evaluate_general(trainer, rows)["general_loss"]


def test_the_last_held_out_batch_is_dropped_in_training_alone(tmp_path):
    masking, rows = DataCollatorForTokenMask(make_bert_tokenizer()), make_rows(LENGTHS)
    model, rows = make_masked_lm("bert"), [{"input_ids": row["input_ids"]} for row in rows]
    whole, dropping = (
        evaluate(model, masking, rows, tmp_path, 8, dataloader_drop_last=drops) for drops in (False, True)
    )
    assert whole == dropping


@pytest.mark.parametrize("method", MODELS)
def test_held_out_loss_is_that_of_all_masked_tokens(method, tmp_path):
    """Whatever the batch; many of these rows have no masked token."""
    masking = DataCollatorForTokenMask(make_bert_tokenizer())
    rows = [{"input_ids": row["input_ids"]} for row in make_rows(LENGTHS)]
    collator = masking
    if method == "rada":
        collator = DataCollatorWithPassages(masking, make_bert_tokenizer(), PASSAGES, num_passages=2)
        rows = [row | {"passage_ids": [number % 3, 2][: number % 3]} for number, row in enumerate(rows)]
    model = MODELS[method]()
    if method == "exbert":
        rows[0]["input_ids"][1:4] = list(VOCABULARY)[:3]
    losses = [evaluate(model, masking, rows, tmp_path, size, collator) for size in (1, 4, 16)]

    total, count = 0.0, 0
    for row in rows:
        batch = collator([row])
        labels = batch.pop("labels")
        with torch.no_grad():
            logits = model.eval()(**batch).logits
        total += cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="sum").item()
        count += int((labels != -100).sum())
    for both in losses:
        assert both == pytest.approx((total / count, total / count), rel=1e-5)


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("collator_class", [DataCollatorForTokenMask, DataCollatorForWholeWordMask, "causal"])
def test_held_out_masks_do_not_depend_on_the_batch(collator_class, side, tmp_path):
    tokenizer = make_bert_tokenizer()
    tokenizer.padding_side = side
    masking = DataCollatorForNextToken(tokenizer) if collator_class == "causal" else collator_class(tokenizer)
    rows = make_rows(LENGTHS)
    if collator_class is not DataCollatorForWholeWordMask:
        rows = [{"input_ids": row["input_ids"]} for row in rows]
    masking.by_example = True
    alone = [masking([row])["labels"][0] for row in rows]
    for row, labels, own in zip(rows, masking(rows)["labels"], alone, strict=True):
        first = 0 if side == "right" else len(labels) - len(own)
        assert torch.equal(labels[first : first + len(own)], own)
        assert (labels != -100).sum() == (own != -100).sum() and len(own) == len(row["input_ids"])
    masking.by_example = False
    assert not torch.equal(masking(rows)["labels"], masking(rows[::-1])["labels"].flip(0))  # training: by batch
    model = make_masked_lm("bert")
    one, many = (evaluate(model, masking, rows, tmp_path, size) for size in (1, 16))
    assert masking.by_example is False
    assert side == "left" or one == pytest.approx(many, rel=1e-5)  # BERT counts positions from the left


def test_held_out_text_without_a_masked_token_is_refused(tmp_path):
    masking = DataCollatorForTokenMask(make_bert_tokenizer(), mlm_probability=1e-6)
    with pytest.raises(ValueError, match=r"must have a masked token, but its 2 examples have none. Use more"):
        evaluate(make_masked_lm("bert"), masking, [{"input_ids": [2, 7, 3]}] * 2, tmp_path, 2)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    """A checkpoint with as many rows as its tokenizer has entries."""
    folder, tokenizer = tmp_path_factory.mktemp("checkpoint"), make_bert_tokenizer()
    BertForMaskedLM(BertConfig(**SIZES | {"vocab_size": len(tokenizer)})).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)


@pytest.mark.parametrize("expands", [False, True])
@pytest.mark.parametrize("method", PRETRAINING_METHODS)
def test_a_model_grows_by_the_tokens_that_were_added_to_its_tokenizer(method, expands, checkpoint, caplog):
    tokenizer, delta = AutoTokenizer.from_pretrained(checkpoint), None
    if expands:
        if method == "gmap":
            pytest.skip("its memory has the tokenizer that was expanded")
        tokenizer, delta, _ = expand_vocabulary(tokenizer, ["a lymphoma"] * 9, method="words", words=["lymphoma"])
    table = BertForMaskedLM.from_pretrained(checkpoint).get_input_embeddings().weight
    tokenizer.add_tokens(["[E1]", "[/E1]"])
    assert tokenizer.convert_tokens_to_ids("[E1]") == len(table) + expands
    memory = checkpoint if method == "gmap" else None
    args = PretrainingArguments(checkpoint, method=method, memory_name_or_path=memory)
    model = load_masked_lm(args, tokenizer, delta).eval()
    ids = torch.tensor([tokenizer.convert_tokens_to_ids(["[CLS]", "[E1]", "[/E1]", "[SEP]"])])
    rows = model.get_input_embeddings()(ids)[0, 1:3]
    torch.testing.assert_close(rows, table.mean(0).expand(2, -1))
    output = model(input_ids=ids, labels=ids)
    assert output.logits.shape[-1] == len(tokenizer) and output.loss.isfinite()
    assert caplog.text.count("grows by the 2 tokens that were added to its tokenizer, such as [E1]") == 1


def test_a_tokenizer_of_another_model_makes_nothing_grow(checkpoint):
    tokenizer = make_bert_tokenizer([*SENTENCES, "entirely other vocabulary"])
    with pytest.raises(ValueError, match="must have a row for every entry of the tokenizer"):
        load_masked_lm(PretrainingArguments(checkpoint), tokenizer, None)
