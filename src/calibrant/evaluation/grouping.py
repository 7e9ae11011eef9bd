"""Figures of every group of rows, and which groups are over- or underconfident.

A group is judged by its mean gap, confidence − accuracy. Were the confidences right, each row
would be wrong with a known chance, and the number of wrong rows has an exact distribution
(`tails.wrong_tails`): that is the test, whatever the number of rows. Pixels of one image are
alike, so of dense predictions the gaps of whole images are what varies (Student's t). p-values
are corrected for the number of groups (Holm).
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from calibrant.evaluation.groups import (
    COULD_HIDE,
    FEW,
    FEWEST,
    OVER,
    UNDER,
    UNSHOWN,
    UNTESTED,
    UNTESTED_IMAGES,
    Group,
    Groups,
)
from calibrant.evaluation.inversion import chance_level, invert
from calibrant.evaluation.tails import wrong_tails
from calibrant.functional.binning import bin_index, bin_sums
from calibrant.functional.many_tests import holm
from calibrant.functional.proportions import wilson
from calibrant.functional.ranking import rank
from calibrant.functional.rows import as_numpy
from calibrant.metrics.binned import binned_error
from calibrant.metrics.selective import weighted_risk

if TYPE_CHECKING:
    from calibrant.evaluation.group_files import GroupValues
    from calibrant.evaluation.intervals import Plan
    from calibrant.metrics.means import RowState
    from calibrant.metrics.ranked import RankState
    from calibrant.predictions import Predictions

Floats = NDArray[np.float64]

_FEW_OF_A_KIND = 10  # right or wrong rows, below which their spread says too little
_DRAWS = 20_000  # resamples shared among the groups


def by_group(
    values: GroupValues,
    predictions: Predictions,
    ranks: RankState,
    nll: RowState,
    *,
    num_bins: int,
    plan: Plan | None,
) -> Groups:
    """Every group's figures from the rows kept of one pass; judged where there is a plan."""
    labels = as_numpy(predictions.labels)
    units = np.repeat(np.arange(len(labels)), int(np.prod(labels.shape[1:])))
    counted = labels.reshape(-1) != predictions.ignore_index
    units = units[counted] if predictions.ignore_index is not None else units
    home = values.codes[units]
    confidence = ranks.joined("scores").cpu().double()
    wrong = ranks.joined("losses").cpu()
    loss = nll.joined("rows").cpu().numpy()
    number = len(values.names)
    place = torch.from_numpy(home) * num_bins + bin_index(confidence, num_bins)
    sums = [bin_sums(place, number * num_bins, each) for each in (None, confidence, ~wrong)]
    cells = torch.stack([one.double() for one in sums], dim=-1).view(number, num_bins, 3)
    order = np.argsort(home, kind="stable")
    bounds = np.searchsorted(home[order], np.arange(number + 1))
    found = []
    for code, value in enumerate(values.names):
        mine = order[bounds[code] : bounds[code + 1]]
        group = _Rows(
            confidence.numpy()[mine],
            wrong.numpy()[mine],
            units[mine] if predictions.is_dense else None,
            cells[code],
        )
        figures = group.figures(value, float(loss[mine].mean()) if len(mine) else np.nan)
        judged = plan is not None and len(mine) > 0
        found.append(group.bounded(figures, plan, number) if judged and plan else figures)
    level = 0.95 if plan is None else plan.level
    if plan is not None:
        found = _judged(found, plan, UNTESTED_IMAGES if predictions.is_dense else UNTESTED)
    return Groups(values.title, tuple(found), level)


