"""Commands of the replication; see README.md."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from replication.stored import RESULTS, ROOT, Stored

app = typer.Typer(help=__doc__, no_args_is_help=True, rich_markup_mode=None)
Folder = Annotated[Path, typer.Argument(help="A folder of results.", show_default=False)]


@app.command()
def results(folder: Folder = RESULTS) -> None:
    """Make every table, page and claim again from the store in the folder."""
    from replication.make_results import make_results

    make_results(folder)


@app.command()
def readme(
    check: Annotated[bool, typer.Option("--check", help="Change nothing; fail on drift.")] = False,
    root: Annotated[Path, typer.Option(help="The checkout.", show_default=False)] = ROOT,
) -> None:
    """Rewrite the numbers of README.md and results/README.md."""
    from replication.readme_numbers import rewrite_pages

    raise typer.Exit(rewrite_pages(root, check=check))


@app.command()
def claims(folder: Folder = RESULTS) -> None:
    """Print what the papers claim, and what the results in the folder say."""
    from replication.claims.writers import markdown

    typer.echo(markdown(Stored(folder).outcomes))


@app.command()
def combine(folder: Folder = RESULTS) -> None:
    """Print the best combinations in the folder, beside what the papers propose."""
    from calibrant.bench import describe_choice
    from replication.readme_numbers import RIVALS

    for choice, frame in Stored(folder).combinations:
        typer.echo(f"{choice['protocol']['data']}, {choice['protocol']['model']}")
        typer.echo(frame.to_string(index=False, float_format="{:.4f}".format))
        typer.echo(f"{describe_choice(frame, RIVALS)}\n")


@app.command()
def take(
    source: Annotated[Path, typer.Argument(help="A folder of runs.")], folder: Folder = RESULTS
) -> None:
    """Take the results of runs into those that are published here."""
    from replication.take_results import take_results

    take_results(source, folder)


@app.command()
def published(source: Annotated[Path, typer.Argument(help="The papers' tables as CSV.")]) -> None:
    """Make published.csv again from the papers' tables under their own names."""
    from replication.published import FILE, make_published

    typer.echo(f"{make_published(source):,} rows in {FILE.name}")


if __name__ == "__main__":
    app()
