"""Stand-ins for `Evaluation` made with plain NumPy, for the tests of pictures and report.

They test drawing without computing, and reach corners (empty bins, an infinite loss, a
thousand classes, hostile names) cheaply. A test of the report holds them to the fields of the
real value.
"""

from __future__ import annotations

import itertools
from types import SimpleNamespace

import numpy as np
import pandas as pd

from calibrant.evaluation.verdict import Tolerance

BIN_COLUMNS = [
    "low",
    "high",
    "count",
    "confidence",
    "accuracy",
    "accuracy_low",
    "accuracy_high",
    "band_low",
    "band_high",
]
CLASS_COLUMNS = [
    "index",
    "name",
    "count",
    "predicted",
    "frequency",
    "mean_probability",
    "gap",
    "recall",
    "precision",
    "nll",
    "ece",
]


def wilson(share, count, z=1.96):
    centre = (share + z * z / (2 * count)) / (1 + z * z / count)
    half = z / (1 + z * z / count) * np.sqrt(share * (1 - share) / count + (z / count / 2) ** 2)
    return centre - half, centre + half


def bin_table(confidence, correct, edges):
    rows = []
    place = np.clip(np.searchsorted(edges, confidence, side="left") - 1, 0, len(edges) - 2)
    for b, (low, high) in enumerate(itertools.pairwise(edges)):
        mine = place == b
        n = int(mine.sum())
        if n == 0:
            rows.append([low, high, 0] + [np.nan] * 6)
            continue
        c, a = confidence[mine].mean(), correct[mine].mean()
        spread = 1.96 * np.sqrt(c * (1 - c) / n)
        band = max(c - spread, 0.0), min(c + spread, 1.0)
        rows.append([low, high, n, c, a, *wilson(a, n), *band])
    return pd.DataFrame(rows, columns=BIN_COLUMNS)


def class_tables(probs, labels, names, num_bins):
    n, k = probs.shape
    predicted = probs.argmax(1)
    edges = np.linspace(0, 1, num_bins + 1)
    bins = np.full((k, num_bins, 3), np.nan)
    rows = []
    for c in range(k):
        p, y = probs[:, c], labels == c
        place = np.clip(np.searchsorted(edges, p, side="left") - 1, 0, num_bins - 1)
        counts = np.bincount(place, minlength=num_bins)
        bins[c, :, 0] = counts
        full = counts > 0
        bins[c, full, 1] = np.bincount(place, p, num_bins)[full] / counts[full]
        bins[c, full, 2] = np.bincount(place, y, num_bins)[full] / counts[full]
        ece = np.nansum(counts * np.abs(bins[c, :, 1] - bins[c, :, 2])) / n
        mine, called = int(y.sum()), int((predicted == c).sum())
        hits = int((y & (predicted == c)).sum())
        with np.errstate(divide="ignore"):
            nll = float(-np.log(p[y]).mean()) if mine else np.nan
        rows.append(
            [
                c,
                names[c],
                mine,
                called,
                mine / n,
                p.mean(),
                p.mean() - mine / n,
                hits / mine if mine else np.nan,
                hits / called if called else np.nan,
                nll,
                ece,
            ]
        )
    return pd.DataFrame(rows, columns=CLASS_COLUMNS), bins


def figure(name, label, value, spread, better="lower", note=None):
    low, high = (None, None) if spread is None else (value - spread, value + spread)
    return SimpleNamespace(
        name=name,
        label=label,
        value=value,
        low=low,
        high=high,
        corrected=value * 0.96 if "ece" in name else None,
        better=better,
        note=note,
    )


