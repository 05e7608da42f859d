"""A kind of task that another package adds: `fine_tune` and `predict` know it as their own."""

import itertools

import pytest
from datasets import Dataset
from script_runs import save_tiny_bert
from transformers import AutoModelForMultipleChoice, DataCollatorForMultipleChoice

import hf_domain
from hf_domain.tasks import KINDS, TaskKind, find_kind, register_kind

RIGHT, WRONG = ["cell", "gene", "tissue"], ["court", "judge", "stock"]


class MultipleChoice(TaskKind):
    """Questions with several answers, one of which is right."""

    name, head, pipeline_tag = "multiple_choice", "ForMultipleChoice", "multiple-choice"
    auto_class, collator_class = AutoModelForMultipleChoice, DataCollatorForMultipleChoice
    deciding = "accuracy"

    @classmethod
    def fits(cls, columns):
        return columns >= {"question", "choices"}

    @classmethod
    def hold_out(cls, rows, label_column=None, share=0.2):
        return [*range(0, len(rows), 5)]

    def read(self, splits, locate=None):
        self.text_columns = ["question", "choices"]
        return splits

    def prepare(self, rows, text_columns, config):
        return self.read(rows)

    def tokenize(self, batch, tokenizer=None, does_train=False):
        rows = [
            self.tokenizer([question] * len(choices), choices)
            for question, choices in zip(batch["question"], batch["choices"], strict=True)
        ]
        encodings = {name: [row[name] for row in rows] for name in rows[0]}
        return encodings | {"labels": batch.get("label", [0] * len(rows))}  # the collator needs some

    def decode(self, output, rows, examples, config):
        return [{"prediction": int(row.argmax())} for row in output.predictions]

    def score(self, output, rows, examples, config):
        right = [row["prediction"] for row in self.decode(output, rows, examples, config)] == rows["label"][:]
        return {"accuracy": float(right), "baseline_accuracy": 0.5}

    def list_files(self, decoded, split):
        return {f"{split}_choices.txt": "".join(f"{row['prediction']}\n" for row in decoded)}


@pytest.fixture
def registered(monkeypatch):
    for name in [*KINDS]:
        monkeypatch.setitem(KINDS, name, KINDS[name])  # restores the table at the end
    register_kind(MultipleChoice)
    yield
    del KINDS["multiple_choice"]


def test_a_kind_of_another_package_is_learned_and_predicted(registered, tmp_path):
    rows = [
        {"question": "what is alive", "choices": [wrong, right] if n % 2 else [right, wrong], "label": n % 2}
        for n, (right, wrong) in enumerate([*itertools.product(RIGHT, WRONG)] * 4)
    ]
    encoder = save_tiny_bert(tmp_path / "encoder", [" ".join([*RIGHT, *WRONG, "what is alive"])])
    options = {"use_cpu": True, "disable_tqdm": True, "learning_rate": 3e-3, "max_steps": 60}
    found = hf_domain.fine_tune(encoder, Dataset.from_list(rows), output_dir=tmp_path / "choices", **options)
    assert found.metrics["eval_accuracy"] == 1 and found.metrics["eval_samples"] == 8
    assert (tmp_path / "choices" / "eval_choices.txt").read_text().split() == [str(row["label"]) for row in rows[::5]]
    asked = [{name: row[name] for name in ("question", "choices")} for row in rows]
    predicted = hf_domain.predict(tmp_path / "choices", asked, progress=False)
    assert predicted["prediction"][:] == [row["label"] for row in rows]
    assert "trained for multiple choice" in (tmp_path / "choices" / "README.md").read_text()


def test_columns_name_the_kind(registered):
    for columns, name in (
        ({"text", "label"}, "classification"),
        ({"tokens", "tags"}, "token_classification"),
        ({"question", "context", "answers"}, "question_answering"),
        ({"question", "choices", "label"}, "multiple_choice"),
    ):
        assert find_kind(columns).name == name
    with pytest.raises(ValueError, match="multiple_choice is taken"):
        register_kind(type("Other", (MultipleChoice,), {}))
