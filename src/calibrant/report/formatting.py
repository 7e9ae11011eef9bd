"""Format numbers and name what is judged: pictures, page and terminal use the same rules.

``assets/js/format.js`` follows them too.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from statistics import NormalDist
from typing import TYPE_CHECKING, NamedTuple

from calibrant.evaluation.groups.value import OVER, UNDER
from calibrant.evaluation.verdict import name_event

if TYPE_CHECKING:
    from calibrant.evaluation import Evaluation

NOTHING = "–"
DEFAULT_LEVEL = 0.95
_ROUNDING = 1e-9  # errors below are sums that came out as 0
PERCENT_FIGURES = frozenset({"accuracy", "miou"})
# Errors on the scale of a probability, which a page shows in percentage points as it does gaps.
POINT_FIGURES = frozenset(
    {
        *("ece", "mce", "adaptive_ece", "classwise_ece", "marginal_ece", "sweep_ece", "log_ece"),
        *("debiased_ece", "chance_ece", "smooth_ece", "ks_error", "mean_gap"),
        *("ici", "e50", "e90", "emax"),
    }
)
_LIMITS = (0.02, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.75)  # of lines that show a gap


def number(value: float | None) -> str:
    """Format a score with about four digits: ``0.0312``, ``1.234``, ``∞``; a dash for no value."""
    if value is None or math.isnan(value):
        return NOTHING
    if math.isinf(value):
        return "∞" if value > 0 else "−∞"
    size = abs(value)
    if size < 1e-12:  # what rounding leaves
        value = size = 0.0
    if size >= 1000:
        text = f"{value:,.0f}"
    elif size >= 1:
        text = f"{value:.3f}"
    elif size >= 0.001 or size == 0:
        text = f"{value:.4f}"
    else:
        text = f"{value:.2g}"
    return text.replace("-", "−", 1) if value < 0 else text


def percent(share: float | None) -> str:
    """Format a share as a percentage, with more digits near 0% and 100%: ``0.12%``, ``99.97%``."""
    if share is None or math.isnan(share):
        return NOTHING
    hundredths = 100 * share
    size = abs(hundredths)
    if size == 0:
        return "0%"
    if size < 1:
        text = f"{hundredths:.2g}"
    elif 99 < size < 100:
        text = f"{hundredths:.2f}"
    else:
        text = f"{hundredths:.1f}".removesuffix(".0")
    return text.replace("-", "−", 1) + "%"


def points(share: float) -> str:
    """Format a signed difference of two shares in percentage points: ``+4.8``, ``−0.25``."""
    hundredths = 100 * share
    digits = 1 if abs(hundredths) >= 1 else 2
    return f"{hundredths:+.{digits}f}".replace("-", "−")


def error_points(share: float | None) -> str:
    """Format a calibration error in percentage points, as `points` but unsigned: ``3.4``."""
    if share is None or math.isnan(share):
        return NOTHING
    share = 0.0 if abs(share) < _ROUNDING else share
    text = points(share)
    return text.lstrip("+") if abs(share) >= 1e-4 or not share else f"{100 * share:.2g}"


def probability(p_value: float) -> str:
    """Format a p-value: ``p < 0.001``, ``p = 0.012``."""
    if math.isnan(p_value):
        return "p unknown"
    return "p < 0.001" if p_value <= 0.001 else f"p = {p_value:.3f}"


def in_points(name: str) -> bool:
    """Return whether a page shows a figure in percentage points."""
    return name.partition("(")[0] in POINT_FIGURES


def page_text(name: str, value: float | None, *, unit: bool = True) -> str:
    """Format a figure for a page: as `figure_text`, and calibration errors in points.

    Args:
        name: The figure.
        value: Its value.
        unit: Whether points are named. Default: True.
    """
    if not in_points(name) or value is None or not math.isfinite(value):
        return figure_text(name, value)
    return f"{error_points(value)} points" if unit else error_points(value)


def page_interval(name: str, low: float, high: float) -> str:
    """Format an interval for a page; points are named once: ``2.9 to 3.8 points``."""
    return f"{page_text(name, low, unit=False)} to {page_text(name, high)}"


def page_difference(name: str, value: float) -> str:
    """Format a signed difference for a page: ``−0.25 points`` of shares and calibration errors."""
    if not in_points(name) or not math.isfinite(value):
        return difference_text(name, value)
    return f"{_signed_points(value)} points"


def page_range(name: str, low: float, high: float) -> str:
    """Format the interval of a difference for a page: ``−0.5 to +0.1 points``."""
    if not in_points(name) or not math.isfinite(low):
        return range_text(name, low, high)
    return f"{_signed_points(low)} to {page_difference(name, high)}"


def _signed_points(value: float) -> str:
    return points(value) if value else "0.00"


def figure_text(name: str, value: float | None) -> str:
    """Format a figure by its kind: shares as percentages, everything else as scores."""
    if name not in PERCENT_FIGURES:
        return number(value)
    text = percent(value)
    return text if "." in text or text == NOTHING else text.replace("%", ".0%")


def difference_text(name: str, value: float) -> str:
    """Format a signed difference of a figure: shares in points, everything else as scores."""
    text = _format_signed(name, value)
    return f"{text} points" if name in PERCENT_FIGURES and math.isfinite(value) else text


def range_text(name: str, low: float, high: float) -> str:
    """Format the interval of a difference: ``−0.28 to −0.21``, ``−0.5 to +0.1 points``."""
    return f"{_format_signed(name, low)} to {difference_text(name, high)}"


def _format_signed(name: str, value: float) -> str:
    if math.isfinite(value) and name in PERCENT_FIGURES:
        return points(value) if value else "0.00"
    if math.isfinite(value) and 0 < abs(value) < 0.001:
        # Two digits, never 1e-05, which is hard to compare in a column.
        digits = min(1 - math.floor(math.log10(abs(value))), 7)
        return f"{value:+.{digits}f}".replace("-", "−")
    return f"+{number(value)}" if value > 0 else number(value)


def shorten(text: str, longest: int) -> str:
    """Cut a text to at most ``longest`` characters, with an ellipsis if it was longer."""
    return text if len(text) <= longest else text[: longest - 1].rstrip() + "…"


def level_share(settings: Mapping[str, object]) -> float:
    """Return the confidence level of the intervals as a share: 0.95."""
    share = settings.get("confidence_level", DEFAULT_LEVEL)
    return float(share) if isinstance(share, int | float) else DEFAULT_LEVEL


def level(settings: Mapping[str, object]) -> str:
    """Format the confidence level of the intervals: ``95%``."""
    return percent(level_share(settings))


def deviations(settings: Mapping[str, object]) -> float:
    """Return the half-width of that level's interval in standard deviations: 1.96 for 95%."""
    return NormalDist().inv_cdf(0.5 + level_share(settings) / 2)


def choose_gap_limit(reach: float) -> float:
    """Return a round length, at least ``reach``, of a line from 0 to overconfident."""
    return next((limit for limit in _LIMITS if limit >= reach), 1.0)


def place_gap(gap: float, limit: float) -> float:
    """Return the place of a gap on the line from −limit to limit, in percent; 50 for NaN."""
    gap = 0.0 if gap != gap else min(max(gap, -limit), limit)
    return round(50 + 50 * gap / limit, 2)


class Words(NamedTuple):
    """The names of the judged probability and its outcome."""

    claimed: str  # "confidence" or "probability"
    happened: str  # "accuracy" or "frequency of fraud"
    short: str  # "accuracy" or "frequency"
    over: str  # what a probability above the outcome is called
    under: str
    event: str | None = None


CLASSES = Words("confidence", "accuracy", "accuracy", OVER, UNDER)


def find_words(evaluation: Evaluation) -> Words:
    """Return the words for the predicted class, or for the event that is judged."""
    if evaluation.view != "events":
        return CLASSES
    event = name_event(evaluation.event or "event")
    event = "a label" if evaluation.task == "multilabel" else event
    return Words("probability", f"frequency of {event}", "frequency", "too high", "too low", event)
