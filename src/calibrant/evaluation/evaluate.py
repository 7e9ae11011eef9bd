"""`evaluate`: one pass over the predictions, every figure, interval, table and a verdict."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from torch import Tensor

from calibrant._version import __version__
from calibrant.evaluation.bootstrap import affordable, kept_states
from calibrant.evaluation.group_doubts import doubts_of_groups
from calibrant.evaluation.group_files import as_groups
from calibrant.evaluation.grouping import by_group
from calibrant.evaluation.groups import told_of_groups
from calibrant.evaluation.hypothesis import calibration_test
from calibrant.evaluation.intervals import (
    Plan,
    calibration_interval,
    cell_states,
    coupling_of,
    half_samples,
    normal_interval,
    row_intervals,
)
from calibrant.evaluation.inversion import chance_level, invert
from calibrant.evaluation.measures import Wanted, choose_measures
from calibrant.evaluation.passing import batches, doubts, status
from calibrant.evaluation.tables import TableStates, table_states, tally
from calibrant.evaluation.value import Evaluation, Figure, Verdict
from calibrant.evaluation.verdict import conclude
from calibrant.functional.errors import InputError
from calibrant.functional.proportions import wilson
from calibrant.metrics.base import Measure, State, compute_all
from calibrant.metrics.binned import binned_error
from calibrant.metrics.means import MeanState, RowState
from calibrant.metrics.ranked import RankState
from calibrant.metrics.registry import METRICS, measure
from calibrant.predictions import Predictions

GAP = "confidence − accuracy"  # resampled with the rest, for the verdict
_FEW_ROWS, _FEW_OF_A_KIND = 30, 10  # below which resampling says too little


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
    """Ask how far a classifier's probabilities can be believed.

    ``metrics`` are canonical names (``calibrant.metrics.available()`` lists them), or a
    mapping from names to options; by default the twelve of ``DEFAULT_METRICS``. With
    ``intervals=False`` only the figures and tables are computed, in one pass, and there is
    no verdict. Everything random follows from ``seed``.

    ``groups`` has a value for each row (or image): the figures are then also those of every
    group (``Evaluation.groups``), and the verdict names the worst. ``group_name`` is what they
    are groups by, if not by the name of a Series. `calibrant.evaluation.read_groups` reads them
    from a file, name and all.

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
    grouped = None if groups is None else as_groups(groups, predictions, group_name)
    measures = choose_measures(metrics, num_bins)
    plan = Plan(confidence_level, resamples, seed)
    tables = table_states(num_bins)
    built = {name: one.build() for name, one in measures.items()}
    by_row = {n: one for n, one in measures.items() if one.kind in ("mean", "selective")}
    kept = kept_states(by_row, classes=False) if intervals else {}
    size = int(np.prod(predictions.scores.shape))
    cells = cell_states(measures.values(), size) if intervals else []
    losses = [RowState("nll")] if grouped else []
    shared: dict[tuple[Any, ...], State] = {}
    for state in (
        *tables,
        *cells,
        *losses,
        *kept.values(),
        *(s for states in built.values() for s in states),
    ):
        shared.setdefault(state.options(), state)
    values = compute_all(
        list(measures.values()),
        batches(predictions, progress),
        from_logits=predictions.is_logits,
        ignore_index=predictions.ignore_index,
        extra=list(shared.values()),
    )
    num_rows = int(tables.accuracy.total("totals")[0])
    own = {name: [shared[s.options()] for s in states] for name, states in built.items()}
    kept = {name: shared[state.options()] for name, state in kept.items()}
    figured = dict(zip(measures, (float(value) for value in values), strict=True))
    found = {}
    if intervals:
        with status("computing intervals", progress):
            found = _intervals(
                measures,
                figured,
                own,
                kept,
                tables.ranks,
                predictions,
                plan,
                coupling_of(cells),
            )
    figures = {
        name: _figure(name, value, found.get(name), measures[name], own[name])
        for name, value in figured.items()
    }
    verdict = _verdict(tables, found, plan, predictions.is_dense) if intervals else None
    by_groups = None
    if grouped is not None:
        with status("judging groups", progress):
            loss = shared[losses[0].options()]
            assert isinstance(loss, RowState)
            how: dict[str, Any] = {"num_bins": num_bins, "plan": plan if intervals else None}
            by_groups = by_group(grouped, predictions, tables.ranks, loss, **how)
        verdict = verdict and told_of_groups(verdict, by_groups)
    total_rows = int(np.prod(predictions.labels.shape))
    return Evaluation(
        name=predictions.name,
        num_rows=num_rows,
        num_ignored=total_rows - num_rows,
        num_classes=predictions.num_classes,
        kind="logits" if predictions.is_logits else "probs",
        class_names=predictions.class_names
        or tuple(str(k) for k in range(predictions.num_classes)),
        figures=figures,
        settings={
            "num_bins": num_bins,
            "confidence_level": confidence_level,
            "resamples": resamples if intervals else 0,
            "seed": seed,
            "version": __version__,
            "dense": predictions.is_dense,
        },
        tallies=tally(tables, num_bins),
        verdict=verdict,
        groups=by_groups,
        warnings=(*doubts(predictions), *doubts_of_groups(grouped, predictions, tables.ranks)),
    )


