"""What a published model shows of its comparison."""

import json
from types import SimpleNamespace

import pandas as pd
import pytest

from hf_domain.comparison import publish as publication
from hf_domain.comparison.figures import draw_training
from hf_domain.comparison.publish import describe_row, make_results


def test_training_curve(tmp_path):
    history = [{"step": 10, "loss": 3.0}, {"step": 20, "loss": 2.5}, {"step": 20, "eval_loss": 2.0}]
    state = tmp_path / "trainer_state.json"
    state.write_text(json.dumps({"log_history": history}))
    assert draw_training(state, tmp_path / "training.png")
    assert (tmp_path / "training.png").stat().st_size > 1000
    state.write_text(json.dumps({"log_history": history[2:]}))
    assert not draw_training(state, tmp_path / "none.png")
    assert not (tmp_path / "none.png").exists()


@pytest.mark.parametrize(
    ("budget", "seeds", "sentence"),
    [
        (None, [42], "DAPT is this model."),
        (4096, [42], "DAPT is this model."),
        (2048, [42], "This model is DAPT after 2,048 tokens; the table has its scores after 4,096."),
        (4096, [42, 43], "This model is one of the 2 encoders of DAPT, with the seed 43; the row has their means."),
    ],
)
def test_a_card_says_which_encoder_of_a_row_it_has(budget, seeds, sentence):
    step = SimpleNamespace(kind="pretraining", method="dapt", budget=budget, pretraining_seed=43)
    report = SimpleNamespace(titles={"dapt": "DAPT"}, plan={"budget": {"tokens": 4096}, "pretraining_seeds": seeds})
    assert describe_row(SimpleNamespace(step=step, score=None), report) == sentence


def test_a_card_has_no_row_without_scores(monkeypatch):
    rows = {"DAPT": "59.2", "AdaLM": "", "majority baseline": "0.0", "vote of the nearest texts": ""}
    scores = pd.DataFrame({"ner (f1)": rows})
    monkeypatch.setattr(publication, "make_tables", lambda report: {"Scores": scores})
    monkeypatch.setattr(publication, "list_unlearned", lambda report: "")
    lines = make_results(None).splitlines()
    assert [line.split("|")[1].strip() for line in lines[2:]] == ["DAPT", "majority baseline"]
