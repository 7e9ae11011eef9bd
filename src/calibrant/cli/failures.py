"""What a failing command says, and what it exits with."""

from __future__ import annotations

import functools
import os
import re
import sys
from collections.abc import Callable
from typing import ParamSpec

import typer

from calibrant.cli.console import make_console
from calibrant.functional.errors import InputError

UNEXPECTED, BAD_INPUT, EXCEEDED, INTERRUPTED = 1, 2, 3, 130
P = ParamSpec("P")


def tell(message: str) -> None:
    """Say on stderr what went wrong."""
    make_console(stderr=True).print(f"error: {message}", style="red", soft_wrap=True)


def _in_options(message: str) -> str:
    """A message of the library, its keyword arguments written as options of the command."""
    message = re.sub(r"\bkind='(logits|probs)'", r"--\1", message).replace("say --", "add --")
    return re.sub(
        r"\b(labels|num_bins|ignore_index)= ?",
        lambda found: f"--{found[1].replace('_', '-')} ",
        message,
    ).rstrip()


def command(function: Callable[P, None]) -> Callable[P, None]:
    """A command whose failures are a line and an exit code, never a traceback."""

    @functools.wraps(function)
    def guarded(*args: P.args, **kwargs: P.kwargs) -> None:
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
            raise typer.Exit(_explain(error)) from None

    return guarded


def _explain(error: Exception) -> int:
    """Say what went wrong; the exit code."""
    if isinstance(error, InputError):
        tell(_in_options(str(error)))
        return BAD_INPUT
    if isinstance(error, OSError):
        where = f"{error.filename}: " if error.filename else ""
        tell(f"{where}{error.strerror or error}")
        return BAD_INPUT
    if isinstance(error, MemoryError):
        tell("out of memory; .npy and .parquet files are read in chunks, others whole")
        return UNEXPECTED
    told = " ".join(str(error).split())[:300]
    tell(f"{type(error).__name__}: {told}\nThis is not expected; CALIBRANT_DEBUG=1 shows more.")
    return UNEXPECTED
