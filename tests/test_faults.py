"""A command that was killed in any of its writes, or had no room for it, ends as if nothing had happened."""

import json
import shutil
from pathlib import Path

import faults
import pytest
from tiny_tokenizers import SENTENCES
from workspace import Case, list_arguments, make_workspace

from hf_domain.datastore import Datastore
from hf_domain.safe_io import lock_folder

STEPS = "--do_eval --max_steps 5 --save_strategy steps --save_steps 2 --save_total_limit 2 --logging_steps 1 "
STEPS += "--learning_rate 1e-3 "
PASSAGES = (
    "--method rada --datastore datastore --passage_cache {case}/passages --config_overrides passage_encoder=frozen"
)
# Flags beside those of a good run; {case} is the folder of a case.
FLAGS = {
    **{
        f"mlm {method}": f"{STEPS} --method {method}"
        for method in ("dapt", "lora", "varmae", "exbert", "exbert_adapter")
    },
    "mlm gmap": f"{STEPS} --method gmap --memory_name_or_path adapted",
    "mlm rada": f"{STEPS} --method rada --datastore datastore",
    **dict.fromkeys(["classification", "ner", "qa"], STEPS),
    "classification gmap": f"{STEPS} --method gmap --memory_name_or_path adapted --memory_cache {{case}}/states",
    "classification rada": STEPS + PASSAGES,
    "sentences": f"{STEPS} --do_train --train_file pairs/train.jsonl --per_device_train_batch_size 4",
    "distill": f"{STEPS} !max_steps --strategy adapt_and_distill --teacher_steps 2 --student_steps 6 --hidden_size 16",
    "expand_vocab": "--size 140 --step 20 --min_frequency 1 --validation_file heldout.txt "
    "--counts_file {case}/counts.parquet",
    "build_datastore": "--held_out_file {case}/held_out.jsonl",
    "predict": "--output_file {case}/labels.jsonl",
    "compare": "!dry_run",
    "quickstart": "--minutes 0.1",
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
    """Models, texts and task files that all commands read, and a finished comparison."""
    folder = tmp_path_factory.mktemp("inputs")
    make_workspace(folder)
    return folder


@pytest.fixture(scope="module")
def compared(inputs):
    code, _, log = run("compare", inputs, inputs / "compared")
    assert code == 0, log[-3000:]


def run(name, inputs, case, **options):
    """Run a command beside its inputs; returns the exit code, the points and the log."""
    case.mkdir(exist_ok=True)
    command = name.partition(" ")[0]
    flags = FLAGS.get(name, "").replace("{case}", str(case))
    output = "" if command == "predict" else f" --output_dir {case / 'output'}"
    arguments = list_arguments(Case(command, flags + output, ""))
    return faults.run(command, arguments, case, cwd=inputs, **options)


@pytest.fixture
def command(inputs, tmp_path):
    """Run a command in a case of its own."""
    return lambda name, case, **options: run(name, inputs, tmp_path / case, **options)


def check_same(case, whole):
    """Compare what two cases hold, whatever they are called."""
    if (whole / "output" / "datastore.json").is_file():  # tantivy draws the names of its files
        stores = [Datastore.load(folder / "output") for folder in (case, whole)]
        assert stores[0].fingerprint == stores[1].fingerprint
        queries = [" ".join(sentence.split()[:4]) for sentence in SENTENCES]
        found = [store.search(queries, 5) for store in stores]
        assert found[0] == found[1] and any(ids for ids, _ in found[0])
    trees = [
        {name: content and content.replace(str(folder).encode(), b"CASE") for name, content in tree.items()}
        for folder, tree in ((folder, faults.read_tree(folder)) for folder in (case, whole))
    ]
    assert trees[0].keys() == trees[1].keys()
    assert [name for name in trees[0] if trees[0][name] != trees[1][name]] == []
    losses = [
        json.loads(file.read_text())["train_loss"]
        for folder in (case, whole)
        for file in sorted(folder.rglob("train_results.json"))
    ]
    assert losses[: len(losses) // 2] == pytest.approx(losses[len(losses) // 2 :], rel=1e-5)


def stop_everywhere(command, tmp_path, name, patterns, is_full=False):
    """Kill a command at each chosen point, or fill the disk at each chosen write, and repeat the command."""
    code, points, log = command(name, "whole")
    assert code == 0, log[-3000:]
    chosen = [at for at in faults.choose_points(points, patterns) if not is_full or points[at].startswith("write")]
    assert chosen
    problems = []
    for at in chosen:
        case = f"case-{at}"
        code, _, log = command(name, case, at=at, is_full=is_full)
        try:
            assert code == (1 if is_full else -9), f"did not stop: {log[-1500:]}"
            if is_full:
                (line,) = [line for line in log.splitlines() if line.startswith("error: ")]
                assert str(tmp_path / case) in line and "room" in line, line
            code, _, log = command(name, case)
            assert code == 0, log[-1500:]
            check_same(tmp_path / case, tmp_path / "whole")
        except (AssertionError, ValueError) as error:
            problems.append(f"stopped at {points[at]}: {error}")
        shutil.rmtree(tmp_path / case)
    assert not problems, f"{len(problems)} of {len(chosen)}:\n" + "\n".join(problems)
    return [points[at] for at in chosen]


# In every run of the tests: the writes that blocked a folder once, and the card, which lost the loss before training.
SAMPLE = [r"^(open|write) output/checkpoint-2/config.json$", r"^write output/_unfinished/model.safetensors$"]
SAMPLE += [r"^replace output/README.md$"]


def test_killed_pretraining_continues(command, tmp_path):
    assert len(stop_everywhere(command, tmp_path, "mlm dapt", SAMPLE)) == 4  # each names a write, the first one two


def test_full_disk_is_one_line_and_the_same_command_continues(command, tmp_path):
    stop_everywhere(command, tmp_path, "mlm dapt", [r"^write output/checkpoint-2/optimizer.pt"], is_full=True)


COMPLETE = ["mlm dapt", "classification", "expand_vocab", "build_datastore", "export"]
PATTERNS = {
    # Of a comparison whose steps are pretended: its data, the steps and the results of a row, and the report.
    "compare": [
        r"^(write|replace) output/(data/.*train|plan\.json|results/dapt-topics|report\.json)",
        r"^unlink output/steps/dapt-topics.*safetensors",
    ],
    # What is whole under its name is finished: the same command refuses to replace it.
    "predict": [r"^(open|write|replace) "],
    "advise": [r"^(open|write|replace) "],
    "quickstart": [r"^(open|write|replace) output/(plan.yaml|hub)", r"^(write|replace) output/plan/report"],
}
OTHERS = [name for name in FLAGS if name not in (*COMPLETE, *PATTERNS)]
# The first comparison also fills the cache of datasets, so its writes have other numbers than those of the next.
COMPARING = ("compare", "quickstart")


@pytest.mark.faults
@pytest.mark.parametrize("name", [*COMPLETE, *OTHERS, *PATTERNS])
def test_killed_command_ends_as_if_it_had_not_been(command, tmp_path, request, name):
    if name in COMPARING:
        request.getfixturevalue("compared")
    stop_everywhere(command, tmp_path, name, None if name in COMPLETE else PATTERNS.get(name, FEW))


@pytest.mark.faults
@pytest.mark.parametrize(
    "name", [*COMPLETE, "predict", "distill", "ner", "qa", "classification gmap", "classification rada"]
)
def test_full_disk(command, tmp_path, request, name):
    if name in COMPARING:
        request.getfixturevalue("compared")
    every = name in ("mlm dapt", "build_datastore", "export", "predict")
    stop_everywhere(command, tmp_path, name, None if every else [r"model.safetensors", *FEW], is_full=True)


def test_two_runs_in_one_folder(command, tmp_path):
    (tmp_path / "one").mkdir()
    with lock_folder(tmp_path / "one" / "output"):
        code, _, log = command("expand_vocab", "one")
    assert code == 1 and "is writing into" in log
    assert not Path(tmp_path, "one", "output", "config.json").exists()
