"""Bad inputs, a line each: the command, what is wrong, what its message must say, and how the input is made.

A new command adds a row to `workspace.COMMANDS`, which brings it the cases of `list_shared_cases`, and its own cases.
"""

import gzip
import json
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
import yaml
from safetensors.torch import load_file, save_file
from workspace import COMMANDS, PLAN, Case

TRAINING_COMMANDS = ("mlm", "classification", "ner", "qa", "distill")
FINE_TUNING_COMMANDS = ("classification", "ner", "qa")


# ------------------------------------------------------------------------------------------------ how input is spoiled


def truncate(path: Path) -> None:
    """Keep the first half of a file."""
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def spoil_weight(path: Path) -> None:
    """Make a bias of a layer norm nan."""
    weights = load_file(path)
    name = next(name for name in weights if name.endswith("LayerNorm.bias"))
    weights[name][0] = float("nan")
    save_file(weights, path, {"format": "pt"})


def delete(path: Path) -> None:
    path.unlink()


def left(file: str = "all_results.json", **values: Any) -> Callable[[], bool]:
    """Whether a file of the output folder holds these values."""
    return lambda: values.items() <= json.loads(Path("out", file).read_text(encoding="utf-8")).items()


def encode(encoding: str) -> Callable[[Path], None]:
    return lambda path: path.write_text(path.read_text(encoding="utf-8"), encoding=encoding) and None


def make_folder(path: Path) -> None:
    path.unlink(missing_ok=True)
    path.mkdir(parents=True)


def link_to(source: str) -> Callable[[Path], None]:
    """The same file under a second name."""

    def link(path: Path) -> None:
        path.unlink(missing_ok=True)
        path.symlink_to(Path(source).resolve())

    return link


def copy_of(source: str) -> Callable[[Path], None]:
    """Another file of the same content."""
    return lambda path: path.write_bytes(Path(source).read_bytes()) and None


def edit_json(**values: Any) -> Callable[[Path], None]:
    return lambda path: path.write_text(json.dumps(json.loads(path.read_text()) | values)) and None


def change_rows(**values: Any) -> Callable[[Path], None]:
    """Set columns of the fifth row; ... removes one."""

    def change(path: Path) -> None:
        rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        rows[4] = {name: value for name, value in (rows[4] | values).items() if value is not ...}
        path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")

    return change


def change_all_rows(**values: Any) -> Callable[[Path], None]:
    def change(path: Path) -> None:
        rows = [json.loads(line) | values for line in path.read_text(encoding="utf-8").splitlines()]
        rows = [{name: value for name, value in row.items() if value is not ...} for row in rows]
        path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")

    return change


def make_config(model_type: str) -> str:
    """A config.json that is not that of the weights."""
    return json.dumps({"model_type": model_type, "num_hidden_layers": 1, "num_attention_heads": 2, "hidden_size": 64})


class Evil:
    """Whoever unpickles it makes a folder."""

    def __reduce__(self) -> Any:
        return os.mkdir, ("owned",)


def write_evil(path: Path) -> None:
    """Write weights as torch saved them once, with code in them."""
    torch.save({"bias": Evil()}, path)


WIDE = {"model_name_or_path": "adapted", "config_name": "wide"}
BINARY = bytes(range(256)) * 20
DEEP = "[" * 100_000 + "]" * 100_000
DEEP_OBJECT = '{"text": ' + DEEP + "}\n"


# ------------------------------------------------------------------------------------------------ run files

BLOCKS = 58  # that the corpus fills
GOOD_RUN = COMMANDS["mlm"] | {"train_file": ["corpus.txt"], "validation_file": ["heldout.txt"], "disable_tqdm": True}


def make_comparison(result: str) -> dict[str, Any]:
    """The files of a comparison of one step, whose result is bad."""
    plan = {"steps": {"dapt-domain": "dapt-domain-00000000"}, "methods": {}}
    return {"comparison/plan.json": json.dumps(plan), "comparison/results/dapt-domain-00000000.json": result}


def write_run(**changes: Any) -> str:
    """A run file with changes; ... drops a line."""
    content = {name: value for name, value in (GOOD_RUN | changes).items() if value is not ...}
    return yaml.safe_dump(content, sort_keys=False)


def run_file(
    name: str,
    says: tuple[str, ...],
    text: str | bytes | Callable[[Path], None] | None,
    file: str = "run.yaml",
    **options: Any,
) -> Case:
    files = {} if text is None else {file: text}
    return Case("mlm", f"run file: {name}", says, files=files, arguments=[file], **options)


RUN_FILES = [
    run_file(
        "1e-4 is a number",
        (),
        write_run() + "learning_rate: 1e-4\n",
        harmless="a rate as everybody writes it",
        then=left(learning_rate=1e-4),
    ),
    run_file(
        "no is a strategy",
        (),
        write_run(save_strategy=...) + "save_strategy: no\n",
        harmless="no is a value of it",
        then=lambda: not [*Path("out").glob("checkpoint-*")],
    ),
    run_file(
        "one file where a list is due",
        (),
        write_run(train_file="corpus.txt"),
        harmless="a list of one",
        then=left(train_samples=BLOCKS),
    ),
    run_file(
        "an empty entry",
        (),
        write_run() + "config_name:\n",
        harmless="the default holds",
        then=left("config.json", hidden_size=32),
    ),
    run_file(
        "a BOM",
        (),
        b"\xef\xbb\xbf" + write_run().encode(),
        harmless="Windows writes one",
        then=left(train_samples=BLOCKS),
    ),
    run_file("tabs", ("run.yaml", "line 2"), "model_name_or_path: encoder\n\tdo_train: true\n"),
    run_file("empty", ("run.yaml", "empty"), ""),
    run_file("comments alone", ("run.yaml", "empty"), "# nothing\n"),
    run_file("a list", ("run.yaml", "mapping"), "- a\n- b\n"),
    run_file("a text", ("run.yaml", "mapping"), "just a text\n"),
    run_file("two documents", ("run.yaml", "line"), write_run() + "---\na: 1\n"),
    run_file("missing", ("run.yaml", "no"), None),
    run_file("a folder", ("run.yaml", "directory"), make_folder),
    run_file("binary", ("run.yaml", "utf-8"), BINARY),
    run_file("UTF-16", ("run.yaml", "utf-8"), write_run().encode("utf-16")),
    run_file("duplicate keys", ("run.yaml", "seed", "line"), write_run() + "seed: 1\nseed: 2\n"),
    run_file("an unknown key", ("run.yaml", "learning_rat", "learning_rate"), write_run(learning_rat=1)),
    Case(
        "mlm",
        "run file: trust on the command line",
        (),
        files={"run.yaml": write_run()},
        arguments=["run.yaml", "--trust_remote_code"],
        harmless="the flag is the user's own",
        then=left(train_samples=BLOCKS),
    ),
    run_file("trust", ("run.yaml", "--trust_remote_code"), write_run(trust_remote_code=True)),
    run_file("trust in JSON", ("--trust_remote_code",), json.dumps({"trust_remote_code": True}), "run.json"),
    run_file("a flag among values", ("train_file", "--trust_rem"), write_run(train_file=["a", "--trust_remote_code"])),
    run_file("a number as key", ("run.yaml", "7"), write_run() + "7: 8\n"),
    run_file("lacks the model", ("run.yaml", "model_name_or_path"), write_run(model_name_or_path=...)),
    run_file("a text where a number is due", ("run.yaml", "max_steps", "many"), write_run(max_steps="many")),
    run_file("a fraction where a whole number is due", ("run.yaml", "max_steps", "1.5"), write_run(max_steps=1.5)),
    run_file("a text where a switch is due", ("run.yaml", "do_train", "perhaps"), write_run(do_train="perhaps")),
    run_file("a list where a number is due", ("run.yaml", "learning_rate"), write_run(learning_rate=[1e-4, 1e-5])),
    run_file("a mapping where a number is due", ("run.yaml", "learning_rate"), write_run(learning_rate={"a": 1})),
    run_file("a wrong choice", ("run.yaml", "method", "berty"), write_run(method="berty")),
    run_file("an open bracket", ("run.yaml", "line"), write_run() + "seed: [1, 2\n"),
    run_file("a tag of Python", ("run.yaml", "line"), write_run() + "seed: !!python/object/apply:os.getcwd []\n"),
    run_file("an alias of nothing", ("run.yaml", "line"), write_run() + "seed: *nothing\n"),
    run_file("deep", ("run.yaml", "deep"), "seed: " + DEEP),
    run_file("nan", ("run.yaml", "learning_rate", "nan"), write_run() + "learning_rate: .nan\n"),
    run_file("JSON that is broken", ("run.json", "line 1"), '{"model_name_or_path": "encoder",', file="run.json"),
    run_file("JSON with duplicate keys", ("run.json", "seed"), '{"seed": 1, "seed": 2}', file="run.json"),
    run_file("JSON that is a list", ("run.json", "mapping"), "[1, 2]", file="run.json"),
    run_file("JSON that is deep", ("run.json", "deep"), '{"seed": ' + DEEP + "}", file="run.json"),
    run_file(
        "JSON with an unknown key", ("run.json", "sed", "seed"), json.dumps(GOOD_RUN | {"sed": 1}), file="run.json"
    ),
]


# ------------------------------------------------------------------------------------------------ all commands


