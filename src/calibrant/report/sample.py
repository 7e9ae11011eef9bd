"""Rows for the page's temperature slider, small enough to travel with it.

At temperature T a row's confidence and loss need only two things of its logits: the gap
g = z_max − z_y, and f(T) = ln Σ_k exp((z_k − z_max)/T), for then

    confidence = exp(−f(T))     and     −ln p_y = g/T + f(T)

(Guo et al. 2017, "On calibration of modern neural networks"). The page gets f at the
temperatures of `KNOTS` and interpolates between them with cubics in log T, so a row costs
the same for two classes and for 32,000.
"""

from __future__ import annotations

import base64
from typing import Any

import numpy as np
from numpy.typing import NDArray

from calibrant.functional.errors import InputError
from calibrant.predictions import Predictions

Floats = NDArray[np.float64]

# log2 of the temperatures: 0.25 to 4. With 8 steps to a doubling, what interpolation adds to
# the NLL stays below 1e-4 up to 32,000 classes.
KNOTS = np.linspace(-2, 2, 33)
MOST_ROWS = 2_000
MOST_SCORES = 8_000_000  # rows times classes: keeps the work below about a second
FLOOR = 1e-12  # of probabilities given in place of logits
_BLOCK = 1 << 20


def sample(predictions: Predictions, *, seed: int = 0) -> dict[str, Any]:
    """What the slider needs of a seeded sample of rows, as values that JSON can hold."""
    logits, labels, total = sampled_rows(predictions, seed=seed)
    top = logits.max(axis=1)
    gaps = top - logits[np.arange(len(labels)), labels]
    return {
        "rows": len(labels),
        "of": total,
        "knots": [float(KNOTS[0]), float(KNOTS[-1]), len(KNOTS)],
        "normaliser": _packed(_normaliser(logits, top), "<f4"),  # one knot after another
        "gaps": _packed(gaps, "<f4"),
        "correct": _packed(logits.argmax(axis=1) == labels, "u1"),
    }


def sampled_rows(
    predictions: Predictions, *, seed: int = 0
) -> tuple[Floats, NDArray[np.int64], int]:
    """(n,K) float64 logits, (n,) labels, and how many rows there were to choose from.

    Dense predictions give pixels; rows to be ignored are left out; probabilities become
    logits, floored at 1e-12.
    """
    truth = _numpy(predictions.labels).reshape(-1).astype(np.int64)
    ignored = predictions.ignore_index
    valid = np.arange(len(truth)) if ignored is None else np.flatnonzero(truth != ignored)
    if not len(valid):
        raise InputError("a temperature needs rows to be tried on; every row here is ignored")
    most = max(1, min(MOST_ROWS, MOST_SCORES // predictions.num_classes))
    wanted = valid
    if len(valid) > most:
        wanted = np.sort(np.random.default_rng(seed).choice(valid, most, replace=False))
    parts, start = [], 0
    for scores, labels in predictions.batches():
        size = int(np.prod(labels.shape))
        mine = wanted[(wanted >= start) & (wanted < start + size)] - start
        parts.append(_picked(scores, mine, is_logits=predictions.is_logits))
        start += size
    return np.concatenate(parts), truth[wanted], len(valid)


def _picked(scores: Any, rows: NDArray[np.int64], *, is_logits: bool) -> Floats:
    """Some rows, or pixels, of a batch as (n,K) logits."""
    if scores.ndim == 1:
        one = _numpy(scores[rows]).astype(np.float64)
        if is_logits:
            return np.stack((np.zeros_like(one), one), axis=1)
        return np.log(np.maximum(np.stack((1 - one, one), axis=1), FLOOR))
    if scores.ndim == 2:
        found = _numpy(scores[rows])
    else:
        flat = scores.reshape(scores.shape[0], scores.shape[1], -1)
        found = _numpy(flat[rows // flat.shape[2], :, rows % flat.shape[2]])
    values: Floats = found.astype(np.float64)
    return values if is_logits else np.log(np.maximum(values, FLOOR))


def _normaliser(logits: Floats, top: Floats) -> Floats:
    """f(T) = ln Σ_k exp((z_k − z_max)/T), (knots, rows)."""
    found = np.empty((len(KNOTS), len(logits)))
    step = max(1, _BLOCK // logits.shape[1])
    for begin in range(0, len(logits), step):
        below = logits[begin : begin + step] - top[begin : begin + step, None]
        for place, knot in enumerate(KNOTS):
            found[place, begin : begin + step] = np.log(np.exp(below * 2.0**-knot).sum(axis=1))
    return found


def _numpy(values: Any) -> NDArray[Any]:
    if isinstance(values, np.ndarray):
        return values
    tensor = values.detach().cpu()  # NumPy has no bfloat16
    array: NDArray[Any] = (tensor.double() if tensor.is_floating_point() else tensor).numpy()
    return array


def _packed(values: NDArray[Any], kind: str) -> str:
    return base64.b64encode(np.ascontiguousarray(values, dtype=kind).tobytes()).decode()
