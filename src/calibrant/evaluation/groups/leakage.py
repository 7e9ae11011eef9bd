"""Warn of groups that reveal the answer: made from the true class, or from right and wrong.

Calibrated rows look miscalibrated in such groups.
"""

from __future__ import annotations

import warnings

import numpy as np
from numpy.typing import NDArray

from calibrant.evaluation.groups.files import GroupValues
from calibrant.functional.arrays import as_numpy
from calibrant.metrics.rank_state import RankState
from calibrant.predictions import Predictions

Codes = NDArray[np.int64]

_OF_ALL, _OF_EACH = 0.99, 0.95  # share of all rows, and mean share over the values, predicted
_FEW_ROWS, _FEW_OF_A_KIND = 20, 10  # rows, and right or wrong rows: with fewer it may be chance
_REASON = "calibrated confidences hold for groups known beforehand, and not for those made "


def find_leakage(
    groups: GroupValues, predictions: Predictions, ranks: RankState
) -> tuple[str, ...]:
    """Return the groups' warnings, and one more if the groups reveal the label or the outcome.

    Args:
        groups: The group of every row.
        predictions: The predictions.
        ranks: Confidence and correctness of all rows that are not ignored.
    """
    if predictions.is_dense:
        return groups.warnings
    labels = as_numpy(predictions.known_labels).astype(np.int64)
    counted = np.ones(len(labels), dtype=bool)
    if predictions.ignore_index is not None:
        counted = labels != predictions.ignore_index
    home, labels = groups.codes[counted], labels[counted]
    wrong = as_numpy(ranks.concatenate("losses")).astype(np.int64)
    by_label = max(_share_predicted(home, labels), _share_predicted(labels, home))
    by_outcome = 0.0
    if min(int(wrong.sum()), int((1 - wrong).sum())) >= _FEW_OF_A_KIND:
        by_outcome = max(_share_predicted(home, wrong), _share_predicted(wrong, home))
    if not by_label and not by_outcome:
        return groups.warnings
    predicted = _predicted_classes(predictions)[counted]
    by_prediction = max(
        _share_predicted(home, predicted, least=0.0), _share_predicted(predicted, home, least=0.0)
    )
    if by_prediction == 1 or by_prediction > max(by_label, by_outcome):
        return groups.warnings  # groups by predicted class, which is nearly always the label
    if by_label:
        nearly = "" if by_label == 1 else f"nearly ({by_label:.1%} of the rows) "
        warning = (
            f"label and group {nearly}determine each other, as when all rows of a group have the "
            f"same label: {_REASON}from the true class; take the predicted class instead"
        )
    else:
        warning = (
            "the groups separate right rows from wrong ones: were they made from the labels? "
            f"{_REASON[0].upper()}{_REASON[1:]}from the outcome"
        )
    return (*groups.warnings, warning)


def _share_predicted(known: Codes, target: Codes, *, least: float = _OF_ALL) -> float:
    """Return the share of rows whose ``target`` is the most frequent one of their ``known`` value.

    Return 0 if the share is below ``least``, or means nothing: a value of ``target`` that most
    rows have is predicted without looking, so each value must be predicted on its own; and a
    value of ``known`` seen once predicts nothing.
    """
    times = np.bincount(known)
    again = times[known] > 1
    if again.sum() < max(_FEW_ROWS, len(known) / 2):
        return 0.0
    known, target = known[again], target[again]
    rows = np.bincount(target)
    if (rows > 0).sum() < 2:
        return 0.0
    pairs, count = np.unique(known * len(rows) + target, return_counts=True)
    usual = np.zeros(len(times), dtype=np.int64)
    order = np.argsort(count, kind="stable")  # the most frequent is written last
    usual[pairs[order] // len(rows)] = pairs[order] % len(rows)
    hit = usual[known] == target
    share = float(hit.mean())
    of_each = np.bincount(target, hit)[rows > 0] / rows[rows > 0]
    return share if share >= least and (not least or of_each.mean() >= _OF_EACH) else 0.0


def _predicted_classes(predictions: Predictions) -> Codes:
    parts = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the reader has warned of the rows already
        for scores, _ in predictions.batches():
            values = as_numpy(scores)
            if predictions.is_binary:
                parts.append((values > (0 if predictions.is_logits else 0.5)).astype(np.int64))
            else:
                parts.append(values.argmax(axis=1).astype(np.int64))
    return np.concatenate(parts)
