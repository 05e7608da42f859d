"""Plans whose steps are pretended: each leaves what its script would leave, at once."""

import json
import random

import yaml

from hf_domain.training.run_files import LABELS, METRICS, TAGS, format_labels, format_tags

SENTENCES = [f"the {animal} sat on the {place}" for animal in ("cat", "dog", "bird") for place in ("mat", "hill")] * 20
METHODS = {
    "fine_tune": None,
    "control": None,
    "tapt": None,
    "dapt": None,
    "lora": None,
    "varmae": None,
    "adalm": None,
    "exbert": None,
    "exbert_adapter": None,
    "average": {"after": "dapt"},
    "gmap": {"after": "dapt"},
    "logits_fusion": {"recipe": "gmap", "after": "dapt", "fine_tuning": {"config_overrides": "strategy=logits_fusion"}},
    "rada": None,
    "slow": {"recipe": "dapt", "pretraining": {"learning_rate": 1e-5}},
    "tuned_after_tapt": {"recipe": "fine_tune", "after": "tapt"},
}


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
        rows = [json.loads(line) for line in (plan.folder / step.flags["test_file"]).open()]
        if step.command == "ner":
            tags = [[numbers.choice(["O", "B-A"]) for _ in row["tags"]] for row in rows]
            (folder / TAGS).write_text(format_tags(tags))
        else:
            (folder / LABELS).write_text(format_labels(numbers.choice(["cat", "dog", "bird"]) for _ in rows))


def read_files(output_dir):
    return {path.name: path.read_bytes() for path in output_dir.iterdir() if path.is_file()}
