"""The demonstration: train a network, evaluate its confidence, calibrate it, and report.

The data are scikit-learn's handwritten digits, which come with the package: 1,797 images
of 8 by 8 pixels, with their own labels. The file appears to be ordered by writer, so a network
trained on its first rows is tested on the handwriting of other people. That, few rows and long
training make the network overconfident, as networks in use are. Rows by one writer are alike;
the intervals assume independent rows and do not account for that.

The calibrator is fitted on a random half of the test rows and evaluated on the other half. It has
therefore seen other digits by the same writers, as a calibrator in use has.

The same network is then trained again with other losses and evaluated on that other half too.

The last part is a larger network whose predictions come with the package: a ResNet-18 on CIFAR-10.
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
from calibrant.calibrators.choose import Choice, calibrate
from calibrant.calibrators.rank import apply
from calibrant.core.progress import Advance, progress_bar
from calibrant.core.threads import one_thread
from calibrant.evaluation import Comparison, Evaluation, compare, evaluate
from calibrant.predictions import Predictions, example, examples
from calibrant.report import Alternatives, formatting, write

EPOCHS = 300
# The losses with ECE below 0.05 and NLL below 0.44 on the half that the calibrator is fitted on,
# among all but crl, at their defaults, with seed 0. flsd qualified too, but is a kind of focal.
OBJECTIVES = ("focal", "mbls", "acls")
LARGER = "cifar10-resnet18"  # an example that comes with the package
# Steps of the bar: an epoch is one, another task as many as take about as long.
EVALUATING, COMPARING, LARGER_REPAIR, LARGER_OTHER = 100, 60, 300, 150
SHOWN_METRICS = ("accuracy", "ece", "nll", "brier")  # `calibrant evaluate` shows all
Say = Callable[[str], None]
Loss = Callable[[Tensor, Tensor], Tensor]


class Split(NamedTuple):
    """Images, shape (N, 64) with values in [0, 1], and labels, for training and testing."""

    train_images: Tensor
    train_labels: Tensor
    test_images: Tensor
    test_labels: Tensor


def digits_split(train_rows: int = 300) -> Split:
    """Split scikit-learn's digits: the first rows for training, the others for testing.

    Args:
        train_rows: Number of rows for training. Default: 300 (ours: few enough to overfit).

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
    advance: Advance = lambda steps: None,
) -> nn.Module:
    """Train a network of two hidden layers with Adam.

    Args:
        images: Training images, shape (N, 64).
        labels: Their labels.
        loss: A function of logits and labels.
        epochs: Number of passes over the images.
        batch_size: Rows per step.
        seed: Random seed; the same seed gives the same network.
        advance: Called with 1 after each epoch.
    """
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
            advance(1)
    return network.eval()


def predict(network: nn.Module, images: Tensor, labels: Tensor, *, name: str) -> Predictions:
    """Return the predictions of a network on images."""
    names = [str(digit) for digit in range(10)]
    return Predictions.from_model(
        network, [(images, labels)], class_names=names, name=name, progress=False
    )


def run_demo(folder: Path, *, seed: int = 0, quiet: bool = False) -> Path:
    """Run the demonstration and return the path of the report.

    Args:
        folder: Output folder. Gets ``predictions.npz``, ``calibrator.safetensors``,
            ``report.html``, and ``cifar10.html`` on the larger network.
        seed: Random seed.
        quiet: True prints nothing.
    """
    say: Say = (lambda text: None) if quiet else _print_wrapped
    steps = EPOCHS * (1 + len(OBJECTIVES)) + 2 * EVALUATING + COMPARING
    steps += LARGER_REPAIR + LARGER_OTHER * len(examples())
    with progress_bar("Demonstration", steps, shown=not quiet) as advance:
        return _run_steps(folder, seed, say, advance)


def _run_steps(folder: Path, seed: int, say: Say, advance: Advance) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    split = digits_split()
    trained, tested = len(split.train_labels), len(split.test_labels)
    say(f"Training a small network on {trained} handwritten digits for {EPOCHS} epochs ...")
    start = perf_counter()
    network = train_network(split.train_images, split.train_labels, seed=seed, advance=advance)
    accuracy = _compute_accuracy(network, split.train_images, split.train_labels)
    seconds = perf_counter() - start
    say(f"That took {seconds:.0f} s. Its training accuracy is {formatting.percent(accuracy)}.")

    predictions = predict(network, split.test_images, split.test_labels, name="digits")
    file = predictions.write(folder / "predictions.npz")
    say(
        f"Predicting the other {tested:,} digits, which it has not seen and which other people "
        f"seem to have written. Its logits: {file}"
    )
    held_out, before = predictions.split(0.5, seed=seed)
    say(
        f"A calibrator is fitted on {len(held_out)} of them, chosen at random, and evaluated on "
        "the others."
    )
    evaluation = evaluate(before, seed=seed)
    advance(EVALUATING)
    say(f"\nBefore calibration, on {len(before)} digits:")
    _show_evaluation(evaluation, say)

    calibrator = calibrate(held_out, method="auto", seed=seed)
    saved = calibrator.save(folder / "calibrator.safetensors")
    after = replace(apply(calibrator, before), name="digits, repaired")
    explanation = _explain(calibrator, before, after)
    say(f"The calibrator: {explanation}")
    repaired, comparison = evaluate(after, seed=seed), compare(before, after, seed=seed)
    advance(EVALUATING + COMPARING)
    say(f"\nAfter calibration, on the same {len(before)} digits:")
    assert repaired.verdict is not None
    say(f"{repaired.verdict.headline}\n")
    _show_comparison(comparison, say)
    say(f"The calibrator, as a file to deploy: {saved}")
    others = _train_other_losses(split, before, seed, say, advance)
    larger = _report_larger_network(folder, seed, say, advance)
    say(f"Its report: {larger}. For all metrics of the digits: calibrant evaluate {file}")
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


