"""Nan and inf stop a run, wherever they come from, and nothing is saved over what was good."""

import math
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file, save_file
from script_runs import run_script, save_tiny_bert, write_jsonl
from tiny_tokenizers import SENTENCES
from transformers import BertConfig, BertForMaskedLM, BertForSequenceClassification, Trainer, TrainingArguments

from hf_domain.examples import run_classification, run_distill, run_mlm
from hf_domain.modeling.heads import compute_masked_lm_loss
from hf_domain.tasks.metrics import compute_regression_metrics
from hf_domain.training.run import run_prediction, save_metrics

TINY = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1, "intermediate_size": 8}


@pytest.fixture
def model(tmp_path):
    return save_tiny_bert(tmp_path / "model", SENTENCES)


@pytest.fixture
def flags(tmp_path, model):
    """Flags of each script on a few sentences."""
    (tmp_path / "corpus.txt").write_text("\n".join(SENTENCES * 10), encoding="utf-8")
    rows = [{"text": text, "label": number % 2} for number, text in enumerate(SENTENCES * 4)]
    options = {"model_name_or_path": model, "max_seq_length": 16, "per_device_train_batch_size": 4}
    of_corpus = {**options, "train_file": tmp_path / "corpus.txt"}
    task_file = write_jsonl(tmp_path / "train.jsonl", rows)
    return {
        run_classification: {**options, "train_file": task_file, "do_train": True},
        run_mlm: {**of_corpus, "do_train": True, "max_steps": 6},
        run_distill: {
            **of_corpus,
            **{"strategy": "distill_then_adapt", "num_hidden_layers": 1, "hidden_size": 16, "teacher_steps": 2},
            **{"intermediate_size": 24, "student_steps": 12, "cache_dir": tmp_path / "cache"},
        },
    }


@pytest.mark.parametrize("script", [run_classification, run_mlm, run_distill])
def test_a_rate_that_makes_nan_stops_the_run(tmp_path, monkeypatch, flags, script):
    output, rates = tmp_path / "output", {"learning_rate": 1e30, "save_steps": 1}
    with pytest.raises(ValueError, match=r"must be finite.*[Ll]ower the learning rate, which is 1e\+?(09|30)"):
        run_script(lambda: (script.main(), pytest.fail("it ended")), monkeypatch, output, **flags[script], **rates)
    assert not [file for file in output.rglob("*.safetensors") if not is_finite(file)]
    assert not list(output.glob("*.safetensors"))


def is_finite(file):
    return all(tensor.isfinite().all() for tensor in load_file(file).values())


@pytest.mark.parametrize("script", [run_classification, run_mlm])
def test_an_encoder_with_nan_is_refused_by_the_name_of_its_tensor(tmp_path, monkeypatch, flags, model, script):
    weights = load_file(f"{model}/model.safetensors")
    name = "bert.encoder.layer.1.output.dense.weight"
    weights[name][0, :3] = math.nan
    save_file(weights, f"{model}/model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ValueError, match=rf"all weights must be finite, but {name} of .* in 3 of 2,048 places"):
        run_script(script.main, monkeypatch, tmp_path / "output", **flags[script])


def test_nan_is_no_score(tmp_path):
    trainer = Trainer(
        BertForMaskedLM(BertConfig(vocab_size=8, **TINY)),
        TrainingArguments(str(tmp_path), report_to="none", use_cpu=True),
    )
    with pytest.raises(ValueError, match="predict_pearson is nan"):
        save_metrics(trainer, "predict", {"predict_mse": 1.0, "predict_pearson": math.nan}, [])
    assert not (tmp_path / "all_results.json").exists()


def test_a_constant_correlates_with_nothing():
    """Equal predictions are a run that did not learn; equal gold values are a test set without a correlation."""
    assert compute_regression_metrics([2.0, 2.0, 2.0], [1.0, 2.0, 3.0]) == {
        "pearson": 0.0,
        "spearman": 0.0,
        "mse": pytest.approx(2 / 3),
    }
    with pytest.raises(ValueError, match=r"at least two different gold values, but all 3 are 2\.0"):
        compute_regression_metrics([1.0, 2.0, 3.0], [2.0, 2.0, 2.0])


def test_the_search_for_a_loss_scale_continues():
    """In float16 the first scales are too high: gradients overflow, and the optimizer leaves these steps out."""
    from hf_domain.checks import NonFiniteStop

    model = torch.nn.Linear(2, 1)
    model.weight.grad = torch.tensor([[math.inf, 1.0]])
    args, state = SimpleNamespace(learning_rate=1e-3), SimpleNamespace(global_step=0)

    def check(scale):
        scaler = None if scale is None else torch.amp.GradScaler("cpu", init_scale=scale)
        optimizer = SimpleNamespace(scaler=scaler)
        NonFiniteStop().on_pre_optimizer_step(args, state, None, model=model, optimizer=optimizer)

    check(65536.0)
    check(1.0)
    for scale in (0.5, None):
        with pytest.raises(ValueError, match="at step 1 the norm of the gradients is inf"):
            check(scale)


@pytest.mark.parametrize("num_items", [None, torch.tensor(0)])
def test_a_batch_in_which_nothing_is_masked_has_no_loss(num_items):
    """The loss of a short batch without a masked token would be 0 / 0."""
    labels = torch.full((2, 3), -100)
    decode = torch.nn.Linear(4, 5)
    loss = compute_masked_lm_loss(decode, torch.randn(2, 3, 4), labels, num_items)
    assert loss.item() == 0.0
    loss.backward()
    assert decode.weight.grad.eq(0).all()


def test_predictions_that_are_nan_are_no_answers(tmp_path):
    model = BertForSequenceClassification(BertConfig(vocab_size=8, **TINY))
    torch.nn.init.constant_(model.classifier.bias, math.nan)
    trainer = Trainer(model, TrainingArguments(str(tmp_path), report_to="none", use_cpu=True))
    with pytest.raises(ValueError, match="all predictions must be finite, but 4 of 4 logits are nan"):
        run_prediction(trainer, [{"input_ids": [1, 2]}, {"input_ids": [3, 4]}])


def test_scores_on_the_way_must_be_finite():
    """They may choose the best checkpoint, and every comparison with nan is false."""
    from hf_domain.checks import NonFiniteStop

    stop = NonFiniteStop()
    stop.on_evaluate(None, None, None, metrics={"eval_loss": 0.5})
    stop.on_evaluate(None, None, None)
    with pytest.raises(ValueError, match="eval_loss"):
        stop.on_evaluate(None, None, None, metrics={"eval_loss": math.nan})
