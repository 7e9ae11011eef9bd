"""Sums of a primary loss and weighted secondary losses."""

from __future__ import annotations

import math
import warnings
from typing import Any

import torch
from torch import Tensor, nn

from calibrant.core.errors import InputError
from calibrant.losses.base import Loss
from calibrant.losses.common import Input, rows_of
from calibrant.losses.history import CorrectnessHistory

# Pairs that did not learn, or were far off, in a pilot (CIFAR-100, ResNet-18, 30 epochs), with the
# least β at which they were.
FRAGILE = {
    ("brier", "sb_ece"): (0.3, "lost nine points of accuracy at 0.3, and did not learn at 1"),
    ("focal", "avuc"): (1.0, "had an ECE of 58% at 1; avuc_gs and s_avuc are steadier"),
}


class Composed(nn.Module):
    """The loss primary + Σ β · secondary, in one reduction.

    Args:
        primary: The primary loss.
        terms: ``(β, secondary)`` pairs, with the primary loss's reduction and ignore_index.
    """

    needs_index: bool

    def __init__(self, primary: Loss, *terms: tuple[float, Loss]) -> None:
        super().__init__()
        _check(primary, terms)
        for beta, term in terms:
            least, why = FRAGILE.get((primary.name, term.name), (math.inf, ""))
            if beta >= least:
                warnings.warn(
                    f"{primary.name} + {beta:g}·{term.name} is fragile: in a pilot it {why}. Use a "
                    "smaller weight, or choose it on validation rows",
                    stacklevel=3,
                )
        self.primary = primary
        self.betas = tuple(float(beta) for beta, _ in terms)
        self.secondaries = nn.ModuleList(term for _, term in terms)
        parts = (primary, *self._terms())
        self.needs_index = any(part.needs_index for part in parts)
        # Losses of this package can share the rows that one of them has made, and so can others
        # that leave rows to the base class.
        self._shares = all(
            type(part).__module__.startswith(__package__) or type(part).forward is Loss.forward
            for part in parts
        )

    @property
    def history(self) -> CorrectnessHistory | None:
        """Return the history of training samples that a part keeps; None if none does."""
        kept = (getattr(part, "history", None) for part in (self.primary, *self._terms()))
        return next((history for history in kept if history is not None), None)

    @property
    def local_batch(self) -> bool:
        """Return whether a part sees only the rows of its process, under data parallelism."""
        return any(part.local_batch for part in (self.primary, *self._terms()))

    def forward(self, input: Tensor, target: Tensor, *, index: Tensor | None = None) -> Tensor:
        """Compute the sum; ``index`` gives each row's training sample, for parts that need it."""
        rows = self._rows(input, target)
        value = _call(self.primary, rows, target, index)
        for beta, term in zip(self.betas, self._terms(), strict=True):
            value = torch.add(value, _call(term, rows, target, index), alpha=beta)
        return value

    def added(self, input: Tensor, target: Tensor, *, index: Tensor | None = None) -> Tensor:
        """Compute Σ β · secondary alone."""
        rows = self._rows(input, target)
        values = [
            beta * _call(term, rows, target, index)
            for beta, term in zip(self.betas, self._terms(), strict=True)
        ]
        if not values:
            return input.new_zeros(())
        return torch.stack(values).sum() if len(values) > 1 else values[0]

    def parts(self, input: Tensor, target: Tensor, **extra: Any) -> dict[str, Tensor]:
        """Compute each part without its β, for a log; a repeated name gets a number after it."""
        index = extra.get("index")
        values: dict[str, Tensor] = {}
        with torch.no_grad():
            for part in (self.primary, *self._terms()):
                again = sum(part.name == name.split(" ")[0] for name in values)
                name = f"{part.name} {again + 1}" if again else part.name
                values[name] = _call(part, input, target, index)
        return values

    def extra_repr(self) -> str:
        """Show the weights."""
        return f"betas={self.betas}"

    def _rows(self, input: Tensor, target: Tensor) -> Input:
        return rows_of(input, target, self.primary.ignore_index) if self._shares else input

    def _terms(self) -> list[Loss]:
        return list(self.secondaries)  # type: ignore[arg-type]


def compose(primary: Loss, *terms: tuple[float, Loss]) -> Composed:
    """Add secondary losses to a primary one: primary + β · secondary + ...

    Args:
        primary: The primary loss.
        terms: ``(β, secondary)`` pairs, with the primary loss's reduction and ignore_index.
    """
    return Composed(primary, *terms)


def _call(part: Loss, input: Input, target: Tensor, index: Tensor | None) -> Tensor:
    if part.needs_index:
        value: Tensor = part(input, target, index=index)
        return value
    value = part(input, target)
    return value


def _check(primary: Loss, terms: tuple[tuple[float, Loss], ...]) -> None:
    if getattr(primary, "kind", None) != "primary":
        raise InputError(
            f"the first loss must be a primary one, such as CrossEntropy(), found {primary!r}"
        )
    for term in terms:
        if not (isinstance(term, tuple) and len(term) == 2 and isinstance(term[1], Loss)):
            raise InputError(f"secondary losses must be (beta, loss) pairs, found {term!r}")
        beta, loss = term
        if loss.kind != "secondary":
            raise InputError(f"{loss.name} is a primary loss and cannot be added to another")
        if not isinstance(beta, (int, float)) or not abs(beta) < float("inf"):
            raise InputError(f"beta must be a finite number, found {beta!r} for {loss.name}")
        if loss.ignore_index != primary.ignore_index or loss.reduction != primary.reduction:
            raise InputError(
                f"{loss.name} has ignore_index={loss.ignore_index} and "
                f"reduction={loss.reduction!r}, but {primary.name} has {primary.ignore_index} and "
                f"{primary.reduction!r}: give both the same"
            )
