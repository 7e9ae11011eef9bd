"""What can be wrong with scores and labels, said with the rows it is wrong in."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from calibrant.functional.errors import InputError, first


def check_shapes(preds: Tensor, target: Tensor | None) -> None:
    """Say what is wrong with the shapes or dtypes of a pair of arrays."""
    if not preds.is_floating_point():
        raise InputError(
            f"scores must be floating point, found {preds.dtype}; "
            "if these are predicted classes, metrics of confidence cannot be computed from them"
        )
    if preds.ndim == 0:
        raise InputError("scores must have at least one dimension, found a single number")
    if preds.shape[0] == 0 or preds.numel() == 0:
        raise InputError(f"no rows: scores have shape {tuple(preds.shape)}")
    if preds.ndim >= 2 and preds.shape[1] < 2:
        raise InputError(
            f"scores of shape {tuple(preds.shape)} have {preds.shape[1]} class; for a binary "
            "score give shape (N,), for two classes (N, 2)"
        )
    if target is None:
        return
    if target.is_floating_point() or target.is_complex():
        raise InputError(
            f"labels must be integers, found {target.dtype}; convert with .long() or "
            ".astype('int64')"
        )
    wanted = (preds.shape[0], *preds.shape[2:])
    if tuple(target.shape) != wanted:
        hint = ""
        if tuple(target.shape) == tuple(preds.shape) and preds.ndim == 2:
            hint = "; one-hot labels: give labels.argmax(1), multilabel is out of scope"
        raise InputError(
            f"scores of shape {tuple(preds.shape)} need labels of shape {wanted}, "
            f"found {tuple(target.shape)}{hint}"
        )


def check_block(
    x: Tensor,
    index: Tensor | None,
    class_dim: int,
    *,
    from_logits: bool,
    bound: int,
    locate: Callable[[Tensor], str],
    tolerance: float,
) -> None:
    """Raise what is wrong with one block; ``locate`` tells rows of the whole from its own."""
    low, high = (float(v) for v in torch.aminmax(x))
    kind = "logits" if from_logits else "probabilities"
    if not (np.isfinite(low) and np.isfinite(high)):
        bad = (~torch.isfinite(x)).any(class_dim).nonzero().squeeze(1)
        hint = (
            "; -inf is the log of probability 0: give probabilities instead, or floor it"
            if from_logits and low == -np.inf and high < np.inf
            else ""
        )
        raise InputError(f"{kind} hold NaN or infinity, first in rows {locate(bad)}{hint}")
    if not from_logits:
        if low < -1e-6 or high > 1 + tolerance:
            bad = ((x < -1e-6) | (x > 1 + tolerance)).any(class_dim).nonzero().squeeze(1)
            raise InputError(
                f"probabilities must lie in [0, 1], found {low:.4g} to {high:.4g}, first in "
                f"rows {locate(bad)}; are these logits?"
            )
        total = x.sum(class_dim)
        worst = (total - 1.0).abs().argmax()
        if abs(float(total[worst]) - 1.0) > tolerance:
            raise InputError(
                f"probabilities must sum to one in each row; row {locate(worst.view(1))} sums "
                f"to {float(total[worst]):.4g}. Divide each row by its sum, or give logits"
            )
    if index is not None:
        bottom, top = (int(v) for v in torch.aminmax(index))
        if bottom < 0 or top >= bound:
            bad = ((index < 0) | (index >= bound)).nonzero().squeeze(1)
            found = first(sorted(set(index[bad].tolist())))
            raise InputError(
                f"labels must lie in 0..{bound - 1}, found {found}, "
                f"first in rows {locate(bad)}; if that marks rows to leave out, name it with "
                "ignore_index"
            )
