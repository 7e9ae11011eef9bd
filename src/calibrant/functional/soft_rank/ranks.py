"""Ranks with a gradient: the soft rank, and the hard rank it tends to.

Both run 1..n in ascending order (the largest value has the largest rank) along the last
dimension. Rows of leading dimensions are ranked independently.
"""

from __future__ import annotations

import math
import warnings
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from calibrant.core.errors import InputError
from calibrant.functional.soft_rank.cpu_pooling import centre_on_cpu, pool_on_cpu
from calibrant.functional.soft_rank.device_pooling import centre_on_device, pool_on_device

Pooled = tuple[Tensor, Tensor, Tensor, Tensor]
_NOTHING = nullcontext()


def soft_rank(values: Tensor, *, strength: float = 0.05) -> Tensor:
    r"""Compute the ℓ2-regularised soft rank of each value within its row (Blondel et al. 2020).

    r = argmin over the permutahedron of (1, ..., n) of ½ ‖r − values/ε‖²: the quadratic form,
    Ψ = ½‖·‖², of r_εΨ in "Fast differentiable sorting and ranking" (ICML 2020), whose
    descending ranks are turned round here. As they show, it reduces to an isotonic
    regression: with s the sorted values/ε and w = (1, ..., n), pooling adjacent violators of
    s − w leaves blocks B of neighbours, and

        r_i = mean of w over B + s_i − mean of s over B        for i in B.

    The gradient is exact, their Jacobian of blocks: dr_i/dvalues_j = (1[i=j] − 1/|B|) / ε within
    a block, 0 across blocks; r is piecewise linear, so a second derivative is exact as well.

    Half precision is computed in float32 (bfloat16 cannot count beyond 256), float64 stays
    float64, and the inner arithmetic is float64 where the device has it. Infinite values
    rank beyond all others; a row with a NaN has NaN for every rank. The CPU takes O(n log n);
    CUDA tensors stay on their device and nothing waits for it.

    Args:
        values: Floating-point values, (..., n).
        strength: ε, used as given at any n. As ε → 0 the soft rank becomes the hard rank
            (`hard_rank`); as ε → ∞ every rank becomes (n+1)/2; equal values have equal ranks
            at every ε. The ranks of a row span at most (max − min)/ε places: for confidences
            about 20 of 127 at 0.05, a mild spreading, and most of the batch at 0.01.
            Default: 0.05 (r-aurc, section 5, for CIFAR-10).

    >>> soft_rank(torch.tensor([0.9, 0.1, 0.3]), strength=0.01)
    tensor([3., 1., 2.])
    >>> soft_rank(torch.tensor([0.9, 0.1, 0.3]), strength=1.0)
    tensor([2.4667, 1.6667, 1.8667])
    """
    values = _check_values(values)
    if not 0 < strength < math.inf:  # torch.compile keeps this check too
        raise InputError(
            f"strength must be positive and finite, found {strength}; for ranks without "
            "smoothing use hard_rank"
        )
    if values.numel() == 0:
        return values.clone()
    if torch.compiler.is_compiling():
        ranks = _soft_rank(_as_rows(values), float(strength))[0]
        return ranks.reshape(values.shape)
    ranks = _SoftRank.apply(values, float(strength))  # type: ignore[no-untyped-call]
    return ranks


def hard_rank(values: Tensor) -> Tensor:
    """Compute the rank of each value within its row; ties share their mean rank; no gradient.

    >>> hard_rank(torch.tensor([0.5, 0.1, 0.5, 0.9]))
    tensor([2.5000, 1.0000, 2.5000, 4.0000])
    """
    values = _check_values(values).detach().contiguous()
    ordered = values.sort(dim=-1).values
    below = torch.searchsorted(ordered, values)
    up_to = torch.searchsorted(ordered, values, right=True)
    ranks = (below + up_to + 1).to(values.dtype) / 2
    return ranks.masked_fill_(ordered[..., -1:].isnan(), math.nan) if ranks.numel() else ranks


def _check_values(values: Tensor) -> Tensor:
    if values.ndim == 0:
        raise InputError("ranks need a row of values, found a single number with no dimension")
    if not values.is_floating_point():
        raise InputError(f"ranks need floating-point values, found {values.dtype}; use .float()")
    return values.float() if values.dtype.itemsize < 4 else values


def _as_rows(values: Tensor) -> Tensor:
    return values.reshape(-1, values.shape[-1])


def _find_kernels(values: Tensor, way: str) -> ModuleType | None:
    """Return the Triton kernels if they can take these rows this way, "sorted" or "fused"."""
    if not values.is_cuda:
        return None
    kernels = _load_kernels(values.device, way)
    return kernels if kernels and values.shape[-1] <= kernels.LONGEST[way] else None


