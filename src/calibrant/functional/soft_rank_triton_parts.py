"""What the soft rank's Triton kernels share; imported when used.

A program has one row, a place of it to each of its lanes. They read one another's numbers
through memory: whatever is stored is read behind a barrier, and overwritten behind one more.
"""

# Triton's language has no types a checker knows.
# ruff: noqa: ANN001, ANN201
# mypy: disable-error-code="import-not-found, import-untyped, untyped-decorator, no-untyped-def"

try:
    import triton
    import triton.language as tl
    from triton import jit
    from triton.language import constexpr, int64
except ImportError:  # the file stays importable for whatever walks all modules
    triton, tl, constexpr, int64 = None, None, int, int

    def jit(kernel=None, do_not_specialize=()):
        """Leave the kernel as it is: nothing will run it."""
        return kernel or jit


__all__ = [
    "available",
    "block_means",
    "block_ranks",
    "block_starts",
    "constexpr",
    "int64",
    "jit",
    "larger",
    "scaled_gaps",
    "share_sums",
    "smaller",
    "tl",
    "triton",
]


def available() -> bool:
    """Whether Triton is installed, and not so old that these kernels went wrong in it."""
    if triton is None:
        return False
    major, minor = triton.__version__.split(".")[:2]
    return (int(major), int(minor)) >= (3, 2)


@jit
def larger(a, b):
    """For scans."""
    return tl.maximum(a, b)


@jit
def smaller(a, b):
    """For scans."""
    return tl.minimum(a, b)


@jit
def share_sums(memory, values, place, valid):
    """Put the sums of the first 0, 1, ..., n values where the whole program can read them."""
    sums = tl.cumsum(tl.where(valid, values, 0.0), 0)
    tl.debug_barrier()  # what was there before has been read
    tl.store(memory + place, tl.zeros_like(sums), mask=place == 0)
    tl.store(memory + place + 1, sums, mask=valid)
    tl.debug_barrier()


@jit
def block_means(memory, first, last, valid):
    """Means over places first to last, from shared sums."""
    total = tl.load(memory + last + 1, mask=valid, other=0.0)
    total -= tl.load(memory + first, mask=valid, other=0.0)
    return total / (last - first + 1).to(tl.float64)


@jit
def block_starts(memory, table, scaled, place, valid, n, BLOCK: constexpr):
    """Where the blocks of scaled − (1, ..., n) start.

    ``memory`` is room for n + 1 sums, ``table`` for n integers: the inverses of 1 to n stand
    there, since to divide in float64 at every step would cost more than the rest of it.
    """
    inverses = 1.0 / (place + 1).to(tl.float64)
    tl.store(table + place, inverses.to(tl.int64, bitcast=True), mask=valid)
    share_sums(memory, scaled - (place + 1).to(tl.float64), place, valid)
    here = tl.load(memory + place, mask=valid, other=0.0)
    before = tl.full([BLOCK], float("-inf"), tl.float64)
    after = tl.full([BLOCK], float("inf"), tl.float64)
    apart = 1
    while apart <= n:
        for _ in tl.static_range(4):  # loads of four steps are under way at once
            bits = tl.load(table + apart - 1, mask=apart <= n, other=0)
            inverse = bits.to(tl.float64, bitcast=True)
            ahead = valid & (place + apart <= n)
            mean = (tl.load(memory + place + apart, mask=ahead, other=0.0) - here) * inverse
            after = tl.where(ahead & (mean < after), mean, after)
            behind = valid & (place >= apart)
            mean = (here - tl.load(memory + place - apart, mask=behind, other=0.0)) * inverse
            before = tl.where(behind & (mean > before), mean, before)
            apart += 1
    tl.debug_barrier()  # both rooms have been read
    return valid & (before < after)


@jit
def scaled_gaps(high, low, strength, place, inner, n):
    """Sums of the gaps between sorted neighbours in places, each cut at n."""
    gap = (high - low) / strength
    gap = tl.where(gap == gap, gap, 0.0)  # equal infinities are a tie
    longest = (place * 0 + n).to(tl.float64)
    gap = tl.where(gap < longest, gap, longest)
    return tl.cumsum(tl.where(inner, gap, 0.0), 0)


@jit
def block_ranks(memory, scaled, first, last, place, valid):
    """Ranks from blocks; within one the values are measured from its first."""
    tl.store(memory + place, scaled, mask=valid)
    tl.debug_barrier()
    inside = scaled - tl.load(memory + first, mask=valid, other=0.0)
    share_sums(memory, inside, place, valid)
    rank = inside - block_means(memory, first, last, valid)
    return rank + (first + last + 2).to(tl.float64) * 0.5
