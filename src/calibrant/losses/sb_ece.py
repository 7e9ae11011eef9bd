"""Soft-binned expected calibration error: an ECE with a gradient."""

from __future__ import annotations

import torch
from torch import Tensor
from typing_extensions import Unpack

from calibrant.core.errors import InputError
from calibrant.losses.base import Reduced, SecondaryLoss
from calibrant.losses.common import IGNORED, Input, batch_value, correctness, label_table, rows_of

TINY = 1e-12  # the smallest error with a gradient


def sb_ece(
    input: Input,
    target: Tensor,
    *,
    form: str = "label",
    over: str = "top",
    num_bins: int = 15,
    temperature: float = 0.01,
    order: float = 2.0,
    squared: bool = False,
    bins_from: str = "zero",
    ignore_index: int = IGNORED,
    reduction: str = "mean",
) -> Tensor:
    """Compute SB-ECE of a batch, soft-calibration eq. 11 (`bin`) or 12 (`label`).

    bin: (Σ_j S_j/N · |A_j − C_j|^p)^(1/p); label: (1/N Σ_i Σ_j u_j(c_i)·|A_j − c_i|^p)^(1/p), with
    the membership u_j(c) = softmax_j(−(c − ξ_j)²/T) in the bin with centre ξ_j, the soft size
    S_j = Σ_i u_j(c_i), and the bin's mean confidence C_j and accuracy A_j, weighed by u_j.

    Class probabilities take the place of a. Under data parallelism the value is that of the local
    batch.

    Args:
        input: Logits, (N,K) or (N,K,...).
        target: Class indices, (N,...), or class probabilities, (N,K,...).
        form: 'label', eq. 12, or 'bin', eq. 11; only 'bin' goes to 0 for calibrated data (appendix
            H). Default: 'label' (soft-calibration, appendix G).
        over: 'top' takes c = max p and a = 1[ŷ = y]; 'classes' is the marginal form that appendix
            J suggests: every class k has bins of its own, with c = p_k and a = 1[y = k], and the
            mean over classes is under the root, as in `metrics.marginal_ece`. It holds a few
            tensors of N·K·M numbers. Default: 'top' (soft-calibration, section 4.1).
        num_bins: M, the number of equal-width bins. Default: 15 (soft-calibration, appendix G).
        temperature: T of the membership, softmax over bins of −(c−ξ_j)²/T; as T → 0 the bins
            become hard. Default: 0.01 (ours: the paper tunes T and prints no value; a row then
            belongs to three or four of 15 bins).
        order: p of the norm, 1 or more. Default: 2.0 (soft-calibration, table 2).
        squared: Leave the root out, as the authors' public code does. The gradient then fades as
            calibration improves; the root's does not. Default: False (soft-calibration, eq. 12).
        bins_from: Where the first bin begins: 'zero', or 'chance', 1/K, below which no largest
            probability lies (the authors' public code; for ``over='top'`` alone).
            Default: 'zero' (soft-calibration, section 4.1: bins on [0, 1]).
        ignore_index: The label of rows to leave out. Default: -100 (torch.nn.CrossEntropyLoss).
        reduction: 'mean', or 'sum' for the value times the number of rows that count.
            Default: 'mean' (torch.nn.CrossEntropyLoss).
    """
    _check(form, over, num_bins, temperature, order, bins_from)
    rows = rows_of(input, target, ignore_index)
    counts = rows.counts
    if over == "top":
        confidence, correct = (value.reshape(-1) for value in correctness(rows))
        counts = counts.reshape(-1)
    else:
        confidence, correct = rows.log_probs.exp(), label_table(rows)
        counts = counts.unsqueeze(1)
    value = soft_binned_error(
        confidence,
        correct,
        form=form,
        num_bins=num_bins,
        temperature=temperature,
        order=order,
        squared=squared,
        low=1.0 / rows.logits.shape[1] if bins_from == "chance" else 0.0,
        counts=counts,
    )
    return batch_value(value, rows, reduction)


def membership(confidence: Tensor, num_bins: int, temperature: float, low: float = 0.0) -> Tensor:
    """Compute u_j(c) = softmax_j(−(c − ξ_j)²/T), ξ_j the M bins' centres; bins come first.

    Args:
        confidence: Confidences.
        num_bins: M.
        temperature: T.
        low: Where the first of the equal-width bins begins; the last ends at 1. Default: 0.0
            (soft-calibration, section 4.1).
    """
    edge = 0.5 * (1.0 - low) / num_bins
    how = {"dtype": confidence.dtype, "device": confidence.device}
    centres = torch.linspace(low + edge, 1.0 - edge, num_bins, **how)  # type: ignore[call-overload]
    away = confidence - centres.reshape(-1, *[1] * confidence.ndim)
    return torch.softmax(away.square() / -temperature, dim=0)


