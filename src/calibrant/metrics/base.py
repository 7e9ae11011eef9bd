"""Metrics: one or more streaming states, and a value computed from them.

A *state* takes in blocks of rows (`update`), merges with another state of its kind (`merge`)
and holds either sums, of fixed size, or lists of values of each row. A *measure* names the
states it needs and turns them into one number. Measures that need the same state share it,
so several metrics cost one pass.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields
from functools import cache
from typing import Any, ClassVar, Literal, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from calibrant.core.errors import InputError, UndefinedFigureError
from calibrant.functional.arrays import Array
from calibrant.functional.blocks import Block, blocks, find_view, warn_of_probabilities

S = TypeVar("S", bound="State")
_NO_ROWS = "no rows were seen: none were given, or all were ignored"
_MIXED = "some batches had weights and some had none: give weights of all rows, or of none"


class State:
    """A streaming state. Subclasses are dataclasses of options, with tensors that they fill.

    ``sums`` names the tensors that merge by addition. ``lists`` names the lists of tensors,
    one tensor a block, that merge by concatenation: their memory grows with the rows.
    """

    sums: ClassVar[tuple[str, ...]] = ()
    lists: ClassVar[tuple[str, ...]] = ()
    num_labels: ClassVar[int | None] = None  # 2 where labels are not classes
    weighted: ClassVar[bool] = False  # whether `update` minds the weights of a block

    def update(self, block: Block) -> None:
        """Add one block of rows."""
        raise NotImplementedError

    def merge(self: S, other: S) -> S:
        """Add all rows of another state of the same options."""
        if self.options() != other.options():
            raise InputError(f"cannot merge {self!r} with {other!r}: their options differ")
        for name in self.sums:
            mine, theirs = getattr(self, name), getattr(other, name)
            if mine is None or theirs is None:
                setattr(self, name, mine if theirs is None else theirs)
            elif mine.shape != theirs.shape:
                raise InputError(
                    f"cannot merge states of {tuple(mine.shape)} and {tuple(theirs.shape)}: "
                    "the numbers of classes differ"
                )
            else:
                setattr(self, name, mine + theirs.to(mine.device))
        for name in self.lists:
            getattr(self, name).extend(getattr(other, name))
        return self

    def options(self) -> tuple[Any, ...]:
        """Return the options; states of equal options are interchangeable."""
        return (type(self), *(getattr(self, name) for name in _option_names(type(self))))  # type: ignore[arg-type]

    def concatenate(self, name: str) -> Tensor:
        """Return the list of this name as one tensor."""
        parts = getattr(self, name)
        if not parts:
            raise InputError(_NO_ROWS)
        if len(parts) > 1:
            parts[:] = [torch.cat([part.to(parts[0].device) for part in parts])]
        whole: Tensor = parts[0]
        return whole

    def append(self, name: str, values: Tensor) -> None:
        """Add values of rows to a list.

        Parts of equal size are joined on the way: very many small ones would hold on to twice
        the memory of the whole when that is made of them.
        """
        parts = getattr(self, name)
        parts.append(values)
        while len(parts) > 1 and 0 < len(parts[-2]) <= len(parts[-1]) and _may_join(*parts[-2:]):
            parts[-2:] = [torch.cat(parts[-2:])]

    def row_weights(self) -> Tensor | None:
        """Return the weight of each row, or None if all rows count the same."""
        if not getattr(self, "weights", None):
            return None
        weights, rows = self.concatenate("weights"), sum(map(len, getattr(self, self.lists[0])))
        if len(weights) != rows:
            raise InputError(f"{_MIXED}; found weights of {len(weights):,} rows of {rows:,}")
        return weights

    def add(self, name: str, value: Tensor) -> None:
        """Add to a sum; the first value sets its shape and device."""
        total = getattr(self, name)
        if total is not None and total.ndim and total.shape != value.shape:
            raise InputError(
                f"the number of classes changed between updates: {total.shape[0]}, then "
                f"{value.shape[0]}"
            )
        setattr(self, name, value if total is None else total + value.to(total.device))

    def total(self, name: str) -> Tensor:
        """Return a sum; raise if no rows were added."""
        value: Tensor | None = getattr(self, name)
        if value is None:
            raise InputError(_NO_ROWS)
        return value


@cache
def _option_names(kind: Any) -> tuple[str, ...]:
    return tuple(f.name for f in fields(kind) if f.init)


def _may_join(first: Tensor, second: Tensor) -> bool:
    return first.dtype == second.dtype and first.device == second.device


@dataclass(frozen=True)
class Measure:
    """A named number computed from streaming states.

    Args:
        name: The name of the metric.
        states: Makers of the empty states that the number is computed from.
        compute: Turns the filled states into the number.
        better: Whether a lower or a higher number is better.
        kind: How `calibrant.evaluate` finds its interval: ``mean`` of one quantity of each row,
            ``selective`` (a smooth function of ranked rows), ``calibration`` (an error that
            noise biases upward; see `calibration_measure`), ``test`` (a p-value, which has none)
            or ``other``.
        cells: See `calibration_measure`.
        error: See `calibration_measure`.
        population: See `calibration_measure`.
        additive: See `calibration_measure`.
        interval: Computes (low, high) from a state and a level, for a measure with an interval
            of its own.
        views: What it can judge: the predicted class (``top``), ``events``, or both.
        influence: Computes each row's influence on the value from the state, for an interval in
            closed form.
        group_influence: Computes the same once for all rows of equal score and outcome, and their
            numbers; None where they are not known. For rows without weights.
        weighted: Whether the value of rows with weights is defined, if all states mind weights.
        label: What tables call it; the registered label if empty.
    """

    name: str
    states: tuple[Callable[[], State], ...]
    compute: Callable[..., Tensor]
    better: Literal["lower", "higher", "neither"] = "lower"
    kind: Literal["mean", "selective", "calibration", "test", "other"] = "other"
    cells: Callable[[Any], Tensor] | None = None
    error: Callable[[Tensor], Tensor] | None = None
    population: Callable[[Tensor], Tensor] | None = None
    additive: bool = False
    interval: Callable[[Any, float], tuple[float, float]] | None = None
    views: tuple[str, ...] = ("top", "events")
    influence: Callable[[Any], NDArray[np.float64]] | None = None
    group_influence: (
        Callable[[Any], tuple[NDArray[np.float64], NDArray[np.float64]] | None] | None
    ) = None
    weighted: bool = True
    label: str = ""

    def build(self) -> tuple[State, ...]:
        """Make empty states."""
        return tuple(make() for make in self.states)

    def check_weights(self, seen: set[bool]) -> None:
        """Raise if rows with weights cannot be measured, or only some batches have weights.

        Args:
            seen: Whether batches so far had weights.
        """
        if len(seen) > 1:
            raise InputError(_MIXED)
        if not (self.weighted and all(state.weighted for state in self.build())):
            raise InputError(
                f"{self.name} is not defined for rows with weights: leave {self.name} out, or the "
                "weights"
            )


def calibration_measure(
    name: str,
    state: Callable[[], State],
    cells: Callable[[Any], Tensor],
    error: Callable[[Tensor], Tensor],
    *,
    population: Callable[[Tensor], Tensor] | None = None,
    compute: Callable[[Any], Tensor] | None = None,
    views: tuple[str, ...] = ("top", "events"),
    weighted: bool = True,
    additive: bool = False,
) -> Measure:
    """Make the measure of a calibration error, a function of cells of rows.

    Args:
        name: The name of the metric.
        state: Makes the empty state.
        cells: Computes (..., 3) from the state: rows, sum of confidence and sum of correctness
            of each cell.
        error: Turns many sets of cells, (R, ..., 3), into (R,) errors.
        population: The error without correction for noise, where ``error`` corrects for it.
        compute: Replaces ``error(cells(state))`` where the cells are an approximation.
        views: What it can judge: the predicted class (``top``), ``events``, or both.
        weighted: Whether the value of rows with weights is defined.
        additive: Whether ``error`` is proportional to Σ |confidence − correctness| over cells.
    """

    def whole(state: Any) -> Tensor:
        return error(cells(state))

    return Measure(
        name,
        (state,),
        compute or whole,
        kind="calibration",
        cells=cells,
        error=error,
        population=population,
        views=views,
        weighted=weighted,
        additive=additive,
    )


def compute_all(
    measures: Sequence[Measure],
    batches: Iterable[tuple[Array, Array | None] | tuple[Array, Array | None, Array | None]],
    *,
    from_logits: bool = True,
    ignore_index: int | None = None,
    extra: Sequence[State] = (),
    positive: int | None = None,
    absent: bool = False,
    allow_undefined: bool = False,
) -> list[Tensor]:
    """Compute several measures in one pass over the batches.

    Args:
        measures: The measures.
        batches: Scores and labels, and weights where rows have them.
        from_logits: Whether the scores are logits (else probabilities).
        ignore_index: The label of rows to leave out.
        extra: More states to fill.
        positive: Judge rows as events of this class; None judges the predicted class.
        absent: Allow logits of −inf, which mark options that a row does not have.
        allow_undefined: Give NaN where a figure has no value on these rows, instead of an error.
    """
    shared: dict[tuple[Any, ...], State] = {state.options(): state for state in extra}
    needed: list[list[State]] = []
    for measure in measures:
        built = [shared.setdefault(state.options(), state) for state in measure.build()]
        needed.append(built)
    label_bounds = {state.num_labels for state in shared.values()}
    if len(label_bounds) > 1:
        raise InputError(
            "metrics of classes and metrics of in- and out-of-distribution rows take different "
            "labels: compute them in two calls"
        )
    states = list(shared.values())
    seen: set[bool] = set()
    for preds, target, *weights in batches:
        seen.add(bool(weights) and weights[0] is not None)
        if True in seen:
            for measure in measures:
                measure.check_weights(seen)
        for block in blocks(
            preds,
            target,
            weights=weights[0] if weights else None,
            positive=positive,
            absent=absent,
            from_logits=from_logits,
            ignore_index=ignore_index,
            num_labels=next(iter(label_bounds), None),
            nll_only=all(getattr(state, "quantity", None) == "nll" for state in states),
        ):
            for state in states:
                state.update(block)
    values = []
    for measure, built in zip(measures, needed, strict=True):
        try:
            values.append(measure.compute(*built))
        except UndefinedFigureError:
            if not allow_undefined:
                raise
            values.append(torch.tensor(float("nan"), dtype=torch.float64))
    return values


def compute_one(
    measure: Measure,
    preds: Array,
    target: Array | None,
    *,
    from_logits: bool = True,
    ignore_index: int | None = None,
    view: str | None = "top",
    pos_label: int | None = None,
    weights: Array | None = None,
) -> Any:
    """Compute one measure of arrays in memory: NumPy in, NumPy out; torch in, torch out."""
    if from_logits:
        warn_of_probabilities(preds, stacklevel=3)
    shape = tuple(preds.shape) if hasattr(preds, "shape") else np.shape(preds)
    (value,) = compute_all(
        [measure],
        [(preds, target, weights)],
        from_logits=from_logits,
        ignore_index=ignore_index,
        positive=find_view(shape, view, pos_label),
    )
    return value if isinstance(preds, Tensor) else np.float64(value.item())


def check_choice(name: str, value: str, allowed: Sequence[str]) -> str:
    """Return the value if it is allowed; raise an error that lists the allowed ones if not."""
    if value not in allowed:
        raise InputError(f"{name} must be one of {', '.join(allowed)}; found {value!r}")
    return value


def check_order(order: float) -> float:
    """Return the order p of a calibration error if it is finite and at least 1."""
    if not 1 <= order < float("inf"):
        raise InputError(
            f"order must be a finite number of at least 1, found {order!r}; mce is the largest gap"
        )
    return float(order)
