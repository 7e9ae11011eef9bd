"""Commands that repair: fit, apply, rank."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from calibrant.cli.commands import app
from calibrant.cli.console import echo_json, make_console, show_choice, show_ranking
from calibrant.cli.failures import command
from calibrant.cli.files import KINDS, read
from calibrant.cli.options import AsJson, Ignored, Labels, Quiet, Scores, Seed
from calibrant.cli.settings import pairs
from calibrant.functional.errors import InputError

if TYPE_CHECKING:
    from calibrant.calibrators import Calibrator
    from calibrant.predictions import Predictions

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
    file: Annotated[
        Path,
        typer.Argument(
            help="Held-out predictions; for mac_cal_head, tst_head and vtst_head, features and "
            "labels of the rows the network was trained on.",
            metavar="VAL",
        ),
    ],
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            help="Where to write it; else calibrator.safetensors, if there is none yet.",
            metavar="OUT",
            show_default=False,
        ),
    ] = None,
    method: Method = "auto",
    option: Annotated[
        list[str] | None,
        typer.Option(
            "--option",
            help="An option of the method, as in --option objective=sb_ece; once or more.",
            metavar="NAME=VALUE",
        ),
    ] = None,
    logits: Scores = None,
    labels: Labels = None,
    ignore_index: Ignored = None,
    keep_predictions: Annotated[
        bool, typer.Option(help="Consider only methods that change no prediction.")
    ] = False,
    time_budget: Annotated[
        float | None, typer.Option(help="Stop trying methods after so many seconds.", metavar="S")
    ] = None,
    validation: Annotated[
        Path | None,
        typer.Option(
            help="For heads on features: features of rows the network was not trained on, to "
            "choose gamma on.",
            metavar="FILE",
        ),
    ] = None,
    seed: Seed = 0,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Fit a calibrator on held-out predictions, and write it to a file."""
    from calibrant.calibrators.registry import get, get_for_scores
    from calibrant.calibrators.select import calibrate

    options = pairs(option, "--option")
    output = _usual_output() if output is None else output
    if method != "auto" and _takes_features(method):
        head = get(method, **({"seed": seed} | options))
        calibrator = _fit_head(head, file, labels, ignore_index, validation, quiet)
    else:
        if validation is not None:
            raise InputError(f"--validation is for methods that take features; {method} does not")
        held = _scores(file, logits, labels, ignore_index, f"the method {method}")
        if method == "auto" and options:
            raise InputError(f"--option is for a method; name one with --method, found {options}")
        if method == "auto":
            calibrator = calibrate(
                held,
                preserve_predictions=keep_predictions,
                time_budget=time_budget,
                seed=seed,
                progress=not quiet,
            )
        else:
            made = get_for_scores(method, from_logits=held.is_logits, **options)
            calibrator = made.fit(held.array, held.labels, ignore_index=held.ignore_index)
    calibrator.save(output)
    if as_json:
        echo_json(_outcome(calibrator, output))
    elif not quiet:
        console = make_console()
        if calibrator.choice_ is not None:
            show_choice(calibrator.choice_, console)
        console.print(_effect(calibrator))
        console.print(f"calibrator: {output}", soft_wrap=True)


