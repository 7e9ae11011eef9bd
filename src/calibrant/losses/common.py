"""What losses share: rows of logits and labels of any shape, and how they are reduced.

Dense (N,K,...) logits are viewed as (N,K,L), never copied: the classes are dimension 1 of
every tensor here, and a number a row has the shape (N,) or (N,L). Nothing selects rows by a
mask or reads a value back, so that a loss compiles to one graph and never waits for the
device; rows to be ignored are kept and weigh nothing. On a fast device a small batch costs what
its operations cost to launch: what several losses need is computed when first asked for, once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import torch
from torch import Tensor
from torch.nn import functional as F

from calibrant.functional.errors import InputError, first

IGNORED = -100  # torch.nn's default
REDUCTIONS = ("none", "mean", "sum")


class Rows:
    """Logits and labels, in at least float32; what follows from them, once it is asked for."""

    def __init__(
        self,
        logits: Tensor,
        labels: Tensor | None,
        soft: Tensor | None,
        ignore_index: int,
        shape: tuple[int, ...],
    ) -> None:
        self.logits = logits  # (N,K) or (N,K,L)
        self.shape = shape  # (N,...), of a number a row as the caller sees them
        self.labels = labels  # (N,) or (N,L), as given; None where targets are soft
        self.soft = soft  # class-probability targets, of the shape of the logits
        self.ignore_index = ignore_index
        self._log_probs: Tensor | None = None
        self._top: tuple[Tensor, Tensor] | None = None
        self._cost: Tensor | None = None
        self._counts: Tensor | None = None
        self._number: Tensor | None = None

    @property
    def log_probs(self) -> Tensor:
        """ln p, of the shape of the logits."""
        if self._log_probs is None:
            self._log_probs = torch.log_softmax(self.logits, dim=1)
        return self._log_probs

    @property
    def top(self) -> tuple[Tensor, Tensor]:
        """The largest ln p and its class ŷ, a number a row."""
        if self._top is None:
            values, classes = largest(self.log_probs)
            self._top = values, classes
        return self._top

    @property
    def cost(self) -> Tensor:
        """−ln p_y of class indices, a number a row; 0, and no gradient, where ignored."""
        if self._cost is None:
            assert self.labels is not None
            self._cost = F.nll_loss(
                self.log_probs, self.labels, ignore_index=self.ignore_index, reduction="none"
            )
        return self._cost

    @property
    def counts(self) -> Tensor:
        """Which rows are not ignored: (N,) or (N,L), bool."""
        if self._counts is None:
            if self.labels is None:
                self._counts = torch.ones_like(self.logits[:, 0], dtype=torch.bool)
            else:
                self._counts = self.labels != self.ignore_index
        return self._counts

    @property
    def number(self) -> Tensor | int:
        """How many rows are not ignored, at least 1."""
        if self.labels is None:
            return self.logits.numel() // self.logits.shape[1]
        if self._number is None:
            self._number = self.counts.sum().clamp_min(1)
        return self._number

    @property
    def places(self) -> Tensor:
        """The labels, 0 where ignored: to look up by."""
        assert self.labels is not None
        return (
            self.labels if 0 <= self.ignore_index < self.logits.shape[1] else self.kept(self.labels)
        )

    def kept(self, values: Tensor, other: float = 0) -> Tensor:
        """A value a row, ``other`` where ignored."""
        return values if self.labels is None else values.where(self.counts, other)


Input: TypeAlias = Tensor | Rows  # `compose` hands the parts of a sum the same rows


def rows_of(input: Input, target: Tensor, ignore_index: int = IGNORED) -> Rows:
    """Rows of (N,K,...) logits with (N,...) class indices or (N,K,...) class probabilities."""
    if isinstance(input, Rows):
        return input
    check(input, target, ignore_index)
    logits, shape = at_least_float32(input), (input.shape[0], *input.shape[2:])
    if target.is_floating_point():
        soft = target.to(logits.dtype).reshape(logits.shape)
        return Rows(logits, None, soft, ignore_index, shape)
    labels = target.long().reshape(logits[:, 0].shape)
    return Rows(logits, labels, None, ignore_index, shape)


def at_least_float32(input: Tensor) -> Tensor:
    """Logits in float32 or float64, their places flattened."""
    logits = input.float() if input.dtype in (torch.float16, torch.bfloat16) else input
    return logits.flatten(2) if logits.ndim > 2 else logits


def pick(table: Tensor, index: Tensor) -> Tensor:
    """table[n, index[n]] along the classes: a number a row."""
    if torch.compiler.is_compiling():
        return torch.where(is_place(table, index), table, 0).sum(1)
    return table.gather(1, index.unsqueeze(1)).squeeze(1)


def largest(table: Tensor) -> tuple[Tensor, Tensor]:
    """The largest of each row and its place, to which its gradient goes."""
    if torch.compiler.is_compiling():
        place = table.detach().argmax(1)
        return pick(table, place), place
    value, place = table.max(1)
    return value, place


def is_place(table: Tensor, index: Tensor) -> Tensor:
    """1[k = index[n]], of the table's shape.

    What is compiled has this in place of `gather` and `max`, whose gradients are scattered:
    for a few classes torch 2.13's compiler reads what they scatter before it is written.
    """
    classes = torch.arange(table.shape[1], device=table.device)
    return classes.reshape(1, -1, *[1] * (table.ndim - 2)) == index.unsqueeze(1)


def expected(rows: Rows, value: Callable[[Tensor], Tensor], weight: Tensor | None = None) -> Tensor:
    """A loss of the true class's −ln p, a value a row: of soft labels its expectation.

    ``weight`` is a weight a class, as in `torch.nn.CrossEntropyLoss`.
    """
    if rows.labels is not None:
        return weigh(value(rows.cost), rows, weight)
    assert rows.soft is not None
    table = rows.soft if weight is None else rows.soft * _by_class(rows, weight)
    return (table * value(-rows.log_probs)).sum(1)


def weigh(values: Tensor, rows: Rows, weight: Tensor | None) -> Tensor:
    """A value a row times its class's weight w_y; of soft labels, times Σ_k w_k q_k."""
    return values if weight is None else values * _row_weights(rows, weight)


