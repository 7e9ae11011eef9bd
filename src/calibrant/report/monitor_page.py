"""The page of a monitor: alarms in words, the figures over time, and what was tested."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from calibrant._version import __version__
from calibrant.evaluation.verdict import name_event
from calibrant.monitor import Series, Status
from calibrant.report import formatting
from calibrant.report.page import check_page_path, fill_template, write_html

STYLES = ("tokens", "page", "sections", "charts", "monitor", "print")
HEIGHT = 190  # of a picture, in pixels
_MOST_TICKS = 5
_TONES = {"alarm": "off", "no alarm": "", "no labels": "unsure"}
_TITLES = {"gap": "Gap", "error": "Accuracy", "brier": "Brier score"}


def write_monitor(status: Status, path: str | Path, *, title: str | None = None) -> Path:
    """Write the page of a monitor, whole or not at all, and return its path.

    Args:
        status: What `Monitor.status` returned.
        path: The file to write; missing folders are made, an existing file is replaced.
        title: The heading of the page; the baseline's name if None.
    """
    target = check_page_path(path)
    return write_html(render_monitor(status, title=title), target)


def render_monitor(status: Status, *, title: str | None = None) -> str:
    """Return the page's text. The same status gives the same text, byte for byte.

    Args:
        status: What `Monitor.status` returned.
        title: The heading of the page; the baseline's name if None.
    """
    whole = [series for series in status.series if not series.group]
    grouped = [series for series in status.series if series.group and series.figure == "gap"]
    return fill_template(
        "monitor.html",
        STYLES,
        status=status,
        title=f"Monitor of {status.baseline_name}" if title is None else title,
        version=__version__,
        tone=_TONES[status.state],
        gap_words=_describe_gap(status),
        pictures=[_draw(series, status) for series in whole],
        groups=[_make_group_row(series, status) for series in grouped],
        rows=_list_rows(status),
        settings=_list_settings(status),
    )


def _describe_gap(status: Status) -> str:
    event = status.plan.event
    if event is None:
        return "Confidence minus accuracy, in percentage points; above 0 is overconfident"
    return f"Mean probability of {name_event(event)} minus its frequency, in percentage points"


def _count_points(number: float) -> str:
    return f"{number:g} point{'' if number == 1 else 's'}"


def _show(figure: str, value: float) -> float:
    """Return a value on the scale of its picture: points, percent, or as it is."""
    return {"gap": 100 * value, "error": 100 * (1 - value)}.get(figure, value)


def _format(figure: str, value: float) -> str:
    if figure == "gap":
        return formatting.points(value)
    return f"{1 - value:.1%}" if figure == "error" else formatting.number(value)


def _draw(series: Series, status: Status) -> dict[str, Any]:
    """Return the places of everything in the picture of a figure, in percent and pixels."""
    figure = series.figure
    alarms = [
        alarm
        for alarm in status.alarms
        if not alarm.group and _figure_of(alarm.test) == figure and alarm.batch in series.names
    ]
    limits = [limit for limit in series.allowed or () if limit is not None]
    values = [*series.means, *series.running, *limits]
    values += [] if series.baseline is None else [series.baseline]
    # Early intervals are wide: they do not set the scale, and are cut at its ends.
    values += [*series.low[-1:], *series.high[-1:]]
    shown = [_show(figure, value) for value in values]
    low, high = min(shown), max(shown)
    room = 0.12 * (high - low) or 1.0
    low, high = low - room, high + room

    def height(value: float) -> float:
        place = (high - _show(figure, value)) / (high - low)
        return round(HEIGHT * min(max(place, 0.0), 1.0), 2)

    count = len(series.names)
    across = [round(100 * (place + 0.5) / count, 3) for place in range(count)]
    points = [(x, height(value)) for x, value in zip(across, series.running, strict=True)]
    top = [(x, height(value)) for x, value in zip(across, series.high, strict=True)]
    bottom = [(x, height(value)) for x, value in zip(across, series.low, strict=True)]
    step = max(1, -(-count // _MOST_TICKS))
    return {
        "figure": figure,
        "title": _TITLES[figure],
        "height": HEIGHT,
        "band": _path([*top, *reversed(bottom)]),
        "line": _path(points),
        "dots": [
            {
                "x": x,
                "y": height(value),
                "name": name,
                "text": _format(figure, value),
                "is_alarm": any(alarm.batch == name for alarm in alarms),
            }
            for x, value, name in zip(across, series.means, series.names, strict=True)
        ],
        "baseline": None if series.baseline is None else height(series.baseline),
        "limits": [height(limit) for limit in limits],
        "ticks": [
            {"y": height(_unshow(figure, value)), "text": text}
            for value, text in _choose_ticks(low, high, figure)
        ],
        "names": [
            {
                "x": across[place],
                "text": formatting.shorten(series.names[place], 14),
                "is_spare": at % 2,  # left out on a narrow screen
            }
            for at, place in enumerate(range(0, count, step))
        ],
        "now": _format(figure, series.running[-1]),
        "range": " to ".join(
            sorted_texts(_format(figure, series.low[-1]), _format(figure, series.high[-1]), figure)
        ),
        "base_text": None if series.baseline is None else _format(figure, series.baseline),
        "allowed": _describe_allowed(series),
        "label": (
            f"{_TITLES[figure]} of {count} batches, {series.names[0]} to {series.names[-1]}: "
            f"{_format(figure, series.running[-1])} on average."
        ),
        "alarms": len(alarms),
    }


def sorted_texts(low: str, high: str, figure: str) -> tuple[str, str]:
    """Return the ends of an interval; those of accuracy are the other way round."""
    return (high, low) if figure == "error" else (low, high)


def _figure_of(test: str) -> str:
    return {"over": "gap", "under": "gap"}.get(test, test)


def _unshow(figure: str, value: float) -> float:
    return {"gap": value / 100, "error": 1 - value / 100}.get(figure, value)


def _choose_ticks(low: float, high: float, figure: str) -> list[tuple[float, str]]:
    """Return round values between two, with their text."""
    steps = [size * 10.0**power for power in range(-5, 3) for size in (1, 2, 5)]
    step = next(step for step in steps if (high - low) / step <= _MOST_TICKS)
    first = int(-(-low // step))
    values = [place * step for place in range(first, int(high // step) + 1)]
    digits = max(0, -int(f"{step:e}".partition("e")[2]))
    texts = []
    for value in values:
        text = f"{value:.{digits}f}".replace("-", "−")
        if figure == "gap" and value > step / 2:
            text = f"+{text}"
        texts.append(f"{text}%" if figure == "error" else text)
    return list(zip(values, texts, strict=True))


def _path(points: list[tuple[float, float]]) -> str:
    return " ".join(f"{x:g},{y:g}" for x, y in points)


def _describe_allowed(series: Series) -> str | None:
    if series.allowed is None:
        return None
    low, high = series.allowed
    if low is not None:
        return f"{formatting.points(low)} to {formatting.points(high)}"
    if series.figure == "error":
        return f"at least {1 - high:.1%}"
    return f"at most {formatting.number(high)}"


def _make_group_row(series: Series, status: Status) -> dict[str, Any]:
    alarms = [alarm for alarm in status.alarms if alarm.group == series.group]
    accuracy = status.find("error", series.group)
    return {
        "name": series.group,
        "count": sum(series.counts),
        "gap": formatting.points(series.running[-1]),
        "range": f"{formatting.points(series.low[-1])} to {formatting.points(series.high[-1])}",
        "allowed": _describe_allowed(series) or formatting.NOTHING,
        "accuracy": None if accuracy is None else f"{1 - accuracy.running[-1]:.1%}",
        "state": "alarm" if alarms else ("no alarm" if series.allowed else "not tested"),
    }


def _list_rows(status: Status) -> list[dict[str, Any]]:
    """Return a row for each batch, the latest first."""
    places = {
        figure: dict(zip(series.names, series.means, strict=True))
        for figure in ("gap", "error", "brier")
        if (series := status.find(figure)) is not None
    }
    alarmed = {alarm.batch for alarm in status.alarms}
    return [
        {
            "name": name,
            "when": when,
            "rows": rows,
            "labelled": labelled,
            "figures": [
                _format(figure, means[name]) if name in means else formatting.NOTHING
                for figure, means in places.items()
            ],
            "is_alarm": name in alarmed,
        }
        for name, when, rows, labelled in reversed(status.batches)
    ]


def _list_settings(status: Status) -> list[tuple[str, str]]:
    plan = status.plan
    return [
        ("baseline", f"{status.baseline_name}, {status.num_baseline:,} rows"),
        ("judged", "the predicted class" if plan.event is None else plan.event),
        ("tolerance", _count_points(100 * plan.tolerance)),
        ("probability of any false alarm", formatting.percent(plan.alpha)),
        ("unit", "clusters" if plan.clustered else "rows"),
        ("groups", plan.group_title or "none"),
        ("calibrant version", __version__),
    ]
