"""Train a small network on digits, for tests of losses."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class Run:
    """Logits of the trained network, in float64, with their labels."""

    train_logits: Tensor
    train_labels: Tensor
    test_logits: Tensor
    test_labels: Tensor


@lru_cache(maxsize=1)
def digits() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return 300 training and 1,497 test rows with an eighth of all labels replaced.

    A network that memorises the wrong labels is overconfident on test rows.
    """
    from sklearn.datasets import load_digits

    bunch = load_digits()
    order = torch.randperm(len(bunch.data), generator=torch.Generator().manual_seed(7))
    images = torch.tensor(bunch.data, dtype=torch.float32)[order] / 16.0
    labels = torch.tensor(bunch.target, dtype=torch.int64)[order]
    wrong = torch.rand(len(labels), generator=torch.Generator().manual_seed(8)) < 0.125
    shift = torch.randint(1, 10, labels.shape, generator=torch.Generator().manual_seed(9))
    labels = torch.where(wrong, (labels + shift) % 10, labels)
    return images[:300], labels[:300], images[300:], labels[300:]


def train(
    loss: nn.Module, *, seed: int = 0, epochs: int = 80, batch: int = 60, rate: float = 0.1
) -> Run:
    """Train a 64-128-10 network by SGD with momentum 0.9; the seed sets weights and row order."""
    images, labels, test, test_labels = digits()
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        net = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
        order = torch.Generator().manual_seed(seed)
        steps = torch.optim.SGD(net.parameters(), lr=rate, momentum=0.9)
        for _ in range(epochs):
            for rows in torch.randperm(len(images), generator=order).split(batch):
                extra = {"index": rows} if getattr(loss, "needs_index", False) else {}
                value = loss(net(images[rows]), labels[rows], **extra)
                steps.zero_grad()
                value.backward()
                steps.step()
    with torch.no_grad():
        return Run(net(images).double(), labels, net(test).double(), test_labels)
