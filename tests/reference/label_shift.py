"""Shares of classes under label shift once more, plainly: probabilities, labels, weights."""

import math

import numpy as np
from scipy.optimize import minimize


def closed_form(probs, source, target):
    """Bayes' rule with other shares, row by row."""
    rows = []
    for row in probs:
        raised = [p * t / s for p, s, t in zip(row, source, target, strict=True)]
        total = math.fsum(raised)
        rows.append([value / total for value in raised])
    return np.array(rows)


def expectation_maximisation(probs, source, weights, *, prior_rows=0.0, steps=20_000):
    """EM of Saerens, Latinne and Decaestecker (2002), in plain loops."""
    shares = list(source)
    total = math.fsum(weights) + prior_rows
    for _ in range(steps):
        sums = [prior_rows * s for s in source]
        for row, weight in zip(probs, weights, strict=True):
            raised = [p * t / s for p, s, t in zip(row, source, shares, strict=True)]
            mass = math.fsum(raised)
            for k, value in enumerate(raised):
                sums[k] += weight * value / mass
        new = [value / total for value in sums]
        change = math.fsum(abs(a - b) for a, b in zip(new, shares, strict=True))
        shares = new
        if change < 1e-13:
            break
    return np.array(shares)


def black_box(predicted, labels, weights, new_predicted, new_weights, num_classes):
    """BBSE: the confusion matrix column by column, and a linear solve."""
    confusion = np.zeros((num_classes, num_classes))
    for guess, label, weight in zip(predicted, labels, weights, strict=True):
        confusion[guess, label] += weight
    for k in range(num_classes):
        confusion[:, k] /= math.fsum(confusion[:, k])
    seen = np.zeros(num_classes)
    for guess, weight in zip(new_predicted, new_weights, strict=True):
        seen[guess] += weight
    shares = np.linalg.solve(confusion, seen / math.fsum(seen))
    return shares, confusion


def bias_corrected_temperature(logits, labels, weights, ridge=1.0):
    """Slope and intercepts by a general minimiser."""
    rows = np.arange(len(labels))

    def loss(values):
        mapped = values[0] * logits + values[1:]
        logs = mapped - np.logaddexp.reduce(mapped, axis=1, keepdims=True)
        penalty = (values[0] - 1) ** 2 + (values[1:] ** 2).sum()
        return -math.fsum(weights * logs[rows, labels]) + ridge / 2 * penalty

    start = np.array([1.0, *np.zeros(logits.shape[1])])
    found = minimize(loss, start, method="BFGS", options={"gtol": 1e-7})
    return found.x[0], found.x[1:]
