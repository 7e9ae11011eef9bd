"""VTST's head: a classifier on random latent features, averaged over samples."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from calibrant.calibrators.heads.base import FeatureHead, Held, Tick, check_classes
from calibrant.core.errors import InputError

WIDE = 32  # classes up to which the latent width is 128; above, 256
LEAST = 1e-6  # least standard deviation


class VTSTHead(FeatureHead):
    """z ~ N(μ(f), σ²(f)), then linear; at inference the log of the mean of several softmaxes.

    The second stage of variational two-stage training (Jordahn and Olmos 2024): cross-entropy
    + KL/latent width, by SGD with momentum 0.9 and weight decay 5e-4. The draws are stored, so
    that the same features always give the same logits.

    Args:
        latent: The width of z; None is 128 for up to 32 classes, else 256. Default: None (ours:
            as wide as MaC-Cal's bottleneck).
        samples: The number of softmaxes averaged at inference. Default: 10 (docs/decisions.md).
        kl_weight: The weight of KL/latent width. Default: 1.0 (docs/decisions.md).
        num_classes: The number of classes, where the last ones have no rows. Default: None (as
            many as the largest label or the class names need).
        epochs: The number of epochs. Default: 40 (mac-cal, section 5.1).
        learning_rate: The learning rate of SGD, constant. Default: 0.1 (mac-cal, section 5.1).
        batch_size: Rows in a batch. Default: 128 (mac-cal, section 5.1).
        seed: The seed of first weights, batches and draws in training. Default: 0 (ours: a fit
            repeats exactly).
    """

    name = "vtst_head"

    mean_weight_: Tensor
    mean_bias_: Tensor
    spread_weight_: Tensor
    spread_bias_: Tensor
    weight_: Tensor
    bias_: Tensor
    draws_: Tensor  # (samples, 1, latent)

    def __init__(
        self,
        *,
        latent: int | None = None,
        samples: int = 10,
        kl_weight: float = 1.0,
        num_classes: int | None = None,
        epochs: int = 40,
        learning_rate: float = 0.1,
        batch_size: int = 128,
        seed: int = 0,
    ) -> None:
        super().__init__()
        if min(epochs, samples, batch_size) < 1 or kl_weight < 0 or not learning_rate > 0:
            raise InputError(
                "epochs, samples and batch_size must be at least 1, kl_weight not negative and "
                f"learning_rate positive, found {epochs!r}, {samples!r}, {batch_size!r}, "
                f"{kl_weight!r}, {learning_rate!r}"
            )
        if latent is not None and latent < 1:
            raise InputError(f"latent must be at least 1, found {latent!r}")
        self.latent, self.samples, self.kl_weight = latent, samples, kl_weight
        self.num_classes = check_classes(num_classes)
        self.epochs, self.learning_rate = epochs, learning_rate
        self.batch_size, self.seed = batch_size, seed
        for key in ("mean_weight_", "mean_bias_", "spread_weight_", "spread_bias_"):
            self.register_buffer(key, torch.zeros(0))
        for key in ("weight_", "bias_", "draws_"):
            self.register_buffer(key, torch.zeros(0))

    @property
    def input_width(self) -> int:
        """Return D, the number of features of a row."""
        return self.mean_weight_.shape[-1]

    def _train(
        self, rows: Tensor, labels: Tensor, classes: int, held: Held | None, tick: Tick
    ) -> dict[str, Any]:
        latent = self.latent or (128 if classes <= WIDE else 256)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed)
            parts = [nn.Linear(rows.shape[1], latent) for _ in range(2)]
            parts.append(nn.Linear(latent, classes))
        mean, spread, last = (part.to(rows.device) for part in parts)
        loss = self._descend(rows.float(), labels, mean, spread, last, tick)
        self.mean_weight_, self.mean_bias_ = mean.weight.detach(), mean.bias.detach()
        self.spread_weight_, self.spread_bias_ = spread.weight.detach(), spread.bias.detach()
        self.weight_, self.bias_ = last.weight.detach(), last.bias.detach()
        how = torch.Generator().manual_seed(0)
        self.draws_ = torch.randn(self.samples, 1, latent, generator=how).to(rows.device)
        return {"stage_two_loss": loss}

    def latent_of(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """Return μ and σ."""
        mean = F.linear(features, self.mean_weight_.to(features), self.mean_bias_.to(features))
        spread = F.linear(
            features, self.spread_weight_.to(features), self.spread_bias_.to(features)
        )
        return mean, F.softplus(spread) + LEAST

    def _map(self, logits: Tensor) -> Tensor:
        """Return ln of the mean of ``samples`` softmaxes."""
        mean, spread = self.latent_of(logits)
        latent = mean + spread * self.draws_.to(mean)
        drawn_logits = F.linear(latent, self.weight_.to(mean), self.bias_.to(mean))
        return torch.logsumexp(torch.log_softmax(drawn_logits, 2), 0) - math.log(self.samples)

    def _descend(
        self,
        features: Tensor,
        labels: Tensor,
        mean: nn.Linear,
        spread: nn.Linear,
        last: nn.Linear,
        tick: Tick,
    ) -> float:
        """Minimise cross-entropy + weight · KL / latent width; return the last epoch's loss."""
        device = features.device
        draw = torch.Generator(device).manual_seed(self.seed)
        parameters = [*mean.parameters(), *spread.parameters(), *last.parameters()]
        steps = torch.optim.SGD(parameters, lr=self.learning_rate, momentum=0.9, weight_decay=5e-4)
        # A learning rate of 0.1 would diverge on large features.
        scale = features.square().mean().sqrt().clamp_min(1e-12)
        total = torch.zeros((), device=device)
        for epoch in range(1, self.epochs + 1):
            total = torch.zeros((), device=device)
            order = torch.randperm(len(features), generator=draw, device=device)
            for rows in torch.split(order, self.batch_size):
                with torch.enable_grad():
                    inputs = features[rows] / scale
                    centre, width = mean(inputs), F.softplus(spread(inputs)) + LEAST
                    noise = torch.randn(centre.shape, generator=draw, device=device)
                    logits = last(centre + width * noise)
                    kl = kl_to_standard(centre, width).mean() / centre.shape[1]
                    loss = F.cross_entropy(logits, labels[rows]) + self.kl_weight * kl
                steps.zero_grad()
                loss.backward()
                steps.step()
                total += loss.detach() * len(rows)
            tick(epoch)
        with torch.no_grad():  # the scale moves into the weights
            mean.weight /= scale
            spread.weight /= scale
        value = float(total) / len(features)
        if not math.isfinite(value):
            raise InputError("the second stage diverged: give a smaller learning_rate")
        return value


def kl_to_standard(mean: Tensor, spread: Tensor) -> Tensor:
    """Return KL(N(μ,σ²) ‖ N(0,1)) of each row: ½ Σ (σ² + μ² − 1 − ln σ²)."""
    return 0.5 * (spread**2 + mean**2 - 1.0 - 2.0 * spread.log()).sum(1)
