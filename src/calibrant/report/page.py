"""The report: one self-contained HTML file.

The page is assembled from sections. A section is a template ``assets/sections/NAME.html`` and,
if it is interactive, a script ``assets/sections/NAME.js``. To add one, write those files and
name it in ``SECTIONS``. Styles and shared scripts are in the folders beside them.

The scripts draw the numbers of one small JSON document (`make_payload`). It holds only what the
page shows, rounded to five significant digits, so that a report on a thousand classes stays
well under a megabyte. NaN becomes null; the infinities, which JSON lacks, become the strings
"inf" and "-inf".

Nothing is fetched: the page's content security policy forbids every request and allows no script
but its own two, so that a hostile class name cannot run anything.
"""

from __future__ import annotations

import base64
import hashlib
import json
import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from calibrant._version import __version__
from calibrant.core.errors import InputError
from calibrant.core.files import replace_file
from calibrant.report import formatting
from calibrant.report.comparison_tables import (
    Alternatives,
    Change,
    compare_alternatives,
    compare_repair,
)
from calibrant.report.curve_data import make_curves, round_number
from calibrant.report.formatting import find_words
from calibrant.report.groups import make_group_section
from calibrant.report.summary import describe_state, list_facts, make_gauge, make_label_rows
from calibrant.report.temperature_slider import make_slider_data

if TYPE_CHECKING:
    import pandas as pd
    from jinja2 import Environment

    from calibrant.evaluation import Comparison, Evaluation, Figure
    from calibrant.predictions import Predictions
    from calibrant.report.record import Record


class Section(NamedTuple):
    """One part of the page: the stem of its files, and its heading in the table of contents."""

    name: str
    heading: str
    needs: str | None = None  # what the section requires: an argument of `render`, or events
    classes: bool = False  # whether the section is about classes, which events do not have


SECTIONS = (
    Section("verdict", "Verdict"),
    Section("repair", "Before and after", needs="after"),
    Section("alternatives", "Other models", needs="others"),
    Section("figures", "Figures"),
    Section("labels", "Labels", needs="labels"),
    Section("groups", "Groups", needs="groups"),
    Section("reliability", "Reliability", classes=True),
    Section("probability", "Reliability", needs="events"),
    Section("decision", "Decisions", needs="events"),
    Section("temperature", "Try a temperature", needs="predictions", classes=True),
    Section("classes", "Classes", classes=True),
    Section("selective", "Selective prediction"),
    Section("table", "Class table", classes=True),
    Section("reading", "How to read this"),
    Section("citing", "How to cite"),
    Section("settings", "Settings"),
)
STYLES = ("tokens", "page", "sections", "charts", "print")
EARLY = ("theme", "scroll")  # scripts that run before the page is painted
SCRIPTS = ("core", "format", "svg", "plot")
CARDS = ("accuracy", "ece", "nll", "brier")
EVENT_CARDS = ("oe_ratio", "calibration_slope", "ece", "auroc")
# What figures are where probabilities are right, if neither less nor more is better.
IDEALS = {
    "oe_ratio": "1",
    "calibration_slope": "1",
    "calibration_intercept": "0",
    "calibration_in_the_large": "0",
    "mean_gap": "0",
}
BIN_COLUMNS = (
    "low",
    "high",
    "count",
    "confidence",
    "accuracy",
    "accuracy_low",
    "accuracy_high",
    "band_low",
    "band_high",
)
CLASS_COLUMNS = (
    "index",
    "name",
    "count",
    "predicted",
    "recall",
    "precision",
    "mean_probability",
    "frequency",
    "gap",
    "nll",
    "ece",
)
# With more classes than this, only the worst calibrated have a diagram of their own.
MOST_CLASS_DIAGRAMS = 2000


