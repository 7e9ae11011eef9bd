"""Measured numbers: metrics of one set of predictions, all in one pass."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

import torch

from calibrant.bench.suite.sources import drop_source
from calibrant.bench.texts import parse, spelled
from calibrant.metrics import measure
from calibrant.metrics.base import Measure, compute_all
from calibrant.predictions import Predictions

# ``ece`` has 15 bins of equal width and order 1; soft-calibration's has equal mass and order 2.
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
# kde_ece visits all pairs of rows, and is measured only where a suite asks for it.
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


class Measurement(NamedTuple):
    """One measured number: a row of results without what is known of its run."""

    part: str
    calibrator: str
    metric: str
    value: float
    seconds: float = math.nan  # that the fit took
    rows: int = 0  # that it was measured on


def compute_metrics(
    predictions: Predictions, metrics: Sequence[str] | None = None
) -> dict[str, float]:
    """Compute metrics, those that every run gets by default, and return them by name."""
    names = [spelled(name) for name in metrics or (DENSE if predictions.is_dense else USUAL)]
    values = compute_all(
        [_load_metric(name) for name in names],
        predictions.batches(),
        from_logits=predictions.is_logits,
        ignore_index=predictions.ignore_index,
    )
    return {name: float(value) for name, value in zip(names, values, strict=True)}


@lru_cache(maxsize=256)
def _load_metric(text: str) -> Measure:
    name, options = parse(text)
    return measure(name, **drop_source(name, options))


def check_metrics(metrics: Iterable[str]) -> tuple[str, ...]:
    """Return metrics, each spelled one way; raise an error for one that does not exist."""
    names = tuple(spelled(name) for name in metrics)
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
    """Give the values of one part after one calibrator as measurements."""
    for metric, value in values.items():
        yield Measurement(part, calibrator, metric, float(value), seconds, rows)


def measure_metrics(
    part: str,
    calibrator: str,
    predictions: Predictions,
    metrics: Sequence[str] | None = None,
) -> Iterator[Measurement]:
    """Compute metrics of one part after one calibrator, and give them as measurements."""
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
