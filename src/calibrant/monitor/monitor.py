"""`Monitor`: watch a model in production, look as often as you like, and alarm rarely by chance.

What is tested, of all labelled rows and of each group that the baseline has:

====================  ==========================================================================
test                  alarms if, given everything before, the mean of ... exceeds its bound
====================  ==========================================================================
``over``              probability minus outcome: probabilities are too high
``under``             outcome minus probability: probabilities are too low
``error``             1 if the predicted class is wrong (classes only)
``brier``             the Brier score
====================  ==========================================================================

The bound is what the baseline is at worst, at least 0 for the first two, plus the tolerance. Half
of a test's share of alpha pays for the bound (Podkopaev and Ramdas 2022, section 2) and
half for the bets of `calibrant.monitor.bets`. Without groups all tests of all rows share alpha
equally; with groups the tests of all rows have half of it, those of the groups share the rest.

With clusters, the mean of each cluster is one number, and a cluster counts in the first batch that
labels it: rows of a cluster seen before, in the baseline too, are left out and counted.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from calibrant.core.errors import InputError, first
from calibrant.core.files import hold_lock
from calibrant.evaluation.evaluate import choose_positive, name_event
from calibrant.evaluation.groups.files import MOST_GROUPS, GroupColumn, GroupValues, make_text
from calibrant.functional.arrays import as_numpy
from calibrant.monitor import bets
from calibrant.monitor.ledger import (
    Baseline,
    Batch,
    Cell,
    Delivery,
    Ledger,
    Plan,
    format_time,
    pack_digests,
    pack_rows,
    unpack_digests,
    unpack_rows,
)
from calibrant.monitor.rows import (
    RowErrors,
    average_clusters,
    check_rows,
    digest_clusters,
    digest_rows,
    read_errors,
    read_scores,
)
from calibrant.monitor.status import Status, make_status
from calibrant.predictions import Predictions

Floats = NDArray[np.float64]

TESTS = ("over", "under", "error", "brier")
NUM_BINS = 10
_FEWEST_UNITS = 20  # of a baseline, and of a group to be tested


class GroupCodes(NamedTuple):
    """The title of the groups, their names, and the number of each row's group."""

    title: str
    names: list[str]
    codes: NDArray[np.int64]

    def split(self) -> Iterator[tuple[str, NDArray[np.int64]]]:
        """Yield the name and the rows of each group that has rows."""
        # Small whole numbers are sorted by radix, several times faster.
        order = np.argsort(self.codes.astype(np.int16), kind="stable")
        ends = np.cumsum(np.bincount(self.codes, minlength=len(self.names)))
        for name, rows in zip(self.names, np.split(order, ends[:-1]), strict=True):
            if len(rows):
                yield name, rows


class Receipt(NamedTuple):
    """The rows that `Monitor.append` counted and left out."""

    name: str
    num_rows: int
    is_new: bool  # whether the batch was not known before
    num_labelled: int  # rows whose labels count from now on
    num_known: int  # rows whose labels counted before
    num_left_out: int  # rows of clusters that counted before

    def __str__(self) -> str:
        """Return one sentence."""
        parts = [f"{self.num_rows:,} rows" if self.is_new else "known batch"]
        if self.num_labelled:
            parts.append(f"{self.num_labelled:,} newly labelled")
        if self.num_known:
            parts.append(f"{self.num_known:,} labels counted before")
        if self.num_left_out:
            parts.append(f"{self.num_left_out:,} rows of clusters that counted before left out")
        if not self.num_labelled and not self.num_known:
            parts.append("no labels yet")
        return f"{self.name}: {', '.join(parts)}"


