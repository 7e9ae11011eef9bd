"""The commands that make rules: `calibrant decide` and `calibrant sets`."""

from __future__ import annotations

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
    name_options,
)
from calibrant.core.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Callable

    from calibrant.calibrators import Calibrator
    from calibrant.decisions import Rule
    from calibrant.decisions.rule import Part
    from calibrant.predictions import Predictions

_MOST_PARTS = 30  # in the table
_TABLES = (".csv", ".jsonl", ".parquet")

File = Annotated[
    list[Path],
    typer.Argument(
        help="Predictions with labels, of rows that neither the network nor the calibrator has "
        "seen; one file or several.",
        metavar="FILE",
    ),
]
CalibratorFile = Annotated[
    Path | None,
    typer.Option(
        "--calibrator",
        "-c",
        help="Calibrator to apply to the scores first, from `calibrant fit`. It becomes part of "
        "the output. Default: none, scores are taken as they are.",
        metavar="CALIBRATOR",
        show_default=False,
    ),
]
Output = Annotated[
    Path | None,
    typer.Option(
        "--output",
        "-o",
        help="Output file. Default: rule.safetensors, which must not exist.",
        metavar="OUT",
        show_default=False,
    ),
]
Onnx = Annotated[Path | None, typer.Option(help="Write the rule as ONNX, too.", metavar="OUT.onnx")]
Level = Annotated[
    float,
    typer.Option(
        help="Probability that the promise holds, over random draws of these rows.",
        metavar="NUMBER",
    ),
]
MaxWeight = Annotated[
    float | None,
    typer.Option(
        help="Largest weight that a row can have, on the scale of the weights. Without it the "
        "promise for weighted rows is approximate.",
        metavar="NUMBER",
    ),
]
MaxClusterSize = Annotated[
    int | None,
    typer.Option(
        help="Most rows that a cluster can have. Without it the promise for clusters is "
        "approximate.",
        metavar="N",
    ),
]


@command
@options.takes_input
def decide(
    file: File,
    *,
    max_error: Annotated[
        float | None,
        typer.Option(
            help="Largest share of wrong rows among those accepted, such as 0.01. For events, a "
            "row is wrong if the event did not happen.",
            metavar="NUMBER",
        ),
    ] = None,
    min_precision: Annotated[
        float | None,
        typer.Option(
            help="For events and two classes: smallest share of accepted rows in which the event "
            "happens.",
            metavar="NUMBER",
        ),
    ] = None,
    min_recall: Annotated[
        float | None,
        typer.Option(
            help="For events and two classes: smallest share of the events that is accepted.",
            metavar="NUMBER",
        ),
    ] = None,
    cost: Annotated[
        list[str] | None,
        typer.Option(
            help="Choose the threshold that costs least: false_alarm and miss for events, error "
            "and review for classes, as in --cost error=20 --cost review=1.",
            metavar="NAME=NUMBER",
        ),
    ] = None,
    inputs: options.InputOptions,
    confidence_level: Level = 0.95,
    calibrator: CalibratorFile = None,
    by: Annotated[
        str | None,
        typer.Option(
            help="A threshold for each predicted class; the promise then holds in each, all at "
            "once.",
            metavar="class",
        ),
    ] = None,
    groups: Annotated[
        Path | None,
        typer.Option(
            help="A threshold for each group; the promise then holds in each, all at once. This "
            "file holds the group of each row.",
            metavar="FILE",
        ),
    ] = None,
    group_column: Annotated[
        str | None,
        typer.Option(
            help="Column with the groups: in the file of --groups or, without --groups, in FILE.",
            metavar="NAME",
        ),
    ] = None,
    max_weight: MaxWeight = None,
    max_cluster_size: MaxClusterSize = None,
    output: Output = None,
    onnx: Onnx = None,
    plugins: options.Plugins = None,
    as_json: options.AsJson = False,
    quiet: options.Quiet = False,
) -> None:
    """Find the confidence from which rows are accepted, with a guarantee, and write the rule.

    Takes classes and events; many labels a row are taken one by one. Exits with code 3 if no
    threshold can keep the promise with so many rows.
    """
    from calibrant.decisions import decide as make_rule

    output = _choose_output() if output is None else output
    costs = None if not cost else options.parse_settings(cost, "--cost")
    predictions, members = read_grouped(file, inputs, groups, group_column, quiet=quiet)

    def make() -> Rule:
        return make_rule(
            predictions,
            max_error=max_error,
            min_precision=min_precision,
            min_recall=min_recall,
            costs=costs,
            confidence_level=confidence_level,
            calibrator=_load_calibrator(calibrator),
            by=by,  # type: ignore[arg-type]
            groups=members,
            positive=inputs.find_positive(predictions),
            max_weight=max_weight,
            max_cluster_size=max_cluster_size,
        )

    _make_and_write(make, output, onnx, as_json=as_json, quiet=quiet)


