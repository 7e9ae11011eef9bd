"""MC dropout: the mean of several predictions with dropout left on."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from calibrant.core.errors import InputError
from calibrant.training.recipes.base import Job, Recipe

LAYERS = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout)


class MCDropout(Recipe):
    """Average softmaxes with dropout on (Gal and Ghahramani 2016).

    Args:
        samples: The softmaxes to average. Default: 10 (ours: as many as VTST's).
        rate: The rate of the dropout layer put before the classifier of a network without
            dropout. Default: 0.2 (ours: costs little accuracy; the papers here give no value).
    """

    name = "mc_dropout"

    def __init__(self, *, samples: int = 10, rate: float = 0.2) -> None:
        super().__init__()
        if samples < 1 or not 0 < rate < 1:
            raise InputError(
                f"samples must be at least 1 and rate in (0, 1), found {samples!r} and {rate!r}"
            )
        self.samples, self.rate = samples, rate

    def prepare(self, job: Job) -> None:
        """Add dropout before the classifier if the network has none."""
        if not any(isinstance(module, LAYERS) for module in job.network.modules()):
            head = job.split().head
            job.replace_head(nn.Sequential(nn.Dropout(self.rate), head))

    def predict(self, job: Job, inputs: Tensor) -> Tensor:
        """Return the logarithm of the mean softmax; the same seed gives the same draws."""
        layers = [module for module in job.network.modules() if isinstance(module, LAYERS)]
        with torch.random.fork_rng(devices=[job.device] if job.device.type == "cuda" else []):
            torch.manual_seed(job.config.seed)
            for layer in layers:
                layer.train()
            try:
                samples = [torch.log_softmax(job.model(inputs), 1) for _ in range(self.samples)]
            finally:
                for layer in layers:
                    layer.eval()
        return torch.logsumexp(torch.stack(samples), 0) - math.log(self.samples)
