"""Compute metrics of predictions in a single pass, as measurements."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

import torch

from calibrant.bench.calibrator_text import normalise_text, parse
from calibrant.bench.suite.sources import drop_source
from calibrant.metrics import measure
from calibrant.metrics.base import Measure, compute_all
from calibrant.metrics.toplabel import BinState
from calibrant.predictions import Predictions

# `ece` has bins of equal width and order 1; soft-calibration's ECE has equal mass and order 2.
SOFT_ECE = "adaptive_ece(order=2)"
SHORT = (
    "accuracy",
    "nll",
    "brier",
    "ece",
    "adaptive_ece",
    SOFT_ECE,
    "classwise_ece",
    "mean_entropy",
)
DENSE = (*SHORT, "mce", "classwise_nll_std", "miou")
# Without kde_ece, which visits all pairs of rows: suites ask for it with `metrics`.
USUAL = (
    *SHORT,
    "classwise_ece(binning=mass)",
    "marginal_ece",
    "mce",
    "ks_error",
    "sweep_ece",
    "debiased_ece",
    "chance_ece",
    "smooth_ece",
    "aurc",
    "e_aurc",
    "augrc",
    "failure_auroc",
    "classwise_nll_std",
)

BINS = 15  # of a stored reliability diagram
DIAGRAMS = ("none", "temperature")  # calibrators after which a diagram of test rows is stored


class Measurement(NamedTuple):
    """A measured number: a row of results without the columns of its run."""

    part: str
    calibrator: str
    metric: str
    value: float
    seconds: float = math.nan  # of the fit
    rows: int = 0  # the number of rows measured


def compute_metrics(
    predictions: Predictions,
    metrics: Sequence[str] | None = None,
    *,
    bins: BinState | None = None,
) -> dict[str, float]:
    """Compute metrics and return them by name; by default those that every run gets.

    Args:
        predictions: the rows.
        metrics: the names. Default: None, those that every run gets.
        bins: bins to fill in the same pass. Default: None.
    """
    names = [normalise_text(name) for name in metrics or (DENSE if predictions.is_dense else USUAL)]
    values = compute_all(
        [_load_metric(name) for name in names],
        predictions.batches(),
        from_logits=predictions.is_logits,
        ignore_index=predictions.ignore_index,
        extra=() if bins is None else (bins,),
    )
    return {name: float(value) for name, value in zip(names, values, strict=True)}


@lru_cache(maxsize=256)
def _load_metric(text: str) -> Measure:
    name, options = parse(text)
    return measure(name, **drop_source(name, options))


def check_metrics(metrics: Iterable[str]) -> tuple[str, ...]:
    """Return normalised metrics; raise an error for an unknown metric."""
    names = tuple(normalise_text(name) for name in metrics)
    for name in names:
        _load_metric(name)
    return names


def make_measurements(
    part: str,
    calibrator: str,
    values: Mapping[str, float],
    *,
    seconds: float = math.nan,
    rows: int = 0,
) -> Iterator[Measurement]:
    """Give the values of a part after a calibrator as measurements."""
    for metric, value in values.items():
        yield Measurement(part, calibrator, metric, float(value), seconds, rows)


def measure_part(
    part: str,
    calibrator: str,
    predictions: Predictions,
    *,
    seconds: float = math.nan,
    figures: Mapping[str, float] | None = None,
) -> Iterator[Measurement]:
    """Measure a part after a calibrator: metrics, further figures, and reliability diagrams.

    Args:
        part: the part of the rows.
        calibrator: its name, or ``none``.
        predictions: the rows after the calibrator.
        seconds: how long the fit took. Default: NaN, nothing was fitted.
        figures: figures besides the metrics, by name. Default: None.
    """
    bins = BinState(BINS) if part == "test" and calibrator in DIAGRAMS else None
    values = {**compute_metrics(predictions, bins=bins), **(figures or {})}
    rows = count_rows(predictions)
    yield from make_measurements(part, calibrator, values, seconds=seconds, rows=rows)
    if bins is not None:
        yield from list_bins(calibrator, bins)


def list_bins(calibrator: str, bins: BinState) -> Iterator[Measurement]:
    """Give each bin that has rows: its number of rows, mean confidence and accuracy."""
    if bins.totals is None:
        return
    for place, (rows, confidence, correct) in enumerate(bins.totals.tolist()):
        if rows:
            values = {"rows": rows, "confidence": confidence / rows, "accuracy": correct / rows}
            yield from make_measurements(f"reliability@{place}", calibrator, values, rows=int(rows))


def measure_metrics(
    part: str, calibrator: str, predictions: Predictions, metrics: Sequence[str]
) -> Iterator[Measurement]:
    """Compute metrics of a part after a calibrator, and give them as measurements."""
    values = compute_metrics(predictions, metrics)
    return make_measurements(part, calibrator, values, rows=count_rows(predictions))


def count_changed(before: Predictions, after: Predictions) -> int:
    """Count the predicted classes that differ, of rows that have a label."""
    count = 0
    ignored = before.ignore_index
    for (first, labels), (second, _) in zip(before.batches(), after.batches(), strict=True):
        differs = torch.as_tensor(first).argmax(1) != torch.as_tensor(second).argmax(1)
        if ignored is not None:
            differs &= torch.as_tensor(labels) != ignored
        count += int(differs.sum())
    return count


def count_rows(predictions: Predictions) -> int:
    """Count the rows (or pixels) that have a label."""
    labels = torch.as_tensor(predictions.labels)
    if predictions.ignore_index is None:
        return labels.numel()
    return int((labels != predictions.ignore_index).sum())
