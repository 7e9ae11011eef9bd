"""The published form of order-preserving maps: a small network sees the sorted row.

The sorted gaps g_j = z_(j) − z_(j+1) ≥ 0 of a row are multiplied by m_j > 0, which a network
makes of the row's largest log-probabilities, and summed up again (Rahimi et al. 2020, §3.2 to
3.4, order-invariant): whatever the network says, no two classes change places.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from calibrant.functional.errors import InputError
from calibrant.functional.threads import one_thread

LEAST = 1e-2  # of a multiplier: gaps never close
ONE = 0.5413248546129181  # softplus of it is 1
RATE, DECAY, BATCH, EPOCHS = 5e-3, 1e-3, 256, 40
WARM = 0.1  # share of the steps in which the rate rises

Layers = Sequence[tuple[Tensor, Tensor]]


def seen(ordered: Tensor, depth: int) -> Tensor:
    """What the network sees: the largest log-probabilities of sorted rows."""
    return torch.log_softmax(ordered, dim=1)[:, : depth + 1]


def multipliers(inputs: Tensor, layers: Layers) -> Tensor:
    """m > 0 of standardised inputs; 1 where the last layer is 0."""
    hidden = inputs
    for weight, bias in layers[:-1]:
        hidden = torch.relu(F.linear(hidden, weight, bias))
    return F.softplus(F.linear(hidden, *layers[-1]) + ONE) + LEAST


def mapped(ordered: Tensor, inputs: Tensor, layers: Layers, beta: Tensor) -> Tensor:
    """Logits of sorted rows, 0 for the largest: −β Σ_(i<j) m_i·g_i.

    Beyond the depth of the network its last multiplier goes on.
    """
    factors = multipliers(inputs, layers)
    gaps = ordered[:, :-1] - ordered[:, 1:]
    depth = factors.shape[1]
    first = torch.cumsum(gaps[:, :depth] * factors, dim=1)
    rest = first[:, -1:] + factors[:, -1:] * (
        ordered[:, depth : depth + 1] - ordered[:, depth + 1 :]
    )
    zero = torch.zeros_like(ordered[:, :1])
    return -beta * torch.cat((zero, first, rest), dim=1)


@one_thread()
def fit_network(
    logits: Tensor, target: Tensor, beta: float, *, depth: int, hidden: Sequence[int], seed: int
) -> tuple[list[tuple[Tensor, Tensor]], Tensor, Tensor]:
    """Layers, and the mean and scale of their inputs, at the lowest loss Adam found.

    The last layer starts at 0: the map is the temperature 1/β, to which decay of the weights
    draws it. Where the network does no better than that on the rows it is fitted on, it is that.
    """
    ordered, order = logits.float().sort(dim=1, descending=True, stable=True)
    place = (order == target.unsqueeze(1)).int().argmax(1)
    inputs = seen(ordered, depth)
    mean, scale = inputs.mean(0), inputs.std(0, correction=0).clamp_min(1e-3)
    inputs = (inputs - mean) / scale
    factor = torch.tensor(beta, dtype=torch.float32, device=logits.device)
    layers = _start(inputs.shape[1], hidden, depth, seed, logits.device)
    whole = [tensor for pair in layers for tensor in pair]
    steps = EPOCHS * -(-len(target) // BATCH)
    optimizer = torch.optim.Adam(whole, lr=RATE, weight_decay=DECAY)
    draw = torch.Generator().manual_seed(seed)
    done = 0
    for _ in range(EPOCHS):
        order = torch.randperm(len(target), generator=draw).to(logits.device)
        for rows in torch.split(order, BATCH):
            for group in optimizer.param_groups:
                group["lr"] = RATE * _share(done / steps)
            with torch.enable_grad():
                found = mapped(ordered[rows], inputs[rows], layers, factor)
                loss = F.cross_entropy(found, place[rows])
                optimizer.zero_grad()
                loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            done += 1
    plain = _start(inputs.shape[1], hidden, depth, seed, logits.device)
    if not _mean_loss(ordered, inputs, place, layers, factor) < _mean_loss(
        ordered, inputs, place, plain, factor
    ):
        layers = plain
    fixed = [(weight.detach(), bias.detach()) for weight, bias in layers]
    if not all(bool(torch.isfinite(one).all()) for pair in fixed for one in pair):
        raise InputError("intra_order met a value that is not finite; are the logits very large?")
    return fixed, mean, scale


def _share(passed: float) -> float:
    """Of the largest rate: up in a line, then down along a cosine."""
    if passed < WARM:
        return 0.04 + 0.96 * passed / WARM
    return float(0.5 * (1.0 + torch.cos(torch.tensor((passed - WARM) / (1 - WARM) * torch.pi))))


def _start(
    inputs: int, hidden: Sequence[int], depth: int, seed: int, device: torch.device
) -> list[tuple[Tensor, Tensor]]:
    draw = torch.Generator().manual_seed(seed + 1)
    layers = []
    for width in hidden:
        bound = inputs**-0.5
        weight = (torch.rand(width, inputs, generator=draw) * 2 - 1) * bound
        bias = (torch.rand(width, generator=draw) * 2 - 1) * bound
        layers.append((weight, bias))
        inputs = width
    layers.append((torch.zeros(depth, inputs), torch.zeros(depth)))
    return [
        (weight.to(device).requires_grad_(), bias.to(device).requires_grad_())
        for weight, bias in layers
    ]


@torch.no_grad()
def _mean_loss(
    ordered: Tensor, inputs: Tensor, place: Tensor, layers: Layers, beta: Tensor
) -> float:
    total = 0.0
    for rows in torch.split(torch.arange(len(place), device=place.device), 4096):
        found = mapped(ordered[rows], inputs[rows], layers, beta)
        total += float(F.cross_entropy(found, place[rows], reduction="sum"))
    return total / len(place)
