"""Running a model over a loader and gathering what it says."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from calibrant.functional.errors import InputError, first

_TARGET_KEYS = ("label", "labels", "target", "targets")


def collect(
    model: Callable[..., Any],
    loader: Iterable[Any],
    *,
    device: str | torch.device | None,
    progress: bool,
    outputs: str,
) -> tuple[Tensor, Tensor]:
    """Scores and labels of every batch, on the CPU."""
    if not callable(model):
        raise InputError(f"model must be callable, found {type(model).__name__}")
    expected = _expected_rows(loader)
    all_scores, all_labels = _Rows("outputs", expected), _Rows("labels", expected)
    with ExitStack() as stack:
        place = stack.enter_context(_placed(model, device))
        stack.enter_context(_evaluating(model))
        for batch in stack.enter_context(_bar(loader, shown=progress)):
            inputs, target = _inputs_and_target(batch)
            with torch.inference_mode():
                scores = _scores_of(_call(model, _moved(inputs, place)), outputs)
            labels = torch.as_tensor(target)
            if scores.ndim == 2 and scores.shape[1] == 1:
                scores = scores.squeeze(1)
            if scores.ndim == 0 or labels.ndim == 0 or len(scores) != len(labels):
                raise InputError(
                    f"the model gave outputs of shape {tuple(scores.shape)} for labels of shape "
                    f"{tuple(labels.shape)}: a row for each label was expected"
                )
            all_scores.add(scores)
            all_labels.add(labels)
    if all_scores.count == 0:
        raise InputError("the loader is empty: it gave no batches")
    return all_scores.result(), all_labels.result()


class _Rows:
    """Rows gathered into one buffer that is never held twice when their number is known.

    The memory of a buffer larger than needed is not touched, so the guess may be generous.
    """

    def __init__(self, what: str, expected: int | None) -> None:
        self._what, self._expected = what, expected
        self._buffer: Tensor | None = None
        self.count = 0

    def add(self, rows: Tensor) -> None:
        # Memory made in inference mode could never take part in fitting a calibrator.
        with torch.inference_mode(False), torch.no_grad():
            if self._buffer is None:
                size = max(self._expected or 0, len(rows))
                self._buffer = torch.empty((size, *rows.shape[1:]), dtype=rows.dtype)
            if rows.shape[1:] != self._buffer.shape[1:] or rows.dtype != self._buffer.dtype:
                raise InputError(
                    f"{self._what} change from one batch to the next: first {self._buffer.dtype} "
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
        assert self._buffer is not None
        with torch.inference_mode(False):
            return self._buffer[: self.count]


def _expected_rows(loader: Iterable[Any]) -> int | None:
    try:
        return len(loader.dataset)  # type: ignore[attr-defined]
    except (AttributeError, TypeError, NotImplementedError):
        return None


@contextmanager
def _evaluating(model: Any) -> Iterator[None]:
    """Evaluation mode, and every submodule's own mode restored whatever happens."""
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
def _placed(model: Any, device: str | torch.device | None) -> Iterator[torch.device | None]:
    """The model on the device asked for, and back where it was; None: inputs stay too."""
    try:
        wanted = None if device is None else torch.device(device)
    except RuntimeError as error:
        raise InputError(f"unknown device {device!r}: {str(error).splitlines()[0]}") from error
    if not isinstance(model, nn.Module):
        yield wanted
        return
    homes = list(dict.fromkeys(t.device for t in (*model.parameters(), *model.buffers())))
    if wanted is None or not homes:
        # A model spread over several devices takes its inputs on the first.
        yield homes[0] if homes else wanted
        return
    if len(homes) > 1:
        raise InputError(
            f"the model is spread over {first(homes)}: leave device out, or move it first"
        )
    try:
        try:
            model.to(wanted)
        except (RuntimeError, AssertionError) as error:
            told = str(error).splitlines()[0]
            raise InputError(f"device {str(wanted)!r} cannot be used here: {told}") from error
        yield wanted
    finally:
        model.to(homes[0])


@contextmanager
def _bar(loader: Iterable[Any], *, shown: bool) -> Iterator[Iterable[Any]]:
    """The loader, with a progress bar on stderr where that is a terminal."""
    if not shown or not sys.stderr.isatty():
        yield loader
        return
    from rich.console import Console
    from rich.progress import Progress

    try:
        total: int | None = len(loader)  # type: ignore[arg-type]
    except (TypeError, NotImplementedError):
        total = None
    with Progress(console=Console(stderr=True), transient=True) as bar:
        yield bar.track(loader, total=total, description="Predicting")


def _inputs_and_target(batch: Any) -> tuple[Any, Any]:
    if isinstance(batch, Mapping):
        keys = [key for key in _TARGET_KEYS if key in batch]
        if len(keys) != 1:
            raise InputError(
                f"a batch must have its labels under one of {', '.join(_TARGET_KEYS)}; "
                f"found keys {first(map(repr, batch), 12)}"
            )
        return {key: value for key, value in batch.items() if key != keys[0]}, batch[keys[0]]
    if isinstance(batch, (tuple, list)) and len(batch) == 2:
        return batch[0], batch[1]
    size = f" of {len(batch)}" if isinstance(batch, (tuple, list)) else ""
    raise InputError(
        f"the loader must give (input, target) pairs or dicts with a label, "
        f"found {type(batch).__name__}{size}"
    )


def _moved(value: Any, device: torch.device | None) -> Any:
    if device is None:
        return value
    if isinstance(value, Tensor):
        return value.to(device, non_blocking=True)
    if isinstance(value, Mapping):
        return {key: _moved(item, device) for key, item in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(_moved(item, device) for item in value))
    if isinstance(value, (tuple, list)):
        return type(value)(_moved(item, device) for item in value)
    return value


def _call(model: Callable[..., Any], inputs: Any) -> Any:
    """A dict's items go by name to a model that knows the names, else its only item by place."""
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
        f"name them alike, or give (input, target) pairs"
    )


def _scores_of(output: Any, kind: str) -> Tensor:
    names = ("probs", "probabilities", "out") if kind == "probs" else ("logits", "out")
    if isinstance(output, Tensor):
        return output
    for name in names:
        found = output.get(name) if isinstance(output, Mapping) else getattr(output, name, None)
        if isinstance(found, Tensor):
            return found
    if isinstance(output, (tuple, list)) and output and isinstance(output[0], Tensor):
        return output[0]
    held = f" with {first(map(repr, output), 12)}" if isinstance(output, Mapping) else ""
    raise InputError(
        f"the model gave a {type(output).__name__}{held}; expected a tensor, a tuple that starts "
        f"with one, or something that has {' or '.join(names)}"
    )
