"""Bad inputs: the command, the flags that change, what the message must say, and how files are spoiled.

A new command adds a line to `workspace.COMMANDS`, which brings it the cases that are made for all, and its own cases.
"""

import json
import os
from functools import wraps
from pathlib import Path

import torch
import yaml
from safetensors.torch import load_file, save_file
from workspace import COMMANDS, PLAN, Case

# ------------------------------------------------------------------------------------------------ how input is spoiled


def spoil(function):
    """Let a function of a path and of options be given its options first."""

    @wraps(function)
    def prepare(*args, **options):
        def run(path):
            function(path, *args, **options)

        run.__name__ = f"{function.__name__}{args or ''}{options or ''}"
        return run

    return prepare


@spoil
def truncate(path):
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


@spoil
def spoil_weight(path):
    """Make a bias of a layer norm nan."""
    weights = load_file(path)
    weights[next(name for name in weights if name.endswith("LayerNorm.bias"))][0] = float("nan")
    save_file(weights, path, {"format": "pt"})


@spoil
def delete(path):
    path.unlink()


@spoil
def encode(path, encoding):
    path.write_text(path.read_text(encoding="utf-8"), encoding=encoding)


@spoil
def make_folder(path):
    path.unlink(missing_ok=True)
    path.mkdir(parents=True)


@spoil
def link(path, source):
    """Make the file a second name of another."""
    path.unlink(missing_ok=True)
    path.symlink_to(Path(source).resolve())


@spoil
def copy(path, source):
    path.write_bytes(Path(source).read_bytes())


@spoil
def edit_json(path, **values):
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


@spoil
def change(path, row=4, **values):
    """Set columns of the fifth row, or of all if `row` is None; ... removes one."""
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    rows = [each | values if row in (None, number) else each for number, each in enumerate(rows)]
    rows = [{name: value for name, value in each.items() if value is not ...} for each in rows]
    path.write_text("".join(json.dumps(each) + "\n" for each in rows), encoding="utf-8")


def change_splits(folder, **values):
    """Set columns of all rows of all files of a task; {split} stands for the name of the file."""

    def fill(split):
        return json.loads(json.dumps(values).replace("{split}", split))

    return {f"{folder}/{split}.jsonl": change(None, **fill(split)) for split in ("train", "validation", "test")}


def left(file="all_results.json", **values):
    """Return whether a file of the output folder holds these values."""
    return lambda: values.items() <= json.loads(Path("out", file).read_text(encoding="utf-8")).items()


def says(file, text):
    """Return whether a file of the output folder contains a text."""
    return lambda: text in Path("out", file).read_text(encoding="utf-8")


def make_config(model_type):
    """Write a config.json that is not that of the weights."""
    return json.dumps({"model_type": model_type, "num_hidden_layers": 1, "num_attention_heads": 2, "hidden_size": 64})


class Evil:
    """Whoever unpickles it makes a folder."""

    def __reduce__(self):
        return os.mkdir, ("owned",)


@spoil
def write_evil(path):
    """Write weights as torch saved them once, with code in them."""
    torch.save({"bias": Evil()}, path)


BINARY = bytes(range(256)) * 20
DEEP = "[" * 100_000 + "]" * 100_000
ROWS = '{"text": "a b"}\n' * 99
BLOCKS = 58  # that the corpus fills

# ------------------------------------------------------------------------------------------------ all commands

TRAINING = ("mlm", "classification", "ner", "qa", "distill")
TASKS = {"classification": "task", "ner": "ner", "qa": "qa", "sentences": "pairs"}
# How a file is spoiled, and what its error says beside its name.
SPOILED = {"": "empty", BINARY: "utf-8", encode("utf-16"): "utf-8", make_folder(): ""}
SPOILED_ROWS = {'{"a": 1}\n{"a": 1}\n{"a"\n': "line 3", '{"text": ' + DEEP + "}\n": "deep"}
MODEL = {"model_name_or_path", "memory_name_or_path", "student_name_or_path"}


