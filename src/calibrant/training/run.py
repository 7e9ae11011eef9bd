"""A run is a folder: settings, environment, metrics, checkpoints, predictions, figures."""

from __future__ import annotations

import json
import platform
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from calibrant._version import __version__
from calibrant.functional.errors import InputError
from calibrant.predictions import Predictions
from calibrant.training.checkpoint import write_whole
from calibrant.training.config import Config

PARTS = ("train", "validation", "test")


@dataclass(frozen=True)
class Run:
    """A finished or unfinished run, read from its folder."""

    folder: Path

    @property
    def config(self) -> Config:
        """Its settings."""
        return Config.read(self.folder / "config.yaml")

    @property
    def is_done(self) -> bool:
        """Whether it ended."""
        return (self.folder / "run.json").is_file()

    @property
    def outcome(self) -> dict[str, Any]:
        """What ``run.json`` holds: the epoch reported, by which rule, and the figures."""
        if not self.is_done:
            raise InputError(f"{self.folder}: the run has not ended; train it again to go on")
        found: dict[str, Any] = json.loads((self.folder / "run.json").read_text(encoding="utf-8"))
        return found

    @property
    def metrics(self) -> list[dict[str, Any]]:
        """A line an epoch."""
        path = self.folder / "metrics.jsonl"
        if not path.is_file():
            return []
        return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]

    def predictions(self, part: str) -> Predictions:
        """What the network says of a part: train (unaugmented), validation or test."""
        if part not in PARTS:
            raise InputError(f"a run's parts are {', '.join(PARTS)}, found {part!r}")
        return Predictions.read(self.folder / "predictions" / f"{part}.safetensors")

    def weights(self) -> dict[str, Tensor]:
        """The reported weights: ``network.*``, and of recipe and loss ``recipe.*``, ``loss.*``."""
        from safetensors.torch import load_file

        path = self.folder / "weights.safetensors"
        if not path.is_file() and (self.folder / "members").is_dir():
            raise InputError(f"{self.folder} is several runs in one: see its folder members")
        return load_file(path)


def begin(folder: Path, config: Config, several: Any = None) -> Run:
    """Make the folder, or take up the one of the same settings.

    Of ``several`` processes the first makes it; what it refuses, all do.
    """
    if several is None:
        _begin(folder, config)
        return Run(folder)
    refused = None
    if several.is_global_zero:
        try:
            _begin(folder, config)
        except InputError as error:
            refused = str(error)
    refused = several.broadcast(refused)
    if refused is not None:
        raise InputError(refused)
    return Run(folder)


def _begin(folder: Path, config: Config) -> None:
    path = folder / "config.yaml"
    if path.is_file():
        before = Config.read(path)
        if before != config and not _has_work(folder):
            write_whole(path, config.to_yaml().encode())  # it failed before there was any
        elif before != config:
            changed = [
                f"{key}: {value!r} there, {config.to_dict()[key]!r} now"
                for key, value in before.to_dict().items()
                if config.to_dict()[key] != value
            ]
            raise InputError(
                f"{folder} holds a run of other settings ({'; '.join(changed)}): choose another "
                "folder, or delete that one"
            )
    else:
        # A file half written by a run that was killed is no one's.
        if folder.exists() and not all(one.name.startswith(".") for one in folder.iterdir()):
            raise InputError(f"{folder} holds files that are no run: choose another folder")
        folder.mkdir(parents=True, exist_ok=True)
        write_whole(path, config.to_yaml().encode())
    if not (folder / "run.json").is_file():
        _note_environment(folder / "environment.json")


def _note_environment(path: Path) -> None:
    """Where the run began, and under ``resumed`` where else it was taken up."""
    now = environment()
    told = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else dict(now)
    begun = {key: value for key, value in told.items() if key != "resumed"}
    if path.is_file() and now in (begun, *told.get("resumed", [])):
        return
    if now != begun:
        told["resumed"] = [*told.get("resumed", []), now]
    write_whole(path, json.dumps(told, indent=1).encode())


def _has_work(folder: Path) -> bool:
    kept = ("run.json", "members", "checkpoint/*.json")
    return any(True for pattern in kept for _ in folder.glob(pattern))


def environment() -> dict[str, Any]:
    """What else may decide a run's digits."""
    import numpy

    found: dict[str, Any] = {
        "calibrant": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": numpy.__version__,
        "system": platform.system(),
        "machine": platform.machine(),
        "threads": torch.get_num_threads(),
        "command": Path(sys.argv[0]).name,
    }
    if torch.cuda.is_available():
        found["cuda"] = torch.version.cuda
        found["gpu"] = torch.cuda.get_device_name()
        found["cudnn"] = torch.backends.cudnn.version()  # type: ignore[no-untyped-call]
    return found


def write_metrics(run: Run, lines: list[dict[str, Any]]) -> None:
    """All the epochs' lines so far, whole."""
    text = "".join(json.dumps(line) + "\n" for line in lines)
    write_whole(run.folder / "metrics.jsonl", text.encode())