def list_shared_cases() -> list[Case]:
    """What every command must refuse."""
    cases = []
    for command, good in COMMANDS.items():
        if command == "predict":  # its model has no flag
            continue
        cases += [
            Case(command, "unknown flag", ("no option --color",), {"color": "red"}),
            Case(command, "abbreviated flag", ("--output",), {"output_dir": None, "output": "out"})
            if "output_dir" in good
            else Case(command, "abbreviated flag", ("--datastore",), {"datastore": None, "datastor": "x"}),
        ]
        if command != "compare":
            required = next(iter(good))
            if command not in ("quickstart", "build_datastore"):
                cases.append(Case(command, "required flag missing", (f"--{required}",), {required: None}))
        if "output_dir" in good:
            cases += [
                Case(command, "output is a file", ("--output_dir", "corpus.txt"), {"output_dir": "corpus.txt"}),
                Case(command, "output is below a file", ("corpus.txt", "out"), {"output_dir": "corpus.txt/out"}),
                Case(command, "read-only output", ("sealed/out",), {"output_dir": "sealed/out"}, fault="read-only"),
            ]
        if "model_name_or_path" in good:
            many = isinstance(good["model_name_or_path"], list)

            def name_model(folder: str, many: bool = many) -> dict[str, Any]:
                return {"model_name_or_path": ["adapted", folder] if many else folder}

            cases += [
                Case(command, "model is missing", ("nowhere/model",), name_model("./nowhere/model")),
                Case(command, "model is an empty folder", ("empty",), name_model("empty")),
                Case(command, "model is a file", ("corpus.txt",), name_model("corpus.txt")),
            ]
            if command != "build_datastore":
                cases.append(
                    Case(
                        command,
                        "config is broken",
                        ("config.json",),
                        name_model("adapted"),
                        {"adapted/config.json": truncate},
                    )
                )
            if command not in ("build_datastore", "quickstart"):
                cases.append(
                    Case(
                        command,
                        "weights are truncated",
                        ("adapted/model.safetensors",),
                        name_model("adapted"),
                        {"adapted/model.safetensors": truncate},
                    )
                )
    return cases


UNKNOWN_METRIC = {"load_best_model_at_end": "true", "metric_for_best_model": "foo", "do_eval": True}
UNKNOWN_METRIC |= {"eval_strategy": "steps", "eval_steps": 1, "save_strategy": "steps", "save_steps": 1}
TRAINING = [
    Case(command, "unknown best metric", ("--metric_for_best_model", "loss", "foo"), UNKNOWN_METRIC)
    for command in ("mlm", *FINE_TUNING_COMMANDS)
]
TRAINING += [Case("sentences", "unknown best metric", ("--metric_for_best_model", "foo"), UNKNOWN_METRIC)]
for command in TRAINING_COMMANDS:
    bad = partial(Case, command)
    TRAINING += [
        bad("batch of nothing", ("per_device_train_batch_size", "0"), {"per_device_train_batch_size": 0}),
        bad("accumulation of nothing", ("gradient_accumulation_steps", "0"), {"gradient_accumulation_steps": 0}),
        bad("length of nothing", ("max_seq_length", "0"), {"max_seq_length": 0}),
        bad("longer than the encoder", ("max_seq_length", "999", "128"), {"max_seq_length": 999}),
        bad("negative seed", ("seed", "-1"), {"seed": -1}),
        bad("seed beyond numpy's", ("seed", str(2**70)), {"seed": 2**70}),
        bad("rate of nan", ("learning_rate", "nan"), {"learning_rate": "nan"}),
        bad("negative rate", ("learning_rate", "-0.1"), {"learning_rate": -0.1}),
        bad("interrupted", ("interrupted",), fault="ctrl-c", late=True),
        bad("disk quota", ("large",), fault="file size", late=True),
    ]
for command in ("mlm", "classification"):
    bad = partial(Case, command)
    TRAINING += [
        bad("negative epochs", ("num_train_epochs", "-1"), {"num_train_epochs": -1}),
        bad("no steps", ("max_steps", "0"), {"max_steps": 0}),
        bad("infinite rate", ("learning_rate", "inf"), {"learning_rate": "inf"}),
        bad("second moment above 1", ("adam_beta2", "1.5"), {"adam_beta2": 1.5}),
        bad("negative first moment", ("adam_beta1", "-0.1"), {"adam_beta1": -0.1}),
        bad("no epsilon", ("adam_epsilon", "0"), {"adam_epsilon": 0}),
        bad("labels smoothed away", ("label_smoothing_factor", "7"), {"label_smoothing_factor": 7}),
        bad("no rate for the method", ("method_learning_rate", "0"), {"method_learning_rate": 0}),
        bad("rate for no method", ("--method_learning_rate", "--method rada"), {"method_learning_rate": 1e-3}),
        bad("negative accumulation", ("gradient_accumulation_steps", "-2"), {"gradient_accumulation_steps": -2}),
        bad("evaluation batch of nothing", ("per_device_eval_batch_size", "0"), {"per_device_eval_batch_size": 0}),
        bad("no training example", ("max_train_samples", "0"), {"max_train_samples": 0}),
        bad("negative number of examples", ("max_train_samples", "-3"), {"max_train_samples": -3}),
        bad("no process", ("preprocessing_num_workers", "0"), {"preprocessing_num_workers": 0}),
        bad("negative number of workers", ("dataloader_num_workers", "-1"), {"dataloader_num_workers": -1}),
        bad("noise of nan", ("neftune_noise_alpha", "nan"), {"neftune_noise_alpha": "nan"}),
        bad("nothing to do", ("--do_train", "--do_eval"), {"do_train": None, "do_eval": None, "do_predict": None}),
        bad("rate that is no number", ("learning_rate", "fast"), {"learning_rate": "fast"}),
        bad("unknown schedule", ("lr_scheduler_type", "bumpy"), {"lr_scheduler_type": "bumpy"}),
        bad("unknown method", ("--method", "magic"), {"method": "magic"}),
        bad("options without a method", ("config_overrides", "a=1"), {"config_overrides": "a=1"}),
        bad("memory without gmap", ("memory_name_or_path", "adapted"), {"memory_name_or_path": "adapted"}),
        bad("gmap without a memory", ("memory_name_or_path",), {"method": "gmap"}),
        bad("rada without a datastore", ("--datastore",), {"method": "rada"}),
        bad("datastore that is none", ("empty",), {"method": "rada", "datastore": "empty"}),
        bad("datastore that is missing", ("nowhere",), {"method": "rada", "datastore": "nowhere"}),
        bad("no passage", ("num_passages", "0"), {"method": "rada", "datastore": "datastore", "num_passages": 0}),
        bad("full disk", ("disk", "out"), fault="full disk", late=True),
        bad("tokenizer that is missing", ("nowhere",), {"tokenizer_name": "./nowhere"}),
    ]


# ------------------------------------------------------------------------------------------------ advice

advise = partial(Case, "advise")
ADVISE = [
    advise("missing corpus", ("nowhere.txt",), {"corpus": "nowhere.txt"}),
    advise("empty corpus", ("corpus.txt", "empty"), files={"corpus.txt": ""}),
    advise("binary corpus", ("corpus.txt", "line 1", "zero byte"), files={"corpus.txt": BINARY}),
    advise("missing general text", ("nowhere.txt",), {"general": "nowhere.txt"}),
    advise("general text is the corpus", ("corpus.txt",), {"general": "corpus.txt"}),
    advise("missing task", ("nowhere/train.jsonl",), {"task": ["nowhere"]}),
    advise("task that is a file", ("corpus.txt",), {"task": ["corpus.txt"]}),
    advise("the same task twice", ("different names",), {"task": ["task", "task"]}),
    advise(
        "task without a label", ("train.jsonl", "line 5", "label"), files={"task/train.jsonl": change_rows(label=...)}
    ),
    advise("no hours", ("hours", "0"), {"hours": 0}),
    advise("hours of nan", ("hours", "nan"), {"hours": "nan"}),
    advise("length of nothing", ("max_seq_length", "0"), {"max_seq_length": 0}),
    advise("longer than the encoder", ("max_seq_length", "999", "128"), {"max_seq_length": 999}),
    advise("decoder", ("gpt2",), {"model_name_or_path": "decoder"}),
    advise("output is there", ("--output_dir", "task"), {"output_dir": "task"}),
]


# ------------------------------------------------------------------------------------------------ masked LM

