"""Every block of a guide runs in the order it is read, and prints what the page shows.

A block under the line `<!-- not run: REASON -->` is left out; one under `<!-- file: NAME -->` is
written to that file. A command under the line
`<!-- exit code 3 -->` must exit with 3.
"""

from __future__ import annotations

import re
import shlex
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from calibrant.cli import app
from calibrant.cli.console import EXCEEDED
from calibrant.core.plugins import forget_plugins

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
WITHOUT = ("suites", "extend", "decisions")  # pages with a test of their own, or no block
FOLDERS = (".", "start", "guides", "explanation")
PAGES = [
    page
    for folder in FOLDERS
    for page in sorted((DOCS / folder).glob("*.md"))
    if page.stem not in WITHOUT
]
BLOCK = r"^(<!-- (?:not run: [^\n]+|exit code \d|file: \S+) -->\n)?```(\w+)\n(.*?)^```$"
NUMBER = r"\d[\d,]*(?:\.\d+)?"


def read_blocks(page):
    """Return the mark, kind and text of the page's blocks that are to run."""
    blocks = re.findall(BLOCK, page.read_text(encoding="utf-8"), flags=re.M | re.S)
    return [block for block in blocks if "not run" not in block[0]]


def split_numbers(text):
    """Return text with # for each number, and the numbers."""
    text = " ".join(text.split())
    numbers = [float(number.replace(",", "")) for number in re.findall(NUMBER, text)]
    return re.sub(NUMBER, "#", text), numbers


def assert_shown(shown, printed):
    """Find what the page shows in what was printed; last digits may differ between machines."""
    words, numbers = split_numbers(shown)
    printed_words, printed_numbers = split_numbers(printed)
    assert words in printed_words, printed
    start = printed_words[: printed_words.index(words)].count("#")
    assert printed_numbers[start : start + len(numbers)] == pytest.approx(
        numbers, rel=0.01, abs=1e-4
    )


def run_command(mark, text):
    """Run a console block and compare its output, except what ... stands for."""
    command, _, shown = text.partition("\n")
    words = shlex.split(command.removeprefix("$ calibrant "))
    result = CliRunner().invoke(app, words)
    assert result.exit_code == (EXCEEDED if "exit code 3" in mark else 0), result.output
    for part in filter(str.strip, re.split(r"^\.\.\.$", shown, flags=re.M)):
        assert_shown(part, result.output)


def name_page(page):
    return page.relative_to(DOCS).with_suffix("").as_posix()


@pytest.fixture(autouse=True)
def no_plugins_stay():
    """A page may load a plugin, whose methods other tests must not see."""
    yield
    forget_plugins()


@pytest.mark.parametrize("page", PAGES, ids=name_page)
def test_blocks_run_and_print_what_is_shown(page, tmp_path, monkeypatch, capsys):
    for log in (ROOT / "tests" / "fixtures" / "lm_eval").glob("*.jsonl"):
        shutil.copy(log, tmp_path)
    monkeypatch.chdir(tmp_path)
    names = {}
    printed = ""
    blocks = read_blocks(page)
    for number, (mark, kind, text) in enumerate(blocks):
        if file := re.match(r"<!-- file: (\S+)", mark):
            Path(file[1]).write_text(text)
        elif kind == "python":
            exec(compile(text, f"{page.name}, block {number + 1}", "exec"), names)  # noqa: S102
            printed = capsys.readouterr().out
            following = blocks[number + 1][1] if number + 1 < len(blocks) else ""
            assert bool(printed) == (following == "text")
        elif kind == "text":
            for part in filter(str.strip, re.split(r"^\.\.\.$", text, flags=re.M)):
                assert_shown(part, printed)
        elif kind == "console":
            run_command(mark, text)


@pytest.mark.integration
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("page", ["lightning", "hugging_face", "loggers"])
def test_blocks_that_need_an_extra_run_with_the_real_library(page, tmp_path, monkeypatch):
    pytest.importorskip("lightning" if page == "lightning" else "mlflow")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/runs.db")
    blocks = re.findall(BLOCK, (DOCS / "guides" / f"{page}.md").read_text("utf-8"), re.M | re.S)
    run = [text for mark, _, text in blocks if "not run: needs the extra" in mark]
    assert run
    names = {}
    for number, text in enumerate(run):
        exec(compile(text, f"{page}.md, block {number + 1}", "exec"), names)  # noqa: S102


def test_events_page_shows_the_four_failures_with_the_right_answers():
    blocks = read_blocks(DOCS / "events.md")
    shown = [text for _, kind, text in blocks if kind in ("text", "console")]
    for words in (
        "says 24.6% on average, and fraud happens in\n0.8%",
        "ECE 0.192",
        "without clusters: off\nwith clusters: holds",
        "2 to 5 options",
    ):
        assert any(words in text for text in shown), words
