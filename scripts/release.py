"""Set the version of a release and move the lines of the changelog below it.

python scripts/release.py 0.2.0                     # dated today
python scripts/release.py 0.2.0 --date 2026-11-19
"""

from __future__ import annotations

import argparse
import datetime
import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
VERSION = re.compile(r"\d+\.\d+\.\d+")


def release(root: Path, version: str, date: str) -> None:
    """Write the version and the date into every file that holds them."""
    citation = root / "CITATION.cff"
    text = replace(citation.read_text("utf-8"), r"^version: .*$", f"version: {version}")
    text = replace(text, r"^date-released: .*$", f"date-released: {date}")
    text = replace(text, r"^#   version = .*$", f"#   version = {{{version}}},")
    text = replace(text, r"^#   year    = .*$", f"#   year    = {{{date[:4]}}},")
    changelog = root / "CHANGELOG.md"
    changes = changelog.read_text("utf-8")
    if f"## [{version}]" in changes:
        raise SystemExit(f"CHANGELOG.md has lines for {version} already")
    head = f"## [Unreleased]\n\n## [{version}] - {date}"
    changes = replace(changes, r"^## \[Unreleased\]$", head)
    readme = root / "README.md"
    page = replace(readme.read_text("utf-8"), r"^  version = .*$", f"  version = {{{version}}},")
    page = replace(page, r"^  year    = .*$", f"  year    = {{{date[:4]}}},")
    module = root / "src" / "calibrant" / "_version.py"
    source = replace(module.read_text("utf-8"), r"^__version__ = .*$", f'__version__ = "{version}"')
    pairs = ((citation, text), (changelog, changes), (readme, page), (module, source))
    for path, content in pairs:
        path.write_text(content, encoding="utf-8", newline="\n")


def replace(text: str, pattern: str, line: str) -> str:
    """Replace the one line that matches a pattern."""
    replaced, count = re.subn(pattern, lambda match: line, text, flags=re.M)
    if count != 1:
        raise SystemExit(f"expected one line {pattern!r}, found {count}: nothing was written")
    return replaced


def main() -> None:
    """Set the version that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("version")
    parser.add_argument("--date", default=datetime.datetime.now(datetime.timezone.utc).date())
    options = parser.parse_args()
    if not VERSION.fullmatch(options.version):
        raise SystemExit(f"{options.version!r} is no version such as 0.2.0")
    release(ROOT, options.version, str(datetime.date.fromisoformat(str(options.date))))


if __name__ == "__main__":
    main()
