"""Replicate five calibration papers; see README.md."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from replication.stored import RESULTS, ROOT, StoredResults

app = typer.Typer(help=__doc__, no_args_is_help=True, rich_markup_mode=None)
Folder = Annotated[
    Path, typer.Argument(help="Results folder. Default: replication/results.", show_default=False)
]


@app.command()
def results(folder: Folder = RESULTS) -> None:
    """Write every table, figure, page and claim from the stored runs."""
    from replication.make_results import make_results

    make_results(folder)


@app.command()
def readme(
    check: Annotated[
        bool, typer.Option("--check", help="Change nothing; fail if a number differs.")
    ] = False,
    root: Annotated[Path, typer.Option(help="Root of the checkout.", show_default=False)] = ROOT,
) -> None:
    """Rewrite the numbers in README.md and the pages of results."""
    from replication.readme_numbers import rewrite_pages

    raise typer.Exit(rewrite_pages(root, check=check))


@app.command()
def claims(folder: Folder = RESULTS) -> None:
    """Print the papers' claims and their outcomes."""
    from replication.claims.writers import format_markdown

    typer.echo(format_markdown(StoredResults(folder).outcomes))


@app.command()
def combine(folder: Folder = RESULTS) -> None:
    """Print the best combinations beside the papers' methods."""
    from calibrant.bench import describe_choice
    from replication.readme_numbers import RIVALS

    for choice, frame in StoredResults(folder).combinations:
        typer.echo(f"{choice['protocol']['data']}, {choice['protocol']['model']}")
        typer.echo(frame.to_string(index=False, float_format="{:.4f}".format))
        typer.echo(f"{describe_choice(frame, RIVALS)}\n")


@app.command()
def take(
    source: Annotated[Path, typer.Argument(help="Folder of runs.")], folder: Folder = RESULTS
) -> None:
    """Copy the results of runs into the results folder."""
    from replication.take_results import take_results

    take_results(source, folder)


@app.command()
def published(
    source: Annotated[Path, typer.Argument(help="CSV file of the papers' tables.")],
) -> None:
    """Write published.csv from tables with the papers' own names."""
    from replication.published import FILE, make_published

    typer.echo(f"{make_published(source):,} rows in {FILE.name}")


if __name__ == "__main__":
    app()
