"""Soft-binned expected calibration error: an ECE with a gradient."""

from __future__ import annotations

import torch
from torch import Tensor
from typing_extensions import Unpack

from calibrant.functional.errors import InputError
from calibrant.losses.base import Reduced, SecondaryLoss
from calibrant.losses.common import IGNORED, batch_value, correctness, rows_of

TINY = 1e-12  # of a bin's share, and of the p-th power under the root


def sb_ece(
    input: Tensor,
    target: Tensor,
    *,
    form: str = "label",
    num_bins: int = 15,
    temperature: float = 0.01,
    order: float = 2.0,
    ignore_index: int = IGNORED,
    reduction: str = "mean",
) -> Tensor:
    """SB-ECE of a batch of (N,K,...) logits, soft-calibration eq. 11 (`bin`) or 12 (`label`).

    ``temperature`` is T of the membership, softmax over bins of −(c−ξ_j)²/T: as T → 0 the
    bins become hard. The paper leaves T open.
    """
    rows = rows_of(input, target, ignore_index)
    confidence, correct = correctness(rows)
    value = soft_binned_error(
        confidence.reshape(-1),
        correct.reshape(-1),
        form=form,
        num_bins=num_bins,
        temperature=temperature,
        order=order,
        counts=rows.counts.reshape(-1),
    )
    return batch_value(value, rows, reduction)


def membership(confidence: Tensor, num_bins: int, temperature: float) -> Tensor:
    """u_j(c) = softmax_j(−(c − ξ_j)²/T), ξ_j the centres of M equal-width bins: (N,M)."""
    steps = torch.arange(num_bins, dtype=confidence.dtype, device=confidence.device)
    centres = (steps + 0.5) / num_bins
    return torch.softmax(-((confidence.unsqueeze(1) - centres) ** 2) / temperature, dim=1)


def soft_binned_error(
    confidence: Tensor,
    correct: Tensor,
    *,
    form: str = "label",
    num_bins: int = 15,
    temperature: float = 0.01,
    order: float = 2.0,
    counts: Tensor | None = None,
) -> Tensor:
    """(Σ_j S_j/N |A_j−C_j|^p)^(1/p), or (1/N Σ_i Σ_j u_j(c_i)|A_j−c_i|^p)^(1/p).

    S_j, C_j and A_j are the soft size, mean confidence and accuracy of bin j (eq. 8 to 10).
    A bin nobody is in counts for nothing, and the gradient at an error of 0 is 0.
    """
    if temperature <= 0 or num_bins < 1 or order < 1:
        raise InputError(
            f"sb_ece needs temperature > 0, num_bins >= 1 and order >= 1, found "
            f"{temperature!r}, {num_bins!r} and {order!r}"
        )
    member = membership(confidence, num_bins, temperature)
    number: Tensor | int = len(confidence)
    if counts is not None:
        member = member * counts.unsqueeze(1)
        number = counts.sum().clamp_min(1)
    share = member.sum(0) / number
    held = share.clamp_min(TINY)
    accuracy = (member * correct.to(member.dtype).unsqueeze(1)).sum(0) / number / held
    if form == "bin":
        mean = (member * confidence.unsqueeze(1)).sum(0) / number / held
        power = (share * (accuracy - mean).abs() ** order).sum()
    elif form == "label":
        gap = (accuracy - confidence.unsqueeze(1)).abs()
        power = (member * gap**order).sum() / number
    else:
        raise InputError(f"form is bin or label, found {form!r}")
    return power if order == 1 else power.clamp_min(TINY**2) ** (1.0 / order)


class SoftBinnedECE(SecondaryLoss):
    """See `sb_ece`."""

    name = "sb_ece"

    def __init__(
        self,
        *,
        form: str = "label",
        num_bins: int = 15,
        temperature: float = 0.01,
        order: float = 2.0,
        **common: Unpack[Reduced],
    ) -> None:
        super().__init__(**common)
        self.form, self.num_bins = form, num_bins
        self.temperature, self.order = temperature, order

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        """The loss."""
        return sb_ece(
            input,
            target,
            form=self.form,
            num_bins=self.num_bins,
            temperature=self.temperature,
            order=self.order,
            **self.options(),
        )
