"""The status of a monitor: alarms, notices, and the series of every figure."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from calibrant.evaluation.value import make_plain
from calibrant.evaluation.verdict import name_event
from calibrant.monitor import bets
from calibrant.monitor.ledger import Batch, Cell, Delivery, Ledger, Plan

Floats = NDArray[np.float64]

FIGURES = ("gap", "error", "brier")
FIGURE_OF = {"over": "gap", "under": "gap", "error": "error", "brier": "brier"}
_DRIFT = 0.05  # total variation from which on a change of scores is worth a notice
_DRIFT_P = 0.01
_PICKED = 0.02  # total variation between labelled and unlabelled scores
_PICKED_P = 0.001


@dataclass(frozen=True)
class Alarm:
    """A test whose evidence crossed its limit.

    Args:
        test: ``"over"``, ``"under"``, ``"error"`` or ``"brier"``.
        group: The group; ``""`` is all rows.
        batch: The batch whose labels raised the alarm.
        when: The time of that batch.
        since: The batch from which on most of the evidence comes.
        mean: The mean of the figure since then, up to the alarm.
        baseline: The mean of the baseline.
        bound: The largest mean that is allowed, on the scale of the test.
        p_value: The anytime-valid p-value, corrected for the number of tests: at most alpha.
        says: The alarm in words.
    """

    test: str
    group: str
    batch: str
    when: str
    since: str
    mean: float
    baseline: float
    bound: float
    p_value: float
    says: str


@dataclass(frozen=True)
class Series:
    """One figure, of all rows or a group, over the batches that have labels.

    Args:
        figure: ``"gap"``, ``"error"`` or ``"brier"``.
        group: The group; ``""`` is all rows.
        names: The batches, by time.
        times: Their times.
        counts: How many units of each are labelled.
        means: The mean of each batch.
        running: The mean of all batches up to each.
        low: The lower ends of the intervals of the running mean, which hold at all times.
        high: The upper ends.
        baseline: The mean of the baseline; None if the baseline has no such group.
        allowed: The least and largest mean that are allowed; None if nothing is tested.
        p_values: The corrected p-value of each test of this figure, by test.
    """

    figure: str
    group: str
    names: list[str]
    times: list[str]
    counts: list[int]
    means: list[float]
    running: list[float]
    low: list[float]
    high: list[float]
    baseline: float | None
    allowed: tuple[float | None, float] | None
    p_values: dict[str, float]


@dataclass(frozen=True)
class Status:
    """The alarms, notices and series of a monitor.

    Args:
        alarms: The alarms, in the order of their batches.
        notices: What else to know, as sentences; never a reason for an alarm.
        series: The figures over time, first of all rows, then by group.
        plan: What is tested.
        baseline_name: The name of the baseline.
        num_baseline: The number of its rows.
        batches: The batches by time: name, time, rows, labelled rows.
        confidence_level: The level of the intervals.
    """

    alarms: list[Alarm]
    notices: list[str]
    series: list[Series]
    plan: Plan
    baseline_name: str
    num_baseline: int
    batches: list[tuple[str, str, int, int]]
    confidence_level: float = 0.95

    @property
    def num_rows(self) -> int:
        """Return the number of rows of all batches."""
        return sum(batch[2] for batch in self.batches)

    @property
    def num_labelled(self) -> int:
        """Return the number of labelled rows of all batches."""
        return sum(batch[3] for batch in self.batches)

    @property
    def state(self) -> str:
        """Return ``"alarm"``, ``"no alarm"``, or ``"no labels"`` if nothing could be tested."""
        if self.alarms:
            return "alarm"
        return "no alarm" if self.num_labelled else "no labels"

    @property
    def headline(self) -> str:
        """Return the state in one sentence."""
        if not self.batches:
            return "No batch has arrived yet."
        if not self.num_labelled:
            return "No labels have arrived yet, so nothing could be tested."
        if not self.alarms:
            return "No alarm: nothing shows that the model is worse than the tolerance allows."
        count = len(self.alarms)
        return (
            f"{f'{count} alarms' if count > 1 else 'Alarm'}: the model is worse than its baseline "
            f"by more than the tolerance."
        )

    def find(self, figure: str, group: str = "") -> Series | None:
        """Return the series of a figure, or None.

        Args:
            figure: ``"gap"``, ``"error"`` or ``"brier"``.
            group: The group. Default: '' (all rows).
        """
        matching = (
            series for series in self.series if (series.figure, series.group) == (figure, group)
        )
        return next(matching, None)

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain values that JSON can hold."""
        plain: dict[str, Any] = make_plain(
            {
                "state": self.state,
                "headline": self.headline,
                **asdict(self),
                "num_rows": self.num_rows,
                "num_labelled": self.num_labelled,
            }
        )
        plain["batches"] = [
            dict(zip(("name", "when", "num_rows", "num_labelled"), batch, strict=True))
            for batch in self.batches
        ]
        return plain

    def to_json(self, *, indent: int | None = 2) -> str:
        """Return `to_dict` as JSON text."""
        return json.dumps(self.to_dict(), indent=indent, allow_nan=False, ensure_ascii=False)


