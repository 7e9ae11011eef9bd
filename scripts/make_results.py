"""Tables, claims and pages from the store in ``results/``, for every suite with runs in it.

    python scripts/make_results.py [results]

Writes ``tables/SUITE.md``, ``.csv`` and ``.tex`` of the suites a tenth of whose runs are made,
``claims.md`` and ``claims.json``, and ``SUITE.html`` with pictures; the numbers in README.md
are readme_numbers.py's.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path

from readme_numbers import ROOT, Results

from calibrant.bench.cells import results as cells
from calibrant.bench.chapters import chapters
from calibrant.bench.claim_writers import markdown, values
from calibrant.bench.gallery import gallery
from calibrant.bench.page import coverage, report
from calibrant.bench.spec import distinct
from calibrant.bench.store import Store
from calibrant.bench.suite import available

FEWEST = 1 / 10  # share of a suite's runs


def one_header(texts: list[str]) -> str:
    """Several CSV texts of the same columns as one, each line once."""
    lines = [line for text in texts for line in text.splitlines()]
    return "\n".join(dict.fromkeys(lines)) + "\n"


def main(folder: str | None = None) -> None:
    target = Path(folder) if folder else ROOT / "results"
    found, store = Results(target), Store(target / "store")
    (target / "tables").mkdir(exist_ok=True)
    own = [path.stem for path in (target / "suites").glob("*.yaml")]
    names = dict.fromkeys([*available(), *sorted(own)])
    runs = {name: distinct(spec for _, spec in found.suite(name).specs) for name in names}
    suites_of = Counter(one.key for each in runs.values() for one in each)

    def is_made(spec):
        """Whole, or begun for this suite: what it has in common with another tells nothing."""
        done = store.done(spec.key)
        return spec.is_measured(done) or (suites_of[spec.key] == 1 and ("run", "none") in done)

    for name in names:
        suite = found.suite(name)
        made = sum(map(is_made, runs[name]))
        untuned = 2 * len(runs[name]) < found.sizes[name]  # what needs none makes no tuned suite
        if untuned or made < FEWEST * found.sizes[name]:
            continue
        told = cells(suite, found.frame)
        parts = chapters(suite, found.frame, told)
        lines = [f"# {suite.name}", suite.about, coverage(told)["line"]]
        for one in parts:
            lines += [f"## {one.title}", one.lead, one.table.to_markdown().strip()]
        for ending, text in (
            ("md", "\n\n".join(lines) + "\n"),
            ("csv", one_header([one.table.to_csv() for one in parts])),
            ("tex", "\n".join(f"% {one.title}\n{one.table.to_latex()}" for one in parts)),
        ):
            path = target / "tables" / f"{name}.{ending}"
            path.write_text(text, encoding="utf-8", newline="\n")
        drawn = gallery(suite, found.frame)
        report(suite, found.frame, target / f"{name}.html", pictures=drawn)
        print(f"{name}: {len(parts)} tables, {len(drawn)} pictures")
    text = f"# What the papers claim, and what our runs say\n\n{markdown(found.outcomes)}"
    (target / "claims.md").write_text(text, encoding="utf-8", newline="\n")
    plain = json.dumps(values(found.outcomes), indent=1, ensure_ascii=False)
    (target / "claims.json").write_text(plain + "\n", encoding="utf-8", newline="\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
