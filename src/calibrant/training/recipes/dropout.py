"""MC dropout: the mean of several answers with dropout left on."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from calibrant.functional.errors import InputError
from calibrant.training.recipes.base import Recipe

if TYPE_CHECKING:
    from calibrant.training.job import Job

KINDS = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout)


class MCDropout(Recipe):
    """Mean of ``samples`` softmaxes with dropout on (Gal and Ghahramani 2016).

    A network without dropout is given some before its classifier, of ``rate``.
    """

    name = "mc_dropout"

    def __init__(self, *, samples: int = 10, rate: float = 0.2) -> None:
        super().__init__()
        if samples < 1 or not 0 < rate < 1:
            raise InputError(
                f"samples is at least 1 and rate in (0, 1), found {samples!r} and {rate!r}"
            )
        self.samples, self.rate = samples, rate

    def prepare(self, job: Job) -> None:
        """See that there is dropout."""
        if not any(isinstance(module, KINDS) for module in job.network.modules()):
            head = job.split().head
            job.replace_head(nn.Sequential(nn.Dropout(self.rate), head))

    def predict(self, job: Job, inputs: Tensor) -> Tensor:
        """ln of the mean softmax; the draws are the same for the same seed."""
        layers = [module for module in job.network.modules() if isinstance(module, KINDS)]
        with torch.random.fork_rng(devices=[job.device] if job.device.type == "cuda" else []):
            torch.manual_seed(job.config.seed)
            for layer in layers:
                layer.train()
            try:
                answers = [torch.log_softmax(job.model(inputs), 1) for _ in range(self.samples)]
            finally:
                for layer in layers:
                    layer.eval()
        return torch.logsumexp(torch.stack(answers), 0) - math.log(self.samples)
