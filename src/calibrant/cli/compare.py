"""The command `calibrant compare`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer
from rich.console import Console

from calibrant.cli import options
from calibrant.cli.console import (
    EXCEEDED,
    command,
    echo_json,
    format_interval,
    make_console,
    make_table,
)
from calibrant.core.errors import InputError

if TYPE_CHECKING:
    from calibrant.evaluation import Comparison


@command
@options.takes_input
def compare(
    a: Annotated[Path, typer.Argument(help="First predictions.", metavar="A", show_default=False)],
    b: Annotated[
        Path,
        typer.Argument(
            help="Second predictions, for the same rows.", metavar="B", show_default=False
        ),
    ],
    *,
    inputs: options.InputOptions,
    metric: options.Metrics = None,
    num_bins: options.Bins = 15,
    as_json: options.AsJson = False,
    join: Annotated[
        str,
        typer.Option(
            help="If both files have ids: exact requires the same ids, in any order; inner keeps "
            "the rows that both have.",
            metavar="exact|inner",
        ),
    ] = "exact",
    view: options.View = None,
    fail_worse: Annotated[
        list[str] | None,
        typer.Option(
            help="Exit with code 3 if B is shown to be worse in this metric, with Holm's "
            "correction over all metrics compared. Adds the metric; repeatable. With --fail-on "
            "bound, give a margin, as in nll=0.01.",
            metavar="NAME[=MARGIN]",
        ),
    ] = None,
    fail_on: Annotated[
        str,
        typer.Option(
            help="shown: fail if B is shown to be worse. bound: fail unless the interval rules out "
            "that B is worse by more than the margin, so that too few rows fail too.",
            metavar="shown|bound",
        ),
    ] = "shown",
    resamples: options.Resamples = 1000,
    seed: options.Seed = 0,
    plugins: options.Plugins = None,
) -> None:
    """Compare two sets of predictions for the same rows."""
    names = options.split_metrics(metric)
    if fail_on not in ("shown", "bound"):
        raise InputError(f"--fail-on takes shown or bound, found {fail_on!r}")
    gates = [Gate.parse(text, fail_on) for text in fail_worse or ()]
    if fail_on == "bound" and not gates:
        raise InputError("--fail-on bound requires --fail-worse NAME=MARGIN")

    from calibrant.evaluation import compare as compare_predictions
    from calibrant.evaluation.compare import default_compared

    first, second = inputs.read(a), inputs.read(b)
    pos_label = inputs.find_positive(first)
    if first.name == second.name:
        first, second = replace(first, name=str(a)), replace(second, name=str(b))
    names = names or list(default_compared(first, view=view, pos_label=pos_label))
    comparison = compare_predictions(
        first,
        second,
        metrics=list(dict.fromkeys([*names, *(gate.name for gate in gates)])),
        num_bins=num_bins,
        resamples=resamples,
        seed=seed,
        progress=True,
        view=view,
        pos_label=pos_label,
        join=join,
    )
    failures = [failure for gate in gates if (failure := gate.check(comparison)) is not None]
    if as_json:
        failed = [
            {"option": "--fail-worse", "name": gate_name, "says": says}
            for gate_name, says in failures
        ]
        echo_json({**comparison.to_dict(), "failed": failed})
    else:
        show_comparison(comparison, make_console())
    errors = make_console(stderr=True)
    if comparison.untested is not None and gates and fail_on == "shown":
        errors.print(
            "warning: nothing was tested, so --fail-worse cannot fail; with --fail-on bound it "
            "does",
            style="yellow",
            soft_wrap=True,
        )
    for _, says in failures:
        errors.print(f"failed: {says}", style="red", soft_wrap=True)
    if failures:
        raise typer.Exit(EXCEEDED)
    if gates and not as_json:
        typer.echo(f"not worse: {', '.join(gate.name for gate in gates)}")


class Gate(NamedTuple):
    """A metric in which B must not be worse; with a margin, not by more than that."""

    name: str
    margin: float | None

    @classmethod
    def parse(cls, text: str, fail_on: str) -> Gate:
        """Parse ``NAME``, or ``NAME=MARGIN`` if the interval must rule out a margin."""
        from calibrant.core.method_text import split_outside
        from calibrant.metrics import measure

        name, *margins = (part.strip() for part in split_outside(text, "="))
        if bool(margins) != (fail_on == "bound") or len(margins) > 1:
            need = "takes a name alone, or add --fail-on bound"
            if fail_on == "bound":
                need = "takes NAME=MARGIN with --fail-on bound, such as nll=0.01"
            raise InputError(f"--fail-worse {need}; found {text!r}")
        if measure(name).better == "neither":
            raise InputError(f"--fail-worse {name}: this metric has no better direction")
        if not margins:
            return cls(name, None)
        try:
            margin = float(margins[0])
        except ValueError:
            margin = float("nan")
        if not margin >= 0:
            raise InputError(
                f"--fail-worse takes a margin of at least 0, as in nll=0.01; found {text!r}"
            )
        return cls(name, margin)

    def check(self, comparison: Comparison) -> tuple[str, str] | None:
        """Return the metric and a message if B is worse, or may be worse than the margin."""
        from calibrant.report import formatting

        difference = comparison[self.name]
        interval = formatting.range_text(self.name, difference.low, difference.high)
        level = formatting.level(comparison.settings)
        text = formatting.difference_text(self.name, difference.difference)
        where = f"{self.name} of B − A is {text} ({level} interval {interval})"
        if self.margin is None:
            if not comparison.is_worse(self.name):
                return None
            return self.name, f"B is worse: {where} (--fail-worse)"
        if not comparison.may_be_worse(self.name, self.margin):
            return None
        if not difference.is_tested:
            why = comparison.untested or "the difference is not defined"
            return self.name, f"{self.name} was not tested: {why} (--fail-worse)"
        return (
            self.name,
            f"B may be worse by more than {self.margin:g}: {where} (--fail-worse)",
        )


def show_comparison(comparison: Comparison, console: Console) -> None:
    """Print which predictions are better, and the differences with paired intervals."""
    from calibrant.report import formatting

    console.print(f"A: {comparison.a}\nB: {comparison.b}", style="dim", soft_wrap=True)
    console.print(_describe_rows(comparison), style="dim")
    for note in comparison.notes:
        console.print(f"note: {note}", style="dim", soft_wrap=True)
    console.print()
    console.print(comparison.headline, style="bold")
    if comparison.caveat is not None:
        console.print(comparison.caveat)
    console.print()
    table = make_table()
    table.add_column("name", style="cyan", no_wrap=True)
    for heading in ("A", "B", "B − A", f"{formatting.level(comparison.settings)} interval"):
        table.add_column(heading, justify="right", style="bold" if heading == "B − A" else "")
    table.add_column("better")
    winners = {name: _format_winner(comparison, name) for name in comparison.differences}
    for name, row in comparison.differences.items():
        star = "*" if row.is_corrected else ""
        ends = (row.low, row.high) if row.is_tested else (None, None)
        table.add_row(
            name,
            *(f"{formatting.figure_text(name, value)}{star}" for value in row.compared),
            formatting.figure_text(name, row.difference),
            format_interval(name, *ends),
            winners[name],
        )
    console.print(table)
    if any(winner.startswith("(") for winner in winners.values()):
        console.print(
            "(A), (B): not significant after Holm's correction for "
            f"{comparison.num_tested} metrics",
            style="dim",
        )
    if any(row.is_corrected for row in comparison.differences.values()):
        console.print(
            "*: compared are bias-corrected values, less what chance alone adds; --json has the "
            "plug-in ones too",
            style="dim",
        )


def _describe_rows(comparison: Comparison) -> str:
    parts = [f"{comparison.num_rows:,} rows"]
    if comparison.num_clusters is not None:
        parts.append(f"{comparison.num_clusters:,} clusters")
    if comparison.weighted:
        parts.append("weighted")
    if comparison.event is not None:
        parts.append(f"events of {comparison.event}")
    return f"{', '.join(parts)}, paired"


def _format_winner(comparison: Comparison, name: str) -> str:
    """Format the winner: ``B``, or ``(B)`` if not significant after Holm's correction."""
    winner = comparison[name].winner
    if winner == "neither":
        return "–"
    return winner.upper() if name in comparison.shown else f"({winner.upper()})"
