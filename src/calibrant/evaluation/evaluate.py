"""`evaluate`: one pass over the predictions gives figures, intervals, tables and a verdict."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from calibrant._version import __version__
from calibrant.core.errors import InputError
from calibrant.core.method_text import parse_method
from calibrant.core.progress import progress_bar, status
from calibrant.evaluation.bootstrap import make_row_states, share_states
from calibrant.evaluation.class_tests import ClassOddsState, run_class_tests, run_unit_class_tests
from calibrant.evaluation.clustered import (
    calibration_test_clustered,
    find_mass_cells,
    gap_interval,
    has_few_clusters,
    proportion_interval,
)
from calibrant.evaluation.curves import pool_state
from calibrant.evaluation.event_tests import find_span, run_event_tests
from calibrant.evaluation.groups.files import check_groups
from calibrant.evaluation.groups.judge import judge_groups
from calibrant.evaluation.groups.leakage import find_leakage
from calibrant.evaluation.groups.value import add_groups
from calibrant.evaluation.intervals import (
    GAP,
    Plan,
    Units,
    count_infinite,
    figure_intervals,
    has_few,
    make_cell_states,
    measure_bin_noise,
    read_rows,
    row_gaps,
)
from calibrant.evaluation.inversion import Interval, chance_level, invert
from calibrant.evaluation.stated_shares import explain_shares, weight_to_shares
from calibrant.evaluation.value import Evaluation, Figure, Tallies
from calibrant.evaluation.verdict import (
    INDEPENDENCE,
    WEIGHTED,
    ClassFinding,
    Place,
    Span,
    Tolerance,
    Verdict,
    add_labels,
    calibration_test,
    conclude,
    conclude_events,
)
from calibrant.functional.arrays import Array, as_numpy
from calibrant.functional.blocks import Block, blocks, find_view, warn_of_probabilities
from calibrant.metrics.base import Measure, State, compute_all
from calibrant.metrics.classwise import ClassBinState
from calibrant.metrics.event_statistics import count_clipped
from calibrant.metrics.means import ClassMeanState, MeanState, PredictedState, RowState
from calibrant.metrics.rank_state import RankState
from calibrant.metrics.registry import label_of
from calibrant.metrics.registry import measure as get_measure
from calibrant.metrics.toplabel import BinState, binned_error
from calibrant.predictions import Predictions
from calibrant.predictions.shares import Shares

DEFAULT_METRICS = (
    "accuracy",
    "nll",
    "brier",
    "ece",
    "adaptive_ece",
    "classwise_ece",
    "ks_error",
    "smooth_ece",
    "mce",
    "aurc",
    "e_aurc",
    "failure_auroc",
)
EVENT_METRICS = (
    "oe_ratio",
    "calibration_in_the_large",
    "calibration_slope",
    "calibration_intercept",
    "brier",
    "brier_skill",
    "nll",
    "ece",
    "adaptive_ece",
    "log_ece",
    "smooth_ece",
    "ici",
    "e90",
    "auroc",
    "average_precision",
)
_SELECTIVE = ("aurc", "e_aurc", "failure_auroc")  # beside them where the event is "correct"
_RANKED = {"aurc", "e_aurc", "augrc", "risk_at_coverage", "coverage_at_risk", "failure_auroc"}
Wanted = Sequence[str] | Mapping[str, Mapping[str, Any]]

_BINNED = {  # metrics that take num_bins
    "ece",
    "mce",
    "adaptive_ece",
    "classwise_ece",
    "marginal_ece",
    "debiased_ece",
    "chance_ece",
    "brier_calibration",
    "brier_refinement",
    "log_ece",
}
# The readers of predictions warn at once, in other words.
LIKE_PROBABILITIES = (
    "rows of these logits lie in [0, 1] and sum to one: if they are probabilities, every "
    "figure here is wrong; give them as probabilities (from_probs, --probs, or 'probs' as "
    "their name in the file)"
)


def evaluate(
    predictions: Predictions,
    *,
    metrics: Wanted | None = None,
    num_bins: int = 15,
    intervals: bool = True,
    confidence_level: float = 0.95,
    resamples: int = 1000,
    seed: int = 0,
    groups: Any = None,
    group_name: str | None = None,
    progress: bool = False,
    view: str | None = None,
    pos_label: int | None = None,
    tolerance: Tolerance | None = None,
    prevalence: Shares | None = None,
) -> Evaluation:
    """Evaluate how far the probabilities of a model can be believed.

    Two classes are judged as events: is the probability of the positive class right? Weights and
    clusters of the predictions are taken into account; many labels a row are judged together and
    one by one (``Evaluation.labels``).

    Args:
        predictions: The scores with their labels.
        metrics: Names of metrics (``calibrant.metrics.available()`` lists them), or a mapping
            from names to options; if None, ``DEFAULT_METRICS``, or ``EVENT_METRICS`` for events.
        num_bins: The number of bins of the tables, and of metrics that bin.
        intervals: False computes only figures and tables, without intervals and verdict.
        confidence_level: The level of the intervals, and of the verdict's test.
        resamples: The number of resamples, at least 100.
        seed: The seed of everything random.
        groups: A value for each row (or image): ``Evaluation.groups`` then holds the figures of
            every group, and the verdict names the worst. `calibrant.evaluation.read_groups`
            reads them from a file.
        group_name: What the values of ``groups`` are, such as "camera"; the name of the column
            or Series if None.
        progress: Show progress on the terminal.
        view: ``"events"`` judges the probability of the positive class of two, ``"top"`` that of
            the predicted class; None means events wherever there are two classes.
        pos_label: The positive class of two; class 1 if None.
        tolerance: How far from the truth still counts as fit for use; see `Tolerance`.
        prevalence: The shares of the classes in use, where they differ from these rows': of an
            event, or the positive class of two, a number such as 0.05, else one for each class, in
            order or by name. Rows are then weighted by class, which assumes that the rows of each
            class are as they are in use (label shift); `calibrant.adapt` adapts a calibrator.

    >>> import numpy as np
    >>> from calibrant import Predictions
    >>> rng = np.random.default_rng(0)
    >>> logits = rng.normal(size=(2000, 3)) * 3
    >>> truth = np.array([rng.choice(3, p=p) for p in np.exp(logits / 2) /
    ...                   np.exp(logits / 2).sum(1, keepdims=True)])
    >>> evaluate(Predictions.from_logits(logits, truth)).verdict.direction
    'overconfident'
    """
    if not isinstance(predictions, Predictions):
        raise InputError(
            f"evaluate takes Predictions, found {type(predictions).__name__}; make one with "
            "Predictions.from_logits(...), .from_probs(...), .from_frame(...), .from_model(...) or "
            ".read(...)"
        )
    check_resampling(confidence_level, resamples)
    if prevalence is not None:
        stated = weight_to_shares(predictions, prevalence, 1 if pos_label is None else pos_label)
        evaluation = evaluate(
            stated.predictions,
            metrics=metrics,
            num_bins=num_bins,
            intervals=intervals,
            confidence_level=confidence_level,
            resamples=resamples,
            seed=seed,
            groups=groups,
            group_name=group_name,
            progress=progress,
            view=view,
            pos_label=pos_label,
            tolerance=tolerance,
        )
        return explain_shares(evaluation, stated)
    if predictions.task == "multilabel":
        if view == "top" or pos_label is not None:
            raise InputError("these are many labels, not classes: leave view and pos_label out")
        return _evaluate_labels(
            predictions,
            metrics=metrics,
            num_bins=num_bins,
            intervals=intervals,
            confidence_level=confidence_level,
            resamples=resamples,
            seed=seed,
            groups=groups,
            group_name=group_name,
            progress=progress,
            tolerance=tolerance,
        )
    positive = choose_positive(predictions, view, pos_label)
    event = None if positive is None else name_event(predictions, positive)
    group_values = None if groups is None else check_groups(groups, predictions, group_name)
    wanted = default_names(event, predictions) if metrics is None else metrics
    measures = choose_measures(wanted, num_bins, event=event)
    plan = Plan(confidence_level, resamples, seed)
    tables = make_table_states(num_bins)
    states = {name: measure.build() for name, measure in measures.items()}
    by_row = {n: m for n, m in measures.items() if m.kind in ("mean", "selective")}
    row_states = make_row_states(by_row, classes=False) if intervals else {}
    size = int(np.prod(predictions.scores.shape))
    plain = _are_plain(predictions)
    cell_states = make_cell_states(measures.values(), size, sample=plain) if intervals else []
    loss = RowState("nll")
    options_of = predictions.num_options
    by_class = event is None and intervals and options_of is None
    odds = ClassOddsState() if by_class and plain else None
    measure_states = [state for several in states.values() for state in several]
    losses = [loss] if group_values else []
    beside = [*cell_states, *losses, *([] if odds is None else [odds])]
    shared = share_states([*tables, *beside, *row_states.values(), *measure_states])
    options = row_options(predictions, positive)
    numbers = compute_all(
        list(measures.values()),
        _read_batches(predictions, progress),
        extra=list(shared.values()),
        allow_undefined=True,
        **options,
    )
    num_rows = len(tables.ranks.concatenate("scores"))
    units = find_units(predictions)
    filled = {name: [shared[s.options()] for s in several] for name, several in states.items()}
    values = dict(zip(measures, map(float, numbers), strict=True))
    bounds: dict[str, Interval] = {}
    verdict = None
    if intervals:
        with status("computing intervals", shown=progress):
            bounds = figure_intervals(
                measures,
                values,
                filled,
                {name: shared[state.options()] for name, state in row_states.items()},
                tables.ranks,
                predictions,
                plan,
                cell_states,
                units,
                options,
            )
        with status("testing calibration", shown=progress):
            error = _find_error(measures, filled, bounds, tables, units)
            if event is None:
                verdict = _make_verdict(
                    tables, bounds, plan, predictions, units, options, odds, tolerance, error
                )
            else:
                verdict = make_event_verdict(
                    tables, plan, predictions, units, event, tolerance, error
                )
    by_group = None
    leaks: tuple[str, ...] = ()
    if group_values is not None:
        with status("judging groups", shown=progress):
            losses_by_row = shared[loss.options()]
            assert isinstance(losses_by_row, RowState)
            by_group = judge_groups(
                group_values,
                predictions,
                tables.ranks,
                losses_by_row,
                num_bins=num_bins,
                plan=plan if intervals else None,
                units=units,
                event=event,
            )
        verdict = verdict and add_groups(verdict, by_group)
        leaks = find_leakage(group_values, predictions, tables.ranks)
    return Evaluation(
        name=predictions.name,
        num_rows=num_rows,
        num_ignored=int(np.prod(predictions.known_labels.shape)) - num_rows,
        num_classes=predictions.num_classes,
        kind="logits" if predictions.is_logits else "probs",
        class_names=predictions.class_names
        or tuple(str(k) for k in range(predictions.num_classes)),
        figures={
            name: make_figure(name, value, bounds.get(name), measures[name], filled[name][0])
            for name, value in values.items()
        },
        settings={
            "num_bins": num_bins,
            "confidence_level": confidence_level,
            "resamples": resamples if intervals else 0,
            "seed": seed,
            "version": __version__,
            "dense": predictions.is_dense,
        },
        tallies=make_tallies(tables, num_bins, units, confidence_level),
        verdict=verdict,
        groups=by_group,
        warnings=(*_find_doubts(predictions), *_find_one_outcome(predictions), *leaks),
        task=predictions.task,
        view="top" if event is None else "events",
        event=event,
        num_clusters=None if units.clusters is None else len(np.unique(units.clusters)),
        weighted=units.weights is not None,
        num_options=None if options_of is None else (int(options_of.min()), int(options_of.max())),
    )


def _find_error(
    measures: Mapping[str, Measure],
    filled: Mapping[str, Sequence[State]],
    bounds: Mapping[str, Interval],
    tables: TableStates,
    units: Units,
) -> Interval | None:
    """Return the interval of the tables' ECE if a figure has it, and nothing widened it."""
    if not units.plain or has_few(tables.ranks):
        return None
    for name, measure in measures.items():
        how = getattr(measure.error, "keywords", None)
        if measure.name == "ece" and filled[name][0] is tables.bins and how == {"order": 1}:
            return bounds.get(name)
    return None