def make_status(ledger: Ledger, share_of: Callable[[str], float], brier_limit: float) -> Status:
    """Return the status of a ledger.

    Args:
        ledger: The ledger.
        share_of: The share of alpha of each test of a group.
        brier_limit: The largest possible Brier score.
    """
    labelled: dict[str, int] = {}
    for delivery in ledger.deliveries:
        labelled[delivery.batch] = labelled.get(delivery.batch, 0) + delivery.num_rows
    batches = sorted(ledger.batches, key=lambda batch: batch.when)
    limits = {"gap": (-1.0, 1.0), "error": (0.0, 1.0), "brier": (0.0, brier_limit)}
    names = {name for delivery in ledger.deliveries for name in delivery.groups}
    groups = ["", *sorted({*ledger.baseline.counts, *names} - {""})]
    series, alarms = [], []
    for group in groups:
        p_values = {}
        for test, bound in ledger.baseline.bounds.get(group, {}).items():
            p_values[test], alarm = _run_test(ledger, group, test, bound, share_of(group) / 2)
            alarms += [] if alarm is None else [alarm]
        for figure in FIGURES:
            figure_series = _make_series(ledger, batches, group, figure, limits[figure], p_values)
            series += [] if figure_series is None else [figure_series]
    order = {delivery.batch: place for place, delivery in enumerate(ledger.deliveries)}
    places = {batch.name: order.get(batch.key, 0) for batch in ledger.batches}
    alarms.sort(key=lambda alarm: (places.get(alarm.batch, 0), alarm.group != "", alarm.p_value))
    return Status(
        alarms,
        _list_notices(ledger, labelled),
        series,
        ledger.plan,
        ledger.baseline.name,
        ledger.baseline.num_rows,
        [(batch.name, batch.when, batch.num_rows, labelled.get(batch.key, 0)) for batch in batches],
    )


def _cell_of(delivery: Delivery, group: str) -> Cell | None:
    return delivery.all if not group else delivery.groups.get(group)


def _run_test(
    ledger: Ledger, group: str, test: str, bound: float, alpha: float
) -> tuple[float, Alarm | None]:
    """Return the corrected p-value of a test, and its alarm if there is one."""
    delivered = [
        (delivery, cell)
        for delivery in ledger.deliveries
        if (cell := _cell_of(delivery, group)) is not None and test in cell.logs
    ]
    if not delivered:
        return 1.0, None
    fortune = bets.mix(np.array([cell.logs[test] for _, cell in delivered]))
    # Corrected, so that it is at most the alpha of all tests where the bets reach 1/alpha of this.
    correction = math.log(ledger.plan.alpha / alpha)
    best = float(fortune.log_value.max())
    p_value = math.exp(min(0.0, correction - best))
    crossed = np.flatnonzero(fortune.log_value >= math.log(1 / alpha))
    if not len(crossed):
        return p_value, None
    end = int(crossed[0])
    start = int(fortune.start[end])
    cells = [cell for _, cell in delivered[start : end + 1]]
    figure = FIGURE_OF[test]
    mean = sum(cell.sums[figure] for cell in cells) / sum(cell.count for cell in cells)
    last = ledger.find_batch(delivered[end][0].batch)
    since = ledger.find_batch(delivered[start][0].batch)
    names = [batch.name if batch is not None else "?" for batch in (last, since)]
    baseline = ledger.baseline.means[group][figure]
    return p_value, Alarm(
        test,
        group,
        names[0],
        last.when if last is not None else "",
        names[1],
        mean,
        baseline,
        bound,
        p_value,
        _describe_alarm(ledger.plan, test, group, names, mean, baseline, bound),
    )


