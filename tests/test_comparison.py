"""Comparing methods: the plan, its steps, what is run, the scores and the report."""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import textwrap
import time

import numpy as np
import pytest
import yaml
from filelock import FileLock, Timeout
from hf_domain.examples import compare as compare_script
from matplotlib import pyplot
from scipy.stats import ttest_rel
from script_runs import save_tiny_bert, write_jsonl
from seqeval.metrics import f1_score as entity_f1_score
from sklearn.metrics import f1_score

from hf_domain.comparison import report, runner
from hf_domain.comparison import scores as scores_module
from hf_domain.comparison.plan import Task, load_plan
from hf_domain.comparison.publication import draw_training
from hf_domain.comparison.report import write_report
from hf_domain.comparison.results import describe_steps, find_foreign, gather_results, read_results
from hf_domain.comparison.runner import digest_vocabulary, run_comparison
from hf_domain.comparison.scores import (
    Difference,
    ExampleScores,
    compare,
    compute_interval,
    read_scores,
    score_answers,
    score_labels,
    score_tags,
)
from hf_domain.comparison.steps import list_steps
from hf_domain.metrics import compute_squad_metrics, compute_token_f1
from hf_domain.results import read_json

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


@pytest.fixture
def content(tmp_path):
    """A plan as YAML has it; its files are beside it."""
    for name in ("corpus", "heldout", "general"):
        (tmp_path / f"{name}.txt").write_text("\n".join(SENTENCES))
    texts = [{"text": f"{text} {i}", "label": text.split()[1]} for i, text in enumerate(SENTENCES[:24])]
    tagged = [
        {"tokens": [*text.split(), str(i)], "tags": ["O", "B-A", *"OOOOO"]} for i, text in enumerate(SENTENCES[:12])
    ]
    for split in ("train", "validation", "test"):
        for task, rows in (("animals", texts), ("entities", tagged)):
            (tmp_path / task).mkdir(exist_ok=True)
            write_jsonl(tmp_path / task / f"{split}.jsonl", rows)
    return {
        "encoder": "encoder",
        "corpora": {
            "pets": {"train_file": "corpus.txt", "validation_file": "heldout.txt"},
            "general": {"train_file": "general.txt", "validation_file": "general.txt"},
        },
        "general": "general",
        "tasks": {
            "animals": {"kind": "classification", "folder": "animals", "corpus": "pets"},
            "entities": {"kind": "ner", "folder": "entities", "corpus": "pets"},
        },
        "methods": dict(METHODS),
        "seeds": [1, 2],
        "budget": {"tokens": 1000},
        "pretraining": {"per_device_train_batch_size": 4, "max_seq_length": 16, "use_cpu": True},
        "fine_tuning": {"num_train_epochs": 1, "use_cpu": True},
    }


@pytest.fixture(autouse=True)
def vocabularies(monkeypatch):
    """Digests of the vocabularies of encoders that are only pretended."""
    known = {}

    def digest(encoder):
        name = encoder.rpartition("/")[2]
        return known.get(name, "expanded" if name.startswith(("adalm", "exbert", "lora")) else "usual")

    monkeypatch.setattr(runner, "digest_vocabulary", digest)
    return known


def write_plan(content, folder):
    path = folder / "plan.yaml"
    path.write_text(yaml.safe_dump(content, sort_keys=False))
    return path


# --------------------------------------------------------------------------------------------------------- plan


def test_everything_wrong_with_a_plan_is_told_at_once(content, tmp_path):
    content["methods"] |= {"dance": None, "average": None, "a": {"recipe": "dapt", "after": "b"}}
    content["methods"] |= {"b": {"recipe": "dapt", "after": "a"}, "c": {"recipe": "dapt", "after": "nobody"}}
    content["methods"] |= {"../up": {"recipe": "dapt", "pretraining": {"hub_token": "secret"}}}
    content["methods"]["fine_tune"] = {"pretraining": {"learning_rate": 1}}
    content["tasks"]["animals"] |= {"metric": "bleu", "corpus": "law"}
    content["tasks"]["entities"]["kind"] = "parsing"
    content["tasks"]["empty"] = {"kind": "classification", "folder": "nothing", "corpus": "pets"}
    content["corpora"]["pets"]["train_file"] = "corpus.docx"
    content["general"] = "wikipedia"
    content["methods"]["append_passage"] = None
    content["methods"]["control"] = {"tasks": ["animals", "plants"], "datastore": {"train_file": "corpus.txt"}}
    content["methods"]["lora"] = {"encoder": "mine", "after": "dapt"}
    content["methods"]["mean"] = {"recipe": "average", "after": "adalm"}
    content["methods"]["itself"] = {"recipe": "average", "after": "plain"}
    content["methods"]["plain"] = {"recipe": "fine_tune"}
    content["methods"] |= {"read": {"recipe": "rada", "after": "adalm"}, "far": {"recipe": "dapt", "encoder": "/far"}}
    content["methods"]["twice"] = {"recipe": "exbert_adapter", "after": "exbert"}
    content["encoder"] = "../encoders/none"
    content["seeds"] = [1, 1]
    content["budget"] = {"tokens": 1, "minutes": 1}
    (tmp_path / "encoder").mkdir()
    with pytest.raises(ValueError, match="nothing was run") as error:
        load_plan(write_plan(content, tmp_path))
    for part in (
        "recipe is one of fine_tune, control, tapt",
        "average needs `after`",
        "after goes in a circle: b after a after b",
        "after is none of the methods, got nobody",
        "letters, digits, _ and -: it becomes that of a folder; got ../up",
        "a plan holds no token",
        "fine_tune is not pre-trained",
        "a passage is appended to the texts of classification alone",
        "methods: control: tasks are of animals, entities, empty, got plants",
        "control reads no datastore, got datastore {'train_file': 'corpus.txt'}",
        "it starts either from encoder or after a method, got mine and dapt",
        "metric of classification is one of macro_f1, micro_f1, positive_micro_f1, got bleu",
        "corpus is none of pets, general, got law",
        "kind is one of classification, ner, qa, got parsing",
        "there is no file nothing/test.jsonl",
        "there is no file corpus.docx",
        "a corpus is .txt",
        "general is none of the corpora",
        "seeds must be different numbers",
        "budget is either tokens or minutes",
        "encoder: there is no folder ../encoders/none",
        "methods: far: encoder: there is no folder /far",
        "methods: read: passages are cut by the tokenizer of the plan's encoder; adalm expands its vocabulary",
        "methods: twice: an adapter of exBERT stands beside an encoder that is none",
        "methods: itself: an average is of the plan's encoder and one that was trained; fine_tune trains none",
        "methods: mean: an average is of two encoders with the same weights; adalm makes others",
    ):
        assert part in str(error.value)
    assert "secret" not in str(error.value)


