"""Commands that repair: fit, apply, rank."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from calibrant.cli.commands import AsJson, Ignored, Labels, Quiet, Scores, Seed, app, read
from calibrant.cli.console import make_console, show_choice, show_ranking
from calibrant.cli.failures import command

if TYPE_CHECKING:
    from calibrant.calibrators import Calibrator

Method = Annotated[
    str,
    typer.Option(
        "--method",
        help="A calibrator by name, or auto: the simplest of the best, cross-validated.",
        metavar="NAME",
    ),
]
Out = Annotated[Path, typer.Option("--output", "-o", help="Where to write it.", metavar="OUT")]


@app.command()
@command
def fit(
    file: Annotated[Path, typer.Argument(help="Held-out predictions.", metavar="VAL")],
    output: Out,
    method: Method = "auto",
    logits: Scores = None,
    labels: Labels = None,
    ignore_index: Ignored = None,
    keep_predictions: Annotated[
        bool, typer.Option(help="Consider only methods that change no prediction.")
    ] = False,
    time_budget: Annotated[
        float | None, typer.Option(help="Stop trying methods after so many seconds.", metavar="S")
    ] = None,
    seed: Seed = 0,
    quiet: Quiet = False,
) -> None:
    """Fit a calibrator on held-out predictions, and write it to a file."""
    from calibrant.calibrators.select import calibrate

    calibrator = calibrate(
        read(file, logits, labels, ignore_index),
        method=method,
        preserve_predictions=keep_predictions,
        time_budget=time_budget,
        seed=seed,
        progress=not quiet,
    )
    calibrator.save(output)
    if not quiet:
        console = make_console()
        if calibrator.choice_ is not None:
            show_choice(calibrator.choice_, console)
        console.print(_effect(calibrator))
        console.print(f"calibrator: {output}", soft_wrap=True)


@app.command()
@command
def apply(
    calibrator: Annotated[Path, typer.Argument(help="A fitted calibrator.", metavar="CALIBRATOR")],
    file: Annotated[Path, typer.Argument(help="Predictions to calibrate.", metavar="FILE")],
    output: Out,
    logits: Scores = None,
    labels: Labels = None,
    ignore_index: Ignored = None,
    quiet: Quiet = False,
) -> None:
    """Calibrate predictions with a fitted calibrator, and write them as logits."""
    from calibrant.calibrators.rank import apply as apply_to
    from calibrant.calibrators.saving import load

    after = apply_to(load(calibrator), read(file, logits, labels, ignore_index))
    after.write(output)
    if not quiet:
        make_console().print(f"calibrated predictions: {output}", soft_wrap=True)


@app.command()
@command
def rank(
    val: Annotated[Path, typer.Argument(help="Held-out predictions.", metavar="VAL")],
    test: Annotated[
        Path | None,
        typer.Argument(help="Predictions to judge on; else VAL is halved.", metavar="[TEST]"),
    ] = None,
    logits: Scores = None,
    labels: Labels = None,
    ignore_index: Ignored = None,
    method: Annotated[
        list[str] | None,
        typer.Option("--method", help="Only this method; repeat for more.", metavar="NAME"),
    ] = None,
    splits: Annotated[
        int, typer.Option(min=1, help="Times VAL is halved without TEST.", metavar="N")
    ] = 5,
    seed: Seed = 0,
    as_json: AsJson = False,
) -> None:
    """Fit every method and judge it on rows it was not fitted on."""
    from calibrant.calibrators.rank import rank as rank_all

    console = make_console(stderr=True)
    with console.status("fitting") as status:
        found = rank_all(
            read(val, logits, labels, ignore_index),
            None if test is None else read(test, logits, labels, ignore_index),
            methods=method,
            splits=splits,
            seed=seed,
            tick=lambda name: status.update(f"fitting {name}"),
        )
    if as_json:
        typer.echo(found.to_frame().reset_index().to_json(orient="records", indent=2))
    else:
        show_ranking(found, make_console())


def _effect(calibrator: Calibrator) -> str:
    seen = calibrator.summary_
    changed = seen["changed"]
    kept = "no prediction changed" if not changed else f"{changed:,} predictions changed"
    return (
        f"{calibrator.name}: NLL {seen['nll_before']:.4f} before, {seen['nll_after']:.4f} after, "
        f"on the {seen['rows']:,} rows of the fit; {kept}."
    )
