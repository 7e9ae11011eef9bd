"""The commands `calibrant evaluate` and `calibrant metrics`."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from calibrant.cli import options
from calibrant.cli.console import (
    EXCEEDED,
    command,
    describe_events,
    echo_json,
    format_interval,
    make_console,
    make_table,
    show_report_path,
)
from calibrant.cli.record import (
    InUse,
    ModelVersion,
    RecordOptions,
    ReportDate,
    Title,
)
from calibrant.core.errors import InputError

if TYPE_CHECKING:
    from calibrant.evaluation import Evaluation, Figure, Group, Groups, Tolerance
    from calibrant.predictions import Predictions
    from calibrant.predictions.shards import Shards
    from calibrant.report.record import Record

_NARROW = 72  # in a narrower terminal the table has short names only


@command
@options.takes_input
def evaluate(
    file: Annotated[
        list[Path] | None,
        typer.Argument(
            help="Predictions with labels: .npz, .npy, .safetensors, .pt, .parquet, .arrow, "
            ".feather, .csv, .csv.gz or .jsonl. Several files, or a folder of .parquet, count as "
            "one set. Sample logs of lm-evaluation-harness (samples_*.jsonl) are read too; of "
            "several, each task is a group.",
            metavar="FILE",
            show_default=False,
        ),
    ] = None,
    *,
    inputs: options.InputOptions,
    metric: options.Metrics = None,
    num_bins: options.Bins = 15,
    as_json: options.AsJson = False,
    example: Annotated[
        str | None,
        typer.Option(
            "--example",
            help="Evaluate predictions that come with the package, such as cifar10-resnet18; a "
            "wrong name lists all.",
            metavar="NAME",
        ),
    ] = None,
    report: Annotated[
        Path | None, typer.Option(help="Write an HTML report to this file.", metavar="OUT.html")
    ] = None,
    title: Title = None,
    model_version: ModelVersion = None,
    in_use: InUse = None,
    date: ReportDate = None,
    groups: Annotated[
        Path | None,
        typer.Option(
            help="Evaluate each group of rows too. This file (.csv, .csv.gz, .jsonl, .parquet, "
            ".arrow, .feather, .npy or .npz) holds the group (sensor, site, ...) of each row. Rows "
            "are matched by id, or by their order if a file has no ids.",
            metavar="FILE",
        ),
    ] = None,
    group_column: Annotated[
        list[str] | None,
        typer.Option(
            help="Column with the groups: in the file of --groups or, without --groups, in FILE.",
            metavar="NAME",
        ),
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
    fail_verdict: Annotated[
        bool,
        typer.Option(
            "--fail-verdict",
            help="Exit with code 3 if the verdict is off; with --fail-on bound, also if it cannot "
            "tell.",
        ),
    ] = False,
    tolerance: Annotated[
        list[str] | None,
        typer.Option(
            help="Largest error that is still fit for use; repeatable. Default: error=0.05 for "
            "classes; ratio=1.25 (observed over expected) and slope=1.25 for events, from 0.8 to "
            "1.25 each.",
            metavar="NAME=NUMBER",
        ),
    ] = None,
    prevalence: options.Prevalence = None,
    view: options.View = None,
    fail_groups: Annotated[
        bool,
        typer.Option(
            "--fail-groups",
            help="Exit with code 3 if a group is off, such as overconfident; with --fail-on bound, "
            "also if a group has too few rows.",
        ),
    ] = False,
    fail_on: Annotated[
        str,
        typer.Option(
            help="Compare limits with the value, or with the worse end of its interval (bound), so "
            "that too few rows fail too.",
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
    on: Annotated[
        str | None,
        typer.Option(
            help="Evaluate Parquet files in pieces that need not fit in memory together: in this "
            "process, or on a Ray cluster. FILE may then be an address, as in "
            "'s3://bucket/run/**/*.parquet'.",
            metavar="local|ray",
        ),
    ] = None,
    workers: Annotated[
        int | None,
        typer.Option(
            min=1, help="Number of pieces at a time on Ray. Default: one per core.", metavar="N"
        ),
    ] = None,
    plugins: options.Plugins = None,
    quiet: options.Quiet = False,
) -> None:
    """Evaluate predictions: print a verdict, and metrics with intervals."""
    file = file or None  # no FILE is an empty list
    if (file is None) == (example is None):
        both = ", not both" if file else ""
        raise typer.BadParameter(f"give a FILE of predictions or --example NAME{both}")
    if fail_on not in ("value", "bound"):
        raise InputError(f"--fail-on takes value or bound, found {fail_on!r}")
    for option, requested in (
        ("--fail-on bound", fail_on == "bound"),
        ("--fail-groups", fail_groups),
        ("--fail-verdict", fail_verdict),
    ):
        if requested and not intervals:
            raise InputError(f"{option} requires intervals: drop --no-intervals")
    thresholds = [Threshold.parse(text, above=True) for text in fail_above or ()]
    thresholds += [Threshold.parse(text, above=False) for text in fail_below or ()]
    names = options.split_metrics(metric)
    allowed = _read_tolerance(tolerance)
    about = RecordOptions(title, model_version, date, in_use)
    about.check(report)
    if on is None and workers is not None:
        raise InputError("--workers is for a Ray cluster: add --on ray")
    if on is not None:
        _check_shard_options(
            on,
            {
                "--groups": groups,
                "--group-column": group_column,
                "--fail-groups": fail_groups,
                "--labels": inputs.labels,
                "--id-column": inputs.id_column,
                "--normalise": inputs.normalise != "none",
                "--example": example,
                "--prevalence": prevalence,
            },
        )
    if fail_on == "bound" and not (fail_above or fail_below or fail_verdict or fail_groups):
        raise InputError(
            "--fail-on bound requires a limit: --fail-above, --fail-below, --fail-verdict or "
            "--fail-groups"
        )
    if fail_groups and groups is None and not group_column:
        raise InputError("--fail-groups requires --groups or --group-column")
    if group_column and len(group_column) > 1:
        columns = ", ".join(map(repr, group_column))
        raise InputError(f"--group-column takes one column, found {columns}: run once for each")

    from calibrant.evaluation import default_metrics, evaluate_shards, read_groups
    from calibrant.evaluation import evaluate as evaluate_predictions
    from calibrant.evaluation.groups.files import GroupColumn
    from calibrant.predictions.read import are_harness_logs

    source = Path(f"example:{example}") if file is None else file
    column = group_column[0] if group_column else None
    group_values = None
    if groups is not None:
        inputs, other = inputs.fit_files(source, groups)
        group_values = read_groups(groups, column, other.id_column)
        column = None  # of --groups
    elif column is None and file is not None and on is None and are_harness_logs(file):
        column = "task"
    shards = None
    if on is not None:
        shards, predictions = _open_shards(file or [], inputs)
    else:
        extra = [column] if column else []
        predictions, read = inputs.read_with_columns(source, extra, quiet=quiet)
        if column is not None:
            group_values = GroupColumn(column, read[column])
    pos_label = inputs.find_positive(predictions)
    names = names or list(default_metrics(predictions, view=view, pos_label=pos_label))
    _check_tolerance(tolerance, predictions, view=view, pos_label=pos_label)
    settings: dict[str, Any] = {
        "metrics": list(dict.fromkeys([*names, *(threshold.name for threshold in thresholds)])),
        "view": view,
        "tolerance": allowed,
        "num_bins": num_bins,
        "intervals": intervals,
        "resamples": resamples,
        "seed": seed,
        "progress": not quiet,
    }
    if shards is not None:
        evaluation = evaluate_shards(
            shards, on=on or "local", workers=workers, **_list_reading(inputs), **settings
        )
    else:
        evaluation = evaluate_predictions(
            predictions,
            groups=group_values,
            pos_label=pos_label,
            prevalence=options.read_prevalence(prevalence, "--prevalence"),
            **settings,
        )
    if report is not None:
        data = [("predictions", source), ("labels", inputs.labels), ("groups", groups)]
        if shards is not None:
            data = (
                [("predictions", [Path(shard.place) for shard in shards.files])]
                if shards.are_local
                else []
            )
        record = about.make_record(data)
        rows = predictions if shards is None else None
        _write_report(evaluation, rows, report, title=title, record=record)
    failures = _find_failures(
        evaluation, thresholds, fail_on, check_groups=fail_groups, check_verdict=fail_verdict
    )
    _show_warnings(evaluation)
    if thresholds and evaluation.view == "events" and view is None and pos_label is None:
        _note_events(evaluation, predictions)
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
    limits += ["verdict"] * fail_verdict
    if limits and not (quiet or as_json):
        typer.echo(f"within limits: {', '.join(limits)}")


@command
def metrics(as_json: options.AsJson = False, plugins: options.Plugins = None) -> None:
    """List every metric with what it measures."""
    from calibrant.evaluation import DEFAULT_METRICS, EVENT_METRICS
    from calibrant.metrics import available, measure

    defaults = {"classes": DEFAULT_METRICS, "events": EVENT_METRICS}
    records: list[dict[str, Any]] = [
        {
            "name": name,
            "better": measure(name).better,
            "default": name in DEFAULT_METRICS,
            "default_for": [kind for kind, names in defaults.items() if name in names],
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
    table.add_column("default for")
    table.add_column("what it measures")
    for record in records:
        default = ", ".join(record["default_for"])
        table.add_row(str(record["name"]), str(record["better"]), default, str(record["says"]))
    console = make_console()
    console.print(table)
    console.print("The default ones are computed unless --metric names others.", style="dim")


# Shards.


def _check_shard_options(on: str, values: dict[str, Any]) -> None:
    """Raise if an option is given that needs all rows at once."""
    if on not in ("local", "ray"):
        raise InputError(f"--on takes local or ray, found {on!r}")
    for option, value in values.items():
        if value:
            raise InputError(
                f"{option} does not go with --on, which sums Parquet files piece by piece: leave "
                "one of them out"
            )


def _open_shards(files: list[Path], inputs: options.InputOptions) -> tuple[Shards, Predictions]:
    """List the shards, and read their first rows."""
    from calibrant.evaluation.shards.evaluate import make_reading
    from calibrant.predictions.shards import list_shards, read_first

    shards = list_shards([_restore_scheme(str(file)) for file in files])
    return shards, read_first(shards, make_reading(**_list_reading(inputs))).predictions


def _restore_scheme(text: str) -> str:
    """Return an address with the slashes that a path has lost: ``s3:/b`` is ``s3://b``."""
    return re.sub(r"^([A-Za-z][A-Za-z0-9+.-]+):/(?!/)", r"\1://", text).replace(
        "file://", "file:///", 1
    )


