"""Tiny folders of every kind that can be looked at."""

import json
import shutil

import pytest
from datasets import Dataset
from method_models import make_exbert, make_rada
from script_runs import save_tiny_bert
from tiny_models import make_masked_lm
from tiny_tokenizers import SENTENCES, make_bert_tokenizer
from transformers import (
    AutoModelForQuestionAnswering,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
)

from hf_domain import RadaForSequenceClassification
from hf_domain.comparison.descriptions import Description
from hf_domain.comparison.results import Result, write_result
from hf_domain.datastore import build_datastore
from hf_domain.exploration import folders
from hf_domain.safe_io import write_json
from hf_domain.tokenization import expand_vocabulary

LABELS = {"id2label": {0: "biology", 1: "law"}, "num_labels": 2}


@pytest.fixture(autouse=True)
def forget():
    """Models are kept by the names of their folders."""
    folders.load_model.cache_clear()
    folders.load_tokenizer.cache_clear()


def save(model, folder, tokenizer=None):
    model.save_pretrained(folder)
    (tokenizer or make_bert_tokenizer()).save_pretrained(folder)
    return str(folder)


@pytest.fixture(scope="session")
def made(tmp_path_factory):
    """The folders by their names."""
    root = tmp_path_factory.mktemp("made")
    old = make_bert_tokenizer()
    new, delta, _ = expand_vocabulary(old, SENTENCES * 9, min_frequency=2, step=15, size=140, progress=False)
    encoder = save_tiny_bert(root / "encoder", SENTENCES)
    new.save_pretrained(root / "vocabulary")
    delta.save(root / "vocabulary")
    adapted = save(make_masked_lm("bert"), root / "adapted")
    save(make_masked_lm("bert"), root / "adapted" / "checkpoint-20")
    save(make_masked_lm("bert"), root / "adapted" / "checkpoint-3")
    (root / "adapted" / "_run.json").write_text(json.dumps({"options": {"model_name_or_path": encoder}}))
    save(make_exbert(extension_vocabulary=delta), root / "exbert", new)
    for name, head in {
        "classifier": AutoModelForSequenceClassification,
        "tagger": AutoModelForTokenClassification,
        "answerer": AutoModelForQuestionAnswering,
    }.items():
        save(head.from_pretrained(adapted, **({} if name == "answerer" else LABELS)), root / name)
    save(make_rada(head=RadaForSequenceClassification, **LABELS), root / "rada")
    build_datastore(Dataset.from_dict({"text": SENTENCES}), root / "datastore", old, max_length=32)
    (root / "empty").mkdir()
    return root


@pytest.fixture
def comparison(made, tmp_path):
    """A comparison that kept an encoder and a fine-tuned model, in the folder of its plan."""
    folder = tmp_path / "mine"
    (folder / "plan" / "results").mkdir(parents=True)
    (folder / "plan.yaml").write_text("encoder: encoder\n")
    (folder / "plan" / "report.html").write_text("<p>the report</p>")
    steps = {
        "dapt-pets": Description("dapt-pets", "pretraining", "mlm", {}, "dapt", "pets"),
        "varmae-pets": Description("varmae-pets", "pretraining", "mlm", {}, "varmae", "pets"),
        "dapt-animals-seed1": Description(
            "dapt-animals-seed1",
            "fine_tuning",
            "classification",
            {"do_train": True},
            "dapt",
            None,
            "animals",
            1,
            metric="macro_f1",
        ),
    }
    for name, step in steps.items():
        write_result(folder / "plan", Result(step, "done", metrics={"eval_macro_f1": 0.5}))
        kept = {"dapt-pets": "adapted", "dapt-animals-seed1": "classifier"}.get(name)  # nothing is left of VarMAE
        if kept:
            shutil.copytree(made / kept, folder / "plan" / "steps" / step.address)
    shutil.copytree(made / "encoder", folder / "encoder")
    plan = {"encoder": "encoder", "folder": "..", "steps": {name: step.address for name, step in steps.items()}}
    write_json(folder / "plan" / "plan.json", plan)
    return folder
