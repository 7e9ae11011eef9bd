"""Store predictions in half precision, without a change of any predicted class."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from calibrant.bench import calibrator_text
from calibrant.core.files import write_file
from calibrant.predictions import Predictions


def to_half(predictions: Predictions) -> Predictions:
    """Return logits in float16, each row less its largest, which is then exactly 0.

    Logits near the largest become small numbers, which keep their digits: a distance d from the
    largest is wrong by at most d/2048, and the predicted class stays. The largest logit itself is
    lost; `halve_files` keeps it in a second file. Logits below −65,504 are set to it; their
    probability is 0.
    """
    scores = torch.as_tensor(predictions.in_memory().array).float()
    less = scores - scores.amax(1, keepdim=True)
    small = less.clamp_min(torch.finfo(torch.float16).min).to(torch.float16)
    # Rounded up to 0, a second class would tie with the first.
    tiny = torch.tensor(-(2.0**-24), dtype=torch.float16)
    return replace(predictions, scores=torch.where((less < 0) & (small == 0), tiny, small))


def largest_path(path: Path) -> Path:
    """Return the file of each row's largest logit, for predictions in half precision."""
    return path.with_name(f"{path.stem}-largest.npy")


def halve_files(folder: Path) -> None:
    """Rewrite a run's predictions in half precision, each file whole or not at all."""
    for path in sorted((folder / "predictions").glob("*.safetensors")):
        predictions = Predictions.read(path)
        scores = torch.as_tensor(predictions.array)
        if scores.dtype != torch.float16:
            content = io.BytesIO()
            np.save(content, scores.amax(1, keepdim=True).float().cpu().numpy())
            write_file(largest_path(path), content.getvalue())
            to_half(predictions).write(path)


def read_whole(path: Path) -> Predictions:
    """Read predictions as they were before `halve_files`, except for rounding.

    Halved predictions are returned in double precision, so that near ties stay apart.
    """
    predictions = Predictions.read(path)
    scores, beside = torch.as_tensor(predictions.array), largest_path(path)
    if scores.dtype != torch.float16 or not beside.is_file():
        return predictions
    largest = torch.from_numpy(np.load(beside, allow_pickle=False))
    return replace(predictions, scores=scores.double() + largest.double())


def needs_whole(text: str) -> bool:
    """Return whether a calibrator depends on the largest logit of a row."""
    return calibrator_text.parse(text)[0] in ("class_temperature", "parameterized_temperature")


def is_whole(path: Path) -> bool:
    """Return whether `read_whole` gives the logits themselves; earlier versions kept less."""
    if largest_path(path).is_file():
        return True
    return torch.as_tensor(Predictions.read(path).array).dtype != torch.float16
