"""Tools of losses: rows of logits and labels of any shape, and the reduction of their values.

Dense (N,K,...) logits are viewed as (N,K,L), never copied: the classes are dimension 1 of
every tensor here, and a number per row has the shape (N,) or (N,L). Nothing selects rows by a
mask or reads a value back, so that a loss compiles to one graph and never waits for the
device; ignored rows are kept and have weight 0. On a fast device a small batch costs what its
operations cost to launch, so that what several losses need is computed once, when first used.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import torch
from torch import Tensor
from torch.nn import functional as F

from calibrant.core.errors import InputError, first
from calibrant.functional.arrays import refuse_large

IGNORED = -100  # torch.nn's default
REDUCTIONS = ("none", "mean", "sum")


class Rows:
    """A batch's logits and labels in at least float32, with quantities computed when first used.

    Attributes:
        logits: (N,K) or (N,K,L).
        labels: Class indices, (N,) or (N,L); None if targets are class probabilities.
        soft: Class probabilities, of the shape of the logits; None if targets are class indices.
        ignore_index: The label of rows to leave out.
        shape: (N,...), the caller's shape of one number per row.
    """

    def __init__(
        self,
        logits: Tensor,
        labels: Tensor | None,
        soft: Tensor | None,
        ignore_index: int,
        shape: tuple[int, ...],
    ) -> None:
        self.logits, self.labels, self.soft = logits, labels, soft
        self.ignore_index, self.shape = ignore_index, shape
        self._log_probs: Tensor | None = None
        self._top: tuple[Tensor, Tensor] | None = None
        self._cost: Tensor | None = None
        self._counts: Tensor | None = None
        self._number: Tensor | None = None

    @property
    def log_probs(self) -> Tensor:
        """Return ln p, of the shape of the logits."""
        if self._log_probs is None:
            self._log_probs = torch.log_softmax(self.logits, dim=1)
        return self._log_probs

    @property
    def top(self) -> tuple[Tensor, Tensor]:
        """Return the largest ln p and its class ŷ, one of each per row."""
        if self._top is None:
            self._top = largest(self.log_probs)
        return self._top

    @property
    def cost(self) -> Tensor:
        """Return −ln p_y of class indices, one number per row; ignored rows give 0, no gradient."""
        if self._cost is None:
            assert self.labels is not None
            self._cost = F.nll_loss(
                self.log_probs, self.labels, ignore_index=self.ignore_index, reduction="none"
            )
        return self._cost

    @property
    def counts(self) -> Tensor:
        """Return which rows are not ignored: (N,) or (N,L), bool."""
        if self._counts is None:
            if self.labels is None:
                self._counts = torch.ones_like(self.logits[:, 0], dtype=torch.bool)
            else:
                self._counts = self.labels != self.ignore_index
        return self._counts

    @property
    def number(self) -> Tensor | int:
        """Return the number of rows that are not ignored, at least 1."""
        if self.labels is None:
            return self.logits.numel() // self.logits.shape[1]
        if self._number is None:
            self._number = self.counts.sum().clamp_min(1)
        return self._number

    @property
    def places(self) -> Tensor:
        """Return the labels, 0 where ignored, to index classes with."""
        assert self.labels is not None
        is_class = 0 <= self.ignore_index < self.logits.shape[1]
        return self.labels if is_class else self.mask_ignored(self.labels)

    @property
    def confidence(self) -> Tensor:
        """Return c = max p, one number per row."""
        return self.top[0].exp()

    @property
    def correct(self) -> Tensor:
        """Return a = 1[ŷ = y], one number per row; of class probabilities, the share of ŷ."""
        return correctness(self)[1].to(self.logits.dtype)

    @property
    def truth(self) -> Tensor:
        """Return 1[k = y], or the class probabilities, of the shape of the logits."""
        return label_table(self)

    def mask_ignored(self, values: Tensor, other: float = 0) -> Tensor:
        """Replace the values of ignored rows by ``other``."""
        return values if self.labels is None else values.where(self.counts, other)

    def mean(self, values: Tensor) -> Tensor:
        """Compute the mean of one value per row over rows that are not ignored; 0 if all are."""
        return self.mask_ignored(values).sum() / self.number


Input: TypeAlias = Tensor | Rows  # `compose` gives all parts of a sum the same rows


def rows_of(input: Input, target: Tensor, ignore_index: int = IGNORED) -> Rows:
    """Make rows of (N,K,...) logits and class indices, (N,...), or probabilities, (N,K,...)."""
    if isinstance(input, Rows):
        return input
    check_batch(input, target, ignore_index)
    logits, shape = at_least_float32(input), (input.shape[0], *input.shape[2:])
    if target.is_floating_point():
        soft = target.to(logits.dtype).reshape(logits.shape)
        return Rows(logits, None, soft, ignore_index, shape)
    labels = target.long().reshape(logits[:, 0].shape)
    return Rows(logits, labels, None, ignore_index, shape)


def at_least_float32(input: Tensor) -> Tensor:
    """Return logits in float32 or float64, with dense places flattened to (N,K,L)."""
    logits = input.float() if input.dtype in (torch.float16, torch.bfloat16) else input
    return logits.flatten(2) if logits.ndim > 2 else logits


def pick(table: Tensor, index: Tensor) -> Tensor:
    """Return table[n, index[n]] along the classes: one number per row."""
    if torch.compiler.is_compiling():
        return torch.where(is_place(table, index), table, 0).sum(1)
    return table.gather(1, index.unsqueeze(1)).squeeze(1)


def largest(table: Tensor) -> tuple[Tensor, Tensor]:
    """Return the largest value of each row and its class, which gets the whole gradient."""
    if torch.compiler.is_compiling():
        place = table.detach().argmax(1)
        return pick(table, place), place
    value, place = table.max(1)
    return value, place


def is_place(table: Tensor, index: Tensor) -> Tensor:
    """Return 1[k = index[n]], of the table's shape.

    Compiled code uses this instead of `gather` and `max`, whose gradients are scattered: for a few
    classes torch 2.13's compiler reads what they scatter before it is written.
    """
    classes = torch.arange(table.shape[1], device=table.device)
    return classes.reshape(1, -1, *[1] * (table.ndim - 2)) == index.unsqueeze(1)


def take_expectation(
    rows: Rows, value: Callable[[Tensor], Tensor], weight: Tensor | None = None
) -> Tensor:
    """Compute one value per row from the true class's −ln p; of soft labels, the expectation.

    Args:
        rows: The batch.
        value: The loss as a function of −ln p_y.
        weight: One weight for each class, as in `torch.nn.CrossEntropyLoss`.
    """
    if rows.labels is not None:
        return weigh(value(rows.cost), rows, weight)
    assert rows.soft is not None
    table = rows.soft if weight is None else rows.soft * _by_class(rows, weight)
    return (table * value(-rows.log_probs)).sum(1)


def weigh(values: Tensor, rows: Rows, weight: Tensor | None) -> Tensor:
    """Multiply one value per row by its class's weight w_y; of soft labels, by Σ_k w_k q_k."""
    return values if weight is None else values * _row_weights(rows, weight)


