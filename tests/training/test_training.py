"""What stands beside the stock Trainer: the fast masked-LM loss, the logged losses, the pushed code."""

import copy
import inspect
import json

import pytest
import torch
from datasets import Dataset
from tiny_models import VOCAB_SIZE, make_batch, make_masked_lm
from tiny_tokenizers import make_bert_tokenizer
from transformers import AutoTokenizer, BertTokenizer, Trainer, TrainerControl, TrainerState, TrainingArguments

from hf_domain import RadaForMaskedLM, VarMAEForMaskedLM
from hf_domain.data.masking import DataCollatorForTokenMask, DataCollatorForWholeWordMask
from hf_domain.methods.stock_models import (
    autocast_as_trained,
    decode_labeled_rows_only,
    match_tokenizer,
    normalize_stock_loss,
)
from hf_domain.training.arguments import check_work
from hf_domain.training.callbacks import (
    AuxiliaryLossCallback,
    PushCodeCallback,
    StepTimer,
    log_auxiliary_losses,
)
from hf_domain.training.masked_lm_trainer import MaskedLMTrainer, evaluate_general
from hf_domain.training.overrides import parse_overrides


@pytest.mark.parametrize("bf16", [True, False])
def test_what_comes_before_training_is_as_precise(bf16, tmp_path):
    arguments = TrainingArguments(tmp_path, use_cpu=True, bf16=bf16)
    with autocast_as_trained(arguments):
        assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype == (torch.bfloat16 if bf16 else torch.float32)


def test_labeled_rows_give_the_stock_loss_and_gradient(family):
    stock = make_masked_lm(family, dropout=0.0).train()
    fast = decode_labeled_rows_only(copy.deepcopy(stock))
    batch = make_batch()
    expected, loss = stock(**batch).loss, fast(**batch).loss
    torch.testing.assert_close(loss, expected)
    expected.backward()
    loss.backward()
    for (name, one), other in zip(stock.named_parameters(), fast.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad, rtol=1e-4, atol=1e-6, msg=name)


def test_labeled_rows_change_nothing_else(family, tmp_path):
    stock = make_masked_lm(family)
    fast = decode_labeled_rows_only(copy.deepcopy(stock))
    batch = make_batch()
    assert inspect.signature(fast.forward) == inspect.signature(stock.forward)
    assert fast.train()(**batch).logits is None
    with torch.no_grad():
        stock_output, fast_output = stock.eval()(**batch), fast.eval()(**batch)
    assert torch.equal(stock_output.logits, fast_output.logits)
    assert torch.equal(stock_output.loss, fast_output.loss)
    fast.save_pretrained(tmp_path)
    loaded, info = type(stock).from_pretrained(tmp_path, output_loading_info=True)
    assert not any(info.values())
    assert loaded.config.architectures == [type(stock).__name__]


def test_labeled_rows_see_a_resized_vocabulary(family):
    fast = decode_labeled_rows_only(make_masked_lm(family, dropout=0.0)).train()
    fast.resize_token_embeddings(VOCAB_SIZE + 8, mean_resizing=False)
    batch = make_batch()
    batch["labels"][1, 1] = VOCAB_SIZE + 3
    fast(**batch).loss.backward()
    assert fast.get_output_embeddings().weight.grad[VOCAB_SIZE + 3].abs().sum() > 0


def test_a_deep_copy_runs_its_own_weights(family):
    fast = decode_labeled_rows_only(make_masked_lm(family, dropout=0.0))
    copied, batch = copy.deepcopy(fast), make_batch()
    loss, logits = fast.train()(**batch).loss, fast.eval()(**batch).logits
    with torch.no_grad():
        for parameter in fast.parameters():
            parameter.zero_()
    assert torch.equal(copied.train()(**batch).loss, loss)
    assert torch.equal(copied.eval()(**batch).logits, logits)


def test_ours_are_left_alone():
    model = VarMAEForMaskedLM.from_backbone(make_masked_lm("bert"))
    assert decode_labeled_rows_only(model) is model
    assert "forward" not in vars(model)
    assert normalize_stock_loss(model).accepts_loss_kwargs is VarMAEForMaskedLM.accepts_loss_kwargs
    assert normalize_stock_loss(make_masked_lm("bert")).accepts_loss_kwargs is False


