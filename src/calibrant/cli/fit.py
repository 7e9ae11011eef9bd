"""The commands that calibrate: `calibrant fit`, `apply` and `rank`."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from calibrant.cli import options
from calibrant.cli.console import command, echo_json, make_console, make_table
from calibrant.cli.decide import apply_rule
from calibrant.core.errors import InputError

if TYPE_CHECKING:
    from calibrant.calibrators import Calibrator
    from calibrant.calibrators.choose import Choice
    from calibrant.calibrators.rank import Ranking
    from calibrant.predictions import Predictions


@command
@options.takes_input
def fit(
    file: Annotated[
        list[Path],
        typer.Argument(
            help="Held-out predictions with labels, one file or several. mac_cal_head, tst_head "
            "and vtst_head take features and labels of the network's training rows instead.",
            metavar="VAL",
        ),
    ],
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            help="Output file. Default: calibrator.safetensors, which must not exist.",
            metavar="OUT",
            show_default=False,
        ),
    ] = None,
    method: Annotated[
        str,
        typer.Option(
            "--method",
            help="Name of a calibrator, or auto: a blend weighed by held-out rows.",
            metavar="NAME",
        ),
    ] = "auto",
    option: Annotated[
        list[str] | None,
        typer.Option(
            "--option",
            help="Set an option of the method, as in objective=sb_ece; repeatable.",
            metavar="NAME=VALUE",
        ),
    ] = None,
    *,
    inputs: options.InputOptions,
    keep_predictions: Annotated[
        bool, typer.Option(help="Consider only methods that change no predicted class.")
    ] = False,
    time_budget: Annotated[
        float | None, typer.Option(help="Stop trying methods after S seconds.", metavar="S")
    ] = None,
    validation: Annotated[
        Path | None,
        typer.Option(
            help="Features of rows that the network was not trained on; a head chooses gamma on "
            "them.",
            metavar="FILE",
        ),
    ] = None,
    seed: options.Seed = 0,
    plugins: options.Plugins = None,
    as_json: options.AsJson = False,
    quiet: options.Quiet = False,
) -> None:
    """Fit a calibrator on held-out predictions and write it to a file."""
    from calibrant.calibrators.choose import calibrate
    from calibrant.calibrators.registry import get, kind_of

    settings = options.parse_settings(option, "--option")
    output = _choose_output() if output is None else output
    if method != "auto" and kind_of(method).takes_features:
        head = get(method, **({"seed": seed} | settings))
        calibrator = _fit_head(head, _one_file(file), inputs, validation, quiet)
    else:
        if validation is not None:
            raise InputError(f"--validation requires a method that takes features, not {method}")
        predictions = _read_scores(file, inputs, f"the method {method}")
        if method == "auto" and settings:
            raise InputError(
                f"--option requires a method: name one with --method, found {settings}"
            )
        if method == "auto":
            calibrator = calibrate(
                predictions,
                preserve_predictions=keep_predictions,
                time_budget=time_budget,
                seed=seed,
                progress=not quiet,
            )
        else:
            calibrator = calibrate(predictions, method=method, **settings)
    calibrator.save(output)
    choice = calibrator.choice_
    if as_json:
        explained = choice and {**asdict(choice), "explanation": choice.explanation}
        echo_json(
            {
                "output": str(output),
                "method": calibrator.name,
                "summary": dict(calibrator.summary_),
                "choice": explained,
            }
        )
    elif not quiet:
        console = make_console()
        if choice is not None:
            show_choice(choice, console)
        console.print(_describe_fit(calibrator))
        console.print(f"calibrator: {output}", soft_wrap=True)


@command
@options.takes_input
def apply(
    calibrator: Annotated[
        Path,
        typer.Argument(
            help="A fitted calibrator, or a rule from `calibrant decide` or `calibrant sets`.",
            metavar="CALIBRATOR",
        ),
    ],
    file: Annotated[
        Path,
        typer.Argument(help="Predictions to calibrate; for a head, features.", metavar="FILE"),
    ],
    output: Annotated[
        Path,
        typer.Option(
            "--output",
            "-o",
            help="Output file for the predictions; for the table of a rule .csv, .jsonl or "
            ".parquet.",
            metavar="OUT",
        ),
    ],
    *,
    inputs: options.InputOptions,
    groups: Annotated[
        Path | None,
        typer.Option(
            help="File with the group of each row, for a rule with thresholds by group.",
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
    seed: options.Seed = 0,
    plugins: options.Plugins = None,
    as_json: options.AsJson = False,
    quiet: options.Quiet = False,
) -> None:
    """Apply a calibrator, and write calibrated predictions as logits; or a rule, as a table.

    Predictions without labels are written without labels. The table of a rule has one line per row:
    id, prediction, probability, and whether it is accepted, or its set of classes. --seed is for
    aps sets, which need random numbers.
    """
    from calibrant.calibrators.heads.features import apply_features, read_features
    from calibrant.calibrators.rank import apply as apply_calibrator
    from calibrant.decisions import Rule, load

    fitted = load(calibrator)
    if output.exists() and output.samefile(file):
        raise InputError(f"{output} is the input file: name another output with -o")
    if isinstance(fitted, Rule):
        apply_rule(
            fitted, file, output, inputs, groups, group_column, seed, as_json=as_json, quiet=quiet
        )
        return
    if groups is not None or group_column is not None:
        raise InputError("--groups and --group-column are for rules, this is a calibrator")
    if fitted.takes_features:
        features = read_features(file, labels=inputs.labels, ignore_index=inputs.ignore_index)
        calibrated = apply_features(fitted, features)
    else:
        before = _read_scores(file, inputs, f"this {fitted.name} calibrator")
        calibrated = apply_calibrator(fitted, before)
    calibrated.write(output)
    if as_json:
        echo_json(
            {
                "output": str(output),
                "method": fitted.name,
                "num_rows": calibrated.num_rows,
                "num_classes": calibrated.num_classes,
                "labels": calibrated.labels is not None,
            }
        )
    elif not quiet:
        make_console().print(f"calibrated predictions: {output}", soft_wrap=True)


@command
@options.takes_input
def rank(
    val: Annotated[Path, typer.Argument(help="Held-out predictions to fit on.", metavar="VAL")],
    test: Annotated[
        Path | None,
        typer.Argument(
            help="Predictions to evaluate on; without them VAL is split in half.", metavar="[TEST]"
        ),
    ] = None,
    *,
    inputs: options.InputOptions,
    method: Annotated[
        list[str] | None,
        typer.Option("--method", help="Rank only this method; repeatable.", metavar="NAME"),
    ] = None,
    splits: Annotated[
        int, typer.Option(min=1, help="Number of random splits of VAL without TEST.", metavar="N")
    ] = 5,
    seed: options.Seed = 0,
    plugins: options.Plugins = None,
    as_json: options.AsJson = False,
) -> None:
    """Fit every calibrator and rank them on rows they were not fitted on."""
    from calibrant.calibrators.rank import rank as rank_calibrators

    own, other = inputs.fit_files(val, test)
    console = make_console(stderr=True)
    with console.status("fitting") as status:
        show = status.update if console.is_terminal else console.print  # a log gets a line each
        ranking = rank_calibrators(
            _read_scores(val, own, "rank"),
            None if test is None else _read_scores(test, other, "rank"),
            methods=method,
            splits=splits,
            seed=seed,
            tick=lambda name: show(f"fitting {name}"),
        )
    if as_json:
        typer.echo(ranking.to_frame().reset_index().to_json(orient="records", indent=2))
    else:
        show_ranking(ranking, make_console())


def _choose_output() -> Path:
    """Return the default output file, which must not replace another."""
    path = Path("calibrator.safetensors")
    if path.exists():
        raise InputError(f"{path} exists: name another file, or this one, with -o")
    return path


def _read_scores(
    files: Path | list[Path], inputs: options.InputOptions, reader: str
) -> Predictions:
    """Read predictions; a file of features raises an error that says which method takes it."""
    try:
        return inputs.read(files)
    except InputError:
        from calibrant.calibrators.heads.features import holds_features

        paths = files if isinstance(files, list) else [files]
        features = [file for file in paths if file.is_file() and holds_features(file)]
        if not features:
            raise
        raise InputError(
            f"{features[0]}: holds features, and {reader} takes logits or probabilities; features "
            "are for `calibrant fit --method mac_cal_head`"
        ) from None


def _one_file(files: list[Path]) -> Path:
    """Return the only file of features."""
    if len(files) > 1:
        raise InputError(f"a head is fitted on one file of features, found {len(files)}")
    return files[0]


def _fit_head(
    head: Calibrator,
    file: Path,
    inputs: options.InputOptions,
    validation: Path | None,
    quiet: bool,
) -> Calibrator:
    """Fit a head on a file of features."""
    from calibrant.calibrators.heads.base import FeatureHead
    from calibrant.calibrators.heads.features import read_features

    ignored = inputs.ignore_index
    train = read_features(file, labels=inputs.labels, ignore_index=ignored)
    held_out = None if validation is None else read_features(validation, ignore_index=ignored)
    assert isinstance(head, FeatureHead)
    head.class_names_ = train.class_names
    return head.fit(
        train.array,
        train.labels,
        ignore_index=train.ignore_index,
        validation=None if held_out is None else (held_out.array, held_out.labels),
        progress=not quiet,
    )


def _describe_fit(calibrator: Calibrator) -> str:
    """Describe a fitted calibrator and its effect in one sentence."""
    summary = calibrator.summary_
    if calibrator.takes_features:
        has_validation = "ece_validation" in summary
        rows, key = (
            ("validation rows", "validation") if has_validation else ("fitted rows", "after")
        )
        masks = ""
        if calibrator.name == "mac_cal_head":
            masks = f"gamma {summary['gamma']:g}, sparsity {summary['sparsity'][-2]:.3f}, "
        return (
            f"{calibrator.name}: {masks}{summary['features']:,} features, "
            f"{summary['classes']:,} classes; on the {rows} accuracy "
            f"{summary[f'accuracy_{key}']:.4f}, ECE {summary[f'ece_{key}']:.4f}, "
            f"NLL {summary[f'nll_{key}']:.4f}."
        )
    start = (
        f"{calibrator.name}: NLL {summary['nll_before']:.4f} before, {summary['nll_after']:.4f} "
        f"after, on the {summary['rows']:,} fitted rows"
    )
    if calibrator.takes_labels:
        shared = f", {summary['pooled']:,} of which share one" if summary["pooled"] else ""
        return f"{start}; {summary['classes']:,} labels{shared}."
    if calibrator.for_events_:
        return (
            f"{start}; says {summary['mean_before']:.2%} on average before, "
            f"{summary['mean_after']:.2%} after, and {summary['rate']:.2%} happen."
        )
    changed = summary["changed"]
    effect = "no prediction changed" if not changed else f"{changed:,} predictions changed"
    return f"{start}; {effect}."


def show_choice(choice: Choice, console: Console) -> None:
    """Print which calibrator was chosen and why, and a table of the candidates."""
    console.print(choice.explanation, style="bold")
    if not hasattr(choice, "candidates"):  # of many labels, each of which has its own
        return
    console.print()
    table = make_table()
    table.add_column("method", style="cyan", no_wrap=True)
    measured = ["nll", "nll_error"]
    if any(candidate.ece == candidate.ece for candidate in choice.candidates):
        measured += ["ece", "ece_error"]  # which a blend does not measure
    headings = {"nll": "NLL", "nll_error": "± from best", "ece": "ECE", "ece_error": "±"}
    for heading in (*(headings[name] for name in measured), "seconds"):
        table.add_column(heading, justify="right")
    table.add_column("")
    for candidate in sorted(choice.candidates, key=lambda row: (row.nll != row.nll, row.nll)):
        figures = [getattr(candidate, name) for name in measured]
        cells = ["–" if value != value else f"{value:.4f}" for value in figures]
        remark = "chosen" if candidate.chosen else candidate.note
        table.add_row(candidate.method, *cells, f"{candidate.seconds:.2f}", remark)
    console.print(table)
    whole = "" if choice.num_clusters is None else f" in {choice.num_clusters:,} clusters"
    console.print(
        f"Cross-validated: {choice.folds} folds of {choice.num_rows:,} rows{whole}.", style="dim"
    )


def show_ranking(ranking: Ranking, console: Console) -> None:
    """Print the metrics of every calibrator, best likelihood first."""
    frame = ranking.to_frame()
    table = make_table()
    table.add_column("method", style="cyan", no_wrap=True)
    names = [name for name in frame.columns if not name.endswith("_error")]
    for name in names:
        table.add_column(name, justify="right", overflow="fold")
    for method, row in frame.iterrows():
        cells = []
        for name in names:
            value, digits = float(row[name]), 2 if name == "seconds" else 4
            error = f"{name}_error"
            spread = f" ±{float(row[error]):.{digits}f}" if error in row and name == "nll" else ""
            cells.append(f"{value:.{digits}f}{spread}")
        table.add_row(str(method), *cells)
    if not console.is_terminal:  # a file has no edge
        room = console.options.update(max_width=1000)
        console.width = max(console.width, console.measure(table, options=room).maximum)
    console.print(table)
    splits = ranking.values.shape[1]
    if splits > 1:
        console.print(f"Means over {splits} splits; ± is one standard error.", style="dim")
    for name, note in ranking.notes.items():
        console.print(f"{name}: {note}", style="dim")
