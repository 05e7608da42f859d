"""The forms of the page without a browser: what they say, and what their functions answer."""

import json
import shutil

import pytest
from tiny_tokenizers import SENTENCES

from hf_domain.exploration import page
from hf_domain.exploration.folders import open_folder
from hf_domain.prediction import predict


@pytest.mark.parametrize("has_vote", [True, False])
def test_a_classifier_predicts_without_its_vote_and_says_so(made, tmp_path, monkeypatch, has_vote):
    folder, forms = tmp_path / "voting", []
    shutil.copytree(made / "classifier", folder)
    if has_vote:
        config = json.loads((folder / "config.json").read_text())
        config["nearest_vote"] = {"count": 3, "weight": 0.4, "label_column": "label"}
        (folder / "config.json").write_text(json.dumps(config))
    monkeypatch.setattr(page, "make_textbox", lambda *_: None)
    monkeypatch.setattr(page, "add_form", lambda _, note, inputs, show: forms.append((note, show)))
    page.add_prediction(None, open_folder(str(folder)), "voting")
    ((note, show),) = forms
    (row,) = predict(made / "classifier", [{"text": SENTENCES[0]}])
    answer = show(SENTENCES[0])
    assert all(f"{share:.1%}" in answer for share in row["probabilities"].values())
    assert ("The vote of the nearest training texts is left out" in note) == has_vote
