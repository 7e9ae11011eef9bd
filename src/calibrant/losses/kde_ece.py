"""Kernel calibration error of whole probability vectors, to train with (KDE-XE)."""

from __future__ import annotations

import torch
from torch import Tensor
from typing_extensions import Unpack

from calibrant.functional.errors import InputError
from calibrant.functional.kernels import affinity, best_bandwidth, blocks, log_constants
from calibrant.losses.base import Reduced, SecondaryLoss
from calibrant.losses.common import IGNORED, Input, batch_value, label_table, row_mean, rows_of


def kde_ece(
    input: Input,
    target: Tensor,
    *,
    order: float = 1.0,
    bandwidth: float | None = None,
    ignore_index: int = IGNORED,
    reduction: str = "mean",
) -> Tensor:
    """Mean over rows j of ‖E[y|f_j] − f_j‖_p^p, f = softmax of (N,K) logits.

    Popordanoska et al. 2022, canonical ECE^KDE, of which the five papers print no equation:
    E[y|f_j] = Σ_{i≠j} k(f_j; f_i) y_i over Σ_{i≠j} k(f_j; f_i), k the Dirichlet kernel, in log
    space and float64. ``bandwidth`` is that of largest leave-one-out likelihood of the batch, a
    constant to the gradient, unless given.
    A network that has learned nothing yet gives rows close together, for which it is tiny and
    the gradient, which grows with 1/h, outweighs cross-entropy's: training may then end at one
    prediction for all, which is calibrated too. Give a bandwidth (0.05, say) from scratch.
    No root is taken for p > 1, as in the authors' code. Class probabilities take the place of
    the onehot y. 0 for fewer than two rows. Dense (N,K,...) logits are refused: every row is
    compared with every other.
    """
    _check(order, bandwidth)
    rows = rows_of(input, target, ignore_index)
    if rows.logits.ndim != 2:
        raise InputError(
            "kde_ece compares every row with every other: logits must have shape (N,K), found "
            f"{tuple(rows.logits.shape)}; give it a sample of the rows"
        )
    # A weight's logarithm is a difference of numbers of size 1/h, up to 1e5: float32 would
    # leave one digit of it. (Metal has no float64.)
    precise = torch.float32 if rows.logits.device.type == "mps" else torch.float64
    logits = rows.logits.to(precise).where(rows.counts.unsqueeze(1), 0)
    logs = torch.log_softmax(logits, dim=1)
    points, labels = logs.exp(), label_table(rows).to(precise)
    with torch.no_grad():
        width = best_bandwidth(points, logs, rows.counts) if bandwidth is None else bandwidth
    constants = log_constants(points, width) - 1e30 * ~rows.counts
    means = torch.cat(
        [
            torch.softmax(affinity(points, logs, some) / width + constants, dim=1) @ labels
            for some in blocks(len(points), len(points))
        ]
    )
    errors = (means - points).abs().pow(order).sum(1)
    # A row alone is compared with none.
    value = row_mean(errors, rows).where(rows.counts.sum() > 1, 0).to(rows.logits.dtype)
    return batch_value(value, rows, reduction)


def _check(order: float, bandwidth: float | None) -> None:
    if not 1 <= order < float("inf"):
        raise InputError(f"order is 1 or more, found {order!r}")
    if bandwidth is not None and not 0 < bandwidth < float("inf"):
        raise InputError(f"bandwidth must be positive, found {bandwidth!r}")


class KernelECE(SecondaryLoss):
    """See `kde_ece`. Under data parallelism it sees the rows of the local batch only."""

    name = "kde_ece"
    beta = 0.5

    def __init__(
        self, *, order: float = 1.0, bandwidth: float | None = None, **common: Unpack[Reduced]
    ) -> None:
        super().__init__(**common)
        _check(order, bandwidth)
        self.order, self.bandwidth = order, bandwidth

    def forward(self, input: Input, target: Tensor) -> Tensor:
        """The loss."""
        return kde_ece(input, target, order=self.order, bandwidth=self.bandwidth, **self.options())
