"""Metrics: pure functions of predictions and labels, each over a small streaming state.

``preds`` are logits unless ``from_logits=False``; shapes (N,K), binary (N,) and dense
(N,K,...), with ``ignore_index``. The same metrics as ``torchmetrics.Metric`` classes are
in ``calibrant.metrics.modules``, imported only when used.
"""

from calibrant.metrics.classwise import (
    brier_calibration,
    brier_refinement,
    classwise_ece,
    marginal_ece,
)
from calibrant.metrics.events import (
    auroc,
    average_precision,
    brier_dsc,
    brier_mcb,
    brier_skill,
    brier_unc,
    calibration_in_the_large,
    calibration_intercept,
    calibration_slope,
    decision_curve,
    e50,
    e90,
    emax,
    hosmer_lemeshow,
    ici,
    log_ece,
    mean_gap,
    net_benefit,
    oe_ratio,
    spiegelhalter,
)
from calibrant.metrics.kernel import kde_ece
from calibrant.metrics.means import accuracy, brier, classwise_nll_std, mean_entropy, nll
from calibrant.metrics.ood import fpr95, ood_auroc
from calibrant.metrics.registry import available, measure, register
from calibrant.metrics.segmentation import miou
from calibrant.metrics.selective import (
    augrc,
    aurc,
    aurc_from_scores,
    coverage_at_risk,
    e_aurc,
    failure_auroc,
    risk_at_coverage,
)
from calibrant.metrics.toplabel import (
    adaptive_ece,
    chance_ece,
    debiased_ece,
    ece,
    ks_error,
    mce,
    smooth_ece,
    sweep_ece,
)

__all__ = [
    "accuracy",
    "adaptive_ece",
    "augrc",
    "aurc",
    "aurc_from_scores",
    "auroc",
    "available",
    "average_precision",
    "brier",
    "brier_calibration",
    "brier_dsc",
    "brier_mcb",
    "brier_refinement",
    "brier_skill",
    "brier_unc",
    "calibration_in_the_large",
    "calibration_intercept",
    "calibration_slope",
    "chance_ece",
    "classwise_ece",
    "classwise_nll_std",
    "coverage_at_risk",
    "debiased_ece",
    "decision_curve",
    "e50",
    "e90",
    "e_aurc",
    "ece",
    "emax",
    "failure_auroc",
    "fpr95",
    "hosmer_lemeshow",
    "ici",
    "kde_ece",
    "ks_error",
    "log_ece",
    "marginal_ece",
    "mce",
    "mean_entropy",
    "mean_gap",
    "measure",
    "miou",
    "net_benefit",
    "nll",
    "oe_ratio",
    "ood_auroc",
    "register",
    "risk_at_coverage",
    "smooth_ece",
    "spiegelhalter",
    "sweep_ece",
]
