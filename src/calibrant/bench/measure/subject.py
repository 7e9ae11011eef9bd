"""A run to measure: its predictions, network and calibrators, each made once."""

from __future__ import annotations

import json
import time
import warnings
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import nn

from calibrant.bench import calibrator_text
from calibrant.bench.measure.measurement import (
    Measurement,
    count_changed,
    measure_part,
)
from calibrant.bench.measure.network import Trained, rebuild
from calibrant.bench.store.half_precision import is_whole, needs_whole, read_whole
from calibrant.calibrators.base import Calibrator, to_logits
from calibrant.calibrators.rank import apply
from calibrant.core.errors import InputError
from calibrant.data.images import Images, Splits
from calibrant.predictions import Predictions
from calibrant.training.config import Config
from calibrant.training.members import mean_prediction
from calibrant.training.run import PARTS, Run
from calibrant.training.setup import load_data

FEW = 3  # fitted buffers and parameters up to this size are stored
KEPT = 3  # data sets that a process keeps in memory, the latest used
_loaded: OrderedDict[tuple[Any, ...], Splits] = OrderedDict()


class FilesGone(InputError):
    """A measurement needs files that were not kept; the run must be made again."""


def splits_of(config: Config) -> Splits:
    """Return the data of a run's settings, from memory if an earlier run loaded the same."""
    key = (
        config.data,
        config.data_folder,
        config.download,
        config.size,
        config.validation,
        config.split_seed,
        config.long_tail,
    )
    if key not in _loaded:
        while len(_loaded) >= KEPT:
            _loaded.popitem(last=False)
        _loaded[key] = load_data(config)
    _loaded.move_to_end(key)
    return _loaded[key]


@dataclass(frozen=True)
class Fit:
    """A fitted calibrator, and how the fit went."""

    calibrator: Calibrator
    seconds: float
    warned: int  # number of warnings

    def parameters(self) -> dict[str, float]:
        """Return small fitted values, and facts about the fit."""
        values: dict[str, float] = {}
        for name, tensor in self.calibrator.state_dict().items():
            if name == "num_classes_" or not 0 < tensor.numel() <= FEW:
                continue
            short = name.rstrip("_")
            numbers = tensor.double().reshape(-1).tolist()
            places = [""] if tensor.numel() == 1 else [f"[{k}]" for k in range(len(numbers))]
            values |= {f"{short}{at}": value for at, value in zip(places, numbers, strict=True)}
        facts = getattr(self.calibrator, "facts_", {})
        return {f"parameter:{name}": float(value) for name, value in {**values, **facts}.items()}


@dataclass(frozen=True)
class Head:
    """The head that a second stage made on the features of a network."""

    module: nn.Module
    network: Trained
    seconds: float
    facts: dict[str, float]
    fits: dict[str, Fit] = field(default_factory=dict)  # calibrators on top of it


class Parts:
    """Predictions of several parts, and calibrators fitted on them, each made once."""

    def __init__(self) -> None:
        self._predictions: dict[str, Predictions] = {}
        self._fits: dict[str, Fit] = {}

    @property
    def parts(self) -> tuple[str, ...]:
        """The names of the parts."""
        raise NotImplementedError

    def read(self, part: str) -> Predictions:
        """Read the predictions of a part."""
        raise NotImplementedError

    def predictions(self, part: str) -> Predictions:
        """Return the predictions of a part as logits in memory."""
        if part not in self.parts:
            raise InputError(f"there are no {part} rows, only {', '.join(self.parts)}")
        if part not in self._predictions:
            self._predictions[part] = as_logits(self.read(part))
        return self._predictions[part]

    @property
    def is_dense(self) -> bool:
        """Whether every pixel has a label."""
        return self.predictions(self.parts[-1]).is_dense

    def check_calibrator(self, text: str) -> None:
        """Raise an error if a calibrator needs more than is known of the predictions."""

    def fit(self, text: str) -> Fit:
        """Fit a calibrator on validation rows, or on the rows that its ``on=`` names."""
        self.check_calibrator(text)
        if text not in self._fits:
            self._fits[text] = fit(text, self.predictions(calibrator_text.fitting_part(text)))
        return self._fits[text]

    def calibrate(self, text: str, predictions: Predictions) -> Predictions:
        """Apply a calibrator to predictions; ``none`` leaves them as they are."""
        return predictions if text == "none" else apply(self.fit(text).calibrator, predictions)

    def judged_parts(self) -> dict[str, Predictions]:
        """Return the parts that calibrators are judged on."""
        names = [part for part in ("validation", "test") if part in self.parts]
        return {part: self.predictions(part) for part in names}


