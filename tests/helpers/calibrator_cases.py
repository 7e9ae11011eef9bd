"""Small synthetic sets, and each registered calibrator fitted once."""

from __future__ import annotations

import warnings
from functools import cache

import numpy as np

from calibrant.calibrators import get
from calibrant.calibrators.registry import CALIBRATORS

NAMES = tuple(CALIBRATORS)
FEATURES = tuple(name for name in NAMES if get(name).takes_features)
ROWS = tuple(name for name in NAMES if not get(name).dense_only and name not in FEATURES)
WIDTH = 6  # of features


def overconfident(rows=240, classes=4, seed=0, dtype=np.float32):
    """Labels drawn from the softmax of half the logits: a temperature of two is right."""
    generator = np.random.default_rng(seed)
    logits = 3.0 * generator.normal(size=(rows, classes))
    gumbel = generator.gumbel(size=(rows, classes))
    return logits.astype(dtype), (logits / 2 + gumbel).argmax(1)


def sample(name, rows=None, classes=4, seed=0, dtype=np.float32):
    """The same in the shape a method takes: 240 rows, or 20 pictures of 3 by 4.

    Features are a linear map of the logits, of another width.
    """
    if name in (*ROWS, *FEATURES):
        logits, labels = overconfident(240 if rows is None else rows, classes, seed, dtype)
        if name in ROWS:
            return logits, labels
        mixed = np.random.default_rng(7).normal(size=(classes, WIDTH))
        return (logits @ mixed).astype(dtype), labels
    count = 20 if rows is None else rows
    logits, labels = overconfident(count * 12, classes, seed, dtype)
    pictures = logits.reshape(count, 3, 4, classes).transpose(0, 3, 1, 2)
    return np.ascontiguousarray(pictures), labels.reshape(count, 3, 4)


def fit(name, logits, labels, *, ignore_index=None, **options):
    """A fresh calibrator, fitted; its warnings are another test's matter."""
    if name in FEATURES:
        options.pop("from_logits", None)  # features are neither logits nor probabilities
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return get(name, **options).fit(logits, labels, ignore_index=ignore_index)


@cache
def fitted(name, classes=4):
    """Shared by tests, which may not change it."""
    return fit(name, *sample(name, classes=classes))