def _list_reading(inputs: options.InputOptions) -> dict[str, Any]:
    """Return the options of `evaluate_shards` that say how to read rows."""
    return {
        "kind": options.KINDS.get(inputs.logits),
        "ignore_index": inputs.ignore_index,
        "score_columns": inputs.score_columns,
        "label_column": inputs.label_column,
        "weight_column": inputs.weight_column,
        "cluster_column": inputs.cluster_column,
        "event": inputs.event,
        "pos_label": inputs.pos_label,
        "drop_unlabelled": inputs.drop_unlabelled,
    }


def _read_tolerance(texts: list[str] | None) -> Tolerance | None:
    """Parse the NAME=NUMBER texts of --tolerance."""
    from calibrant.evaluation import Tolerance

    settings = options.parse_settings(texts, "--tolerance")
    names = ("error", "ratio", "slope")
    for name, value in settings.items():
        if name not in names:
            raise InputError(f"--tolerance takes {', '.join(names)}; found {name!r}")
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise InputError(f"--tolerance {name} takes a number, found {value!r}")
    return Tolerance(**settings) if settings else None


def _check_tolerance(
    texts: list[str] | None, predictions: Predictions, *, view: str | None, pos_label: int | None
) -> None:
    """Raise if a tolerance is given that the verdict on these rows does not use."""
    from calibrant.evaluation.evaluate import choose_positive

    settings = options.parse_settings(texts, "--tolerance")
    is_many = predictions.task == "multilabel"
    if is_many or choose_positive(predictions, view, pos_label) is not None:
        what, used = "events", {"ratio", "slope"}
    else:
        what, used = "classes", {"error"}
    if unused := settings.keys() - used:
        raise InputError(
            f"--tolerance {min(unused)} has no effect on {what}: give "
            f"{' or '.join(f'--tolerance {name}=' for name in sorted(used))}"
        )