def _evaluate_labels(
    predictions: Predictions,
    *,
    metrics: Wanted | None,
    groups: Any,
    group_name: str | None,
    progress: bool,
    **options: Any,
) -> Evaluation:
    """Evaluate many labels a row: pooled, with a row as a cluster, and label by label."""
    width = predictions.num_classes
    if groups is not None:
        of_rows = check_groups(groups, predictions, group_name)
        groups = of_rows._replace(codes=np.repeat(of_rows.codes, width))
    pooled = evaluate(
        predictions.to_events(),
        metrics=metrics,
        groups=groups,
        group_name=group_name,
        progress=progress,
        **options,
    )
    names = predictions.class_names or tuple(str(k) for k in range(width))
    labels = []
    for index, name in enumerate(names):
        label = replace(predictions.to_events(index), name=name)
        if not bool((as_numpy(label.known_labels) >= 0).any()):
            continue  # a label that is missing in every row has nothing to judge
        labels.append(evaluate(label, metrics=metrics, **options))
    verdict = pooled.verdict
    if verdict is not None:
        level = options["confidence_level"]
        known = [(label.name, label.verdict) for label in labels if label.verdict is not None]
        verdict = add_labels(verdict, known, level=level)
        if predictions.clusters is None:  # the pooled rows' clusters are those of to_events
            by_row = describe_clusters(pooled.num_clusters or 0, "clusters")
            sentences = (text for text in verdict.sentences if text != by_row)
            verdict = replace(verdict, sentences=(*sentences, _LABELS_OF_A_ROW, INDEPENDENCE))
    return replace(
        pooled,
        verdict=verdict,
        task="multilabel",
        num_classes=width,
        class_names=names,
        labels=tuple(labels),
    )


