"""What the scripts of the tasks share."""

import pytest
import torch
from datasets import Dataset, DatasetDict
from script_runs import run_script, save_tiny_bert, write_jsonl
from tiny_models import make_config, make_masked_lm
from tiny_tokenizers import make_bert_tokenizer
from transformers import (
    AutoConfig,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    AutoTokenizer,
    BertConfig,
    BertForMaskedLM,
    TrainingArguments,
)

from hf_domain import (
    ExBertForSequenceClassification,
    RadaForSequenceClassification,
    VarMAEForSequenceClassification,
)
from hf_domain.examples import run_classification, run_ner, run_qa
from hf_domain.modeling.backbone import train_top_layers
from hf_domain.tasks.classification import ClassificationArguments
from hf_domain.tasks.kind import DataArguments
from hf_domain.tasks.token_classification import NerArguments
from hf_domain.training.arguments import FineTunerArguments, FineTuningArguments
from hf_domain.training.task_trainer import FineTuningTrainer, limit_splits, load_splits, load_task_model, renew_config


@pytest.fixture
def model_args(tmp_path):
    return FineTuningArguments(model_name_or_path=save_tiny_bert(tmp_path / "model", ["a few words"]))


def make_training_args(tmp_path, **options):
    return TrainingArguments(output_dir=str(tmp_path / "output"), use_cpu=True, report_to="none", **options)


def test_stock_models_leave_the_division_of_the_loss_to_the_trainer(model_args):
    tokenizer = make_bert_tokenizer(["a few words"])
    assert load_task_model(AutoModelForSequenceClassification, model_args, tokenizer).accepts_loss_kwargs is False
    own = VarMAEForSequenceClassification.from_backbone(model_args.model_name_or_path)
    own.save_pretrained(model_args.model_name_or_path)
    assert load_task_model(AutoModelForSequenceClassification, model_args, tokenizer).accepts_loss_kwargs is True


@pytest.mark.parametrize(("chosen", "trained"), [(0, 4), (1, 1), (3, 3)])
def test_top_layers_of_an_exbert(model_args, chosen, trained):
    tokenizer = make_bert_tokenizer(["a few words"])
    config = BertConfig(vocab_size=len(tokenizer), hidden_size=16, num_hidden_layers=4, num_attention_heads=2)
    ExBertForSequenceClassification.from_backbone(BertForMaskedLM(config)).save_pretrained(
        model_args.model_name_or_path
    )
    model_args.train_top_layers = chosen
    model = load_task_model(AutoModelForSequenceClassification, model_args, tokenizer)
    layers = [all(parameter.requires_grad for parameter in layer.parameters()) for layer in model.get_base_layers()]
    assert layers == [number >= 4 - trained for number in range(4)]
    assert model.get_input_embeddings().weight.requires_grad is (chosen == 0)
    assert all(parameter.requires_grad for parameter in model.classifier.parameters())


@pytest.mark.parametrize("model_type", ["bert", "varmae"])
def test_top_layers_of_any_model(model_args, model_type):
    """What stands above the encoder trains: the pooler of a stock BERT, the mean network of a VarMAE."""
    tokenizer = make_bert_tokenizer(["a few words"])
    sizes = {"hidden_size": 16, "num_hidden_layers": 4, "num_attention_heads": 2}
    encoder = BertForMaskedLM(BertConfig(vocab_size=len(tokenizer), **sizes))
    if model_type == "varmae":
        encoder = VarMAEForSequenceClassification.from_backbone(encoder)
    encoder.save_pretrained(model_args.model_name_or_path)
    model_args.train_top_layers = 2
    model = load_task_model(AutoModelForSequenceClassification, model_args, tokenizer)
    frozen = {name for name, parameter in model.named_parameters() if not parameter.requires_grad}
    prefix = {"bert": "bert.", "varmae": "model.backbone."}[model_type]
    below = (f"{prefix}embeddings.", f"{prefix}encoder.layer.0.", f"{prefix}encoder.layer.1.")
    assert frozen == {name for name, _ in model.named_parameters() if name.startswith(below)}
    model_args.train_top_layers = 5
    with pytest.raises(ValueError, match=r"between 1 and 4, .* but is 5"):
        load_task_model(AutoModelForSequenceClassification, model_args, tokenizer)
    model_args.train_top_layers = 0
    model = load_task_model(AutoModelForSequenceClassification, model_args, tokenizer)
    assert all(parameter.requires_grad for parameter in model.parameters())


