"""The base class of calibrators: logits in, better logits out, fitted values in buffers."""

from __future__ import annotations

import inspect
import os
import warnings
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import torch
from torch import Tensor, nn

from calibrant.core.errors import InputError
from calibrant.core.registry import resolve
from calibrant.functional.arrays import Array, row_slices, rows_per_block, to_tensor
from calibrant.functional.blocks import warn_of_probabilities
from calibrant.metrics.base import compute_all
from calibrant.metrics.means import accuracy_measure, nll_measure

C = TypeVar("C", bound="Calibrator")

FLOOR = 1e-12  # least probability, where probabilities are given in place of logits
MOST_CLASSES = 2000  # for methods with K² parameters
COSTLY = 1.01  # a fit that multiplies the loss of its own rows by more than this warns


class Calibrator(nn.Module):
    """A map from logits to logits, fitted on held-out rows.

    Subclasses give ``_fit(logits, target)``, which sets buffers from (N,K) logits and (N,)
    labels, and ``_map(logits)``, which maps (N,K) to (N,K) with tensor operations alone, so
    that a calibrator moves, exports and stacks on a model with no special case. Buffers whose
    shape depends on the data are registered empty.

    Args:
        from_logits: False if scores are probabilities, not logits. Default: True (ours: logits
            keep digits that probabilities lose).
    """

    name: ClassVar[str]
    preserves_predictions: bool = False  # no prediction ever changes
    dense_only: ClassVar[bool] = False  # takes (N,K,H,W) and nothing else
    takes_features: ClassVar[bool] = False  # takes (N,D) features and gives (N,K) logits

    num_classes_: Tensor

    def __init__(self, *, from_logits: bool = True) -> None:
        super().__init__()
        self.from_logits = from_logits
        self.summary_: dict[str, Any] = {}
        self.class_names_: tuple[str, ...] | None = None
        self.choice_: Any = None  # why `calibrate` chose it
        self.register_buffer("num_classes_", torch.zeros((), dtype=torch.int64))

    def fit(self: C, logits: Array, target: Array, *, ignore_index: int | None = None) -> C:
        """Fit on held-out rows: (N,K), binary (N,) or dense (N,K,...), NumPy or torch.

        Args:
            logits: The scores.
            target: The labels.
            ignore_index: The label of rows to leave out. Default: None (all count).
        """
        how: dict[str, Any] = {"from_logits": self.from_logits, "ignore_index": ignore_index}
        # One pass validates everything and measures the start.
        nll, accuracy = compute_all([nll_measure(), accuracy_measure()], [(logits, target)], **how)
        scores, labels = rows_of(logits, target, **how)
        if self.from_logits:
            warn_of_probabilities(scores, stacklevel=2)
        self.num_classes_ = torch.tensor(scores.shape[1], device=scores.device)
        try:
            with torch.no_grad():
                self._fit(scores, labels)
        except BaseException:
            self.num_classes_ = torch.zeros_like(self.num_classes_)  # an interrupted fit is no fit
            raise
        self.summary_ = {
            "rows": len(labels),
            "classes": scores.shape[1],
            "nll_before": float(nll),
            "accuracy_before": float(accuracy),
            **self._measure(scores, labels),
        }
        before, after = self.summary_["nll_before"], self.summary_["nll_after"]
        if after > COSTLY * before:
            warnings.warn(
                f"{self.name} raised the negative log-likelihood of the rows it was fitted on from "
                f"{before:.4g} to {after:.4g}: by this measure its probabilities are worse",
                stacklevel=2,
            )
        return self

    def fit_loader(
        self: C,
        model: Callable[..., Any],
        loader: Iterable[Any],
        *,
        device: str | torch.device | None = None,
        progress: bool = True,
        class_names: Sequence[str] | None = None,
        ignore_index: int | None = None,
    ) -> C:
        """Fit on a model's outputs for a loader's rows; see `Predictions.from_model`.

        Args:
            model: The model, run in evaluation mode and left as it was.
            loader: Batches of inputs and labels.
            device: The device to run the model on. Default: None (where it is).
            progress: False hides the bar on stderr. Default: True (shown in a terminal).
            class_names: The names of the classes. Default: None (no names).
            ignore_index: The label of rows to leave out. Default: None (all count).
        """
        from calibrant.predictions import Predictions

        predictions = Predictions.from_model(
            model,
            loader,
            device=device,
            progress=progress,
            outputs="logits" if self.from_logits else "probs",
            class_names=class_names,
            ignore_index=ignore_index,
            validate=False,  # fit validates
        )
        self.fit(predictions.array, predictions.labels, ignore_index=ignore_index)
        self.class_names_ = predictions.class_names
        return self

    def save(
        self, path: str | os.PathLike[str], *, class_names: Sequence[str] | None = None
    ) -> Path:
        """Write a ``.safetensors`` file, whole or not at all, that `calibrant.load` reads.

        Args:
            path: The file, ending in ``.safetensors``.
            class_names: The names of the classes. Default: None (those known from the fit).
        """
        # By name, as registries find their entries: files.py and the registry import this class.
        save: Callable[..., Path] = resolve("calibrant.calibrators.files:save")
        return save(self, path, class_names=class_names)

    def forward(self, logits: Tensor) -> Tensor:
        """Return calibrated logits of logits, or of probabilities if ``from_logits`` is False."""
        self._check_fitted()
        self._check_width(logits)
        scores = logits if logits.dtype == torch.float64 else logits.float()
        if not self.from_logits:
            scores = to_logits(scores)
        if scores.ndim == 1:
            pair = self._map(torch.stack((torch.zeros_like(scores), scores), dim=1))
            return pair[:, 1] - pair[:, 0]
        if scores.ndim == 2:
            return self._map(scores)
        moved = scores.movedim(1, -1)
        return self._map(moved.reshape(-1, scores.shape[1])).reshape(moved.shape).movedim(-1, 1)

    def calibrate(self, logits: Array) -> Any:
        """Return calibrated logits, computed in row blocks: NumPy or torch, as given."""
        scores = to_tensor(logits)
        if not isinstance(logits, Tensor):
            scores = scores.to(self.num_classes_.device)
        step = rows_per_block(scores.shape)
        with torch.no_grad():
            parts = [self(scores[i : i + step]) for i in range(0, max(1, len(scores)), step)]
        return torch.cat(parts) if isinstance(logits, Tensor) else torch.cat(parts).cpu().numpy()

    def predict_proba(self, logits: Array) -> Any:
        """Return calibrated probabilities, of the shape given."""
        scores = torch.as_tensor(self.calibrate(logits))
        probs = torch.sigmoid(scores) if scores.ndim == 1 else torch.softmax(scores, dim=1)
        return probs if isinstance(logits, Tensor) else probs.numpy()

    def options(self) -> dict[str, Any]:
        """Return the constructor's options, by name: what a file needs to rebuild it."""
        names = inspect.signature(type(self).__init__).parameters
        return {name: getattr(self, name) for name in names if name != "self"}

    def extra_repr(self) -> str:
        """Return options that differ from their defaults, and fitted values that are one number."""
        defaults = inspect.signature(type(self).__init__).parameters
        shown = [
            f"{name}={value!r}"
            for name, value in self.options().items()
            if value != defaults[name].default
        ]
        if self.num_classes_.is_meta:  # holds no numbers
            return ", ".join(shown)
        if not self.is_fitted:
            return ", ".join([*shown, "not fitted"])
        numbers = [
            f"{name}={float(value):.4g}"
            for name, value in self.named_buffers(recurse=False)
            if value.ndim == 0 and name != "num_classes_"
        ]
        return ", ".join([*shown, *numbers, f"{int(self.num_classes_)} classes"])

    @property
    def is_fitted(self) -> bool:
        """Return whether `fit` was called, or a fitted state loaded."""
        return int(self.num_classes_) > 0

    @property
    def input_width(self) -> int:
        """Return the numbers in a row of input: K, or D for features."""
        return int(self.num_classes_)

    def _fit(self, logits: Tensor, target: Tensor) -> None:
        raise NotImplementedError

    def _map(self, logits: Tensor) -> Tensor:
        raise NotImplementedError

    def _check_fitted(self) -> None:
        if torch.compiler.is_compiling():
            return
        if not self.is_fitted:
            given = "features" if self.takes_features else "logits"
            raise InputError(f"{self.name} is not fitted: call fit({given}, labels) first")

    def _check_width(self, logits: Tensor) -> None:
        if torch.compiler.is_compiling():
            return
        width, fitted = 2 if logits.ndim == 1 else logits.shape[1], int(self.num_classes_)
        if width != fitted:
            raise InputError(
                f"{self.name} was fitted on {fitted} classes, found scores of shape "
                f"{tuple(logits.shape)}"
            )

    def _measure(self, logits: Tensor, target: Tensor) -> dict[str, Any]:
        """Measure likelihood, accuracy and changed predictions after the fit."""
        nll, right, changed = 0.0, 0, 0
        for rows in row_slices(logits.shape):
            given, labels = logits[rows], target[rows]
            mapped = self._map(given if given.dtype == torch.float64 else given.float())
            losses = nn.functional.cross_entropy(mapped, labels, reduction="none")
            nll += float(losses.double().sum())
            predicted = mapped.argmax(1)
            right += int((predicted == labels).sum())
            if not self.preserves_predictions:
                changed += int((predicted != given.argmax(1)).sum())
        count = len(target)
        return {"nll_after": nll / count, "accuracy_after": right / count, "changed": changed}

    def _load_from_state_dict(
        self, state_dict: dict[str, Any], prefix: str, *args: Any, **kwargs: Any
    ) -> None:
        # The buffers of a fresh calibrator are empty: they take the shape of the loaded ones.
        for key in self._buffers:
            saved = state_dict.get(prefix + key)
            own = self._buffers[key]
            if isinstance(saved, Tensor) and own is not None and saved.shape != own.shape:
                self._buffers[key] = torch.empty_like(saved, device=own.device)
        super()._load_from_state_dict(state_dict, prefix, *args, **kwargs)


