"""`evaluate`: one pass over the predictions, every figure, interval, table and a verdict."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from calibrant._version import __version__
from calibrant.evaluation.bootstrap import affordable, percentiles
from calibrant.evaluation.hypothesis import calibration_test
from calibrant.evaluation.intervals import (
    Plan,
    calibration_interval,
    recompute,
    row_intervals,
)
from calibrant.evaluation.inversion import chance_level
from calibrant.evaluation.value import Evaluation, Figure, Tallies, Verdict
from calibrant.evaluation.verdict import conclude
from calibrant.functional.blocks import Array
from calibrant.functional.errors import InputError
from calibrant.metrics.base import Measure, State, compute_all
from calibrant.metrics.binned import BinState, binned_error
from calibrant.metrics.classwise import ClassBinState
from calibrant.metrics.means import ClassMeanState, MeanState, PredictedState, RowState
from calibrant.metrics.ranked import RankState
from calibrant.metrics.registry import METRICS, measure
from calibrant.metrics.selective import accepted
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


class _TableStates(NamedTuple):
    """The states that tables and verdict are made from."""

    bins: BinState
    ranks: RankState
    class_bins: ClassBinState
    nll: ClassMeanState
    correct: ClassMeanState
    predicted: PredictedState
    accuracy: MeanState


def evaluate(
    predictions: Predictions,
    *,
    metrics: Wanted | None = None,
    num_bins: int = 15,
    intervals: bool = True,
    confidence_level: float = 0.95,
    resamples: int = 1000,
    seed: int = 0,
    progress: bool = False,
) -> Evaluation:
    """Ask how far a classifier's probabilities can be believed.

    ``metrics`` are canonical names (``calibrant.metrics.available()`` lists them), or a
    mapping from names to options; by default the twelve of ``DEFAULT_METRICS``. With
    ``intervals=False`` only the figures and tables are computed, in one pass, and there is
    no verdict. Everything random follows from ``seed``.

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
    measures = _measures(metrics, num_bins)
    plan = Plan(confidence_level, resamples, seed)
    tables = _TableStates(
        BinState(num_bins),
        RankState(),
        ClassBinState(num_bins),
        ClassMeanState("nll"),
        ClassMeanState("correct"),
        PredictedState(),
        MeanState("correct"),
    )
    built = {name: one.build() for name, one in measures.items()}
    rows = {
        states[0].quantity: RowState(states[0].quantity)
        for name, states in built.items()
        if intervals and measures[name].kind == "mean" and isinstance(states[0], MeanState)
    }
    shared: dict[tuple[Any, ...], State] = {}
    for state in (*tables, *rows.values(), *(s for states in built.values() for s in states)):
        shared.setdefault(state.options(), state)
    values = compute_all(
        list(measures.values()),
        _batches(predictions, progress),
        from_logits=predictions.is_logits,
        ignore_index=predictions.ignore_index,
        extra=list(shared.values()),
    )
    num_rows = int(tables.accuracy.total("totals")[0])
    own = {name: [shared[s.options()] for s in states] for name, states in built.items()}
    found = _intervals(measures, own, rows, predictions, plan) if intervals else {}
    figures = {
        name: _figure(name, float(value), found.get(name), measures[name], own[name])
        for (name, value) in zip(measures, values, strict=True)
    }
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
        tallies=_tallies(tables, num_bins),
        verdict=_verdict(tables, plan, predictions.is_dense) if intervals else None,
    )


def _measures(metrics: Wanted | None, num_bins: int) -> dict[str, Measure]:
    wanted = DEFAULT_METRICS if metrics is None else metrics
    if isinstance(wanted, str):
        wanted = (wanted,)
    options = wanted if isinstance(wanted, Mapping) else {name: {} for name in wanted}
    if not options:
        raise InputError("no metrics were asked for; name at least one, or leave them out")
    made = {}
    for name, given in options.items():
        chosen = dict(given)
        if name in _BINNED:
            chosen.setdefault("num_bins", num_bins)
        made[name] = measure(name, **chosen)
    return made


_BINNED = {
    "ece",
    "mce",
    "adaptive_ece",
    "classwise_ece",
    "marginal_ece",
    "debiased_ece",
    "brier_calibration",
    "brier_refinement",
}


def _batches(predictions: Predictions, progress: bool) -> Iterator[tuple[Array, Array | None]]:
    if not progress:
        yield from predictions.batches()
        return
    from rich.console import Console
    from rich.progress import Progress

    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("reading predictions", total=len(predictions))
        for preds, target in predictions.batches():
            yield preds, target
            bar.advance(task, len(preds))


