"""What the advice measures, and the plan that it makes of it."""

import json
import sys
from dataclasses import replace

import pytest
import yaml
from script_runs import call_main, save_tiny_bert, write_jsonl
from tiny_tokenizers import SENTENCES, make_bert_tokenizer

import hf_domain
from hf_domain import advice
from hf_domain.advice import QUICK, Effort, Facts, TaskFacts, count_pieces, list_rows, make_advice
from hf_domain.comparison.plan import Budget
from hf_domain.comparison.prepare import load_plan

TASK = TaskFacts("mine", "classification", train=1600, test=400, lengths=(20, 40, 60, 80, 200), leaked=0)
FACTS = Facts(5_000_000, 4, 2e-4, 1000, 200_000, broken=0.02, unknown=0.0, tasks=(TASK,))
DRAFT = {"encoder": "e", "corpora": {"domain": {"train_file": "c"}}, "tasks": {"mine": {"folder": "mine"}}}


def advise(facts=FACTS, minutes=60, **draft):
    return make_advice(facts, DRAFT | draft, 60 * minutes, 128, {})


@pytest.fixture
def files(tmp_path):
    save_tiny_bert(tmp_path / "encoder", SENTENCES)
    (tmp_path / "corpus.txt").write_text("\n".join(f"{text} {n}" for n, text in enumerate(SENTENCES * 20)))
    (tmp_path / "mine").mkdir()
    rows = [{"text": f"{SENTENCES[n % 4]} {n}", "label": "ab"[n % 2]} for n in range(24)]
    for split in ("train", "validation", "test"):
        write_jsonl(tmp_path / "mine" / f"{split}.jsonl", rows[:4] + [{"text": split, "label": "a"}] * 2)
    return tmp_path


def test_an_advice_is_a_plan_that_runs(files, capsys, monkeypatch):
    found = hf_domain.advise(files / "encoder", files / "corpus.txt", files / "mine", minutes=1, max_seq_length=16)
    plan = load_plan(found.save(files / "advice"))
    assert [*plan.methods] == [row.name for row in found.rows] and plan.budget == Budget(found.plan["budget"]["tokens"])
    (task,) = found.facts.tasks
    assert (task.kind, task.train, task.test, task.leaked) == ("classification", 6, 6, 4)
    assert "4 test items are also training texts: remove them." in str(found)
    # The command writes the same plan.
    from hf_domain.examples import advise as script

    monkeypatch.setattr(advice, "time_training", lambda *_: found.facts.seconds_per_token)
    flags = {"encoder": files / "encoder", "corpus": files / "corpus.txt", "task": files / "mine"}
    flags |= {"minutes": 1, "max_seq_length": 16, "output_dir": files / "again"}
    call_main(script.main, monkeypatch, **flags)
    again = yaml.safe_load((files / "again" / "plan.yaml").read_text())
    assert again["methods"] == json.loads(json.dumps(found.plan["methods"])) and again["budget"] == found.plan["budget"]
    assert f"Next: hf-domain compare {files / 'again' / 'plan.yaml'}" in capsys.readouterr().out
    with pytest.raises(FileExistsError, match="must be new or empty"):
        script.main()


def test_problems_name_the_advice(files, monkeypatch):
    with pytest.raises(ValueError, match="the plan of the advice has 1 problem"):
        hf_domain.advise(files / "encoder", files / "nothing.txt", files / "mine")
    with pytest.raises(ValueError, match="must be different files"):
        hf_domain.advise(files / "encoder", files / "corpus.txt", files / "mine", general=files / "corpus.txt")
    with pytest.raises(ValueError, match="minutes must be above 0"):
        hf_domain.advise(files / "encoder", files / "corpus.txt", files / "mine", minutes=-1.0)
    from hf_domain.examples import advise as script

    flags = {"encoder": files / "encoder", "corpus": files / "corpus.txt", "task": files / "corpus.txt"}
    with pytest.raises(ValueError, match=r"corpus.txt is a file. `hf-domain quickstart` splits"):
        call_main(script.main, monkeypatch, **flags, output_dir=files / "new")


def test_words_are_counted_by_their_pieces():
    tokenizer = make_bert_tokenizer()
    pieces, unknown = count_pieces([f"{SENTENCES[0]}  \u4e2d", ""], tokenizer)
    words = [*SENTENCES[0].split(), "\u4e2d"]
    assert pieces == [len(tokenizer.tokenize(word)) for word in words]
    assert unknown == [token for word in words for token in tokenizer.tokenize(word)].count("[UNK]") / sum(pieces) > 0


