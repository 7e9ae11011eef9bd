"""Commands that carry results between machines."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from calibrant.cli.bench import Flag, Folder, bench, find_store
from calibrant.cli.console import command, make_console
from calibrant.cli.options import AsJson, Quiet


@bench.command("merge")
@command
def merge_command(
    sources: Annotated[
        list[Path],
        typer.Argument(
            help="Folders of runs, archives made by `pack`, or folders of Parquet files.",
            metavar="FROM...",
            show_default=False,
        ),
    ],
    into: Annotated[Path, Flag("--into", help="Output folder.", metavar="OUT")],
    compact: Annotated[
        bool, Flag("--compact", help="Then join all result files into one.")
    ] = False,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Merge the results of other machines."""
    from calibrant.bench import Store
    from calibrant.bench.store.transport import merge

    counts = merge(sources, into)
    if compact:
        Store(find_store(into)).compact()
    _show_counts(counts, into, quiet=quiet, as_json=as_json)


@bench.command("pack")
@command
def pack_command(
    out: Folder,
    archive: Annotated[
        Path,
        typer.Argument(help="Output file, .tar or .tar.gz.", metavar="ARCHIVE", show_default=False),
    ],
    predictions: Annotated[bool, Flag("--predictions", help="Include kept predictions.")] = False,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Pack results and the small files of runs into an archive; runs may continue meanwhile."""
    from calibrant.bench.store.transport import pack

    counts = pack(out, archive, predictions=predictions)
    _show_counts(counts, archive, quiet=quiet, as_json=as_json)


def _show_counts(counts: dict[str, int], where: Path, *, quiet: bool, as_json: bool) -> None:
    if as_json:
        print(json.dumps(counts))
    elif not quiet:
        words = ", ".join(f"{count} {name}" for name, count in counts.items())
        make_console().print(f"{where}: {words}", soft_wrap=True)