mlm = partial(Case, "mlm")
MLM = [
    mlm("masks nothing", ("mlm_probability", "0"), {"mlm_probability": 0}),
    mlm("masks no token of a step", ("mlm_probability", "1e-09", "64"), {"mlm_probability": 1e-9}),
    mlm("masks more than all", ("mlm_probability", "2"), {"mlm_probability": 2}),
    mlm("masks a negative share", ("mlm_probability", "-0.5"), {"mlm_probability": -0.5}),
    mlm("masks nan", ("mlm_probability", "nan"), {"mlm_probability": "nan"}),
    mlm("length of two special tokens", ("max_seq_length", "2"), {"max_seq_length": 2}),
    mlm("negative length", ("max_seq_length", "-5"), {"max_seq_length": -5}),
    mlm(
        "holds everything out",
        ("validation_split_percentage", "100"),
        {"validation_file": None, "do_eval": True, "validation_split_percentage": 100},
    ),
    mlm(
        "holds a negative share out",
        ("validation_split_percentage", "-5"),
        {"validation_file": None, "do_eval": True, "validation_split_percentage": -5},
    ),
    mlm(
        "evaluates on the training text",
        ("corpus.txt", "train_file", "validation_file"),
        {"validation_file": "corpus.txt", "do_eval": True},
    ),
    mlm(
        "evaluates on the training text by another name",
        ("corpus.txt", "validation_file"),
        {"validation_file": "link.txt", "do_eval": True},
        {"link.txt": link_to("corpus.txt")},
    ),
    mlm(
        "evaluates on a copy of the training text",
        ("copy.txt", "corpus.txt", "validation_file"),
        {"validation_file": "copy.txt", "do_eval": True},
        {"copy.txt": copy_of("corpus.txt")},
    ),
    mlm("no text", ("train_file",), {"train_file": None}),
    mlm("missing text", ("nowhere.txt",), {"train_file": "nowhere.txt"}),
    mlm("text is a folder", ("task",), {"train_file": "task"}),
    mlm("unknown ending", ("corpus.doc", ".txt"), {"train_file": "corpus.doc"}, {"corpus.doc": "text\n"}),
    mlm("empty text", ("corpus.txt", "empty"), files={"corpus.txt": ""}),
    mlm("blank text", ("corpus.txt", "empty"), files={"corpus.txt": "\n  \n\n"}),
    mlm("text in a script that the encoder does not know", ("train", "[UNK]"), files={"corpus.txt": "\u0416 " * 9_000}),
    mlm("binary text", ("corpus.txt", "line 1", "zero byte"), files={"corpus.txt": BINARY}),
    mlm("Latin-1", ("corpus.txt", "line 2", "utf-8"), files={"corpus.txt": "text\nM\xfcller\n".encode("latin-1")}),
    mlm("UTF-16", ("corpus.txt", "utf-8"), files={"corpus.txt": encode("utf-16")}),
    mlm(
        "truncated gzip",
        ("corpus.txt.gz", "gzip"),
        {"train_file": "corpus.txt.gz"},
        {"corpus.txt.gz": gzip.compress(b"text\n" * 999)[:-9]},
    ),
    mlm("gzip in name alone", ("corpus.txt.gz", "gzip"), {"train_file": "corpus.txt.gz"}, {"corpus.txt.gz": "text\n"}),
    mlm(
        "broken JSON",
        ("corpus.jsonl", "line 2"),
        {"train_file": "corpus.jsonl"},
        {"corpus.jsonl": '{"text": "a"}\n{"text": \n'},
    ),
    mlm("deep JSON", ("corpus.jsonl", "line 1", "deep"), {"train_file": "corpus.jsonl"}, {"corpus.jsonl": DEEP_OBJECT}),
    mlm("numbers as text", ("text (int64)",), {"train_file": "corpus.jsonl"}, {"corpus.jsonl": '{"text": 7}\n' * 9}),
    mlm(
        "no column of that name",
        ("body", "text"),
        {"train_file": "corpus.jsonl", "text_column_name": "body"},
        {"corpus.jsonl": '{"text": "a b"}\n' * 99},
    ),
    mlm(
        "two columns of text",
        ("text_column_name",),
        {"train_file": "corpus.jsonl"},
        {"corpus.jsonl": '{"a": "a b", "b": "c"}\n' * 99},
    ),
    mlm(
        "truncated parquet",
        ("corpus.parquet", "parquet"),
        {"train_file": "corpus.parquet"},
        {"corpus.parquet": b"PAR1" + BINARY},
    ),
    mlm(
        "csv with a comma in every text",
        ("corpus.csv", "line 2", "2 cells", "quotes"),
        {"train_file": "corpus.csv"},
        {"corpus.csv": "text\nhello, world\n" * 50},
    ),
    mlm(
        "csv with a stray quote",
        ("corpus.csv", "line 2", "line 4"),
        {"train_file": "corpus.csv"},
        {"corpus.csv": 'text,label\n"hello,a\nyou,b\nworld",a\n"one, two",b\n' + "hello,b\n" * 99},
    ),
    mlm("two formats", ("one format",), {"train_file": ["corpus.txt", "task/train.jsonl"]}),
    mlm("less than a batch", ("batch", "999"), {"per_device_train_batch_size": 999}),
    mlm("stream without steps", ("--streaming", "max_steps"), {"streaming": True, "max_steps": None}),
    mlm("stream on a cluster", ("--dask_scheduler", "--streaming"), {"streaming": True, "dask_scheduler": "tcp://a:1"}),
    mlm("file of no scheduler", ("dask_scheduler", "nowhere.json"), {"dask_scheduler": "nowhere.json"}),
    mlm("URL of no file", ("memory://nowhere/a.txt",), {"train_file": "memory://nowhere/a.txt"}),
    mlm("URL of no file system", ("nosuch",), {"train_file": "nosuch://bucket/a.txt"}),
    mlm("decoder", ("gpt2",), {"model_name_or_path": "decoder"}),
    mlm(
        "classifier with another head",
        ("out",),
        {"model_name_or_path": "classifier"},
        harmless="a masked LM is made of any encoder",
        then=left("config.json", architectures=["BertForMaskedLM"]),
    ),
    mlm("unknown option of the method", ("kl_wait",), {"method": "varmae", "config_overrides": "kl_wait=1"}),
    mlm("option without a value", ("kl_weight", "name=value"), {"method": "varmae", "config_overrides": "kl_weight"}),
    mlm(
        "option of the wrong type", ("kl_weight", "heavy"), {"method": "varmae", "config_overrides": "kl_weight=heavy"}
    ),
    mlm("option out of range", ("unmasked_ratio", "7"), {"method": "varmae", "config_overrides": "unmasked_ratio=7"}),
    mlm(
        "exBERT's option of the wrong type",
        ("freeze_backbone", "maybe"),
        {"method": "exbert", "config_overrides": "freeze_backbone=maybe"},
    ),
    mlm(
        "exBERT's width is no number",
        ("extension_hidden_size", "wide"),
        {"method": "exbert", "config_overrides": "extension_hidden_size=wide"},
    ),
    mlm("stock option that is unknown", ("config_overrides",), {"method": "lora", "config_overrides": "rank=4"}),
    mlm("expanded vocabulary that is none", ("empty",), {"expanded_vocabulary": "empty"}),
    mlm("distilled rows of no vocabulary", ("embedding_init", "expanded_vocabulary"), {"embedding_init": "distill"}),
    mlm("expanded vocabulary that is missing", ("nowhere",), {"expanded_vocabulary": "nowhere"}),
    mlm("first steps without new rows", ("new_rows_first_steps",), {"new_rows_first_steps": 3}),
    mlm("negative first steps", ("new_rows_first_steps", "-3"), {"new_rows_first_steps": -3}),
    mlm("checkpoint that is missing", ("nowhere",), {"resume_from_checkpoint": "nowhere"}),
    mlm("checkpoint that is no checkpoint", ("empty",), {"resume_from_checkpoint": "empty"}),
    mlm("output holds another model", ("classifier", "--overwrite_output_dir"), {"output_dir": "classifier"}),
    mlm("output is the input", ("encoder",), {"output_dir": "encoder"}),
    mlm("broken config in the output", ("out has config.json",), files={"out/config.json": ""}),
    mlm("tokenizer is broken", ("tokenizer",), {"model_name_or_path": "adapted"}, {"adapted/tokenizer.json": truncate}),
    mlm(
        "tokenizer is gone",
        ("adapted", "tokenizer"),
        {"model_name_or_path": "adapted"},
        {"adapted/tokenizer.json": delete, "adapted/tokenizer_config.json": delete},
    ),
    mlm("weights are gone", ("adapted",), {"model_name_or_path": "adapted"}, {"adapted/model.safetensors": delete}),
    mlm(
        "weights are empty",
        ("adapted/model.safetensors",),
        {"model_name_or_path": "adapted"},
        {"adapted/model.safetensors": ""},
    ),
    mlm(
        "weights of another config",
        ("adapted", "wide"),
        WIDE,
        {"wide/config.json": make_config("bert")},
    ),
    mlm("config of an encoder-decoder", ("bart", "encoder"), WIDE, {"wide/config.json": make_config("bart")}),
    mlm(
        "weights that run code",
        ("adapted", "safetensors"),
        {"model_name_or_path": "adapted"},
        {"adapted/model.safetensors": delete, "adapted/pytorch_model.bin": write_evil},
    ),
    mlm(
        "config of no model",
        ("adapted", "model_type"),
        {"model_name_or_path": "adapted"},
        {"adapted/config.json": "{}"},
    ),
    mlm(
        "config is a list", ("adapted/config.json",), {"model_name_or_path": "adapted"}, {"adapted/config.json": "[1]"}
    ),
    mlm("config is deep", ("adapted/config.json",), {"model_name_or_path": "adapted"}, {"adapted/config.json": DEEP}),
    mlm(
        "rada reads with a tokenizer of its own",
        ("tokenizer",),
        {"method": "rada", "datastore": "datastore", "model_name_or_path": "other"},
    ),
    mlm("memory with another tokenizer", ("tokenizer",), {"method": "gmap", "memory_name_or_path": "other"}),
    mlm("passage cache without a datastore", ("passage_cache",), {"passage_cache": "cache"}),
    mlm("value forgotten", ("--max_steps",), {"max_steps": True}),
    mlm("flag in the wrong place", ("stray",), {"do_train": ["true", "stray"]}),
]


# ------------------------------------------------------------------------------------------------ fine-tuning

FINE_TUNING = []
for command, folder in (("classification", "task"), ("ner", "ner"), ("qa", "qa")):
    bad, file = partial(Case, command), f"{folder}/train.jsonl"
    FINE_TUNING += [
        bad("test file is the training file", ("train.jsonl", "test_file"), {"test_file": file}),
        bad(
            "test file is a copy of the training file",
            ("test.jsonl", "train.jsonl", "test_file"),
            files={f"{folder}/test.jsonl": copy_of(file)},
        ),
        bad("validation file is the training file", ("train.jsonl", "validation_file"), {"validation_file": file}),
        bad("missing file", ("nowhere.jsonl",), {"train_file": "nowhere.jsonl"}),
        bad("no validation file", ("validation_file",), {"validation_file": None}),
        bad("empty file", ("train.jsonl", "empty"), files={file: ""}),
        bad("broken JSON", ("train.jsonl", "line 3"), files={file: '{"id": "1"}\n{"id": "2"}\n{"id"\n'}),
        bad("deep JSON", ("train.jsonl", "deep"), files={file: DEEP_OBJECT}),
        bad("UTF-16", ("train.jsonl", "utf-8"), files={file: encode("utf-16")}),
        bad("no number of layers", ("num_layers", "99"), {"train_top_layers": 99}),
    ]
