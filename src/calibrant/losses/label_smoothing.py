"""Label smoothing: cross-entropy against a softened label."""

from __future__ import annotations

from torch import Tensor

from calibrant.losses.common import IGNORED, log_probs_of, reduce


def label_smoothing(
    input: Tensor,
    target: Tensor,
    *,
    smoothing: float = 0.05,
    ignore_index: int = IGNORED,
    reduction: str = "mean",
) -> Tensor:
    """−Σ_k q_k ln p_k of (N,K,...) logits, q = (1−ε)·onehot + ε/K (acls eq. 4)."""
    log_probs, log_true, counts = log_probs_of(input, target, ignore_index)
    return reduce(smoothed(log_true, log_probs.mean(1), smoothing), counts, reduction)


def smoothed(log_true: Tensor, log_mean: Tensor, smoothing: float) -> Tensor:
    """−(1−ε) ln p_y − ε·(1/K) Σ_k ln p_k."""
    return -(1.0 - smoothing) * log_true - smoothing * log_mean
