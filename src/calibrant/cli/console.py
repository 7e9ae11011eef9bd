"""What every command prints with: consoles, tables, JSON, errors and exit codes."""

from __future__ import annotations

import codecs
import functools
import os
import re
import sys
import warnings
from collections.abc import Callable
from typing import ParamSpec

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from calibrant.core.errors import InputError

UNEXPECTED, BAD_INPUT, EXCEEDED, INTERRUPTED = 1, 2, 3, 130  # exit codes
P = ParamSpec("P")
_DEFAULT_WIDTH = 80
_LEAST_WIDTH = 20  # COLUMNS=0, as some services set it, would print nothing
_LARGEST_WIDTH = 100  # longer lines are hard to read
_ASCII = {"−": "-", "–": "-", "∞": "inf", "×": "x", "≤": "<=", "─": "-", "…": "...", "\u00a0": " "}


def set_up_streams() -> None:
    """Print ASCII for characters that a stream cannot encode, and warnings as one line.

    Streams that were closed before the start take everything and keep nothing.
    """
    if sys.stdout is None:
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115

    def replace_characters(error: UnicodeError) -> tuple[str, int]:
        if not isinstance(error, UnicodeEncodeError):
            raise error
        unknown = error.object[error.start : error.end]
        return "".join(_ASCII.get(character, "?") for character in unknown), error.end

    def format_warning(
        message: Warning | str,
        category: type[Warning],
        filename: str,
        lineno: int,
        line: str | None = None,
    ) -> str:
        prefix = "" if issubclass(category, UserWarning) else f"{category.__name__}: "
        return f"warning: {prefix}{message}\n"

    warnings.formatwarning = format_warning  # a place in the package does not help the user
    codecs.register_error("calibrant.ascii", replace_characters)
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors="calibrant.ascii")


def make_console(*, stderr: bool = False) -> Console:
    """Return a console that prints text as it is, without interpreting markup."""
    console = Console(stderr=stderr, markup=False, highlight=False, emoji=False)
    # Without a terminal, rich would take the width of whatever terminal is nearby.
    has_width = console.is_terminal or "COLUMNS" in os.environ
    has_width = has_width and console.width >= _LEAST_WIDTH
    console.width = min(console.width, _LARGEST_WIDTH) if has_width else _DEFAULT_WIDTH
    return console


def describe_events(event: str) -> str:
    """Say that rows are events, and of what if they were given a name."""
    return "events" if event == "event" else f"events of {event}"


def make_table() -> Table:
    """Return an empty table in the style of every command."""
    return Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, show_edge=False)


def echo_json(value: object) -> None:
    """Print a value as JSON in UTF-8, whatever the terminal's encoding; NaN becomes null."""
    import json

    from calibrant.evaluation.value import make_plain

    typer.echo(
        json.dumps(make_plain(value), indent=2, allow_nan=False, ensure_ascii=False).encode(
            errors="backslashreplace"  # half a character from a file's name, as JSON writes it
        )
    )


def format_interval(name: str, low: float | None, high: float | None) -> str:
    """Format the interval of a metric: ``0.0123 – 0.0345``, or a dash if there is none."""
    from calibrant.report import formatting

    if low is None or high is None:
        return formatting.NOTHING
    return f"{formatting.figure_text(name, low)} – {formatting.figure_text(name, high)}"


def show_report_path(path: object, *, stderr: bool = False) -> None:
    """Print where a report was written."""
    make_console(stderr=stderr).print(f"\nreport: {path}", soft_wrap=True)


def command(function: Callable[P, None]) -> Callable[P, None]:
    """Decorate a command so that an error prints one line and sets the exit code."""

    @functools.wraps(function)
    def run_command(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            function(*args, **kwargs)
            sys.stdout.flush()
        except (typer.Exit, typer.BadParameter, BrokenPipeError):
            raise
        except KeyboardInterrupt:
            raise typer.Exit(INTERRUPTED) from None
        except Exception as error:
            if os.environ.get("CALIBRANT_DEBUG", "0") not in ("", "0"):
                import traceback

                traceback.print_exc()
            message, code = _describe_error(error)
            console = make_console(stderr=True)
            console.print(f"error: {message}", style="red", soft_wrap=True)
            raise typer.Exit(code) from None

    return run_command


def _describe_error(error: Exception) -> tuple[str, int]:
    """Return the message to print and the exit code."""
    if isinstance(error, InputError):
        return name_options(str(error)), BAD_INPUT
    if isinstance(error, OSError):
        where = f"{error.filename}: " if error.filename else ""
        return f"{where}{error.strerror or error}", BAD_INPUT
    if isinstance(error, MemoryError):
        return "out of memory; .npy and .parquet files are read in chunks, others whole", UNEXPECTED
    message = " ".join(str(error).split())[:300]
    return (
        f"{type(error).__name__}: {message}\n"
        "This error is unexpected; set CALIBRANT_DEBUG=1 to see the traceback."
    ), UNEXPECTED


def name_options(message: str) -> str:
    """Replace the API's keyword arguments in a message by options of the command line."""
    message = re.sub(r"\bkind='(logits|probs)'", r"--\1", message)
    message = re.sub(r"\b(say|pass|give|set|use) --(?=logits|probs)", "add --", message)
    message = re.sub(r"\b(by|guarantee)='(\w+)'", r"--\1 \2", message)
    message = message.replace("drop_unlabelled=True", "--drop-unlabelled")
    message = message.replace("force=True", "--force")
    message = re.sub(
        r"(?<!-)\b(max_error|min_precision|min_recall|max_weight|max_cluster_size|"
        r"confidence_level|prevalence)(=?)",
        lambda match: f"--{match[1].replace('_', '-')}{' ' if match[2] else ''}",
        message,
    )
    message = re.sub(r"\bpositive= ?", "--pos-label ", message)
    message = message.replace("--min-recall and costs", "--min-recall and --cost")
    message = re.sub(
        r"\b(labels|num_bins|ignore_index|normalise|event|pos_label|by|groups|"
        r"(?:label|weight|cluster|id)_column|score_columns)= ?",
        lambda match: f"--{match[1].replace('_', '-')} ",
        message,
    )
    return re.sub(r"(--[a-z-]+) (?=[,.;:])", r"\1", message).rstrip()
