"""The command that searches combinations: chosen on validation rows, judged on test rows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import typer

from calibrant.cli.bench import Flag, Folder, bench, store_of
from calibrant.cli.console import command
from calibrant.cli.options import AsJson
from calibrant.core.errors import InputError


@bench.command("combine")
@command
def combine_command(
    out: Folder,
    accuracy_lost: Annotated[
        float,
        Flag("--accuracy-lost", help="Validation accuracy a combination may cost.", metavar="X"),
    ] = 0.005,
    as_json: AsJson = False,
) -> None:
    """Find the loss, recipe and calibrator of lowest ECE, beside plain cross-entropy.

    The choice is made on validation rows the calibrators were not fitted on and written down
    in OUT before a test figure is read. Heads trained on features (mac_cal_head, tst, vtst) were
    not fitted on them, but one number of theirs was chosen there.
    """
    from calibrant.bench import (
        Store,
        choose_combinations,
        describe_choice,
        read_choice,
        report_choice,
    )
    from calibrant.bench.suite.plugins import load_of

    load_of(out)  # results may name losses of theirs
    store = Store(store_of(out))
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
        typer.echo(_headed(name, protocols))
        typer.echo(frame.to_string(index=False, float_format="{:.4f}".format))
        typer.echo(f"{describe_choice(frame)}\n")


def _headed(name: str, protocols: Mapping[str, Mapping[str, Any]]) -> str:
    """A choice's name, and the settings that tell its runs from those of the others."""
    own = protocols[name]
    apart = [
        f"{key} {value}"
        for key, value in own.items()
        if any(other.get(key) != value for other in protocols.values())
    ]
    return f"{name} ({', '.join(apart)})" if apart else name
