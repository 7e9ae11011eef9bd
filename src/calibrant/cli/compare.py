"""The command `calibrant compare`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from calibrant.cli import options
from calibrant.cli.console import command, echo_json, format_interval, make_console, make_table

if TYPE_CHECKING:
    from calibrant.evaluation import Comparison


@command
def compare(
    a: Annotated[Path, typer.Argument(help="First predictions.", metavar="A", show_default=False)],
    b: Annotated[
        Path,
        typer.Argument(
            help="Second predictions, for the same rows.", metavar="B", show_default=False
        ),
    ],
    logits: options.Scores = None,
    labels: options.Labels = None,
    metric: options.Metrics = None,
    num_bins: options.Bins = 15,
    ignore_index: options.Ignored = None,
    as_json: options.AsJson = False,
    resamples: options.Resamples = 1000,
    seed: options.Seed = 0,
    plugins: options.Plugins = None,
) -> None:
    """Compare two sets of predictions for the same rows."""
    metrics = options.split_metrics(metric) or None

    from calibrant.evaluation import compare as compare_predictions

    first, second = (
        options.read_predictions(file, logits, labels, ignore_index) for file in (a, b)
    )
    if first.name == second.name:
        first, second = replace(first, name=str(a)), replace(second, name=str(b))
    comparison = compare_predictions(
        first,
        second,
        metrics=metrics,
        num_bins=num_bins,
        resamples=resamples,
        seed=seed,
        progress=True,
    )
    if as_json:
        echo_json(comparison.to_dict())
    else:
        show_comparison(comparison, make_console())


def show_comparison(comparison: Comparison, console: Console) -> None:
    """Print which predictions are better, and the differences with paired intervals."""
    from calibrant.report import formatting

    console.print(f"A: {comparison.a}\nB: {comparison.b}", style="dim", soft_wrap=True)
    console.print(f"{comparison.num_rows:,} rows, paired bootstrap", style="dim")
    console.print()
    console.print(comparison.headline, style="bold")
    console.print()
    table = make_table()
    table.add_column("name", style="cyan", no_wrap=True)
    for heading in ("A", "B", "B − A", f"{formatting.level(comparison.settings)} interval"):
        table.add_column(heading, justify="right", style="bold" if heading == "B − A" else "")
    table.add_column("better")
    winners = {name: _format_winner(comparison, name) for name in comparison.differences}
    for name, row in comparison.differences.items():
        table.add_row(
            name,
            *(formatting.figure_text(name, value) for value in (row.a, row.b, row.difference)),
            format_interval(name, row.low, row.high),
            winners[name],
        )
    console.print(table)
    if any(winner.startswith("(") for winner in winners.values()):
        console.print(
            "(A), (B): not significant after Holm's correction for "
            f"{comparison.num_tested} metrics",
            style="dim",
        )
    console.print(
        "Calibration errors are compared after subtracting what chance alone adds.", style="dim"
    )


def _format_winner(comparison: Comparison, name: str) -> str:
    """Format the winner: ``B``, or ``(B)`` if not significant after Holm's correction."""
    winner = comparison[name].winner
    if winner == "neither":
        return "–"
    return winner.upper() if name in comparison.shown else f"({winner.upper()})"