def train(model, tmp_path, batch_size=8, accumulation=1, **options):
    torch.manual_seed(0)
    rows = make_batch(8, 12)
    rows["attention_mask"][0] = 1
    rows["labels"][3, 2:9] = rows["input_ids"][3, 2:9]  # micro-batches with different numbers of labels
    trainer = Trainer(
        model,
        TrainingArguments(
            str(tmp_path),
            per_device_train_batch_size=batch_size,
            gradient_accumulation_steps=accumulation,
            max_steps=2,
            logging_steps=1,
            learning_rate=1e-2,
            save_strategy="no",
            use_cpu=True,
            disable_tqdm=True,
            train_sampling_strategy="sequential",
            **options,
        ),
        train_dataset=Dataset.from_dict({key: value.tolist() for key, value in rows.items()}),
    )
    log_auxiliary_losses(trainer)
    trainer.train()
    return trainer


def test_dapt_accumulates_exactly(tmp_path):
    def run(batch_size, accumulation):
        torch.manual_seed(0)
        model = decode_labeled_rows_only(make_masked_lm("bert", dropout=0.0))
        log = train(model, tmp_path, batch_size, accumulation).state.log_history
        return torch.tensor([(line["loss"], line["grad_norm"]) for line in log if "loss" in line])

    torch.testing.assert_close(run(8, 1), run(2, 4), rtol=1e-4, atol=1e-4)


def test_auxiliary_losses_are_averaged_and_logged(tmp_path):
    model = VarMAEForMaskedLM.from_backbone(make_masked_lm("bert"))
    seen = []
    model.register_forward_hook(lambda module, inputs, output: seen.append(float(output.masked_kl)))
    trainer = train(model, tmp_path, batch_size=2, accumulation=4)
    lines = [line for line in trainer.state.log_history if "loss" in line]
    for number, line in enumerate(lines):
        expected = sum(seen[4 * number : 4 * number + 4]) / 4
        assert line["masked_kl"] == pytest.approx(expected, abs=1e-4)
        assert {"unmasked_kl", "masked_reconstruction_loss", "active_latent_share"} <= line.keys()
    seen.clear()
    metrics = trainer.evaluate(trainer.train_dataset)
    assert metrics["eval_masked_kl"] == pytest.approx(sum(seen) / len(seen), abs=1e-6)
    assert "masked_kl" not in trainer.predict(trainer.train_dataset).metrics


def test_auxiliary_losses_of_a_short_batch_count_less(tmp_path):
    trainer = train(VarMAEForMaskedLM.from_backbone(make_masked_lm("bert")), tmp_path)
    trainer.args.per_device_eval_batch_size = 3
    seen = []
    trainer.model.register_forward_hook(
        lambda module, args, kwargs, output: seen.append((float(output.masked_kl), len(kwargs["input_ids"]))),
        with_kwargs=True,
    )
    metrics = trainer.evaluate(trainer.train_dataset.select(range(4)))
    assert [size for _, size in seen] == [3, 1]
    assert metrics["eval_masked_kl"] == pytest.approx((3 * seen[0][0] + seen[1][0]) / 4, abs=1e-6)


def test_auxiliary_losses_of_all_processes_count(monkeypatch):
    callback = AuxiliaryLossCallback()
    callback.sums[False], callback.examples[False] = {"kl": torch.tensor(6.0)}, 2
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "all_reduce", lambda totals: totals.add_(torch.tensor([4.0, 3.0])))
    assert callback.flush(training=False) == {"kl": (6 + 4) / (2 + 3)}
    assert callback.flush(training=False) == {}


def test_auxiliary_losses_of_the_preparation_do_not_count():
    callback = AuxiliaryLossCallback()
    callback.sums[True], callback.examples[True] = {"kl": torch.tensor(6.0)}, 2
    callback.on_train_begin(None, None, None)
    assert callback.flush(training=True) == {} and callback.examples[True] == 0


