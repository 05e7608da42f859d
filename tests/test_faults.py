"""A command that was killed in any of its writes, or had no room for it, ends as if nothing had happened."""

import json
import random
import shutil
from pathlib import Path

import faults
import pytest
from script_runs import save_tiny_bert, write_jsonl
from tiny_tokenizers import SENTENCES
from transformers import AutoTokenizer, BertConfig, BertForSequenceClassification

TRAINING = {
    "do_train": True,
    "do_eval": True,
    "max_steps": 5,
    "save_steps": 2,
    "save_total_limit": 2,
    "logging_steps": 1,
    "per_device_train_batch_size": 4,
    "learning_rate": 1e-3,
    "max_seq_length": 16,
    "report_to": "none",
    "disable_tqdm": True,
    "use_cpu": True,
}
# Where commands differ from each other: a checkpoint, the final model, and what comes after it.
FEW = [
    r"^write .*checkpoint-\d+/(adapter_)?model.safetensors$",
    r"^write .*checkpoint-\d+/trainer_state.json$",
    r"^write .*_unfinished/(adapter_)?model.safetensors$",
    r"^replace [^/]*(/[^/]*)?model.safetensors$",
    r"^write .*all_results.json$",
    r"^write .*predict.*\.txt",
    r"^(write|replace) .*states",
]


