"""Rows held out by class, and classes thinned to a long tail."""

from __future__ import annotations

import torch
from torch import Tensor

from calibrant.functional.errors import InputError


def stratified_split(
    labels: Tensor, held_out: float | int, *, seed: int = 0
) -> tuple[Tensor, Tensor]:
    """Row numbers kept and held out, in order; each class gives its share.

    ``held_out`` below 1 is a share, else a number of rows, met exactly: classes give the
    whole part of their share, and those with the largest remainders one more. Dense labels
    are split by rows alone.
    """
    total = len(labels)
    count = round(held_out * total) if 0 <= held_out < 1 else int(held_out)
    if not 0 <= count < total:
        raise InputError(
            f"cannot hold out {held_out} of {total} rows: give a share below 1 or a number of "
            "rows below that"
        )
    how = torch.Generator().manual_seed(seed)
    groups = labels.cpu() if labels.ndim == 1 else torch.zeros(total, dtype=torch.int64)
    classes, sizes = torch.unique(groups, return_counts=True)
    ideal = sizes.double() * count / total
    give = ideal.floor().long()
    spare = count - int(give.sum())
    give[torch.argsort(ideal - give, descending=True, stable=True)[:spare]] += 1
    out = torch.zeros(total, dtype=torch.bool)
    for one, number in zip(classes.tolist(), give.tolist(), strict=True):
        rows = (groups == one).nonzero().squeeze(1)
        out[rows[torch.randperm(len(rows), generator=how)[:number]]] = True
    return (~out).nonzero().squeeze(1), out.nonzero().squeeze(1)


def long_tail_counts(largest: int, num_classes: int, ratio: float) -> list[int]:
    """#D_i = ⌊#D_0 · ρ^(i/(K−1))⌋, the rows of each class (class-scaling eq. 16).

    >>> sum(long_tail_counts(5000, 10, 0.1)), sum(long_tail_counts(500, 100, 0.1))
    (20431, 19573)
    """
    if not 0 < ratio <= 1 or num_classes < 2:
        raise InputError(
            f"a long tail needs a ratio in (0, 1] and 2 classes, found {ratio} and {num_classes}"
        )
    # In exact arithmetic 5000·0.1 is 500: a floating ratio must not lose that row.
    return [int(largest * ratio ** (i / (num_classes - 1)) + 1e-9) for i in range(num_classes)]


def long_tail_rows(
    labels: Tensor, num_classes: int, *, ratio: float = 0.1, seed: int = 0
) -> Tensor:
    """Row numbers of a long-tailed part: class i keeps #D_i rows drawn by the seed."""
    groups = labels.cpu()
    sizes = torch.bincount(groups, minlength=num_classes)
    how = torch.Generator().manual_seed(seed)
    kept = []
    for one, number in enumerate(long_tail_counts(int(sizes[0]), num_classes, ratio)):
        rows = (groups == one).nonzero().squeeze(1)
        if len(rows) < number:
            raise InputError(f"class {one} has {len(rows)} rows, its place in the tail {number}")
        kept.append(rows[torch.randperm(len(rows), generator=how)[:number]])
    return torch.cat(kept).sort().values
