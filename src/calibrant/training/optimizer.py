"""Optimisers, learning rates, and averages of weights (EMA and SWA)."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from calibrant.training.config import Config


def make_optimizer(config: Config, parameters: Iterable[Tensor]) -> torch.optim.Optimizer:
    """Create SGD with momentum, or AdamW, for the parameters that need a gradient."""
    learning = [parameter for parameter in parameters if parameter.requires_grad]
    # On CUDA, update all weights in one kernel.
    fused = all(weight.is_cuda and weight.is_floating_point() for weight in learning) or None
    common: dict[str, Any] = {"lr": config.lr, "weight_decay": config.weight_decay, "fused": fused}
    if config.optimizer == "adamw":
        return torch.optim.AdamW(learning, **common)
    return torch.optim.SGD(learning, momentum=config.momentum, nesterov=config.nesterov, **common)


def learning_rate(config: Config, step: int, steps_per_epoch: int) -> float:
    """Compute the learning rate of a step from its number alone, so nothing is checkpointed.

    multi_step and cosine change between epochs. one_cycle changes between steps: it rises
    linearly from lr/25 to lr over the ``warmup`` share, then falls linearly to 0.

    Args:
        config: The settings of the run.
        step: The number of the step, counted from 0 over the whole run.
        steps_per_epoch: The number of steps of an epoch.
    """
    epoch, total = step // steps_per_epoch, config.epochs * steps_per_epoch
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
    """A running average of a network's weights: exponential (EMA), or plain (SWA).

    Args:
        network: The network; its weights are the start.
        decay: The decay of the EMA; None averages all updates equally (SWA).
    """

    count: Tensor

    def __init__(self, network: nn.Module, decay: float | None) -> None:
        super().__init__()
        self.decay = decay
        self._updates: int | None = None
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))
        self.names = [name for name, value in _float_tensors(network)]
        for index, (_, value) in enumerate(_float_tensors(network)):
            self.register_buffer(f"w{index}", value.detach().clone())

    @property
    def weights(self) -> list[Tensor]:
        """Return the averaged weights."""
        return [getattr(self, f"w{index}") for index in range(len(self.names))]

    @torch.no_grad()
    def update(self, network: nn.Module) -> None:
        """Add the network's weights to the average."""
        # Count here as well: reading the buffer at each step would wait for the device.
        self._updates = (int(self.count) if self._updates is None else self._updates) + 1
        self.count += 1
        if self.decay is not None:
            # A young average forgets faster, or the initial weights would stay for long.
            share = 1.0 - min(self.decay, self._updates / (9.0 + self._updates))
        else:
            share = 1.0 / self._updates
        values = [value.detach() for _, value in _float_tensors(network)]
        torch._foreach_lerp_(self.weights, values, share)

    def _load_from_state_dict(self, *arguments: Any) -> None:
        super()._load_from_state_dict(*arguments)
        self._updates = None

    @torch.no_grad()
    def copy_to(self, network: nn.Module) -> None:
        """Copy the averages into the network."""
        for mean, (_, value) in zip(self.weights, _float_tensors(network), strict=True):
            value.copy_(mean)


def _float_tensors(network: nn.Module) -> list[tuple[str, Tensor]]:
    """Return parameters and floating-point buffers with their names."""
    named = [*network.named_parameters(), *network.named_buffers()]
    return [(name, value) for name, value in named if value.is_floating_point()]


@torch.no_grad()
def renew_batch_norm(network: nn.Module, batches: Iterable[Tensor]) -> None:
    """Recompute BatchNorm statistics for averaged weights: means over a pass of training rows."""
    kind = nn.modules.batchnorm._BatchNorm
    layers = [layer for layer in network.modules() if isinstance(layer, kind)]
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
