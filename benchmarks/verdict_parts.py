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

from calibrant.evaluation.class_tests import ClassOddsState, find_cells, run_class_tests
from calibrant.evaluation.event_tests import find_span, run_event_tests
from calibrant.evaluation.groups.poisson_binomial import error_count_tails
from calibrant.evaluation.intervals import Plan as Resampling
from calibrant.evaluation.intervals import Units
from calibrant.evaluation.verdict import OFF, UNSURE, Span, calibration_test, conclude_events
from calibrant.functional.blocks import Block
from calibrant.metrics.rank_state import RankState
from coverage_parts import Plan, rate

ROWS = (500, 10_000, 100_000)
RESAMPLES = 400  # `evaluate` makes 1,000
FEWEST, MANY = 10, 30  # expected events that are enough, and events that are enough whatever
SCORES = 20  # sets of scores a cell, each with as many sets of labels
PRIORS = {"50%": 0.5, "1%": 0.01, "0.1%": 0.001}
KINDS = {False: "balanced", True: "long-tailed"}
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
    """The state of the verdict that `evaluate` gives these events.

    The calibration error along the scale, which costs most, takes no part in the state. Where
    the numbers of events alone settle it, the rest is left out, but for one set in twenty, which
    checks that this changes nothing.
    """
    expected, observed = float(min(p.sum(), (1 - p).sum())), int(y.sum())
    if p.sum() > len(p) / 2:
        observed = len(y) - observed
    settled = ""
    if expected < FEWEST and observed < MANY:
        settled = UNSURE
    elif 4 * min(error_count_tails(p, int(y.sum()))) < 0.05:  # two sides, and half of alpha
        settled = OFF
    if settled and seed % 20:
        return settled
    ranks, plan = RankState(), Resampling(resamples=RESAMPLES, seed=seed)
    ranks.scores, ranks.losses = [torch.from_numpy(p)], [torch.from_numpy(~y)]
    tests = run_event_tests(ranks, p, y, Units(), plan)
    nothing = Span(0.0, 0.0, 0.0)
    state = conclude_events(
        event="event",
        num_rows=len(p),
        num_events=int(y.sum()),
        mean=float(p.mean()),
        gap=nothing,
        ratio=find_span("oe_ratio", ranks, Units(), plan),
        slope=find_span("calibration_slope", ranks, Units(), plan),
        error=nothing,
        p_total=tests.total,
        p_slope=tests.slope,
        p_local=tests.local,
        place=None,
        chance_ece=0.0,
        level=plan.level,
        expected=expected,
        observed=observed,
    ).state
    if settled and state != settled:
        raise RuntimeError(f"the verdict is {state!r}, the numbers of events say {settled!r}")
    return state


