"""Measurements that the papers take of trained networks; suites load this file as a plugin."""

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

HARD, MASKED, INACTIVE = "hard_classes", "masked", "regulariser"  # as calibrators of their rows
EVEN, UNEVEN = f"{HARD}:even", f"{HARD}:uneven"
BINS, HIGHEST = 20, 0.1  # of acls figure 3
Numbers = NDArray[np.float64]


@register_measurement("hard_classes", needs_network=False)
def measure_hard_classes(
    subject: Parts, *, hardest: int = 3, steps: int = 300, every: int = 10, rate: float = 0.05
) -> Iterator[Measurement]:
    """Class-scaling figure 3: loss, spread and ECE while T is learnt on the hardest classes.

    Parts ``test@STEP``. Of two steps with one total loss (A and B there) the ECE of the one
    whose class-wise losses are more even, and of the other.
    """
    predictions = subject.predictions("test")
    found = fit_hard_classes(
        torch.as_tensor(predictions.array),
        torch.as_tensor(predictions.labels),
        hardest=hardest,
        steps=steps,
        rate=rate,
    )
    for step in range(0, steps + 1, every):
        for metric, value in _at(found, step).items():
            yield Measurement(f"test@{step}", HARD, metric, value)
    same = found.same_loss()
    if same is not None:
        even, uneven = sorted(same, key=lambda step: float(found.spread[step]))
        for name, step in ((EVEN, even), (UNEVEN, uneven)):
            for metric, value in _at(found, step).items():
                yield Measurement("test", name, metric, value)


def _at(found: HardClasses, step: int) -> dict[str, float]:
    return {
        "nll": float(found.total[step]),
        "classwise_nll_std": float(found.spread[step]),
        "ece": float(found.ece[step]),
        "parameter:temperature": float(found.temperature[step]),
    }


@register_measurement("masked")
def measure_masked(
    subject: Subject,
    *,
    ratios: Sequence[float] = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9),
    draws: int = 5,
    precision: str = "fp32",
) -> Iterator[Measurement]:
    """mac-cal figure 1: accuracy and confidence with a share of the classifier's weights masked.

    Parts ``test@PERCENT``.
    """
    network = subject.network(precision)
    head = network.split().head
    if not isinstance(head, nn.Linear):
        raise InputError(f"masked takes a linear classifier, found {type(head).__name__}")
    assert network.test is not None  # every run has test rows
    features, labels = network.features(network.test)
    bias = torch.zeros(head.out_features, device=head.weight.device)
    with torch.no_grad():
        found = masked_inference(
            features.float(),
            labels,
            head.weight.float().T,
            bias if head.bias is None else head.bias.float(),
            ratios=ratios,
            draws=draws,
        )
    for ratio, (accuracy, confidence) in found.items():
        part = f"test@{round(100 * ratio)}"
        yield Measurement(part, MASKED, "accuracy", accuracy)
        yield Measurement(part, MASKED, "confidence", confidence)


@register_measurement("inactive")
def measure_inactive(subject: Subject) -> Iterator[Measurement]:
    """acls figure 3: how much its regulariser is, and whether it is 0, on training rows.

    By the trained network, in batches as in training; where it ranks, with what the loss has
    counted of each row. Parts ``train@BIN``, twenty bins of 0.005, the last with all beyond.
    """
    run, config = subject.run, subject.config
    loss = subject.network().loss
    term = next((one for one in loss.modules() if isinstance(one, ACLS)), None)
    if term is None:
        raise InputError(f"inactive is about acls, found the loss {config.loss}")
    if term.history is not None and not bool(term.history.counts.any()):
        raise FilesGone(f"{run.folder}: what its loss has counted of each row was not kept")
    predictions = subject.predictions("train")
    logits, labels = torch.as_tensor(predictions.array), torch.as_tensor(predictions.labels)
    shuffled = torch.randperm(len(labels), generator=torch.Generator().manual_seed(config.seed))
    batches = torch.split(shuffled, config.batch_size)
    values = torch.cat([_regulariser(term, logits, labels, rows) for rows in batches])
    yield Measurement("train", "none", "inactive", float((values == 0).double().mean()))
    places = (values.clamp(0, HIGHEST) * (BINS / HIGHEST)).long().clamp_max(BINS - 1)
    for place, share in enumerate((torch.bincount(places, minlength=BINS) / len(values)).tolist()):
        yield Measurement(f"train@{place}", INACTIVE, "share", share)


