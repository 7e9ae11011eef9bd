"""BalCAL: balance a linear head against a fixed simplex head."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from calibrant.core.errors import InputError
from calibrant.training.recipes.base import Job, Recipe

STEPS = 30  # bisections: λ to 1e-9


def simplex_frame(num_classes: int, width: int, generator: torch.Generator) -> Tensor:
    """Return K unit vectors of R^D, every two at the same, largest angle: cos = −1/(K−1).

    √(K/(K−1))·U(I − 11ᵀ/K), with an orthonormal (D,K) matrix U; K ≤ D.

    Args:
        num_classes: K.
        width: D.
        generator: Draws U.
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
    """Compute λ·(linear logits) + (1−λ)·(simplex logits of adapted, normalised features).

    Args:
        linear: The network's own classifier.
        frame: The simplex, from `simplex_frame`.
    """

    frame: Tensor
    share: Tensor

    def __init__(self, linear: nn.Linear, frame: Tensor) -> None:
        super().__init__()
        self.linear = linear
        self.adaptor = nn.Sequential(nn.Linear(linear.in_features, frame.shape[1]), nn.ReLU())
        self.register_buffer("frame", frame)
        self.register_buffer("share", torch.ones(()))

    def both(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """Return linear and simplex logits."""
        adapted = F.normalize(self.adaptor(features).float(), dim=1)
        return self.linear(features), adapted @ self.frame.t()

    def forward(self, features: Tensor) -> Tensor:
        """Return balanced logits."""
        linear, simplex = self.both(features)
        return torch.lerp(simplex.float(), linear.float(), self.share)


def bisect_share(confidence: Callable[[float], float], goal: float) -> float:
    """Find λ in [0, 1] where a rising mean confidence meets ``goal``; 1 if it stays below."""
    if confidence(1.0) <= goal:
        return 1.0
    low, high = 0.0, 1.0
    for _ in range(STEPS):
        middle = 0.5 * (low + high)
        if confidence(middle) > goal:
            high = middle
        else:
            low = middle
    return 0.5 * (low + high)


class BalCAL(Recipe):
    """Balance a linear head and a fixed simplex-ETF head behind an adaptor after every epoch.

    Bisection finds λ so that the mean confidence of unaugmented training rows is δ times their
    accuracy; λ stays 1 if it is below that already. The loss is that of the balanced logits.
    The adaptor (linear, ReLU, normalised features) is ours: the papers here do not give it.

    Args:
        delta: δ, the mean confidence divided by the accuracy. Default: 0.96 (ours: mac-cal's γ
            of 0.96, which plays the same part; the papers here give no value).
        rows: The training rows that λ is found on. Default: 5000 (ours: a tenth of CIFAR;
            the mean is then within half a percent).
    """

    name = "balcal"
    dense = False

    def __init__(self, *, delta: float = 0.96, rows: int = 5000) -> None:
        super().__init__()
        if not 0 < delta <= 1:
            raise InputError(f"delta must lie in (0, 1], found {delta!r}")
        self.delta, self.rows = delta, rows

    def prepare(self, job: Job) -> None:
        """Replace the classifier by the balanced head."""
        head = job.split().head
        if not isinstance(head, nn.Linear):
            raise InputError(f"balcal needs a linear classifier, found {type(head).__name__}")
        generator = torch.Generator().manual_seed(job.config.seed)
        width = max(head.in_features, job.num_classes)
        frame = simplex_frame(job.num_classes, width, generator)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(job.config.seed)
            self._head = [BalancedHead(head, frame).to(job.device)]  # in a list: not a submodule
        job.replace_head(self._head[0])

    @torch.no_grad()
    def after_epoch(self, job: Job) -> dict[str, float]:
        """Balance the heads again."""
        head = self._head[0]
        features, labels = job.features(job.train, job.some_rows(self.rows))
        head.eval()
        linear, simplex = head.both(features)
        head.train()

        def confidence(share: float) -> float:
            mixed = torch.lerp(simplex, linear, share)
            return float(torch.softmax(mixed, 1).amax(1).double().mean())

        # The largest class may change with λ: take the accuracy of the current balance.
        current = torch.lerp(simplex, linear, head.share)
        accuracy = float((current.argmax(1) == labels).double().mean())
        head.share.fill_(bisect_share(confidence, self.delta * accuracy))
        return {"balance": float(head.share)}