classification, ner, qa = (partial(Case, name) for name in FINE_TUNING_COMMANDS)
FINE_TUNING += [
    classification(
        "a BOM",
        (),
        files={"task/train.jsonl": encode("utf-8-sig")},
        harmless="Windows writes one",
        then=left(train_samples=8),
    ),
    classification("no column of labels", ("topic", "label"), {"label_column_name": "topic"}),
    classification("no column of text", ("body", "text"), {"text_column_names": "body"}),
    classification("three columns of text", ("a,b,c", "two"), {"text_column_names": "a,b,c"}),
    classification("empty label", ("label", "train"), files={"task/train.jsonl": change_rows(label=None)}),
    classification(
        "label unknown in training", ("validation", "c"), files={"task/validation.jsonl": change_rows(label="c")}
    ),
    classification(
        "one label alone",
        ("label", "train"),
        files={f"task/{split}.jsonl": change_all_rows(label="a") for split in ("train", "validation", "test")},
    ),
    classification("number as text", ("text (int64)",), files={"task/train.jsonl": change_all_rows(text=7)}),
    classification("empty text", ("text", "train"), files={"task/train.jsonl": change_rows(text=None)}),
    classification(
        "texts and numbers as labels", ("label", "task/train.jsonl"), files={"task/train.jsonl": change_rows(label=3)}
    ),
    classification(
        "nan as a value",
        ("nan", "label"),
        files={
            "task/train.jsonl": "".join(
                f'{{"text": "a {n}", "label": {v}}}\n' for n, v in enumerate(["0.5", "0.7", "NaN", "0.1"] * 2)
            )
        }
        | {f"task/{split}.jsonl": '{"text": "a", "label": 0.5}\n' * 3 for split in ("validation", "test")},
    ),
    classification("regression on texts", ("do_regression", "a"), {"do_regression": True}),
    classification("several labels of one", ("multi_label",), {"multi_label": True}),
    classification(
        "regression and several labels",
        ("do_regression", "multi_label"),
        {"do_regression": "true", "multi_label": "true"},
    ),
    classification("unknown metric", ("metric", "rightness"), {"metric_name": "rightness"}),
    classification("weights that are unknown", ("class_weights", "heavy"), {"class_weights": "heavy"}),
    classification("unknown negative label", ("none", "a, b"), {"negative_labels": "none"}),
    classification(
        "second text in a column that nothing reads",
        ("second",),
        files={
            f"task/{split}.jsonl": change_all_rows(second="another text") for split in ("train", "validation", "test")
        },
    ),
    classification("appended passage without a datastore", ("append_passage", "--datastore"), {"append_passage": True}),
    classification("memory states without a memory", ("memory_cache",), {"memory_cache": "states"}),
    classification("files and a dataset", ("dataset_name",), {"dataset_name": "some/data"}),
    classification(
        "unknown override",
        ("hidden_layers",),
        {"method": "rada", "datastore": "datastore", "config_overrides": "hidden_layers=1"},
    ),
    classification(
        "override of the wrong type",
        ("passage_encoder", "5"),
        {"method": "rada", "datastore": "datastore", "config_overrides": "passage_encoder=5"},
    ),
    classification("output is another task's", ("classifier", "--overwrite_output_dir"), {"output_dir": "classifier"}),
    classification(
        "csv without a header", ("label",), {"train_file": "train.csv"}, {"train.csv": "some text,a\nother text,b\n"}
    ),
    classification(
        "csv with a ragged row",
        ("train.csv", "line 3", "4 cells", "quotes"),
        {"train_file": "train.csv"},
        {"train.csv": "text,label\na,a\nb,b,c,d\n"},
    ),
    classification(
        "csv with a comma in every text",
        ("train.csv", "line 2", "3 cells", "quotes"),
        {"train_file": "train.csv"},
        {"train.csv": "text,label\nhello, world,a\nhello, you,b\n"},
    ),
    ner("more tags than words", ("1 tags", "words"), files={"ner/train.jsonl": change_rows(tags=["O"])}),
    ner("tags that are no list", ("tags",), files={"ner/train.jsonl": change_all_rows(tags="O")}),
    ner(
        "words that are no list",
        ("tokens",),
        files={"ner/train.jsonl": change_all_rows(tokens="a text", tags=["O", "O"])},
    ),
    ner("no column of tags", ("tags",), files={"ner/train.jsonl": change_all_rows(tags=...)}),
    ner(
        "a word that is empty",
        ("tokens", "train"),
        files={"ner/train.jsonl": change_rows(tokens=["a", None], tags=["O", "O"])},
    ),
    ner(
        "a sentence without words",
        (),
        files={"ner/train.jsonl": change_rows(tokens=[], tags=[])},
        harmless="it teaches nothing and breaks nothing",
        then=left(train_samples=8, eval_samples=8),
    ),
    ner(
        "tag unknown in training",
        ("test", "B-Y"),
        files={"ner/test.jsonl": change_rows(tags=["B-Y"] * 12, tokens=["a"] * 12)},
    ),
    qa("stride as long as the window", ("doc_stride", "32"), {"doc_stride": 32}),
    qa("negative stride", ("doc_stride", "-1"), {"doc_stride": -1}),
    qa("no best answer", ("n_best_size", "0"), {"n_best_size": 0}),
    qa("no length of an answer", ("max_answer_length", "0"), {"max_answer_length": 0}),
    qa("no answers", ("answers",), files={"qa/train.jsonl": change_all_rows(answers=...)}),
    qa(
        "answer that is not in the text",
        ("answer", "train"),
        files={"qa/train.jsonl": change_rows(answers={"text": ["nowhere"], "answer_start": [3]})},
    ),
    qa(
        "answer beyond the text",
        ("answer", "train"),
        files={"qa/train.jsonl": change_rows(answers={"text": ["a"], "answer_start": [9999]})},
    ),
    qa(
        "negative start",
        ("answer", "train"),
        files={"qa/train.jsonl": change_rows(answers={"text": ["a"], "answer_start": [-3]})},
    ),
    qa("two questions of one id", ("id", "test1"), files={"qa/test.jsonl": change_rows(id="test1")}),
    qa("answers of the wrong shape", ("answers",), files={"qa/train.jsonl": change_all_rows(answers="a text")}),
]


# ------------------------------------------------------------------------------------------------ other commands

