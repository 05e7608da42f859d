"""Short plans: what they leave out follows from the files."""

import json

import pytest
import yaml
from pretended_runs import pretend, run_comparison
from pretended_runs import write_plan as write_content
from script_runs import write_jsonl

from hf_domain.comparison.plan import write_plan
from hf_domain.comparison.prepare import load_plan
from hf_domain.comparison.report import write_report
from hf_domain.comparison.steps import list_steps

SHORT = """\
encoder: encoder
corpus: corpus.txt
task: animals
methods: [fine_tune, dapt, varmae]
budget: {tokens: 40960}
"""


@pytest.fixture
def short(content, tmp_path):
    """A plan of five lines; its corpus has numbered documents."""
    documents = [f"document {number} of the domain" for number in range(100)]
    (tmp_path / "corpus.txt").write_text("\n".join(documents))
    (tmp_path / "plan.yaml").write_text(SHORT)
    return tmp_path / "plan.yaml"


def read_documents(file):
    return [json.loads(line)["text"] for line in file.read_text().splitlines()]


def test_a_plan_of_five_lines_runs(short, tmp_path):
    short.write_text(f"{SHORT}fine_tuning: {{learning_rate: 1e-4}}\n")  # a text for YAML 1.1
    plan = load_plan(short)
    assert plan.fine_tuning == {"learning_rate": 1e-4}
    assert (plan.tasks["animals"].kind, plan.tasks["animals"].metric) == ("classification", "macro_f1")
    assert plan.tasks["animals"].corpus == "domain"
    results = run_comparison(plan, tmp_path / "plan", execute=pretend)
    assert all(result.is_done for result in results)
    assert list(write_report(tmp_path / "plan").scores) == ["no_adaptation", "dapt", "varmae"]


def test_a_short_plan_has_the_steps_of_the_long_one(content, short, tmp_path, load):
    plan = load_plan(short)
    corpus = plan.corpora["domain"]
    content |= {"corpora": {"domain": vars(corpus)}, "methods": dict.fromkeys(plan.methods), "general": None}
    content |= {"seeds": [1, 2, 3], "budget": {"tokens": 40960}, "pretraining": {}, "fine_tuning": {}}
    content["tasks"] = {"animals": {"folder": "animals", "kind": "classification", "corpus": "domain"}}
    long = load()
    assert list_steps(long, tmp_path / "plan") == list_steps(plan, tmp_path / "plan")


def test_another_plan_is_kept_under_a_number(tmp_path, caplog):
    path = tmp_path / "new" / "plan.yaml"
    for seeds in ([1], [1], [1, 2], [3]):
        write_plan({"seeds": seeds}, path)
    kept = {file.name: yaml.safe_load(file.read_text())["seeds"] for file in path.parent.iterdir()}
    assert kept == {"plan.yaml.1": [1], "plan.yaml.2": [1, 2], "plan.yaml": [3]}
    assert [record.message.rpartition(" is ")[2] for record in caplog.records] == [f"{path}.1.", f"{path}.2."]


def test_held_out_text_is_split_off_once(short, tmp_path):
    corpus = load_plan(short).corpora["domain"]
    train, held_out = (read_documents(tmp_path / file) for file in (corpus.train_file, corpus.validation_file))
    assert len(held_out) == 5
    assert sorted(train + held_out) == sorted((tmp_path / "corpus.txt").read_text().splitlines())
    assert held_out != train[-5:]  # drawn at random
    times = {file: file.stat().st_mtime_ns for file in (tmp_path / "plan" / "data").iterdir()}
    assert load_plan(short).corpora["domain"] == corpus
    assert times == {file: file.stat().st_mtime_ns for file in (tmp_path / "plan" / "data").iterdir()}
    elsewhere = load_plan(short, tmp_path / "elsewhere").corpora["domain"]
    assert read_documents(tmp_path / elsewhere.validation_file) == held_out
    assert elsewhere.validation_file.startswith("elsewhere/data/domain-")
    (tmp_path / "corpus.txt").write_text("\n".join(train))
    assert load_plan(short).corpora["domain"].train_file != corpus.train_file  # other text, another name


def test_nothing_is_written_for_a_wrong_plan(short, tmp_path):
    short.write_text(SHORT.replace("varmae", "magic"))
    with pytest.raises(ValueError, match="nothing was run"):
        load_plan(short)
    assert not (tmp_path / "plan").exists()


def test_several_tasks_and_corpora_by_their_paths(content, load):
    content["corpora"] = {"pets": "corpus.txt", "general": "general.txt"}
    content["tasks"] = ["animals", "entities"]
    plan = load()
    assert {name: (task.kind, task.corpus) for name, task in plan.tasks.items()} == {
        "animals": ("classification", "pets"),
        "entities": ("ner", "pets"),
    }
    assert all(corpus.validation_file for corpus in plan.corpora.values())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"corpus": "corpus.txt"}, "corpus must not be set beside corpora, but both are set"),
        ({"task": "animals"}, "task must not be set beside tasks, but both are set"),
        ({"methods": ["dapt", "varmae", "dapt"]}, "methods must have different names, but dapt occurs twice"),
        ({"tasks": ["animals", "old/animals"]}, "tasks must have different names, but animals occurs twice"),
        ({"methods": ["dapt", {"varmae": None}]}, "methods must be a mapping, but is .'dapt', "),
        ({"methods": []}, "methods must have at least one entry, but has none"),
        ({"tasks": ["nothing"]}, "tasks: nothing: there is no file nothing/train.jsonl"),
        ({"tasks": ["words"]}, "tasks: words: a task must have the columns of its kind .* has words. Rename"),
        (
            {"general": None, "tasks": ["animals"]},
            "animals: corpus must be set, because the plan has several: pets, gen",
        ),
        ({"corpora": {"pets": "nowhere.txt"}, "general": None}, "corpora: pets: there is no file nowhere.txt"),
    ],
)
def test_problems_of_a_short_plan(content, tmp_path, changes, message):
    (tmp_path / "words").mkdir()
    write_jsonl(tmp_path / "words" / "train.jsonl", [{"words": ["a"]}])
    with pytest.raises(ValueError, match=message):
        load_plan(write_content(content | changes, tmp_path))