@pytest.fixture(scope="module")
def inputs(tmp_path_factory):
    """Models, texts and task files that all commands read."""
    folder = tmp_path_factory.mktemp("inputs")
    rng, words = random.Random(0), ["cell", "gene", "court", "law"]
    sentences = [*SENTENCES, " ".join(words)]
    for name in ("model", "general"):
        save_tiny_bert(folder / name, sentences)
    (folder / "corpus.txt").write_text("\n".join(sentences * 12), encoding="utf-8")
    texts = [" ".join(rng.choices(words, k=5)) for _ in range(24)]
    classes = [{"text": text, "label": text.split()[0]} for text in texts]
    tags = [{"tokens": text.split(), "tags": ["B-X", "O", "O", "O", "O"]} for text in texts]
    questions = [
        {"id": f"{n}", "question": "law", "context": t, "answers": {"text": [t[:4].strip()], "answer_start": [0]}}
        for n, t in enumerate(texts)
    ]
    for name, rows in {"classes": classes, "tags": tags, "questions": questions}.items():
        for split in ("train", "validation", "test"):
            write_jsonl(folder / f"{name}_{split}.jsonl", rows)
    classifier = BertConfig.from_pretrained(folder / "model", num_labels=2)
    BertForSequenceClassification(classifier).save_pretrained(folder / "classifier")
    AutoTokenizer.from_pretrained(folder / "model").save_pretrained(folder / "classifier")
    pairs = [{"text": text, "text_pair": texts[n - 1], "score": n / 4} for n, text in enumerate(texts)]
    for split in ("train", "validation", "test"):
        write_jsonl(folder / f"pairs_{split}.jsonl", pairs)
        (folder / "topics").mkdir(exist_ok=True)
        write_jsonl(folder / "topics" / f"{split}.jsonl", classes)
    plan = {"encoder": "model", "corpora": {"domain": "corpus.txt"}, "tasks": ["topics"], "seeds": [1]}
    plan |= {"methods": ["no_adaptation", "dapt", "varmae"], "budget": {"tokens": 8192}}
    (folder / "plan.yaml").write_text(json.dumps(plan), encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def compared(inputs):
    """A finished comparison."""
    folder = inputs / "compared"
    folder.mkdir()
    arguments = list_arguments(make_command("compare", inputs)[1], folder)
    code, _, log = faults.run("compare", arguments, folder, cache=inputs / "cache")
    assert code == 0, log[-3000:]


@pytest.fixture(scope="module")
def datastore(inputs):
    pytest.importorskip("tantivy")
    from hf_domain.datastore import build_datastore

    tokenizer = AutoTokenizer.from_pretrained(inputs / "model")
    build_datastore(SENTENCES, inputs / "datastore", tokenizer, max_length=32)
    return inputs / "datastore"


def make_command(name, inputs):
    """Return the script of a case and its flags, without the output folder."""
    script, _, method = name.partition(" ")
    model = {"model_name_or_path": inputs / "model"}
    if (flags := make_further_flags(script, inputs)) is not None:
        return script, flags
    if script == "run_mlm":
        flags = {"train_file": inputs / "corpus.txt", "method": method, **model, **TRAINING}
        flags |= {"memory_name_or_path": inputs / "general"} if method == "gmap" else {}
        flags |= {"datastore": inputs / "datastore"} if method == "rada" else {}
    elif script in ("run_classification", "run_ner", "run_qa"):
        file = {"run_classification": "classes", "run_ner": "tags", "run_qa": "questions"}[script]
        flags = {f"{split}_file": inputs / f"{file}_{split}.jsonl" for split in ("train", "validation", "test")}
        flags |= model | TRAINING | {"do_predict": True}
        flags |= {"doc_stride": 4} if script == "run_qa" else {}
        if method == "gmap":
            flags |= {"method": method, "memory_name_or_path": inputs / "general", "memory_cache": "CASE/states"}
        if method == "rada":
            flags |= {"method": method, "datastore": inputs / "datastore", "passage_cache": "CASE/passages"}
            flags |= {"config_overrides": "passage_encoder=frozen"}
    elif script == "run_distill":
        flags = {name: value for name, value in TRAINING.items() if name not in ("do_train", "max_steps")}
        flags |= model | {"train_file": inputs / "corpus.txt", "teacher_steps": 2, "student_steps": 6}
        flags |= {"num_hidden_layers": 1, "hidden_size": 16, "intermediate_size": 24, "strategy": "adapt_and_distill"}
    elif script == "run_expand_vocab":
        flags = model | {"train_file": inputs / "corpus.txt", "num_workers": 1, "min_frequency": 1, "size": 140}
        flags |= {"step": 20, "validation_file": inputs / "corpus.txt", "counts_file": "CASE/counts.parquet"}
    elif script == "average_models":
        flags = {"model_name_or_path": [inputs / "model", inputs / "general"]}
    else:
        flags = model | {"train_file": inputs / "corpus.txt", "max_length": 32, "held_out_file": "CASE/held_out.jsonl"}
    return script, flags


def make_further_flags(script, inputs):
    """Return the flags of a command that trains no encoder on text; None for others."""
    pairs = {f"{split}_file": inputs / f"pairs_{split}.jsonl" for split in ("train", "validation", "test")}
    return {
        "compare": {"": inputs / "plan.yaml"},
        "quickstart": {
            **{"model_name_or_path": inputs / "model", "corpus": inputs / "corpus.txt", "task": inputs / "topics"},
            **{"minutes": 0.1, "max_seq_length": 16},
        },
        "publish": {
            **{"comparison": inputs / "compared" / "output", "method": "dapt", "corpus": "domain"},
            **{"license_note": "None.", "limits": "None.", "example": "a [MASK]"},
        },
        "run_probe": {
            **{f"{split}_file": inputs / f"classes_{split}.jsonl" for split in ("train", "test")},
            "model_name_or_path": inputs / "model",
        },
        "advise": {"model_name_or_path": inputs / "model", "corpus": inputs / "corpus.txt", "task": inputs / "topics"},
        "predict": {"": [inputs / "classifier", inputs / "classes_test.jsonl"], "output_file": "CASE/labels.jsonl"},
        "run_export": {"model_name_or_path": inputs / "classifier"},
        "run_sentences": {**pairs, **TRAINING, "model_name_or_path": inputs / "model", "do_predict": True},
    }.get(script)


def list_arguments(flags, case):
    arguments = [] if "output_file" in flags else ["--output_dir", str(case / "output")]
    for name, value in flags.items():
        values = value if isinstance(value, list) else [value]
        arguments += [f"--{name}"] * bool(name) + [*(str(each).replace("CASE", str(case)) for each in values)]
    return arguments


@pytest.fixture
def command(inputs, tmp_path):
    """Run a command in a case of its own; returns the exit code, the points and the log."""

    def run(name, case, **options):
        (tmp_path / case).mkdir(exist_ok=True)
        script, flags = make_command(name, inputs)
        arguments = list_arguments(flags, tmp_path / case)
        return faults.run(script, arguments, tmp_path / case, cache=inputs / "cache", **options)

    return run


def check_same(case, whole):
    """Compare what two cases hold, whatever they are called."""
    trees = []
    if (whole / "output" / "datastore.json").is_file():
        check_same_datastore(case / "output", whole / "output")
    for folder in (case, whole):
        tree = faults.read_tree(folder)
        trees.append({
            name: content and content.replace(str(folder).encode(), b"CASE") for name, content in tree.items()
        })  # fmt: skip
    assert trees[0].keys() == trees[1].keys()
    assert [name for name in trees[0] if trees[0][name] != trees[1][name]] == []
    losses = [
        json.loads(file.read_text())["train_loss"]
        for folder in (case, whole)
        for file in sorted(folder.rglob("train_results.json"))
    ]
    assert losses[: len(losses) // 2] == pytest.approx(losses[len(losses) // 2 :], rel=1e-5)


def check_same_datastore(case, whole):
    """Compare passages and what a search finds: tantivy draws the names of its files."""
    from hf_domain.datastore import Datastore

    stores = [Datastore.load(folder) for folder in (case, whole)]
    assert stores[0].fingerprint == stores[1].fingerprint
    queries = [" ".join(sentence.split()[:4]) for sentence in SENTENCES]
    found = [store.search(queries, 5) for store in stores]
    assert found[0] == found[1] and any(ids for ids, _ in found[0])


def kill_everywhere(command, tmp_path, name, patterns, step=1):
    code, points, log = command(name, "whole")
    assert code == 0, log[-3000:]
    chosen = faults.choose_points(points, patterns)
    assert chosen
    problems = []
    for at in chosen[::step]:
        case = f"case-{at}"
        code, _, log = command(name, case, at=at)
        try:
            assert code == -9, f"was not killed: {log[-1500:]}"
            code, _, log = command(name, case)
            assert code == 0, log[-1500:]
            check_same(tmp_path / case, tmp_path / "whole")
        except AssertionError as error:
            problems.append(f"killed at {points[at]}: {error}")
        shutil.rmtree(tmp_path / case)
    assert not problems, f"{len(problems)} of {len(chosen)}:\n" + "\n".join(problems)
    return [points[at] for at in chosen[::step]]


# In every run of the tests: the writes that blocked a folder once, and the card, which lost the loss before training.
SAMPLE = [r"^(open|write) output/checkpoint-2/config.json$", r"^write output/_unfinished/model.safetensors$"]
SAMPLE += [r"^replace output/README.md$"]


def test_killed_pretraining_continues(command, tmp_path):
    killed = kill_everywhere(command, tmp_path, "run_mlm dapt", SAMPLE)
    assert len(killed) == 4  # each pattern names a write, the first one two


def test_full_disk_is_one_line_and_the_same_command_continues(command, tmp_path):
    fill_everywhere(command, tmp_path, "run_mlm dapt", [r"^write output/checkpoint-2/optimizer.pt"])


COMPLETE = ["run_mlm dapt", "run_classification", "run_expand_vocab", "average_models"]
COMPLETE += ["build_datastore", "run_export", "publish", "run_probe"]
# Of a comparison whose steps are pretended: its data, the steps and the results of a row, and the report.
COMPARED = [
    r"^(write|replace) output/(data/.*train|plan\.json|results/dapt-topics|report\.json)",
    r"^unlink output/steps/dapt-topics.*safetensors",
]
# What is whole under its name is finished: the same command refuses to replace it.
PATTERNS = {"compare": COMPARED, "predict": [r"^(open|write|replace) "], "advise": [r"^(open|write|replace) "]}
PATTERNS["quickstart"] = [r"^(open|write|replace) output/(plan.yaml|hub)", r"^(write|replace) output/plan/report"]
# The first comparison also fills the cache of datasets, so its writes have other numbers than those of the next.
NEEDED = {"build_datastore": "datastore"}
NEEDED |= dict.fromkeys(["compare", "quickstart", "publish"], "compared")
OTHERS = [f"run_mlm {method}" for method in ("lora", "varmae", "exbert", "exbert_adapter", "gmap", "rada")]
OTHERS += ["run_sentences", "run_ner", "run_qa", "run_classification gmap", "run_classification rada", "run_distill"]


@pytest.mark.faults
@pytest.mark.parametrize("name", [*COMPLETE, *OTHERS, *PATTERNS])
def test_killed_command_ends_as_if_it_had_not_been(command, tmp_path, request, name):
    make_needed(name, request)
    kill_everywhere(command, tmp_path, name, None if name in COMPLETE else PATTERNS.get(name, FEW))


def make_needed(name, request):
    """Make what a command reads beside the inputs."""
    if needed := "datastore" if "rada" in name else NEEDED.get(name):
        request.getfixturevalue(needed)


def fill_everywhere(command, tmp_path, name, patterns):
    code, points, log = command(name, "whole")
    assert code == 0, log[-3000:]
    chosen = [at for at in faults.choose_points(points, patterns) if points[at].startswith("write")]
    assert chosen
    problems = []
    for at in chosen:
        case = f"case-{at}"
        code, _, log = command(name, case, at=at, is_full=True)
        try:
            lines = [line for line in log.splitlines() if line.startswith("error: ")]
            assert code == 1 and len(lines) == 1, f"no line of an error: {log[-1500:]}"
            assert str(tmp_path / case) in lines[0] and "room" in lines[0], lines
            code, _, log = command(name, case)
            assert code == 0, log[-1500:]
            check_same(tmp_path / case, tmp_path / "whole")
        except AssertionError as error:
            problems.append(f"full at {points[at]}: {error}")
        shutil.rmtree(tmp_path / case)
    assert not problems, f"{len(problems)} of {len(chosen)}:\n" + "\n".join(problems)


FILLED = [*COMPLETE, "predict", "run_distill", "run_ner", "run_qa"]
FILLED += ["run_classification gmap", "run_classification rada"]


@pytest.mark.faults
@pytest.mark.parametrize("name", FILLED)
def test_full_disk(command, tmp_path, request, name):
    make_needed(name, request)
    every = name in ("run_mlm dapt", "build_datastore", "run_export", "predict")
    fill_everywhere(command, tmp_path, name, None if every else [r"model.safetensors", *FEW])


def test_two_runs_in_one_folder(command, tmp_path):
    from hf_domain.safe_io import lock_folder

    (tmp_path / "one").mkdir()
    with lock_folder(tmp_path / "one" / "output"):
        code, _, log = command("average_models", "one")
    assert code == 1 and "is writing into" in log
    assert not Path(tmp_path, "one", "output", "config.json").exists()
