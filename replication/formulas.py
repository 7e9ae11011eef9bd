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


def list_names(primary: str, secondary: str) -> list[str]:
    """List what suites call a secondary loss beside a primary one, the paper's rows first."""
    names = [f"{primary}+{secondary}"]
    # Interleaved runs are the paper's rows of cross-entropy.
    return [f"interleaved_{secondary}", secondary, *names] if primary == "cross_entropy" else names


def compute_effect_sizes(
    errors: Mapping[str, Sequence[float]], *, primary: str, secondaries: Sequence[str]
) -> dict[str, float]:
    """Compute Cohen's d of each secondary loss added to a primary loss.

    Methods have the names of suites. Beside cross-entropy a secondary loss has its own name, with
    or without ``interleaved_``; the interleaved one is used if both exist, as in the paper.
    """
    effects = {}
    for secondary in secondaries:
        names = list_names(primary, secondary)
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


class Smoothing(NamedTuple):
    """Hold what a regulariser takes from targets, f·C of acls eq. 8, against a logit.

    ``printed_...`` are those of acls's table 2, NaN where it leaves the constants open.
    """

    predicted: Numbers  # taken from the predicted class, by its own logit
    other: Numbers  # added to another class, by that class's logit
    printed_predicted: Numbers
    printed_other: Numbers
    condition: Numbers  # C of the predicted class as printed


# acls's table 2 in its order, with the confidence penalty.
REGULARISERS = {
    "label_smoothing": "label_smoothing(smoothing=0.05)",
    "flsd": "flsd",
    "confidence_penalty": "cross_entropy+0.1*confidence_penalty",
    "cpc": "cross_entropy+cpc",
    "mdca": "cross_entropy+mdca",
    "mbls": "cross_entropy+mbls(margin=10)",
    "crl": "crl",
    "acls": "cross_entropy+acls(margin=10)",
}
MARGIN, RANKED_BELOW = 10.0, (2, 9)  # right answers of 10 of crl's row, and of its partner


def compute_smoothing(
    *, classes: int = 10, largest: float = 20.0, points: int = 201
) -> dict[str, Smoothing]:
    """Compute f·C of every regulariser against the logit (acls figure 1 and table 2).

    One row, rightly classified. For the predicted class its logit grows from 0 to ``largest`` while
    the others are 0; for another class that class's logit does, below a predicted logit of
    ``largest``. Values are derivatives of the losses themselves, with their default weights, less
    cross-entropy's, times the number of rows. MDCA's row is in a batch that predicts its class too
    often and all others too seldom; CRL's has a partner that was right more often and is less
    sure, so that the condition holds.

    Args:
        classes: K. Default: 10.
        largest: the largest logit. Default: 20, twice the margin.
        points: how many logits. Default: 201.
    """
    places = np.linspace(0, largest, points)
    rows = np.zeros((2, points, classes))
    rows[0, :, 0] = places
    rows[1, :, 0], rows[1, :, 1] = largest, places
    rows[1, :, 2:] = -1e-9  # so that the smallest logit is never that of the class looked at
    smoothing = {}
    for name in REGULARISERS:
        slopes = [np.stack([_differentiate(name, row) for row in rows[side]]) for side in (0, 1)]
        printed = [_print_table_2(name, rows[side]) for side in (0, 1)]
        smoothing[name] = Smoothing(
            slopes[0][:, 0],
            -slopes[1][:, 1],
            printed[0][0],
            printed[1][1],
            _print_condition(name, rows[0]),
        )
    return smoothing


def _differentiate(name: str, row: Numbers) -> Numbers:
    """Compute ∂L_REG/∂z of one row of label 0, times the number of rows of its batch."""
    logits = torch.tensor(row[None], requires_grad=True)
    classes = len(row)
    if name == "crl":
        # Both rows are in both pairs: the mean over rows has the row's own term twice.
        partner = torch.zeros(1, classes, dtype=torch.float64)
        right, seen = torch.tensor(RANKED_BELOW), torch.tensor([10, 10])
        batch, labels = torch.cat((logits, partner)), _make_zeros(2)
        value = losses.crl(batch, labels, right=right, seen=seen)
    elif name == "mdca":
        # A row of each other label, predicted as class 0.
        others = torch.zeros(classes - 1, classes, dtype=torch.float64)
        others[:, 0] = 10.0
        value = classes * losses.mdca(torch.cat((logits, others)), torch.arange(classes))
    else:
        value = losses.get(REGULARISERS[name])(logits, _make_zeros(1))
        value = value - losses.get("cross_entropy")(logits, _make_zeros(1))
    (slope,) = torch.autograd.grad(value, logits)
    return np.asarray(slope[0])


def _print_table_2(name: str, rows: Numbers) -> tuple[Numbers, Numbers]:
    """Compute f·C of class 0, the predicted one, and of class 1 as acls's table 2 prints them.

    λ1 and λ2 are the weights of the losses here, with their means over classes.
    """
    classes = rows.shape[1]
    p = np.exp(rows - rows.max(1, keepdims=True))
    p /= p.sum(1, keepdims=True)
    top, other = p[:, 0], p[:, 1]
    nothing = np.full(len(rows), np.nan)
    if name == "label_smoothing":
        return np.full(len(rows), 0.05 * (1 - 1 / classes)), np.full(len(rows), 0.05 / classes)
    if name == "cpc":
        first, second = 0.1 / (classes - 1), 1.0 / ((classes - 1) * (classes - 2))
        own = -first * sum(p[:, k] / (p[:, k] + top) for k in range(1, classes))
        pairs = sum((p[:, k] - other) / (p[:, k] + other) for k in range(1, classes))
        return own, first * other / (top + other) + second * pairs
    if name == "mdca":
        return top * (1 - top) / classes, other * (1 + top) / classes
    if name == "crl":
        holds = _print_condition(name, rows)
        return top * (1 - top) * holds, top * other * holds
    apart = rows[:, 0] - rows[:, 1]
    if name == "mbls":
        return np.zeros(len(rows)), 0.1 / classes * (apart >= MARGIN)
    if name == "acls":
        own = 0.1 * np.maximum(rows[:, 0] - rows.min(1) - MARGIN, 0)
        return own, 0.01 / (classes - 1) * np.maximum(apart - MARGIN, 0)
    return nothing, nothing  # flsd's constants are not given; confidence_penalty is not in it


def _print_condition(name: str, rows: Numbers) -> Numbers:
    """Compute C of the predicted class, acls's table 2."""
    if name == "mbls":
        return np.zeros(len(rows))
    if name == "acls":
        return (rows[:, 0] - rows.min(1) >= MARGIN).astype(float)
    if name == "crl":
        p = np.exp(rows - rows.max(1, keepdims=True))
        below = RANKED_BELOW[0] < RANKED_BELOW[1]  # H < 0, and the partner's confidence is 1/K
        return (below * (p.max(1) / p.sum(1) > 1 / rows.shape[1] + 1e-12)).astype(float)
    return np.ones(len(rows))
