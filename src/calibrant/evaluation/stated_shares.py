"""Judge rows as if their classes had other shares, which a user states."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from calibrant.core.errors import InputError, first
from calibrant.evaluation.value import Evaluation
from calibrant.evaluation.verdict import OFF, WEIGHTED, percent
from calibrant.functional.arrays import as_numpy
from calibrant.predictions import Predictions
from calibrant.predictions.shares import Shares, count_shares, read_shares

_NAMED = 5  # classes that a sentence lists


class Stated(NamedTuple):
    """Rows with weights that give their classes the stated shares.

    Args:
        predictions: The rows, weighted.
        names: The names of the classes; for events "no" and the event.
        counted: (K,) the shares that the rows have.
        shares: (K,) the shares that are stated.
        worth: How many rows of equal weight the rows are worth.
        had_weights: Whether the rows had weights of their own.
    """

    predictions: Predictions
    names: tuple[str, ...]
    counted: NDArray[np.float64]
    shares: NDArray[np.float64]
    worth: float
    had_weights: bool


def weight_to_shares(predictions: Predictions, prevalence: Shares, positive: int = 1) -> Stated:
    """Weigh rows so that their classes have the stated shares.

    If the rows of each class are as those in use (label shift), the mean of anything over rows in
    use is Σ_i w_i·x_i / Σ_i w_i with w_i = π_y/π̂_y, the stated share of the row's class over that
    among the rows.

    Args:
        predictions: The rows, with labels.
        prevalence: The stated shares; see `calibrant.predictions.shares.read_shares`.
        positive: The class of two that a single number is the share of. Default: 1.
    """
    if predictions.task == "multilabel":
        raise InputError(
            "prevalence is the share of a class, and these rows have many labels: evaluate each "
            "label, from predictions.to_events(label)"
        )
    if predictions.is_dense or predictions.num_options is not None:
        what = "dense predictions" if predictions.is_dense else "options"
        raise InputError(f"prevalence takes rows of one class each, found {what}")
    labels = as_numpy(predictions.known_labels).astype(np.int64)
    events = predictions.task == "events"
    ignored = -1 if events else predictions.ignore_index
    counts = np.ones(len(labels), dtype=bool) if ignored is None else labels != ignored
    width = predictions.num_classes
    event = predictions.event or "event"
    names = ("no", event) if events else predictions.class_names
    names = names or tuple(str(k) for k in range(width))
    shares = read_shares(
        prevalence,
        num_classes=width,
        class_names=names,
        event=event if events else None,
        positive=positive,
    )
    row_weights = np.ones(len(labels)) if predictions.weights is None else predictions.weights
    counted = count_shares(labels[counts], width, row_weights[counts])
    if missing := [names[k] for k in np.flatnonzero(counted == 0).tolist()]:
        raise InputError(
            f"no row is of {first(missing)}: give rows of every class, or its share cannot "
            "be changed"
        )
    weights = row_weights.copy()
    weights[counts] *= (shares / counted)[labels[counts]]
    counted_weights = weights[counts]
    return Stated(
        replace(predictions, weights=weights),
        names,
        counted,
        shares,
        float(counted_weights.sum() ** 2 / (counted_weights @ counted_weights)),
        predictions.weights is not None,
    )


def explain_shares(evaluation: Evaluation, stated: Stated) -> Evaluation:
    """Return an evaluation of weighted rows that says for which shares it holds.

    Args:
        evaluation: The evaluation of the weighted rows.
        stated: What `weight_to_shares` gave.
    """
    shares = dict(zip(stated.names, stated.shares.tolist(), strict=True))
    settings = {**evaluation.settings, "prevalence": shares}
    verdict = evaluation.verdict
    if verdict is None:
        return replace(evaluation, settings=settings)
    ratio = np.abs(np.log(stated.shares / stated.counted))
    shown = np.argsort(-ratio, kind="stable")[:_NAMED].tolist()
    shown = [1] if len(stated.names) == 2 else shown
    parts = [
        f"{stated.names[k]} {percent(stated.shares[k])} instead of {percent(stated.counted[k])}"
        for k in shown
    ]
    others = "" if len(shown) >= len(shares) - 1 else "; the others by smaller factors"
    sentences = [
        f"Shares are as stated: {'; '.join(parts)}{others}. This assumes label shift: the rows of "
        "each class are as they were.",
        f"Rows are weighted by class; they are worth about {stated.worth:,.0f} rows.",
    ]
    if verdict.state == OFF:
        sentences.append("calibrant.adapt adapts a calibrator to these shares.")
    unweighted = [text for text in verdict.sentences if text != WEIGHTED or stated.had_weights]
    return replace(
        evaluation,
        settings=settings,
        verdict=replace(
            verdict,
            headline=f"With {parts[0] if len(shown) == 1 else 'the stated shares'}: "
            f"{verdict.headline}",
            sentences=(*sentences, *unweighted),
        ),
    )
