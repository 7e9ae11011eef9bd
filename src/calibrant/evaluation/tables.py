"""The sums behind an evaluation's tables."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from calibrant.evaluation.value import Tallies
from calibrant.metrics.binned import BinState
from calibrant.metrics.classwise import ClassBinState
from calibrant.metrics.means import ClassMeanState, MeanState, PredictedState
from calibrant.metrics.ranked import RankState
from calibrant.metrics.selective import accepted


class TableStates(NamedTuple):
    """The states that tables and verdict are made from."""

    bins: BinState
    ranks: RankState
    class_bins: ClassBinState
    nll: ClassMeanState
    correct: ClassMeanState
    predicted: PredictedState
    accuracy: MeanState


def table_states(num_bins: int) -> TableStates:
    """Fresh, empty states."""
    return TableStates(
        BinState(num_bins),
        RankState(),
        ClassBinState(num_bins),
        ClassMeanState("nll"),
        ClassMeanState("correct"),
        PredictedState(),
        MeanState("correct"),
    )


def tally(tables: TableStates, num_bins: int) -> Tallies:
    """The sums that tables and pictures are made from."""

    def array(value: Tensor) -> Any:
        return value.detach().cpu().double().numpy()

    ranked = tables.ranks.ranked()
    mass = array(tables.ranks.mass_totals(num_bins))
    ends = np.cumsum(np.rint(mass[:, 0])).astype(np.int64)
    # A bin's edge is the confidence of its last row; the first begins at 0.
    group = torch.searchsorted(ranked.bounds, torch.from_numpy(ends).to(ranked.bounds.device))
    mass_edges = np.concatenate(([0.0], array(ranked.score[group - 1])))
    mass_edges[-1] = 1.0
    count, risk, threshold = (array(v) for v in accepted(ranked))
    picked = np.unique(np.searchsorted(count, np.linspace(0.005, 1, 200) * count[-1]))
    picked = picked[picked < len(count)]
    curve = np.stack((count / count[-1], risk, threshold), axis=1)[picked]
    return Tallies(
        bins=array(tables.bins.total("totals")),
        mass_bins=mass,
        mass_edges=mass_edges,
        class_bins=array(tables.class_bins.total("totals")),
        class_nll=array(tables.nll.total("totals")),
        class_correct=array(tables.correct.total("totals"))[:, 1],
        class_predicted=array(tables.predicted.total("totals")),
        coverage=curve,
    )
