"""Who is measured in ``metrics.py``: the yardstick, calibrant, and the peers.

Every entry goes from float32 logits and integer labels to one figure. A peer that wants
probabilities has the softmax (PyTorch's, on the same threads) counted in its time; objects
a user would make once are made outside it. All use 15 bins and the L1 norm.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from itertools import pairwise

import torch
from torch import Tensor

from harness import Contestant

Calls = dict[str, Callable[[], float]]

TASKS = ("ece", "nll", "brier", "adaptive_ece", "classwise_ece", "evaluate")
SEVEN = ("accuracy", "nll", "brier", "ece", "adaptive_ece", "classwise_ece", "aurc")
BINS = 15
BLOCK_ELEMENTS = tuple(1 << exponent for exponent in range(16, 22))


def make_input(rows: int, classes: int, *, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Overconfident logits of a classifier that is right about four times in five.

    The class scores are z ~ N(0, 1) with μ added to that of the true class, so that
    μ·z are the calibrated logits; 1.5·μ·z is given.
    """
    generator = torch.Generator().manual_seed(seed)
    mean = math.sqrt(2 * math.log(classes)) + 0.35
    labels = torch.randint(classes, (rows,), generator=generator)
    logits = torch.randn(rows, classes, generator=generator)
    logits[torch.arange(rows), labels] += mean
    return logits.mul_(1.5 * mean), labels


