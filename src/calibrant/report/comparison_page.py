"""The page of a comparison: a new model against the last release, figure by figure and by group."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from calibrant._version import __version__
from calibrant.core.errors import InputError
from calibrant.evaluation.groups.value import are_dates
from calibrant.evaluation.verdict import name_event
from calibrant.report import formatting
from calibrant.report.page import check_page_path, fill_template, write_html
from calibrant.report.summary import describe_state

if TYPE_CHECKING:
    from calibrant.evaluation import ComparedGroup, ComparedGroups, Comparison, Evaluation
    from calibrant.evaluation.compare import Difference
    from calibrant.report.record import Record

STYLES = ("tokens", "page", "sections", "charts", "comparison", "print")
_LONG = 30  # groups from which on their picture scrolls
_OUTCOMES = {"a": "worse", "b": "better", "neither": "no difference shown"}


class Check(NamedTuple):
    """A condition of the release, such as ``--fail-worse nll``.

    Args:
        name: What is required, such as ``nll is not shown to be worse``.
        failure: What is wrong; None if the condition holds.
    """

    name: str
    failure: str | None = None


def write_comparison(
    comparison: Comparison,
    path: str | Path,
    *,
    before: Evaluation | None = None,
    after: Evaluation | None = None,
    checks: Sequence[Check] = (),
    title: str | None = None,
    record: Record | None = None,
) -> Path:
    """Write the page of a comparison, whole or not at all, and return its path.

    Args:
        comparison: What `calibrant.compare` returned: the new model (B) against the old one (A).
        path: The file to write; missing folders are made, an existing file is replaced.
        before: The evaluation of A. Default: None (no verdicts and no diagram).
        after: The evaluation of B, on the same rows. Default: None.
        checks: The conditions of the release, and which of them failed. Default: ().
        title: The heading of the page. Default: None ("B against A").
        record: What an audit asks; see :func:`calibrant.report.make_record`. Default: None.
    """
    target = check_page_path(path)
    text = render_comparison(
        comparison, before=before, after=after, checks=checks, title=title, record=record
    )
    return write_html(text, target)


def render_comparison(
    comparison: Comparison,
    *,
    before: Evaluation | None = None,
    after: Evaluation | None = None,
    checks: Sequence[Check] = (),
    title: str | None = None,
    record: Record | None = None,
) -> str:
    """Return the page's text. The same arguments give the same text, byte for byte.

    Args:
        comparison: What `calibrant.compare` returned.
        before: The evaluation of A. Default: None (no verdicts and no diagram).
        after: The evaluation of B, on the same rows. Default: None.
        checks: The conditions of the release, and which of them failed. Default: ().
        title: The heading of the page. Default: None ("B against A").
        record: What an audit asks. Default: None.
    """
    if (before is None) != (after is None):
        raise InputError("give the evaluations of both models, or of neither")
    pair = None if before is None or after is None else (before, after)
    if pair is not None and (
        pair[0].num_rows != pair[1].num_rows
        or {predictions.view for predictions in pair} != {comparison.view}
    ):
        raise InputError(
            "the evaluations must be of the rows that were compared: evaluate both models on the "
            "same rows, with the same view"
        )
    rows = [_make_row(comparison, name) for name in comparison.differences]
    return fill_template(
        "comparison.html",
        STYLES,
        comparison=comparison,
        title=f"{comparison.b} against {comparison.a}" if title is None else title,
        version=__version__,
        record=record,
        state=_describe_state(comparison, checks),
        checks=checks,
        rows=rows,
        verdicts=[] if pair is None else _make_verdicts(pair, comparison),
        diagram=None if pair is None else _draw_reliability(pair),
        groups=None if comparison.groups is None else _make_groups(comparison, comparison.groups),
        level=formatting.level(comparison.settings),
        settings=_list_settings(comparison),
    )


def _describe_state(comparison: Comparison, checks: Sequence[Check]) -> dict[str, str]:
    """Return the badge, the tone of its colour and the headline."""
    failed = [check for check in checks if check.failure is not None]
    worse = [name for name in comparison.differences if _find_outcome(comparison, name) == "worse"]
    in_groups = comparison.groups is not None and comparison.groups.find_worse()
    if failed:
        count = len(failed)
        badge = f"{count} of {len(checks)} conditions failed" if len(checks) > 1 else "failed"
        tone = "off"
    elif checks:
        badge = "all conditions hold" if len(checks) > 1 else "the condition holds"
        tone = ""
    elif comparison.untested is not None:
        badge, tone = "not tested", "unsure"
    elif worse or in_groups:
        badge, tone = "worse somewhere", "off"
    else:
        badge, tone = "not shown to be worse", ""
    return {"badge": badge, "tone": tone, "headline": _make_headline(comparison, worse)}


def _make_headline(comparison: Comparison, worse: list[str]) -> str:
    """Return in how many figures the new model is better and worse."""
    if comparison.untested is not None:
        return comparison.headline
    names = list(comparison.differences)
    better = [name for name in names if _find_outcome(comparison, name) == "better"]
    counts = [
        f"{word} in {len(figures)}"
        for word, figures in (("better", better), ("worse", worse))
        if figures
    ]
    if not counts:
        return f"No difference is shown in any of {len(names)} figures."
    return f"{comparison.b} is {' and '.join(counts)} of {len(names)} figures."


def _find_outcome(comparison: Comparison, name: str) -> str:
    """Return whether B is better or worse in a metric, or whether that is a hint."""
    difference = comparison[name]
    if difference.better == "neither":
        return ""
    if difference.winner != "neither" and name not in comparison.shown:
        return f"hint: {_OUTCOMES[difference.winner]}"
    return _OUTCOMES[difference.winner]


def _make_row(comparison: Comparison, name: str) -> dict[str, str]:
    """Return a line of the table of figures, as text."""
    difference = comparison[name]
    values = [formatting.page_text(name, value) for value in difference.compared]
    tested = difference.is_tested
    return {
        "name": name,
        "label": f"{difference.label} (corrected)" if difference.is_corrected else difference.label,
        "a": values[0],
        "b": values[1],
        "difference": formatting.page_difference(name, difference.difference),
        "interval": formatting.page_range(name, difference.low, difference.high)
        if tested
        else formatting.NOTHING,
        "outcome": _find_outcome(comparison, name) if tested else "not tested",
    }


def _make_verdicts(
    pair: tuple[Evaluation, Evaluation], comparison: Comparison
) -> list[dict[str, Any]]:
    """Return the verdict of each model."""
    verdicts = []
    sides = (("Old", pair[0], comparison.a), ("New", pair[1], comparison.b))
    for side, evaluation, name in sides:
        verdict = evaluation.verdict
        state = describe_state(evaluation)
        verdicts.append(
            {
                "side": side,
                "name": name,
                "badge": state.word or "no verdict",
                "tone": state.tone,
                "headline": "" if verdict is None else verdict.headline,
            }
        )
    return verdicts


def _draw_reliability(pair: tuple[Evaluation, Evaluation]) -> dict[str, Any]:
    """Return the places of both models' bins, in percent of the diagram."""
    sides = []
    for evaluation, kind in ((pair[0], "old"), (pair[1], "new")):
        bins = evaluation.bins[evaluation.bins["count"] > 0]
        columns = ("confidence", "accuracy", "accuracy_low", "accuracy_high")
        places = [[float(number) for number in bins[name]] for name in columns]
        counts = [int(number) for number in bins["count"]]
        dots = [
            {
                "x": round(100 * claimed, 3),
                "y": round(100 - 100 * observed, 3),
                "low": round(100 - 100 * low, 3),
                "high": round(100 - 100 * high, 3),
                "size": round(2.5 + 5 * math.sqrt(count / max(counts)), 2),
                "text": f"{claimed:.1%} → {observed:.1%}, {count:,} rows",
            }
            for claimed, observed, low, high, count in zip(*places, counts, strict=True)
        ]
        sides.append({"kind": kind, "dots": dots})
    event = pair[1].event
    return {
        "sides": sides,
        "ticks": [0, 25, 50, 75, 100],
        "across": "confidence" if event is None else f"probability of {name_event(event)}",
        "up": "accuracy" if event is None else "frequency",
    }