def verdict_events_part(plan: Plan) -> tuple[str, str, Iterator[list[str]]]:
    """Verdicts on events: false alarms, and power."""
    words = (
        f"{plan.trials:,} sets a line (± one standard error), {RESAMPLES} resamples: {SCORES} sets "
        "of probabilities, each with as many sets of outcomes. Log-odds vary by 1.5 (standard "
        "deviation). *Off* in the lines of calibrated models is a false alarm, in the others "
        "power. The tolerance is the default one: observed over expected and slope of 0.8 to "
        "1.25. Under ten expected events nothing is called off unless 30 or more happen."
    )

    def lines() -> Iterator[list[str]]:
        yield [
            *("model", "mean probability", "rows", "expected events"),
            *("off", "holds", "cannot tell"),
        ]
        cells = [
            (index, rows)
            for index, (model, prior, _) in enumerate(EVENT_CELLS)
            for rows in ROWS
            if plan.wants(model, prior, f"{rows:,}")
        ]
        cases = [
            (index, rows, max(1, plan.trials // SCORES), scores)
            for index, rows in cells
            for scores in range(SCORES)
        ]
        found = plan.share(simulate_events, cases)
        for index, rows in cells:
            model, prior, _ = EVENT_CELLS[index]
            parts = np.array([next(found) for _ in range(SCORES)])
            sets = SCORES * max(1, plan.trials // SCORES)
            shares = (rate(int(count), sets) for count in parts[:, 1:].sum(0))
            yield [model, prior, f"{rows:,}", f"{parts[:, 0].mean():,.1f}", *shares]

    return "The verdict on events", words, lines()


def simulate_events(index: int, rows: int, sets: int, scores: int) -> list[float]:
    """Return the expected number of events, and how often each of the three states is found."""
    _, prior, truth = EVENT_CELLS[index]
    counts = {"off": 0, "holds": 0, "cannot tell": 0}
    rng = np.random.default_rng([rows, index, scores])
    p = draw_events(PRIORS[prior], rows, rng)
    chance = truth(p)
    for again in range(sets):
        y = rng.random(rows) < chance
        counts[judge_events(p, y, scores * sets + again)] += 1
    return [float(p.sum()), *counts.values()]


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


def verdict_classes_part(plan: Plan) -> tuple[str, str, Iterator[list[str]]]:
    """Verdicts on classes: false alarms."""
    words = (
        f"{plan.trials:,} sets a line (± one standard error), {RESAMPLES} resamples, all "
        f"calibrated: {SCORES} sets of scores, each with as many sets of labels drawn from them. "
        "The last class of a "
        "long tail is 100 times rarer than the first. Half of alpha goes to the predicted class, "
        "half to the classes (Holm over two tests of each)."
    )

    def lines() -> Iterator[list[str]]:
        yield ["classes", "", "rows", "called off", "by the predicted class", "by a class"]
        cells = [
            (classes, rows, long_tailed)
            for classes in (10, 100, 1000)
            for long_tailed in (False, True)
            for rows in ROWS
            if plan.wants(f"{classes:,}", KINDS[long_tailed], f"{rows:,}")
        ]
        sets = max(1, plan.trials // SCORES)
        cases = [(*cell, sets, scores) for cell in cells for scores in range(SCORES)]
        found = plan.share(simulate_classes, cases)
        for classes, rows, long_tailed in cells:
            counts = np.sum([next(found) for _ in range(SCORES)], axis=0)
            shares = (rate(int(count), sets * SCORES) for count in counts)
            yield [f"{classes:,}", KINDS[long_tailed], f"{rows:,}", *shares]

    return "The verdict on classes", words, lines()


def simulate_classes(
    classes: int, rows: int, long_tailed: bool, sets: int, scores: int
) -> tuple[int, int, int]:
    """Return how many sets are called off: by either test, the predicted class's, a class's."""
    rng = np.random.default_rng([classes, rows, long_tailed, scores])
    either = top = single = 0
    probs = draw_classes(classes, rows, long_tailed, rng)
    confidence, predicted = probs.max(1)
    like = torch.zeros(rows, dtype=torch.int64)
    state = ClassOddsState()
    state.update(Block(probs, 1, like, from_logits=False, nll_only=False, raw=probs, buffer=probs))
    totals = state.total("totals")
    cells = totals.shape[1]
    cumulative = probs.double().cumsum(1).float()
    for again in range(sets):
        y = draw_labels(cumulative, rng)
        home = find_cells(probs.gather(1, y.unsqueeze(1)).squeeze(1), cells)
        hit = torch.bincount(y * cells + home, minlength=classes * cells)
        totals[..., 2] = hit.view(classes, cells)
        ranks = RankState()
        ranks.scores, ranks.losses = [confidence], [predicted != y]
        by_class = 2 * run_class_tests(state).p_value < 0.05
        by_top = 2 * calibration_test(ranks, resamples=RESAMPLES, seed=scores * sets + again) < 0.05
        top, single, either = top + by_top, single + by_class, either + (by_top or by_class)
    return either, top, single