expand, distill, average = (partial(Case, name) for name in ("expand_vocab", "distill", "average_models"))
build = partial(Case, "build_datastore")
SEARCH = {"output_dir": "datastore", "train_file": None, "model_name_or_path": None, "query": "domain"}
select = partial(Case, "select_text")
OTHERS = [
    select("missing text", ("nowhere.txt",), {"text_file": "nowhere.txt"}),
    select("missing datastore", ("nowhere",), {"datastore": "nowhere"}),
    select("blank texts", ("text_file", "blank"), {"text_file": "blank.jsonl"}, {"blank.jsonl": '{"text": " "}\n' * 3}),
    select("another ending", ("output_file", ".jsonl"), {"output_file": "nearest.txt"}),
    select("no tokens", ("training_tokens", "0"), {"training_tokens": 0}),
    select("no passages", ("num_passages", "0"), {"num_passages": 0}),
    expand("missing text", ("nowhere.txt",), {"train_file": "nowhere.txt"}),
    expand("empty text", ("corpus.txt", "empty"), files={"corpus.txt": ""}),
    expand("binary text", ("corpus.txt", "zero byte"), files={"corpus.txt": BINARY}),
    expand(
        "no column of text",
        ("body (int64)",),
        {"train_file": "corpus.jsonl"},
        {"corpus.jsonl": '{"body": 1}\n' * 9},
    ),
    expand("numbers as text", ("text (int64)",), {"train_file": "corpus.jsonl"}, {"corpus.jsonl": '{"text": 7}\n' * 9}),
    expand("no process", ("num_workers", "0"), {"num_workers": 0}),
    expand("file of no scheduler", ("dask_scheduler", "nowhere.json"), {"dask_scheduler": "nowhere.json"}),
    expand("negative size", ("size", "-3"), {"size": -3}),
    expand("step of nothing", ("step", "0"), {"size": None, "step": 0}),
    expand("threshold of nan", ("threshold", "nan"), {"size": None, "threshold": "nan"}),
    expand("negative threshold", ("threshold", "-1"), {"size": None, "threshold": -1}),
    expand("no frequency", ("min_frequency", "0"), {"min_frequency": 0}),
    expand("no word length", ("max_word_length", "0"), {"max_word_length": 0}),
    expand("negative seed", ("seed", "-1"), {"seed": -1}),
    expand(
        "counts that are no counts", ("counts.parquet",), {"counts_file": "counts.parquet"}, {"counts.parquet": "text"}
    ),
    expand("unknown method", ("--method", "magic"), {"method": "magic"}),
    expand("unknown selection", ("--select", "last"), {"method": "exbert", "size": None, "select": "last"}),
    expand("output is the input", ("encoder",), {"output_dir": "encoder"}),
    expand("output holds another model", ("classifier",), {"output_dir": "classifier"}),
    expand("missing validation text", ("nowhere.txt",), {"validation_file": "nowhere.txt"}),
    expand("decoder", ("gpt2",), {"model_name_or_path": "decoder"}),
    distill(
        "wider feed-forward",
        ("from 1 to 64", "65"),
        {"num_hidden_layers": None, "student_layers": 1, "intermediate_size": 65},
    ),
    distill(
        "no feed-forward",
        ("intermediate_size", "0"),
        {"num_hidden_layers": None, "student_layers": 1, "intermediate_size": 0},
    ),
    distill("no steps", ("student_steps", "0"), {"student_steps": 0}),
    distill("negative steps", ("teacher_steps", "-2"), {"teacher_steps": -2}),
    distill("no student", ("num_hidden_layers", "student"), {"num_hidden_layers": None}),
    distill("two students", ("student_layers", "num_hidden_layers"), {"student_layers": 1}),
    distill("layers of nothing", ("num_hidden_layers", "0"), {"num_hidden_layers": 0}),
    distill("layer that the teacher lacks", ("layers", "9"), {"num_hidden_layers": None, "student_layers": 9}),
    distill("width that heads do not divide", ("31", "heads"), {"hidden_size": 31}),
    distill("unknown strategy", ("--strategy", "magic"), {"strategy": "magic"}),
    distill(
        "teacher's layer is missing",
        ("teacher_layer", "7"),
        {"strategy": "distill_then_adapt", "student_steps": 2, "teacher_layer": 7},
    ),
    distill(
        "relation heads that do not divide",
        ("num_relation_heads", "5"),
        {"strategy": "distill_then_adapt", "student_steps": 2, "method": "minilmv2", "num_relation_heads": 5},
    ),
    distill("minilm with other numbers of heads", ("num_relation_heads",), {"num_relation_heads": 3}),
    distill("missing general text", ("nowhere.txt",), {"general_file": "nowhere.txt"}),
    distill("empty text", ("corpus.txt", "empty"), files={"corpus.txt": ""}),
    distill("no text", ("train_file",), {"train_file": None}),
    distill("negative masked-LM rate", ("mlm_learning_rate", "-1"), {"mlm_learning_rate": -1}),
    distill(
        "student with another vocabulary",
        ("vocabular",),
        {
            "num_hidden_layers": None,
            "student_name_or_path": "other",
            "strategy": "distill_then_adapt",
            "student_steps": 2,
        },
    ),
    distill("masks nothing", ("mlm_probability", "0"), {"mlm_probability": 0}),
    distill("decoder as teacher", ("gpt2",), {"model_name_or_path": "decoder"}),
    average("one model", ("two",), {"model_name_or_path": "encoder"}),
    average("a weight too many", ("weight", "[1.0, 1.0, 1.0]"), {"weights": [1, 1, 1]}),
    average("weight of nan", ("weight", "nan"), {"weights": ["nan", 1]}),
    average("infinite weight", ("weight", "inf"), {"weights": ["inf", 1]}),
    average("negative weight", ("weight", "-0.5"), {"weights": ["2", "-0.5"]}),
    average("weights of nothing", ("weight", "0"), {"weights": [0, 0]}),
    average("other vocabularies", ("vocabulary", "other"), {"model_name_or_path": ["encoder", "other"]}),
    average("other kinds", ("gpt2",), {"model_name_or_path": ["encoder", "decoder"]}),
    average("output is the input", ("encoder",), {"output_dir": "encoder"}),
    average("disk quota", ("large",), fault="file size", late=True),
    build("no documents", ("train_file", "dataset_name"), {"train_file": None}),
    build("file of no scheduler", ("dask_scheduler", "nowhere.json"), {"dask_scheduler": "nowhere.json"}),
    build("files and a dataset", ("train_file", "dataset_name"), {"dataset_name": "some/data"}),
    build("missing text", ("nowhere.txt",), {"train_file": "nowhere.txt"}),
    build("empty text", ("corpus.txt", "empty"), files={"corpus.txt": ""}),
    build("deep JSON", ("corpus.jsonl", "deep"), {"train_file": "corpus.jsonl"}, {"corpus.jsonl": DEEP_OBJECT}),
    build("passages of nothing", ("max_length", "0"), {"max_length": 0}),
    build("passages longer than the encoder", ("max_length", "999"), {"max_length": 999}),
    build("unknown analyzer", ("--analyzer", "klingon"), {"analyzer": "klingon"}),
    build("adds to nothing", ("--add", "out"), {"add": True}),
    build("no model", ("model_name_or_path",), {"model_name_or_path": None}),
    build("datastore that exists", ("datastore", "--add"), {"output_dir": "datastore"}),
    build("adds to another folder", ("encoder",), {"output_dir": "encoder", "add": True}),
    build("held-out file of another kind", ("rest.txt", ".jsonl"), {"held_out_file": "rest.txt"}),
    build("held-out file that holds something", ("task/train.jsonl",), {"held_out_file": "task/train.jsonl"}),
    build(
        "held-out file is the corpus",
        ("corpus.jsonl",),
        {"train_file": "corpus.jsonl", "held_out_file": "corpus.jsonl"},
        {"corpus.jsonl": '{"text": "a b"}\n' * 30},
    ),
    build(
        "no column of ids",
        ("key",),
        {"train_file": "corpus.jsonl", "id_column_name": "key"},
        {"corpus.jsonl": '{"text": "a b"}\n' * 30},
    ),
    build(
        "two documents of one id",
        (),
        {"train_file": "corpus.jsonl", "id_column_name": "key"},
        {"corpus.jsonl": '{"text": "a b", "key": "1"}\n{"text": "c d", "key": "1"}\n'},
        harmless="parts of one document have its id, and are deleted together",
        then=left("datastore.json", num_passages=2),
    ),
    build(
        "manifest is broken",
        ("datastore",),
        {"output_dir": "datastore", "add": True},
        {"datastore/datastore.json": truncate},
    ),
    build("search in nothing", ("nowhere", "--query"), SEARCH | {"output_dir": "nowhere"}),
    build("search in a folder that is no datastore", ("encoder",), SEARCH | {"output_dir": "encoder"}),
    build("empty query", ("--query",), SEARCH | {"query": " "}),
    build("no passage", ("num_passages", "0"), SEARCH | {"num_passages": 0}),
    build("negative number of passages", ("num_passages", "-2"), SEARCH | {"num_passages": -2}),
    build("search with a broken manifest", ("datastore",), SEARCH, files={"datastore/datastore.json": truncate}),
    build("search with a manifest that is a list", ("datastore",), SEARCH, files={"datastore/datastore.json": "[]"}),
    Case("probe", "weight of nan", ("LayerNorm.bias", "encoder"), files={"encoder/model.safetensors": spoil_weight}),
    Case("probe", "no label", ("train", "label", "text"), {"train_file": "heldout.txt"}),
    Case("publish", "no comparison", ("nowhere",), {"comparison": "nowhere"}),
    Case("publish", "folder that is no comparison", ("encoder",), {"comparison": "encoder"}),
    Case("publish", "method and task", ("--task", "--method"), {"task": "task"}),
    Case("publish", "method without corpus", ("--corpus",), {"corpus": None}),
    Case(
        "publish",
        "task without a model",
        ("--task", "keep_models"),
        {"method": None, "corpus": None, "task": "task"},
        files={"comparison/plan.json": '{"steps": {}, "methods": {}}'},
    ),
    Case("publish", "nothing run", ("comparison", "plan.json")),
    Case(
        "publish",
        "nothing trained",
        ("comparison", "dapt-domain"),
        files={"comparison/plan.json": '{"steps": {}, "methods": {}}'},
    ),
    Case("publish", "results are broken", ("dapt-domain",), files=make_comparison('{"status": ')),
    Case("publish", "results are deep", ("dapt-domain",), files=make_comparison(DEEP)),
    Case("publish", "plan is broken", ("plan.json",), files={"comparison/plan.json": "{"}),
    Case("publish", "plan of another version", ("plan.json",), files={"comparison/plan.json": "{}"}),
    Case("publish", "output is the comparison", ("comparison",), {"output_dir": "comparison"}),
    Case("publish", "output holds something else", ("encoder",), {"output_dir": "encoder"}),
    Case("export", "unknown head", ("--head", "tail"), {"head": "tail"}),
    Case("export", "head that was not trained", ("qa_outputs", "fine-tune"), {"head": "question_answering"}),
    Case("export", "decoder", ("gpt2",), {"model_name_or_path": "decoder"}),
    Case("export", "tokenizer is missing", ("nowhere",), {"tokenizer_name": "./nowhere"}),
    Case("export", "output is the input", ("classifier",), {"output_dir": "classifier"}),
    Case("export", "output holds something else", ("task",), {"output_dir": "task"}),
    Case("export", "unknown format", ("--export_format", "word"), {"export_format": "word"}),
    Case("export", "int8 of another format", ("int8",), {"export_format": "dynamo", "int8": True}),
    Case("export", "cosine above 1", ("min_cosine", "2"), {"min_cosine": 2}),
    Case("export", "longer than the encoder", ("max_seq_length", "513"), {"max_seq_length": 513}),
    Case("export", "missing texts", ("nowhere.txt",), {"int8": True, "validation_file": "nowhere.txt"}),
    Case(
        "export",
        "texts are empty",
        ("heldout.txt",),
        {"int8": True, "validation_file": "heldout.txt"},
        files={"heldout.txt": ""},
    ),
    Case("quickstart", "missing corpus", ("--corpus", "nowhere.txt"), {"corpus": "nowhere.txt"}),
    Case("quickstart", "folder as corpus", ("--corpus", ". is a folder"), {"corpus": "."}),
    Case("quickstart", "missing task", ("--task", "nowhere"), {"task": "nowhere"}),
    Case("quickstart", "no tokens", ("num_tokens", "0"), {"num_tokens": 0}),
    Case("quickstart", "no seeds", ("num_seeds", "0"), {"num_seeds": 0}),
    Case("quickstart", "no epochs", ("num_train_epochs", "0"), {"num_train_epochs": 0}),
    Case("quickstart", "rate that is no number", ("learning_rate", "fast"), {"learning_rate": "fast"}),
    Case("quickstart", "length of nothing", ("max_seq_length", "0"), {"max_seq_length": 0}),
    Case("quickstart", "longer than the encoder", ("999",), {"max_seq_length": 999}),
    Case("quickstart", "empty corpus", ("corpus.txt", "empty"), files={"corpus.txt": ""}),
    Case("quickstart", "binary corpus", ("corpus.txt", "zero byte"), files={"corpus.txt": BINARY}),
    Case(
        "quickstart",
        "test file is the training file",
        ("test must not be trained on", "train.jsonl"),
        files={"task/test.jsonl": link_to("task/train.jsonl")},
    ),
]


