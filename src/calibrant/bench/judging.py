"""The figures of one set of predictions, in one pass."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from typing import NamedTuple

import torch

from calibrant.bench.register import checked_source
from calibrant.bench.texts import parse, spelled
from calibrant.metrics import measure
from calibrant.metrics.base import Measure, compute_all
from calibrant.predictions import Predictions

# ``ece``: 15 bins of equal width, order 1. Soft-calibration's is that of equal mass, order 2.
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
# kde_ece visits all pairs of rows, and is measured where it is asked for alone.
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


class Figure(NamedTuple):
    """One measured number: a row of results less what is known of its run."""

    part: str
    calibrator: str
    metric: str
    value: float
    seconds: float = math.nan  # the fit took
    rows: int = 0  # it was measured on


def figures(predictions: Predictions, metrics: Sequence[str] | None = None) -> dict[str, float]:
    """Every metric, by its text."""
    names = metrics or (DENSE if predictions.is_dense else USUAL)
    values = compute_all(
        [_measure(spelled(name)) for name in names],
        predictions.batches(),
        from_logits=predictions.is_logits,
        ignore_index=predictions.ignore_index,
    )
    return {spelled(name): float(one) for name, one in zip(names, values, strict=True)}


@lru_cache(maxsize=256)
def _measure(text: str) -> Measure:
    name, options = parse(text)
    return measure(name, **checked_source(name, options))


def told(
    part: str,
    calibrator: str,
    values: dict[str, float],
    *,
    seconds: float = math.nan,
    rows: int = 0,
) -> Iterator[Figure]:
    """Figures of one part under one calibrator."""
    for metric, value in values.items():
        yield Figure(part, calibrator, metric, float(value), seconds, rows)


def changed(before: Predictions, after: Predictions) -> int:
    """Predictions that are not what they were, of rows that count."""
    count = 0
    ignored = before.ignore_index
    for (one, labels), (two, _) in zip(before.batches(), after.batches(), strict=True):
        differs = torch.as_tensor(one).argmax(1) != torch.as_tensor(two).argmax(1)
        if ignored is not None:
            differs &= torch.as_tensor(labels) != ignored
        count += int(differs.sum())
    return count


def counted(predictions: Predictions) -> int:
    """Rows (or pixels) that have a label."""
    labels = torch.as_tensor(predictions.labels)
    if predictions.ignore_index is None:
        return labels.numel()
    return int((labels != predictions.ignore_index).sum())


def checked(metrics: Iterable[str]) -> tuple[str, ...]:
    """Metrics by text, each spelled one way; an error for one that does not exist."""
    found = tuple(spelled(name) for name in metrics)
    for name in found:
        _measure(name)
    return found
