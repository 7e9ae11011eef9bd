"""Pool the soft rank's blocks by tensor operations alone: on any device, without waiting for it.

Pooling adjacent violators goes through the values from left to right, which no accelerator
does well. Here short stretches are pooled by comparing all means at once, and neighbouring
stretches are then merged in pairs, in a number of rounds that depends on n alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import pad

# Values pooled at once, and numbers a table of their means may hold: a compromise between memory
# (8 bytes each, a few tables at a time) and rounds of merging.
_STRETCH = 512
_TABLE = 1 << 24
# A GPU scans a row with one block of threads, however long: longer rows are cut to this.
_SCANNED = 1024


def pool_on_device(values: Tensor, strength: float) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Compute soft ranks of (rows, n) values, the sorting order, and each sorted place's block."""
    rows, n = values.shape
    ordered, order = values.sort(dim=-1)
    wide = torch.float32 if values.device.type == "mps" else torch.float64
    # A gap of n places or more always parts two blocks. Cut there, it does so still, and
    # the largest values do not swamp the smallest steps. Equal infinities are a tie.
    gaps = ordered.to(wide).diff(dim=-1).div_(strength).nan_to_num_(nan=0.0).clamp_max_(n)
    scaled = _sums(gaps)
    size = min(n, _STRETCH)
    while size > 2 and rows * n * size > _TABLE:
        size //= 2
    first, last = _bounds(_starts(scaled, gaps, size))

    # Within a block the values are measured from its first, so nothing large is subtracted.
    inside = scaled - scaled.gather(1, first)
    sorted_ranks = inside - _block_means(inside, first, last) + (first + last + 2) / 2
    sorted_ranks.masked_fill_(ordered[:, -1:].isnan(), math.nan)  # NaN sorts last
    ranks = torch.empty_like(values, memory_format=torch.contiguous_format)
    return ranks.scatter_(1, order, sorted_ranks.to(values.dtype)), order, first, last


def centre_on_device(
    grad: Tensor, order: Tensor, first: Tensor, last: Tensor, strength: float
) -> Tensor:
    """Compute (grad − its mean over each block) / strength."""
    wide = torch.float32 if grad.device.type == "mps" else torch.float64
    ordered = grad.gather(1, order).to(wide)
    centred = (ordered - _block_means(ordered, first, last)).div_(strength).to(grad.dtype)
    result = torch.empty_like(grad, memory_format=torch.contiguous_format)
    return result.scatter_(1, order, centred)


def _sums(values: Tensor) -> Tensor:
    """Compute the sums of the first 0, 1, ..., n values along the last dimension."""
    return pad(_running(values, lambda part: part.cumsum(-1), torch.add, 0.0), (1, 0))


def _running_max(values: Tensor) -> Tensor:
    return _running(values, lambda part: part.cummax(-1).values, torch.maximum, -math.inf)


def _running(
    values: Tensor,
    scan: Callable[[Tensor], Tensor],
    combine: Callable[[Tensor, Tensor], Tensor],
    neutral: float,
) -> Tensor:
    """Scan the last dimension; a long one in parts, whose ends are scanned in turn."""
    n = values.shape[-1]
    if n <= _SCANNED:
        return scan(values)
    padded = pad(values, (0, -n % _SCANNED), value=neutral)
    parts = scan(padded.reshape(*values.shape[:-1], -1, _SCANNED))
    ends = _running(parts[..., -1], scan, combine, neutral)
    before = pad(ends[..., :-1], (1, 0), value=neutral)
    return combine(parts, before.unsqueeze(-1)).flatten(-2)[..., :n]


def _block_means(values: Tensor, first: Tensor, last: Tensor) -> Tensor:
    """Compute, for each place, the mean over places ``first`` to ``last`` of its row."""
    sums = _sums(values)
    return (sums.gather(1, last + 1) - sums.gather(1, first)) / (last - first + 1)


