"""What a plan may hold, and that all its problems are reported at once."""

import shutil
import sys
import textwrap

import pytest
from pretended_runs import SENTENCES, pretend, run_comparison, write_plan
from script_runs import save_tiny_bert, write_jsonl

from hf_domain.comparison.checks import check_step_flags
from hf_domain.comparison.prepare import load_plan
from hf_domain.comparison.steps import list_steps
from hf_domain.examples import compare as compare_script


def test_all_problems_of_a_plan_are_reported_at_once(content, tmp_path, refuse):
    content["methods"] |= {"dance": None, "a": {"recipe": "dapt", "after": "b"}}
    content["methods"] |= {"b": {"recipe": "dapt", "after": "a"}, "c": {"recipe": "dapt", "after": "nobody"}}
    content["methods"] |= {"../up": {"recipe": "dapt", "pretraining": {"hub_token": "secret"}}}
    content["methods"]["no_adaptation"] = {"pretraining": {"learning_rate": 1}}
    content["tasks"]["animals"] |= {"metric": "bleu", "corpus": "law"}
    content["tasks"]["empty"] = {"kind": "classification", "folder": "nothing", "corpus": "pets"}
    content["corpora"]["pets"]["train_file"] = "corpus.docx"
    content["general"] = "wikipedia"
    content["methods"]["vote"] = None
    content["methods"]["general_text"] = {"tasks": ["animals", "plants"], "datastore": {"train_file": "corpus.txt"}}
    content["methods"]["lora"] = {"encoder": "mine", "after": "dapt"}
    content["methods"] |= {"read": {"recipe": "rada", "after": "adalm"}, "far": {"recipe": "dapt", "encoder": "/far"}}
    content["methods"]["words"] = {"recipe": "adalm", "encoder": "mine"}
    content["encoder"] = "../encoders/none"
    content["seeds"] = [1, 1]
    content["budget"] = {"tokens": 1, "minutes": 1}
    content["pretraining"]["line_by_line"] = True
    (tmp_path / "encoder").mkdir()
    error = refuse()
    for part in (
        "recipe must be one of no_adaptation, general_text, dapt, tapt",
        "after must not lead in a circle, but b is after a is after b",
        "after must be one of the methods, but is nobody",
        "because they name folders, but one is ../up. Rename it",
        "a plan must not contain a Hub token",
        "pretraining must be left out, because no_adaptation does not pre-train, but is {'learning_rate': 1}",
        "vote needs tasks of the kinds classification, multi_label, regression, but has ner",
        "methods: general_text: tasks must be among animals, entities, empty, but there is plants. Correct",
        "datastore must be left out, because general_text reads no passages, but is {'train_file': 'corpus.txt'}",
        "only one of encoder and after must be set, but they are mine and dapt. Remove one",
        "methods: words: encoder must be left out, because adalm expands the vocabulary of the plan's encoder",
        "metric must be one of macro_f1, micro_f1, positive_micro_f1 for classification, but is bleu",
        "corpus must be one of pets, general, but is law",
        "there is no file nothing/test.jsonl",
        "there is no file corpus.docx",
        "a corpus must be a file of .txt",
        "general must be one of the corpora",
        "seeds must be different numbers",
        "budget must have either tokens or minutes, but has both",
        "encoder: a model must be a folder or a name on the Hub, but ../encoders/none is neither",
        "methods: far: encoder: there is no folder /far",
        "methods: read: rada needs an encoder with the plan's tokenizer, which cuts the passages, but adalm expands",
        "a token budget needs packed blocks, but line_by_line is set",
    ):
        assert part in error
    assert "secret" not in error


def test_plan_of_the_documentation_is_one(content, tmp_path):
    text = textwrap.dedent(compare_script.__doc__.partition("A full one:\n\n")[2].rpartition("\n\n`pretraining`")[0])
    shutil.move(tmp_path / "animals", tmp_path / "acl_arc")
    for name in ("corpus", "heldout", "wikipedia", "wikipedia_heldout"):
        (tmp_path / f"{name}.txt.gz").write_bytes(b"")
    (tmp_path / "documented.yaml").write_text(text)
    assert list_steps(load_plan(tmp_path / "documented.yaml"), tmp_path / "output")