def _are_plain(predictions: Predictions) -> bool:
    """Return whether rows are independent and count the same."""
    return predictions.weights is None and predictions.clusters is None and not predictions.is_dense


def choose_positive(
    predictions: Predictions, view: str | None, pos_label: int | None
) -> int | None:
    """Return the positive class if the predictions are judged as events, else None."""
    if predictions.task == "events":
        if view == "top" or pos_label is not None:
            raise InputError("these are events, not classes: leave view and pos_label out")
        return 1
    if predictions.num_options is not None:
        if view == "events" or pos_label is not None:
            raise InputError("options have positions, not classes: leave view and pos_label out")
        return None
    return find_view(tuple(predictions.scores.shape), view, pos_label)


def name_event(predictions: Predictions, positive: int) -> str:
    """Return what the judged probability is the probability of."""
    if predictions.event is not None:
        return predictions.event
    name = predictions.class_names[positive] if predictions.class_names else str(positive)
    return f"class {name}" if name.isdigit() else name


def row_options(predictions: Predictions, positive: int | None) -> dict[str, Any]:
    """Return the options of `compute_all` for these predictions."""
    return {
        "from_logits": predictions.is_logits,
        "ignore_index": predictions.ignore_index,
        "positive": positive,
        "absent": predictions.num_options is not None,
    }


