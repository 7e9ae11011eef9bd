"""The soft rank's blocks in one kernel each way, where Triton is there; imported when used.

One program a row. The same arithmetic as ``soft_rank_pooling`` for one stretch, whose test
of where a block starts needs no order of steps: every place looks at all others in turn.
"""

# Triton's language has no types a checker knows.
# ruff: noqa: ANN001, ANN202
# mypy: disable-error-code="import-not-found, import-untyped, untyped-decorator, no-untyped-def"

import torch
from torch import Tensor

from calibrant.functional.soft_rank_triton_parts import (
    available,
    block_means,
    block_ranks,
    block_starts,
    constexpr,
    jit,
    larger,
    scaled_gaps,
    share_sums,
    smaller,
    tl,
    triton,
)

__all__ = ["LONGEST", "available", "centre_by_kernel", "pool_by_kernel", "trial"]

# Beyond this a row does not fit the registers of one program.
LONGEST = 2048


@jit
def _pool_kernel(ordered_, order_, strength_, ranks_, first_, last_, memory_, n, BLOCK: constexpr):
    row = tl.program_id(0).to(tl.int64)
    place = tl.arange(0, BLOCK)
    valid = place < n
    at = row * n + place
    memory = memory_ + row * (n + 1)
    strength = tl.load(strength_)
    highest = tl.load(ordered_ + row * n + n - 1)

    inner = valid & (place > 0)
    high = tl.load(ordered_ + at, mask=inner, other=0.0).to(tl.float64)
    low = tl.load(ordered_ + at - 1, mask=inner, other=0.0).to(tl.float64)
    scaled = scaled_gaps(high, low, strength, place, inner, n)

    starts = block_starts(memory, first_ + row * n, scaled, place, valid, n, BLOCK)
    first = tl.associative_scan(tl.where(starts, place, 0), 0, larger)
    tl.store(first_ + at, first.to(tl.int64), mask=valid)
    tl.debug_barrier()
    following = tl.load(first_ + at + 1, mask=place + 1 < n, other=-1)
    ends = valid & (following != first)
    last = tl.associative_scan(tl.where(ends, place, n), 0, smaller, reverse=True)
    tl.store(last_ + at, last.to(tl.int64), mask=valid)

    rank = block_ranks(memory, scaled, first, last, place, valid)
    rank = tl.where(highest == highest, rank, float("nan"))  # NaN sorts last
    where = tl.load(order_ + at, mask=valid, other=0)
    tl.store(ranks_ + row * n + where, rank.to(ranks_.dtype.element_ty), mask=valid)


@jit
def _centre_kernel(grad_, order_, first_, last_, strength_, result_, memory_, n, BLOCK: constexpr):
    row = tl.program_id(0).to(tl.int64)
    place = tl.arange(0, BLOCK)
    valid = place < n
    at = row * n + place
    memory = memory_ + row * (n + 1)
    where = row * n + tl.load(order_ + at, mask=valid, other=0)
    first = tl.load(first_ + at, mask=valid, other=0)
    last = tl.load(last_ + at, mask=valid, other=0)
    grad = tl.load(grad_ + where, mask=valid, other=0.0).to(tl.float64)
    share_sums(memory, grad, place, valid)
    centred = (grad - block_means(memory, first, last, valid)) / tl.load(strength_)
    tl.store(result_ + where, centred.to(result_.dtype.element_ty), mask=valid)


def trial(device: torch.device) -> None:
    """Compile and start the kernels once."""
    pooled = pool_by_kernel(torch.zeros(1, 2, device=device), 1.0)
    centre_by_kernel(*pooled, 1.0)


def pool_by_kernel(values: Tensor, strength: float) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Soft ranks of (rows, n) values, the sorting order, and each sorted place's block."""
    rows, n = values.shape
    ordered, order = values.contiguous().sort(dim=-1)
    ranks, first, last = torch.empty_like(ordered), torch.empty_like(order), torch.empty_like(order)
    scale, memory = _room(values, strength)
    _pool_kernel[(rows,)](ordered, order, scale, ranks, first, last, memory, n, **_launch(n))
    return ranks, order, first, last


def centre_by_kernel(
    grad: Tensor, order: Tensor, first: Tensor, last: Tensor, strength: float
) -> Tensor:
    """(grad − its mean over each block) / strength."""
    rows, n = grad.shape
    grad = grad.contiguous()
    result = torch.empty_like(grad)
    scale, memory = _room(grad, strength)
    _centre_kernel[(rows,)](grad, order, first, last, scale, result, memory, n, **_launch(n))
    return result


def _room(like: Tensor, strength: float) -> tuple[Tensor, Tensor]:
    """The strength on the device, since a kernel's own numbers are float32, and sums' room."""
    rows, n = like.shape
    scale = torch.full((1,), strength, dtype=torch.float64, device=like.device)
    return scale, torch.empty(rows, n + 1, dtype=torch.float64, device=like.device)


def _launch(n: int) -> dict[str, int]:
    block = max(32, triton.next_power_of_2(n))
    return {"BLOCK": block, "num_warps": min(8, max(1, block // 64))}