class Monitor:
    """Watch batches of predictions against a baseline, with tests that hold at all times.

    The probability that any test ever raises an alarm, while the model is no worse than the
    baseline by more than the tolerance, is at most ``alpha``, whether one looks once a year or
    after every row. Labels may arrive late, for some rows first, or never. They must arrive
    independently of the outcome given the score; see ``docs/guides/monitoring.md``.

    Args:
        baseline: Labelled predictions that the model was accepted with, and was not trained on.
        groups: The group of each row of the baseline. Default: None (ours: no groups).
        tolerance: How much worse than the baseline is allowed, on the scale of each figure: 0.01
            is one percentage point of gap and of accuracy, and 0.01 of the Brier score. Default:
            0.01 (ours: a smaller one needs far more rows).
        alpha: The probability of any false alarm, ever. Default: 0.05 (the usual level).
        view: ``"events"`` judges the probability of the positive class of two, ``"top"`` that of
            the predicted class. Default: None (events wherever there are two classes).
        pos_label: The positive class of two. Default: None (ours: class 1).

    >>> import numpy as np
    >>> from calibrant import Monitor, Predictions
    >>> rng = np.random.default_rng(0)
    >>> def draw(rows, shift=0.0):
    ...     said = rng.beta(2, 2, rows)
    ...     return Predictions.from_events(said, rng.random(rows) < said - shift)
    >>> monitor = Monitor(draw(5000))
    >>> for week in range(3):
    ...     receipt = monitor.append(draw(1000), name=f"week {week}")
    >>> monitor.status().alarms
    []
    >>> for week in range(3, 8):
    ...     receipt = monitor.append(draw(1000, shift=0.15), name=f"week {week}")
    >>> monitor.status().alarms[0].test
    'over'
    """

    def __init__(
        self,
        baseline: Predictions,
        *,
        groups: Any = None,
        tolerance: float = 0.01,
        alpha: float = 0.05,
        view: str | None = None,
        pos_label: int | None = None,
    ) -> None:
        if not (isinstance(tolerance, (int, float)) and 0 <= tolerance < 1):
            raise InputError(f"tolerance must lie in [0, 1), found {tolerance!r}")
        if not (isinstance(alpha, (int, float)) and 0 < alpha < 1):
            raise InputError(f"alpha must lie in (0, 1), found {alpha!r}")
        check_rows(baseline)
        positive = choose_positive(baseline, view, pos_label)
        names = baseline.class_names
        grouped = _read_groups(groups, baseline)
        self.ledger = Ledger(
            Plan(
                task=baseline.task,
                num_classes=baseline.num_classes,
                event=None if positive is None else name_event(baseline, positive),
                positive=positive,
                class_names=None if names is None else list(names),
                tolerance=float(tolerance),
                alpha=float(alpha),
                clustered=baseline.clusters is not None,
                group_title=None if grouped is None else grouped.title,
                view=view,
                pos_label=pos_label,
            ),
            Baseline(digest_rows(baseline), baseline.name, baseline.num_rows, [], [], {}, {}, {}),
        )
        self._read_baseline(baseline, grouped)

    @classmethod
    def _of(cls, ledger: Ledger) -> Monitor:
        monitor = cls.__new__(cls)
        monitor.ledger = ledger
        return monitor

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Monitor:
        """Load a monitor from its state file."""
        return cls._of(Ledger.read(Path(path)))

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the state file, whole or not at all. `update` also locks it.

        Args:
            path: The file.
        """
        target = Path(path)
        if target.is_dir():
            raise InputError(f"{target} is a folder; give the state a file name")
        target.parent.mkdir(parents=True, exist_ok=True)
        self.ledger.write(target)
        return target

    @classmethod
    @contextmanager
    def update(
        cls, path: str | os.PathLike[str], *, create: Monitor | None = None
    ) -> Iterator[Monitor]:
        """Hold the lock of a state file, yield its monitor, and save it unless an error is raised.

        Processes that append at the same time wait for each other. A process that is killed
        leaves the state before or after the whole block.

        Args:
            path: The state file.
            create: The monitor to begin with if there is no file yet.
        """
        target = Path(path)
        with hold_lock(target.with_name(f".{target.name}.lock"), wait=True, purpose="the monitor"):
            is_new = create is not None and not target.exists()
            monitor = create if is_new and create is not None else cls.load(target)
            before = None if is_new else monitor.ledger.to_dict()
            yield monitor
            if monitor.ledger.to_dict() != before:
                monitor.save(target)

    def _read_baseline(self, baseline: Predictions, groups: GroupCodes | None) -> None:
        plan, summary = self.ledger.plan, self.ledger.baseline
        labels, known = _find_labels(baseline, None)
        if not known.all():
            raise InputError(
                f"the baseline has {int((~known).sum()):,} rows without a label: give rows that "
                "all have one"
            )
        scores = read_scores(baseline, plan.positive)
        edges = np.unique(np.quantile(scores, np.arange(1, NUM_BINS) / NUM_BINS))
        summary.edges = [float(edge) for edge in edges]
        summary.scores = self._count_scores(scores)
        errors = read_errors(baseline, labels, plan.positive)
        codes = None
        if baseline.clusters is not None:
            codes, digests = digest_clusters(baseline.clusters)
            summary.clusters = pack_digests(digests)
        units = {"": _count_units(errors, codes)}
        for name, rows in groups.split() if groups is not None else ():
            member_codes = None if codes is None else codes[rows]
            units[name] = _count_units(_take(errors, rows), member_codes)
        if len(units[""].gap) < _FEWEST_UNITS:
            unit = "rows" if codes is None else "clusters"
            raise InputError(
                f"the baseline has {len(units[''].gap)} {unit}: give at least "
                f"{_FEWEST_UNITS}, and thousands to notice small changes"
            )
        tested = [
            name for name, unit_errors in units.items() if len(unit_errors.gap) >= _FEWEST_UNITS
        ]
        for name, errors_of in units.items():
            named = _list_errors(errors_of)
            summary.counts[name] = len(errors_of.gap)
            summary.means[name] = {key: float(values.mean()) for key, values in named.items()}
            if name in tested:
                share = self.share_of(name, len(tested) - 1)
                summary.bounds[name] = self._bound_errors(errors_of, share / 2)

    def share_of(self, group: str, num_groups: int | None = None) -> float:
        """Return the share of alpha of each test of all rows (``""``) or of a group.

        Args:
            group: The name of the group.
            num_groups: The number of groups that are tested. Default: None (those of the state).
        """
        plan = self.ledger.plan
        num_tests = len(TESTS) - (plan.task == "events")
        if num_groups is None:
            num_groups = len(self.ledger.baseline.bounds) - 1
        if num_groups <= 0:
            return plan.alpha / num_tests
        return plan.alpha / num_tests / 2 / (1 if not group else num_groups)

    def _bound_errors(self, errors: RowErrors, alpha: float) -> dict[str, float]:
        """Return m of each test: the baseline at its worst, plus the tolerance."""
        tolerance, top = self.ledger.plan.tolerance, self.brier_limit
        over = bets.upper_bound(errors.gap, alpha, -1.0, 1.0)
        under = bets.upper_bound(-errors.gap, alpha, -1.0, 1.0)
        bounds = {
            "over": max(over, 0.0) + tolerance,
            "under": max(under, 0.0) + tolerance,
            "brier": bets.upper_bound(errors.brier, alpha, 0.0, top) + tolerance,
        }
        if errors.wrong is not None:
            if self.ledger.plan.clustered:
                error = bets.upper_bound(errors.wrong, alpha, 0.0, 1.0)
            else:
                error = bets.rate_upper_bound(int(errors.wrong.sum()), len(errors.wrong), alpha)
            bounds["error"] = error + tolerance
        return bounds

    @property
    def brier_limit(self) -> float:
        """Return the largest possible Brier score of a row."""
        return 2.0 if self.ledger.plan.positive is None else 1.0

    def append(
        self,
        predictions: Predictions,
        *,
        labels: Any = None,
        groups: Any = None,
        name: str | None = None,
        when: str | None = None,
    ) -> Receipt:
        """Append a batch, or labels of a batch that is known, and say what was counted.

        A batch is known by the SHA-256 of its scores and ids. Appending it again counts nothing
        twice; labels that are new then count.

        Args:
            predictions: The rows, with or without labels.
            labels: Labels of the rows, in their order: −1, NaN or None where not known yet.
                Default: None (those of the predictions).
            groups: The group of each row; required if the baseline had groups. Default: None.
            name: The name of the batch in reports. Default: None (that of the predictions).
            when: The date or time of the batch, in ISO format. Default: None (now).
        """
        self._check_batch(predictions)
        plan, ledger = self.ledger.plan, self.ledger
        target, has_label = _find_labels(predictions, labels)
        grouped = _read_groups(groups, predictions)
        if (plan.group_title is None) != (grouped is None):
            has = "groups, the batch none" if grouped is None else "no groups, the batch has some"
            raise InputError(f"the baseline has {has}: give groups for both, or for neither")
        key = digest_rows(predictions)
        if key == ledger.baseline.key:
            raise InputError(
                f"{predictions.name}: these are the rows of the baseline; a batch must be new rows"
            )
        learned, shown = format_time(None), predictions.name if name is None else str(name)
        scores = read_scores(predictions, plan.positive)
        batch = ledger.find_batch(key)
        is_new = batch is None
        if batch is None:
            time = learned if when is None else format_time(when)
            counts = self._count_scores(scores)
            batch = Batch(key, shown, time, predictions.num_rows, counts)
            ledger.batches.append(batch)
        known = ledger.labelled_rows(key)
        fresh = has_label & ~known
        num_left_out = 0
        if fresh.any():
            rows = predictions if fresh.all() else predictions.take(fresh)
            if grouped is not None:
                grouped = grouped._replace(codes=grouped.codes[fresh])
            delivery = self._sum_rows(rows, target[fresh], grouped)
            delivery.batch, delivery.learned = key, learned
            delivery.rows = pack_rows(fresh)
            delivery.scores = batch.scores if fresh.all() else self._count_scores(scores[fresh])
            num_left_out = delivery.num_left_out
            ledger.deliveries.append(delivery)
        return Receipt(
            batch.name,
            predictions.num_rows,
            is_new,
            int(fresh.sum()),
            int((has_label & known).sum()),
            num_left_out,
        )

    def _check_batch(self, predictions: Predictions) -> None:
        check_rows(predictions)
        plan = self.ledger.plan
        if predictions.task != plan.task:
            raise InputError(f"the baseline holds {plan.task}, the batch {predictions.task}")
        if predictions.num_classes != plan.num_classes:
            raise InputError(
                f"the baseline has {plan.num_classes} classes, the batch {predictions.num_classes}"
            )
        names = predictions.class_names
        if plan.class_names is not None and names is not None and list(names) != plan.class_names:
            raise InputError(
                f"the baseline has the classes {first(plan.class_names)}, the batch {first(names)}"
            )
        if plan.clustered != (predictions.clusters is not None):
            has = "clusters, the batch none" if plan.clustered else "no clusters, the batch has"
            raise InputError(f"the baseline has {has}: give them for both, or for neither")
        if choose_positive(predictions, plan.view, plan.pos_label) != plan.positive:
            raise InputError("the baseline judges another class or event than the batch")

    def _count_scores(self, scores: Floats) -> list[int]:
        edges = np.array(self.ledger.baseline.edges)
        places = np.searchsorted(edges, scores, side="right")
        return [int(count) for count in np.bincount(places, minlength=len(edges) + 1)]

    def _sum_rows(
        self, predictions: Predictions, labels: NDArray[np.int64], groups: GroupCodes | None
    ) -> Delivery:
        """Return the sums over labelled rows, of all and by group."""
        delivery = Delivery("", "", len(labels), None, [], None)
        errors = read_errors(predictions, labels, self.ledger.plan.positive)
        codes = None
        if predictions.clusters is not None:
            codes, digests = digest_clusters(predictions.clusters)
            is_new = ~np.isin(digests, self.ledger.seen_clusters())
            keep = is_new[codes]
            delivery.num_left_out = int((~keep).sum())
            delivery.clusters = pack_digests(digests[is_new])
            errors, codes = _take(errors, keep), codes[keep]
            groups = None if groups is None else groups._replace(codes=groups.codes[keep])
        if not len(errors.gap):
            return delivery
        delivery.all = self._make_cell("", _count_units(errors, codes))
        for name, rows in groups.split() if groups is not None else ():
            member_codes = None if codes is None else codes[rows]
            delivery.groups[name] = self._make_cell(
                name, _count_units(_take(errors, rows), member_codes)
            )
        return delivery

    def _make_cell(self, group: str, errors: RowErrors) -> Cell:
        named = _list_errors(errors)
        logs = {}
        for test, bound in self.ledger.baseline.bounds.get(group, {}).items():
            values, low = _select_numbers(test, errors)
            logs[test] = [float(number) for number in bets.log_sums(values, bound, low)]
        return Cell(
            len(errors.gap),
            {key: float(values.sum()) for key, values in named.items()},
            {key: float(values @ values) for key, values in named.items()},
            logs,
        )

    def merge(self, *others: Monitor) -> list[str]:
        """Take over what other monitors of the same baseline know; return what was left out.

        Batches and labels that this monitor knows are not counted again. What is new counts as
        learned now, in the order in which the others learned it.

        Args:
            others: Monitors with the same baseline, tolerance, alpha and groups.
        """
        ledger, left_out = self.ledger, []
        for other in others:
            if (other.ledger.plan, other.ledger.baseline) != (ledger.plan, ledger.baseline):
                raise InputError(
                    "states can be merged only if they have the same baseline, tolerance, alpha "
                    "and groups: begin both with the same --baseline and options"
                )
        for other in others:
            known_keys = {batch.key for batch in ledger.batches}
            ledger.batches += [
                batch for batch in other.ledger.batches if batch.key not in known_keys
            ]
        new = [delivery for other in others for delivery in other.ledger.deliveries]
        # Several states that are merged at once become one history by time.
        for delivery in sorted(new, key=lambda delivery: (delivery.learned, delivery.batch)):
            batch = next(batch for batch in ledger.batches if batch.key == delivery.batch)
            rows = unpack_rows(delivery.rows, batch.num_rows)
            known = ledger.labelled_rows(batch.key)
            if not (rows & ~known).any():
                continue
            if (rows & known).any():
                left_out.append(
                    f"{batch.name}: {int((rows & ~known).sum()):,} labels were left out, since "
                    f"they came together with {int((rows & known).sum()):,} that count already; "
                    "append the labels again"
                )
                continue
            if (
                delivery.clusters is not None
                and np.isin(unpack_digests(delivery.clusters), ledger.seen_clusters()).any()
            ):
                left_out.append(
                    f"{batch.name}: {delivery.num_rows:,} labels were left out, since some of "
                    "their clusters count already; append the batch again"
                )
                continue
            ledger.deliveries.append(delivery)
        ledger.notes = list(dict.fromkeys([*ledger.notes, *left_out]))
        return left_out

    def status(self) -> Status:
        """Return alarms, notices and the series of every figure, from the sums."""
        return make_status(self.ledger, self.share_of, self.brier_limit)


def _list_errors(errors: RowErrors) -> dict[str, Floats]:
    named = {"gap": errors.gap, "error": errors.wrong, "brier": errors.brier}
    return {key: values for key, values in named.items() if values is not None}


def _select_numbers(test: str, errors: RowErrors) -> tuple[Floats, float]:
    """Return the numbers of a test, and the least that is possible."""
    if test == "over":
        return errors.gap, -1.0
    if test == "under":
        return -errors.gap, -1.0
    values = errors.wrong if test == "error" else errors.brier
    if values is None:
        raise InputError(
            "the state tests errors of the predicted class, and the batch holds events"
        )
    return values, 0.0


def _find_labels(
    predictions: Predictions, labels: Any
) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Return the labels, and which of them are known."""
    num_rows = predictions.num_rows
    if labels is None:
        if predictions.labels is None:
            return np.full(num_rows, -1, dtype=np.int64), np.zeros(num_rows, dtype=bool)
        values = as_numpy(predictions.labels).astype(np.int64)
        known = values >= 0
        if predictions.ignore_index is not None and predictions.task == "classes":
            known &= values != predictions.ignore_index
        return values, known
    array = np.asarray(labels, dtype=object if isinstance(labels, list) else None)
    if array.shape != (num_rows,):
        raise InputError(
            f"labels must be one for each of the {num_rows:,} rows, −1 where not known; found "
            f"shape {array.shape}"
        )
    try:
        numbers = np.array(
            [np.nan if value is None else value for value in array], dtype=np.float64
        )
    except (TypeError, ValueError):
        raise InputError("labels must be whole numbers, −1, NaN or None where not known") from None
    known = ~(np.isnan(numbers) | (numbers == -1))
    whole = numbers[known]
    limit = predictions.num_classes
    if ((whole != np.floor(whole)) | (whole < 0) | (whole >= limit)).any():
        bad = whole[(whole != np.floor(whole)) | (whole < 0) | (whole >= limit)]
        raise InputError(
            f"labels must be whole numbers from 0 to {limit - 1}, or −1 where not known; found "
            f"{first(bad)}"
        )
    return np.where(known, numbers, -1).astype(np.int64), known


