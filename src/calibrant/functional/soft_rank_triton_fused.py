"""The soft rank of a short row in a single kernel each way, sorting included; imported when used.

One program a row. At these sizes launches cost more than what they do, and a sort by the
library is several: here every value counts those before it. What the backward pass needs is
one integer a place, the sorting order and the ends of its block packed together.
"""

# Triton's language has no types a checker knows.
# ruff: noqa: ANN001, ANN202
# mypy: disable-error-code="import-not-found, import-untyped, untyped-decorator, no-untyped-def"

from functools import cache
from struct import Struct

import torch
from torch import Tensor

from calibrant.functional.soft_rank_triton_parts import (
    available,
    block_means,
    block_ranks,
    block_starts,
    constexpr,
    int64,
    jit,
    larger,
    scaled_gaps,
    share_sums,
    smaller,
    tl,
    triton,
)

__all__ = ["LONGEST", "available", "centre_packed", "pool_packed", "trial", "unpacked"]

# Counting takes n² comparisons: beyond this the library's sort is quicker.
LONGEST = 1024
_FLOAT, _INTEGER = Struct("d"), Struct("q")


@jit
def _sorted_place(values_, value, place, n, BLOCK: constexpr, STEP: constexpr):
    """How many values of the row sort before each: in order of place where they are equal."""
    infinity = float("inf")
    key = tl.where(value == value, value, infinity)[:, None]  # NaN sorts last
    count = tl.zeros([BLOCK, STEP], tl.int32)
    begin = 0
    while begin < n:
        beside = begin + tl.arange(0, STEP)
        other = tl.load(values_ + beside, mask=beside < n, other=infinity)
        other = tl.where(other == other, other, infinity)[None, :]
        tied = (other == key) & (beside[None, :] < place[:, None])
        count += ((other < key) | tied).to(tl.int32)
        begin += STEP
    return tl.sum(count, 1)


@jit(do_not_specialize=["n", "bits"])
def _pool_kernel(
    values_, ranks_, packed_, memory_, n, bits: int64, BLOCK: constexpr, STEP: constexpr
):
    row = tl.program_id(0).to(tl.int64)
    place = tl.arange(0, BLOCK)
    valid = place < n
    values, packed, memory = values_ + row * n, packed_ + row * n, memory_ + row * (n + 1)
    strength = bits.to(tl.int64).to(tl.float64, bitcast=True)

    value = tl.load(values + place, mask=valid, other=0.0)
    broken = tl.max((valid & (value != value)).to(tl.int32), 0)
    to = _sorted_place(values, value, place, n, BLOCK, STEP)
    tl.store(memory + to, value.to(tl.float64), mask=valid)
    tl.store(packed + to, place.to(tl.int64), mask=valid)
    tl.debug_barrier()
    inner = valid & (place > 0)
    high = tl.load(memory + place, mask=inner, other=0.0)
    low = tl.load(memory + place - 1, mask=inner, other=0.0)
    order = tl.load(packed + place, mask=valid, other=0)
    scaled = scaled_gaps(high, low, strength, place, inner, n)

    tl.debug_barrier()  # the order has been read, and its room is free
    starts = block_starts(memory, packed, scaled, place, valid, n, BLOCK)
    tl.store(packed + place, starts.to(tl.int64), mask=valid)
    tl.debug_barrier()
    ends = valid & (tl.load(packed + place + 1, mask=place + 1 < n, other=1) != 0)
    first = tl.associative_scan(tl.where(starts, place, 0), 0, larger)
    last = tl.associative_scan(tl.where(ends, place, n), 0, smaller, reverse=True)
    rank = block_ranks(memory, scaled, first, last, place, valid)
    rank = tl.where(broken == 0, rank, float("nan"))
    tl.store(ranks_ + row * n + order, rank.to(ranks_.dtype.element_ty), mask=valid)
    tl.store(packed + place, order | first.to(tl.int64) << 16 | last.to(tl.int64) << 32, mask=valid)


@jit(do_not_specialize=["n", "bits"])
def _centre_kernel(grad_, packed_, result_, memory_, n, bits: int64, BLOCK: constexpr):
    row = tl.program_id(0).to(tl.int64)
    place = tl.arange(0, BLOCK)
    valid = place < n
    memory = memory_ + row * (n + 1)
    packed = tl.load(packed_ + row * n + place, mask=valid, other=0)
    where = row * n + (packed & 0xFFFF)
    first, last = ((packed >> 16) & 0xFFFF).to(tl.int32), (packed >> 32).to(tl.int32)
    grad = tl.load(grad_ + where, mask=valid, other=0.0).to(tl.float64)
    share_sums(memory, grad, place, valid)
    strength = bits.to(tl.int64).to(tl.float64, bitcast=True)
    centred = (grad - block_means(memory, first, last, valid)) / strength
    tl.store(result_ + where, centred.to(result_.dtype.element_ty), mask=valid)


def trial(device: torch.device) -> None:
    """Compile and start the kernels once."""
    centre_packed(*pool_packed(torch.zeros(1, 2, device=device), 1.0), 1.0)


def pool_packed(values: Tensor, strength: float) -> tuple[Tensor, Tensor]:
    """Soft ranks of (..., n) values, and order and blocks packed, of the same shape."""
    values = values.contiguous()
    n, rows, block, warps = _sizes(values)
    ranks = torch.empty_like(values)
    packed = torch.empty_like(values, dtype=torch.int64)
    memory = torch.empty(rows * (n + 1), dtype=torch.float64, device=values.device)
    _pool_kernel[(rows,)](
        values, ranks, packed, memory, n, _bits(strength), block, 16, num_warps=warps
    )
    return ranks, packed


def centre_packed(grad: Tensor, packed: Tensor, strength: float) -> Tensor:
    """(grad − its mean over each block) / strength."""
    grad = grad.contiguous()
    n, rows, block, warps = _sizes(grad)
    result = torch.empty_like(grad)
    memory = torch.empty(rows * (n + 1), dtype=torch.float64, device=grad.device)
    _centre_kernel[(rows,)](
        grad, packed, result, memory, n, _bits(strength), block, num_warps=warps
    )
    return result


def unpacked(packed: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The sorting order and the first and the last place of each sorted place's block."""
    return packed & 0xFFFF, packed >> 16 & 0xFFFF, packed >> 32


def _sizes(rows: Tensor) -> tuple[int, int, int, int]:
    n = rows.shape[-1]
    return (n, rows.numel() // n, *_launch(n))


@cache
def _launch(n: int) -> tuple[int, int]:
    """The places of a program, and its warps."""
    block = max(32, triton.next_power_of_2(n))
    return block, min(16, max(1, block // 32))


def _bits(strength: float) -> int:
    """The strength as an integer of the same bits: a kernel's own numbers are float32."""
    bits: int = _INTEGER.unpack(_FLOAT.pack(strength))[0]
    return bits
