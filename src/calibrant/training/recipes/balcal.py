"""BalCAL: a linear head balanced against a fixed simplex one."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from calibrant.functional.errors import InputError
from calibrant.training.recipes.base import Recipe

if TYPE_CHECKING:
    from calibrant.training.job import Job

STEPS = 30  # of the bisection: λ to 1e-9


def simplex_frame(num_classes: int, width: int, generator: torch.Generator) -> Tensor:
    """K unit vectors of R^D, every two at the same, largest angle: cos = −1/(K−1).

    √(K/(K−1))·U(I − 11ᵀ/K), U an orthonormal (D,K) matrix; K ≤ D.
    """
    if num_classes > width:
        raise InputError(
            f"{num_classes} directions of a simplex need at least as many dimensions, found {width}"
        )
    start = torch.randn(width, num_classes, generator=generator, dtype=torch.float64)
    basis, _ = torch.linalg.qr(start)
    centred = torch.eye(num_classes, dtype=torch.float64) - 1.0 / num_classes
    return ((num_classes / (num_classes - 1)) ** 0.5 * basis @ centred).t().float()


class BalancedHead(nn.Module):
    """λ·(linear logits) + (1−λ)·(simplex logits of adapted, normalised features)."""

    frame: Tensor
    share: Tensor

    def __init__(self, linear: nn.Linear, frame: Tensor) -> None:
        super().__init__()
        self.linear = linear
        self.adaptor = nn.Sequential(nn.Linear(linear.in_features, frame.shape[1]), nn.ReLU())
        self.register_buffer("frame", frame)
        self.register_buffer("share", torch.ones(()))

    def both(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """Linear and simplex logits."""
        adapted = F.normalize(self.adaptor(features).float(), dim=1)
        return self.linear(features), adapted @ self.frame.t()

    def forward(self, features: Tensor) -> Tensor:
        """Balanced logits."""
        linear, simplex = self.both(features)
        return torch.lerp(simplex.float(), linear.float(), self.share)


def bisect_share(confidence: Callable[[float], float], wanted: float) -> float:
    """λ in [0, 1] at which a rising mean confidence is the one wanted; 1 where it is below it."""
    if confidence(1.0) <= wanted:
        return 1.0
    low, high = 0.0, 1.0
    for _ in range(STEPS):
        middle = 0.5 * (low + high)
        if confidence(middle) > wanted:
            high = middle
        else:
            low = middle
    return 0.5 * (low + high)


class BalCAL(Recipe):
    """Linear head and fixed simplex-ETF head behind an adaptor, balanced after every epoch.

    λ is found by bisection so that the mean confidence of unaugmented training rows is δ times
    their accuracy; it stays 1 where it is below that already. The loss is of the balanced
    logits. δ and the adaptor (linear, ReLU, features normalised) are ours: the papers here do
    not give them.
    """

    name = "balcal"
    dense = False

    def __init__(self, *, delta: float = 0.96, rows: int = 5000) -> None:
        super().__init__()
        if not 0 < delta <= 1:
            raise InputError(f"delta lies in (0, 1], found {delta!r}")
        self.delta, self.rows = delta, rows

    def prepare(self, job: Job) -> None:
        """Put the balanced head in the classifier's place."""
        head = job.split().head
        if not isinstance(head, nn.Linear):
            raise InputError(f"balcal needs a linear classifier, found {type(head).__name__}")
        how = torch.Generator().manual_seed(job.config.seed)
        width = max(head.in_features, job.num_classes)
        frame = simplex_frame(job.num_classes, width, how)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(job.config.seed)
            self._head = [BalancedHead(head, frame).to(job.device)]  # a list: not a part of ours
        job.replace_head(self._head[0])

    @torch.no_grad()
    def after_epoch(self, job: Job) -> dict[str, float]:
        """Balance anew."""
        head = self._head[0]
        features, labels = job.features(job.train, job.some_rows(self.rows))
        head.eval()
        linear, simplex = head.both(features)
        head.train()

        def confidence(share: float) -> float:
            mixed = torch.lerp(simplex, linear, share)
            return float(torch.softmax(mixed, 1).amax(1).double().mean())

        # Which class is largest may change with λ: accuracy is that of the balance as it is.
        current = torch.lerp(simplex, linear, head.share)
        accuracy = float((current.argmax(1) == labels).double().mean())
        head.share.fill_(bisect_share(confidence, self.delta * accuracy))
        return {"balance": float(head.share)}