def _make_groups(comparison: Comparison, groups: ComparedGroups) -> dict[str, Any]:
    """Return the picture and the table of groups."""
    metric = "nll" if "nll" in groups.metrics else groups.metrics[0]
    in_time = are_dates([group.value for group in groups.groups])
    ordered = sorted(
        groups.groups,
        key=lambda group: (group.value, 0.0) if in_time else ("", -_harm(group, metric)),
    )
    ends = [
        abs(end)
        for group in ordered
        if (group_change := group.differences[metric]).is_tested
        for end in (group_change.low, group_change.high)
        if math.isfinite(end)
    ]
    limit = _round_up(max(ends, default=1.0) or 1.0)

    def place(value: float) -> float:
        return round(50 + 50 * min(max(value / limit, -1.0), 1.0), 2)

    drawn = []
    for group in ordered:
        group_change = group.differences[metric]
        if not group_change.is_tested or not math.isfinite(group_change.difference):
            continue
        winner = group.find_winner(metric)
        drawn.append(
            {
                "name": group.value,
                "side": {"a": "over", "b": "better", "neither": "inside"}[winner],
                "place": place(group_change.difference),
                "low": place(group_change.low),
                "high": place(group_change.high),
                "label": _describe_difference(group_change),
            }
        )
    worse, better = groups.find_worse(), groups.find_better()
    label = comparison.differences[metric].label
    return {
        "title": groups.name,
        "headline": groups.describe(comparison.b),
        "tone": "harms" if worse else "helps" if better else "mixed",
        "metric": label,
        "direction": comparison.differences[metric].better,
        "scale": _format_scale(metric, limit),
        "drawn": drawn,
        "is_long": len(drawn) > _LONG,
        "order": "in order of time" if in_time else "the worst first",
        "headings": [comparison.differences[name].label for name in groups.metrics],
        "rows": [_make_group_row(group, groups.metrics) for group in ordered],
        "num_tested": groups.num_tested,
        "warnings": groups.warnings,
    }


