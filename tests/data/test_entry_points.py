"""Every function that reads data takes what docs/guides/python.md says, and finds the same in every form."""

import inspect
import json
import re
from pathlib import Path
from types import SimpleNamespace

import pandas as pd
import pytest
from datasets import ClassLabel, Dataset, DatasetDict, Features, List, Value
from script_runs import save_tiny_bert
from tiny_tokenizers import SENTENCES, make_bert_tokenizer
from transformers import AutoConfig, AutoModelForSequenceClassification

import hf_domain
from hf_domain import tokenization
from hf_domain.comparison import api
from hf_domain.comparison.prepare import load_plan
from hf_domain.data.corpora import load_corpus, tokenize_corpus
from hf_domain.data.objects import name_labels, name_tasks, place_tasks
from hf_domain.datastore import add_passages, build_datastore

pytest.importorskip("tantivy")
TEXTS = SENTENCES * 4


ROWS = [{"text": f"{text} {number}", "label": "abc"[number % 3]} for number, text in enumerate(SENTENCES * 2)]
SPLITS = ("train", "validation", "test")


def list_cells(heading):
    """Yield form and function of each promise of a section: every function it names takes every form of its list."""
    page = (Path(__file__).parents[2] / "docs" / "guides" / "python.md").read_text(encoding="utf-8")
    first, _, rest = page.partition(f"{heading}\n\n")[2].partition(":\n\n")
    forms = re.findall(r"^- (.*)$", rest.partition("\n\n")[0], re.MULTILINE)
    for function in re.findall(r"`(\w+)`", first):
        yield from ((form, function) for form in forms)


def write_file(place):
    (place.folder / "corpus.txt").write_text("\n".join(TEXTS), encoding="utf-8")
    return str(place.folder / "corpus.txt")


def save_splits(place, splits):
    DatasetDict(splits).save_to_disk(place.folder / "saved")
    return str(place.folder / "saved")


