"""Two sets of predictions of the same rows, compared in pairs."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from calibrant.evaluation.bootstrap import (
    MOST_CELLS,
    affordable,
    kept_states,
    percentiles,
    resample_counts,
    resampled_values,
)
from calibrant.evaluation.intervals import Plan, calibration_interval, half_samples, normal_interval
from calibrant.evaluation.measures import Wanted, choose_measures
from calibrant.evaluation.swaps import at_least, swapped_spread
from calibrant.evaluation.value import plain
from calibrant.functional.blocks import Array
from calibrant.functional.errors import InputError, first
from calibrant.functional.many_tests import holm
from calibrant.metrics.base import Measure, State, compute_all
from calibrant.metrics.registry import METRICS
from calibrant.predictions import Predictions

if TYPE_CHECKING:
    import pandas as pd

COMPARED = ("accuracy", "nll", "brier", "ece", "adaptive_ece", "classwise_ece", "aurc")


@dataclass(frozen=True)
class Difference:
    """One metric of two sets of predictions, and b − a with its paired interval.

    For calibration errors the difference is that of the bias-corrected values: a model
    close to calibrated owes more of its plug-in value to chance. Correcting makes them vary
    more than the plug-in values do, so the plug-in difference must also be more than swapping
    the two sets' rows at random brings about (but for class-wise errors of very many scores);
    where it is not, the interval is stretched to 0.
    """

    name: str
    label: str
    a: float
    b: float
    difference: float
    low: float
    high: float
    p_value: float
    better: str  # which direction is better, "lower", "higher" or "neither"

    @property
    def winner(self) -> str:
        """ "a" or "b" where one is better and the interval excludes 0, else "neither"."""
        if self.low <= 0 <= self.high or self.better == "neither":
            return "neither"
        return "b" if (self.difference < 0) == (self.better == "lower") else "a"


@dataclass(frozen=True)
class Comparison:
    """What changes from one set of predictions to another, on the same rows."""

    a: str
    b: str
    num_rows: int
    differences: dict[str, Difference]
    settings: dict[str, Any]

    def __getitem__(self, name: str) -> Difference:
        return self.differences[name]

    @property
    def _tested(self) -> dict[str, float]:
        """p-values of the metrics that have a better way and a difference."""
        return {
            name: one.p_value
            for name, one in self.differences.items()
            if one.better != "neither" and np.isfinite(one.p_value)
        }

    @property
    def num_tested(self) -> int:
        """How many metrics what is shown is corrected for."""
        return len(self._tested)

    @property
    def shown(self) -> frozenset[str]:
        """The metrics with a winner that holds up among so many (Holm's correction)."""
        tested = self._tested
        adjusted = dict(zip(tested, holm(list(tested.values())), strict=True))
        return frozenset(
            name
            for name, p_value in adjusted.items()
            if self[name].winner != "neither"
            and (len(tested) == 1 or (p_value is not None and p_value < self._level))
        )

    @property
    def _level(self) -> float:
        return 1 - float(self.settings["confidence_level"])

    @property
    def headline(self) -> str:
        """The outcome in one sentence; what is shown is shown among so many metrics (Holm)."""
        sides: dict[str, list[str]] = {"a": [], "b": [], "hinted": [], "neither": []}
        shown = self.shown
        for name, one in self.differences.items():
            sure = name in shown or one.winner == "neither"
            sides[one.winner if sure else "hinted"].append(name)
        parts = [
            f"{who} is better in {', '.join(sides[side])}"
            for side, who in (("b", self.b), ("a", self.a))
            if sides[side]
        ]
        if sides["hinted"]:
            named = ", ".join(sides["hinted"])
            parts.append(f"hinted at, not shown among {self.num_tested} metrics: {named}")
        if sides["neither"]:
            parts.append(f"no difference is shown in {', '.join(sides['neither'])}")
        return "; ".join(parts) + "."

    def to_frame(self) -> pd.DataFrame:
        """The differences as a table, one row a metric."""
        import pandas as pd

        rows = [{**asdict(one), "winner": one.winner} for one in self.differences.values()]
        return pd.DataFrame(rows).set_index("name")

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain values that JSON can hold; what is undefined is None."""
        named = {n: {**asdict(d), "winner": d.winner} for n, d in self.differences.items()}
        cleaned: dict[str, Any] = plain(
            {
                **asdict(self),
                "differences": named,
                "shown": sorted(self.shown),
                "corrected_for": self.num_tested,
                "headline": self.headline,
            }
        )
        return cleaned

    def to_json(self, *, indent: int | None = 2) -> str:
        """The same as JSON text; infinite values are the strings "inf" and "-inf"."""
        return json.dumps(self.to_dict(), indent=indent, allow_nan=False, ensure_ascii=False)


def compare(
    a: Predictions,
    b: Predictions,
    *,
    metrics: Wanted | None = None,
    num_bins: int = 15,
    confidence_level: float = 0.95,
    resamples: int = 1000,
    seed: int = 0,
    progress: bool = False,
) -> Comparison:
    """Compare two sets of predictions of the same rows, b against a.

    Rows are resampled in pairs, so that what is hard for both cancels out. Both must have
    the same labels in the same order, and the same sample ids where both have them.
    """
    a, b = a.in_memory(), b.in_memory()
    _same_rows(a, b)
    measures = choose_measures(COMPARED if metrics is None else metrics, num_bins)
    plan = Plan(confidence_level, resamples, seed)
    both = [_Side(p, measures, plan) for p in (a, b)]
    drawn = _differences(both, measures, plan, progress)
    swapped = swapped_spread([(side.predictions, side.options) for side in both], measures, plan)
    differences = {}
    for name, one in measures.items():
        (value_a, best_a), (value_b, best_b) = (side.figures[name] for side in both)
        difference, low, high, p_value = _paired(
            one, best_b - best_a, drawn[name], confidence_level
        )
        if name in swapped and np.isfinite(difference):
            score = (value_b - value_a) / swapped[name]
            low, high, p_value = at_least(score, low, high, p_value, confidence_level)
        differences[name] = Difference(
            name,
            METRICS[name].label,
            value_a,
            value_b,
            difference,
            low,
            high,
            p_value,
            one.better,
        )
    settings = {"confidence_level": confidence_level, "resamples": resamples, "seed": seed}
    names = (a.name, b.name) if a.name != b.name else (f"{a.name} (A)", f"{b.name} (B)")
    return Comparison(*names, a.num_rows, differences, settings)


class _Side:
    """One of the two sets: its figures, and the rows a bootstrap needs."""

    def __init__(self, predictions: Predictions, measures: dict[str, Measure], plan: Plan) -> None:
        self.predictions = predictions
        self.options: dict[str, Any] = {
            "from_logits": predictions.is_logits,
            "ignore_index": predictions.ignore_index,
        }
        built = {name: one.build() for name, one in measures.items()}
        size = int(np.prod(predictions.scores.shape))
        kept = kept_states(measures, classes=size <= MOST_CELLS)
        shared: dict[tuple[Any, ...], State] = {}
        for state in (*kept.values(), *(s for states in built.values() for s in states)):
            shared.setdefault(state.options(), state)
        values = compute_all(
            list(measures.values()),
            predictions.batches(),
            extra=list(shared.values()),
            **self.options,
        )
        self.kept = {name: shared[state.options()] for name, state in kept.items()}
        # The value, and the value less its upward bias where it has one.
        self.figures: dict[str, tuple[float, float]] = {}
        for (name, one), value in zip(measures.items(), values, strict=True):
            best = float(value)
            if one.kind == "calibration":
                found = calibration_interval(one, shared[built[name][0].options()], plan)
                best = best if found.estimate is None else found.estimate
            self.figures[name] = (float(value), best)

    def take(self, rows: NDArray[np.int64]) -> tuple[Array, Array]:
        """Some rows, repeated as drawn."""
        return self.predictions.array[rows], self.predictions.labels[rows]


def _differences(
    both: list[_Side], measures: dict[str, Measure], plan: Plan, progress: bool
) -> dict[str, NDArray[np.float64]]:
    """b − a of every measure on resampled rows, the same rows for both."""
    a = both[0]
    fast = [name for name in measures if name in a.kept]
    slow = {name: one for name, one in measures.items() if name not in a.kept}
    # Rows here are what is counted: pixels, where predictions are dense.
    counted = int(np.prod(a.predictions.labels.shape)) - _ignored(a.predictions)
    draws = affordable(counted, plan.resamples)
    again = min(draws, 100) if slow else 0
    parts: dict[str, list[NDArray[np.float64]]] = {name: [] for name in measures}

    def work(tick: Callable[[int], None]) -> None:
        for counts in resample_counts(counted, draws, plan.seed) if fast else ():
            left, right = (resampled_values(measures, side.kept, counts) for side in both)
            with np.errstate(invalid="ignore"):  # both infinite: not a number, and left out
                for name in fast:
                    parts[name].append(right[name] - left[name])
            tick(len(counts))
        if slow:
            values = half_samples(
                list(slow.values()),
                [side.take for side in both],
                a.predictions.num_rows,
                draws=again,
                seed=plan.seed,
                options=[side.options for side in both],
                tick=lambda: tick(1),
            )
            for column, name in enumerate(slow):
                parts[name].append(values[:, 1, column] - values[:, 0, column])

    _with_progress(work, (draws if fast else 0) + again, progress)
    return {name: np.concatenate(each) for name, each in parts.items()}


def _ignored(predictions: Predictions) -> int:
    if predictions.ignore_index is None:
        return 0
    return int((np.asarray(predictions.labels) == predictions.ignore_index).sum())


def _same_rows(a: Predictions, b: Predictions) -> None:
    if a.labels.shape != b.labels.shape or a.num_classes != b.num_classes:
        raise InputError(
            f"the two must be of the same rows: {a.name} has labels of shape "
            f"{tuple(a.labels.shape)} and {a.num_classes} classes, {b.name} has "
            f"{tuple(b.labels.shape)} and {b.num_classes}"
        )
    if a.ignore_index != b.ignore_index:
        raise InputError(
            f"the two must leave out the same rows: ignore_index is {a.ignore_index} of {a.name} "
            f"and {b.ignore_index} of {b.name}"
        )
    pairs = [("labels", np.asarray(a.labels), np.asarray(b.labels))]
    if a.ids is not None and b.ids is not None:
        pairs.insert(0, ("sample ids", np.asarray(a.ids), np.asarray(b.ids)))
    for what, left, right in pairs:
        rows = np.flatnonzero((left != right).reshape(len(left), -1).any(1))
        if len(rows):
            raise InputError(
                f"the two must be of the same rows in the same order: {what} of {a.name} and "
                f"{b.name} differ in {len(rows):,} rows, first {first(rows.tolist())}"
            )


def _paired(
    one: Measure, difference: float, drawn: NDArray[np.float64], level: float
) -> tuple[float, float, float, float]:
    """(difference, low, high, p-value) from resampled differences."""
    from scipy.special import ndtr

    drawn = drawn[np.isfinite(drawn)]
    if not np.isfinite(difference) or not len(drawn):
        return difference, -np.inf, np.inf, float("nan") if np.isnan(difference) else 1.0
    spread = float(drawn.std(ddof=1))
    if spread == 0.0:
        return difference, difference, difference, 1.0 if difference == 0 else 0.0
    p_value = float(2 * ndtr(-abs(difference) / spread))
    if one.kind in ("calibration", "other"):
        # Resampling shifts both plug-in values; its spread is what is used.
        return difference, *normal_interval(difference, drawn, level), p_value
    return difference, *percentiles(drawn, level), p_value


def _with_progress(
    work: Callable[[Callable[[int], None]], None], total: int, progress: bool
) -> None:
    if not progress:
        work(lambda done: None)
        return
    from rich.console import Console
    from rich.progress import Progress

    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("resampling rows", total=total)
        work(lambda done: bar.advance(task, done))