def _read_groups(groups: Any, predictions: Predictions) -> GroupCodes | None:
    """Return what the groups are, their names, and the number of each row's group."""
    if groups is None:
        return None
    title = "group"
    if isinstance(groups, (GroupColumn, GroupValues)):
        title = groups.title
        if isinstance(groups, GroupValues):
            return GroupCodes(title, list(groups.names), groups.codes)
        groups = groups.values
    elif isinstance(getattr(groups, "name", None), str):
        title = groups.name
    values = as_numpy(groups)
    if values.shape != (predictions.num_rows,):
        raise InputError(
            f"groups must be one for each of the {predictions.num_rows:,} rows, found shape "
            f"{values.shape}"
        )
    from pandas import factorize

    codes, kinds = factorize(values)
    names = [make_text(value) for value in kinds.tolist()]
    missing = np.isin(codes, [-1, *(place for place, name in enumerate(names) if not name)])
    if missing.any():
        raise InputError(
            f"groups: missing values (first rows: {first(np.flatnonzero(missing).tolist())}): give "
            "these rows a group of their own, such as 'unknown'"
        )
    ordered = sorted(set(names))
    if len(ordered) > MOST_GROUPS:
        raise InputError(
            f"found {len(ordered):,} groups, at most {MOST_GROUPS:,} can be watched: is this an "
            "id or a measurement? Gather values into ranges first"
        )
    places = np.array([ordered.index(name) for name in names])
    return GroupCodes(title, ordered, places[codes])


def _take(errors: RowErrors, rows: Any) -> RowErrors:
    wrong = None if errors.wrong is None else errors.wrong[rows]
    return RowErrors(errors.gap[rows], wrong, errors.brier[rows])


def _count_units(errors: RowErrors, codes: NDArray[np.int64] | None) -> RowErrors:
    """Return errors by unit: of each row, or the mean of each cluster."""
    if codes is None:
        return errors
    return average_clusters(errors, np.unique(codes, return_inverse=True)[1].reshape(-1))
