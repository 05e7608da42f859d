"""Plans whose steps are pretended: each leaves what its script would leave, at once."""

import json
import os
import random
import time

import yaml

from hf_domain.comparison import run as runner
from hf_domain.comparison.run import Interrupted
from hf_domain.comparison.steps import find_root, put_root
from hf_domain.safe_io import read_json
from hf_domain.tasks.outputs import LABELS, TAGS, format_labels, format_tags
from hf_domain.training.run_folder import METRICS

SENTENCES = [f"the {animal} sat on the {place}" for animal in ("cat", "dog", "bird") for place in ("mat", "hill")] * 20
METHODS = {
    "no_adaptation": None,
    "general_text": None,
    "tapt": None,
    "dapt": None,
    "lora": None,
    "varmae": None,
    "adalm": None,
    "exbert": None,
    "gmap": {"after": "dapt"},
    "logits_fusion": {"recipe": "gmap", "after": "dapt", "fine_tuning": {"config_overrides": "strategy=logits_fusion"}},
    "rada": None,
    "slow": {"recipe": "dapt", "pretraining": {"learning_rate": 1e-5}},
    "tuned_after_tapt": {"recipe": "no_adaptation", "after": "tapt"},
}


def run_comparison(plan, output_dir, execute, **options):
    """Run a comparison in which a function stands for the commands; it may raise what Ctrl-C raises."""

    def run(*arguments):
        try:
            execute(*arguments)
        except KeyboardInterrupt:
            raise Interrupted from None

    return runner.run_comparison(plan, output_dir, run, **options)


def get_address(output_dir, name):
    """Return the name of the folder and the result of a step of the plan that was run last."""
    return read_json(output_dir / "plan.json")["steps"][name]


def get_result(output_dir, name):
    """Return the file of a result of the plan that was run last."""
    return output_dir / "results" / f"{get_address(output_dir, name)}.json"


def write_plan(content, folder):
    path = folder / "plan.yaml"
    path.write_text(yaml.safe_dump(content, sort_keys=False))
    return path


def pretend(step, plan, folder):
    """Leave what the script of a step would leave; the same for the same step."""
    numbers = random.Random(step.name)
    metrics = {"train_warm_steps_per_second": 2.0, "predict_runtime": 0.5, "trainable_parameters": 7}
    metrics["eval_loss"] = numbers.random()
    (folder / METRICS).write_text(json.dumps(metrics))
    (folder / "model.safetensors").write_bytes(b"weights")
    if step.kind == "fine_tuning":
        score = random.Random(f"validation of {step.name}").random()
        (folder / METRICS).write_text(json.dumps(metrics | {"eval_macro_f1": score, "eval_f1": score}))
        test_file = plan.folder / put_root(step.flags["test_file"], find_root(plan, folder.parents[1]))
        rows = [json.loads(line) for line in test_file.open()]
        if "tags" in rows[0]:
            tags = [[numbers.choice(["O", "B-A"]) for _ in row["tags"]] for row in rows]
            (folder / TAGS).write_text(format_tags(tags))
        else:
            (folder / LABELS).write_text(format_labels([numbers.choice(["cat", "dog", "bird"]) for _ in rows]))


def pretend_and_hang_once(step, plan, folder):
    """Note the step and the process in ran.txt; the first encoder of DAPT never ends. For workers of their own."""
    runner.digest_vocabulary = lambda encoder: "usual"
    with (plan.folder / "ran.txt").open("a+") as file:
        file.seek(0)
        is_first = step.name not in [line.split()[0] for line in file]
        file.write(f"{step.name} {os.getpid()}\n")
    if step.name == "dapt-pets" and is_first:
        time.sleep(600)
    pretend(step, plan, folder)


def read_files(output_dir):
    return {path.name: path.read_bytes() for path in output_dir.iterdir() if path.is_file()}
