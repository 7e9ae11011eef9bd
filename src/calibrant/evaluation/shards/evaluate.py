"""`evaluate_shards`: evaluate Parquet files where they lie, on one machine or on many."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from calibrant._version import __version__
from calibrant.core.errors import InputError
from calibrant.core.progress import status
from calibrant.core.threads import one_thread
from calibrant.evaluation.bootstrap import MOST_CELLS, ClassCellState, share_states
from calibrant.evaluation.class_tests import ClassOddsState
from calibrant.evaluation.evaluate import (
    LIKE_PROBABILITIES,
    TableStates,
    Wanted,
    check_resampling,
    choose_measures,
    choose_positive,
    default_names,
    make_table_states,
    name_event,
    row_options,
)
from calibrant.evaluation.intervals import Plan
from calibrant.evaluation.shards.conclude import Judge, check_measures
from calibrant.evaluation.shards.routes import run_pieces
from calibrant.evaluation.shards.scores import EXACT_ROWS, ScoreCells, ScoreRuns
from calibrant.evaluation.shards.sums import (
    FIRST_MOMENTS,
    Job,
    MomentState,
    RowSample,
    Sums,
    UnitSums,
    describe,
)
from calibrant.evaluation.value import Evaluation
from calibrant.evaluation.verdict import Tolerance
from calibrant.functional.blocks import blocks
from calibrant.metrics.base import Measure, State
from calibrant.metrics.classwise import ClassBinState
from calibrant.metrics.means import MeanState
from calibrant.metrics.rank_state import RankState
from calibrant.predictions import Predictions
from calibrant.predictions.columns import ColumnNames
from calibrant.predictions.files import Paths
from calibrant.predictions.shards import Reading, Shards, list_shards, read_first

ROUTES = ("local", "ray")
_SAMPLED = 50_000  # rows, at most, of the sample that shows how classes vary together
_SAMPLED_VALUES = 2_000_000


def evaluate_shards(
    path: Paths | Shards,
    *,
    on: str = "local",
    workers: int | None = None,
    metrics: Wanted | None = None,
    num_bins: int = 15,
    intervals: bool = True,
    confidence_level: float = 0.95,
    resamples: int = 1000,
    seed: int = 0,
    view: str | None = None,
    pos_label: str | int | bool | None = None,
    tolerance: Tolerance | None = None,
    progress: bool = False,
    kind: str | None = None,
    class_names: Sequence[str] | None = None,
    ignore_index: int | None = None,
    score_columns: str | Sequence[str] | None = None,
    label_column: str | None = None,
    weight_column: str | None = None,
    cluster_column: str | None = None,
    event: str | None = None,
    drop_unlabelled: bool = False,
) -> Evaluation:
    """Evaluate Parquet files of any size where they lie.

    Each worker reduces the pieces of files that it reads to sums, and the sums are merged in the
    order of the paths. Both routes give the same numbers to the last bit, on processors of one
    kind. Figures that need ranks are exact up to 10^8 rows; beyond, a note bounds each of them.
    Intervals are in closed form; with weights or clusters, those of figures that are no means
    come from 128 random groups of clusters.

    Args:
        path: A Parquet file, a glob such as ``"s3://bucket/run/**/*.parquet"``, a folder, or a
            list of these; or what `predictions.shards.list_shards` returned. ``s3://``,
            ``gs://``, ``hdfs://`` and ``abfs://`` are read by pyarrow, other schemes by fsspec.
        on: ``"local"``, this process, or ``"ray"``: the Ray cluster that this process is connected
            to, else that of ``RAY_ADDRESS``, else a new one on this machine. Default: 'local'
            (ours).
        workers: The most pieces at a time on Ray. Default: None (ours: a core each).
        metrics: Names of metrics, or a mapping from names to options. Default: None (those of
            ``evaluate``).
        num_bins: The number of bins of the tables, and of metrics that bin. Default: 15 (Guo et
            al. 2017, table 1).
        intervals: False computes only figures and tables. Default: True (ours).
        confidence_level: The level of the intervals, and of the verdict's test. Default: 0.95
            (ours).
        resamples: The number of simulated sets behind calibration errors' intervals. Default:
            1000 (ours).
        seed: The seed of everything random. Default: 0 (ours).
        view: As in ``evaluate``. Default: None (ours: events wherever there are two classes).
        pos_label: For events the label that means that the event happened; for two classes the
            number or name of the positive one. Default: None (ours: 1, or the second class).
        tolerance: How far from the truth still counts as fit for use. Default: None (that of
            `Tolerance`).
        progress: Show progress on the terminal. Default: False (ours).
        kind: ``"logits"`` or ``"probs"``, if the names of the columns do not say it. Default:
            None (ours: they do).
        class_names: The names of the classes, which labels of text are matched with. Default:
            None (ours: those in the files).
        ignore_index: The label of rows that do not count. Default: None (ours: the files').
        score_columns: The score columns, as ``Predictions.read`` takes them. Default: None (ours:
            the usual names).
        label_column: The column of labels. Default: None (ours: the usual names).
        weight_column: The column of weights. Default: None (ours: ``weight``, if it is there).
        cluster_column: The column of clusters. Default: None (ours: ``cluster``, if it is there).
        event: What the one score column is the probability of. Default: None (ours: the label
            column's name).
        drop_unlabelled: Leave out rows without a label. Default: False (ours: an error).
    """
    if on not in ROUTES:
        raise InputError(f"on must be one of {', '.join(ROUTES)}, found {on!r}")
    if workers is not None and workers < 1:
        raise InputError(f"workers must be at least 1, found {workers!r}")
    check_resampling(confidence_level, resamples)
    reading = make_reading(
        kind=kind,
        class_names=class_names,
        ignore_index=ignore_index,
        score_columns=score_columns,
        label_column=label_column,
        weight_column=weight_column,
        cluster_column=cluster_column,
        event=event,
        pos_label=pos_label,
        drop_unlabelled=drop_unlabelled,
    )
    with status("listing shards", shown=progress):
        shards = path if isinstance(path, Shards) else list_shards(path)
        begin = read_first(shards, reading)
    predictions = begin.predictions
    _check_plain_rows(predictions)
    positive = choose_positive(predictions, view, _find_positive(predictions, pos_label))
    event_name = None if positive is None else name_event(predictions, positive)
    wanted = default_names(event_name, predictions) if metrics is None else metrics
    measures = choose_measures(wanted, num_bins, event=event_name)
    check_measures(measures)
    exact = shards.num_rows <= EXACT_ROWS
    if not exact and any(measure.name == "sweep_ece" for measure in measures.values()):
        raise InputError(
            f"sweep_ece cannot be computed from more than {EXACT_ROWS:,} rows in shards: it "
            "depends on single ranks; leave it out"
        )
    plan = Plan(confidence_level, resamples, seed) if intervals else None
    options = row_options(predictions, positive)
    tables, empty = _make_sums(
        predictions, measures, num_bins, plan, options, event_name, exact=exact
    )
    job = Job(reading, empty, describe(begin), options, seed)
    sums = run_pieces(job, shards.pieces, on=on, workers=workers, progress=progress)
    if sums.num_rows == 0:
        raise InputError(f"{shards.name}: no row is left: all were ignored, or had no label")
    if pos_label is not None and predictions.task == "events" and not sums.has_positive:
        raise InputError(f"the labels never have the value pos_label={pos_label!r}")
    names = predictions.class_names or tuple(str(k) for k in range(predictions.num_classes))
    filled = {state.options(): state for state in sums.states}
    whole = TableStates(*(filled.get(state.options(), state) for state in tables))  # type: ignore[arg-type]
    with status("computing figures", shown=progress), one_thread():
        judge = Judge(
            sums,
            measures,
            plan=plan,
            num_bins=num_bins,
            event=event_name,
            sample=_fill_sample(sums, measures, options),
        )
        odds = filled.get(ClassOddsState().options())
        verdict = None
        if plan is not None:
            assert odds is None or isinstance(odds, ClassOddsState)
            verdict = judge.verdict(whole, odds, names, tolerance)
        figures = judge.figures()
        tallies = judge.tallies(whole, confidence_level)
    return Evaluation(
        name=shards.name,
        num_rows=sums.num_rows,
        num_ignored=sums.num_ignored,
        num_classes=predictions.num_classes,
        kind="logits" if predictions.is_logits else "probs",
        class_names=names,
        figures=figures,
        settings={
            "num_bins": num_bins,
            "confidence_level": confidence_level,
            "resamples": resamples if intervals else 0,
            "seed": seed,
            "version": __version__,
            "dense": False,
            "shards": {
                "files": len(shards.files),
                "pieces": len(shards.pieces),
                "ranks": "exact" if exact else "cells",
            },
        },
        tallies=tallies,
        verdict=verdict,
        warnings=_list_warnings(sums, like_probabilities=begin.like_probabilities),
        task=predictions.task,
        view="top" if event_name is None else "events",
        event=event_name,
        num_clusters=None if judge.additive.clusters is None else judge.additive.num_units,
        weighted=predictions.weights is not None,
    )


def make_reading(
    *,
    kind: str | None = None,
    class_names: Sequence[str] | None = None,
    ignore_index: int | None = None,
    score_columns: str | Sequence[str] | None = None,
    label_column: str | None = None,
    weight_column: str | None = None,
    cluster_column: str | None = None,
    event: str | None = None,
    pos_label: str | int | bool | None = None,
    drop_unlabelled: bool = False,
) -> Reading:
    """Return how to read rows, from the options of `evaluate_shards`, which explains them."""
    columns = ColumnNames(
        scores=score_columns,
        label=label_column,
        weight=weight_column,
        cluster=cluster_column,
        event=event,
        pos_label=pos_label,
        drop_unlabelled=drop_unlabelled,
        class_names=class_names,
    )
    return Reading(columns=columns, kind=kind, ignore_index=ignore_index)


def _check_plain_rows(predictions: Predictions) -> None:
    if predictions.labels is None:
        raise InputError("the shards hold no labels; name their column with label_column=")


def _find_positive(predictions: Predictions, pos_label: str | int | bool | None) -> int | None:
    """Return the number of the positive class; None for events, whose labels say it."""
    if pos_label is None or predictions.task == "events":
        return None
    names = predictions.class_names or ()
    if pos_label in names:
        return names.index(str(pos_label))
    try:
        return int(pos_label)
    except ValueError:
        raise InputError(
            f"pos_label={pos_label!r:.60} is no class: give {names or 'its number'}"
        ) from None


def _make_sums(
    predictions: Predictions,
    measures: dict[str, Measure],
    num_bins: int,
    plan: Plan | None,
    options: dict[str, Any],
    event: str | None,
    *,
    exact: bool,
) -> tuple[TableStates, Sums]:
    """Make the states of the tables, and sums of no rows."""
    tables = make_table_states(num_bins)
    measure_states = [state for measure in measures.values() for state in measure.build()]
    weighted, clustered = predictions.weights is not None, predictions.clusters is not None
    units = None
    if weighted or clustered:
        units = UnitSums(num_bins, clustered, 0 if plan is None else plan.seed)
    plain = units is None
    odds: list[State] = [ClassOddsState()] if plan is not None and event is None and plain else []
    shared = share_states([*tables, *measure_states, *odds])
    states = [state for state in shared.values() if not isinstance(state, RankState)]
    extra = {state.quantity for state in measure_states if isinstance(state, MeanState)}
    extra -= {*FIRST_MOMENTS}
    sample = None
    width = predictions.num_classes
    of_classes = any(isinstance(state, ClassBinState) for state in measure_states)
    if plain and plan is not None and of_classes and width <= MOST_CELLS // 100:
        sample = RowSample(max(100, min(_SAMPLED, _SAMPLED_VALUES // width)), plan.seed + 1)
    return tables, Sums(
        states,
        MomentState((*FIRST_MOMENTS, *sorted(extra))),
        (ScoreRuns if exact else ScoreCells)(weighted),
        units,
        sample,
    )


def _fill_sample(
    sums: Sums, measures: dict[str, Measure], options: dict[str, Any]
) -> list[ClassCellState]:
    """Return the cells of the classes of the sample, or none."""
    if sums.sample is None or sums.sample.scores is None or sums.sample.labels is None:
        return []
    measure_states = [state for measure in measures.values() for state in measure.build()]
    number = next(state.num_bins for state in measure_states if isinstance(state, ClassBinState))
    cells = ClassCellState(number)
    for block in blocks(sums.sample.scores, sums.sample.labels, **options):
        cells.update(block)
    return [cells]


def _list_warnings(sums: Sums, *, like_probabilities: bool) -> tuple[str, ...]:
    warnings = [LIKE_PROBABILITIES] if like_probabilities else []
    if sums.num_dropped:
        warnings.append(f"left out {sums.num_dropped:,} rows without a label")
    return tuple(warnings)
