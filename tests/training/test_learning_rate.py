"""The learning rate is the one that is best on validation."""

import json
import logging
from types import SimpleNamespace

import pytest

from hf_domain.checks import DivergenceError
from hf_domain.tasks.classification import ClassificationArguments
from hf_domain.training.arguments import FineTunerArguments, FineTuningArguments
from hf_domain.training.learning_rate import NewWarnings, run_at_best_rate


@pytest.fixture
def choose(tmp_path):
    """Choose among rates whose runs have these metrics; returns the rates in the order of the runs."""

    def call(metrics, known=None, **options):
        tried = []

        def run(model_args, data_args, passage_args, training_args):
            tried.append(training_args.learning_rate)
            if isinstance(found := metrics[training_args.learning_rate], Exception):
                raise found
            return SimpleNamespace(evaluated=SimpleNamespace(metrics=metrics[training_args.learning_rate]))

        if known is not None:
            (tmp_path / "_rates.json").write_text(json.dumps(known))
        training_args = FineTunerArguments(str(tmp_path), do_train=True, do_eval=True, report_to="none", use_cpu=True)
        model_args = FineTuningArguments("encoder", learning_rates=[*metrics])
        run_at_best_rate(run, model_args, ClassificationArguments(**options), None, training_args)
        return tried

    return call


@pytest.mark.parametrize(("metric", "best"), [("macro_f1", 1e-4), ("mse", 1e-5)])
def test_the_best_rate_is_used_last(choose, metric, best):
    """The highest score or the lowest error."""
    assert choose({1e-5: {f"eval_{metric}": 0.1}, 1e-4: {f"eval_{metric}": 0.9}}) == [1e-5, 1e-4, best]


def test_rates_that_were_tried_are_not_tried_again(choose):
    metrics = {1e-5: {"eval_macro_f1": 0.1}, 1e-4: {"eval_macro_f1": 0.5}}
    assert choose(metrics, known={"1e-05": 0.9}) == [1e-4, 1e-5]


def test_a_rate_that_diverges_loses(choose, tmp_path):
    diverged, found = DivergenceError("loss and gradients must be finite"), {"eval_macro_f1": 0.1}
    assert choose({1e-4: found, 1.0: diverged}) == [1e-4, 1.0, 1e-4]
    assert json.loads((tmp_path / "_rates.json").read_text()) == {"0.0001": 0.1, "1": None}
    assert choose({1e-4: found, 1.0: diverged}) == [1e-4]
    (tmp_path / "_rates.json").unlink()
    with pytest.raises(ValueError, match="diverges at each of 1, 2"):
        choose({1.0: diverged, 2.0: diverged})
    with pytest.raises(ValueError, match="wrong data"):
        choose({1e-5: ValueError("wrong data"), 1e-4: found})


def test_a_metric_of_unknown_direction_is_refused(choose):
    with pytest.raises(ValueError, match="but mae may be an error"):
        choose({1e-5: {"eval_mae": 0.9}, 1e-4: {"eval_mae": 0.1}}, metric_name="mae")


def test_a_warning_is_given_once_and_a_line_of_the_log_each_time():
    new = NewWarnings()

    def passes(level, text):
        return bool(new.filter(logging.LogRecord("hf_domain", level, "", 0, text, (), None)))

    assert [passes(logging.WARNING, "23 rows repeat") for _ in range(3)] == [True, False, False]
    assert [passes(logging.INFO, "accuracy 0.5") for _ in range(2)] == [True, True]
    assert passes(logging.WARNING, "another")
