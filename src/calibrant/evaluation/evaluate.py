"""`evaluate`: one pass over the predictions gives figures, intervals, tables and a verdict."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from calibrant._version import __version__
from calibrant.core.errors import InputError
from calibrant.core.progress import progress_bar, status
from calibrant.evaluation.bootstrap import make_row_states, share_states
from calibrant.evaluation.groups.files import check_groups
from calibrant.evaluation.groups.judge import judge_groups
from calibrant.evaluation.groups.leakage import find_leakage
from calibrant.evaluation.groups.value import add_groups
from calibrant.evaluation.intervals import (
    GAP,
    Plan,
    count_infinite,
    estimate_coupling,
    figure_intervals,
    has_few,
    make_cell_states,
    row_gaps,
)
from calibrant.evaluation.inversion import Interval, chance_level, invert
from calibrant.evaluation.value import Evaluation, Figure, Tallies
from calibrant.evaluation.verdict import Verdict, calibration_test, conclude
from calibrant.functional.arrays import Array
from calibrant.functional.blocks import warn_of_probabilities
from calibrant.metrics.base import Measure, State, compute_all
from calibrant.metrics.classwise import ClassBinState
from calibrant.metrics.means import ClassMeanState, MeanState, PredictedState, RowState
from calibrant.metrics.rank_state import RankState
from calibrant.metrics.registry import label_of
from calibrant.metrics.registry import measure as get_measure
from calibrant.metrics.selective import risk_coverage_curve
from calibrant.metrics.toplabel import BinState, binned_error
from calibrant.predictions import Predictions

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
) -> Evaluation:
    """Evaluate how far a classifier's probabilities can be believed.

    Args:
        predictions: The scores with their labels.
        metrics: Names of metrics (``calibrant.metrics.available()`` lists them), or a mapping
            from names to options; the twelve of ``DEFAULT_METRICS`` if None.
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
            "Predictions.from_logits(...), .from_probs(...), .from_model(...) or .read(...)"
        )
    if not 0 < confidence_level < 1:
        raise InputError(f"confidence_level must lie in (0, 1), found {confidence_level!r}")
    if resamples < 100:
        raise InputError(f"resamples must be at least 100, found {resamples!r}")
    group_values = None if groups is None else check_groups(groups, predictions, group_name)
    measures = choose_measures(metrics, num_bins)
    plan = Plan(confidence_level, resamples, seed)
    tables = _make_table_states(num_bins)
    states = {name: measure.build() for name, measure in measures.items()}
    by_row = {n: m for n, m in measures.items() if m.kind in ("mean", "selective")}
    row_states = make_row_states(by_row, classes=False) if intervals else {}
    size = int(np.prod(predictions.scores.shape))
    cell_states = make_cell_states(measures.values(), size) if intervals else []
    loss = RowState("nll")
    own = [state for several in states.values() for state in several]
    losses = [loss] if group_values else []
    shared = share_states([*tables, *cell_states, *losses, *row_states.values(), *own])
    numbers = compute_all(
        list(measures.values()),
        _read_batches(predictions, progress),
        from_logits=predictions.is_logits,
        ignore_index=predictions.ignore_index,
        extra=list(shared.values()),
    )
    num_rows = int(tables.accuracy.total("totals")[0])
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
                estimate_coupling(cell_states),
            )
        verdict = _make_verdict(tables, bounds[GAP], plan, predictions.is_dense)
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
            )
        verdict = verdict and add_groups(verdict, by_group)
        leaks = find_leakage(group_values, predictions, tables.ranks)
    return Evaluation(
        name=predictions.name,
        num_rows=num_rows,
        num_ignored=int(np.prod(predictions.labels.shape)) - num_rows,
        num_classes=predictions.num_classes,
        kind="logits" if predictions.is_logits else "probs",
        class_names=predictions.class_names
        or tuple(str(k) for k in range(predictions.num_classes)),
        figures={
            name: _make_figure(name, value, bounds.get(name), measures[name], filled[name][0])
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
        tallies=_make_tallies(tables, num_bins),
        verdict=verdict,
        groups=by_group,
        warnings=(*_find_doubts(predictions), *leaks),
    )


def choose_measures(metrics: Wanted | None, num_bins: int) -> dict[str, Measure]:
    """Make measures by name; those that bin get ``num_bins`` unless their options have it."""
    wanted = DEFAULT_METRICS if metrics is None else metrics
    if isinstance(wanted, str):
        wanted = (wanted,)
    options = wanted if isinstance(wanted, Mapping) else {name: {} for name in wanted}
    if not options:
        raise InputError("metrics is empty; name at least one metric, or leave metrics out")
    measures = {}
    for name, given in options.items():
        if name in ("ood_auroc", "fpr95"):
            raise InputError(
                f"{name} compares in- with out-of-distribution rows, not classes: call "
                f"calibrant.metrics.{name}(preds, target) with labels 1 and 0"
            )
        binned = {"num_bins": num_bins} if name in _BINNED else {}
        measures[name] = get_measure(name, **{**binned, **given})
    return measures


def _read_batches(predictions: Predictions, progress: bool) -> Iterator[tuple[Array, Array | None]]:
    """Yield scores and labels, with a progress bar if asked for."""
    with progress_bar("reading predictions", len(predictions), shown=progress) as advance:
        for preds, target in predictions.batches():
            yield preds, target
            advance(len(preds))


def _find_doubts(predictions: Predictions) -> tuple[str, ...]:
    """Return a warning if the logits look like probabilities.

    Whoever made or read the predictions saw the warning then; a reader of the result did not.
    """
    if not predictions.is_logits:
        return ()
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        some = next(iter(predictions.batches()))[0] if predictions.is_lazy else predictions.array
        seen.clear()
        warn_of_probabilities(some, stacklevel=2)
    return (LIKE_PROBABILITIES,) if seen else ()


def _make_figure(
    name: str, value: float, interval: Interval | None, measure: Measure, state: State
) -> Figure:
    low, high, corrected, note = None, None, None, None
    if interval is not None:
        low, high, corrected = interval.low, interval.high, interval.estimate
    if number := count_infinite(state):
        note = f"{number:,} row{'s' if number > 1 else ''} gave the true class probability 0"
    elif measure.kind == "calibration" and high is not None and value > high:
        note = "chance adds to the plug-in value; the interval is that of the true error"
    elif name == "coverage_at_risk" and low == 0 < value:
        note = "too few rows to show that any share at all can be accepted at this risk"
    label = label_of(name)
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


def _make_table_states(num_bins: int) -> TableStates:
    return TableStates(
        BinState(num_bins),
        RankState(),
        ClassBinState(num_bins),
        ClassMeanState("nll"),
        ClassMeanState("correct"),
        PredictedState(),
        MeanState("correct"),
    )


def _make_tallies(tables: TableStates, num_bins: int) -> Tallies:
    def array(value: Tensor) -> Any:
        return value.detach().cpu().double().numpy()

    ranked = tables.ranks.rank_rows()
    mass = array(tables.ranks.mass_totals(num_bins))
    ends = np.cumsum(np.rint(mass[:, 0])).astype(np.int64)
    # A bin's upper edge is the confidence of its last row; the first bin begins at 0.
    group = torch.searchsorted(ranked.bounds, torch.from_numpy(ends).to(ranked.bounds.device))
    mass_edges = np.concatenate(([0.0], array(ranked.score[group - 1])))
    mass_edges[-1] = 1.0
    count, risk, threshold = (array(v) for v in risk_coverage_curve(ranked))
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


def _make_verdict(tables: TableStates, gap: Interval, plan: Plan, dense: bool) -> Verdict:
    widest = max(abs(gap.low), abs(gap.high)) if has_few(tables.ranks) else 0.0
    cells = tables.bins.total("totals")
    drawing: dict[str, Any] = {"resamples": plan.resamples, "seed": plan.seed}
    error = invert(cells, binned_error, level=plan.level, **drawing)
    verdict = conclude(
        num_rows=tables.ranks.rank_rows().num_rows,
        accuracy=float(tables.accuracy.mean()),
        gap=float(row_gaps(tables.ranks).mean()),
        gap_low=gap.low,
        gap_high=gap.high,
        ece=float(binned_error(cells)),
        ece_low=error.low,
        ece_high=max(error.high, widest),
        p_value=calibration_test(tables.ranks, **drawing),
        chance_ece=chance_level(cells, binned_error, **drawing),
        level=plan.level,
    )
    if not dense:
        return verdict
    caution = (
        "Every pixel counts here as a row of its own; neighbouring pixels are alike, so the "
        "intervals are narrower and the p-value smaller than they should be."
    )
    return replace(verdict, sentences=(*verdict.sentences, caution))
