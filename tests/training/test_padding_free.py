"""Batches without padding give the losses and gradients of padded ones, in fewer rows."""

import copy
from itertools import pairwise
from types import SimpleNamespace

import pytest
import torch
from families import make_family
from method_models import READERS, make_exbert, make_gmap, make_rada, make_varmae
from script_runs import read_losses, run_script, save_tiny_bert, write_jsonl
from tiny_models import VOCAB_SIZE, make_config, make_masked_lm
from tiny_tokenizers import SENTENCES
from torch.nn.functional import scaled_dot_product_attention
from transformers import (
    AutoModelForQuestionAnswering,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    BertConfig,
)
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from hf_domain import VarMAEForQuestionAnswering
from hf_domain.data.corpora import choose_rows
from hf_domain.examples import run_classification, run_mlm
from hf_domain.methods.lora import add_lora
from hf_domain.methods.stock_models import decode_labeled_rows_only
from hf_domain.modeling.backbone import find_encoder, find_layers
from hf_domain.training import padding_free
from hf_domain.training.padding_free import remove_padding, separate_documents

LENGTHS = [12, 3, 5, 7, 2, 12, 4, 6]  # of 12 places; first-fit decreasing takes five rows


def make_uneven_batch(pad=0, side="right"):
    """Texts of many lengths, with every third token masked."""
    torch.manual_seed(0)
    place = torch.arange(12)
    lengths = torch.tensor(LENGTHS)[:, None]
    mask = ((place < lengths) if side == "right" else (place >= 12 - lengths)).long()
    ids = torch.randint(5, VOCAB_SIZE, mask.shape)
    labels = torch.where((place % 3 == 1) & (mask == 1), ids, -100)
    ids = ids.masked_fill(labels != -100, 4).masked_fill(mask == 0, pad)
    return {"input_ids": ids, "attention_mask": mask, "labels": labels}


def compare(model, batch, rows=5):
    """Compare loss and gradients of a model with and without padding, and count the rows that its layers read."""
    base = model.get_base_model() if hasattr(model, "get_base_model") else model
    seen, results = [], []
    find_layers(find_encoder(base))[0].register_forward_pre_hook(lambda layer, inputs: seen.append(len(inputs[0])))
    for is_packed in (False, True):
        if is_packed:
            remove_padding(model)
            del seen[1:]  # of its probe
        model.zero_grad()
        loss = model(**batch).loss
        loss.backward()
        gradients = {name: weight.grad.clone() for name, weight in model.named_parameters() if weight.grad is not None}
        results.append((loss.detach(), gradients))
    (expected, gradients), (loss, packed) = results
    torch.testing.assert_close(loss, expected, rtol=1e-5, atol=1e-5)
    for name, gradient in gradients.items():
        torch.testing.assert_close(packed[name], gradient, rtol=1e-5, atol=1e-5, msg=name)
    assert seen == [len(batch["input_ids"]), rows]


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("family", READERS)
def test_masked_lm(family, attention):
    model = make_masked_lm(family, dropout=0.0)
    model.set_attn_implementation(attention)
    compare(decode_labeled_rows_only(model).train(), make_uneven_batch(model.config.pad_token_id))


@pytest.mark.parametrize("family", READERS)
def test_heads(family):
    config = make_config(family, dropout=0.0, num_labels=3, problem_type="single_label_classification")
    config.seq_classif_dropout = 0.0  # DistilBERT's
    batch = make_uneven_batch(config.pad_token_id)
    tags = torch.where(batch["attention_mask"] == 1, batch["input_ids"] % 3, -100)
    compare(AutoModelForTokenClassification.from_config(config).train(), batch | {"labels": tags})
    labels = torch.arange(8) % 3
    compare(AutoModelForSequenceClassification.from_config(config).train(), batch | {"labels": labels})