def _bounds(starts: Tensor) -> tuple[Tensor, Tensor]:
    """Return the first and last place of each place's block, from where blocks start."""
    rows, n = starts.shape
    flat = starts.reshape(-1)  # every row begins with a start
    block = flat.cumsum(0)
    place = torch.arange(rows * n, device=starts.device)
    # The table lists where each block starts; places that start none are written behind them.
    table = place.new_full((2 * rows * n + 1,), rows * n)
    table.scatter_(0, torch.where(flat, block - 1, place + rows * n + 1), place)
    bounds = table[block - 1], table[block] - 1
    before = torch.arange(0, rows * n, n, device=starts.device).unsqueeze(-1)
    first, last = (bound.view(rows, n) - before for bound in bounds)
    return first, last


def _starts(scaled: Tensor, gaps: Tensor, size: int) -> Tensor:
    """Find where the blocks of the isotonic regression of ``scaled`` − (1, ..., n) start."""
    rows, n = scaled.shape
    ramp = torch.arange(1, n + 1, device=scaled.device)
    if size == n:
        return _pool_stretch(scaled - ramp)
    # Long rows of far-apart values would add up to sums that round off single places. No
    # average to the left of a gap exceeds its left end by more than the row has fallen there
    # from its highest, nor to the right by more than it has yet to fall: a gap beyond both
    # parts two blocks, and may be cut again.
    shifted = scaled - ramp
    fallen = _running_max(shifted) - shifted
    falling = shifted + _running_max(-shifted.flip(-1)).flip(-1)
    shifted = _sums(torch.minimum(gaps, fallen[:, :-1] + falling[:, 1:] + 2)) - ramp
    stretches = 1 << (-(-n // size) - 1).bit_length()
    beyond = shifted.amax(-1, keepdim=True) + 1  # filled up with values that stay alone
    filler = beyond + torch.arange(stretches * size - n, device=scaled.device)
    shifted = torch.cat((shifted, filler), -1)
    starts = _pool_stretch(shifted.view(rows * stretches, size)).reshape(rows, -1)
    while size < shifted.shape[-1]:
        starts = _merge(shifted, starts, size)
        size *= 2
    return starts[:, :n]


def _pool_stretch(values: Tensor) -> Tensor:
    """Find the block starts of (rows, m) values, in O(m²) per row.

    A block starts at a place if and only if every average of the values that ends before it
    is below every average that begins with it: there the largest convex function below the
    partial sums has a corner.
    """
    sums = _sums(values)
    place = torch.arange(sums.shape[-1], device=values.device)
    apart = place - place.unsqueeze(-1)
    means = (sums.unsqueeze(-2) - sums.unsqueeze(-1)).div_(apart)
    before = means.masked_fill(apart >= 0, -math.inf).amax(-1)
    after = means.masked_fill_(apart <= 0, math.inf).amin(-1)
    return (before < after)[..., :-1]


def _merge(values: Tensor, starts: Tensor, size: int) -> Tensor:
    """Find the block starts of stretches twice as long, from those of stretches of ``size``.

    Two fits side by side, left a and right b, merge at the level t where what a has above t
    and b below t weigh the same, Σ (a − t)₊ = Σ (t − b)₊: those values, a run around the
    middle, become one block. Both sides fall or rise with t, so its place among the values
    of either side is a count.
    """
    rows, length = values.shape
    first, last = _bounds(starts)
    fit = _block_means(values, first, last).view(rows, -1, 2, size)
    left, right = fit[:, :, 0].contiguous(), fit[:, :, 1].contiguous()
    sums_left, sums_right = _sums(left), _sums(right)
    place = torch.arange(size, device=values.device)

    below = torch.searchsorted(right, left)
    excess = (sums_left[..., -1:] - sums_left[..., 1:]) - left * (size - 1 - place)
    excess = excess - (left * below - sums_right.gather(-1, below))
    from_left = (excess < 0).sum(-1, keepdim=True)

    not_above = torch.searchsorted(left, right, right=True)
    excess = (sums_left[..., -1:] - sums_left.gather(-1, not_above)) - right * (size - not_above)
    excess = excess - (right * place - sums_right[..., :-1])
    from_right = (excess > 0).sum(-1, keepdim=True)

    # Only starts inside the run are removed: if rounding puts an end of the run inside a block,
    # the whole block joins.
    place = torch.arange(-size, size, device=values.device)
    joined = (place > -from_left) & (place < from_right)
    return starts & ~joined.view(rows, length)
