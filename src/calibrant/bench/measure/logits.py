"""Files of logits in the place of trainings: rows to fit on, and rows to judge.

One file is split into two halves by seed. Two files, one for each part, are taken as they are.
"""

from __future__ import annotations

import zipfile
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch

from calibrant.bench.measure.measurement import Measurement, measure_part
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


class Pair(Parts):
    """Two files of predictions: ``validation`` is fitted on, ``test`` is judged."""

    def __init__(self, validation: Path, test: Path) -> None:
        super().__init__()
        self.paths = {"validation": validation, "test": test}

    @property
    def parts(self) -> tuple[str, ...]:
        """The names of the parts."""
        return tuple(self.paths)

    def read(self, part: str) -> Predictions:
        """Read the file of a part."""
        return read_part(self.paths[part], part)


def read_part(path: Path, part: str) -> Predictions:
    """Read the predictions of a part from a file.

    Args:
        path: A file that `Predictions.read` takes, or an ``.npz`` of several parts, with arrays
            named ``PART_logits`` and ``PART_labels``.
        part: ``"validation"`` or ``"test"``.
    """
    if path.suffix == ".npz" and zipfile.is_zipfile(path):
        with np.load(path, allow_pickle=False) as archive:
            names = [f"{part}_logits", f"{part}_labels"]
            missing = [name for name in names if name not in archive.files]
            if not missing:
                logits, labels = (archive[name] for name in names)
                return Predictions.from_logits(logits, labels, name=f"{path.stem} {part}")
            if "labels" not in archive.files:
                raise InputError(
                    f"{path}: holds neither logits and labels nor {' and '.join(names)}; "
                    f"found {', '.join(archive.files)}"
                )
    return Predictions.read(path)


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


def parts_of(spec: Spec) -> Halves | Pair:
    """Return the parts of a run's file or files; one file is split by the run's seed."""
    assert spec.logits is not None
    folder = spec.config.data_folder
    if isinstance(spec.logits, tuple):
        validation, test = (find_logits(name, folder) for name in spec.logits)
        return Pair(validation, test)
    return Halves(find_logits(spec.logits, folder), spec.config.seed)


def measure_parts(parts: Halves | Pair) -> Iterator[Measurement]:
    """Measure both parts before any calibrator.

    Where the true class has probability 0 the NLL is infinite: metric ``impossible`` counts
    those rows.
    """
    for part in parts.parts:
        raw = parts.read(part)
        predictions = parts.predictions(part) if raw.is_logits else raw
        further = {}
        if not predictions.is_logits and not predictions.is_binary:
            labels = torch.as_tensor(predictions.labels).long().unsqueeze(1)
            true = torch.as_tensor(predictions.array).gather(1, labels)
            further["impossible"] = float((true == 0).sum())
        yield from measure_part(part, "none", predictions, figures=further)
