"""What a metric is: one or more streaming states, and a value computed from them.

A *state* is fed blocks of rows (`update`), joined with another of its kind (`merge`) and
holds either sums, of fixed size, or what was kept of each row. A *measure* names the
states it needs and turns them into one number. Measures that need the same state share
it, so that several figures cost one pass.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Literal, TypeVar

import numpy as np
import torch
from torch import Tensor

from calibrant.functional.blocks import Array, Block, blocks, warn_of_probabilities
from calibrant.functional.errors import InputError

S = TypeVar("S", bound="State")


class State:
    """A streaming state. Subclasses are dataclasses of options with tensors beside them.

    ``sums`` names attributes that merge by adding; ``kept`` names lists of tensors, one a
    block, that merge by joining: their memory grows with the number of rows.
    """

    sums: ClassVar[tuple[str, ...]] = ()
    kept: ClassVar[tuple[str, ...]] = ()
    num_labels: ClassVar[int | None] = None  # 2 where labels are not classes

    def update(self, block: Block) -> None:
        """Take in one block of rows."""
        raise NotImplementedError

    def merge(self: S, other: S) -> S:
        """Take in everything another state of the same options has seen."""
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
        for name in self.kept:
            getattr(self, name).extend(getattr(other, name))
        return self

    def options(self) -> tuple[Any, ...]:
        """The options that make two states interchangeable."""
        named = (getattr(self, f.name) for f in fields(self) if f.init)  # type: ignore[arg-type]
        return (type(self), *named)

    def joined(self, name: str) -> Tensor:
        """Everything kept under a name, as one tensor."""
        parts = getattr(self, name)
        if not parts:
            raise InputError("no rows were seen: nothing to compute (all ignored?)")
        if len(parts) > 1:
            parts[:] = [torch.cat([part.to(parts[0].device) for part in parts])]
        joined: Tensor = parts[0]
        return joined

    def add(self, name: str, value: Tensor) -> None:
        """Add to a sum, which takes its shape and device from what is first added."""
        total = getattr(self, name)
        if total is not None and total.ndim and total.shape != value.shape:
            raise InputError(
                f"the number of classes changed between updates: {total.shape[0]}, then "
                f"{value.shape[0]}"
            )
        setattr(self, name, value if total is None else total + value.to(total.device))

    def total(self, name: str) -> Tensor:
        """A sum, or an error where nothing was seen."""
        value: Tensor | None = getattr(self, name)
        if value is None:
            raise InputError("no rows were seen: nothing to compute (all ignored?)")
        return value


@dataclass(frozen=True)
class Measure:
    """A named number computed from streaming states.

    ``kind`` says how its uncertainty is found: ``mean`` of the rows of one quantity,
    ``selective`` (a smooth function of ranked rows), ``calibration`` (an error that noise
    biases upward; see `calibration_measure`), or ``other``. ``interval`` gives (low, high) of a
    state at a level where a measure has its own way.
    """

    name: str
    states: tuple[Callable[[], State], ...]
    compute: Callable[..., Tensor]
    better: Literal["lower", "higher", "neither"] = "lower"
    kind: Literal["mean", "selective", "calibration", "other"] = "other"
    cells: Callable[[Any], Tensor] | None = None
    error: Callable[[Tensor], Tensor] | None = None
    population: Callable[[Tensor], Tensor] | None = None
    interval: Callable[[Any, float], tuple[float, float]] | None = None

    def build(self) -> tuple[State, ...]:
        """Fresh, empty states."""
        return tuple(make() for make in self.states)


def calibration_measure(
    name: str,
    state: Callable[[], State],
    cells: Callable[[Any], Tensor],
    error: Callable[[Tensor], Tensor],
    *,
    population: Callable[[Tensor], Tensor] | None = None,
    compute: Callable[[Any], Tensor] | None = None,
) -> Measure:
    """A calibration error: a function of cells of rows.

    ``cells`` gives (..., 3) from the state: rows, sum of confidence and sum of correctness
    of each cell; ``error`` turns any number of such sets, (R, ..., 3), into (R,) errors.
    ``population`` is the error without correction for noise, where ``error`` has one, and
    ``compute`` replaces ``error(cells(state))`` where the cells are an approximation.
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
    )


def compute_all(
    measures: Sequence[Measure],
    batches: Iterable[tuple[Array, Array | None]],
    *,
    from_logits: bool = True,
    ignore_index: int | None = None,
    extra: Sequence[State] = (),
) -> list[Tensor]:
    """Compute several measures, and fill extra states, in one pass over the batches."""
    shared: dict[tuple[Any, ...], State] = {state.options(): state for state in extra}
    needed: list[list[State]] = []
    for measure in measures:
        built = [shared.setdefault(state.options(), state) for state in measure.build()]
        needed.append(built)
    label_bounds = {state.num_labels for state in shared.values()}
    if len(label_bounds) > 1:
        raise InputError("metrics of classes and of in-/out-of-distribution cannot be mixed")
    states = list(shared.values())
    for preds, target in batches:
        for block in blocks(
            preds,
            target,
            from_logits=from_logits,
            ignore_index=ignore_index,
            num_labels=next(iter(label_bounds), None),
            nll_only=all(getattr(state, "quantity", None) == "nll" for state in states),
        ):
            for state in states:
                state.update(block)
    return [m.compute(*built) for m, built in zip(measures, needed, strict=True)]


def compute_one(
    measure: Measure,
    preds: Array,
    target: Array | None,
    *,
    from_logits: bool = True,
    ignore_index: int | None = None,
) -> Any:
    """One measure of arrays in memory: NumPy in, NumPy out; torch in, torch out."""
    if from_logits:
        warn_of_probabilities(preds, stacklevel=3)
    (value,) = compute_all(
        [measure], [(preds, target)], from_logits=from_logits, ignore_index=ignore_index
    )
    return value if isinstance(preds, Tensor) else np.float64(value.item())


def choice(name: str, value: str, allowed: Sequence[str]) -> str:
    """One of a few words, or an error that lists them."""
    if value not in allowed:
        raise InputError(f"{name} must be one of {', '.join(allowed)}; found {value!r}")
    return value
