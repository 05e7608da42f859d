"""Adapt, fine-tune and predict with methods on tiny models, in a process without the extras' packages.

python core_run.py '["method", ...]' FOLDER '["package that is blocked", ...]'
"""

import json
import sys
from pathlib import Path

methods, folder, blocked = json.loads(sys.argv[1]), Path(sys.argv[2]), json.loads(sys.argv[3])
for name in blocked:
    sys.modules[name] = None

from script_runs import save_tiny_bert  # noqa: E402
from tiny_tokenizers import SENTENCES  # noqa: E402
from transformers import AutoTokenizer  # noqa: E402

import hf_domain  # noqa: E402
from hf_domain.methods import METHODS, PRETRAINING_METHODS  # noqa: E402

TEXTS = [f"{SENTENCES[number % 5]} {SENTENCES[(number // 5) % 5]} number{number}" for number in range(40)]


def make_task(kind):
    if kind == "ner":
        rows = [{"tokens": text.split(), "tags": ["B-X", *["O"] * (len(text.split()) - 1)]} for text in TEXTS]
    elif kind == "qa":
        rows = [
            {"id": str(n), "question": "what", "context": text, "answers": {"text": [text[:3]], "answer_start": [0]}}
            for n, text in enumerate(TEXTS)
        ]
    else:
        label = {"several": lambda n: ["a", "b"][: n % 3], "regression": lambda n: n / 7}.get(
            kind, lambda n: "ab"[n % 2]
        )
        rows = [{"text": text, "label": label(number)} for number, text in enumerate(TEXTS)]
    return {"train": rows[:24], "validation": rows[24:32], "test": rows[32:]}


def run(method, encoder, folder):
    """Return what became of a method: an error that names its extra, or "predicted"."""
    options = {"num_tokens": 128, "use_cpu": True, "max_seq_length": 16, "output_dir": folder / "adapted"}
    tokenizer = AutoTokenizer.from_pretrained(encoder)
    if method in METHODS and METHODS[method].reads_passages:
        try:
            hf_domain.build_datastore(TEXTS, folder / "datastore", tokenizer, max_length=32)
        except ModuleNotFoundError as error:
            return str(error)
    if method == "gmap":
        options["memory"] = str(encoder)
    if method == "adalm":
        tokenizer, delta, _ = hf_domain.expand_vocabulary(tokenizer, TEXTS * 9, min_frequency=2, step=5, progress=False)
        tokenizer.save_pretrained(folder / "words")
        delta.save(folder / "words")
        options["expanded_vocabulary"] = folder / "words"
    model, tokenizer = encoder, None
    if method in METHODS:
        name = method if method in PRETRAINING_METHODS else "dapt"
        model, tokenizer = hf_domain.adapt(encoder, TEXTS, name, **options)
    splits, options = make_task(method), {"max_seq_length": 64} if method == "qa" else {}
    options |= {"use_cpu": True, "num_train_epochs": 1}
    hf_domain.fine_tune(model, splits, tokenizer, output_dir=folder / "task", **options)
    answers = ("label", "tags", "answers")
    rows = [{name: value for name, value in row.items() if name not in answers} for row in splits["test"]]
    assert len(hf_domain.predict(folder / "task", rows)) == len(rows)
    return "predicted"


encoder = save_tiny_bert(folder / "encoder", TEXTS)
print(json.dumps({method: run(method, encoder, folder / method) for method in methods}))
