"""MDCA: a batch's mean probability of each class against how often the class occurs."""

from __future__ import annotations

import torch
from torch import Tensor

from calibrant.losses.base import SecondaryLoss
from calibrant.losses.common import IGNORED, batch_value, rows_of


def mdca(
    input: Tensor,
    target: Tensor,
    *,
    ignore_index: int = IGNORED,
    reduction: str = "mean",
) -> Tensor:
    """(1/K) Σ_k |mean_n p_nk − mean_n 1[y_n=k]| of a batch of (N,K,...) logits.

    Hebbalaguppe et al. 2022 ("A stitch in time saves nine"). Supplement (9) of acls drops the
    1/K, and its (10) takes the sign of the absolute value: neither is followed, the gradient is
    (1/KN)·p_j(s_j − Σ_k s_k p_k) with s_k the sign of the k-th difference, and 0 where that is
    0. Class probabilities take the place of 1[y=k]. The value is of the local batch.
    """
    rows = rows_of(input, target, ignore_index)
    probs = rows.log_probs.exp()
    if rows.soft is not None:
        gaps = probs - rows.soft
    else:
        assert rows.labels is not None
        label = rows.labels.unsqueeze(1)
        minus = torch.full_like(label, -1, dtype=probs.dtype)
        gaps = probs.scatter_add(1, label, minus)  # p − onehot, without a onehot
    over_rows = [0, *range(2, gaps.ndim)]
    total = gaps.where(rows.counts.unsqueeze(1), 0).sum(over_rows)
    value = (total / rows.counts.sum().clamp_min(1)).abs().mean()
    return batch_value(value, rows, reduction)


class MDCA(SecondaryLoss):
    """See `mdca`."""

    name = "mdca"

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        """The loss."""
        return mdca(input, target, **self.options())