def _describe_alarm(
    plan: Plan,
    test: str,
    group: str,
    names: list[str],
    mean: float,
    baseline: float,
    bound: float,
) -> str:
    """Say what an alarm means, with what is allowed."""
    where = f"{plan.group_title} {group}: " if group else ""
    period = f"from {names[1]} to {names[0]}" if names[0] != names[1] else f"in {names[0]}"
    worst = bound - plan.tolerance
    if test == "brier":
        return (
            f"{where}the Brier score is too high {period}: {mean:.3f} on average; the baseline "
            f"(in its rows {baseline:.3f}, at worst {worst:.3f}) and the tolerance "
            f"({plan.tolerance:.3g}) allow {bound:.3f}"
        )
    if test == "error":
        return (
            f"{where}accuracy is too low {period}: {1 - mean:.1%} on average; the baseline "
            f"(in its rows {1 - baseline:.1%}, at worst {1 - worst:.1%}) and the tolerance "
            f"({100 * plan.tolerance:.3g} points) allow {1 - bound:.1%}"
        )
    sign = 1 if test == "over" else -1
    if plan.event is None:
        claimed, truth = "confidence", "accuracy"
    else:
        claimed, truth = f"the probability of {name_event(plan.event)}", "its frequency"
    word = "above" if test == "over" else "below"
    return (
        f"{where}{claimed} is {100 * sign * mean:.1f} points {word} {truth} on average {period}; "
        f"the baseline (in its rows {100 * sign * baseline:.1f}, at worst {100 * worst:.1f}) and "
        f"the tolerance ({100 * plan.tolerance:.3g}) allow {100 * bound:.1f}"
    )


def _make_series(
    ledger: Ledger,
    batches: list[Batch],
    group: str,
    figure: str,
    limits: tuple[float, float],
    p_values: dict[str, float],
) -> Series | None:
    cells: dict[str, list[Cell]] = {}
    for delivery in ledger.deliveries:
        cell = _cell_of(delivery, group)
        if cell is not None and figure in cell.sums:
            cells.setdefault(delivery.batch, []).append(cell)
    shown = [batch for batch in batches if batch.key in cells]
    if not shown:
        return None
    mine = [cells[batch.key] for batch in shown]
    counts: Floats = np.array([float(sum(cell.count for cell in cells)) for cells in mine])
    sums: Floats = np.array([sum(cell.sums[figure] for cell in cells) for cells in mine])
    squares: Floats = np.array([sum(cell.squares[figure] for cell in cells) for cells in mine])
    known = ledger.baseline.means.get(group, {}).get(figure)
    low, high = bets.confidence_sequence(
        counts,
        sums,
        squares,
        alpha=0.05,
        low=limits[0],
        high=limits[1],
        start=sum(limits) / 2 if known is None else known,
    )
    bounds = ledger.baseline.bounds.get(group)
    allowed: tuple[float | None, float] | None = None
    if bounds is not None:
        allowed = (-bounds["under"], bounds["over"]) if figure == "gap" else (None, bounds[figure])
    return Series(
        figure,
        group,
        [batch.name for batch in shown],
        [batch.when for batch in shown],
        [int(count) for count in counts],
        [float(number) for number in sums / counts],
        [float(number) for number in np.cumsum(sums) / np.cumsum(counts)],
        [float(number) for number in low],
        [float(number) for number in high],
        known,
        allowed,
        {test: value for test, value in p_values.items() if FIGURE_OF[test] == figure},
    )


def _list_notices(ledger: Ledger, labelled: dict[str, int]) -> list[str]:
    """Return what to know beside alarms."""
    notices = [*_note_baseline(ledger), *_note_drift(ledger), *_note_picked(ledger)]
    without = [batch for batch in ledger.batches if not labelled.get(batch.key)]
    if without and len(without) < len(ledger.batches):
        notices.append(
            f"{len(without)} of {len(ledger.batches)} batches have no labels yet and are not tested"
        )
    names = {name for delivery in ledger.deliveries for name in delivery.groups}
    unknown = sorted(names - set(ledger.baseline.counts))
    if unknown:
        notices.append(f"{_count_groups(unknown)} the baseline does not have, so not tested alone")
    few = sorted(set(ledger.baseline.counts) - set(ledger.baseline.bounds))
    if few:
        notices.append(f"{_count_groups(few)} too few rows in the baseline to be tested alone")
    left_out = sum(delivery.num_left_out for delivery in ledger.deliveries)
    if left_out:
        notices.append(
            f"{left_out:,} labelled rows belong to clusters that counted before, and are left out: "
            "a cluster counts once"
        )
    return [*notices, *ledger.notes]


