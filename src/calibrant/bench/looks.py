"""Looks into a trained network that the papers take: measurements of section 5, as rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import nn

from calibrant.bench.judging import Figure
from calibrant.bench.subject import FilesGone, Parts, Subject
from calibrant.bench.sweeps import HardClasses, hard_classes, masked_inference
from calibrant.functional.errors import InputError
from calibrant.losses import ACLS
from calibrant.losses.common import rows_of

HARD, MASKED, INACTIVE = "hard_classes", "masked", "regulariser"  # as calibrators of their rows
EVEN, UNEVEN = f"{HARD}:even", f"{HARD}:uneven"
BINS, HIGHEST = 20, 0.1  # of acls figure 3


def hard(
    subject: Parts, *, hardest: int = 3, steps: int = 300, every: int = 10, rate: float = 0.05
) -> Iterator[Figure]:
    """Class-scaling figure 3: loss, spread and ECE while T is learnt on the hardest classes.

    Parts ``test@STEP``. Of two steps with one total loss (A and B there) the ECE of the one
    whose class-wise losses are more even, and of the other.
    """
    said = subject.said("test")
    found = hard_classes(
        torch.as_tensor(said.array),
        torch.as_tensor(said.labels),
        hardest=hardest,
        steps=steps,
        rate=rate,
    )
    for step in range(0, steps + 1, every):
        for metric, value in _at(found, step).items():
            yield Figure(f"test@{step}", HARD, metric, value)
    same = found.same_loss()
    if same is not None:
        even, uneven = sorted(same, key=lambda step: float(found.spread[step]))
        for name, step in ((EVEN, even), (UNEVEN, uneven)):
            for metric, value in _at(found, step).items():
                yield Figure("test", name, metric, value)


def _at(found: HardClasses, step: int) -> dict[str, float]:
    return {
        "nll": float(found.total[step]),
        "classwise_nll_std": float(found.spread[step]),
        "ece": float(found.ece[step]),
        "parameter:temperature": float(found.temperature[step]),
    }


def masked(
    subject: Subject,
    *,
    ratios: Sequence[float] = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9),
    draws: int = 5,
    precision: str = "fp32",
) -> Iterator[Figure]:
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
        yield Figure(part, MASKED, "accuracy", accuracy)
        yield Figure(part, MASKED, "confidence", confidence)


def inactive(subject: Subject) -> Iterator[Figure]:
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
    said = subject.said("train")
    logits, labels = torch.as_tensor(said.array), torch.as_tensor(said.labels)
    shuffled = torch.randperm(len(labels), generator=torch.Generator().manual_seed(config.seed))
    batches = torch.split(shuffled, config.batch_size)
    values = torch.cat([_regulariser(term, logits, labels, rows) for rows in batches])
    yield Figure("train", "none", "inactive", float((values == 0).double().mean()))
    places = (values.clamp(0, HIGHEST) * (BINS / HIGHEST)).long().clamp_max(BINS - 1)
    for place, share in enumerate((torch.bincount(places, minlength=BINS) / len(values)).tolist()):
        yield Figure(f"train@{place}", INACTIVE, "share", share)


def _regulariser(
    term: ACLS, logits: torch.Tensor, labels: torch.Tensor, rows: torch.Tensor
) -> torch.Tensor:
    """Of each row its own term of eq. 13."""
    right = seen = None
    if term.history is not None:
        right, seen = (one.cpu() for one in term.history.of(rows.to(term.history.counts.device)))
    return term.penalties(rows_of(logits[rows], labels[rows]), right, seen)
