"""The recipe of ModernBERT's authors, its decay, and decays from a shared trunk."""

import json
import math

import pytest
import torch
from safetensors.torch import load_file
from script_runs import read_losses, run_script
from tiny_models import SIZES, make_masked_lm
from tiny_tokenizers import SENTENCES, make_bert_tokenizer, make_modernbert_tokenizer
from torch.nn.functional import cross_entropy
from transformers import AutoModelForMaskedLM, BertConfig, BertForMaskedLM

import hf_domain
from hf_domain.data.masking import DataCollatorForTokenMask
from hf_domain.examples import run_mlm
from hf_domain.training.arguments import PretrainerArguments, parse_arguments
from hf_domain.training.recipes import find_decay

STEPS, DECAYING, RATE = 20, 2, 3e-3


@pytest.fixture
def encoder(tmp_path):
    """A saved tiny ModernBERT without dropout, and its tokenizer."""
    torch.manual_seed(0)
    tokenizer = make_modernbert_tokenizer()
    model = make_masked_lm("modernbert", dropout=0.0)
    model.resize_token_embeddings(len(tokenizer))
    model.save_pretrained(tmp_path / "encoder")
    tokenizer.save_pretrained(tmp_path / "encoder")
    return tmp_path / "encoder"


@pytest.fixture
def run(monkeypatch, tmp_path, encoder):
    """Run the recipe on a corpus of documents of many lengths; returns the losses by step."""
    words = " ".join(SENTENCES).split()
    lines = [" ".join(words[row % 29 : row % 29 + 2 + row % 11]) for row in range(150)]
    (tmp_path / "corpus.txt").write_text("\n".join(lines), encoding="utf-8")

    def run(name, **options):
        flags = {"model_name_or_path": encoder, "train_file": tmp_path / "corpus.txt", "do_train": True}
        flags |= {"recipe": "modernbert", "max_seq_length": 64, "per_device_train_batch_size": 4, "max_steps": STEPS}
        flags |= {"learning_rate": RATE, "logging_steps": 1, "bf16": False, "cache_dir": tmp_path / "cache"}
        given = {name: value for name, value in (flags | options).items() if value is not None}
        run_script(run_mlm.main, monkeypatch, tmp_path / name, **given)
        return read_losses(tmp_path / name)

    return run


@pytest.fixture
def batches(monkeypatch):
    """The epoch and the blocks of each batch that is masked, in the order of training."""
    seen, mask = [], DataCollatorForTokenMask.torch_call

    def record(collator, examples):
        seen.append((collator.epoch, examples))
        return mask(collator, examples)

    monkeypatch.setattr(DataCollatorForTokenMask, "torch_call", record)
    return seen