def test_rows_follow_from_the_facts():
    def names(has_general=False, **changes):
        return [row.name for row in list_rows(replace(FACTS, **changes), has_general)]

    assert names()[:5] == ["no_adaptation", "dapt", "vote", "varmae", "tapt"]
    assert "adalm" not in names() and "adalm" in names(broken=0.2) and "adalm" not in names(broken=0.2, unknown=0.3)
    assert "varmae" not in names(tokens=10**9) and "exbert" in names(tokens=10**9, broken=0.2)
    assert "tapt" not in names(tasks=(replace(TASK, train=20),))
    assert {"general_text", "gmap"} <= {*names(has_general=True)} and not {"general_text", "gmap"} & {*names()}
    entities = replace(TASK, name="entities", kind="ner")
    tasks = {row.name: row.tasks for row in list_rows(replace(FACTS, tasks=(TASK, entities)), False)}
    assert tasks["vote"] == ["mine"] and tasks["rada"] is None and "vote" not in names(tasks=(entities,))


def test_rows_without_their_extra_are_named(monkeypatch):
    every = advise(minutes=600)
    assert {"vote", "rada"} <= {row.name for row in every.rows} and every.missing is None
    monkeypatch.setitem(sys.modules, "tantivy", None)
    found = advise(minutes=600)
    assert [row for row in every.rows if row.name not in ("vote", "rada")] == found.rows
    assert "Left out: the search of vote and rada needs tantivy, which is not installed: pip install" in str(found)


def test_more_time_cuts_less_and_every_plan_fits():
    short, long = advise(minutes=5), advise(minutes=600)
    assert len(long.rows) > len(short.rows) >= 4 and len(long.plan["seeds"]) == 5 > len(short.plan["seeds"])
    assert long.plan["fine_tuning"]["max_steps"] == 1000 and not any("steps" in cut for cut in long.cuts)
    assert long.plan["budget"]["tokens"] == 10 * FACTS.tokens  # no more than ten passes
    for minutes in (5, 20, 60, 600):
        found = advise(minutes=minutes)
        assert found.seconds <= 1.15 * 60 * minutes, minutes
    text = str(short)
    assert "Left out for the time: the row" in text and "of 5 seeds" in text
    assert short.plan["fine_tuning"]["train_top_layers"] == 2 and "train_top_layers" not in long.plan["fine_tuning"]
    lengths = [found.plan["tasks"]["mine"]["options"]["max_seq_length"] for found in (short, long)]
    assert lengths == [64, 80]
    batches = [found.plan["fine_tuning"]["per_device_train_batch_size"] for found in (short, long)]
    weights = [found.plan["tasks"]["mine"]["options"].get("class_weights") for found in (short, long)]
    assert batches == [8, 16] and weights == ["balanced", None]
    scores = advise(replace(FACTS, tasks=(replace(TASK, kind="regression"),)), minutes=5)
    assert scores.plan["tasks"]["mine"]["options"] == {"max_seq_length": 64}
    # A machine that is ten times slower has no smaller plan to offer, and says how long it takes.
    slow = advise(replace(FACTS, seconds_per_token=1e-2), minutes=5)
    assert slow.seconds > 330 and f"about {round(slow.seconds / 60)} minutes" in str(slow)
    assert "This is the smallest plan: it does not fit into 5 minutes" in str(slow)
    assert "smallest" not in text


def test_two_cores_do_less_than_twice_the_work(monkeypatch):
    monkeypatch.setattr(advice.torch.cuda, "is_available", lambda: False)
    seconds = {}
    for workers in (1, 2):
        monkeypatch.setattr(advice, "count_workers", lambda number=workers: number)
        found = advise(minutes=60_000)  # enough for everything
        seconds[workers] = found.seconds
    assert (seconds[1] - 25) / (seconds[2] - 25) == pytest.approx(2 * 0.8)


def test_fine_tuning_is_estimated_by_its_tokens(monkeypatch):
    monkeypatch.setattr(advice, "SECONDS_OF_START", 0.0)
    rows = list_rows(FACTS, False)[:2]
    mean = (20 + 40 + 60 + 80 + 128) / 5
    tested = 6 * 400 / 3
    expected = 2 * 3 * (0.85 * 1000 * 16 + tested) * mean * 2e-4
    assert Effort(seeds=3).estimate(FACTS, rows) == pytest.approx(expected)
    few = (20 + 40 + 60 + 64 + 64) / 5
    expected = 2 * 3 * (0.6 * 700 * 8 + tested) * few * 2e-4
    assert Effort(seeds=3, **QUICK).estimate(FACTS, rows) == pytest.approx(expected)


def test_texts_that_nobody_can_read_are_named():
    assert any("Use another encoder" in line for line in replace(FACTS, unknown=0.2).describe())
