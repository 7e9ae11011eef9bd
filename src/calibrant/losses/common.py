"""What losses of one value a sample share: the true class's log-probability, and reduction."""

from __future__ import annotations

import torch
from torch import Tensor

from calibrant.functional.errors import InputError

IGNORED = -100  # torch.nn's default


def log_probs_of(
    input: Tensor, target: Tensor, ignore_index: int = IGNORED
) -> tuple[Tensor, Tensor, Tensor]:
    """ln p of (N,K,...) logits, ln p_y and which of the (N,...) labels count."""
    if input.ndim < 2 or target.shape != (input.shape[0], *input.shape[2:]):
        raise InputError(
            f"logits of shape {tuple(input.shape)} do not fit labels of shape "
            f"{tuple(target.shape)}: give (N,K,...) and (N,...)"
        )
    counts = target != ignore_index
    log_probs = torch.log_softmax(input, dim=1)
    index = target.where(counts, torch.zeros_like(target)).unsqueeze(1)
    return log_probs, log_probs.gather(1, index).squeeze(1), counts


def reduce(values: Tensor, counts: Tensor, reduction: str) -> Tensor:
    """One value a sample, their mean or their sum; ignored samples are 0 and not counted."""
    values = values.where(counts, torch.zeros_like(values))
    if reduction == "none":
        return values
    if reduction == "sum":
        return values.sum()
    if reduction == "mean":
        return values.sum() / counts.sum().clamp_min(1)
    raise InputError(f"reduction is none, mean or sum, found {reduction!r}")
