"""The demonstration: a real network on real data, how far it can be believed, and its repair.

The data are scikit-learn's handwritten digits, which come with the package: 1,797 images
of 8 by 8 pixels, unchanged, all labels as they are. The file is apparently ordered by
writer, so a network trained on its first rows is tested on the handwriting of people it
has not seen. That, few rows and long training make it overconfident, as networks in use are.
(Rows by one writer are alike, which the intervals, made for independent rows, do not know.)

The repair is fitted on a random half of the rows not trained on and judged on the other half,
so it has seen other digits by the writers it is judged on, as a repair in use has.

The same network is then trained anew with other losses, and judged on that other half too.

Last, a larger network whose predictions come with the package: a ResNet-18 on CIFAR-10.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from time import perf_counter
from typing import NamedTuple, cast

import torch
from torch import Tensor, nn

from calibrant import losses
from calibrant.calibrators import Calibrator
from calibrant.calibrators.rank import apply
from calibrant.calibrators.select import Choice, calibrate
from calibrant.evaluation import Comparison, Evaluation, compare, evaluate
from calibrant.functional.threads import one_thread
from calibrant.predictions import Predictions, example, examples
from calibrant.report import Alternatives, words, write

EPOCHS = 300
# Of all losses but crl, at their defaults, those whose ECE was below 0.05 and whose NLL below
# 0.44 on the half the repair is fitted on, with seed 0; flsd too, which is a kind of focal.
OBJECTIVES = ("focal", "mbls", "acls")
LARGER = "cifar10-resnet18"  # among the predictions that come with the package
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
    """Train, evaluate, repair and report; returns where the report is.

    Writes ``predictions.npz``, ``calibrator.safetensors``, ``report.html`` and, of a larger
    network whose predictions come with the package, ``cifar10.html`` into ``folder``.
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
    held, before = predictions.split(0.5, seed=seed)
    say(f"{len(held)} of them, chosen at random, are for the repair; it is judged on the others.")
    evaluation = evaluate(before, seed=seed)
    say(f"\nBefore the repair, on {len(before)} digits:")
    _tell(evaluation, say)

    calibrator = calibrate(held, method="auto", seed=seed)
    saved = calibrator.save(folder / "calibrator.safetensors")
    after = replace(apply(calibrator, before), name="digits, repaired")
    explanation = _explain(calibrator, before, after)
    say(f"The repair: {explanation}")
    repaired, comparison = evaluate(after, seed=seed), compare(before, after, seed=seed)
    say(f"\nAfter the repair, on the same {len(before)} digits:")
    assert repaired.verdict is not None
    say(f"{repaired.verdict.headline}\n")
    _tell_change(comparison, say)
    say(f"The repair, as a file to deploy: {saved}")
    others = _train_otherwise(split, before, seed, say)
    larger = _larger_network(folder, seed, say)
    say(f"Its report: {larger}. For all figures of the digits: calibrant evaluate {file}")
    return write(
        evaluation,
        folder / "report.html",
        title=f"Handwritten digits: trained on {trained}, tested on {len(before)} others",
        after=repaired,
        comparison=comparison,
        explanation=explanation,
        predictions=before,
        others=others,
    )


def _train_otherwise(
    split: Split, before: Predictions, seed: int, say: Callable[[str], None]
) -> Alternatives:
    """The same network trained with other losses, beside the first one on the same rows."""
    say(f"\nTraining it anew with other losses, and asking about the same {len(before)} digits:\n")
    models, shown = [], ("accuracy", "ece", "nll")
    for name in OBJECTIVES:
        loss = cast(Loss, losses.get(name))
        network = train_network(split.train_images, split.train_labels, loss=loss, seed=seed)
        told = predict(network, split.test_images, split.test_labels, name=f"trained with {name}")
        _, judged = told.split(0.5, seed=seed)
        comparison = compare(before, judged, metrics=shown, seed=seed)
        models.append((evaluate(judged, metrics=shown, seed=seed), comparison))
        say(f"trained with {name}:")
        _tell_change(comparison, say, shown)
    when = losses.available()
    return Alternatives(
        models,
        "They are this network, with the same start and the same rows in the same order, trained "
        "with another loss than cross_entropy. The repair has also learned from the other half "
        "of the digits not trained on, which they have not.\n\n"
        + " ".join(f"{name}: {when[name]}." for name in OBJECTIVES),
    )


