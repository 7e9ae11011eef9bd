"""The soft rank's Triton kernels, one each way; imported when used, with or without Triton.

Each program computes one row; each of its lanes has one place of the row. Lanes exchange numbers
through memory, with a barrier between a store and its reads, and another before the next store.
The arithmetic follows ``device_pooling``. Its test of where a block starts does not depend on an
order of steps: every place compares itself with all others.

There are two ways. "sorted" takes rows that torch has sorted. "fused" also sorts them: short
rows take longer to launch than to compute, and torch's sort takes several launches. The backward
pass of "fused" needs one integer per place, which packs the sorting order and the block's ends.
"""

# Triton's language has no types a checker knows.
# ruff: noqa: ANN001, ANN201, ANN202
# mypy: disable-error-code="import-not-found, import-untyped, untyped-decorator, no-untyped-def"

from functools import cache
from struct import Struct

import torch
from torch import Tensor

try:
    import triton
    import triton.language as tl
    from triton import jit
    from triton.language import constexpr, int64
except ImportError:  # tools that walk all modules can still import this one
    triton, tl, constexpr, int64 = None, None, int, int

    def jit(kernel=None, do_not_specialize=()):
        """Leave the kernel as it is: nothing will run it."""
        return kernel or jit


# The longest row of each way: what fits the registers of one program, and the length from which
# the library's sort beats counting, which takes n² comparisons.
LONGEST = {"sorted": 2048, "fused": 1024}
_FLOAT, _INTEGER = Struct("d"), Struct("q")


def available() -> bool:
    """Return whether Triton is installed, in a version (3.2 or later) that runs these kernels."""
    if triton is None:
        return False
    major, minor = triton.__version__.split(".")[:2]
    return (int(major), int(minor)) >= (3, 2)


@jit
def larger(a, b):
    """Return the larger of two values, for scans."""
    return tl.maximum(a, b)


@jit
def smaller(a, b):
    """Return the smaller of two values, for scans."""
    return tl.minimum(a, b)


@jit
def share_sums(memory, values, place, valid):
    """Store the sums of the first 0, 1, ..., n values where the whole program can read them."""
    sums = tl.cumsum(tl.where(valid, values, 0.0), 0)
    tl.debug_barrier()  # what was there before has been read
    tl.store(memory + place, tl.zeros_like(sums), mask=place == 0)
    tl.store(memory + place + 1, sums, mask=valid)
    tl.debug_barrier()


@jit
def block_means(memory, first, last, valid):
    """Compute the means over places first to last, from shared sums."""
    total = tl.load(memory + last + 1, mask=valid, other=0.0)
    total -= tl.load(memory + first, mask=valid, other=0.0)
    return total / (last - first + 1).to(tl.float64)


@jit
def block_starts(memory, table, scaled, place, valid, n, BLOCK: constexpr):
    """Find where the blocks of scaled − (1, ..., n) start.

    ``memory`` has room for n + 1 sums, ``table`` for n integers. The table holds the inverses
    of 1 to n, since a float64 division at every step would cost more than all the rest.
    """
    inverses = 1.0 / (place + 1).to(tl.float64)
    tl.store(table + place, inverses.to(tl.int64, bitcast=True), mask=valid)
    share_sums(memory, scaled - (place + 1).to(tl.float64), place, valid)
    value_here = tl.load(memory + place, mask=valid, other=0.0)
    before = tl.full([BLOCK], float("-inf"), tl.float64)
    after = tl.full([BLOCK], float("inf"), tl.float64)
    apart = 1
    while apart <= n:
        for _ in tl.static_range(4):  # loads of four steps are under way at once
            bits = tl.load(table + apart - 1, mask=apart <= n, other=0)
            inverse = bits.to(tl.float64, bitcast=True)
            ahead = valid & (place + apart <= n)
            mean = (tl.load(memory + place + apart, mask=ahead, other=0.0) - value_here) * inverse
            after = tl.where(ahead & (mean < after), mean, after)
            behind = valid & (place >= apart)
            mean = (value_here - tl.load(memory + place - apart, mask=behind, other=0.0)) * inverse
            before = tl.where(behind & (mean > before), mean, before)
            apart += 1
    tl.debug_barrier()  # both rooms have been read
    return valid & (before < after)


@jit
def scaled_gaps(high, low, strength, place, inner, n):
    """Sum up the gaps between sorted neighbours, in places, each cut at n."""
    gap = (high - low) / strength
    gap = tl.where(gap == gap, gap, 0.0)  # equal infinities are a tie
    longest = (place * 0 + n).to(tl.float64)
    gap = tl.where(gap < longest, gap, longest)
    return tl.cumsum(tl.where(inner, gap, 0.0), 0)


@jit
def block_ranks(memory, scaled, first, last, place, valid):
    """Compute ranks from blocks; values are measured from the first of their block."""
    tl.store(memory + place, scaled, mask=valid)
    tl.debug_barrier()
    inside = scaled - tl.load(memory + first, mask=valid, other=0.0)
    share_sums(memory, inside, place, valid)
    rank = inside - block_means(memory, first, last, valid)
    return rank + (first + last + 2).to(tl.float64) * 0.5


