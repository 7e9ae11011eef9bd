"""Second stages on frozen features: MaC-Cal, TST and VTST."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from calibrant.calibrators.mac_cal_head import MacCalHead
from calibrant.functional.errors import InputError
from calibrant.training.recipes.base import Recipe

if TYPE_CHECKING:
    from calibrant.training.job import Job


class MacCal(Recipe):
    """MaC-Cal: train as usual, then retrain the head under masks on features computed once.

    Options are those of `calibrant.calibrators.mac_cal_head.MacCalHead`, its ablation
    switches among them; γ is chosen on the validation rows unless it is given.
    """

    name = "mac_cal"
    dense = False
    plain: ClassVar[dict[str, Any]] = {}

    def __init__(self, **options: Any) -> None:
        super().__init__()
        MacCalHead(**{**self.plain, **options})  # refuses bad options now
        self.options = {**self.plain, **options}

    def prepare(self, job: Job) -> None:
        """See now that there is a classifier to replace."""
        job.split()

    def finish(self, job: Job) -> dict[str, float]:
        """Stage two, in the classifier's place."""
        head = MacCalHead(
            **{"seed": job.config.seed, "num_classes": job.num_classes, **self.options}
        )
        features, labels = job.features(job.train)
        held = None
        if head.gamma is None and job.validation is not None and len(job.validation):  # type: ignore[arg-type]
            held = job.features(job.validation)
        head.fit(features, labels, validation=held)
        job.replace_head(head.to(job.device))
        return {
            key: float(value)
            for key, value in head.summary_.items()
            if isinstance(value, (int, float)) and not isinstance(value, bool)
        }


class TST(MacCal):
    """Two-stage training: freeze the extractor, retrain a fresh head (Jordahn and Olmos 2024)."""

    name = "tst"
    plain: ClassVar[dict[str, Any]] = {"schedule": "fixed", "sparsity": 0.0, "gamma": 1.0}


class VariationalHead(nn.Module):
    """z ~ N(μ(f), σ²(f)), then linear; in use the mean of several softmaxes, as log p."""

    def __init__(self, inputs: int, latent: int, num_classes: int, samples: int) -> None:
        super().__init__()
        self.mean, self.log_std = nn.Linear(inputs, latent), nn.Linear(inputs, latent)
        self.last = nn.Linear(latent, num_classes)
        self.samples = samples
        # Held, so that the same features always give the same answer.
        how = torch.Generator().manual_seed(0)
        self.register_buffer("draws", torch.randn(samples, 1, latent, generator=how))

    draws: Tensor

    def latent(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """μ and σ."""
        return self.mean(features), F.softplus(self.log_std(features)) + 1e-6

    def forward(self, features: Tensor) -> Tensor:
        """ln of the mean of ``samples`` softmaxes."""
        mean, std = self.latent(features.float())
        logits = self.last(mean + std * self.draws)
        return torch.logsumexp(torch.log_softmax(logits, 2), 0) - math.log(self.samples)


class VTST(Recipe):
    """Variational two-stage training: 40 epochs, KL/latent width with weight 1, 10 samples.

    SGD as in stage one's settings of mac-cal: lr 0.1, momentum 0.9, decay 5e-4, batches of
    128. The latent width is 128 up to 32 classes, else 256, as MaC-Cal's bottleneck is.
    """

    name = "vtst"
    dense = False

    def __init__(
        self,
        *,
        epochs: int = 40,
        latent: int | None = None,
        samples: int = 10,
        kl_weight: float = 1.0,
        learning_rate: float = 0.1,
    ) -> None:
        super().__init__()
        if epochs < 1 or samples < 1 or kl_weight < 0 or learning_rate <= 0:
            raise InputError(
                "epochs and samples are at least 1, kl_weight not negative and learning_rate "
                f"above 0, found {epochs!r}, {samples!r}, {kl_weight!r}, {learning_rate!r}"
            )
        self.epochs, self.latent, self.samples = epochs, latent, samples
        self.kl_weight, self.learning_rate = kl_weight, learning_rate

    def prepare(self, job: Job) -> None:
        """See now that there is a classifier to replace."""
        job.split()

    def finish(self, job: Job) -> dict[str, float]:
        """Stage two, in the classifier's place."""
        features, labels = job.features(job.train)
        width = self.latent or (128 if job.num_classes <= 32 else 256)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(job.config.seed)
            head = VariationalHead(features.shape[1], width, job.num_classes, self.samples)
        head = head.to(job.device)
        loss = train_variational(
            head,
            features,
            labels,
            epochs=self.epochs,
            rate=self.learning_rate,
            kl_weight=self.kl_weight,
            seed=job.config.seed,
        )
        job.replace_head(head)
        return {"stage_two_loss": loss}


def kl_to_standard(mean: Tensor, std: Tensor) -> Tensor:
    """KL(N(μ,σ²) ‖ N(0,1)), a number a row: ½ Σ (σ² + μ² − 1 − ln σ²)."""
    return 0.5 * (std**2 + mean**2 - 1.0 - 2.0 * std.log()).sum(1)


def train_variational(
    head: VariationalHead,
    features: Tensor,
    labels: Tensor,
    *,
    epochs: int,
    rate: float,
    kl_weight: float,
    seed: int,
    batch_size: int = 128,
) -> float:
    """Minimise cross-entropy + weight · KL / latent width; the last epoch's mean loss."""
    device = features.device
    draw = torch.Generator(device).manual_seed(seed)
    steps = torch.optim.SGD(head.parameters(), lr=rate, momentum=0.9, weight_decay=5e-4)
    scale = features.square().mean().sqrt().clamp_min(1e-12)  # lr 0.1 would diverge on large ones
    total = torch.zeros((), device=device)
    for _ in range(epochs):
        total = torch.zeros((), device=device)
        order = torch.randperm(len(features), generator=draw, device=device)
        for rows in torch.split(order, batch_size):
            with torch.enable_grad():
                mean, std = head.latent(features[rows] / scale)
                noise = torch.randn(mean.shape, generator=draw, device=device)
                logits = head.last(mean + std * noise)
                kl = kl_to_standard(mean, std).mean() / mean.shape[1]
                loss = F.cross_entropy(logits, labels[rows]) + kl_weight * kl
            steps.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            steps.step()
            total += loss.detach() * len(rows)
    with torch.no_grad():  # the scale moves into the weights
        head.mean.weight /= scale
        head.log_std.weight /= scale
    value = float(total) / len(features)
    if not math.isfinite(value):
        raise InputError("the second stage diverged: lower learning_rate")
    return value
