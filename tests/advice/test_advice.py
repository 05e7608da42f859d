"""Facts that are measured, rules that read them, and the plan that follows."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import yaml
from script_runs import save_tiny_bert, write_jsonl
from transformers import AutoModelForMaskedLM, AutoTokenizer

from hf_domain import cli
from hf_domain.advice import advise
from hf_domain.advice.facts import CorpusFacts, Facts, TaskFacts, Words, count_pieces, measure_balance, measure_loss
from hf_domain.advice.rules import (
    PASSES,
    RULES,
    apply_rules,
    choose_budget,
    choose_plain_rule,
    choose_samples,
    estimate_fine_tuning,
    estimate_pretraining,
    judge_distance,
)
from hf_domain.comparison.costs import time_training
from hf_domain.comparison.plan_loading import load_plan
from hf_domain.comparison.rows import RECIPES
from hf_domain.data.corpora import tokenize_corpus
from hf_domain.datastore.languages import CJK, ENGLISH, LATIN
from hf_domain.examples import advise as command

ROOT = Path(__file__).parents[2]
KNOWN = ["the cat sat on the mat", "a dog ran to the hill", "the bird sang in a tree"]
PLAIN_WORDS = Words(pieces=1.1, new=0.08, broken=0.01, unknown=0.0)
TASK = TaskFacts("task", "classification", 1000, 500, 0, 20.0, PLAIN_WORDS, None, 3.1, 0.4, "macro_f1", 20.0, 25.0)
CORPUS = CorpusFacts(1000, 1_000_000, ENGLISH, PLAIN_WORDS, loss=3.0)
UNREADABLE = replace(PLAIN_WORDS, unknown=0.6, broken=0.2)
FACTS = Facts("encoder", 1_000_000, 1e-4, CORPUS, (TASK,), visible=0.8)


@pytest.fixture
def files(tmp_path):
    """An encoder, a corpus of its words, general text of others, and a task whose test part repeats a training text."""
    save_tiny_bert(tmp_path / "encoder", KNOWN)
    (tmp_path / "corpus.txt").write_text("\n".join(KNOWN * 40), encoding="utf-8")
    (tmp_path / "general.txt").write_text("\n".join(KNOWN * 30), encoding="utf-8")
    rows = [{"text": f"{text} {number}", "label": text.split()[1]} for number, text in enumerate(KNOWN * 5)]
    parts = {"train": rows, "validation": rows[:3], "test": [*rows[:2], {"text": "a cat", "label": "cat"}]}
    (tmp_path / "animals").mkdir()
    for split, content in parts.items():
        write_jsonl(tmp_path / "animals" / f"{split}.jsonl", content)
    return tmp_path


def list_rows(facts):
    return [reason.row for reason in apply_rules(facts) if reason.row]


def test_rows_of_a_plain_case():
    assert list_rows(FACTS) == ["fine_tune", "longer", "dapt", "tapt_after_dapt", "tapt", "varmae", "average"]
    assert all(rule.row in RECIPES or rule.options(FACTS)["recipe"] in RECIPES for rule in RULES if rule.row)


@pytest.mark.parametrize(
    ("changes", "row", "is_there"),
    [
        ({"corpus": replace(CORPUS, general_words=PLAIN_WORDS, general_loss=2.9)}, "control", True),
        ({"corpus": replace(CORPUS, general_words=PLAIN_WORDS, general_loss=2.9)}, "gmap", False),
        ({"corpus": replace(CORPUS, general_words=PLAIN_WORDS, general_loss=2.5)}, "gmap", True),
        ({"corpus": replace(CORPUS, words=replace(PLAIN_WORDS, broken=0.2))}, "adalm", True),
        ({"corpus": replace(CORPUS, words=replace(PLAIN_WORDS, broken=0.2), language=CJK)}, "adalm", False),
        ({"tasks": (replace(TASK, entity_words=replace(PLAIN_WORDS, broken=0.2)),)}, "adalm", True),
        ({"corpus": replace(CORPUS, words=replace(PLAIN_WORDS, broken=0.2))}, "exbert", False),
        ({"corpus": replace(CORPUS, words=replace(PLAIN_WORDS, broken=0.2), tokens=10**8)}, "exbert", True),
        ({"corpus": replace(CORPUS, words=UNREADABLE, general_words=PLAIN_WORDS, general_loss=1.0)}, "adalm", False),
        ({"corpus": replace(CORPUS, words=UNREADABLE, general_words=PLAIN_WORDS, general_loss=1.0)}, "gmap", False),
        ({"corpus": replace(CORPUS, tokens=10**8)}, "varmae", False),
        ({"tasks": (replace(TASK, train=100),)}, "tapt_after_dapt", False),
        ({"tasks": (replace(TASK, train=100),)}, "tapt", False),
        ({"tasks": (replace(TASK, train=2_600),)}, "longer", False),
        ({"tasks": (replace(TASK, kind="retrieval"),)}, "longer", False),
        ({"tasks": (replace(TASK, nearest=31.0),)}, "rada", True),
        ({"tasks": (replace(TASK, nearest=None),)}, "rada", False),
        ({"tasks": (replace(TASK, nearest=31.0),)}, "vote", True),
        ({"tasks": (replace(TASK, nearest=29.0),)}, "vote", False),
    ],
)
def test_facts_decide_on_rows(changes, row, is_there):
    assert (row in list_rows(replace(FACTS, **changes))) == is_there


def test_a_memory_is_recommended_for_the_tasks_that_can_have_one():
    """A comparison refuses G-MAP on a retrieval."""
    far = replace(FACTS, corpus=replace(CORPUS, general_words=PLAIN_WORDS, general_loss=2.5))
    search = replace(TASK, name="search", kind="retrieval")
    assert "gmap" not in list_rows(replace(far, tasks=(search,)))
    for tasks, options in (((TASK,), {}), ((TASK, search), {"tasks": ["task"]})):
        (reason,) = [reason for reason in apply_rules(replace(far, tasks=tasks)) if reason.row == "gmap"]
        assert reason.options == options


def test_warnings_name_what_was_found():
    def say(**changes):
        return " ".join(reason.text for reason in apply_rules(replace(FACTS, **changes)) if not reason.row)

    assert say() == ""
    assert "3 of 500 in task" in say(tasks=(replace(TASK, leaked=3),))
    assert "90% in task" in say(tasks=(replace(TASK, largest_label=0.9),))
    assert "less than the 2.5 points" in say(visible=2.5)
    unreadable = say(corpus=replace(CORPUS, words=UNREADABLE, language=CJK))
    assert "Use another encoder" in unreadable and "60% in the corpus" in unreadable
    assert "about 9,000 tokens are few" in say(corpus=replace(CORPUS, tokens=9000))


def test_the_balance_of_labels():
    rows = [{"label": ["law", "pets"]}, {"label": ["law"]}, {"label": []}, {"label": ["trees"]}]
    assert measure_balance("multi_label", rows) == (0.5, 0.25)
    assert measure_balance("classification", [{"label": "law"}, {"label": "pets"}, {"label": "law"}]) == (2 / 3, None)
    tags = [["B-gene", "I-gene", "O", "B-cell"], ["O"], ["B-gene", "B-gene"], ["O", "O"]]
    assert measure_balance("ner", [{"tags": each} for each in tags]) == (0.75, 0.5)
    assert measure_balance("ner", [{"tags": ["O"]}]) == (None, 1.0)
    assert measure_balance("regression", [{"label": 0.5}]) == (None, None)


def test_each_kind_of_task_says_how_balanced_it_is():
    balanced = replace(TASK, largest_label=0.75, unlabeled=0.5)
    assert "; 40% have the most frequent label; " in TASK.describe("words")
    said = replace(balanced, kind="multi_label").describe("words")
    assert "; 75% have the most frequent label, and 50% none; " in said
    tagged = replace(balanced, kind="ner", largest_label=0.95)
    said = tagged.describe("words")
    assert "; 95% of the entities have the most frequent type, and 50% of the texts no entity; " in said
    assert not [reason for reason in apply_rules(replace(FACTS, tasks=(tagged,))) if "same label" in reason.text]


def test_the_distance_is_that_of_the_task_texts():
    near = replace(CORPUS, general_words=PLAIN_WORDS, general_loss=3.0)
    assert "tells little of the gain" in judge_distance(replace(FACTS, corpus=near))
    far = replace(FACTS, corpus=near, tasks=(TASK, replace(TASK, name="other", loss=3.4)))
    assert "the corpus +0.00, task +0.10, other +0.40" in judge_distance(far)
    assert "Expect a gain on other," in judge_distance(far)
    assert "8% of its words" in judge_distance(FACTS) and "--general" in judge_distance(FACTS)
    unreadable = replace(FACTS, corpus=replace(near, words=UNREADABLE))
    assert "Expect a gain" not in judge_distance(unreadable)


def test_the_plain_rule_is_a_row_of_the_plan():
    assert choose_plain_rule(["fine_tune", "dapt", "tapt_after_dapt", "tapt"]) == "tapt"
    assert choose_plain_rule(["fine_tune", "dapt", "varmae"]) == "dapt"


def test_the_budget_fits_the_time_and_the_corpus():
    # 3,600 s at 0.0001 s a token are 36 million tokens; DAPT costs one share of them, VarMAE 0.33.
    large = replace(FACTS, corpus=replace(CORPUS, tokens=10**9))
    rows = {"fine_tune": None, "dapt": None}
    assert choose_budget(large, rows | {"varmae": None}, hours=1) == 27_000_000
    assert choose_budget(FACTS, rows, hours=100) == PASSES * CORPUS.tokens
    assert estimate_pretraining(FACTS, rows, 36_000_000) == {"fine_tune": 0, "dapt": pytest.approx(1)}


def test_nine_epochs_take_three_times_the_hours_of_three():
    hours = estimate_fine_tuning(FACTS, {"fine_tune": None, "longer": None}, 500)
    # Five seeds of 500 examples of 20 tokens, at 0.0001 s a token.
    assert hours == {"fine_tune": pytest.approx(5 * 3 * 500 * 20 * 1e-4 / 3600), "longer": 3 * hours["fine_tune"]}


def test_an_encoder_for_each_task_takes_as_many_times_the_hours():
    tasks = tuple(replace(TASK, name=name) for name in ("one", "two", "three"))
    facts = replace(FACTS, tasks=tasks, corpus=replace(CORPUS, tokens=10**9))
    rows = {"dapt": None, "tapt_after_dapt": None, "tapt": {"tasks": ["one", "two"]}}
    assert choose_budget(facts, rows, hours=1) == 6_000_000  # one, three and two trainings
    hours = estimate_pretraining(facts, rows, 36_000_000)
    assert hours == pytest.approx({"dapt": 1, "tapt_after_dapt": 3, "tapt": 2})


def test_hours_limit_pretraining_and_fine_tuning():
    # Of one row: 5 seeds x 3 epochs x 100 texts x 20 tokens.
    rows = {"fine_tune": None, "dapt": None, "rada": {"tasks": []}}
    assert estimate_fine_tuning(FACTS, rows, 100) == {
        "fine_tune": pytest.approx(30_000 * 1e-4 / 3600),
        "dapt": pytest.approx(30_000 * 1e-4 / 3600),
        "rada": 0,
    }
    two = {"fine_tune": None, "dapt": None}
    whole = sum(estimate_fine_tuning(FACTS, two, 1000).values())  # the task has 1,000
    assert choose_samples(FACTS, two, hours=2.1 * whole) == 2000
    assert choose_samples(FACTS, two, hours=1.1 * whole) == 500
    assert choose_samples(FACTS, two, hours=0.01 * whole) == 250


def test_pieces_of_words(files):
    tokenizer = AutoTokenizer.from_pretrained(files / "encoder")
    known = count_pieces(KNOWN, tokenizer)
    assert known == Words(pieces=1.0, new=0.0, broken=0.0, unknown=0.0)
    words = ["cat", "catdogs", "mat"]
    cut = len(tokenizer.tokenize("catdogs"))
    assert cut != 1 or tokenizer.tokenize("catdogs") == ["[UNK]"]
    own = count_pieces([words], tokenizer, [[False, True, False]])
    assert own.pieces == cut and own.broken == (cut >= 3) and own.new == 1
    chinese = count_pieces(["\u79df\u91d1", KNOWN[0]], tokenizer)
    assert chinese.unknown > 0 and chinese.new == pytest.approx(chinese.unknown)


def test_language_decides_what_is_said(files):
    german = "Der Hund und die Katze sind von dem Haus mit einem Ball und der Vogel ist in dem Baum. "
    (files / "corpus.txt").write_text("\n".join([german] * 40), encoding="utf-8")
    advice = advise(str(files / "encoder"), files / "corpus.txt", [files / "animals"], max_seq_length=16)
    assert advice.facts.corpus.language == LATIN
    assert "another language in Latin letters, so passages are searched with the analyzer standard" in str(advice)


def test_the_advice_says_whether_the_hours_suffice(files, capsys):
    options = {"max_seq_length": 16, "hours": 100}
    advice = advise(str(files / "encoder"), files / "corpus.txt", [files / "animals"], **options)
    assert advice.hours < 100 and "more than" not in advice.describe_time()
    assert set(advice.pretraining) == set(advice.fine_tuning) == set(advice.plan["methods"])
    assert str(advice).splitlines()[-1].startswith("With time for one pre-training only, ")
    tight = advise(str(files / "encoder"), files / "corpus.txt", [files / "animals"], max_seq_length=16, hours=1e-6)
    assert "This is more than the 1e-06 hours given." in tight.describe_time()
    assert "Measuring" not in capsys.readouterr().err


def test_speed_and_loss_leave_the_encoder_as_it_is(files):
    model = AutoModelForMaskedLM.from_pretrained(files / "encoder")
    tokenizer = AutoTokenizer.from_pretrained(files / "encoder")
    blocks = tokenize_corpus(KNOWN * 20, tokenizer, max_seq_length=16)["train"]
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    first = measure_loss(model, blocks, tokenizer)
    assert time_training(model, 4, 16) > 0
    assert measure_loss(model, blocks, tokenizer) == first
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


def test_the_command_writes_a_plan_that_a_comparison_takes(files, monkeypatch, capsys):
    arguments = ["--encoder", "encoder", "--corpus", "corpus.txt", "--task", "animals"]
    arguments += ["--general", "general.txt", "--max_seq_length", "16", "--output_dir", "advice"]
    monkeypatch.chdir(files)
    monkeypatch.setattr("sys.argv", ["hf-domain", "advise", *arguments])
    cli.main()
    said = capsys.readouterr().out
    plan = load_plan(files / "advice" / "plan.yaml")
    assert {"fine_tune", "dapt", "control"} <= plan.methods.keys() and plan.general == "general"
    assert plan.tasks["animals"].kind == "classification"
    facts = json.loads((files / "advice" / "advice.json").read_text())["facts"]
    assert (facts["tasks"][0]["leaked"], facts["tasks"][0]["train"], facts["tasks"][0]["test"]) == (2, 15, 3)
    assert "2 of 3 in animals" in said and "hf-domain compare advice/plan.yaml" in said
    assert "2 of 3 in animals" in (files / "advice" / "advice.md").read_text()
    with pytest.raises(FileExistsError, match="--output_dir must be a new folder"):
        monkeypatch.setattr("sys.argv", ["advise.py", *arguments])
        command.main()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hours": 0}, "hours must be above 0, but is 0"),
        ({"tasks": []}, "tasks must be one or more, but are none"),
        ({"tasks": ["animals", "other/animals"]}, "tasks must be folders with different names"),
        ({"general": "corpus.txt"}, "general text and corpus must be different files, but both are corpus.txt"),
        ({"corpus": "nowhere.txt"}, "(?s)the plan of the advice has .*there is no file"),
        ({"tasks": ["nowhere"]}, "there is no file"),
    ],
)
def test_what_cannot_be_compared_is_refused(files, monkeypatch, changes, message):
    monkeypatch.chdir(files)
    options = {"encoder": "encoder", "corpus": "corpus.txt", "tasks": ["animals"], **changes}
    with pytest.raises(ValueError, match=message):
        advise(**options)


def test_the_advice_is_saved_as_it_is(files, tmp_path):
    advice = advise(str(files / "encoder"), files / "corpus.txt", [files / "animals"], max_seq_length=16)
    path = advice.save(tmp_path / "new" / "folder")
    assert yaml.safe_load(path.read_text()) == advice.plan
    comments = re.findall(r"((?:^  # .*\n)+)  (\w+):", path.read_text(), re.MULTILINE)
    said = {row: " ".join(re.findall(r"# (.*)", comment)) for comment, row in comments}
    assert said == {reason.row: f"{reason.text} ({reason.source})" for reason in advice.reasons if reason.row}
    assert str(advice) in path.with_name("advice.md").read_text()
    assert str(advice).startswith("Measured:") and "Rows of the plan:" in str(advice)