def _note_events(evaluation: Evaluation, predictions: Predictions) -> None:
    """Say that limits on two classes now hold for events (for one release)."""
    if predictions.task != "classes":
        return
    make_console(stderr=True).print(
        f"note: two classes are judged by the probability of {evaluation.event}, and limits hold "
        "for it; up to 0.1 they held for the predicted class: --view top",
        style="dim",
        soft_wrap=True,
    )


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
        name, _, number = (part.strip() for part in text.rpartition("="))
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
    evaluation: Evaluation,
    thresholds: list[Threshold],
    fail_on: str,
    *,
    check_groups: bool,
    check_verdict: bool,
) -> list[Failure]:
    """Return every limit that was exceeded: first metrics, then groups, then the verdict."""
    failures = []
    for threshold in thresholds:
        message = threshold.check(evaluation[threshold.name], fail_on)
        if message is not None:
            failures.append(Failure(threshold.option, threshold.name, message))
    if check_groups and evaluation.groups is not None:
        failures += _find_group_failures(evaluation.groups, fail_on)
    if check_verdict and evaluation.verdict is not None:
        state = evaluation.verdict.state
        if state == "off" or (fail_on == "bound" and state != "holds"):
            option = "--fail-verdict"
            failures.append(Failure(option, state, f"{evaluation.verdict.headline} ({option})"))
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