# ------------------------------------------------------------------------------------------------ plans


def plan(
    name: str,
    says: tuple[str, ...],
    text: str | bytes | Callable[[Path], None] | None = None,
    files: dict | None = None,
    harmless: str = "",
    then: Callable[[], Any] | None = None,
    **changes: Any,
) -> Case:
    """A plan with changes; ... drops a section."""
    content = {key: value for key, value in (PLAN | changes).items() if value is not ...}
    text = yaml.safe_dump(content, sort_keys=False) if text is None else text
    return Case(
        "compare", f"plan: {name}", says, files={"plan.yaml": text, **(files or {})}, harmless=harmless, then=then
    )


GOOD_PLAN = yaml.safe_dump(PLAN, sort_keys=False)
PLANS = [
    plan("tabs", ("plan.yaml", "line 2"), "encoder: encoder\n\tseeds: [1]\n"),
    plan("empty", ("plan.yaml", "empty"), ""),
    plan("a list", ("plan.yaml", "mapping"), "- 1\n"),
    plan("missing", ("plan.yaml", "no"), delete),
    plan("a folder", ("plan.yaml", "directory"), make_folder),
    plan("binary", ("plan.yaml", "utf-8"), BINARY),
    plan("duplicate methods", ("plan.yaml", "methods", "line"), GOOD_PLAN + "methods: {fine_tune: }\n"),
    plan(
        "duplicate names",
        ("plan.yaml", "dapt", "line"),
        GOOD_PLAN.replace("  dapt: null\n", "  dapt: null\n  dapt: {pretraining: {seed: 1}}\n"),
    ),
    plan("deep", ("plan.yaml", "deep"), "encoder: " + DEEP),
    plan("unknown section", ("pretrain",), pretrain={}),
    plan("no encoder", ("encoder",), encoder=...),
    plan("missing encoder", ("nowhere",), encoder="./nowhere"),
    plan(
        "encoder without a tokenizer",
        ("adapted", "tokenizer"),
        encoder="adapted",
        files={"adapted/tokenizer.json": delete, "adapted/tokenizer_config.json": delete},
    ),
    plan("encoder is an empty folder", ("empty",), encoder="empty"),
    plan("encoder is a decoder", ("gpt2",), encoder="decoder"),
    plan("encoder is a number", ("encoder", "7"), encoder=7),
    plan("no tasks", ("tasks",), tasks={}),
    plan("methods are a list of mappings", ("methods",), methods=[{"fine_tune": None}]),
    plan("method twice in a list", ("methods", "dapt"), methods=["dapt", "dapt"]),
    plan("corpus twice", ("corpus", "corpora"), corpus="corpus.txt"),
    plan("corpus that is a list", ("corpora",), corpora=..., corpus=["corpus.txt"]),
    plan("task by a path to nothing", ("nowhere/train.jsonl",), tasks=["nowhere"]),
    plan("unknown recipe", ("magic",), methods={"magic": None}),
    plan("budget of nan", ("budget", "nan"), budget={"tokens": None, "minutes": float("nan")}),
    plan("infinite budget", ("budget", "inf"), budget={"minutes": float("inf")}),
    plan("budget of True", ("budget", "True"), budget={"tokens": True}),
    plan("negative budget", ("budget", "-5"), budget={"tokens": -5}),
    plan("no budget", ("budget", "0"), budget={"tokens": 0}),
    plan("race over one budget", ("race", "two token budgets", "512"), race=True),
    plan("race of one seed", ("race", "two seeds", "[1]"), race=True, seeds=[1], budget={"tokens": [512, 5120]}),
    plan("race that is a word", ("race", "fast"), race="fast"),
    plan("two budgets", ("budget", "minutes"), budget={"tokens": 5, "minutes": 1}),
    plan("budget smaller than a step", ("budget", "5"), budget={"tokens": 5}),
    plan("budget is a text", ("budget", "many"), budget={"tokens": "many"}),
    plan("budget as 1e3", ("tokens", "1000.0"), GOOD_PLAN.replace("tokens: 512", "tokens: 1e3")),
    plan("negative seed", ("seed", "-1"), seeds=[-1]),
    plan("seed beyond numpy's", ("seed", str(2**70)), seeds=[2**70]),
    plan("seed of True", ("seed", "True"), seeds=[True, 2]),
    plan("no seeds", ("seeds",), seeds=[]),
    plan("seeds twice", ("seeds", "1"), seeds=[1, 1]),
    plan("seed is a text", ("seeds", "one"), seeds=["one"]),
    plan(
        "1e-4 is a number",
        (),
        GOOD_PLAN.replace("fine_tuning:\n", "fine_tuning:\n  learning_rate: 1e-4\n"),
        harmless="a rate as everybody writes it",
        then=lambda: "--learning_rate 0.0001" in Path("out/commands.sh").read_text(encoding="utf-8"),
    ),
    plan("rate of nan", ("learning_rate", "nan"), fine_tuning={"learning_rate": float("nan")}),
    plan("negative rate", ("learning_rate", "-1"), fine_tuning={"learning_rate": -1.0}),
    plan("batch of nothing", ("per_device_train_batch_size", "0"), pretraining={"per_device_train_batch_size": 0}),
    plan("batch is a text", ("per_device_train_batch_size", "big"), pretraining={"per_device_train_batch_size": "big"}),
    plan("length of nothing", ("max_seq_length", "0"), pretraining={"max_seq_length": 0}),
    plan(
        "a flag as value",
        ("bf16", "--trust_remote_code"),
        pretraining=PLAN["pretraining"] | {"bf16": "--trust_remote_code"},
    ),
    plan("longer than the encoder", ("999", "128"), pretraining={"max_seq_length": 999}, budget={"tokens": 1_000_000}),
    plan("no accumulation", ("gradient_accumulation_steps", "0"), pretraining={"gradient_accumulation_steps": 0}),
    plan("unknown flag", ("learning_rat",), fine_tuning={"learning_rat": 1}),
    plan("abbreviated flag", ("num_train",), fine_tuning={"num_train": 1}),
    plan("keeps some models", ("keep_models", "some"), keep_models="some"),
    plan("flag of a comparison", ("output_dir",), fine_tuning={"output_dir": "x"}),
    plan("masks nothing", ("mlm_probability", "0"), pretraining={"mlm_probability": 0}),
    plan("flags are a list", ("pretraining",), pretraining=["a"]),
    plan(
        "missing corpus",
        ("nowhere.txt",),
        corpora={"domain": {"train_file": "nowhere.txt", "validation_file": "heldout.txt"}},
    ),
    plan(
        "corpus is held out from itself",
        ("corpus.txt",),
        corpora={"domain": {"train_file": "corpus.txt", "validation_file": "corpus.txt"}},
    ),
    plan(
        "task with the training file as test file",
        ("test must not be trained on", "train.jsonl"),
        files={"task/test.jsonl": link_to("task/train.jsonl")},
    ),
    plan(
        "missing task",
        ("nowhere",),
        tasks={"topics": {"kind": "classification", "folder": "nowhere", "corpus": "domain"}},
    ),
    plan(
        "task of another kind",
        ("ner/train.jsonl", "column of text"),
        tasks={"topics": {"kind": "classification", "folder": "ner", "corpus": "domain"}},
    ),
    plan("one fold", ("folds", "1"), tasks={"topics": {"folder": "task", "folds": 1}}),
    plan("folds are a text", ("folds", "five"), tasks={"topics": {"folder": "task", "folds": "five"}}),
    plan("more folds than items", ("folds", "50"), tasks={"topics": {"folder": "task", "folds": 50}}),
    plan(
        "folds without a corpus",
        ("domain", "share"),
        tasks={"topics": {"folder": "task", "folds": 2}},
        files={
            "task/train.jsonl": change_rows(text="one two three four five six seven eight nine ten"),
            "corpus.txt": "One, two, three, four, five, six, seven, eight, nine, ten!\n",
        },
    ),
    plan(
        "values that are names",
        ("value", "line 1 of task/train.jsonl"),
        tasks={"topics": {"folder": "task", "kind": "regression"}},
    ),
    plan(
        "lists that are names",
        ("list", "line 1 of task/train.jsonl"),
        tasks={"topics": {"folder": "task", "kind": "multi_label"}},
    ),
    plan("weights that are unknown", ("class_weights", "heavy"), fine_tuning={"class_weights": "heavy"}),
    plan("task in UTF-16", ("task/train.jsonl", "utf-8"), files={"task/train.jsonl": encode("utf-16")}),
    plan("task with deep JSON", ("task/train.jsonl", "line 1"), files={"task/train.jsonl": DEEP_OBJECT}),
    plan("task with an unknown label", ("task/test.jsonl", "c"), files={"task/test.jsonl": change_rows(label="c")}),
    plan(
        "unknown metric", ("metric", "rightness"), tasks={"topics": PLAN["tasks"]["topics"] | {"metric": "rightness"}}
    ),
    plan("name of a folder above", ("../x",), methods={"../x": {"recipe": "dapt"}}),
    plan("name that is a number", ("7",), methods={7: {"recipe": "dapt"}}),
    plan("after itself", ("circle",), methods={"a": {"recipe": "dapt", "after": "a"}}),
    plan("after nothing", ("nothing",), methods={"a": {"recipe": "dapt", "after": "nothing"}}),
    plan(
        "appended passage for a tagger",
        ("passage", "classification"),
        tasks={"names": {"kind": "ner", "folder": "ner", "corpus": "domain"}},
        methods={"append_passage": None},
    ),
    plan("control without general text", ("general",), methods={"control": None}),
    Case("compare", "no plan", ("plan",), {"": None}),
    Case("compare", "no scheduler", ("dask_scheduler", "9"), {"dask_scheduler": "tcp://127.0.0.1:9", "dry_run": None}),
    Case(
        "compare",
        "file of no scheduler",
        ("dask_scheduler", "corpus.txt"),
        {"dask_scheduler": "corpus.txt", "dry_run": None},
    ),
    Case("compare", "no process", ("num_processes", "0"), {"num_processes": 0, "dry_run": None}),
    Case(
        "compare",
        "output has files of the user",
        ("--output_dir", "task", "plan.json"),
        {"output_dir": "task"},
        {"task/plan.json": "{}", "task/report.md": "mine", "task/commands.sh": "mine"},
    ),
    Case("compare", "output is a model", ("--output_dir", "encoder"), {"output_dir": "encoder", "dry_run": None}),
    Case(
        "compare",
        "output has a script of the user",
        ("--output_dir", "commands.sh"),
        files={"out/commands.sh": "hf-domain compare plan.yaml", "out/data/rows.jsonl": "{}"},
    ),
    Case("compare", "dry run without a process", ("num_processes", "0"), {"num_processes": 0}),
    Case("compare", "report of nothing", ("results", "out"), {"report_only": True, "dry_run": None}),
    Case("compare", "best of nothing", ("--train_best", "has ended"), {"train_best": True, "dry_run": None}),
    Case("compare", "two modes", ("--train_best", "--dry_run"), {"train_best": True}),
    Case(
        "compare",
        "read-only output of a run",
        ("sealed/out",),
        {"output_dir": "sealed/out", "dry_run": None},
        fault="read-only",
    ),
]


