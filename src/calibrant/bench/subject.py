"""A run being measured: its predictions, calibrators fitted on them, its network; each once."""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import torch
from torch import nn

from calibrant.bench import texts
from calibrant.bench.halving import is_whole, needs_whole, whole
from calibrant.bench.judging import Figure, changed, counted, figures, told
from calibrant.bench.loading import splits_of
from calibrant.bench.network import Trained, rebuild
from calibrant.calibrators.base import Calibrator, to_logits
from calibrant.calibrators.rank import apply
from calibrant.data.value import Images, Splits
from calibrant.functional.errors import InputError
from calibrant.predictions import Predictions
from calibrant.training.config import Config
from calibrant.training.family import mean_prediction
from calibrant.training.run import PARTS, Run

FEW = 3  # numbers of a fitted calibrator that are told; more are no parameters to look at


class FilesGone(InputError):
    """What a measurement needs was not kept of its run, which has to be made again."""


@dataclass(frozen=True)
class Fit:
    """A fitted calibrator, and how the fit went."""

    calibrator: Calibrator
    seconds: float
    warned: int  # times it warned

    def parameters(self) -> dict[str, float]:
        """The few numbers that say what was fitted, and what was settled on the way."""
        found: dict[str, float] = {}
        for name, value in self.calibrator.state_dict().items():
            if name == "num_classes_" or not 0 < value.numel() <= FEW:
                continue
            short = name.rstrip("_")
            numbers = value.double().reshape(-1).tolist()
            places = [""] if value.numel() == 1 else [f"[{k}]" for k in range(len(numbers))]
            found |= {f"{short}{at}": one for at, one in zip(places, numbers, strict=True)}
        facts = getattr(self.calibrator, "facts_", {})
        return {f"parameter:{name}": float(one) for name, one in {**found, **facts}.items()}


@dataclass(frozen=True)
class Head:
    """The head a second stage made, for the features of its network."""

    module: nn.Module
    network: Trained
    seconds: float
    told: dict[str, float]
    fits: dict[str, Fit] = field(default_factory=dict)  # calibrators on top of it


class Parts:
    """Parts of something that made predictions, and calibrators fitted on them, each once."""

    def __init__(self) -> None:
        self._said: dict[str, Predictions] = {}
        self._fits: dict[str, Fit] = {}

    @property
    def parts(self) -> tuple[str, ...]:
        """The parts there are."""
        raise NotImplementedError

    def read(self, part: str) -> Predictions:
        """A part's predictions, from where they are."""
        raise NotImplementedError

    def said(self, part: str) -> Predictions:
        """What was said of a part: logits, in memory."""
        if part not in self.parts:
            raise InputError(f"there are no {part} rows, only {', '.join(self.parts)}")
        if part not in self._said:
            self._said[part] = as_logits(self.read(part))
        return self._said[part]

    @property
    def is_dense(self) -> bool:
        """Whether every pixel has a label."""
        return self.said(self.parts[-1]).is_dense

    def allows(self, text: str) -> None:
        """An error where a calibrator needs more than there is of the predictions."""

    def fit(self, text: str) -> Fit:
        """A calibrator fitted on validation rows, or those ``on=`` says."""
        self.allows(text)
        if text not in self._fits:
            self._fits[text] = fit(text, self.said(texts.fitted_on(text)))
        return self._fits[text]

    def calibrated(self, text: str, predictions: Predictions) -> Predictions:
        """Predictions after a calibrator, ``none`` among them."""
        return predictions if text == "none" else apply(self.fit(text).calibrator, predictions)


