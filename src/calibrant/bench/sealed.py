"""Choosing without looking: what selection code may see of a run, and choices that stand."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from calibrant.bench.halving import whole
from calibrant.bench.subject import FilesGone, as_logits
from calibrant.functional.errors import InputError
from calibrant.predictions import Predictions
from calibrant.training.checkpoint import write_whole
from calibrant.training.config import Config
from calibrant.training.run import Run


class Validation:
    """A run as selection code sees it: its settings and its validation rows, and no more.

    It reads those files alone: a run whose test predictions are missing, or sealed, looks the
    same. Figures of test rows in the run's outcome are left out by name.
    """

    __slots__ = ("_folder",)

    def __init__(self, run: Run) -> None:
        self._folder = Path(run.folder)

    @property
    def config(self) -> Config:
        """The run's settings."""
        return Config.read(self._folder / "config.yaml")

    @property
    def predictions(self) -> Predictions:
        """What the network says of validation rows."""
        path = self._folder / "predictions" / "validation.safetensors"
        if not path.is_file() and "nll" in self.figures:
            raise FilesGone(f"{self._folder}: its predictions of validation rows were not kept")
        return as_logits(whole(path))

    @property
    def figures(self) -> dict[str, float]:
        """Validation figures of the epoch reported, by metric."""
        told = json.loads((self._folder / "run.json").read_text(encoding="utf-8"))["figures"]
        return {
            name.removeprefix("validation_"): float(value)
            for name, value in told.items()
            if name.startswith("validation_")
        }

    @property
    def epochs(self) -> list[dict[str, Any]]:
        """The epochs' lines, which know training and validation rows alone."""
        return Run(self._folder).metrics


def write_choice(path: str | os.PathLike[str], choice: dict[str, Any]) -> Path:
    """Write a choice down; one that is there already may not be changed."""
    target = Path(path)
    text = json.dumps(choice, indent=1, sort_keys=True)
    whole = target.with_name(f".{target.name}.{os.getpid()}")
    write_whole(whole, text.encode())
    try:
        os.link(whole, target)  # unlike a rename, this never takes another's place
    except FileExistsError:
        if _read(target) != json.loads(text):
            raise InputError(f"{target} holds another choice, made before: it stands") from None
    finally:
        whole.unlink()
    return target


def _read(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, json.JSONDecodeError):
        return None
