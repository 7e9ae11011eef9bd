"""The record of which training samples were classified right, for losses that rank by it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from calibrant.core.errors import InputError, first
from calibrant.losses.common import Rows


class CorrectnessHistory(nn.Module):
    """Counts of how often each training sample was seen, and how often classified right.

    The counts are integer buffers: a ``state_dict`` holds them, they move with the module and
    survive a cast to half precision. Under data parallelism each process counts its own rows;
    `synchronize` adds up what all have counted since the last time. Keep the loss outside
    ``DistributedDataParallel``, which would overwrite buffers with those of the first process.

    Args:
        num_samples: The size of the training set.
    """

    counts: Tensor  # (2, num_samples): times classified right, times seen
    merged: Tensor  # the same at the last `synchronize`

    def __init__(self, num_samples: int) -> None:
        super().__init__()
        if not isinstance(num_samples, int) or num_samples < 1:
            raise InputError(
                "num_samples must be the size of the training set, which index= counts, found "
                f"num_samples={num_samples!r}"
            )
        self.register_buffer("counts", torch.zeros(2, num_samples, dtype=torch.int32))
        self.register_buffer("merged", torch.zeros(2, num_samples, dtype=torch.int32))

    def places(self, input: Tensor, index: Tensor | None) -> Tensor:
        """Check ``index``, one number in 0..num_samples−1 per row, and move it to the device."""
        number = self.counts.shape[1]
        if input.ndim != 2:
            raise InputError(
                "a history of training samples needs one prediction per sample: logits must "
                f"have shape (N,K), found {tuple(input.shape)}"
            )
        if index is None or (isinstance(index, Tensor) and not index.numel() and len(input)):
            raise InputError(
                "this loss remembers training samples and needs the sample of each row: call "
                f"loss(input, target, index=...) with numbers in 0..{number - 1} (let the data "
                "set return each sample's number with its label)"
            )
        if not isinstance(index, Tensor):
            raise InputError(f"index must be a tensor, found {type(index).__name__}")
        if index.is_floating_point() or index.dtype == torch.bool or index.shape != input.shape[:1]:
            raise InputError(
                f"index must hold an integer for each of the {len(input)} rows, found "
                f"{index.dtype} of shape {tuple(index.shape)}"
            )
        if self.counts.device != input.device:
            raise InputError(
                f"the history is on {self.counts.device} and the logits are on {input.device}: "
                "move the loss there with loss.to(...)"
            )
        # Reading values would wait for a device and break a graph.
        if index.device.type == "cpu" and not torch.compiler.is_compiling():
            outside = index[(index < 0) | (index >= number)]
            if len(outside):
                raise InputError(
                    f"index must lie in 0..{number - 1} (num_samples={number}), found "
                    f"{first(outside.tolist())}"
                )
        return index.to(self.counts.device, torch.int64, non_blocking=True)

    def of(self, index: Tensor) -> tuple[Tensor, Tensor]:
        """Return how often these samples were classified right, and seen."""
        right, seen = self.counts.index_select(1, index).unbind(0)
        return right, seen

    @torch.no_grad()
    def record(self, index: Tensor, correct: Tensor, counts: Tensor | None = None) -> None:
        """Count these samples as seen, and as right where ``correct``.

        Args:
            index: The training sample of each row.
            correct: Whether each row was classified right.
            counts: Which rows to record; None for all.
        """
        seen = torch.ones_like(correct) if counts is None else counts
        more = torch.stack((correct & seen, seen)).to(self.counts.dtype)
        if torch.compiler.is_compiling():
            _add_opaque(self.counts, index, more)
        else:
            self.counts.index_add_(1, index, more)

    @torch.no_grad()
    def synchronize(self, group: Any = None) -> None:
        """Add up what every process has counted since the last time: call it after each epoch.

        Call it before saving too, so that one process's ``state_dict`` holds everything.
        """
        fresh = self.counts - self.merged
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            torch.distributed.all_reduce(fresh, group=group)
        self.merged += fresh
        self.counts.copy_(self.merged)

    def extra_repr(self) -> str:
        """Show the number of samples."""
        return f"num_samples={self.counts.shape[1]}"


def judge_rows(rows: Rows) -> tuple[Tensor, Tensor]:
    """Return whether ŷ = y per row, and which rows count; of soft labels y is the largest class."""
    label = rows.labels if rows.soft is None else rows.soft.argmax(1)
    assert label is not None
    return rows.top[1] == label, rows.counts


def partners(counts: Tensor) -> Tensor:
    """Return for each row that counts the next one that does; the last one's is the first."""
    order = counts.to(torch.uint8).argsort(stable=True, descending=True)
    following = torch.arange(1, len(counts) + 1, device=counts.device) % counts.sum().clamp_min(1)
    return torch.empty_like(order).scatter(0, order, order.gather(0, following))


