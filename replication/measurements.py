"""Measure trained networks as the papers do; suites load this file as a plugin."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from calibrant.bench import FilesGone, Measurement, Parts, Subject, register_measurement
from calibrant.core.errors import InputError
from calibrant.losses import ACLS
from calibrant.losses.common import rows_of
from calibrant.metrics import ece

# In the calibrator column. Stored rows of `hard_classes`, an earlier form that was fitted on the
# test rows it is judged on, keep that name.
HARD, MASKED, INACTIVE = "hardest_classes", "masked", "regulariser"
EVEN, UNEVEN = f"{HARD}:even", f"{HARD}:uneven"
BINS, HIGHEST = 20, 0.1  # as in acls figure 3
Numbers = NDArray[np.float64]


@register_measurement("hardest_classes", needs_network=False)
def measure_hardest_classes(
    subject: Parts, *, hardest: int = 3, steps: int = 300, every: int = 10, rate: float = 0.05
) -> Iterator[Measurement]:
    """Measure loss, spread and ECE of test rows while T is learnt on the hardest classes.

    Class-scaling figure 3; parts ``test@STEP``. The hardest classes, the temperatures, and the two
    steps with the same total loss (A and B in the figure) are found on validation rows alone. Of
    A and B, also give the figures of the step with more even class-wise losses and of the other.

    Args:
        subject: the run.
        hardest: how many classes. Default: 3 (class-scaling, figure 3).
        steps: steps of the descent. Default: 300.
        every: between the steps that are measured. Default: 10.
        rate: learning rate on ln T. Default: 0.05; the paper gives none.
    """
    rows = [
        (torch.as_tensor(part.array), torch.as_tensor(part.labels))
        for part in map(subject.predictions, ("validation", "test"))
    ]
    fitted = fit_hardest_classes(*rows[0], hardest=hardest, steps=steps, rate=rate)
    for step in range(0, steps + 1, every):
        for metric, value in _judge_temperature(*rows[1], fitted.temperature[step]).items():
            yield Measurement(f"test@{step}", HARD, metric, value)
    same = fitted.find_same_loss()
    if same is not None:
        even, uneven = sorted(same, key=lambda step: float(fitted.spread[step]))
        for name, step in ((EVEN, even), (UNEVEN, uneven)):
            for metric, value in _judge_temperature(*rows[1], fitted.temperature[step]).items():
                yield Measurement("test", name, metric, value)


def _judge_temperature(logits: Tensor, labels: Tensor, temperature: float) -> dict[str, float]:
    """Compute total loss, spread of class-wise losses, and ECE of rows at a temperature."""
    scaled = logits.double() / temperature
    by_class = _average_class_losses(scaled, labels, torch.unique(labels)).numpy()
    return {
        "nll": float(nn.functional.cross_entropy(scaled, labels)),
        "classwise_nll_std": float(by_class.std(ddof=1)),
        "ece": float(ece(scaled, labels)),
        "parameter:temperature": float(temperature),
    }


@register_measurement("masked")
def measure_masked(
    subject: Subject,
    *,
    ratios: Sequence[float] = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9),
    draws: int = 5,
    precision: str = "fp32",
) -> Iterator[Measurement]:
    """Measure accuracy and confidence with a share of the classifier's weights masked.

    mac-cal figure 1; parts ``test@PERCENT``.
    """
    network = subject.network(precision)
    head = network.split().head
    if not isinstance(head, nn.Linear):
        raise InputError(f"masked needs a linear classifier, found {type(head).__name__}")
    assert network.test is not None  # every run has test rows
    features, labels = network.features(network.test)
    bias = torch.zeros(head.out_features, device=head.weight.device)
    with torch.no_grad():
        figures = infer_masked(
            features.float(),
            labels,
            head.weight.float().T,
            bias if head.bias is None else head.bias.float(),
            ratios=ratios,
            draws=draws,
        )
    for ratio, (accuracy, confidence) in figures.items():
        part = f"test@{round(100 * ratio)}"
        yield Measurement(part, MASKED, "accuracy", accuracy)
        yield Measurement(part, MASKED, "confidence", confidence)


@register_measurement("inactive")
def measure_inactive(subject: Subject) -> Iterator[Measurement]:
    """Measure ACLS's regulariser, and how often it is 0, on training rows.

    acls figure 3. Use the trained network, in batches as in training; a ranking loss also uses its
    counts of each row. Parts ``train@BIN``: twenty bins of 0.005, the last with all larger values.
    """
    run, config = subject.run, subject.config
    loss = subject.network().loss
    term = next((module for module in loss.modules() if isinstance(module, ACLS)), None)
    if term is None:
        raise InputError(f"inactive needs the loss acls, found {config.loss}")
    if term.history is not None and not bool(term.history.counts.any()):
        raise FilesGone(f"{run.folder}: the loss's counts of each row were not kept")
    predictions = subject.predictions("train")
    logits, labels = torch.as_tensor(predictions.array), torch.as_tensor(predictions.labels)
    shuffled = torch.randperm(len(labels), generator=torch.Generator().manual_seed(config.seed))
    batches = torch.split(shuffled, config.batch_size)
    values = torch.cat([_compute_regulariser(term, logits, labels, rows) for rows in batches])
    yield Measurement("train", "none", "inactive", float((values == 0).double().mean()))
    places = (values.clamp(0, HIGHEST) * (BINS / HIGHEST)).long().clamp_max(BINS - 1)
    for place, share in enumerate((torch.bincount(places, minlength=BINS) / len(values)).tolist()):
        yield Measurement(f"train@{place}", INACTIVE, "share", share)


def _compute_regulariser(term: ACLS, logits: Tensor, labels: Tensor, rows: Tensor) -> Tensor:
    """Compute each row's term of eq. 13."""
    right = seen = None
    if term.history is not None:
        right, seen = (
            counts.cpu() for counts in term.history.of(rows.to(term.history.counts.device))
        )
    return term.penalties(rows_of(logits[rows], labels[rows]), right, seen)


