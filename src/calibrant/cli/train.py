"""The commands that train networks: `calibrant train` and `calibrant demo`."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from calibrant.cli import options
from calibrant.cli.console import command, make_console, show_report_path
from calibrant.core.errors import InputError

if TYPE_CHECKING:
    from calibrant.training import Config, Run

Flag = typer.Option
SHOWN_METRICS = ("accuracy", "nll", "ece")


@command
def train(
    settings: Annotated[
        Path | None,
        typer.Argument(
            help="YAML file of settings; options replace them.",
            metavar="SETTINGS",
            show_default=False,
        ),
    ] = None,
    output: Annotated[
        Path, Flag("--output", "-o", help="Output folder; resumed if it exists.")
    ] = Path("run"),
    data: Annotated[str | None, Flag(help="Name of a data set, or folder:PATH.")] = None,
    data_folder: Annotated[str | None, Flag(help="Folder with the data.", metavar="DIR")] = None,
    download: Annotated[
        bool | None, Flag("--download", help="Download the data if it is missing.")
    ] = None,
    model: Annotated[str | None, Flag(help="Name of a network.")] = None,
    loss: Annotated[str | None, Flag(help="Loss, as in focal+0.5*s_avuc.")] = None,
    recipe: Annotated[str | None, Flag(help="Recipe, as in mixup(alpha=0.4).")] = None,
    epochs: Annotated[int | None, Flag(help="Number of epochs.", metavar="N")] = None,
    batch_size: Annotated[int | None, Flag(help="Rows per batch.", metavar="N")] = None,
    lr: Annotated[float | None, Flag(help="Learning rate.")] = None,
    seed: Annotated[int | None, Flag(help="Random seed.", metavar="N")] = None,
    device: Annotated[str | None, Flag(help="auto, cpu or cuda.")] = None,
    devices: Annotated[int | None, Flag(help="Number of processes.", metavar="N")] = None,
    change: Annotated[
        list[str] | None,
        Flag("--set", help="Set any setting, as in schedule=one_cycle.", metavar="NAME=VALUE"),
    ] = None,
    plugins: options.Plugins = None,
    report: Annotated[bool, Flag(help="Write report.html on the test rows.")] = True,
    quiet: options.Quiet = False,
    as_json: options.AsJson = False,
) -> None:
    """Train a network with a loss and a recipe, and report on its confidence."""
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
    options_set = {name: value for name, value in flags.items() if value is not None}
    config = _read_config(settings, options_set | options.parse_settings(change, "--set"))
    from calibrant.training import Diverged
    from calibrant.training import train as train_network

    console = make_console(stderr=as_json)
    is_first = int(os.environ.get("RANK", os.environ.get("LOCAL_RANK", 0))) == 0
    quiet, as_json = quiet or not is_first, as_json and is_first  # one process prints
    if not quiet:
        console.print(config.to_yaml().rstrip(), style="dim", soft_wrap=True)
    try:
        with _show_epochs(config.epochs, shown=not quiet, as_json=as_json) as on_epoch:
            run = train_network(config, output, on_epoch=on_epoch)
    except Diverged as error:
        raise InputError(str(error)) from None
    if report and is_first and not (run.folder / "report.html").exists():
        _write_report(run)
    if as_json:
        print(json.dumps(run.outcome))
    elif not quiet:
        _show_run(run, console)


@command
def demo(
    output: Annotated[
        Path, typer.Option("--output", "-o", help="Output folder.", metavar="FOLDER")
    ] = Path("calibrant-demo"),
    seed: options.Seed = 0,
    quiet: options.Quiet = False,
) -> None:
    """Train a small network, calibrate it and write reports on its confidence."""
    from calibrant.demo import run_demo

    show_report_path(run_demo(output, seed=seed, quiet=quiet))


def _read_config(path: Path | None, changes: dict[str, Any]) -> Config:
    """Read a file of settings, or take the defaults, and change some."""
    from calibrant.training.config import Config

    config = Config() if path is None else Config.read(path)
    return config.changed(**changes)


@contextmanager
def _show_epochs(
    epochs: int, *, shown: bool, as_json: bool
) -> Iterator[Callable[[dict[str, Any]], None]]:
    """Show the epochs as a progress bar on stderr, or as JSON lines on stdout."""
    if as_json:
        yield lambda record: print(json.dumps(record), flush=True)
        return
    if not shown:
        yield lambda record: None
        return
    from rich.progress import Progress, TextColumn, TimeRemainingColumn

    columns = [
        *Progress.get_default_columns()[:3],
        TimeRemainingColumn(),
        TextColumn("{task.fields[figures]}"),
    ]
    with Progress(*columns, console=make_console(stderr=True), transient=True) as bar:
        task = bar.add_task("epochs", total=epochs, figures="")

        def update(record: dict[str, Any]) -> None:
            figures = f"loss {record['train_loss']:.3f}"
            if "validation_accuracy" in record:
                figures += f", validation {record['validation_accuracy']:.1%}"
                figures += f", ECE {record['validation_ece']:.3f}"
            bar.update(task, completed=record["epoch"], figures=figures)

        yield update


def _write_report(run: Run) -> None:
    from calibrant.evaluation import evaluate
    from calibrant.report import write

    test = run.predictions("test")
    write(evaluate(test), run.folder / "report.html", predictions=test)


def _show_run(run: Run, console: Console) -> None:
    outcome = run.outcome
    table = Table(box=None)
    table.add_column("rows")
    for name in SHOWN_METRICS:
        table.add_column(name, justify="right")
    for part in ("train", "validation", "test"):
        figures = [outcome["figures"].get(f"{part}_{name}") for name in SHOWN_METRICS]
        if figures[0] is not None:
            table.add_row(part, *(f"{value:.4f}" for value in figures))
    console.print(table)
    epochs = sorted(set(outcome.get("epochs", [outcome["epoch"]])))
    numbers = f"epoch{'s' * (len(epochs) > 1)}: {', '.join(map(str, epochs))}"
    console.print(
        f"reported {numbers} ({outcome['rule']}); {outcome['seconds']:.0f} s", style="dim"
    )
    console.print(f"run: {run.folder}", soft_wrap=True)
