"""Hold rows out by class, and thin classes to a long tail."""

from __future__ import annotations

import torch
from torch import Tensor

from calibrant.core.errors import InputError


def stratified_split(
    labels: Tensor, held_out: float | int, *, seed: int = 0
) -> tuple[Tensor, Tensor]:
    """Return the numbers of the rows kept and of the rows held out, both in ascending order.

    Each class gives its share: the whole part of it, and the classes with the largest
    remainders one row more, so that the number of rows held out is exact. Dense labels are
    split by rows, without regard to classes.

    Args:
        labels: (N,), or (N,H,W) if dense.
        held_out: A share of the rows if below 1, else a number of rows.
        seed: The seed of the draw.
    """
    total = len(labels)
    count = round(held_out * total) if 0 <= held_out < 1 else int(held_out)
    if not 0 <= count < total:
        raise InputError(
            f"cannot hold out {held_out} of {total} rows: give a share below 1 or a number of "
            "rows below that"
        )
    generator = torch.Generator().manual_seed(seed)
    groups = labels.cpu() if labels.ndim == 1 else torch.zeros(total, dtype=torch.int64)
    classes, sizes = torch.unique(groups, return_counts=True)
    ideal = sizes.double() * count / total
    quotas = ideal.floor().long()
    spare = count - int(quotas.sum())
    quotas[torch.argsort(ideal - quotas, descending=True, stable=True)[:spare]] += 1
    out = torch.zeros(total, dtype=torch.bool)
    for label, quota in zip(classes.tolist(), quotas.tolist(), strict=True):
        out[_draw_rows(groups, label, quota, generator)] = True
    return (~out).nonzero().squeeze(1), out.nonzero().squeeze(1)


def long_tail_counts(largest: int, num_classes: int, ratio: float) -> list[int]:
    """Compute the rows of each class, #D_i = ⌊#D_0 · ρ^(i/(K−1))⌋ (class-scaling eq. 16).

    >>> sum(long_tail_counts(5000, 10, 0.1)), sum(long_tail_counts(500, 100, 0.1))
    (20431, 19573)

    Args:
        largest: #D_0, the rows of the first class.
        num_classes: K.
        ratio: ρ in (0, 1], the rows of the last class divided by those of the first.
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
    """Return the numbers of the rows of a long-tailed part, in ascending order.

    Args:
        labels: (N,).
        num_classes: K.
        ratio: ρ; see `long_tail_counts`, which gives the rows of each class.
        seed: The seed of the draw.
    """
    groups = labels.cpu()
    sizes = torch.bincount(groups, minlength=num_classes)
    generator = torch.Generator().manual_seed(seed)
    kept = []
    for label, count in enumerate(long_tail_counts(int(sizes[0]), num_classes, ratio)):
        if sizes[label] < count:
            raise InputError(f"class {label} has {sizes[label]} rows, the long tail needs {count}")
        kept.append(_draw_rows(groups, label, count, generator))
    return torch.cat(kept).sort().values


def _draw_rows(groups: Tensor, label: int, count: int, generator: torch.Generator) -> Tensor:
    rows = (groups == label).nonzero().squeeze(1)
    return rows[torch.randperm(len(rows), generator=generator)[:count]]
