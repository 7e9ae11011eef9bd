"""Run the code blocks of the documentation and store what they print; run the tutorials.

    python scripts/run_docs.py                # all pages and tutorials
    python scripts/run_docs.py guides/groups  # one

A `text` block takes what the `python` block before it prints. A `console` block keeps its shown
lines, but one that shows `...` alone. `tests/docs/test_pages.py` compares them afterwards.

A block under `<!-- file: NAME -->` is written to that file.

Tutorials are notebooks kept as Markdown (jupytext opens them). If the last expression of a block
is a figure, or axes, it is written to the `.svg` picture that follows the block. Each picture and
each tutorial is stamped with the hash of the code it came from, which
`tests/docs/test_tutorials.py` compares.
"""

from __future__ import annotations

import ast
import contextlib
import hashlib
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
FOLDERS = (".", "start", "guides", "explanation", "tutorials")
TUTORIALS = DOCS / "tutorials"
BLOCK = re.compile(
    r"^(<!-- (?:not run: [^\n]+|exit code \d|file: \S+) -->\n)?```(\w+)\n(.*?)^```$",
    flags=re.M | re.S,
)

PICTURE = re.compile(r"\s*!\[[^\]]*\]\(([^)\s]+\.svg)\)")
STAMP = re.compile(r"\n*<!-- outputs of code \w+ -->\n*")


def list_pages() -> list[Path]:
    """Return the pages whose blocks run."""
    pages = [page for folder in FOLDERS for page in sorted((DOCS / folder).glob("*.md"))]
    return [page for page in pages if page.stem not in WITHOUT]


def run_page(page: Path) -> str:
    """Run a page's blocks in order, write its figures, and return its text with what they print."""
    source = page.read_text(encoding="utf-8")
    names: dict[str, object] = {"__name__": "page"}
    printed, code = "", ""

    def run_block(match: re.Match[str]) -> str:
        nonlocal printed, code
        mark, kind, text = match[1] or "", match[2], match[3]
        if "not run" in mark:
            return match[0]
        if file := re.match(r"<!-- file: (\S+)", mark):
            Path(file[1]).write_text(text, encoding="utf-8")
        elif kind == "python":
            code += text
            stream = io.StringIO()
            with contextlib.redirect_stdout(stream):
                value = run_code(text, page.name, names)
            printed = stream.getvalue()
            if picture := PICTURE.match(source, match.end()):
                write_figure(value, page.parent / picture[1], code)
        elif kind == "text" and ("..." not in text.split("\n") or text.strip() == "..."):
            return f"{mark}```text\n{printed}```"
        elif kind == "console":
            from typer.testing import CliRunner

            from calibrant.cli import app

            CliRunner().invoke(app, _split(text))  # later blocks may need its files
        return match[0]

    shown = BLOCK.sub(run_block, source)
    if page.parent == TUTORIALS and code:
        shown = STAMP.sub("", shown).rstrip("\n") + f"\n\n<!-- outputs of code {digest(code)} -->\n"
    return shown


def run_code(text: str, name: str, names: dict[str, object]) -> object:
    """Run code as a cell of a notebook does, and return the value of its last expression."""
    tree = ast.parse(text)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, name, "exec"), names)  # noqa: S102
    if not isinstance(last, ast.Expr):
        return None
    return eval(compile(ast.Expression(last.value), name, "eval"), names)  # noqa: S307


def digest(code: str) -> str:
    """Return a short hash of code."""
    return hashlib.sha256(code.encode()).hexdigest()[:16]


def list_code(page: Path) -> dict[str, str]:
    """Return the code of a page up to each picture, by the picture's path, and all by ''."""
    source = page.read_text(encoding="utf-8")
    code, by_picture = "", {}
    for match in BLOCK.finditer(source):
        if match[2] == "python" and "not run" not in (match[1] or ""):
            code += match[3]
            if picture := PICTURE.match(source, match.end()):
                by_picture[picture[1]] = code
    return {**by_picture, "": code}


def write_figure(value: object, path: Path, code: str) -> None:
    """Write a figure, or the figure of axes, as SVG; equal drawings give equal files."""
    from matplotlib import rc_context

    figure = getattr(value, "figure", value)
    if not hasattr(figure, "savefig"):
        raise SystemExit(f"{path.name}: the block before it does not end with a figure")
    sink = io.StringIO()
    with rc_context({"svg.hashsalt": "calibrant", "svg.fonttype": "path"}):
        figure.savefig(
            sink, format="svg", metadata={"Date": None, "Creator": None}, bbox_inches="tight"
        )
    path.parent.mkdir(exist_ok=True)
    text = re.sub(r"[ \t]+$", "", sink.getvalue(), flags=re.M)
    path.write_text(f"{text}<!-- code {digest(code)} -->\n", encoding="utf-8", newline="\n")


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
