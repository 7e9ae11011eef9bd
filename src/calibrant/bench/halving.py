"""Predictions kept small: half precision, in which no prediction changes."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from calibrant.bench import texts
from calibrant.predictions import Predictions
from calibrant.training.checkpoint import write_whole


def halved(predictions: Predictions) -> Predictions:
    """Logits in float16, each row less its largest, which is then exactly 0.

    So the numbers that decide, those near the largest, are small and keep their digits: a
    distance d from the largest is wrong by at most d/2048, and no other class becomes the
    largest. The largest logit itself is lost; `halve` keeps it beside. Below −65,504 a logit
    is held there; its probability is 0.
    """
    scores = torch.as_tensor(predictions.in_memory().array).float()
    less = scores - scores.amax(1, keepdim=True)
    small = less.clamp_min(torch.finfo(torch.float16).min).to(torch.float16)
    # Rounded up to 0, a second class would tie with the first.
    tiny = torch.tensor(-(2.0**-24), dtype=torch.float16)
    return replace(predictions, scores=torch.where((less < 0) & (small == 0), tiny, small))


def largest_of(path: Path) -> Path:
    """Where the largest logit of each row is kept, for predictions kept small at ``path``."""
    return path.with_name(f"{path.stem}-largest.npy")


def halve(folder: Path) -> None:
    """Rewrite a run's predictions in half precision, each file whole or not at all."""
    for path in sorted((folder / "predictions").glob("*.safetensors")):
        said = Predictions.read(path)
        scores = torch.as_tensor(said.array)
        if scores.dtype != torch.float16:
            content = io.BytesIO()
            np.save(content, scores.amax(1, keepdim=True).float().cpu().numpy())
            write_whole(largest_of(path), content.getvalue())
            halved(said).write(path)


def whole(path: Path) -> Predictions:
    """Predictions as they were before `halve`, but for rounding; others as they are.

    In double precision, so that near ties stay apart.
    """
    said = Predictions.read(path)
    scores, beside = torch.as_tensor(said.array), largest_of(path)
    if scores.dtype != torch.float16 or not beside.is_file():
        return said
    largest = torch.from_numpy(np.load(beside, allow_pickle=False))
    return replace(said, scores=scores.double() + largest.double())


def needs_whole(text: str) -> bool:
    """Whether a calibrator, by its text, is another map of logits less their largest."""
    return texts.parse(text)[0] in ("class_temperature", "parameterized_temperature")


def is_whole(path: Path) -> bool:
    """Whether `whole` gives the logits themselves; runs kept before it did gave less of them."""
    if largest_of(path).is_file():
        return True
    return torch.as_tensor(Predictions.read(path).array).dtype != torch.float16
