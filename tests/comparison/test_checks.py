"""What a plan may hold, and that all its problems are reported at once."""

import shutil
import textwrap

import pytest
from pretended_runs import SENTENCES, pretend, run_comparison, write_plan
from script_runs import save_tiny_bert, write_jsonl

from hf_domain.comparison.checks import check_step_flags
from hf_domain.comparison.prepare import load_plan
from hf_domain.comparison.steps import list_steps
from hf_domain.examples import compare as compare_script


def test_all_problems_of_a_plan_are_reported_at_once(content, tmp_path):
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
    with pytest.raises(ValueError, match="nothing was run") as error:
        load_plan(write_plan(content, tmp_path))
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
        assert part in str(error.value)
    assert "secret" not in str(error.value)


def test_plan_of_the_documentation_is_one(content, tmp_path):
    text = textwrap.dedent(compare_script.__doc__.partition("A full one:\n\n")[2].rpartition("\n\n`pretraining`")[0])
    shutil.move(tmp_path / "animals", tmp_path / "acl_arc")
    for name in ("corpus", "heldout", "wikipedia", "wikipedia_heldout"):
        (tmp_path / f"{name}.txt.gz").write_bytes(b"")
    (tmp_path / "documented.yaml").write_text(text)
    assert list_steps(load_plan(tmp_path / "documented.yaml"), tmp_path / "output")


def test_unknown_and_missing_fields_of_a_plan(content, tmp_path):
    del content["encoder"]
    content["seed"], content["seeds"] = 3, "three"
    content["tasks"]["animals"]["metrics"] = "f1"
    del content["tasks"]["entities"]["folder"]
    with pytest.raises(ValueError, match="nothing was run") as error:
        load_plan(write_plan(content, tmp_path))
    for part in (
        "encoder is missing",
        "seed is not a field of a plan. Remove it, or correct its name",
        "seeds must be a valid array, but is 'three'",
        "tasks: animals: metrics is not a field of a plan",
        "tasks: entities: folder is missing",
    ):
        assert part in str(error.value)
    (tmp_path / "list.yaml").write_text("- 1")
    with pytest.raises(ValueError, match="must be a mapping"):
        load_plan(tmp_path / "list.yaml")
    (tmp_path / "list.yaml").write_text("methods: {dapt\n")
    with pytest.raises(ValueError, match=r"list.yaml, line"):
        load_plan(tmp_path / "list.yaml")


