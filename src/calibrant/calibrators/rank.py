"""Rank every calibrator on the same rows, and apply one to predictions."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from calibrant.calibrators.base import Calibrator
from calibrant.calibrators.registry import CALIBRATORS, get_for_scores, kind_of
from calibrant.core.errors import InputError
from calibrant.metrics.base import compute_all
from calibrant.metrics.registry import measure
from calibrant.predictions import Predictions

if TYPE_CHECKING:
    import pandas as pd

FIGURES = ("nll", "brier", "ece", "classwise_ece", "aurc", "accuracy")
EVENT_FIGURES = ("nll", "brier", "ece", "mean_gap", "ici", "auroc")


def apply(calibrator: Calibrator, predictions: Predictions) -> Predictions:
    """Return calibrated predictions: logits, with labels, class names and ids as before.

    Args:
        calibrator: A fitted calibrator.
        predictions: Predictions of the same kind of scores; their name gets the calibrator's.
    """
    if calibrator.takes_features:
        raise InputError(
            f"this {calibrator.name} takes features, not predictions: call its calibrate(features)"
        )
    if calibrator.from_logits != predictions.is_logits:
        wanted, kind = ("logits", "probabilities")[:: 1 if calibrator.from_logits else -1]
        raise InputError(
            f"this {calibrator.name} calibrator was fitted on {wanted}, found {kind}; give it the "
            "same kind of scores"
        )
    rows = predictions.in_memory()
    _check_same_task(calibrator, rows)
    return replace(
        rows,
        scores=calibrator.calibrate(rows.array),
        is_logits=True,
        name=f"{rows.name} after {calibrator.name}",
    )


def _check_same_task(calibrator: Calibrator, predictions: Predictions) -> None:
    """Raise an error unless the calibrator was fitted on predictions like these."""
    fitted = "events" if calibrator.for_events_ else f"{int(calibrator.num_classes_)} classes"
    if calibrator.takes_labels:
        fitted = f"{int(calibrator.num_classes_)} labels"
    start = f"this {calibrator.name} calibrator was fitted on {fitted}, found"
    if (predictions.task == "multilabel") != calibrator.takes_labels:
        raise InputError(f"{start} task {predictions.task!r}: fit it on predictions like these")
    if predictions.task == "events" and not calibrator.for_events_:
        raise InputError(f"{start} events: fit it on events (Predictions.from_events)")
    width = 2 if calibrator.for_events_ else int(calibrator.num_classes_)
    if width != predictions.num_classes or (calibrator.for_events_ and predictions.is_dense):
        shape = " of dense predictions" if predictions.is_dense else ""
        raise InputError(f"{start} {predictions.num_classes} classes{shape}")
    if predictions.num_options is not None and not calibrator.takes_options:
        raise InputError(
            f"{calibrator.name} does not take questions with different numbers of options; use "
            "temperature or ensemble_temperature"
        )


@dataclass(frozen=True)
class Ranking:
    """Figures of every method on rows it was not fitted on."""

    methods: tuple[str, ...]
    values: np.ndarray[Any, np.dtype[np.float64]]  # (methods, splits, figures + seconds)
    notes: dict[str, str]  # methods that could not be fitted, with the error
    figures: tuple[str, ...] = FIGURES

    def to_frame(self) -> pd.DataFrame:
        """Return mean and standard error over splits of each figure, best likelihood first."""
        import pandas as pd

        names = (*self.figures, "seconds")
        splits = self.values.shape[1]
        table: dict[str, Any] = {"method": list(self.methods)}
        for column, name in enumerate(names):
            table[name] = self.values[:, :, column].mean(1)
            if splits > 1:
                spread = self.values[:, :, column].std(1, ddof=1) / splits**0.5
                table[f"{name}_error"] = spread
        return pd.DataFrame(table).set_index("method").sort_values("nll")


def rank(
    val: Predictions,
    test: Predictions | None = None,
    *,
    methods: Sequence[str] | None = None,
    splits: int = 5,
    seed: int = 0,
    tick: Callable[[str], None] = lambda name: None,
) -> Ranking:
    """Fit every method on ``val`` and measure it on ``test``.

    Args:
        val: Predictions to fit on.
        test: Predictions to measure on. Default: None (``val`` is split in halves).
        methods: The names of the methods. Default: None (all that take scores).
        splits: How often ``val`` is split, if there is no ``test``. Default: 5 (ours: enough
            for a standard error).
        seed: The seed of the splits. Default: 0 (ours: a ranking repeats exactly).
        tick: Called with the name of each method before it is fitted. Default: a function that
            does nothing.
    """
    # An unknown name is an error before any work; heads do not take scores.
    usual = [name for name in CALIBRATORS if not kind_of(name).takes_features]
    if val.task == "multilabel":
        raise InputError(
            "rank takes one label a row: write each label as events (val.to_events(label)) and "
            "rank those; fit and calibrate take many labels a row as they are"
        )
    figures: tuple[str, ...] = EVENT_FIGURES if val.task == "events" else FIGURES
    if val.num_options is not None:  # positions, not classes
        figures = tuple(name for name in FIGURES if name != "classwise_ece")
    names = tuple(methods or usual)
    for name in names:
        get_for_scores(name, from_logits=val.is_logits)
    for rows in (val, test):
        if rows is not None:
            _ = rows.known_labels  # raises an error if there are none
    pairs = (
        [(val.in_memory(), test.in_memory())]
        if test is not None
        else [val.in_memory().split(0.5, seed=seed + i) for i in range(splits)]
    )
    values: dict[str, list[list[float]]] = {}
    notes: dict[str, str] = {}
    for name in names:
        tick(name)
        try:
            values[name] = [_measure(name, *pair, figures) for pair in pairs]
        except InputError as error:
            notes[name] = str(error)
    if not values:
        raise InputError(f"no method can be ranked: {next(iter(notes.values()))}")
    return Ranking(tuple(values), np.array(list(values.values())), notes, figures)


def _measure(
    name: str, val: Predictions, test: Predictions, figures: tuple[str, ...]
) -> list[float]:
    begun = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        calibrator = get_for_scores(name, from_logits=val.is_logits)
        calibrator.fit(val)
    seconds = time.perf_counter() - begun
    after = apply(calibrator, test)
    values = compute_all(
        [measure(figure) for figure in figures],
        [(after.array, after.known_labels, after.weights)],
        from_logits=True,
        ignore_index=after.ignore_index,
        positive=1 if after.task == "events" else None,
        absent=after.num_options is not None,
    )
    return [*(float(value) for value in values), seconds]