def render(
    evaluation: Evaluation,
    *,
    title: str | None = None,
    after: Evaluation | None = None,
    comparison: Comparison | None = None,
    explanation: str | None = None,
    predictions: Predictions | None = None,
    others: Alternatives | None = None,
    record: Record | None = None,
) -> str:
    """Render the report on an evaluation as the text of one HTML file.

    The same arguments give the same text, byte for byte.

    Args:
        evaluation: The result of :func:`calibrant.evaluate`.
        title: The heading of the page; the name of the predictions if None.
        after: The evaluation of the same rows after a repair, shown beside the first.
        comparison: The result of :func:`calibrant.compare`, before against after.
        explanation: A description of the repair; an empty line starts a new paragraph.
        predictions: The evaluated predictions, for the temperature slider. The page holds
            derived numbers of at most 2,000 rows, chosen by a fixed seed.
        others: Evaluations of other models on the same rows, shown in a table.
        record: What an audit asks: date, files, versions and command; see
            :func:`calibrant.report.make_record`.
    """
    if after is None and (comparison is not None or explanation is not None):
        raise InputError("a comparison or explanation needs the evaluation after the repair")
    if predictions is not None:
        _check_same_rows(evaluation, predictions)
    groups, judges_events = evaluation.groups, evaluation.view == "events"
    objects = {
        "after": after,
        "predictions": predictions,
        "others": others,
        "groups": groups,
        "labels": evaluation.labels or None,
        "events": evaluation if judges_events and evaluation.tallies.cells is not None else None,
    }
    sections = [
        section
        for section in SECTIONS
        if (section.needs is None or objects[section.needs] is not None)
        and not (section.classes and judges_events)
        and not (section.name in ("classes", "table") and evaluation.num_options is not None)
        and not (section.name == "selective" and judges_events and evaluation.event != "correct")
    ]

    from markupsafe import Markup

    environment = _make_environment()
    environment.filters.update(
        number=formatting.number,
        percent=formatting.percent,
        points=formatting.points,
        probability=formatting.probability,
        figure_text=lambda figure, value: formatting.page_text(figure.name, value),
        figure_interval=lambda figure: formatting.page_interval(
            figure.name, figure.low, figure.high
        ),
        error_points=formatting.error_points,
        better=_describe_better,
    )
    style = "\n".join(read_asset(f"css/{name}.css") for name in STYLES)
    early = "\n".join(read_asset(f"js/{name}.js") for name in EARLY)
    script = "\n".join(
        [
            *(read_asset(f"js/{name}.js") for name in SCRIPTS),
            *(read_asset(f"sections/{section.name}.js", missing="") for section in sections),
            "report.start();",
        ]
    )
    policy = (
        f"default-src 'none'; style-src {hash_source(style)}; img-src data:; script-src "
        f"{hash_source(early)} {hash_source(script)}; base-uri 'none'; form-action 'none'"
    )
    cards, further = _split_figures(evaluation)
    repaired = None if after is None or comparison is None else (after, comparison)
    # The slider's confidence is that of the predicted class, and never that of an event.
    shows_slider = predictions is not None and not judges_events
    temperature = make_slider_data(predictions) if predictions and shows_slider else None
    text = environment.get_template("page.html").render(
        evaluation=evaluation,
        title=evaluation.name if title is None else title,
        version=__version__,
        record=record,
        sections=sections,
        cards=cards,
        further=further,
        gauge=None if evaluation.verdict is None else make_gauge(evaluation),
        state=describe_state(evaluation),
        words=find_words(evaluation),
        facts=[] if evaluation.verdict is None else list_facts(evaluation),
        labels=make_label_rows(evaluation.labels),
        settings=_list_settings(evaluation),
        level=formatting.level(evaluation.settings),
        after=after,
        repair=after and compare_repair(evaluation, after, comparison, explanation),
        alternatives=others and compare_alternatives(evaluation, others, repaired),
        groups=None if groups is None else make_group_section(groups, find_words(evaluation)),
        temperature=temperature,
        policy=Markup(policy),
        style=Markup(style),
        early=Markup(early),
        script=Markup(script),
        data=Markup(make_script_json(make_payload(evaluation, after, temperature))),
    )
    return text.encode("utf-8", "replace").decode("utf-8")


