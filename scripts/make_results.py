"""Tables, claims and pages from the store in ``results/``, for every suite with runs in it.

    python scripts/make_results.py [results]

Writes ``tables/SUITE.md``, ``.csv`` and ``.tex``, ``claims.md`` and ``claims.json``, and
``SUITE.html``; the numbers in README.md are readme_numbers.py's.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from readme_numbers import ROOT, Results

from calibrant.bench.cells import results as cells
from calibrant.bench.claim_writers import markdown, values
from calibrant.bench.page import report
from calibrant.bench.suite import available
from calibrant.bench.tables import table


def main(folder: str | None = None) -> None:
    target = Path(folder) if folder else ROOT / "results"
    found = Results(target)
    (target / "tables").mkdir(exist_ok=True)
    own = [path.stem for path in (target / "suites").glob("*.yaml")]
    for name in dict.fromkeys([*available(), *sorted(own)]):
        suite = found.suite(name)
        if not cells(suite, found.frame).done:
            continue
        made = table(suite, found.frame)
        for ending, text in (
            ("md", f"# {suite.name}\n\n{suite.about}\n\n{made.to_markdown()}"),
            ("csv", made.to_csv()),
            ("tex", made.to_latex()),
        ):
            path = target / "tables" / f"{name}.{ending}"
            path.write_text(text, encoding="utf-8", newline="\n")
        report(suite, found.frame, target / f"{name}.html")
        print(f"{name}: {len(made.blocks)} blocks")
    text = f"# What the papers claim, and what our runs say\n\n{markdown(found.outcomes)}"
    (target / "claims.md").write_text(text, encoding="utf-8", newline="\n")
    plain = json.dumps(values(found.outcomes), indent=1, ensure_ascii=False)
    (target / "claims.json").write_text(plain + "\n", encoding="utf-8", newline="\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
