"""`compare`: two sets of predictions of the same rows, in pairs.

How the interval and the p-value of a difference b − a arise:

==============================  =================================================================
classes, plain rows             paired bootstrap over rows
calibration errors              the spread of resampled differences around the corrected one, and
                                random swaps between the sets (`permutation_test`)
means and smooth figures of     the influence of each row on the difference
events, weights or clusters     (`clustered.paired_interval`), and swaps (`clustered.swap_test`)
ranked risks, weights or        delete-a-group jackknife
clusters
anything else                   spread over random halves of the rows or clusters
==============================  =================================================================

Rows of a cluster are drawn, left out and swapped together.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from calibrant.core.errors import InputError, first, no_such
from calibrant.core.frames import frame_of_rows
from calibrant.core.progress import progress_bar
from calibrant.evaluation.bootstrap import (
    MOST_CELLS,
    limit_resamples,
    make_row_states,
    percentile_interval,
    resample_clusters,
    resample_counts,
    resample_measures,
    share_states,
)
from calibrant.evaluation.clustered import (
    FEWEST_CLUSTERS,
    check_weights,
    encode_clusters,
    has_few_clusters,
    jackknife_interval,
    leave_out_weights,
    paired_interval,
    sign_flip_test,
    swap_test,
)
from calibrant.evaluation.evaluate import (
    Wanted,
    choose_measures,
    choose_positive,
    find_units,
    name_event,
    row_options,
)
from calibrant.evaluation.groups.files import GroupValues, check_groups
from calibrant.evaluation.groups.value import FEWEST
from calibrant.evaluation.intervals import (
    Plan,
    Units,
    calibration_interval,
    count_infinite,
    half_samples,
    make_cell_states,
    normal_interval,
    read_rows,
    unit_calibration_interval,
)
from calibrant.evaluation.inversion import Interval
from calibrant.evaluation.permutation_test import (
    apply_permutation_test,
    permutation_spread,
    stretch_interval,
    two_sided,
)
from calibrant.evaluation.value import make_plain
from calibrant.evaluation.verdict import INDEPENDENCE
from calibrant.functional.arrays import Array, as_numpy
from calibrant.functional.statistics import holm
from calibrant.metrics.base import Measure, compute_all
from calibrant.metrics.means import RowState
from calibrant.metrics.rank_state import RankState
from calibrant.metrics.registry import label_of
from calibrant.predictions import Predictions

Floats = NDArray[np.float64]

DEFAULT_COMPARED = ("accuracy", "nll", "brier", "ece", "adaptive_ece", "classwise_ece", "aurc")
EVENT_COMPARED = ("auroc", "average_precision", "nll", "brier", "ece", "adaptive_ece", "ici")
_SWAPS = 4000  # of a test by swaps: fine enough for Holm's correction among many metrics
_MOST_LEFT_OUT = 20_000_000  # weights of a jackknife; above it fewer groups are left out


@dataclass(frozen=True)
class Difference:
    """One metric of two sets of predictions, and b − a with its paired interval.

    The difference of calibration errors is that of the bias-corrected values, because a model
    close to calibrated owes more of its plug-in value to chance. Corrected values vary more
    than plug-in values. So the plug-in difference must also exceed what random swaps of rows
    between the sets produce (`permutation_test`; class-wise errors of very many scores are
    exempt). If it does not, the interval is stretched to 0.
    """

    name: str
    label: str
    a: float
    b: float
    difference: float
    low: float
    high: float
    p_value: float
    better: str  # the better direction: "lower", "higher" or "neither"
    corrected_a: float | None = None  # less its upward bias; then these two are compared
    corrected_b: float | None = None

    @property
    def compared(self) -> tuple[float, float]:
        """Return the two values whose difference this is: corrected ones, if there are any."""
        if self.corrected_a is None or self.corrected_b is None:
            return self.a, self.b
        return self.corrected_a, self.corrected_b

    @property
    def is_corrected(self) -> bool:
        """Return whether bias-corrected values are compared, not the plug-in ones."""
        return self.corrected_a is not None

    @property
    def is_tested(self) -> bool:
        """Return whether there is a p-value."""
        return bool(np.isfinite(self.p_value))

    @property
    def harm(self) -> tuple[float, float]:
        """Return the interval of how much worse B is, in the metric's worse direction."""
        return (-self.high, -self.low) if self.better == "higher" else (self.low, self.high)

    @property
    def winner(self) -> str:
        """The better set, "a" or "b", if the interval excludes 0; else "neither"."""
        if self.low <= 0 <= self.high or self.better == "neither":
            return "neither"
        return "b" if (self.difference < 0) == (self.better == "lower") else "a"