def test_plan_of_the_documentation_is_one(content, tmp_path):
    text = textwrap.dedent(compare_script.__doc__.partition("A plan:\n\n")[2].rpartition("\n\n`pretraining`")[0])
    shutil.move(tmp_path / "animals", tmp_path / "acl_arc")
    for name in ("corpus", "heldout", "wikipedia", "wikipedia_heldout"):
        (tmp_path / f"{name}.txt.gz").write_bytes(b"")
    (tmp_path / "documented.yaml").write_text(text)
    assert list_steps(load_plan(tmp_path / "documented.yaml"), tmp_path / "output")


def test_unknown_and_missing_fields_of_a_plan(content, tmp_path):
    del content["encoder"]
    content["seed"] = 3
    content["tasks"]["animals"]["metrics"] = "f1"
    del content["tasks"]["entities"]["folder"]
    with pytest.raises(ValueError, match="nothing was run") as error:
        load_plan(write_plan(content, tmp_path))
    for part in ("lacks encoder", "the plan has no seed", "tasks: animals has no metrics", "entities lacks folder"):
        assert part in str(error.value)
    (tmp_path / "list.yaml").write_text("- 1")
    with pytest.raises(ValueError, match="is a mapping"):
        load_plan(tmp_path / "list.yaml")
    (tmp_path / "list.yaml").write_text("methods: {dapt\n")
    with pytest.raises(ValueError, match=r"list.yaml is not YAML: .*line"):
        load_plan(tmp_path / "list.yaml")


@pytest.mark.parametrize(
    "section, value, message",
    [
        ("seeds", 3, "the plan: seeds is a list[int], got 3"),
        ("seeds", [1, "a"], "the plan: seeds is a list[int], got [1, 'a']"),
        ("methods", {"dapt": {"tasks": [1]}}, "methods: dapt: tasks is a list[str] | None, got [1]"),
        ("budget", {"tokens": "1e7"}, "budget: tokens is a int | None, got '1e7'"),
        ("general", ["general"], r"the plan: general is a str | None, got ['general']"),
        ("methods", {"dapt": {"tasks": "animals"}}, "methods: dapt: tasks is a list[str] | None, got 'animals'"),
        ("corpora", {"pets": {"train_file": ["a"], "validation_file": "b"}}, "corpora: pets: train_file is a str"),
    ],
)
def test_values_of_another_type(content, tmp_path, section, value, message):
    content[section] = value
    with pytest.raises(ValueError, match="nothing was run") as error:
        load_plan(write_plan(content, tmp_path))
    assert message in str(error.value)


def test_entries_without_a_value_are_left_to_their_defaults(content, tmp_path):
    content |= {"fine_tuning": None, "methods": {"dapt": {"tasks": None, "pretraining": None}}}
    plan = load_plan(write_plan(content, tmp_path))
    assert plan.fine_tuning == plan.methods["dapt"].pretraining == {}


def test_tokens_names_and_labels_that_a_plan_cannot_have(content, tmp_path):
    content["tasks"]["animals"]["options"] = {"token": "secret"}
    content["tasks"]["pets"] = {"kind": "ner", "folder": "entities", "corpus": "pets"}
    content["tasks"]["several"] = {"kind": "classification", "folder": "several", "corpus": "pets"}
    content["tasks"]["broken"] = {"kind": "classification", "folder": "broken", "corpus": "pets"}
    for name in ("several", "broken"):
        (tmp_path / name).mkdir()
        for split in ("train", "validation", "test"):
            write_jsonl(tmp_path / name / f"{split}.jsonl", [{"text": "a", "label": ["b", "c"]}])
    (tmp_path / "broken" / "test.jsonl").write_text("text,label\n")
    with pytest.raises(ValueError, match="nothing was run") as error:
        load_plan(write_plan(content, tmp_path))
    for part in (
        "a plan holds no token",
        "a task and a corpus have different names, what is made of them is called so; got ['pets']",
        "tasks: several: a label is a text or a whole number, several/train.jsonl has ['b', 'c']",
        "tasks: broken: a line of broken/test.jsonl is a JSON object, the first is none",
    ):
        assert part in str(error.value)
    assert "secret" not in str(error.value)


def test_flags_that_a_script_does_not_take_are_told_before_the_first_run(content, tmp_path, ran, note):
    content["fine_tuning"] |= {"learning_rte": 3e-5}
    content["tasks"]["animals"]["options"] = {"num_train_epochs": "many"}
    content["methods"]["dapt"] = {"pretraining": {"warm_ups": 1}}
    plan = load_plan(write_plan(content, tmp_path))
    with pytest.raises(ValueError, match=r"^3 thing.* nothing was run") as error:
        run_comparison(plan, tmp_path / "output", execute=note)
    assert ran == []
    assert "run_classification: argument --num_train_epochs" in str(error.value)
    assert "- run_ner: unrecognized arguments: --learning_rte 3e-05 (fine_tune-entities-seed1 and 29 more)" in str(
        error.value
    )
    assert "- run_mlm: unrecognized arguments: --warm_ups 1 (dapt-pets)" in str(error.value)


def test_different_steps_with_one_name_are_refused(content, tmp_path):
    content["tasks"] = {"animals": content["tasks"]["animals"], "half-animals": content["tasks"]["animals"]}
    content["methods"] = {"dapt": None, "dapt-half": {"recipe": "dapt"}}
    plan = load_plan(write_plan(content, tmp_path))
    with pytest.raises(ValueError, match="two different steps of the plan would be called dapt-half-animals-seed1"):
        list_steps(plan, tmp_path / "plan")


def test_file_that_another_step_makes_is_no_input(content, tmp_path):
    """RADA's stage of masked LM is trained on what its datastore leaves out, which is there only after that step."""
    content["methods"] = {
        "rada_mlm": {
            "datastore": {"held_out_file": "rest.jsonl", "held_out_fraction": 0.1},
            "pretraining": {"train_file": "rest.jsonl"},
        }
    }
    plan = load_plan(write_plan(content, tmp_path))
    before = describe_steps(plan, tmp_path / "plan")
    (tmp_path / "rest.jsonl").write_text("{}")
    assert describe_steps(plan, tmp_path / "plan") == before


def test_task_without_labels(content, tmp_path):
    write_jsonl(tmp_path / "animals" / "test.jsonl", [{"text": "no label"}])
    with pytest.raises(ValueError, match=r"animals/test.jsonl lacks label"):
        load_plan(write_plan(content, tmp_path))


# -------------------------------------------------------------------------------------------------------- steps


