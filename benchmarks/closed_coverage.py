"""The part of COVERAGE.md on intervals in closed form, beside the bootstrap that they replaced.

Logits of five classes are normal with some spread; labels are drawn from the softmax of the logits
times a sharpness (1 is calibrated). The truth is the figure of two million rows.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch

from calibrant import metrics
from calibrant.evaluation import intervals
from calibrant.evaluation.bootstrap import percentile_interval, resample_counts, resample_measures
from calibrant.metrics.base import State, compute_all
from calibrant.metrics.means import RowState
from calibrant.metrics.rank_state import RankState
from coverage_parts import Plan, rate

NAMES = ("nll", "brier", "aurc", "e_aurc", "failure_auroc")
MODELS = {  # spread of the logits, sharpness of the truth
    "wrong in half the rows": (1.0, 1.0),
    "wrong in a quarter": (3.0, 1.0),
    "wrong in two fifths, too sure": (3.0, 0.5),
    "wrong in a tenth": (8.0, 1.0),
}
ROWS = (200, 1_000, 10_000)
_TRUTH_ROWS, _RESAMPLES = 2_000_000, 400
_BOOTSTRAPPED = {200: 0.5, 1_000: 0.5, 10_000: 0.03}  # shares of the sets


def draw_states(number: int, spread: float, sharp: float, seed: int) -> dict[str, State]:
    """Draw rows; return the state behind each figure."""
    rng = np.random.default_rng([seed, number])
    logits = (spread * rng.standard_normal((number, 5))).astype(np.float32)
    labels = (sharp * logits + rng.gumbel(size=logits.shape)).argmax(1)
    nll, brier, ranks = RowState("nll"), RowState("brier"), RankState()
    compute_all([], [(logits, labels)], extra=[nll, brier, ranks])
    return {"nll": nll, "brier": brier} | dict.fromkeys(NAMES[2:], ranks)


def compute_value(name: str, state: State) -> float:
    """Compute a figure from its state."""
    if isinstance(state, RowState):
        return float(state.concatenate("rows").mean())
    return float(metrics.measure(name).compute(state))


def bootstrap(states: dict[str, State], number: int, seed: int) -> dict[str, tuple[float, float]]:
    """Return the percentile intervals of resampled rows."""
    measures = {name: metrics.measure(name) for name in NAMES}
    drawn: dict[str, list] = {name: [] for name in NAMES}
    for counts in resample_counts(number, _RESAMPLES, seed):
        for name, values in resample_measures(measures, states, counts).items():
            drawn[name].append(values)
    return {name: percentile_interval(np.concatenate(each), 0.95) for name, each in drawn.items()}


def closed_part(plan: Plan) -> tuple[str, str, Iterator[list[str]]]:
    """Means and ranked risks: the closed forms, and the bootstrap that they replaced."""
    trials = plan.trials
    fewer = {number: max(1, int(trials * _BOOTSTRAPPED[number])) for number in ROWS}
    words = (
        f"{trials:,} sets a line, 5 classes: how often the 95% interval in closed form (ABC for "
        "means; influences on a scale of logarithms for areas under risk and coverage, of log-odds "
        "for AUROC) holds the truth, and how often the truth lies below and above it. Beside it "
        f"the percentile bootstrap with {_RESAMPLES} resamples on the first {fewer[200]:,} of the "
        f"sets ({fewer[10_000]:,} of 10,000 rows), and on the same ones the closed form."
    )

    def lines() -> Iterator[list[str]]:
        yield [
            *("model", "rows", "figure", "closed form covers", "below", "above"),
            *("of the first sets", "bootstrap covers", "below", "above", "width, closed/bootstrap"),
        ]
        for model, (spread, sharp) in MODELS.items():
            whole = draw_states(_TRUTH_ROWS, spread, sharp, seed=1)
            truth = {name: compute_value(name, state) for name, state in whole.items()}
            del whole
            for number in ROWS:
                yield from _measure_lines(
                    model, number, spread, sharp, truth, trials, fewer[number]
                )

    return "Means and ranked risks: intervals in closed form", words, lines()


def _measure_lines(
    model: str,
    number: int,
    spread: float,
    sharp: float,
    truth: dict[str, float],
    trials: int,
    fewer: int,
) -> Iterator[list[str]]:
    side = {name: np.zeros((2, trials), dtype=int) for name in NAMES}  # −1 below, 1 above
    width = {name: np.zeros((2, trials)) for name in NAMES}
    measures = {name: metrics.measure(name) for name in NAMES}
    for trial in range(trials):
        states = draw_states(number, spread, sharp, seed=2 + trial)
        closed = intervals.row_intervals(measures, states, number, intervals.Plan())
        found = [{name: (each.low, each.high) for name, each in closed.items()}]
        if trial < fewer:
            found.append(bootstrap(states, number, trial))
        for index, each in enumerate(found):
            for name, (low, high) in each.items():
                side[name][index, trial] = int(truth[name] > high) - int(truth[name] < low)
                width[name][index, trial] = high - low
    for name in NAMES:
        own, first, other = side[name][0], side[name][0, :fewer], side[name][1, :fewer]
        ratio = width[name][0, :fewer].mean() / width[name][1, :fewer].mean()
        yield [
            *(model, f"{number:,}", name, rate(int((own == 0).sum()), trials)),
            *(f"{(own == -1).mean():.1%}", f"{(own == 1).mean():.1%}"),
            f"{(first == 0).mean():.1%}",
            rate(int((other == 0).sum()), fewer),
            *(f"{(other == -1).mean():.1%}", f"{(other == 1).mean():.1%}", f"{ratio:.3f}"),
        ]


if __name__ == "__main__":
    torch.set_num_threads(1)
    for line in closed_part(Plan(20))[2]:
        print(line)
