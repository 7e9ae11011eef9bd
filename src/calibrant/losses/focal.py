"""Focal loss: cross-entropy that cares less about what is already certain."""

from __future__ import annotations

import torch
from torch import Tensor

from calibrant.losses.common import IGNORED, log_probs_of, reduce


def focal(
    input: Tensor,
    target: Tensor,
    *,
    gamma: float = 3.0,
    detach_weight: bool = False,
    ignore_index: int = IGNORED,
    reduction: str = "mean",
) -> Tensor:
    """−(1−p_y)^γ ln p_y of (N,K,...) logits (Lin et al. 2017; Mukhoti et al. 2020).

    The gradient flows through the weight (1−p_y)^γ. ``detach_weight=True`` holds it
    constant, as the code of class-scaling does: then the value is no potential of its
    gradient.
    """
    _, log_true, counts = log_probs_of(input, target, ignore_index)
    weight = focal_weight(log_true, gamma)
    return reduce(-(weight.detach() if detach_weight else weight) * log_true, counts, reduction)


def focal_weight(log_true: Tensor, gamma: float) -> Tensor:
    """(1−p_y)^γ of ln p_y; its gradient stays finite at p_y = 1 for any γ ≥ 0."""
    # Below γ = 1 the power's derivative is infinite at 0: the floor stops it there.
    return (-torch.expm1(log_true)).clamp_min(torch.finfo(log_true.dtype).tiny) ** gamma
