"""Calibrators judged on validation rows they were not fitted on, to choose among them.

A calibrator looks better on the rows it was fitted on than on any others, and the more so the
more it can fit. Whoever chooses one by validation figures needs the figures of this part.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import torch

from calibrant.bench import texts
from calibrant.bench.judging import SHORT, Figure, counted, figures, told
from calibrant.bench.subject import fit
from calibrant.calibrators.rank import apply
from calibrant.predictions import Predictions
from calibrant.predictions.splitting import split_rows

PART = "validation:crossfit"
Beside: TypeAlias = "Callable[[npt.NDArray[np.int64]], Predictions]"
SEED = 0  # of the halves: the same for every calibrator, so that they are judged alike


def out_of_half(
    text: str, predictions: Predictions, *, beside: Beside | None = None, seed: int = SEED
) -> Predictions:
    """Each half of the rows after the calibrator fitted on the other, in the rows' order.

    The halves are drawn by class. What ``beside`` gives of the rows to be judged is fitted on,
    too.
    """
    labels = np.asarray(predictions.labels)
    first, second = split_rows(len(labels), 0.5, seed=seed, strata=labels)
    scores = torch.empty_like(torch.as_tensor(predictions.array))
    for fitted, judged in ((first, second), (second, first)):
        rows = predictions.take(fitted)
        if beside is not None:
            rows = joined([rows, beside(judged)])
        calibrator = fit(text, rows).calibrator
        said = apply(calibrator, predictions.take(judged))
        scores[torch.from_numpy(judged)] = torch.as_tensor(said.array).to(scores.dtype)
    return replace(predictions, scores=scores, is_logits=True)


def joined(parts: Sequence[Predictions]) -> Predictions:
    """Rows of several predictions as one."""
    return replace(
        parts[0],
        scores=torch.cat([torch.as_tensor(one.array).to(torch.float32) for one in parts]),
        labels=torch.cat([torch.as_tensor(one.labels) for one in parts]),
        ids=None,
    )


def crossfit(
    text: str,
    validation: Predictions,
    *,
    metrics: Sequence[str] = SHORT,
    seed: int = SEED,
) -> Iterator[Figure]:
    """Figures of part ``validation:crossfit`` of a calibrator fitted on validation rows.

    Both halves' rows are judged together: the ECE of a half has more of the bias that small
    sets give it, which would count as if the calibrator had it. A calibrator fitted on other
    rows (``on=train``) has nothing to be spared from here, and no such part; nor have dense
    predictions, whose millions of pixels no calibrator of a few numbers learns by heart.
    """
    if texts.fitted_on(text) != "validation" or validation.is_dense:
        return
    said = out_of_half(text, validation, seed=seed)
    yield from told(PART, text, figures(said, metrics), rows=counted(said))
