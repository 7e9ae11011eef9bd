"""Words say what the numbers say."""

from __future__ import annotations

import numpy as np
import pytest

from calibrant import Predictions, evaluate
from calibrant.evaluation.verdict import conclude

USUAL = {
    "num_rows": 1000,
    "accuracy": 0.8,
    "ece": 0.03,
    "ece_low": 0.0,
    "ece_high": 0.05,
    "chance_ece": 0.04,
    "level": 0.95,
}


@pytest.mark.parametrize(
    ("gap", "low", "high", "says"),
    [
        (
            -0.011,
            -0.124,
            0.092,
            "falls short of accuracy by 1.1 points (95% interval -9.2 to 12.4)",
        ),
        (-0.05, -0.08, -0.02, "falls short of accuracy by 5.0 points (95% interval 2.0 to 8.0)"),
        (0.05, 0.02, 0.08, "exceeds accuracy by 5.0 points (95% interval 2.0 to 8.0)"),
        (0.011, -0.092, 0.124, "exceeds accuracy by 1.1 points (95% interval -9.2 to 12.4)"),
    ],
)
def test_the_interval_is_of_what_the_words_say(gap, low, high, says):
    verdict = conclude(**USUAL, gap=gap, gap_low=low, gap_high=high, p_value=0.3)
    assert says in verdict.sentences[0]


@pytest.mark.parametrize(("sign", "word"), [(1, "more"), (-1, "less")])
def test_a_mean_that_is_off_is_not_called_a_match(sign, word):
    """Bin by bin chance explains it; on average it does not: that is neither yes nor no."""
    low, high = sorted((sign * 0.02, sign * 0.08))
    how = {**USUAL, "gap": sign * 0.05, "gap_low": low, "gap_high": high}
    open_ = conclude(**how, p_value=0.06)
    assert open_.direction == "neither"
    assert open_.state == "cannot tell"
    assert open_.headline.startswith("Cannot tell: on average it is ")
    assert f", {word} sure than chance explains" in open_.headline
    sure = conclude(**how, p_value=0.01)
    assert sure.direction == ("overconfident" if sign > 0 else "underconfident")
    both = conclude(**{**how, "gap_low": -0.02, "gap_high": 0.08}, p_value=0.06)
    assert both.state == "cannot tell"
    assert both.headline.startswith("Cannot tell, for too little data: no miscalibration was found")
    near = conclude(**{**how, "gap_low": -0.02, "gap_high": 0.04}, p_value=0.06)
    assert near.state == "holds"
    assert near.headline.startswith("No miscalibration was found")


def test_certain_rows_that_are_right_are_not_called_less_sure_than_chance_explains():
    probs = np.tile([1.0, 0.0, 0.0], (30, 1))
    verdict = evaluate(Predictions.from_probs(probs, np.zeros(30, int)), resamples=100).verdict
    assert verdict.state == "cannot tell"
    assert "could hide in it" in verdict.headline