@pytest.mark.parametrize(
    "make",
    [
        lambda: make_varmae(dropout=0.0, freeze_backbone=False, log_variance_range=0.0).eval(),
        lambda: make_exbert(dropout=0.0, freeze_backbone=False).train(),
        lambda: make_exbert("modernbert", dropout=0.0, freeze_backbone=False).train(),
        lambda: add_lora(decode_labeled_rows_only(make_masked_lm("bert", dropout=0.0)), None).eval(),
    ],
    ids=["varmae", "exbert", "exbert-modernbert", "lora"],
)
def test_models_around_an_encoder(make):
    compare(make(), make_uneven_batch())


@pytest.mark.parametrize("make", [*READERS, "varmae"])
def test_an_answer_is_none_of_the_padding(make):
    """Logits and loss are those of each text alone, and so are the gradients."""
    if make == "varmae":
        model = VarMAEForQuestionAnswering.from_backbone(make_masked_lm("bert", dropout=0.0)).eval()
    else:
        model = AutoModelForQuestionAnswering.from_config(make_config(make, dropout=0.0)).eval()
    batch = make_uneven_batch(model.config.get_text_config().pad_token_id)
    del batch["labels"]
    lengths = batch["attention_mask"].sum(1)
    places = {"start_positions": lengths // 3, "end_positions": lengths // 2}
    packed = copy.deepcopy(model)
    remove_padding(packed)
    output, losses = packed(**batch, **places), []
    for row, length in enumerate(lengths):
        alone = {name: values[row : row + 1, :length] for name, values in batch.items()}
        own = model(**alone, **{name: values[row : row + 1] for name, values in places.items()})
        losses.append(own.loss)
        for name in ("start_logits", "end_logits"):
            torch.testing.assert_close(output[name][row, :length], own[name][0], rtol=1e-4, atol=1e-4)
            assert (output[name][row, length:] < -1e30).all()
    expected = torch.stack(losses).mean()
    torch.testing.assert_close(output.loss, expected, rtol=1e-5, atol=1e-5)
    for loss in (expected, output.loss):
        loss.backward()
    for (name, one), other in zip(model.named_parameters(), packed.parameters(), strict=True):
        if one.grad is not None:
            torch.testing.assert_close(other.grad, one.grad, rtol=1e-3, atol=1e-5, msg=name)


@pytest.mark.parametrize("family", ["bert", "roberta"])
def test_padding_on_the_left(family):
    """Positions begin with each text, also those of a BERT, whose padded batch has them begin with the padding."""
    model = make_masked_lm(family, dropout=0.0)
    batch = make_uneven_batch(model.config.pad_token_id, side="left")
    alone = [
        {name: values[row : row + 1, 12 - length :] for name, values in batch.items()}
        for row, length in enumerate(LENGTHS)
    ]
    expected = [model(**text).logits[0] for text in alone]
    remove_padding(model)
    for logits, text, length in zip(model(**batch).logits, expected, LENGTHS, strict=True):
        torch.testing.assert_close(logits[12 - length :], text, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("family", READERS)
def test_a_deep_copy_runs_its_own_weights(family):
    config = make_config(family, dropout=0.0, num_labels=3)
    model, batch = AutoModelForSequenceClassification.from_config(config).eval(), make_uneven_batch(config.pad_token_id)
    del batch["labels"]
    remove_padding(model)
    copied, logits = copy.deepcopy(model), model(**batch).logits
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    assert torch.equal(copied(**batch).logits, logits)


def test_what_cannot_be_packed_is_read_as_before():
    model = make_masked_lm("bert", dropout=0.0)
    whole = {"input_ids": torch.randint(5, VOCAB_SIZE, (8, 12)), "attention_mask": torch.ones(8, 12).long()}
    compare(model.train(), whole | {"labels": whole["input_ids"]}, rows=8)
    packed, batch = copy.deepcopy(model), make_uneven_batch()
    remove_padding(packed)
    expected, states = (each(**batch, output_hidden_states=True).hidden_states for each in (model, packed))
    assert all(torch.equal(one, other) for one, other in zip(states, expected, strict=True))


@pytest.mark.parametrize("family", ["convbert", "luke", "xlm"])
def test_an_encoder_that_mixes_the_texts_of_a_row_is_refused(family):
    """By a convolution, a mask of its own, or a forward that stops; mode and attention stay as they were."""
    model = make_family(family).train()
    attention = model.config._attn_implementation
    with pytest.raises(ValueError, match=f"a mask of any form, but a {family} does not"):
        remove_padding(model)
    assert model.base_model.training and model.config._attn_implementation == attention


@pytest.mark.parametrize("family", ["albert", "eurobert", "roformer"])
def test_other_families_equal_each_text_alone(family):
    model = make_family(family)
    with torch.no_grad():
        ids = torch.randint(5, 60, (3, 12))
        mask = (torch.arange(12) < torch.tensor([[12], [5], [4]])).long()
        expected = [model(row[None, :n]).logits[0] for row, n in zip(ids, (12, 5, 4), strict=True)]
        remove_padding(model)
        packed = model(input_ids=ids.masked_fill(mask == 0, 0), attention_mask=mask).logits
        for logits, alone in zip(packed, expected, strict=True):
            torch.testing.assert_close(logits[: len(alone)], alone, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: make_masked_lm("deberta-v2"), "a mask of any form, but a deberta-v2 does not"),
        (lambda: make_rada(), "rada reads other states"),
        (lambda: make_gmap(), "gmap reads other states"),
    ],
    ids=["deberta-v2", "rada", "gmap"],
)
def test_refused(make, message):
    with pytest.raises(ValueError, match=f"--padding_free needs .*{message}.* Leave --padding_free out"):
        remove_padding(make())