@dataclass(frozen=True)
class ComparedGroup:
    """The differences among the rows of one group.

    Args:
        value: The group.
        num_rows: The number of its rows.
        differences: Those of the metrics that are compared by group; untested ones of NaN p-value.
        p_adjusted: Their p-values after Holm's correction for all groups and metrics; None where
            nothing was tested.
        alpha: The probability of any false finding in all groups and metrics.
        untested: Why nothing was tested; None if something was.
    """

    value: str
    num_rows: int
    differences: dict[str, Difference]
    p_adjusted: dict[str, float | None]
    alpha: float
    untested: str | None = None

    def find_winner(self, metric: str) -> str:
        """Return the set that is shown to be better, "a" or "b", else "neither".

        Args:
            metric: The name of a metric that is compared by group.
        """
        p_value = self.p_adjusted[metric]
        if p_value is None or p_value >= self.alpha:
            return "neither"
        return self.differences[metric].winner

    def may_be_worse(self, metric: str, margin: float) -> bool:
        """Return whether the interval leaves room for B being worse by more than a margin.

        Args:
            metric: The name of a metric that is compared by group.
            margin: How much worse is tolerated, on the scale of the metric.
        """
        difference = self.differences[metric]
        return not (difference.is_tested and difference.harm[1] <= margin)


@dataclass(frozen=True)
class ComparedGroups:
    """The differences in every group. Holm's correction counts all groups and metrics.

    Args:
        name: What the groups are.
        metrics: The metrics that are compared by group.
        groups: The groups by name; dates are so in their order.
        num_tested: How many differences the correction counts.
        warnings: What could not be checked of the groups.
    """

    name: str
    metrics: tuple[str, ...]
    groups: tuple[ComparedGroup, ...]
    num_tested: int
    warnings: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.groups)

    def find_worse(self, metric: str | None = None) -> list[tuple[ComparedGroup, str]]:
        """Return groups and metrics in which B is shown to be worse.

        Args:
            metric: A metric that is compared by group. Default: None (all of them).
        """
        return self._find("a", metric)

    def find_better(self, metric: str | None = None) -> list[tuple[ComparedGroup, str]]:
        """Return groups and metrics in which B is shown to be better.

        Args:
            metric: A metric that is compared by group. Default: None (all of them).
        """
        return self._find("b", metric)

    def _find(self, winner: str, metric: str | None) -> list[tuple[ComparedGroup, str]]:
        metrics = self.metrics if metric is None else (metric,)
        return [
            (group, name)
            for group in self.groups
            for name in metrics
            if group.find_winner(name) == winner
        ]

    def describe(self, new: str) -> str:
        """Return in how many groups a set is shown to be worse and better, in a sentence.

        Args:
            new: The name of set B.
        """
        parts = []
        for findings, word in ((self.find_worse(), "worse"), (self.find_better(), "better")):
            count = len({group.value for group, _ in findings})
            names = ", ".join(dict.fromkeys(name for _, name in findings))
            if count:
                parts.append(f"{word} in {count:,} of {len(self):,} ({names})")
        if not parts:
            return f"By {self.name}, no difference is shown in any of {len(self):,} groups."
        return f"By {self.name}, {new} is {' and '.join(parts)}."


