"""Top-label calibration errors: is a prediction right as often as its confidence says?"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from calibrant.functional.binning import check_bins
from calibrant.functional.blocks import Array
from calibrant.functional.smoothing import smooth_calibration_error
from calibrant.metrics import ranked
from calibrant.metrics.base import Measure, State, calibration_measure, choice, compute_one
from calibrant.metrics.binned import (
    BinState,
    binned_error,
    chance_error,
    check_order,
    debiased_error,
)
from calibrant.metrics.ranked import RankState, label_binned_error, sweep_bins


def _cells(binning: str, num_bins: int) -> tuple[Callable[[], State], Callable[[Any], Tensor]]:
    """The state of a binning, and how (M, 3) cells are had from it."""
    check_bins(num_bins)
    if choice("binning", binning, ("width", "mass")) == "width":
        return partial(BinState, num_bins), lambda state: state.total("totals")
    return RankState, lambda state: state.mass_totals(num_bins)


def ece_measure(
    *, num_bins: int = 15, order: float = 1, binning: str = "width", form: str = "bin"
) -> Measure:
    """Expected calibration error."""
    order = check_order(order)
    cells = _cells(binning, num_bins)
    if choice("form", form, ("bin", "label")) == "bin":
        return calibration_measure("ece", *cells, partial(binned_error, order=order))

    def label_form(state: RankState) -> Tensor:
        return label_binned_error(state, num_bins, order, binning)

    return Measure("ece", (RankState,), label_form)


def mce_measure(*, num_bins: int = 15, binning: str = "width") -> Measure:
    """Maximum calibration error."""
    error = partial(binned_error, order=float("inf"))
    return calibration_measure("mce", *_cells(binning, num_bins), error)


def adaptive_ece_measure(*, num_bins: int = 15, order: float = 1) -> Measure:
    """ECE with bins of equal mass."""
    error = partial(binned_error, order=check_order(order))
    return calibration_measure("adaptive_ece", *_cells("mass", num_bins), error)


def debiased_ece_measure(*, num_bins: int = 15, order: float = 2, binning: str = "mass") -> Measure:
    """ECE less its upward bias."""
    return calibration_measure(
        "debiased_ece",
        *_cells(binning, num_bins),
        partial(debiased_error, order=order),
        population=partial(binned_error, order=order),
    )


def chance_ece_measure(*, num_bins: int = 15) -> Measure:
    """The ECE that perfect calibration would show."""
    state, cells = _cells("width", num_bins)
    return Measure("chance_ece", (state,), lambda seen: chance_error(cells(seen)), "neither")


def _fine(state: RankState) -> Tensor:
    return state.mass_totals(ranked.FINE)


def ks_error_measure() -> Measure:
    """Kolmogorov–Smirnov calibration error."""
    return calibration_measure(
        "ks_error", RankState, _fine, ranked.ks_of_cells, compute=ranked.ks_error
    )


def sweep_ece_measure(*, order: float = 2) -> Measure:
    """ECE with as many equal-mass bins as keep accuracy monotone."""
    order = check_order(order)

    def compute(state: RankState) -> Tensor:
        return binned_error(state.mass_totals(sweep_bins(state)), order)

    def error(totals: Tensor) -> Tensor:
        return torch.stack([compute(ranked.from_cells(one)) for one in totals])

    # What the sweep estimates is the error itself, not that of the bins it happens to take.
    population = partial(binned_error, order=order)
    return calibration_measure(
        "sweep_ece", RankState, _fine, error, population=population, compute=compute
    )


def smooth_ece_measure() -> Measure:
    """Smooth calibration error."""

    def compute(state: RankState) -> Tensor:
        rows = state.ranked()
        right = rows.bounds.double() - rows.values
        residual = (rows.scores - right).diff() / rows.num_rows
        value = smooth_calibration_error(rows.score.cpu().numpy(), residual.cpu().numpy())
        return torch.as_tensor(value, dtype=torch.float64, device=rows.bounds.device)

    def error(totals: Tensor) -> Tensor:
        # Simulated sets: a coarser grid, all sets at once; their cells have the same scores.
        count, confidence, correct = (each.numpy() for each in totals.unbind(-1))
        score = confidence.sum(0) / np.maximum(count.sum(0), 1.0)
        residual = (confidence - correct) / count.sum(-1, keepdims=True)
        value = smooth_calibration_error(score, residual, count=512, tolerance=1e-5)
        return torch.from_numpy(value)

    return calibration_measure("smooth_ece", RankState, _fine, error, compute=compute)


def ece(
    preds: Array,
    target: Array,
    *,
    num_bins: int = 15,
    order: float = 1,
    binning: str = "width",
    form: str = "bin",
    from_logits: bool = True,
    ignore_index: int | None = None,
) -> Any:
    """Expected calibration error of order p, top label.

    ``form="bin"``: (Σ_j S_j/N |A_j − C_j|^p)^(1/p), soft-calibration eq. 6, with S_j rows,
    accuracy A_j and mean confidence C_j in bin j. ``form="label"``:
    (1/N Σ_i |A_b(i) − c_i|^p)^(1/p), eq. 7, never smaller. Bins are ``"width"`` (equal
    width, streams) or ``"mass"`` (equal mass, keeps confidences; rows tied in confidence
    share their mean). The plug-in value is biased upward: see ``debiased_ece`` and the
    intervals of ``calibrant.evaluate``.

    >>> import torch
    >>> logits = torch.tensor([[2.0, 0.0], [2.0, 0.0], [0.0, 2.0], [2.0, 0.0]])
    >>> round(ece(logits, torch.tensor([0, 0, 1, 1])).item(), 4)  # sure .8808, right .75
    0.1308
    """
    measure = ece_measure(num_bins=num_bins, order=order, binning=binning, form=form)
    return compute_one(measure, preds, target, from_logits=from_logits, ignore_index=ignore_index)


def mce(
    preds: Array,
    target: Array,
    *,
    num_bins: int = 15,
    binning: str = "width",
    from_logits: bool = True,
    ignore_index: int | None = None,
) -> Any:
    """Maximum calibration error: the largest |A_j − C_j| of a bin that holds any row."""
    measure = mce_measure(num_bins=num_bins, binning=binning)
    return compute_one(measure, preds, target, from_logits=from_logits, ignore_index=ignore_index)


def adaptive_ece(
    preds: Array,
    target: Array,
    *,
    num_bins: int = 15,
    order: float = 1,
    from_logits: bool = True,
    ignore_index: int | None = None,
) -> Any:
    """ECE with bins of equal mass (AECE): bin j holds ranks floor(jN/M) to floor((j+1)N/M)."""
    measure = adaptive_ece_measure(num_bins=num_bins, order=order)
    return compute_one(measure, preds, target, from_logits=from_logits, ignore_index=ignore_index)


def debiased_ece(
    preds: Array,
    target: Array,
    *,
    num_bins: int = 15,
    order: float = 2,
    binning: str = "mass",
    from_logits: bool = True,
    ignore_index: int | None = None,
) -> Any:
    """ECE less an estimate of its upward bias (Kumar et al. 2019 for order 2)."""
    measure = debiased_ece_measure(num_bins=num_bins, order=order, binning=binning)
    return compute_one(measure, preds, target, from_logits=from_logits, ignore_index=ignore_index)


def chance_ece(
    preds: Array,
    target: Array,
    *,
    num_bins: int = 15,
    from_logits: bool = True,
    ignore_index: int | None = None,
) -> Any:
    """The ECE that perfect calibration would show on these rows, on average: what chance leaves.

    Were a prediction of confidence c right with chance c, the accuracy of a bin would still miss
    its confidence, the more so the fewer rows it has: an ECE about as low cannot be told from
    perfect. Made of the confidences alone, and so of use where these are about right: too high
    ones make it too low. Labels count only in that ignored rows are left out.
    """
    measure = chance_ece_measure(num_bins=num_bins)
    return compute_one(measure, preds, target, from_logits=from_logits, ignore_index=ignore_index)


def ks_error(
    preds: Array, target: Array, *, from_logits: bool = True, ignore_index: int | None = None
) -> Any:
    """KS calibration error (Gupta et al. 2021), max_r |1/N Σ_{i<=r} (a_i − c_i)|: no bins."""
    return compute_one(
        ks_error_measure(), preds, target, from_logits=from_logits, ignore_index=ignore_index
    )


def sweep_ece(
    preds: Array,
    target: Array,
    *,
    order: float = 2,
    from_logits: bool = True,
    ignore_index: int | None = None,
) -> Any:
    """Monotone-sweep ECE (Roelofs et al. 2020): the data choose the number of bins.

    Bins of equal mass are added while their accuracies stay monotone; the last number
    before the first failure is used.
    """
    measure = sweep_ece_measure(order=order)
    return compute_one(measure, preds, target, from_logits=from_logits, ignore_index=ignore_index)


def smooth_ece(
    preds: Array, target: Array, *, from_logits: bool = True, ignore_index: int | None = None
) -> Any:
    """Smooth calibration error (Błasiok & Nakkiran 2023): a kernel in place of bins."""
    return compute_one(
        smooth_ece_measure(), preds, target, from_logits=from_logits, ignore_index=ignore_index
    )
