"""Two processes train as one: the same losses, step by step, and the same weights.

The models are without dropout, and nothing draws noise. A step of one process has all examples in one batch; each of
two processes has half of them.
"""

import functools
import json
import re
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from accelerate.commands.config.config_args import load_config_from_file
from accelerate.utils import DistributedType
from datasets import Dataset
from safetensors.torch import load_file
from script_runs import read_losses, write_jsonl
from tiny_models import make_masked_lm
from tiny_tokenizers import SENTENCES, make_bert_tokenizer
from transformers import AutoTokenizer
from two_processes import run_two
from without_noise import remove_noise

import hf_domain
from hf_domain.datastore import build_datastore
from hf_domain.examples import run_classification, run_distill, run_mlm, run_ner, run_qa
from hf_domain.methods.lora import add_lora
from hf_domain.tokenization import count_shard, expand_vocabulary
from hf_domain.training.sharding import prepare_sharding

# transformers 5.23 calls the flag activation_checkpointing.
pytestmark = pytest.mark.filterwarnings("ignore:.*gradient_checkpointing:FutureWarning")
ACCELERATE = Path(__file__).parents[2] / "examples" / "accelerate"
METHODS = ["dapt", "adalm", "lora", "varmae", "exbert", "exbert_adapter", "gmap", "rada"]


def sample(*names, all_names=METHODS):
    """Parametrize over methods, of which `make test` takes some."""
    marks = {name: () if name in names else pytest.mark.distributed for name in all_names}
    return pytest.mark.parametrize("method", [pytest.param(name, marks=mark) for name, mark in marks.items()])


@pytest.fixture
def encoder(tmp_path):
    """A saved tiny BERT without dropout, and its tokenizer."""
    torch.manual_seed(0)
    make_masked_lm("bert", dropout=0.0).save_pretrained(tmp_path / "encoder")
    make_bert_tokenizer().save_pretrained(tmp_path / "encoder")
    return tmp_path / "encoder"


