"""Optimisers, rates by step, and averages of weights."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from calibrant.training.config import Config


def make_optimizer(config: Config, parameters: Iterable[Tensor]) -> torch.optim.Optimizer:
    """SGD with momentum, or AdamW."""
    wanted = [parameter for parameter in parameters if parameter.requires_grad]
    # One kernel for all weights, where there is one.
    fused = all(one.is_cuda and one.is_floating_point() for one in wanted) or None
    common: dict[str, Any] = {"lr": config.lr, "weight_decay": config.weight_decay, "fused": fused}
    if config.optimizer == "adamw":
        return torch.optim.AdamW(wanted, **common)
    return torch.optim.SGD(wanted, momentum=config.momentum, nesterov=config.nesterov, **common)


def rate(config: Config, step: int, steps_an_epoch: int) -> float:
    """The learning rate of a step: a function of its number alone, so nothing to checkpoint.

    multi_step and cosine change between epochs, one_cycle between steps: from lr/25 in a line
    to lr over the ``warmup`` share, and in a line to 0.
    """
    epoch, total = step // steps_an_epoch, config.epochs * steps_an_epoch
    if config.schedule == "multi_step":
        passed = sum(epoch >= milestone for milestone in config.milestones)
        return config.lr * config.gamma**passed
    if config.schedule == "cosine":
        return 0.5 * config.lr * (1.0 + math.cos(math.pi * epoch / config.epochs))
    if config.schedule == "one_cycle":
        peak = max(1.0, config.warmup * total)
        if step < peak:
            return config.lr * (0.04 + 0.96 * step / peak)
        return config.lr * max(total - step, 0) / max(total - peak, 1.0)
    return config.lr


class Average(nn.Module):
    """A running average of a network's weights: exponential, or plain (SWA)."""

    count: Tensor

    def __init__(self, network: nn.Module, decay: float | None) -> None:
        super().__init__()
        self.decay = decay  # None: every weight of the past counts the same
        self._counted: int | None = None
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))
        self.names = [name for name, value in _floats(network)]
        for index, (_, value) in enumerate(_floats(network)):
            self.register_buffer(f"w{index}", value.detach().clone())

    @property
    def weights(self) -> list[Tensor]:
        """The averages."""
        return [getattr(self, f"w{index}") for index in range(len(self.names))]

    @torch.no_grad()
    def update(self, network: nn.Module) -> None:
        """Take the network's weights in."""
        # Counted here as well: asking the buffer each step would wait for the device.
        self._counted = (int(self.count) if self._counted is None else self._counted) + 1
        self.count += 1
        if self.decay is not None:
            # Young averages forget faster, or the start would stay for long.
            share = 1.0 - min(self.decay, self._counted / (9.0 + self._counted))
        else:
            share = 1.0 / self._counted
        torch._foreach_lerp_(self.weights, [value.detach() for _, value in _floats(network)], share)

    def _load_from_state_dict(self, *given: Any) -> None:
        super()._load_from_state_dict(*given)
        self._counted = None

    @torch.no_grad()
    def copy_to(self, network: nn.Module) -> None:
        """Put the averages into the network."""
        for mean, (_, value) in zip(self.weights, _floats(network), strict=True):
            value.copy_(mean)


def _floats(network: nn.Module) -> list[tuple[str, Tensor]]:
    """Parameters and floating buffers by name."""
    named = [*network.named_parameters(), *network.named_buffers()]
    return [(name, value) for name, value in named if value.is_floating_point()]


@torch.no_grad()
def renew_batch_norm(network: nn.Module, batches: Iterable[Tensor]) -> None:
    """BatchNorm statistics of averaged weights: means over a pass of the training rows."""
    layers = [one for one in network.modules() if isinstance(one, nn.modules.batchnorm._BatchNorm)]
    if not layers:
        return
    before = [layer.momentum for layer in layers]
    for layer in layers:
        layer.reset_running_stats()
        layer.momentum = None  # a plain mean
    network.train()
    for inputs in batches:
        network(inputs)
    for layer, momentum in zip(layers, before, strict=True):
        layer.momentum = momentum
