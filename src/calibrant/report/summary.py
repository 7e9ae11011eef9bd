"""The head of the page: the state of the verdict, its gauge, its facts, its labels."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

from calibrant.report import formatting

if TYPE_CHECKING:
    from collections.abc import Sequence

    from calibrant.evaluation import Evaluation
    from calibrant.evaluation.verdict import Span

_RATIO_LIMITS = (1.5, 2, 3, 5, 10, 30, 100, 1000)


class State(NamedTuple):
    """The state of a verdict: the class of its colour, and the word for it."""

    tone: str  # "off" (red), "holds" (green), "unsure" (amber) or "none"
    word: str


def describe_state(evaluation: Evaluation) -> State:
    """Return the state. Green is left to what holds within the tolerance, in every group too."""
    verdict = evaluation.verdict
    if verdict is None:
        return State("none", "")
    # A group that is off makes the verdict's state off, too, whatever the test of all rows found.
    groups = evaluation.groups
    if groups is not None and groups.off and not verdict.p_value < 1 - evaluation.level:
        return State("off", "Off in some groups")
    if verdict.state == "off":
        direction = verdict.direction
        return State("off", "Off" if direction == "neither" else f"Off: {direction}")
    if verdict.state == "holds":
        return State("holds", "Holds within the tolerance")
    return State("unsure", "Cannot tell")


def make_gauge(evaluation: Evaluation) -> dict[str, Any]:
    """Place the headline's number, its interval and the tolerance on a line, in percent.

    For events that is the ratio of observed to expected ones, on a log scale, where it is known
    not to be 0; else the gap between what is claimed and what happens, in points.
    """
    verdict = evaluation.verdict
    assert verdict is not None
    ratio = verdict.ratio
    if ratio is not None and ratio.low > 0:
        ends = (ratio.value, ratio.low, ratio.high, verdict.tolerance.ratio)
        reach = 1.1 * max(max(end, 1 / end) for end in ends)
        largest = next((limit for limit in _RATIO_LIMITS if limit >= reach), 10_000.0)

        def place(ratio: float) -> float:
            # To the right what is said too high, as for the gap.
            return formatting.place_gap(-math.log(ratio), math.log(largest))

        return {
            "title": "Observed ÷ expected events",
            "low": place(ratio.high),
            "mark": place(ratio.value),
            "high": place(ratio.low),
            "zone": (place(verdict.tolerance.ratio), place(1 / verdict.tolerance.ratio)),
            "ticks": (f"{largest:g}", "1", f"1/{largest:g}"),
            "sides": ("too low", "too high"),
            "text": f"Observed over expected: {formatting.number(ratio.value)}, interval "
            f"{formatting.number(ratio.low)} to {formatting.number(ratio.high)}.",
        }
    tolerated = verdict.tolerance.error if evaluation.view != "events" else 0.0
    gaps = [abs(verdict.gap), abs(verdict.gap_low), abs(verdict.gap_high), tolerated, 0.01]
    limit = formatting.choose_gap_limit(1.15 * max(gap for gap in gaps if gap == gap))
    largest_tick = formatting.percent(limit).replace("%", "")
    name = "probability − frequency" if evaluation.view == "events" else "confidence − accuracy"
    sides = ("too low", "too high")
    return {
        "title": f"Mean {name}, in percentage points",
        "low": formatting.place_gap(verdict.gap_low, limit),
        "mark": formatting.place_gap(verdict.gap, limit),
        "high": formatting.place_gap(verdict.gap_high, limit),
        "zone": tuple(formatting.place_gap(end, limit) for end in (-tolerated, tolerated)),
        "ticks": (f"−{largest_tick}", "0", f"+{largest_tick}"),
        "sides": sides if evaluation.view == "events" else ("underconfident", "overconfident"),
        "text": f"Mean {name}: {formatting.points(verdict.gap)} points, interval "
        f"{formatting.points(verdict.gap_low)} to {formatting.points(verdict.gap_high)}.",
    }


def list_facts(evaluation: Evaluation) -> list[tuple[str, str, str]]:
    """Return the terms beside the gauge with their values and details."""
    verdict = evaluation.verdict
    assert verdict is not None
    allowed = verdict.tolerance
    gap = f"({formatting.points(verdict.gap_low)} to {formatting.points(verdict.gap_high)})"
    tested = "not tested"
    if verdict.p_value == verdict.p_value:
        tested = formatting.probability(verdict.p_value)
    facts = [("Gap", f"{formatting.points(verdict.gap)} points", gap)]
    if evaluation.view == "events":
        facts = [
            ("Mean probability", formatting.percent(verdict.mean), ""),
            ("Frequency", formatting.percent(verdict.rate), ""),
            ("Observed ÷ expected", *_format_span(verdict.ratio)),
            ("Slope", *_format_span(verdict.slope)),
        ]
        span = f"ratio {1 / allowed.ratio:.2g} to {allowed.ratio:.3g}"
        span += f", slope {1 / allowed.slope:.2g} to {allowed.slope:.3g}"
    else:
        span = f"up to {100 * allowed.error:g} points"
    facts.append(("Test of “calibrated”", tested, ""))
    facts.append(("Tolerance", span, ""))
    if verdict.rows_needed is not None:
        facts.append(("Rows that would do", f"about {verdict.rows_needed:,}", ""))
    facts.append(
        ("ECE by chance alone", f"up to {formatting.error_points(verdict.chance_ece)} points", "")
    )
    return facts


def _format_span(span: Span | None) -> tuple[str, str]:
    """Return a number, and its interval in brackets."""
    if span is None:
        return "not defined", ""
    ends = f"({formatting.number(span.low)} to {formatting.number(span.high)})"
    return formatting.number(span.value), ends


class LabelRow(NamedTuple):
    """One label of the table of labels, as text."""

    name: str
    tone: str
    word: str
    rows: str
    probability: str
    frequency: str
    ratio: tuple[str, str]
    slope: tuple[str, str]
    ece: str
    auroc: str


def make_label_rows(labels: Sequence[Evaluation]) -> list[LabelRow]:
    """Return a row of the table for each label: first those that are off, furthest first."""
    order = {"off": 0, "holds": 2}

    def sort_key(label: Evaluation) -> tuple[int, float]:
        ratio = None if label.verdict is None else label.verdict.ratio
        size = abs(math.log(ratio.value)) if ratio is not None and ratio.value > 0 else 0.0
        return order.get(describe_state(label).tone, 1), -size

    return [_make_label_row(label) for label in sorted(labels, key=sort_key)]


def _make_label_row(label: Evaluation) -> LabelRow:
    state, verdict = describe_state(label), label.verdict

    def show(name: str) -> str:
        figure = label.figures.get(name)
        if figure is None:
            return formatting.NOTHING
        return formatting.page_text(name, figure.value, unit=False)

    def span(of: Span | None, name: str) -> tuple[str, str]:
        return (show(name), "") if of is None else _format_span(of)

    return LabelRow(
        label.name,
        state.tone,
        state.word,
        f"{label.num_rows:,}",
        formatting.percent(None if verdict is None else verdict.mean),
        formatting.percent(None if verdict is None else verdict.rate),
        span(None if verdict is None else verdict.ratio, "oe_ratio"),
        span(None if verdict is None else verdict.slope, "calibration_slope"),
        show("ece"),
        show("auroc"),
    )