def test_pushed_folder_holds_the_code(tmp_path):
    model = VarMAEForMaskedLM.from_backbone(make_masked_lm("bert"))
    arguments = TrainingArguments(str(tmp_path), use_cpu=True)
    PushCodeCallback().on_push_begin(arguments, TrainerState(), TrainerControl(), model=model)
    assert {file.name for file in tmp_path.glob("*.py")} >= {"modeling_varmae.py", "backbone.py"}
    # A push that still reads finds whole files: what is right is not written again, what is not is.
    times = {file: file.stat().st_mtime_ns for file in tmp_path.glob("*.py") if file.name != "heads.py"}
    (tmp_path / "heads.py").write_text("")
    PushCodeCallback().on_push_begin(arguments, TrainerState(), TrainerControl(), model=model)
    assert times == {file: file.stat().st_mtime_ns for file in times}
    assert (tmp_path / "heads.py").read_text()
    PushCodeCallback().on_push_begin(arguments, TrainerState(), TrainerControl(), model=make_masked_lm("bert"))
    nested = RadaForMaskedLM.from_backbone(model)
    arguments.output_dir = str(tmp_path / "nested")
    (tmp_path / "nested").mkdir()
    PushCodeCallback().on_push_begin(arguments, TrainerState(), TrainerControl(), model=nested)
    assert {"modeling_varmae.py", "modeling_rada.py"} <= {file.name for file in tmp_path.glob("nested/*.py")}


def test_a_tokenizer_and_its_model_agree(tmp_path, caplog):
    """What cannot work is refused, what looks wrong is warned of, and token types that the model lacks are left out."""
    capitals = BertTokenizer(vocab={word: i for i, word in enumerate(["[PAD]", "[UNK]", "[CLS]", "[MASK]", "A", "b"])})
    model = make_masked_lm("bert")
    match_tokenizer(capitals, model)
    assert "so that 1 entries with capitals are never used" in caplog.text
    caplog.clear()
    match_tokenizer(BertTokenizer(vocab=capitals.get_vocab(), do_lower_case=False), model)
    few = [*capitals.get_vocab(), *(f"word{number}" for number in range(100))]  # one entry of 106
    match_tokenizer(BertTokenizer(vocab={word: i for i, word in enumerate(few)}), model)
    tokenizer = make_bert_tokenizer()
    match_tokenizer(tokenizer, model)
    assert not caplog.text and "token_type_ids" in tokenizer("a", "b")
    match_tokenizer(tokenizer, make_masked_lm("bert", type_vocab_size=1))
    tokenizer.save_pretrained(tmp_path)
    for each in (tokenizer, AutoTokenizer.from_pretrained(tmp_path)):
        assert {*each("a", "b")} == {"input_ids", "attention_mask"}
    model.resize_token_embeddings(len(tokenizer) + 1025, mean_resizing=False)
    match_tokenizer(tokenizer, model)
    assert "Check that it is the model's own tokenizer" in caplog.text
    tokenizer.pad_token = None
    with pytest.raises(ValueError, match="must have a padding token"):
        match_tokenizer(tokenizer, model)


def test_overrides():
    assert parse_overrides("kl_weight=2.5,batch_norm=False,kl_reduction=sum,n=null") == {
        "kl_weight": 2.5,
        "batch_norm": False,
        "kl_reduction": "sum",
        "n": None,
    }
    assert parse_overrides("memory_layers=[3,6],strategy=chunk_gated,special_token_ids=[]") == {
        "memory_layers": [3, 6],
        "strategy": "chunk_gated",
        "special_token_ids": [],
    }
    assert parse_overrides(None) == {}
    with pytest.raises(ValueError, match=r"name=value.*has the part 'kl_weight'"):
        parse_overrides("kl_weight")
    with pytest.raises(ValueError, match="kl_weight"):
        parse_overrides("kl_weight=1,kl_weight=2")
    assert json.dumps(parse_overrides("a=1")) == '{"a": 1}'


def test_the_first_steps_are_not_timed(tmp_path, monkeypatch):
    clock = [0.0]
    monkeypatch.setattr("hf_domain.training.callbacks.time.perf_counter", lambda: clock[0])
    timer, arguments = StepTimer(warm_up=2), TrainingArguments(tmp_path, use_cpu=True)
    for number, seconds in enumerate((60, 10, 0.5, 0.5, 0.5)):
        assert timer.compute() is None or number > 2
        clock[0] += seconds
        timer.on_step_end(arguments, TrainerState(), TrainerControl())
        timer.on_train_end(arguments, TrainerState(), TrainerControl())
    assert timer.compute() == 2.0