@command
@options.takes_input
def sets(
    file: File,
    *,
    inputs: options.InputOptions,
    coverage: Annotated[
        float,
        typer.Option(help="Probability that the true class is in the set.", metavar="NUMBER"),
    ] = 0.9,
    method: Annotated[
        str,
        typer.Option(
            help="lac: the smallest sets. aps: sets that grow with the network's doubt; each row "
            "needs a random number.",
            metavar="lac|aps",
        ),
    ] = "lac",
    by: Annotated[
        str | None,
        typer.Option(
            help="The coverage holds for the rows of each true class. A class with too few rows is "
            "in every set.",
            metavar="class",
        ),
    ] = None,
    guarantee: Annotated[
        str,
        typer.Option(
            help="marginal: the coverage holds on average over draws of these rows. pac: it holds "
            "for these rows, with --confidence-level.",
            metavar="marginal|pac",
        ),
    ] = "marginal",
    confidence_level: Level = 0.95,
    calibrator: CalibratorFile = None,
    max_weight: MaxWeight = None,
    max_cluster_size: MaxClusterSize = None,
    seed: options.Seed = 0,
    output: Output = None,
    onnx: Onnx = None,
    plugins: options.Plugins = None,
    as_json: options.AsJson = False,
    quiet: options.Quiet = False,
) -> None:
    """Make sets of classes that hold the true one with a stated probability, and write the rule.

    Takes classes and events (sets of "no" and the event); many labels a row are taken one by one.
    Exits with code 3 if only sets of all classes could promise it.
    """
    from calibrant.decisions import prediction_sets

    output = _choose_output() if output is None else output
    predictions = inputs.read(file, quiet=quiet)

    def make() -> Rule:
        return prediction_sets(
            predictions,
            coverage=coverage,
            method=method,  # type: ignore[arg-type]
            by=by,  # type: ignore[arg-type]
            guarantee=guarantee,  # type: ignore[arg-type]
            confidence_level=confidence_level,
            calibrator=_load_calibrator(calibrator),
            seed=seed,
            max_weight=max_weight,
            max_cluster_size=max_cluster_size,
        )

    _make_and_write(make, output, onnx, as_json=as_json, quiet=quiet)


def read_grouped(
    files: Path | list[Path],
    inputs: options.InputOptions,
    groups: Path | None,
    group_column: str | None,
    *,
    quiet: bool,
    beside: Path | None = None,
) -> tuple[Predictions, Any]:
    """Read predictions and the group of each row; None without groups.

    Args:
        files: The files of predictions.
        inputs: The options that name columns.
        groups: The file of groups.
        group_column: The column of groups.
        quiet: Whether to show no status.
        beside: Another file of predictions that the same options are for.
    """
    from calibrant.evaluation import read_groups
    from calibrant.evaluation.groups.files import GroupColumn, check_groups

    column = group_column if groups is None else None
    own, other, _ = inputs.fit_files(files, groups, beside)
    predictions, columns = own.read_with_columns(files, (column,) if column else (), quiet=quiet)
    if column is not None:
        return predictions, check_groups(GroupColumn(column, columns[column]), predictions)
    if groups is None:
        return predictions, None
    group_names = read_groups(groups, group_column, other.id_column)
    return predictions, check_groups(group_names, predictions)


def _choose_output() -> Path:
    """Return the default output file, which must not replace another."""
    path = Path("rule.safetensors")
    if path.exists():
        raise InputError(f"{path} exists: name another file, or this one, with -o")
    return path


def _load_calibrator(path: Path | None) -> Calibrator | None:
    from calibrant.calibrators.files import load

    return None if path is None else load(path)


def _make_and_write(
    make: Callable[[], Rule], output: Path, onnx: Path | None, *, as_json: bool, quiet: bool
) -> None:
    """Make a rule, write it and show it; exit with code 3 if the promise cannot be kept."""
    from dataclasses import asdict

    from calibrant.decisions import NoThresholdError, export_onnx

    try:
        rule = make()
    except NoThresholdError as error:
        explanation = name_options(str(error))
        if as_json:
            parts = [asdict(part) for part in error.parts]
            echo_json({"output": None, "promise": None, "explanation": explanation, "parts": parts})
        else:
            if len(error.parts) > 1 and not quiet:
                show_parts(error.parts, make_console(), sets=error.parts[0].size is not None)
            console = make_console(stderr=True)
            console.print(explanation, style="bold yellow", soft_wrap=True)
        raise typer.Exit(EXCEEDED) from None
    rule.save(output)
    if onnx is not None:
        export_onnx(rule, onnx)
    if as_json:
        echo_json({"output": str(output), **rule.describe()})
    elif not quiet:
        console = make_console()
        console.print(name_options(rule.promise), style="bold", soft_wrap=True)
        console.print()
        show_parts(rule.parts, console, sets=rule.kind == "sets", target=rule.terms.target)
        console.print()
        console.print(f"rule: {output}", soft_wrap=True)
        if onnx is not None:
            console.print(f"ONNX: {onnx}", soft_wrap=True)
        console.print(
            f"to use it: calibrant apply {output} FILE -o decisions.csv",
            style="dim",
            soft_wrap=True,
        )


