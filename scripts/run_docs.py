"""Run the code blocks of the documentation and store what they print; run the tutorials.

    python scripts/run_docs.py                # all pages and tutorials
    python scripts/run_docs.py guides/groups  # one

A `text` block takes what the `python` block before it prints. A `console` block keeps its shown
lines, but one that shows `...` alone. `tests/docs/test_pages.py` compares them afterwards.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import shutil
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
WITHOUT = ("suites", "extend", "decisions")
FOLDERS = (".", "start", "guides", "explanation")
BLOCK = re.compile(
    r"^(<!-- (?:not run: [^\n]+|exit code \d) -->\n)?```(\w+)\n(.*?)^```$", flags=re.M | re.S
)


def list_pages() -> list[Path]:
    """Return the pages whose blocks run."""
    pages = [page for folder in FOLDERS for page in sorted((DOCS / folder).glob("*.md"))]
    return [page for page in pages if page.stem not in WITHOUT]


def run_page(page: Path) -> str:
    """Run a page's Python blocks in order and return its text with what they print."""
    names: dict[str, object] = {}
    printed = ""

    def run_block(match: re.Match[str]) -> str:
        nonlocal printed
        mark, kind, text = match[1] or "", match[2], match[3]
        if "not run" in mark:
            return match[0]
        if kind == "python":
            stream = io.StringIO()
            with contextlib.redirect_stdout(stream):
                exec(compile(text, page.name, "exec"), names)  # noqa: S102
            printed = stream.getvalue()
        elif kind == "text" and ("..." not in text.split("\n") or text.strip() == "..."):
            return f"{mark}```text\n{printed}```"
        elif kind == "console":
            from typer.testing import CliRunner

            from calibrant.cli import app

            CliRunner().invoke(app, _split(text))  # later blocks may need its files
        return match[0]

    return BLOCK.sub(run_block, page.read_text(encoding="utf-8"))


def _split(text: str) -> list[str]:
    import shlex

    return shlex.split(text.partition("\n")[0].removeprefix("$ calibrant "))


def main() -> int:
    """Run the pages named, or all."""
    wanted = sys.argv[1:]
    for page in list_pages():
        name = page.relative_to(DOCS).with_suffix("").as_posix()
        if wanted and name not in wanted:
            continue
        with tempfile.TemporaryDirectory() as folder:
            for log in (ROOT / "tests" / "fixtures" / "lm_eval").glob("*.jsonl"):
                shutil.copy(log, folder)
            with _enter(folder):
                text = run_page(page)
        changed = text != page.read_text(encoding="utf-8")
        page.write_text(text, encoding="utf-8", newline="\n")
        print(f"docs/{name}.md: {'outputs changed' if changed else 'outputs as stored'}")
    return 0


@contextlib.contextmanager
def _enter(folder: str):
    before = os.getcwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


if __name__ == "__main__":
    raise SystemExit(main())
