"""The base class of calibrators: logits in, better logits out, fitted values in buffers."""

from __future__ import annotations

import inspect
import os
import warnings
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from calibrant.calibrators.fitted_rows import FittedRows, describe_rows
from calibrant.core.errors import InputError, first
from calibrant.core.registry import resolve
from calibrant.functional.arrays import Array, as_array, row_slices, rows_per_block, to_tensor
from calibrant.functional.blocks import warn_of_probabilities
from calibrant.metrics.base import compute_all
from calibrant.metrics.means import accuracy_measure, nll_measure
from calibrant.predictions import Predictions

C = TypeVar("C", bound="Calibrator")

FLOOR = 1e-12  # least probability, where probabilities are given in place of logits
MOST_CLASSES = 2000  # for methods with K² parameters
COSTLY = 1.01  # a fit that multiplies the loss of its own rows by more than this warns


class Design(NamedTuple):
    """Weights and clusters of rows; None where they count the same, or are independent."""

    weights: Tensor | None = None  # (N,) float64, 1 on average
    clusters: Tensor | None = None  # (N,) the number of each row's cluster


PLAIN = Design()


class Calibrator(nn.Module):
    """A map from logits to logits, fitted on held-out rows.

    Subclasses give ``_fit(logits, target)``, which sets buffers from (N,K) logits and (N,)
    labels, and ``_map(logits)``, which maps (N,K) to (N,K) with tensor operations alone, so
    that a calibrator moves, exports and stacks on a model with no special case. Buffers whose
    shape depends on the data are registered empty. A subclass that sets ``takes_weights`` is
    given a `Design` as third argument of ``_fit`` where rows have weights or clusters.

    Events, one score a row, are fitted by ``_fit_events`` and mapped by ``_map_events``, from
    (N,) log-odds to (N,) log-odds; by default they are two classes of logits 0 and the score. Only
    a subclass that sets ``takes_events`` gets them: a map of the *predicted* class would fold an
    event at 0.5. ``num_classes_`` is then 1.

    Args:
        from_logits: False if scores are probabilities, not logits. Default: True (ours: logits
            keep digits that probabilities lose).
    """

    name: ClassVar[str]
    preserves_predictions: bool = False  # no prediction ever changes
    dense_only: ClassVar[bool] = False  # takes (N,K,H,W) and nothing else
    takes_features: ClassVar[bool] = False  # takes (N,D) features and gives (N,K) logits
    takes_events: bool = False  # maps the probability of an event without folding it
    takes_options: bool = False  # treats all classes alike, and logits of −inf
    takes_labels: ClassVar[bool] = False  # takes (N,L) scores of many labels a row
    takes_weights: bool = False  # `_fit` takes a `Design`
    added_tensors: ClassVar[tuple[str, ...]] = ()  # which files of earlier versions lack

    num_classes_: Tensor

    def __init__(self, *, from_logits: bool = True) -> None:
        super().__init__()
        self.from_logits = from_logits
        self.summary_: dict[str, Any] = {}
        self.class_names_: tuple[str, ...] | None = None
        self.choice_: Any = None  # why `calibrate` chose it
        self.fitted_rows_: FittedRows | None = None  # decide refuses these rows
        self.for_events_ = False  # whether it was fitted on events: num_classes_ is then 1
        self.register_buffer("num_classes_", torch.zeros((), dtype=torch.int64))

    def fit(
        self: C,
        logits: Array | Predictions,
        target: Array | None = None,
        *,
        ignore_index: int | None = None,
        weights: Array | None = None,
        clusters: Array | None = None,
        task: str = "classes",
        absent: bool = False,
    ) -> C:
        """Fit on held-out rows: `Predictions`, or arrays of NumPy or torch.

        Args:
            logits: The scores: (N,K), binary (N,) or dense (N,K,...); or predictions, which bring
                all the rest.
            target: The labels. Default: None (those of the predictions).
            ignore_index: The label of rows to leave out. Default: None (all count).
            weights: A positive weight for each row, free of scale. Default: None (all count the
                same).
            clusters: The cluster of each row; a cross-validation inside the fit never splits one.
                Default: None (rows are independent).
            task: ``"events"`` if (N,) scores are those of an event that happened (1) or not (0):
                no side of 0.5 is then treated like the other. Default: 'classes' (ours: a binary
                score is one of two classes, as for any K).
            absent: True lets logits of −inf stand for options that a row does not have. Default:
                False (ours: elsewhere they are a mistake).
        """
        if isinstance(logits, Predictions):
            if target is not None or weights is not None or clusters is not None:
                raise InputError("predictions bring their own labels, weights and clusters")
            self._check_task(logits)
            predictions = logits.in_memory()
            named = predictions.task == "events" and predictions.event is not None
            self.class_names_ = (str(predictions.event),) if named else predictions.class_names
            logits, target = predictions.array, predictions.known_labels
            ignore_index = predictions.ignore_index
            weights, clusters = predictions.weights, predictions.cluster_codes
            absent = predictions.num_options is not None
            task = "events" if predictions.task == "events" else task
        if target is None:
            raise InputError("fit needs labels beside the scores, or Predictions")
        logits, target = as_array(logits), as_array(target)
        for_events = is_events(task, logits)
        self._check_takes(for_events=for_events, weighted=weights is not None, absent=absent)
        how: dict[str, Any] = {"from_logits": self.from_logits, "ignore_index": ignore_index}
        if for_events:  # -1: nobody knows whether it happened
            how["ignore_index"] = -1 if ignore_index is None else ignore_index
            target = to_tensor(target).to(torch.int64)
        # One pass validates everything and measures the start.
        nll, accuracy = compute_all(
            [nll_measure(), accuracy_measure()], [(logits, target, weights)], absent=absent, **how
        )
        scores, labels = rows_of(logits, target, **how)
        if self.from_logits and not for_events:
            warn_of_probabilities(scores, stacklevel=2)
        design = design_of(target, weights, clusters, how["ignore_index"], scores.device)
        self._set_width(torch.tensor(1 if for_events else scores.shape[1], device=scores.device))
        try:
            with torch.no_grad():
                if for_events:
                    self._fit_events(scores[:, 1] - scores[:, 0], labels, design)
                elif self.takes_weights and design is not PLAIN:
                    self._fit(scores, labels, design)  # type: ignore[call-arg]
                else:
                    self._fit(scores, labels)
            self._refuse_nan()
        except BaseException:
            self._set_width(torch.zeros_like(self.num_classes_))  # an interrupted fit is no fit
            raise
        self.fitted_rows_ = describe_rows(scores)
        start = {"nll_before": float(nll), "accuracy_before": float(accuracy)}
        self.summary_ = {"rows": len(labels), "classes": int(self.num_classes_)}
        if for_events:
            odds = scores[:, 1] - scores[:, 0]
            self.summary_ |= self._measure_events(odds, labels, design.weights)
        else:
            self.summary_ |= start | self._measure(scores, labels, design.weights)
        before, after = self.summary_["nll_before"], self.summary_["nll_after"]
        if after > COSTLY * before:
            warnings.warn(
                f"{self.name} raised the negative log-likelihood of the rows it was fitted on from "
                f"{before:.4g} to {after:.4g}: by this measure its probabilities are worse",
                stacklevel=2,
            )
        return self

    def _check_task(self, predictions: Predictions) -> None:
        """Raise an error that says what to do instead if this method cannot take predictions."""
        if self.takes_features:
            raise InputError(f"{self.name} takes features, not predictions")
        if self.from_logits != predictions.is_logits:
            wanted, kind = ("logits", "probabilities")[:: 1 if self.from_logits else -1]
            raise InputError(
                f"this {self.name} takes {wanted}, found {kind}: set "
                f"from_logits={predictions.is_logits}"
            )
        if predictions.task == "multilabel" and not self.takes_labels:
            raise InputError(
                f"{self.name} takes one class, or one event, a row, and these rows have many "
                f"labels: use calibrate(predictions, method={self.name!r}), which fits each label"
            )

    def _check_takes(self, *, for_events: bool, weighted: bool, absent: bool) -> None:
        """Raise an error that says what to do instead if this method cannot take such rows."""
        if for_events and not self.takes_events:
            raise InputError(
                f"{self.name} does not take events: it maps the predicted class, or several, and "
                "would treat 30% as 70% of the opposite; use temperature, platt, beta, quadratic, "
                "spline, isotonic, histogram or venn_abers"
            )
        if weighted and not self.takes_weights:
            raise InputError(
                f"{self.name} cannot weigh rows: use temperature, vector, matrix, beta, isotonic "
                "or another method that can, or leave the weights out"
            )
        if absent and not self.takes_options:
            raise InputError(
                f"{self.name} does not take questions with different numbers of options, whose "
                "positions are not classes: use temperature or ensemble_temperature, which treat "
                "all options alike"
            )

    def _refuse_nan(self) -> None:
        """Raise an error if the fit ended in values that are no numbers."""
        for key, value in self.state_dict().items():
            if value.is_floating_point() and bool(torch.isnan(value).any()):
                raise InputError(
                    f"the fit of {self.name} failed: {key} is NaN, perhaps because logits differ "
                    "widely in size: try temperature, or divide the logits by a constant"
                )

    def _set_width(self, width: Tensor) -> None:
        self.num_classes_ = width
        self.for_events_ = int(width) == 1

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
        return self.fit(predictions)

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
        """Return calibrated logits of logits, or of probabilities if ``from_logits`` is False.

        Values are not checked here; `calibrate` and `predict_proba` check them.
        """
        self._check_fitted()
        self._check_width(logits)
        scores = self._to_scores(logits)
        if self.for_events_:
            if scores.ndim == 1:
                return self._map_events(scores)
            return as_pair(self._map_events(scores[:, 1] - scores[:, 0]))
        if scores.ndim == 1:
            pair = self._map(as_pair(scores))
            return pair[:, 1] - pair[:, 0]
        if scores.ndim == 2:
            return self._map(scores)
        moved = scores.movedim(1, -1)
        return self._map(moved.reshape(-1, scores.shape[1])).reshape(moved.shape).movedim(-1, 1)

    def _to_scores(self, scores: Tensor) -> Tensor:
        """Return logits in single or double precision."""
        scores = scores if scores.dtype == torch.float64 else scores.float()
        return scores if self.from_logits else to_logits(scores)

    def calibrate(self, logits: Array) -> Any:
        """Return calibrated logits, computed in row blocks: NumPy or torch, as given.

        NaN and infinity raise an error, and so do rows of probabilities that do not sum to 1; only
        a method that takes options lets −inf stand, for an option that a row does not have.
        """
        scores = to_tensor(as_array(logits))
        if not scores.ndim:
            raise InputError("expected an array with a row for each prediction, found one number")
        if not isinstance(logits, Tensor):
            scores = scores.to(self.num_classes_.device)
        step = rows_per_block(scores.shape)
        with torch.no_grad():
            parts = []
            for i in range(0, max(1, len(scores)), step):
                part = scores[i : i + step]
                mapped = self(part)  # which checks the shape
                self.check_values(part, i)
                if bool(torch.isnan(mapped).any()):
                    rows = mapped.isnan().reshape(len(mapped), -1).any(1).nonzero().squeeze(1) + i
                    raise InputError(
                        f"{self.name} gives NaN, first in rows {first(rows.tolist())}: those are "
                        "far from the rows it was fitted on; are they of the same model?"
                    )
                parts.append(mapped)
        return torch.cat(parts) if isinstance(logits, Tensor) else torch.cat(parts).cpu().numpy()

    def check_values(self, scores: Tensor, start: int = 0) -> None:
        """Raise an error if scores are not what this calibrator takes.

        Args:
            scores: Scores of some rows.
            start: The number of the first row, for the message. Default: 0.
        """
        if not scores.numel():
            return
        low, high = (float(value) for value in torch.aminmax(scores))

        def locate(bad: Tensor) -> str:
            rows = bad.reshape(len(bad), -1).any(1).nonzero().squeeze(1) + start
            return f"first in rows {first(rows.tolist())}"

        if low == -torch.inf and high < torch.inf and self.takes_options and scores.ndim > 1:
            bad = (scores == -torch.inf).all(1)
            if bool(bad.any()):
                raise InputError(f"every option is absent (-inf), {locate(bad)}")
            return
        what = "features" if self.takes_features else "logits" if self.from_logits else "probs"
        if not (low > -torch.inf and high < torch.inf):  # NaN is neither
            bad = ~torch.isfinite(scores)
            raise InputError(f"{what} hold NaN or infinity, {locate(bad)}: calibrate cannot map it")
        if self.from_logits or self.takes_features:
            return
        tolerance = 1e-2 if scores.dtype.itemsize < 4 else 1e-3
        if low < -1e-6 or high > 1 + tolerance:
            bad = (scores < -1e-6) | (scores > 1 + tolerance)
            raise InputError(
                f"probabilities must lie in [0, 1], found {low:.4g} to {high:.4g}, {locate(bad)}; "
                "this calibrator was fitted on probabilities (from_logits=False)"
            )
        if scores.ndim > 1 and not self.takes_labels:
            totals = scores.double().sum(1)
            bad = (totals - 1.0).abs() > tolerance
            if bool(bad.any()):
                raise InputError(
                    "probabilities must sum to one in each row; found "
                    f"{float(totals[bad][0]):.4g}, {locate(bad)}: divide each row by its sum"
                )

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
        width = "events" if self.for_events_ else f"{int(self.num_classes_)} classes"
        return ", ".join([*shown, *numbers, width])

    @property
    def is_fitted(self) -> bool:
        """Return whether `fit` was called, or a fitted state loaded."""
        return int(self.num_classes_) > 0

    @property
    def input_width(self) -> int:
        """Return the numbers in a row of input: K, 1 for events, or D for features."""
        return int(self.num_classes_)

    def _fit(self, logits: Tensor, target: Tensor) -> None:
        raise NotImplementedError

    def _map(self, logits: Tensor) -> Tensor:
        raise NotImplementedError

    def _fit_events(self, odds: Tensor, happened: Tensor, design: Design) -> None:
        """Fit on (N,) log-odds of an event and whether it happened: two classes, by default."""
        if self.takes_weights and design is not PLAIN:
            self._fit(as_pair(odds), happened, design)  # type: ignore[call-arg]
        else:
            self._fit(as_pair(odds), happened)

    def _map_events(self, odds: Tensor) -> Tensor:
        """Map (N,) log-odds of an event to calibrated ones."""
        pair = self._map(as_pair(odds))
        return pair[:, 1] - pair[:, 0]

    def _check_fitted(self) -> None:
        if torch.compiler.is_compiling():
            return
        if not self.is_fitted:
            inputs = "features" if self.takes_features else "logits"
            raise InputError(f"{self.name} is not fitted: call fit({inputs}, labels) first")

    def _check_width(self, logits: Tensor) -> None:
        if torch.compiler.is_compiling():
            return
        width, fitted = 2 if logits.ndim == 1 else logits.shape[1], int(self.num_classes_)
        if self.for_events_:
            if logits.ndim > 2 or width != 2:
                raise InputError(
                    f"{self.name} was fitted on events, one score a row, found scores of shape "
                    f"{tuple(logits.shape)}: give shape (N,), or (N, 2) of two classes"
                )
        elif width != fitted:
            raise InputError(
                f"{self.name} was fitted on {fitted} classes, found scores of shape "
                f"{tuple(logits.shape)}"
            )

    def _measure(
        self, logits: Tensor, target: Tensor, weights: Tensor | None = None
    ) -> dict[str, Any]:
        """Measure likelihood, accuracy and changed predictions after the fit."""
        nll, right, changed = 0.0, 0.0, 0
        for rows in row_slices(logits.shape):
            scores, labels = logits[rows], target[rows]
            mapped = self._map(scores if scores.dtype == torch.float64 else scores.float())
            losses = nn.functional.cross_entropy(mapped, labels, reduction="none").double()
            predicted = mapped.argmax(1)
            hits = predicted == labels
            if weights is not None:
                losses, hits = losses * weights[rows], hits * weights[rows]
            nll += float(losses.sum())
            right += float(hits.sum())
            if not self.preserves_predictions:
                changed += int((predicted != scores.argmax(1)).sum())
        count = len(target)
        return {"nll_after": nll / count, "accuracy_after": right / count, "changed": changed}

    def _measure_events(
        self, odds: Tensor, happened: Tensor, weights: Tensor | None
    ) -> dict[str, Any]:
        """Measure likelihood and mean probability before and after the fit."""
        mapped = torch.cat(
            [
                self._map_events(part if part.dtype == torch.float64 else part.float())
                for part in (odds[rows] for rows in row_slices(odds.shape))
            ]
        )
        y = happened.double()
        w = torch.ones_like(y) if weights is None else weights
        figures = {"rate": float((w * y).mean())}
        for when, scores in (("before", odds.double()), ("after", mapped.double())):
            losses = nn.functional.softplus(scores) - y * scores
            figures[f"nll_{when}"] = float((w * losses).mean())
            figures[f"mean_{when}"] = float((w * scores.sigmoid()).mean())
        return figures

    def _load_from_state_dict(
        self, state_dict: dict[str, Any], prefix: str, *args: Any, **kwargs: Any
    ) -> None:
        # The buffers of a fresh calibrator are empty: they take the shape of the loaded ones.
        for key in self._buffers:
            saved = state_dict.get(prefix + key)
            buffer = self._buffers[key]
            if isinstance(saved, Tensor) and buffer is not None and saved.shape != buffer.shape:
                self._buffers[key] = torch.empty_like(saved, device=buffer.device)
        super()._load_from_state_dict(state_dict, prefix, *args, **kwargs)
        width = state_dict.get(prefix + "num_classes_")
        if isinstance(width, Tensor) and not width.is_meta:
            self.for_events_ = width.numel() == 1 and int(width) == 1


