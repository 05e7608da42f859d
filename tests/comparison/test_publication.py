"""What a published model shows of its comparison."""

import json

from hf_domain.comparison.publication import draw_training


def test_training_curve(tmp_path):
    history = [{"step": 10, "loss": 3.0}, {"step": 20, "loss": 2.5}, {"step": 20, "eval_loss": 2.0}]
    state = tmp_path / "trainer_state.json"
    state.write_text(json.dumps({"log_history": history}))
    assert draw_training(state, tmp_path / "training.png")
    assert (tmp_path / "training.png").stat().st_size > 1000
    state.write_text(json.dumps({"log_history": history[2:]}))
    assert not draw_training(state, tmp_path / "none.png")
    assert not (tmp_path / "none.png").exists()
