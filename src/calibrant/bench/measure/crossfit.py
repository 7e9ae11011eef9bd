"""Judge calibrators on validation rows that they were not fitted on, to choose among them.

A calibrator looks better on the rows it was fitted on than on others, more so if it is flexible.
Choose calibrators by the figures of this part.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import torch

from calibrant.bench import calibrator_text
from calibrant.bench.measure.measurement import SHORT, Measurement, measure_metrics
from calibrant.bench.measure.subject import Parts, fit
from calibrant.calibrators.rank import apply
from calibrant.predictions import Predictions
from calibrant.predictions.split import split_rows

PART = "validation:crossfit"
MoreRows: TypeAlias = "Callable[[npt.NDArray[np.int64]], Predictions]"
SEED = 0  # of the halves, which are the same for every calibrator


def fit_on_halves(
    text: str, predictions: Predictions, *, more: MoreRows | None = None, seed: int = SEED
) -> Predictions:
    """Return each half of the rows after the calibrator fitted on the other half, in order.

    Args:
        text: the calibrator.
        predictions: the rows; halves are drawn by class.
        more: gives further rows to fit on, for the rows that are judged. Default: None.
        seed: of the draw. Default: 0 (ours).
    """
    labels = np.asarray(predictions.labels)
    first, second = split_rows(len(labels), 0.5, seed=seed, strata=labels)
    scores = torch.empty_like(torch.as_tensor(predictions.array))
    for fitted, held_out in ((first, second), (second, first)):
        rows = predictions.take(fitted)
        if more is not None:
            rows = join_rows([rows, more(held_out)])
        after = apply(fit(text, rows).calibrator, predictions.take(held_out))
        scores[torch.from_numpy(held_out)] = torch.as_tensor(after.array).to(scores.dtype)
    return replace(predictions, scores=scores, is_logits=True)


def join_rows(parts: Sequence[Predictions]) -> Predictions:
    """Join the rows of several predictions."""
    return replace(
        parts[0],
        scores=torch.cat([torch.as_tensor(part.array).to(torch.float32) for part in parts]),
        labels=torch.cat([torch.as_tensor(part.labels) for part in parts]),
        ids=None,
    )


def crossfit(
    text: str, validation: Predictions, *, metrics: Sequence[str] = SHORT, seed: int = SEED
) -> Iterator[Measurement]:
    """Measure part ``validation:crossfit`` of a calibrator fitted on validation rows.

    Both halves are judged together, because the ECE of a smaller set has a larger bias. There
    are no such figures for a calibrator fitted on other rows (``on=train``), nor for dense
    predictions, whose millions of pixels a small calibrator cannot overfit.

    Args:
        text: the calibrator.
        validation: the rows.
        metrics: what is measured. Default: `SHORT`.
        seed: of the halves. Default: 0 (ours).
    """
    if calibrator_text.fitting_part(text) == "validation" and not validation.is_dense:
        held_out = fit_on_halves(text, validation, seed=seed)
        yield from measure_metrics(PART, text, held_out, metrics)


def measure_crossfit(
    subject: Parts, *, calibrators: Sequence[str] = (calibrator_text.ALL,)
) -> Iterator[Measurement]:
    """Measure calibrators on validation rows that they were not fitted on."""
    for text in calibrator_text.expand_calibrators(calibrators, dense=subject.is_dense):
        subject.check_calibrator(text)
        yield from crossfit(text, subject.predictions("validation"))