def to_logits(probs: Tensor) -> Tensor:
    """Return ln p after flooring at 1e-12 and renormalising; a binary (N,) becomes one logit."""
    if probs.ndim == 1:
        positive = probs.clamp(FLOOR, 1 - FLOOR if probs.dtype == torch.float64 else 1 - 1e-7)
        return torch.log(positive) - torch.log1p(-positive)
    floored = probs.clamp_min(FLOOR)
    return (floored / floored.sum(dim=1, keepdim=True)).log()


def rows_of(
    logits: Array, target: Array, *, from_logits: bool, ignore_index: int | None
) -> tuple[Tensor, Tensor]:
    """Return (N,K) logits and (N,) labels of valid predictions of any shape."""
    scores, labels = to_tensor(logits), to_tensor(target).long()
    if scores.dtype in (torch.float16, torch.bfloat16):
        scores = scores.float()
    if not from_logits:
        scores = to_logits(scores.double())
    if scores.ndim == 1:
        scores = torch.stack((torch.zeros_like(scores), scores), dim=1)
    elif scores.ndim > 2:
        scores = scores.movedim(1, -1).reshape(-1, scores.shape[1])
        labels = labels.reshape(-1)
    labels = labels.to(scores.device)
    if ignore_index is not None:
        keep = labels != ignore_index
        if not bool(keep.all()):
            scores, labels = scores[keep], labels[keep]
    return scores, labels


def refuse_many_classes(name: str, num_classes: int, instead: str) -> None:
    """Raise an error if a method with K² parameters gets too many classes."""
    if num_classes > MOST_CLASSES:
        raise InputError(
            f"{name} has K² parameters and takes at most {MOST_CLASSES:,} classes, found "
            f"{num_classes:,}; use {instead}"
        )
