"""The commands `calibrant evaluate` and `calibrant metrics`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from calibrant.cli import options
from calibrant.cli.console import (
    EXCEEDED,
    command,
    echo_json,
    format_interval,
    make_console,
    make_table,
    show_report_path,
)
from calibrant.core.errors import InputError

if TYPE_CHECKING:
    from calibrant.evaluation import Evaluation, Figure, Group, Groups
    from calibrant.predictions import Predictions

_NARROW = 72  # in a narrower terminal the table has short names only


@command
def evaluate(
    file: Annotated[
        Path | None,
        typer.Argument(
            help="Predictions with labels: .npz, .npy, .safetensors, .pt, .parquet, .arrow, "
            ".feather or .csv.",
            metavar="FILE",
            show_default=False,
        ),
    ] = None,
    logits: options.Scores = None,
    labels: options.Labels = None,
    metric: options.Metrics = None,
    num_bins: options.Bins = 15,
    ignore_index: options.Ignored = None,
    as_json: options.AsJson = False,
    example: Annotated[
        str | None,
        typer.Option(
            "--example",
            help="Evaluate predictions that come with the package: cifar10-resnet18.",
            metavar="NAME",
        ),
    ] = None,
    report: Annotated[
        Path | None, typer.Option(help="Write an HTML report to this file.", metavar="OUT.html")
    ] = None,
    groups: Annotated[
        Path | None,
        typer.Option(
            help="Evaluate each group of rows too. This file (.csv, .parquet, .arrow, .feather, "
            ".npy or .npz) holds the group (sensor, site, ...) of each row, matched by id, or in "
            "the order of FILE without ids.",
            metavar="FILE",
        ),
    ] = None,
    group_column: Annotated[
        list[str] | None,
        typer.Option(help="Column of the groups, if the file has several.", metavar="NAME"),
    ] = None,
    id_column: Annotated[
        str | None,
        typer.Option(help="Column of the ids, if it is not called id.", metavar="NAME"),
    ] = None,
    fail_above: Annotated[
        list[str] | None,
        typer.Option(
            help="Exit with code 3 if the metric is above the limit, as in ece=0.05. Adds the "
            "metric; repeatable.",
            metavar="NAME=LIMIT",
        ),
    ] = None,
    fail_below: Annotated[
        list[str] | None,
        typer.Option(
            help="Exit with code 3 if the metric is below the limit, as in accuracy=0.9. Adds the "
            "metric; repeatable.",
            metavar="NAME=LIMIT",
        ),
    ] = None,
    fail_groups: Annotated[
        bool,
        typer.Option(
            "--fail-groups",
            help="Exit with code 3 if a group of --groups is over- or underconfident; with "
            "--fail-on bound, also if a group has too few rows.",
        ),
    ] = False,
    fail_on: Annotated[
        str,
        typer.Option(
            help="Compare limits with the value, or with the bound: the worse end of the "
            "interval, so that too few rows fail too.",
            metavar="value|bound",
        ),
    ] = "value",
    intervals: Annotated[
        bool,
        typer.Option(
            "--intervals/--no-intervals",
            help="Compute intervals and a verdict; without them it is faster.",
        ),
    ] = True,
    resamples: options.Resamples = 1000,
    seed: options.Seed = 0,
    plugins: options.Plugins = None,
    quiet: options.Quiet = False,
) -> None:
    """Evaluate predictions: print a verdict, and metrics with intervals."""
    if (file is None) == (example is None):
        both = ", not both" if file else ""
        raise typer.BadParameter(f"give a FILE of predictions or --example NAME{both}")
    if fail_on not in ("value", "bound"):
        raise InputError(f"--fail-on takes value or bound, found {fail_on!r}")
    for option, requested in (
        ("--fail-on bound", fail_on == "bound"),
        ("--fail-groups", fail_groups),
    ):
        if requested and not intervals:
            raise InputError(f"{option} requires intervals: drop --no-intervals")
    thresholds = [Threshold.parse(text, above=True) for text in fail_above or ()]
    thresholds += [Threshold.parse(text, above=False) for text in fail_below or ()]
    metrics = _choose_metrics(metric, thresholds)
    if report is not None:
        _check_report(report)
    for option, value in (
        ("--group-column", group_column),
        ("--id-column", id_column),
        ("--fail-groups", fail_groups),
    ):
        if value and groups is None:
            raise InputError(f"{option} requires --groups")
    if group_column and len(group_column) > 1:
        names = ", ".join(map(repr, group_column))
        raise InputError(f"--group-column takes one column, found {names}: run once for each")

    from calibrant.evaluation import evaluate as evaluate_predictions
    from calibrant.evaluation import read_groups

    source = Path(f"example:{example}") if file is None else file
    column = group_column[0] if group_column else None
    group_values = None if groups is None else read_groups(groups, column, id_column)
    predictions = options.read_predictions(source, logits, labels, ignore_index, quiet=quiet)
    evaluation = evaluate_predictions(
        predictions,
        groups=group_values,
        metrics=metrics,
        num_bins=num_bins,
        intervals=intervals,
        resamples=resamples,
        seed=seed,
        progress=not quiet,
    )
    if report is not None:
        _write_report(evaluation, predictions, report)
    failures = _find_failures(evaluation, thresholds, fail_on, check_groups=fail_groups)
    _show_warnings(evaluation)
    if as_json:
        failed = [failure._asdict() for failure in failures]
        echo_json({**evaluation.to_dict(), "failed": failed})
    elif not quiet:
        show_evaluation(evaluation, make_console())
    if report is not None and not quiet:
        show_report_path(report, stderr=as_json)
    for failure in failures:
        make_console(stderr=True).print(f"failed: {failure.says}", style="red", soft_wrap=True)
    if failures:
        raise typer.Exit(EXCEEDED)
    limits = [threshold.name for threshold in thresholds] + ["groups"] * fail_groups
    if limits and not (quiet or as_json):
        typer.echo(f"within limits: {', '.join(limits)}")


@command
def metrics(as_json: options.AsJson = False, plugins: options.Plugins = None) -> None:
    """List every metric with what it measures."""
    from calibrant.evaluation import DEFAULT_METRICS
    from calibrant.metrics import available, measure

    records = [
        {
            "name": name,
            "better": measure(name).better,
            "default": name in DEFAULT_METRICS,
            "says": summary,
        }
        for name, summary in available().items()
    ]
    if as_json:
        echo_json(records)
        return
    table = make_table()
    table.add_column("name", style="cyan", no_wrap=True)
    table.add_column("better")
    table.add_column("what it measures")
    for record in records:
        star = "*" if record["default"] else ""
        table.add_row(f"{record['name']}{star}", str(record["better"]), str(record["says"]))
    console = make_console()
    console.print(table)
    console.print("* computed unless --metric names others", style="dim")


def _choose_metrics(metric: list[str] | None, thresholds: list[Threshold]) -> list[str]:
    """Return the metrics requested, or the default ones, and those with a threshold."""
    from calibrant.evaluation import DEFAULT_METRICS

    names = options.split_metrics(metric) or DEFAULT_METRICS
    return list(dict.fromkeys([*names, *(threshold.name for threshold in thresholds)]))


# Limits.


class Failure(NamedTuple):
    """A limit that was exceeded."""

    option: str
    name: str  # of the metric or the group
    says: str  # the message


class Threshold(NamedTuple):
    """A limit on a metric."""

    name: str
    limit: float
    above: bool  # True if values above the limit fail, False if values below it do

    @property
    def option(self) -> str:
        """Return the option that sets the limit."""
        return "--fail-above" if self.above else "--fail-below"

    @classmethod
    def parse(cls, text: str, *, above: bool) -> Threshold:
        """Parse ``NAME=LIMIT``; a metric takes a limit on its worse side only."""
        from calibrant.metrics import measure

        option = cls("", 0.0, above).option
        name, _, number = (part.strip() for part in text.partition("="))
        try:
            limit = float(number)
        except ValueError:
            limit = float("nan")
        if not name or limit != limit:
            example = "ece=0.05" if above else "accuracy=0.9"
            raise InputError(f"{option} takes NAME=NUMBER, such as {example}, found {text!r}")
        better = measure(name).better
        if better != "neither" and above != (better == "lower"):
            opposite = cls(name, limit, not above).option
            raise InputError(f"{name} is better {better}: use {opposite} {name}={number}")
        return cls(name, limit, above)

    def check(self, figure: Figure, fail_on: str) -> str | None:
        """Return a message if the value, or the worse end of its interval, is past the limit."""
        if fail_on == "value":
            return self.check_value(figure.value)
        bound = figure.high if self.above else figure.low
        if bound is None:
            return f"{self.name} has no interval, so --fail-on bound cannot check its limit"
        return self.check_value(bound, "at worst ")

    def check_value(self, value: float, prefix: str = "") -> str | None:
        """Return a message if a value is past the limit or NaN."""
        if value <= self.limit if self.above else value >= self.limit:
            return None
        side = "above" if self.above else "below"
        return (
            f"{self.name} is {prefix}{value:.6g}, {side} the limit of {self.limit:g} "
            f"({self.option})"
        )


def _find_failures(
    evaluation: Evaluation, thresholds: list[Threshold], fail_on: str, *, check_groups: bool
) -> list[Failure]:
    """Return every limit that was exceeded: first metrics, then groups."""
    failures = []
    for threshold in thresholds:
        message = threshold.check(evaluation[threshold.name], fail_on)
        if message is not None:
            failures.append(Failure(threshold.option, threshold.name, message))
    if check_groups and evaluation.groups is not None:
        failures += _find_group_failures(evaluation.groups, fail_on)
    return failures


def _find_group_failures(groups: Groups, fail_on: str) -> list[Failure]:
    option = "--fail-groups"
    return [
        Failure(option, group.value, f"{groups.name} {_describe_group(group)} ({option})")
        for group in groups.by_gap
        if group.is_off or (fail_on == "bound" and group.is_few)
    ]


def _describe_group(group: Group) -> str:
    from calibrant.report.formatting import points

    gap = f"gap {points(group.gap)} points" if group.num_rows else "no rows"
    if group.gap_low is not None and group.gap_high is not None:
        gap += f", interval {points(group.gap_low)} to {points(group.gap_high)}"
    size = f"{group.num_rows:,} row{'' if group.num_rows == 1 else 's'}"
    if group.is_off:
        return f"{group.value} is {group.finding}: {gap}, {size}"
    return f"{group.value}: {group.finding} ({gap}, {size})"


# The report.


def _check_report(path: Path) -> None:
    """Raise an error before the work starts if the report cannot be written."""
    if path.is_dir():
        raise InputError(f"{path} is a folder; give the report a file name in it")
    if path.suffix.lower() not in (".html", ".htm"):
        raise InputError(
            f"{path}: the report is an HTML page: end its name with .html or .htm, found "
            f"{path.suffix or 'no ending'}"
        )
    nearest = next(folder for folder in path.absolute().parents if folder.exists())
    if not nearest.is_dir():
        raise InputError(f"{path}: the report cannot be written: {nearest} is not a folder")
    if not os.access(nearest, os.W_OK):
        raise InputError(f"{path}: the report cannot be written: no permission in {nearest}")


def _write_report(evaluation: Evaluation, predictions: Predictions, path: Path) -> None:
    from calibrant.report import write

    try:
        write(evaluation, path, predictions=predictions)
    except OSError as error:
        reason = error.strerror or error
        raise InputError(f"{path}: the report cannot be written: {reason}") from error


# What is printed.


def show_evaluation(evaluation: Evaluation, console: Console) -> None:
    """Print the verdict, a table of metrics with intervals, footnotes, and the groups."""
    kind = "probabilities" if evaluation.kind == "probs" else evaluation.kind
    ignored = f" ({evaluation.num_ignored:,} ignored)" if evaluation.num_ignored else ""
    rows = f"{evaluation.num_rows:,} row{'s' if evaluation.num_rows != 1 else ''}{ignored}"
    classes = f"{evaluation.num_classes:,} classes"
    console.print(f"{evaluation.name}: {rows}, {classes}, {kind}", style="dim")
    console.print()
    _show_verdict(evaluation, console)
    console.print(_make_metric_table(evaluation, narrow=console.width < _NARROW))
    for line in _list_footnotes(evaluation):
        console.print(line, style="dim")
    if evaluation.groups is not None:
        from calibrant.cli.group_table import show_groups

        show_groups(evaluation.groups, console)


def _show_warnings(evaluation: Evaluation) -> None:
    """Print the warnings of an evaluation, except the one that reading the file gave already."""
    from calibrant.evaluation.evaluate import LIKE_PROBABILITIES

    for message in evaluation.warnings:
        if message != LIKE_PROBABILITIES:
            make_console(stderr=True).print(f"warning: {message}", style="yellow", soft_wrap=True)


def _show_verdict(evaluation: Evaluation, console: Console) -> None:
    verdict = evaluation.verdict
    if verdict is None:
        console.print("No verdict: it requires intervals.")
    else:
        fine = verdict.direction == "neither" and verdict.p_value >= 1 - evaluation.level
        fine = fine and not (evaluation.groups and evaluation.groups.off)
        console.print(Text(verdict.headline, style="bold green" if fine else "bold yellow"))
        for sentence in verdict.sentences:
            console.print(sentence)
    console.print()


def _make_metric_table(evaluation: Evaluation, *, narrow: bool) -> Table:
    """Return a table with a row per metric; columns without content are left out."""
    from calibrant.report import formatting

    figures = evaluation.figures.values()
    has_intervals = any(figure.low is not None for figure in figures)
    has_corrected = any(figure.corrected is not None for figure in figures)
    table = make_table()
    if not narrow:
        table.add_column("figure")
    table.add_column("name", style="cyan", no_wrap=True)
    table.add_column("value", justify="right", style="bold")
    if has_intervals:
        table.add_column(f"{formatting.level(evaluation.settings)} interval", justify="right")
    if has_corrected:
        table.add_column("corrected", justify="right")
    for figure in figures:
        cells = [] if narrow else [figure.label]
        cells += [figure.name, formatting.figure_text(figure.name, figure.value)]
        if has_intervals:
            cells.append(format_interval(figure.name, figure.low, figure.high))
        if has_corrected:
            cells.append(formatting.figure_text(figure.name, figure.corrected))
        table.add_row(*cells)
    return table


def _list_footnotes(evaluation: Evaluation) -> list[str]:
    """Return notes on the table; a note that several metrics share appears once."""
    figures = evaluation.figures.values()
    lines = []
    if any(figure.corrected is not None for figure in figures):
        lines.append("corrected: the value minus what chance alone adds")
    names_by_note: dict[str, list[str]] = {}
    for figure in figures:
        if figure.note is not None:
            names_by_note.setdefault(figure.note, []).append(figure.name)
    return lines + [f"{', '.join(names)}: {note}" for note, names in names_by_note.items()]
