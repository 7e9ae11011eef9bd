"""Kernel estimates of calibration error (Popordanoska et al. 2022): no bins.

All rows are kept and every pair of rows is visited, in blocks: O(N²K) time.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from calibrant.functional.blocks import Array
from calibrant.functional.errors import InputError
from calibrant.functional.kernels import choose_bandwidth, conditional_means
from calibrant.metrics.base import Measure, State, choice, compute_one
from calibrant.metrics.binned import check_order
from calibrant.metrics.classwise import ProbState
from calibrant.metrics.ranked import RankState


def _binary_error(score: Tensor, hit: Tensor, order: float, bandwidth: float | None) -> Tensor:
    points = torch.stack((1 - score, score), dim=1).clamp_(0, 1)
    width = bandwidth or choose_bandwidth(points)
    mean = conditional_means(points, hit.long(), 2, width)[:, 1]
    return (mean - score).abs().pow(order).mean()


def kde_ece_measure(
    *, form: str = "canonical", order: float = 1, bandwidth: float | None = None
) -> Measure:
    """Kernel calibration error."""
    order = check_order(order)
    choice("form", form, ("canonical", "marginal", "top"))
    if bandwidth is not None and not bandwidth > 0:
        raise InputError(f"bandwidth must be positive, found {bandwidth!r}")

    def enough(count: int) -> None:
        if count < 2:
            raise InputError("kde_ece leaves one row out: at least two rows are needed, found 1")

    def top(state: RankState) -> Tensor:
        score = state.joined("scores").double()
        enough(len(score))
        return _binary_error(score, ~state.joined("losses"), order, bandwidth)

    def full(state: ProbState) -> Tensor:
        target = state.joined("targets")
        enough(len(target))
        if form == "marginal":
            errors = [
                _binary_error(column, target == k, order, bandwidth)
                for k, column in state.class_columns()
            ]
            return torch.stack(errors).mean()
        points = state.columns(0, state.scores[0].shape[1])
        width = bandwidth or choose_bandwidth(points)
        means = conditional_means(points, target, points.shape[1], width)
        return (means - points).abs().pow(order).sum(1).mean()

    states: tuple[Callable[[], State], ...] = (
        partial(RankState) if form == "top" else partial(ProbState),
    )
    return Measure("kde_ece", states, top if form == "top" else full)


def kde_ece(
    preds: Array,
    target: Array,
    *,
    form: str = "canonical",
    order: float = 1,
    bandwidth: float | None = None,
    from_logits: bool = True,
    ignore_index: int | None = None,
) -> Any:
    """ECE^KDE: mean over rows of ‖E[y|f] − f‖_p^p, E[y|f] by a leave-one-out kernel ratio.

    ``form``: ``canonical`` (the whole vector, Dirichlet kernel), ``marginal`` (each class's
    probability, Beta kernel, mean over classes) or ``top`` (the confidence). The bandwidth
    maximises the leave-one-out likelihood on at most 2,000 rows unless given. Exact zeros
    among probabilities are taken as 1e-12, and where there are many the value depends on it.
    No root is taken for p > 1, as in the authors' code.
    """
    measure = kde_ece_measure(form=form, order=order, bandwidth=bandwidth)
    return compute_one(measure, preds, target, from_logits=from_logits, ignore_index=ignore_index)
