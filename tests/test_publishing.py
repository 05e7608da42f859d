"""Model cards and what may be published."""

import pytest
from huggingface_hub import ModelCard

from hf_domain.publishing import METHODS, publish, write_model_card
from hf_domain.results import describe_environment, read_json, write_json

CARD = {
    "model_name": "someone/bert-cs",
    "base_model": "google-bert/bert-base-uncased",
    "corpus": "abstracts",
    "settings": {"tokens": "1,000", "learning rate": "1e-4"},
    "limits": "Not tested on speech.",
    "licence": "apache-2.0",
    "licence_note": "Text: CC BY 4.0.",
    "example": "a [MASK] model",
    "results_table": "| a | b |\n| --- | --- |\n| 1 | 2 |",
    "pictures": ["results.png"],
}


@pytest.mark.parametrize("method", METHODS)
def test_card_says_what_was_done(method, tmp_path):
    card = ModelCard.load(write_model_card(tmp_path, method=method, **CARD))
    assert card.data.base_model == CARD["base_model"]
    assert card.data.license == "apache-2.0"
    assert card.data.pipeline_tag == "fill-mask"
    assert {"hf-domain", method} <= set(card.data.tags)
    for text in (
        "| tokens | 1,000 |",
        "| 1 | 2 |",
        "results.png",
        "Not tested on speech.",
        "CC BY 4.0",
        "@inproceedings",
    ):
        assert text in card.text
    assert not any(mark in card.text for mark in ("{{", "{%", "{base_model}"))
    assert ("trust_remote_code=True" in card.text) is (method not in ("dapt", "lora"))


def test_snippet_of_the_card_is_python(tmp_path):
    text = write_model_card(tmp_path, method="varmae", **CARD).read_text()
    compile(text.split("```python\n")[1].split("```")[0], "card", "exec")


def test_card_of_an_unknown_method(tmp_path):
    with pytest.raises(ValueError, match=f"one of {', '.join(METHODS)}; got dance"):
        write_model_card(tmp_path, method="dance", **CARD)
    assert not list(tmp_path.iterdir())


def test_publish_refuses_what_is_not_whole_or_not_safe(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ValueError, match=r"lacks README.md, tokenizer_config.json"):
        publish(tmp_path, "someone/model")
    for name in ("README.md", "tokenizer_config.json", "pytorch_model.bin"):
        (tmp_path / name).write_text("")
    with pytest.raises(ValueError, match=r"pytorch_model.bin: remove"):
        publish(tmp_path, "someone/model")


def test_results_are_whole_files(tmp_path):
    path = tmp_path / "results.json"
    write_json(path, {"a": "ü", "environment": describe_environment()})
    content = read_json(path)
    assert content["a"] == "ü"
    assert content["environment"]["versions"]["torch"]
    assert content["environment"]["hardware"]["cpu_cores"] >= 1
    with pytest.raises(TypeError):
        write_json(path, {"a": object()})
    assert read_json(path) == content
