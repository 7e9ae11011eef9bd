"""KDE-XE's kernel calibration error of whole probability vectors."""

from __future__ import annotations

import torch
from torch import Tensor
from typing_extensions import Unpack

from calibrant.core.errors import InputError
from calibrant.functional.kernels import affinity, best_bandwidth, log_constants, pair_slices
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
    """Compute the mean over rows j of ‖E[y|f_j] − f_j‖_p^p, f = softmax of the logits.

    Popordanoska et al. 2022, canonical ECE^KDE; the five papers print no equation.
    E[y|f_j] = Σ_{i≠j} k(f_j; f_i) y_i over Σ_{i≠j} k(f_j; f_i), k the Dirichlet kernel, in log
    space and float64. No root is taken for p > 1, as in the authors' code. Class probabilities
    take the place of the onehot y. The value is 0 for fewer than two rows. Dense (N,K,...) logits
    raise an error: every row is compared with every other.

    Args:
        input: Logits, (N,K).
        target: Class indices, (N,), or class probabilities, (N,K).
        order: p, 1 or more. Default: 1.0 (Popordanoska et al. 2022).
        bandwidth: The kernel's h; None takes the one of largest leave-one-out likelihood of the
            batch, as a constant. Give a number (0.05, say) to train from scratch: the rows of an
            untrained network lie close together, so the likelihood chooses a tiny h, and the
            gradient, which grows with 1/h, outweighs cross-entropy's. Training may then end at
            one prediction for all rows, which is calibrated too.
            Default: None (Popordanoska et al. 2022).
        ignore_index: The label of rows to leave out. Default: -100 (torch.nn.CrossEntropyLoss).
        reduction: 'mean', or 'sum' for the value times the number of rows that count.
            Default: 'mean' (torch.nn.CrossEntropyLoss).
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
            torch.softmax(affinity(points, logs, part) / width + constants, dim=1) @ labels
            for part in pair_slices(len(points), len(points))
        ]
    )
    errors = (means - points).abs().pow(order).sum(1)
    # A single row has none to compare with.
    value = row_mean(errors, rows).where(rows.counts.sum() > 1, 0).to(rows.logits.dtype)
    return batch_value(value, rows, reduction)


def _check(order: float, bandwidth: float | None) -> None:
    if not 1 <= order < float("inf"):
        raise InputError(f"order must be 1 or more, found {order!r}")
    if bandwidth is not None and not 0 < bandwidth < float("inf"):
        raise InputError(f"bandwidth must be positive, found {bandwidth!r}")


class KernelECE(SecondaryLoss):
    """Kernel calibration error. See `kde_ece` for the formula and the options.

    Its weight β is 0.5 unless given (r-aurc, section 5, for CIFAR-100; 0.3 for CIFAR-10). Under
    data parallelism it sees the rows of the local batch only.
    """

    name = "kde_ece"
    beta = 0.5

    def __init__(
        self, *, order: float = 1.0, bandwidth: float | None = None, **common: Unpack[Reduced]
    ) -> None:
        super().__init__(**common)
        _check(order, bandwidth)
        self.order, self.bandwidth = order, bandwidth

    def forward(self, input: Input, target: Tensor) -> Tensor:
        """Compute the loss."""
        return kde_ece(input, target, order=self.order, bandwidth=self.bandwidth, **self.options())