def test_top_layers_of_a_modernbert_include_its_last_normalization():
    model = AutoModelForSequenceClassification.from_config(make_config("modernbert"))
    train_top_layers(model, 2)
    frozen = {name for name, weight in model.named_parameters() if not weight.requires_grad}
    assert frozen == {name for name, _ in model.named_parameters() if name.startswith("model.embeddings.")}


def test_tokenizer_larger_than_the_model_is_reported(model_args):
    config = AutoConfig.from_pretrained(model_args.model_name_or_path)
    tokenizer = make_bert_tokenizer()
    with pytest.raises(ValueError, match=f"{config.vocab_size} rows for {len(tokenizer)} entries"):
        load_task_model(AutoModelForSequenceClassification, model_args, tokenizer)


def test_only_the_splits_of_the_run_are_loaded(tmp_path, model_args):
    (tmp_path / "data").mkdir()
    for split in ("train", "validation", "test"):
        write_jsonl(tmp_path / "data" / f"{split}.jsonl", [{"text": split}])
    by_name = DataArguments(dataset_name=str(tmp_path / "data"))
    by_files = DataArguments(
        train_file=str(tmp_path / "data" / "train.jsonl"), test_file=str(tmp_path / "data" / "test.jsonl")
    )
    for data_args in (by_name, by_files):
        splits = load_splits(model_args, data_args, make_training_args(tmp_path, do_predict=True))
        assert {split: dataset["text"][:] for split, dataset in splits.items()} == {
            "train": ["train"],
            "test": ["test"],
        }
        splits = load_splits(model_args, data_args, make_training_args(tmp_path, do_predict=True), needs_train=False)
        assert list(splits) == ["test"]
    with pytest.raises(ValueError, match="split validation must have examples"):
        load_splits(model_args, by_files, make_training_args(tmp_path, do_eval=True))


def test_splits_are_shortened_from_their_end():
    splits = DatasetDict({split: Dataset.from_dict({"x": list(range(5))}) for split in ("train", "validation", "test")})
    splits = limit_splits(splits, DataArguments(max_train_samples=2, max_predict_samples=9))
    assert {split: dataset["x"][:] for split, dataset in splits.items()} == {
        "train": [0, 1],
        "validation": [0, 1, 2, 3, 4],
        "test": [0, 1, 2, 3, 4],
    }


def make_fine_tuner(tmp_path, model_args, problem_type="single_label_classification", loss=None, **options):
    model = AutoModelForSequenceClassification.from_pretrained(
        model_args.model_name_or_path, num_labels=3, problem_type=problem_type
    )
    rows = Dataset.from_list([{"input_ids": [2, 5 + row % 3, 3], "labels": row % 3} for row in range(11)])
    args = make_training_args(tmp_path, per_device_eval_batch_size=4, do_train=True, **options)
    tokenizer = make_bert_tokenizer(["a few words"])
    return FineTuningTrainer(model, args, train_dataset=rows, processing_class=tokenizer, compute_loss_func=loss)


@pytest.mark.parametrize(
    ("head", "epochs"), [(VarMAEForSequenceClassification, 200), (RadaForSequenceClassification, 400)]
)
def test_a_model_that_explores_trains_twice_as_long(tmp_path, head, epochs):
    rows = Dataset.from_dict({"input_ids": [[2, 5, 3]] * 40, "labels": [0] * 40})
    args = FineTunerArguments(str(tmp_path), do_train=True, use_cpu=True, per_device_train_batch_size=8)
    model, tokenizer = head.from_backbone(make_masked_lm("bert")), make_bert_tokenizer(["a few words"])
    trainer = FineTuningTrainer(model, args, train_dataset=rows, processing_class=tokenizer)
    assert trainer.args.num_train_epochs == epochs  # 1,000 and 2,000 steps of 8