def soft_binned_error(
    confidence: Tensor,
    correct: Tensor,
    *,
    form: str = "label",
    num_bins: int = 15,
    temperature: float = 0.01,
    order: float = 2.0,
    squared: bool = False,
    low: float = 0.0,
    counts: Tensor | None = None,
) -> Tensor:
    """Compute (Σ_j S_j/N |A_j−C_j|^p)^(1/p), or (1/N Σ_i Σ_j u_j(c_i)|A_j−c_i|^p)^(1/p).

    S_j, C_j and A_j are the soft size, mean confidence and accuracy of bin j (eq. 8 to 10). An
    empty bin adds nothing, and the gradient at an error of 0 is 0.

    Args:
        confidence: Confidences, (N,), or (N,K,...): each class then has its own bins, and the
            mean over classes is under the root.
        correct: Whether each is right, of the same shape.
        form: See `sb_ece`. Default: 'label' (soft-calibration, appendix G).
        num_bins: See `sb_ece`. Default: 15 (soft-calibration, appendix G).
        temperature: See `sb_ece`. Default: 0.01 (ours: as in `sb_ece`).
        order: See `sb_ece`. Default: 2.0 (soft-calibration, table 2).
        squared: See `sb_ece`. Default: False (soft-calibration, eq. 11 and 12).
        low: Where the first bin begins. Default: 0.0 (soft-calibration, section 4.1).
        counts: Which rows are not ignored, (N,) or (N,1,...). Default: None (ours: all rows).
    """
    _check(form, "top", num_bins, temperature, order)
    by_class = confidence.ndim > 1
    row_dims = [1, *range(3, confidence.ndim + 1)]  # the bins come first, then N, K, ...
    total: Tensor | int = confidence.numel()  # N, or N·K: the mean over classes comes with it
    if counts is not None:
        confidence = confidence.where(counts, 0)
        total = counts.sum().clamp_min(1) * (confidence.shape[1] if by_class else 1)
    member = membership(confidence, num_bins, temperature, low)
    if counts is not None:
        member = member.where(counts, 0)
    size = member.sum(row_dims, keepdim=True)
    bin_mass = size.clamp_min(torch.finfo(size.dtype).tiny)
    accuracy = (member * correct).sum(row_dims, keepdim=True) / bin_mass
    if form == "bin":
        mean = (member * confidence).sum(row_dims, keepdim=True) / bin_mass
        power = (size * _power(accuracy - mean, order)).sum() / total
    else:
        power = (member * _power(accuracy - confidence, order)).sum() / total
    return power if squared else _root(power, order)


def _power(gap: Tensor, order: float) -> Tensor:
    return gap.square() if order == 2 else gap.abs() ** order


def _root(power: Tensor, order: float) -> Tensor:
    """Compute power^(1/p); below an error of TINY, where the root's slope is infinite, a flat 0."""
    if order == 1:
        return power
    floor = max(TINY**order, torch.finfo(power.dtype).tiny)
    floored = power.clamp_min(floor)
    root = floored.sqrt() if order == 2 else floored ** (1.0 / order)
    return root.where(power > floor, 0)


def _check(
    form: str,
    over: str,
    num_bins: int,
    temperature: float,
    order: float,
    bins_from: str = "zero",
) -> None:
    if form not in ("bin", "label"):
        raise InputError(f"form must be bin or label, found {form!r}")
    if over not in ("top", "classes"):
        raise InputError(f"over must be top or classes, found {over!r}")
    if bins_from not in ("zero", "chance"):
        raise InputError(f"bins_from must be zero or chance, found {bins_from!r}")
    if bins_from == "chance" and over == "classes":
        raise InputError(
            "bins_from='chance' is for over='top': a class's probability may lie below 1/K"
        )
    whole = num_bins >= 1 and num_bins == int(num_bins)
    if not (temperature > 0 and whole and 1 <= order < float("inf")):
        raise InputError(
            f"sb_ece needs temperature > 0, a whole num_bins >= 1 and a finite order >= 1, found "
            f"{temperature!r}, {num_bins!r} and {order!r}"
        )


class SoftBinnedECE(SecondaryLoss):
    """Soft-binned ECE. See `sb_ece` for the formula and the options.

    Its weight β, if none is given, is 0.1. The paper tunes β and prints no value. In a pilot
    (CIFAR-100, ResNet-18, 30 epochs, one seed; a second seed and CIFAR-10 agree) focal + 0.1·sb_ece
    had an equal-mass L2 error of 1.4% against 3.9% of focal alone, 4.5% with 0.3 and 9.1% with
    1.0; brier + 0.1·sb_ece kept brier's accuracy, + 0.3 lost nine points, + 1.0 did not learn.
    With cross_entropy β was not tried: tune it.
    """

    name = "sb_ece"
    beta = 0.1

    def __init__(
        self,
        *,
        form: str = "label",
        over: str = "top",
        num_bins: int = 15,
        temperature: float = 0.01,
        order: float = 2.0,
        squared: bool = False,
        bins_from: str = "zero",
        **common: Unpack[Reduced],
    ) -> None:
        super().__init__(**common)
        _check(form, over, num_bins, temperature, order, bins_from)
        self.form, self.over, self.num_bins = form, over, num_bins
        self.temperature, self.order = temperature, order
        self.squared, self.bins_from = squared, bins_from

    def forward(self, input: Input, target: Tensor) -> Tensor:
        """Compute the loss."""
        return sb_ece(
            input,
            target,
            form=self.form,
            over=self.over,
            num_bins=self.num_bins,
            temperature=self.temperature,
            order=self.order,
            squared=self.squared,
            bins_from=self.bins_from,
            **self.options(),
        )