def test_another_attention_is_refused():
    model = make_masked_lm("bert")
    model.config._attn_implementation = "flash_attention_2"
    with pytest.raises(ValueError, match="needs the attention sdpa or eager, but the model uses flash_attention_2"):
        remove_padding(model)


def test_rows_hold_every_text_once():
    generator = torch.Generator().manual_seed(0)
    for _ in range(20):
        lengths = torch.randint(1, 33, (25,), generator=generator).tolist()
        rows, columns, count = choose_rows(lengths, 32)
        taken = [(row, column + i) for row, column, n in zip(rows, columns, lengths, strict=True) for i in range(n)]
        assert len({*taken}) == sum(lengths) and {row for row, _ in taken} == {*range(count)}
        assert all(place < 32 for _, place in taken)
        assert count <= 11 / 9 * -(-sum(lengths) // 32) + 1 or max(lengths) > 16


@pytest.fixture
def encoder(tmp_path):
    """A saved encoder without any dropout."""
    folder = save_tiny_bert(tmp_path / "encoder", SENTENCES)
    config = BertConfig.from_pretrained(folder)
    config.attention_probs_dropout_prob = 0.0
    config.save_pretrained(folder)
    return folder


def test_the_flag_of_masked_lm(encoder, tmp_path, monkeypatch):
    texts = [" ".join(SENTENCES[: 1 + number % 3]) for number in range(40)]
    (tmp_path / "corpus.txt").write_text("\n".join(texts))
    flags = {"model_name_or_path": encoder, "train_file": tmp_path / "corpus.txt", "line_by_line": True}
    flags |= {"do_train": True, "max_steps": 4, "logging_steps": 1, "max_seq_length": 64, "cache_dir": tmp_path}
    packed = SimpleNamespace(calls=0)

    def count(lengths, width):
        packed.calls += 1
        return choose_rows(lengths, width)

    monkeypatch.setattr(padding_free, "choose_rows", count)
    traces = []
    for name, more in {"padded": {}, "free": {"padding_free": True}}.items():
        run_script(run_mlm.main, monkeypatch, tmp_path / name, **flags, **more)
        traces.append(read_losses(tmp_path / name))
        assert packed.calls == (4 if more else 0)
    assert len(traces[0]) == 4 and traces[1] == pytest.approx(traces[0], rel=1e-4)
    with pytest.raises(ValueError, match="--padding_free needs --objective mlm"):
        run_script(run_mlm.main, monkeypatch, tmp_path / "clm", **flags, padding_free=True, objective="clm")


def test_the_flag_of_a_task(encoder, tmp_path, monkeypatch):
    rows = [{"text": " ".join(SENTENCES[: 1 + i % 3]), "label": "abc"[i % 3]} for i in range(24)]
    files = {f"{split}_file": write_jsonl(tmp_path / f"{split}.jsonl", rows) for split in ("train", "validation")}
    flags = {"model_name_or_path": encoder, **files, "do_train": True, "do_eval": True, "max_steps": 3}
    results = [
        run_script(run_classification.main, monkeypatch, tmp_path / name, **flags, padding_free=name == "free")
        for name in ("padded", "free")
    ]
    assert results[1]["eval_loss"] == pytest.approx(results[0]["eval_loss"], rel=1e-4)


def attend_by_document(module, query, key, value, attention_mask, scaling=None, sliding_window=None, **kwargs):
    """Flash attention on one long row, computed one document after the other."""
    assert attention_mask is None and query.shape[0] == 1
    bounds, parts = kwargs["cu_seq_lens_q"].tolist(), []
    assert kwargs["max_length_k"] == max(end - start for start, end in pairwise(bounds))
    for start, end in pairwise(bounds):
        own = [states[:, :, start:end] for states in (query, key, value)]
        place = torch.arange(end - start)
        # transformers gives flash attention the width of one side plus one.
        near = None if sliding_window is None else (place - place[:, None]).abs() < sliding_window
        parts.append(scaled_dot_product_attention(*own, attn_mask=near, scale=scaling))
    return torch.cat(parts, 2).transpose(1, 2), None


@pytest.mark.parametrize("attention", ["sdpa", "eager", "flash_attention_2"])
@pytest.mark.parametrize("family", READERS)
def test_documents_of_a_block_are_read_apart(family, attention, monkeypatch):
    """States of blocks are those of each document alone, also with padding on the left."""
    torch.manual_seed(0)
    model = make_masked_lm(family, dropout=0.0)
    encoder = find_encoder(model)
    pad = encoder.config.pad_token_id
    documents = [torch.randint(5, VOCAB_SIZE, (length,)) for length in (12, 3, 9, 20, 4, 1)]
    expected = [encoder(input_ids=ids[None]).last_hidden_state[0] for ids in documents]
    rows = [([0, 1, 2], "right"), ([3], "left"), ([4, 5], "right")]
    ids, numbers = torch.full((3, 24), pad), torch.zeros(3, 24, dtype=torch.long)
    for row, (chosen, side) in enumerate(rows):
        text = torch.cat([documents[each] for each in chosen])
        number = torch.cat([torch.full_like(documents[each], place) for place, each in enumerate(chosen, 1)])
        place = slice(0, len(text)) if side == "right" else slice(24 - len(text), 24)
        ids[row, place], numbers[row, place] = text, number
    if attention == "flash_attention_2":
        monkeypatch.setitem(ALL_ATTENTION_FUNCTIONS._global_mapping, attention, attend_by_document)
        encoder.config._attn_implementation_internal = attention
    else:
        model.set_attn_implementation(attention)
    separate_documents(model)
    states = encoder(input_ids=ids, attention_mask=numbers).last_hidden_state
    for row, (chosen, _) in enumerate(rows):
        for place, each in enumerate(chosen, 1):
            torch.testing.assert_close(states[row][numbers[row] == place], expected[each], rtol=1e-5, atol=1e-5)


def test_what_reads_other_states_is_not_separated():
    for model, match in ((make_masked_lm("deberta-v2"), "but a deberta-v2 does not"), (make_gmap(), "but gmap reads")):
        with pytest.raises(
            ValueError, match=rf"--document_boundaries needs .*{match}.*Leave --document_boundaries out"
        ):
            separate_documents(model)