@jit
def _pool_sorted(ordered_, order_, strength_, ranks_, first_, last_, memory_, n, BLOCK: constexpr):
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
def _centre_sorted(grad_, order_, first_, last_, strength_, result_, memory_, n, BLOCK: constexpr):
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


@jit
def _sorted_place(values_, value, place, n, BLOCK: constexpr, STEP: constexpr):
    """Count how many values of the row sort before each; equal values sort by place."""
    infinity = float("inf")
    key = tl.where(value == value, value, infinity)[:, None]  # NaN sorts last
    count = tl.zeros([BLOCK, STEP], tl.int32)
    begin = 0
    while begin < n:
        beside = begin + tl.arange(0, STEP)
        rival = tl.load(values_ + beside, mask=beside < n, other=infinity)
        rival = tl.where(rival == rival, rival, infinity)[None, :]
        tied = (rival == key) & (beside[None, :] < place[:, None])
        count += ((rival < key) | tied).to(tl.int32)
        begin += STEP
    return tl.sum(count, 1)


@jit(do_not_specialize=["n", "bits"])
def _pool_fused(
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
def _centre_fused(grad_, packed_, result_, memory_, n, bits: int64, BLOCK: constexpr):
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


def trial(device: torch.device, way: str) -> None:
    """Compile and start the kernels of one way once."""
    row = torch.zeros(1, 2, device=device)
    if way == "sorted":
        centre_by_kernel(*pool_by_kernel(row, 1.0), 1.0)
    else:
        centre_packed(*pool_packed(row, 1.0), 1.0)


def pool_by_kernel(values: Tensor, strength: float) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Compute soft ranks of (rows, n) values, the sorting order, and each sorted place's block."""
    rows, n = values.shape
    ordered, order = values.contiguous().sort(dim=-1)
    ranks, first, last = torch.empty_like(ordered), torch.empty_like(order), torch.empty_like(order)
    scale, memory = _scale_and_memory(values, strength)
    block, warps = _launch(n, 64, 8)
    _pool_sorted[(rows,)](
        ordered, order, scale, ranks, first, last, memory, n, BLOCK=block, num_warps=warps
    )
    return ranks, order, first, last


def centre_by_kernel(
    grad: Tensor, order: Tensor, first: Tensor, last: Tensor, strength: float
) -> Tensor:
    """Compute (grad − its mean over each block) / strength."""
    rows, n = grad.shape
    grad = grad.contiguous()
    result = torch.empty_like(grad)
    scale, memory = _scale_and_memory(grad, strength)
    block, warps = _launch(n, 64, 8)
    _centre_sorted[(rows,)](
        grad, order, first, last, scale, result, memory, n, BLOCK=block, num_warps=warps
    )
    return result


def _scale_and_memory(like: Tensor, strength: float) -> tuple[Tensor, Tensor]:
    """Put the strength on the device, as a kernel's own numbers are float32; make room for sums."""
    rows, n = like.shape
    scale = torch.full((1,), strength, dtype=torch.float64, device=like.device)
    return scale, torch.empty(rows, n + 1, dtype=torch.float64, device=like.device)


def pool_packed(values: Tensor, strength: float) -> tuple[Tensor, Tensor]:
    """Compute soft ranks of (..., n) values, and their order and blocks, packed."""
    values = values.contiguous()
    n, rows, block, warps = _sizes(values)
    ranks = torch.empty_like(values)
    packed = torch.empty_like(values, dtype=torch.int64)
    memory = torch.empty(rows * (n + 1), dtype=torch.float64, device=values.device)
    _pool_fused[(rows,)](
        values, ranks, packed, memory, n, _bits(strength), block, 16, num_warps=warps
    )
    return ranks, packed


def centre_packed(grad: Tensor, packed: Tensor, strength: float) -> Tensor:
    """Compute (grad − its mean over each block) / strength."""
    grad = grad.contiguous()
    n, rows, block, warps = _sizes(grad)
    result = torch.empty_like(grad)
    memory = torch.empty(rows * (n + 1), dtype=torch.float64, device=grad.device)
    _centre_fused[(rows,)](grad, packed, result, memory, n, _bits(strength), block, num_warps=warps)
    return result


def unpack(packed: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the sorting order, and the first and last place of each sorted place's block."""
    return packed & 0xFFFF, packed >> 16 & 0xFFFF, packed >> 32


def _sizes(rows: Tensor) -> tuple[int, int, int, int]:
    n = rows.shape[-1]
    return (n, rows.numel() // n, *_launch(n, 32, 16))


@cache
def _launch(n: int, lanes: int, most: int) -> tuple[int, int]:
    """Return the places of a program, and its warps: one for ``lanes`` places, at most ``most``."""
    block = max(32, triton.next_power_of_2(n))
    return block, min(most, max(1, block // lanes))


def _bits(strength: float) -> int:
    """Return the strength as an integer of the same bits: a kernel's own numbers are float32."""
    bits: int = _INTEGER.unpack(_FLOAT.pack(strength))[0]
    return bits