def _intervals(
    measures: dict[str, Measure],
    own: dict[str, list[State]],
    rows: dict[str, RowState],
    predictions: Predictions,
    plan: Plan,
) -> dict[str, tuple[float, float, float | None]]:
    """(low, high, corrected) of each figure that has an interval."""
    found: dict[str, tuple[float, float, float | None]] = {}
    means: dict[str, Tensor] = {}
    selective: dict[str, tuple[Measure, RankState]] = {}
    others: dict[str, Measure] = {}
    for name, one in measures.items():
        state = own[name][0]
        if one.kind == "calibration":
            interval = calibration_interval(one, state, plan)
            found[name] = (interval.low, interval.high, interval.estimate)
        elif one.kind == "mean" and isinstance(state, MeanState):
            values = rows[state.quantity].joined("rows")
            if bool(torch.isfinite(values).all()):
                means[name] = values
        elif one.kind == "selective" and isinstance(state, RankState):
            selective[name] = (one, state)
        else:
            others[name] = one
    for name, (low, high) in row_intervals(means, selective, plan).items():
        found[name] = (low, high, None)
    if others:
        held = predictions.in_memory()
        draws = recompute(
            list(others.values()),
            [lambda index: (held.scores[index], held.labels[index])],  # type: ignore[index]
            held.num_rows,
            resamples=min(200, affordable(held.num_rows, plan.resamples)),
            seed=plan.seed,
            options=[{"from_logits": held.is_logits, "ignore_index": held.ignore_index}],
        )
        for column, name in enumerate(others):
            found[name] = (*percentiles(draws[:, 0, column], plan.level), None)
    return found


def _figure(
    name: str,
    value: float,
    interval: tuple[float, float, float | None] | None,
    one: Measure,
    states: list[State],
) -> Figure:
    note = None
    low, high, corrected = interval or (None, None, None)
    if isinstance(states[0], MeanState) and states[0].infinite():
        number = states[0].infinite()
        note = f"{number:,} row{'s' if number > 1 else ''} gave the true class probability 0"
    elif high is not None and value > high:
        note = "chance adds to the plug-in value; the interval is that of the true error"
    label = METRICS[name].label
    return Figure(name, label, value, low, high, corrected, one.better, note)


def _tallies(tables: _TableStates, num_bins: int) -> Tallies:
    def array(value: Tensor) -> Any:
        return value.detach().cpu().double().numpy()

    ranked = tables.ranks.ranked()
    mass = array(tables.ranks.mass_totals(num_bins))
    ends = np.cumsum(np.rint(mass[:, 0])).astype(np.int64)
    # A bin's edge is the confidence of its last row; the first begins at 0.
    group = torch.searchsorted(ranked.bounds, torch.from_numpy(ends).to(ranked.bounds.device))
    mass_edges = np.concatenate(([0.0], array(ranked.score[group - 1])))
    mass_edges[-1] = 1.0
    count, risk, threshold = (array(v) for v in accepted(ranked))
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


def _verdict(tables: _TableStates, plan: Plan, dense: bool) -> Verdict:
    confidence = tables.ranks.joined("scores").double().cpu()
    correct = (~tables.ranks.joined("losses")).double().cpu()
    found = row_intervals({"gap": confidence - correct}, {}, plan)["gap"]
    cells = tables.bins.total("totals")
    interval = _top_label_interval(cells, plan)
    verdict = conclude(
        num_rows=len(confidence),
        accuracy=float(correct.mean()),
        gap=float((confidence - correct).mean()),
        gap_low=found[0],
        gap_high=found[1],
        ece=interval,
        p_value=calibration_test(tables.ranks, resamples=plan.resamples, seed=plan.seed),
        chance_ece=chance_level(cells, binned_error, resamples=plan.resamples, seed=plan.seed),
        level=plan.level,
    )
    if not dense:
        return verdict
    caution = (
        "Every pixel counts here as a row of its own; neighbouring pixels are alike, so the "
        "intervals are narrower and the p-value smaller than they should be."
    )
    from dataclasses import replace

    return replace(verdict, sentences=(*verdict.sentences, caution))


def _top_label_interval(cells: Tensor, plan: Plan) -> Figure:
    from calibrant.evaluation.inversion import invert

    found = invert(cells, binned_error, level=plan.level, resamples=plan.resamples, seed=plan.seed)
    value = float(binned_error(cells))
    return Figure("ece", METRICS["ece"].label, value, found.low, found.high, found.estimate)
