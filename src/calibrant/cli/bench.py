"""Commands of the bench: make a suite's runs, see how far they are, and show what came out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from calibrant.cli.bench_progress import showing, tell_end
from calibrant.cli.console import command, make_console
from calibrant.cli.options import AsJson, Quiet
from calibrant.core.errors import InputError

if TYPE_CHECKING:
    from calibrant.bench import Suite

bench = typer.Typer(
    name="bench",
    help="Many runs from one suite file: make them, and show what came out.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
Flag = typer.Option
Folder = Annotated[
    Path, typer.Argument(help="The folder of the runs.", metavar="OUT", show_default=False)
]
SuiteFile = Annotated[
    str | None,
    Flag(
        "--suite",
        help="A file, or a name: of a suite that was run there, else of a shipped one. Left out: "
        "the one last run there.",
        metavar="SUITE",
    ),
]
Only = Annotated[
    list[str] | None,
    Flag(
        "--only",
        help="Runs of a method and settings, as in acls/data=cifar10; * stands for anything. "
        "Repeat it for more.",
        metavar="METHOD/NAME=VALUE",
    ),
]
Seeds = Annotated[
    str | None, Flag("--seeds", help="Of these seeds, as in 0,2 or 0-4.", metavar="SEEDS")
]


@bench.command("run")
@command
def run_command(
    suite: Annotated[
        str,
        typer.Argument(
            help="A suite file, or a shipped suite's name: see `calibrant bench list`.",
            metavar="SUITE",
            show_default=False,
        ),
    ],
    output: Annotated[
        Path, Flag("--output", "-o", help="The folder of the runs; gone on with if begun.")
    ] = Path("bench"),
    on: Annotated[str, Flag(help="here, pool (processes of this machine) or ray.")] = "here",
    workers: Annotated[int | None, Flag(min=1, help="Runs at a time.", metavar="N")] = None,
    threads: Annotated[int | None, Flag(min=1, help="Threads of each.", metavar="N")] = None,
    limit_minutes: Annotated[
        float | None, Flag(min=0, help="Begin no run after so many minutes.", metavar="M")
    ] = None,
    only: Only = None,
    seeds: Seeds = None,
    beside: Annotated[
        list[str] | None,
        Flag(
            "--with", help="Measure what this suite wants of the same runs, too.", metavar="SUITE"
        ),
    ] = None,
    retry: Annotated[
        bool, Flag("--retry", help="Try runs and measurements that failed again.")
    ] = False,
    data_folder: Annotated[str | None, Flag(help="Where data sets are.", metavar="DIR")] = None,
    device: Annotated[str | None, Flag(help="auto, cpu or cuda.")] = None,
    compiled: Annotated[
        bool, Flag("--compile", help="Compile networks and losses: less work for a GPU.")
    ] = False,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Make the runs of a suite that are not made yet."""
    from calibrant.bench import Suite, run_suite

    found = Suite.read(suite)
    with showing(quiet=quiet, as_json=as_json) as tell:
        summary = run_suite(
            found,
            output,
            on=on,
            workers=workers,
            threads=threads,
            limit_minutes=limit_minutes,
            only=only,
            seeds=_seeds(seeds),
            beside=[Suite.read(one) for one in beside or ()],
            retry=retry,
            machine={
                "data_folder": data_folder,
                "device": device,
                "compile": True if compiled else None,  # else as the suite says
            },
            progress=tell,
        )
    tell_end(found.name, summary, output, quiet=quiet, as_json=as_json)


@bench.command("status")
@command
def status_command(
    out: Folder,
    suite: SuiteFile = None,
    only: Only = None,
    seeds: Seeds = None,
    as_json: AsJson = False,
) -> None:
    """Tell how many runs are done, running, failed and waiting, and the time that is left."""
    from calibrant.bench.run.status import status

    whole = _suite(out, suite)
    found = with_choices(whole, out)
    state = status([spec for _, spec in found.chosen(only, _seeds(seeds))], out)
    untuned = len(whole.specs) - len(found.specs)
    if as_json:
        print(json.dumps({"suite": found.name, **state.to_dict(), "untuned": untuned}))
        return
    console = make_console()
    if untuned:
        console.print(f"{untuned} more runs wait for their settings to be tuned")
    console.print(
        f"{found.name}: {state.done} of {state.total} done, {len(state.running)} running, "
        f"{len(state.failed)} failed, {len(state.waiting)} waiting"
    )
    for one in state.running:
        console.print(f"  running: {one['label']}, epoch {one['epoch']} of {one['epochs']}")
    for one in state.failed:
        line = (one["message"].strip().splitlines() or [""])[0]
        console.print(f"  {one['kind']}: {one['label']}: {line}", soft_wrap=True)
    for one in state.unmeasured:
        console.print(f"  not measured: {one['label']}: {one['what']}", soft_wrap=True)
    if state.unmeasured:
        console.print("  `calibrant bench run ... --retry` measures these again")
    left = state.seconds_left
    if left is None:
        console.print("time left: not known before a run like those left has ended")
    elif left > 0:
        console.print(f"time left: about {_time(left)}, at the pace so far")