def test_only_training_drops_the_last_batch(tmp_path, model_args):
    trainer = make_fine_tuner(tmp_path, model_args, dataloader_drop_last=True, per_device_train_batch_size=4)
    assert len(trainer.get_train_dataloader()) == 2
    assert len(trainer.predict(trainer.train_dataset).predictions) == 11
    assert trainer.evaluate(trainer.train_dataset) and trainer.evaluated.num_samples == 11
    assert trainer.args.dataloader_drop_last


def test_a_new_head_starts_without_the_loader_of_evaluations(tmp_path, model_args):
    """Persistent workers keep the first loader, so that evaluations read the training examples."""
    workers = {"dataloader_num_workers": 1, "dataloader_persistent_workers": True}
    trainer = make_fine_tuner(tmp_path, model_args, max_steps=1, save_strategy="no", **workers)
    trainer.model.new_weights = frozenset({"classifier.weight"})
    trainer.train()
    trainer.evaluate(trainer.train_dataset.select(range(2)))
    assert trainer.evaluated.num_samples == 2


def test_label_smoothing_that_would_be_lost_is_refused(tmp_path, model_args):
    make_fine_tuner(tmp_path, model_args, label_smoothing_factor=0.1)
    with pytest.raises(ValueError, match=r"needs examples with one class each, .*, but the labels are regression"):
        make_fine_tuner(tmp_path, model_args, "regression", label_smoothing_factor=0.1)
    with pytest.raises(ValueError, match="no effect with --class_weights"):
        make_fine_tuner(tmp_path, model_args, loss=lambda *_: None, label_smoothing_factor=0.1)


def test_a_config_forgets_an_earlier_training(caplog):
    """Its thresholds would decide the scores of all epochs, its columns, length and passage how predictions read."""
    model, tokenizer = AutoModelForSequenceClassification.from_config(make_config("bert")), make_bert_tokenizer()
    plain, appending = ClassificationArguments(), ClassificationArguments(append_passage=True, max_seq_length=48)
    plain.max_seq_length = 40
    config = model.config
    renew_config(model, tokenizer, plain, True, ["b", "a"])
    assert (config.trained_columns, config.trained_length) == (["b", "a"], 40)
    assert not hasattr(config, "appended_passage_length")
    config.label_thresholds, config.nearest_vote = [0.2], {"count": 5, "weight": 0.4}
    renew_config(model, tokenizer, appending, True, ["a"])
    assert (
        config.label_thresholds is config.nearest_vote is None
        and config.appended_passage_length == config.trained_length == 48
    )
    config.label_thresholds = [0.2]
    renew_config(model, tokenizer, appending, False)
    assert config.label_thresholds == [0.2] and config.trained_columns == ["a"] and not caplog.messages
    renew_config(model, tokenizer, plain, False)
    assert config.appended_passage_length == 48 and "Add --append_passage and --datastore" in caplog.text
    renew_config(model, tokenizer, plain, True)
    assert config.appended_passage_length is None


def test_a_tokenizer_without_a_limit_gets_that_of_its_model():
    """Many on the Hub state none. A long text would then end the run after the training."""
    model, tokenizer = AutoModelForTokenClassification.from_config(make_config("bert")), make_bert_tokenizer()
    limit = model.config.max_position_embeddings
    tokenizer.model_max_length = int(1e30)
    renew_config(model, tokenizer, NerArguments(), True)
    assert tokenizer.model_max_length == model.config.trained_length == limit
    tokenizer.model_max_length = int(1e30)
    with pytest.raises(ValueError, match=f"max_seq_length must be at most {limit}, the encoder's limit, but is 1024"):
        renew_config(model, tokenizer, NerArguments(max_seq_length=1024), True)
    model = AutoModelForTokenClassification.from_config(make_config("modernbert"))
    tokenizer.model_max_length = int(1e30)
    renew_config(model, tokenizer, NerArguments(), True)
    assert model.config.trained_length is None