def list_shared_cases():
    """List what every command must refuse."""
    for command, good in COMMANDS.items():
        if "output_dir" in good:
            writes = "!dry_run " * ("dry_run" in good)
            yield Case(command, f"{writes}--output_dir corpus.txt", "--output_dir|corpus.txt")
            yield Case(command, f"{writes}--output_dir corpus.txt/out", "corpus.txt|out")
            yield Case(command, f"{writes}--output_dir sealed/out", "sealed/out", fault="read-only")
        if "max_seq_length" in good:
            yield Case(command, "--max_seq_length 999", "999|128")
        yield from list_file_cases(command, good)
        if "model_name_or_path" in good:
            flag = "--model_name_or_path" + " adapted" * isinstance(good["model_name_or_path"], list)
            yield from list_model_cases(command, flag)


def list_file_cases(command, good):
    """List how a command refuses each file that it reads."""
    for flag, file in good.items():
        if isinstance(file, str) and Path(file).suffix in (".txt", ".jsonl", ".yaml") and "output" not in flag:
            yield Case(command, f"--{flag} nowhere/{file}" if flag else f"only nowhere/{file}", f"nowhere/{file}")
            for content, part in (SPOILED | (SPOILED_ROWS if file.endswith(".jsonl") else {})).items():
                yield Case(command, "", f"{Path(file).name}|{part}".strip("|"), {file: content})


def list_model_cases(command, flag):
    """List how a command refuses a model."""
    yield Case(command, f"{flag} ./nowhere/model", "nowhere/model")
    yield Case(command, f"{flag} empty", "empty")
    yield Case(command, f"{flag} corpus.txt", "corpus.txt")
    if command in ("mlm", "expand_vocab", "distill", "export", "advise"):
        yield Case(command, f"{flag} decoder", "gpt2")
    if command != "build_datastore":
        yield Case(command, f"{flag} adapted", "config.json", {"adapted/config.json": truncate()})
    if command not in ("build_datastore", "quickstart"):
        weights = "adapted/model.safetensors"
        yield Case(command, f"{flag} adapted", weights, {weights: truncate()})


def list_training_cases():
    """List what goes wrong during a training, and before it."""
    metric = "--load_best_model_at_end true --metric_for_best_model foo --do_eval --eval_strategy steps --eval_steps 1"
    for command in TRAINING:
        yield Case(command, "", "interrupted", fault="ctrl-c", late=True)
        yield Case(command, "", "large", fault="file size", late=True)
    for command in ("mlm", *TASKS):
        yield Case(command, f"{metric} --save_strategy steps --save_steps 1", "--metric_for_best_model|foo")
    for command in ("mlm", "classification"):
        for flags, parts in (
            ("!do_train !do_eval !do_predict", "--do_train|--do_eval"),
            ("--lr_scheduler_type bumpy", "lr_scheduler_type|bumpy"),
            ("--method_learning_rate 1e-3", "--method_learning_rate|--method rada"),
            ("--config_overrides a=1", "config_overrides|a=1"),
            ("--memory_name_or_path adapted", "memory_name_or_path|adapted"),
            ("--method gmap", "memory_name_or_path"),
            ("--method rada", "--datastore"),
            ("--method rada --datastore empty", "empty"),
            ("--method rada --datastore nowhere", "nowhere"),
            ("--method rada --datastore datastore --num_passages 0", "num_passages|0"),
            ("--tokenizer_name ./nowhere", "nowhere"),
        ):
            yield Case(command, flags, parts)
    for command, folder in TASKS.items():
        train, test = f"{folder}/train.jsonl", f"{folder}/test.jsonl"
        yield Case(command, f"--do_train --train_file {test}", "test.jsonl|test_file")
        if command != "sentences":
            yield Case(command, f"--validation_file {train}", "train.jsonl|validation_file")
            yield Case(command, "!do_train !validation_file", "validation_file")
            yield Case(command, "--train_top_layers 99", "num_layers|99")
            yield Case(command, "", "test.jsonl|train.jsonl|test_file", {test: copy(train)})


# ------------------------------------------------------------------------------------------------ run files

RUN = COMMANDS["mlm"] | {"train_file": ["corpus.txt"], "validation_file": ["heldout.txt"], "disable_tqdm": True}


def write_run(**changes):
    """Write a run file with changes; ... drops a line."""
    return yaml.safe_dump({name: each for name, each in (RUN | changes).items() if each is not ...}, sort_keys=False)