def _train_other_losses(
    split: Split, before: Predictions, seed: int, say: Say, advance: Advance
) -> Alternatives:
    """Train the same network with other losses and compare them with the first on its rows."""
    say(f"\nTraining it again with other losses, evaluated on the same {len(before)} digits:\n")
    models, shown = [], ("accuracy", "ece", "nll")
    for name in OBJECTIVES:
        loss = cast(Loss, losses.get(name))
        network = train_network(
            split.train_images, split.train_labels, loss=loss, seed=seed, advance=advance
        )
        title = f"trained with {name}"
        predictions = predict(network, split.test_images, split.test_labels, name=title)
        _, rows = predictions.split(0.5, seed=seed)
        comparison = compare(before, rows, metrics=shown, seed=seed)
        models.append((evaluate(rows, metrics=shown, seed=seed), comparison))
        say(f"{title}:")
        _show_comparison(comparison, say, shown)
    summaries = losses.available()
    return Alternatives(
        models,
        "They are this network with another loss than cross_entropy, trained from the same "
        "initial weights on the same rows in the same order. The repair has also learned from "
        "the other half of the test digits; they have not.\n\n"
        + " ".join(f"{name}: {summaries[name]}." for name in OBJECTIVES),
    )


def _report_larger_network(folder: Path, seed: int, say: Say, advance: Advance) -> Path:
    """Write a report on a ResNet-18 for CIFAR-10: its verdict, its repair, and other losses."""
    held_out, before = example(LARGER, "validation"), example(LARGER)
    evaluation = evaluate(before, seed=seed)
    assert evaluation.verdict is not None
    say(f"\nA larger network, on {len(before):,} photographs (ResNet-18, CIFAR-10):")
    say(evaluation.verdict.headline)
    calibrator = calibrate(held_out, method="auto", preserve_predictions=True, seed=seed)
    after = replace(apply(calibrator, before), name=f"{before.name}, repaired")
    comparison = compare(before, after, seed=seed)
    explanation = _explain(calibrator, before, after)
    say(f"The calibrator, fitted on {len(held_out):,} other photographs: {explanation}")
    _show_comparison(comparison, say)
    advance(LARGER_REPAIR)
    models, shown = [], ("accuracy", "ece", "nll")
    for rows in (example(name) for name in examples() if name != LARGER):
        comparison_of_rows = compare(before, rows, metrics=shown, seed=seed)
        models.append((evaluate(rows, metrics=shown, seed=seed), comparison_of_rows))
        advance(LARGER_OTHER)
    repaired = evaluate(after, seed=seed)
    advance(LARGER_OTHER)
    return write(
        evaluation,
        folder / "cifar10.html",
        title=f"ResNet-18 on CIFAR-10: {len(before):,} test photographs",
        after=repaired,
        comparison=comparison,
        explanation=explanation,
        predictions=before,
        others=Alternatives(
            models,
            "They are the same network, trained as long and on the same rows, with another loss "
            "or recipe: one seed each, with the settings of the suite quick-cifar. These runs are "
            "not those of the published tables and differ from them by chance.",
        ),
    )


@contextmanager
def _reproducible(seed: int) -> Iterator[None]:
    """Make random numbers depend on the seed alone, and restore the caller's generator."""
    # More threads add in another order, and for layers this small they only cost time.
    with torch.random.fork_rng(devices=[]), one_thread():
        torch.default_generator.manual_seed(seed)
        yield


def _compute_accuracy(network: nn.Module, images: Tensor, labels: Tensor) -> float:
    with torch.inference_mode():
        return float((network(images).argmax(1) == labels).double().mean())


def _explain(calibrator: Calibrator, before: Predictions, after: Predictions) -> str:
    """Say which calibrator was chosen, why, and how many predictions it changes."""
    choice = cast(Choice, calibrator.choice_)
    old, new = (torch.as_tensor(rows.array).argmax(1) for rows in (before, after))
    changed = int((old != new).sum())
    if changed:
        return f"{choice.explanation} It changes {changed:,} of {len(before):,} predictions."
    return f"{choice.explanation} It changes none of the predictions."


def _show_evaluation(evaluation: Evaluation, say: Say) -> None:
    verdict = evaluation.verdict
    assert verdict is not None
    for sentence in (verdict.headline, *verdict.sentences):
        say(sentence)
    say("")
    level = formatting.level(evaluation.settings)
    for figure in (evaluation[name] for name in SHOWN_METRICS):
        value, low, high = (
            formatting.figure_text(figure.name, number)
            for number in (figure.value, figure.low, figure.high)
        )
        say(f"{figure.label:<28}{value:>8}   {level}: {low} to {high}")
    say("")


def _show_comparison(
    comparison: Comparison, say: Say, shown: Sequence[str] = SHOWN_METRICS
) -> None:
    for row in (comparison[name] for name in shown):
        old, new = (formatting.figure_text(row.name, value) for value in (row.a, row.b))
        outcome = {"a": "worse", "b": "better"}.get(row.winner, "no significant difference")
        say(f"{row.label:<28}{old:>8} → {new:<8} {outcome}")
    say("")


def _print_wrapped(text: str) -> None:
    for line in text.split("\n"):
        print(textwrap.fill(line, 88, break_long_words=False, break_on_hyphens=False), flush=True)
