"""From numbers to words."""

from __future__ import annotations

from calibrant.evaluation.value import Verdict

_SMALL_SAMPLE = 500
_COULD_HIDE = 0.1


def percent(value: float, digits: int = 1) -> str:
    """A share as a percentage, with more digits where it is small."""
    if 0 < abs(value) < 0.001:
        digits = max(digits, 2)
    return f"{100 * value:.{digits}f}%"


def rows(number: int) -> str:
    """A number of rows."""
    return "1 row" if number == 1 else f"{number:,} rows"


def chance_words(p_value: float) -> str:
    """A p-value as a sentence's end."""
    # No-break spaces keep it on one line.
    return "p\u00a0<\u00a00.001" if p_value <= 0.001 else f"p\u00a0=\u00a0{p_value:.3f}"


def conclude(
    *,
    num_rows: int,
    accuracy: float,
    gap: float,
    gap_low: float,
    gap_high: float,
    ece: float,
    ece_low: float,
    ece_high: float,
    p_value: float,
    chance_ece: float,
    level: float,
) -> Verdict:
    """Say whether confidence can be believed, by how much it is off, and how sure that is."""
    sure = p_value < 1 - level
    confidence = accuracy + gap
    if sure and gap_low > 0:
        direction = "overconfident"
    elif sure and gap_high < 0:
        direction = "underconfident"
    else:
        direction = "neither"
    return Verdict(
        direction=direction,
        headline=_headline(
            direction, sure, gap, confidence, accuracy, ece_high, leans=gap_low * gap_high > 0
        ),
        sentences=(
            _how_much(gap, gap_low, gap_high, ece_low, ece_high, level),
            _how_sure(sure, p_value, num_rows),
            _what_size_shows(num_rows, chance_ece, ece, ece_high),
        ),
        gap=gap,
        gap_low=gap_low,
        gap_high=gap_high,
        p_value=p_value,
        chance_ece=chance_ece,
    )


def _headline(
    direction: str,
    sure: bool,
    gap: float,
    confidence: float,
    accuracy: float,
    high: float,
    *,
    leans: bool,
) -> str:
    if direction == "neither":
        if sure:
            return (
                "Neither over- nor underconfident on average, but confidence and accuracy "
                "part ways in places."
            )
        if leans and not sure:
            more = "more" if gap > 0 else "less"
            return (
                f"Not settled: on average it is {percent(confidence)} sure and right "
                f"{percent(accuracy)} of the time, {more} sure than chance explains, but bin by "
                "bin chance could explain what is seen."
            )
        if high >= _COULD_HIDE:
            return (
                "Too little data to tell: no miscalibration was found, but an error of up to "
                f"{percent(high)} could hide in it."
            )
        return "No miscalibration was found: confidence matches accuracy as far as this data shows."
    size = "slightly " if high < 0.01 else "strongly " if abs(gap) >= 0.1 else ""
    return (
        f"This classifier is {size}{direction}: on average it is {percent(confidence)} sure "
        f"and right {percent(accuracy)} of the time."
    )


def _how_much(
    gap: float,
    gap_low: float,
    gap_high: float,
    low: float,
    high: float,
    level: float,
) -> str:
    # The interval is of what the words say: by how much it exceeds, or falls short.
    side, near, far = (
        ("exceeds", gap_low, gap_high) if gap >= 0 else ("falls short of", -gap_high, -gap_low)
    )
    span = f"{percent(near)} to {percent(far)}"
    return (
        f"Mean confidence {side} accuracy by {percent(abs(gap))} ({level:.0%} interval {span}); "
        f"bin by bin, the true calibration error lies between {percent(low)} and {percent(high)}."
    )


def _how_sure(sure: bool, p_value: float, num_rows: int) -> str:
    if sure:
        return (
            f"Were it perfectly calibrated, {rows(num_rows)} would hardly look like this "
            f"({chance_words(p_value)})."
        )
    return (
        f"A perfectly calibrated classifier could well look like this ({chance_words(p_value)}); "
        "that is absence of evidence, and not proof of calibration."
    )


def _what_size_shows(num_rows: int, chance_ece: float, value: float, high: float) -> str:
    text = (
        f"With {rows(num_rows)}, a perfectly calibrated classifier of these confidences would "
        f"show an ECE of up to {percent(chance_ece)} by chance alone; this one shows "
        f"{percent(value)}."
    )
    if num_rows < _SMALL_SAMPLE:
        return text + (
            f" So few rows cannot show small errors, nor rule out one as large as "
            f"{percent(high)}: collect more before relying on this."
        )
    return text
