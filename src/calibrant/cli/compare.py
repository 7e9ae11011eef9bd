"""The command `calibrant compare`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer
from rich.console import Console

from calibrant.cli import options
from calibrant.cli.console import (
    EXCEEDED,
    command,
    describe_events,
    echo_json,
    make_console,
    make_table,
    show_report_path,
)
from calibrant.cli.decide import read_grouped
from calibrant.cli.record import (
    InUse,
    ModelVersion,
    RecordOptions,
    ReportDate,
    Title,
)
from calibrant.core.errors import InputError

if TYPE_CHECKING:
    from calibrant.evaluation import ComparedGroups, Comparison
    from calibrant.evaluation.compare import Difference
    from calibrant.predictions import Predictions
    from calibrant.report import Check
    from calibrant.report.record import Record

_MOST_GROUPS = 30  # in the table


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
    groups: Annotated[
        Path | None,
        typer.Option(
            help="Compare in each group of rows too. This file holds the group of each row of A; "
            "rows are matched by id, or by their order if a file has no ids.",
            metavar="FILE",
        ),
    ] = None,
    group_column: Annotated[
        str | None,
        typer.Option(
            help="Column with the groups: in the file of --groups or, without --groups, in A.",
            metavar="NAME",
        ),
    ] = None,
    fail_groups: Annotated[
        bool,
        typer.Option(
            "--fail-groups",
            help="Exit with code 3 if B is shown to be worse in a group, in a metric of "
            "--fail-worse, or without it in any that is compared by group. With --fail-on bound, "
            "unless each group's interval rules out that B is worse by more than the margin.",
        ),
    ] = False,
    report: Annotated[
        Path | None,
        typer.Option(
            help="Write an HTML page of the comparison to this file: A as the old model, B as the "
            "new one.",
            metavar="OUT.html",
        ),
    ] = None,
    title: Title = None,
    model_version: ModelVersion = None,
    in_use: InUse = None,
    date: ReportDate = None,
    resamples: options.Resamples = 1000,
    seed: options.Seed = 0,
    plugins: options.Plugins = None,
) -> None:
    """Compare two sets of predictions for the same rows, such as a new model with the last release.

    Rows are paired by their ids where both files have them. Takes classes, events and many labels a
    row, which are pooled.
    """
    names = options.split_metrics(metric)
    if fail_on not in ("shown", "bound"):
        raise InputError(f"--fail-on takes shown or bound, found {fail_on!r}")
    gates = [Gate.parse(text, fail_on) for text in fail_worse or ()]
    if fail_on == "bound" and not gates:
        raise InputError("--fail-on bound requires --fail-worse NAME=MARGIN")

    from calibrant.evaluation import compare as compare_predictions
    from calibrant.evaluation.compare import list_default_metrics

    if fail_groups and groups is None and group_column is None:
        raise InputError("--fail-groups requires --groups or --group-column")
    about = RecordOptions(title, model_version, date, in_use)
    about.check(report)
    first, members = read_grouped(a, inputs, groups, group_column, quiet=False, beside=b)
    second = inputs.fit_files(b, groups, a)[0].read(b)
    pos_label = inputs.find_positive(first)
    if first.name == second.name:
        first, second = replace(first, name=str(a)), replace(second, name=str(b))
    names = names or list(list_default_metrics(first, view=view, pos_label=pos_label))
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
        groups=members,
        group_metrics=None if members is None else _choose_group_metrics(names, gates),
    )
    checks = [gate.check(comparison) for gate in gates]
    if fail_groups:
        assert comparison.groups is not None
        checks += check_groups(comparison, comparison.groups, gates, fail_on)
    failures = [check for check in checks if check.says is not None]
    if report is not None:
        data = [("old", a), ("new", b), ("labels", inputs.labels), ("groups", groups)]
        evaluations = _judge_both(first, second, join, view, pos_label, num_bins, resamples, seed)
        _write_report(comparison, evaluations, checks, report, title, about.make_record(data))
    if as_json:
        failed = [
            {"option": check.option, "name": check.name, "says": check.says} for check in failures
        ]
        echo_json({**comparison.to_dict(), "failed": failed})
    else:
        show_comparison(comparison, make_console())
    if report is not None:
        show_report_path(report, stderr=as_json)
    errors = make_console(stderr=True)
    if comparison.untested is not None and gates and fail_on == "shown":
        errors.print(
            "warning: nothing was tested, so --fail-worse cannot fail; with --fail-on bound it "
            "does",
            style="yellow",
            soft_wrap=True,
        )
    for check in failures:
        errors.print(f"failed: {check.says}", style="red", soft_wrap=True)
    if failures:
        raise typer.Exit(EXCEEDED)
    if checks and not as_json:
        # "Not worse" would be more than a gate can show.
        typer.echo("\n".join(f"passed: {check.wanted}" for check in checks))


class Checked(NamedTuple):
    """A condition of the release, and what is wrong if it failed."""

    option: str
    name: str  # of the metric or the group
    wanted: str  # what is required, in words
    says: str | None  # what is wrong


def _choose_group_metrics(names: list[str], gates: list[Gate]) -> list[str] | None:
    """Return the usual metrics by group and those of the gates; None if that is the default."""
    usual = [name for name in ("accuracy", "nll", "brier") if name in names]
    return list(dict.fromkeys([*usual, *(gate.name for gate in gates)])) or None


def check_groups(
    comparison: Comparison, groups: ComparedGroups, gates: list[Gate], fail_on: str
) -> list[Checked]:
    """Return a check of each metric that is compared by group, and one for each failing group."""
    from calibrant.report import formatting

    margins = {gate.name: gate.margin for gate in gates}
    checks = []
    for metric in margins or groups.metrics:
        margin = margins.get(metric)
        failed = []
        for group in groups.groups:
            change = group.differences[metric]
            if fail_on == "bound" and margin is not None:
                if not group.may_be_worse(metric, margin):
                    continue
                word = f"B may be worse by more than {margin:g}"
            elif group.find_winner(metric) == "a":
                word = "B is worse"
            else:
                continue
            where = f"{groups.name} {group.value}"
            if group.untested is not None:
                says = f"{where}: {metric} was not tested: {group.untested} (--fail-groups)"
            else:
                text = formatting.difference_text(metric, change.difference)
                interval = _format_interval(comparison, change)
                says = f"{where}: {word}: {metric} of B − A is {text} ({interval}) (--fail-groups)"
            failed.append(Checked("--fail-groups", group.value, where, says))
        if margin is None:
            wanted = f"{metric} is not shown to be worse in any of {len(groups):,} groups"
        else:
            wanted = f"{metric} is worse by at most {margin:g} in each of {len(groups):,} groups"
        checks += failed or [Checked("--fail-groups", metric, wanted, None)]
    return checks


def _format_interval(comparison: Comparison, difference: Difference) -> str:
    from calibrant.report import formatting

    interval = formatting.range_text(difference.name, difference.low, difference.high)
    return f"{formatting.level(comparison.settings)} interval {interval}"


def _judge_both(
    first: Predictions,
    second: Predictions,
    join: str,
    view: str | None,
    pos_label: int | None,
    num_bins: int,
    resamples: int,
    seed: int,
) -> list[Any]:
    """Evaluate both models on the rows that they share, for their verdicts and bins."""
    from calibrant.evaluation import evaluate
    from calibrant.evaluation.compare import pair_rows

    return [
        evaluate(
            predictions,
            metrics=["nll"],
            num_bins=num_bins,
            resamples=resamples,
            seed=seed,
            view=view,
            pos_label=pos_label,
        )
        for predictions in pair_rows(first, second, join=join)
    ]


def _write_report(
    comparison: Comparison,
    evaluations: list[Any],
    checks: list[Checked],
    path: Path,
    title: str | None,
    record: Record,
) -> None:
    from calibrant.report import Check, write_comparison

    shown: list[Check] = [Check(check.wanted, check.says) for check in checks]
    try:
        write_comparison(
            comparison,
            path,
            before=evaluations[0],
            after=evaluations[1],
            checks=shown,
            title=title,
            record=record,
        )
    except OSError as error:
        reason = error.strerror or error
        raise InputError(f"{path}: the report cannot be written: {reason}") from error


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

    def check(self, comparison: Comparison) -> Checked:
        """Check that B is not worse, or not by more than the margin."""
        wanted = f"{self.name} is not shown to be worse"
        if self.margin is not None:
            wanted = f"{self.name} is worse by at most {self.margin:g}"
        return Checked("--fail-worse", self.name, wanted, self._explain(comparison))

    def _explain(self, comparison: Comparison) -> str | None:
        """Return what is wrong if B is worse, or may be worse than the margin."""
        from calibrant.report import formatting

        difference = comparison[self.name]
        text = formatting.difference_text(self.name, difference.difference)
        where = f"{self.name} of B − A is {text} ({_format_interval(comparison, difference)})"
        if self.margin is None:
            if not comparison.is_worse(self.name):
                return None
            return f"B is worse: {where} (--fail-worse)"
        if not comparison.may_be_worse(self.name, self.margin):
            return None
        if not difference.is_tested:
            why = comparison.untested or "the difference is not defined"
            return f"{self.name} was not tested: {why} (--fail-worse)"
        return f"B may be worse by more than {self.margin:g}: {where} (--fail-worse)"


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
        ends = (row.low, row.high)
        table.add_row(
            name,
            *(f"{formatting.figure_text(name, value)}{star}" for value in row.compared),
            formatting.difference_text(name, row.difference),
            formatting.range_text(name, *ends) if row.is_tested else formatting.NOTHING,
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
    if comparison.groups is not None:
        show_groups(comparison, comparison.groups, console)


def show_groups(comparison: Comparison, groups: ComparedGroups, console: Console) -> None:
    """Print the differences in each group: those that are worse first in choice."""
    from calibrant.report import formatting

    console.print()
    console.print(groups.describe(comparison.b), style="bold", soft_wrap=True)
    for warning in groups.warnings:
        console.print(f"note: {warning}", style="dim", soft_wrap=True)
    console.print()
    worse = {group.value for group, _ in groups.find_worse()}
    chosen = sorted(groups.groups, key=lambda group: group.value not in worse)[:_MOST_GROUPS]
    table = make_table()
    table.add_column(groups.name, style="cyan", overflow="fold", min_width=6)
    table.add_column("rows", justify="right")
    for name in groups.metrics:
        table.add_column(f"{name}, B − A", justify="right")
    table.add_column("B is")
    for group in groups.groups:
        if group not in chosen:
            continue
        winners = {group.find_winner(name) for name in groups.metrics}
        words = ["worse"] * ("a" in winners) + ["better"] * ("b" in winners)
        table.add_row(
            group.value,
            f"{group.num_rows:,}",
            *(
                formatting.difference_text(name, group.differences[name].difference)
                + {"a": " (worse)", "b": " (better)"}.get(group.find_winner(name), "")
                * (len(groups.metrics) > 1)
                for name in groups.metrics
            ),
            "not tested" if group.untested else " and ".join(words) or "–",
        )
    console.print(table)
    if len(chosen) < len(groups):
        console.print(
            f"{len(chosen)} of {len(groups):,} groups; --json and the report list all", style="dim"
        )
    console.print(
        f"worse and better: with Holm's correction for {groups.num_tested} differences", style="dim"
    )


def _describe_rows(comparison: Comparison) -> str:
    parts = [f"{comparison.num_rows:,} rows"]
    if comparison.num_clusters is not None:
        parts.append(f"{comparison.num_clusters:,} clusters")
    if comparison.weighted:
        parts.append("weighted")
    if comparison.event is not None:
        parts.append(describe_events(comparison.event))
    return f"{', '.join(parts)}, paired"


def _format_winner(comparison: Comparison, name: str) -> str:
    """Format the winner: ``B``, or ``(B)`` if not significant after Holm's correction."""
    winner = comparison[name].winner
    if winner == "neither":
        return "–"
    return winner.upper() if name in comparison.shown else f"({winner.upper()})"
