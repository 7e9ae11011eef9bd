"""Predictions kept small: half precision, in which no prediction changes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch

from calibrant.predictions import Predictions


def halved(predictions: Predictions) -> Predictions:
    """Logits in float16, each row less its largest, which is then exactly 0.

    So the numbers that decide, those near the largest, are small and keep their digits: a
    distance d from the largest is wrong by at most d/2048, and no other class becomes the
    largest. What is lost is the largest logit itself, a score for out-of-distribution rows.
    Below −65,504 a logit is held there; its probability is 0.
    """
    scores = torch.as_tensor(predictions.in_memory().array).float()
    less = scores - scores.amax(1, keepdim=True)
    small = less.clamp_min(torch.finfo(torch.float16).min).to(torch.float16)
    # Rounded up to 0, a second class would tie with the first.
    tiny = torch.tensor(-(2.0**-24), dtype=torch.float16)
    return replace(predictions, scores=torch.where((less < 0) & (small == 0), tiny, small))


def halve(folder: Path) -> None:
    """Rewrite a run's predictions in half precision, each file whole or not at all."""
    for path in sorted((folder / "predictions").glob("*.safetensors")):
        said = Predictions.read(path)
        if torch.as_tensor(said.array).dtype != torch.float16:
            halved(said).write(path)
