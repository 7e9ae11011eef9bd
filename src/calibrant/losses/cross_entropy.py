"""Cross-entropy."""

from __future__ import annotations

from torch import Tensor

from calibrant.losses.common import IGNORED, log_probs_of, reduce


def cross_entropy(
    input: Tensor, target: Tensor, *, ignore_index: int = IGNORED, reduction: str = "mean"
) -> Tensor:
    """−ln p_y of (N,K,...) logits."""
    _, log_true, counts = log_probs_of(input, target, ignore_index)
    return reduce(-log_true, counts, reduction)
