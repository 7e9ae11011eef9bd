"""Four families of synthetic predictions whose true probabilities are known.

They are for reporting alone: nothing was fitted or tuned on them. Figures of the first two had
been read when the order-preserving network joined the menu; the last two were written after
that and first run for the table. Each set is drawn once, from a seed of its own, and split like
a real one.

``mixture-K``: a Gaussian mixture. With means μ_k ~ N(0, s²I) in 8 dimensions, classes of
unequal weight π and x ~ N(μ_y, I), the log-posteriors l_k = ln π_k − |x − μ_k|²/2 (normalised)
are exact. The classifier shows them bent, class by class, z_k = −a_k·|l_k|^(γ_k) + b_k with
a ~ U(0.8, 2), γ ~ U(0.7, 1.3), b ~ N(0, 0.5²), and with noise 0.4·t(3).

``mistakes-K``: confident mistakes under a shift. Class scores are g ~ N(0, I) with m added to
one class, so that m·g are calibrated logits of that class. A third of the rows come from a
shifted domain and are shown 2.5 times too sharp, the others 1.2 times; 4 rows in 100 then get
the label of another class, whatever the classifier says of them: where it is certain, it is
certain and wrong. No temperature repairs that; a mixture with the uniform bounds the loss.

``sisters-K``: classes come in pairs, and with calibrated logits l the classifier shows the mean
of a pair twice too large and the difference within it 0.6 times: sure of the kind, unsure of the
sister. A matrix can repair it, a number a class cannot.

``priors-K``: calibrated logits of a network trained where classes were as common as π'; here they
are as common as π, both drawn from a Dirichlet law of concentration 2, and each row is shown
exp(N(0.2, 0.3²)) times as sharp. A shift a class repairs the first, nothing the second in full.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

Set = tuple[NDArray[np.float32], NDArray[np.int64]]

CLASSES = (2, 10, 50)
ROWS = 4_000
DIMENSIONS = 8
WRONG = 0.04
SEED = 7_300


def mixture(classes: int, *, rows: int = ROWS, seed: int = SEED) -> Set:
    """Exact log-posteriors of a Gaussian mixture, bent class by class, with heavy-tailed noise."""
    generator = np.random.default_rng([seed, 1, classes])
    # Nearest means lie closer the more there are: spread them so that some 3 in 4 are right.
    spread = 0.45 if classes == 2 else 0.9 if classes <= 10 else 1.3
    means = spread * generator.normal(size=(classes, DIMENSIONS))
    weights = generator.dirichlet(np.full(classes, 5.0))
    labels = generator.choice(classes, size=rows, p=weights)
    points = means[labels] + generator.normal(size=(rows, DIMENSIONS))
    squares = ((points[:, None, :] - means) ** 2).sum(2)
    joint = np.log(weights) - 0.5 * squares
    joint -= joint.max(1, keepdims=True)
    posterior = joint - np.log(np.exp(joint).sum(1, keepdims=True))
    slope = generator.uniform(0.8, 2.0, size=classes)
    bend = generator.uniform(0.7, 1.3, size=classes)
    shift = generator.normal(scale=0.5, size=classes)
    noise = 0.4 * generator.standard_t(3, size=(rows, classes))
    logits = -slope * np.abs(posterior) ** bend + shift + noise
    return logits.astype(np.float32), labels.astype(np.int64)


def mistakes(classes: int, *, rows: int = ROWS, seed: int = SEED) -> Set:
    """Calibrated logits made too sharp, more so in a shifted domain, and 4% of labels wrong."""
    generator = np.random.default_rng([seed, 2, classes])
    margin = math.sqrt(2 * math.log(classes)) + 0.5
    labels = generator.integers(classes, size=rows)
    scores = generator.normal(size=(rows, classes))
    scores[np.arange(rows), labels] += margin
    sharpness = np.where(generator.random(rows) < 1 / 3, 2.5, 1.2)
    logits = sharpness[:, None] * margin * scores
    wrong = generator.random(rows) < WRONG
    other = (labels + generator.integers(1, classes, size=rows)) % classes
    return logits.astype(np.float32), np.where(wrong, other, labels).astype(np.int64)


def sisters(classes: int, *, rows: int = ROWS, seed: int = SEED) -> Set:
    """Calibrated logits, twice too large between pairs of classes and 0.6 times within."""
    generator = np.random.default_rng([seed, 3, classes])
    margin = math.sqrt(2 * math.log(classes)) + 0.5
    labels = generator.integers(classes, size=rows)
    scores = generator.normal(size=(rows, classes))
    scores[np.arange(rows), labels] += margin
    pairs = margin * scores.reshape(rows, -1, 2)
    means = pairs.mean(2, keepdims=True)
    shown = 2.0 * means + 0.6 * (pairs - means)
    return shown.reshape(rows, classes).astype(np.float32), labels.astype(np.int64)


def priors(classes: int, *, rows: int = ROWS, seed: int = SEED) -> Set:
    """Logits calibrated under other class frequencies, each row with a sharpness of its own."""
    generator = np.random.default_rng([seed, 4, classes])
    margin = math.sqrt(2 * math.log(classes)) + 0.5
    then, now = generator.dirichlet(np.full(classes, 2.0), size=2) + 1e-3
    labels = generator.choice(classes, size=rows, p=now / now.sum())
    scores = generator.normal(size=(rows, classes))
    scores[np.arange(rows), labels] += margin
    sharpness = np.exp(generator.normal(0.2, 0.3, size=(rows, 1)))
    logits = sharpness * (margin * scores + np.log(then / then.sum()))
    return logits.astype(np.float32), labels.astype(np.int64)


FAMILIES = {"mixture": mixture, "mistakes": mistakes, "sisters": sisters, "priors": priors}
NAMES = tuple(f"{family}-{classes}" for family in FAMILIES for classes in CLASSES)


def make(name: str) -> Set:
    """A set by name, such as ``mixture-10``."""
    family, classes = name.rsplit("-", 1)
    return FAMILIES[family](int(classes))