GOOD = write_run()
RUN_FILES = [
    *(Case("mlm", "only run.yaml", f"run.yaml|{part}", {"run.yaml": content}) for content, part in (
        ("model_name_or_path: encoder\n\tdo_train: true\n", "line 2"),
        ("", "empty"),
        ("# nothing\n", "empty"),
        ("- a\n- b\n", "mapping"),
        ("just a text\n", "mapping"),
        (None, "no"),
        (make_folder(), "directory"),
        (BINARY, "utf-8"),
        (GOOD.encode("utf-16"), "utf-8"),
        (f"{GOOD}---\na: 1\n", "line"),
        (f"{GOOD}seed: 1\nseed: 2\n", "seed|line"),
        (f"{GOOD}seed: [1, 2\n", "line"),
        (f"{GOOD}seed: !!python/object/apply:os.getcwd []\n", "line"),
        (f"{GOOD}seed: *nothing\n", "line"),
        (f"seed: {DEEP}", "deep"),
        (f"{GOOD}7: 8\n", "7"),
        (f"{GOOD}learning_rate: .nan\n", "learning_rate|nan"),
        (write_run(learning_rat=1), "learning_rat|learning_rate"),
        (write_run(trust_remote_code=True), "--trust_remote_code"),
        (write_run(model_name_or_path=...), "model_name_or_path"),
        (write_run(train_file=["a", "--trust_remote_code"]), "train_file|--trust_rem"),
        (write_run(max_steps="many"), "max_steps|many"),
        (write_run(max_steps=1.5), "max_steps|1.5"),
        (write_run(do_train="perhaps"), "do_train|perhaps"),
        (write_run(learning_rate=[1e-4, 1e-5]), "learning_rate"),
        (write_run(learning_rate={"a": 1}), "learning_rate"),
        (write_run(method="berty"), "method|berty"),
    )),
    *(Case("mlm", "only run.json", f"run.json|{part}", {"run.json": content}) for content, part in (
        ('{"model_name_or_path": "encoder",', "line 1"),
        ('{"seed": 1, "seed": 2}', "seed"),
        ("[1, 2]", "mapping"),
        (f'{{"seed": {DEEP}}}', "deep"),
        (json.dumps(RUN | {"sed": 1}), "sed|seed"),
        ('{"trust_remote_code": true}', "--trust_remote_code"),
    )),
    *(Case("mlm", f"only run.yaml{flags}", "", {"run.yaml": content}, right=right) for flags, content, right in (
        ("", f"{GOOD}learning_rate: 1e-4\n", left(learning_rate=1e-4)),
        ("", write_run(save_strategy=...) + "save_strategy: no\n", lambda: not [*Path("out").glob("checkpoint-*")]),
        ("", write_run(train_file="corpus.txt"), left(train_samples=BLOCKS)),
        ("", f"{GOOD}config_name:\n", left("config.json", hidden_size=32)),
        ("", b"\xef\xbb\xbf" + GOOD.encode(), left(train_samples=BLOCKS)),
        (" --trust_remote_code", GOOD, left(train_samples=BLOCKS)),
        (" --seed 3", GOOD, says("README.md", "| seed | 3 |")),
    )),
    Case("mlm", "only run.yaml run.yaml", "run.yaml", {"run.yaml": GOOD}),
    Case("mlm", "only", "--model_name_or_path"),
    Case("publish", "only", "--model_name_or_path|--comparison"),
]  # fmt: skip


# ------------------------------------------------------------------------------------------------ masked LM


def list_cases(command, *rows):
    """Make cases of a command from flags, what must be said, files, and whether what is left is right."""
    return [Case(command, flags, parts, *files, right=right[0] if right else None) for flags, parts, *rest in rows
            for files, right in [(rest[:1], rest[1:])]]  # fmt: skip