@dataclass(frozen=True)
class Comparison:
    """The differences between two sets of predictions of the same rows."""

    a: str
    b: str
    num_rows: int
    differences: dict[str, Difference]
    settings: dict[str, Any]
    task: str = "classes"  # "classes", "events" or "multilabel"
    view: str = "top"  # what is judged: "top", the predicted class, or "events"
    event: str | None = None  # what the judged probability is the probability of
    num_clusters: int | None = None  # None if rows are independent
    weighted: bool = False
    untested: str | None = None  # why nothing was tested
    notes: tuple[str, ...] = ()
    caveat: str | None = None  # what is assumed where no clusters were given
    groups: ComparedGroups | None = None  # None unless groups were given

    def __contains__(self, name: object) -> bool:
        return name in self.differences

    def __iter__(self) -> Iterator[str]:
        return iter(self.differences)

    def __str__(self) -> str:
        """Return the headline, and a line for each figure."""
        level = float(self.settings["confidence_level"])
        lines = [self.headline]
        for name, each in self.differences.items():
            lines.append(
                f"{name}: {each.a:.4g} to {each.b:.4g}, difference {each.difference:+.4g}, "
                f"{level:.0%} interval {each.low:+.4g} to {each.high:+.4g}"
            )
        return "\n".join(lines)

    def __getitem__(self, name: str) -> Difference:
        if name not in self.differences:
            raise no_such("compared metric", name, list(self.differences))
        return self.differences[name]

    def is_worse(self, metric: str) -> bool:
        """Return whether B is shown to be worse, after Holm's correction for all metrics.

        Args:
            metric: The name of a metric of this comparison.
        """
        return self._require_direction(metric).winner == "a" and metric in self.shown

    def may_be_worse(self, metric: str, margin: float) -> bool:
        """Return whether the interval leaves room for B being worse by more than a margin.

        Where nothing was tested, it does. Requiring this of several metrics needs no
        correction: a model that is worse in one passes only if that one errs.

        Args:
            metric: The name of a metric of this comparison.
            margin: How much worse is tolerated, at least 0, on the scale of the metric.
        """
        if not margin >= 0:
            raise InputError(f"the margin must be at least 0, found {margin!r}")
        difference = self._require_direction(metric)
        return not (difference.is_tested and difference.harm[1] <= margin)

    def _require_direction(self, metric: str) -> Difference:
        difference = self[metric]
        if difference.better == "neither":
            raise InputError(
                f"{metric} has no better direction, so neither set is worse: name another metric"
            )
        return difference

    @property
    def _tested(self) -> dict[str, float]:
        """The p-values of metrics that have a better direction and a defined difference."""
        return {
            name: difference.p_value
            for name, difference in self.differences.items()
            if difference.better != "neither" and difference.is_tested
        }

    @property
    def num_tested(self) -> int:
        """The number of metrics that the correction in ``shown`` counts."""
        return len(self._tested)

    @property
    def shown(self) -> frozenset[str]:
        """The metrics whose winner stands after Holm's correction for their number."""
        tested, alpha = self._tested, 1 - float(self.settings["confidence_level"])
        adjusted = dict(zip(tested, holm(list(tested.values())), strict=True))
        return frozenset(
            name
            for name, p_value in adjusted.items()
            if self[name].winner != "neither"
            and (len(tested) == 1 or (p_value is not None and p_value < alpha))
        )

    @property
    def headline(self) -> str:
        """The outcome in one sentence, after Holm's correction for the number of metrics."""
        if self.untested is not None:
            return f"Nothing was tested: {self.untested}."
        sides: dict[str, list[str]] = {"a": [], "b": [], "hinted": [], "neither": []}
        shown = self.shown
        for name, difference in self.differences.items():
            sure = name in shown or difference.winner == "neither"
            sides[difference.winner if sure else "hinted"].append(name)
        parts = [
            f"{name} is better in {', '.join(sides[side])}"
            for side, name in (("b", self.b), ("a", self.a))
            if sides[side]
        ]
        if sides["hinted"]:
            hinted = ", ".join(sides["hinted"])
            parts.append(f"hinted at, not shown among {self.num_tested} metrics: {hinted}")
        if sides["neither"]:
            parts.append(f"no difference is shown in {', '.join(sides['neither'])}")
        return "; ".join(parts) + "."

    def to_frame(self, *, library: str = "pandas") -> Any:
        """Return the differences as a table, a row for each metric.

        Args:
            library: ``"pandas"`` or ``"polars"``. Default: 'pandas' (comes with calibrant).
        """
        return frame_of_rows(list(self._records().values()), index="name", library=library)

    def _records(self) -> dict[str, dict[str, Any]]:
        return {
            name: {
                **asdict(d),
                "compared": "corrected" if d.is_corrected else "value",
                "winner": d.winner,
            }
            for name, d in self.differences.items()
        }

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain values that JSON can hold; undefined values are None."""
        groups: dict[str, Any] | None = None
        if self.groups is not None:
            groups = {**asdict(self.groups), "headline": self.groups.describe(self.b)}
            for record, group in zip(groups["groups"], self.groups.groups, strict=True):
                record["shown"] = {name: group.find_winner(name) for name in self.groups.metrics}
        plain: dict[str, Any] = make_plain(
            {
                **asdict(self),
                "groups": groups,
                "differences": self._records(),
                "shown": sorted(self.shown),
                "corrected_for": self.num_tested,
                "headline": self.headline,
            }
        )
        return plain

    def to_json(self, *, indent: int | None = 2) -> str:
        """Return `to_dict` as JSON text; infinite values are the strings "inf" and "-inf"."""
        return json.dumps(self.to_dict(), indent=indent, allow_nan=False, ensure_ascii=False)


def compare(
    a: Predictions,
    b: Predictions,
    *,
    metrics: Wanted | None = None,
    num_bins: int = 15,
    confidence_level: float = 0.95,
    resamples: int = 1000,
    seed: int = 0,
    progress: bool = False,
    view: str | None = None,
    pos_label: int | None = None,
    join: str = "exact",
    groups: Any = None,
    group_metrics: Sequence[str] | None = None,
) -> Comparison:
    """Compare two sets of predictions of the same rows, b against a.

    Rows are resampled in pairs, so that the difficulty of a row cancels out. Rows are paired by
    their ids where both sets have them, in whatever order, else by position. Weights and
    clusters are taken into account: whole clusters are resampled and swapped, and with fewer
    than ten nothing is tested. An image of dense predictions is a cluster, as is a row of many
    labels, which are pooled.

    Args:
        a: The baseline.
        b: The other set, of the same rows with the same labels.
        metrics: Names of metrics, or a mapping from names to options; if None, those of
            `list_default_metrics`.
        num_bins: The number of bins of metrics that bin.
        confidence_level: The level of the intervals.
        resamples: The number of resamples.
        seed: The seed of the resamples.
        progress: Show progress on the terminal.
        view: ``"events"`` judges the probability of the positive class of two, ``"top"`` that of
            the predicted class; None means events wherever there are two classes.
        pos_label: The positive class of two; class 1 if None.
        join: ``"exact"``: both sets must hold the same ids. ``"inner"``: rows whose id only one
            set has are left out, and counted in ``Comparison.notes``.
        groups: The group of each row of ``a``, to compare the sets in each group too: a column of
            `read_groups`, a Series or any sequence. Default: None (no groups).
        group_metrics: The metrics to compare by group, among ``metrics``. Default: None (of
            accuracy, NLL and Brier score those that are compared, for events the latter two:
            means of rows, which few rows are enough for).
    """
    if not 0 < confidence_level < 1:
        raise InputError(f"confidence_level must lie in (0, 1), found {confidence_level!r}")
    a, b = a.in_memory(), b.in_memory()
    values = None if groups is None else check_groups(groups, a)
    if values is None and group_metrics is not None:
        raise InputError("group_metrics needs groups")
    a, b, notes, kept = _pair_rows(a, b, join)
    caveat = INDEPENDENCE if a.clusters is None and not a.is_dense else None
    rows_a, rows_b = (
        predictions.to_events() if a.task == "multilabel" else predictions for predictions in (a, b)
    )
    positive = choose_positive(rows_a, view, pos_label)
    event = None if positive is None else name_event(rows_a, positive)
    if metrics is None:
        metrics = list_default_metrics(a, view=view, pos_label=pos_label)
    measures = choose_measures(metrics, num_bins, event=event)
    plan = Plan(confidence_level, resamples, seed)
    compared = _compare_rows(
        rows_a, rows_b, measures, plan, positive, closed=event is not None, progress=progress
    )
    names = (a.name, b.name) if a.name != b.name else (f"{a.name} (A)", f"{b.name} (B)")
    for side, name in zip(compared.sides, names, strict=True):
        notes += tuple(side.describe_infinite(name))
    compared_groups = None
    if values is not None:
        chosen = _choose_group_metrics(group_metrics, measures, is_event=event is not None)
        codes = values.codes if kept is None else values.codes[kept]
        compared_groups = _compare_groups(
            a,
            b,
            values._replace(codes=codes),
            {name: measures[name] for name in chosen},
            plan,
            positive,
        )
    return Comparison(
        *names,
        a.num_rows,
        compared.differences,
        {"confidence_level": confidence_level, "resamples": resamples, "seed": seed},
        task=a.task,
        view="top" if event is None else "events",
        event=event,
        num_clusters=compared.num_clusters,
        weighted=compared.weighted,
        untested=compared.untested,
        notes=notes,
        caveat=caveat,
        groups=compared_groups,
    )


class _Compared(NamedTuple):
    """The differences of two sets of the same rows, and what was tested."""

    sides: list[_Side]
    differences: dict[str, Difference]
    num_clusters: int | None
    weighted: bool
    untested: str | None


def _compare_rows(
    a: Predictions,
    b: Predictions,
    measures: dict[str, Measure],
    plan: Plan,
    positive: int | None,
    *,
    closed: bool,
    progress: bool = False,
    swaps: int = _SWAPS,
) -> _Compared:
    """Compare two sets of the same rows in the same order.

    Args:
        a: The baseline.
        b: The other set.
        measures: The metrics.
        plan: The level, resamples and seed.
        positive: The class whose probability is judged; None for the predicted class.
        closed: Whether means are judged by influences even where rows could be resampled.
        progress: Show progress on the terminal.
        swaps: The number of swaps of a test of means.
    """
    units = _number_clusters(find_units(a))
    tested = not has_few_clusters(units.clusters)
    sides = [_Side(predictions, measures, plan, units, positive) for predictions in (a, b)]
    pair = _Pair(sides, measures, plan, units, closed=closed, swaps=swaps)
    intervals = pair.find_intervals(progress) if tested else {}
    differences = {}
    for name, measure in measures.items():
        (value_a, best_a), (value_b, best_b) = (side.figures[name] for side in sides)
        difference = best_b - best_a
        low, high, p_value = intervals.get(name, (-np.inf, np.inf, float("nan")))
        if np.isinf(value_a) != np.isinf(value_b) and measure.better != "neither":
            # No number of rows makes an infinite value finite: nothing is left to chance.
            low, high, p_value = difference, difference, 0.0
        differences[name] = Difference(
            name,
            label_of(name),
            value_a,
            value_b,
            difference,
            low,
            high,
            p_value,
            measure.better,
            *(side.corrected.get(name) for side in sides),
        )
    num_clusters = None if units.clusters is None else int(units.clusters.max()) + 1
    what = "images" if a.is_dense and a.clusters is None else "clusters"
    untested = (
        f"the rows lie in {num_clusters} {what}, and fewer than {FEWEST_CLUSTERS} show too "
        "little of how much they differ"
    )
    return _Compared(
        sides,
        differences,
        num_clusters,
        units.weights is not None,
        None if tested else untested,
    )


def _choose_group_metrics(
    wanted: Sequence[str] | None, measures: dict[str, Measure], *, is_event: bool
) -> tuple[str, ...]:
    """Return the metrics that are compared by group."""
    if wanted is None:
        usual = ("nll", "brier") if is_event else ("accuracy", "nll", "brier")
        return tuple(name for name in usual if name in measures) or (next(iter(measures)),)
    for name in wanted:
        if name not in measures:
            raise no_such("compared metric", name, list(measures))
    if not wanted:
        raise InputError("group_metrics must name a metric, found none")
    return tuple(dict.fromkeys(wanted))


def _compare_groups(
    a: Predictions,
    b: Predictions,
    values: GroupValues,
    measures: dict[str, Measure],
    plan: Plan,
    positive: int | None,
) -> ComparedGroups:
    """Compare two sets in every group that has rows."""
    present = [place for place in range(len(values.names)) if (values.codes == place).any()]
    # Swaps can show a p-value of 1/swaps at best, which Holm's correction multiplies.
    swaps = max(_SWAPS, round(100 * len(present) * len(measures) / (1 - plan.level) / 20))
    alpha = round(1 - plan.level, 12)
    compared, p_values = [], []
    for place in present:
        rows = np.flatnonzero(values.codes == place)
        sides = [predictions.take(rows) for predictions in (a, b)]
        if a.task == "multilabel":
            sides = [side.to_events() for side in sides]
        counted = _count_labelled(sides[0])
        if counted:
            comparison = _compare_rows(
                sides[0], sides[1], measures, plan, positive, closed=True, swaps=swaps
            )
            differences, untested = comparison.differences, comparison.untested
        else:
            differences, untested = {}, "no row has a label that counts"
        if untested is None and not a.is_dense and counted < FEWEST:
            untested = f"fewer than {FEWEST} rows"
        if untested is not None:
            differences = {
                name: replace(difference, low=-np.inf, high=np.inf, p_value=float("nan"))
                for name, difference in differences.items()
            }
        compared.append((values.names[place], len(rows), differences, untested))
        p_values += [
            differences[name].p_value
            if name in differences
            and measures[name].better != "neither"
            and differences[name].is_tested
            else None
            for name in measures
        ]
    tested = [p_value for p_value in p_values if p_value is not None]
    corrected = iter(holm(tested))
    adjusted = iter([None if p_value is None else next(corrected) for p_value in p_values])
    groups = []
    for name, num_rows, differences, untested in compared:
        adjusted_p_values = {metric: next(adjusted) for metric in measures}
        if differences:
            groups.append(
                ComparedGroup(name, num_rows, differences, adjusted_p_values, alpha, untested)
            )
    return ComparedGroups(
        values.title, tuple(measures), tuple(groups), len(tested), values.warnings
    )


def _count_labelled(predictions: Predictions) -> int:
    """Return the number of rows, or pixels, whose label counts."""
    labels = as_numpy(predictions.known_labels)
    ignored = predictions.ignore_index
    return int(labels.size if ignored is None else (labels != ignored).sum())


def list_default_metrics(
    predictions: Predictions, *, view: str | None = None, pos_label: int | None = None
) -> tuple[str, ...]:
    """Return the metrics that `compare` compares unless others are named.

    Args:
        predictions: One of the two sets.
        view: As in `compare`.
        pos_label: As in `compare`.
    """
    if predictions.task == "multilabel":
        return EVENT_COMPARED
    positive = choose_positive(predictions, view, pos_label)
    if positive is not None:
        ranked = ("aurc",) if name_event(predictions, positive) == "correct" else ()
        return (*EVENT_COMPARED, *ranked)
    if predictions.num_options is not None:  # positions, not classes
        return tuple(name for name in DEFAULT_COMPARED if name != "classwise_ece")
    return DEFAULT_COMPARED


def _number_clusters(units: Units) -> Units:
    """Return weights of mean 1 and clusters 0 to G−1, of the rows that count."""
    weights, clusters = units.weights, units.clusters
    return Units(
        None if weights is None else check_weights(weights, len(weights)),
        None if clusters is None else encode_clusters(clusters),
    )


class _Side:
    """One of the two sets: its figures, and the states that its rows are kept in."""

    def __init__(
        self,
        predictions: Predictions,
        measures: dict[str, Measure],
        plan: Plan,
        units: Units,
        positive: int | None,
    ) -> None:
        self.predictions = predictions
        self.options = row_options(predictions, positive)
        built = {name: measure.build() for name, measure in measures.items()}
        size = int(np.prod(predictions.scores.shape))
        rows = make_row_states(measures, classes=size <= MOST_CELLS)
        ranks = RankState()
        cells = [] if units.plain else make_cell_states(measures.values(), size, sample=False)
        measure_states = (state for states in built.values() for state in states)
        beside = [] if units.plain else [ranks, *cells]
        shared = share_states([*rows.values(), *beside, *measure_states])
        values = compute_all(
            list(measures.values()),
            _read_batches(predictions),
            extra=list(shared.values()),
            allow_undefined=True,
            **self.options,
        )
        self.row_states = {name: shared[state.options()] for name, state in rows.items()}
        self.states = {name: shared[states[0].options()] for name, states in built.items()}
        # The value, and the value less its upward bias if that is known.
        self.figures: dict[str, tuple[float, float]] = {}
        self.corrected: dict[str, float] = {}
        for (name, measure), value in zip(measures.items(), values, strict=True):
            best = float(value)
            if measure.kind == "calibration" and np.isfinite(best):
                state = shared[built[name][0].options()]
                interval: Interval | None
                if units.plain:
                    interval = calibration_interval(measure, state, plan)
                else:
                    rank_state = shared[ranks.options()]
                    assert isinstance(rank_state, RankState)
                    cell_states: Any = [shared[cell.options()] for cell in cells]
                    interval = unit_calibration_interval(
                        measure, state, *read_rows(rank_state), plan, cell_states, units
                    )
                if interval is not None and interval.estimate is not None:
                    best = self.corrected[name] = interval.estimate
            self.figures[name] = (float(value), best)

    def take(self, rows: NDArray[np.int64]) -> tuple[Array, ...]:
        """Return scores, labels and weights, if any, of some rows."""
        weights = self.predictions.weights
        taken_weights = () if weights is None else (weights[rows],)
        return self.predictions.array[rows], self.predictions.known_labels[rows], *taken_weights

    def find_influence(self, name: str, measure: Measure, weights: Floats | None) -> Floats | None:
        """Compute the influence of each row on a figure; None if it has no closed form."""
        if not np.isfinite(self.figures[name][0]):
            return None
        if measure.influence is not None:
            return measure.influence(self.states[name])
        state = self.row_states.get(name)
        if not isinstance(state, RowState):
            return None
        rows: Floats = state.concatenate("rows").cpu().numpy()
        return rows - float(np.average(rows, weights=weights))

    def describe_infinite(self, name: str) -> Iterator[str]:
        """Say in how many rows of the set called ``name`` a mean is infinite."""
        for metric, state in self.states.items():
            if number := count_infinite(state):
                rows = "1 row" if number == 1 else f"{number:,} rows"
                yield (f"{metric} of {name} is infinite: {rows} gave what happened probability 0")


def _read_batches(predictions: Predictions) -> Iterator[tuple[Array, Array, Array | None]]:
    """Yield scores, labels and weights."""
    start, weights = 0, predictions.weights
    for preds, target in predictions.batches():
        yield preds, target, None if weights is None else weights[start : start + len(preds)]
        start += len(preds)


Ends = tuple[float, float, float]  # low, high, p-value


class _Pair:
    """The two sets, and the intervals and p-values of their differences."""

    def __init__(
        self,
        sides: list[_Side],
        measures: dict[str, Measure],
        plan: Plan,
        units: Units,
        *,
        closed: bool,
        swaps: int,
    ) -> None:
        self.sides, self.measures, self.plan, self.units = sides, measures, plan, units
        self.closed = closed or not units.plain  # else rows are resampled where they can be
        self.swaps = swaps
        # With many groups, swaps are left out where they could not change what is shown.
        self.swap_below = 1.0 if swaps == _SWAPS else 1 - plan.level
        self.how: dict[str, Any] = {"weights": units.weights, "clusters": units.clusters}
        counted = _count_labelled(sides[0].predictions)
        self.num_rows = counted
        self.num_units = counted if units.clusters is None else int(units.clusters.max()) + 1
        # The spread of resampled plain rows, which are many, is as good as known.
        self.degrees = np.inf if units.plain else float(self.num_units - 1)

    def difference(self, name: str) -> float:
        """Return b − a, of the corrected values if there are any."""
        return self.sides[1].figures[name][1] - self.sides[0].figures[name][1]

    def find_intervals(self, progress: bool) -> dict[str, Ends]:
        """Compute the interval and the p-value of every difference."""
        intervals: dict[str, Ends] = {}
        resampled: dict[str, Measure] = {}
        for name, measure in self.measures.items():
            ends = self._find_closed(name, measure)
            if ends is None and not self.units.plain and self._is_ranked(name, measure):
                ends = self._leave_out(name, measure)
            if ends is None:
                resampled[name] = measure
            else:
                intervals[name] = ends
        if not resampled:
            return intervals
        drawn = self._resample(resampled, progress)
        spread = permutation_spread(
            [(side.predictions, side.options) for side in self.sides],
            resampled,
            self.plan,
            self.units,
        )
        for name, measure in resampled.items():
            difference = self.difference(name)
            ends = self._read_resamples(measure, difference, drawn[name])
            if name in spread and np.isfinite(difference):
                value_a, value_b = (side.figures[name][0] for side in self.sides)
                score = (value_b - value_a) / spread[name]
                ends = apply_permutation_test(score, *ends, self.plan.level, self.degrees)
            intervals[name] = ends
        return intervals

    def _is_ranked(self, name: str, measure: Measure) -> bool:
        row_states = self.sides[0].row_states
        return measure.kind == "selective" and measure.interval is None and name in row_states

    def _find_closed(self, name: str, measure: Measure) -> Ends | None:
        """Compute the interval from influences; None if the figure has none."""
        if not self.closed and name in self.sides[0].row_states:
            return None
        if measure.influence is None and measure.kind != "mean":
            return None
        values = [side.figures[name][0] for side in self.sides]
        influences = [side.find_influence(name, measure, self.units.weights) for side in self.sides]
        if influences[0] is None or influences[1] is None:
            return -np.inf, np.inf, float("nan")
        pair = paired_interval(
            values[0], influences[0], values[1], influences[1], level=self.plan.level, **self.how
        )
        p_value = pair.p_value
        if 0 < p_value < self.swap_below:
            # Rows' shares in the difference: their mean is the difference.
            shares = pair.difference + influences[1] - influences[0]
            p_value = max(
                p_value, swap_test(shares, draws=self.swaps, seed=self.plan.seed, **self.how)
            )
        return stretch_interval(pair.low, pair.high, p_value, self.plan.level)

    def _leave_out(self, name: str, measure: Measure) -> Ends:
        """Compute the interval of a ranked risk by leaving out groups of clusters."""
        most = int(np.clip(_MOST_LEFT_OUT // self.num_rows, 20, 100))
        weights = leave_out_weights(self.num_rows, most=most, seed=self.plan.seed, **self.how)
        values = [
            resample_measures({name: measure}, {name: side.row_states[name]}, weights)[name]
            for side in self.sides
        ]
        drawn, difference = values[1] - values[0], self.difference(name)
        if not np.isfinite(difference):
            return -np.inf, np.inf, float("nan")
        interval = jackknife_interval(difference, drawn, level=self.plan.level)
        p_value = interval.p_value()
        if 0 < p_value < 1:
            count = len(drawn)
            shares = count * difference - (count - 1) * drawn
            flipped = sign_flip_test(
                shares, lambda sums: np.abs(sums[:, 0]), draws=_SWAPS, seed=self.plan.seed
            )
            p_value = max(p_value, flipped)
        return stretch_interval(interval.low, interval.high, p_value, self.plan.level)

    def _resample(self, measures: dict[str, Measure], progress: bool) -> dict[str, Floats]:
        """Return b − a of measures on resampled rows or clusters, the same for both sets."""
        plan = self.plan
        states = [
            {name: state for name, state in side.row_states.items() if name in measures}
            for side in self.sides
        ]
        fast = list(states[0])
        slow = {name: measure for name, measure in measures.items() if name not in fast}
        draws = limit_resamples(self.num_rows, plan.resamples)
        halves = min(draws, 100) if slow else 0
        blocks: dict[str, list[Floats]] = {name: [] for name in measures}
        total = (draws if fast else 0) + halves
        with progress_bar("resampling rows", total, shown=progress) as advance:
            for counts in self._draw(draws) if fast else ():
                values_a, values_b = (resample_measures(measures, s, counts) for s in states)
                with np.errstate(invalid="ignore"):  # inf − inf is NaN, which is left out later
                    for name in fast:
                        blocks[name].append(values_b[name] - values_a[name])
                advance(len(counts))
            if slow:
                takes, number = self._list_takes()
                values = half_samples(
                    list(slow.values()),
                    takes,
                    number,
                    draws=halves,
                    seed=plan.seed,
                    options=[side.options for side in self.sides],
                    tick=lambda: advance(1),
                )
                for column, name in enumerate(slow):
                    with np.errstate(invalid="ignore"):
                        blocks[name].append(values[:, 1, column] - values[:, 0, column])
        return {name: np.concatenate(several) for name, several in blocks.items()}

    def _draw(self, draws: int) -> Iterator[NDArray[Any]]:
        if self.units.plain:
            return resample_counts(self.num_rows, draws, self.plan.seed)
        clusters = self.units.clusters
        if clusters is None:
            clusters = np.arange(self.num_rows)
        return resample_clusters(clusters, self.units.weights, draws, self.plan.seed)

    def _list_takes(self) -> tuple[list[Any], int]:
        """Return a function for each set that takes some rows, or clusters, and their number."""
        predictions = self.sides[0].predictions
        codes = predictions.cluster_codes
        if codes is None:
            return [side.take for side in self.sides], predictions.num_rows
        order = np.argsort(codes, kind="stable")
        members = np.split(order, np.cumsum(np.bincount(codes))[:-1])

        def take_of(side: _Side) -> Any:
            return lambda chosen: side.take(
                np.concatenate([members[cluster] for cluster in chosen])
            )

        return [take_of(side) for side in self.sides], len(members)

    def _read_resamples(self, measure: Measure, difference: float, drawn: Floats) -> Ends:
        """Return (low, high, p-value) from resampled differences."""
        level = self.plan.level
        drawn = drawn[np.isfinite(drawn)]
        if not np.isfinite(difference) or not len(drawn):
            return -np.inf, np.inf, float("nan") if np.isnan(difference) else 1.0
        spread = float(drawn.std(ddof=1))
        if spread == 0.0:
            return difference, difference, 1.0 if difference == 0 else 0.0
        if np.isfinite(self.degrees):
            from scipy.special import stdtrit

            spread *= float(np.sqrt(self.num_units / self.degrees))
            half = float(stdtrit(self.degrees, 0.5 + level / 2)) * spread
            p_value = two_sided(difference / spread, self.degrees)
            return difference - half, difference + half, p_value
        p_value = two_sided(difference / spread)
        if measure.kind in ("calibration", "other"):
            # Resampling shifts both plug-in values, so only its spread is used.
            return *normal_interval(difference, drawn, level), p_value
        return *percentile_interval(drawn, level), p_value


# Which row of one set is which of the other.


def pair_rows(a: Predictions, b: Predictions, *, join: str = "exact") -> list[Predictions]:
    """Return two sets with the same rows in the same order, as `compare` pairs them.

    Args:
        a: The baseline.
        b: The other set.
        join: As in `compare`. Default: 'exact'.
    """
    return list(_pair_rows(a.in_memory(), b.in_memory(), join)[:2])


def _pair_rows(
    a: Predictions, b: Predictions, join: str
) -> tuple[Predictions, Predictions, tuple[str, ...], NDArray[np.int64] | None]:
    """Return both sets with the same rows in the same order, notes on what was left out, and which
    rows of ``a`` these are (None: all, in their order)."""
    if join not in ("exact", "inner"):
        raise InputError(f"join must be 'exact' or 'inner', found {join!r}")
    if a.task != b.task:
        raise InputError(
            f"both sets must be of the same kind: {a.name} holds {a.task}, {b.name} {b.task}"
        )
    if a.event != b.event and "event" not in (a.event, b.event):
        raise InputError(
            f"both sets must be of the same event: {a.name} holds {a.event}, {b.name} {b.event}; "
            "if these are two names of one event, give both the same by event="
        )
    notes: tuple[str, ...] = ()
    kept: NDArray[np.int64] | None = None
    if a.ids is not None and b.ids is not None:
        a, b, notes, kept = _join_ids(a, b, join)
    elif join == "inner":
        without = " and ".join(
            predictions.name for predictions in (a, b) if predictions.ids is None
        )
        raise InputError(f"join='inner' (--join inner) needs ids in both sets: {without} has none")
    _check_same_rows(a, b)
    return (*_share_units(a, b), notes, kept)


def _join_ids(
    a: Predictions, b: Predictions, join: str
) -> tuple[Predictions, Predictions, tuple[str, ...], NDArray[np.int64] | None]:
    """Return the rows that both sets have in the order of ``a``, and which of its rows they are."""
    ids_a, ids_b = np.asarray(a.ids), np.asarray(b.ids)
    if ids_a.dtype.kind != ids_b.dtype.kind:  # one file holds them as text, the other as numbers
        ids_a, ids_b = ids_a.astype(str), ids_b.astype(str)
    if ids_a.shape == ids_b.shape and bool((ids_a == ids_b).all()):
        return a, b, (), None
    for ids, predictions in ((ids_a, a), (ids_b, b)):
        unique, repeats = np.unique(ids, return_counts=True)
        if twice := unique[repeats > 1].tolist():
            raise InputError(
                f"rows cannot be paired by their ids: {len(twice):,} ids of {predictions.name} "
                f"occur more than once, first {first(twice)}"
            )
    _, rows_a, rows_b = np.intersect1d(ids_a, ids_b, assume_unique=True, return_indices=True)
    order = np.argsort(rows_a, kind="stable")
    rows_a, rows_b = rows_a[order], rows_b[order]
    counts = []
    for ids, rows, holder, lacking in ((ids_a, rows_a, a, b), (ids_b, rows_b, b, a)):
        if number := len(ids) - len(rows):
            missing = np.delete(ids, rows).tolist()
            text = f"{number:,} of {len(ids):,} rows of {holder.name} are not in {lacking.name}"
            counts.append(f"{text}, ids {first(missing)}")
    if counts and not len(rows_a):
        raise InputError(
            f"no id of {a.name} ({first(ids_a.tolist(), 2)}) is an id of {b.name} "
            f"({first(ids_b.tolist(), 2)}): these are not the same rows"
        )
    if counts and join != "inner":
        raise InputError(
            f"both sets must hold the same rows: {'; '.join(counts)}; to compare the "
            f"{len(rows_a):,} rows of both, use join='inner' (--join inner)"
        )
    left_out = tuple(f"left out: {text}" for text in counts)
    return a.take(rows_a), b.take(rows_b), left_out, rows_a


def _check_same_rows(a: Predictions, b: Predictions) -> None:
    has_options = a.num_options is not None
    if has_options != (b.num_options is not None):
        raise InputError(
            f"both sets must be of the same kind: only {(a if has_options else b).name} holds "
            "questions with different numbers of options"
        )
    shapes = [tuple(predictions.known_labels.shape) for predictions in (a, b)]
    if shapes[0] != shapes[1] or (a.num_classes != b.num_classes and not has_options):
        raise InputError(
            f"both sets must hold the same rows: {a.name} has labels of shape "
            f"{shapes[0]} and {a.num_classes} classes, {b.name} has "
            f"{shapes[1]} and {b.num_classes}"
        )
    if a.ignore_index != b.ignore_index:
        raise InputError(
            f"both sets must ignore the same rows: ignore_index is {a.ignore_index} in {a.name} "
            f"and {b.ignore_index} in {b.name}"
        )
    pairs = [("labels", as_numpy(a.known_labels), as_numpy(b.known_labels))]
    if a.num_options is not None and b.num_options is not None:
        pairs.append(("numbers of options", a.num_options, b.num_options))
    for what, of_a, of_b in pairs:
        rows = np.flatnonzero((of_a != of_b).reshape(len(of_a), -1).any(1))
        if len(rows):
            hint = (
                "" if a.ids is not None and b.ids is not None else "; ids in both would pair them"
            )
            raise InputError(
                f"both sets must hold the same rows in the same order: {what} of {a.name} and "
                f"{b.name} differ in {len(rows):,} rows, first {first(rows.tolist())}{hint}"
            )


def _share_units(a: Predictions, b: Predictions) -> tuple[Predictions, Predictions]:
    """Give both sets the weights and clusters that either has; raise if they differ."""
    shared: dict[str, Any] = {}
    for what in ("weights", "clusters"):
        of_a, of_b = getattr(a, what), getattr(b, what)
        shared[what] = of_b if of_a is None else of_a
        if of_a is None or of_b is None:
            continue
        if what == "weights":
            same = np.allclose(of_a / of_a.mean(), of_b / of_b.mean(), rtol=1e-6)
        else:
            of_a, of_b = encode_clusters(of_a), encode_clusters(of_b)
            both = of_a * (int(of_b.max()) + 1) + of_b
            same = len(np.unique(both)) == len(np.unique(of_a)) == len(np.unique(of_b))
        if not same:
            raise InputError(
                f"both sets must hold the same rows: the {what} of {a.name} and {b.name} differ"
            )
    return replace(a, **shared), replace(b, **shared)
