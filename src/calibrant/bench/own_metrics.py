"""A metric of one's own that is a plain function of all rows."""

from __future__ import annotations

import inspect
import math
import traceback
from collections.abc import Callable
from typing import Any, Literal, cast, get_args

import torch
from torch import Tensor

from calibrant.functional.errors import InputError
from calibrant.metrics.base import Measure
from calibrant.metrics.classwise import ProbState

Better = Literal["lower", "higher", "neither"]


def maker(name: str, given: Callable[..., Any], better: str | None) -> Callable[..., Measure]:
    """What makes the measure: ``given`` itself, or one of ``given(probs, target)``.

    The two are told apart by what they must be given: a maker nothing, a function of rows two.
    """
    if better is not None and better not in get_args(Better):
        raise InputError(f"better is one of {', '.join(get_args(Better))}, found {better!r}")
    must, by_place = _must_be_given(name, given)
    if len(must) == by_place == 2:
        return of_rows(name, given, cast(Better, better or "lower"))
    if must:
        raise InputError(
            f"the metric {name!r} is a function of two, (probs, target), whose further parameters "
            "have defaults, or a maker of a Measure, all of whose parameters have; found one that "
            f"must be given {', '.join(must)}"
        )
    if better is not None:
        raise InputError(f"the Measure of {name!r} says itself which way is better: drop better=")
    return given


def of_rows(name: str, function: Callable[..., Any], better: Better) -> Callable[..., Measure]:
    """A maker of the measure ``function(probs, target, **options)`` of all rows at once.

    Both are NumPy's: float64 probabilities (N,K), whose rows sum to one, and int64 labels (N,).
    """

    def make(**options: Any) -> Measure:
        inspect.signature(function).bind(None, None, **options)  # TypeError: no such option

        def compute(state: ProbState) -> Tensor:
            target = state.joined("targets")
            probs = state.columns(0, state.scores[0].shape[1])
            probs /= probs.sum(1, keepdim=True)
            given = probs.cpu().numpy(), target.long().cpu().numpy().copy()
            return torch.tensor(_called(name, function, given, options), dtype=torch.float64)

        return Measure(name, (ProbState,), compute, better=better)

    return make


def _called(
    name: str, function: Callable[..., Any], given: tuple[Any, Any], options: dict[str, Any]
) -> float:
    """The number it gives; what is wrong with it costs the run nothing else."""
    try:
        found = function(*given, **options)
    except Exception as error:
        home = getattr(getattr(function, "__code__", None), "co_filename", None)
        frames = traceback.extract_tb(error.__traceback__)
        lines = [one.lineno for one in frames if one.filename == home]
        where = f", line {lines[-1]}" if lines else ""
        raise InputError(f"the metric {name}{where}: {type(error).__name__}: {error}") from error
    try:
        value = float(found)
    except (TypeError, ValueError, RuntimeError):  # the last of a tensor of several
        shape = f" of shape {tuple(found.shape)}" if hasattr(found, "shape") else ""
        what = f"{type(found).__name__}{shape}"
        raise InputError(f"the metric {name} gave {what}: let it return one number") from None
    if math.isnan(value):
        raise InputError(f"the metric {name} gave NaN: let it say what is undefined in its place")
    return value


def _must_be_given(name: str, given: object) -> tuple[list[str], int]:
    """Parameters without a default, and how many of them are given by their place."""
    if not callable(given):
        raise InputError(f"the metric {name!r} is a function, found {given!r}")
    try:
        parameters = inspect.signature(given).parameters.values()
    except ValueError:
        raise InputError(
            f"what {given!r} takes cannot be seen: write def {name}(probs, target) around it"
        ) from None
    several = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    must = [one for one in parameters if one.default is one.empty and one.kind not in several]
    by_place = sum(one.kind is not one.KEYWORD_ONLY for one in must)
    return [one.name for one in must], by_place
