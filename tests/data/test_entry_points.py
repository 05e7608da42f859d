"""Every function that reads data takes what docs/python.md says, and finds the same in every form."""

import json
from pathlib import Path
from types import SimpleNamespace

import pandas as pd
import pytest
import yaml
from datasets import Dataset, DatasetDict
from script_runs import save_tiny_bert
from tiny_tokenizers import SENTENCES, make_bert_tokenizer
from transformers import AutoConfig, AutoModelForSequenceClassification

import hf_domain
from hf_domain.comparison import in_python
from hf_domain.data.corpora import load_corpus, tokenize_corpus
from hf_domain.datastore import add_passages, build_datastore

pytest.importorskip("tantivy")
TEXTS = SENTENCES * 4


def list_cells():
    """Yield form, function and whether the page says that it works."""
    page = (Path(__file__).parents[2] / "docs" / "python.md").read_text(encoding="utf-8")
    lines = page.partition("| | load_corpus")[2].splitlines()
    functions = [name.strip() for name in f"load_corpus{lines[0]}".strip("|").split("|")]
    for line in lines[2:]:
        if not line.startswith("|"):
            return
        form, *marks = (cell.strip() for cell in line.strip("|").split("|"))
        yield from ((form, function, mark == "✓") for function, mark in zip(functions, marks, strict=True))


def write_file(place):
    (place.folder / "corpus.txt").write_text("\n".join(TEXTS), encoding="utf-8")
    return str(place.folder / "corpus.txt")


FORMS = {
    "path of a file": write_file,
    "list": lambda _: TEXTS,
    "DataFrame": lambda _: pd.DataFrame({"text": TEXTS}),
    "Dataset": lambda _: Dataset.from_dict({"text": TEXTS}),
    "IterableDataset": lambda _: Dataset.from_dict({"text": TEXTS}).to_iterable_dataset(),
    "DatasetDict": lambda _: DatasetDict(train=Dataset.from_dict({"text": TEXTS})),
    "generator": lambda _: (text for text in TEXTS),
}


def adapt(data, place):
    folder, options = place.folder / "adapted", {"max_seq_length": 16, "batch_size": 4, "num_tokens": 1}
    options |= {"validation_data": SENTENCES, "use_cpu": True, "disable_tqdm": True, "dataloader_num_workers": 0}
    hf_domain.adapt(place.encoder, data, output_dir=folder, **options)
    return json.loads((folder / "all_results.json").read_text())["eval_samples"]


def compare(data, place):
    """Return the texts of the file that the plan names."""
    folder = place.folder / "comparison"

    def stop(path, results):
        raise InterruptedError

    place.monkeypatch.setattr(in_python, "load_plan", stop)
    with pytest.raises(InterruptedError):
        hf_domain.compare(place.encoder, data, {"task": str(place.folder)}, output_dir=folder)
    corpus = folder / yaml.safe_load((folder / "plan.yaml").read_text())["corpus"]
    return load_corpus(corpus, validation_split_percentage=0)["train"]["text"][:]


def search(data, place):
    found = add_passages(data, build_datastore(SENTENCES, place.folder / "datastore", place.tokenizer), "text", k=2)
    return [row["passage_ids"] for row in (found["train"] if isinstance(found, DatasetDict) else found)]


def predict(data, place):
    config = AutoConfig.from_pretrained(place.encoder, num_labels=2)
    model = AutoModelForSequenceClassification.from_config(config)
    return len(hf_domain.predict(model, data, place.tokenizer)["prediction"])


def advise(data, place):
    with pytest.raises(ValueError, match="acl"):
        hf_domain.advise(place.encoder, data, [place.folder / "acl"])


FUNCTIONS = {
    "load_corpus": lambda data, _: [row["text"] for row in load_corpus(data, SENTENCES)["train"]],
    "tokenize_corpus": lambda data, place: list(tokenize_corpus(data, place.tokenizer, max_seq_length=16)["train"]),
    "expand_vocabulary": lambda data, place: (
        hf_domain.expand_vocabulary(place.tokenizer, data, min_frequency=2, progress=False)[1].pieces
    ),
    "build_datastore": lambda data, place: build_datastore(data, place.folder / "built", place.tokenizer).fingerprint,
    "add_passages": search,
    "compare": compare,
    "adapt": adapt,
    "predict": predict,
    "advise": advise,
}
CELLS = [*list_cells()]


def test_the_page_has_every_form_and_function():
    assert {(form, name) for form, name, _ in CELLS} == {(form, name) for form in FORMS for name in FUNCTIONS}


@pytest.fixture(scope="module")
def encoder(tmp_path_factory):
    return save_tiny_bert(tmp_path_factory.mktemp("encoder"), SENTENCES)


@pytest.mark.parametrize(("form", "name", "works"), CELLS, ids=[f"{name}-{form}" for form, name, _ in CELLS])
def test_every_function_takes_what_the_page_says(form, name, works, encoder, tmp_path, monkeypatch):
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")
    place = SimpleNamespace(folder=tmp_path, encoder=encoder, monkeypatch=monkeypatch, tokenizer=make_bert_tokenizer())
    data = FORMS[form](place)
    if not works:
        with pytest.raises(TypeError, match=r"must be .* but (is|got|has)"):
            FUNCTIONS[name](data, place)
        return
    found = FUNCTIONS[name](data, place)
    assert found or name == "advise"  # which has no result for a task that does not exist
    other = SimpleNamespace(**vars(place) | {"folder": tmp_path / "list"})
    other.folder.mkdir()
    reference = FORMS["path of a file" if name == "advise" else "list"](other)
    assert found == FUNCTIONS[name](reference, other)
