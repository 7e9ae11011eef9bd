"""Numbers as a reader wants to see them; shared by the pictures and the page."""

from __future__ import annotations

import math
from collections.abc import Mapping
from statistics import NormalDist

NOTHING = "–"
DEFAULT_LEVEL = 0.95
PERCENT_FIGURES = frozenset({"accuracy", "miou"})


def number(value: float | None) -> str:
    """A score with about four digits: ``0.0312``, ``1.234``, ``∞``; a dash for no value."""
    if value is None or math.isnan(value):
        return NOTHING
    if math.isinf(value):
        return "∞" if value > 0 else "−∞"
    size = abs(value)
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
    """A share as a percentage, with more digits near 0% and 100%: ``0.12%``, ``99.97%``."""
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
    """A signed difference of two shares, in percentage points: ``+4.8``, ``−0.25``."""
    hundredths = 100 * share
    digits = 1 if abs(hundredths) >= 1 else 2
    return f"{hundredths:+.{digits}f}".replace("-", "−")


def probability(p_value: float) -> str:
    """A p-value: ``p < 0.001``, ``p = 0.012``."""
    if math.isnan(p_value):
        return "p unknown"
    return "p < 0.001" if p_value <= 0.001 else f"p = {p_value:.3f}"


def figure_text(name: str, value: float | None) -> str:
    """A figure by its kind: shares as percentages, everything else as a score."""
    if name not in PERCENT_FIGURES:
        return number(value)
    text = percent(value)
    return text if "." in text or text == NOTHING else text.replace("%", ".0%")


def difference_text(name: str, value: float) -> str:
    """A signed difference of two values of a figure: shares in points, others as scores."""
    text = _signed(name, value)
    return f"{text} points" if name in PERCENT_FIGURES and math.isfinite(value) else text


def range_text(name: str, low: float, high: float) -> str:
    """The interval of such a difference: ``−0.28 to −0.21``, ``−0.5 to +0.1 points``."""
    return f"{_signed(name, low)} to {difference_text(name, high)}"


def _signed(name: str, value: float) -> str:
    if math.isfinite(value) and name in PERCENT_FIGURES:
        return points(value) if value else "0.00"
    if math.isfinite(value) and 0 < abs(value) < 0.001:
        # Two digits, never in the form 1e-05, which is hard to compare down a column.
        digits = min(1 - math.floor(math.log10(abs(value))), 7)
        return f"{value:+.{digits}f}".replace("-", "−")
    return f"+{number(value)}" if value > 0 else number(value)


def shorten(text: str, longest: int) -> str:
    """At most ``longest`` characters, with an ellipsis where some were cut."""
    return text if len(text) <= longest else text[: longest - 1].rstrip() + "…"


def level_share(settings: Mapping[str, object]) -> float:
    """The confidence level of the intervals as a share: 0.95."""
    found = settings.get("confidence_level", DEFAULT_LEVEL)
    return float(found) if isinstance(found, int | float) else DEFAULT_LEVEL


def level(settings: Mapping[str, object]) -> str:
    """The confidence level of the intervals: ``95%``."""
    return percent(level_share(settings))


def deviations(settings: Mapping[str, object]) -> float:
    """How many standard deviations that level reaches to each side: 1.96 for 95%."""
    return NormalDist().inv_cdf(0.5 + level_share(settings) / 2)