def test_a_classifier_grows_by_the_tokens_that_were_added_to_its_tokenizer(model_args):
    """Markers of entities: the ids beyond the table were an IndexError in the first batch."""
    tokenizer = AutoTokenizer.from_pretrained(model_args.model_name_or_path)
    before = len(tokenizer)
    tokenizer.add_tokens(["[E1]", "[/E1]"])
    model = load_task_model(AutoModelForSequenceClassification, model_args, tokenizer, ["a", "b"])
    table = model.get_input_embeddings().weight
    assert len(table) == model.config.vocab_size == before + 2
    torch.testing.assert_close(table[-1], table[:before].mean(0))
    assert model(**tokenizer("a [E1] few [/E1] words", return_tensors="pt")).logits.isfinite().all()


TEXTS = ["a b", "a b c d e f g h", "c", "d e f", "a c e g b d f h a c e", "b", "h g", "a a a a", "b c"]


@pytest.mark.parametrize("kind", ["classification", "balanced", "multi_label", "regression", "ner", "qa"])
def test_a_loss_does_not_depend_on_the_batch(tmp_path, monkeypatch, kind):
    """It is the mean over all examples, words or answers, of what the model says of each text alone."""
    encoder = save_tiny_bert(tmp_path / "encoder", TEXTS)
    make_label = {"multi_label": lambda n: ["x"] if n % 2 else ["x", "y"], "regression": lambda n: n / 7}
    rows = [
        {
            "ner": {"tokens": text.split(), "tags": ["B-X" if len(text) % 3 else "O"] * len(text.split())},
            "qa": {"id": str(n), "question": "h", "context": text, "answers": {"text": ["a"], "answer_start": [0]}},
        }.get(kind, {"text": text, "label": make_label.get(kind, lambda n: "xy"[n % 3 == 0])(n)})
        for n, text in enumerate(TEXTS)
    ]
    rows = [row for row in rows if kind != "qa" or row["context"].startswith("a")]
    main = {"ner": run_ner, "qa": run_qa}.get(kind, run_classification).main
    flags = {f"{split}_file": write_jsonl(tmp_path / f"{split}.jsonl", rows) for split in ("train", "validation")}
    flags |= {"class_weights": "balanced"} if kind == "balanced" else {}
    flags |= {"model_name_or_path": encoder, "do_train": True, "do_eval": True, "max_steps": 3, "learning_rate": 1e-3}
    trained = run_script(main, monkeypatch, tmp_path / "model", **flags)
    found = []
    for size in (1, 4, 16):
        options = flags | {
            "model_name_or_path": tmp_path / "model",
            "do_train": False,
            "per_device_eval_batch_size": size,
        }
        found.append(run_script(main, monkeypatch, tmp_path / "again", **options)["eval_loss"])
    assert found == pytest.approx([trained["eval_loss"]] * 3, rel=1e-5)
    if kind in ("classification", "ner"):
        auto = AutoModelForTokenClassification if kind == "ner" else AutoModelForSequenceClassification
        model, tokenizer = auto.from_pretrained(tmp_path / "model"), AutoTokenizer.from_pretrained(tmp_path / "model")
        losses = []
        for row in rows:
            inputs = tokenizer(" ".join(row["tokens"]) if kind == "ner" else row["text"], return_tensors="pt")
            logits = model(**inputs).logits[0, 1:-1] if kind == "ner" else model(**inputs).logits
            labels = [model.config.label2id[label] for label in (row["tags"] if kind == "ner" else [row["label"]])]
            losses += torch.nn.functional.cross_entropy(logits, torch.tensor(labels), reduction="none").tolist()
        assert found[0] == pytest.approx(sum(losses) / len(losses), rel=1e-5)