def show_parts(
    parts: tuple[Part, ...], console: Console, *, sets: bool, target: str = "max_error"
) -> None:
    """Print a table of what a rule does with each class or group."""
    recall = target == "min_recall"
    table = make_table()
    if len(parts) > 1:
        table.add_column("", style="cyan", overflow="fold")
    headings = (
        ("rows", "mean size", "of one class", "misses", "at most")
        if sets
        else (
            "rows",
            "accepted from",
            "accepted",
            "missed" if recall else "wrong",
            "share missed" if recall else "share wrong",
            "at most",
        )
    )
    for heading in headings:
        table.add_column(heading, justify="right")
    shown = parts[:_MOST_PARTS]
    lacking = any(part.more_rows for part in shown)
    if lacking:
        table.add_column("more rows needed", justify="right")
    for part in shown:
        bound = "–" if part.bound is None else f"{part.bound:.2%}"
        risk = "–" if part.risk is None else f"{part.risk:.2%}"
        if sets:
            size = "–" if part.size is None else f"{part.size:.2f}"
            cells = [f"{part.num_rows:,}", size, f"{part.share:.1%}", risk, bound]
            cells[-1] = "in every set" if part.threshold is None else bound
        else:
            start = "never" if part.threshold is None else format_probability(part.threshold)
            cells = [
                *(f"{part.num_rows:,}", start, f"{part.share:.1%}", f"{part.num_errors:,}"),
                *(risk, bound),
            ]
        if lacking:
            cells.append(f"about {part.more_rows:,}" if part.more_rows else "")
        table.add_row(*([part.name] if len(parts) > 1 else []), *cells)
    console.print(table)
    if len(parts) > _MOST_PARTS:
        console.print(f"and {len(parts) - _MOST_PARTS} more: see --json", style="dim")


def format_probability(value: float) -> str:
    """Write a probability with three digits of its distance from the nearer end of [0, 1]."""
    from math import floor, log10

    gap = min(value, 1 - value)
    digits = 3 if gap >= 0.1 or gap <= 0 else min(12, 2 - floor(log10(gap)))
    return f"{value:.{digits}f}"


def apply_rule(
    rule: Rule,
    file: Path,
    output: Path,
    inputs: options.InputOptions,
    groups: Path | None,
    group_column: str | None,
    seed: int,
    *,
    as_json: bool,
    quiet: bool,
) -> None:
    """Write what a rule says of each row as a table."""
    from calibrant.core.files import replace_file
    from calibrant.decisions import PredictionSets, Threshold

    ending = output.suffix.lower()
    if ending not in _TABLES:
        raise InputError(
            f"{output}: what a rule says is written as a table: name a file that ends in "
            f"{', '.join(_TABLES)}"
        )
    by_group = rule.terms.by == "group"
    if not by_group and (groups is not None or group_column is not None):
        raise InputError("this rule has no thresholds by group: leave the groups out")
    if by_group and groups is None and group_column is None:
        raise InputError(
            "this rule has thresholds by group: name the groups with --groups or --group-column"
        )
    predictions, names = _read_with_names(file, inputs, groups, group_column, quiet=quiet)
    if isinstance(rule, PredictionSets):
        frame = rule.to_frame(predictions, seed=seed)
        counts = {"mean_size": float(frame["size"].mean())}
        words = f"sets of {counts['mean_size']:.2f} classes on average"
    else:
        assert isinstance(rule, Threshold)
        frame = rule.to_frame(predictions, groups=names)
        counts = {"num_accepted": int(frame["accepted"].sum())}
        words = f"{counts['num_accepted']:,} of {len(frame):,} rows accepted"
    with replace_file(output) as temporary:
        if ending == ".csv":
            frame.to_csv(temporary, index=False)
        elif ending == ".jsonl":
            frame.to_json(temporary, orient="records", lines=True)
        else:
            frame.to_parquet(temporary, index=False)
    if as_json:
        echo_json({"output": str(output), "num_rows": len(frame), **counts})
    elif not quiet:
        make_console().print(f"{words}: {output}", soft_wrap=True)


def _read_with_names(
    file: Path,
    inputs: options.InputOptions,
    groups: Path | None,
    group_column: str | None,
    *,
    quiet: bool,
) -> tuple[Predictions, Any]:
    """Read predictions and the name of each row's group, which may be the same for all."""
    from calibrant.evaluation import read_groups
    from calibrant.evaluation.groups.files import match_names

    column = group_column if groups is None else None
    own, other = inputs.fit_files(file, groups)
    predictions, columns = own.read_with_columns(file, (column,) if column else (), quiet=quiet)
    if column is not None:
        return predictions, columns[column]
    if groups is None:
        return predictions, None
    return predictions, match_names(read_groups(groups, group_column, other.id_column), predictions)
