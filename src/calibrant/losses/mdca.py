"""MDCA: the mean probability of each class in a batch against the frequency of the class."""

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
    """Compute (1/K) Σ_k |mean_n p_nk − mean_n 1[y_n=k]| of a batch (Hebbalaguppe et al. 2022).

    acls supplement (9) drops the 1/K, and its (10) takes the sign of the absolute value; neither
    is followed. The gradient is (1/KN)·p_j(s_j − Σ_k s_k p_k) with s_k the sign of the k-th
    difference, 0 where that difference is 0. Class probabilities take the place of 1[y=k]. Under
    data parallelism the value is that of the local batch.

    Args:
        input: Logits, (N,K) or (N,K,...).
        target: Class indices, (N,...), or class probabilities, (N,K,...).
        ignore_index: The label of rows to leave out. Default: -100 (torch.nn.CrossEntropyLoss).
        reduction: 'mean', or 'sum' for the value times the number of rows that count.
            Default: 'mean' (torch.nn.CrossEntropyLoss).
    """
    rows = rows_of(input, target, ignore_index)
    gaps = less_labels(rows.log_probs.exp(), rows)
    if rows.labels is not None:
        gaps = gaps.where(rows.counts.unsqueeze(1), 0)
    total = gaps.sum([0, *range(2, gaps.ndim)])
    value = (total / rows.number).abs().mean()
    return batch_value(value, rows, reduction)


class MDCA(SecondaryLoss):
    """MDCA. See `mdca` for the formula and the options."""

    name = "mdca"

    def forward(self, input: Input, target: Tensor) -> Tensor:
        """Compute the loss."""
        return mdca(input, target, **self.options())