def _count_groups(names: list[str]) -> str:
    shown = ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")
    return f"{len(names)} group{'s' if len(names) > 1 else ''} ({shown}):"


def _note_baseline(ledger: Ledger) -> list[str]:
    """Say so if the baseline is known so roughly that small changes cannot raise an alarm."""
    plan, baseline = ledger.plan, ledger.baseline
    bounds, means = baseline.bounds[""], baseline.means[""]
    figure, test = ("gap", "over") if plan.task == "events" else ("error", "error")
    doubt = bounds[test] - plan.tolerance - max(means[figure], 0.0)
    if doubt <= max(2 * plan.tolerance, 0.01):
        return []
    what = "accuracy" if test == "error" else "the gap"
    return [
        f"the baseline of {baseline.num_rows:,} rows leaves {what} in doubt by "
        f"{100 * doubt:.1f} points: an alarm needs a change of more than "
        f"{100 * (doubt + plan.tolerance):.1f} points; a larger baseline would notice smaller ones"
    ]


def _compare_counts(first: Floats, second: Floats) -> tuple[float, float]:
    """Return the total variation between two histograms, and the p-value of a χ² test."""
    from scipy.stats import chi2

    table = np.array([first, second], dtype=float)
    table = table[:, table.sum(0) > 0]
    totals = table.sum(1)
    if table.shape[1] < 2 or not totals.all():
        return 0.0, 1.0
    expected = np.outer(totals, table.sum(0)) / totals.sum()
    statistic = float(((table - expected) ** 2 / expected).sum())
    shares = table / totals[:, None]
    distance = float(np.abs(shares[0] - shares[1]).sum() / 2)
    return distance, float(chi2.sf(statistic, table.shape[1] - 1))


def _note_drift(ledger: Ledger) -> list[str]:
    """Say which batches have other scores than the baseline; never an alarm."""
    base = np.array(ledger.baseline.scores, dtype=float)
    moved = []
    for place, batch in enumerate(ledger.batches, start=1):
        distance, p_value = _compare_counts(np.array(batch.scores, dtype=float), base)
        # All batches together err in at most 1% of streams whose scores do not change.
        if distance >= _DRIFT and p_value < _DRIFT_P / (place * (place + 1)):
            moved.append((batch.name, distance))
    if not moved:
        return []
    name, distance = moved[-1]
    which = f"in {len(moved)} of {len(ledger.batches)} batches"
    if len(ledger.batches) == 1:
        which = "in the only batch"
    return [
        f"scores differ from the baseline's {which}, last in {name}, where {distance:.0%} of them "
        "lie elsewhere: a notice, since other scores are no worse by themselves"
    ]


def _note_picked(ledger: Ledger) -> list[str]:
    """Say so if labelled rows have other scores than unlabelled ones."""
    from scipy.stats import chi2

    statistic, freedom, distances = 0.0, 0, []
    for batch in ledger.batches:
        mine = [
            np.array(delivery.scores)
            for delivery in ledger.deliveries
            if delivery.batch == batch.key
        ]
        if not mine:
            continue
        with_label = np.sum(mine, axis=0).astype(float)
        without = np.array(batch.scores, dtype=float) - with_label
        if with_label.sum() < 20 or without.sum() < 20:
            continue
        distance, p_value = _compare_counts(with_label, without)
        cells = int(((with_label + without) > 0).sum())
        statistic += float(chi2.isf(max(p_value, 1e-300), max(cells - 1, 1)))
        freedom += max(cells - 1, 1)
        distances.append((with_label.sum(), distance))
    if not distances or float(chi2.sf(statistic, freedom)) >= _PICKED_P:
        return []
    weights = np.array([weight for weight, _ in distances])
    distance = float(
        weights @ np.array([distance_of for _, distance_of in distances]) / weights.sum()
    )
    if distance < _PICKED:
        return []
    return [
        f"labelled rows have other scores than unlabelled ones ({distance:.0%} lie elsewhere): "
        "figures and alarms hold for rows like the labelled ones, and compare with the baseline "
        "only if labels arrive independently of the outcome and the model was calibrated at every "
        "score"
    ]