def find_units(predictions: Predictions) -> Units:
    """Return weights and clusters of the rows that count; a dense image is a cluster."""
    labels = as_numpy(predictions.known_labels)
    codes, weights = predictions.cluster_codes, predictions.weights
    if codes is None and predictions.is_dense:
        codes = np.arange(len(labels))
    size = int(np.prod(labels.shape[1:]))
    counted: Any = slice(None)
    if predictions.ignore_index is not None:
        counted = (labels != predictions.ignore_index).reshape(-1)
    return Units(
        None if weights is None else np.repeat(weights, size)[counted],
        None if codes is None else np.repeat(codes, size)[counted],
    )


def default_metrics(
    predictions: Predictions, *, view: str | None = None, pos_label: int | None = None
) -> tuple[str, ...]:
    """Return the names of the metrics that `evaluate` computes unless others are named.

    Args:
        predictions: The predictions.
        view: As in `evaluate`.
        pos_label: As in `evaluate`.
    """
    if predictions.task == "multilabel":
        return EVENT_METRICS
    positive = choose_positive(predictions, view, pos_label)
    event = None if positive is None else name_event(predictions, positive)
    return default_names(event, predictions)


def default_names(event: str | None, predictions: Predictions) -> tuple[str, ...]:
    """Return the names of the default metrics of classes, or of an event.

    Args:
        event: The name of the event if rows are judged as events; None for classes.
        predictions: The predictions.
    """
    if event is None and predictions.num_options is not None:  # positions, not classes
        return tuple(name for name in DEFAULT_METRICS if name != "classwise_ece")
    if event is None:
        return DEFAULT_METRICS
    return (*EVENT_METRICS, *_SELECTIVE) if event == "correct" else EVENT_METRICS


