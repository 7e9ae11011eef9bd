"""Run a model over a loader and gather its outputs."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from calibrant.core.errors import InputError, first
from calibrant.core.progress import progress_bar

TARGET_KEYS = ("label", "labels", "target", "targets")


def collect(
    model: Callable[..., Any],
    loader: Iterable[Any],
    *,
    device: str | torch.device | None,
    progress: bool,
    outputs: str,
) -> tuple[Tensor, Tensor]:
    """Return the scores and labels of every batch, on the CPU.

    Args:
        model: A module or function of a batch's inputs.
        loader: Yields (input, target) pairs, or dicts with a label.
        device: Where to run the model; None where it is.
        progress: Show a progress bar on a terminal.
        outputs: ``"logits"`` or ``"probs"``, what the model returns.
    """
    if not callable(model):
        raise InputError(f"model must be callable, found {type(model).__name__}")
    expected = _expected_rows(loader)
    all_scores, all_labels = RowBuffer("outputs", expected), RowBuffer("labels", expected)
    with ExitStack() as stack:
        place = stack.enter_context(_place_model(model, device))
        stack.enter_context(set_evaluation_mode(model))
        advance = stack.enter_context(
            progress_bar("Predicting", _count_batches(loader), shown=progress)
        )
        for batch in loader:
            inputs, target = split_batch(batch)
            with torch.inference_mode():
                scores = find_scores(call_model(model, move_inputs(inputs, place)), outputs)
            labels = torch.as_tensor(target)
            if scores.ndim == 2 and scores.shape[1] == 1:
                scores = scores.squeeze(1)
            if scores.ndim == 0 or labels.ndim == 0 or len(scores) != len(labels):
                raise InputError(
                    f"the model gave outputs of shape {tuple(scores.shape)} for labels of shape "
                    f"{tuple(labels.shape)}: expected a row for each label"
                )
            all_scores.add(scores)
            all_labels.add(labels)
            advance(1)
    if all_scores.count == 0:
        raise InputError("the loader is empty: it yields no batches")
    return all_scores.result(), all_labels.result()


class RowBuffer:
    """Rows gathered into one buffer, which is never copied if their number is known.

    The system does not allocate memory that is never written, so the guess may be generous.
    """

    def __init__(self, what: str, expected: int | None) -> None:
        self._what, self._expected = what, expected
        self._buffer: Tensor | None = None
        self.count = 0

    def add(self, rows: Tensor) -> None:
        """Copy rows to the CPU, after those before."""
        # A tensor made in inference mode could not be used to fit a calibrator.
        with torch.inference_mode(False), torch.no_grad():
            if self._buffer is None:
                size = max(self._expected or 0, len(rows))
                self._buffer = torch.empty((size, *rows.shape[1:]), dtype=rows.dtype)
            if rows.shape[1:] != self._buffer.shape[1:] or rows.dtype != self._buffer.dtype:
                raise InputError(
                    f"{self._what} differ between batches: first {self._buffer.dtype} "
                    f"rows of shape {tuple(self._buffer.shape[1:])}, then {rows.dtype} of "
                    f"{tuple(rows.shape[1:])}"
                )
            stop = self.count + len(rows)
            if stop > len(self._buffer):
                larger = torch.empty(
                    (max(stop, 2 * len(self._buffer)), *rows.shape[1:]), dtype=rows.dtype
                )
                larger[: self.count] = self._buffer[: self.count]
                self._buffer = larger
            self._buffer[self.count : stop].copy_(rows)
            self.count = stop

    def result(self) -> Tensor:
        """Return all rows."""
        assert self._buffer is not None
        with torch.inference_mode(False):
            return self._buffer[: self.count]


def _count_batches(loader: Iterable[Any]) -> int | None:
    try:
        return len(loader)  # type: ignore[arg-type]
    except (TypeError, NotImplementedError):
        return None


def _expected_rows(loader: Iterable[Any]) -> int | None:
    try:
        return len(loader.dataset)  # type: ignore[attr-defined]
    except (AttributeError, TypeError, NotImplementedError):
        return None


@contextmanager
def set_evaluation_mode(model: Any) -> Iterator[None]:
    """Set evaluation mode, then restore every submodule's own mode."""
    if not isinstance(model, nn.Module):
        yield
        return
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, mode in modes:
            module.training = mode