def test_steps_of_a_plan(content, tmp_path):
    plan = load_plan(write_plan(content, tmp_path))
    steps = list_steps(plan, tmp_path / "plan")
    names = [step.name for step in steps]
    assert len(set(names)) == len(names)
    for number, step in enumerate(steps):
        assert set(step.needs) <= set(names[:number])
    by_name = {step.name: step for step in steps}
    assert [name for name in names if name.startswith("vocabulary")] == ["vocabulary-pets"]
    assert by_name["dapt-pets"].flags["max_steps"] == 16  # 1000 tokens in steps of 4 x 16
    assert by_name["dapt-pets"].flags["train_file"] == "corpus.txt"
    assert by_name["control-general"].flags["train_file"] == "general.txt"
    assert by_name["tapt-animals"].flags["train_file"] == "plan/texts/animals.txt"
    assert by_name["adalm-pets"].flags["expanded_vocabulary"] == "plan/steps/vocabulary-pets"
    assert by_name["average-pets"].flags["model_name_or_path"] == ["plan/steps/dapt-pets", "encoder"]
    assert by_name["slow-pets"].flags["learning_rate"] == 1e-5
    assert by_name["fine_tune-animals-seed2"].flags["model_name_or_path"] == "encoder"
    assert by_name["average-entities-seed1"].flags["model_name_or_path"] == "plan/steps/average-pets"
    assert by_name["tuned_after_tapt-animals-seed1"].flags["model_name_or_path"] == "plan/steps/tapt-animals"
    assert by_name["dapt-entities-seed1"].script == "run_ner"
    gmap = by_name["gmap-animals-seed1"]
    assert gmap.flags["model_name_or_path"] == "plan/steps/dapt-pets"
    assert (gmap.flags["method"], gmap.flags["memory_name_or_path"]) == ("gmap", "encoder")
    assert by_name["logits_fusion-animals-seed1"].flags["config_overrides"] == "strategy=logits_fusion"
    rada = by_name["rada-animals-seed1"]
    assert rada.needs == ["datastore-pets"]
    assert rada.flags["datastore"] == by_name["datastore-pets"].flags["output_dir"]
    assert rada.flags["passage_cache"] == by_name["rada-animals-seed2"].flags["passage_cache"]
    assert len([step for step in steps if step.kind == "fine_tuning"]) == len(METHODS) * 2 * 2
    assert {step.corpus for step in steps if step.kind == "evaluation"} == {"pets", "general"}


def test_general_text_is_trained_on_once_for_all_corpora(content, tmp_path):
    content["corpora"]["plants"] = content["corpora"]["pets"]
    content["tasks"]["entities"]["corpus"] = "plants"
    content["methods"] = {"control": None, "dapt": None, "more": {"recipe": "control", "after": "dapt"}}
    steps = {step.name: step for step in list_steps(load_plan(write_plan(content, tmp_path)), tmp_path / "plan")}
    trained = [name for name, step in steps.items() if step.kind == "pretraining"]
    assert trained == ["control-general", "dapt-pets", "more-pets", "dapt-plants", "more-plants"]
    for task in ("animals", "entities"):
        assert steps[f"control-{task}-seed1"].needs == ["control-general"]
    evaluated = [name for name in steps if name.startswith("control-general-on-")]
    assert sorted(evaluated) == [f"control-general-on-{text}" for text in ("general", "pets", "plants")]


def test_losses_are_told_for_each_corpus_that_a_method_was_trained_on(content, tmp_path):
    content["corpora"]["plants"] = content["corpora"]["pets"]
    content["tasks"]["entities"]["corpus"] = "plants"
    content["methods"] = {"control": None, "tapt": None, "gmap": {"after": "dapt"}, "dapt": None}
    output_dir = tmp_path / "plan"
    run_comparison(load_plan(write_plan(content, tmp_path)), output_dir, execute=pretend)
    losses = {}
    for path in (output_dir / "results").glob("*-on-*.json"):
        encoder, corpus = path.stem.split("-on-")
        losses.setdefault(encoder, {})[corpus] = read_json(path)["masked_lm_loss"]
    assert write_report(output_dir).losses == {
        "general text": losses["control-general"],
        "TAPT (pets)": losses["tapt-animals"],
        "TAPT (plants)": losses["tapt-entities"],
        "DAPT (pets)": losses["dapt-pets"],
        "DAPT (plants)": losses["dapt-plants"],
    }
    assert losses["dapt-pets"].keys() == {"general", "pets"}


def test_methods_with_their_own_tasks_encoder_and_datastore(content, tmp_path):
    content["methods"] = {
        "dapt": {"tasks": ["entities"]},
        "mine": {"recipe": "fine_tune", "encoder": "somewhere/mine"},
        "more": {"recipe": "dapt", "encoder": "somewhere/mine"},
        "average_of_more": {"recipe": "average", "after": "more"},
        "gmap": {"after": "more"},
        "ensemble": {"recipe": "gmap", "after": "more", "fine_tuning": {"config_overrides": "strategy=ensemble"}},
        "rada": None,
        "rada_half": {"recipe": "rada", "datastore": {"train_file": "general.txt"}, "tasks": ["animals"]},
        "rada_task": {"tasks": ["animals"]},
        "rada_mlm": {"datastore": {"train_file": "general.txt"}, "pretraining": {"train_file": "heldout.txt"}},
        "append_passage": {"tasks": ["animals"]},
    }
    steps = {step.name: step for step in list_steps(load_plan(write_plan(content, tmp_path)), tmp_path / "plan")}
    assert "dapt-entities-seed1" in steps
    assert not [name for name in steps if name.startswith(("dapt-animals", "append_passage-entities"))]
    assert steps["mine-animals-seed1"].flags["model_name_or_path"] == "somewhere/mine"
    assert steps["mine-on-pets"].flags["model_name_or_path"] == "somewhere/mine"
    assert steps["encoder-on-pets"].method == "rada"
    assert steps["more-pets"].flags["model_name_or_path"] == "somewhere/mine"
    assert steps["average_of_more-pets"].flags["model_name_or_path"] == ["plan/steps/more-pets", "encoder"]
    assert steps["gmap-animals-seed1"].flags["memory_cache"] == "plan/memories/gmap-animals"
    assert "memory_cache" not in steps["ensemble-animals-seed1"].flags
    assert steps["datastore-pets"].flags["train_file"] == "corpus.txt"
    assert steps["datastore-rada_half-pets"].flags["train_file"] == "general.txt"
    assert steps["rada_half-animals-seed1"].needs == ["datastore-rada_half-pets"]
    assert steps["datastore-animals"].flags["train_file"] == "plan/texts/animals.txt"
    assert (steps["datastore-animals"].task, steps["rada_task-animals-seed2"].needs) == (
        "animals",
        ["datastore-animals"],
    )
    stage = steps["rada_mlm-pets"]
    assert (stage.flags["method"], stage.flags["train_file"]) == ("rada", "heldout.txt")
    assert stage.flags["datastore"] == steps["rada_mlm-entities-seed1"].flags["datastore"]
    assert stage.needs == ["datastore-rada_mlm-pets"]


def test_report_leaves_out_what_a_method_is_not_tested_on(content, tmp_path):
    content["methods"] = {"dapt": None, "mine": {"recipe": "fine_tune", "encoder": "m", "tasks": ["animals"]}}
    run_comparison(load_plan(write_plan(content, tmp_path)), tmp_path / "plan", execute=pretend)
    report = write_report(tmp_path / "plan")
    assert list(report.differences["mine"]) == ["animals"]
    assert {"DAPT", "fine-tuning only (mine)"} == set(report.losses)
    (row,) = [line for line in (tmp_path / "plan" / "report.md").read_text().splitlines() if "p 0." in line]
    assert row.startswith("| fine-tuning only (mine) | ") and row.endswith(" |  |")


