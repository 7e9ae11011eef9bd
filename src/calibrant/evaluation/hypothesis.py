"""A test of the hypothesis that confidence is calibrated."""

from __future__ import annotations

import numpy as np
import torch

from calibrant.metrics.binned import binned_error
from calibrant.metrics.ranked import RankState, ks_of_cells

_CELLS = 480  # fine enough that rows of a cell are as good as equally confident
_BINS = 15


def calibration_test(state: RankState, *, resamples: int = 1000, seed: int = 0) -> float:
    """p-value of "a prediction of confidence c is right with chance c".

    Under the hypothesis correctness is a coin of known bias for every row, so its null
    distribution can be drawn exactly (consistency resampling). Two statistics are
    compared with their null values: the KS error, which sees over- and underconfidence
    overall, and the squared error of 15 equal-mass bins, which sees it in places. The
    smaller of their two p-values is itself compared with its null distribution, so that
    looking twice costs nothing in false alarms.
    """
    cells = state.mass_totals(_CELLS).cpu().double()
    count = cells[:, 0].round().long().numpy()
    chance = np.clip((cells[:, 1] / cells[:, 0]).numpy(), 0.0, 1.0)
    generator = np.random.default_rng(seed)
    drawn = generator.binomial(count, chance, size=(resamples, len(count)))
    null = cells.expand(resamples, -1, -1).clone()
    null[..., 2] = torch.from_numpy(drawn)
    every = torch.cat((cells.unsqueeze(0), null))  # the observed set first
    values = torch.stack((ks_of_cells(every), binned_error(_coarse(every), 2.0)), dim=1)
    # Share of all sets at least as extreme, for every set and both statistics.
    ordered = values.sort(dim=0).values
    below = torch.searchsorted(
        ordered.t().contiguous(), values.t().contiguous() - 1e-12, right=False
    )
    smallest = (len(every) - below).double().amin(0)
    return float((smallest <= smallest[0]).double().mean())


def _coarse(cells: torch.Tensor) -> torch.Tensor:
    """Gather neighbouring cells into at most 15 bins."""
    number = cells.shape[-2]
    home = torch.arange(number) * min(_BINS, number) // number
    total = cells.new_zeros(*cells.shape[:-2], min(_BINS, number), 3)
    return total.index_add_(-2, home, cells)