def test_unknown_and_missing_fields_of_a_plan(content, tmp_path, refuse):
    content |= {"encoder": None, "seed": 3}
    content["tasks"]["animals"]["metrics"] = "f1"
    del content["tasks"]["entities"]["folder"]
    error = refuse()
    for part in (
        "encoder is missing",
        "seed is not a field of a plan. Remove it, or correct its name",
        "tasks: animals: metrics is not a field of a plan",
        "tasks: entities: folder is missing",
    ):
        assert part in error
    for text, message in (("- 1", "must be a mapping"), ("methods: {dapt\n", r"list.yaml, line")):
        (tmp_path / "list.yaml").write_text(text)
        with pytest.raises(ValueError, match=message):
            load_plan(tmp_path / "list.yaml")


@pytest.mark.parametrize(
    "section, value, message",
    [
        ("seeds", 3, "seeds must be a valid array, but is 3. Correct it."),
        ("methods", {"dapt": [1]}, "methods: dapt must be a mapping, but is [1]"),
        ("budget", {"tokens": "1e7"}, "budget: tokens must be a valid integer, but is 10000000.0"),
        ("general", ["general"], "general must be a valid string, but is ['general']"),
        (
            "tasks",
            {"animals": {"folder": "animals", "kind": "parsing"}},
            "tasks: animals: kind must be one of classification, multi_label, regression, qa, ner, but is parsing.",
        ),
    ],
)
def test_values_of_another_type(refuse, section, value, message):
    assert message in refuse(**{section: value})


def test_entries_without_a_value_are_left_to_their_defaults(load):
    plan = load(fine_tuning=None, methods={"dapt": {"tasks": None, "pretraining": None}})
    assert plan.fine_tuning == plan.methods["dapt"].pretraining == {}


def test_names_and_labels_that_a_plan_cannot_have(content, tmp_path, refuse):
    content["tasks"]["pets"] = {"kind": "ner", "folder": "entities", "corpus": "pets"}
    content["tasks"]["several"] = {"kind": "classification", "folder": "several", "corpus": "pets"}
    content["tasks"]["broken"] = {"kind": "classification", "folder": "broken", "corpus": "pets"}
    for name in ("several", "broken"):
        (tmp_path / name).mkdir()
        for split in ("train", "validation", "test"):
            write_jsonl(tmp_path / name / f"{split}.jsonl", [{"text": "a", "label": ["b", "c"]}])
    (tmp_path / "broken" / "test.jsonl").write_text("text,label\n")
    error = refuse()
    for part in (
        "tasks and corpora must have different names, but share pets. Rename one.",
        "several/train.jsonl is a multi_label_classification",
        "tasks: broken: broken/test.jsonl, line 1 must be JSON, but is not: Expecting value",
    ):
        assert part in error


def test_unknown_flags_are_reported_before_the_first_run(content, tmp_path, load, ran, note):
    """All of a step, also abbreviations."""
    content["fine_tuning"] |= {"learning_rte": 3e-5, "warmup_steps": "few"}
    content["tasks"]["animals"]["options"] = {"num_train_epochs": "many"}
    content["methods"]["dapt"] = {"pretraining": {"max_seq_len": 512}}
    with pytest.raises(ValueError, match=r"6 problem.* nothing was run") as error:
        run_comparison(load(), tmp_path / "output", execute=note)
    assert ran == []
    assert "- classification: argument --num_train_epochs" in str(error.value)
    for script, task in (("ner", "entities"), ("classification", "animals")):
        assert f"- {script}: argument --warmup_steps" in str(error.value)
        told = f"- {script}: there is no argument --learning_rte; did you mean --learning_rate?"
        assert f"{told} (no_adaptation-{task}-seed1 and 25 more)" in str(error.value)
    assert "- mlm: there is no argument --max_seq_len; did you mean --max_seq_length" in str(error.value)


