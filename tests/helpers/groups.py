"""Predictions of groups with known gaps, and the command line that evaluates them."""

from __future__ import annotations

import numpy as np
from typer.testing import CliRunner

from calibrant import Predictions
from calibrant.cli import app

FAST = {"metrics": ["accuracy"], "resamples": 100}


def draw_groups(seed, sizes, gaps):
    """Draw predictions of groups 0, 1, ... of these sizes, too sure by these gaps.

    A third, rare class keeps them from being judged as events.
    """
    rng = np.random.default_rng(seed)
    home = rng.permutation(np.repeat(np.arange(len(sizes)), sizes))
    confidence = 0.55 + 0.45 * rng.beta(3, 1, size=len(home))
    right = rng.random(len(home)) < confidence - np.asarray(gaps)[home]
    rest = 1 - confidence
    probs = np.stack((0.999 * rest, confidence, 0.001 * rest), axis=1)
    return Predictions.from_probs(probs, right.astype(np.int64)), home


def run_command(*arguments):
    """Run the command `calibrant` with these arguments."""
    return CliRunner().invoke(app, [str(each) for each in arguments])
