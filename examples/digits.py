"""The data and network of the examples: scikit-learn's handwritten digits, a small network."""

from __future__ import annotations

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, TensorDataset


def data(train_rows: int = 300) -> tuple[TensorDataset, TensorDataset]:
    """Return training and test rows: images as (64,) in [0, 1], and labels."""
    digits = load_digits()
    images = torch.tensor(digits.data, dtype=torch.float32) / 16
    labels = torch.tensor(digits.target)
    return (
        TensorDataset(images[:train_rows], labels[:train_rows]),
        TensorDataset(images[train_rows:], labels[train_rows:]),
    )


def batches(
    rows: Dataset[tuple[Tensor, ...]], *, shuffle: bool = True
) -> DataLoader[tuple[Tensor, ...]]:
    """Return batches of 50, in the same shuffled order every time."""
    order = torch.Generator().manual_seed(0)
    return DataLoader(rows, batch_size=50, shuffle=shuffle, generator=order)


def network(seed: int = 0) -> nn.Module:
    """Make a network of 64 pixels, 64 hidden units and 10 logits."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
