"""Files of logits in the place of trainings: seeded halves, one to fit on, one to judge on."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

import torch

from calibrant.bench.judging import Figure, counted, figures, told
from calibrant.bench.spec import Spec
from calibrant.bench.subject import Parts
from calibrant.data.packs import data_folder
from calibrant.functional.errors import InputError
from calibrant.predictions import Predictions

SHARE = 0.5  # of the rows, by class, are fitted on


class Halves(Parts):
    """A file of predictions in halves, by seed: ``validation`` is fitted on, ``test`` judged."""

    def __init__(self, path: Path, seed: int) -> None:
        super().__init__()
        self.path, self.seed = path, seed

    @property
    def parts(self) -> tuple[str, ...]:
        """The half that is fitted on, and the other."""
        return ("validation", "test")

    def read(self, part: str) -> Predictions:
        """One of the halves."""
        return _halves(self.path, self.seed)[self.parts.index(part)]


@lru_cache(maxsize=2)
def _halves(path: Path, seed: int) -> tuple[Predictions, Predictions]:
    return Predictions.read(path).split(SHARE, seed=seed)


def file_of(name: str, folder: str | None = None) -> Path:
    """A file of logits: a path, or one below the data folder, or a name in its ``logits``."""
    where = data_folder(folder)
    tried = [Path(name).expanduser()]
    if where is not None:
        tried += [where / name, where / "logits" / name, where / "logits" / f"{name}.npz"]
    for path in tried:
        if path.is_file():
            return path
    raise InputError(
        f"no file of logits {name!r}: set data_folder, or CALIBRANT_DATA, to the folder it is in"
    )


def halves_of(spec: Spec) -> Halves:
    """The halves of a run's file, by its seed."""
    assert spec.logits is not None
    return Halves(file_of(spec.logits, spec.config.data_folder), spec.config.seed)


def uncalibrated_halves(halves: Halves) -> Iterator[Figure]:
    """Figures of both halves as they are, of probabilities also those that allow no label.

    Where the true class was given 0 the negative log-likelihood is infinite: the number of
    such rows is metric ``impossible``.
    """
    for part in halves.parts:
        raw = halves.read(part)
        said = halves.said(part) if raw.is_logits else raw
        values = figures(said)
        if not said.is_logits and not said.is_binary:
            labels = torch.as_tensor(said.labels).long().unsqueeze(1)
            true = torch.as_tensor(said.array).gather(1, labels)
            values["impossible"] = float((true == 0).sum())
        yield from told(part, "none", values, rows=counted(said))
