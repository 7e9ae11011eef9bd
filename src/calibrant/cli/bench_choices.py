"""The command that chooses combinations on validation rows and judges them on test rows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import typer

from calibrant.cli.bench import Flag, Folder, bench, find_store
from calibrant.cli.console import command
from calibrant.cli.options import AllowPlugins, AsJson
from calibrant.cli.plugin_consent import make_approval
from calibrant.core.errors import InputError


@bench.command("combine")
@command
def combine_command(
    out: Folder,
    accuracy_lost: Annotated[
        float,
        Flag(
            "--accuracy-lost", help="Validation accuracy that a combination may lose.", metavar="X"
        ),
    ] = 0.005,
    allow_plugins: AllowPlugins = False,
    as_json: AsJson = False,
) -> None:
    """Find the loss, recipe and calibrator with the lowest ECE, beside plain cross-entropy.

    The choice is made on validation rows that the calibrators were not fitted on, and written to
    OUT before test figures are read. Heads trained on features (mac_cal_head, tst, vtst) were not
    fitted on these rows, but a single number of each was chosen on them.
    """
    from calibrant.bench import (
        Store,
        choose_combinations,
        describe_choice,
        read_choice,
        report_choice,
    )
    from calibrant.bench.suite.plugins import load_from

    load_from(out, make_approval(allow_plugins))  # results may name their losses
    store = Store(find_store(out))
    paths = choose_combinations(out, accuracy_lost=accuracy_lost, store=store)
    if not paths:
        raise InputError(
            f"{out} holds no crossfitted validation figures of cross_entropy and others: run a "
            "suite whose `after:` has crossfit, such as digits"
        )
    frames = {path.stem: report_choice(path, store) for path in paths}
    if as_json:
        lines = [f'"{name}": {frame.to_json(orient="records")}' for name, frame in frames.items()]
        typer.echo("{" + ", ".join(lines) + "}")
        return
    protocols = {path.stem: (read_choice(path) or {})["protocol"] for path in paths}
    for name, frame in frames.items():
        typer.echo(_describe_protocol(name, protocols))
        typer.echo(frame.to_string(index=False, float_format="{:.4f}".format))
        typer.echo(f"{describe_choice(frame)}\n")


def _describe_protocol(name: str, protocols: Mapping[str, Mapping[str, Any]]) -> str:
    """Return a choice's name, and the settings that tell its runs from other choices'."""
    protocol = protocols[name]
    apart = [
        f"{key} {value}"
        for key, value in protocol.items()
        if any(other.get(key) != value for other in protocols.values())
    ]
    return f"{name} ({', '.join(apart)})" if apart else name