@dataclass(frozen=True)
class HardestClasses:
    """Hold the steps of a temperature fitted on the hardest classes alone."""

    chosen: tuple[int, ...]  # classes, hardest first
    temperature: Numbers
    total: Numbers  # mean loss of all rows
    by_class: Numbers  # mean loss of each class: (steps + 1, classes)
    spread: Numbers  # standard deviation over classes

    def find_same_loss(self) -> tuple[int, int] | None:
        """Find two steps, A and B, of nearly the same total loss and the most different spread.

        The loss falls, then rises when the other classes get worse. A is before the lowest point,
        B after it. Return None if the loss never rises.
        """
        low = int(np.argmin(self.total))
        before, after = np.arange(low), np.arange(low + 1, len(self.total))
        if not len(before) or not len(after):
            return None
        best: tuple[float, int, int] | None = None
        for a in before.tolist():
            b = int(after[np.argmin(np.abs(self.total[after] - self.total[a]))])
            if abs(self.total[b] - self.total[a]) > 0.02 * (
                self.total[a] - self.total[low] + 1e-12
            ):
                continue
            apart = abs(float(self.spread[a] - self.spread[b]))
            if best is None or apart > best[0]:
                best = (apart, a, b)
        return None if best is None else best[1:]


def fit_hardest_classes(
    logits: Tensor, labels: Tensor, *, hardest: int = 3, steps: int = 300, rate: float = 0.05
) -> HardestClasses:
    """Fit T of z/T on the rows of the hardest classes alone (class-scaling eq. 2, figure 3).

    The hardest classes have the largest mean cross-entropy at T = 1. The paper does not say which
    calibrator it fits; temperature is its only method with one parameter. Use gradient descent on
    ln T without momentum, which would overshoot.
    """
    z, count = logits.double(), int(logits.shape[1])
    if not 0 < hardest < count:
        raise InputError(f"hardest must be between 1 and {count - 1}, found {hardest}")
    classes = torch.unique(labels)
    log_t = torch.zeros((), dtype=torch.float64, requires_grad=True)
    chosen = _average_class_losses(z, labels, classes).argsort(descending=True)[:hardest]
    rows = torch.isin(labels, classes[chosen])
    descent = torch.optim.SGD([log_t], lr=rate)
    records: list[tuple[float, float, Numbers]] = []
    for step in range(steps + 1):
        with torch.no_grad():
            scaled = z / log_t.exp()
            total = float(nn.functional.cross_entropy(scaled, labels))
            each = _average_class_losses(scaled, labels, classes).numpy()
            records.append((float(log_t.exp()), total, each))
        if step < steps:
            descent.zero_grad()
            loss = nn.functional.cross_entropy(z[rows] / log_t.exp(), labels[rows])
            loss.backward()  # type: ignore[no-untyped-call]
            descent.step()
    by_class = np.stack([record[2] for record in records])
    return HardestClasses(
        tuple(classes[chosen].tolist()),
        np.array([record[0] for record in records]),
        np.array([record[1] for record in records]),
        by_class,
        by_class.std(1, ddof=1),
    )


def _average_class_losses(logits: Tensor, labels: Tensor, classes: Tensor) -> Tensor:
    """Average the cross-entropy of each class."""
    each = nn.functional.cross_entropy(logits, labels, reduction="none")
    return torch.stack([each[labels == label].mean() for label in classes])


def infer_masked(
    features: Tensor,
    labels: Tensor,
    weight: Tensor,
    bias: Tensor,
    *,
    ratios: Sequence[float],
    draws: int = 5,
    seed: int = 0,
) -> dict[float, tuple[float, float]]:
    """Compute accuracy and mean confidence of a linear classifier with masked weights.

    mac-cal figure 1 (b) and (c): draw ``draws`` masks of the (D,K) weights for each ratio, without
    rescaling or other changes to the network.
    """
    generator = torch.Generator().manual_seed(seed)
    figures = {}
    for ratio in ratios:
        if not 0 <= ratio <= 1:
            raise InputError(f"a masked share must lie in [0, 1], found {ratio!r}")
        right, sure = [], []
        for _ in range(draws):
            kept = torch.rand(weight.shape, generator=generator).to(weight.device) >= ratio
            p = torch.softmax((features @ (weight * kept) + bias).double(), 1)
            best, predicted = p.max(1)
            right.append(float((predicted == labels).double().mean()))
            sure.append(float(best.mean()))
        figures[ratio] = (math.fsum(right) / draws, math.fsum(sure) / draws)
    return figures
