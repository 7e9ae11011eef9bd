"""A plain training loop with a calibrant loss: two lines change.

python examples/plain_loop.py
"""

from __future__ import annotations

from collections.abc import Iterable

import digits
import torch
from torch import Tensor, nn

import calibrant
from calibrant import losses  # the first line


def train(
    network: nn.Module,
    loader: Iterable[tuple[Tensor, Tensor]],
    *,
    objective: str = "focal+0.5*s_avuc",
    epochs: int = 100,
) -> nn.Module:
    """Train a network; ``objective`` is any text that `losses.get` reads."""
    loss = losses.get(objective)  # the second line, instead of nn.CrossEntropyLoss()
    optimizer = torch.optim.Adam(network.parameters(), lr=3e-3)
    for _ in range(epochs):
        for images, labels in loader:
            optimizer.zero_grad()
            loss(network(images), labels).backward()
            optimizer.step()
    return network


def main(epochs: int = 100) -> None:
    """Train with cross-entropy and with another loss, and compare the two on test rows."""
    train_rows, test_rows = digits.data()
    runs = []
    for objective in ("cross_entropy", "focal+0.5*s_avuc"):
        network = digits.network()
        train(network, digits.batches(train_rows), objective=objective, epochs=epochs)
        predictions = calibrant.Predictions.from_model(
            network, digits.batches(test_rows, shuffle=False), name=objective, progress=False
        )
        verdict = calibrant.evaluate(predictions).verdict
        print(f"{objective}: {verdict.headline if verdict else ''}")
        runs.append(predictions)
    print(calibrant.compare(*runs).headline)


if __name__ == "__main__":
    main()
