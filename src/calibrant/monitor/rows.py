"""Read the score of each row, and once it is labelled three errors."""

from __future__ import annotations

import hashlib
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from calibrant.core.errors import InputError
from calibrant.evaluation.evaluate import row_options
from calibrant.functional.arrays import as_numpy
from calibrant.functional.blocks import blocks
from calibrant.predictions import Predictions
from calibrant.predictions.files import iterate_scores

Floats = NDArray[np.float64]

_CLUSTER_BYTES = 5  # of a cluster's digest: 10^6 clusters lose one in a million to chance


class RowErrors(NamedTuple):
    """Three numbers for each labelled row, or their means over each cluster."""

    gap: Floats  # probability minus outcome, in [−1, 1]
    wrong: Floats | None  # whether the predicted class is wrong; None for events
    brier: Floats  # in [0, 1], or [0, 2] for the predicted class of several


def check_rows(predictions: Predictions) -> None:
    """Raise an error for rows that the monitor does not take."""
    if predictions.task == "multilabel":
        raise InputError(
            "the monitor takes classes and events, found many labels a row: monitor the labels "
            "that matter one at a time, each with a state of its own, as "
            "predictions.to_events(label)"
        )
    if predictions.is_dense:
        raise InputError(
            "the monitor takes one label a row, found dense predictions: give it one number an "
            "image, such as whether the share of right pixels is high enough, as events"
        )
    if predictions.weights is not None:
        raise InputError(
            "the monitor takes no weights, found some: its bets need rows that count the same; "
            "leave weights out to monitor the rows themselves, not the population"
        )


def digest_rows(predictions: Predictions) -> str:
    """Return the SHA-256 of what identifies a batch: its scores and ids, but not its labels.

    Scores count in single precision, so that a file and its copy in another format are one batch.
    """
    digest = hashlib.sha256()
    shape = tuple(predictions.scores.shape)
    digest.update(f"{predictions.task} {predictions.is_logits} {shape}\n".encode())
    for chunk in iterate_scores(predictions.scores):
        values = as_numpy(chunk)
        digest.update(np.ascontiguousarray(values, dtype=np.dtype("<f4")).tobytes())
    if predictions.ids is not None:
        digest.update(encode_ids(predictions.ids))
    return digest.hexdigest()


def encode_ids(ids: NDArray[Any]) -> bytes:
    """Return ids as bytes, the same for whole numbers of any width."""
    if ids.dtype.kind in "iu":
        return ids.astype(np.dtype("<i8")).tobytes()
    return "\n".join(map(str, ids.tolist())).encode()


def digest_clusters(clusters: NDArray[Any]) -> tuple[NDArray[np.int64], NDArray[np.uint64]]:
    """Return the number of each row's cluster, and a short digest of each cluster."""
    names, codes = np.unique(clusters, return_inverse=True)
    digests = [
        int.from_bytes(
            hashlib.blake2b(str(name).encode(), digest_size=_CLUSTER_BYTES).digest(), "little"
        )
        for name in names.tolist()
    ]
    return codes.reshape(-1).astype(np.int64), np.array(digests, dtype=np.uint64)


def read_scores(predictions: Predictions, positive: int | None) -> Floats:
    """Return the probability that is judged of each row."""
    if not predictions.is_lazy and predictions.is_binary and not predictions.is_logits:
        scores = as_numpy(predictions.array).astype(np.float64)
        return scores if positive != 0 else 1 - scores
    options = {**row_options(predictions, positive), "ignore_index": None, "validate": False}
    parts = [
        block.confidence.double().cpu().numpy()
        for chunk in iterate_scores(predictions.scores)
        for block in blocks(chunk, None, **options)
    ]
    return np.concatenate(parts) if parts else np.empty(0)


def read_errors(
    predictions: Predictions, labels: NDArray[np.int64], positive: int | None
) -> RowErrors:
    """Return the errors of rows whose labels are given.

    Args:
        predictions: The rows; labels of their own are not looked at.
        labels: The class, or whether the event happened, of each row.
        positive: The class whose probability is judged; None judges the predicted class.
    """
    has_classes = predictions.task == "classes"
    if not predictions.is_lazy and predictions.is_binary and not predictions.is_logits:
        probability = as_numpy(predictions.array).astype(np.float64)
        happened = labels.astype(np.float64)
        wrong = ((probability > 0.5) != (happened > 0.5)).astype(np.float64)
        if positive is not None:
            gap = probability - happened if positive == 1 else happened - probability
            return RowErrors(gap, wrong if has_classes else None, gap * gap)
    options = {**row_options(predictions, positive), "ignore_index": None, "validate": False}
    gaps, wrongs, briers, start = [], [], [], 0
    for chunk in iterate_scores(predictions.scores):
        target = labels[start : start + len(chunk)]
        start += len(chunk)
        for block in blocks(chunk, target, **options):
            confidence = block.confidence.double().cpu()
            gaps.append((confidence - block.correct.cpu().double()).numpy())
            wrongs.append(1 - block.right.cpu().double().numpy())
            briers.append(block.brier.cpu().double().numpy())
    wrong = np.concatenate(wrongs)
    return RowErrors(np.concatenate(gaps), wrong if has_classes else None, np.concatenate(briers))


def average_clusters(errors: RowErrors, codes: NDArray[np.int64]) -> RowErrors:
    """Return the mean of each error over each cluster: clusters count once, whatever their size.

    Args:
        errors: The errors of each row.
        codes: The number of each row's cluster, 0 to G−1, each with a row.
    """
    sizes = np.bincount(codes)

    def average(values: Floats) -> Floats:
        return np.bincount(codes, weights=values) / sizes

    wrong = None if errors.wrong is None else average(errors.wrong)
    return RowErrors(average(errors.gap), wrong, average(errors.brier))
