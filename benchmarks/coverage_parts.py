"""Parts of COVERAGE.md beside the interval of ECE: each gives a heading, words and a table."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from scipy.optimize import brentq

from calibrant import Predictions, compare, metrics
from calibrant.evaluation import Comparison
from calibrant.evaluation.bootstrap import percentile_interval, resample_counts, resample_measures
from calibrant.evaluation.groups import judge as grouping
from calibrant.evaluation.groups.files import check_groups
from calibrant.evaluation.intervals import Plan as Resampling
from calibrant.evaluation.inversion import Interval
from calibrant.metrics.base import compute_all
from calibrant.metrics.means import RowState
from calibrant.metrics.rank_state import RankState

RISK = 0.05
# name: lowest confidence, and by how much it is too sure; c = low + (1 − low)·Beta(3, 1)
ACCEPTED = {
    "calibrated, confidences from 0.55": (0.55, 0.0),
    "calibrated, from 0.78": (0.78, 0.0),
    "calibrated, from 0.9": (0.9, 0.0),
    "overconfident by 2%, from 0.55": (0.55, 0.02),
    "overconfident by 10%, from 0.55": (0.55, 0.1),
}


@dataclass(frozen=True)
class Plan:
    """How many sets to draw, in how many processes, and which lines to make."""

    trials: int
    jobs: int = 1
    lines: str = ""  # a regular expression that the first columns of a line match

    def wants(self, *columns: str) -> bool:
        """Return whether to make the line that begins with these columns."""
        return re.search(self.lines, " | ".join(columns)) is not None

    def share(self, work: Callable[..., Any], cases: Sequence[tuple]) -> Iterator[Any]:
        """Yield the results of the work on each case, in their order, from several processes."""
        if self.jobs == 1:
            yield from (work(*case) for case in cases)
            return
        with ProcessPoolExecutor(
            self.jobs, initializer=torch.set_num_threads, initargs=(1,)
        ) as pool:
            yield from pool.map(work, *zip(*cases, strict=True))


def rate(hits: int, trials: int) -> str:
    """A share with its standard error, which none and all have not."""
    share = hits / trials
    error = (share * (1 - share) / trials) ** 0.5
    return f"{share:.1%} ± {error:.1%}" if error else f"{share:.0%}"


def accepted_share(low: float, gap: float) -> float:
    """The true largest share at a risk of 5%, where risk falls with confidence."""

    def excess(u: float) -> float:  # E[1 − c + gap | Beta >= u] − 5%
        return (1 - low) * (1 - 0.75 * (1 - u**4) / (1 - u**3)) + gap - RISK

    if excess(0.0) <= 0:
        return 1.0
    if excess(1 - 1e-9) > 0:
        return 0.0
    return 1 - brentq(excess, 0.0, 1 - 1e-9) ** 3


def coverage_at_risk_part(plan: Plan) -> tuple[str, str, Iterator[list[str]]]:
    """Does the interval of coverage_at_risk hold the truth?"""
    trials = plan.trials
    words = (
        f"{trials:,} sets a line. The truth follows from the law of the confidences. Beside it the "
        "percentile bootstrap (200 resamples, the first 300 sets), which chooses the luckiest "
        "threshold again in every resample. The errors of its tests are added up, so that it "
        "covers more than 95%; of few rows it is wide, often from 0, because they cannot show "
        "more: to grant a share, somewhere so few rows must be wrong that a risk of 5% is ruled "
        "out."
    )

    def lines() -> Iterator[list[str]]:
        yield ["model", "rows", "true share", "covers", "bootstrap covers", "mean low – high"]
        measure = metrics.measure("coverage_at_risk", risk=RISK)
        for name, (low, gap) in ACCEPTED.items():
            truth = accepted_share(low, gap)
            for num_rows in (200, 1_000, 5_000):
                rng = np.random.default_rng(30_000 + num_rows)
                inside, naive, ends = 0, 0, np.zeros(2)
                few = min(trials, 300)
                for trial in range(trials):
                    confidence = low + (1 - low) * rng.beta(3, 1, size=num_rows)
                    right = rng.random(num_rows) < confidence - gap
                    probs = np.stack((1 - confidence, confidence), axis=1)
                    state = RankState()
                    compute_all([], [(probs, right * 1)], from_logits=False, extra=[state])
                    found = measure.interval(state, 0.95)
                    inside += found[0] <= truth <= found[1]
                    ends += np.array(found) / trials
                    if trial < few:
                        kept = {"it": state}
                        values = [
                            resample_measures({"it": measure}, kept, counts)["it"]
                            for counts in resample_counts(num_rows, 200, trial)
                        ]
                        least, most = percentile_interval(np.concatenate(values), 0.95)
                        naive += least <= truth <= most
                yield [
                    name,
                    f"{num_rows:,}",
                    f"{truth:.3f}",
                    rate(inside, trials),
                    f"{naive / few:.0%}",
                    f"{ends[0]:.2f} – {ends[1]:.2f}",
                ]

    return "The 95% interval of coverage_at_risk", words, lines()


def groups_part(plan: Plan) -> tuple[str, str, Iterator[list[str]]]:
    """How often is a calibrated group called off, and one that is off found?"""
    trials = plan.trials
    words = (
        f"{trials:,} sets a line, of ten groups each, judged at 5% with Holm's correction. Any "
        "called off: the share of sets in which a group is called over- or underconfident that is "
        "not. Found: the share in which the one group that is overconfident is said to be."
    )
    confident = {
        "from 0.55": lambda rng, size: 0.55 + 0.45 * rng.beta(3, 1, size=size),
        "above 0.996": lambda rng, size: 1 - 0.004 * rng.random(size),
    }

    def lines() -> Iterator[list[str]]:
        grouping.invert = lambda *_, **__: Interval(0.0, 0.0, None)  # ECE takes no part
        grouping.chance_level = lambda *_, **__: 0.0
        yield ["confidences", "rows a group", "one group off by", "any called off", "found"]
        cases = [("from 0.55", size, 0.0) for size in (30, 100, 300, 1_000)]
        cases += [("above 0.996", size, 0.0) for size in (100, 1_000)]
        cases += [("from 0.55", 300, gap) for gap in (0.05, 0.1)]
        cases += [("from 0.55", 1_000, 0.05)]
        for name, size, gap in cases:
            rng = np.random.default_rng(40_000 + size)
            alarms, hits = 0, 0
            home = np.repeat(np.arange(10), size)
            for _ in range(trials):
                confidence = confident[name](rng, len(home))
                right = rng.random(len(home)) < confidence - gap * (home == 3)
                probs = np.stack((1 - confidence, confidence), axis=1)
                predictions = Predictions.from_probs(probs, right * 1, validate=False)
                ranks, loss = RankState(), RowState("nll")
                compute_all([], predictions.batches(), from_logits=False, extra=[ranks, loss])
                values = check_groups(home, predictions, "group")
                found = grouping.judge_groups(
                    values, predictions, ranks, loss, num_bins=15, plan=Resampling()
                )
                off = {group.value: group.finding for group in found.off}
                hits += gap > 0 and off.pop("3", "") == "overconfident"
                alarms += bool(off)
            yield [
                name,
                f"{size:,}",
                f"{gap:.0%}" if gap else "–",
                rate(alarms, trials),
                rate(hits, trials) if gap else "–",
            ]

    return "Groups: false alarms and power", words, lines()


def noisy_twins(rng: np.random.Generator, num_rows: int) -> list[Predictions]:
    """Two sets as good as each other: the same logits of 5 classes, with noise of their own."""
    logits = 2 * rng.normal(size=(num_rows, 5))
    probs = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    labels = (probs.cumsum(1) < rng.random(num_rows)[:, None]).sum(1).clip(max=4)
    return [
        Predictions.from_logits(logits + 0.7 * rng.normal(size=logits.shape), labels, name=name)
        for name in "ab"
    ]


def compare_part(plan: Plan) -> tuple[str, str, Iterator[list[str]]]:
    """How often does compare name a winner of two sets that are as good as each other?"""
    trials = plan.trials
    names = ["nll", "ece", "adaptive_ece", "classwise_ece"]
    words = (
        f"{trials:,} pairs a line: the same logits of 5 classes (of which the labels are drawn) "
        "with noise of the same size, drawn anew for each set, so that neither is better. The "
        "share in which the 95% interval of the difference leaves out 0, metric by metric; and in "
        "which the headline names a winner in any of the four (Holm)."
    )

    def lines() -> Iterator[list[str]]:
        yield ["rows", *names, "headline, any"]
        for num_rows in (200, 1_000):
            rng = np.random.default_rng(50_000 + num_rows)
            wins, shown = dict.fromkeys(names, 0), 0
            for trial in range(trials):
                found = compare(*noisy_twins(rng, num_rows), metrics=names, seed=trial)
                for name in names:
                    wins[name] += found[name].winner != "neither"
                shown += bool(found.shown)
            yield [f"{num_rows:,}", *(rate(wins[n], trials) for n in names), rate(shown, trials)]

    return "compare: false alarms", words, lines()


def compare_groups_part(plan: Plan) -> tuple[str, str, Iterator[list[str]]]:
    """How often does compare call two sets that are as good as each other different in a group?"""
    trials = plan.trials
    words = (
        f"{trials:,} pairs a line, drawn as above, with rows in ten groups at random. *Any "
        "different*: the share of pairs in which one of them is said to be better in any group, in "
        "accuracy, NLL or Brier score (Holm over all). *Found*: likewise in the one group in which "
        "the logits of the second set are twice as noisy, and *elsewhere* in any other."
    )

    def lines() -> Iterator[list[str]]:
        yield ["rows a group", "any different", "found", "elsewhere"]
        for rows in (30, 100, 300):
            rng = np.random.default_rng(51_000 + rows)
            alarms = found = elsewhere = 0
            for trial in range(trials):
                a, b = noisy_twins(rng, 10 * rows)
                groups = rng.integers(0, 10, 10 * rows)
                names = ["accuracy", "nll", "brier"]
                equal = compare(a, b, metrics=names, groups=groups, resamples=10, seed=trial)
                alarms += bool(_find_different(equal))
                noise = 1.4 * rng.normal(size=a.array.shape) * (groups == 0)[:, None]
                worse = Predictions.from_logits(b.array + noise, b.labels, name="b")
                comparison = compare(
                    a, worse, metrics=names, groups=groups, resamples=10, seed=trial
                )
                different = _find_different(comparison)
                found += "0" in different
                elsewhere += bool(different - {"0"})
            counts = (alarms, found, elsewhere)
            yield [f"{rows:,}", *(rate(count, trials) for count in counts)]

    return "compare by group: false alarms and power", words, lines()


def _find_different(comparison: Comparison) -> set[str]:
    """Return the groups in which either set is shown to be better."""
    groups = comparison.groups
    assert groups is not None
    return {group.value for group, _ in (*groups.find_worse(), *groups.find_better())}