def stand_in(probs, labels, *, names=None, name="stand-in", num_bins=15):
    """Make everything that an ``Evaluation`` holds from (N, K) probabilities and N labels."""
    n, k = probs.shape
    names = tuple(str(i) for i in range(k)) if names is None else tuple(names)
    confidence = probs.max(1)
    correct = (probs.argmax(1) == labels).astype(float)
    bins = bin_table(confidence, correct, np.linspace(0, 1, num_bins + 1))
    edges = np.unique(np.quantile(confidence, np.linspace(0, 1, num_bins + 1)))
    edges = edges if len(edges) > 1 else np.array([0.0, 1.0])
    classes, class_bins = class_tables(probs, labels, names, num_bins)
    full = bins[bins["count"] > 0]
    ece = float((full["count"] * (full["confidence"] - full["accuracy"]).abs()).sum() / n)
    with np.errstate(divide="ignore"):
        nll = float(-np.log(probs[np.arange(n), labels]).mean())
    order = np.argsort(-confidence, kind="stable")
    risk = np.cumsum(1 - correct[order]) / np.arange(1, n + 1)
    at = np.unique(np.linspace(0, n - 1, min(n, 201)).astype(int))
    gap = float(confidence.mean() - correct.mean())
    spread = 1.96 * float(np.std(confidence - correct)) / np.sqrt(n)
    direction = "neither" if abs(gap) < spread else "over" if gap > 0 else "under"
    direction = direction if direction == "neither" else direction + "confident"
    infinite = int((probs[np.arange(n), labels] == 0).sum())
    figures = [
        figure("accuracy", "Accuracy", float(correct.mean()), 0.006, "higher"),
        figure("ece", "Expected calibration error", ece, 0.004),
        figure("classwise_ece", "Class-wise ECE", float(classes["ece"].mean()), 0.0005),
        figure(
            "nll",
            "Negative log-likelihood",
            nll,
            None if infinite else 0.02,
            note=f"{infinite} rows have probability 0 for the true class" if infinite else None,
        ),
        figure(
            "brier", "Brier score", float(((probs - np.eye(k)[labels]) ** 2).sum(1).mean()), 0.01
        ),
        figure("adaptive_ece", "Equal-mass ECE", ece * 0.98, 0.004),
        figure("mce", "Maximum calibration error", ece * 4, None),
        figure("aurc", "Area under the risk-coverage curve", float(risk.mean()), 0.002),
    ]
    headlines = {
        "overconfident": "The model is overconfident: it claims more than it delivers.",
        "underconfident": "The model is underconfident: it is right more often than it says.",
        "neither": "No miscalibration can be shown with these rows.",
    }
    verdict = SimpleNamespace(
        direction=direction,
        headline=headlines[direction],
        sentences=(
            f"On average it says {confidence.mean():.1%} and is right {correct.mean():.1%} of the "
            f"time: a gap of {100 * gap:+.1f} points (95% interval {100 * (gap - spread):+.1f} to "
            f"{100 * (gap + spread):+.1f}).",
            "A calibrated model would show a difference this large less than once in a thousand.",
            f"With {n:,} rows, a gap smaller than about {100 * spread:.1f} points cannot be told "
            "from chance.",
        ),
        gap=gap,
        gap_low=gap - spread,
        gap_high=gap + spread,
        p_value=0.31 if direction == "neither" else 0.0002,
        chance_ece=0.6 / np.sqrt(n),
        state="cannot tell" if direction == "neither" else "off",
        tolerance=Tolerance(),
        ratio=None,
        slope=None,
        mean=float(confidence.mean()),
        rate=float(correct.mean()),
        rows_needed=None,
    )
    return SimpleNamespace(
        name=name,
        num_rows=n,
        num_ignored=0,
        num_classes=k,
        kind="logits",
        class_names=names,
        figures={f.name: f for f in figures},
        verdict=verdict,
        groups=None,
        warnings=(),
        task="classes",
        view="top",
        event=None,
        num_options=None,
        num_clusters=None,
        weighted=False,
        labels=(),
        tallies=SimpleNamespace(cells=None),
        bins=bins,
        mass_bins=bin_table(confidence, correct, edges),
        classes=classes,
        class_bins=class_bins,
        risk_coverage=pd.DataFrame(
            {
                "coverage": (at + 1) / n,
                "risk": risk[at],
                "threshold": confidence[order][at],
            }
        ),
        settings={
            "num_bins": num_bins,
            "confidence_level": 0.95,
            "resamples": 1000,
            "seed": 0,
            "version": "0.1.0",
        },
    )


def simulated(
    num_classes=10, num_rows=4000, *, sharpness=1.8, signal=2.0, names=None, name=None, seed=0
):
    """Draw labels from softmax(z); the model reports softmax(sharpness * z)."""
    rng = np.random.default_rng(seed)
    logits = rng.normal(size=(num_rows, num_classes))
    logits[np.arange(num_rows), rng.integers(num_classes, size=num_rows)] += signal + np.log(
        num_classes
    )
    true = np.exp(logits - logits.max(1, keepdims=True))
    true /= true.sum(1, keepdims=True)
    labels = (true.cumsum(1) > rng.random((num_rows, 1))).argmax(1)
    probs = np.exp(sharpness * (logits - logits.max(1, keepdims=True)))
    probs /= probs.sum(1, keepdims=True)
    return stand_in(probs, labels, names=names, name=name or f"simulated-{num_classes}")


def infinite_loss():
    """Make an evaluation in which one row gives its true class probability zero."""
    probs = np.array([[1.0, 0.0], [0.7, 0.3], [0.2, 0.8], [0.4, 0.6]])
    return stand_in(probs, np.array([1, 0, 1, 0]), name="infinite")


def single_row():
    """Make the smallest possible evaluation."""
    return stand_in(np.array([[0.9, 0.1]]), np.array([0]), name="one row")