def correctness(rows: Rows) -> tuple[Tensor, Tensor]:
    """Confidence c = max p and a = 1[ŷ = y] a row; of soft labels, a is the label's share of ŷ.

    Of class indices a is a bool, and false in rows to be ignored unless they are called a class.
    """
    best, predicted = rows.top
    if rows.labels is not None:
        return best.exp(), predicted == rows.labels
    assert rows.soft is not None
    return best.exp(), pick(rows.soft, predicted)


def label_table(rows: Rows) -> Tensor:
    """1[k = y] or the soft labels, of the shape of the logits."""
    if rows.soft is not None:
        return rows.soft
    if torch.compiler.is_compiling():
        return is_place(rows.logits, rows.places).to(rows.logits.dtype)
    table = torch.zeros_like(rows.logits)
    return table.scatter(1, rows.places.unsqueeze(1), 1.0)


def less_labels(table: Tensor, rows: Rows) -> Tensor:
    """A table of the shape of the logits less 1[k = y] or the soft labels, without another one."""
    if rows.soft is not None:
        return table - rows.soft
    if torch.compiler.is_compiling():
        return table - label_table(rows)
    place = rows.places.unsqueeze(1)
    return table.scatter_add(1, place, table.new_full((), -1.0).expand_as(place))


def negative_entropy(rows: Rows) -> Tensor:
    """−h = Σ_k p_k ln p_k in nats, a number a row; finite, as is its gradient."""
    return (rows.log_probs.exp() * rows.log_probs).sum(1)


def row_mean(values: Tensor, rows: Rows) -> Tensor:
    """The mean over rows that count; 0 where none does."""
    return rows.kept(values).sum() / rows.number