def write(
    evaluation: Evaluation,
    path: str | Path,
    *,
    title: str | None = None,
    after: Evaluation | None = None,
    comparison: Comparison | None = None,
    explanation: str | None = None,
    predictions: Predictions | None = None,
    others: Alternatives | None = None,
    record: Record | None = None,
) -> Path:
    """Write the report to ``path``, whole or not at all, and return the path.

    Args:
        evaluation: The result of :func:`calibrant.evaluate`.
        path: The file to write; missing folders are made, an existing file is replaced.
        title: The heading of the page; the name of the predictions if None.
        after: The evaluation of the same rows after a repair; see :func:`render`.
        comparison: The result of :func:`calibrant.compare`, before against after.
        explanation: A description of the repair.
        predictions: The evaluated predictions, for the temperature slider.
        others: Evaluations of other models on the same rows, shown in a table.
        record: What an audit asks; see :func:`render`.
    """
    target = check_page_path(path, "report.html")
    text = render(
        evaluation,
        title=title,
        after=after,
        comparison=comparison,
        explanation=explanation,
        predictions=predictions,
        others=others,
        record=record,
    )
    return write_html(text, target)


def encode(text: str) -> bytes:
    """Return a page's text in UTF-8, with ``?`` for what is none, such as an odd file's name."""
    return text.encode(errors="replace")


def check_page_path(path: str | os.PathLike[str], example: str = "page.html") -> Path:
    """Return the path of a page to write; raise an error if it is a folder."""
    target = Path(path)
    if target.is_dir():
        raise InputError(f"{target} is a folder; give a file name, such as {target / example}")
    return target