def check_resampling(confidence_level: float, resamples: int) -> None:
    """Raise an error unless intervals can have this level and number of resamples."""
    if not 0 < confidence_level < 1:
        raise InputError(f"confidence_level must lie in (0, 1), found {confidence_level!r}")
    if resamples < 100:
        raise InputError(f"resamples must be at least 100, found {resamples!r}")


def choose_measures(
    metrics: Wanted, num_bins: int, *, event: str | None = None
) -> dict[str, Measure]:
    """Make measures by name; those that bin get ``num_bins`` unless their options have it.

    Args:
        metrics: Names of metrics, or a mapping from names to options.
        num_bins: The number of bins.
        event: The name of the event if rows are judged as events; None for classes.
    """
    wanted = (metrics,) if isinstance(metrics, str) else metrics
    options = wanted if isinstance(wanted, Mapping) else {name: {} for name in wanted}
    if not options:
        raise InputError("metrics is empty; name at least one metric, or leave metrics out")
    measures = {}
    for name, chosen in options.items():
        if name in ("ood_auroc", "fpr95"):
            raise InputError(
                f"{name} compares in- with out-of-distribution rows, not classes: call "
                f"calibrant.metrics.{name}(preds, target) with labels 1 and 0"
            )
        word, written = parse_method(name, kind="metric") if "(" in name else (name, {})
        binned = {"num_bins": num_bins} if word in _BINNED else {}
        measure = get_measure(word, **{**binned, **written, **chosen})
        measures[name] = replace(measure, label=label_of(word, **written, **chosen))
        _check_view(name, measures[name], event)
    return measures


def _check_view(name: str, measure: Measure, event: str | None) -> None:
    """Raise if the metric cannot judge these rows."""
    if event is None:
        if "top" not in measure.views:
            raise InputError(
                f"{name} judges the probability of an event: it needs two classes, or "
                "Predictions.from_events"
            )
    elif "events" not in measure.views:
        raise InputError(
            f"{name} judges classes, and these rows are judged as events of {event}: leave it "
            "out, or judge two classes by the predicted one with view='top' (--view top)"
        )
    elif measure.kind == "selective" and measure.name in _RANKED and event != "correct":
        raise InputError(
            f"{name} ranks rows by whether they are correct, and these rows are judged as events "
            f"of {event}: judge two classes with view='top' (--view top), or, if the event is "
            "that an answer is correct, name it 'correct'"
        )


def _read_batches(
    predictions: Predictions, progress: bool
) -> Iterator[tuple[Array, Array | None, Array | None]]:
    """Yield scores, labels and weights, with a progress bar if asked for."""
    start, weights = 0, predictions.weights
    with progress_bar("reading predictions", len(predictions), shown=progress) as advance:
        for preds, target in predictions.batches():
            yield preds, target, None if weights is None else weights[start : start + len(preds)]
            start += len(preds)
            advance(len(preds))


def _find_doubts(predictions: Predictions) -> tuple[str, ...]:
    """Return a warning if the logits look like probabilities.

    The warning was shown when the predictions were made; a reader of the result did not see it.
    """
    if not predictions.is_logits:
        return ()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        some = next(iter(predictions.batches()))[0] if predictions.is_lazy else predictions.array
        caught.clear()
        warn_of_probabilities(some, stacklevel=2)
    return (LIKE_PROBABILITIES,) if caught else ()


def _find_one_outcome(predictions: Predictions) -> tuple[str, ...]:
    """Return a warning if all of many labels are the same: the wrong column may have been read."""
    if predictions.task == "multilabel" or predictions.is_lazy or predictions.labels is None:
        return ()
    labels = as_numpy(predictions.known_labels).reshape(-1)
    ignored = -1 if predictions.task == "events" else predictions.ignore_index
    known = labels if ignored is None else labels[labels != ignored]
    if len(known) < _MANY_LABELS or known.min() != known.max():
        return ()
    rows = f"in any of {len(known):,} rows" if not known[0] else f"in all {len(known):,} rows"
    if predictions.task == "events":
        happens = "does not happen" if not known[0] else "happens"
        return (f"the event {happens} {rows}: are these the right labels?",)
    names = predictions.class_names
    name = names[int(known[0])] if names else str(int(known[0]))
    return (f"every label of {len(known):,} is {name}: are these the right labels?",)


