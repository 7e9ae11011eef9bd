"""The command `calibrant`: thin commands over the public API.

Each command imports PyTorch when it runs, so `--help` and `--version` are instant.
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from typing import Annotated

import typer

from calibrant._version import __version__
from calibrant.cli import (
    adapt,
    bench,
    bench_choices,
    bench_transport,
    compare,
    decide,
    evaluate,
    fit,
    monitor,
    train,
)
from calibrant.cli.console import BAD_INPUT, set_up_streams

__all__ = ["app", "bench", "bench_choices", "bench_transport", "main"]

app = typer.Typer(
    name="calibrant",
    help="Can you believe this classifier's probabilities?",
    epilog=(
        "Exit codes: 0 success, 1 unexpected error, 2 bad usage or input, 3 limit exceeded. "
        "Set CALIBRANT_DEBUG=1 to see tracebacks."
    ),
    no_args_is_help=True,
    rich_markup_mode=None,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def main() -> None:
    """Run the command line."""
    set_up_streams()
    try:
        app()
    except OSError as error:  # a full disk behind --help; commands catch their own errors
        with suppress(OSError):
            print(f"error: {error.strerror or error}", file=sys.stderr)
        # Python would try to write what is left again, and fail again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        sys.exit(BAD_INPUT)


def _show_version(requested: bool) -> None:
    if requested:
        typer.echo(f"calibrant {__version__}")
        raise typer.Exit


@app.callback()
def _take_options(
    version: Annotated[
        bool,
        typer.Option(
            "--version", "-V", help="Print the version.", is_eager=True, callback=_show_version
        ),
    ] = False,
) -> None:
    """Take the options of `calibrant` itself."""


for function in (
    evaluate.evaluate,
    compare.compare,
    evaluate.metrics,
    fit.fit,
    fit.apply,
    fit.rank,
    decide.decide,
    decide.sets,
    adapt.adapt,
    monitor.monitor,
    train.train,
    train.demo,
):
    app.command()(function)
app.add_typer(bench.bench)