def reduce(values: Tensor, rows: Rows, reduction: str, weight: Tensor | None = None) -> Tensor:
    """One value a row (N,...), 0 where ignored, or their mean or sum; ignored rows do not count.

    Where the values carry class weights, ``weight`` is given again: as in
    `torch.nn.CrossEntropyLoss`, the mean is over the weights of class indices, and over the
    number of rows of soft labels.
    """
    check_reduction(reduction)
    if reduction == "none":
        return values.reshape(rows.shape)
    if reduction == "sum":
        return values.sum()
    if weight is None or rows.labels is None:
        return values.sum() / rows.number
    return values.sum() / positive(rows.kept(_row_weights(rows, weight)).sum())


def positive(total: Tensor) -> Tensor:
    """A number to divide by: 1 where nothing is to be divided."""
    return total.where(total > 0, torch.ones_like(total))


def check_reduction(reduction: str) -> str:
    """The reduction, if there is one of that name."""
    if reduction not in REDUCTIONS:
        raise InputError(f"reduction is one of {', '.join(REDUCTIONS)}, found {reduction!r}")
    return reduction


def batch_value(value: Tensor, rows: Rows, reduction: str) -> Tensor:
    """The value of a whole batch: itself for the mean, times the rows that count for the sum."""
    if reduction == "none":
        raise InputError(
            "a loss of a whole batch has no value for each sample: reduction is mean or sum"
        )
    if reduction not in REDUCTIONS:
        raise InputError(f"reduction is mean or sum, found {reduction!r}")
    return value * rows.number if reduction == "sum" else value


def class_weights(logits: Tensor, weight: Tensor) -> Tensor:
    """The weights where the logits are, one a class."""
    weight = torch.as_tensor(weight)
    if weight.shape != logits.shape[1:2]:
        raise InputError(
            f"weight needs one number for each of the {logits.shape[1]} classes, found "
            f"shape {tuple(weight.shape)}"
        )
    return weight.to(logits)


def _by_class(rows: Rows, weight: Tensor) -> Tensor:
    """The weights, shaped to stand beside logits."""
    return class_weights(rows.logits, weight).reshape(-1, *[1] * (rows.logits.ndim - 2))


def _row_weights(rows: Rows, weight: Tensor) -> Tensor:
    weights = _by_class(rows, weight)
    if rows.labels is not None:
        return weights.reshape(-1)[rows.places]
    assert rows.soft is not None
    return (rows.soft * weights).sum(1)


def check(input: Tensor, target: Tensor, ignore_index: int) -> None:
    """Say what is wrong with logits or labels."""
    for name, one in (("logits", input), ("labels", target)):
        if not isinstance(one, Tensor):
            raise InputError(f"{name} must be a tensor, found {type(one).__name__}")
    if not input.is_floating_point():
        raise InputError(f"logits must be floating point, found {input.dtype}")
    if input.ndim < 2 or input.shape[1] < 2:
        raise InputError(
            f"logits must have shape (N,K,...) with at least 2 classes, found "
            f"{tuple(input.shape)}; for a binary score z give the two columns 0 and z"
        )
    if input.numel() == 0:
        raise InputError(f"no rows: logits have shape {tuple(input.shape)}")
    wanted = input.shape if target.is_floating_point() else (input.shape[0], *input.shape[2:])
    if tuple(target.shape) != tuple(wanted):
        kind = "class probabilities" if target.is_floating_point() else "class indices"
        raise InputError(
            f"logits of shape {tuple(input.shape)} want {kind} of shape {tuple(wanted)}, found "
            f"{tuple(target.shape)}"
        )
    # Reading values would wait for a device, and break a graph: only eager CPU rows are read.
    if target.is_floating_point() or input.device.type != "cpu" or torch.compiler.is_compiling():
        return
    target = target.long()  # a byte would take ignore_index for a label of its own
    low, high = target.aminmax()
    if int(low) < 0 or int(high) >= input.shape[1]:
        wrong = (target != ignore_index) & ((target < 0) | (target >= input.shape[1]))
        if bool(wrong.any()):
            raise InputError(
                f"labels must lie in 0..{input.shape[1] - 1} or be ignore_index={ignore_index}, "
                f"found {first(target[wrong].tolist())}"
            )
