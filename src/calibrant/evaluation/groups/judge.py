"""Compute the figures of every group, and judge in which groups probabilities are off.

A group is judged by its mean gap: confidence − accuracy, or mean probability − frequency of
events. If the probabilities are right, each row is wrong with a known chance, and the number of
wrong rows has an exact distribution (`poisson_binomial`), which gives the test for any number
of rows; Holm's correction accounts for the number of groups.

Rows with weights, or in clusters (pixels of one image, too), are judged by the signs of whole
clusters (`clustered.sign_flip_tests`). The corrected p-values are those of the largest sum of
all groups, so they account for clusters that lie in several groups. A group with fewer than
ten clusters is not tested.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from calibrant.evaluation.clustered import (
    FEWEST_CLUSTERS,
    comonotone_p_value,
    find_inflation,
    gap_interval,
    independent_total_test,
    influence_interval,
    make_cell_noise,
    proportion_interval,
    sign_flip_tests,
)
from calibrant.evaluation.groups.files import GroupValues
from calibrant.evaluation.groups.poisson_binomial import error_count_tails
from calibrant.evaluation.groups.value import (
    COULD_HIDE,
    FACTOR_COULD_HIDE,
    FEW,
    FEW_EVENTS,
    FEWEST,
    OVER,
    TOO_HIGH,
    TOO_LOW,
    UNDER,
    UNSHOWN,
    UNTESTED,
    UNTESTED_CLUSTERS,
    UNTESTED_IMAGES,
    Group,
    Groups,
)
from calibrant.evaluation.intervals import Plan, Units
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
Codes = NDArray[np.int64]

_FEW_OF_A_KIND = 10  # right or wrong rows; the spread of fewer is unreliable
_DRAWS = 20_000  # resamples of all groups together
_MOST_CLUSTERS = 4096  # whose signs are flipped


def judge_groups(
    values: GroupValues,
    predictions: Predictions,
    ranks: RankState,
    nll: RowState,
    *,
    num_bins: int,
    plan: Plan | None,
    units: Units | None = None,
    event: str | None = None,
) -> Groups:
    """Compute every group's figures from the rows of one pass, and judge the groups.

    Args:
        values: The group of every row.
        predictions: The predictions.
        ranks: Confidence and correctness of all rows that are not ignored.
        nll: Their negative log-likelihoods.
        num_bins: The number of bins of ECE.
        plan: The level, resamples and seed of the intervals; None judges no group.
        units: Weights and clusters of the rows that are not ignored; if None, rows count the
            same, and each image of dense predictions is a cluster.
        event: What may happen, if rows are judged as events; None for the predicted class.
    """
    labels = as_numpy(predictions.known_labels)
    row = np.repeat(np.arange(len(labels)), int(np.prod(labels.shape[1:])))
    if predictions.ignore_index is not None:
        row = row[labels.reshape(-1) != predictions.ignore_index]
    if units is None:
        units = Units(None, row if predictions.is_dense else None)
    home = values.codes[row]
    confidence = ranks.concatenate("scores").cpu().double()
    wrong = ranks.concatenate("losses").cpu()
    loss = nll.concatenate("rows").cpu().numpy()
    number = len(values.names)
    place = torch.from_numpy(home) * num_bins + bin_index(confidence, num_bins)
    parts: list[torch.Tensor | None] = [None, confidence, ~wrong]
    if units.weights is not None:
        row_weights = torch.from_numpy(units.weights)
        parts = [row_weights, row_weights * confidence, row_weights * ~wrong]
    sums = [bin_sums(place, number * num_bins, part) for part in parts]
    cells = torch.stack([total.double() for total in sums], dim=-1).view(number, num_bins, 3)
    order = np.argsort(home, kind="stable")
    bounds = np.searchsorted(home[order], np.arange(number + 1))
    rows = []
    for code in range(number):
        mine = order[bounds[code] : bounds[code + 1]]
        rows.append(
            _GroupRows(
                confidence.numpy()[mine],
                wrong.numpy()[mine],
                cells[code],
                units.take(mine),
                event,
                loss[mine],
            )
        )
    groups = [
        group_rows.compute_figures(name)
        for name, group_rows in zip(values.names, rows, strict=True)
    ]
    unit = "row" if units.clusters is None else "cluster"
    if predictions.is_dense and predictions.clusters is None:
        unit = "image"
    if plan is None:
        return Groups(values.title, tuple(groups), 0.95, event, unit)
    groups = [
        group_rows.add_intervals(group, plan, number) if len(group_rows.wrong) else group
        for group, group_rows in zip(groups, rows, strict=True)
    ]
    if units.plain:
        adjusted = holm([group.p_value for group in groups])
        groups = [replace(group, p_adjusted=p) for group, p in zip(groups, adjusted, strict=True)]
    else:
        residual = (~wrong).numpy() - confidence.numpy()
        groups = _test_by_signs(groups, rows, home, residual, units, plan)
    untested = {"image": UNTESTED_IMAGES, "cluster": UNTESTED_CLUSTERS}.get(unit, UNTESTED)
    groups = [
        replace(group, finding=_choose_finding(group, plan.level, event, untested))
        for group in groups
    ]
    correction = "Holm" if units.plain else "maxT"
    return Groups(values.title, tuple(groups), plan.level, event, unit, correction)


class _GroupRows:
    """The rows of one group."""

    def __init__(
        self,
        confidence: Floats,
        wrong: NDArray[np.bool_],
        cells: torch.Tensor,
        units: Units,
        event: str | None,
        loss: Floats,
    ) -> None:
        self.confidence, self.wrong, self.cells = confidence, wrong, cells
        self.units, self.event, self.loss = units, event, loss
        self.gaps = confidence - ~wrong
        clusters = units.clusters
        self.num_units = len(wrong) if clusters is None else len(np.unique(clusters))
        self.how: dict[str, Any] = {"weights": units.weights, "clusters": clusters}

    @property
    def can_be_tested(self) -> bool:
        """Return whether there are enough rows and enough clusters for a test."""
        fewest = FEWEST if self.units.clusters is None else FEWEST_CLUSTERS
        return len(self.wrong) >= FEWEST and self.num_units >= fewest

    def compute_figures(self, value: str) -> Group:
        """Compute the group's figures without intervals."""
        nan = float("nan")
        if not len(self.wrong):
            return Group(value, 0, 0, nan, nan, nan, nan, nan, nan)
        accuracy, confidence, gap, nll = (
            self._mean(values) for values in (~self.wrong, self.confidence, self.gaps, self.loss)
        )
        aurc = ratio = nan
        if self.event in (None, "correct"):
            weights = self.units.weights
            row_weights = () if weights is None else (torch.from_numpy(weights),)
            ranked = rank(
                torch.from_numpy(self.confidence), torch.from_numpy(self.wrong), *row_weights
            )
            aurc = float(weighted_risk(ranked, "empirical"))
        if self.event is not None and confidence > 0:
            ratio = accuracy / confidence
        return Group(
            value=value,
            num_rows=len(self.wrong),
            num_units=self.num_units,
            accuracy=accuracy,
            confidence=confidence,
            gap=gap,
            ece=float(binned_error(self.cells)),
            nll=nll,
            aurc=aurc,
            ratio=None if self.event is None else ratio,
        )

    def _mean(self, values: Any) -> float:
        if self.units.weights is None:
            return float(values.mean())
        return float(np.average(values, weights=self.units.weights))

    def add_intervals(self, group: Group, plan: Plan, number: int) -> Group:
        """Return the group with intervals, and with a p-value if its rows are plain and enough."""
        draws = max(100, min(plan.resamples, _DRAWS // number))
        how: dict[str, Any] = {"resamples": draws, "seed": plan.seed}
        if not self.units.plain:
            home = bin_index(torch.from_numpy(self.confidence), len(self.cells)).numpy()
            shape = (len(self.cells),)
            how["noise"] = make_cell_noise(home, -self.gaps, shape, seed=plan.seed, **self.how)
        error = invert(self.cells, binned_error, level=plan.level, **how)
        if self.event is None and self.units.plain:
            low, high = self._bound_gap(plan.level)
        else:
            interval = gap_interval(self.confidence, ~self.wrong, level=plan.level, **self.how)
            low, high = interval.low, interval.high
        ratio_low, ratio_high = self._bound_ratio(plan.level)
        p_value = None
        if self.units.plain and self.can_be_tested:
            chance = 1 - np.clip(self.confidence, 0, 1)
            p_value = min(1.0, 2 * min(error_count_tails(chance, int(self.wrong.sum()))))
        widest = max(abs(low), abs(high)) if self._few_of_a_kind else 0.0
        return replace(
            group,
            gap_low=low,
            gap_high=high,
            ece_low=error.low,
            ece_high=max(error.high, widest),
            chance_ece=chance_level(self.cells, binned_error, **how),
            p_value=p_value,
            ratio_low=ratio_low,
            ratio_high=ratio_high,
        )

    @property
    def _few_of_a_kind(self) -> bool:
        wrong = int(self.wrong.sum())
        return min(wrong, len(self.wrong) - wrong) < _FEW_OF_A_KIND

    def _bound_gap(self, level: float) -> tuple[float, float]:
        """Return the interval of the mean gap of plain rows, by Student's t."""
        from scipy.stats import t as student

        count, mean = len(self.gaps), float(self.gaps.mean())
        low, high = -1.0, 1.0
        if count > 1:
            rest = self.gaps - mean
            spread = float(np.sqrt(count / (count - 1) * (rest**2).sum()) / float(count))
            half = float(student.ppf(0.5 + level / 2, count - 1)) * spread
            low, high = max(mean - half, -1.0), min(mean + half, 1.0)
        if self._few_of_a_kind:
            rate = np.array([(~self.wrong).mean()])
            confidence = float(self.confidence.mean())
            least, most = (float(end[0]) for end in wilson(rate, np.array([float(count)]), level))
            low, high = min(low, confidence - most), max(high, confidence - least)
        return low, high

    def _bound_ratio(self, level: float) -> tuple[float | None, float | None]:
        """Return the interval of observed over expected events; of few events, of their rate."""
        if self.event is None:
            return None, None
        mean = self._mean(self.confidence)
        if mean <= 0:
            return 0.0, float("inf")
        event = ~self.wrong
        ratio = self._mean(event) / mean
        influence = (event - ratio * self.confidence) / mean
        interval = influence_interval(ratio, influence, level=level, scale="log", **self.how)
        low, high = max(interval.low, 0.0), interval.high
        if self._few_of_a_kind:
            rate = proportion_interval(event, level=level, **self.how)
            low, high = min(low, rate.low / mean), max(high, rate.high / mean)
        return low, high


def _test_by_signs(
    groups: list[Group],
    rows: Sequence[_GroupRows],
    home: Codes,
    residual: Floats,
    units: Units,
    plan: Plan,
) -> list[Group]:
    """Return the groups with p-values of flipped signs of whole clusters.

    As in `clustered.total_test`, a p-value is at least that of independent rows, and that of
    flips at most that of rows that are as alike as can be.
    """
    tested = [code for code, group_rows in enumerate(rows) if group_rows.can_be_tested]
    if not tested:
        return groups
    column = np.full(len(groups), -1)
    column[tested] = np.arange(len(tested))
    if units.weights is not None:
        residual = residual * units.weights
    codes = np.arange(len(home))
    if units.clusters is not None:
        codes = np.unique(units.clusters, return_inverse=True)[1].reshape(-1)
    count = int(codes.max()) + 1
    if count > _MOST_CLUSTERS:  # merged at random, which keeps the test as valid
        codes = np.random.default_rng(plan.seed).permutation(count)[codes] * _MOST_CLUSTERS // count
        count = _MOST_CLUSTERS
    mine = column[home] >= 0
    place = codes[mine] * len(tested) + column[home[mine]]
    sums: Floats = np.bincount(place, residual[mine], count * len(tested)).astype(np.float64)
    tested_rows = [rows[code] for code in tested]
    drawing: dict[str, Any] = {"draws": plan.resamples, "seed": plan.seed}
    inflation = [
        find_inflation(group_rows.confidence, ~group_rows.wrong, group_rows.units.weights)
        for group_rows in tested_rows
    ]
    flipped, largest = sign_flip_tests(
        sums.reshape(count, len(tested)), inflation=inflation, **drawing
    )
    alike = [
        comonotone_p_value(group_rows.confidence, ~group_rows.wrong, **group_rows.how, **drawing)
        if factor > 1
        else 1.0
        for group_rows, factor in zip(tested_rows, inflation, strict=True)
    ]
    flipped, largest = np.minimum(flipped, alike), np.minimum(largest, np.array(holm(alike)))
    alone = [
        independent_total_test(group_rows.confidence, ~group_rows.wrong, group_rows.units.weights)
        for group_rows in tested_rows
    ]
    corrected = holm(alone)
    judged_groups = list(groups)
    for index, code in enumerate(tested):
        judged_groups[code] = replace(
            groups[code],
            p_value=max(float(flipped[index]), alone[index]),
            p_adjusted=max(float(largest[index]), corrected[index] or 0.0),
        )
    return judged_groups


def _choose_finding(group: Group, level: float, event: str | None, untested: str) -> str:
    """Say what the test found, or why there was none."""
    if group.p_adjusted is None:
        return UNTESTED if group.num_rows < FEWEST else untested
    assert group.gap_low is not None
    assert group.gap_high is not None
    sure = group.p_adjusted < 1 - level
    if sure and group.gap_low > 0:
        return OVER if event is None else TOO_HIGH
    if sure and group.gap_high < 0:
        return UNDER if event is None else TOO_LOW
    if event is None:
        return FEW if group.widest >= COULD_HIDE else UNSHOWN
    assert group.ratio_low is not None
    assert group.ratio_high is not None
    wide = group.ratio_high > FACTOR_COULD_HIDE or group.ratio_low < 1 / FACTOR_COULD_HIDE
    return FEW_EVENTS if wide else UNSHOWN