class Subject(Parts):
    """Everything that is measured of one run."""

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
        """Its images."""
        return self._data if self._data is not None else splits_of(self.config)

    @property
    def parts(self) -> tuple[str, ...]:
        """The parts it predicted."""
        return tuple(part for part in PARTS if f"{part}_nll" in self._figures)

    @cached_property
    def _figures(self) -> dict[str, float]:
        found: dict[str, float] = self.run.outcome["figures"]
        return found

    def read(self, part: str) -> Predictions:
        """From the run's folder."""
        path = self.run.folder / "predictions" / f"{part}.safetensors"
        if not path.is_file():
            raise FilesGone(f"{self.run.folder}: its predictions of {part} rows were not kept")
        return whole(path)

    def allows(self, text: str) -> None:
        """`FilesGone` where the largest logits it needs were not kept with the others."""
        if needs_whole(text):
            for part in self.parts:
                path = self.run.folder / "predictions" / f"{part}.safetensors"
                if path.is_file() and not is_whole(path):
                    raise FilesGone(f"{path}: kept without the largest logits, which {text} needs")

    def networks(self, precision: str = "fp32") -> list[Trained]:
        """The trained networks, mostly one."""
        if precision not in self._networks:
            try:
                found = rebuild(self.run, self.data, device=self.device, precision=precision)
            except FileNotFoundError as error:
                raise FilesGone(f"{self.run.folder}: its weights were not kept ({error})") from None
            self._networks[precision] = found
        return self._networks[precision]

    def network(self, precision: str = "fp32") -> Trained:
        """The trained network, where there is one."""
        found = self.networks(precision)
        if len(found) > 1:
            raise InputError("several networks answer together: there is no one to look into")
        return found[0]

    def answers(self, images: Images, precision: str = "fp32") -> Predictions:
        """What the run's network says of any images."""
        return mean_of([one.predict(images) for one in self.networks(precision)], images)


def mean_of(answers: Sequence[tuple[Any, Any]], images: Images) -> Predictions:
    """Logits and labels as predictions, on the CPU: the mean softmax where there are several."""
    said = [
        Predictions.from_logits(
            logits.cpu(),
            labels.cpu(),
            class_names=images.class_names,
            ignore_index=images.ignore_index if images.is_dense else None,
            name=images.name,
        )
        for logits, labels in answers
    ]
    return said[0] if len(said) == 1 else mean_prediction(said)


def as_logits(predictions: Predictions) -> Predictions:
    """(N,K) logits as torch tensors, at least single precision.

    Probabilities become ln p after flooring at 1e-12 and renormalising (methods.md), and a
    binary score s the logits (0, s).
    """
    found = predictions.in_memory()
    scores = torch.as_tensor(found.array)
    if scores.dtype in (torch.float16, torch.bfloat16):
        scores = scores.float()
    if not found.is_logits:
        scores = to_logits(scores.double())
    if found.is_binary:
        scores = torch.stack((torch.zeros_like(scores), scores), dim=1)
    labels = torch.as_tensor(found.labels)
    return replace(found, scores=scores, labels=labels, is_logits=True)


def fit(text: str, predictions: Predictions) -> Fit:
    """A calibrator fitted on predictions, with the seconds that took."""
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        made = texts.make(text)
        if made.takes_features:
            raise InputError(f"{made.name} is no calibrator of logits: put it under after")
        begun = time.perf_counter()
        made.fit(predictions.array, predictions.labels, ignore_index=predictions.ignore_index)
        seconds = time.perf_counter() - begun
    return Fit(made, seconds, len(said))


def judged(subject: Parts) -> dict[str, Predictions]:
    """What a calibrator is judged on."""
    return {part: subject.said(part) for part in ("validation", "test") if part in subject.parts}


def calibrated_figures(name: str, made: Fit, parts: Mapping[str, Predictions]) -> Iterator[Figure]:
    """Figures of some parts after a calibrator, and what it fitted."""
    for part, before in parts.items():
        after = apply(made.calibrator, before)
        values = figures(after)
        values["changed"] = float(changed(before, after))
        if part == "validation":
            values |= made.parameters() | ({"warnings": made.warned} if made.warned else {})
        yield from told(part, name, values, seconds=made.seconds, rows=counted(before))