class _Rows:
    """The rows of one group."""

    def __init__(
        self,
        confidence: Floats,
        wrong: NDArray[np.bool_],
        images: NDArray[np.int64] | None,
        cells: torch.Tensor,
    ) -> None:
        self.confidence, self.wrong, self.cells = confidence, wrong, cells
        self.images = images
        self.gaps = confidence - ~wrong
        self.units = len(wrong) if images is None else len(np.unique(images))

    def figures(self, value: str, nll: float) -> Group:
        """What the rows show, without intervals."""
        if not len(self.wrong):
            nothing = float("nan")
            return Group(value, 0, 0, nothing, nothing, nothing, nothing, nothing, nothing)
        ranked = rank(torch.from_numpy(self.confidence), torch.from_numpy(self.wrong))
        return Group(
            value=value,
            num_rows=len(self.wrong),
            num_units=self.units,
            accuracy=float((~self.wrong).mean()),
            confidence=float(self.confidence.mean()),
            gap=float(self.gaps.mean()),
            ece=float(binned_error(self.cells)),
            nll=nll,
            aurc=float(weighted_risk(ranked, "empirical")),
        )

    def bounded(self, group: Group, plan: Plan, number: int) -> Group:
        """The same with intervals, and a p-value where there are rows enough."""
        draws = max(100, min(plan.resamples, _DRAWS // number))
        how: dict[str, Any] = {"resamples": draws, "seed": plan.seed}
        error = invert(self.cells, binned_error, level=plan.level, **how)
        low, high, p_value = self._gap(plan.level)
        widest = max(abs(low), abs(high)) if self._few_of_a_kind else 0.0
        return replace(
            group,
            gap_low=low,
            gap_high=high,
            ece_low=error.low,
            ece_high=max(error.high, widest),
            chance_ece=chance_level(self.cells, binned_error, **how),
            p_value=p_value if self.units >= FEWEST else None,
        )

    @property
    def _few_of_a_kind(self) -> bool:
        wrong = int(self.wrong.sum())
        return min(wrong, len(self.wrong) - wrong) < _FEW_OF_A_KIND

    def _gap(self, level: float) -> tuple[float, float, float]:
        """(low, high, p-value) of the mean gap."""
        low, high, p_value = self._by_unit(level)
        if self.images is None:
            below, above = wrong_tails(1 - np.clip(self.confidence, 0, 1), int(self.wrong.sum()))
            p_value = min(1.0, 2 * min(below, above))
        if self._few_of_a_kind:
            count, rate = np.array([float(self.units)]), np.array([(~self.wrong).mean()])
            mean = float(self.confidence.mean())
            least, most = (float(end[0]) for end in wilson(rate, count, level))
            low, high = min(low, mean - most), max(high, mean - least)
        return low, high, p_value

    def _by_unit(self, level: float) -> tuple[float, float, float]:
        """The mean gap over units that vary, rows or images, by Student's t (a ratio of sums)."""
        from scipy.stats import t as student

        mean = float(self.gaps.mean())
        if self.units < 2:
            return -1.0, 1.0, 1.0
        sums, sizes = self.gaps, np.ones_like(self.gaps)
        if self.images is not None:
            _, home = np.unique(self.images, return_inverse=True)
            sums = np.bincount(home, self.gaps).astype(np.float64)
            sizes = np.bincount(home).astype(np.float64)
        rest = sums - mean * sizes
        spread = float(np.sqrt(self.units / (self.units - 1) * (rest**2).sum()) / sizes.sum())
        half = float(student.ppf(0.5 + level / 2, self.units - 1)) * spread
        p_value = 2 * float(student.sf(abs(mean) / max(spread, 1e-300), self.units - 1))
        return max(mean - half, -1.0), min(mean + half, 1.0), 1.0 if mean == 0 else p_value


def _judged(groups: list[Group], plan: Plan, untested: str) -> list[Group]:
    """The groups with what they are found to be, among so many."""
    adjusted = holm([group.p_value for group in groups])
    return [
        replace(
            group,
            p_adjusted=p_value,
            finding=untested if p_value is None else _finding(group, p_value < 1 - plan.level),
        )
        for group, p_value in zip(groups, adjusted, strict=True)
    ]


def _finding(group: Group, sure: bool) -> str:
    assert group.gap_low is not None
    assert group.gap_high is not None
    if sure and group.gap_low > 0:
        return OVER
    if sure and group.gap_high < 0:
        return UNDER
    return FEW if group.widest >= COULD_HIDE else UNSHOWN