_ROUNDING = 1e-14  # a bound that is as near to 0 is 0
_MANY_LABELS = 50  # fewer may all be the same by chance
_OF_LOG_ODDS = ("calibration_in_the_large", "calibration_slope", "calibration_intercept")


def _count_clipped(measure: Measure, state: State) -> int:
    """Return how many probabilities a figure of log-odds clips."""
    if measure.name not in _OF_LOG_ODDS or not isinstance(state, RankState):
        return 0
    return count_clipped(read_rows(state)[0])


_SHARES = frozenset(
    ("auroc", "average_precision", "failure_auroc", "aurc", "e_aurc", "augrc", "risk_at_coverage")
)


def make_figure(
    name: str, value: float, interval: Interval | None, measure: Measure, state: State
) -> Figure:
    """Make a figure of its value and interval, with a note where one is needed.

    Args:
        name: The name of the figure.
        value: Its value.
        interval: Its interval, if it has one.
        measure: Its measure.
        state: The measure's first state, filled.
    """
    low, high, corrected, note = None, None, None, None
    if interval is not None:
        low, high, corrected = interval.low, interval.high, interval.estimate
        low = 0.0 if 0 < low < _ROUNDING else low
    if number := count_infinite(state):
        note = f"{number:,} row{'s' if number > 1 else ''} gave the true class probability 0"
    elif measure.kind == "calibration" and high is not None and value > high:
        note = "chance adds to the plug-in value; the interval is that of the true error"
    elif measure.name == "coverage_at_risk" and low == 0 < value:
        note = "too few rows to show that any share at all can be accepted at this risk"
    elif value != value:
        note = "not defined on these rows"
    elif clipped := _count_clipped(measure, state):
        note = f"{clipped:,} probabilities of (nearly) 0 or 1 are clipped for log-odds"
    if measure.name in _SHARES and low is not None and high is not None:
        low, high = max(low, 0.0), min(high, 1.0)  # Student's t knows of no ends
    label = measure.label or label_of(name)
    return Figure(name, label, value, low, high, corrected, measure.better, note)


class TableStates(NamedTuple):
    """The states behind the tables and the verdict."""

    bins: BinState
    ranks: RankState
    class_bins: ClassBinState
    nll: ClassMeanState
    correct: ClassMeanState
    predicted: PredictedState
    accuracy: MeanState


def make_table_states(num_bins: int) -> TableStates:
    """Make the empty states behind the tables and the verdict."""
    return TableStates(
        BinState(num_bins),
        RankState(),
        ClassBinState(num_bins),
        ClassMeanState("nll"),
        ClassMeanState("right"),
        PredictedState(),
        MeanState("correct"),
    )


def make_tallies(tables: TableStates, num_bins: int, units: Units, level: float) -> Tallies:
    """Return the sums behind the tables.

    Args:
        tables: The filled states.
        num_bins: The number of bins.
        units: The weights and clusters of the rows.
        level: The level of the bins' intervals.
    """

    def array(value: Tensor) -> Any:
        return value.detach().cpu().double().numpy()

    ranked = tables.ranks.rank_rows()
    mass = array(tables.ranks.mass_totals(num_bins))
    ends = np.cumsum(np.rint(mass[:, 0])).astype(np.int64)
    # A bin's upper edge is the confidence of its last row; the first bin begins at 0.
    group = torch.searchsorted(ranked.bounds, torch.from_numpy(ends).to(ranked.bounds.device))
    mass_edges = np.concatenate(([0.0], array(ranked.score[group - 1])))
    mass_edges[-1] = 1.0
    curve = _pick_curve(*(tensor.detach().cpu().numpy() for tensor in vars(ranked).values()))
    bins = array(tables.bins.total("totals"))
    # Weights have no scale: in tables of classes their mean is 1, so that they count rows.
    scale = 1.0 if units.weights is None else 1 / float(np.mean(units.weights))
    by_width = by_mass = None
    if not units.plain:
        by_width = _bound_bins(tables.ranks, np.arange(num_bins + 1) / num_bins, units, level)
        by_mass = _bound_bins(tables.ranks, mass_edges, units, level)
    return Tallies(
        bins=bins,
        mass_bins=mass,
        mass_edges=mass_edges,
        class_bins=scale * array(tables.class_bins.total("totals")),
        class_nll=scale * array(tables.nll.total("totals")),
        class_correct=scale * array(tables.correct.total("totals"))[:, 1],
        class_predicted=scale * array(tables.predicted.total("totals")),
        coverage=curve,
        bin_units=by_width,
        mass_bin_units=by_mass,
        cells=pool_state(tables.ranks, units.clusters),
    )