@pytest.fixture
def train(monkeypatch, tmp_path):
    """Run a script in one process, or in two; returns its folder."""

    def train(script, processes, batch_size, name=None, variables=None, **options):
        folder = tmp_path / (name or f"by-{processes}")
        defaults = {"output_dir": folder, "per_device_train_batch_size": batch_size // processes, "logging_steps": 1}
        # Adam would step on the rounding of gradients that are zero, such as that of a bias before a normalization.
        defaults |= {"optim": "sgd", "learning_rate": 0.1, "cache_dir": tmp_path / "cache", "report_to": "none"}
        defaults |= {"ddp_backend": "gloo"} if processes > 1 else {}
        flags = [str(part) for name, value in (defaults | options).items() for part in (f"--{name}", value)]
        with monkeypatch.context() as patch:
            remove_noise(patch)
            patch.setattr(sys, "argv", [script.__file__, *flags, "--use_cpu"])
            if processes == 1:
                script.main()
            else:
                train.printed = run_two(script.main, sys.argv[1:], tmp_path, variables)
        return folder

    return train


def check_equal(one, two, steps):
    """Compare the losses and the weights."""
    assert len(read_losses(one)) == steps
    assert read_losses(two) == pytest.approx(read_losses(one), rel=2e-5, abs=1e-5)
    expected = load_file(one / "model.safetensors")
    for name, weight in load_file(two / "model.safetensors").items():
        torch.testing.assert_close(weight, expected[name], rtol=1e-4, atol=1e-5, msg=name)


@pytest.fixture
def make_options(tmp_path, encoder):
    """Return the flags of run_mlm.py for a method, and the examples of a step."""
    return functools.partial(list_options, tmp_path, encoder)


def list_options(tmp_path, encoder, method):
    (tmp_path / "corpus.txt").write_text("\n".join(SENTENCES * 40), encoding="utf-8")
    options = {"model_name_or_path": encoder, "train_file": tmp_path / "corpus.txt", "max_seq_length": 16}
    options |= {"method": "dapt" if method == "adalm" else method, "max_steps": 4, "do_train": "true"}
    if method in ("adalm", "exbert", "exbert_adapter"):
        tokenizer = make_bert_tokenizer()
        counts = count_shard(SENTENCES, tokenizer.backend_tokenizer)
        tokenizer, delta, _ = expand_vocabulary(tokenizer, counts, size=140, step=20, min_frequency=1, progress=False)
        options["expanded_vocabulary"] = tmp_path / "expanded"
        tokenizer.save_pretrained(tmp_path / "expanded")
        delta.save(tmp_path / "expanded")
    if method == "varmae":
        options["start"] = "paper"  # the recommended one is measured on as many batches, whatever their size
    if method == "gmap":
        options["memory_name_or_path"] = encoder
    if method == "rada":
        # Most texts find nothing: a process then has no gradient for the interface, and the scale trains nowhere.
        options |= {"datastore": tmp_path / "datastore", "max_steps": 8, "gradient_checkpointing": True}
        options["config_overrides"] = "selection=top1"
        documents = Dataset.from_dict({"text": [SENTENCES[0]]})
        build_datastore(documents, tmp_path / "datastore", AutoTokenizer.from_pretrained(encoder))
    return 2 if method == "rada" else 8, options


@sample("dapt")
def test_pretraining(method, train, make_options, tmp_path):
    """Weights and held-out losses; seven lines of unequal length fill no batch of two processes."""
    size, options = make_options(method)
    lines = [*SENTENCES[:3], *(" ".join(SENTENCES[:2]) for _ in range(4))]
    (tmp_path / "held_out.txt").write_text("\n".join(lines), encoding="utf-8")
    options |= dict.fromkeys(("validation_file", "general_validation_file"), tmp_path / "held_out.txt")
    options |= {"do_eval": "true", "line_by_line": "true"}
    one, two = (
        train(run_mlm, processes, size, per_device_eval_batch_size=16 // processes**2, **options)
        for processes in (1, 2)
    )
    check_equal(one, two, options["max_steps"])
    check_equal_losses(one, two, "eval_loss", "general_loss", "start_loss", "start_general_loss")


def test_the_recipe_with_a_decay(train, tmp_path):
    """Blocks of whole documents, of which another share is masked while the rate decays."""
    torch.manual_seed(0)
    make_masked_lm("modernbert", dropout=0.0).save_pretrained(tmp_path / "modern")
    make_bert_tokenizer().save_pretrained(tmp_path / "modern")
    (tmp_path / "corpus.txt").write_text("\n".join(SENTENCES[:4] * 60), encoding="utf-8")
    options = {"model_name_or_path": tmp_path / "modern", "train_file": tmp_path / "corpus.txt", "do_train": "true"}
    options |= {"recipe": "modernbert", "max_seq_length": 48, "max_steps": 6, "bf16": "false", "do_eval": "true"}
    options["lr_scheduler_kwargs"] = '{"num_decay_steps": 3}'
    one, two = (train(run_mlm, processes, 8, **options) for processes in (1, 2))
    check_equal(one, two, 6)
    check_equal_losses(one, two, "eval_loss", "start_loss")


def check_equal_losses(one, two, *names):
    """Compare the held-out losses."""
    results = [
        {name: value for file in folder.glob("*_results.json") for name, value in json.loads(file.read_text()).items()}
        for folder in (one, two)
    ]
    for name in names:
        assert results[1][name] == pytest.approx(results[0][name], rel=1e-4), name


def read_sharding():
    """Return the variables that accelerate sets for fsdp.yaml."""
    config = load_config_from_file(str(ACCELERATE / "fsdp.yaml"))
    assert config.distributed_type == DistributedType.FSDP
    return {name.upper(): str(value) for name, value in config.fsdp_config.items()} | {"ACCELERATE_USE_FSDP": "true"}


REFUSED = ["lora", "exbert_adapter"]  # need whole weights
SHARDED = [method for method in METHODS if method not in REFUSED]


@sample("dapt", all_names=SHARDED)
def test_sharded_pretraining(method, train, make_options):
    size, options = make_options(method)
    one = train(run_mlm, 1, size, **options)
    two = train(run_mlm, 2, size, variables=read_sharding(), **options)
    check_equal(one, two, options["max_steps"])
    assert load_file(two / "model.safetensors").keys() == load_file(one / "model.safetensors").keys()


def test_what_needs_whole_weights_is_refused():
    with pytest.raises(ValueError, match=r"needs whole weights in each process.* Train with torchrun"):
        prepare_sharding(SimpleNamespace(model=add_lora(make_masked_lm("bert"))))


@sample("minilm", all_names=["minilm", "minilmv2"])
def test_distillation(method, tmp_path, encoder, train):
    """Both halves of Adapt-and-Distill: masked LM of the teacher, then distillation."""
    (tmp_path / "corpus.txt").write_text("\n".join(SENTENCES * 20), encoding="utf-8")
    options = {"model_name_or_path": encoder, "train_file": tmp_path / "corpus.txt", "max_seq_length": 16}
    options |= {"strategy": "adapt_then_distill", "teacher_steps": 2, "student_steps": 3, "num_hidden_layers": 1}
    options |= {"method": method, "save_strategy": "no", "gradient_checkpointing": method == "minilm"}
    (tmp_path / "held_out.txt").write_text("\n".join(SENTENCES * 2), encoding="utf-8")
    options |= {"do_eval": "true", "validation_file": tmp_path / "held_out.txt", "per_device_eval_batch_size": 3}
    one, two = (train(run_distill, processes, 8, **options) for processes in (1, 2))
    assert train.printed.count("The student:") == 1
    for step, count in (("adapted-teacher", 2), ("adapt_then_distill/adapted-distilled", 3)):
        check_equal(one / step, two / step, count)
        results = [json.loads((folder / step / "eval_results.json").read_text()) for folder in (one, two)]
        assert results[1]["eval_loss"] == pytest.approx(results[0]["eval_loss"], rel=1e-4)


@pytest.fixture
def fine_tune(tmp_path, encoder, train, make_options):
    """Fine-tune by one process and by two on rows of a task; returns their folders."""

    def fine_tune(script, method, rows, variables=None, **options):
        # Nine rows do not divide by two processes: no prediction is lost, doubled or moved.
        files = {"train": rows[:16], "validation": rows[:9], "test": rows[:9]}
        defaults = {f"{name}_file": write_jsonl(tmp_path / f"{name}.jsonl", part) for name, part in files.items()}
        defaults |= {f"do_{name}": "true" for name in ("train", "eval", "predict")}
        defaults |= {"model_name_or_path": encoder, "max_steps": 4, "save_strategy": "no"}
        defaults["train_sampling_strategy"] = "random"  # by lengths, two processes make other batches than one
        if method == "exbert":
            size, steps = make_options("exbert")
            defaults["model_name_or_path"] = train(run_mlm, 1, size, name="exbert", **(steps | {"max_steps": 1}))
            defaults["train_top_layers"] = 1
        elif method == "gmap":
            defaults |= {"method": "gmap", "memory_name_or_path": encoder}
        elif method == "rada":
            documents = Dataset.from_dict({"text": [f"{text} and {text}" for text in SENTENCES]})
            build_datastore(documents, tmp_path / "datastore", AutoTokenizer.from_pretrained(encoder))
            defaults |= {"method": "rada", "datastore": tmp_path / "datastore", "config_overrides": "selection=top1"}
        options = defaults | options
        return train(script, 1, 8, **options), train(script, 2, 8, variables=variables, **options)

    return fine_tune


LABELED = [{"text": text, "label": str(number % 3)} for number, text in enumerate(SENTENCES * 4)]


@sample("plain", all_names=["plain", "exbert", "gmap", "rada"])
def test_classification(method, fine_tune):
    one, two = fine_tune(run_classification, method, LABELED)
    check_equal(one, two, 4)
    check_equal_losses(one, two, "eval_loss", "predict_loss")
    assert (two / "predict_results.txt").read_text() == (one / "predict_results.txt").read_text()


@sample(all_names=["plain", "exbert", "gmap", "rada"])
def test_sharded_classification(method, fine_tune):
    one, two = fine_tune(run_classification, method, LABELED, variables=read_sharding())
    check_equal(one, two, 4)
    assert (two / "predict_results.txt").read_text() == (one / "predict_results.txt").read_text()


@sample(all_names=["plain", "gmap", "rada"])
def test_token_classification(method, fine_tune):
    """Sentences of other lengths, unless the model is a stock one: its loss averages over the tokens of a process."""
    texts = [text.split()[: 3 if method == "plain" else None] for text in SENTENCES * 4]
    texts = [words * 3 if len(words) == 1 else words for words in texts]
    rows = [{"tokens": words, "tags": [("O", "B-X")[len(word) % 2] for word in words]} for words in texts]
    one, two = fine_tune(run_ner, method, rows)
    check_equal(one, two, 4)
    check_equal_losses(one, two, "eval_loss", "predict_loss")


@sample(all_names=["plain", "gmap", "rada"])
def test_question_answering(method, fine_tune):
    rows = []
    for number, text in enumerate(SENTENCES * 4):
        word = text.split()[0]
        answers = {"text": [word], "answer_start": [text.index(word)]}
        rows.append({"id": str(number), "question": "where", "context": text, "answers": answers})
    one, two = fine_tune(run_qa, method, rows, max_seq_length=32, doc_stride=8)
    check_equal(one, two, 4)
    check_equal_losses(one, two, "eval_loss", "predict_loss")
    assert (two / "predict_predictions.json").read_text() == (one / "predict_predictions.json").read_text()


def adapt_in_this_process():
    encoder, folder = sys.argv[1:]
    options = {"batch_size": 4, "max_seq_length": 16, "ddp_backend": "gloo", "use_cpu": True, "disable_tqdm": True}
    model, _ = hf_domain.adapt(encoder, SENTENCES * 40, output_dir=folder, num_tokens=16 * 8 * 3, **options)
    print(f"weights {sum(weights.double().sum().item() for weights in model.parameters())}")


@pytest.mark.distributed
def test_the_function_trains_on_as_many_tokens(encoder, tmp_path):
    printed = run_two(adapt_in_this_process, [str(encoder), str(tmp_path / "adapted")], tmp_path)
    results = json.loads((tmp_path / "adapted" / "all_results.json").read_text())
    assert results["num_input_tokens_seen"] == 16 * 8 * 3
    first, second = re.findall("weights (.*)", printed)
    assert first == second


@pytest.mark.distributed
def test_causal_lm(train, make_options):
    size, options = make_options("dapt")
    options |= {"objective": "clm", "mlm_probability": 1}  # otherwise the batch decides which positions predict
    one, two = (train(run_mlm, processes, size, **options) for processes in (1, 2))
    check_equal(one, two, options["max_steps"])


@pytest.mark.distributed
def test_stream(tmp_path, encoder, train):
    """Each process reads files of its own, of other lengths, and resumes where it stopped."""
    for name, count in (("a", 90), ("b", 41)):
        (tmp_path / f"{name}.txt").write_text("\n".join(SENTENCES * count), encoding="utf-8")
    options = {"model_name_or_path": encoder, "train_file": tmp_path / "?.txt", "max_seq_length": 16, "max_steps": 12}
    options |= {"gradient_accumulation_steps": 3, "save_steps": 7, "do_train": "true", "streaming": "true"}
    whole = train(run_mlm, 2, 16, name="whole", **options)
    checkpoint = whole / "checkpoint-7"
    positions = [(checkpoint / f"stream-{rank}.json").read_text() for rank in (0, 1)]
    assert positions[0] != positions[1]
    parts = train(run_mlm, 2, 16, name="parts", resume_from_checkpoint=checkpoint, **options)
    assert len(read_losses(parts)) == 12
    assert read_losses(parts) == read_losses(whole)


def test_configuration_of_accelerate():
    config = load_config_from_file(str(ACCELERATE / "ddp.yaml"))
    assert config.distributed_type == DistributedType.MULTI_GPU and not config.use_cpu
