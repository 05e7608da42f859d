"""The recommended row, fine-tuned on all labeled examples."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
from pretended_runs import SENTENCES, Shared, pretend, run_comparison, write_plan
from script_runs import write_jsonl

from hf_domain.comparison import publish as module
from hf_domain.comparison.prepare import load_plan
from hf_domain.comparison.publish import average_thresholds, average_votes, train_best
from hf_domain.comparison.steps import put_root
from hf_domain.safe_io import read_json
from hf_domain.tasks.outputs import LABELS, format_labels
from hf_domain.training.run_files import METRICS, STATE

BEST_STEPS = {"1": 3, "2": 6}


@pytest.fixture
def compared(content, tmp_path, ran, monkeypatch):
    """Run a plan in which DAPT is better than no adaptation, and return what trains its models."""
    texts = [{"text": f"{text} {i}", "label": text.split()[1]} for i, text in enumerate(SENTENCES)]
    for split in ("train", "validation", "test"):
        write_jsonl(
            tmp_path / "animals" / f"{split}.jsonl", [row | {"text": f"{row['text']} {split}"} for row in texts]
        )
    content |= {"methods": {"no_adaptation": None, "dapt": None}, "learning_rates": [1e-4, 2e-4], "general": None}
    content["tasks"] = {"animals": content["tasks"]["animals"]}
    content["fine_tuning"] |= {"max_train_samples": 50, "early_stopping_patience": 1, "num_train_epochs": 9}
    made = []
    monkeypatch.setattr(module, "complete_card", lambda folder, **facts: made.append(facts))
    monkeypatch.setattr(module, "copy_model", lambda model, folder: folder)

    def run(step, plan, folder):
        ran.append(step)
        pretend(step, plan, folder)
        metrics = read_json(folder / METRICS) | {"learning_rate": float(step.flags.get("learning_rate", 0))}
        if step.kind == "lr_trial":
            metrics["eval_macro_f1"] = metrics["learning_rate"]
        (folder / METRICS).write_text(json.dumps(metrics))
        (folder / "config.json").write_text("{}")
        if step.kind == "fine_tuning":
            steps = BEST_STEPS[str(step.seed)]
            (folder / STATE).write_text(json.dumps({"epoch": 4, "global_step": 12, "best_global_step": steps}))
            if step.method == "dapt":
                rows = [json.loads(line) for line in (plan.folder / put_root(step.flags["test_file"], "plan")).open()]
                (folder / LABELS).write_text(format_labels(row["label"] for row in rows))

    class Compared:
        output_dir = tmp_path / "plan"
        published = made

        def compare(self, **changes):
            self.plan = load_plan(write_plan(content | changes, tmp_path))
            return run_comparison(self.plan, self.output_dir, run)

        def train(self, execute=run):
            ran.clear()
            return train_best(self.plan, self.output_dir, Shared(execute))

    return Compared()


def read_lines(*files):
    return [line.strip() for file in files for line in Path(file).read_text().splitlines()]


def test_trains_the_recommended_row_on_all_labels_as_its_runs_chose(compared, ran, tmp_path):
    compared.compare()
    folders = compared.train()
    assert folders == {"animals": compared.output_dir.resolve() / "best" / "animals"}
    (step,) = ran
    assert (step.name, step.kind, step.method, step.seed) == ("dapt-animals-best", "final", "dapt", 1)
    held_out = {name for name in step.flags if name.startswith(("validation", "test", "do_", "max_train", "early"))}
    assert held_out == {"do_train"}
    animals = tmp_path / "animals"
    trained = read_lines(tmp_path / put_root(step.flags["train_file"], "plan"))
    assert trained == read_lines(animals / "train.jsonl", animals / "validation.jsonl")
    assert step.flags["num_train_epochs"] == 1.5  # the median of 1 and 2
    assert step.flags["learning_rate"] == 2e-4
    assert "/steps/dapt-pets-" in step.flags["model_name_or_path"]
    (facts,) = compared.published
    assert facts["name"] == "encoder-animals" and "So it has no score of its own" in facts["results"]
    assert "animals (macro f1)" in facts["results"]


def test_what_is_there_is_not_trained_again(compared, ran):
    compared.compare()
    compared.train()
    compared.train()
    assert ran == [] and len(compared.published) == 2


def test_a_training_that_failed_is_tried_again(compared, ran):
    def fail(step, plan, folder):
        raise RuntimeError("out of memory")

    compared.compare()
    with pytest.raises(RuntimeError, match="dapt-animals-best failed; the same command tries it again: out of memory"):
        compared.train(fail)
    compared.train()
    assert len(ran) == 1


def test_nothing_is_chosen_without_held_out_examples(compared, ran):
    """transformers refuses load_best_model_at_end without an evaluation, after the whole comparison."""
    each_epoch = {"eval_strategy": "epoch", "save_strategy": "epoch", "metric_for_best_model": "macro_f1"}
    compared.compare(fine_tuning={"use_cpu": True, "load_best_model_at_end": True, **each_epoch})
    compared.train()
    (step,) = ran
    assert not {"load_best_model_at_end", "metric_for_best_model", "eval_strategy"} & step.flags.keys()


def test_folds_are_all_items(compared, ran, tmp_path):
    compared.compare(tasks={"animals": {"folder": "animals", "corpus": "pets", "folds": 2}})
    compared.train()
    (step,) = ran
    animals = tmp_path / "animals"
    items = read_lines(*(animals / f"{split}.jsonl" for split in ("train", "validation", "test")))
    assert sorted(read_lines(tmp_path / put_root(step.flags["train_file"], "plan"))) == sorted(items)


def test_a_vote_that_no_run_has_any_more_is_forgotten(compared):
    """A training on all labels is the same with and without a vote, so that of an earlier comparison is used again."""
    compared.compare()
    compared.train()
    (file,) = compared.output_dir.glob("steps/dapt-animals-best-*/config.json")
    assert read_json(file) == {}
    file.write_text(json.dumps({"nearest_vote": {"count": 5, "weight": 0.4, "label_column": "label"}}))
    compared.train()
    assert read_json(file) == {"nearest_vote": None}


def test_thresholds_and_votes_are_averaged_over_the_runs():
    def make_runs(name, *values):
        return [SimpleNamespace(metrics={} if value is None else {name: value}) for value in values]

    thresholds = make_runs("label_thresholds", [0.2, 0.5], [0.4, 0.7])
    assert average_thresholds(thresholds) == pytest.approx([0.3, 0.6])
    votes = [{"count": count, "weight": weight} for count, weight in ((5, 0.4), (20, 0.2), (5, 0.6))]
    # A run without a vote has the weight 0.
    assert average_votes(make_runs("nearest_vote", *votes, None)) == {"count": 5, "weight": pytest.approx(0.3)}
    assert average_thresholds(make_runs("", None, None)) is average_votes(make_runs("", None, None)) is None


def test_a_comparison_that_has_not_ended_has_no_best_row(compared):
    compared.compare()
    (result,) = compared.output_dir.glob("results/dapt-animals-seed2-*.json")
    result.unlink()
    with pytest.raises(ValueError, match="--train_best needs a comparison that has ended, but 1 steps of plan"):
        compared.train()