def _pick_curve(
    score: NDArray[np.float64], bounds: NDArray[Any], wrong: NDArray[np.float64], _: Any
) -> NDArray[np.float64]:
    """Return 200 points of `risk_coverage_curve` of ranked rows: share, risk and threshold."""
    whole = float(bounds[-1])
    rejected = (1 - np.linspace(0.005, 1, 200)) * whole
    if bounds.dtype.kind == "i":
        rejected = np.floor(rejected + 1e-9).astype(bounds.dtype)
    # From the top, the first group with which enough rows are accepted.
    picked = np.unique(np.searchsorted(bounds[:-1], rejected, side="right") - 1)[::-1]
    picked = picked[picked >= 0]
    count = whole - bounds[picked]
    share, risk = count / whole, (wrong[-1] - wrong[picked]) / count
    return np.stack((share, risk, score[picked]), axis=1)


def _bound_bins(
    ranks: RankState, edges: NDArray[np.float64], units: Units, level: float
) -> NDArray[np.float64]:
    """Return the rows of each bin, and Korn & Graubard's interval of what came true, (M, 3)."""
    probability, happened = read_rows(ranks)
    # Bins are right-closed, as everywhere; the first also holds 0.
    home = np.clip(np.searchsorted(edges, probability, side="left") - 1, 0, len(edges) - 2)
    table = np.full((len(edges) - 1, 3), np.nan)
    table[:, 0] = np.bincount(home, minlength=len(table))
    for bin in np.flatnonzero(table[:, 0]):
        mine = home == bin
        how = {name: None if v is None else v[mine] for name, v in units.options().items()}
        interval = proportion_interval(happened[mine], level=level, **how)
        table[bin, 1:] = interval.low, interval.high
    return table


def _make_verdict(
    tables: TableStates,
    bounds: Mapping[str, Interval],
    plan: Plan,
    predictions: Predictions,
    units: Units,
    options: Mapping[str, Any],
    odds: ClassOddsState | None,
    tolerance: Tolerance | None,
    known_error: Interval | None,
) -> Verdict:
    """Judge the predicted class, and every class beside it where the rows have classes.

    ``known_error`` is the interval of the bins' ECE, if a figure has it already.
    """
    gap = bounds[GAP]
    bounded = has_few(tables.ranks) or units.clusters is not None
    widest = max(abs(gap.low), abs(gap.high)) if bounded else 0.0
    probability, right = read_rows(tables.ranks)
    cells, noise = measure_bin_noise(tables.bins.total("totals"), probability, right, units, plan)
    drawing: dict[str, Any] = {"resamples": plan.resamples, "seed": plan.seed}
    row_gap = row_gaps(tables.ranks).cpu().numpy()
    if units.plain:
        p_value = calibration_test(tables.ranks, **drawing)
        classes = None if odds is None else run_class_tests(odds)
    else:
        how: dict[str, Any] = {"weights": units.weights, "clusters": units.clusters, **drawing}
        few = has_few_clusters(units.clusters)
        p_value = float("nan") if few else calibration_test_clustered(probability, right, **how)
        classes = None
        if predictions.num_options is None:
            classes = run_unit_class_tests(_read_blocks(predictions, options), **how)
    error = known_error or invert(cells, binned_error, level=plan.level, noise=noise, **drawing)
    names = predictions.class_names or tuple(str(k) for k in range(predictions.num_classes))
    off = [] if classes is None else classes.find_off((1 - plan.level) / 2)
    return conclude(
        num_rows=len(row_gap),
        accuracy=float(tables.accuracy.mean()),
        gap=float(np.average(row_gap, weights=units.weights)),
        gap_low=gap.low,
        gap_high=gap.high,
        ece=float(binned_error(cells)),
        ece_low=error.low,
        ece_high=max(error.high, widest),
        p_value=p_value,
        chance_ece=chance_level(cells, binned_error, noise=noise, **drawing),
        level=plan.level,
        tolerance=tolerance,
        class_p_value=None if classes is None else classes.p_value,
        classes=[
            ClassFinding(names[k], fault, float(classes.expected[k]), float(classes.observed[k]))
            for k, fault in off
            if classes is not None
        ],
        few_classes=0 if classes is None else classes.count_few(),
        num_classes=predictions.num_classes,
    ).with_sentences(*_describe_units(units, predictions))


