"""From the sums of all pieces to figures, intervals, tables and a verdict."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from calibrant.core.errors import InputError, UndefinedFigureError
from calibrant.evaluation.bootstrap import ClassCellState
from calibrant.evaluation.class_tests import ClassOddsState, run_class_tests
from calibrant.evaluation.clustered import (
    FEWEST_CLUSTERS,
    Scale,
    grouped_interval,
    jackknife_interval,
    noise_of_sums,
)
from calibrant.evaluation.curves import Cells
from calibrant.evaluation.evaluate import (
    TableStates,
    describe_clusters,
    make_figure,
    make_tallies,
)
from calibrant.evaluation.intervals import (
    BOUNDED_BY_GAP,
    SCALES,
    Plan,
    Units,
    calibration_interval,
    estimate_coupling,
    keep_possible,
)
from calibrant.evaluation.inversion import CellNoise, Interval, chance_level, invert
from calibrant.evaluation.shards.additive import Additive
from calibrant.evaluation.shards.scores import ScoreTable
from calibrant.evaluation.shards.sums import MomentState, Sums
from calibrant.evaluation.shards.unit_tests import run_plain_tests, run_unit_tests
from calibrant.evaluation.value import Figure, Tallies
from calibrant.evaluation.verdict import (
    INDEPENDENCE,
    WEIGHTED,
    ClassFinding,
    Place,
    Span,
    Tolerance,
    Verdict,
    calibration_test,
    conclude,
    conclude_events,
)
from calibrant.functional.statistics import korn_graubard, wilson
from calibrant.metrics.base import Measure, State
from calibrant.metrics.event_statistics import EPS, check_rows, offset_at_rate
from calibrant.metrics.means import MeanState
from calibrant.metrics.rank_state import RankState
from calibrant.metrics.registry import measure as get_measure
from calibrant.metrics.toplabel import binned_error

Floats: TypeAlias = NDArray[np.float64]

_FEW_ROWS, _FEW_OF_A_KIND = 30, 10
_MONOTONE = (  # of the order of rows in a cell: all right ones first and all last bound them
    "aurc",
    "e_aurc",
    "augrc",
    "risk_at_coverage",
    "coverage_at_risk",
    "failure_auroc",
    "auroc",
    "average_precision",
)
_LOG_ODDS = ("calibration_in_the_large", "calibration_slope", "calibration_intercept")


def check_measures(measures: Mapping[str, Measure]) -> None:
    """Raise if a figure cannot be computed from sums and ranks of the judged probability.

    Args:
        measures: The measures by name.
    """
    for name, measure in measures.items():
        reason = _find_obstacle(measure)
        if reason is not None:
            raise InputError(f"{name} cannot be computed from shards: {reason}; leave it out")


def _find_obstacle(measure: Measure) -> str | None:
    if measure.kind == "test":
        return "it is a test of single rows, and the verdict tests the same"
    for state in measure.build():
        if isinstance(state, RankState):
            if (state.score, state.loss) != ("msp", "zero_one"):
                return "it ranks by another score or loss than the judged probability and errors"
        elif state.num_labels is not None:
            return "it compares in- with out-of-distribution rows"
        elif state.lists or not state.sums:
            return "it needs all rows at once"
    return None


class Ranks(NamedTuple):
    """Rows by score, as metrics take them."""

    table: ScoreTable  # of all scores, or of all cells
    coarse: ScoreTable  # of at most some 260,000 cells
    values: RankState  # ranks of all scores; where single rows are read, coarse ones
    influences: RankState  # coarse


class Judge:
    """Everything that follows from the sums of all rows.

    Args:
        sums: The sums.
        measures: The measures by name.
        plan: Level, resamples and seed; None computes no intervals and no verdict.
        num_bins: The number of bins of tables.
        event: What the judged probability is the probability of; None for the predicted class.
        sample: The classes' cells of a random sample of rows, or none.
    """

    def __init__(
        self,
        sums: Sums,
        measures: Mapping[str, Measure],
        *,
        plan: Plan | None,
        num_bins: int,
        event: str | None,
        sample: Sequence[ClassCellState] = (),
    ) -> None:
        self.sums, self.measures, self.plan = sums, measures, plan
        self.num_bins, self.event, self.sample = num_bins, event, sample
        self.shared = {state.options(): state for state in sums.states}
        self.additive = Additive(sums)
        table = sums.scores.table()
        coarse = table.coarsen()
        self.ranks = Ranks(table, coarse, table.make_state(coarse), coarse.make_state())
        right, wrong = table.count.sum(0)
        self.num_rows, self.num_right = table.num_rows, round(float(right))
        self.few_of_a_kind = min(right, wrong) < _FEW_OF_A_KIND
        self.groups = None if sums.units is None else sums.units.table()
        self.values = {name: self._compute(measure) for name, measure in measures.items()}

    # Values

    def states_of(self, measure: Measure, ranks: RankState | None = None) -> list[State]:
        """Return the filled states of a measure."""
        return [
            (ranks or self.ranks.values)
            if isinstance(state, RankState)
            else self.shared[state.options()]
            for state in measure.build()
        ]

    def _compute(self, measure: Measure, ranks: RankState | None = None) -> float:
        if self.sums.moments.total("first")[0] != self.num_rows or self.additive.weighted:
            measure.check_weights({True})
        try:
            return float(measure.compute(*self.states_of(measure, ranks)))
        except UndefinedFigureError:
            return float("nan")

    def bound_ranks(self, measure: Measure, value: float) -> tuple[float, float] | None:
        """Bound the exact value of a figure whose ranks are known up to cells; None if exact."""
        table = self.ranks.table
        if table.widest is None or not isinstance(measure.build()[0], RankState):
            return None
        if measure.name in _MONOTONE:
            ends = [
                self._compute(measure, table.order_cells(best=best).make_state(self.ranks.coarse))
                for best in (True, False)
            ]
            return min(*ends, value), max(*ends, value)
        if measure.name == "ks_error":
            # Between two ends of cells the sum moves by its right rows, or its wrong ones.
            moved = table.weight * np.stack((1 - table.score, table.score), axis=1)
            return value, value + float(moved.max() / table.weight.sum())
        return None

    # Intervals

    def intervals(self) -> dict[str, Interval]:
        """Compute the interval of every figure that has one."""
        assert self.plan is not None
        intervals: dict[str, Interval] = {}
        gap = self._gap()
        for name, measure in self.measures.items():
            value = self.values[name]
            if not np.isfinite(value) or self.num_rows < 2:
                continue
            interval = self._interval(measure, value)
            if interval is None or not np.isfinite(interval.low + interval.high):
                continue
            wide = (
                self.few_of_a_kind
                or self.num_rows < _FEW_ROWS
                or self.additive.clusters is not None
            )
            if wide and measure.name in BOUNDED_BY_GAP:
                high = max(interval.high, abs(gap.low), abs(gap.high))
                interval = replace(interval, high=high)
            intervals[name] = keep_possible(measure.name, interval)
        return intervals

    def _gap(self) -> Span:
        """Compute mean probability less frequency, with its interval."""
        assert self.plan is not None
        level = self.plan.level
        if self.event is None and self.groups is None:
            few = self.few_of_a_kind or self.num_rows < _FEW_ROWS
            return Span(self.additive.mean("gap"), *self.additive.class_gap(level, few=few))
        interval = self.additive.gap(level, few=self.few_of_a_kind)
        return Span(interval.value, interval.low, interval.high)

    def _interval(self, measure: Measure, value: float) -> Interval | None:
        assert self.plan is not None
        level = self.plan.level
        state = self.states_of(measure)[0]
        if measure.kind == "calibration":
            return self._calibration_interval(measure, state)
        if isinstance(state, MeanState) and len(measure.states) == 1:
            return self._mean_interval(state, value)
        if measure.name in ("oe_ratio", "mean_gap"):
            how = {"few": self.few_of_a_kind}
            ends = (
                self.additive.ratio(level, **how)
                if measure.name == "oe_ratio"
                else self.additive.gap(level, **how)
            )
            return Interval(ends.low, ends.high, None)
        if measure.name == "calibration_in_the_large" and self.few_of_a_kind:
            coarse = self.ranks.coarse
            mass = coarse.weight.sum(1)
            rows = check_rows(coarse.score, coarse.weight[:, 0] / mass, mass)
            rates = self.additive.rate_interval("correct", level)
            low, high = (offset_at_rate(rows, rate, eps=EPS) for rate in rates)
            return Interval(low, high, None)
        if not isinstance(state, RankState):
            return None
        if self.groups is not None:
            return self._jackknife(measure, value)
        if measure.interval is not None:
            return Interval(*measure.interval(state, level), None)
        if measure.influence is not None:
            return self._influence_interval(measure, value)
        return None

    def _mean_interval(self, state: MeanState, value: float) -> Interval | None:
        assert self.plan is not None
        if state.infinite() or state.quantity not in self.additive.names:
            return None
        level = self.plan.level
        if state.quantity == "right":
            if self.groups is not None:
                return Interval(*self.additive.rate_interval("right", level), None)
            low, high = wilson(np.array([value]), np.array([float(self.num_rows)]), level)
            return Interval(float(low[0]), float(high[0]), None)
        if self.event is not None:
            interval = self.additive.interval(value, {state.quantity: 1.0}, level)
            return Interval(interval.low, interval.high, None)
        return Interval(*self.additive.mean_interval(state.quantity, level), None)

    def _influence_interval(self, measure: Measure, value: float) -> Interval | None:
        """Compute the interval of a figure of plain rows from the influence of each score."""
        assert self.plan is not None
        assert measure.influence is not None
        state = self.ranks.influences
        try:
            influence = measure.influence(state)
        except UndefinedFigureError:
            return None
        (rows,) = state.weights
        usual: Scale = "identity" if self.event is not None else "log"
        ends = grouped_interval(
            value,
            influence,
            rows.numpy(),
            level=self.plan.level,
            scale=SCALES.get(measure.name, usual),
        )
        return Interval(*ends, None)

    def _jackknife(self, measure: Measure, value: float) -> Interval | None:
        """Compute the interval of a figure of rows with weights or clusters.

        The random groups are left out one at a time.
        """
        assert self.plan is not None
        assert self.groups is not None
        if len(self.groups) < 2:
            return None
        left_out = [self._compute(measure, state) for state in self._left_out()]
        if not np.isfinite(left_out).all():
            return None
        scale = SCALES.get(measure.name, "identity")
        ends = jackknife_interval(value, np.array(left_out), level=self.plan.level, scale=scale)
        return Interval(ends.low, ends.high, None)

    def _left_out(self) -> list[RankState]:
        assert self.groups is not None
        if not hasattr(self, "_states"):
            whole = self.groups.sum(0)
            self._states = [_table_of(whole - group).make_state() for group in self.groups]
        return self._states

    # Calibration errors

    def _calibration_interval(self, measure: Measure, state: State) -> Interval | None:
        assert self.plan is not None
        assert measure.cells is not None
        if self.groups is None:
            coupling = estimate_coupling(self.sample, {measure.name: self.states_of(measure)})
            return calibration_interval(measure, state, self.plan, coupling)
        cells = measure.cells(state)
        if cells.ndim == 3 or len(self.groups) < 2:
            return None
        cells = cells * (self.num_rows / float(cells[..., 0].sum()))
        if measure.name == "mce":
            return self._worst_bin(cells.cpu().double().numpy())
        return calibration_interval(measure, cells, self.plan, noise=self.noise(cells))

    def _group_cells(self, cells: Floats) -> tuple[Floats, Floats, Floats, Floats]:
        """Sum the groups' cells over larger cells of ascending probability.

        Args:
            cells: (M, 3) rows, confidence and correctness of the larger cells.

        Returns:
            (G, M) rows, weights and weighted residuals, and (M,) squared weights.
        """
        assert self.groups is not None
        mass = self.groups[..., 1].sum(0)
        scale = self.num_rows / float(mass.sum())
        known = np.concatenate(([0.0], np.cumsum(mass))) / mass.sum()
        ends = np.concatenate(([0.0], np.cumsum(cells[:, 0]))) / cells[:, 0].sum()
        # Sums up to an end inside a cell grow linearly with the weight up to it.
        place = np.clip(np.searchsorted(known, ends, side="right") - 1, 0, len(mass) - 1)
        share = np.clip((ends - known[place]) / np.diff(known)[place], 0.0, 1.0)
        total = np.zeros((len(self.groups), len(known), self.groups.shape[2]))
        np.cumsum(self.groups, axis=1, out=total[:, 1:])
        low, high = total[:, place], total[:, place + 1]
        joined = np.diff(low + share[:, None] * (high - low), axis=1)
        rows, weight, claimed, events, squares = np.moveaxis(joined, -1, 0)
        return rows, weight * scale, (events - claimed) * scale, squares.sum(0) * scale**2

    def noise(self, cells: torch.Tensor) -> CellNoise | None:
        """Return how cells vary where rows have weights or clusters; None if rows are plain."""
        if self.groups is None:
            return None
        _, mass, residual, squares = self._group_cells(cells.cpu().double().numpy())
        return noise_of_sums(
            mass,
            residual,
            squares,
            tuple(cells.shape[:-1]),
            degrees=float(len(mass) - 1),
            merged=True,
            varying=True,
        )

    def bound_bins(self, cells: Floats, level: float) -> Floats:
        """Return the rows of each bin, and the interval of its frequency, (M, 3)."""
        rows, mass, residual, _ = self._group_cells(cells)
        table = np.full((len(cells), 3), np.nan)
        table[:, 0] = np.rint(rows.sum(0))
        for bin in np.flatnonzero(table[:, 0]):
            cluster_mass, total = mass[:, bin], float(mass[:, bin].sum())
            mean = cells[bin, 1] / cells[bin, 0]
            # Σ w y of each group, around the mean probability of the bin.
            rate = float(np.clip(cells[bin, 2] / cells[bin, 0], 0.0, 1.0))
            parts = residual[:, bin] + (mean - rate) * cluster_mass
            some = int((cluster_mass > 0).sum())
            variance = float(parts @ parts) / total**2 * some / max(some - 1, 1)
            count = float(table[bin, 0])
            if not 0 < rate < 1:
                count = total**2 / float(cluster_mass @ cluster_mass)
            table[bin, 1:] = korn_graubard(rate, variance, count, some - 1.0, level)
        return table

    def _worst_bin(self, cells: Floats) -> Interval:
        assert self.plan is not None
        full = cells[:, 0] > 0
        level = 1 - (1 - self.plan.level) / int(full.sum())
        _, low, high = self.bound_bins(cells, level)[full].T
        mean = cells[full, 1] / cells[full, 0]
        nearest = np.where(
            (low <= mean) & (mean <= high), 0.0, np.minimum(abs(low - mean), abs(high - mean))
        )
        farthest = np.maximum(abs(low - mean), abs(high - mean))
        return Interval(float(nearest.max()), float(farthest.max()), None)

    # Figures and tables

    def figures(self) -> dict[str, Figure]:
        """Return every figure with its interval and its note."""
        bounds = self.intervals() if self.plan is not None else {}
        figures = {}
        for name, measure in self.measures.items():
            value = self.values[name]
            states = self.states_of(measure)
            first = states[0] if not isinstance(states[0], RankState) else MomentState()
            figure = make_figure(name, value, bounds.get(name), measure, first)
            clipped = self._count_clipped() if measure.name in _LOG_ODDS else 0
            if clipped and figure.note is None:
                text = f"{clipped:,} probabilities of (nearly) 0 or 1 are clipped for log-odds"
                figure = replace(figure, note=text)
            ends = self.bound_ranks(measure, value) if np.isfinite(value) else None
            if ends is not None:
                text = f"ranks in cells: the exact value lies in [{ends[0]:.8g}, {ends[1]:.8g}]"
                figure = replace(figure, note="; ".join(filter(None, (figure.note, text))))
            figures[name] = figure
        return figures

    def _count_clipped(self) -> int:
        table = self.ranks.table
        clipped = (table.score < EPS) | (table.score > 1 - EPS)
        return round(float(table.count[clipped].sum()))

    def tallies(self, tables: TableStates, level: float) -> Tallies:
        """Return the sums behind the tables.

        Args:
            tables: The filled states of the tables; their ranks are replaced.
            level: The level of the bins' intervals.
        """
        ranked = RankState.from_ranked(self.ranks.table.rank())
        tallies = make_tallies(tables._replace(ranks=ranked), self.num_bins, Units(), level)
        if self.groups is None:
            return tallies
        scale = self.num_rows / self.additive.weight
        whole = self.groups.sum(0)
        rows, weight, claimed, events, squares = whole.T
        cells = Cells(
            rows,
            weight,
            squares,
            claimed / weight,
            np.clip(events / weight, 0.0, 1.0),
            None if self.additive.clusters is None else self.groups[..., 3] - self.groups[..., 2],
        )
        bins = tallies.bins * (self.num_rows / tallies.bins[:, 0].sum())
        return replace(
            tallies,
            class_bins=scale * tallies.class_bins,
            class_nll=scale * tallies.class_nll,
            class_correct=scale * tallies.class_correct,
            class_predicted=scale * tallies.class_predicted,
            bin_units=self.bound_bins(bins, level),
            mass_bin_units=self.bound_bins(tallies.mass_bins, level),
            cells=cells,
        )

    # The verdict

    def verdict(
        self,
        tables: TableStates,
        odds: ClassOddsState | None,
        names: Sequence[str],
        tolerance: Tolerance | None,
    ) -> Verdict:
        """Say whether the probabilities can be believed.

        Args:
            tables: The filled states of the tables.
            odds: The filled state of the tests of classes, if they are tested.
            names: The names of the classes.
            tolerance: What still counts as fit for use.
        """
        assert self.plan is not None
        level = self.plan.level
        drawing: dict[str, Any] = {"resamples": self.plan.resamples, "seed": self.plan.seed}
        gap = self._gap()
        bins = tables.bins.total("totals")
        noise = None
        if self.groups is not None:
            bins = bins * (self.num_rows / float(bins[:, 0].sum()))
            noise = self.noise(bins)
        error = invert(bins, binned_error, level=level, noise=noise, **drawing)
        few = self.few_of_a_kind or self.num_rows < _FEW_ROWS
        bounded = few if self.event is None else False
        bounded = bounded or self.additive.clusters is not None
        widest = max(abs(gap.low), abs(gap.high)) if bounded else 0.0
        span = Span(float(binned_error(bins)), error.low, max(error.high, widest))
        chance = chance_level(bins, binned_error, noise=noise, **drawing)
        if self.event is not None:
            verdict = self._event_verdict(span, chance, tolerance)
        else:
            verdict = self._class_verdict(span, chance, odds, names, tolerance)
        return verdict.with_sentences(*self._describe_units())

    def _class_verdict(
        self,
        error: Span,
        chance: float,
        odds: ClassOddsState | None,
        names: Sequence[str],
        tolerance: Tolerance | None,
    ) -> Verdict:
        assert self.plan is not None
        level = self.plan.level
        gap = self._gap()
        if self.groups is None:
            drawing: dict[str, Any] = {"resamples": self.plan.resamples, "seed": self.plan.seed}
            p_value = calibration_test(self.ranks.values, **drawing)
        else:
            p_value = self._unit_tests().local
        classes = None if odds is None else run_class_tests(odds)
        off = [] if classes is None else classes.find_off((1 - level) / 2)
        return conclude(
            num_rows=self.num_rows,
            accuracy=self.additive.mean("correct"),
            gap=gap.value,
            gap_low=gap.low,
            gap_high=gap.high,
            ece=error.value,
            ece_low=error.low,
            ece_high=error.high,
            p_value=p_value,
            chance_ece=chance,
            level=level,
            tolerance=tolerance,
            class_p_value=None if classes is None else classes.p_value,
            classes=[
                ClassFinding(
                    names[k], fault, float(classes.expected[k]), float(classes.observed[k])
                )
                for k, fault in off
                if classes is not None
            ],
            few_classes=0 if classes is None else classes.count_few(),
            num_classes=len(names),
        )

    def _unit_tests(self) -> Any:
        assert self.plan is not None
        assert self.groups is not None
        few = self.additive.clusters is not None and self.additive.num_units < FEWEST_CLUSTERS
        return run_unit_tests(
            self.groups, self.plan, few=few, clustered=self.additive.clusters is not None
        )

    def _event_verdict(self, error: Span, chance: float, tolerance: Tolerance | None) -> Verdict:
        assert self.plan is not None
        assert self.event is not None
        level = self.plan.level
        gap = self._gap()
        if self.groups is None:
            tests = run_plain_tests(self.ranks.coarse, self.ranks.values, self.plan)
        else:
            tests = self._unit_tests()
        table = self.ranks.table
        expected = float(table.count.sum(1) @ table.score)
        observed = self.num_right
        if 2 * expected > self.num_rows:  # of the rarer outcome
            expected, observed = self.num_rows - expected, self.num_rows - observed
        ratio = None
        if self.additive.mean("confidence") > 0:
            ratio = _make_span(self.additive.ratio(level, few=self.few_of_a_kind))
        return conclude_events(
            event=self.event,
            num_rows=self.num_rows,
            num_events=self.num_right,
            mean=self.additive.mean("confidence"),
            gap=gap,
            ratio=ratio,
            slope=self._find_slope(),
            error=error,
            p_total=tests.total,
            p_slope=tests.slope,
            p_local=tests.local,
            place=self._find_place(),
            chance_ece=chance,
            level=level,
            tolerance=tolerance,
            expected=expected,
            observed=observed,
            constant=float(np.ptp(table.score)) <= 1e-9,
        )

    def _find_slope(self) -> Span | None:
        measure = get_measure("calibration_slope")
        value = self._compute(measure)
        if not np.isfinite(value):
            return None
        interval = self._interval(measure, value)
        if interval is None or not np.isfinite(interval.low + interval.high):
            return None
        return Span(value, interval.low, interval.high)

    def _find_place(self) -> Place:
        """Find which of 15 bins of equal mass is furthest off, in standard errors."""
        table = self.ranks.coarse.coarsen(4096)
        mass = table.weight.sum(1)
        home = ((np.cumsum(mass) - 0.5 * mass) / mass.sum() * 15).astype(np.int64).clip(0, 14)
        rows = np.bincount(home, table.count.sum(1), 15)
        parts = (mass, mass * table.score, table.weight[:, 0])
        weight, claimed, events = (np.bincount(home, part, 15) for part in parts)
        # Σ w² is about Σ w times the mean weight.
        heavy = weight * (weight / np.maximum(rows, 1))
        mean = np.divide(claimed, weight, out=np.zeros(15), where=weight > 0)
        with np.errstate(invalid="ignore", divide="ignore"):
            score = np.nan_to_num(
                abs(events - claimed) / np.sqrt(heavy * mean * (1 - mean)), posinf=0.0
            )
        worst = int(np.argmax(score))
        mine = table.score[home == worst]
        return Place(
            float(mine.min()),
            float(mine.max()),
            round(float(rows[worst])),
            float(mean[worst]),
            float(events[worst] / weight[worst]),
        )

    def _describe_units(self) -> list[str]:
        sentences = []
        if self.additive.clusters is None:
            sentences.append(INDEPENDENCE)
        else:
            sentences.append(describe_clusters(self.additive.num_units, "clusters"))
        if self.additive.weighted:
            sentences.append(WEIGHTED)
        if self.groups is not None and self.event is None:
            sentences.append(
                "Class by class nothing is tested where shards have weights or clusters."
            )
        return sentences


def _make_span(interval: Any) -> Span | None:
    if not np.isfinite(interval.value + interval.low + interval.high):
        return None
    return Span(interval.value, interval.low, interval.high)


def _table_of(cells: Floats) -> ScoreTable:
    """Make a table of scores from rows, Σ w, Σ w p and Σ w y of cells."""
    cells = cells[cells[:, 1] > 1e-9 * cells[:, 1].sum()]
    rows, weight, claimed, events, _ = cells.T
    happened = np.clip(events, 0.0, weight)
    outcome = np.stack((happened, weight - happened), axis=1)
    count = outcome * (rows / weight)[:, None]
    order = np.argsort(claimed / weight, kind="stable")
    return ScoreTable((claimed / weight)[order], count[order], outcome[order], weighted=True)
