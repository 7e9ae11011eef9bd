"""Metrics by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, overload

from calibrant.core.errors import InputError
from calibrant.core.registry import Registry
from calibrant.metrics.base import Measure
from calibrant.metrics.user_metric import make_measure_maker

F = TypeVar("F", bound=Callable[..., Any])
_AT = "calibrant.metrics"
# name: (maker of the measure, label, a line on what it says).
_BUILTIN = {
    "accuracy": (
        f"{_AT}.means:accuracy_measure",
        "Accuracy",
        "share of predictions that are right",
    ),
    "nll": (
        f"{_AT}.means:nll_measure",
        "Negative log-likelihood",
        "mean surprise at the true class, in nats; rewards calibration and sharpness at once",
    ),
    "brier": (
        f"{_AT}.means:brier_measure",
        "Brier score",
        "squared distance of the probabilities from the truth, 0 to 2",
    ),
    "brier_calibration": (
        f"{_AT}.classwise:brier_calibration_measure",
        "Brier, calibration part",
        "what recalibration could remove of the Brier score",
    ),
    "brier_refinement": (
        f"{_AT}.classwise:brier_refinement_measure",
        "Brier, refinement part",
        "what recalibration could not remove of the Brier score",
    ),
    "ece": (
        f"{_AT}.toplabel:ece_measure",
        "Expected calibration error",
        "how far confidence is from accuracy on average, equal-width bins",
    ),
    "mce": (
        f"{_AT}.toplabel:mce_measure",
        "Maximum calibration error",
        "the same in the worst bin; noisy where bins hold few rows",
    ),
    "adaptive_ece": (
        f"{_AT}.toplabel:adaptive_ece_measure",
        "Adaptive calibration error",
        "ECE with as many rows in each bin",
    ),
    "classwise_ece": (
        f"{_AT}.classwise:classwise_ece_measure",
        "Class-wise calibration error",
        "ECE of every class's probability, averaged over classes",
    ),
    "marginal_ece": (
        f"{_AT}.classwise:marginal_ece_measure",
        "Marginal calibration error",
        "class-wise error of order 2, averaged under the root",
    ),
    "ks_error": (
        f"{_AT}.toplabel:ks_error_measure",
        "KS calibration error",
        "largest gap between cumulative confidence and accuracy; no bins",
    ),
    "sweep_ece": (
        f"{_AT}.toplabel:sweep_ece_measure",
        "Monotone-sweep calibration error",
        "ECE whose bins the data choose",
    ),
    "debiased_ece": (
        f"{_AT}.toplabel:debiased_ece_measure",
        "Debiased calibration error",
        "ECE of order 2 less its upward bias",
    ),
    "chance_ece": (
        f"{_AT}.toplabel:chance_ece_measure",
        "Calibration error by chance",
        "the mean ECE of perfect calibration with as many rows; a lower ECE is noise",
    ),
    "kde_ece": (
        f"{_AT}.kernel:kde_ece_measure",
        "Kernel calibration error",
        "canonical calibration error by a Dirichlet kernel; visits all pairs of rows",
    ),
    "smooth_ece": (
        f"{_AT}.toplabel:smooth_ece_measure",
        "Smooth calibration error",
        "calibration error with a kernel in place of bins; consistent",
    ),
    "aurc": (
        f"{_AT}.selective:aurc_measure",
        "Area under risk-coverage",
        "mean error rate when the least confident rows are handed to a person",
    ),
    "e_aurc": (
        f"{_AT}.selective:e_aurc_measure",
        "Excess area under risk-coverage",
        "AURC above the best possible ranking",
    ),
    "augrc": (
        f"{_AT}.selective:augrc_measure",
        "Generalised risk-coverage area",
        "mean rate of undetected failures over all coverages",
    ),
    "risk_at_coverage": (
        f"{_AT}.selective:risk_at_coverage_measure",
        "Risk at 80% coverage",
        "error rate of the most confident 80%",
    ),
    "coverage_at_risk": (
        f"{_AT}.selective:coverage_at_risk_measure",
        "Coverage at 5% risk",
        "largest share that can be accepted at a 5% error rate",
    ),
    "failure_auroc": (
        f"{_AT}.selective:failure_auroc_measure",
        "Failure AUROC",
        "chance that a right prediction is surer than a wrong one",
    ),
    "ood_auroc": (
        f"{_AT}.ood:ood_auroc_measure",
        "OOD AUROC",
        "chance that an in-distribution row is surer than another; labels 1 and 0",
    ),
    "fpr95": (
        f"{_AT}.ood:fpr95_measure",
        "FPR at 95% TPR",
        "out-of-distribution rows accepted when 95% of the others are; labels 1 and 0",
    ),
    "mean_entropy": (
        f"{_AT}.means:mean_entropy_measure",
        "Mean entropy",
        "mean uncertainty of the predictions, nats",
    ),
    "classwise_nll_std": (
        f"{_AT}.means:classwise_nll_std_measure",
        "Spread of class-wise losses",
        "standard deviation over classes of their mean negative log-likelihood",
    ),
    "miou": (
        f"{_AT}.segmentation:miou_measure",
        "Mean intersection over union",
        "overlap, for dense prediction",
    ),
}
METRICS: Registry[Callable[..., Measure]] = Registry(
    "metric",
    {name: (target, summary) for name, (target, _, summary) in _BUILTIN.items()},
    rival="calibrant.calibrators.registry:CALIBRATORS",
    names_results=True,
)
_labels = {name: label for name, (_, label, _) in _BUILTIN.items()}


def available() -> dict[str, str]:
    """Return every metric's name with a line on what it says."""
    return METRICS.available()


def label_of(name: str) -> str:
    """Return the label of a metric: ``Expected calibration error``."""
    return _labels.get(name, name)


def measure(name: str, **options: Any) -> Measure:
    """Make a streaming measure.

    Args:
        name: The metric's name.
        options: Its options.
    """
    maker = METRICS.load(name)
    try:
        return maker(**options)
    except TypeError as error:
        raise InputError(f"metric {name!r}: {error}") from None


@overload
def register(function: F) -> F: ...
@overload
def register(
    *, name: str | None = ..., label: str = ..., summary: str = ..., better: str | None = ...
) -> Callable[[F], F]: ...


def register(
    function: Any = None,
    *,
    name: str | None = None,
    label: str = "",
    summary: str = "",
    better: str | None = None,
) -> Any:
    """Register a metric of your own; a decorator, with or without options.

    Args:
        function: ``function(probs, target, **options)``, the metric's value on all rows: NumPy
            arrays of float64 probabilities (N, K) and int64 labels (N,). A function that needs
            no arguments may return a streaming `Measure` instead.
        name: Its name; the function's own by default.
        label: The heading of its column; its name by default.
        summary: A line on what it says; the first line of its docstring by default.
        better: ``lower`` (the default), ``higher`` or ``neither``.
    """

    def add(given: F) -> F:
        word = name or str(getattr(given, "__name__", ""))
        maker = make_measure_maker(word, given, better)
        METRICS.register(maker, name=word, summary=summary or None)
        _labels[word] = label or word
        return given

    return add if function is None else add(function)