def gaps(confidence: Tensor, right: Tensor, seen: Tensor, counts: Tensor) -> tuple[Tensor, Tensor]:
    """Compute h_i − h_j and κ_i − κ_j of the pairs (i, j = i+1 cyclic); h is right/seen, in [0,1].

    Where either was never seen, h_i − h_j is 0.
    """
    if torch.compiler.is_compiling():
        past = _past_opaque(confidence.detach(), right, seen, counts)
        return past, _rise_opaque(confidence, counts)
    pair = partners(counts)
    return _past(confidence, right, seen, pair), _rise(confidence, pair)


def _past(confidence: Tensor, right: Tensor, seen: Tensor, pair: Tensor) -> Tensor:
    rate = right.to(confidence.dtype) / seen  # NaN where never seen, and so are its differences
    return (rate - rate.gather(0, pair)).nan_to_num(0.0, 0.0, 0.0)


def _rise(confidence: Tensor, pair: Tensor) -> Tensor:
    return confidence - confidence.gather(0, pair)


# torch.compile treats these operators as opaque. From the plain steps torch 2.11's compiler made
# GPU code whose gradient was some per cent off with 10 classes or fewer.
@torch.library.custom_op(
    "calibrant::past",
    mutates_args=(),
    schema="(Tensor confidence, Tensor right, Tensor seen, Tensor counts) -> Tensor",
)
def _past_opaque(confidence: Tensor, right: Tensor, seen: Tensor, counts: Tensor) -> Tensor:
    return _past(confidence, right, seen, partners(counts))


@torch.library.custom_op(
    "calibrant::rise", mutates_args=(), schema="(Tensor confidence, Tensor counts) -> Tensor"
)
def _rise_opaque(confidence: Tensor, counts: Tensor) -> Tensor:
    return _rise(confidence, partners(counts))


@torch.library.custom_op(
    "calibrant::rise_gradient", mutates_args=(), schema="(Tensor slope, Tensor counts) -> Tensor"
)
def _rise_gradient(slope: Tensor, counts: Tensor) -> Tensor:
    return slope.scatter_add(0, partners(counts), -slope)


@torch.library.custom_op(
    "calibrant::record",
    mutates_args=("table",),
    schema="(Tensor(a!) table, Tensor index, Tensor more) -> ()",
)
def _add_opaque(table: Tensor, index: Tensor, more: Tensor) -> None:
    table.index_add_(1, index, more)


@_past_opaque.register_fake
def _(confidence: Tensor, right: Tensor, seen: Tensor, counts: Tensor) -> Tensor:
    return torch.empty_like(confidence)


@_rise_opaque.register_fake
@_rise_gradient.register_fake
def _(values: Tensor, counts: Tensor) -> Tensor:
    return torch.empty_like(values)


def _save(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
    ctx.save_for_backward(inputs[1])


def _backward(ctx: Any, slope: Tensor) -> tuple[Tensor, None]:
    return _rise_gradient(slope, *ctx.saved_tensors), None


def _backward_twice(ctx: Any, slope: Tensor) -> tuple[Tensor, None]:
    return _rise_opaque(slope, *ctx.saved_tensors), None


_rise_opaque.register_autograd(_backward, setup_context=_save)
_rise_gradient.register_autograd(_backward_twice, setup_context=_save)
