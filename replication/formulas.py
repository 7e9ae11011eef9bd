"""Compute the numbers behind the papers' pictures that need no training."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from calibrant import losses
from calibrant.losses.avuc import soft_uncertainty
from calibrant.losses.r_aurc import RegularizedAURC
from calibrant.losses.sb_ece import membership

Numbers = NDArray[np.float64]


# The AURC part of r_aurc, by how it ranks: the label in pictures, and the options.
RANKED = {
    "r_aurc, hard rank": {"hard_rank": True},
    "r_aurc, soft rank (ε = 0.05)": {"strength": 0.05},
    "r_aurc, soft rank (ε = 0.01)": {"strength": 0.01},
}


class Curve(NamedTuple):
    """Hold a loss against the probability of the true class."""

    weight: Numbers  # factor of cross-entropy, with mean 1 over p
    gradient: Numbers  # ∂ℓ/∂p


def make_probabilities(points: int = 399) -> Tensor:
    """Make evenly spaced p from 0 to 1, without the ends."""
    return (torch.arange(points, dtype=torch.float64) + 0.5) / points


def compute_loss_curves(texts: Sequence[str], *, points: int = 399) -> dict[str, Curve]:
    """Compute weights and gradients of losses against p (r-aurc figures 1 and 3).

    Evaluate the losses themselves on two classes with probabilities p and 1−p, all rows with the
    same label. The texts in `RANKED` mean the AURC part of ``r_aurc`` alone (λ = 1), ranked by p:
    by hard ranks, which are proportional to p because p is evenly spaced, or by the soft ranks
    that training uses, with the strengths of the paper's two data sets. Weights are ℓ/(−ln p)
    divided by their mean over p, so that they are comparable; gradients are not scaled.
    """
    curves = {}
    for text in texts:
        p = make_probabilities(points).requires_grad_()
        value = _get_loss(text)(torch.stack((p.log(), torch.log1p(-p)), 1), _make_zeros(points))
        (gradient,) = torch.autograd.grad(value.sum(), p)
        weight = (value / -p.log()).detach()
        curves[text] = Curve((weight / weight.mean()).numpy(), gradient.numpy())
    return curves


def _get_loss(text: str) -> nn.Module:
    if text in RANKED:
        # Rank by the probability of the label, the picture's x axis.
        options: dict[str, Any] = RANKED[text]
        return RegularizedAURC(
            lam=1.0, csf=lambda logs: torch.softmax(logs, 1)[:, 0], reduction="none", **options
        )
    return losses.get(text, reduction="none")


def _make_zeros(points: int) -> Tensor:
    return torch.zeros(points, dtype=torch.int64)


def compute_membership(
    temperatures: Sequence[float], *, num_bins: int = 5, points: int = 401
) -> dict[float, Numbers]:
    """Compute the membership of confidences (rows) in soft bins (columns).

    Soft-calibration figure 3.
    """
    confidence = torch.linspace(0, 1, points, dtype=torch.float64)
    return {T: membership(confidence, num_bins, T).t().numpy() for T in temperatures}


def compute_uncertainty(
    settings: Sequence[tuple[float, float]], *, points: int = 401
) -> dict[tuple[float, float], Numbers]:
    """Compute t_κ,T(h*) for pairs of κ and T (soft-calibration figure 4)."""
    share = torch.linspace(0, 1, points, dtype=torch.float64)
    return {(k, T): soft_uncertainty(share, k, T).numpy() for k, T in settings}


def cohens_d(without: Sequence[float], with_it: Sequence[float]) -> float:
    """Compute (mean without − mean with)/pooled deviation; positive if the errors fell.

    Soft-calibration figure 1; 0.8 is called large. Return NaN with fewer than two runs on a side.

    >>> cohens_d([3.0, 4.0, 5.0], [1.0, 2.0, 3.0])
    2.0
    """
    before, after = np.asarray(without, float), np.asarray(with_it, float)
    if len(before) < 2 or len(after) < 2:
        return math.nan
    free = len(before) + len(after) - 2
    pooled = ((len(before) - 1) * before.var(ddof=1) + (len(after) - 1) * after.var(ddof=1)) / free
    gap = float(before.mean() - after.mean())
    if pooled == 0:
        return math.copysign(math.inf, gap) if gap else 0.0
    return gap / math.sqrt(pooled)


def compute_effect_sizes(
    errors: Mapping[str, Sequence[float]], *, primary: str, secondaries: Sequence[str]
) -> dict[str, float]:
    """Compute Cohen's d of each secondary loss added to a primary loss.

    Methods have the names of suites. Beside cross-entropy a secondary loss has its own name, with
    or without ``interleaved_``; the interleaved one is used if both exist, as in the paper.
    """
    effects = {}
    for secondary in secondaries:
        names = [f"interleaved_{secondary}", secondary]
        names = names if primary == "cross_entropy" else [f"{primary}+{secondary}"]
        name = next((candidate for candidate in names if candidate in errors), None)
        if name is not None and primary in errors:
            effects[secondary] = cohens_d(errors[primary], errors[name])
    return effects


def pool_effects(pairs: Sequence[tuple[Sequence[float], Sequence[float]]]) -> float:
    """Pool Cohen's d over settings: the mean gap of the settings over their pooled deviation.

    Soft-calibration figure 1 aggregates over data sets and primary losses. Deviations are those
    within settings, so that settings may differ in size. Return NaN without two runs on a side.

    Args:
        pairs: errors without and with a secondary loss, by setting.

    >>> pool_effects([([3.0, 4.0, 5.0], [1.0, 2.0, 3.0]), ([13.0, 14.0, 15.0], [11.0, 12.0, 13.0])])
    2.0
    """
    gaps, squares, free = [], 0.0, 0
    for without, with_it in pairs:
        before, after = np.asarray(without, float), np.asarray(with_it, float)
        if len(before) < 2 or len(after) < 2:
            continue
        gaps.append(float(before.mean() - after.mean()))
        squares += float(
            ((before - before.mean()) ** 2).sum() + ((after - after.mean()) ** 2).sum()
        )
        free += len(before) + len(after) - 2
    if not gaps or squares == 0:
        return math.nan
    return math.fsum(gaps) / len(gaps) / math.sqrt(squares / free)


def compute_pulls(
    texts: Sequence[str], *, classes: int = 10, largest: float = 20.0, points: int = 201
) -> dict[str, tuple[Numbers, Numbers]]:
    """Compute how regularisers pull on logits (acls figure 1 and table 2).

    One row, rightly classified, whose predicted logit grows from 0 to ``largest`` while the others
    stay 0. Each result holds the gradient of the loss less that of cross-entropy, for the predicted
    logit and for one of the others. A regulariser that smooths labels pulls the predicted logit
    down, more so the larger it is; where it is 0 its condition does not hold.

    Args:
        texts: losses, such as ``cross_entropy+mbls(margin=10)``.
        classes: K. Default: 10.
        largest: the largest logit. Default: 20, twice the margin of ACLS.
        points: how many logits. Default: 201.
    """
    places = np.linspace(0, largest, points)

    def compute_gradient(text: str, place: float) -> Numbers:
        logits = torch.zeros(1, classes, dtype=torch.float64)
        logits[0, 0] = place
        logits.requires_grad_()
        (gradient,) = torch.autograd.grad(losses.get(text)(logits, _make_zeros(1)).sum(), logits)
        return np.asarray(gradient[0])

    pulls = {}
    for text in texts:
        rows = [
            compute_gradient(text, place) - compute_gradient("cross_entropy", place)
            for place in places
        ]
        pulls[text] = (np.array([row[0] for row in rows]), np.array([row[1] for row in rows]))
    return pulls