def write_html(text: str, target: Path) -> Path:
    """Write a page, whole or not at all; missing folders are made."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with replace_file(target) as temporary:
        temporary.write_bytes(encode(text))
    return target


def _check_same_rows(evaluation: Evaluation, predictions: Predictions) -> None:
    """Raise an error if the predictions cannot be those of the evaluation."""
    counted = evaluation.num_rows + evaluation.num_ignored
    rows = math.prod(predictions.known_labels.shape)
    if (rows, predictions.num_classes) != (counted, evaluation.num_classes):
        raise InputError(
            f"give the predictions of the evaluation: {predictions.name} has {rows:,} "
            f"rows and {predictions.num_classes:,} classes, {evaluation.name} has {counted:,} and "
            f"{evaluation.num_classes:,}"
        )


def _make_environment() -> Environment:
    """Return the Jinja environment of the report's templates."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    return Environment(
        loader=PackageLoader("calibrant.report", "assets"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def fill_template(template: str, styles: Sequence[str], **content: Any) -> str:
    """Return a page that runs no script but those of its head.

    Args:
        template: The name of its template among the report's assets.
        styles: The names of its style sheets, in order.
        **content: What the template shows.
    """
    from markupsafe import Markup

    environment = _make_environment()
    style = "\n".join(read_asset(f"css/{name}.css") for name in styles)
    early = "\n".join(read_asset(f"js/{name}.js") for name in EARLY)
    policy = (
        f"default-src 'none'; style-src {hash_source(style)}; img-src data:; "
        f"script-src {hash_source(early)}; base-uri 'none'; form-action 'none'"
    )
    text = environment.get_template(template).render(
        **content, policy=Markup(policy), style=Markup(style), early=Markup(early)
    )
    return text.encode("utf-8", "replace").decode("utf-8")


def read_asset(name: str, missing: str | None = None) -> str:
    """Read a file of the report's assets; return ``missing`` if there is none."""
    from importlib.resources import files

    file = files("calibrant.report").joinpath("assets", *name.split("/"))
    if missing is not None and not file.is_file():
        return missing
    return file.read_text(encoding="utf-8")


def hash_source(text: str) -> str:
    """Return the policy's source expression that allows exactly this inline style or script."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(encode(text)).digest()).decode()}'"


def _split_figures(evaluation: Evaluation) -> tuple[list[Figure], list[Figure]]:
    """Return the four figures that most readers look for, and the others."""
    figures = evaluation.figures
    wanted = EVENT_CARDS if evaluation.view == "events" else CARDS
    cards = [figures[name] for name in wanted if name in figures]
    cards = cards or list(figures.values())[:4]
    return cards, [figure for figure in figures.values() if figure not in cards]


def _describe_better(figure: Figure | Change) -> str:
    """Return which values of a figure are better."""
    if figure.better == "neither":
        return f"{IDEALS[figure.name]} is calibrated" if figure.name in IDEALS else ""
    return f"{figure.better} is better"


def _list_settings(evaluation: Evaluation) -> list[tuple[str, str]]:
    """Return everything needed to compute the same numbers again."""
    rows = [
        ("predictions", evaluation.name),
        ("rows", f"{evaluation.num_rows:,}"),
        ("rows ignored", f"{evaluation.num_ignored:,}"),
        *_list_subject(evaluation),
        ("scores given as", "probabilities" if evaluation.kind == "probs" else evaluation.kind),
    ]
    labels = {"version": "calibrant version", "num_bins": "bins"}
    rows += [
        (labels.get(key, key.replace("_", " ")), _format_setting(value))
        for key, value in evaluation.settings.items()
    ]
    return rows


def _list_subject(evaluation: Evaluation) -> list[tuple[str, str]]:
    """Return what is judged, and what the rows are."""
    if evaluation.task == "multilabel":
        rows = [("labels", f"{evaluation.num_classes:,}")]
    elif evaluation.view == "events":
        rows = [("event", evaluation.event or "the event")]
    elif evaluation.num_options is not None:
        rows = [("options", " to ".join(map(str, sorted(set(evaluation.num_options)))))]
    else:
        rows = [("classes", f"{evaluation.num_classes:,}")]
    if evaluation.num_clusters is not None:
        rows.append(("clusters", f"{evaluation.num_clusters:,}"))
    if evaluation.weighted:
        rows.append(("weights", "yes"))
    return rows


def _format_setting(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:,}" if isinstance(value, int) else str(value)


def make_payload(
    evaluation: Evaluation,
    after: Evaluation | None = None,
    temperature: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """Return the numbers that the page's scripts draw, as plain lists, numbers and strings."""
    by_class = evaluation.view != "events" and evaluation.num_options is None
    return {
        "name": evaluation.name,
        "rows": int(evaluation.num_rows),
        "level": formatting.level(evaluation.settings),
        "z": round_number(formatting.deviations(evaluation.settings)),
        "tail": round_number((1 - formatting.level_share(evaluation.settings)) / 2),
        "words": find_words(evaluation)._asdict(),
        "curves": make_curves(evaluation),
        "curvesAfter": None if after is None else make_curves(after, like=evaluation),
        "binColumns": BIN_COLUMNS,
        "bins": {
            "width": _make_records(evaluation.bins, BIN_COLUMNS),
            "mass": _make_records(evaluation.mass_bins, BIN_COLUMNS),
        },
        "after": None if after is None else _make_records(after.bins, BIN_COLUMNS),
        "temperature": temperature,
        "classColumns": CLASS_COLUMNS,
        "classes": _make_records(evaluation.classes, CLASS_COLUMNS) if by_class else [],
        "classBins": _make_class_bins(evaluation) if by_class else {},
        "riskCoverage": _make_records(evaluation.risk_coverage, ("coverage", "risk", "threshold")),
    }


def make_script_json(document: dict[str, Any]) -> str:
    """Return JSON that is safe inside a ``<script>`` element, whatever its strings hold."""
    text = json.dumps(document, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    # These occur only in strings of JSON, where their escapes mean the same characters.
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    # A lone surrogate in a name cannot be written as UTF-8.
    return text.encode("utf-8", "replace").decode("utf-8")


def _make_records(table: pd.DataFrame, columns: tuple[str, ...]) -> list[list[Any]]:
    cells = [[_make_cell(value) for value in table[column].tolist()] for column in columns]
    return [list(row) for row in zip(*cells, strict=True)]


def _make_cell(value: object) -> object:
    if isinstance(value, str | bool):
        return value
    if isinstance(value, int | np.integer):
        return int(value)
    if value is None:
        return None
    return round_number(float(value))  # type: ignore[arg-type]


def _make_class_bins(evaluation: Evaluation) -> dict[str, list[list[Any]]]:
    """Return each class's non-empty bins: bin, count, mean probability, frequency."""
    table = np.asarray(evaluation.class_bins, dtype=float)
    chosen = list(range(len(table)))
    if len(table) > MOST_CLASS_DIAGRAMS:
        error = np.nan_to_num(evaluation.classes["ece"].to_numpy(float), nan=-1.0)
        chosen = sorted(np.argsort(-error, kind="stable")[:MOST_CLASS_DIAGRAMS].tolist())
    return {
        str(index): [
            [int(place), int(count), round_number(float(mean)), round_number(float(frequency))]
            for place, (count, mean, frequency) in enumerate(table[index])
            if count > 0
        ]
        for index in chosen
    }