class Subject(Parts):
    """A run to measure."""

    def __init__(self, run: Run, *, data: Splits | None = None, device: str | None = None) -> None:
        super().__init__()
        self.run, self.device = run, device
        self._data = data
        self._networks: dict[str, list[Trained]] = {}
        self.heads: dict[str, Head] = {}

    @cached_property
    def config(self) -> Config:
        """The run's settings."""
        return self.run.config

    @cached_property
    def data(self) -> Splits:
        """The run's images."""
        return self._data if self._data is not None else splits_of(self.config)

    @cached_property
    def parts(self) -> tuple[str, ...]:
        """The parts that the run predicted."""
        figures = self.run.outcome["figures"]
        return tuple(part for part in PARTS if f"{part}_nll" in figures)

    def read(self, part: str) -> Predictions:
        """Read the predictions of a part from the run's folder."""
        path = self._path(part)
        if not path.is_file():
            raise FilesGone(f"{self.run.folder}: its predictions of {part} rows were not kept")
        return read_whole(path)

    def check_calibrator(self, text: str) -> None:
        """Raise `FilesGone` if a calibrator needs the largest logits, and they were not kept."""
        if needs_whole(text):
            for path in map(self._path, self.parts):
                if path.is_file() and not is_whole(path):
                    raise FilesGone(f"{path}: kept without the largest logits, which {text} needs")

    def networks(self, precision: str = "fp32") -> list[Trained]:
        """Rebuild the trained networks; most runs have a single network."""
        if precision not in self._networks:
            try:
                networks = rebuild(self.run, self.data, device=self.device, precision=precision)
            except FileNotFoundError as error:
                raise FilesGone(f"{self.run.folder}: its weights were not kept ({error})") from None
            self._networks[precision] = networks
        return self._networks[precision]

    def network(self, precision: str = "fp32") -> Trained:
        """Rebuild the trained network; raise an error if there are several."""
        networks = self.networks(precision)
        if len(networks) > 1:
            raise InputError(
                "the run has several networks, and features are those of a single network"
            )
        return networks[0]

    def predict(self, images: Images, precision: str = "fp32") -> Predictions:
        """Predict any images with the run's network."""
        outputs = [network.predict(images) for network in self.networks(precision)]
        return average_outputs(outputs, images)

    def _path(self, part: str) -> Path:
        return self.run.folder / "predictions" / f"{part}.safetensors"


class Validation:
    """A run's settings and validation rows, for code that chooses among runs.

    No other file is read: a run whose test predictions are missing looks the same. Test figures
    in the run's outcome are left out by name.
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
        """The predictions of validation rows."""
        path = self._folder / "predictions" / "validation.safetensors"
        if not path.is_file() and "nll" in self.figures:
            raise FilesGone(f"{self._folder}: its predictions of validation rows were not kept")
        return as_logits(read_whole(path))

    @property
    def figures(self) -> dict[str, float]:
        """Validation figures of the reported epoch, by metric."""
        figures = json.loads((self._folder / "run.json").read_text(encoding="utf-8"))["figures"]
        return {
            name.removeprefix("validation_"): float(value)
            for name, value in figures.items()
            if name.startswith("validation_")
        }

    @property
    def epochs(self) -> list[dict[str, Any]]:
        """A line for each epoch, which has training and validation figures only."""
        return Run(self._folder).metrics


def average_outputs(outputs: Sequence[tuple[Any, Any]], images: Images) -> Predictions:
    """Return predictions on the CPU; of several networks, the mean softmax."""
    predictions = [
        Predictions.from_logits(
            logits.cpu(),
            labels.cpu(),
            class_names=images.class_names,
            ignore_index=images.ignore_index if images.is_dense else None,
            name=images.name,
        )
        for logits, labels in outputs
    ]
    return predictions[0] if len(predictions) == 1 else mean_prediction(predictions)


def as_logits(predictions: Predictions) -> Predictions:
    """Return (N,K) logits as torch tensors of at least single precision.

    Probabilities become ln p after flooring at 1e-12 and renormalising (docs/decisions.md), and a
    binary score s becomes the logits (0, s).
    """
    loaded = predictions.in_memory()
    scores = torch.as_tensor(loaded.array)
    if scores.dtype in (torch.float16, torch.bfloat16):
        scores = scores.float()
    if not loaded.is_logits:
        scores = to_logits(scores.double())
    if loaded.is_binary:
        scores = torch.stack((torch.zeros_like(scores), scores), dim=1)
    labels = torch.as_tensor(loaded.labels)
    return replace(loaded, scores=scores, labels=labels, is_logits=True)


def fit(text: str, predictions: Predictions) -> Fit:
    """Fit a calibrator on predictions, and time it."""
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        calibrator = calibrator_text.make(text)
        if calibrator.takes_features:
            raise InputError(f"{calibrator.name} takes features, not logits: put it under after")
        begun = time.perf_counter()
        calibrator.fit(
            predictions.array, predictions.known_labels, ignore_index=predictions.ignore_index
        )
        seconds = time.perf_counter() - begun
    return Fit(calibrator, seconds, len(warned))


def measure_calibrated(
    name: str, fitted: Fit, parts: Mapping[str, Predictions]
) -> Iterator[Measurement]:
    """Measure parts after a calibrator, and what was fitted."""
    for part, before in parts.items():
        after = apply(fitted.calibrator, before)
        figures = {"changed": float(count_changed(before, after))}
        if part == "validation":
            figures |= fitted.parameters()
            figures |= {"warnings": float(fitted.warned)} if fitted.warned else {}
        yield from measure_part(part, name, after, seconds=fitted.seconds, figures=figures)
