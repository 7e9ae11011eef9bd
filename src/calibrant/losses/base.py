"""The base classes of losses: modules called with logits and labels, like those of torch.nn."""

from __future__ import annotations

import operator
from typing import Any, ClassVar, TypedDict

import torch
from torch import Tensor, nn

from calibrant.core.errors import InputError, show
from calibrant.losses.common import (
    IGNORED,
    Input,
    Rows,
    batch_value,
    check_reduction,
    reduce,
    rows_of,
    weigh,
)


class Reduced(TypedDict, total=False):
    """Options of every loss."""

    reduction: str  # mean or sum, and for primary losses none
    ignore_index: int  # the label of rows to leave out


class Common(Reduced, total=False):
    """Options of every primary loss."""

    weight: Tensor | None  # one number per class


class Loss(nn.Module):
    """A loss of (N,K,...) logits and labels or class probabilities: ``loss(input, target)``.

    The formula is in the function of the same name; a class keeps its options. Values are
    computed in at least float32, also under autocast.

    A loss of your own gives `compute` and no more: logits and labels of every shape, ignored rows,
    class weights and the reduction are dealt with here.

    Args:
        reduction: 'mean' or 'sum', and for primary losses 'none'.
            Default: 'mean' (torch.nn.CrossEntropyLoss).
        ignore_index: The label of rows to leave out. Default: -100 (torch.nn.CrossEntropyLoss).
    """

    name: ClassVar[str]
    kind: ClassVar[str]  # primary: one value per sample; secondary: one value per batch
    # Under data parallelism each process sees its own rows only. That does not change a mean
    # over samples; for a value of the batch it means a smaller batch, and this is True.
    local_batch: bool
    needs_index: bool = False  # must be called with ``index=``, the training sample of each row

    def __init__(self, *, reduction: str = "mean", ignore_index: int = IGNORED) -> None:
        super().__init__()
        self.reduction = check_reduction(reduction)
        try:
            self.ignore_index = operator.index(ignore_index)
        except TypeError:
            raise InputError(
                f"ignore_index must be an integer, found {show(ignore_index)}"
            ) from None
        if not -(2**63) <= self.ignore_index < 2**63:
            raise InputError(f"ignore_index must fit 64 bits, found {show(ignore_index)}")

    def options(self) -> dict[str, Any]:
        """Return the options that every function of a loss takes."""
        return {"reduction": self.reduction, "ignore_index": self.ignore_index}

    def forward(self, input: Input, target: Tensor) -> Tensor:
        """Compute the loss."""
        rows = rows_of(input, target, self.ignore_index)
        return self._reduce(self.compute(rows), rows)

    def compute(self, rows: Rows) -> Tensor:
        """Compute one value per row, (N,) or (N,L); of a secondary loss, one value of the batch.

        Args:
            rows: The batch. Its ``logits``, ``log_probs`` and ``truth`` are (N,K) or (N,K,L);
                ``confidence`` and ``correct`` have one number per row; ``mean`` leaves ignored
                rows out.
        """
        raise NotImplementedError(f"{type(self).__name__} needs a method compute(self, rows)")

    def _reduce(self, value: Tensor, rows: Rows) -> Tensor:
        raise NotImplementedError

    def extra_repr(self) -> str:
        """Show the options."""
        hidden = ("training", "weight")
        shown = {
            key: value
            for key, value in vars(self).items()
            if not key.startswith("_") and key not in hidden
        }
        return ", ".join(f"{key}={value!r}" for key, value in shown.items())


class PrimaryLoss(Loss):
    """A loss with one value per sample; it trains a network by itself.

    Args:
        reduction: 'none', 'mean' or 'sum'. Default: 'mean' (torch.nn.CrossEntropyLoss).
        ignore_index: The label of rows to leave out. Default: -100 (torch.nn.CrossEntropyLoss).
        weight: One weight for each class. Default: None (torch.nn.CrossEntropyLoss).
    """

    kind = "primary"
    local_batch = False

    weight: Tensor | None

    def __init__(
        self,
        *,
        reduction: str = "mean",
        ignore_index: int = IGNORED,
        weight: Tensor | None = None,
    ) -> None:
        super().__init__(reduction=reduction, ignore_index=ignore_index)
        self.register_buffer("weight", None if weight is None else torch.as_tensor(weight))

    def options(self) -> dict[str, Any]:
        """Return the options that every function of a primary loss takes."""
        return {**super().options(), "weight": self.weight}

    def _reduce(self, value: Tensor, rows: Rows) -> Tensor:
        if value.shape != rows.counts.shape:
            raise InputError(
                f"{type(self).__name__}.compute must return one value per row, of shape "
                f"{tuple(rows.counts.shape)}, found {tuple(value.shape)}; a loss with one value a "
                "batch is a losses.SecondaryLoss"
            )
        weighed = weigh(rows.mask_ignored(value), rows, self.weight)
        return reduce(weighed, rows, self.reduction, self.weight)


class SecondaryLoss(Loss):
    """A loss with one value per batch, added to a primary loss with a weight β (`losses.compose`).

    Args:
        reduction: 'mean', or 'sum' for the value times the number of rows that count.
            Default: 'mean' (torch.nn.CrossEntropyLoss).
        ignore_index: The label of rows to leave out. Default: -100 (torch.nn.CrossEntropyLoss).
    """

    kind = "secondary"
    local_batch = True
    beta: ClassVar[float] = 1.0  # its weight if none is given

    def __init__(self, *, reduction: str = "mean", ignore_index: int = IGNORED) -> None:
        if reduction == "none":
            raise InputError(
                f"{self.name} is one value of a whole batch: reduction must be mean or sum, "
                "found 'none'"
            )
        super().__init__(reduction=reduction, ignore_index=ignore_index)

    def _reduce(self, value: Tensor, rows: Rows) -> Tensor:
        if value.numel() != 1:
            raise InputError(
                f"{type(self).__name__}.compute must return one value of the batch, found shape "
                f"{tuple(value.shape)}: average it with rows.mean"
            )
        return batch_value(value.reshape(()), rows, self.reduction)