def _intervals(
    measures: dict[str, Measure],
    values: dict[str, float],
    own: dict[str, list[State]],
    kept: dict[str, State],
    ranks: RankState,
    predictions: Predictions,
    plan: Plan,
    coupling: float,
) -> dict[str, tuple[float, float, float | None]]:
    """(low, high, corrected) of each figure that has an interval, and of the gap."""
    found: dict[str, tuple[float, float, float | None]] = {}
    gap = RowState(GAP)
    gap.rows.append(_gap(ranks))
    rows: dict[str, State] = {GAP: gap}
    others: dict[str, Measure] = {}
    for name, one in measures.items():
        if one.kind == "calibration":
            interval = calibration_interval(one, own[name][0], plan, coupling)
            found[name] = (interval.low, interval.high, interval.estimate)
        elif name not in kept:
            others[name] = one
        elif not _infinite(own[name][0]):
            rows[name] = kept[name]
    by_row = {**measures, GAP: measure("accuracy")}
    for name, (low, high) in row_intervals(by_row, rows, ranks.ranked().num_rows, plan).items():
        found[name] = (low, high, None)
    _widen_for_few(found, ranks, plan)
    if others and predictions.num_rows > 1:
        held = predictions.in_memory()
        halves = half_samples(
            list(others.values()),
            [lambda index: (held.array[index], held.labels[index])],
            held.num_rows,
            draws=min(200, affordable(held.num_rows, plan.resamples)),
            seed=plan.seed,
            options=[{"from_logits": held.is_logits, "ignore_index": held.ignore_index}],
        )
        for column, name in enumerate(others):
            found[name] = (*normal_interval(values[name], halves[:, 0, column], plan.level), None)
    return found


def _widen_for_few(
    found: dict[str, tuple[float, float, float | None]], ranks: RankState, plan: Plan
) -> None:
    """Of few rows resamples say too little: the accuracy's own interval bounds the gap.

    A calibration error is no smaller than the gap between mean confidence and accuracy.
    """
    if not _too_few(ranks):
        return
    count = ranks.ranked().num_rows
    right = float((~ranks.joined("losses")).sum())
    confidence = float(_gap(ranks).mean()) + right / count
    low, high = wilson(np.array([right / count]), np.array([float(count)]), plan.level)
    before = found.get(GAP, (1.0, -1.0, None))  # a single row has none
    ends = min(before[0], confidence - float(high[0])), max(before[1], confidence - float(low[0]))
    found[GAP] = (*ends, None)
    for name in ("ece", "adaptive_ece", "ks_error", "smooth_ece", "sweep_ece"):
        if name in found:
            least, most, estimate = found[name]
            found[name] = (least, max(most, *map(abs, ends)), estimate)


def _too_few(ranks: RankState) -> bool:
    """Few rows, or few that are right, or wrong: no resample of none holds one."""
    count, wrong = ranks.ranked().num_rows, int(ranks.joined("losses").sum())
    return count < _FEW_ROWS or min(wrong, count - wrong) < _FEW_OF_A_KIND


def _infinite(state: State) -> int:
    """How many rows were infinite: then a mean has no interval."""
    return state.infinite() if isinstance(state, MeanState) else 0


def _figure(
    name: str,
    value: float,
    interval: tuple[float, float, float | None] | None,
    one: Measure,
    states: list[State],
) -> Figure:
    note = None
    low, high, corrected = interval or (None, None, None)
    if number := _infinite(states[0]):
        note = f"{number:,} row{'s' if number > 1 else ''} gave the true class probability 0"
    elif one.kind == "calibration" and high is not None and value > high:
        note = "chance adds to the plug-in value; the interval is that of the true error"
    elif name == "coverage_at_risk" and low == 0 < value:
        note = "too few rows to show that any share at all can be accepted at this risk"
    label = METRICS[name].label
    return Figure(name, label, value, low, high, corrected, one.better, note)


def _gap(ranks: RankState) -> Tensor:
    """Confidence less correctness of each row."""
    return ranks.joined("scores").double() - (~ranks.joined("losses")).double()


def _verdict(
    tables: TableStates,
    found: dict[str, tuple[float, float, float | None]],
    plan: Plan,
    dense: bool,
) -> Verdict:
    gap = found[GAP]
    num_rows = tables.ranks.ranked().num_rows
    widest = max(map(abs, gap[:2])) if _too_few(tables.ranks) else 0.0
    cells = tables.bins.total("totals")
    drawing: dict[str, Any] = {"resamples": plan.resamples, "seed": plan.seed}
    error = invert(cells, binned_error, level=plan.level, **drawing)
    verdict = conclude(
        num_rows=num_rows,
        accuracy=float(tables.accuracy.mean()),
        gap=float(_gap(tables.ranks).mean()),
        gap_low=gap[0],
        gap_high=gap[1],
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
