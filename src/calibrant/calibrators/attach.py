"""A model and its calibrator as one module."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from calibrant.calibrators.base import Calibrator
from calibrant.core.errors import InputError, first


class Calibrated(nn.Module):
    """A model whose scores pass through a calibrator; the rest of its output is kept.

    If the calibrator is a head, the model is the network without its own head: it gives
    features, as a tensor or first in a tuple, which become logits.

    The output may be a tensor, a tuple or list that starts with one, or a dict, named tuple,
    dataclass or other object with ``logits`` or ``out`` (``probs`` or ``probabilities`` if the
    calibrator takes probabilities), and keeps its type. Logits stay logits and probabilities
    stay probabilities. A binary score may be (N,) or (N,1).

    Args:
        model: The model.
        calibrator: The calibrator of its scores.
    """

    def __init__(self, model: nn.Module, calibrator: Calibrator) -> None:
        super().__init__()
        self.model = model
        self.calibrator = calibrator
        self._has_checked = False  # a first batch: whether these are probabilities, if wanted

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Return the model's output with calibrated scores."""
        return _replace_scores(self.model(*args, **kwargs), self._scores, self._names())

    def _names(self) -> tuple[str, ...]:
        if self.calibrator.takes_features:
            return ()  # logits under the name of features would be misread
        return ("logits", "out") if self.calibrator.from_logits else ("probs", "probabilities")

    def _scores(self, scores: Tensor) -> Tensor:
        wide = self.calibrator.takes_features or self.calibrator.takes_labels
        single = scores.ndim == 2 and scores.shape[1] == 1 and not wide
        self._check_first(scores.squeeze(1) if single else scores)
        mapped: Tensor = self.calibrator(scores.squeeze(1) if single else scores)
        if not self.calibrator.from_logits:
            alone = mapped.ndim == 1 or self.calibrator.takes_labels
            mapped = torch.sigmoid(mapped) if alone else torch.softmax(mapped, dim=1)
        return mapped.unsqueeze(1) if single else mapped

    def _check_first(self, scores: Tensor) -> None:
        """Raise if a calibrator of probabilities is given logits, which it would clip.

        Only the first batch is looked at: a look at each would make a device wait.
        """
        if self.calibrator.from_logits or self._has_checked or not scores.numel():
            return
        if torch.compiler.is_compiling() or torch.jit.is_tracing():  # type: ignore[attr-defined,no-untyped-call]
            return
        self.calibrator.check_values(scores.detach())
        self._has_checked = True


def attach(model: nn.Module, calibrator: Calibrator) -> Calibrated:
    """Return one `nn.Module` that runs the model and calibrates its scores.

    Model and calibrator are not copied; the calibrator is moved to the device of the model.

    Args:
        model: The model.
        calibrator: The calibrator, fitted on scores of the same kind as the model gives: logits,
            or probabilities (``from_logits=False``), which stay probabilities. One that is not
            fitted may be attached, to load its state, but not called.

    >>> from calibrant import calibrators
    >>> fitted = calibrators.get("identity").fit(torch.eye(3), torch.arange(3))
    >>> attach(nn.Linear(5, 3), fitted)(torch.zeros(2, 5)).shape
    torch.Size([2, 3])
    """
    if not isinstance(model, nn.Module):
        raise InputError(f"model must be an nn.Module, found {type(model).__name__}")
    if not isinstance(calibrator, Calibrator):
        raise InputError(
            f"calibrator must be a calibrant Calibrator, found {type(calibrator).__name__}"
        )
    devices = {tensor.device for tensor in (*model.parameters(), *model.buffers())}
    if len(devices) == 1:
        calibrator.to(devices.pop())
    joined = Calibrated(model, calibrator)
    joined.training = model.training
    return joined


def _replace_scores(output: Any, change: Callable[[Tensor], Tensor], names: tuple[str, ...]) -> Any:
    """Return the output with its scores changed, of the same type; the original is kept."""
    if isinstance(output, Tensor):
        return change(output)
    for name in names:
        scores = output.get(name) if isinstance(output, Mapping) else getattr(output, name, None)
        if isinstance(scores, Tensor):
            return _set_field(output, name, change(scores))
    if isinstance(output, (tuple, list)) and output and isinstance(output[0], Tensor):
        if hasattr(output, "_fields"):
            return type(output)(change(output[0]), *output[1:])
        return type(output)((change(output[0]), *output[1:]))
    keys = f" with {first(map(repr, output), 12)}" if isinstance(output, Mapping) else ""
    named = " or ".join(names)
    raise InputError(
        f"the model gave a {type(output).__name__}{keys}; expected a tensor, or a tuple that "
        f"starts with one{f', or an object that has {named}' if named else ''}"
    )


def _set_field(output: Any, name: str, value: Tensor) -> Any:
    if type(output) is dict:
        return {**output, name: value}
    if isinstance(output, Mapping):  # Hugging Face outputs are both mapping and dataclass
        copied: Any = copy.copy(output)
        copied[name] = value
        return copied
    if hasattr(output, "_replace"):
        return output._replace(**{name: value})
    if dataclasses.is_dataclass(output) and not isinstance(output, type):
        return dataclasses.replace(output, **{name: value})
    copied = copy.copy(output)
    setattr(copied, name, value)
    return copied
