"""Metrics by name."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from string import Formatter
from typing import Any, TypeVar, overload

from calibrant.core.method_text import format_method, merge_options
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
        "Risk at {coverage} coverage",
        "error rate of the most confident share, 80% unless coverage= says another",
    ),
    "coverage_at_risk": (
        f"{_AT}.selective:coverage_at_risk_measure",
        "Coverage at {risk} risk",
        "largest share that can be accepted at an error rate, 5% unless risk= says another",
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
    "calibration_in_the_large": (
        f"{_AT}.events:calibration_in_the_large_measure",
        "Calibration in the large",
        "offset of the log odds; 0 is calibrated on average, negative says too much",
    ),
    "calibration_slope": (
        f"{_AT}.events:calibration_slope_measure",
        "Calibration slope",
        "1 is calibrated; below 1 probabilities are too extreme, above 1 too timid",
    ),
    "calibration_intercept": (
        f"{_AT}.events:calibration_intercept_measure",
        "Calibration intercept",
        "offset of the log odds beside the calibration slope",
    ),
    "oe_ratio": (
        f"{_AT}.events:oe_ratio_measure",
        "Observed / expected",
        "events that happened over events that were expected; 1 is calibrated",
    ),
    "mean_gap": (
        f"{_AT}.events:mean_gap_measure",
        "Mean gap",
        "mean probability less frequency of the event",
    ),
    "ici": (
        f"{_AT}.events:ici_measure",
        "Integrated calibration index",
        "mean distance of a smoothed calibration curve from the diagonal; no bins",
    ),
    "e50": (
        f"{_AT}.events:e50_measure",
        "E50",
        "median distance of the smoothed calibration curve from the diagonal",
    ),
    "e90": (
        f"{_AT}.events:e90_measure",
        "E90",
        "distance of the smoothed calibration curve that 90% of rows stay within",
    ),
    "emax": (
        f"{_AT}.events:emax_measure",
        "Emax",
        "largest distance of the smoothed calibration curve; noisy",
    ),
    "spiegelhalter": (
        f"{_AT}.events:spiegelhalter_measure",
        "Spiegelhalter's test",
        "p-value of calibration, by the Brier score",
    ),
    "hosmer_lemeshow": (
        f"{_AT}.events:hosmer_lemeshow_measure",
        "Hosmer-Lemeshow test",
        "p-value of calibration, by ten bins",
    ),
    "brier_skill": (
        f"{_AT}.events:brier_skill_measure",
        "Brier skill score",
        "share of the base rate's Brier score removed; 1 is perfect, 0 no skill",
    ),
    "log_ece": (
        f"{_AT}.events:log_ece_measure",
        "Log-binned calibration error",
        "ECE with bins equally spaced in log p, for rare events",
    ),
    "auroc": (
        f"{_AT}.events:auroc_measure",
        "AUROC",
        "chance that an event is given more than another row",
    ),
    "average_precision": (
        f"{_AT}.events:average_precision_measure",
        "Average precision",
        "mean precision over recall; for rare events",
    ),
    "net_benefit": (
        f"{_AT}.events:net_benefit_measure",
        "Net benefit at {threshold}",
        "true less weighted false positives a row, acting from a threshold, 50% by default",
    ),
    "brier_mcb": (
        f"{_AT}.events:brier_mcb_measure",
        "Brier, miscalibration",
        "what isotonic recalibration would remove of the Brier score",
    ),
    "brier_dsc": (
        f"{_AT}.events:brier_dsc_measure",
        "Brier, discrimination",
        "what ranking gains over the base rate, in Brier score",
    ),
    "brier_unc": (
        f"{_AT}.events:brier_unc_measure",
        "Brier, uncertainty",
        "Brier score of the base rate",
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


def label_of(name: str, **options: Any) -> str:
    """Return the label of a metric: ``Expected calibration error``.

    >>> label_of("coverage_at_risk(risk=0.01)"), label_of("ece", num_bins=10)
    ('Coverage at 1% risk', 'Expected calibration error (num_bins=10)')

    Args:
        name: The metric's name, or its name with options in parentheses.
        options: Its options, where the name does not hold them.
    """
    word, merged = merge_options(name, options, kind="metric")
    label = _labels.get(word, word)
    shown = {field for _, field, _, _ in Formatter().parse(label) if field}
    if shown:
        parameters = inspect.signature(METRICS.load(word)).parameters
        values = {field: merged.get(field, parameters[field].default) for field in shown}
        label = label.format(**{field: f"{100 * value:g}%" for field, value in values.items()})
    rest = {key: value for key, value in merged.items() if key not in shown}
    return f"{label} {format_method('', rest)}" if rest else label


def measure(name: str, **options: Any) -> Measure:
    """Make a streaming measure.

    Args:
        name: The metric's name, or its name with options: ``coverage_at_risk(risk=0.01)``.
        options: Its options, where the name does not hold them.
    """
    word, merged = merge_options(name, options, kind="metric")
    streaming: Measure = METRICS.create(word, **merged)
    return streaming


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

    def add(function: F) -> F:
        word = name or str(getattr(function, "__name__", ""))
        maker = make_measure_maker(word, function, better)
        METRICS.register(maker, name=word, summary=summary or None)
        _labels[word] = label or word
        return function

    return add if function is None else add(function)