# ------------------------------------------------------------------------------------------------ the command itself

COMMAND = [
    Case("mlm", "no option at all", ("--model_name_or_path",), arguments=[]),
    Case("publish", "no option at all", ("--comparison",), arguments=[]),
    Case("mlm", "two run files", ("run.yaml",), files={"run.yaml": write_run()}, arguments=["run.yaml", "run.yaml"]),
    Case(
        "mlm",
        "run file and a flag",
        (),
        files={"run.yaml": write_run()},
        arguments=["run.yaml", "--seed", "3"],
        harmless="the flag is later",
        then=lambda: "| seed | 3 |" in Path("out/README.md").read_text(encoding="utf-8"),
    ),
]


# ------------------------------------------------------------------------------------------------ sentences

sentences = partial(Case, "sentences")
QRELS = {"validation_file": "search/qrels/dev.tsv", "test_file": "search/qrels/test.tsv"}
HEADER = "query-id\tcorpus-id\tscore\n"
SENTENCES_CASES = [
    sentences("nothing to do", ("--do_train", "--do_eval"), {"do_eval": None, "do_predict": None}),
    sentences("missing file", ("nowhere.jsonl",), {"test_file": "nowhere.jsonl"}),
    sentences("no test file", ("--test_file",), {"test_file": None}),
    sentences("no training file", ("--train_file",), {"do_train": True}),
    sentences(
        "test file is the training file",
        ("test.jsonl", "test_file"),
        {"do_train": True, "train_file": "pairs/test.jsonl"},
    ),
    sentences("one text", ("two", "text"), {"text_column_names": "text"}),
    sentences("no column of scores", ("similarity", "validation"), {"label_column_name": "similarity"}),
    sentences("empty score", ("score", "test.jsonl"), files={"pairs/test.jsonl": change_rows(score=None)}),
    sentences("score of nan", ("score", "nan"), files={"pairs/test.jsonl": change_rows(score=float("nan"))}),
    sentences("weight of nan", ("LayerNorm.bias", "encoder"), files={"encoder/model.safetensors": spoil_weight}),
    sentences("the same score", ("score", "1.0", "test"), files={"pairs/test.jsonl": change_all_rows(score=1.0)}),
    sentences("text as score", ("score", "high"), files={"pairs/test.jsonl": change_all_rows(score="high")}),
    sentences("empty pair", ("text", "test.jsonl"), files={"pairs/test.jsonl": change_rows(text="", text_pair=" ")}),
    sentences(
        "one score alone",
        ("score", "1.0"),
        {"do_train": True, "train_file": "pairs/train.jsonl"},
        {"pairs/train.jsonl": change_all_rows(score=1.0)},
    ),
    sentences("longer than the encoder", ("max_seq_length", "999", "128"), {"max_seq_length": 999}),
    sentences("pushed", ("--push_to_hub",), {"push_to_hub": True}),
    sentences("a search", (), QRELS, harmless="the layout of BEIR", then=left(predict_samples=2)),
    sentences("no corpus", ("corpus.jsonl",), QRELS, {"search/corpus.jsonl": delete}),
    sentences("no queries", ("queries.jsonl",), QRELS, {"search/queries.jsonl": delete}),
    sentences("missing table", ("nowhere.tsv",), QRELS | {"test_file": "search/qrels/nowhere.tsv"}),
    sentences("a table without names", ("test.tsv", "query-id"), QRELS, {"search/qrels/test.tsv": "q6\td6\t1\n"}),
    sentences("no relevant passage", ("test.tsv",), QRELS, {"search/qrels/test.tsv": HEADER + "q6\td6\t0\n"}),
    sentences("unknown passage", ("test.tsv", "d99"), QRELS, {"search/qrels/test.tsv": HEADER + "q6\td99\t1\n"}),
    sentences("unknown query", ("test.tsv", "q99"), QRELS, {"search/qrels/test.tsv": HEADER + "q99\td6\t1\n"}),
    sentences("two columns", ("test.tsv", "line 2"), QRELS, {"search/qrels/test.tsv": HEADER + "q6\td6\n"}),
    sentences("no number", ("test.tsv", "line 2"), QRELS, {"search/qrels/test.tsv": HEADER + "q6\td6\tyes\n"}),
    sentences("binary table", ("test.tsv", "utf-8"), QRELS, {"search/qrels/test.tsv": BINARY}),
    sentences("empty table", ("test.tsv", "query-id"), QRELS, {"search/qrels/test.tsv": ""}),
    sentences("broken corpus", ("corpus.jsonl", "line 1"), QRELS, {"search/corpus.jsonl": "{"}),
    sentences(
        "an id twice", ("corpus.jsonl", "d1"), QRELS, {"search/corpus.jsonl": '{"_id": "d1", "text": "a"}\n' * 2}
    ),
    sentences("no id", ("corpus.jsonl", "line 5", "_id"), QRELS, {"search/corpus.jsonl": change_rows(_id=...)}),
]


# ------------------------------------------------------------------------------------------------ Python


def load_encoder(name: str = "encoder") -> Any:
    from transformers import AutoModelForMaskedLM

    return AutoModelForMaskedLM.from_pretrained(name)


def load_tokenizer(name: str = "encoder") -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(name)


def call(path: str, *args: Any, **kwargs: Any) -> Callable[[], Any]:
    """Call a public function by its path; arguments that are functions are called first."""

    def run() -> Any:
        module, _, name = path.partition(":")
        function: Any = __import__(module, fromlist=["_"])
        for part in name.split("."):
            function = getattr(function, part)
        made = [arg() if callable(arg) else arg for arg in args]
        return function(*made, **{key: arg() if callable(arg) else arg for key, arg in kwargs.items()})

    return run


def python(name: str, says: tuple[str, ...], run: Callable[[], Any], **options: Any) -> Case:
    return Case("python", name, says, call=run, **options)


def two_encoders() -> list[Any]:
    return [load_encoder(), load_encoder("adapted")]


def count_corpus() -> Any:
    from hf_domain.tokenization import count_words

    return count_words([["domain text", "domain text"]], load_tokenizer().backend_tokenizer)


def load_datastore() -> Any:
    from hf_domain.datastore import Datastore

    return Datastore.load("datastore")


def make_frame() -> Any:
    import pandas

    return pandas.DataFrame({"text": ["domain text"]})


def corpus_splits() -> Any:
    from hf_domain.data.corpora import load_corpus

    return load_corpus("corpus.txt", "heldout.txt")