@pytest.mark.parametrize(
    "section, value, message",
    [
        ("seeds", 3, "seeds must be a valid array, but is 3. Correct it."),
        ("seeds", [1, "a"], "seeds: 1 must be a valid integer, but is 'a'"),
        ("methods", {"dapt": {"tasks": [1]}}, "methods: dapt: tasks: 0 must be a valid string, but is 1"),
        ("methods", {"dapt": [1]}, "methods: dapt must be a mapping, but is [1]"),
        ("budget", {"tokens": "1e7"}, "budget: tokens must be a valid integer, but is 10000000.0"),
        ("general", ["general"], "general must be a valid string, but is ['general']"),
        ("methods", {"dapt": {"tasks": "animals"}}, "methods: dapt: tasks must be a valid array, but is 'animals'"),
        ("corpora", {"pets": {"train_file": ["a"]}}, "corpora: pets: train_file must be a valid string"),
        (
            "tasks",
            {"animals": {"folder": "animals", "kind": "parsing"}},
            "tasks: animals: kind must be 'classification'",
        ),
        ("race", True, "race must be left out: rows no longer leave on the way"),
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
        "a plan must not contain a Hub token, because results would publish it. Set HF_TOKEN.",
        "tasks and corpora must have different names, but share pets. Rename one.",
        "several/train.jsonl is a multi_label_classification",
        "tasks: broken: a line must be a JSON object, but line 1 of broken/test.jsonl is none",
    ):
        assert part in str(error.value)
    assert "secret" not in str(error.value)


def test_unknown_flags_are_reported_before_the_first_run(content, tmp_path, ran, note):
    content["fine_tuning"] |= {"learning_rte": 3e-5}
    content["tasks"]["animals"]["options"] = {"num_train_epochs": "many"}
    content["methods"]["dapt"] = {"pretraining": {"warm_ups": 1}}
    plan = load_plan(write_plan(content, tmp_path))
    with pytest.raises(ValueError, match=r"4 problem.* nothing was run") as error:
        run_comparison(plan, tmp_path / "output", execute=note)
    assert ran == []
    assert "- classification: argument --num_train_epochs" in str(error.value)
    for script, task in (("ner", "entities"), ("classification", "animals")):
        told = f"- {script}: there is no argument --learning_rte; did you mean --learning_rate?"
        assert f"{told} (no_adaptation-{task}-seed1 and 25 more)" in str(error.value)
    assert "- mlm: there is no argument --warm_ups; did you mean" in str(error.value)


def test_different_steps_with_one_name_are_refused(content, tmp_path):
    content["tasks"] = {"animals": content["tasks"]["animals"], "half-animals": content["tasks"]["animals"]}
    content["methods"] = {"dapt": None, "dapt-half": {"recipe": "dapt"}}
    plan = load_plan(write_plan(content, tmp_path))
    with pytest.raises(ValueError, match="every step must have its own name, but two would be dapt-half-animals-seed1"):
        list_steps(plan, tmp_path / "plan")


def test_file_that_another_step_makes_is_no_input(content, tmp_path):
    """RADA's stage of masked LM is trained on what its datastore leaves out, which is there only after that step."""
    content["methods"] = {
        "rada_mlm": {
            "datastore": {"held_out_file": "rest.jsonl"},
            "pretraining": {"train_file": "rest.jsonl"},
        }
    }
    plan = load_plan(write_plan(content, tmp_path))
    check_step_flags(list_steps(plan, tmp_path / "plan"))
    before = list_steps(plan, tmp_path / "plan")
    (tmp_path / "rest.jsonl").write_text("{}")
    assert list_steps(plan, tmp_path / "plan") == before


def test_texts_that_flags_name_must_exist(content, tmp_path):
    content["methods"] = {"mixed": {"recipe": "dapt", "pretraining": {"mix": "other.txt:0.1"}}}
    content["methods"]["far"] = {"recipe": "dapt", "pretraining": {"train_file": "https://example.org/corpus.txt"}}
    content["methods"]["rada"] = {"datastore": {"train_file": "passages/*.txt"}}
    with pytest.raises(ValueError, match="nothing was run") as error:
        load_plan(write_plan(content, tmp_path))
    lines = [line for line in str(error.value).splitlines() if line.startswith("- ")]
    assert lines == [
        "- methods: mixed: pretraining: mix must name a file, but there is no other.txt. Correct the path.",
        "- methods: rada: datastore: train_file must name a file, but there is no passages/*.txt. Correct the path.",
    ]
    (tmp_path / "passages").mkdir()
    for name in ("other.txt", "passages/first.txt"):
        (tmp_path / name).write_text("a cat\n")
    assert load_plan(write_plan(content, tmp_path)).methods.keys() == {"mixed", "far", "rada"}


def test_empty_entries_that_a_plan_needs(content, tmp_path):
    content["encoder"], content["tasks"]["animals"]["folder"] = None, None
    with pytest.raises(ValueError, match="nothing was run") as error:
        load_plan(write_plan(content, tmp_path))
    assert "encoder is missing" in str(error.value)
    assert "tasks: animals: folder is missing" in str(error.value)


def test_flags_that_a_comparison_sets_or_would_misread(content, tmp_path):
    content["pretraining"] |= {"gradient-accumulation-steps": 4, "train_file": "corpus.txt"}
    content["fine_tuning"]["seed"] = 3
    content["vocabulary"] = {"counts_file": "counts.parquet"}
    content["tasks"]["animals"]["options"] = {"label_column_name": "coarse"}
    content["methods"] = {
        "dapt": {"pretraining": {"max_steps": 3, 4: 5}},
        "exbert": None,
        "whole": {"recipe": "no_adaptation", "after": "exbert", "fine_tuning": {"train_top_layers": 6}},
        "rada": {"fine_tuning": {"datastore": "mine"}},
    }
    with pytest.raises(ValueError, match=r"8 problem.* nothing was run") as error:
        load_plan(write_plan(content, tmp_path))
    for part in (
        "\n- pretraining: flags must be written with _ and without --, but there is gradient-accumulation-steps",
        "pretraining: train_file must be set in one method, because here it would replace the text of all",
        "\n- fine_tuning: seed must be left out, because the comparison sets it",
        "\n- vocabulary: counts_file must be left out",
        "tasks: animals: fine_tuning: label_column_name must be left out",
        "methods: dapt: pretraining: max_steps must be left out",
        "methods: dapt: pretraining: flags must be written with _ and without --, but there is 4",
        "methods: rada: the flag datastore must be left out, because the comparison builds a datastore for rada",
    ):
        assert part in str(error.value)
    assert "methods: whole" not in str(error.value)


def test_abbreviated_flags_are_refused(content, tmp_path):
    content["pretraining"] = {"per_device_train_batch_size": 4, "max_seq_len": 512}
    with pytest.raises(ValueError, match="there is no argument --max_seq_len; did you mean --max_seq_length"):
        run_comparison(load_plan(write_plan(content, tmp_path)), tmp_path / "output", pretend)


def test_every_wrong_flag_of_a_step_is_reported(content, tmp_path):
    content["methods"] = {"no_adaptation": {"tasks": ["animals"]}}
    content["fine_tuning"] = {"num_train_epochs": "many", "learning_rte": 1, "warmup_steps": "few"}
    with pytest.raises(ValueError, match=r"3 problem.* nothing was run"):
        run_comparison(load_plan(write_plan(content, tmp_path)), tmp_path / "output", pretend)


def test_texts_longer_than_the_encoder_takes(content, tmp_path):
    save_tiny_bert(tmp_path / "encoder", SENTENCES)
    save_tiny_bert(tmp_path / "mine", SENTENCES)
    content["methods"] = {"no_adaptation": None, "own": {"recipe": "no_adaptation", "encoder": "mine"}}
    content["fine_tuning"]["max_seq_length"] = 600
    with pytest.raises(ValueError, match=r"^2 encoder.* nothing was run") as error:
        run_comparison(load_plan(write_plan(content, tmp_path)), tmp_path / "output", pretend)
    for encoder in ("encoder", "mine"):
        assert f"\n- {encoder}: max_seq_length must be at most" in str(error.value)


def test_task_without_labels(content, tmp_path):
    write_jsonl(tmp_path / "animals" / "test.jsonl", [{"text": "no label"}])
    with pytest.raises(ValueError, match=r"animals: the split test must have the column label"):
        load_plan(write_plan(content, tmp_path))


def test_plan_neither_trusts_nor_publishes(content, tmp_path):
    content["fine_tuning"] |= {"metric_name": "evil.py", "trust_remote_code": True}
    content["pretraining"] |= {"push_to_hub": True, "hub_model_id": "me/mine"}
    with pytest.raises(ValueError, match="must not run code of others or publish") as error:
        load_plan(write_plan(content, tmp_path))
    for names in ("hub_model_id, push_to_hub", "metric_name, trust_remote_code"):
        assert names in str(error.value)


def test_columns_of_text_belong_to_a_task(content, tmp_path):
    content["methods"]["no_adaptation"] = {"fine_tuning": {"text_column_names": "text"}}
    with pytest.raises(ValueError, match="fine_tuning: text_column_names must be set in the options"):
        load_plan(write_plan(content, tmp_path))


def test_learning_rates_and_controls_that_a_plan_cannot_have(content, tmp_path):
    content["learning_rates"], content["pretraining_seeds"] = [1e-4], [1, 1]
    content["fine_tuning"]["learning_rate"] = 1e-4
    content["methods"] = {"dapt": {"control": "nobody"}}
    content["pretraining"]["seed"] = 2
    with pytest.raises(ValueError, match=r"5 problem.* nothing was run") as error:
        load_plan(write_plan(content, tmp_path))
    for part in (
        "learning_rates must be at least two different numbers, but are [0.0001]",
        "learning_rate must not be set beside learning_rates",
        "pretraining_seeds must be different numbers, but are [1, 1]",
        "control must be one of the methods, but is nobody",
        "pretraining: seed must be left out, because the comparison sets it",
    ):
        assert part in str(error.value)


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


def test_options_that_would_do_nothing_or_the_wrong_thing(content, tmp_path):
    memory = {"memory_name_or_path": "other", "passage_cache": "cache"}
    content["methods"] = {
        "dapt": {"fine_tuning": {"max_predict_samples": 5, "max_eval_samples": 5}},
        "gmap": {"fine_tuning": memory},
        "tapt_after_dapt": {"share": 7.0},
    }
    with pytest.raises(ValueError, match=r"3 problem.* nothing was run") as error:
        load_plan(write_plan(content, tmp_path))
    for part in (
        "methods: gmap: fine_tuning: memory_name_or_path, passage_cache must be left out, because the comparison sets",
        "methods: tapt_after_dapt: share must be left out without a list of tokens, which it divides, but is 7.0. "
        "Remove it, or write budget: {tokens: [1000]}",
        "methods: dapt: fine_tuning: max_eval_samples, max_predict_samples must be left out, because",
    ):
        assert part in str(error.value), part