MEMORY = "--method gmap --memory_name_or_path adapted --config_overrides"
WIDE = "--model_name_or_path adapted --config_name wide"
MLM = list_cases(
    "mlm",
    ("--mlm_probability 1e-9", "mlm_probability|1e-09|64"),
    ("--validation_file corpus.txt --do_eval", "corpus.txt|train_file|validation_file"),
    ("--validation_file x.txt --do_eval", "corpus.txt|validation_file", {"x.txt": link("corpus.txt")}),
    ("--validation_file x.txt --do_eval", "x.txt|corpus.txt|validation_file", {"x.txt": copy("corpus.txt")}),
    ("!train_file", "train_file"),
    ("--streaming !max_steps", "--streaming|max_steps"),
    ("--streaming --dask_scheduler tcp://a:1", "--dask_scheduler|--streaming"),
    ("--dask_scheduler nowhere.json", "dask_scheduler|nowhere.json"),
    ("--train_file memory://nowhere/a.txt", "memory://nowhere/a.txt"),
    ("--train_file nosuch://bucket/a.txt", "nosuch"),
    ("--model_name_or_path classifier", "", {}, left("config.json", architectures=["BertForMaskedLM"])),
    ("--method varmae --config_overrides kl_weight", "kl_weight|name=value"),
    ("--method varmae --config_overrides kl_weight=heavy", "kl_weight|heavy"),
    ("--method exbert --config_overrides extension_hidden_size=wide", "extension_hidden_size|wide"),
    ("--method lora --config_overrides rank=4", "config_overrides"),
    ("--expanded_vocabulary empty", "empty"),
    ("--expanded_vocabulary nowhere", "nowhere"),
    ("--resume_from_checkpoint nowhere", "nowhere"),
    ("--resume_from_checkpoint empty", "empty"),
    ("--output_dir classifier", "classifier|--overwrite_output_dir"),
    ("--output_dir encoder", "encoder"),
    ("", "out has config.json", {"out/config.json": ""}),
    ("--model_name_or_path adapted", "tokenizer", {"adapted/tokenizer.json": truncate()}),
    (
        "--model_name_or_path adapted",
        "adapted|tokenizer",
        {"adapted/tokenizer.json": delete(), "adapted/tokenizer_config.json": delete()},
    ),
    ("--model_name_or_path adapted", "adapted", {"adapted/model.safetensors": delete()}),
    ("--model_name_or_path adapted", "adapted/model.safetensors", {"adapted/model.safetensors": ""}),
    (WIDE, "adapted|wide", {"wide/config.json": make_config("bert")}),
    (WIDE, "bart|encoder", {"wide/config.json": make_config("bart")}),
    (
        "--model_name_or_path adapted",
        "adapted|safetensors",
        {"adapted/model.safetensors": delete(), "adapted/pytorch_model.bin": write_evil()},
    ),
    ("--model_name_or_path adapted", "adapted|model_type", {"adapted/config.json": "{}"}),
    ("--model_name_or_path adapted", "adapted/config.json", {"adapted/config.json": "[1]"}),
    ("--model_name_or_path adapted", "adapted/config.json", {"adapted/config.json": DEEP}),
    ("--method rada --datastore datastore --model_name_or_path other", "tokenizer"),
    ("--method gmap --memory_name_or_path other", "tokenizer"),
    ("--passage_cache cache", "passage_cache"),
    (f"{MEMORY} memory_layers=[3]", "ascending layers from 1 to 2"),
    (f"{MEMORY} strategy=ensemble", "ensemble is for task heads"),
    ("--method lora --push_to_hub !do_train --do_eval", "--do_train|--method lora"),
    ("--method exbert_adapter --config_overrides freeze_backbone=false", "which stays unchanged"),
    ("--max_steps", "--max_steps"),
    ("--do_train true stray", "stray"),
)


# ------------------------------------------------------------------------------------------------ fine-tuning


def write_labels(*labels, text="a"):
    """Write a row for each label."""
    rows = [{"text": f"{text} {number}", "label": label} for number, label in enumerate(labels)]
    return "".join(json.dumps(row) + "\n" for row in rows)