@contextmanager
def _place_model(model: Any, device: str | torch.device | None) -> Iterator[torch.device | None]:
    """Move the model to the device, yield where inputs go (None: nowhere), and move it back."""
    try:
        target = None if device is None else torch.device(device)
    except RuntimeError as error:
        raise InputError(f"unknown device {device!r}: {str(error).splitlines()[0]}") from error
    if not isinstance(model, nn.Module):
        yield target
        return
    homes = list(dict.fromkeys(t.device for t in (*model.parameters(), *model.buffers())))
    if target is None or not homes:
        # A model on several devices takes its inputs on the first.
        yield homes[0] if homes else target
        return
    if len(homes) > 1:
        raise InputError(
            f"the model is on several devices, {first(homes)}: leave device out, or move it first"
        )
    try:
        try:
            model.to(target)
        except (RuntimeError, AssertionError) as error:
            reason = str(error).splitlines()[0]
            raise InputError(f"device {str(target)!r} cannot be used here: {reason}") from error
        yield target
    finally:
        model.to(homes[0])


def split_batch(batch: Any) -> tuple[Any, Any]:
    """Return the input and the target of a batch."""
    if isinstance(batch, Mapping):
        keys = [key for key in TARGET_KEYS if key in batch]
        if len(keys) != 1:
            raise InputError(
                f"a batch must have its labels under one of {', '.join(TARGET_KEYS)}; "
                f"found keys {first(map(repr, batch), 12)}"
            )
        return {key: value for key, value in batch.items() if key != keys[0]}, batch[keys[0]]
    if isinstance(batch, (tuple, list)) and len(batch) == 2:
        return batch[0], batch[1]
    size = f" of {len(batch)}" if isinstance(batch, (tuple, list)) else ""
    raise InputError(
        f"the loader must yield (input, target) pairs or dicts with a label, "
        f"found {type(batch).__name__}{size}"
    )


def move_inputs(value: Any, device: torch.device | None) -> Any:
    """Move every tensor of a batch's inputs to the device."""
    if device is None:
        return value
    if isinstance(value, Tensor):
        return value.to(device, non_blocking=True)
    if isinstance(value, Mapping):
        return {key: move_inputs(item, device) for key, item in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(move_inputs(item, device) for item in value))
    if isinstance(value, (tuple, list)):
        return type(value)(move_inputs(item, device) for item in value)
    return value


def call_model(model: Callable[..., Any], inputs: Any) -> Any:
    """Call the model with a dict's items by name if it knows the names, else with the only item."""
    if not isinstance(inputs, dict):
        return model(inputs)
    called = model.forward if isinstance(model, nn.Module) else model
    parameters = inspect.signature(called).parameters
    if any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values()):
        return model(**inputs)
    known = {key: value for key, value in inputs.items() if key in parameters}
    if known:
        return model(**known)
    if len(inputs) == 1:
        return model(next(iter(inputs.values())))
    raise InputError(
        f"the model takes {first(parameters)}, but the batch has {first(inputs)}: "
        f"use the same names, or give (input, target) pairs"
    )


def find_scores(output: Any, kind: str) -> Tensor:
    """Return the tensor of ``"logits"`` or ``"probs"`` in the output of a model."""
    names = ("probs", "probabilities", "out") if kind == "probs" else ("logits", "out")
    if isinstance(output, Tensor):
        return output
    for name in names:
        scores = output.get(name) if isinstance(output, Mapping) else getattr(output, name, None)
        if isinstance(scores, Tensor):
            return scores
    if isinstance(output, (tuple, list)) and output and isinstance(output[0], Tensor):
        return output[0]
    keys = f" with {first(map(repr, output), 12)}" if isinstance(output, Mapping) else ""
    raise InputError(
        f"the model gave a {type(output).__name__}{keys}; expected a tensor, a tuple that starts "
        f"with one, or an object with {' or '.join(names)}"
    )
