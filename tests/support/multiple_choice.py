"""A kind of task as another package adds it; run_multiple_choice.py is its script."""

from transformers import AutoModelForMultipleChoice, DataCollatorForMultipleChoice

from hf_domain.tasks import TaskKind


class MultipleChoice(TaskKind):
    """Questions with several answers, one of which is right."""

    name, head, pipeline_tag = "multiple_choice", "ForMultipleChoice", "multiple-choice"
    auto_class, collator_class = AutoModelForMultipleChoice, DataCollatorForMultipleChoice
    deciding = "accuracy"
    command, plan_metrics = "run_multiple_choice", ("accuracy",)
    columns, texts = ("question", "choices", "label"), ("question", "choices")

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

    @classmethod
    def read_predictions(cls, folder, rows):
        return [int(line) for line in (folder / "predict_choices.txt").read_text().split()]
