"""Make a streaming measure of a user's plain function of all rows."""

from __future__ import annotations

import inspect
import math
import traceback
from collections.abc import Callable
from typing import Any, Literal, cast, get_args

import torch
from torch import Tensor

from calibrant.core.errors import InputError
from calibrant.metrics.base import Measure
from calibrant.metrics.classwise import ProbState

Better = Literal["lower", "higher", "neither"]


def make_measure_maker(
    name: str, function: Callable[..., Any], better: str | None
) -> Callable[..., Measure]:
    """Return what makes the measure: ``function`` itself, or a maker around it.

    A maker needs no arguments; a function of rows needs two. That tells them apart.

    Args:
        name: The metric's name.
        function: A function of (probs, target), or a maker of a `Measure`.
        better: ``lower``, ``higher`` or ``neither``; None means lower.
    """
    if better is not None and better not in get_args(Better):
        raise InputError(f"better is one of {', '.join(get_args(Better))}, found {better!r}")
    needed, positional = _needed_parameters(name, function)
    if len(needed) == positional == 2:
        return _make_from_rows(name, function, cast(Better, better or "lower"))
    if needed:
        raise InputError(
            f"the metric {name!r} is a function of (probs, target), whose further parameters have "
            "defaults, or a maker of a Measure, all of whose parameters have defaults; found one "
            f"that needs {', '.join(needed)}"
        )
    if better is not None:
        raise InputError(f"the Measure of {name!r} says which way is better: drop better=")
    return function


def _make_from_rows(
    name: str, function: Callable[..., Any], better: Better
) -> Callable[..., Measure]:
    """Make a maker of the measure ``function(probs, target, **options)`` of all rows at once."""

    def make(**options: Any) -> Measure:
        inspect.signature(function).bind(None, None, **options)  # TypeError: no such option

        def compute(state: ProbState) -> Tensor:
            target = state.concatenate("targets")
            probs = state.columns(0, state.scores[0].shape[1])
            probs /= probs.sum(1, keepdim=True)
            arrays = probs.cpu().numpy(), target.long().cpu().numpy().copy()
            return torch.tensor(_call(name, function, arrays, options), dtype=torch.float64)

        return Measure(name, (ProbState,), compute, better=better)

    make.__module__, make.__doc__ = function.__module__, function.__doc__
    make.__qualname__ = getattr(function, "__qualname__", name)
    make.__signature__ = _signature_of_options(function)  # type: ignore[attr-defined]
    return make


def _signature_of_options(function: Callable[..., Any]) -> inspect.Signature:
    signature = inspect.signature(function)
    return signature.replace(parameters=list(signature.parameters.values())[2:])


def _call(
    name: str, function: Callable[..., Any], arrays: tuple[Any, Any], options: dict[str, Any]
) -> float:
    """Return the number the function gives; an error names the metric and the line."""
    try:
        result = function(*arrays, **options)
    except Exception as error:
        home = getattr(getattr(function, "__code__", None), "co_filename", None)
        frames = traceback.extract_tb(error.__traceback__)
        lines = [frame.lineno for frame in frames if frame.filename == home]
        where = f", line {lines[-1]}" if lines else ""
        raise InputError(f"the metric {name}{where}: {type(error).__name__}: {error}") from error
    try:
        value = float(result)
    except (TypeError, ValueError, RuntimeError):  # RuntimeError: a tensor of several values
        shape = f" of shape {tuple(result.shape)}" if hasattr(result, "shape") else ""
        kind = f"{type(result).__name__}{shape}"
        raise InputError(f"the metric {name} gave {kind}: return one number") from None
    if math.isnan(value):
        raise InputError(f"the metric {name} gave NaN: return a defined value instead")
    return value


def _needed_parameters(name: str, function: object) -> tuple[list[str], int]:
    """Return the parameters without a default, and how many of them are positional."""
    if not callable(function):
        raise InputError(f"the metric {name!r} is a function, found {function!r}")
    try:
        parameters = inspect.signature(function).parameters.values()
    except ValueError:
        raise InputError(
            f"the parameters of {function!r} are unknown: write def {name}(probs, target) around it"
        ) from None
    variable = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    needed = [p for p in parameters if p.default is p.empty and p.kind not in variable]
    return [p.name for p in needed], sum(p.kind is not p.KEYWORD_ONLY for p in needed)
