"""Maximum mean calibration error: confidence against correctness, compared by a kernel."""

from __future__ import annotations

import torch
from torch import Tensor
from typing_extensions import Unpack

from calibrant.core.errors import InputError
from calibrant.losses.base import Reduced, SecondaryLoss
from calibrant.losses.common import IGNORED, Input, Rows, batch_value, correctness, rows_of

FEW = 1024  # rows at most to compute pair by pair on a device
NARROWEST = 0.01  # below it exp(1/(2·width)) nears the largest float32


def mmce(
    input: Input,
    target: Tensor,
    *,
    width: float = 0.4,
    ignore_index: int = IGNORED,
    reduction: str = "mean",
) -> Tensor:
    """Compute MMCE² of a batch: (1/N²) Σ_ij (a_i−c_i)(a_j−c_j) exp(−|c_i−c_j|/width).

    Kumar et al. 2018 ("Trainable calibration measures"); the five papers print no equation. It is
    the biased estimate over all pairs, i = j included, without the square root, whose gradient is
    infinite at 0. It is differentiated through c in the kernel too. For class probabilities, a is
    the label's share of the predicted class. Under data parallelism the value is that of the local
    batch. It takes O(N log N) time and O(N) memory (see `laplacian_form`), so dense rows are fine.

    Args:
        input: Logits, (N,K) or (N,K,...).
        target: Class indices, (N,...), or class probabilities, (N,K,...).
        width: The width of the Laplacian kernel, at least 0.01. Default: 0.4 (Kumar et al. 2018).
        ignore_index: The label of rows to leave out. Default: -100 (torch.nn.CrossEntropyLoss).
        reduction: 'mean', or 'sum' for the value times the number of rows that count.
            Default: 'mean' (torch.nn.CrossEntropyLoss).
    """
    _check_width(width)
    rows = rows_of(input, target, ignore_index)
    confidence, correct = _confidence_and_correctness(rows)
    residual = rows.mask_ignored((correct - confidence) / rows.number)
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
    """Compute MMCE_w² of a batch, in which right and wrong rows have the same total weight.

    Kumar et al. 2018, with m of n rows right and k the kernel of `mmce`:
    Σ_right,right (1−c_i)(1−c_j)k_ij / m² + Σ_wrong,wrong c_i c_j k_ij / (n−m)²
    − 2 Σ_right,wrong (1−c_i) c_j k_ij / (m(n−m)). An empty sum is 0. It is the form of `mmce` with
    (1−c_i)/m in place of (a_i−c_i)/n for right rows and −c_i/(n−m) for wrong ones; of class
    probabilities, each by its share. There is no square root, as in `mmce`.

    Args:
        input: Logits, (N,K) or (N,K,...).
        target: Class indices, (N,...), or class probabilities, (N,K,...).
        width: The width of the Laplacian kernel, at least 0.01. Default: 0.4 (Kumar et al. 2018).
        ignore_index: The label of rows to leave out. Default: -100 (torch.nn.CrossEntropyLoss).
        reduction: 'mean', or 'sum' for the value times the number of rows that count.
            Default: 'mean' (torch.nn.CrossEntropyLoss).
    """
    _check_width(width)
    rows = rows_of(input, target, ignore_index)
    confidence, correct = _confidence_and_correctness(rows)
    right, wrong = rows.mask_ignored(correct), rows.mask_ignored(1.0 - correct)
    residual = (1.0 - confidence) * _shares(right) - confidence * _shares(wrong)
    value = laplacian_form(residual.reshape(-1), confidence.reshape(-1), width)
    return batch_value(value, rows, reduction)


def laplacian_form(weights: Tensor, places: Tensor, width: float) -> Tensor:
    """Compute Σ_ij w_i w_j exp(−|x_i−x_j|/width) for x in [0,1], by sorting and prefix sums.

    With x sorted, a pair x_j < x_i counts twice w_i·exp(−x_i/width)·w_j·exp(x_j/width), a sum
    over j of which every i needs a prefix. Equal places count as themselves, and the gradient does
    not move them apart. Every prefix ends with its largest exponential, so adding it up loses
    nothing; the sums are float64 all the same, where the device has it. Few rows on a device are
    computed pair by pair, which launches fewer operations.
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
    """Compute the same from every pair: a few large operations instead of many small ones."""
    kernel = torch.exp((places.unsqueeze(1) - places).abs() / -width)
    return (weights * (kernel * weights).sum(1)).sum()


def _confidence_and_correctness(rows: Rows) -> tuple[Tensor, Tensor]:
    """Return confidence and correctness; constants in ignored rows, so that no NaN spreads."""
    confidence, correct = correctness(rows)
    return rows.mask_ignored(confidence, 0.5), correct.to(confidence.dtype)


def _prefixes(values: Tensor) -> Tensor:
    """Compute the sums of the first 0, 1, ..., N values."""
    return torch.nn.functional.pad(values.cumsum(0), (1, 0))


def _shares(values: Tensor) -> Tensor:
    """Divide the values by their sum; zeros if all are zero."""
    return values / values.sum().clamp_min(torch.finfo(values.dtype).tiny)


def _check_width(width: float) -> None:
    if not width >= NARROWEST:
        raise InputError(f"the kernel's width must be at least {NARROWEST}, found {width!r}")


class MMCE(SecondaryLoss):
    """MMCE. See `mmce` for the formula and the options."""

    name = "mmce"

    def __init__(self, *, width: float = 0.4, **common: Unpack[Reduced]) -> None:
        super().__init__(**common)
        _check_width(width)
        self.width = width

    def forward(self, input: Input, target: Tensor) -> Tensor:
        """Compute the loss."""
        return mmce(input, target, width=self.width, **self.options())


class WeightedMMCE(MMCE):
    """Weighted MMCE. See `mmce_weighted` for the formula and the options."""

    name = "mmce_weighted"

    def forward(self, input: Input, target: Tensor) -> Tensor:
        """Compute the loss."""
        return mmce_weighted(input, target, width=self.width, **self.options())
