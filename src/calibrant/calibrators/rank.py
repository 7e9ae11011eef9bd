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
    held = predictions.in_memory()
    if int(calibrator.num_classes_) != held.num_classes:
        raise InputError(
            f"this {calibrator.name} calibrator was fitted on {int(calibrator.num_classes_)} "
            f"classes, found {held.num_classes}"
        )
    return replace(
        held,
        scores=calibrator.calibrate(held.array),
        is_logits=True,
        name=f"{held.name} after {calibrator.name}",
    )


@dataclass(frozen=True)
class Ranking:
    """Figures of every method on rows it was not fitted on."""

    methods: tuple[str, ...]
    values: np.ndarray[Any, np.dtype[np.float64]]  # (methods, splits, figures + seconds)
    notes: dict[str, str]  # methods that could not be fitted, with the error

    def to_frame(self) -> pd.DataFrame:
        """Return mean and standard error over splits of each figure, best likelihood first."""
        import pandas as pd

        names = (*FIGURES, "seconds")
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
    names = tuple(methods or usual)
    for name in names:
        get_for_scores(name, from_logits=val.is_logits)
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
            values[name] = [_measure(name, *pair) for pair in pairs]
        except InputError as error:
            notes[name] = str(error)
    return Ranking(tuple(values), np.array(list(values.values())), notes)


def _measure(name: str, val: Predictions, test: Predictions) -> list[float]:
    begun = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        calibrator = get_for_scores(name, from_logits=val.is_logits)
        calibrator.fit(val.array, val.labels, ignore_index=val.ignore_index)
    seconds = time.perf_counter() - begun
    after = apply(calibrator, test)
    values = compute_all(
        [measure(figure) for figure in FIGURES],
        after.batches(),
        from_logits=True,
        ignore_index=after.ignore_index,
    )
    return [*(float(value) for value in values), seconds]