def test_vocabulary_is_expanded_once_along_a_chain(content, tmp_path):
    content["methods"] = {"adalm": None, "dapt": None, "exbert": {"after": "adalm"}}
    steps = {step.name: step for step in list_steps(load_plan(write_plan(content, tmp_path)), tmp_path / "plan")}
    assert "expanded_vocabulary" in steps["adalm-pets"].flags
    assert "expanded_vocabulary" not in steps["exbert-pets"].flags
    assert steps["exbert-pets"].flags["model_name_or_path"] == "plan/steps/adalm-pets"


# ------------------------------------------------------------------------------------------------------- scores


def make_labels(generator, count=200):
    gold = generator.choice(["a", "b", "c", "none"], size=count).tolist()
    return [label if generator.random() < 0.6 else str(generator.choice(["a", "b", "none"])) for label in gold], gold


@pytest.mark.parametrize("metric", ["macro_f1", "micro_f1", "positive_micro_f1"])
def test_scores_of_labels_are_those_of_scikit_learn(metric):
    generator = np.random.default_rng(0)
    predictions, gold = make_labels(generator)
    task = Task("classification", "", "", metric, {"negative_labels": "none"})
    scores = score_labels(predictions, gold, task)
    labels = ["a", "b", "c"] if metric == "positive_micro_f1" else None
    average = "macro" if metric == "macro_f1" else "micro"
    chosen = generator.integers(len(gold), size=len(gold))
    weights = np.bincount(chosen, minlength=len(gold))
    for rows, counts in ((range(len(gold)), None), (chosen, weights)):
        expected = f1_score([gold[i] for i in rows], [predictions[i] for i in rows], labels=labels, average=average)
        assert scores.compute(counts) == pytest.approx(100 * expected)


def test_scores_of_tags_are_those_of_seqeval_and_of_tokens():
    generator = np.random.default_rng(0)
    gold = [["O", "B-X", "I-X", "O", "B-Y"] for _ in range(50)]
    predictions = [[tag if generator.random() < 0.7 else "O" for tag in tags] for tags in gold]
    entities, tokens = (score_tags(predictions, gold, metric) for metric in ("entity_f1", "token_f1"))
    assert entities.compute() == pytest.approx(100 * entity_f1_score(gold, predictions))
    assert tokens.compute() == pytest.approx(100 * compute_token_f1(predictions, gold))
    shorter = [tags[:3] for tags in predictions]
    assert score_tags(shorter, gold, "entity_f1").compute() == pytest.approx(
        100 * entity_f1_score(gold, [[*tags, "O", "O"] for tags in shorter])
    )
    with pytest.raises(ValueError, match=r"sentence 0 .* has 5 tags, 6 were predicted"):
        score_tags([["O"] * 6], gold[:1], "entity_f1")


def test_tags_without_prefixes_are_classes():
    gold, predictions = [["PAR", "O", "INT"]] * 3, [["PAR", "INT", "INT"]] * 3
    scores = score_tags(predictions, gold, "token_f1")
    assert scores.compute() == pytest.approx(100 * compute_token_f1(predictions, gold))
    assert scores.compute() > 0


def test_scores_of_answers_are_those_of_squad():
    answers = {"1": "the red cat", "2": "", "3": "a dog"}
    references = {"1": ["red cat"], "2": [], "3": ["dogs", "a big dog"]}
    expected = compute_squad_metrics(answers, references)
    for metric in ("f1", "exact_match"):
        assert score_answers(answers, references, metric).compute() == pytest.approx(expected[metric])


def test_scores_are_read_from_what_the_scripts_leave(tmp_path):
    rows = {
        "classification": [{"text": "a", "label": label} for label in (0, 1, 1)],
        "qa": [{"id": number, "context": "a b", "answers": {"text": ["b"]}} for number in (7, 8, 9)],
    }
    (tmp_path / "predict_results.txt").write_text("index\tprediction\n0\t0\n1\t0\n")
    (tmp_path / "predict_predictions.json").write_text(json.dumps({"7": "b", "8": "a"}))
    for kind, metric in (("classification", "micro_f1"), ("qa", "exact_match")):
        write_jsonl(tmp_path / "test.jsonl", rows[kind])
        task = Task(kind, str(tmp_path), "pets", metric)
        scores = read_scores(task, {"max_predict_samples": "2"}, tmp_path, tmp_path)
        assert scores.compute() == 50.0, kind


def test_scores_survive_json():
    predictions, gold = make_labels(np.random.default_rng(0), 20)
    scores = score_labels(predictions, gold, Task("classification", "", "", "macro_f1"))
    again = ExampleScores.from_json(json.loads(json.dumps(scores.to_json())))
    assert again.compute() == scores.compute()
    for name in ("right", "predicted", "gold"):
        assert np.array_equal(getattr(again, name), getattr(scores, name))


def test_difference_of_two_methods():
    gold = ["a", "b"] * 100
    task = Task("classification", "", "", "micro_f1")

    def predict(share, seed):
        random_numbers = np.random.default_rng(seed).random(len(gold))
        return score_labels([g if x < share else "c" for g, x in zip(gold, random_numbers, strict=True)], gold, task)

    good, bad = [predict(0.9, seed) for seed in range(3)], [predict(0.6, seed) for seed in range(3, 6)]
    difference = compare(good, bad)
    expected = np.mean([a.compute() for a in good]) - np.mean([b.compute() for b in bad])
    assert difference.mean == pytest.approx(expected)
    assert difference.low < expected < difference.high
    assert difference.p < 0.01 < 0.9 < compare(good, good).p
    assert compare(bad, good).mean == pytest.approx(-expected)
    # Of 200 examples with these rates the interval is what the normal approximation says.
    spread = 100 * np.sqrt((0.9 * 0.1 + 0.6 * 0.4) / 200)
    assert 0.3 * spread < (difference.high - difference.low) / (2 * 1.96) < 2 * spread
    assert compare(good[:1], bad[:1]) == Difference(good[0].compute() - bad[0].compute(), None, None, None)


@pytest.mark.parametrize("of_seeds, of_examples", [(0.0, 0.5), (3.0, 0.0), (3.0, 0.5), (0.5, 0.5)])
def test_alike_methods_are_rarely_told_apart(monkeypatch, of_seeds, of_examples):
    """Three seeds of two methods that differ by chance alone: p < 0.05 at most about once in twenty."""
    monkeypatch.setattr(scores_module, "RESAMPLES", 200)
    generator = np.random.default_rng(0)

    def run():
        values = 0.5 + of_seeds / 100 * generator.normal() + of_examples * generator.normal(size=(300, 1))
        return ExampleScores(values, np.zeros_like(values), np.zeros_like(values), "mean")

    trials = [compare([run() for _ in range(3)], [run() for _ in range(3)], seed) for seed in range(300)]
    share = np.mean([difference.p < 0.05 for difference in trials])
    covered = np.mean([difference.low < 0 < difference.high for difference in trials])
    assert share <= 0.09 and covered == 1 - share
    shifted = [run() for _ in range(3)]
    for one in shifted:
        one.right = one.right + 0.5
    assert compare(shifted, [run() for _ in range(3)]).p < 0.05


