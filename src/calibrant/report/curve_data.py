"""The curves of an evaluation as the page's scripts draw them: few points, short numbers."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from calibrant.evaluation import curves
from calibrant.report import formatting

if TYPE_CHECKING:
    from calibrant.evaluation import Evaluation

SCALES: tuple[curves.Scale, ...] = ("linear", "log")
_POINTS = 150  # of a curve, by rows and by probability


def make_curves(evaluation: Evaluation, like: Evaluation | None = None) -> dict[str, Any] | None:
    """Return the numbers of every curve, as values that JSON can hold; None without cells.

    Args:
        evaluation: The evaluation.
        like: The evaluation whose scale and bins are used. Default: None (ours: its own).
    """
    cells = evaluation.tallies.cells
    first = cells if like is None else like.tallies.cells
    if cells is None or first is None:
        return None
    level = formatting.level_share(evaluation.settings)
    corp = curves.prepare_corp(cells, level=level)
    kernel = curves.prepare_kernel(cells)
    size = evaluation.settings.get("num_bins", 15)
    floor = curves.find_floor(first)
    result: dict[str, Any] = {
        "scale": curves.choose_scale(first),
        "floor": floor,
        "means": _round_all([cells.mean_probability, cells.mean_frequency]),
        "clustered": cells.excess is not None,
        "corp": _make_points(corp.probability, corp.frequency, corp.low, corp.high, cells=cells),
        "kernel": _make_kernel(kernel, cells),
        "bandwidth": round_number(kernel.bandwidth),
        "bins": {},
        "histogram": {},
    }
    for scale in SCALES:
        table = curves.prepare_bins(cells, num_bins=size, scale=scale, floor=floor, level=level)
        result["bins"][scale] = [_round_all(row) for row in table.to_numpy()]
        parts = curves.prepare_distribution(cells, scale=scale, floor=floor)
        result["histogram"][scale] = [_round_all(part) for part in parts]
    if evaluation.view == "events":
        decisions = curves.prepare_decision(cells)
        columns = ["threshold", "net_benefit", "treat_all", "treated"]
        result["decision"] = [_round_all(row) for row in decisions[columns].to_numpy()]
    return result


def _make_points(
    probability: NDArray[np.float64], *values: NDArray[np.float64], cells: curves.Cells
) -> list[list[Any]]:
    """Return points of a curve, dense where rows are and along both scales."""
    share = np.cumsum(cells.weight) / cells.weight.sum()
    low = max(float(probability[0]), 1e-7)
    wanted = (
        np.searchsorted(share, np.linspace(0, 1, _POINTS)),
        np.searchsorted(probability, np.linspace(0, 1, _POINTS)),
        np.searchsorted(probability, np.logspace(np.log10(low), 0, _POINTS)),
        [0, len(probability) - 1],
    )
    chosen = np.unique(np.clip(np.concatenate(wanted), 0, len(probability) - 1)).astype(int)
    return [_round_all(row) for row in np.stack((probability, *values), axis=1)[chosen]]


def _make_kernel(curve: curves.KernelCurve, cells: curves.Cells) -> list[list[Any]]:
    """Return points of the kernel curve: probability, frequency, density."""
    shown = np.flatnonzero(curves.find_supported(curve, cells, "linear"))
    if not len(shown):
        return []
    chosen = np.unique(np.linspace(shown[0], shown[-1], 2 * _POINTS).astype(int))
    chosen = chosen[np.isin(chosen, shown)]
    parts = (curve.probability, curve.frequency, curve.density)
    return [_round_all(row) for row in np.stack(parts, axis=1)[chosen]]


def _round_all(values: Any) -> list[Any]:
    return [round_number(float(value)) for value in values]


def round_number(value: float) -> float | int | str | None:
    """Round to five significant digits; NaN becomes None, and infinity a string."""
    if math.isnan(value):
        return None
    if math.isinf(value):
        return "inf" if value > 0 else "-inf"
    short = float(f"{value:.5g}")
    return int(short) if short.is_integer() else short