FLOATS = {f"task/{split}.jsonl": write_labels(0.5, 0.7, text=split) for split in ("validation", "test")}
LISTS = {f"task/{split}.jsonl": write_labels(["a"], ["b"], text=split) for split in ("train", "validation", "test")}
CLASSIFICATION = list_cases(
    "classification",
    ("", "", {"task/train.jsonl": encode("utf-8-sig")}, left(train_samples=8)),
    ("--label_column_name topic", "topic|label"),
    ("--text_column_names body", "body|text"),
    ("", "text|train", {"task/train.jsonl": change(text=None)}),
    ("", "label|task/train.jsonl", {"task/train.jsonl": change(label=3)}),
    ("", "inf|label", FLOATS | {"task/train.jsonl": write_labels(0.5, float("inf"))}),
    ("--do_regression true", "regression must be numbers|line 1 of task/train.jsonl"),
    ("--multi_label true", "multi-label data must have lists"),
    ("--do_regression true --multi_label true", "do_regression|multi_label"),
    ("--negative_labels none", "none|a, b"),
    ("", "'NA'|line 2|train.jsonl", {"task/train.jsonl": write_labels("0.5", "NA", "1.5")}),
    ("--multi_label false", "multi-label", LISTS),
    (f"{MEMORY} memory_layer=1", "no option memory_layer"),
    ("--append_passage", "append_passage|--datastore"),
    ("--memory_cache states", "memory_cache"),
    ("--dataset_name some/data", "dataset_name"),
    ("--method rada --datastore datastore --config_overrides hidden_layers=1", "hidden_layers"),
    ("--method rada --datastore datastore --config_overrides passage_encoder=5", "passage_encoder|5"),
    ("--output_dir classifier", "classifier|--overwrite_output_dir"),
    ("--train_file t.csv", "label", {"t.csv": "some text,a\nother text,b\n"}),
)
NER = list_cases(
    "ner",
    ("", "tags", {"ner/train.jsonl": change(None, tags="O")}),
    ("", "tokens", {"ner/train.jsonl": change(None, tokens="a text", tags=["O", "O"])}),
    ("", "tags", {"ner/train.jsonl": change(None, tags=...)}),
    ("", "tags is empty|line 5|train", {"ner/train.jsonl": change(tokens=["a"], tags=[None])}),
    ("", "column tokens|validation", {"ner/validation.jsonl": change(None, tokens=...)}),
    ("", "none is O", change_splits("ner", tokens=["{split}", "b"], tags=[1, 0])),
    ("", "tokens|train", {"ner/train.jsonl": change(tokens=["a", None], tags=["O", "O"])}),
    ("--max_seq_length 64", "", {"ner/train.jsonl": change(tokens=[], tags=[])}, left(train_samples=8, eval_samples=8)),
)
QA = list_cases(
    "qa",
    ("--doc_stride 32", "doc_stride|32"),
    ("", "answers", {"qa/train.jsonl": change(None, answers=...)}),
    ("", "answer|train", {"qa/train.jsonl": change(answers={"text": ["nowhere"], "answer_start": [3]})}),
    ("", "context is empty|line 5|train.jsonl", {"qa/train.jsonl": change(context=None)}),
    ("", "None|line 5|train.jsonl", {"qa/train.jsonl": change(answers=None)}),
    ("", "two lists of equal length|line 5", {"qa/train.jsonl": change(answers={"text": ["a"], "answer_start": []})}),
    (
        "--version_2_with_negative true",
        "train has none",
        {"qa/train.jsonl": change(None, answers={"text": [], "answer_start": []})},
    ),
    ("", "'a text'|line 1 of qa/train.jsonl", {"qa/train.jsonl": change(None, answers="a text")}),
)
TEXTS = "--corpus_file search/corpus.jsonl --queries_file search/queries.jsonl"
QRELS = f"--validation_file search/qrels/dev.tsv --test_file search/qrels/test.tsv {TEXTS}"
HEADER = "query-id\tcorpus-id\tscore\n"
SENTENCES = list_cases(
    "sentences",
    ("!do_eval !do_predict", "--do_train|--do_eval"),
    ("!test_file", "--test_file"),
    ("--do_train", "--train_file"),
    ("--text_column_names text", "two|text"),
    ("--label_column_name similarity", "similarity|validation"),
    ("", "score|test.jsonl", {"pairs/test.jsonl": change(score=None)}),
    ("", "LayerNorm.bias|encoder", {"encoder/model.safetensors": spoil_weight()}),
    ("", "score|1.0|test", {"pairs/test.jsonl": change(None, score=1.0)}),
    ("--do_train --train_file pairs/train.jsonl", "score|1.0", {"pairs/train.jsonl": change(None, score=1.0)}),
    ("--push_to_hub", "--push_to_hub"),
    (f"{QRELS} !corpus_file", "--corpus_file"),
    (QRELS, "corpus.jsonl", {"search/corpus.jsonl": delete()}),
    (QRELS, "queries.jsonl", {"search/queries.jsonl": delete()}),
    (f"{QRELS} --test_file search/qrels/nowhere.tsv", "nowhere.tsv"),
    (QRELS, "corpus.jsonl|line 1", {"search/corpus.jsonl": "{"}),
    (QRELS, "corpus.jsonl|d1", {"search/corpus.jsonl": '{"_id": "d1", "text": "a"}\n' * 2}),
    (QRELS, "corpus.jsonl|line 5|_id", {"search/corpus.jsonl": change(_id=...)}),
    *((QRELS, f"test.tsv|{part}".strip("|"), {"search/qrels/test.tsv": content}) for content, part in (
        ("q6\td6\t1\n" * 2, "query-id"),
        ("q6\td6\t1\n", ""),
        (f"{HEADER}q6\td6\t0\n", ""),
        (f"{HEADER}q6\td99\t1\n", "d99"),
        (f"{HEADER}q99\td6\t1\n", "q99"),
        (f"{HEADER}q6\td6\n", "line 2"),
        (f"{HEADER}q6\td6\tyes\n", "line 2"),
        (BINARY, "utf-8"),
        ("", ""),
    )),
)  # fmt: skip


