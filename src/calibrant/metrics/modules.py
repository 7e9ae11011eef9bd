"""Every metric as a `torchmetrics.Metric`: thin shells over the same streaming states.

Each class takes the keyword options of the function it is named after, those of every
metric (`from_logits`, `ignore_index`, `num_classes`, `validate_args`) and those of
torchmetrics, which takes seconds to import: import this module only when used. Sums are
float64 and add up across processes; what is kept of each row is joined.

>>> import torch
>>> from calibrant.metrics.modules import ECE
>>> metric = ECE(num_bins=10)
>>> metric.update(torch.tensor([[2.0, 0.0], [0.0, 2.0]]), torch.tensor([0, 1]))
>>> round(metric.compute().item(), 4)
0.1192
"""

from __future__ import annotations

from calibrant.metrics.shell import Shell

__all__ = [
    "Accuracy",
    "AdaptiveECE",
    "AUGRC",
    "AURC",
    "Brier",
    "BrierCalibration",
    "BrierRefinement",
    "ChanceECE",
    "ClasswiseECE",
    "ClasswiseNLLStd",
    "CoverageAtRisk",
    "DebiasedECE",
    "EAURC",
    "ECE",
    "FailureAUROC",
    "FPR95",
    "KDEECE",
    "KSError",
    "MarginalECE",
    "MCE",
    "MeanEntropy",
    "MIoU",
    "NLL",
    "OODAUROC",
    "RiskAtCoverage",
    "SmoothECE",
    "SweepECE",
]


class Accuracy(Shell, metric="accuracy"):
    """Share of rows whose largest score is the true class: see `calibrant.metrics.accuracy`."""


class NLL(Shell, metric="nll"):
    """Mean of −ln p_y in nats: see `calibrant.metrics.nll`."""


class Brier(Shell, metric="brier"):
    """Mean of Σ_k (p_k − 1[k=y])²: see `calibrant.metrics.brier`."""


class BrierCalibration(Shell, metric="brier_calibration"):
    """Calibration part of the Brier score: see `calibrant.metrics.brier_calibration`."""


class BrierRefinement(Shell, metric="brier_refinement"):
    """Refinement part of the Brier score: see `calibrant.metrics.brier_refinement`."""


class ECE(Shell, metric="ece"):
    """Expected calibration error of the top label: see `calibrant.metrics.ece`."""


class MCE(Shell, metric="mce"):
    """Largest gap of a bin: see `calibrant.metrics.mce`."""


class AdaptiveECE(Shell, metric="adaptive_ece"):
    """ECE with bins of equal mass; keeps confidences: see `calibrant.metrics.adaptive_ece`."""


class ClasswiseECE(Shell, metric="classwise_ece"):
    """Mean over classes of each one's ECE: see `calibrant.metrics.classwise_ece`."""


class MarginalECE(Shell, metric="marginal_ece"):
    """Root of the mean over classes of squared errors: see `calibrant.metrics.marginal_ece`."""


class KSError(Shell, metric="ks_error"):
    """Kolmogorov–Smirnov error; keeps confidences: see `calibrant.metrics.ks_error`."""


class SweepECE(Shell, metric="sweep_ece"):
    """Monotone-sweep ECE; keeps confidences: see `calibrant.metrics.sweep_ece`."""


class DebiasedECE(Shell, metric="debiased_ece"):
    """ECE less an estimate of its upward bias: see `calibrant.metrics.debiased_ece`."""


class ChanceECE(Shell, metric="chance_ece"):
    """The ECE that perfect calibration would show: see `calibrant.metrics.chance_ece`."""


class KDEECE(Shell, metric="kde_ece"):
    """Kernel calibration error; keeps every row's scores: see `calibrant.metrics.kde_ece`."""


class SmoothECE(Shell, metric="smooth_ece"):
    """Smooth calibration error; keeps confidences: see `calibrant.metrics.smooth_ece`."""


class AURC(Shell, metric="aurc"):
    """Area under the risk-coverage curve; keeps scores and losses: see `calibrant.metrics.aurc`."""


class EAURC(Shell, metric="e_aurc"):
    """AURC above the best order's; keeps scores and losses: see `calibrant.metrics.e_aurc`."""


class AUGRC(Shell, metric="augrc"):
    """Generalised risk-coverage area; keeps scores and losses: see `calibrant.metrics.augrc`."""


class RiskAtCoverage(Shell, metric="risk_at_coverage"):
    """Mean loss of the most confident share: see `calibrant.metrics.risk_at_coverage`."""


class CoverageAtRisk(Shell, metric="coverage_at_risk"):
    """Largest share acceptable at a risk: see `calibrant.metrics.coverage_at_risk`."""


class FailureAUROC(Shell, metric="failure_auroc"):
    """AUROC of confidence, right against wrong: see `calibrant.metrics.failure_auroc`."""


class OODAUROC(Shell, metric="ood_auroc"):
    """AUROC of in-distribution rows, label 1, against 0: see `calibrant.metrics.ood_auroc`."""


class FPR95(Shell, metric="fpr95"):
    """False-positive rate at 95% true positives, labels 1 and 0: see `calibrant.metrics.fpr95`."""


class MeanEntropy(Shell, metric="mean_entropy"):
    """Mean entropy of the predictions, without labels: see `calibrant.metrics.mean_entropy`."""


class ClasswiseNLLStd(Shell, metric="classwise_nll_std"):
    """Spread over classes of their NLL: see `calibrant.metrics.classwise_nll_std`."""


class MIoU(Shell, metric="miou"):
    """Mean intersection over union, for dense prediction: see `calibrant.metrics.miou`."""
