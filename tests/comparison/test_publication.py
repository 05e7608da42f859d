"""What a published model shows of its comparison."""

import json

import pandas as pd

from hf_domain.comparison import publication
from hf_domain.comparison.publication import draw_training, make_results


def test_training_curve(tmp_path):
    history = [{"step": 10, "loss": 3.0}, {"step": 20, "loss": 2.5}, {"step": 20, "eval_loss": 2.0}]
    state = tmp_path / "trainer_state.json"
    state.write_text(json.dumps({"log_history": history}))
    assert draw_training(state, tmp_path / "training.png")
    assert (tmp_path / "training.png").stat().st_size > 1000
    state.write_text(json.dumps({"log_history": history[2:]}))
    assert not draw_training(state, tmp_path / "none.png")
    assert not (tmp_path / "none.png").exists()


def test_a_card_has_no_row_without_scores(monkeypatch):
    rows = {"DAPT": "59.2", "AdaLM": "", "majority baseline": "0.0", "vote of the nearest texts": ""}
    scores = pd.DataFrame({"ner (f1)": rows})
    monkeypatch.setattr(publication, "make_tables", lambda report: {"Scores": scores})
    monkeypatch.setattr(publication, "list_unlearned", lambda report: "")
    lines = make_results(None).splitlines()
    assert [line.split("|")[1].strip() for line in lines[2:]] == ["DAPT", "majority baseline"]
