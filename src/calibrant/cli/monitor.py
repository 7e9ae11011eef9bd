"""The command `calibrant monitor`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from calibrant.cli import options
from calibrant.cli.console import (
    EXCEEDED,
    command,
    echo_json,
    make_console,
    make_table,
    show_report_path,
)
from calibrant.core.errors import InputError

if TYPE_CHECKING:
    from calibrant.evaluation.groups.files import GroupColumn
    from calibrant.monitor import Monitor, Status
    from calibrant.predictions import Predictions

_MOST_ROWS = 12  # of the table of batches
_STATE_STYLES = {"alarm": "bold red", "no alarm": "bold green", "no labels": "bold yellow"}


@command
@options.takes_input
def monitor(
    state: Annotated[
        Path,
        typer.Argument(
            help="State file (.json); created if it does not exist.",
            metavar="STATE.json",
            show_default=False,
        ),
    ],
    *,
    inputs: options.InputOptions,
    baseline: Annotated[
        Path | None,
        typer.Option(
            help="Labelled predictions that the model was accepted with. Required to begin a "
            "state.",
            metavar="FILE",
        ),
    ] = None,
    append: Annotated[
        list[Path] | None,
        typer.Option(
            help="Batch of new predictions, with or without labels; repeatable. A batch that is "
            "known counts no row twice; labels that are new count.",
            metavar="FILE",
        ),
    ] = None,
    name: Annotated[
        str | None,
        typer.Option(help="Name of the batch. Default: that of its file.", metavar="NAME"),
    ] = None,
    when: Annotated[
        str | None,
        typer.Option(
            help="Date or time of the batch, as 2026-08-21. Default: now.", metavar="DATE"
        ),
    ] = None,
    groups: Annotated[
        Path | None,
        typer.Option(
            help="Watch each group of rows too. This file holds the group of each row of the batch "
            "(or, without --append, of the baseline).",
            metavar="FILE",
        ),
    ] = None,
    group_column: Annotated[
        str | None,
        typer.Option(
            help="Column with the groups: in the file of --groups or, without --groups, in the "
            "files of predictions.",
            metavar="NAME",
        ),
    ] = None,
    merge: Annotated[
        list[Path] | None,
        typer.Option(
            help="Take over the batches of another state with the same baseline; repeatable.",
            metavar="STATE.json",
        ),
    ] = None,
    tolerance: Annotated[
        float | None,
        typer.Option(
            help="How much worse than the baseline is allowed; 0.01 is one point. Fixed when the "
            "state begins. Default: 0.01.",
            metavar="NUMBER",
            show_default=False,
        ),
    ] = None,
    alpha: Annotated[
        float | None,
        typer.Option(
            help="Probability of any false alarm, ever. Fixed when the state begins. Default: "
            "0.05.",
            metavar="NUMBER",
            show_default=False,
        ),
    ] = None,
    view: options.View = None,
    report: Annotated[
        Path | None, typer.Option(help="Write an HTML report to this file.", metavar="OUT.html")
    ] = None,
    as_json: options.AsJson = False,
    quiet: options.Quiet = False,
) -> None:
    """Watch a model in production: alarms that hold however often you look.

    Exits with code 3 as long as there is an alarm.
    """
    if len(append or ()) > 1 and (name is not None or inputs.labels is not None or groups):
        raise InputError("--name, --labels and --groups are for one batch: append one at a time")
    if (name is not None or when is not None) and not append:
        raise InputError("--name and --when require --append")
    if report is not None and report.is_dir():
        raise InputError(f"--report {report}: is a folder, name a file in it")

    from calibrant.monitor import Monitor

    first = None
    own, *others = inputs.fit_files(baseline, *(append or ()))
    if baseline is not None:
        first = _read_baseline(
            baseline,
            own,
            groups=None if append else groups,
            group_column=group_column,
            view=view,
            tolerance=0.01 if tolerance is None else tolerance,
            alpha=0.05 if alpha is None else alpha,
        )
    lines = []
    with Monitor.update(state, create=first) as watched:
        _check_same_plan(watched, first, tolerance, alpha)
        for file, own in zip(append or (), others, strict=True):
            lines.append(
                str(_append(watched, file, own, groups, group_column, name=name, when=when))
            )
        if merge:
            lines += watched.merge(*(Monitor.load(other) for other in merge))
    status = watched.status()
    if report is not None:
        from calibrant.report.monitor_page import write_monitor

        write_monitor(status, report)
    if as_json:
        echo_json({**status.to_dict(), "appended": lines})
    elif not quiet:
        console = make_console()
        for line in lines:
            console.print(line, style="dim", soft_wrap=True)
        show_status(status, console)
    if report is not None and not quiet:
        show_report_path(report, stderr=as_json)
    if status.alarms:
        if quiet or as_json:
            for alarm in status.alarms:
                make_console(stderr=True).print(f"alarm: {alarm.says}", style="red", soft_wrap=True)
        raise typer.Exit(EXCEEDED)


def _read_baseline(
    file: Path,
    inputs: options.InputOptions,
    *,
    groups: Path | None,
    group_column: str | None,
    view: str | None,
    tolerance: float,
    alpha: float,
) -> Monitor:
    from calibrant.monitor import Monitor

    baseline_inputs = replace(inputs, labels=None)  # --labels are those of the batch
    predictions, values = _read(file, baseline_inputs, groups, group_column)
    return Monitor(
        predictions,
        groups=values,
        tolerance=tolerance,
        alpha=alpha,
        view=view,
        pos_label=baseline_inputs.find_positive(predictions),
    )


def _read(
    file: Path, inputs: options.InputOptions, groups: Path | None, group_column: str | None
) -> tuple[Predictions, Any]:
    """Read predictions and the group of each row."""
    from calibrant.evaluation import read_groups
    from calibrant.evaluation.groups.files import GroupColumn, check_groups

    column = group_column if groups is None else None
    inputs, other = inputs.fit_files(file, groups)
    predictions, columns = inputs.read_with_columns(file, [column] if column else (), quiet=True)
    if column is not None:
        return predictions, GroupColumn(column, columns[column])
    if groups is None:
        return predictions, None
    values: GroupColumn = read_groups(groups, group_column, other.id_column)
    return predictions, check_groups(values, predictions)


def _append(
    watched: Monitor,
    file: Path,
    inputs: options.InputOptions,
    groups: Path | None,
    group_column: str | None,
    *,
    name: str | None,
    when: str | None,
) -> object:
    """Append a file to the monitor; labels come from the file, or from --labels by their ids."""
    from calibrant.evaluation.groups.files import GroupColumn
    from calibrant.monitor.reading import match_labels, read_unlabelled, settle
    from calibrant.predictions.columns import ColumnNames

    column = group_column if groups is None else None
    extra = [column] if column else []
    batch_inputs, of_labels, of_groups = inputs.fit_files(file, inputs.labels, groups)
    batch_inputs = replace(batch_inputs, labels=None)
    plan = watched.ledger.plan
    if plan.task == "events" and batch_inputs.event is None and batch_inputs.score_columns:
        batch_inputs = replace(batch_inputs, event=plan.event)  # outcomes may come later
    if inputs.labels is not None:
        batch_inputs = replace(batch_inputs, label_column=None, drop_unlabelled=False)
    named = ColumnNames(
        scores=batch_inputs.score_columns,
        label=batch_inputs.label_column,
        weight=batch_inputs.weight_column,
        cluster=batch_inputs.cluster_column,
        id=batch_inputs.id_column,
        event=batch_inputs.event,
        extra=extra,
    )
    labels = None
    partly = (
        None
        if inputs.labels
        else read_unlabelled(file, named, options.KINDS.get(batch_inputs.logits))
    )
    if partly is not None:
        predictions, values, columns = partly
        labels = settle(values, predictions, inputs.pos_label)
    else:
        predictions, columns = batch_inputs.read_with_columns(file, extra, quiet=True)
    if inputs.labels is not None:
        if predictions.labels is not None:
            raise InputError(f"{file}: the file holds labels, and --labels others: leave one out")
        values = match_labels(
            inputs.labels,
            predictions,
            label_column=inputs.label_column,
            id_column=of_labels.id_column,
        )
        labels = settle(values, predictions, inputs.pos_label)
    members: Any = None
    if groups is not None:
        members = _match_groups(groups, group_column, of_groups.id_column, predictions)
    elif column is not None:
        members = GroupColumn(column, columns[column])
    return watched.append(predictions, labels=labels, groups=members, name=name, when=when)


def _match_groups(
    groups: Path, column: str | None, id_column: str | None, predictions: Predictions
) -> Any:
    from calibrant.evaluation import read_groups
    from calibrant.evaluation.groups.files import check_groups

    return check_groups(read_groups(groups, column, id_column), predictions)


def _check_same_plan(
    watched: Monitor, first: Monitor | None, tolerance: float | None, alpha: float | None
) -> None:
    """Raise if the options contradict the state that exists."""
    plan = watched.ledger.plan
    for option, stated, fixed in (
        ("--tolerance", tolerance, plan.tolerance),
        ("--alpha", alpha, plan.alpha),
    ):
        if stated is not None and stated != fixed:
            raise InputError(
                f"{option} {stated:g}: the state was begun with {fixed:g}, and changing it after "
                "looking would break its promise; begin a new state"
            )
    if first is not None and first.ledger.baseline.key != watched.ledger.baseline.key:
        raise InputError(
            "the state was begun with another baseline: leave --baseline out, or begin a new state"
        )


def show_status(status: Status, console: Console) -> None:
    """Print the state, alarms, the latest batches and notices."""
    from calibrant.report import formatting

    plan = status.plan
    console.print(
        f"{len(status.batches):,} batch{'' if len(status.batches) == 1 else 'es'}, "
        f"{status.num_rows:,} rows, {status.num_labelled:,} "
        f"labelled; baseline {status.baseline_name} of {status.num_baseline:,} rows, tolerance "
        f"{100 * plan.tolerance:g} point{'' if plan.tolerance == 0.01 else 's'}",
        style="dim",
        soft_wrap=True,
    )
    console.print()
    console.print(status.headline, style=_STATE_STYLES[status.state])
    for alarm in status.alarms:
        console.print(f"alarm: {alarm.says}", style="red", soft_wrap=True)
    figures = {
        figure: figure_series
        for figure in ("gap", "error", "brier")
        if (figure_series := status.find(figure))
    }
    if figures:
        console.print()
        table = make_table()
        table.add_column("batch", style="cyan", overflow="fold")
        table.add_column("labelled", justify="right")
        headings = {"gap": "gap", "error": "accuracy", "brier": "Brier"}
        for figure in figures:
            table.add_column(headings[figure], justify="right")
        table.add_column("gap since the start", justify="right")
        gap = figures["gap"]
        start = max(0, len(gap.names) - _MOST_ROWS)
        for place in range(start, len(gap.names)):
            cells = [gap.names[place], f"{gap.counts[place]:,}"]
            for figure, series in figures.items():
                mean = series.means[place]
                cells.append(
                    formatting.points(mean)
                    if figure == "gap"
                    else f"{1 - mean:.1%}"
                    if figure == "error"
                    else f"{mean:.3f}"
                )
            ends = f"{formatting.points(gap.low[place])} – {formatting.points(gap.high[place])}"
            table.add_row(*cells, ends)
        console.print(table)
        what = "confidence minus accuracy" if plan.event is None else "probability minus frequency"
        console.print(
            f"gap: {what}, in points; the last column is an interval of the mean so far that holds "
            "at all times",
            style="dim",
            soft_wrap=True,
        )
    for notice in status.notices:
        console.print(f"note: {notice}", style="dim", soft_wrap=True)


__all__: Sequence[str] = ["monitor", "show_status"]
