"""Parts of COVERAGE.md on verdicts: how often is a calibrated model called off, and a wrong one?

Scores are drawn, then many sets of labels for the same scores: only labels decide, and a set
then costs no more than its test.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import torch
from scipy.optimize import brentq
from scipy.special import expit, logit

from calibrant import Predictions
from calibrant.evaluation.class_tests import ClassOddsState, find_cells, run_class_tests
from calibrant.evaluation.evaluate import make_event_verdict, make_table_states
from calibrant.evaluation.intervals import Plan, Units
from calibrant.evaluation.verdict import calibration_test
from calibrant.functional.blocks import Block
from calibrant.metrics.base import compute_all
from calibrant.metrics.rank_state import RankState
from coverage_parts import rate

ROWS = (500, 10_000, 100_000)
RESAMPLES = 400  # `evaluate` makes 1,000
SCORES = 20  # sets of scores a cell, each with as many sets of labels
PRIORS = {"50%": 0.5, "1%": 0.01, "0.1%": 0.001}
Truth = Callable[[np.ndarray], np.ndarray]


def draw_events(prior: float, rows: int, rng: np.random.Generator) -> np.ndarray:
    """Probabilities with log-odds that vary by one and a half, of a given mean."""
    noise = rng.normal(0, 1.5, rows)
    grid = np.random.default_rng(0).normal(0, 1.5, 100_000)
    centre = brentq(lambda c: expit(c + grid).mean() - prior, -20, 20)
    return expit(centre + noise)


def by_gap(gap: float) -> Truth:
    """The chance of the event where the mean probability is too high by ``gap``."""

    def truth(p: np.ndarray) -> np.ndarray:
        shift = brentq(lambda s: p.mean() - expit(logit(p) - s).mean() - gap, 0, 20)
        return expit(logit(p) - shift)

    return truth


def by_ratio(ratio: float) -> Truth:
    """The chance of the event where observed over expected is ``ratio``."""
    return lambda p: np.minimum(p * ratio, 1.0)


EVENT_CELLS: list[tuple[str, str, Truth]] = [("calibrated", name, lambda p: p) for name in PRIORS]
EVENT_CELLS += [(f"too high by {gap} points", "50%", by_gap(gap / 100)) for gap in (2, 5, 10)]
EVENT_CELLS += [
    (f"observed/expected {ratio:.3g}", prior, by_ratio(ratio))
    for prior in ("1%", "0.1%")
    for ratio in (1.5, 2.0, 3.0, 1 / 1.5, 1 / 2, 1 / 3)
]


def judge_events(p: np.ndarray, y: np.ndarray, seed: int) -> str:
    """The state of the verdict that `evaluate` gives these events."""
    tables = make_table_states(15)
    compute_all([], [(p, y.astype(np.int64), None)], from_logits=False, extra=tables, positive=1)
    predictions = Predictions.from_events(p, y, validate=False)
    plan = Plan(resamples=RESAMPLES, seed=seed)
    return make_event_verdict(tables, plan, predictions, Units(), "event", None).state


def verdict_events_part(trials: int) -> tuple[str, str, Iterator[list[str]]]:
    """Verdicts on events: false alarms, and power."""
    words = (
        f"{trials:,} sets a line (± one standard error), {RESAMPLES} resamples: {SCORES} sets of "
        "probabilities, each with as many sets of outcomes; a quarter of that in the lines of "
        "models that are off. Log-odds vary by 1.5 (standard deviation). *Off* in the lines of "
        "calibrated models is a false alarm, in the others power. The tolerance is the default "
        "one: observed over expected and slope of 0.8 to 1.25."
    )

    def lines() -> Iterator[list[str]]:
        yield [
            *("model", "mean probability", "rows", "expected events"),
            *("off", "holds", "cannot tell"),
        ]
        for model, prior, truth in EVENT_CELLS:
            for rows in ROWS:
                sets = trials if model == "calibrated" else max(SCORES, trials // 4)
                yield [model, prior, f"{rows:,}", *simulate_events(prior, truth, rows, sets)]

    return "The verdict on events", words, lines()


def simulate_events(prior: str, truth: Truth, rows: int, trials: int) -> list[str]:
    """The expected number of events, and the shares of the three states."""
    counts = {"off": 0, "holds": 0, "cannot tell": 0}
    rng = np.random.default_rng([rows, int(PRIORS[prior] * 1000)])
    expected = 0.0
    for index in range(SCORES):
        p = draw_events(PRIORS[prior], rows, rng)
        chance = truth(p)
        expected += p.sum() / SCORES
        for again in range(trials // SCORES):
            y = rng.random(rows) < chance
            counts[judge_events(p, y, index * trials + again)] += 1
    return [f"{expected:,.1f}", *(rate(count, trials) for count in counts.values())]


def draw_classes(
    classes: int, rows: int, long_tailed: bool, rng: np.random.Generator
) -> torch.Tensor:
    """Probabilities of K classes, the last up to 100 times rarer than the first."""
    tail = np.log(100) * np.arange(classes) / (classes - 1) if long_tailed else np.zeros(classes)
    noise = torch.from_numpy(rng.standard_normal((rows, classes), dtype=np.float32))
    return torch.softmax(2.5 * noise - torch.from_numpy(tail.astype(np.float32)), 1)


def draw_labels(cumulative: torch.Tensor, rng: np.random.Generator) -> torch.Tensor:
    """A label for each row, by binary search in its cumulative probabilities."""
    chance = torch.from_numpy(rng.random(len(cumulative), dtype=np.float32)).unsqueeze(1)
    last = cumulative.shape[1] - 1
    return torch.searchsorted(cumulative, chance * cumulative[:, -1:]).clamp_(0, last).squeeze(1)


def verdict_classes_part(trials: int) -> tuple[str, str, Iterator[list[str]]]:
    """Verdicts on classes: false alarms."""
    words = (
        f"{trials:,} sets a line (± one standard error), {RESAMPLES} resamples, all calibrated: "
        f"{SCORES} sets of scores, each with as many sets of labels drawn from them; a fifth for "
        "100,000 rows of 1,000 classes. The last class of a "
        "long tail is 100 times rarer than the first. Half of alpha goes to the predicted class, "
        "half to the classes (Holm over two tests of each)."
    )

    def lines() -> Iterator[list[str]]:
        yield ["classes", "", "rows", "called off", "by the predicted class", "by a class"]
        for classes in (10, 100, 1000):
            for long_tailed in (False, True):
                for rows in ROWS:
                    kind = "long-tailed" if long_tailed else "balanced"
                    sets = max(SCORES, trials // 5) if classes * rows == 10**8 else trials
                    shares = simulate_classes(classes, rows, long_tailed, sets)
                    yield [f"{classes:,}", kind, f"{rows:,}", *shares]

    return "The verdict on classes", words, lines()


def simulate_classes(classes: int, rows: int, long_tailed: bool, trials: int) -> list[str]:
    """The shares of sets called off: by either test, the predicted class's, a class's."""
    rng = np.random.default_rng([classes, rows, long_tailed])
    either = top = single = 0
    for _ in range(SCORES):
        probs = draw_classes(classes, rows, long_tailed, rng)
        confidence, predicted = probs.max(1)
        like = torch.zeros(rows, dtype=torch.int64)
        state = ClassOddsState()
        state.update(
            Block(probs, 1, like, from_logits=False, nll_only=False, raw=probs, buffer=probs)
        )
        totals = state.total("totals")
        cells = totals.shape[1]
        cumulative = probs.double().cumsum(1).float()
        for again in range(trials // SCORES):
            y = draw_labels(cumulative, rng)
            home = find_cells(probs.gather(1, y.unsqueeze(1)).squeeze(1), cells)
            hit = torch.bincount(y * cells + home, minlength=classes * cells)
            totals[..., 2] = hit.view(classes, cells)
            ranks = RankState()
            ranks.scores, ranks.losses = [confidence], [predicted != y]
            by_class = 2 * run_class_tests(state).p_value < 0.05
            by_top = 2 * calibration_test(ranks, resamples=RESAMPLES, seed=again) < 0.05
            top, single, either = top + by_top, single + by_class, either + (by_top or by_class)
    return [rate(int(number), trials) for number in (either, top, single)]