def test_p_is_that_of_a_t_test_where_only_seeds_vary():
    values = [[50.0, 53.0, 55.0], [49.0, 48.0, 53.5]]
    runs = [[ExampleScores(*[np.full((40, 1), v / 100)] * 3, "mean") for v in row] for row in values]
    expected = ttest_rel(*values)
    difference = compare(*runs)
    assert difference.p == pytest.approx(expected.pvalue)
    assert [difference.low, difference.high] == pytest.approx(list(expected.confidence_interval(0.95)))


def test_interval_over_seeds():
    assert compute_interval([1.0, 2.0, 3.0]) == pytest.approx(4.302653 / np.sqrt(3))
    assert np.isnan(compute_interval([1.0]))


# ------------------------------------------------------------------------------------------------------- runner


def pretend(step, plan, folder):
    """Leave what the script of a step would leave; the same for the same step."""
    numbers = random.Random(step.name)
    metrics = {"train_warm_steps_per_second": 2.0, "predict_samples_per_second": 50.0, "trainable_parameters": 7}
    metrics["eval_loss"] = numbers.random()
    (folder / "all_results.json").write_text(json.dumps(metrics))
    (folder / "model.safetensors").write_bytes(b"weights")
    if step.kind == "fine_tuning":
        rows = [json.loads(line) for line in (plan.folder / step.flags["test_file"]).open()]
        if step.script == "run_ner":
            lines = [" ".join(numbers.choice(["O", "B-A"]) for _ in row["tags"]) for row in rows]
            (folder / "predictions.txt").write_text("\n".join(lines) + "\n")
        else:
            lines = [f"{number}\t{numbers.choice(['cat', 'dog', 'bird'])}" for number in range(len(rows))]
            (folder / "predict_results.txt").write_text("index\tprediction\n" + "\n".join(lines) + "\n")


@pytest.fixture
def plan(content, tmp_path, monkeypatch):
    monkeypatch.setattr(runner.time, "perf_counter", lambda: 0.0)
    return load_plan(write_plan(content, tmp_path))


def read_files(output_dir):
    return {path.name: path.read_bytes() for path in output_dir.iterdir() if path.is_file()}


def test_comparison_killed_anywhere_ends_in_the_same_report(plan, tmp_path):
    results = run_comparison(plan, tmp_path / "whole", execute=pretend)
    assert all(result["status"] == "done" for result in results)
    write_report(tmp_path / "whole")
    numbers = random.Random(0)
    for _ in range(10):
        remaining = numbers.randrange(1, 12)

        def kill(step, plan, folder, numbers=numbers):
            nonlocal remaining
            remaining -= 1
            if numbers.random() < 0.5 or remaining:
                pretend(step, plan, folder)
            if not remaining:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            run_comparison(plan, tmp_path / "killed", execute=kill)
    run_comparison(plan, tmp_path / "killed", execute=pretend)
    write_report(tmp_path / "killed")
    whole, killed = read_files(tmp_path / "whole"), read_files(tmp_path / "killed")
    assert whole.keys() == killed.keys() >= {"report.md", "report.html", "report.json", "differences.png", "cost.png"}
    for name, value in whole.items():
        assert value == killed[name], name


@pytest.fixture
def ran():
    """The names of the steps that `note` ran."""
    return []


@pytest.fixture
def note(ran):
    def note(step, plan, folder):
        ran.append(step.name)
        pretend(step, plan, folder)

    return note


def test_what_is_done_is_not_run_again(plan, tmp_path, ran, note):
    run_comparison(plan, tmp_path / "output", execute=pretend)
    run_comparison(plan, tmp_path / "output", execute=note)
    assert ran == []
    (tmp_path / "output" / "results" / "dapt-animals-seed2.json").unlink()
    run_comparison(plan, tmp_path / "output", execute=note)
    assert ran == ["dapt-animals-seed2"]


def test_encoder_that_is_gone_is_made_again_where_it_is_needed(plan, tmp_path, ran, note):
    run_comparison(plan, tmp_path / "output", execute=pretend)
    shutil.rmtree(tmp_path / "output" / "steps")
    (tmp_path / "output" / "results" / "average-animals-seed2.json").unlink()

    def kill(step, plan, folder):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):  # an encoder of which nothing but the folder is there yet
        run_comparison(plan, tmp_path / "output", execute=kill)
    run_comparison(plan, tmp_path / "output", execute=note)
    assert ran == ["dapt-pets", "average-pets", "average-animals-seed2"]


def test_failed_runs_are_reported_and_tried_again(plan, tmp_path):
    def fail(step, plan, folder):
        if step.name in ("varmae-pets", "dapt-animals-seed2"):
            raise RuntimeError("out of <memory>")
        pretend(step, plan, folder)

    run_comparison(plan, tmp_path / "output", execute=fail)
    report = write_report(tmp_path / "output")
    assert report.failed["dapt-animals-seed2"] == "out of <memory>"
    assert report.failed["varmae-animals-seed1"] == "it needs varmae-pets, which failed"
    text = (tmp_path / "output" / "report.md").read_text()
    assert "[1 of 2 seeds]" in text
    assert "| VarMAE | no result | no result |" in text
    assert "out of &lt;memory&gt;" in (tmp_path / "output" / "report.html").read_text()
    assert "<memory>" not in (tmp_path / "output" / "report.html").read_text()
    run_comparison(plan, tmp_path / "output", execute=pretend)
    assert write_report(tmp_path / "output").failed == {}


def test_foreign_results_are_refused(plan, content, tmp_path):
    run_comparison(plan, tmp_path / "output", execute=pretend)
    content["budget"] = {"tokens": 2000}
    other = load_plan(write_plan(content, tmp_path))
    with pytest.raises(ValueError, match=r"not of this comparison; .*\n- another plan, or .*: .*dapt-pets"):
        run_comparison(other, tmp_path / "output", execute=pretend)
    (tmp_path / "corpus.txt").write_text("\n".join(SENTENCES[:-1]))
    with pytest.raises(ValueError, match=r"\n- another plan, or made from other files: .*dapt-pets"):
        run_comparison(plan, tmp_path / "output", execute=pretend)
    (tmp_path / "corpus.txt").write_text("\n".join(SENTENCES))
    path = tmp_path / "output" / "results" / "dapt-pets.json"
    result = read_json(path)
    result["environment"]["versions"]["torch"] = "0.1"
    path.write_text(json.dumps(result))
    with pytest.raises(ValueError, match=r"- other versions of .*: dapt-pets"):
        run_comparison(plan, tmp_path / "output", execute=pretend)


