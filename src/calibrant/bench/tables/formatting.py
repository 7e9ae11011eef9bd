"""Format figures: names, directions, units and decimals."""

from __future__ import annotations

import math
import re
from typing import Any

# Figures written in percent, with their decimals.
PERCENT = {
    "accuracy": 2,
    "ece": 2,
    "mce": 2,
    "adaptive_ece": 2,
    "classwise_ece": 3,
    "marginal_ece": 3,
    "ks_error": 2,
    "sweep_ece": 2,
    "debiased_ece": 2,
    "chance_ece": 2,
    "kde_ece": 2,
    "smooth_ece": 2,
    "ood_auroc": 2,
    "fpr95": 2,
    "failure_auroc": 2,
    "risk_at_coverage": 2,
    "coverage_at_risk": 2,
    "miou": 2,
    "inactive": 1,
    "confidence": 1,
    "share": 1,
    "flipped": 2,
    "unlearned": 2,
    "flsd_gamma_3": 1,
}
DECIMALS = {"train_seconds": 1, "seconds": 2, "changed": 0, "aurc": 5, "e_aurc": 5, "augrc": 5}
# Figures besides metrics: the label, and whether more is better.
OTHERS: dict[str, tuple[str, bool | None]] = {
    "changed": ("Predictions changed", False),
    "train_seconds": ("Training seconds", False),
    "seconds": ("Fitting seconds", False),
    "inactive": ("Inactive regulariser", False),
    "confidence": ("Mean confidence", None),
    "share": ("Share of rows", None),
    "flipped": ("Predictions flipped", False),
    "unlearned": ("Right predictions flipped", False),
    "flsd_gamma_3": ("Rows with γ = 3", None),
}
SHORT = {
    "ece": "ECE",
    "nll": "NLL",
    "brier": "Brier",
    "mce": "MCE",
    "adaptive_ece": "Adaptive ECE",
    "classwise_ece": "Class-wise ECE",
    "marginal_ece": "Marginal ECE",
    "ks_error": "KS error",
    "sweep_ece": "Sweep ECE",
    "debiased_ece": "Debiased ECE",
    "chance_ece": "ECE by chance",
    "kde_ece": "Kernel ECE",
    "smooth_ece": "Smooth ECE",
    "aurc": "AURC",
    "e_aurc": "E-AURC",
    "augrc": "AUGRC",
    "miou": "mIoU",
}
# Default options, which names leave out.
USUAL: dict[str, dict[str, Any]] = {
    "ece": {"num_bins": 15, "order": 1, "binning": "width", "form": "bin"},
    "adaptive_ece": {"num_bins": 15, "order": 1, "binning": "mass", "form": "bin"},
    "classwise_ece": {"num_bins": 15, "order": 1, "binning": "width"},
    "marginal_ece": {"num_bins": 15, "order": 2, "binning": "width", "class_reduction": "mean"},
    "mce": {"num_bins": 15, "binning": "width"},
    "chance_ece": {"num_bins": 15},
    "sweep_ece": {"order": 2},
    "temperature": {"objective": "nll"},
}
_SOURCE = re.compile(r"\(source=s[0-9a-f]{8}\)|,source=s[0-9a-f]{8}|source=s[0-9a-f]{8},")
_CALL = re.compile(r"^\s*\w+\s*\(.*\)\s*$", re.S)


def parts_of(text: str) -> tuple[str, dict[str, Any]]:
    """Split ``name(option=value, ...)`` into the name and the options."""
    from calibrant.bench.calibrator_text import parse

    if not _CALL.match(text):  # also parameter:temperature, which does not parse
        return text, {}
    name, options = parse(text)
    whole = {
        k: int(v) if isinstance(v, float) and v.is_integer() else v for k, v in options.items()
    }
    return name, whole


