"""Every block of docs/events.md runs in the order it is read, and prints what the page shows."""

from __future__ import annotations

import re
import shlex
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from calibrant.cli import app
from calibrant.cli.console import EXCEEDED

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "events.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```$", TEXT, flags=re.M | re.S)
NUMBER = r"\d[\d,]*(?:\.\d+)?"


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


def run_command(text, folder):
    """Run a console block in the folder and compare its output, except what ... stands for."""
    command, _, shown = text.partition("\n")
    words = shlex.split(command.removeprefix("$ calibrant "))
    result = CliRunner().invoke(app, words)
    assert result.exit_code == (EXCEEDED if "--fail-verdict" in words else 0), result.output
    for part in filter(str.strip, re.split(r"^\.\.\.$", shown, flags=re.M)):
        assert_shown(part, result.stdout)


def test_blocks_run_and_print_what_is_shown(tmp_path, monkeypatch, capsys):
    for log in (ROOT / "tests" / "fixtures" / "lm_eval").glob("*.jsonl"):
        shutil.copy(log, tmp_path)
    monkeypatch.chdir(tmp_path)
    names = {}
    printed = ""
    for number, (kind, text) in enumerate(BLOCKS):
        if kind == "python":
            exec(compile(text, f"events.md, block {number + 1}", "exec"), names)  # noqa: S102
            printed = capsys.readouterr().out
            following = BLOCKS[number + 1][0] if number + 1 < len(BLOCKS) else ""
            assert bool(printed) == (following == "text")
        elif kind == "text":
            assert_shown(text, printed)
        else:
            run_command(text, tmp_path)


def test_page_shows_the_four_failures_with_the_right_answers():
    shown = [text for kind, text in BLOCKS if kind in ("text", "console")]
    for words in (
        "says 24.6% on average, and fraud happens in\n0.8%",
        "ECE 0.192",
        "without clusters: off\nwith clusters: holds",
        "2 to 5 options",
    ):
        assert any(words in text for text in shown), words