def test_runs_that_failed_do_not_keep_a_corrected_plan_from_running(plan, content, tmp_path, ran, note):
    def fail(step, plan, folder):
        if step.kind == "fine_tuning":
            raise RuntimeError("wrong flag")
        pretend(step, plan, folder)

    run_comparison(plan, tmp_path / "output", execute=fail)
    content["fine_tuning"]["num_train_epochs"] = 2
    corrected = load_plan(write_plan(content, tmp_path))
    run_comparison(corrected, tmp_path / "output", execute=note)
    assert len(ran) == 2 * 2 * len(METHODS)
    assert write_report(tmp_path / "output").failed == {}


def find_foreign_results(plan, output_dir):
    return set(find_foreign(read_results(output_dir), describe_steps(plan, output_dir)))


def test_what_started_from_a_changed_step_is_foreign_too(plan, content, tmp_path):
    """Only DAPT's own result has other flags: its encoder's scores and losses have those of before."""
    output_dir = tmp_path / "output"
    results = run_comparison(plan, output_dir, execute=pretend)
    content["methods"]["dapt"] = {"pretraining": {"learning_rate": 1e-5}}
    foreign = find_foreign_results(load_plan(write_plan(content, tmp_path)), output_dir)
    started = ("dapt-", "average-", "gmap-", "logits_fusion-")
    assert foreign == {result["name"] for result in results if result["name"].startswith(started)}


def test_results_of_changed_files_are_foreign(plan, tmp_path):
    """Also where the size is the same: labels or words that are exchanged."""
    output_dir = tmp_path / "output"
    names = {result["name"] for result in run_comparison(plan, output_dir, execute=pretend)}
    assert not find_foreign_results(plan, output_dir)
    of_animals = {name for name in names if "-animals-seed" in name}
    of_tapt = {name for name in names if name.startswith(("tapt-animals", "tuned_after_tapt-animals"))}
    of_general = {name for name in names if "control" in name or name.endswith("-on-general")}
    for file, expected in (
        ("animals/test.jsonl", of_animals),
        ("animals/train.jsonl", of_animals | of_tapt),
        ("general.txt", of_general),
    ):
        text = (tmp_path / file).read_text()
        (tmp_path / file).write_text(text.replace("cat", "\0").replace("dog", "cat").replace("\0", "dog"))
        assert find_foreign_results(plan, output_dir) == expected, file
        (tmp_path / file).write_text(text)


def test_minutes_belong_to_a_result(content, tmp_path):
    content["budget"], content["methods"] = {"minutes": 0.5}, {"dapt": None}
    run_comparison(load_plan(write_plan(content, tmp_path)), tmp_path / "output", execute=pretend)
    assert read_json(tmp_path / "output" / "results" / "dapt-pets.json")["max_steps"] == 60
    content["budget"] = {"minutes": 30}
    with pytest.raises(ValueError, match="dapt-pets"):
        run_comparison(load_plan(write_plan(content, tmp_path)), tmp_path / "output", execute=pretend)


def test_checkpoint_of_other_settings_is_not_resumed(plan, content, tmp_path):
    def stop(step, plan, folder):
        if step.name != "dapt-pets":
            return pretend(step, plan, folder)
        (folder / "checkpoint-16").mkdir()
        (folder / "checkpoint-16" / "model.safetensors").write_bytes(b"weights")
        (folder / "checkpoint-16" / "trainer_state.json").write_text("{}")
        raise KeyboardInterrupt

    found = []

    def look(step, plan, folder):
        found.append((step.name, (folder / "checkpoint-16").is_dir()))
        pretend(step, plan, folder)

    content["methods"] = {"dapt": None}
    output_dir = tmp_path / "output"
    for learning_rate, kept in ((1e-4, True), (1e-5, False)):
        content["methods"]["dapt"] = {"pretraining": {"learning_rate": 1e-4}}
        first = load_plan(write_plan(content, tmp_path))
        shutil.rmtree(output_dir, ignore_errors=True)
        with pytest.raises(KeyboardInterrupt):
            run_comparison(first, output_dir, execute=stop)
        content["methods"]["dapt"] = {"pretraining": {"learning_rate": learning_rate}}
        found.clear()
        shutil.rmtree(output_dir / "results")
        run_comparison(load_plan(write_plan(content, tmp_path)), output_dir, execute=look)
        assert ("dapt-pets", kept) in found


def test_step_ends_with_a_comparison_that_is_killed(content, tmp_path):
    """An orphan would later write its model over that of the next run."""
    import psutil

    save_tiny_bert(tmp_path / "encoder", SENTENCES)
    content["methods"], content["budget"] = {"dapt": None}, {"tokens": 10_000_000}
    path = write_plan(content, tmp_path)
    with (tmp_path / "log.txt").open("w") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "hf_domain.examples.compare", str(path)], stderr=log, stdout=log
        )
    log = path.with_suffix("") / "steps" / "dapt-pets" / "log.txt"
    deadline = time.monotonic() + 120
    while not (log.is_file() and "'loss'" in log.read_text()):
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.2)
    family = psutil.Process(process.pid).children(recursive=True)
    assert family
    process.kill()  # the comparison alone
    process.wait()
    assert not psutil.wait_procs(family, timeout=30)[1]


def test_everything_that_a_step_raises_is_a_result(plan, tmp_path):
    def fail(step, plan, folder):
        if step.name == "varmae-pets":
            raise IndexError
        pretend(step, plan, folder)

    run_comparison(plan, tmp_path / "output", execute=fail)
    assert write_report(tmp_path / "output").failed["varmae-pets"] == "IndexError"


def test_tokens_of_short_batches_are_not_counted():
    flags = {"max_steps": 7, "per_device_train_batch_size": 4, "max_seq_length": 16}
    assert runner.count_trained_tokens(flags, 1000) == runner.count_trained_tokens(flags, None) == 7 * 4 * 16
    # Ten blocks are batches of 4, 4 and 2: two epochs of ten, then one of 4.
    assert runner.count_trained_tokens(flags, 10) == (10 + 10 + 4) * 16


def test_parts_make_the_same_report(plan, tmp_path):
    run_comparison(plan, tmp_path / "whole", execute=pretend)
    made = []
    for number in (1, 2, 3):
        part = run_comparison(plan, tmp_path / f"part{number}", (number, 3), pretend)
        made.append({result["name"] for result in part if result["kind"] == "fine_tuning"})
        for path in (tmp_path / f"part{number}" / "results").iterdir():
            target = tmp_path / "merged" / "results" / path.name
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(path.read_bytes())
    assert all(made)
    assert sum(map(len, made)) == len(set.union(*made)) == len(METHODS) * 4
    write_report(tmp_path / "whole")
    gather_results(plan, tmp_path / "merged")
    write_report(tmp_path / "merged")
    assert (tmp_path / "whole" / "report.md").read_text() == (tmp_path / "merged" / "report.md").read_text()
    with pytest.raises(ValueError, match="between 1/3 and 3/3, got 4/3"):
        run_comparison(plan, tmp_path / "output", (4, 3), pretend)


