"""Write tables, claims, figures and pages from the store in ``results/``.

    python -m replication results [FOLDER]

For every suite with at least a tenth of its runs, write ``tables/SUITE.md``, ``.csv`` and ``.tex``,
and ``SUITE.html`` with pictures. Write ``claims.md`` and ``claims.json`` over all suites, the
figures of the pages in ``pages/``, and the page of class-scaling's table 2. The numbers in other
pages are written by `python -m replication readme`.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

from calibrant.bench import Spec, describe_coverage, make_chapters, write_page
from calibrant.bench.tables.page import Section
from replication.claims.writers import format_html, format_markdown, to_values
from replication.figures import draw_figures
from replication.gallery import draw_gallery
from replication.stored import RESULTS, StoredResults, list_suites
from replication.table_2 import PAGE, SUITE, Table2

FEWEST = 1 / 10  # smallest share of a suite's runs


def join_csv(texts: list[str]) -> str:
    """Join CSV texts with the same columns, with each line once."""
    lines = [line for text in texts for line in text.splitlines()]
    return "\n".join(dict.fromkeys(lines)) + "\n"


def make_results(target: Path = RESULTS) -> None:
    """Write tables, claims and pages into a folder from the store in it."""
    results = StoredResults(target)
    (target / "tables").mkdir(exist_ok=True)
    own = [path.stem for path in (target / "suites").glob("*.yaml")]
    names = dict.fromkeys([*list_suites(), *sorted(own)])
    runs = {name: results.read_suite(name).runs for name in names}
    suites_of = Counter(spec.key for each in runs.values() for spec in each)

    def is_made(spec: Spec) -> bool:
        """Return whether a run is complete, or started for this suite alone."""
        done = results.store.done(spec.key)
        return spec.is_measured(done) or (suites_of[spec.key] == 1 and ("run", "none") in done)

    for name in names:
        untuned = 2 * len(runs[name]) < results.sizes[name]  # most runs wait for tuning
        if not untuned and sum(map(is_made, runs[name])) >= FEWEST * results.sizes[name]:
            _write_suite(results, name, target)
    text = f"# What the papers claim, and what our runs say\n\n{format_markdown(results.outcomes)}"
    (target / "claims.md").write_text(text, encoding="utf-8", newline="\n")
    plain = json.dumps(to_values(results.outcomes), indent=1, ensure_ascii=False)
    (target / "claims.json").write_text(plain + "\n", encoding="utf-8", newline="\n")
    if target == RESULTS:
        write_pages(results, target)


def write_pages(results: StoredResults, target: Path = RESULTS) -> None:
    """Write the figures of the pages, and the page of class-scaling's table 2."""
    (target / "figures").mkdir(exist_ok=True)
    for name, drawn in draw_figures(results).items():
        (target / "figures" / f"{name}.svg").write_text(drawn, encoding="utf-8", newline="\n")
    page = Table2(results.get_results(SUITE)).write()
    (target / PAGE).write_text(page, encoding="utf-8", newline="\n")


def _write_suite(results: StoredResults, name: str, target: Path) -> None:
    suite = results.read_suite(name)
    chapters = make_chapters(suite, results.frame, results.get_results(name))
    coverage = describe_coverage(results.get_results(name))
    lines = [f"# {suite.name}", suite.about, coverage["line"]]
    for chapter in chapters:
        lines += [f"## {chapter.title}", chapter.lead, chapter.table.to_markdown().strip()]
    latex = [f"% {chapter.title}\n{chapter.table.to_latex()}" for chapter in chapters]
    for ending, text in (
        ("md", "\n\n".join(lines) + "\n"),
        ("csv", join_csv([chapter.table.to_csv() for chapter in chapters])),
        ("tex", "\n".join(latex)),
    ):
        path = target / "tables" / f"{name}.{ending}"
        path.write_text(text, encoding="utf-8", newline="\n")
    drawn = draw_gallery(suite, results.frame)
    outcomes = results.judge_in(name)
    section = Section(
        id="claims",
        title="What the papers claim",
        lead="Claims that runs of this suite can test, with the outcome.",
        html=format_html(outcomes),
    )
    write_page(
        suite,
        results.frame,
        target / f"{name}.html",
        pictures=drawn,
        sections=[section] if outcomes else [],
    )
    print(f"{name}: {len(chapters)} tables, {len(drawn)} pictures")
