"""What the tests of metrics share: every metric with its options, and its plain twin."""

from __future__ import annotations

from functools import cache, cached_property
from itertools import product

import numpy as np
import pytest
import torch

from calibrant import metrics
from calibrant.metrics.registry import METRICS
from tests.reference import events
from tests.reference import metrics as ref

BINS = (1, 10, 15, 100)
ORDERS = (1, 2, 3.5)
SELECTIVE = ("aurc", "e_aurc", "augrc", "risk_at_coverage", "coverage_at_risk")
OOD = ("ood_auroc", "fpr95")
SCORES = ("msp", "margin", "neg_entropy", "max_logit")
LOSSES = ("zero_one", "cross_entropy", "brier")
CURVES = ("ici", "e50", "e90", "emax")
SLOPES = ("calibration_slope", "calibration_intercept")
SIGNED = (*SLOPES, "calibration_in_the_large", "mean_gap", "brier_skill", "net_benefit")


def grid(**choices):
    """Every combination of the choices, as keyword options."""
    return [dict(zip(choices, values, strict=True)) for values in product(*choices.values())]


OPTIONS = {name: [{}] for name in METRICS} | {
    "ece": grid(num_bins=BINS, order=ORDERS, binning=("width", "mass"), form=("bin", "label")),
    "mce": grid(num_bins=BINS, binning=("width", "mass")),
    "adaptive_ece": grid(num_bins=BINS, order=ORDERS),
    "debiased_ece": grid(num_bins=BINS, order=(1, 2), binning=("width", "mass")),
    "chance_ece": grid(num_bins=BINS),
    "sweep_ece": grid(order=ORDERS),
    "classwise_ece": grid(num_bins=(1, 15, 100), order=(1, 2), binning=("width", "mass")),
    "marginal_ece": [
        *grid(num_bins=(1, 15, 100), binning=("width", "mass"), class_reduction=("mean", "sum")),
        *grid(num_bins=(10,), order=(1, 3.5)),
    ],
    "brier_calibration": grid(num_bins=BINS),
    "brier_refinement": grid(num_bins=BINS),
    "kde_ece": grid(
        form=("canonical", "marginal", "top"), order=(1, 2), bandwidth=(0.001, 0.05, 0.5)
    ),
    "aurc": grid(score=SCORES, loss=LOSSES, weights=("empirical", "log")),
    "e_aurc": grid(score=SCORES, loss=LOSSES, weights=("empirical", "log")),
    "augrc": grid(score=SCORES, loss=LOSSES),
    "risk_at_coverage": grid(score=SCORES, loss=LOSSES, coverage=(0.01, 0.7, 0.8, 1.0)),
    "coverage_at_risk": [
        *grid(score=SCORES, loss=LOSSES, risk=(0.05, 0.3)),
        *grid(score=SCORES, loss=("zero_one",), risk=(0.0,)),
    ],
    "failure_auroc": grid(score=SCORES),
    "ood_auroc": grid(score=SCORES),
    "fpr95": grid(score=SCORES),
    "hosmer_lemeshow": grid(num_bins=(1, 10), returns=("p_value", "statistic")),
    "spiegelhalter": grid(returns=("p_value", "statistic")),
    "log_ece": grid(num_bins=(1, 15), order=(1, 2), low=(1e-4, 0.5)),
    "net_benefit": grid(threshold=(0.0, 0.5, 0.9)),
    "ici": grid(span=(0.4, 0.75), degree=(1, 2)),
}

TOP_LABEL = {
    "ece": ref.ece,
    "mce": ref.mce,
    "adaptive_ece": lambda c, a, num_bins=15, order=1: ref.ece(c, a, num_bins, order, "mass"),
    "ks_error": ref.ks_error,
    "sweep_ece": ref.sweep_ece,
    "debiased_ece": ref.debiased_ece,
    "chance_ece": ref.chance_ece,
    "smooth_ece": ref.smooth_ece,
}