def test_encoder_whose_weights_are_deleted_is_made_again(plan, tmp_path, ran, note):
    run_comparison(plan, tmp_path / "output", execute=pretend)
    (tmp_path / "output" / "steps" / "dapt-pets" / "model.safetensors").unlink()
    run_comparison(plan, tmp_path / "output", execute=note)
    assert ran == []
    (tmp_path / "output" / "results" / "dapt-animals-seed1.json").unlink()
    run_comparison(plan, tmp_path / "output", execute=note)
    assert ran == ["dapt-pets", "dapt-animals-seed1"]


def test_seconds_of_a_killed_step_count_up_to_its_checkpoint(plan, content, tmp_path, monkeypatch):
    clock = [1000.0]
    monkeypatch.setattr(runner.time, "time", lambda: clock[0])
    monkeypatch.setattr(runner.time, "perf_counter", lambda: clock[0])

    def work(step, plan, folder):
        if step.name != "dapt-pets":
            return pretend(step, plan, folder)
        attempts.append(step.name)
        checkpoint = folder / f"checkpoint-{len(attempts)}"
        checkpoint.mkdir()
        clock[0] += 10
        (checkpoint / "trainer_state.json").write_text("{}")
        os.utime(checkpoint / "trainer_state.json", (clock[0], clock[0]))
        clock[0] += 5
        if len(attempts) < 3:
            raise KeyboardInterrupt
        pretend(step, plan, folder)

    attempts = []
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            run_comparison(plan, tmp_path / "output", execute=work)
        clock[0] += 500
    run_comparison(plan, tmp_path / "output", execute=work)
    assert read_json(tmp_path / "output" / "results" / "dapt-pets.json")["seconds"] == 10 + 10 + 15


def test_vocabularies_differ_where_their_words_do(tmp_path):
    digests = [digest_vocabulary(save_tiny_bert(tmp_path / name, [name[:3]])) for name in ("cat", "cat-again", "dog")]
    assert digests[0] == digests[1] != digests[2]


def test_remaining_time_is_told_once_something_was_timed(plan, tmp_path):
    steps = list_steps(plan, tmp_path / "output")
    assert runner.estimate_minutes(steps, {}) is None
    results = {steps[0].name: {"status": "done", "kind": steps[0].kind, "seconds": 120.0}}
    assert runner.estimate_minutes(steps, results) == pytest.approx(2 * (len(steps) - 1))


def test_report_tells_results_of_changed_code(plan, tmp_path):
    run_comparison(plan, tmp_path / "output", execute=pretend)
    write_report(tmp_path / "output")
    assert "The code changed" not in (tmp_path / "output" / "report.md").read_text()
    path = tmp_path / "output" / "results" / "dapt-pets.json"
    result = read_json(path)
    result["environment"]["code"] = "0123456789"
    path.write_text(json.dumps(result))
    write_report(tmp_path / "output")
    assert "digests of it: 01234567 (1 results), " in (tmp_path / "output" / "report.md").read_text()


def test_steps_at_once_make_the_same_report(plan, tmp_path):
    run_comparison(plan, tmp_path / "one", execute=pretend)
    running, finished, most = {}, set(), 0

    def watch(step, plan, folder):
        nonlocal most
        assert set(step.needs) <= finished
        caches = [other.flags[name] for other in running.values() for name in runner.CACHES if name in other.flags]
        assert not set(caches) & {step.flags.get(name) for name in runner.CACHES}
        running[step.name] = step
        most = max(most, len(running))
        time.sleep(0.01)
        pretend(step, plan, folder)
        finished.add(running.pop(step.name).name)

    results = run_comparison(plan, tmp_path / "many", execute=watch, num_processes=4)
    assert [result["status"] for result in results] == ["done"] * len(finished)
    assert most == 4
    for folder in ("one", "many"):
        write_report(tmp_path / folder)
    assert (tmp_path / "one" / "report.md").read_text() == (tmp_path / "many" / "report.md").read_text()
    with pytest.raises(ValueError, match="at least 1, got 0"):
        run_comparison(plan, tmp_path / "many", num_processes=0)


@pytest.mark.parametrize("method", ["gmap", "rada"])
def test_steps_that_write_one_cache_wait_for_each_other(plan, tmp_path, method):
    steps = {step.name: step for step in list_steps(plan, tmp_path / "plan")}
    first, second, other = (
        steps[name] for name in (f"{method}-animals-seed1", f"{method}-animals-seed2", "tapt-animals")
    )
    assert runner.choose_step([second, other], [first]) is other
    assert runner.choose_step([second], [first]) is None
    assert runner.choose_step([second], []) is second


def test_parts_with_one_cache_wait_for_each_other(plan, tmp_path):
    """RADA and a RADA of another selection are of different parts, and read the same passages with the same encoder."""
    locks = tmp_path / "output" / "locks"
    locks.mkdir(parents=True)
    held = []

    def watch(step, plan, folder):
        for name in runner.CACHES:
            if name in step.flags:
                lock = FileLock(locks / f"cache-{os.path.basename(step.flags[name])}.lock", timeout=0)
                with pytest.raises(Timeout):
                    lock.acquire()
                held.append(step.name)
        pretend(step, plan, folder)

    run_comparison(plan, tmp_path / "output", execute=watch)
    assert "rada-animals-seed1" in held and "gmap-entities-seed2" in held


def test_second_process_on_a_part_is_refused(plan, tmp_path):
    (tmp_path / "output" / "locks").mkdir(parents=True)
    with (
        FileLock(tmp_path / "output" / "locks" / "part-1-of-2.lock"),
        pytest.raises(ValueError, match="another process runs part 1/2"),
    ):
        run_comparison(plan, tmp_path / "output", (1, 2), pretend)


def test_budget_of_minutes(content, tmp_path):
    content["budget"] = {"minutes": 0.5}
    content["methods"] = {"dapt": None, "tapt": {"tasks": ["animals"]}}
    plan = load_plan(write_plan(content, tmp_path))
    trained = {}

    def note(step, plan, folder):
        trained[step.name] = step.flags.get("max_steps")
        pretend(step, plan, folder)

    run_comparison(plan, tmp_path / "output", execute=note)
    assert trained["dapt-pets-probe"] == trained["tapt-animals-probe"] == 20
    assert trained["tapt-animals"] == 60
    assert (tmp_path / "output" / "texts" / "animals.txt").read_text().startswith("the cat sat on the mat 0\n")
    assert trained["dapt-pets"] == 60  # 30 seconds at 2 steps a second
    path = tmp_path / "output" / "results" / "dapt-pets.json"
    result = read_json(path)
    assert result["tokens"] == 60 * 4 * 16
    path.write_text(json.dumps(result | {"seconds": 36}))
    result = read_json(path.with_name("tapt-animals.json"))
    path.with_name("tapt-animals.json").write_text(json.dumps(result | {"seconds": 24}))
    write_report(tmp_path / "output")
    expected = "the same budget: 0.5 minutes (measured, with loading and saving: 0.4 to 0.6)"
    assert expected in (tmp_path / "output" / "report.md").read_text()