def correctness(rows: Rows) -> tuple[Tensor, Tensor]:
    """Return confidence c = max p and correctness a = 1[ŷ = y] per row.

    For soft labels, a is the label's share of ŷ. For class indices a is a bool, and False in
    ignored rows unless ignore_index is a class.
    """
    best, predicted = rows.top
    if rows.labels is not None:
        return best.exp(), predicted == rows.labels
    assert rows.soft is not None
    return best.exp(), pick(rows.soft, predicted)


def label_table(rows: Rows) -> Tensor:
    """Return 1[k = y], or the soft labels, of the shape of the logits."""
    if rows.soft is not None:
        return rows.soft
    if torch.compiler.is_compiling():
        return is_place(rows.logits, rows.places).to(rows.logits.dtype)
    table = torch.zeros_like(rows.logits)
    return table.scatter(1, rows.places.unsqueeze(1), 1.0)


def less_labels(table: Tensor, rows: Rows) -> Tensor:
    """Subtract 1[k = y], or the soft labels, from a table, without making a second table."""
    if rows.soft is not None:
        return table - rows.soft
    if torch.compiler.is_compiling():
        return table - label_table(rows)
    place = rows.places.unsqueeze(1)
    return table.scatter_add(1, place, table.new_full((), -1.0).expand_as(place))


