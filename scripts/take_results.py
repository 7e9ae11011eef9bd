"""Take the results of a bench folder into the published ones, as one light file.

    python scripts/take_results.py BENCH [results]

Only what ``results/store`` does not have yet is taken, and what its suites' tuning chose.
make_results.py and readme_numbers.py then make tables, claims and numbers of it.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from calibrant.bench.choosing import FOLDER, put_down, read_choice
from calibrant.bench.store import Store

ROOT = Path(__file__).parents[1]


def main(bench: str, folder: str | None = None) -> None:
    results = Path(folder) if folder else ROOT / "results"
    target = Store(results / "store")
    for path in sorted((Path(bench) / FOLDER).glob("*.json")):
        choice = read_choice(path)
        if choice is not None:
            put_down(results / FOLDER / path.name, choice)
    known = {path.name for path in target.files()}
    with tempfile.TemporaryDirectory() as between:
        fresh = Store(between)
        source = Store(Path(bench) / "store")
        for path in source.files():
            if path.name not in known:
                fresh.take_file(path.name, path.read_bytes())
        made = fresh.compact(light=True)
        if made is None:
            raise SystemExit(f"{bench} has no results that are not there already")
        target.take(fresh)
        print(f"{made.name}: {made.stat().st_size:,} bytes")


if __name__ == "__main__":
    main(*sys.argv[1:])