# ------------------------------------------------------------------------------------------------------- report


def test_report_says_what_the_results_say(plan, tmp_path):
    results = {result["name"]: result for result in run_comparison(plan, tmp_path / "output", execute=pretend)}
    report = write_report(tmp_path / "output")
    text = (tmp_path / "output" / "report.md").read_text()
    scores = [results[f"varmae-animals-seed{seed}"]["score"] for seed in (1, 2)]
    baseline = [results[f"dapt-animals-seed{seed}"]["score"] for seed in (1, 2)]
    assert report.differences["varmae"]["animals"].mean == pytest.approx(np.mean(scores) - np.mean(baseline))
    assert f"| VarMAE | {np.mean(scores):.1f} ± {compute_interval(scores):.1f} (" in text
    loss = results["encoder-on-general"]["masked_lm_loss"]
    assert f"| the encoder as it was | {loss:.3f} |" in text
    assert report.costs["average"]["tokens"] == report.costs["dapt"]["tokens"] == 16 * 64
    assert report.costs["dapt"]["inference ms"] == 20
    assert "preparation s" in report.costs["adalm"].keys() & report.costs["rada"].keys() - report.costs["dapt"].keys()
    costs = [line for line in text.splitlines() if "20.0" in line]
    assert [line for line in costs if "(cached)" in line] == [
        line for line in costs if line.startswith(("| G-MAP", "| RADA"))
    ]
    assert "dapt" not in [name for name, row in report.differences.items() if row]
    assert not list((tmp_path / "output").rglob("dapt-animals-seed1/*.safetensors"))
    assert list((tmp_path / "output").rglob("dapt-pets/*.safetensors"))


def test_losses_of_other_tokens_are_marked_and_not_drawn(content, tmp_path, vocabularies):
    content["methods"] = {
        "dapt": None,
        "fine_tune": None,
        "adalm": None,
        "more": {"recipe": "varmae", "after": "adalm"},
        "mine": {"recipe": "fine_tune", "encoder": "theirs"},
    }
    vocabularies |= {"more-pets": "expanded", "theirs": "their own"}
    run_comparison(load_plan(write_plan(content, tmp_path)), tmp_path / "plan", execute=pretend)
    written = write_report(tmp_path / "plan")
    lines = (tmp_path / "plan" / "report.md").read_text().splitlines()
    for title, is_own in (
        ("AdaLM vocabulary + DAPT", True),
        ("VarMAE (more), after adalm", True),
        ("fine-tuning only (mine)", True),
        ("DAPT", False),
    ):
        row = [line for line in lines if line.startswith(f"| {title} | ")][-1]
        assert row.count(f"{written.losses[title]['pets']:.3f}") == 1 and row.count(" (own tokens) |") == 2 * is_own
    assert "preparation s" in written.costs["more"]  # of the encoder that it starts from
    # The order of a row is not that of a set: the same results make the same file, byte for byte.
    spent = ["pre-training s", "tokens", "trained parameters", "checkpoint MB", "fine-tuning s", "inference ms"]
    assert list(written.costs["more"]) == [*spent, "preparation s"]
    assert "preparation s" not in written.costs["dapt"]
    figure = report._draw_losses(written, pyplot)
    assert [text.get_text() for text in figure.axes[0].get_legend().get_texts()] == ["DAPT"]
    pyplot.close(figure)


def test_report_without_dapt_speaks_of_no_difference(content, tmp_path):
    content["methods"] = {"tapt": None}
    run_comparison(load_plan(write_plan(content, tmp_path)), tmp_path / "output", execute=pretend)
    assert not any(write_report(tmp_path / "output").differences.values())
    assert "DAPT" not in (tmp_path / "output" / "report.md").read_text()


def test_training_curve(tmp_path):
    history = [{"step": 10, "loss": 3.0}, {"step": 20, "loss": 2.5}, {"step": 20, "eval_loss": 2.0}]
    state = tmp_path / "trainer_state.json"
    state.write_text(json.dumps({"log_history": history}))
    assert draw_training(state, tmp_path / "training.png")
    assert (tmp_path / "training.png").stat().st_size > 1000
    state.write_text(json.dumps({"log_history": history[2:]}))
    assert not draw_training(state, tmp_path / "none.png")
    assert not (tmp_path / "none.png").exists()


def test_report_without_results(tmp_path):
    with pytest.raises(FileNotFoundError, match="there are no results in"):
        write_report(tmp_path)


# ------------------------------------------------------------------------------------------------------- script


def test_script_is_killed_and_goes_on(content, tmp_path, monkeypatch, capsys):
    save_tiny_bert(tmp_path / "encoder", SENTENCES)
    content["methods"] = {
        "tapt": None,
        "dapt": None,
        "average": {"after": "dapt"},
        "rada": None,
        "gmap": {"after": "dapt"},
    }
    content["datastore"] = {"max_length": 32}
    content["seeds"], content["general"] = [1], None
    path = write_plan(content, tmp_path)
    command = [sys.executable, compare_script.__file__, str(path)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
    while not (tmp_path / "plan" / "results" / "tapt-animals.json").is_file() and process.poll() is None:
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    done = {p.name: p.stat().st_mtime_ns for p in (tmp_path / "plan" / "results").glob("*.json")}
    assert 0 < len(done) < len(list_steps(load_plan(path), tmp_path / "plan"))
    monkeypatch.setattr(sys, "argv", ["compare", str(path)])
    compare_script.main()
    assert "## Scores" in capsys.readouterr().out
    results = {p.name: p.stat().st_mtime_ns for p in (tmp_path / "plan" / "results").glob("*.json")}
    assert {name: results[name] for name in done} == done
    assert len(results) == len(list_steps(load_plan(path), tmp_path / "plan"))
    result = read_json(tmp_path / "plan" / "results" / "dapt-animals-seed1.json")
    assert result["score"] == pytest.approx(100 * result["metrics"]["predict_macro_f1"])
    result = read_json(tmp_path / "plan" / "results" / "dapt-entities-seed1.json")
    assert result["score"] == pytest.approx(100 * result["metrics"]["predict_f1"])
    monkeypatch.setattr(sys, "argv", ["compare", str(path), "--report_only"])
    compare_script.main()
    monkeypatch.setattr(sys, "argv", ["compare", str(path), "--dry_run"])
    capsys.readouterr()
    compare_script.main()
    assert capsys.readouterr().out == ""
    (tmp_path / "plan" / "results" / "dapt-pets.json").unlink()
    compare_script.main()
    assert capsys.readouterr().out.startswith("dapt-pets: run_mlm --method dapt")


def test_wrong_shard_on_the_command_line(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["compare", "plan.yaml", "--shard", "5/4"])
    with pytest.raises(SystemExit):
        compare_script.main()
    assert "a shard is written 2/4, the second of four, got 5/4" in capsys.readouterr().err
