"""Measure trained networks as the papers do; suites load this file as a plugin."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn

from calibrant.bench import FilesGone, Measurement, Subject, register_measurement
from calibrant.core.errors import InputError
from calibrant.losses import ACLS
from calibrant.losses.common import rows_of

MASKED, INACTIVE = "masked", "regulariser"  # in the calibrator column
BINS, HIGHEST = 20, 0.1  # as in acls figure 3


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
