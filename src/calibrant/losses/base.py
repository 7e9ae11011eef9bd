"""The base classes of losses: modules called with logits and labels, like those of torch.nn."""

from __future__ import annotations

import operator
from typing import Any, ClassVar, TypedDict

import torch
from torch import Tensor, nn

from calibrant.core.errors import InputError
from calibrant.losses.common import IGNORED, Input, check_reduction


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
            raise InputError(f"ignore_index must be an integer, found {ignore_index!r}") from None

    def options(self) -> dict[str, Any]:
        """Return the options that every function of a loss takes."""
        return {"reduction": self.reduction, "ignore_index": self.ignore_index}

    def forward(self, input: Input, target: Tensor) -> Tensor:
        """Compute the loss."""
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
