"""A run as a folder: settings, environment, metrics, checkpoints, predictions, figures."""

from __future__ import annotations

import json
import platform
import sys
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from calibrant._version import __version__
from calibrant.core.errors import InputError
from calibrant.core.files import hold_lock, write_file
from calibrant.predictions import Predictions
from calibrant.training.config import Config

PARTS = ("train", "validation", "test")
FIGURES = ("accuracy", "nll", "ece")  # metrics of every part, in run.json and metrics.jsonl


@dataclass(frozen=True)
class Run:
    """A finished or unfinished run, read from its folder.

    Args:
        folder: The folder that `train` wrote.
    """

    folder: Path

    @property
    def config(self) -> Config:
        """Return the settings of the run."""
        return Config.read(self.folder / "config.yaml")

    @property
    def is_done(self) -> bool:
        """Return whether the run is finished."""
        return (self.folder / "run.json").is_file()

    @property
    def outcome(self) -> dict[str, Any]:
        """Return the content of ``run.json``: the epoch reported, the rule, and the figures."""
        if not self.is_done:
            raise InputError(f"{self.folder}: the run is not finished: train it again to resume it")
        content: dict[str, Any] = json.loads((self.folder / "run.json").read_text(encoding="utf-8"))
        return content

    @property
    def metrics(self) -> list[dict[str, Any]]:
        """Return the metrics of each epoch."""
        path = self.folder / "metrics.jsonl"
        if not path.is_file():
            return []
        return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]

    def predictions(self, part: str) -> Predictions:
        """Read the predictions of a part: ``train`` (unaugmented), ``validation`` or ``test``."""
        if part not in PARTS:
            raise InputError(f"part must be one of {', '.join(PARTS)}, found {part!r}")
        return Predictions.read(self.folder / "predictions" / f"{part}.safetensors")

    def weights(self) -> dict[str, Tensor]:
        """Read the reported weights: ``network.*``, ``recipe.*`` and ``loss.*``."""
        from safetensors.torch import load_file

        path = self.folder / "weights.safetensors"
        if not path.is_file() and (self.folder / "members").is_dir():
            raise InputError(
                f"{self.folder} combines several runs: read those in its members folder"
            )
        return load_file(path)


@contextmanager
def open_run(folder: Path, config: Config, fabric: Any = None) -> Iterator[Run]:
    """Create the folder of a run, or resume the one of the same settings, and keep others out.

    Args:
        folder: The folder.
        config: The settings; a folder of other settings is refused, and so is one in which
            another process trains.
        fabric: Lightning's Fabric if there are several processes. The first one creates the
            folder; if it refuses, all do.
    """
    with ExitStack() as stack:
        if fabric is None:
            stack.enter_context(_hold_folder(folder, config))
        else:
            refusal = None
            if fabric.is_global_zero:
                try:
                    stack.enter_context(_hold_folder(folder, config))
                except InputError as error:
                    refusal = str(error)
            refusal = fabric.broadcast(refusal)
            if refusal is not None:
                raise InputError(refusal)
        yield Run(folder)


@contextmanager
def _hold_folder(folder: Path, config: Config) -> Iterator[None]:
    """Prepare the folder of a run and hold its lock, which ends with the process."""
    if not (folder / "config.yaml").is_file():
        _refuse_strange(folder)  # nothing is written into a folder that is not a run's
    with ExitStack() as stack:
        if not (folder / "run.json").is_file():  # a finished run is only read
            try:
                ours = stack.enter_context(hold_lock(folder / ".train.lock", purpose="training"))
            except OSError as error:
                ours = True
                warnings.warn(
                    f"{folder} cannot be locked ({error.strerror or error}): see that nothing else "
                    "trains in it",
                    stacklevel=6,
                )
            if not ours:
                raise InputError(
                    f"{folder}: another process trains in this folder: wait for it, or choose "
                    "another folder"
                )
        _prepare_folder(folder, config)
        yield


def _refuse_strange(folder: Path) -> None:
    # Ignore files that a killed run left half written.
    if folder.exists() and not all(path.name.startswith(".") for path in folder.iterdir()):
        raise InputError(f"{folder} holds files, but not a run: choose another folder")


def _prepare_folder(folder: Path, config: Config) -> None:
    path = folder / "config.yaml"
    if path.is_file():
        before = Config.read(path)
        if before != config and not _has_work(folder):
            write_file(path, config.to_yaml().encode())  # it failed before its first checkpoint
        elif before != config:
            changed = [
                f"{key}: {value!r} there, {config.to_dict()[key]!r} now"
                for key, value in before.to_dict().items()
                if config.to_dict()[key] != value
            ]
            raise InputError(
                f"{folder} holds a run with other settings ({'; '.join(changed)}): choose another "
                "folder, or delete that one"
            )
    else:
        _refuse_strange(folder)
        folder.mkdir(parents=True, exist_ok=True)
        write_file(path, config.to_yaml().encode())
    if not (folder / "run.json").is_file():
        _record_environment(folder / "environment.json")


def _record_environment(path: Path) -> None:
    """Record the environment of the run, and under ``resumed`` others that resumed it."""
    now = environment()
    record = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else dict(now)
    original = {key: value for key, value in record.items() if key != "resumed"}
    if path.is_file() and now in (original, *record.get("resumed", [])):
        return
    if now != original:
        record["resumed"] = [*record.get("resumed", []), now]
    write_file(path, json.dumps(record, indent=1).encode())


def _has_work(folder: Path) -> bool:
    patterns = ("run.json", "members", "checkpoint/*.json")
    return any(True for pattern in patterns for _ in folder.glob(pattern))


def environment() -> dict[str, Any]:
    """Return versions and hardware that may change the last digits of a run."""
    import numpy

    record: dict[str, Any] = {
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
        record["cuda"] = torch.version.cuda
        record["gpu"] = torch.cuda.get_device_name()
        record["cudnn"] = torch.backends.cudnn.version()  # type: ignore[no-untyped-call]
    return record


def write_metrics(run: Run, lines: list[dict[str, Any]]) -> None:
    """Write the metrics of all epochs so far, as one whole file."""
    text = "".join(json.dumps(line) + "\n" for line in lines)
    write_file(run.folder / "metrics.jsonl", text.encode())