def canonical_name(text: str) -> str:
    """Normalise a metric or calibrator: sort its options, leave default ones out.

    >>> canonical_name("ece(order = 2.0, binning='mass')")
    'adaptive_ece(order=2)'
    >>> canonical_name("temperature(objective=nll)")
    'temperature'
    >>> canonical_name("temperature(objective=sb_ece,max_likelihood_loss=None)")
    'temperature(max_likelihood_loss=None,objective=sb_ece)'
    """
    from calibrant.bench.calibrator_text import spell
    from calibrant.core.method_text import split_terms

    if text.isidentifier():
        return spell(text, {})
    if len(parts := split_terms(text)) > 1:  # a calibrator on a second stage
        return "+".join(map(canonical_name, parts))
    name, options = parts_of(text)
    if name == "ece" and options.get("binning") == "mass" and options.get("form", "bin") == "bin":
        name = "adaptive_ece"
    usual = USUAL.get(name, {})
    # An option may be None, as where a former default was a number.
    kept = {key: value for key, value in options.items() if (key, value) not in usual.items()}
    return spell(name, kept)


def without_source(text: str) -> str:
    """Leave out the source of a plugin's calibrator or metric.

    >>> without_source("half(factor=0.25,source=s2d1f6e50)")
    'half(factor=0.25)'
    """
    return _SOURCE.sub("", text) if "source=" in text else text


def shown_calibrator(text: str) -> str:
    """Write a calibrator as suites do: with former defaults, without current ones.

    >>> shown_calibrator("mac_cal_head"), shown_calibrator("mac_cal_head(race=False)")
    ('mac_cal_head(race=True)', 'mac_cal_head')
    """
    from calibrant.bench.suite.former import show_calibrator

    shown = show_calibrator(text)
    return without_source(text if shown == text else canonical_name(shown))


def higher_is_better(metric: str) -> bool | None:
    """Return whether more is better; None if neither is, as for a fitted parameter."""
    from calibrant.metrics.registry import METRICS, measure

    name = parts_of(metric)[0]
    if name in OTHERS:
        return OTHERS[name][1]
    better = measure(name).better if name in METRICS else "neither"
    return None if better == "neither" else better == "higher"


def label(metric: str) -> str:
    """Return a short name: ``ECE``, ``Adaptive ECE (order=2)``."""
    from calibrant.metrics.registry import label_of

    name, options = parts_of(without_source(metric))
    if name in SHORT:
        text = SHORT[name]
    elif name in OTHERS:
        text = OTHERS[name][0]
    else:
        text = label_of(name)
    added = ", ".join(f"{key}={value}" for key, value in options.items())
    return f"{text} ({added})" if added else text


def unit(metric: str) -> str:
    """Return ``%`` for figures in percent, else nothing."""
    return "%" if parts_of(metric)[0] in PERCENT else ""


def heading(metric: str) -> str:
    """Return label, unit and better direction: ``ECE, % ↓``."""
    way = {True: " ↑", False: " ↓", None: ""}[higher_is_better(metric)]
    return label(metric) + (f", {unit(metric)}" if unit(metric) else "") + way


def number(metric: str, value: float | None, *, signed: bool = False) -> str:
    """Format a value as tables do, without its unit; None is a dash."""
    if value is None or math.isnan(value):
        return "–"
    if math.isinf(value):
        return "∞" if value > 0 else "−∞"
    name = parts_of(metric)[0]
    decimals = PERCENT.get(name, DECIMALS.get(name, 4))
    scaled = 100 * value if name in PERCENT else value
    text = f"{scaled:+.{decimals}f}" if signed else f"{scaled:.{decimals}f}"
    return text.replace("-", "−")


def with_error(metric: str, mean: float, error: float | None) -> str:
    """Format ``3.31 ± 0.08``; a single seed has no error."""
    text = number(metric, mean)
    return text if error is None else f"{text} ± {number(metric, error)}"


def check_metric(text: str) -> str:
    """Return a metric normalised; raise an error if it does not exist."""
    from calibrant.core.errors import no_such
    from calibrant.metrics.registry import METRICS

    name = parts_of(text)[0]
    if name in METRICS or name in OTHERS or ":" in name:
        return canonical_name(text)
    raise no_such("metric", name, [*METRICS, *OTHERS])
