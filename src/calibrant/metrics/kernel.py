"""Kernel estimates of calibration error (Popordanoska et al. 2022): no bins.

All rows are stored and every pair of rows is visited, in blocks: O(N²K) time.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from calibrant.core.errors import InputError
from calibrant.functional.arrays import Array
from calibrant.functional.kernels import choose_bandwidth, conditional_means
from calibrant.metrics.base import Measure, State, check_choice, check_order, compute_one
from calibrant.metrics.classwise import ProbState
from calibrant.metrics.rank_state import RankState


def _binary_error(score: Tensor, hit: Tensor, order: float, bandwidth: float | None) -> Tensor:
    points = torch.stack((1 - score, score), dim=1).clamp_(0, 1)
    width = bandwidth or choose_bandwidth(points)
    mean = conditional_means(points, hit.long(), 2, width)[:, 1]
    return (mean - score).abs().pow(order).mean()


def kde_ece_measure(
    *, form: str = "canonical", order: float = 1, bandwidth: float | None = None
) -> Measure:
    """Make the measure of `kde_ece`."""
    order = check_order(order)
    check_choice("form", form, ("canonical", "marginal", "top"))
    if bandwidth is not None and not bandwidth > 0:
        raise InputError(f"bandwidth must be positive, found {bandwidth!r}")

    def check_count(count: int) -> None:
        if count < 2:
            raise InputError("kde_ece leaves one row out and needs at least two rows; found 1")

    def top(state: RankState) -> Tensor:
        score = state.concatenate("scores").double()
        check_count(len(score))
        return _binary_error(score, ~state.concatenate("losses"), order, bandwidth)

    def full(state: ProbState) -> Tensor:
        target = state.concatenate("targets")
        check_count(len(target))
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
    return Measure("kde_ece", states, top if form == "top" else full, views=("top",))


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
    """Compute ECE^KDE, the mean over rows of ‖E[y|f] − f‖_p^p (Popordanoska et al. 2022).

    E[y|f] is a leave-one-out kernel ratio. Probabilities of exactly 0 count as 1e-12; with many
    of them the value depends on this floor. No root is taken for p > 1, as in the authors' code.

    Args:
        preds: Scores of shape (N,K), (N,) (binary) or (N,K,...) (dense).
        target: Integer labels of shape (N,) or (N,...).
        form: ``"canonical"`` (the whole vector, Dirichlet kernel), ``"marginal"`` (each class's
            probability, Beta kernel, mean over classes) or ``"top"`` (the confidence). Default:
            'canonical' (Popordanoska et al. 2022).
        order: The order p, at least 1. Default: 1 (Popordanoska et al. 2022).
        bandwidth: The kernel's bandwidth; None maximises the leave-one-out likelihood on at most
            2,000 rows. Default: None (Popordanoska et al. 2022).
        from_logits: Whether ``preds`` are logits; False for probabilities. Default: True (ours:
            networks give logits).
        ignore_index: The label of rows to leave out. Default: None (ours: every row counts).
    """
    measure = kde_ece_measure(form=form, order=order, bandwidth=bandwidth)
    return compute_one(measure, preds, target, from_logits=from_logits, ignore_index=ignore_index)