class Plain:
    """The plain float64 value of every metric on one set of rows.

    ``logits`` say that the package is given those; without them it is given the
    probabilities. Quantities of a row are computed once for all metrics.
    """

    def __init__(self, probs, labels, logits=None):
        self.probs = np.asarray(probs, dtype=np.float64)
        self.labels = np.asarray(labels)
        self.logits = logits

    @cached_property
    def top(self):
        return ref.top(self.probs, self.labels)

    @cached_property
    def pairs(self):
        """Probability and outcome of each row: of class 1 of two, else of the predicted class."""
        if self.probs.shape[1] == 2:
            return self.probs[:, 1].tolist(), [float(y == 1) for y in self.labels]
        return self.top

    @cache  # noqa: B019
    def score(self, name):
        if name == "margin":
            largest = [sorted(row.tolist())[-2:] for row in self.probs]
            return [top - second for second, top in largest]
        if name == "neg_entropy":
            return ref.negative_entropy_score(self.probs)
        return ref.max_logit_score(
            self.probs if name == "msp" or self.logits is None else self.logits
        )

    @cache  # noqa: B019
    def loss(self, name):
        if name == "zero_one":
            return [1.0 - a for a in self.top[1]]
        if name == "brier":
            return [ref.brier([p], [y]) for p, y in zip(self.probs, self.labels, strict=True)]
        if self.logits is None:
            return ref.row_nll(self.probs, self.labels)
        rows = zip(self.logits, self.labels, strict=True)
        return [ref.nll_from_logits([z], [y]) for z, y in rows]

    def value(self, name, **options):
        """One metric; for those of `OOD` labels are taken as odd (in distribution) or even."""
        probs, labels = self.probs, self.labels
        if name in TOP_LABEL:
            return TOP_LABEL[name](*self.pairs, **options)
        if name in events.METRICS:
            return events.METRICS[name](*map(np.array, self.pairs), **options)
        if name == "brier" and probs.shape[1] == 2:
            return events.brier(*map(np.array, self.pairs))
        if name == "nll" and self.logits is not None:
            return ref.nll_from_logits(self.logits, labels)
        if name == "mean_entropy":
            return ref.mean_entropy(probs)
        if name == "miou":
            return ref.miou(ref.predictions(probs), labels, probs.shape[1])
        if name == "kde_ece":
            return ref.kde_ece(probs, labels, floor=1e-12, **options)
        if name not in (*SELECTIVE, "failure_auroc", *OOD):
            return getattr(ref, name)(probs, labels, **options)
        score = self.score(options.pop("score", "msp"))
        if name in OOD:
            inside = [s for s, y in zip(score, labels, strict=True) if y % 2]
            outside = [s for s, y in zip(score, labels, strict=True) if not y % 2]
            return getattr(ref, name)(inside, outside)
        if name == "failure_auroc":
            return ref.failure_auroc(score, self.top[1])
        loss = self.loss(options.pop("loss", "zero_one"))
        if name == "risk_at_coverage":
            options.setdefault("coverage", 0.8)
        if name == "coverage_at_risk":
            options.setdefault("risk", 0.05)
        return getattr(ref, name)(score, loss, **options)


def is_defined(name, probs, labels):
    """Whether the slope of a recalibration exists."""
    try:
        Plain(probs, labels).value(name)
    except events.Undefined:
        return False
    return True


def value(name, preds, target, **options):
    """The value of a metric by the package, as a float."""
    return float(getattr(metrics, name)(preds, target, **options))


def labels_for(name, labels):
    """Labels as a metric wants them: classes, or whether a row is in distribution."""
    return labels % 2 if name in OOD else labels


def module_class(name):
    """The torchmetrics class of a metric."""
    from calibrant.metrics import modules

    classes = (getattr(modules, each) for each in modules.__all__)
    return next(each for each in classes if each.metric == name)


def module(name, num_classes, **options):
    """An instance of it; `num_classes` reaches it only where it must."""
    needed = {"classwise_nll_std", "miou", "brier_calibration", "brier_refinement"}
    binned = name in ("classwise_ece", "marginal_ece") and options.get("binning") != "mass"
    if name in needed or binned:
        options["num_classes"] = num_classes
    return module_class(name)(**options)


DEVICES = [
    "cpu",
    pytest.param(
        "cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA here")
    ),
]
# Every metric as it comes, and again where an option takes another state or another path.
CASES = [
    *((name, {}) for name in METRICS),
    ("ece", {"binning": "mass", "order": 2}),
    ("ece", {"form": "label"}),
    ("ece", {"form": "label", "binning": "mass"}),
    ("debiased_ece", {"binning": "width", "order": 1}),
    ("classwise_ece", {"binning": "mass"}),
    ("marginal_ece", {"binning": "mass", "class_reduction": "sum"}),
    ("kde_ece", {"form": "top", "bandwidth": 0.1}),
    ("kde_ece", {"form": "marginal", "bandwidth": 0.1}),
    ("aurc", {"score": "margin", "loss": "brier", "weights": "log"}),
    ("aurc", {"score": "neg_entropy", "loss": "cross_entropy"}),
    ("e_aurc", {"score": "max_logit", "loss": "brier"}),
    ("fpr95", {"score": "neg_entropy"}),
]
IDS = ["-".join([name, *map(str, options.values())]) for name, options in CASES]
every_case = pytest.mark.parametrize(("name", "options"), CASES, ids=IDS)


def rows(num_rows=60, num_classes=4, seed=0):
    """Random float64 logits and labels as torch tensors."""
    rng = np.random.default_rng(seed)
    logits = rng.normal(size=(num_rows, num_classes)) * 2
    labels = (logits + 2 * rng.normal(size=logits.shape)).argmax(1)
    return torch.from_numpy(logits), torch.from_numpy(labels)
