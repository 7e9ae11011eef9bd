"""`compare`: two sets of predictions of the same rows, in pairs."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from calibrant.core.errors import InputError, first
from calibrant.core.progress import progress_bar
from calibrant.evaluation.bootstrap import (
    MOST_CELLS,
    limit_resamples,
    make_row_states,
    percentile_interval,
    resample_counts,
    resample_measures,
    share_states,
)
from calibrant.evaluation.evaluate import Wanted, choose_measures
from calibrant.evaluation.intervals import Plan, calibration_interval, half_samples, normal_interval
from calibrant.evaluation.permutation_test import apply_permutation_test, permutation_spread
from calibrant.evaluation.value import make_plain
from calibrant.functional.arrays import Array
from calibrant.functional.statistics import holm
from calibrant.metrics.base import Measure, compute_all
from calibrant.metrics.registry import label_of
from calibrant.predictions import Predictions

if TYPE_CHECKING:
    import pandas as pd

DEFAULT_COMPARED = ("accuracy", "nll", "brier", "ece", "adaptive_ece", "classwise_ece", "aurc")


@dataclass(frozen=True)
class Difference:
    """One metric of two sets of predictions, and b − a with its paired interval.

    The difference of calibration errors is that of the bias-corrected values, because a model
    close to calibrated owes more of its plug-in value to chance. Corrected values vary more
    than plug-in values. So the plug-in difference must also exceed what random swaps of rows
    between the sets produce (`permutation_test`; class-wise errors of very many scores are
    exempt). If it does not, the interval is stretched to 0.
    """

    name: str
    label: str
    a: float
    b: float
    difference: float
    low: float
    high: float
    p_value: float
    better: str  # the better direction: "lower", "higher" or "neither"

    @property
    def winner(self) -> str:
        """The better set, "a" or "b", if the interval excludes 0; else "neither"."""
        if self.low <= 0 <= self.high or self.better == "neither":
            return "neither"
        return "b" if (self.difference < 0) == (self.better == "lower") else "a"


@dataclass(frozen=True)
class Comparison:
    """The differences between two sets of predictions of the same rows."""

    a: str
    b: str
    num_rows: int
    differences: dict[str, Difference]
    settings: dict[str, Any]

    def __getitem__(self, name: str) -> Difference:
        return self.differences[name]

    @property
    def _tested(self) -> dict[str, float]:
        """The p-values of metrics that have a better direction and a defined difference."""
        return {
            name: difference.p_value
            for name, difference in self.differences.items()
            if difference.better != "neither" and np.isfinite(difference.p_value)
        }

    @property
    def num_tested(self) -> int:
        """The number of metrics that the correction in ``shown`` counts."""
        return len(self._tested)

    @property
    def shown(self) -> frozenset[str]:
        """The metrics whose winner stands after Holm's correction for their number."""
        tested, alpha = self._tested, 1 - float(self.settings["confidence_level"])
        adjusted = dict(zip(tested, holm(list(tested.values())), strict=True))
        return frozenset(
            name
            for name, p_value in adjusted.items()
            if self[name].winner != "neither"
            and (len(tested) == 1 or (p_value is not None and p_value < alpha))
        )

    @property
    def headline(self) -> str:
        """The outcome in one sentence, after Holm's correction for the number of metrics."""
        sides: dict[str, list[str]] = {"a": [], "b": [], "hinted": [], "neither": []}
        shown = self.shown
        for name, difference in self.differences.items():
            sure = name in shown or difference.winner == "neither"
            sides[difference.winner if sure else "hinted"].append(name)
        parts = [
            f"{name} is better in {', '.join(sides[side])}"
            for side, name in (("b", self.b), ("a", self.a))
            if sides[side]
        ]
        if sides["hinted"]:
            hinted = ", ".join(sides["hinted"])
            parts.append(f"hinted at, not shown among {self.num_tested} metrics: {hinted}")
        if sides["neither"]:
            parts.append(f"no difference is shown in {', '.join(sides['neither'])}")
        return "; ".join(parts) + "."

    def to_frame(self) -> pd.DataFrame:
        """Return the differences as a table, a row for each metric."""
        import pandas as pd

        return pd.DataFrame(list(self._records().values())).set_index("name")

    def _records(self) -> dict[str, dict[str, Any]]:
        return {name: {**asdict(d), "winner": d.winner} for name, d in self.differences.items()}

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain values that JSON can hold; undefined values are None."""
        plain: dict[str, Any] = make_plain(
            {
                **asdict(self),
                "differences": self._records(),
                "shown": sorted(self.shown),
                "corrected_for": self.num_tested,
                "headline": self.headline,
            }
        )
        return plain

    def to_json(self, *, indent: int | None = 2) -> str:
        """Return `to_dict` as JSON text; infinite values are the strings "inf" and "-inf"."""
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

    Rows are resampled in pairs, so that the difficulty of a row cancels out.

    Args:
        a: The baseline.
        b: The other set: the same labels in the same order, and the same sample ids if both
            have ids.
        metrics: Names of metrics, or a mapping from names to options; seven usual ones if None.
        num_bins: The number of bins of metrics that bin.
        confidence_level: The level of the intervals.
        resamples: The number of resamples.
        seed: The seed of the resamples.
        progress: Show progress on the terminal.
    """
    a, b = a.in_memory(), b.in_memory()
    _check_same_rows(a, b)
    measures = choose_measures(DEFAULT_COMPARED if metrics is None else metrics, num_bins)
    plan = Plan(confidence_level, resamples, seed)
    sides = [_Side(predictions, measures, plan) for predictions in (a, b)]
    drawn = _resample_differences(sides, measures, plan, progress)
    spread = permutation_spread([(s.predictions, s.options) for s in sides], measures, plan)
    differences = {}
    for name, measure in measures.items():
        (value_a, best_a), (value_b, best_b) = (side.figures[name] for side in sides)
        difference = best_b - best_a
        low, high, p_value = _paired_interval(measure, difference, drawn[name], confidence_level)
        if name in spread and np.isfinite(difference):
            score = (value_b - value_a) / spread[name]
            low, high, p_value = apply_permutation_test(score, low, high, p_value, confidence_level)
        differences[name] = Difference(
            name,
            label_of(name),
            value_a,
            value_b,
            difference,
            low,
            high,
            p_value,
            measure.better,
        )
    settings = {"confidence_level": confidence_level, "resamples": resamples, "seed": seed}
    names = (a.name, b.name) if a.name != b.name else (f"{a.name} (A)", f"{b.name} (B)")
    return Comparison(*names, a.num_rows, differences, settings)


