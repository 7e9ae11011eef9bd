"""What a loss is: a module called with logits and labels, like `torch.nn.CrossEntropyLoss`."""

from __future__ import annotations

import operator
from typing import Any, ClassVar, TypedDict

import torch
from torch import Tensor, nn

from calibrant.functional.errors import InputError
from calibrant.losses.common import IGNORED, REDUCTIONS, Input


class Reduced(TypedDict, total=False):
    """Options of every loss."""

    reduction: str  # mean or sum, and of primary losses none
    ignore_index: int  # the label of rows that do not count


class Common(Reduced, total=False):
    """Options of every primary loss."""

    weight: Tensor | None  # one number a class


class Loss(nn.Module):
    """Called as ``loss(input, target)``: (N,K,...) logits, and labels or class probabilities.

    The formula is in the function of the same name; a class keeps its options. Values are
    computed in at least float32, whatever the autocast.
    """

    name: ClassVar[str]
    kind: ClassVar[str]  # primary: one value a sample; secondary: one value a batch
    # Under data parallelism each process sees its own rows only. For a mean over samples that
    # is no matter; for a value of the batch it is a smaller batch.
    local_batch: bool
    needs_index: bool = False  # wants ``index=``, which training sample each row is

    def __init__(self, *, reduction: str = "mean", ignore_index: int = IGNORED) -> None:
        super().__init__()
        if reduction not in REDUCTIONS:
            raise InputError(f"reduction is one of {', '.join(REDUCTIONS)}, found {reduction!r}")
        try:
            self.reduction, self.ignore_index = reduction, operator.index(ignore_index)
        except TypeError:
            raise InputError(f"ignore_index is an integer, found {ignore_index!r}") from None

    def options(self) -> dict[str, Any]:
        """Options every functional twin takes."""
        return {"reduction": self.reduction, "ignore_index": self.ignore_index}

    def forward(self, input: Input, target: Tensor) -> Tensor:
        """The loss."""
        raise NotImplementedError

    def extra_repr(self) -> str:
        """The options, as they were given."""
        hidden = ("training", "weight")
        shown = {
            key: value
            for key, value in vars(self).items()
            if not key.startswith("_") and key not in hidden
        }
        return ", ".join(f"{key}={value!r}" for key, value in shown.items())


class PrimaryLoss(Loss):
    """One value a sample; trains a network by itself."""

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
        """Options every primary functional twin takes."""
        return {**super().options(), "weight": self.weight}


class SecondaryLoss(Loss):
    """One value a batch, added to a primary loss with a weight β (`losses.compose`)."""

    kind = "secondary"
    local_batch = True
    beta: ClassVar[float] = 1.0  # its weight beside cross_entropy, where none is said

    def __init__(self, *, reduction: str = "mean", ignore_index: int = IGNORED) -> None:
        if reduction == "none":
            raise InputError(
                f"{self.name} is a value of a whole batch: reduction is mean or sum, found 'none'"
            )
        super().__init__(reduction=reduction, ignore_index=ignore_index)
