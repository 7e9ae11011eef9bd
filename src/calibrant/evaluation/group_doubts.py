"""Groups that tell the answer: by true class, or by right and wrong, calibrated rows are off."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from calibrant.functional.rows import as_numpy

if TYPE_CHECKING:
    from calibrant.evaluation.group_files import GroupValues
    from calibrant.metrics.ranked import RankState
    from calibrant.predictions import Predictions

Codes = NDArray[np.int64]

_ALMOST_ALL, _OF_EACH = 0.99, 0.95  # of all rows, and on average of each value's rows
_ENOUGH, _OF_A_KIND = 20, 10  # rows, and right or wrong ones, below which chance could do it
_BEFOREHAND = "calibrated confidences hold for groups known beforehand, and not for those made "


def doubts_of_groups(
    groups: GroupValues | None, predictions: Predictions, ranks: RankState
) -> tuple[str, ...]:
    """Warnings where groups follow from the label, it from them, or they from what is right."""
    if groups is None:
        return ()
    if predictions.is_dense:
        return groups.doubts
    labels = as_numpy(predictions.labels).astype(np.int64)
    counted = np.ones(len(labels), dtype=bool)
    if predictions.ignore_index is not None:
        counted = labels != predictions.ignore_index
    home, labels = groups.codes[counted], labels[counted]
    wrong = as_numpy(ranks.joined("losses")).astype(np.int64)
    told = max(_told(home, labels), _told(labels, home))
    enough = min(int(wrong.sum()), int((1 - wrong).sum())) >= _OF_A_KIND
    parted = max(_told(home, wrong), _told(wrong, home)) if enough else 0.0
    if not told and not parted:
        return groups.doubts
    predicted = _predicted(predictions)[counted]
    known = max(_told(home, predicted, least=0.0), _told(predicted, home, least=0.0))
    if known == 1 or known > max(told, parted):
        return groups.doubts  # groups by predicted class, whose label is seldom another
    if told:
        nearly = "" if told == 1 else f"nearly ({told:.1%} of the rows) "
        said = (
            f"label and group {nearly}follow from one another, as where all rows of a group have "
            f"the same label: {_BEFOREHAND}from the true class; take the predicted class instead"
        )
    else:
        said = (
            "the groups part right rows from wrong ones: were they made from the labels? "
            f"{_BEFOREHAND[0].upper()}{_BEFOREHAND[1:]}from the outcome"
        )
    return (*groups.doubts, said)


def _told(known: Codes, other: Codes, *, least: float = _ALMOST_ALL) -> float:
    """The share of rows whose ``other`` value is the usual one of their ``known`` value.

    0 where that is too little, or says nothing: values that most rows have are told without
    looking, so each value must be told on its own; and a value seen once tells nothing.
    """
    seen = np.bincount(known)
    again = seen[known] > 1
    if again.sum() < max(_ENOUGH, len(known) / 2):
        return 0.0
    known, other = known[again], other[again]
    rows = np.bincount(other)
    if (rows > 0).sum() < 2:
        return 0.0
    pairs, count = np.unique(known * len(rows) + other, return_counts=True)
    usual = np.zeros(len(seen), dtype=np.int64)
    order = np.argsort(count, kind="stable")  # the most frequent is written last
    usual[pairs[order] // len(rows)] = pairs[order] % len(rows)
    hit = usual[known] == other
    share = float(hit.mean())
    of_each = np.bincount(other, hit)[rows > 0] / rows[rows > 0]
    return share if share >= least and (not least or of_each.mean() >= _OF_EACH) else 0.0


def _predicted(predictions: Predictions) -> Codes:
    """The class predicted for each row."""
    parts = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what a file's rows look like was said when first read
        for scores, _ in predictions.batches():
            values = as_numpy(scores)
            if predictions.is_binary:
                parts.append((values > (0 if predictions.is_logits else 0.5)).astype(np.int64))
            else:
                parts.append(values.argmax(axis=1).astype(np.int64))
    return np.concatenate(parts)