PYTHON = [
    python(
        "average: weight of nan",
        ("weight", "nan"),
        call("hf_domain.averaging:average_models", two_encoders, [float("nan"), 1.0]),
    ),
    python(
        "average: infinite weight",
        ("weight", "inf"),
        call("hf_domain.averaging:average_models", two_encoders, [float("inf"), 1.0]),
    ),
    python(
        "average: negative weight",
        ("weight", "-1"),
        call("hf_domain.averaging:average_models", two_encoders, [-1.0, 3.0]),
    ),
    python("average: one model", ("two",), call("hf_domain.averaging:average_models", lambda: [load_encoder()])),
    python(
        "plan: a missing file", ("nowhere.yaml",), call("hf_domain.comparison.plan_loading:load_plan", "nowhere.yaml")
    ),
    python(
        "plan: duplicate keys",
        ("plan.yaml", "seeds"),
        call("hf_domain.comparison.plan_loading:load_plan", "plan.yaml"),
        files={"plan.yaml": GOOD_PLAN + "seeds: [7]\n"},
    ),
    python("overrides: no value", ("name=value", "a"), call("hf_domain.methods.overrides:parse_overrides", "a")),
    python("overrides: the same name twice", ("a",), call("hf_domain.methods.overrides:parse_overrides", "a=1,a=2")),
    python(
        "corpus: neither files nor a dataset",
        ("train_file", "dataset_name"),
        call("hf_domain.data.corpora:load_corpus"),
    ),
    python(
        "corpus: share of nan",
        ("validation_split_percentage", "nan"),
        call("hf_domain.data.corpora:load_corpus", "corpus.txt", validation_split_percentage=float("nan")),
    ),
    python(
        "corpus: share above 100",
        ("150",),
        call("hf_domain.data.corpora:load_corpus", "corpus.txt", validation_split_percentage=150),
    ),
    python(
        "corpus: negative share",
        ("-5",),
        call("hf_domain.data.corpora:load_corpus", "corpus.txt", validation_split_percentage=-5),
    ),
    python("corpus: no text", ("data", "empty"), call("hf_domain.data.corpora:load_corpus", [])),
    python("files: no pattern", ("file",), call("hf_domain.data.files:load_files", [])),
    python(
        "tokenize: length of nothing",
        ("max_seq_length", "0"),
        call("hf_domain.data.corpora:tokenize_corpus", corpus_splits, load_tokenizer, max_seq_length=0),
    ),
    python(
        "tokenize: length of two",
        ("max_seq_length", "2"),
        call("hf_domain.data.corpora:tokenize_corpus", corpus_splits, load_tokenizer, max_seq_length=2),
    ),
    python(
        "tokenize: negative length",
        ("max_seq_length", "-8"),
        call("hf_domain.data.corpora:tokenize_corpus", corpus_splits, load_tokenizer, max_seq_length=-8),
    ),
    python(
        "collator: masks nothing",
        ("mlm_probability", "0"),
        call("hf_domain.data.masking:DataCollatorForWholeWordMask", load_tokenizer, mlm_probability=0.0),
    ),
    python(
        "collator: masks more than all",
        ("mlm_probability", "2"),
        call("hf_domain.data.masking:DataCollatorForWholeWordMask", load_tokenizer, mlm_probability=2.0),
    ),
    python(
        "collator: masks tokens of nothing",
        ("mlm_probability", "-1"),
        call("hf_domain.data.masking:DataCollatorForTokenMask", load_tokenizer, mlm_probability=-1.0),
    ),
    python(
        "expansion: a table",
        (),
        call("hf_domain.tokenization:expand_vocabulary", load_tokenizer, make_frame),
        harmless="a DataFrame of texts is a corpus",
    ),
    python(
        "expansion: one text",
        ("text",),
        call("hf_domain.tokenization:expand_vocabulary", load_tokenizer, "domain text"),
    ),
    python(
        "expansion: negative size",
        ("size", "-1"),
        call("hf_domain.tokenization:expand_vocabulary", load_tokenizer, count_corpus, size=-1),
    ),
    python(
        "expansion: step of nothing",
        ("step", "0"),
        call("hf_domain.tokenization:expand_vocabulary", load_tokenizer, count_corpus, step=0),
    ),
    python(
        "expansion: threshold of nan",
        ("threshold", "nan"),
        call("hf_domain.tokenization:expand_vocabulary", load_tokenizer, count_corpus, threshold=float("nan")),
    ),
    python(
        "expansion: unknown method",
        ("method", "magic"),
        call("hf_domain.tokenization:expand_vocabulary", load_tokenizer, count_corpus, method="magic"),
    ),
    python("delta: folder without one", ("empty",), call("hf_domain.tokenization:VocabularyDelta.load", "empty")),
    python("counts: no counts", ("corpus.txt",), call("hf_domain.tokenization:WordCounts.load", "corpus.txt")),
    python(
        "datastore: no documents",
        ("document",),
        call("hf_domain.datastore:build_datastore", [], "out", load_tokenizer, max_length=32),
    ),
    python(
        "datastore: documents that are numbers",
        ("documents", "7"),
        call("hf_domain.datastore:build_datastore", [7], "out", load_tokenizer, max_length=32),
    ),
    python(
        "datastore: length of nothing",
        ("max_length", "0"),
        call("hf_domain.datastore:build_datastore", [{"text": "a"}], "out", load_tokenizer, max_length=0),
    ),
    python("datastore: no passage", ("k", "0"), lambda: load_datastore().search(["domain"], 0)),
    python("datastore: one text instead of a list", ("list", "domain"), lambda: load_datastore().search("domain", 2)),
    python("datastore: no folder", ("nowhere",), call("hf_domain.datastore:Datastore.load", "nowhere")),
    python(
        "varmae: option out of range",
        ("unmasked_ratio", "7"),
        call("hf_domain:VarMAEForMaskedLM.from_backbone", load_encoder, unmasked_ratio=7),
    ),
    python(
        "varmae: option that is unknown",
        ("kl_wait",),
        call("hf_domain:VarMAEForMaskedLM.from_backbone", load_encoder, kl_wait=7),
    ),
    python(
        "exbert: width of nothing",
        ("0", "size"),
        call("hf_domain:ExBertForMaskedLM.from_backbone", load_encoder, extension_hidden_size=0),
    ),
    python(
        "rada: option that is unknown",
        ("passage_encodr",),
        call("hf_domain:RadaForMaskedLM.from_backbone", load_encoder, passage_encodr="frozen"),
    ),
    python(
        "student: layer that is missing",
        ("9",),
        call("hf_domain.methods.adalm.students:pick_layers", load_encoder, [9]),
    ),
    python("student: no layer", ("layer",), call("hf_domain.methods.adalm.students:pick_layers", load_encoder, [])),
    python(
        "strategy: negative steps",
        ("student_steps", "-4"),
        call(
            "hf_domain.methods.adalm.orders:make_plan",
            "from_scratch",
            teacher="a",
            output_dir="b",
            teacher_steps=0,
            student_steps=-4,
        ),
    ),
]

PREDICT = [
    Case("predict", name, expected, {"": positional} | flags, files)
    for name, expected, positional, flags, files in (
        ("no data", ("file",), ["classifier"], {}, {}),
        ("unknown flag", ("no option --color",), ["classifier", "heldout.txt"], {"color": "red"}, {}),
        ("model is missing", ("nowhere/model",), ["./nowhere/model", "heldout.txt"], {}, {}),
        ("model is an empty folder", ("empty",), ["empty", "heldout.txt"], {}, {}),
        ("model without a head", ("fine-tune",), ["encoder", "heldout.txt"], {}, {}),
        (
            "weights are truncated",
            ("model.safetensors",),
            ["adapted", "heldout.txt"],
            {},
            {
                "adapted/model.safetensors": truncate,
                "adapted/config.json": edit_json(architectures=["BertForSequenceClassification"]),
            },
        ),
        (
            "weight of nan",
            ("LayerNorm.bias", "classifier"),
            ["classifier", "heldout.txt"],
            {},
            {"classifier/model.safetensors": spoil_weight},
        ),
        ("data are missing", ("nowhere.txt",), ["classifier", "nowhere.txt"], {}, {}),
        ("data are empty", ("heldout.txt", "empty"), ["classifier", "heldout.txt"], {}, {"heldout.txt": ""}),
        ("data are binary", ("zero byte",), ["classifier", "heldout.txt"], {}, {"heldout.txt": BINARY}),
        (
            "broken JSON",
            ("new.jsonl", "line 2"),
            ["classifier", "new.jsonl"],
            {},
            {"new.jsonl": '{"text": "a"}\n{"text"\n'},
        ),
        ("no column of text", ("a", "column"), ["classifier", "new.jsonl"], {}, {"new.jsonl": '{"a": 1}\n'}),
        (
            "two columns of text",
            ("a", "b", "--text_column_names"),
            ["classifier", "new.jsonl"],
            {},
            {"new.jsonl": '{"a": "x", "b": "y"}\n'},
        ),
        ("unknown column", ("body",), ["classifier", "heldout.txt"], {"text_column_names": "body"}, {}),
        ("output is there", ("train.jsonl",), ["classifier", "heldout.txt"], {"output_file": "task/train.jsonl"}, {}),
        ("output of another kind", (".csv",), ["classifier", "heldout.txt"], {"output_file": "out.xlsx"}, {}),
        ("output below nothing", ("nowhere",), ["classifier", "heldout.txt"], {"output_file": "nowhere/out.csv"}, {}),
        ("batch of nothing", ("--batch_size", "0"), ["classifier", "heldout.txt"], {"batch_size": 0}, {}),
        ("length is a word", ("--max_seq_length",), ["classifier", "heldout.txt"], {"max_seq_length": "long"}, {}),
        ("length of nothing", ("max_seq_length",), ["classifier", "heldout.txt"], {"max_seq_length": 2}, {}),
        ("datastore of no RADA", ("rada",), ["classifier", "heldout.txt"], {"datastore": "datastore"}, {}),
    )
]

CASES = [
    *RUN_FILES,
    *list_shared_cases(),
    *TRAINING,
    *ADVISE,
    *MLM,
    *FINE_TUNING,
    *OTHERS,
    *PLANS,
    *COMMAND,
    *PREDICT,
    *SENTENCES_CASES,
    *PYTHON,
]
