"""Maximum mean calibration error: a kernel's view of confidence against correctness."""

from __future__ import annotations

import torch
from torch import Tensor
from typing_extensions import Unpack

from calibrant.functional.errors import InputError
from calibrant.losses.base import Reduced, SecondaryLoss
from calibrant.losses.common import IGNORED, Input, Rows, batch_value, correctness, rows_of

FEW = 1024  # rows whose pairs are nothing to a device
NARROWEST = 0.01  # below it exp(1/(2·width)) nears the end of float32


def mmce(
    input: Input,
    target: Tensor,
    *,
    width: float = 0.4,
    ignore_index: int = IGNORED,
    reduction: str = "mean",
) -> Tensor:
    """MMCE² of a batch of (N,K,...) logits: (1/N²) Σ_ij (a_i−c_i)(a_j−c_j) exp(−|c_i−c_j|/width).

    Kumar et al. 2018 ("Trainable calibration measures"); the five papers print no equation. The
    biased estimate over all pairs, i = j among them, and without the square root, as methods.md
    prints it: its gradient has no end where the value is 0. Differentiated through c in the
    kernel too. Of class probabilities a is the label's share of the prediction. The value is of
    the local batch.

    Takes O(N log N) time and O(N) memory (see `laplacian_form`), so dense rows are fine.
    """
    _check_width(width)
    rows = rows_of(input, target, ignore_index)
    confidence, correct = _kept(rows)
    residual = rows.kept((correct - confidence) / rows.number)
    value = laplacian_form(residual.reshape(-1), confidence.reshape(-1), width)
    return batch_value(value, rows, reduction)


def mmce_weighted(
    input: Input,
    target: Tensor,
    *,
    width: float = 0.4,
    ignore_index: int = IGNORED,
    reduction: str = "mean",
) -> Tensor:
    """MMCE_w² of a batch of (N,K,...) logits: right and wrong rows weigh the same in all.

    Kumar et al. 2018, with m of n rows right and k the kernel of `mmce`:
    Σ_right,right (1−c_i)(1−c_j)k_ij / m² + Σ_wrong,wrong c_i c_j k_ij / (n−m)²
    − 2 Σ_right,wrong (1−c_i) c_j k_ij / (m(n−m)). A sum of nobody is 0. The same form as
    `mmce` with (1−c_i)/m in place of (a_i−c_i)/n for right rows and −c_i/(n−m) for wrong ones;
    of class probabilities, each by its share. No square root, as in `mmce`.
    """
    _check_width(width)
    rows = rows_of(input, target, ignore_index)
    confidence, correct = _kept(rows)
    right, wrong = rows.kept(correct), rows.kept(1.0 - correct)
    residual = (1.0 - confidence) * _shares(right) - confidence * _shares(wrong)
    value = laplacian_form(residual.reshape(-1), confidence.reshape(-1), width)
    return batch_value(value, rows, reduction)


def laplacian_form(weights: Tensor, places: Tensor, width: float) -> Tensor:
    """Σ_ij w_i w_j exp(−|x_i−x_j|/width) for x in [0,1], by sorting and prefix sums.

    With x sorted, a pair x_j < x_i counts twice w_i·exp(−x_i/width)·w_j·exp(x_j/width), a sum
    over j of which every i needs a prefix; equal places count as themselves, and neither moves
    away from the other in the gradient. Every prefix ends with its largest exponential, so
    nothing is lost in adding it up; the sums are kept in float64 all the same, where there is
    one. Few rows on a device are taken pair by pair, which is fewer operations to launch.
    """
    if places.device.type != "cpu" and len(places) <= FEW:
        return _form_of_pairs(weights, places, width)
    exact = places.dtype if places.device.type == "mps" else torch.float64
    ascending, order = places.sort()
    place, weight = ascending.to(exact), weights.gather(0, order).to(exact)
    below = torch.searchsorted(ascending, ascending)  # how many places are smaller
    upto = torch.searchsorted(ascending, ascending, right=True)
    from_half = (place - 0.5) / width
    rising = _prefixes(weight * from_half.exp()).gather(0, below)
    total = _prefixes(weight)
    equal = total.gather(0, upto) - total.gather(0, below)
    value = (weight * (2.0 * (-from_half).exp() * rising + equal)).sum()
    return value.to(weights.dtype)


def _form_of_pairs(weights: Tensor, places: Tensor, width: float) -> Tensor:
    """The same by every pair: a few large operations in place of many small ones."""
    kernel = torch.exp((places.unsqueeze(1) - places).abs() / -width)
    return (weights * (kernel * weights).sum(1)).sum()


def _kept(rows: Rows) -> tuple[Tensor, Tensor]:
    """Confidence and correctness; a NaN of a row to be ignored stays its own."""
    confidence, correct = correctness(rows)
    return rows.kept(confidence, 0.5), correct.to(confidence.dtype)


def _prefixes(values: Tensor) -> Tensor:
    """The sums of the first 0, 1, ..., N values."""
    return torch.nn.functional.pad(values.cumsum(0), (1, 0))


def _shares(values: Tensor) -> Tensor:
    """The values over their sum; zeros where there is nothing to share."""
    return values / values.sum().clamp_min(torch.finfo(values.dtype).tiny)


def _check_width(width: float) -> None:
    if not width >= NARROWEST:
        raise InputError(f"the kernel's width must be at least {NARROWEST}, found {width!r}")


class MMCE(SecondaryLoss):
    """See `mmce`."""

    name = "mmce"

    def __init__(self, *, width: float = 0.4, **common: Unpack[Reduced]) -> None:
        super().__init__(**common)
        _check_width(width)
        self.width = width

    def forward(self, input: Input, target: Tensor) -> Tensor:
        """The loss."""
        return mmce(input, target, width=self.width, **self.options())


class WeightedMMCE(MMCE):
    """See `mmce_weighted`."""

    name = "mmce_weighted"

    def forward(self, input: Input, target: Tensor) -> Tensor:
        """The loss."""
        return mmce_weighted(input, target, width=self.width, **self.options())