@bench.command("table")
@command
def table_command(
    out: Folder,
    suite: SuiteFile = None,
    metric: Annotated[
        list[str] | None, Flag("--metric", "-m", help="Columns; else the suite's.", metavar="NAME")
    ] = None,
    by: Annotated[
        list[str] | None, Flag(help="Settings that make a block.", metavar="SETTING")
    ] = None,
    calibrator: Annotated[
        list[str] | None, Flag(help="Side by side; `none` is before any.", metavar="NAME")
    ] = None,
    method: Annotated[list[str] | None, Flag(help="Rows; else all.", metavar="NAME")] = None,
    part: Annotated[str, Flag(help="train, validation, test, or as in test:*:5.")] = "test",
    down: Annotated[str | None, Flag(help="What rows are: method or calibrator.")] = None,
    form: Annotated[str, Flag("--format", help="markdown, latex, csv or html.")] = "markdown",
    output: Annotated[
        Path | None, Flag("--output", "-o", help="A file; else it is printed.", metavar="FILE")
    ] = None,
) -> None:
    """Show a table of results: means with standard errors, beside the published figures."""
    from calibrant.bench import Store
    from calibrant.bench.tables.tabulate import table

    forms = ("markdown", "latex", "csv", "html")
    if form not in forms:
        raise InputError(f"--format is one of {', '.join(forms)}, found {form!r}")
    found = with_choices(_suite(out, suite), out)
    if down == "calibrator" and len(names := method or found.methods) != 1:
        raise InputError(
            f"a table of calibrators is of one method: say which with --method ({', '.join(names)})"
        )
    made = table(
        found,
        Store(store_of(out)).frame(),
        metric or None,
        by or None,
        calibrators=calibrator or None,
        methods=method or None,
        part=part,
        down=down,
        tell_more=True,
    )
    if (calibrator or part != "test") and not any(block.shown for block in made.blocks):
        asked = f"part {part!r}" + (f" after {', '.join(calibrator)}" if calibrator else "")
        raise InputError(
            f"{out} has no figures of {asked}: `calibrant bench status {out}` tells what was made, "
            "and a measurement under `after:` has calibrators of its own"
        )
    text: str = getattr(made, f"to_{form}")()
    if output is None:
        typer.echo(text.encode() if not text.endswith("\n") else text.rstrip("\n").encode())
    else:
        output.write_text(text, encoding="utf-8")


@bench.command("report")
@command
def report_command(
    out: Folder,
    suite: SuiteFile = None,
    output: Annotated[
        Path | None,
        Flag("--output", "-o", help="The page; else report.html in OUT.", metavar="FILE.html"),
    ] = None,
    quiet: Quiet = False,
) -> None:
    """Write a page of a suite's results: what is done, tables and pictures."""
    from calibrant.bench import Store, write_page
    from calibrant.bench.tables.gallery import gallery

    found = with_choices(_suite(out, suite), out)
    frame = Store(store_of(out)).frame()
    drawn = gallery(found, frame)
    path = write_page(found, frame, output or out / "report.html", pictures=drawn)
    if not quiet:
        make_console().print(f"report: {path}", soft_wrap=True)


@bench.command("list")
@command
def list_command(
    folder: Annotated[
        Path | None,
        typer.Argument(help="A folder of suites; else all known.", show_default=False),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """List suites by name: those of a folder, or of CALIBRANT_SUITES and the package."""
    from calibrant.bench import available

    suites = available(folder)
    if as_json:
        print(json.dumps(suites))
        return
    from rich.table import Table

    shown = Table(box=None, show_header=False)
    shown.add_column(style="cyan", no_wrap=True)
    shown.add_column()
    for name, about in suites.items():
        shown.add_row(name, about)
    make_console().print(shown)


def _suite(out: Path, named: str | None) -> Suite:
    from calibrant.bench import Suite

    path = out / "suite.yaml"
    if not out.is_dir():
        raise InputError(f"{out}: no such folder; `calibrant bench run SUITE -o {out}` makes one")
    if named is None and not path.is_file():
        raise InputError(f"{out} does not say of which suite its runs are: add --suite")
    return Suite.read(path) if named is None else Suite.read(named, out)


def with_choices(suite: Suite, out: Path) -> Suite:
    """The suite with what its tuning has chosen so far."""
    from calibrant.bench.select import tune

    return tune.with_choices(suite, out)


def store_of(out: Path) -> Path:
    """A bench's folder of results, or such a folder itself; an error where there is neither."""
    if any(out.glob("*.parquet")):
        return out
    if not (out / "store").is_dir():
        raise InputError(f"{out} holds no results: `calibrant bench run SUITE -o {out}` makes them")
    return out / "store"


def _seeds(text: str | None) -> list[int] | None:
    if text is None:
        return None
    found: list[int] = []
    for part in text.split(","):
        first, sign, last = part.strip().partition("-")
        if not first.isdigit() or (sign and not last.isdigit()):
            raise InputError(f"--seeds takes whole numbers, as in 0,2 or 0-4, found {text!r}")
        found += range(int(first), int(last or first) + 1)
    return found


def _time(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"
