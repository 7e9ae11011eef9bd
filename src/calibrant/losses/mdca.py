"""MDCA: a batch's mean probability of each class against how often the class occurs."""

from __future__ import annotations

from torch import Tensor

from calibrant.losses.base import SecondaryLoss
from calibrant.losses.common import IGNORED, Input, batch_value, less_labels, rows_of


def mdca(
    input: Input,
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
    gaps = less_labels(rows.log_probs.exp(), rows)
    if rows.labels is not None:
        gaps = gaps.where(rows.counts.unsqueeze(1), 0)
    total = gaps.sum([0, *range(2, gaps.ndim)])
    value = (total / rows.number).abs().mean()
    return batch_value(value, rows, reduction)


class MDCA(SecondaryLoss):
    """See `mdca`."""

    name = "mdca"

    def forward(self, input: Input, target: Tensor) -> Tensor:
        """The loss."""
        return mdca(input, target, **self.options())