def make_event_verdict(
    tables: TableStates,
    plan: Plan,
    predictions: Predictions,
    units: Units,
    event: str,
    tolerance: Tolerance | None,
    known_error: Interval | None = None,
) -> Verdict:
    """Judge the probability of an event.

    ``known_error`` is the interval of the bins' ECE, if a figure has it already.
    """
    probability, happened = read_rows(tables.ranks)
    drawing: dict[str, Any] = {"resamples": plan.resamples, "seed": plan.seed}
    cells, noise = measure_bin_noise(
        tables.bins.total("totals"), probability, happened, units, plan
    )
    error = known_error or invert(cells, binned_error, level=plan.level, noise=noise, **drawing)
    mean = float(np.average(probability, weights=units.weights))
    robust = gap_interval(
        probability, happened, weights=units.weights, clusters=units.clusters, level=plan.level
    )
    gap = Span(robust.value, robust.low, robust.high)
    widest = 0.0 if units.clusters is None else max(abs(gap.low), abs(gap.high))
    expected, observed, number = float(probability.sum()), int(happened.sum()), len(probability)
    if 2 * expected > number:  # of the rarer outcome
        expected, observed = number - expected, number - observed
    p_total, p_slope, p_local = run_event_tests(tables.ranks, probability, happened, units, plan)
    return conclude_events(
        event=event,
        num_rows=len(probability),
        num_events=int(happened.sum()),
        mean=mean,
        gap=gap,
        ratio=find_span("oe_ratio", tables.ranks, units, plan),
        slope=find_span("calibration_slope", tables.ranks, units, plan),
        error=Span(float(binned_error(cells)), error.low, max(error.high, widest)),
        p_total=p_total,
        p_slope=p_slope,
        p_local=p_local,
        place=_find_place(probability, happened, units.weights),
        chance_ece=chance_level(cells, binned_error, noise=noise, **drawing),
        level=plan.level,
        tolerance=tolerance,
        expected=expected,
        observed=observed,
        constant=float(np.ptp(probability)) <= 1e-9,
    ).with_sentences(*_describe_units(units, predictions))


def _find_place(
    probability: NDArray[np.float64],
    happened: NDArray[np.bool_],
    weights: NDArray[np.float64] | None,
) -> Place:
    """Find which of 15 bins of equal mass is furthest off, in standard errors."""
    row_weights = np.ones(len(probability)) if weights is None else weights
    home = find_mass_cells(probability, row_weights, 15)
    number = int(home.max()) + 1
    mass, claimed, events, spread = (
        np.bincount(home, part, number)
        for part in (
            row_weights,
            row_weights * probability,
            row_weights * happened,
            row_weights**2 * probability * (1 - probability),
        )
    )
    with np.errstate(invalid="ignore", divide="ignore"):
        score = np.nan_to_num(np.abs(events - claimed) / np.sqrt(spread), posinf=0.0)
    worst = int(np.argmax(score))
    mine = home == worst
    return Place(
        float(probability[mine].min()),
        float(probability[mine].max()),
        int(mine.sum()),
        float(claimed[worst] / mass[worst]),
        float(events[worst] / mass[worst]),
    )


def _read_blocks(predictions: Predictions, options: Mapping[str, Any]) -> Iterator[Block]:
    """Yield the rows that count, block by block."""
    for preds, target in predictions.batches():
        yield from blocks(preds, target, **options)


_LABELS_OF_A_ROW = "The labels of a row form a cluster; intervals and tests allow for that."


def describe_clusters(number: int, what: str) -> str:
    """Say how many clusters there are."""
    return f"Rows are grouped in {number:,} {what}; intervals and tests allow for that."


def _describe_units(units: Units, predictions: Predictions) -> list[str]:
    """Say what the rows are: independent, or in clusters, or weighted."""
    sentences = []
    if units.clusters is None:
        sentences.append(INDEPENDENCE)
    else:
        number = len(np.unique(units.clusters))
        what = "images" if predictions.clusters is None and predictions.is_dense else "clusters"
        sentences.append(describe_clusters(number, what))
    if units.weights is not None:
        sentences.append(WEIGHTED)
    return sentences