def reference(logits: Tensor, labels: Tensor) -> dict[str, float]:
    """The five figures straight from their definitions, in float64, class by class."""
    rows, classes = logits.shape
    log_probs = torch.cat([part.double().log_softmax(1) for part in logits.split(1 << 14)])
    nll = -log_probs.gather(1, labels[:, None]).mean()
    probs = log_probs.exp_()
    true = probs.gather(1, labels[:, None]).squeeze(1)
    brier = (torch.linalg.vector_norm(probs, dim=1).square() - 2 * true + 1).mean()
    confidence, predicted = probs.max(1)
    correct = (predicted == labels).double()
    order = confidence.argsort(stable=True)
    gap = (confidence - correct)[order]
    bounds = [j * rows // BINS for j in range(BINS + 1)]
    equal_mass = sum(abs(gap[low:high].sum()) for low, high in pairwise(bounds))
    per_class = [_gaps(probs[:, k].contiguous(), (labels == k).double()) for k in range(classes)]
    return {
        "ece": float(_gaps(confidence, correct) / rows),
        "nll": float(nll),
        "brier": float(brier),
        "adaptive_ece": float(equal_mass / rows),
        "classwise_ece": float(torch.stack(per_class).mean() / rows),
    }


def _gaps(confidence: Tensor, hit: Tensor) -> Tensor:
    index = (confidence * BINS).ceil().long().sub_(1).clamp_(0, BINS - 1)
    difference = torch.zeros(BINS, dtype=torch.float64)
    return difference.index_add_(0, index, confidence - hit).abs_().sum()


def yardstick(logits: Tensor, labels: Tensor) -> list[Contestant]:
    """One ``logsumexp`` + ``max`` pass in row blocks, at six block sizes."""
    del labels

    def run(rows: int) -> float:
        for block in logits.split(rows):
            torch.logsumexp(block, dim=1)
            torch.max(block, dim=1)
        return math.nan

    sizes = [max(1, elements // logits.shape[1]) for elements in BLOCK_ELEMENTS]
    return [Contestant(f"{rows:,} rows", lambda rows=rows: run(rows)) for rows in sizes]


def ours(logits: Tensor, labels: Tensor) -> Calls:
    """calibrant: each metric on its own, and seven of them sharing one pass."""
    import calibrant
    from calibrant import metrics

    def seven() -> float:
        predictions = calibrant.Predictions.from_logits(logits, labels)
        evaluation = calibrant.evaluate(predictions, metrics=list(SEVEN), intervals=False)
        return evaluation.figures["ece"].value

    return {
        "ece": lambda: metrics.ece(logits, labels),
        "nll": lambda: metrics.nll(logits, labels),
        "brier": lambda: metrics.brier(logits, labels),
        "adaptive_ece": lambda: metrics.adaptive_ece(logits, labels),
        "classwise_ece": lambda: metrics.classwise_ece(logits, labels),
        "evaluate": seven,
    }


def of_torchmetrics(logits: Tensor, labels: Tensor, *, validate: bool = True) -> Calls:
    from torchmetrics.functional.classification import multiclass_calibration_error

    classes = logits.shape[1]
    return {
        "ece": lambda: multiclass_calibration_error(
            logits, labels, num_classes=classes, n_bins=BINS, norm="l1", validate_args=validate
        )
    }


def of_netcal(logits: Tensor, labels: Tensor) -> Calls:
    from netcal.metrics import ECE

    target = labels.numpy()
    width = ECE(bins=BINS)
    mass = ECE(bins=BINS, equal_intervals=False)
    return {
        "ece": lambda: width.measure(logits.softmax(1).numpy(), target),
        "adaptive_ece": lambda: mass.measure(logits.softmax(1).numpy(), target),
    }


def of_probmetrics(logits: Tensor, labels: Tensor) -> Calls:
    from probmetrics.metrics import Metrics

    names = {"ece": f"ece-{BINS}", "nll": "logloss", "brier": "brier"}
    makers = {task: Metrics.from_names([name]) for task, name in names.items()}
    return {
        task: lambda made=made, name=names[task]: made.compute_all_from_labels_logits(
            labels, logits
        )[name]
        for task, made in makers.items()
    }


def of_torch_uncertainty(logits: Tensor, labels: Tensor) -> Calls:
    from torch_uncertainty.metrics.classification import (
        AdaptiveCalibrationError,
        BrierScore,
        CalibrationError,
        CategoricalNLL,
        ClasswiseCalibrationError,
    )

    classes = logits.shape[1]
    options = {"task": "multiclass", "num_classes": classes, "num_bins": BINS}
    made = {
        "ece": CalibrationError(**options),
        "nll": CategoricalNLL(),
        "brier": BrierScore(num_classes=classes),
        "adaptive_ece": AdaptiveCalibrationError(**options),
        "classwise_ece": ClasswiseCalibrationError(num_classes=classes, num_bins=BINS),
    }

    def run(metric) -> float:
        metric.reset()
        metric.update(logits.softmax(1), labels)
        return metric.compute()

    return {task: lambda metric=metric: run(metric) for task, metric in made.items()}


def of_uncertainty_calibration(logits: Tensor, labels: Tensor) -> Calls:
    import calibration

    target = labels.numpy()
    options = {"debias": False, "num_bins": BINS}

    def run(function, mode: str) -> float:
        return function(logits.softmax(1).numpy(), target, mode=mode, **options)

    return {
        "ece": lambda: run(calibration.get_ece, "top-label"),
        "adaptive_ece": lambda: run(calibration.get_ece_em, "top-label"),
        "classwise_ece": lambda: run(calibration.get_ece, "marginal"),
    }


def of_scikit_learn(logits: Tensor, labels: Tensor) -> Calls:
    from sklearn.metrics import brier_score_loss, log_loss

    target = labels.numpy()
    classes = list(range(logits.shape[1]))
    return {
        "nll": lambda: log_loss(target, logits.softmax(1).numpy(), labels=classes),
        "brier": lambda: brier_score_loss(
            target, logits.softmax(1).numpy(), labels=classes, scale_by_half=False
        ),
    }


def of_torch(logits: Tensor, labels: Tensor) -> Calls:
    return {"nll": lambda: torch.nn.functional.cross_entropy(logits, labels)}


def of_torchmetrics_unchecked(logits: Tensor, labels: Tensor) -> Calls:
    return of_torchmetrics(logits, labels, validate=False)


# Shown name: (package it needs, maker of its calls). PyTorch's own loss is no peer: it is
# shown for comparison, and not counted in "faster than every peer".
PEERS: dict[str, tuple[str, Callable[[Tensor, Tensor], Calls]]] = {
    "torchmetrics": ("torchmetrics", of_torchmetrics),
    "torchmetrics, unchecked": ("torchmetrics", of_torchmetrics_unchecked),
    "netcal": ("netcal", of_netcal),
    "probmetrics": ("probmetrics", of_probmetrics),
    "torch-uncertainty": ("torch-uncertainty", of_torch_uncertainty),
    "uncertainty-calibration": ("uncertainty-calibration", of_uncertainty_calibration),
    "scikit-learn": ("scikit-learn", of_scikit_learn),
    "torch cross_entropy": ("torch", of_torch),
}

NOT_PEERS = ("calibrant", "torch cross_entropy")


def line_up(
    logits: Tensor, labels: Tensor, *, packages: Iterable[str]
) -> dict[str, list[Contestant]]:
    """Contestants of each task: ours first, then the peers whose package is at hand."""
    wanted = set(packages)
    makers = {"calibrant": ours}
    makers |= {name: maker for name, (package, maker) in PEERS.items() if package in wanted}
    tasks: dict[str, list[Contestant]] = {task: [] for task in TASKS}
    for name, maker in makers.items():
        for task, call in maker(logits, labels).items():
            tasks[task].append(Contestant(name, call, peer=name not in NOT_PEERS))
    return tasks


def bootstrap_line_up(
    logits: Tensor, labels: Tensor, *, packages: Iterable[str], resamples: int
) -> list[Contestant]:
    """Intervals of the top-label ECE: ours, and the peer's own function.

    uncertainty-calibration's function draws 100 resamples, whatever one asks for; ours is
    given ten times as many.
    """
    entries = [
        Contestant(
            f"calibrant, {resamples:,} resamples", lambda: ours_interval(logits, labels, resamples)
        )
    ]
    if "uncertainty-calibration" in packages:
        import calibration

        target = labels.numpy()
        for mode in ("top-label", "marginal"):
            entries.append(
                Contestant(
                    f"uncertainty-calibration, {mode}, 100 resamples",
                    lambda mode=mode: calibration.get_calibration_error_uncertainties(
                        logits.softmax(1).numpy(), target, p=1, mode=mode
                    )[2],
                    peer=True,
                )
            )
    return entries


def ours_interval(logits: Tensor, labels: Tensor, resamples: int) -> float:
    """The upper end of calibrant's interval of ECE."""
    from calibrant.evaluation import bootstrap_interval
    from calibrant.metrics import measure

    return bootstrap_interval(measure("ece"), logits, labels, resamples=resamples).high