def _larger_network(folder: Path, seed: int, say: Callable[[str], None]) -> Path:
    """A ResNet-18 on CIFAR-10, trained elsewhere: its verdict, its repair, others beside it."""
    held, before = example(LARGER, "validation"), example(LARGER)
    evaluation = evaluate(before, seed=seed)
    assert evaluation.verdict is not None
    say(f"\nA larger network, on {len(before):,} photographs (ResNet-18, CIFAR-10):")
    say(evaluation.verdict.headline)
    calibrator = calibrate(held, method="auto", preserve_predictions=True, seed=seed)
    after = replace(apply(calibrator, before), name=f"{before.name}, repaired")
    comparison = compare(before, after, seed=seed)
    explanation = _explain(calibrator, before, after)
    say(f"The repair, fitted on {len(held):,} other photographs: {explanation}")
    _tell_change(comparison, say)
    shown = ("accuracy", "ece", "nll")
    models = [
        (evaluate(one, metrics=shown, seed=seed), compare(before, one, metrics=shown, seed=seed))
        for one in (example(name) for name in examples() if name != LARGER)
    ]
    return write(
        evaluation,
        folder / "cifar10.html",
        title=f"ResNet-18 on CIFAR-10: {len(before):,} test photographs",
        after=evaluate(after, seed=seed),
        comparison=comparison,
        explanation=explanation,
        predictions=before,
        others=Alternatives(
            models,
            "They are the same network, trained as long and on the same rows, with another loss "
            "or procedure: one seed each, by the settings of the suite quick-cifar. They are runs "
            "of their own, and differ by chance from those of the published tables.",
        ),
    )


@contextmanager
def _reproducible(seed: int) -> Iterator[None]:
    """Randomness that follows from the seed on any number of cores, and leaves the caller's be."""
    # More threads add in another order, and for layers this small they only cost time.
    with torch.random.fork_rng(devices=[]), one_thread():
        torch.default_generator.manual_seed(seed)
        yield


def _share_right(network: nn.Module, images: Tensor, labels: Tensor) -> float:
    with torch.inference_mode():
        return float((network(images).argmax(1) == labels).double().mean())


def _explain(calibrator: Calibrator, before: Predictions, after: Predictions) -> str:
    """What the repair is, in words."""
    choice = cast(Choice, calibrator.choice_)
    old, new = (torch.as_tensor(each.array).argmax(1) for each in (before, after))
    changed = int((old != new).sum())
    told = "It changes none of the predictions." if not changed else ""
    told = told or f"It changes {changed:,} of {len(before):,} predictions."
    return f"{choice.explanation} {told}"


def _tell(evaluation: Evaluation, say: Callable[[str], None]) -> None:
    verdict = evaluation.verdict
    assert verdict is not None
    for sentence in (verdict.headline, *verdict.sentences):
        say(sentence)
    say("")
    for figure in (evaluation[name] for name in SHOWN):
        value, low, high = (
            words.figure_text(figure.name, v) for v in (figure.value, figure.low, figure.high)
        )
        say(f"{figure.label:<28}{value:>8}   {words.level(evaluation.settings)}: {low} to {high}")
    say("")


def _tell_change(
    comparison: Comparison, say: Callable[[str], None], shown: Sequence[str] = SHOWN
) -> None:
    for one in (comparison[name] for name in shown):
        old, new = (words.figure_text(one.name, value) for value in (one.a, one.b))
        told = {"a": "worse", "b": "better"}.get(one.winner, "no difference shown")
        say(f"{one.label:<28}{old:>8} → {new:<8} {told}")
    say("")


def _say(text: str) -> None:
    for line in text.split("\n"):
        print(textwrap.fill(line, 88, break_long_words=False, break_on_hyphens=False), flush=True)
