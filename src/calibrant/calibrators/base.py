"""What a calibrator is: logits in, better logits out, everything fitted in buffers."""

from __future__ import annotations

import inspect
import os
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import torch
from torch import Tensor, nn

from calibrant.functional.blocks import Array, to_tensor, warn_of_probabilities
from calibrant.functional.errors import InputError
from calibrant.metrics.base import compute_all
from calibrant.metrics.means import accuracy_measure, nll_measure

C = TypeVar("C", bound="Calibrator")

FLOOR = 1e-12  # of probabilities given in place of logits
MOST_CLASSES = 2000  # for methods with K² parameters
COSTLY = 1.01  # a fit that multiplies the loss of its own rows by more than this says so
_BLOCK = 1 << 19


class Calibrator(nn.Module):
    """A map from logits to logits, fitted on held-out rows.

    Subclasses give ``_fit(logits, target)``, which sets buffers from (N,K) logits and (N,)
    labels, and ``_map(logits)``, which maps (N,K) to (N,K) with tensor operations alone, so
    that it moves, exports and stacks on a model with no special case. Buffers whose shape
    the data decide are registered empty.
    """

    name: ClassVar[str]
    preserves_predictions: bool = False  # no argmax ever changes
    dense_only: ClassVar[bool] = False  # takes (N,K,H,W) and nothing else
    takes_features: ClassVar[bool] = False  # takes (N,D) features, and gives (N,K) logits

    num_classes_: Tensor

    def __init__(self, *, from_logits: bool = True) -> None:
        super().__init__()
        self.from_logits = from_logits
        self.summary_: dict[str, Any] = {}
        self.class_names_: tuple[str, ...] | None = None
        self.choice_: Any = None  # why it was chosen, where `calibrate` chose it
        self.register_buffer("num_classes_", torch.zeros((), dtype=torch.int64))

    def fit(self: C, logits: Array, target: Array, *, ignore_index: int | None = None) -> C:
        """Fit on held-out rows: (N,K), binary (N,) or dense (N,K,...), NumPy or torch."""
        how: dict[str, Any] = {"from_logits": self.from_logits, "ignore_index": ignore_index}
        # One pass validates everything, and tells where we start from.
        nll, accuracy = compute_all([nll_measure(), accuracy_measure()], [(logits, target)], **how)
        scores, labels = rows_of(logits, target, **how)
        if self.from_logits:
            warn_of_probabilities(scores, stacklevel=2)
        self.num_classes_ = torch.tensor(scores.shape[1], device=scores.device)
        try:
            with torch.no_grad():
                self._fit(scores, labels)
        except BaseException:
            self.num_classes_ = torch.zeros_like(self.num_classes_)  # half a fit is none
            raise
        self.summary_ = {
            "rows": len(labels),
            "classes": scores.shape[1],
            "nll_before": float(nll),
            "accuracy_before": float(accuracy),
            **self._after(scores, labels),
        }
        before, after = self.summary_["nll_before"], self.summary_["nll_after"]
        if after > COSTLY * before:
            warnings.warn(
                f"{self.name} raised the negative log-likelihood of the rows it was fitted on from "
                f"{before:.4g} to {after:.4g}: by that measure its probabilities are worse",
                stacklevel=2,
            )
        return self

    def fit_loader(self: C, model: Callable[..., Any], loader: Iterable[Any], **how: Any) -> C:
        """Fit on what a model says of a loader's rows, run in evaluation mode and restored.

        Options: ``device``, ``progress``, ``class_names``, ``ignore_index``, as of
        `Predictions.from_model`.
        """
        from calibrant.calibrators.attach import fit_loader

        return fit_loader(self, model, loader, **how)

    def save(
        self, path: str | os.PathLike[str], *, class_names: Sequence[str] | None = None
    ) -> Path:
        """Write a ``.safetensors`` file, whole or not at all, that `calibrant.load` reads."""
        from calibrant.calibrators.saving import save

        return save(self, path, class_names=class_names)

    def forward(self, logits: Tensor) -> Tensor:
        """Calibrated logits, of the shape given (probabilities in, where so constructed)."""
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
        """Calibrated logits in row blocks: NumPy in, NumPy out; torch in, torch out."""
        scores = to_tensor(logits)
        if not isinstance(logits, Tensor):
            scores = scores.to(self.num_classes_.device)
        step = max(1, _BLOCK * max(1, len(scores)) // max(1, scores.numel()))
        with torch.no_grad():
            parts = [self(scores[i : i + step]) for i in range(0, max(1, len(scores)), step)]
        return torch.cat(parts) if isinstance(logits, Tensor) else torch.cat(parts).cpu().numpy()

    def predict_proba(self, logits: Array) -> Any:
        """Calibrated probabilities, of the shape given."""
        found = torch.as_tensor(self.calibrate(logits))
        probs = torch.sigmoid(found) if found.ndim == 1 else torch.softmax(found, dim=1)
        return probs if isinstance(logits, Tensor) else probs.numpy()

    def options(self) -> dict[str, Any]:
        """The constructor's options, by name: what a file needs to build it again."""
        names = inspect.signature(type(self).__init__).parameters
        return {name: getattr(self, name) for name in names if name != "self"}

    def extra_repr(self) -> str:
        """Options that are not the usual ones, and what was fitted as far as it is one number."""
        usual = inspect.signature(type(self).__init__).parameters
        shown = [
            f"{name}={value!r}"
            for name, value in self.options().items()
            if value != usual[name].default
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
        """Whether `fit` was called, or a fitted state loaded."""
        return int(self.num_classes_) > 0

    @property
    def input_width(self) -> int:
        """How many numbers a row has that it is given: K, except where those are features."""
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

    def _after(self, logits: Tensor, target: Tensor) -> dict[str, Any]:
        """Likelihood and accuracy after the fit, and how many predictions it changed."""
        nll, right, changed = 0.0, 0, 0
        for rows in row_blocks(logits):
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
        # A fresh calibrator's buffers are empty: they take the shape of what is loaded.
        for key in self._buffers:
            saved = state_dict.get(prefix + key)
            mine = self._buffers[key]
            if isinstance(saved, Tensor) and mine is not None and saved.shape != mine.shape:
                self._buffers[key] = torch.empty_like(saved, device=mine.device)
        super()._load_from_state_dict(state_dict, prefix, *args, **kwargs)


def to_logits(probs: Tensor) -> Tensor:
    """ln p after flooring at 1e-12 and renormalising; a binary (N,) becomes one logit."""
    if probs.ndim == 1:
        positive = probs.clamp(FLOOR, 1 - FLOOR if probs.dtype == torch.float64 else 1 - 1e-7)
        return torch.log(positive) - torch.log1p(-positive)
    floored = probs.clamp_min(FLOOR)
    return (floored / floored.sum(dim=1, keepdim=True)).log()


def rows_of(
    logits: Array, target: Array, *, from_logits: bool, ignore_index: int | None
) -> tuple[Tensor, Tensor]:
    """(N,K) logits and (N,) labels of valid predictions of any shape, without needless copies."""
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


def row_blocks(logits: Tensor, elements: int = _BLOCK) -> Iterator[slice]:
    """Row ranges small enough that their intermediates stay in the cache."""
    step = max(1, elements // logits.shape[1])
    for begin in range(0, len(logits), step):
        yield slice(begin, min(begin + step, len(logits)))


def refuse_many_classes(name: str, num_classes: int, instead: str) -> None:
    """For methods with K² parameters."""
    if num_classes > MOST_CLASSES:
        raise InputError(
            f"{name} has K² parameters and takes at most {MOST_CLASSES:,} classes, found "
            f"{num_classes:,}; use {instead}"
        )