# ------------------------------------------------------------------------------------------------ other commands

SEARCH = "--output_dir datastore !train_file !model_name_or_path --query domain"
STUDENT = "--strategy distill_then_adapt --student_steps 2"
RAN = {"steps": {}, "methods": {}, "titles": {}, "pairs": [], "folder": ".."}
STEPS = {"comparison/plan.json": json.dumps(RAN)}
DAPT = json.dumps(RAN | {"steps": {"dapt-domain": "dapt-domain-00000000"}})
SEVERAL = '{"text": "a b", "key": "1"}\n{"text": "c d", "key": "1"}\n'
EXPAND = list_cases(
    "expand_vocab",
    ("--train_file c.jsonl", "body (int64)", {"c.jsonl": '{"body": 1}\n' * 9}),
    ("--dask_scheduler nowhere.json", "dask_scheduler|nowhere.json"),
    ("--counts_file counts.parquet", "counts.parquet", {"counts.parquet": "text"}),
    ("--output_dir encoder", "encoder"),
)
DISTILL = list_cases(
    "distill",
    ("!num_hidden_layers", "num_hidden_layers|student"),
    ("--student_layers 1", "student_layers|num_hidden_layers"),
    ("!num_hidden_layers --student_layers 9", "layers|9"),
    ("--hidden_size 31", "31|heads"),
    ("--num_relation_heads 3", "num_relation_heads"),
    ("--general_file nowhere.txt", "nowhere.txt"),
    ("--masked_lm_steps 5", "--masked_lm_steps|from_scratch ends"),
    ("!num_hidden_layers --hidden_size 16 --student_layers 1", "--hidden_size|--num_hidden_layers"),
    ("!num_hidden_layers --hidden_size 16 --student_name_or_path other", "--hidden_size|--num_hidden_layers"),
    (f"{STUDENT} --objective clm --whole_word_mask", "--objective clm|--whole_word_mask"),
    (f"{STUDENT} --mix missing.txt:0.1", "missing.txt"),
    ("--strategy adapt_and_distill --teacher_steps 2 --student_steps 1", "among 3 steps|1"),
    ("--num_attention_heads 4", "", {}, lambda: [*Path("out").rglob("model.safetensors")]),
    ("!train_file", "train_file"),
)
BUILD = list_cases(
    "build_datastore",
    ("!train_file", "train_file|dataset_name"),
    ("--dask_scheduler nowhere.json", "dask_scheduler|nowhere.json"),
    ("--dataset_name some/data", "train_file|dataset_name"),
    ("--add", "--add|out"),
    ("!model_name_or_path", "model_name_or_path"),
    ("--output_dir datastore", "", {}, lambda: True),
    ("--output_dir datastore --train_file heldout.txt", "datastore|--add"),
    ("--output_dir encoder --add", "encoder"),
    ("--held_out_file rest.txt", "rest.txt|.jsonl"),
    ("--held_out_file task/train.jsonl", "task/train.jsonl"),
    ("--train_file c.jsonl --held_out_file c.jsonl", "c.jsonl", {"c.jsonl": ROWS}),
    ("--train_file c.jsonl --id_column_name key", "key", {"c.jsonl": ROWS}),
    ("--train_file c.jsonl", "text and text_pair", {"c.jsonl": '{"text": "a", "text_pair": "b"}\n'}),
    ("--train_file c.jsonl --id_column_name key", "", {"c.jsonl": SEVERAL}, left("datastore.json", num_passages=2)),
    ("--output_dir datastore --add", "datastore", {"datastore/datastore.json": truncate()}),
    (f"{SEARCH} --output_dir nowhere", "nowhere|--query"),
    (f"{SEARCH} --output_dir encoder", "encoder"),
    (f"{SEARCH} --query ' '", "--query"),
    (f"{SEARCH} --num_passages 0", "num_passages|0"),
    (SEARCH, "datastore", {"datastore/datastore.json": truncate()}),
)
OTHERS = [
    *list_cases(
        "predict",
        ("only classifier", "file"),
        ("only ./nowhere/model heldout.txt", "nowhere/model"),
        ("only empty heldout.txt", "empty"),
        ("only encoder heldout.txt", "fine-tune"),
        (
            "only adapted heldout.txt",
            "model.safetensors",
            {
                "adapted/model.safetensors": truncate(),
                "adapted/config.json": edit_json(architectures=["BertForSequenceClassification"]),
            },
        ),
        ("", "LayerNorm.bias|classifier", {"classifier/model.safetensors": spoil_weight()}),
        ("only classifier new.jsonl", "a|column", {"new.jsonl": '{"a": 1}\n'}),
        ("only classifier new.jsonl", "a|b|--text_column_names", {"new.jsonl": '{"a": "x", "b": "y"}\n'}),
        ("--text_column_names body", "body"),
        ("--output_file task/train.jsonl", "train.jsonl"),
        ("--output_file out.xlsx", ".csv"),
        ("--output_file nowhere/out.csv", "nowhere"),
        ("--datastore datastore", "rada"),
    ),
    *list_cases(
        "advise",
        ("--general corpus.txt", "corpus.txt"),
        ("--task nowhere", "nowhere/train.jsonl"),
        ("--task corpus.txt", "corpus.txt"),
        ("--task task task", "different names"),
        ("", "train.jsonl|line 5|label", {"task/train.jsonl": change(label=...)}),
        ("--minutes nan", "minutes|nan"),
        ("--output_dir task", "--output_dir|task"),
    ),
    *list_cases(
        "publish",
        ("--comparison nowhere", "nowhere"),
        ("--comparison encoder", "encoder"),
        ("--task task", "--task|--method"),
        ("!corpus", "--corpus"),
        ("!method !corpus --task task", "--task|keep_models", STEPS),
        ("", "comparison|plan.json"),
        ("", "comparison|dapt-domain", STEPS),
        *(("", "dapt-domain", {"comparison/plan.json": DAPT, "comparison/results/dapt-domain-00000000.json": result})
          for result in ('{"status": ', DEEP)),
        ("", "plan.json", {"comparison/plan.json": "{"}),
        ("", "plan.json", {"comparison/plan.json": "{}"}),
        ("!comparison !method !corpus --model_name_or_path task", "task|config.json"),
    ),
    *list_cases(
        "export",
        ("--head question_answering", "qa_outputs|fine-tune"),
        ("--tokenizer_name ./nowhere", "nowhere"),
        ("--output_dir classifier", "classifier"),
    ),
    *list_cases(
        "quickstart",
        ("--corpus .", "a corpus must be a file"),
        ("--task heldout.txt", "label|heldout.txt"),
        ("--task nowhere", "--task|nowhere"),
        ("", "test must not be trained on|train.jsonl", {"task/test.jsonl": link("task/train.jsonl")}),
    ),
]  # fmt: skip


