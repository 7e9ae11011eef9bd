"""The commands and their options."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from calibrant._version import __version__
from calibrant.cli.console import (
    echo_json,
    make_console,
    metric_records,
    show_comparison,
    show_evaluation,
    show_metrics,
    show_warnings,
    speak_plainly,
)
from calibrant.cli.failures import EXCEEDED, command
from calibrant.cli.files import check_report, read, show_report, write_report
from calibrant.cli.options import (
    AsJson,
    Bins,
    Ignored,
    Labels,
    Metrics,
    Quiet,
    Resamples,
    Scores,
    Seed,
)
from calibrant.cli.thresholds import (
    Failure,
    Threshold,
    check_groups_judged,
    check_held_against,
    failures_of,
)
from calibrant.functional.errors import InputError

__all__ = ["AsJson", "Quiet", "app", "main"]

app = typer.Typer(
    name="calibrant",
    help="Can you believe this classifier's probabilities?",
    epilog=(
        "Exit codes: 0 fine, 1 something unexpected, 2 bad usage or input, 3 a limit was "
        "exceeded. CALIBRANT_DEBUG=1 shows tracebacks."
    ),
    no_args_is_help=True,
    rich_markup_mode=None,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def main() -> None:
    """Run the command line."""
    speak_plainly()
    app()


@app.command()
@command
def evaluate(
    file: Annotated[
        Path | None,
        typer.Argument(
            help=".npz, .npy, .safetensors, .pt, .parquet, .arrow, .feather or .csv: "
            "logits or probabilities, and labels.",
            metavar="FILE",
            show_default=False,
        ),
    ] = None,
    logits: Scores = None,
    labels: Labels = None,
    metric: Metrics = None,
    num_bins: Bins = 15,
    ignore_index: Ignored = None,
    as_json: AsJson = False,
    example: Annotated[
        str | None,
        typer.Option(
            "--example",
            help="Predictions that come with the package, in place of FILE: cifar10-resnet18.",
            metavar="NAME",
        ),
    ] = None,
    report: Annotated[
        Path | None,
        typer.Option(help="Write the report, one HTML file, here.", metavar="OUT.html"),
    ] = None,
    groups: Annotated[
        Path | None,
        typer.Option(
            help="Judge every group of rows as well: a .csv, .parquet, .arrow, .feather, .npy or "
            ".npz file with the group (sensor, site, ...) of each row, by id or in the order of "
            "FILE.",
            metavar="FILE",
        ),
    ] = None,
    group_column: Annotated[
        list[str] | None,
        typer.Option(help="Its column, where the file has several.", metavar="NAME"),
    ] = None,
    id_column: Annotated[
        str | None,
        typer.Option(help="Its column of ids, if that is not called id.", metavar="NAME"),
    ] = None,
    fail_above: Annotated[
        list[str] | None,
        typer.Option(
            help="Exit with code 3 if the figure is above the limit: ece=0.05. Repeatable; adds "
            "the metric.",
            metavar="NAME=LIMIT",
        ),
    ] = None,
    fail_below: Annotated[
        list[str] | None,
        typer.Option(
            help="The same for metrics that are better higher: accuracy=0.9.",
            metavar="NAME=LIMIT",
        ),
    ] = None,
    fail_groups: Annotated[
        bool,
        typer.Option(
            "--fail-groups",
            help="The same if any group of --groups is over- or underconfident; with --fail-on "
            "bound, also if one has too few rows.",
        ),
    ] = False,
    fail_on: Annotated[
        str,
        typer.Option(
            help="What limits are held against: the plug-in value, or the bound: the worse end of "
            "its interval, so that too few rows fail as well.",
            metavar="value|bound",
        ),
    ] = "value",
    intervals: Annotated[
        bool,
        typer.Option(
            "--intervals/--no-intervals",
            help="Without intervals it is faster, and there is no verdict.",
        ),
    ] = True,
    resamples: Resamples = 1000,
    seed: Seed = 0,
    quiet: Quiet = False,
) -> None:
    """Judge predictions: a verdict, and figures with intervals."""
    if (file is None) == (example is None):
        both = ", not both" if file else ""
        raise typer.BadParameter(f"name a FILE of predictions, or --example NAME{both}")
    check_held_against(fail_on, intervals=intervals)
    thresholds = [Threshold.parse(text, above=True) for text in fail_above or ()]
    thresholds += [Threshold.parse(text, above=False) for text in fail_below or ()]
    metrics = _wanted(metric, thresholds)
    if report is not None:
        check_report(report)
    column = _column(group_column, id_column, groups)
    if fail_groups:
        check_groups_judged(groups=groups is not None, intervals=intervals)

    from calibrant.evaluation import evaluate as judge
    from calibrant.evaluation import read_groups

    source = Path(f"example:{example}") if file is None else file
    grouped = None if groups is None else read_groups(groups, column, id_column)
    predictions = read(source, logits, labels, ignore_index, quiet=quiet)
    found = judge(
        predictions,
        groups=grouped,
        metrics=metrics,
        num_bins=num_bins,
        intervals=intervals,
        resamples=resamples,
        seed=seed,
        progress=not quiet,
    )
    if report is not None:
        write_report(found, predictions, report)
    failures = failures_of(found, thresholds, fail_on, by_groups=fail_groups)
    show_warnings(found)
    if as_json:
        echo_json({**found.to_dict(), "failed": [failure._asdict() for failure in failures]})
    elif not quiet:
        show_evaluation(found, make_console())
    if report is not None and not quiet:
        show_report(report, stderr=as_json)
    limits = [*(one.name for one in thresholds), *(["groups"] if fail_groups else [])]
    _tell_limits(failures, limits, quiet=quiet or as_json)


@app.command()
@command
def compare(
    a: Annotated[Path, typer.Argument(help="Predictions.", metavar="A", show_default=False)],
    b: Annotated[
        Path,
        typer.Argument(help="Others, of the same rows.", metavar="B", show_default=False),
    ],
    logits: Scores = None,
    labels: Labels = None,
    metric: Metrics = None,
    num_bins: Bins = 15,
    ignore_index: Ignored = None,
    as_json: AsJson = False,
    resamples: Resamples = 1000,
    seed: Seed = 0,
) -> None:
    """Compare two sets of predictions of the same rows."""
    metrics = _checked(metric) or None

    from calibrant.evaluation import compare as judge

    one, two = (read(file, logits, labels, ignore_index) for file in (a, b))
    if one.name == two.name:
        one, two = replace(one, name=str(a)), replace(two, name=str(b))
    found = judge(
        one,
        two,
        metrics=metrics,
        num_bins=num_bins,
        resamples=resamples,
        seed=seed,
        progress=True,
    )
    if as_json:
        echo_json(found.to_dict())
    else:
        show_comparison(found, make_console())


@app.command()
@command
def metrics(as_json: AsJson = False) -> None:
    """List every metric, with a line on what it says."""
    if as_json:
        echo_json(metric_records())
    else:
        show_metrics(make_console())


@app.command()
@command
def demo(
    output: Annotated[
        Path, typer.Option("--output", "-o", help="Folder to write to.", metavar="FOLDER")
    ] = Path("calibrant-demo"),
    seed: Seed = 0,
    quiet: Quiet = False,
) -> None:
    """Train a small network and report on its confidence."""
    from calibrant.demo import run_demo

    path = run_demo(output, seed=seed, quiet=quiet)
    show_report(path)


def _show_version(asked: bool) -> None:
    if asked:
        typer.echo(f"calibrant {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option(
            "--version", "-V", help="Print the version.", is_eager=True, callback=_show_version
        ),
    ] = False,
) -> None:
    """Options of the command itself, before any other command."""


def _wanted(metric: list[str] | None, thresholds: list[Threshold]) -> list[str]:
    """The metrics asked for, or the usual ones, and those that have a threshold."""
    from calibrant.evaluation import DEFAULT_METRICS

    names = _checked(metric) or DEFAULT_METRICS
    return list(dict.fromkeys([*names, *(threshold.name for threshold in thresholds)]))


def _checked(metric: list[str] | None) -> list[str]:
    """The names given; a wrong one is told before a large file is read."""
    from calibrant.metrics import measure

    names = [name.strip() for text in metric or () for name in text.split(",")]
    for name in names:
        measure(name)
    return names


def _column(given: list[str] | None, id_column: str | None, groups: Path | None) -> str | None:
    """The one column of groups that was named, if any."""
    for option, names in (("--group-column", given), ("--id-column", id_column)):
        if names and groups is None:
            raise InputError(f"{option} is of the file of --groups: name one")
    if given and len(given) > 1:
        raise InputError(
            f"--group-column names one column, found {', '.join(map(repr, given))}: run once for "
            "each"
        )
    return given[0] if given else None


def _tell_limits(failures: list[Failure], limits: list[str], *, quiet: bool) -> None:
    """Say which limits failed, and exit with the code of that; or that all are kept."""
    for failure in failures:
        make_console(stderr=True).print(f"failed: {failure.says}", style="red", soft_wrap=True)
    if failures:
        raise typer.Exit(EXCEEDED)
    if limits and not quiet:
        typer.echo(f"within limits: {', '.join(limits)}")
