"""The command `calibrant adapt`: classes with other shares."""

from __future__ import annotations

from dataclasses import asdict, replace
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
from calibrant.cli.decide import CalibratorFile
from calibrant.core.errors import InputError

if TYPE_CHECKING:
    from calibrant.calibrators.methods.prior_shift import PriorShift, Shift
    from calibrant.decisions import Unlabelled
    from calibrant.evaluation.verdict import Span
    from calibrant.predictions import Predictions

_MOST_CLASSES = 30  # in the table


@command
@options.takes_input
def adapt(
    source: Annotated[
        Path | None,
        typer.Argument(
            help="Predictions with labels, with the old shares, best of rows that did not fit the "
            "calibrator. With --source-prevalence and --prevalence none are needed.",
            metavar="SOURCE",
            show_default=False,
        ),
    ] = None,
    target: Annotated[
        Path | None,
        typer.Argument(
            help="New predictions, in which to estimate the shares; labels are not used.",
            metavar="TARGET",
            show_default=False,
        ),
    ] = None,
    *,
    prevalence: options.Prevalence = None,
    source_prevalence: Annotated[
        list[str] | None,
        typer.Option(
            help="Known old shares, in place of SOURCE; needs --calibrator and --prevalence.",
            metavar="SHARE",
        ),
    ] = None,
    inputs: options.InputOptions,
    calibrator: CalibratorFile = None,
    confidence_level: Annotated[
        float, typer.Option(help="Level of the intervals.", metavar="NUMBER")
    ] = 0.95,
    resamples: Annotated[
        int, typer.Option(min=100, help="Number of bootstrap resamples.", metavar="N")
    ] = 400,
    seed: options.Seed = 0,
    force: Annotated[
        bool,
        typer.Option(
            "--force",
            help="Write the result even if the estimate is refused: because the scores do not tell "
            "classes apart, or label shift does not explain the new scores.",
        ),
    ] = False,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            help="Output file. Default: adapted.safetensors, which must not exist.",
            metavar="OUT",
            show_default=False,
        ),
    ] = None,
    onnx: Annotated[
        Path | None,
        typer.Option(help="Write the adapted calibrator as ONNX, too.", metavar="OUT.onnx"),
    ] = None,
    plugins: options.Plugins = None,
    as_json: options.AsJson = False,
    quiet: options.Quiet = False,
) -> None:
    """Adapt a calibrator to rows whose classes have other shares, and write it.

    Assumes that only the shares differ. Estimates them in TARGET unless --prevalence states them,
    and says how good the result is there, without labels. Takes classes and events; many labels a
    row are taken one by one. Exits with code 3 if the estimate is refused.
    """
    from calibrant.calibrators import export_onnx
    from calibrant.calibrators.files import load
    from calibrant.decisions import ShiftError, evaluate_unlabelled
    from calibrant.decisions import adapt as adapt_to

    output = _choose_output() if output is None else output
    _check_arguments(source, target, prevalence, source_prevalence)
    fitted = None if calibrator is None else load(calibrator)
    if fitted is not None and fitted.takes_features:
        raise InputError(f"{calibrator}: takes features, and adapt takes scores")
    effect: Unlabelled | None = None
    if source is None:
        adapted = adapt_to(
            fitted,
            source=options.read_prevalence(source_prevalence, "--source-prevalence") or 0.0,
            prevalence=options.read_prevalence(prevalence, "--prevalence"),
        )
    else:
        inputs, other = inputs.fit_files(source, target)
        old = inputs.read(source, quiet=quiet)
        # TARGET need not have labels.
        unlabelled = replace(other, labels=None, label_column=None, ignore_index=None)
        new = None if target is None else unlabelled.read(target, quiet=quiet)
        try:
            effect = evaluate_unlabelled(
                fitted,
                source=old,
                target=new,
                prevalence=_read_shares(prevalence, old, inputs),
                confidence_level=confidence_level,
                resamples=resamples,
                seed=seed,
                force=force,
            )
        except ShiftError as error:
            explanation = name_options(str(error))
            if as_json:
                echo_json({"output": None, "explanation": explanation})
            else:
                console = make_console(stderr=True)
                console.print(f"refused: {explanation}", style="bold yellow", soft_wrap=True)
            raise typer.Exit(EXCEEDED) from None
        adapted = effect.calibrator
    adapted.save(output)
    if onnx is not None:
        export_onnx(adapted, onnx)
    if as_json:
        echo_json({**_describe(adapted, effect), "output": str(output)})
    elif not quiet:
        show_adapted(adapted, effect, make_console())
        console = make_console()
        console.print(f"\ncalibrator: {output}", soft_wrap=True)
        if onnx is not None:
            console.print(f"ONNX: {onnx}", soft_wrap=True)
        console.print(
            f"to use it: calibrant apply {output} FILE -o calibrated.npz",
            style="dim",
            soft_wrap=True,
        )