# ------------------------------------------------------------------------------------------------ plans


def plan(parts, files=None, **changes):
    """Make the case of a plan with changes; ... drops a section."""
    content = {key: value for key, value in (PLAN | changes).items() if value is not ...}
    return Case("compare", "", parts, {"plan.yaml": yaml.safe_dump(content, sort_keys=False)} | (files or {}))


def task(**changes):
    """Return a task of a plan with changes."""
    return {"topics": PLAN["tasks"]["topics"] | changes}


GOOD_PLAN = yaml.safe_dump(PLAN, sort_keys=False)
PLANS = [
    *(Case("compare", "", f"plan.yaml|{part}", {"plan.yaml": content}) for content, part in (
        ("encoder: encoder\n\tseeds: [1]\n", "line 2"),
        (GOOD_PLAN.replace("  dapt: null\n", "  dapt: null\n  dapt: {pretraining: {seed: 1}}\n"), "dapt|line"),
        (f"encoder: {DEEP}", "deep"),
    )),
    plan("nowhere", encoder="./nowhere"),
    plan(
        "adapted|tokenizer",
        {"adapted/tokenizer.json": delete(), "adapted/tokenizer_config.json": delete()},
        encoder="adapted",
    ),
    plan("empty", encoder="empty"),
    plan("gpt2", encoder="decoder"),
    *(plan(f"budget|{found}", budget=budget) for budget, found in (
        ({"tokens": None, "minutes": float("nan")}, "nan"),
        ({"tokens": True}, "True"),
        ({"tokens": -5}, "-5"),
        ({"tokens": 5}, "5"),
    )),
    *(plan(f"seed|{found}", seeds=seeds) for seeds, found in (
        ([-1], "-1"), ([2**70], str(2**70)), ([True, 2], "True"), ([], "seeds")
    )),
    *(plan(f"{name}|{found}", fine_tuning={name: value}) for name, value, found in (
        ("learning_rate", float("nan"), "nan"),
        ("class_weights", "heavy", "heavy"),
    )),
    *(plan(f"{name}|{value}", pretraining=PLAN["pretraining"] | {name: value}) for name, value in (
        ("per_device_train_batch_size", 0),
        ("bf16", "--trust_remote_code"),
    )),
    plan("999|128", pretraining={"max_seq_length": 999}, budget={"tokens": 1_000_000}),
    plan("keep_models|some", keep_models="some"),
    *(plan(corpus, corpora={"domain": {"train_file": corpus, "validation_file": held_out}}) for corpus, held_out in (
        ("nowhere.txt", "heldout.txt"), ("corpus.txt", "corpus.txt")
    )),
    plan("test must not be trained on|train.jsonl", {"task/test.jsonl": link("task/train.jsonl")}),
    plan("topics|column of text", tasks=task(folder="ner")),
    plan("task/train.jsonl|utf-8", {"task/train.jsonl": encode("utf-16")}),
    plan("task/train.jsonl|line 1", {"task/train.jsonl": '{"text": ' + DEEP + "}\n"}),
    plan("general", methods={"general_text": None}),
    *list_cases(
        "compare",
        ("only", "plan"),
        (
            "--output_dir task",
            "--output_dir|task|plan.json",
            {"task/plan.json": "{}", "task/report.md": "mine"},
        ),
        ("!dry_run --output_dir encoder", "--output_dir|encoder"),
        ("!dry_run --report_only", "results|out"),
        ("--report_only", "--report_only|--dry_run"),
    ),
    Case("compare", "!dry_run --dask_scheduler tcp://127.0.0.1:9", "dask_scheduler|9", late=True),
    Case("compare", "!dry_run --dask_scheduler corpus.txt", "dask_scheduler|corpus.txt", late=True),
]  # fmt: skip


CASES = [*list_shared_cases(), *list_training_cases(), *RUN_FILES, *MLM, *CLASSIFICATION, *NER, *QA, *SENTENCES]
CASES += [*EXPAND, *DISTILL, *BUILD, *OTHERS, *PLANS]
