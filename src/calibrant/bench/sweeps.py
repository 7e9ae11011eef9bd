"""Numbers behind the papers' pictures that need no training: of formulas, logits or features."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from calibrant import losses
from calibrant.functional.errors import InputError
from calibrant.losses.avuc import soft_uncertainty
from calibrant.losses.r_aurc import RegularizedAURC
from calibrant.losses.sb_ece import membership
from calibrant.metrics import ece

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


@dataclass(frozen=True)
class HardClasses:
    """A temperature fitted on the hardest classes alone, step by step."""

    chosen: tuple[int, ...]  # classes, the hardest first
    temperature: Numbers
    total: Numbers  # mean loss of all rows
    by_class: Numbers  # (steps + 1, classes): mean loss of each
    spread: Numbers  # standard deviation over classes
    ece: Numbers

    def same_loss(self) -> tuple[int, int] | None:
        """Two steps of nearly the same total loss with the most different spread: A and B.

        The loss falls, and rises again once the other classes pay: A is before the lowest
        point, B after it. None where it never rises.
        """
        low = int(np.argmin(self.total))
        before, after = np.arange(low), np.arange(low + 1, len(self.total))
        if not len(before) or not len(after):
            return None
        best: tuple[float, int, int] | None = None
        for a in before.tolist():
            b = int(after[np.argmin(np.abs(self.total[after] - self.total[a]))])
            if abs(self.total[b] - self.total[a]) > 0.02 * (
                self.total[a] - self.total[low] + 1e-12
            ):
                continue
            apart = abs(float(self.spread[a] - self.spread[b]))
            if best is None or apart > best[0]:
                best = (apart, a, b)
        return None if best is None else best[1:]


def hard_classes(
    logits: Tensor,
    labels: Tensor,
    *,
    hardest: int = 3,
    steps: int = 300,
    rate: float = 0.05,
    num_bins: int = 15,
) -> HardClasses:
    """Class-scaling eq. 2 and figure 3: z/T with T learnt on the hardest classes' rows alone.

    The hardest are those of largest mean cross-entropy at T = 1. The paper does not say which
    layer it fits; a temperature is the one of its methods that has one number. Plain
    descent on ln T: momentum would carry T beyond its end and back.
    """
    z, count = logits.double(), int(logits.shape[1])
    if not 0 < hardest < count:
        raise InputError(f"hardest is between 1 and {count - 1} classes, found {hardest}")
    classes = torch.unique(labels)
    log_t = torch.zeros((), dtype=torch.float64, requires_grad=True)
    chosen = _class_losses(z, labels, classes).argsort(descending=True)[:hardest]
    rows = torch.isin(labels, classes[chosen])
    descent = torch.optim.SGD([log_t], lr=rate)
    told: list[tuple[float, float, Numbers, float]] = []
    for step in range(steps + 1):
        with torch.no_grad():
            scaled = z / log_t.exp()
            each = _class_losses(scaled, labels, classes)
            total = float(nn.functional.cross_entropy(scaled, labels))
            error = float(ece(scaled, labels, num_bins=num_bins))
            told.append((float(log_t.exp()), total, each.numpy(), error))
        if step < steps:
            descent.zero_grad()
            loss = nn.functional.cross_entropy(z[rows] / log_t.exp(), labels[rows])
            loss.backward()  # type: ignore[no-untyped-call]
            descent.step()
    by_class = np.stack([one[2] for one in told])
    return HardClasses(
        tuple(classes[chosen].tolist()),
        np.array([one[0] for one in told]),
        np.array([one[1] for one in told]),
        by_class,
        by_class.std(1, ddof=1),
        np.array([one[3] for one in told]),
    )


def _class_losses(logits: Tensor, labels: Tensor, classes: Tensor) -> Tensor:
    """Mean cross-entropy of each class."""
    each = nn.functional.cross_entropy(logits, labels, reduction="none")
    return torch.stack([each[labels == one].mean() for one in classes])


def masked_inference(
    features: Tensor,
    labels: Tensor,
    weight: Tensor,
    bias: Tensor,
    *,
    ratios: Sequence[float],
    draws: int = 5,
    seed: int = 0,
) -> dict[float, tuple[float, float]]:
    """Accuracy and mean confidence of a linear classifier with a share of its weights masked.

    mac-cal figure 1 (b) and (c): fresh masks on (D,K) weights, ``draws`` of them a ratio, not
    rescaled, the network as it is otherwise.
    """
    generator = torch.Generator().manual_seed(seed)
    found = {}
    for ratio in ratios:
        if not 0 <= ratio <= 1:
            raise InputError(f"a share masked lies in [0, 1], found {ratio!r}")
        right, sure = [], []
        for _ in range(draws):
            kept = torch.rand(weight.shape, generator=generator).to(weight.device) >= ratio
            p = torch.softmax((features @ (weight * kept) + bias).double(), 1)
            best, predicted = p.max(1)
            right.append(float((predicted == labels).double().mean()))
            sure.append(float(best.mean()))
        found[ratio] = (math.fsum(right) / draws, math.fsum(sure) / draws)
    return found


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