FORMS = {
    "path of a file": write_file,
    "list of files": lambda place: [write_file(place)],
    "folder of `save_to_disk`": lambda place: save_splits(place, {"train": Dataset.from_dict({"text": TEXTS})}),
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


def compare(data, place, tasks=None):
    """Return the documents and the examples that the plan names."""
    found = []

    def read(plan, folder, num_processes):
        corpus = plan.corpora["domain"]
        found.append(load_corpus(str(plan.folder / corpus.train_file), validation_split_percentage=0)["train"][:])
        found.append(corpus.validation_file and read_lines(plan.folder / corpus.validation_file))
        for task in plan.tasks.values():
            found.append([read_lines(plan.folder / task.get_file(split)) for split in SPLITS])
        raise InterruptedError

    place.monkeypatch.setattr(api, "run_comparison", read)
    with pytest.raises(InterruptedError):
        hf_domain.compare(place.encoder, data, tasks or {"mine": SPLIT}, output_dir=place.folder / "comparison")
    return found


def read_lines(file):
    return [json.loads(line) for line in file.read_text().splitlines()]


def search(data, place):
    found = add_passages(data, build_datastore(SENTENCES, place.folder / "datastore", place.tokenizer), "text", k=2)
    return [row["passage_ids"] for row in (found["train"] if isinstance(found, DatasetDict) else found)]


def predict(data, place):
    config = AutoConfig.from_pretrained(place.encoder, num_labels=2)
    model = AutoModelForSequenceClassification.from_config(config)
    found = hf_domain.predict(model, data, place.tokenizer)
    return len(found["train"] if isinstance(found, DatasetDict) else found)


def advise(data, place, tasks=None):
    """Return the facts, and the plan with the content of the files that it names."""
    advice = hf_domain.advise(place.encoder, data, tasks or {"mine": SPLIT}, max_seq_length=16)
    plan = load_plan(advice.save(place.folder / "advice"))
    corpus = load_corpus(str(plan.folder / plan.corpora["domain"].train_file), validation_split_percentage=0)
    task = [read_lines(plan.folder / task.get_file(split)) for task in plan.tasks.values() for split in SPLITS]
    return (advice.facts.documents, advice.facts.tokens), corpus["train"][:], task


SPLIT = {split: ROWS[number:] + ROWS[:number] for number, split in enumerate(SPLITS)}
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
TEXT_CELLS = [*list_cells("## Texts")]


def mark_training(cells):
    """Return the cells as parameters; `make test` trains on some forms only."""
    forms = ("path of a file", "DataFrame", "folder", "DataFrame for each split")
    return [
        pytest.param(
            *(form, name),
            id=f"{name}-{form}",
            marks=pytest.mark.commands if name in ("adapt", "fine_tune") and form not in forms else (),
        )
        for form, name in cells
    ]


def test_the_table_has_every_form_and_function():
    assert {*TEXT_CELLS} == {(form, name) for form in FORMS for name in FUNCTIONS}


@pytest.fixture(scope="module")
def encoder(tmp_path_factory):
    return save_tiny_bert(tmp_path_factory.mktemp("encoder"), SENTENCES)


@pytest.fixture
def place(encoder, tmp_path, monkeypatch):
    return SimpleNamespace(folder=tmp_path, encoder=encoder, monkeypatch=monkeypatch, tokenizer=make_bert_tokenizer())


def move(place):
    """Return another place, for the same call again."""
    other = SimpleNamespace(**vars(place) | {"folder": place.folder / "other"})
    other.folder.mkdir()
    return other


@pytest.mark.parametrize(("form", "name"), mark_training(TEXT_CELLS))
def test_every_function_finds_the_same_texts_in_every_form(form, name, place):
    found = FUNCTIONS[name](FORMS[form](place), place)
    assert found and found == FUNCTIONS[name](TEXTS, move(place))


@pytest.mark.parametrize("name", FUNCTIONS)
def test_what_holds_no_texts_is_refused(name, place):
    with pytest.raises(TypeError, match=r"must be a path, texts, .* but has the type int"):
        FUNCTIONS[name](3, place)


def test_splits_of_a_corpus_are_its_training_and_validation_data(place):
    """Without `train`, only a single split is clear; of the others only validation is kept out of training."""
    splits = {name: Dataset.from_dict({"text": [f"{name} {text}" for text in TEXTS]}) for name in SPLITS}
    train, validation, *_ = compare(DatasetDict(splits), place)
    assert train["text"] == splits["train"]["text"][:] and validation == list(splits["validation"])
    built = build_datastore(DatasetDict(splits), place.folder / "datastore", place.tokenizer)
    assert built.manifest.num_documents == len(TEXTS)
    assert [row["text"] for row in hf_domain.load_corpus(DatasetDict(dev=splits["test"]))["train"]]
    for name in ("load_corpus", "expand_vocabulary", "build_datastore", "compare", "advise"):
        with pytest.raises(ValueError, match="must have the split train or only one split, but has validation, test"):
            FUNCTIONS[name](DatasetDict({split: splits[split] for split in SPLITS[1:]}), place)


def test_splits_are_labeled_apart(place):
    config = AutoConfig.from_pretrained(place.encoder, num_labels=2)
    model = AutoModelForSequenceClassification.from_config(config).eval()
    splits = DatasetDict(a=Dataset.from_dict({"text": TEXTS[:3]}), b=Dataset.from_dict({"text": TEXTS[3:]}))
    found = hf_domain.predict(model, splits, place.tokenizer)
    assert [*found] == ["a", "b"] and len(found["a"]) == 3
    single = hf_domain.predict(model, TEXTS, place.tokenizer)
    assert [*found["a"]["prediction"], *found["b"]["prediction"]] == single["prediction"][:]


def test_options_of_vocabulary_expansion_are_all_there():
    """The function that takes any form of corpus has every option of the one that takes texts, with its default."""
    known, own = (
        dict(inspect.signature(f).parameters) for f in (tokenization.expand_vocabulary, hf_domain.expand_vocabulary)
    )
    assert [(one.name, one.default) for one in known.values()] == [(one.name, one.default) for one in own.values()]
    with pytest.raises(TypeError, match="unexpected keyword argument 'min_frequenzy'"):
        hf_domain.expand_vocabulary(None, "no file", min_frequenzy=2)


# ---------------------------------------------------------------------------------------------------------------- tasks


def write_split(rows, place, name):
    file = place.folder / "task" / f"{name}.jsonl"
    file.parent.mkdir(exist_ok=True)
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(file)


def write_task(place):
    for split in SPLITS:
        write_split(SPLIT[split], place, split)
    return str(place.folder / "task")


SPLIT_FORMS = {
    "path of a file": write_split,
    "list": lambda rows, *_: rows,
    "DataFrame": lambda rows, *_: pd.DataFrame(rows),
    "Dataset": lambda rows, *_: Dataset.from_list(rows),
    "IterableDataset": lambda rows, *_: Dataset.from_list(rows).to_iterable_dataset(),
    "generator": lambda rows, *_: (row for row in rows),
}
TASK_FORMS = {
    "folder": write_task,
    "folder of `save_to_disk`": lambda place: save_splits(
        place, {split: Dataset.from_list(SPLIT[split]) for split in SPLITS}
    ),
    "DatasetDict": lambda _: DatasetDict({split: Dataset.from_list(SPLIT[split]) for split in SPLITS}),
    **{
        f"{form} for each split": lambda place, make=make: {split: make(SPLIT[split], place, split) for split in SPLITS}
        for form, make in SPLIT_FORMS.items()
    },
}


def fine_tune(task, place):
    """Return what depends on the rows of all splits."""
    options = {"max_steps": 1, "max_seq_length": 16, "use_cpu": True, "disable_tqdm": True}
    task = task.get("task", task) if isinstance(task, dict) else task
    metrics = hf_domain.fine_tune(place.encoder, task, output_dir=place.folder / "fine_tuned", **options).metrics
    return {name: metrics[name] for name in ("train_loss", "eval_loss", "predict_loss", "eval_baseline_accuracy")}


TASK_FUNCTIONS = {
    "compare": lambda task, place: compare(TEXTS, place, task),
    "advise": lambda task, place: advise(TEXTS, place, task),
    "fine_tune": fine_tune,
}
TASK_CELLS = [*list_cells("## Tasks")]


def test_the_table_of_tasks_has_every_form_and_function():
    assert {*TASK_CELLS} == {(form, name) for form in TASK_FORMS for name in TASK_FUNCTIONS}


@pytest.mark.parametrize(("form", "name"), mark_training(TASK_CELLS))
def test_every_function_finds_the_same_task_in_every_form(form, name, place):
    found = TASK_FUNCTIONS[name](TASK_FORMS[form](place), place)
    assert found and found == TASK_FUNCTIONS[name]({"task": SPLIT}, move(place))


def test_tasks_have_names(place):
    """A single task has the name of its folder, or `task`."""

    def name(tasks):
        return [*name_tasks(tasks)]

    assert name("some/acl") == name(["some/acl"]) == name(Path("some/acl")) == ["acl"]
    assert name(SPLIT) == ["task"] and name({"acl": SPLIT, "other": "some/acl"}) == ["acl", "other"]
    assert name({"train": "a", "intents": "b"}) == ["train", "intents"]
    with pytest.raises(ValueError, match="different names, but are a/acl, b/acl"):
        name(["a/acl", "b/acl"])
    with pytest.raises(ValueError, match="tasks must be one or more, but are none"):
        name([])
    with pytest.raises(TypeError, match=r"tasks must be folders, or rows by the splits .*, but one is a dict"):
        name(ROWS)
    with pytest.raises(ValueError, match=r"a task must be a folder or have the splits .*, but mine has train, test"):
        place_tasks({"mine": {"train": ROWS, "test": ROWS}}, {})


def test_labels_stored_as_numbers_are_written_by_their_names():
    classes = ClassLabel(names=["O", "B-x"])
    rows = [{"tokens": ["a", "b"], "tags": [0, 1], "label": 1}, {"tokens": ["c"], "tags": [-1], "label": None}]
    features = Features({"tokens": List(Value("string")), "tags": List(classes), "label": classes})
    found = [*name_labels(Dataset.from_list(rows, features=features))]
    assert [(row["tags"], row["label"]) for row in found] == [(["O", "B-x"], "B-x"), ([None], None)]
