"""Our encoders in sentence-transformers, and the code on them in docs/guides/fine_tune.md."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from method_models import METHODS
from sentence_tasks import make_texts
from tiny_models import make_masked_lm
from tiny_tokenizers import make_bert_tokenizer
from transformers import AutoModel
from without_package import run_without_package

PAGE = Path(__file__).parent.parent / "docs" / "guides" / "fine_tune.md"
TEXTS = ["the cat sat on the mat", "a dog", "the bird saw the hill and the dog"]


def list_code():
    """Return the blocks of Python of the section."""
    section = PAGE.read_text(encoding="utf-8").partition("## Sentence embeddings")[2]
    return re.findall(r"```python\n(.*?)```", section, re.DOTALL)


@pytest.fixture(scope="module")
def tokenizer():
    tokenizer = make_bert_tokenizer(TEXTS)
    tokenizer.model_max_length = 64
    return tokenizer


EMBED = """
import json
from sentence_transformers import SentenceTransformer
texts = json.load(open("texts.json"))
embeddings = {}
for name in ("varmae", "exbert", "gmap", "rada", "stock"):
    model = SentenceTransformer(name, trust_remote_code=True, device="cpu")
    embeddings[name] = model.encode(texts, batch_size=2).tolist()
    model.save_pretrained(name + "-saved")
    again = SentenceTransformer(name + "-saved", trust_remote_code=True, device="cpu")
    assert again.encode(texts, batch_size=2).tolist() == embeddings[name], name
json.dump(embeddings, open("embeddings.json", "w"))
"""


def test_embeddings_without_the_package_are_mean_states(tokenizer, tmp_path):
    """Every encoder loads by one line, and is saved with its code."""
    models = {name: method.make(head=method.get_heads()["AutoModel"]) for name, method in METHODS.items()}
    models["stock"] = make_masked_lm("bert").base_model
    (tmp_path / "texts.json").write_text(json.dumps(TEXTS))
    for name, model in models.items():
        model.save_pretrained(tmp_path / name)
        tokenizer.save_pretrained(tmp_path / name)
    result = run_without_package(EMBED, tmp_path)
    assert result.returncode == 0, result.stderr[-2000:]
    embeddings = json.loads((tmp_path / "embeddings.json").read_text())
    for name in models:
        model = AutoModel.from_pretrained(tmp_path / name).eval()
        with torch.no_grad():
            rows = [
                model(**tokenizer(text, return_tensors="pt")).last_hidden_state[0].mean(0).tolist() for text in TEXTS
            ]
        np.testing.assert_allclose(embeddings[name], rows, atol=1e-5)


def get_cosines(model, first, second):
    """Cosines of all texts with all texts."""
    first, second = (model.encode(texts, normalize_embeddings=True) for texts in (first, second))
    return first @ second.T


@pytest.mark.commands
@pytest.mark.parametrize("name", METHODS)
def test_code_of_the_page_trains_every_method(name, tmp_path, monkeypatch):
    """On texts alone, other texts move away; on pairs, partners come closer than others."""
    monkeypatch.chdir(tmp_path)
    texts, passages = make_texts(16), make_texts(16, seed=1)
    METHODS[name].make(head=METHODS[name].get_heads()["AutoModel"]).save_pretrained("adapted")
    make_bert_tokenizer(texts).save_pretrained("adapted")
    load, train = list_code()
    pair = 'pairs = Dataset.from_dict({"query": queries, "passage": passages})'
    # The embeddings of VarMAE first fall together before they part.
    epochs = 150 if name == "varmae" else 40
    train = train.replace(
        "learning_rate=3e-5", f"learning_rate=3e-3, num_train_epochs={epochs}, use_cpu=True, report_to='none'"
    )
    others = ~np.eye(len(texts), dtype=bool)
    known = {"texts": texts, "queries": texts, "passages": passages}
    exec(load, known)
    before = get_cosines(known["model"], texts, texts)
    exec(train, known)
    assert get_cosines(known["model"], texts, texts)[others].mean() < before[others].mean() - 0.1
    exec(load, known)
    before = get_cosines(known["model"], texts, passages)
    exec(train.replace('pairs = Dataset.from_dict({"text": texts, "same_text": texts})', pair), known)
    after = get_cosines(known["model"], texts, passages)
    margins = [cosines[~others].mean() - cosines[others].mean() for cosines in (before, after)]
    assert margins[1] > margins[0] + 0.1
