"""The report: one self-contained HTML file.

The page is assembled from sections. A section is a template ``assets/sections/NAME.html``
and, where it reacts to the reader, a script ``assets/sections/NAME.js``; adding one is
writing those files and naming it in ``SECTIONS``. Styles and shared scripts lie beside
them. Nothing is fetched: the page's own content security policy forbids every request and
allows no script but the two written here, so a hostile class name has nothing to run with.
"""

from __future__ import annotations

import base64
import hashlib
import math
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from calibrant._version import __version__
from calibrant.functional.errors import InputError
from calibrant.report import words
from calibrant.report.alternatives import Alternatives, tabulate
from calibrant.report.groups import group_section
from calibrant.report.payload import embed, payload
from calibrant.report.repair import repair
from calibrant.report.sample import sample

if TYPE_CHECKING:
    from calibrant.evaluation import Comparison, Evaluation, Figure, Verdict
    from calibrant.predictions import Predictions


class Section(NamedTuple):
    """One part of the page: the stem of its files, and its name in the list of contents."""

    name: str
    heading: str
    needs: str | None = None  # an argument of `render` without which it is left out


SECTIONS = (
    Section("verdict", "Verdict"),
    Section("repair", "Before and after", needs="after"),
    Section("alternatives", "Other models", needs="others"),
    Section("figures", "Figures"),
    Section("groups", "Groups", needs="groups"),
    Section("reliability", "Reliability"),
    Section("temperature", "Try a temperature", needs="predictions"),
    Section("classes", "Classes"),
    Section("selective", "Selective prediction"),
    Section("table", "Class table"),
    Section("reading", "How to read this"),
    Section("citing", "How to cite"),
    Section("settings", "Settings"),
)
STYLES = ("tokens", "page", "sections", "charts", "print")
SCRIPTS = ("core", "format", "svg", "plot")
CARDS = ("accuracy", "ece", "nll", "brier")


