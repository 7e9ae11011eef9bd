"""Every metric by its canonical name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from calibrant.functional.errors import InputError, no_such
from calibrant.metrics import classwise, kernel, means, ood, segmentation, selective, toplabel
from calibrant.metrics.base import Measure


@dataclass(frozen=True)
class Entry:
    """One metric: its maker, a human name, and a line on what it says."""

    make: Callable[..., Measure]
    label: str
    says: str


METRICS: dict[str, Entry] = {
    "accuracy": Entry(means.accuracy_measure, "Accuracy", "share of predictions that are right"),
    "nll": Entry(
        means.nll_measure,
        "Negative log-likelihood",
        "mean surprise at the true class, in nats; rewards calibration and sharpness at once",
    ),
    "brier": Entry(
        means.brier_measure,
        "Brier score",
        "squared distance of the probabilities from the truth, 0 to 2",
    ),
    "brier_calibration": Entry(
        classwise.brier_calibration_measure,
        "Brier, calibration part",
        "what recalibration could remove of the Brier score",
    ),
    "brier_refinement": Entry(
        classwise.brier_refinement_measure,
        "Brier, refinement part",
        "what recalibration could not remove of the Brier score",
    ),
    "ece": Entry(
        toplabel.ece_measure,
        "Expected calibration error",
        "how far confidence is from accuracy on average, equal-width bins",
    ),
    "mce": Entry(
        toplabel.mce_measure,
        "Maximum calibration error",
        "the same in the worst bin; noisy where bins hold few rows",
    ),
    "adaptive_ece": Entry(
        toplabel.adaptive_ece_measure,
        "Adaptive calibration error",
        "ECE with as many rows in each bin",
    ),
    "classwise_ece": Entry(
        classwise.classwise_ece_measure,
        "Class-wise calibration error",
        "ECE of every class's probability, averaged over classes",
    ),
    "marginal_ece": Entry(
        classwise.marginal_ece_measure,
        "Marginal calibration error",
        "class-wise error of order 2, averaged under the root",
    ),
    "ks_error": Entry(
        toplabel.ks_error_measure,
        "KS calibration error",
        "largest gap between cumulative confidence and accuracy; no bins",
    ),
    "sweep_ece": Entry(
        toplabel.sweep_ece_measure,
        "Monotone-sweep calibration error",
        "ECE whose bins the data choose",
    ),
    "debiased_ece": Entry(
        toplabel.debiased_ece_measure,
        "Debiased calibration error",
        "ECE of order 2 less its upward bias",
    ),
    "chance_ece": Entry(
        toplabel.chance_ece_measure,
        "Calibration error by chance",
        "the mean ECE of perfect calibration on so many rows; as low cannot be told from it",
    ),
    "kde_ece": Entry(
        kernel.kde_ece_measure,
        "Kernel calibration error",
        "canonical calibration error by a Dirichlet kernel; visits all pairs of rows",
    ),
    "smooth_ece": Entry(
        toplabel.smooth_ece_measure,
        "Smooth calibration error",
        "calibration error with a kernel in place of bins; consistent",
    ),
    "aurc": Entry(
        selective.aurc_measure,
        "Area under risk-coverage",
        "mean error rate when the least confident rows are handed to a person",
    ),
    "e_aurc": Entry(
        selective.e_aurc_measure,
        "Excess area under risk-coverage",
        "AURC above the best possible ranking",
    ),
    "augrc": Entry(
        selective.augrc_measure,
        "Generalised risk-coverage area",
        "mean rate of undetected failures over all coverages",
    ),
    "risk_at_coverage": Entry(
        selective.risk_at_coverage_measure,
        "Risk at 80% coverage",
        "error rate of the most confident 80%",
    ),
    "coverage_at_risk": Entry(
        selective.coverage_at_risk_measure,
        "Coverage at 5% risk",
        "largest share that can be accepted at a 5% error rate",
    ),
    "failure_auroc": Entry(
        selective.failure_auroc_measure,
        "Failure AUROC",
        "chance that a right prediction is surer than a wrong one",
    ),
    "ood_auroc": Entry(
        ood.ood_auroc_measure,
        "OOD AUROC",
        "chance that an in-distribution row is surer than another; labels 1 and 0",
    ),
    "fpr95": Entry(
        ood.fpr95_measure,
        "FPR at 95% TPR",
        "out-of-distribution rows accepted when 95% of the others are; labels 1 and 0",
    ),
    "mean_entropy": Entry(
        means.mean_entropy_measure, "Mean entropy", "mean uncertainty of the predictions, nats"
    ),
    "classwise_nll_std": Entry(
        means.classwise_nll_std_measure,
        "Spread of class-wise losses",
        "standard deviation over classes of their mean negative log-likelihood",
    ),
    "miou": Entry(
        segmentation.miou_measure, "Mean intersection over union", "overlap, for dense prediction"
    ),
}


def available() -> dict[str, str]:
    """Every metric's name and a line on what it says."""
    return {name: entry.says for name, entry in METRICS.items()}


def measure(name: str, **options: Any) -> Measure:
    """A metric by name, with its options."""
    if name not in METRICS:
        raise no_such("metric", name, METRICS)
    try:
        return METRICS[name].make(**options)
    except TypeError as error:
        raise InputError(f"metric {name!r}: {error}") from None