def test_different_steps_with_one_name_are_refused(content, list_by_name):
    tasks = dict.fromkeys(("animals", "half-animals"), content["tasks"]["animals"])
    with pytest.raises(ValueError, match="every step must have its own name, but two would be dapt-half-animals-seed1"):
        list_by_name(tasks=tasks, methods={"dapt": None, "dapt-half": {"recipe": "dapt"}})


def test_file_that_another_step_makes_is_no_input(load, tmp_path):
    """RADA's stage of masked LM is trained on what its datastore leaves out, which is there only after that step."""
    made = {"datastore": {"held_out_file": "rest.jsonl"}, "pretraining": {"train_file": "rest.jsonl"}}
    plan = load(methods={"rada_mlm": made})
    before = list_steps(plan, tmp_path / "plan")
    check_step_flags(before)
    (tmp_path / "rest.jsonl").write_text("{}")
    assert list_steps(plan, tmp_path / "plan") == before


def test_texts_that_flags_name_must_exist(content, tmp_path, refuse, load):
    content["methods"] = {"mixed": {"recipe": "dapt", "pretraining": {"mix": "other.txt:0.1"}}}
    content["methods"]["far"] = {"recipe": "dapt", "pretraining": {"train_file": "https://example.org/corpus.txt"}}
    content["methods"]["rada"] = {"datastore": {"train_file": "passages/*.txt"}}
    assert [line for line in refuse().splitlines() if line.startswith("- ")] == [
        "- methods: mixed: pretraining: mix must name a file, but there is no other.txt. Correct the path.",
        "- methods: rada: datastore: train_file must name a file, but there is no passages/*.txt. Correct the path.",
    ]
    (tmp_path / "passages").mkdir()
    for name in ("other.txt", "passages/first.txt"):
        (tmp_path / name).write_text("a cat\n")
    assert load().methods.keys() == {"mixed", "far", "rada"}


def test_flags_that_a_comparison_sets_or_would_misread(content, refuse):
    content["pretraining"] |= {"gradient-accumulation-steps": 4, "train_file": "corpus.txt"}
    content["fine_tuning"]["seed"] = 3
    content["vocabulary"] = {"counts_file": "counts.parquet"}
    content["tasks"]["animals"]["options"] = {"label_column_name": "coarse", "token": "secret"}
    content["methods"] = {
        "dapt": {"pretraining": {"max_steps": 3, 4: 5}, "fine_tuning": {"max_predict_samples": 5}},
        "exbert": None,
        "whole": {"recipe": "no_adaptation", "after": "exbert", "fine_tuning": {"train_top_layers": 6}},
        "rada": {"fine_tuning": {"datastore": "mine", "text_column_names": "text"}},
        "gmap": {"after": "dapt", "fine_tuning": {"memory_name_or_path": "other", "passage_cache": "cache"}},
    }
    error = refuse()
    for part in (
        "12 problem(s)",
        "\n- pretraining: flags must be written with _ and without --, but there is gradient-accumulation-steps",
        "pretraining: train_file must be set in one method, because here it would replace the text of all",
        "\n- fine_tuning: seed must be left out, because the comparison sets it",
        "\n- vocabulary: counts_file must be left out",
        "tasks: animals: fine_tuning: label_column_name must be left out",
        "tasks: animals: fine_tuning: a plan must not contain a Hub token",
        "methods: dapt: pretraining: max_steps must be left out",
        "methods: dapt: pretraining: flags must be written with _ and without --, but there is 4",
        "methods: dapt: fine_tuning: max_predict_samples must be left out, because",
        "methods: rada: the flag datastore must be left out, because the comparison builds a datastore for rada",
        "methods: rada: fine_tuning: text_column_names must be set in the options",
        "methods: gmap: fine_tuning: memory_name_or_path, passage_cache must be left out",
    ):
        assert part in error, part
    assert "methods: whole" not in error and "secret" not in error