def negative_entropy(rows: Rows) -> Tensor:
    """Compute −h = Σ_k p_k ln p_k in nats, one number per row; finite, as is its gradient."""
    return (rows.log_probs.exp() * rows.log_probs).sum(1)


def row_mean(values: Tensor, rows: Rows) -> Tensor:
    """Compute the mean over rows that are not ignored; 0 if all are."""
    return rows.mean(values)


def reduce(values: Tensor, rows: Rows, reduction: str, weight: Tensor | None = None) -> Tensor:
    """Reduce one value per row to none (N,...), their mean or their sum; ignored rows do not count.

    Args:
        values: One value per row, 0 where ignored.
        rows: The batch.
        reduction: 'none', 'mean' or 'sum'.
        weight: The class weights that the values carry, if any. As in `torch.nn.CrossEntropyLoss`,
            the mean divides by the sum of the weights for class indices, and by the number of rows
            for soft labels.
    """
    check_reduction(reduction)
    if reduction == "none":
        return values.reshape(rows.shape)
    if reduction == "sum":
        return values.sum()
    if weight is None or rows.labels is None:
        return values.sum() / rows.number
    total = rows.mask_ignored(_row_weights(rows, weight)).sum()
    return values.sum() / total.where(total > 0, torch.ones_like(total))


def check_reduction(reduction: str) -> str:
    """Return the reduction, or raise if it has no known name."""
    if reduction not in REDUCTIONS:
        raise InputError(f"reduction must be one of {', '.join(REDUCTIONS)}, found {reduction!r}")
    return reduction


def batch_value(value: Tensor, rows: Rows, reduction: str) -> Tensor:
    """Return a batch's value for 'mean', or times the number of rows that count for 'sum'."""
    if reduction == "none":
        raise InputError(
            "a loss of a whole batch has no value for each sample: reduction must be mean or sum"
        )
    if reduction not in REDUCTIONS:
        raise InputError(f"reduction must be mean or sum, found {reduction!r}")
    return value * rows.number if reduction == "sum" else value


def class_weights(logits: Tensor, weight: Tensor) -> Tensor:
    """Return one weight per class, with the logits' dtype and device."""
    weight = torch.as_tensor(weight)
    if weight.shape != logits.shape[1:2]:
        raise InputError(
            f"weight needs one number for each of the {logits.shape[1]} classes, found "
            f"shape {tuple(weight.shape)}"
        )
    return weight.to(logits)


def _by_class(rows: Rows, weight: Tensor) -> Tensor:
    """Shape the weights so that they broadcast over logits."""
    return class_weights(rows.logits, weight).reshape(-1, *[1] * (rows.logits.ndim - 2))


def _row_weights(rows: Rows, weight: Tensor) -> Tensor:
    weights = _by_class(rows, weight)
    if rows.labels is not None:
        return weights.reshape(-1)[rows.places]
    assert rows.soft is not None
    return (rows.soft * weights).sum(1)


def check_batch(input: Tensor, target: Tensor, ignore_index: int) -> None:
    """Raise an error that says what is wrong with logits or labels."""
    for name, value in (("logits", input), ("labels", target)):
        if not isinstance(value, Tensor):
            raise InputError(f"{name} must be a tensor, found {type(value).__name__}")
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
            f"logits of shape {tuple(input.shape)} need {kind} of shape {tuple(wanted)}, found "
            f"{tuple(target.shape)}"
        )
    if target.dtype == torch.uint64:
        refuse_large(target)
    # Reading values would wait for a device and break a graph, so only eager CPU rows are read.
    if target.is_floating_point() or input.device.type != "cpu" or torch.compiler.is_compiling():
        return
    target = target.long()  # a byte would wrap ignore_index to a label
    low, high = target.aminmax()
    if int(low) < 0 or int(high) >= input.shape[1]:
        wrong = (target != ignore_index) & ((target < 0) | (target >= input.shape[1]))
        if bool(wrong.any()):
            raise InputError(
                f"labels must lie in 0..{input.shape[1] - 1} or be ignore_index={ignore_index}, "
                f"found {first(target[wrong].tolist())}"
            )
