"""Make the package's published.csv: the papers' figures without those read uncertainly.

python scripts/make_published.py PAPERS_FOLDER/published.csv
"""

from __future__ import annotations

import csv
import sys
from pathlib import Path

TARGET = Path(__file__).parents[1] / "src" / "calibrant" / "bench" / "published.csv"


def certain(rows):
    """Rows whose reading is not in doubt."""
    return [row for row in rows if not row["notes"].startswith("uncertain:")]


def main(source: str) -> None:
    with open(source, encoding="utf-8", newline="") as file:
        reader = csv.DictReader(file)
        names, rows = list(reader.fieldnames or ()), list(reader)
    kept = certain(rows)
    with open(TARGET, "w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, names, lineterminator="\n")
        writer.writeheader()
        writer.writerows(kept)
    print(f"{len(kept):,} of {len(rows):,} rows kept in {TARGET.name}")


if __name__ == "__main__":
    main(*sys.argv[1:])
