"""The commands and their options."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from calibrant._version import __version__
from calibrant.cli.console import (
    make_console,
    show_comparison,
    show_evaluation,
    show_metrics,
    speak_plainly,
)
from calibrant.cli.failures import EXCEEDED, command
from calibrant.cli.thresholds import Threshold, check_held_against
from calibrant.functional.errors import InputError

if TYPE_CHECKING:
    from calibrant.evaluation import Evaluation
    from calibrant.predictions import Predictions

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


Scores = Annotated[
    bool | None,
    typer.Option(
        "--logits/--probs",
        help="What a bare array holds. Files whose own names say need neither.",
        show_default=False,
    ),
]
Labels = Annotated[
    Path | None,
    typer.Option(help="File of labels, where FILE holds none.", metavar="FILE"),
]
Ignored = Annotated[
    int | None, typer.Option(help="Leave out rows with this label, such as -100.", metavar="N")
]
Metrics = Annotated[
    list[str] | None,
    typer.Option(
        "--metric",
        "-m",
        help="A metric to compute, in place of the usual ones; repeat it for more. "
        "`calibrant metrics` lists them.",
        metavar="NAME",
    ),
]
Bins = Annotated[int, typer.Option(min=1, help="Bins of every binned metric.", metavar="N")]
Resamples = Annotated[
    int, typer.Option(min=100, help="Resampled sets behind the intervals.", metavar="N")
]
Seed = Annotated[int, typer.Option(min=0, help="Everything random follows from it.", metavar="N")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, and nothing else.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print failures only.")]


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
        _check_report(report)

    from calibrant.evaluation import evaluate as judge

    source = Path(f"example:{example}") if file is None else file
    predictions = read(source, logits, labels, ignore_index, quiet=quiet)
    found = judge(
        predictions,
        metrics=metrics,
        num_bins=num_bins,
        intervals=intervals,
        resamples=resamples,
        seed=seed,
        progress=not quiet,
    )
    if report is not None:
        _write_report(found, predictions, report)
    if as_json:
        typer.echo(found.to_json().encode())  # JSON is UTF-8, whatever the terminal is
    elif not quiet:
        show_evaluation(found, make_console())
    if report is not None and not quiet:
        _show_report(report, stderr=as_json)
    _judge_thresholds(found, thresholds, fail_on, quiet=quiet or as_json)


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
        typer.echo(found.to_json().encode())
    else:
        show_comparison(found, make_console())


@app.command()
@command
def metrics() -> None:
    """List every metric, with a line on what it says."""
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
    _show_report(path)


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


KINDS: dict[bool | None, Literal["logits", "probs"]] = {True: "logits", False: "probs"}


def read(
    file: Path,
    logits: bool | None,
    labels: Path | None,
    ignore_index: int | None,
    *,
    quiet: bool = False,
) -> Predictions:
    """Predictions of a file, as the options say."""
    from calibrant.predictions import Predictions

    with _waiting(f"reading {file}", quiet=quiet):
        return Predictions.read(
            file, labels=labels, kind=KINDS.get(logits), ignore_index=ignore_index
        )


@contextmanager
def _waiting(doing: str, *, quiet: bool) -> Iterator[None]:
    """Say what is being done, on a terminal, while it is being done."""
    console = make_console(stderr=True)
    if quiet or not console.is_terminal:
        yield
        return
    with console.status(doing):
        yield


def _check_report(path: Path) -> None:
    """Fail before the work, where it can be known that the report has no place to go."""
    if path.is_dir():
        raise InputError(f"{path} is a folder; give the report a file name in it")
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
        told = error.strerror or error
        raise InputError(f"{path}: the report cannot be written: {told}") from error


def _show_report(path: Path, *, stderr: bool = False) -> None:
    make_console(stderr=stderr).print(f"\nreport: {path}", soft_wrap=True)


def _judge_thresholds(
    found: Evaluation, thresholds: list[Threshold], fail_on: str, *, quiet: bool
) -> None:
    failures = [t.failed(found[t.name], fail_on) for t in thresholds]
    told = [failure for failure in failures if failure is not None]
    for failure in told:
        make_console(stderr=True).print(f"failed: {failure}", style="red", soft_wrap=True)
    if told:
        raise typer.Exit(EXCEEDED)
    if thresholds and not quiet:
        typer.echo(f"within limits: {', '.join(t.name for t in thresholds)}")