def as_pair(odds: Tensor) -> Tensor:
    """Return (N,2) logits of two classes, 0 and the (N,) log-odds of the second."""
    return torch.stack((torch.zeros_like(odds), odds), dim=1)


def is_events(task: str, scores: Array) -> bool:
    """Return whether scores are those of an event; raise if the task cannot be theirs."""
    if task not in ("classes", "events"):
        raise InputError(f"task must be 'classes' or 'events', found {task!r}")
    shape = tuple(scores.shape)
    if task == "events" and not (len(shape) == 1 or (len(shape) == 2 and shape[1] == 2)):
        raise InputError(
            f"events have one score a row, shape (N,), or those of two classes, (N, 2); found "
            f"{shape}"
        )
    return task == "events"


def design_of(
    target: Array,
    weights: Array | None,
    clusters: Array | None,
    ignore_index: int | None,
    device: torch.device,
) -> Design:
    """Return the weights, 1 on average, and the clusters of the rows that count.

    Args:
        target: The labels, (N,) or dense: all pixels have the weight of their image.
        weights: (N,) weights; None if all count the same.
        clusters: (N,) clusters; None if rows are independent.
        ignore_index: The label of rows to leave out.
        device: Where the rows are.
    """
    if weights is None and clusters is None:
        return PLAIN
    labels = to_tensor(target).to(device)
    keep = (
        torch.ones_like(labels, dtype=torch.bool)
        if ignore_index is None
        else (labels != ignore_index)
    )
    size = labels.numel() // max(1, len(labels))

    def spread(values: Tensor) -> Tensor:
        if values.shape != labels.shape[:1]:
            raise InputError(
                f"weights and clusters have one entry for each of {len(labels)} rows, found shape "
                f"{tuple(values.shape)}"
            )
        return values.to(device).repeat_interleave(size)[keep.reshape(-1)]

    shares = codes = None
    if weights is not None:
        shares = spread(to_tensor(weights).double())
        shares = shares / shares.mean()
    if clusters is not None:
        if not isinstance(clusters, Tensor):
            clusters = np.unique(np.asarray(clusters), return_inverse=True)[1].reshape(-1)
        codes = spread(torch.unique(to_tensor(clusters), return_inverse=True)[1])
    return Design(shares, codes)


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