def _choose_output() -> Path:
    """Return the default output file, which must not replace another."""
    path = Path("adapted.safetensors")
    if path.exists():
        raise InputError(f"{path} exists: name another file, or this one, with -o")
    return path


def _check_arguments(
    source: Path | None,
    target: Path | None,
    prevalence: list[str] | None,
    source_prevalence: list[str] | None,
) -> None:
    """Raise an error unless the old and the new shares are given once each."""
    if (source is None) == (not source_prevalence):
        fault = "not both" if source is not None else "found neither"
        raise InputError(
            f"give SOURCE, predictions with labels, or --source-prevalence, their shares; {fault}"
        )
    if (target is None) == (not prevalence):
        fault = "not both" if target is not None else "found neither"
        raise InputError(
            "give TARGET, new predictions in which to estimate the shares, or --prevalence, the "
            f"known shares; {fault}"
        )


def _read_shares(texts: list[str] | None, old: Predictions, inputs: options.InputOptions) -> Any:
    """Return the known shares; a single one is that of the class of --pos-label."""
    share = options.read_prevalence(texts, "--prevalence")
    positive = inputs.find_positive(old)
    if isinstance(share, float) and positive is not None and old.num_classes == 2:
        return [1 - share, share] if positive == 1 else [share, 1 - share]
    return share


def _describe(adapted: PriorShift, effect: Unlabelled | None) -> dict[str, Any]:
    """Return what JSON says; the assumption comes first."""
    from calibrant.calibrators.methods.prior_shift import ASSUMPTION

    about: dict[str, Any] = {"assumption": ASSUMPTION, "explanation": adapted.explanation}
    if effect is None:
        return {**about, "shift": asdict(adapted.shift_)}
    return {**about, **effect.to_dict()}


def show_adapted(adapted: PriorShift, effect: Unlabelled | None, console: Console) -> None:
    """Print what the shift is, the shares, and how good the calibrator is before and after."""
    shift = adapted.shift_
    first, *rest = shift.sentences
    console.print(first, style="bold", soft_wrap=True)
    for sentence in rest:
        console.print(sentence, soft_wrap=True)
    console.print()
    _show_shares(shift, console)
    if effect is None:
        return
    table = make_table()
    table.add_column("on the new rows", style="cyan")
    table.add_column("before", justify="right")
    table.add_column("after", justify="right")
    for name, before in effect.before.items():
        table.add_row(
            _FIGURES[name], _format_span(name, before), _format_span(name, effect.after[name])
        )
    console.print()
    console.print(table)
    console.print(effect.sentences[-1], style="dim", soft_wrap=True)


_FIGURES = {
    "accuracy": "accuracy",
    "confidence": "mean confidence",
    "rate": "rate of the event",
    "mean": "mean probability",
    "nll": "NLL",
    "brier": "Brier score",
    "gap": "gap, in points",
    "ece": "ECE, in points",
}


def _format_span(name: str, span: Span) -> str:
    """Write a figure with its interval: shares in percent, scores as they are."""
    if name in ("nll", "brier"):
        return f"{span.value:.4f} ({span.low:.4f} to {span.high:.4f})"
    unit = "" if name in ("gap", "ece") else "%"
    value, low, high = (100 * number for number in (span.value, span.low, span.high))
    return f"{value:.1f}{unit} ({low:.1f}{unit} to {high:.1f}{unit})"


def _show_shares(shift: Shift, console: Console) -> None:
    """Print the shares of the classes, old and new."""
    table = make_table()
    table.add_column("class", style="cyan", overflow="fold")
    table.add_column("source", justify="right")
    table.add_column("new", justify="right")
    if shift.low:
        table.add_column("interval", justify="right")
        table.add_column("BBSE", justify="right")
    number = len(shift.names)
    shown = [1] if number == 2 else shift.largest[:_MOST_CLASSES]
    for k in shown:
        cells = [shift.names[k], f"{shift.source[k]:.2%}", f"{shift.target[k]:.2%}"]
        if shift.low:
            cells += [f"{shift.low[k]:.2%} to {shift.high[k]:.2%}", f"{shift.bbse[k]:.2%}"]
        table.add_row(*cells)
    console.print(table)
    if number > 2 and number > _MOST_CLASSES:
        console.print(f"and {number - _MOST_CLASSES} more: see --json", style="dim")
