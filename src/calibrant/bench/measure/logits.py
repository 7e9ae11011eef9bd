"""Files of logits in the place of trainings: two halves by seed, one to fit on, one to judge."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

import torch

from calibrant.bench.measure.measurement import (
    Measurement,
    compute_metrics,
    count_rows,
    make_measurements,
)
from calibrant.bench.measure.subject import Parts
from calibrant.bench.suite.spec import Spec
from calibrant.core.errors import InputError
from calibrant.data.packs import data_folder
from calibrant.predictions import Predictions

SHARE = 0.5  # of the rows of each class are fitted on


class Halves(Parts):
    """A file of predictions in two halves: ``validation`` is fitted on, ``test`` is judged."""

    def __init__(self, path: Path, seed: int) -> None:
        super().__init__()
        self.path, self.seed = path, seed

    @property
    def parts(self) -> tuple[str, ...]:
        """The names of the halves."""
        return ("validation", "test")

    def read(self, part: str) -> Predictions:
        """Read one of the halves."""
        return _split(self.path, self.seed)[self.parts.index(part)]


@lru_cache(maxsize=2)
def _split(path: Path, seed: int) -> tuple[Predictions, Predictions]:
    return Predictions.read(path).split(SHARE, seed=seed)


def find_logits(name: str, folder: str | None = None) -> Path:
    """Find a file of logits: a path, a path below the data folder, or a name in ``logits``."""
    where = data_folder(folder)
    places = [Path(name).expanduser()]
    if where is not None:
        places += [where / name, where / "logits" / name, where / "logits" / f"{name}.npz"]
    for path in places:
        if path.is_file():
            return path
    raise InputError(
        f"no file of logits {name!r}: set data_folder, or CALIBRANT_DATA, to the folder it is in"
    )


def halves_of(spec: Spec) -> Halves:
    """Return the halves of a run's file, by its seed."""
    assert spec.logits is not None
    return Halves(find_logits(spec.logits, spec.config.data_folder), spec.config.seed)


def measure_halves(halves: Halves) -> Iterator[Measurement]:
    """Measure both halves before any calibrator.

    Where the true class has probability 0 the NLL is infinite: metric ``impossible`` counts
    those rows.
    """
    for part in halves.parts:
        raw = halves.read(part)
        predictions = halves.predictions(part) if raw.is_logits else raw
        values = compute_metrics(predictions)
        if not predictions.is_logits and not predictions.is_binary:
            labels = torch.as_tensor(predictions.labels).long().unsqueeze(1)
            true = torch.as_tensor(predictions.array).gather(1, labels)
            values["impossible"] = float((true == 0).sum())
        yield from make_measurements(part, "none", values, rows=count_rows(predictions))