def render(
    evaluation: Evaluation,
    *,
    title: str | None = None,
    after: Evaluation | None = None,
    comparison: Comparison | None = None,
    explanation: str | None = None,
    predictions: Predictions | None = None,
    others: Alternatives | None = None,
) -> str:
    """The report on an evaluation, as the text of one HTML file.

    The same arguments give the same text, byte for byte.

    Args:
        evaluation: what :func:`calibrant.evaluate` returned.
        title: heading of the page; the name of the predictions when left out.
        after: the evaluation of the same rows after a repair, to be shown beside it.
        comparison: what :func:`calibrant.compare` said of the two, before first.
        explanation: what the repair is, in words; an empty line begins a new paragraph.
        predictions: those of the evaluation, for a slider that applies a temperature to them.
            The page holds derived numbers of at most 2,000 rows, chosen by a fixed seed.
        others: other models' evaluations on the same rows, to be shown in a table.
    """
    if after is None and (comparison is not None or explanation is not None):
        raise InputError("a comparison or explanation needs the evaluation after the repair")
    if predictions is not None:
        _check_same(evaluation, predictions)
    groups = evaluation.groups
    given = {"after": after, "predictions": predictions, "others": others, "groups": groups}
    sections = [each for each in SECTIONS if each.needs is None or given[each.needs] is not None]

    from jinja2 import Environment, PackageLoader, StrictUndefined
    from markupsafe import Markup

    environment = Environment(
        loader=PackageLoader("calibrant.report", "assets"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(
        number=words.number,
        percent=words.percent,
        points=words.points,
        probability=words.probability,
        figure_text=lambda figure, value: words.figure_text(figure.name, value),
    )
    style = "\n".join(asset(f"css/{name}.css") for name in STYLES)
    early = asset("js/theme.js")
    script = "\n".join(
        [
            *(asset(f"js/{name}.js") for name in SCRIPTS),
            *(asset(f"sections/{section.name}.js", missing="") for section in sections),
            "report.start();",
        ]
    )
    policy = (
        f"default-src 'none'; style-src {digest(style)}; img-src data:; "
        f"script-src {digest(early)} {digest(script)}; base-uri 'none'; form-action 'none'"
    )
    cards, further = _cards(evaluation)
    repaired = None if after is None or comparison is None else (after, comparison)
    temperature = None if predictions is None else sample(predictions)
    text = environment.get_template("page.html").render(
        evaluation=evaluation,
        title=evaluation.name if title is None else title,
        version=__version__,
        sections=sections,
        cards=cards,
        further=further,
        gauge=None if evaluation.verdict is None else _gauge(evaluation.verdict),
        tone=_tone(evaluation),
        settings=_settings(evaluation),
        level=words.level(evaluation.settings),
        after=after,
        repair=None if after is None else repair(evaluation, after, comparison, explanation),
        alternatives=None if others is None else tabulate(evaluation, others, repaired),
        groups=None if groups is None else group_section(groups),
        temperature=temperature,
        policy=Markup(policy),
        style=Markup(style),
        early=Markup(early),
        script=Markup(script),
        data=Markup(embed(payload(evaluation, after=after, temperature=temperature))),
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
) -> Path:
    """Write the report to ``path``, whole or not at all, and return where it is.

    Args:
        evaluation: what :func:`calibrant.evaluate` returned.
        path: the file to write; folders on the way are made, an existing file is replaced.
        title: heading of the page; the name of the predictions when left out.
        after: the evaluation of the same rows after a repair; see :func:`render`.
        comparison: what :func:`calibrant.compare` said of the two, before first.
        explanation: what the repair is, in words.
        predictions: those of the evaluation, for a slider that applies a temperature.
        others: other models' evaluations on the same rows, to be shown in a table.
    """
    target = Path(path)
    if target.is_dir():
        raise InputError(
            f"{target} is a folder; give the report a file name, such as {target / 'report.html'}."
        )
    text = render(
        evaluation,
        title=title,
        after=after,
        comparison=comparison,
        explanation=explanation,
        predictions=predictions,
        others=others,
    )
    return put(text, target)


def put(text: str, target: Path) -> Path:
    """Write a page, whole or not at all; folders on the way are made."""
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.with_name(f".{target.name}.{os.getpid()}.partial")
    try:
        partial.write_text(text, encoding="utf-8", newline="\n")
        partial.replace(target)
    finally:
        partial.unlink(missing_ok=True)
    return target


def _check_same(evaluation: Evaluation, predictions: Predictions) -> None:
    """The slider is for the rows of the evaluation, as far as that can be told."""
    counted = evaluation.num_rows + evaluation.num_ignored
    rows = math.prod(predictions.labels.shape)
    if (rows, predictions.num_classes) != (counted, evaluation.num_classes):
        raise InputError(
            f"the predictions must be those of the evaluation: {predictions.name} has {rows:,} "
            f"rows and {predictions.num_classes:,} classes, {evaluation.name} has {counted:,} and "
            f"{evaluation.num_classes:,}"
        )


def asset(name: str, missing: str | None = None) -> str:
    """A file of the page's own; ``missing`` where there is none."""
    from importlib.resources import files

    file = files("calibrant.report").joinpath("assets", *name.split("/"))
    if missing is not None and not file.is_file():
        return missing
    return file.read_text(encoding="utf-8")


def digest(text: str) -> str:
    """The source expression that allows exactly this inline style or script."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _cards(evaluation: Evaluation) -> tuple[list[Figure], list[Figure]]:
    """The four figures most readers look for, and the others."""
    figures = evaluation.figures
    cards = [figures[name] for name in CARDS if name in figures]
    cards = cards or list(figures.values())[:4]
    return cards, [figure for figure in figures.values() if figure not in cards]


def _tone(evaluation: Evaluation) -> str:
    """The colour of the verdict: its direction, or "mixed" where faults cancel out.

    No net direction is not the same as no fault: a model can be too sure in one range and
    too modest in another, and the test then says so; or single groups are off.
    """
    verdict = evaluation.verdict
    if verdict is None:
        return "none"
    alarmed = verdict.p_value < 1 - words.level_share(evaluation.settings)
    grouped = evaluation.groups is not None and bool(evaluation.groups.off)
    if verdict.direction == "neither" and (alarmed or grouped):
        return "mixed"
    return verdict.direction


def _gauge(verdict: Verdict) -> dict[str, Any]:
    """Where gap and interval lie on a line from underconfident to overconfident, in percent."""
    ends = [abs(verdict.gap), abs(verdict.gap_low), abs(verdict.gap_high)]
    reach = 1.15 * max(end for end in [*ends, 0.01] if end == end)
    limit = next(
        (step for step in (0.02, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.75) if step >= reach), 1.0
    )

    def place(value: float) -> float:
        value = 0.0 if value != value else min(max(value, -limit), limit)
        return round(50 + 50 * value / limit, 2)

    return {
        "limit": limit,
        "low": place(verdict.gap_low),
        "gap": place(verdict.gap),
        "high": place(verdict.gap_high),
    }


def _settings(evaluation: Evaluation) -> list[tuple[str, str]]:
    """Everything needed to come to the same numbers again."""
    rows = [
        ("predictions", evaluation.name),
        ("rows", f"{evaluation.num_rows:,}"),
        ("rows ignored", f"{evaluation.num_ignored:,}"),
        ("classes", f"{evaluation.num_classes:,}"),
        ("scores given as", "probabilities" if evaluation.kind == "probs" else evaluation.kind),
    ]
    named = {"version": "calibrant version", "num_bins": "bins"}
    rows += [
        (named.get(key, key.replace("_", " ")), _setting(value))
        for key, value in evaluation.settings.items()
    ]
    return rows


def _setting(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:,}" if isinstance(value, int) else str(value)
