"""Where a newcomer looks: each question has one place, and the place exists.

Change a name when somebody who sees file names alone guesses wrong.
"""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

# (question, file, what is defined there)
QUESTIONS = [
    (
        "How is masked LM projected to the vocabulary at the labeled positions only?",
        "modeling/heads.py",
        "compute_masked_lm_loss",
    ),
    ("Where is VarMAE's KL divergence computed?", "modeling/layers_varmae.py", "compute_kl"),
    ("Where does exBERT mix a layer with its side module?", "modeling/layers_exbert.py", "ExtendedLayer"),
    ("Where do a layer's queries attend to G-MAP's memory?", "modeling/attention_gmap.py", "attend_with_memory"),
    ("Where does RADA choose one of its passages?", "modeling/selection_rada.py", "RetrievalInterface"),
    ("Where do I add a method so that every command knows it?", "hf_domain/methods/__init__.py", "METHODS"),
    ("Where do I add a row that a plan may name?", "hf_domain/comparison/rows.py", "RECIPES"),
    ("Where are all pieces of a word masked together?", "hf_domain/data/masking.py", "DataCollatorForWholeWordMask"),
    ("Who reads .jsonl, .csv and .txt.gz files of a corpus?", "hf_domain/data/files.py", "load_files"),
    ("Where is macro F1 computed?", "hf_domain/tasks/metrics.py", "compute_single_label_metrics"),
    ("Where are start and end logits turned into an answer?", "hf_domain/tasks/question_answering.py", "find_answers"),
    (
        "Where is the rule that decides between a single label, several labels and regression?",
        "hf_domain/tasks/labels.py",
        "find_problem_type",
    ),
    (
        "Where is MiniLM's loss of a student?",
        "hf_domain/methods/adalm/losses.py",
        "compute_relation_loss",
    ),
    ("Where are the four orders of Adapt-and-Distill?", "hf_domain/methods/adalm/orders.py", "make_plan"),
    (
        "Where do the rows of new vocabulary entries get their first values?",
        "hf_domain/methods/new_embeddings.py",
        "apply_delta",
    ),
    ("Where does AdaLM decide how many words to add?", "tokenization/expansion.py", "expand_vocabulary"),
    ("Where are the entries found that a corpus does not use?", "tokenization/trimming.py", "trim_vocabulary"),
    (
        "Where does a model lose the rows of entries that its tokenizer no longer has?",
        "hf_domain/methods/adalm/trim.py",
        "keep_rows",
    ),
    ("Where is a LoRA put on an encoder for pre-training?", "hf_domain/methods/lora.py", "add_lora"),
    ("Where is exBERT as a PEFT adapter?", "hf_domain/methods/exbert/adapter.py", "ExBertAdapterModel"),
    ("Where are the states of G-MAP's memory kept on disk?", "hf_domain/methods/hidden_state_cache.py", "fill_store"),
    ("Where are passages added to a batch?", "hf_domain/methods/rada/collator.py", "DataCollatorWithPassages"),
    ("Where is a document cut into passages?", "hf_domain/datastore/splitting.py", "split_texts"),
    (
        "Where is the text of a corpus chosen that is nearest to a task's?",
        "hf_domain/datastore/nearest.py",
        "choose_nearest",
    ),
    ("Where is a file written whole or not at all?", "hf_domain/safe_io.py", "write_whole"),
    ("Where are the versions and hardware of a run recorded?", "hf_domain/environment.py", "describe_environment"),
    ("Where is a model exported to ONNX?", "hf_domain/export.py", "export_model"),
    ("Where is `hf_domain.adapt`?", "hf_domain/adaptation.py", "adapt"),
    ("Where is `hf_domain.fine_tune`?", "hf_domain/fine_tuning.py", "fine_tune"),
    ("Where is `hf_domain.predict`?", "hf_domain/prediction.py", "predict"),
    (
        "Where are p values and intervals of a comparison computed?",
        "hf_domain/comparison/statistics.py",
        "compare_draws",
    ),
]


def list_definitions(file):
    for node in ast.parse(file.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            yield from (target.id for target in targets if isinstance(target, ast.Name))


@pytest.mark.parametrize(("question", "file", "name"), QUESTIONS, ids=[name for _, _, name in QUESTIONS])
def test_place_exists(question, file, name):
    assert name in set(list_definitions(ROOT / file)), f"{question} Not in {file} any more: say where it is now"
