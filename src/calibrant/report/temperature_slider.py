"""The data of the report's temperature slider: a sample of rows, small enough for the page.

At temperature T a row's confidence and loss depend on two numbers only: the gap
g = z_max − z_y, and f(T) = ln Σ_k exp((z_k − z_max)/T), because

    confidence = exp(−f(T))     and     −ln p_y = g/T + f(T)

(Guo et al. 2017, "On calibration of modern neural networks"). The page gets f at the
temperatures of `KNOTS` and interpolates between them with cubics in log T
(``assets/sections/temperature.js``), so a row takes as much space with two classes as with
32,000.
"""

from __future__ import annotations

import base64
from typing import Any

import numpy as np
from numpy.typing import NDArray

from calibrant.core.errors import InputError
from calibrant.predictions import Predictions

Floats = NDArray[np.float64]

# log2 of the temperatures: 0.25 to 4. With 8 steps to a doubling, interpolation changes the
# NLL by less than 1e-4 up to 32,000 classes.
KNOTS = np.linspace(-2, 2, 33)
MOST_ROWS = 2_000
MOST_SCORES = 8_000_000  # rows times classes; keeps the work below about a second
FLOOR = 1e-12  # least probability, where probabilities are given instead of logits
_BLOCK = 1 << 20


def make_slider_data(predictions: Predictions, *, seed: int = 0) -> dict[str, Any]:
    """Return the slider's numbers of a seeded sample of rows, as values that JSON can hold."""
    logits, labels, total = sample_rows(predictions, seed=seed)
    top = logits.max(axis=1)
    gaps = top - logits[np.arange(len(labels)), labels]
    return {
        "rows": len(labels),
        "of": total,
        "knots": [float(KNOTS[0]), float(KNOTS[-1]), len(KNOTS)],
        "normaliser": _pack(_log_normaliser(logits, top), "<f4"),  # knot by knot
        "gaps": _pack(gaps, "<f4"),
        "correct": _pack(logits.argmax(axis=1) == labels, "u1"),
    }


def sample_rows(
    predictions: Predictions, *, seed: int = 0
) -> tuple[Floats, NDArray[np.int64], int]:
    """Return (n, K) float64 logits, (n,) labels, and the number of rows sampled from.

    Dense predictions give pixels; ignored rows are left out; probabilities become logits,
    floored at 1e-12.
    """
    truth = _as_numpy(predictions.known_labels).reshape(-1).astype(np.int64)
    ignored = predictions.ignore_index
    valid = np.arange(len(truth)) if ignored is None else np.flatnonzero(truth != ignored)
    if not len(valid):
        raise InputError("the temperature slider needs rows, but every row here is ignored")
    most = max(1, min(MOST_ROWS, MOST_SCORES // predictions.num_classes))
    chosen = valid
    if len(valid) > most:
        chosen = np.sort(np.random.default_rng(seed).choice(valid, most, replace=False))
    parts, start = [], 0
    for scores, labels in predictions.batches():
        size = int(np.prod(labels.shape))
        rows = chosen[(chosen >= start) & (chosen < start + size)] - start
        parts.append(_take_logits(scores, rows, is_logits=predictions.is_logits))
        start += size
    return np.concatenate(parts), truth[chosen], len(valid)


def _take_logits(scores: Any, rows: NDArray[np.int64], *, is_logits: bool) -> Floats:
    """Return some rows, or pixels, of a batch as (n, K) logits."""
    if scores.ndim > 2:
        flat = scores.reshape(scores.shape[0], scores.shape[1], -1)
        taken = flat[rows // flat.shape[2], :, rows % flat.shape[2]]
    else:
        taken = scores[rows]
    values: Floats = _as_numpy(taken).astype(np.float64)
    if scores.ndim == 1:
        absent = np.zeros_like(values) if is_logits else 1 - values
        values = np.stack((absent, values), axis=1)
    return values if is_logits else np.log(np.maximum(values, FLOOR))


def _log_normaliser(logits: Floats, top: Floats) -> Floats:
    """Return f(T) = ln Σ_k exp((z_k − z_max)/T), (knots, rows)."""
    values = np.empty((len(KNOTS), len(logits)))
    step = max(1, _BLOCK // logits.shape[1])
    for begin in range(0, len(logits), step):
        below = logits[begin : begin + step] - top[begin : begin + step, None]
        for place, knot in enumerate(KNOTS):
            values[place, begin : begin + step] = np.log(np.exp(below * 2.0**-knot).sum(axis=1))
    return values


def _as_numpy(values: Any) -> NDArray[Any]:
    if isinstance(values, np.ndarray):
        return values
    tensor = values.detach().cpu()  # NumPy has no bfloat16
    array: NDArray[Any] = (tensor.double() if tensor.is_floating_point() else tensor).numpy()
    return array


def _pack(values: NDArray[Any], kind: str) -> str:
    return base64.b64encode(np.ascontiguousarray(values, dtype=kind).tobytes()).decode()