def train_by_hand(model, batches, first_decaying, optimizer_state=None):
    """The recipe as a loop over documents: each is read alone, without packing, padding or Trainer."""
    decayed, plain = [], []
    for name, weight in model.named_parameters():
        (plain if name.endswith("bias") or weight.dim() == 1 else decayed).append(weight)
    groups = [{"params": decayed, "weight_decay": 0.033}, {"params": plain, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=RATE, betas=(0.9, 0.98), eps=1e-6)
    if optimizer_state is not None:
        optimizer.load_state_dict(optimizer_state)
    tokenizer, losses = make_modernbert_tokenizer(), []
    for step, (epoch, examples) in enumerate(batches):
        progress = (step - first_decaying) / (len(batches) - first_decaying)
        share, factor = (0.3, 1.0) if progress < 0 else (0.15, 0.001 + 0.999 * (1 - math.sqrt(progress)))
        masked = DataCollatorForTokenMask(tokenizer, mlm_probability=share, seed=1, epoch=epoch)(examples)
        total, count = 0.0, 0
        for ids, labels, example in zip(masked["input_ids"], masked["labels"], examples, strict=True):
            numbers = torch.tensor(example["attention_mask"])
            for number in range(1, max(numbers) + 1):
                place = (numbers == number).nonzero().flatten()
                logits = model(input_ids=ids[place][None]).logits[0]
                total = total + cross_entropy(logits, labels[place], reduction="sum")
                count += int((labels[place] != -100).sum())
        loss = total / count
        losses.append(loss.item())
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for group in optimizer.param_groups:
            group["lr"] = RATE * factor
        optimizer.step()
    return losses


def test_the_recipe_is_a_loop_over_documents(run, batches, encoder):
    losses = run("output")
    assert all(max(example["attention_mask"]) > 1 for example in batches[0][1])  # blocks of several documents
    expected = train_by_hand(AutoModelForMaskedLM.from_pretrained(encoder).train(), batches[:STEPS], STEPS - DECAYING)
    assert [*losses.values()] == pytest.approx(expected, rel=1e-4)
    assert len(losses) == STEPS


def test_one_trunk_decays_on_another_text(run, batches, tmp_path):
    """Weights and optimizer are those of the trunk; schedule and text are new."""
    run("trunk", lr_scheduler_type="constant", max_steps=6, save_strategy="steps", save_steps=6)
    del batches[:]
    trunk = tmp_path / "trunk" / "checkpoint-6"
    (tmp_path / "other.txt").write_text("\n".join(SENTENCES[:3] * 60), encoding="utf-8")
    options = {"resume_decay_from": trunk, "train_file": tmp_path / "other.txt", "max_steps": 8, "learning_rate": None}
    losses = run("decayed", save_strategy="steps", save_steps=3, **options)
    optimizer = torch.load(trunk / "optimizer.pt", weights_only=True)
    model = AutoModelForMaskedLM.from_pretrained(trunk).train()
    assert [*losses.values()] == pytest.approx(train_by_hand(model, batches[:8], 0, optimizer), rel=1e-4)

    parts = run("parts", resume_from_checkpoint=tmp_path / "decayed" / "checkpoint-3", **options)
    check_same(tmp_path / "decayed", tmp_path / "parts")
    assert parts == losses
    with pytest.raises(ValueError, match=r"must name a checkpoint at the full learning rate, 0.003, but .* is at 0.00"):
        run("again", **options | {"resume_decay_from": tmp_path / "decayed" / "checkpoint-3"})
    with pytest.raises(FileNotFoundError, match=r"encoder/optimizer.pt is missing"):
        run("again", **options | {"resume_decay_from": tmp_path / "encoder"})
    with pytest.raises(ValueError, match=r"but .*checkpoint-6 trained other weights"):
        run("again", **options | {"method": "lora"})


def check_same(whole, parts):
    expected = load_file(whole / "model.safetensors")
    found = load_file(parts / "model.safetensors")
    assert expected.keys() == found.keys() and all(torch.equal(found[name], expected[name]) for name in expected)


@pytest.mark.parametrize("options", [{}, {"dataloader_num_workers": 2}, {"gradient_accumulation_steps": 2}])
@pytest.mark.parametrize("kept", [8, 9])
def test_a_killed_run_resumes_bit_for_bit(run, tmp_path, kept, options):
    """From a step before the decay, and from its first one."""
    options |= {"lr_scheduler_kwargs": '{"num_decay_steps": 3}', "max_steps": 12, "save_strategy": "steps"}
    whole = run("whole", save_steps=1, **options)
    parts = run("parts", save_steps=1, resume_from_checkpoint=tmp_path / "whole" / f"checkpoint-{kept}", **options)
    assert whole == parts and len(whole) == 12
    check_same(tmp_path / "whole", tmp_path / "parts")


def test_each_batch_is_masked_by_its_step(run, monkeypatch):
    """However many workers make batches ahead, and whatever an epoch's last step lacks."""
    shares, mask = {}, DataCollatorForTokenMask.torch_call

    def record(collator, examples):
        shares[str([example["input_ids"] for example in examples])] = collator.mlm_probability
        return mask(collator, examples)

    monkeypatch.setattr(DataCollatorForTokenMask, "torch_call", record)
    run("output", gradient_accumulation_steps=3, max_steps=10, lr_scheduler_kwargs='{"num_decay_steps": 4}')
    found = [*shares.values()]
    assert found.count(0.15) > 0 and sorted(found, reverse=True) == found  # all at 0.3, then all at 0.15


def test_what_the_user_sets_wins(monkeypatch, tmp_path, encoder):
    def read(*flags):
        argv = ["mlm", "--model_name_or_path", str(encoder), "--output_dir", str(tmp_path), *flags]
        monkeypatch.setattr("sys.argv", argv)
        return parse_arguments(*run_mlm.ARGUMENTS)

    model, corpus, _, training = read(
        "--recipe", "modernbert", "--mlm_probability=0.2", "--lr_scheduler_type", "linear"
    )
    assert (corpus.mlm_probability, corpus.max_seq_length, model.document_boundaries) == (0.2, 1024, True)
    assert training.lr_scheduler_type == "linear" and training.adam_beta2 == 0.98
    assert find_decay(training, 100) is None
    _, corpus, _, training = read("--lr_scheduler_type", "warmup_stable_decay")
    assert (corpus.mlm_probability, corpus.max_seq_length, training.adam_beta2) == (0.15, 128, 0.999)
    assert find_decay(training, 101) == 90


@pytest.mark.parametrize(
    ("options", "first"), [({"num_decay_steps": 30}, 70), ({"num_stable_steps": 20, "num_decay_steps": 70}, 30)]
)
def test_a_schedule_may_say_when_it_decays(tmp_path, options, first):
    args = PretrainerArguments(
        str(tmp_path), lr_scheduler_type="warmup_stable_decay", lr_scheduler_kwargs=options, warmup_steps=10
    )
    assert find_decay(args, 100) == first and args.lr_scheduler_kwargs == options


def test_a_recipe_fits_the_encoder(tmp_path, caplog):
    """BERT reads 512 tokens; DeBERTa's attention reads no mask of documents."""
    tokenizer = make_bert_tokenizer()
    sizes = SIZES | {"vocab_size": len(tokenizer)}
    BertForMaskedLM(BertConfig(**sizes)).save_pretrained(tmp_path / "encoder")
    tokenizer.save_pretrained(tmp_path / "encoder")
    options = {"num_tokens": 5000, "recipe": "modernbert", "batch_size": 1}
    with caplog.at_level("INFO"):
        hf_domain.adapt(tmp_path / "encoder", SENTENCES * 200, output_dir=tmp_path / "bert", **options)
    assert "Blocks have 512 tokens, the encoder's limit" in caplog.text
    results = json.loads((tmp_path / "bert" / "trainer_state.json").read_text())
    assert results["global_step"] == 5000 // 512
    with pytest.raises(ValueError, match="recipe must be one of modernbert, but is other"):
        hf_domain.adapt(tmp_path / "encoder", SENTENCES, output_dir=tmp_path / "other", recipe="other")