class _Side:
    """One of the two sets: its figures, and the states that a bootstrap resamples."""

    def __init__(self, predictions: Predictions, measures: dict[str, Measure], plan: Plan) -> None:
        self.predictions = predictions
        self.options: dict[str, Any] = {
            "from_logits": predictions.is_logits,
            "ignore_index": predictions.ignore_index,
        }
        built = {name: measure.build() for name, measure in measures.items()}
        size = int(np.prod(predictions.scores.shape))
        rows = make_row_states(measures, classes=size <= MOST_CELLS)
        own = (state for states in built.values() for state in states)
        shared = share_states([*rows.values(), *own])
        values = compute_all(
            list(measures.values()),
            predictions.batches(),
            extra=list(shared.values()),
            **self.options,
        )
        self.row_states = {name: shared[state.options()] for name, state in rows.items()}
        # The value, and the value less its upward bias if that is known.
        self.figures: dict[str, tuple[float, float]] = {}
        for (name, measure), value in zip(measures.items(), values, strict=True):
            best = float(value)
            if measure.kind == "calibration":
                state = shared[built[name][0].options()]
                estimate = calibration_interval(measure, state, plan).estimate
                best = best if estimate is None else estimate
            self.figures[name] = (float(value), best)

    def take(self, rows: NDArray[np.int64]) -> tuple[Array, Array]:
        """Return some rows, repeated as drawn."""
        return self.predictions.array[rows], self.predictions.labels[rows]