def test_plan_neither_trusts_nor_publishes(content, refuse):
    content["fine_tuning"] |= {"trust_remote_code": True}
    content["methods"]["dapt"] = {"pretraining": {"push_to_hub": True, "hub_model_id": "me/mine"}}
    error = refuse()
    assert "fine_tuning: a plan must not run code of others or publish, but sets trust_remote_code" in error
    assert (
        "dapt: pretraining: a plan must not run code of others or publish, but sets hub_model_id, push_to_hub" in error
    )


def test_texts_longer_than_the_encoder_takes(content, tmp_path, load):
    save_tiny_bert(tmp_path / "encoder", SENTENCES)
    save_tiny_bert(tmp_path / "mine", SENTENCES)
    content["fine_tuning"]["max_seq_length"] = 600
    plan = load(methods={"no_adaptation": None, "own": {"recipe": "no_adaptation", "encoder": "mine"}})
    with pytest.raises(ValueError, match=r"^2 encoder.* nothing was run") as error:
        run_comparison(plan, tmp_path / "output", pretend)
    for encoder in ("encoder", "mine"):
        assert f"\n- {encoder}: max_seq_length must be at most" in str(error.value)


def test_learning_rates_and_controls_that_a_plan_cannot_have(content, refuse):
    content["fine_tuning"]["learning_rate"] = 1e-4
    error = refuse(learning_rates=[1e-4], pretraining_seeds=[1, 1], methods={"dapt": {"control": "nobody"}})
    for part in (
        "4 problem(s)",
        "learning_rates must be at least two different numbers, but are [0.0001]",
        "learning_rate must not be set beside learning_rates",
        "pretraining_seeds must be different numbers, but are [1, 1]",
        "control must be one of the methods, but is nobody",
    ):
        assert part in error


def test_controls_have_equal_pretraining(content, tmp_path):
    content["methods"] |= {"again": {"recipe": "varmae", "control": "slow"}, "rada_of_dapt": {"recipe": "rada"}}
    content["methods"]["rada_of_dapt"]["after"] = "dapt"
    content["methods"]["more"] = {"recipe": "varmae", "after": "dapt"}
    content["methods"]["theirs"] = {"recipe": "varmae", "encoder": "theirs"}
    plan = load_plan(write_plan(content, tmp_path))
    controls = {method: plan.find_control(method) for method in plan.methods}
    expected = dict.fromkeys(("tapt", "lora", "varmae", "adalm", "exbert"), "dapt")
    expected |= dict.fromkeys(("gmap", "logits_fusion", "rada_of_dapt"), "dapt")
    expected |= {
        "dapt": "general_text",
        "slow": "general_text",
        "again": "slow",
        "rada": "no_adaptation",
        "tuned_after_tapt": "tapt",
    }
    assert {method: other for method, other in controls.items() if other is not None} == expected
    pairs = plan.list_pairs()
    assert len(set(pairs)) == len(pairs) and ("dapt", "dapt") not in pairs
    assert {("again", "slow"), ("again", "dapt"), ("more", "dapt"), ("no_adaptation", "dapt")} <= {*pairs}


def test_rows_that_search_name_a_missing_extra(load, monkeypatch):
    monkeypatch.setitem(sys.modules, "tantivy", None)
    monkeypatch.setitem(sys.modules, "opensearchpy", None)
    served = {"recipe": "rada", "datastore": {"engine": "opensearch"}}
    rows = {"dapt": None, "vote": {"tasks": ["animals"]}, "rada": None, "served": served}
    with pytest.raises(ValueError, match="has 3 problem") as raised:
        load(methods=rows)
    assert all(
        f'{row} needs {package}, which is not installed: pip install ".[{extra}]"' in str(raised.value)
        for row, package, extra in (
            ("vote: nearest_vote", "tantivy", "datastore"),
            ("rada: the datastore of rada", "tantivy", "datastore"),
            ("served: the datastore of rada", "opensearch-py", "servers"),
        )
    )