@cache
def _load_kernels(device: torch.device, way: str) -> ModuleType | None:
    """Return the kernels if they run here: Triton needs a C compiler and a recent GPU."""
    from calibrant.functional.soft_rank import triton_kernels

    if not triton_kernels.available():
        return None
    try:
        with torch.cuda.device(device):
            triton_kernels.trial(device, way)
    except Exception as error:  # whatever the compiler raises, tensor operations do the same
        warnings.warn(
            "Triton is installed but its kernels do not run here, so soft_rank uses slower tensor "
            f"operations: {str(error).strip().splitlines()[:1]}",
            RuntimeWarning,
            stacklevel=2,
        )
        return None
    return triton_kernels


def _on(device: torch.device) -> AbstractContextManager[object]:
    """Make this the current device; entering a context costs, and mostly it is current already."""
    current = device.index == torch.cuda.current_device()
    return _NOTHING if current else torch.cuda.device(device)


def _pool(values: Tensor, strength: float) -> Pooled:
    """Compute soft ranks of (rows, n), the sorting order, and each place's block [first, last]."""
    if values.device.type == "cpu":
        return pool_on_cpu(values, strength)
    kernels = _find_kernels(values, "sorted")
    if kernels is None:
        return pool_on_device(values, strength)
    with _on(values.device):
        return kernels.pool_by_kernel(values, strength)


def _centre(grad: Tensor, order: Tensor, first: Tensor, last: Tensor, strength: float) -> Tensor:
    """Compute the gradient, (grad − its mean over each block) / ε: the Jacobian is symmetric."""
    if grad.device.type == "cpu":
        return centre_on_cpu(grad, order, first, last, strength)
    kernels = _find_kernels(grad, "sorted")
    if kernels is None:
        return centre_on_device(grad, order, first, last, strength)
    with _on(grad.device):
        return kernels.centre_by_kernel(grad, order, first, last, strength)


class _SoftRank(torch.autograd.Function):
    """The operation outside torch.compile, at half the cost of a custom operator's dispatch.

    It reshapes rows inside, so that autograd does not record the views.
    """

    @staticmethod
    def forward(ctx: Any, values: Tensor, strength: float) -> Tensor:
        ctx.strength = strength
        kernels = _find_kernels(values, "fused")
        if kernels is not None:
            with _on(values.device):
                ranks, packed = kernels.pool_packed(values, strength)
            ctx.save_for_backward(packed)
            return ranks
        ranks, *blocks = _pool(_as_rows(values), strength)
        ctx.save_for_backward(*blocks)
        return ranks.view(values.shape)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        # Only a second derivative needs the gradient to be an operation of its own.
        again = torch.is_grad_enabled()
        order, *block = ctx.saved_tensors
        if block:
            first, last = block
        else:
            packed = order
            kernels = _load_kernels(grad.device, "fused")
            assert kernels is not None
            if not again:
                with _on(grad.device):
                    return kernels.centre_packed(grad, packed, ctx.strength), None
            order, first, last = kernels.unpack(_as_rows(packed))
        centre = _gradient if again else _centre
        return centre(_as_rows(grad), order, first, last, ctx.strength).view(grad.shape), None


# torch.compile treats these operators as opaque, so its graph does not break at them. Their
# schemas are written out because torch 2.4 cannot read postponed annotations.
_soft_rank = torch.library.custom_op(
    "calibrant::soft_rank",
    _pool,
    mutates_args=(),
    schema="(Tensor values, float strength) -> (Tensor, Tensor, Tensor, Tensor)",
)
_gradient = torch.library.custom_op(
    "calibrant::soft_rank_gradient",
    _centre,
    mutates_args=(),
    schema="(Tensor grad, Tensor order, Tensor first, Tensor last, float strength) -> Tensor",
)


@_soft_rank.register_fake
def _(values: Tensor, strength: float) -> Pooled:
    places = torch.empty_like(values, dtype=torch.int64, memory_format=torch.contiguous_format)
    ranks = torch.empty_like(values, memory_format=torch.contiguous_format)
    return ranks, places, torch.empty_like(places), torch.empty_like(places)


@_gradient.register_fake
def _(grad: Tensor, order: Tensor, first: Tensor, last: Tensor, strength: float) -> Tensor:
    return torch.empty_like(grad, memory_format=torch.contiguous_format)


def _save(ctx: Any, inputs: tuple[Tensor, float], output: Pooled) -> None:
    ctx.strength = inputs[1]
    ctx.save_for_backward(*output[1:])


def _backward(ctx: Any, grad: Tensor, *_: Tensor | None) -> tuple[Tensor, None]:
    return _gradient(grad, *ctx.saved_tensors, ctx.strength), None


def _save_blocks(
    ctx: Any, inputs: tuple[Tensor, Tensor, Tensor, Tensor, float], output: Tensor
) -> None:
    ctx.strength = inputs[-1]
    ctx.save_for_backward(*inputs[1:4])


def _backward_twice(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None, None]:
    return _gradient(grad, *ctx.saved_tensors, ctx.strength), None, None, None, None


_soft_rank.register_autograd(_backward, setup_context=_save)
_gradient.register_autograd(_backward_twice, setup_context=_save_blocks)