def _resample_differences(
    sides: list[_Side], measures: dict[str, Measure], plan: Plan, progress: bool
) -> dict[str, NDArray[np.float64]]:
    """Return b − a of every measure on resampled rows, the same rows for both."""
    predictions, fast = sides[0].predictions, list(sides[0].row_states)
    slow = {name: measure for name, measure in measures.items() if name not in fast}
    # The rows of dense predictions are pixels here.
    counted = int(np.prod(predictions.labels.shape))
    if predictions.ignore_index is not None:
        counted -= int((np.asarray(predictions.labels) == predictions.ignore_index).sum())
    draws = limit_resamples(counted, plan.resamples)
    halves = min(draws, 100) if slow else 0
    blocks: dict[str, list[NDArray[np.float64]]] = {name: [] for name in measures}
    total = (draws if fast else 0) + halves
    with progress_bar("resampling rows", total, shown=progress) as advance:
        for counts in resample_counts(counted, draws, plan.seed) if fast else ():
            left, right = (resample_measures(measures, s.row_states, counts) for s in sides)
            with np.errstate(invalid="ignore"):  # inf − inf is NaN, which is left out later
                for name in fast:
                    blocks[name].append(right[name] - left[name])
            advance(len(counts))
        if slow:
            values = half_samples(
                list(slow.values()),
                [side.take for side in sides],
                predictions.num_rows,
                draws=halves,
                seed=plan.seed,
                options=[side.options for side in sides],
                tick=lambda: advance(1),
            )
            for column, name in enumerate(slow):
                blocks[name].append(values[:, 1, column] - values[:, 0, column])
    return {name: np.concatenate(several) for name, several in blocks.items()}


def _check_same_rows(a: Predictions, b: Predictions) -> None:
    if a.labels.shape != b.labels.shape or a.num_classes != b.num_classes:
        raise InputError(
            f"both sets must hold the same rows: {a.name} has labels of shape "
            f"{tuple(a.labels.shape)} and {a.num_classes} classes, {b.name} has "
            f"{tuple(b.labels.shape)} and {b.num_classes}"
        )
    if a.ignore_index != b.ignore_index:
        raise InputError(
            f"both sets must ignore the same rows: ignore_index is {a.ignore_index} in {a.name} "
            f"and {b.ignore_index} in {b.name}"
        )
    pairs = [("labels", np.asarray(a.labels), np.asarray(b.labels))]
    if a.ids is not None and b.ids is not None:
        pairs.insert(0, ("sample ids", np.asarray(a.ids), np.asarray(b.ids)))
    for what, left, right in pairs:
        rows = np.flatnonzero((left != right).reshape(len(left), -1).any(1))
        if len(rows):
            raise InputError(
                f"both sets must hold the same rows in the same order: {what} of {a.name} and "
                f"{b.name} differ in {len(rows):,} rows, first {first(rows.tolist())}"
            )


def _paired_interval(
    measure: Measure, difference: float, drawn: NDArray[np.float64], level: float
) -> tuple[float, float, float]:
    """Return (low, high, p-value) from resampled differences."""
    from scipy.special import ndtr

    drawn = drawn[np.isfinite(drawn)]
    if not np.isfinite(difference) or not len(drawn):
        return -np.inf, np.inf, float("nan") if np.isnan(difference) else 1.0
    spread = float(drawn.std(ddof=1))
    if spread == 0.0:
        return difference, difference, 1.0 if difference == 0 else 0.0
    p_value = float(2 * ndtr(-abs(difference) / spread))
    if measure.kind in ("calibration", "other"):
        # Resampling shifts both plug-in values, so only its spread is used.
        return *normal_interval(difference, drawn, level), p_value
    return *percentile_interval(drawn, level), p_value
