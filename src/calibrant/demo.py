"""The demonstration: a real network on real data, and how far its confidence can be believed.

The data are scikit-learn's handwritten digits, which come with the package: 1,797 images
of 8 by 8 pixels, unchanged, all labels as they are. The file is apparently ordered by
writer, so a network trained on its first rows is tested on the handwriting of people it
has not seen. That, few rows and long training make it overconfident, as networks in use are.
(Rows by one writer are alike, which the intervals, made for independent rows, do not know.)
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter
from typing import NamedTuple

import torch
from torch import Tensor, nn

from calibrant.evaluation import Evaluation, evaluate
from calibrant.predictions import Predictions
from calibrant.report import words, write

EPOCHS = 300
SHOWN = ("accuracy", "ece", "nll", "brier")  # the full table is `calibrant evaluate`'s
Loss = Callable[[Tensor, Tensor], Tensor]


class Split(NamedTuple):
    """Images, as (N, 64) in [0, 1], and labels: some to learn from, others to be judged by."""

    train_images: Tensor
    train_labels: Tensor
    test_images: Tensor
    test_labels: Tensor


def digits_split(train_rows: int = 300) -> Split:
    """The first rows of scikit-learn's digits for training, all others for testing.

    >>> [len(part) for part in digits_split()]
    [300, 300, 1497, 1497]
    """
    from sklearn.datasets import load_digits

    data = load_digits()
    images = torch.from_numpy(data.data).float() / 16
    labels = torch.from_numpy(data.target).long()
    return Split(images[:train_rows], labels[:train_rows], images[train_rows:], labels[train_rows:])


def train_network(
    images: Tensor,
    labels: Tensor,
    *,
    loss: Loss = nn.functional.cross_entropy,
    epochs: int = EPOCHS,
    batch_size: int = 64,
    seed: int = 0,
) -> nn.Module:
    """Train a network of two hidden layers with Adam; the same seed gives the same network."""
    with _reproducible(seed):
        network = nn.Sequential(
            *(nn.Linear(64, 256), nn.ReLU()),
            *(nn.Linear(256, 256), nn.ReLU()),
            nn.Linear(256, 10),
        )
        optimizer = torch.optim.Adam(network.parameters(), lr=1e-3)
        for _ in range(epochs):
            for rows in torch.split(torch.randperm(len(images)), batch_size):
                optimizer.zero_grad()
                torch.autograd.backward(loss(network(images[rows]), labels[rows]))
                optimizer.step()
    return network.eval()


def predict(network: nn.Module, images: Tensor, labels: Tensor, *, name: str) -> Predictions:
    """What a network says of images, as the value everything else takes."""
    names = [str(digit) for digit in range(10)]
    return Predictions.from_model(
        network, [(images, labels)], class_names=names, name=name, progress=False
    )


def run_demo(folder: Path, *, seed: int = 0, quiet: bool = False) -> Path:
    """Train, evaluate and report; returns where the report is.

    Writes ``predictions.npz`` and ``report.html`` into ``folder``.
    """
    say: Callable[[str], None] = (lambda text: None) if quiet else _say
    folder.mkdir(parents=True, exist_ok=True)
    split = digits_split()
    trained, tested = len(split.train_labels), len(split.test_labels)
    say(f"Training a small network on {trained} handwritten digits, {EPOCHS} times over ...")
    begun = perf_counter()
    network = train_network(split.train_images, split.train_labels, seed=seed)
    right = _share_right(network, split.train_images, split.train_labels)
    say(f"That took {perf_counter() - begun:.0f} s. It gets {words.percent(right)} of them right.")

    predictions = predict(network, split.test_images, split.test_labels, name="digits")
    file = predictions.write(folder / "predictions.npz")
    say(
        f"Asking it about the other {tested:,} digits of the data, which it has not seen and "
        f"which, as far as is known, other people wrote. Its logits: {file}"
    )
    evaluation = evaluate(predictions, seed=seed)
    _tell(evaluation, say)
    say(f"For all figures: calibrant evaluate {file}")
    title = f"Handwritten digits: trained on {trained}, tested on the other {tested:,}"
    return write(evaluation, folder / "report.html", title=title)


@contextmanager
def _reproducible(seed: int) -> Iterator[None]:
    """Randomness that follows from the seed on any number of cores, and leaves the caller's be."""
    threads = torch.get_num_threads()
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        # More threads add in another order, and for layers this small they only cost time.
        torch.set_num_threads(1)
        try:
            yield
        finally:
            torch.set_num_threads(threads)


def _share_right(network: nn.Module, images: Tensor, labels: Tensor) -> float:
    with torch.inference_mode():
        return float((network(images).argmax(1) == labels).double().mean())


def _tell(evaluation: Evaluation, say: Callable[[str], None]) -> None:
    verdict = evaluation.verdict
    assert verdict is not None
    say("")
    for sentence in (verdict.headline, *verdict.sentences):
        say(sentence)
    say("")
    for figure in (evaluation[name] for name in SHOWN):
        value, low, high = (
            words.figure_text(figure.name, v) for v in (figure.value, figure.low, figure.high)
        )
        say(f"{figure.label:<28}{value:>8}   {words.level(evaluation.settings)}: {low} to {high}")
    say("")


def _say(text: str) -> None:
    print(textwrap.fill(text, 88, break_long_words=False, break_on_hyphens=False), flush=True)