@app.command()
@command
def apply(
    calibrator: Annotated[Path, typer.Argument(help="A fitted calibrator.", metavar="CALIBRATOR")],
    file: Annotated[
        Path,
        typer.Argument(help="Predictions to calibrate; for a head, features.", metavar="FILE"),
    ],
    output: Out,
    logits: Scores = None,
    labels: Labels = None,
    ignore_index: Ignored = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Calibrate predictions with a fitted calibrator, and write them as logits.

    Predictions without labels are written without labels.
    """
    from calibrant.calibrators.features import apply_features, read_features
    from calibrant.calibrators.rank import apply as apply_to
    from calibrant.calibrators.saving import load

    made, labelled = load(calibrator), True
    if output.exists() and output.samefile(file):
        raise InputError(f"{output} is what is read: name another file with -o")
    if made.takes_features:
        after = apply_features(made, read_features(file, labels=labels, ignore_index=ignore_index))
    else:
        given, labelled = _scores_to_apply(file, logits, labels, ignore_index, made)
        after = apply_to(made, given)
    after.write(output, labels=labelled)
    if as_json:
        echo_json(
            {
                "output": str(output),
                "method": made.name,
                "num_rows": after.num_rows,
                "num_classes": after.num_classes,
                "labels": labelled,
            }
        )
    elif not quiet:
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
        tell = status.update if console.is_terminal else console.print  # a line each, in a log
        found = rank_all(
            _scores(val, logits, labels, ignore_index, "rank"),
            None if test is None else _scores(test, logits, labels, ignore_index, "rank"),
            methods=method,
            splits=splits,
            seed=seed,
            tick=lambda name: tell(f"fitting {name}"),
        )
    if as_json:
        typer.echo(found.to_frame().reset_index().to_json(orient="records", indent=2))
    else:
        show_ranking(found, make_console())


def _usual_output() -> Path:
    """Where a calibrator goes that nobody named; never over another."""
    usual = Path("calibrator.safetensors")
    if usual.exists():
        raise InputError(f"{usual} is there already: name another file, or this one, with -o")
    return usual


def _takes_features(method: str) -> bool:
    from calibrant.calibrators.registry import kind_of

    return kind_of(method).takes_features


def _scores(
    file: Path, logits: bool | None, labels: Path | None, ignore_index: int | None, who: str
) -> Predictions:
    """Predictions of a file; features, which only a head takes, are told apart from damage."""
    from calibrant.calibrators.features import holds_features

    if holds_features(file):
        raise InputError(
            f"{file}: holds features, and {who} takes logits or probabilities; features are for "
            "`calibrant fit --method mac_cal_head`"
        )
    return read(file, logits, labels, ignore_index)


def _scores_to_apply(
    file: Path,
    logits: bool | None,
    labels: Path | None,
    ignore_index: int | None,
    calibrator: Calibrator,
) -> tuple[Predictions, bool]:
    """Predictions, and whether they have labels: what is applied needs none."""
    from calibrant.calibrators.features import holds_features
    from calibrant.predictions import Predictions
    from calibrant.predictions.reading import labels_to_stand_in

    is_file = file.is_file() and labels is None and not holds_features(file)
    zeros = labels_to_stand_in(file) if is_file else None
    if zeros is None:
        who = f"this {calibrator.name} calibrator"
        return _scores(file, logits, labels, ignore_index, who), True
    return Predictions.read(file, labels=zeros, kind=KINDS.get(logits)), False


def _fit_head(
    head: Calibrator,
    file: Path,
    labels: Path | None,
    ignore_index: int | None,
    validation: Path | None,
    quiet: bool,
) -> Calibrator:
    from calibrant.calibrators.feature_head import FeatureHead
    from calibrant.calibrators.features import read_features

    given = read_features(file, labels=labels, ignore_index=ignore_index)
    held = None if validation is None else read_features(validation, ignore_index=ignore_index)
    assert isinstance(head, FeatureHead)
    head.class_names_ = given.class_names
    return head.fit(
        given.array,
        given.labels,
        ignore_index=given.ignore_index,
        validation=None if held is None else (held.array, held.labels),
        progress=not quiet,
    )


def _outcome(calibrator: Calibrator, output: Path) -> dict[str, Any]:
    """What was fitted, what it does to the rows of the fit, and why it was chosen."""
    choice = calibrator.choice_
    return {
        "output": str(output),
        "method": calibrator.name,
        "summary": dict(calibrator.summary_),
        "choice": None if choice is None else {**asdict(choice), "explanation": choice.explanation},
    }


def _effect(calibrator: Calibrator) -> str:
    seen = calibrator.summary_
    if calibrator.takes_features:
        judged = "validation" if "ece_validation" in seen else "after"
        masks = ""
        if calibrator.name == "mac_cal_head":
            masks = f"gamma {seen['gamma']:g}, sparsity {seen['sparsity'][-2]:.3f}, "
        return (
            f"{calibrator.name}: {masks}{seen['features']:,} features, {seen['classes']:,} "
            "classes; on the "
            f"{'validation rows' if judged == 'validation' else 'rows of the fit'} accuracy "
            f"{seen[f'accuracy_{judged}']:.4f}, ECE {seen[f'ece_{judged}']:.4f}, "
            f"NLL {seen[f'nll_{judged}']:.4f}."
        )
    changed = seen["changed"]
    kept = "no prediction changed" if not changed else f"{changed:,} predictions changed"
    return (
        f"{calibrator.name}: NLL {seen['nll_before']:.4f} before, {seen['nll_after']:.4f} after, "
        f"on the {seen['rows']:,} rows of the fit; {kept}."
    )