@pytest.mark.parametrize("collator_class", [DataCollatorForTokenMask, DataCollatorForWholeWordMask])
def test_each_epoch_has_other_masks_and_each_evaluation_the_same(collator_class, tmp_path):
    """A batch of one example is the same in every epoch."""
    train_rows, eval_rows = (
        [{"input_ids": [2, *range(first, first + 20), 3], "word_ids": [None, *range(20), None]}] for first in (5, 25)
    )

    def train(**options):
        masking, seen = collator_class(make_bert_tokenizer()), {5: [], 25: []}

        def collate(examples):
            is_stock = isinstance(masking, DataCollatorForTokenMask)
            batch = masking([{"input_ids": row["input_ids"]} for row in examples] if is_stock else examples)
            seen[examples[0]["input_ids"][1]].append(batch["labels"].tolist())
            return batch

        options |= {"eval_strategy": "epoch", "save_strategy": "epoch", "remove_unused_columns": False}
        options |= {"per_device_train_batch_size": 1, "use_cpu": True, "report_to": "none", "disable_tqdm": True}
        args = TrainingArguments(tmp_path, **options)
        options = {"train_dataset": train_rows, "eval_dataset": eval_rows, "masking": masking}
        trainer = MaskedLMTrainer(make_masked_lm("bert"), args, collate, **options)
        trainer.train(resume_from_checkpoint=args.resume_from_checkpoint)
        return seen

    seen = train(num_train_epochs=4)
    assert len({*map(str, seen[5])}) == len(seen[5]) == 4
    assert len({*map(str, seen[25])}) == 1 and len(seen[25]) == 4
    resumed = train(num_train_epochs=4, resume_from_checkpoint=str(tmp_path / "checkpoint-2"))
    assert resumed[5] == seen[5][2:]


def test_workers_do_not_keep_the_masks_of_an_epoch(tmp_path):
    """Persistent ones hold a copy of the collator, whose epoch stays the first."""
    seen, masking = set(), DataCollatorForTokenMask(make_bert_tokenizer())

    class Recorder(MaskedLMTrainer):
        def compute_loss(self, model, inputs, *args, **kwargs):
            seen.add(str(inputs["labels"].tolist()))
            return super().compute_loss(model, inputs, *args, **kwargs)

    options = {"per_device_train_batch_size": 1, "save_strategy": "no", "use_cpu": True, "report_to": "none"}
    options |= {"num_train_epochs": 3, "dataloader_num_workers": 1, "dataloader_persistent_workers": True}
    rows = [{"input_ids": [2, *range(5, 25), 3]}]
    args = TrainingArguments(tmp_path, **options)
    Recorder(make_masked_lm("bert"), args, masking, train_dataset=rows, masking=masking).train()
    assert len(seen) == 3


def test_evaluations_read_their_own_text_and_do_not_smooth_labels(tmp_path):
    """Persistent workers keep a loader, and Trainer gives it to every evaluation."""
    texts = [[{"input_ids": [2, *range(first, first + 20), 3]} for first in firsts] for firsts in ((5,), (25, 30))]
    model = make_masked_lm("bert")

    def evaluate(**options):
        args = TrainingArguments(tmp_path, use_cpu=True, report_to="none", disable_tqdm=True, **options)
        masking = DataCollatorForTokenMask(make_bert_tokenizer())
        trainer = MaskedLMTrainer(model, args, masking, eval_dataset=texts[0], masking=masking)
        return [trainer.evaluate()["eval_loss"], evaluate_general(trainer, texts[1]), trainer.evaluate()["eval_loss"]]

    losses = evaluate()
    assert evaluate(dataloader_num_workers=1, dataloader_persistent_workers=True) == losses
    assert losses[0] != losses[1]["general_loss"]
    assert evaluate(label_smoothing_factor=0.5) == losses


def test_weights_are_not_converted_before_they_are_trained(tmp_path):
    for name in ("bf16_full_eval", "fp16_full_eval"):
        check_work(TrainingArguments(tmp_path, use_cpu=True, do_eval=True, **{name: True}), "do_eval")
        with pytest.raises(ValueError, match="must come without --do_train"):
            check_work(TrainingArguments(tmp_path, use_cpu=True, do_train=True, **{name: True}), "do_train")
