"""Options that several commands share, and the functions that read their values."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from calibrant.cli.console import command
from calibrant.core.errors import InputError
from calibrant.core.extras import require
from calibrant.core.method_text import parse_value
from calibrant.core.plugins import load_plugins
from calibrant.core.progress import status

if TYPE_CHECKING:
    from calibrant.predictions import Predictions

Scores = Annotated[
    bool | None,
    typer.Option(
        "--logits/--probs",
        help="Say what a bare array holds; other files name their arrays.",
        show_default=False,
    ),
]
Labels = Annotated[
    Path | None, typer.Option(help="File with the labels, if FILE holds none.", metavar="FILE")
]
Ignored = Annotated[
    int | None, typer.Option(help="Leave out rows with this label, such as -100.", metavar="N")
]
Metrics = Annotated[
    list[str] | None,
    typer.Option(
        "--metric",
        "-m",
        help="Compute this metric instead of the default ones; repeatable. "
        "`calibrant metrics` lists all.",
        metavar="NAME",
    ),
]
Bins = Annotated[int, typer.Option(min=1, help="Number of bins of binned metrics.", metavar="N")]
Resamples = Annotated[
    int, typer.Option(min=100, help="Number of bootstrap resamples for intervals.", metavar="N")
]
Seed = Annotated[int, typer.Option(min=0, help="Random seed.", metavar="N")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print only errors and failed limits.")]


def _use_plugins(names: list[str] | None) -> list[str] | None:
    """Load the plugins while the options are parsed: other options name their methods."""
    if names:
        _load_plugins(names)
    return names


@command
def _load_plugins(names: list[str]) -> None:
    load_plugins(names)


Plugins = Annotated[
    list[str] | None,
    typer.Option(
        "--plugins",
        help="Load a .py file or a module that registers methods of your own; repeatable.",
        metavar="FILE_OR_MODULE",
        callback=_use_plugins,
    ),
]
KINDS: dict[bool | None, Literal["logits", "probs"]] = {True: "logits", False: "probs"}


def read_predictions(
    file: Path,
    logits: bool | None,
    labels: Path | None,
    ignore_index: int | None,
    *,
    quiet: bool = False,
) -> Predictions:
    """Read the predictions that the shared options describe."""
    from calibrant.predictions import Predictions

    with status(f"reading {file}", shown=not quiet):
        return Predictions.read(
            file, labels=labels, kind=KINDS.get(logits), ignore_index=ignore_index
        )


def parse_settings(texts: Iterable[str] | None, option: str) -> dict[str, Any]:
    """Parse the ``NAME=VALUE`` texts of a repeatable option."""
    settings: dict[str, Any] = {}
    for text in texts or ():
        name, sign, value = text.partition("=")
        if not sign or not name.strip():
            raise InputError(f"{option} takes NAME=VALUE, found {text!r}")
        settings[name.strip()] = _parse_value(value, f"{option} {name}")
    return settings


def _parse_value(text: str, option: str) -> Any:
    """Parse a plain value; brackets may hold YAML, as in {hidden: [32]}."""
    try:
        return parse_value(text)
    except InputError:
        yaml = require("yaml", extra="train", purpose=f"{option}={text}")
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError:
        raise InputError(f"{option}: {text!r} is neither a Python nor a YAML value") from None


def split_metrics(metric: list[str] | None) -> list[str]:
    """Return the names that --metric gives; check them before a large file is read."""
    from calibrant.metrics import measure

    names = [name.strip() for text in metric or () for name in text.split(",")]
    for name in names:
        measure(name)
    return names