def _round_up(value: float) -> float:
    """Return the next of 1, 1.5, 2, 3, 5 and 7.5 times a power of ten."""
    power = 10.0 ** math.floor(math.log10(value))
    return next(
        (step * power for step in (1, 1.5, 2, 3, 5, 7.5) if step * power >= value), 10 * power
    )


def _format_scale(metric: str, limit: float) -> str:
    """Return the end of a picture's scale with its unit, without sign."""
    if formatting.in_points(metric) or metric in formatting.PERCENT_FIGURES:
        return f"{100 * limit:g} points"
    return f"{limit:g}"


def _harm(group: ComparedGroup, metric: str) -> float:
    """Return how much worse B is in a metric; untested groups come last."""
    change = group.differences[metric]
    if not change.is_tested:
        return -math.inf
    return -change.difference if change.better == "higher" else change.difference


def _describe_difference(difference: Difference) -> str:
    name = difference.name
    interval = formatting.page_range(name, difference.low, difference.high)
    return f"{formatting.page_difference(name, difference.difference)}, interval {interval}"


def _make_group_row(group: ComparedGroup, metrics: Sequence[str]) -> dict[str, Any]:
    """Return a line of the table of groups, as text."""
    cells = []
    for name in metrics:
        change = group.differences[name]
        interval = ""
        if change.is_tested and math.isfinite(change.low) and math.isfinite(change.high):
            interval = formatting.page_range(name, change.low, change.high)
        winner = group.find_winner(name)
        cells.append(
            {
                "difference": formatting.page_difference(name, change.difference),
                "interval": interval,
                "outcome": "" if winner == "neither" else _OUTCOMES[winner],
                "winner": {"a": "before", "b": "after"}.get(winner, ""),
            }
        )
    outcomes = {cell["outcome"] for cell in cells} - {""}
    finding = group.untested or " and ".join(sorted(outcomes)) or "no difference shown"
    return {"name": group.value, "rows": f"{group.num_rows:,}", "judged": finding, "cells": cells}


def _list_settings(comparison: Comparison) -> list[tuple[str, str]]:
    """Return everything needed to compute the same numbers again."""
    settings = comparison.settings
    rows = [
        ("old model (A)", comparison.a),
        ("new model (B)", comparison.b),
        ("rows", f"{comparison.num_rows:,}, paired"),
        ("judged", "the predicted class" if comparison.event is None else comparison.event),
    ]
    if comparison.num_clusters is not None:
        rows.append(("clusters", f"{comparison.num_clusters:,}"))
    if comparison.weighted:
        rows.append(("weights", "yes"))
    rows += [
        ("confidence level", formatting.level(settings)),
        ("resamples", f"{settings['resamples']:,}"),
        ("seed", str(settings["seed"])),
        ("metrics in Holm's correction", f"{comparison.num_tested:,}"),
        ("calibrant version", __version__),
    ]
    return rows
