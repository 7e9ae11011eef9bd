"""Compute the figures of every group, and judge which groups are over- or underconfident.

A group is judged by its mean gap, confidence − accuracy. If the confidences are right, each row
is wrong with a known chance, and the number of wrong rows has an exact distribution
(`poisson_binomial`), which gives the test for any number of rows. Pixels of one image are alike,
so dense predictions are tested on the gaps of whole images (Student's t). Holm's correction
accounts for the number of groups.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from calibrant.evaluation.groups.files import GroupValues
from calibrant.evaluation.groups.poisson_binomial import error_count_tails
from calibrant.evaluation.groups.value import (
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
from calibrant.evaluation.intervals import Plan
from calibrant.evaluation.inversion import chance_level, invert
from calibrant.functional.arrays import as_numpy
from calibrant.functional.binning import bin_index, bin_sums
from calibrant.functional.ranking import rank
from calibrant.functional.statistics import holm, wilson
from calibrant.metrics.means import RowState
from calibrant.metrics.rank_state import RankState
from calibrant.metrics.selective import weighted_risk
from calibrant.metrics.toplabel import binned_error
from calibrant.predictions import Predictions

Floats = NDArray[np.float64]

_FEW_OF_A_KIND = 10  # right or wrong rows; the spread of fewer is unreliable
_DRAWS = 20_000  # resamples of all groups together


def judge_groups(
    values: GroupValues,
    predictions: Predictions,
    ranks: RankState,
    nll: RowState,
    *,
    num_bins: int,
    plan: Plan | None,
) -> Groups:
    """Compute every group's figures from the rows of one pass, and judge the groups.

    Args:
        values: The group of every row.
        predictions: The predictions.
        ranks: Confidence and correctness of all rows that are not ignored.
        nll: Their negative log-likelihoods.
        num_bins: The number of bins of ECE.
        plan: The level, resamples and seed of the intervals; None judges no group.
    """
    labels = as_numpy(predictions.labels)
    units = np.repeat(np.arange(len(labels)), int(np.prod(labels.shape[1:])))
    counted = labels.reshape(-1) != predictions.ignore_index
    units = units[counted] if predictions.ignore_index is not None else units
    home = values.codes[units]
    confidence = ranks.concatenate("scores").cpu().double()
    wrong = ranks.concatenate("losses").cpu()
    loss = nll.concatenate("rows").cpu().numpy()
    number = len(values.names)
    place = torch.from_numpy(home) * num_bins + bin_index(confidence, num_bins)
    weights = (None, confidence, ~wrong)
    sums = [bin_sums(place, number * num_bins, weight) for weight in weights]
    cells = torch.stack([total.double() for total in sums], dim=-1).view(number, num_bins, 3)
    order = np.argsort(home, kind="stable")
    bounds = np.searchsorted(home[order], np.arange(number + 1))
    groups = []
    for code, value in enumerate(values.names):
        mine = order[bounds[code] : bounds[code + 1]]
        rows = _GroupRows(
            confidence.numpy()[mine],
            wrong.numpy()[mine],
            units[mine] if predictions.is_dense else None,
            cells[code],
        )
        group = rows.compute_figures(value, float(loss[mine].mean()) if len(mine) else np.nan)
        if plan is not None and len(mine):
            group = rows.add_intervals(group, plan, number)
        groups.append(group)
    if plan is None:
        return Groups(values.title, tuple(groups), 0.95)
    groups = _add_findings(groups, plan, UNTESTED_IMAGES if predictions.is_dense else UNTESTED)
    return Groups(values.title, tuple(groups), plan.level)


class _GroupRows:
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

    def compute_figures(self, value: str, nll: float) -> Group:
        """Compute the group's figures without intervals."""
        if not len(self.wrong):
            nan = float("nan")
            return Group(value, 0, 0, nan, nan, nan, nan, nan, nan)
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

    def add_intervals(self, group: Group, plan: Plan, number: int) -> Group:
        """Return the group with intervals, and with a p-value if it has enough rows."""
        draws = max(100, min(plan.resamples, _DRAWS // number))
        how: dict[str, Any] = {"resamples": draws, "seed": plan.seed}
        error = invert(self.cells, binned_error, level=plan.level, **how)
        low, high, p_value = self._test_gap(plan.level)
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

    def _test_gap(self, level: float) -> tuple[float, float, float]:
        """Return (low, high, p-value) of the mean gap."""
        low, high, p_value = self._test_units(level)
        if self.images is None:
            below, above = error_count_tails(
                1 - np.clip(self.confidence, 0, 1), int(self.wrong.sum())
            )
            p_value = min(1.0, 2 * min(below, above))
        if self._few_of_a_kind:
            count, rate = np.array([float(self.units)]), np.array([(~self.wrong).mean()])
            mean = float(self.confidence.mean())
            least, most = (float(end[0]) for end in wilson(rate, count, level))
            low, high = min(low, mean - most), max(high, mean - least)
        return low, high, p_value

    def _test_units(self, level: float) -> tuple[float, float, float]:
        """Test the mean gap over units, rows or images, by Student's t (a ratio of sums)."""
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


def _add_findings(groups: list[Group], plan: Plan, untested: str) -> list[Group]:
    """Return the groups with their findings, after Holm's correction for their number."""
    adjusted = holm([group.p_value for group in groups])
    return [
        replace(
            group,
            p_adjusted=p_value,
            finding=untested
            if p_value is None
            else _choose_finding(group, p_value < 1 - plan.level),
        )
        for group, p_value in zip(groups, adjusted, strict=True)
    ]


def _choose_finding(group: Group, sure: bool) -> str:
    assert group.gap_low is not None
    assert group.gap_high is not None
    if sure and group.gap_low > 0:
        return OVER
    if sure and group.gap_high < 0:
        return UNDER
    return FEW if group.widest >= COULD_HIDE else UNSHOWN
