"""The soft rank's blocks in one kernel each way, where Triton is there; imported when used.

One program a row. The same arithmetic as ``soft_rank_pooling`` for one stretch, whose test
of where a block starts needs no order of steps: every place looks at all others in turn.
"""

# Triton's language has no types a checker knows.
# ruff: noqa: ANN001, ANN201, ANN202
# mypy: disable-error-code="import-not-found, import-untyped, untyped-decorator, no-untyped-def"

import torch
from torch import Tensor

try:
    import triton
    import triton.language as tl
    from triton import jit
    from triton.language import constexpr
except ImportError:  # the file stays importable for whatever walks all modules
    triton, constexpr = None, int

    def jit(kernel):
        """Leave the kernel as it is: nothing will run it."""
        return kernel


# Beyond this a row does not fit the registers of one program.
LONGEST = 2048


@jit
def _larger(a, b):
    return tl.maximum(a, b)


@jit
def _smaller(a, b):
    return tl.minimum(a, b)


@jit
def _share_sums(memory, values, place, valid):
    """Put the sums of the first 0, 1, ..., n values where the whole program can read them."""
    sums = tl.cumsum(tl.where(valid, values, 0.0), 0)
    tl.debug_barrier()  # what was there before has been read
    tl.store(memory + place, tl.zeros_like(sums), mask=place == 0)
    tl.store(memory + place + 1, sums, mask=valid)
    tl.debug_barrier()


@jit
def _block_means(memory, first, last, valid):
    """Means over places first to last, from shared sums."""
    total = tl.load(memory + last + 1, mask=valid, other=0.0)
    total -= tl.load(memory + first, mask=valid, other=0.0)
    return total / (last - first + 1).to(tl.float64)


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
    gap = tl.load(ordered_ + at, mask=inner, other=0.0).to(tl.float64)
    gap -= tl.load(ordered_ + at - 1, mask=inner, other=0.0).to(tl.float64)
    gap = gap / strength
    gap = tl.where(gap == gap, gap, 0.0)  # equal infinities are a tie
    longest = (place * 0 + n).to(tl.float64)
    gap = tl.where(gap < longest, gap, longest)
    scaled = tl.cumsum(tl.where(inner, gap, 0.0), 0)

    _share_sums(memory, scaled - (place + 1).to(tl.float64), place, valid)
    here = tl.load(memory + place, mask=valid, other=0.0)
    before = tl.full([BLOCK], float("-inf"), tl.float64)
    after = tl.full([BLOCK], float("inf"), tl.float64)
    apart, steps = 1, strength * 0.0
    while apart <= n:
        for _ in tl.static_range(4):  # loads of four steps are under way at once
            steps += 1.0
            inverse = 1.0 / steps
            ahead = valid & (place + apart <= n)
            mean = (tl.load(memory + place + apart, mask=ahead, other=0.0) - here) * inverse
            after = tl.where(ahead & (mean < after), mean, after)
            behind = valid & (place >= apart)
            mean = (here - tl.load(memory + place - apart, mask=behind, other=0.0)) * inverse
            before = tl.where(behind & (mean > before), mean, before)
            apart += 1

    starts = valid & (before < after)
    first = tl.associative_scan(tl.where(starts, place, 0), 0, _larger)
    tl.store(first_ + at, first.to(tl.int64), mask=valid)
    tl.debug_barrier()
    following = tl.load(first_ + at + 1, mask=place + 1 < n, other=-1)
    ends = valid & (following != first)
    last = tl.associative_scan(tl.where(ends, place, n), 0, _smaller, reverse=True)
    tl.store(last_ + at, last.to(tl.int64), mask=valid)

    tl.store(memory + place, scaled, mask=valid)  # every load of the loop is behind a barrier
    tl.debug_barrier()
    inside = scaled - tl.load(memory + first, mask=valid, other=0.0)
    _share_sums(memory, inside, place, valid)
    rank = inside - _block_means(memory, first, last, valid)
    rank += (first + last + 2).to(tl.float64) * 0.5
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
    _share_sums(memory, grad, place, valid)
    centred = (grad - _block_means(memory, first, last, valid)) / tl.load(strength_)
    tl.store(result_ + where, centred.to(result_.dtype.element_ty), mask=valid)


def available() -> bool:
    """Whether Triton is installed, and not so old that these kernels went wrong in it."""
    if triton is None:
        return False
    major, minor = triton.__version__.split(".")[:2]
    return (int(major), int(minor)) >= (3, 2)


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