def _write_report(
    evaluation: Evaluation,
    predictions: Predictions | None,
    path: Path,
    *,
    title: str | None,
    record: Record,
) -> None:
    from calibrant.report import write

    try:
        write(evaluation, path, predictions=predictions, title=title, record=record)
    except OSError as error:
        reason = error.strerror or error
        raise InputError(f"{path}: the report cannot be written: {reason}") from error


# What is printed.


def show_evaluation(evaluation: Evaluation, console: Console) -> None:
    """Print the verdict, a table of metrics with intervals, footnotes, and the groups."""
    kind = "probabilities" if evaluation.kind == "probs" else evaluation.kind
    console.print(f"{evaluation.name}: {_describe_rows(evaluation)}, {kind}", style="dim")
    console.print()
    _show_verdict(evaluation, console)
    console.print(_make_metric_table(evaluation, narrow=console.width < _NARROW))
    for line in _list_footnotes(evaluation):
        console.print(line, style="dim")
    if evaluation.labels and evaluation.verdict is not None:
        console.print(_make_label_table(evaluation))
    if evaluation.groups is not None:
        from calibrant.cli.group_table import show_groups

        show_groups(evaluation.groups, console)


def _describe_rows(evaluation: Evaluation) -> str:
    """Say how many rows were judged, and of what."""
    judged, ignored = evaluation.num_rows, evaluation.num_ignored
    if evaluation.task == "multilabel":  # whose numbers count labels
        missing = f" ({ignored:,} of {judged + ignored:,} missing)" if ignored else ""
        rows = (judged + ignored) // evaluation.num_classes
        return f"{rows:,} rows of {evaluation.num_classes:,} labels{missing}"
    left_out = f" ({ignored:,} ignored)" if ignored else ""
    return f"{judged:,} row{'s' if judged != 1 else ''}{left_out}, {_describe_task(evaluation)}"


def _describe_task(evaluation: Evaluation) -> str:
    """Say what is judged: classes or events."""
    if evaluation.event is not None:
        return describe_events(evaluation.event)
    if evaluation.num_options is not None:
        return f"{' to '.join(map(str, sorted(set(evaluation.num_options))))} options"
    return f"{evaluation.num_classes:,} classes"


_STATE_STYLES = {"holds": "bold green", "off": "bold red", "cannot tell": "bold yellow"}


def _make_label_table(evaluation: Evaluation) -> Table:
    """Return a table with a row per label: its verdict and its total."""
    from calibrant.report import formatting

    table = make_table()
    table.add_column("label", style="cyan", no_wrap=True)
    table.add_column("verdict")
    for heading in ("mean probability", "frequency", "observed/expected"):
        table.add_column(heading, justify="right")
    for label in evaluation.labels:
        verdict = label.verdict
        if verdict is None:
            continue
        ratio = formatting.NOTHING if verdict.ratio is None else f"{verdict.ratio.value:.3g}"
        shares = (formatting.percent(verdict.mean), formatting.percent(verdict.rate))
        table.add_row(label.name, verdict.state, *shares, ratio)
    return table


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
        state = "off" if evaluation.groups and evaluation.groups.off else verdict.state
        console.print(Text(verdict.headline, style=_STATE_STYLES[state]))
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
