"""Numbers behind the papers' pictures that need no training: of formulas, logits or features."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from calibrant import losses
from calibrant.losses.avuc import soft_uncertainty
from calibrant.losses.r_aurc import RegularizedAURC
from calibrant.losses.sb_ece import membership

Numbers = NDArray[np.float64]


class Curve(NamedTuple):
    """A loss against the probability of the true class."""

    weight: Numbers  # what multiplies cross-entropy, of mean 1 over p
    gradient: Numbers  # ∂ℓ/∂p


def probabilities(points: int = 399) -> Tensor:
    """p from 0 to 1, without the ends, evenly."""
    return (torch.arange(points, dtype=torch.float64) + 0.5) / points


def loss_curves(texts: Sequence[str], *, points: int = 399) -> dict[str, Curve]:
    """Weight and gradient of losses against p (r-aurc figures 1 and 3), from the losses themselves.

    Of two classes with p and 1−p, all rows of one label. ``r_aurc`` stands for the AURC alone,
    λ = 1 and hard ranks by p, which are held: among p spread evenly a rank says its p. Weights are
    ℓ/(−ln p), divided by their mean over p, so that they can be compared; gradients are not.
    """
    found = {}
    for text in texts:
        p = probabilities(points).requires_grad_()
        value = _loss(text)(torch.stack((p.log(), torch.log1p(-p)), 1), _zeros(points))
        (gradient,) = torch.autograd.grad(value.sum(), p)
        weight = (value / -p.log()).detach()
        found[text] = Curve((weight / weight.mean()).numpy(), gradient.numpy())
    return found


def _loss(text: str) -> nn.Module:
    if text == "r_aurc":
        # By the probability of the label, which is what the picture is drawn against.
        return RegularizedAURC(
            lam=1.0, hard_rank=True, csf=lambda logs: logs[:, 0], reduction="none"
        )
    return losses.get(text, reduction="none")


def _zeros(points: int) -> Tensor:
    return torch.zeros(points, dtype=torch.int64)


def membership_curves(
    temperatures: Sequence[float], *, num_bins: int = 5, points: int = 401
) -> dict[float, Numbers]:
    """Share of each soft bin (columns) in a confidence (rows), soft-calibration figure 3."""
    confidence = torch.linspace(0, 1, points, dtype=torch.float64)
    return {T: membership(confidence, num_bins, T).t().numpy() for T in temperatures}


def uncertainty_curves(
    settings: Sequence[tuple[float, float]], *, points: int = 401
) -> dict[tuple[float, float], Numbers]:
    """t_κ,T(h*) for pairs of κ and T, soft-calibration figure 4."""
    share = torch.linspace(0, 1, points, dtype=torch.float64)
    return {(k, T): soft_uncertainty(share, k, T).numpy() for k, T in settings}


def cohens_d(without: Sequence[float], with_it: Sequence[float]) -> float:
    """(mean without − mean with)/pooled deviation: positive where errors fell.

    Soft-calibration figure 1; 0.8 is called large. NaN with fewer than two runs on a side.

    >>> cohens_d([3.0, 4.0, 5.0], [1.0, 2.0, 3.0])
    2.0
    """
    one, two = np.asarray(without, float), np.asarray(with_it, float)
    if len(one) < 2 or len(two) < 2:
        return math.nan
    free = len(one) + len(two) - 2
    pooled = ((len(one) - 1) * one.var(ddof=1) + (len(two) - 1) * two.var(ddof=1)) / free
    gap = float(one.mean() - two.mean())
    if pooled == 0:
        return math.copysign(math.inf, gap) if gap else 0.0
    return gap / math.sqrt(pooled)


def effect_sizes(
    errors: Mapping[str, Sequence[float]], *, primary: str, secondaries: Sequence[str]
) -> dict[str, float]:
    """Cohen's d of each secondary loss beside a primary, by method name.

    Methods are named as suites name them: beside cross-entropy a secondary has its own name,
    or ``interleaved_`` before it, which is taken where both are there, as the paper's rows are.
    """
    found = {}
    for secondary in secondaries:
        names = [f"interleaved_{secondary}", secondary]
        names = names if primary == "cross_entropy" else [f"{primary}+{secondary}"]
        name = next((one for one in names if one in errors), None)
        if name is not None and primary in errors:
            found[secondary] = cohens_d(errors[primary], errors[name])
    return found