def _regulariser(term: ACLS, logits: Tensor, labels: Tensor, rows: Tensor) -> Tensor:
    """Of each row its own term of eq. 13."""
    right = seen = None
    if term.history is not None:
        right, seen = (one.cpu() for one in term.history.of(rows.to(term.history.counts.device)))
    return term.penalties(rows_of(logits[rows], labels[rows]), right, seen)


@dataclass(frozen=True)
class HardClasses:
    """A temperature fitted on the hardest classes alone, step by step."""

    chosen: tuple[int, ...]  # classes, the hardest first
    temperature: Numbers
    total: Numbers  # mean loss of all rows
    by_class: Numbers  # (steps + 1, classes): mean loss of each
    spread: Numbers  # standard deviation over classes
    ece: Numbers

    def same_loss(self) -> tuple[int, int] | None:
        """Two steps of nearly the same total loss with the most different spread: A and B.

        The loss falls, and rises again once the other classes pay: A is before the lowest
        point, B after it. None where it never rises.
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


def fit_hard_classes(
    logits: Tensor,
    labels: Tensor,
    *,
    hardest: int = 3,
    steps: int = 300,
    rate: float = 0.05,
    num_bins: int = 15,
) -> HardClasses:
    """Class-scaling eq. 2 and figure 3: z/T with T learnt on the hardest classes' rows alone.

    The hardest are those of largest mean cross-entropy at T = 1. The paper does not say which
    layer it fits; a temperature is the one of its methods that has one number. Plain
    descent on ln T: momentum would carry T beyond its end and back.
    """
    z, count = logits.double(), int(logits.shape[1])
    if not 0 < hardest < count:
        raise InputError(f"hardest is between 1 and {count - 1} classes, found {hardest}")
    classes = torch.unique(labels)
    log_t = torch.zeros((), dtype=torch.float64, requires_grad=True)
    chosen = _class_losses(z, labels, classes).argsort(descending=True)[:hardest]
    rows = torch.isin(labels, classes[chosen])
    descent = torch.optim.SGD([log_t], lr=rate)
    told: list[tuple[float, float, Numbers, float]] = []
    for step in range(steps + 1):
        with torch.no_grad():
            scaled = z / log_t.exp()
            each = _class_losses(scaled, labels, classes)
            total = float(nn.functional.cross_entropy(scaled, labels))
            error = float(ece(scaled, labels, num_bins=num_bins))
            told.append((float(log_t.exp()), total, each.numpy(), error))
        if step < steps:
            descent.zero_grad()
            loss = nn.functional.cross_entropy(z[rows] / log_t.exp(), labels[rows])
            loss.backward()  # type: ignore[no-untyped-call]
            descent.step()
    by_class = np.stack([one[2] for one in told])
    return HardClasses(
        tuple(classes[chosen].tolist()),
        np.array([one[0] for one in told]),
        np.array([one[1] for one in told]),
        by_class,
        by_class.std(1, ddof=1),
        np.array([one[3] for one in told]),
    )


def _class_losses(logits: Tensor, labels: Tensor, classes: Tensor) -> Tensor:
    """Mean cross-entropy of each class."""
    each = nn.functional.cross_entropy(logits, labels, reduction="none")
    return torch.stack([each[labels == one].mean() for one in classes])


def masked_inference(
    features: Tensor,
    labels: Tensor,
    weight: Tensor,
    bias: Tensor,
    *,
    ratios: Sequence[float],
    draws: int = 5,
    seed: int = 0,
) -> dict[float, tuple[float, float]]:
    """Accuracy and mean confidence of a linear classifier with a share of its weights masked.

    mac-cal figure 1 (b) and (c): fresh masks on (D,K) weights, ``draws`` of them a ratio, not
    rescaled, the network as it is otherwise.
    """
    generator = torch.Generator().manual_seed(seed)
    found = {}
    for ratio in ratios:
        if not 0 <= ratio <= 1:
            raise InputError(f"a share masked lies in [0, 1], found {ratio!r}")
        right, sure = [], []
        for _ in range(draws):
            kept = torch.rand(weight.shape, generator=generator).to(weight.device) >= ratio
            p = torch.softmax((features @ (weight * kept) + bias).double(), 1)
            best, predicted = p.max(1)
            right.append(float((predicted == labels).double().mean()))
            sure.append(float(best.mean()))
        found[ratio] = (math.fsum(right) / draws, math.fsum(sure) / draws)
    return found
