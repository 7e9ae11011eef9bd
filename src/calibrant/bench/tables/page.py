"""Write a suite's results as a self-contained HTML page: the answer, its table, pictures, details.

Styles are those of `calibrant.report`. The page's content security policy forbids every request,
and pictures are embedded as images, in which no script runs.
"""

from __future__ import annotations

import base64
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from calibrant._version import __version__
from calibrant.bench.tables import tuning_table
from calibrant.bench.tables.chapters import Chapter, make_answer, make_chapters
from calibrant.bench.tables.formatting import check_metric, label
from calibrant.bench.tables.gallery import draw_answer
from calibrant.bench.tables.headline import make_headlines, summarize
from calibrant.bench.tables.results import Results, collect_results
from calibrant.bench.tables.tabulate import choose_error
from calibrant.report.page import check_page_path, hash_source, read_asset, write_html

if TYPE_CHECKING:
    import pandas as pd

    from calibrant.bench.suite.suite import Suite

STYLES = ("tokens", "page", "sections", "print")
MOST_CELLS = 12  # listed with missing runs; the rest is counted


@dataclass(frozen=True)
class Section:
    """A further section of the page; ``html`` is inserted unchanged."""

    id: str
    title: str
    lead: str
    html: str


def write_page(
    suite: Suite,
    frame: pd.DataFrame,
    out: str | os.PathLike[str],
    *,
    pictures: Mapping[str, str] | None = None,
    sections: Sequence[Section] = (),
    error: str | None = None,
) -> Path:
    """Write the page, whole or not at all, and return its path.

    Args:
        suite: the suite.
        frame: the store's rows (`Store.frame()`).
        out: the file to write; missing folders are made, an existing file is replaced.
        pictures: SVG texts by title, for the details.
        sections: further sections, after the details' tables.
        error: the metric that decides which method is best. Default: None, the suite's first
            calibration error.
    """
    target = check_page_path(out, "bench.html")
    text = render_page(suite, frame, pictures=pictures, sections=sections, error=error)
    return write_html(text, target)


def render_page(
    suite: Suite,
    frame: pd.DataFrame,
    *,
    pictures: Mapping[str, str] | None = None,
    sections: Sequence[Section] = (),
    error: str | None = None,
) -> str:
    """Return the page's text; see `write_page`. Equal arguments give equal text."""
    from jinja2 import Environment, PackageLoader, StrictUndefined
    from markupsafe import Markup

    environment = Environment(
        loader=PackageLoader("calibrant.bench.tables", "assets"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    results = collect_results(suite, frame)
    stylesheet = Path(__file__).with_name("assets") / "bench.css"
    style = "\n".join(
        [
            *(read_asset(f"css/{name}.css") for name in STYLES),
            stylesheet.read_text(encoding="utf-8"),
        ]
    )
    early = read_asset("js/theme.js")
    policy = (
        f"default-src 'none'; style-src {hash_source(style)}; img-src data:; "
        f"script-src {hash_source(early)}; base-uri 'none'; form-action 'none'"
    )
    lines = tuning_table.list_lines(results, suite.methods)
    metric = check_metric(error) if error else choose_error(suite)
    headlines = make_headlines(results, metric)
    answer = make_answer(suite, frame, results, metric)
    chapters = make_chapters(suite, frame, results)
    if answer is not None and answer.table.to_csv() == chapters[0].table.to_csv():
        chapters = chapters[1:]
    return environment.get_template("page.html").render(
        suite=suite,
        version=__version__,
        coverage=describe_coverage(results),
        error=label(metric),
        summary=summarize(headlines, metric),
        headlines=headlines,
        answer=_show_chapter(answer) if answer is not None else None,
        views=[
            (results.name_of(cell), [(title, embed_svg(svg)) for title, svg in drawn.items()])
            for cell, drawn in draw_answer(results, metric).items()
        ],
        tables=[_show_chapter(chapter) for chapter in chapters],
        chosen=Markup(tuning_table.format_html(lines)) if lines else "",
        sections=[replace(section, html=Markup(section.html)) for section in sections],
        pictures=[(title, embed_svg(svg)) for title, svg in (pictures or {}).items()],
        machines=", ".join(sorted({str(machine) for machine in results.rows["machine"].unique()})),
        policy=Markup(policy),
        style=Markup(style),
        early=Markup(early),
    )


def _show_chapter(chapter: Chapter) -> dict[str, Any]:
    """Return what the template shows; tuned settings have a chapter of their own."""
    from markupsafe import Markup

    html = Markup(replace(chapter.table, chosen=()).to_html())
    return {"title": chapter.title, "lead": chapter.lead, "html": html}


def describe_coverage(results: Results) -> dict[str, Any]:
    """Describe how many runs are done, and which are not."""
    total, done = len(results.plan), len(results.done)
    by_cell: dict[str, list[str]] = {}
    for (cell, method), planned in results.planned.items():
        count = results.lacking.get((cell, method), 0)
        if not count:
            continue
        lost = results.diverged.get((cell, method), 0)
        facts = [f"{planned - count} of {planned}"] if count < planned else []
        facts += [f"{lost} diverged"] if lost else []
        text = f"{method} ({', '.join(facts)})" if facts else method
        by_cell.setdefault(results.name_of(cell), []).append(text)
    lines = [f"{cell}: {', '.join(names)}" for cell, names in by_cell.items()]
    if len(lines) > MOST_CELLS:
        lines = [*lines[:MOST_CELLS], f"and {len(lines) - MOST_CELLS} more settings"]
    return {
        "line": f"{done} of {total} runs are done.",
        "percent": round(100 * done / total, 1) if total else 0.0,
        "lacking": lines,
    }


def embed_svg(svg: str) -> str:
    """Return an SVG as the source of an image."""
    return f"data:image/svg+xml;base64,{base64.b64encode(svg.encode()).decode()}"
