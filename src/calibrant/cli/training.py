"""The command that trains: a run in a folder, from a file of settings, flags, or both."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from calibrant.cli.commands import AsJson, Quiet, app
from calibrant.cli.console import make_console
from calibrant.cli.failures import command
from calibrant.cli.settings import pairs
from calibrant.functional.errors import InputError

if TYPE_CHECKING:
    from calibrant.training import Config, Run

Flag = typer.Option
SHOWN = ("accuracy", "nll", "ece")


@app.command()
@command
def train(
    settings: Annotated[
        Path | None,
        typer.Argument(help="A YAML file of settings.", metavar="SETTINGS", show_default=False),
    ] = None,
    output: Annotated[
        Path, Flag("--output", "-o", help="The run's folder; gone on with if begun.")
    ] = Path("run"),
    data: Annotated[str | None, Flag(help="A data set by name, or folder:PATH.")] = None,
    data_folder: Annotated[str | None, Flag(help="Where its files are.", metavar="DIR")] = None,
    download: Annotated[bool | None, Flag("--download", help="Fetch what is not there.")] = None,
    model: Annotated[str | None, Flag(help="A network by name.")] = None,
    loss: Annotated[str | None, Flag(help="As in focal+0.5*s_avuc.")] = None,
    recipe: Annotated[str | None, Flag(help="As in mixup(alpha=0.4).")] = None,
    epochs: Annotated[int | None, Flag(metavar="N")] = None,
    batch_size: Annotated[int | None, Flag(metavar="N")] = None,
    lr: Annotated[float | None, Flag(help="The learning rate.")] = None,
    seed: Annotated[int | None, Flag(metavar="N")] = None,
    device: Annotated[str | None, Flag(help="auto, cpu or cuda.")] = None,
    devices: Annotated[int | None, Flag(help="Processes.", metavar="N")] = None,
    change: Annotated[
        list[str] | None,
        Flag("--set", help="Any setting, as in --set schedule=one_cycle.", metavar="NAME=VALUE"),
    ] = None,
    report: Annotated[bool, Flag(help="Write report.html of the test rows.")] = True,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Train a network by a recipe and a loss, into a folder, and report on its confidence."""
    flags = {
        "data": data,
        "data_folder": data_folder,
        "download": download,
        "model": model,
        "loss": loss,
        "recipe": recipe,
        "epochs": epochs,
        "batch_size": batch_size,
        "lr": lr,
        "seed": seed,
        "device": device,
        "devices": devices,
    }
    config = _config(settings, {key: one for key, one in flags.items() if one is not None}, change)
    from calibrant.training import Diverged
    from calibrant.training import train as train_run

    console = make_console(stderr=as_json)
    first = int(os.environ.get("RANK", os.environ.get("LOCAL_RANK", 0))) == 0
    quiet, as_json = quiet or not first, as_json and first  # of several processes one speaks
    if not quiet:
        console.print(config.to_yaml().rstrip(), style="dim", soft_wrap=True)
    try:
        with _telling(config.epochs, shown=not (quiet or as_json), as_json=as_json) as tell:
            run = train_run(config, output, on_epoch=tell)
    except Diverged as error:
        raise InputError(str(error)) from None
    if report and first and not (run.folder / "report.html").exists():
        _write_report(run)
    if as_json:
        print(json.dumps(run.outcome))
    elif not quiet:
        _show(run, console)


def _config(path: Path | None, flags: dict[str, Any], changes: list[str] | None) -> Config:
    """The file's settings, changed by the flags, changed by --set."""
    from calibrant.training.config import Config

    found = Config() if path is None else Config.read(path)
    return found.changed(**(flags | pairs(changes, "--set")))


@contextmanager
def _telling(
    epochs: int, *, shown: bool, as_json: bool
) -> Iterator[Callable[[dict[str, Any]], None]]:
    """A bar on stderr, or JSON lines on stdout."""
    if not shown:
        yield (lambda line: print(json.dumps(line), flush=True)) if as_json else (lambda line: None)
        return
    from rich.progress import Progress, TextColumn, TimeRemainingColumn

    columns = [
        *Progress.get_default_columns()[:3],
        TimeRemainingColumn(),
        TextColumn("{task.fields[said]}"),
    ]
    with Progress(*columns, console=make_console(stderr=True), transient=True) as bar:
        task = bar.add_task("epochs", total=epochs, said="")

        def tell(line: dict[str, Any]) -> None:
            said = f"loss {line['train_loss']:.3f}"
            if "validation_accuracy" in line:
                said += f", validation {line['validation_accuracy']:.1%}"
                said += f", ECE {line['validation_ece']:.3f}"
            bar.update(task, completed=line["epoch"], said=said)

        yield tell


def _write_report(run: Run) -> None:
    from calibrant.evaluation import evaluate
    from calibrant.report import write

    test = run.predictions("test")
    write(evaluate(test), run.folder / "report.html", predictions=test)


def _show(run: Run, console: Any) -> None:
    from rich.table import Table

    outcome = run.outcome
    table = Table(box=None)
    table.add_column("rows")
    for name in SHOWN:
        table.add_column(name, justify="right")
    for part in ("train", "validation", "test"):
        cells = [outcome["figures"].get(f"{part}_{name}") for name in SHOWN]
        if cells[0] is not None:
            table.add_row(part, *(f"{value:.4f}" for value in cells))
    console.print(table)
    epochs = sorted(set(outcome.get("epochs", [outcome["epoch"]])))
    told = f"epoch{'s' * (len(epochs) > 1)} {', '.join(map(str, epochs))}"
    console.print(
        f"{told} {'are' if len(epochs) > 1 else 'is'} reported ({outcome['rule']}); "
        f"{outcome['seconds']:.0f} s",
        style="dim",
    )
    console.print(f"run: {run.folder}", soft_wrap=True)
