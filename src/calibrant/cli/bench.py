"""Commands of the bench: make a suite's runs, and show their progress and results."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from calibrant.cli.bench_progress import report_end, show_progress
from calibrant.cli.console import command, make_console
from calibrant.cli.options import AllowPlugins, AsJson, Quiet
from calibrant.cli.plugin_consent import make_approval
from calibrant.core.errors import InputError, shorten, show

if TYPE_CHECKING:
    from calibrant.bench import Suite

bench = typer.Typer(
    name="bench",
    help="Make many runs from a suite file, and show their results.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
Flag = typer.Option
Folder = Annotated[Path, typer.Argument(help="Folder of runs.", metavar="OUT", show_default=False)]
SuiteFile = Annotated[
    str | None,
    Flag(
        "--suite",
        help="Suite file, or name of a suite that was run in OUT or is shipped. Default: the suite "
        "last run in OUT.",
        metavar="SUITE",
    ),
]
Only = Annotated[
    list[str] | None,
    Flag(
        "--only",
        help="Select runs by method and settings, as in acls/data=cifar10; * matches anything. "
        "Repeatable.",
        metavar="METHOD/NAME=VALUE",
    ),
]
Seeds = Annotated[
    str | None, Flag("--seeds", help="Select runs by seed, as in 0,2 or 0-4.", metavar="SEEDS")
]


@bench.command("run")
@command
def run_command(
    suite: Annotated[
        str,
        typer.Argument(
            help="Suite file, or name of a suite: see `calibrant bench list`.",
            metavar="SUITE",
            show_default=False,
        ),
    ],
    output: Annotated[
        Path, Flag("--output", "-o", help="Output folder; resumed if it exists.")
    ] = Path("bench"),
    on: Annotated[
        str, Flag(help="Where to run: here, pool (processes of this machine) or ray.")
    ] = "here",
    workers: Annotated[
        int | None, Flag(min=1, help="Number of runs at a time.", metavar="N")
    ] = None,
    threads: Annotated[
        int | None, Flag(min=1, help="Number of threads of a run.", metavar="N")
    ] = None,
    limit_minutes: Annotated[
        float | None, Flag(min=0, help="Start no run after M minutes.", metavar="M")
    ] = None,
    only: Only = None,
    seeds: Seeds = None,
    beside: Annotated[
        list[str] | None,
        Flag(
            "--with",
            help="Also make the measurements that this suite wants of shared runs.",
            metavar="SUITE",
        ),
    ] = None,
    retry: Annotated[
        bool, Flag("--retry", help="Repeat runs and measurements that failed.")
    ] = False,
    data_folder: Annotated[str | None, Flag(help="Folder of data sets.", metavar="DIR")] = None,
    device: Annotated[str | None, Flag(help="Device: auto, cpu or cuda.")] = None,
    compiled: Annotated[
        bool, Flag("--compile", help="Compile networks and losses; faster on a GPU.")
    ] = False,
    allow_plugins: AllowPlugins = False,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Make the missing runs of a suite."""
    from calibrant.bench import Suite, run_suite

    approve = make_approval(allow_plugins)
    suite_read = Suite.read(suite, approve=approve)
    with show_progress(quiet=quiet, as_json=as_json) as tell:
        summary = run_suite(
            suite_read,
            output,
            on=on,
            workers=workers,
            threads=threads,
            limit_minutes=limit_minutes,
            only=only,
            seeds=_parse_seeds(seeds),
            beside=[Suite.read(name, approve=approve) for name in beside or ()],
            retry=retry,
            machine={
                "data_folder": data_folder,
                "device": device,
                "compile": True if compiled else None,  # None: as the suite says
            },
            progress=tell,
        )
    report_end(suite_read.name, summary, output, quiet=quiet, as_json=as_json)


@bench.command("status")
@command
def status_command(
    out: Folder,
    suite: SuiteFile = None,
    only: Only = None,
    seeds: Seeds = None,
    allow_plugins: AllowPlugins = False,
    as_json: AsJson = False,
) -> None:
    """Show how many runs are done, running, failed and waiting, and the time left."""
    from calibrant.bench.run.status import status

    whole = _read_suite(out, suite, allow_plugins)
    tuned = with_choices(whole, out)
    state = status([spec for _, spec in tuned.chosen(only, _parse_seeds(seeds))], out)
    untuned = len(whole.specs) - len(tuned.specs)
    if as_json:
        print(json.dumps({"suite": tuned.name, **state.to_dict(), "untuned": untuned}))
        return
    console = make_console()
    if untuned:
        console.print(f"{untuned} more runs wait for their settings to be tuned")
    console.print(
        f"{tuned.name}: {state.done} of {state.total} done, {len(state.running)} running, "
        f"{len(state.failed)} failed, {len(state.waiting)} waiting"
    )
    for run in state.running:
        console.print(f"  running: {run['label']}, epoch {run['epoch']} of {run['epochs']}")
    for run in state.failed:
        line = (run["message"].strip().splitlines() or [""])[0]
        console.print(f"  {run['kind']}: {run['label']}: {line}", soft_wrap=True)
    for run in state.unmeasured:
        console.print(f"  not measured: {run['label']}: {run['what']}", soft_wrap=True)
    if state.unmeasured:
        console.print("  `calibrant bench run ... --retry` measures these again")
    left = state.seconds_left
    if left is None:
        console.print("time left: unknown until a similar run has ended")
    elif left > 0:
        console.print(f"time left: about {_format_time(left)}, at the pace so far")


@bench.command("table")
@command
def table_command(
    out: Folder,
    suite: SuiteFile = None,
    metric: Annotated[
        list[str] | None,
        Flag(
            "--metric",
            "-m",
            help="Show this metric as a column; repeatable. Default: the suite's metrics.",
            metavar="NAME",
        ),
    ] = None,
    by: Annotated[
        list[str] | None, Flag(help="Settings that separate blocks of rows.", metavar="SETTING")
    ] = None,
    calibrator: Annotated[
        list[str] | None,
        Flag(
            help="Show this calibrator as a column; `none` is uncalibrated. Repeatable.",
            metavar="NAME",
        ),
    ] = None,
    method: Annotated[
        list[str] | None,
        Flag(help="Show this method as a row; repeatable. Default: all methods.", metavar="NAME"),
    ] = None,
    part: Annotated[
        str, Flag(help="Part of the rows: train, validation, test, or as in test:*:5.")
    ] = "test",
    down: Annotated[str | None, Flag(help="What a row is: method or calibrator.")] = None,
    form: Annotated[
        str, Flag("--format", help="Format: markdown, latex, csv or html.")
    ] = "markdown",
    output: Annotated[
        Path | None, Flag("--output", "-o", help="Output file. Default: print.", metavar="FILE")
    ] = None,
    allow_plugins: AllowPlugins = False,
) -> None:
    """Show a table of results: means with standard errors, beside the published figures."""
    from calibrant.bench import Store
    from calibrant.bench.tables.tabulate import table

    forms = ("markdown", "latex", "csv", "html")
    if form not in forms:
        raise InputError(f"--format is one of {', '.join(forms)}, found {form!r}")
    tuned = with_choices(_read_suite(out, suite, allow_plugins), out)
    if down == "calibrator" and len(names := method or tuned.methods) != 1:
        raise InputError(
            "a table of calibrators needs a single method: name it with --method "
            f"({', '.join(names)})"
        )
    results_table = table(
        tuned,
        Store(find_store(out)).frame(),
        metric or None,
        by or None,
        calibrators=calibrator or None,
        methods=method or None,
        part=part,
        down=down,
        tell_more=True,
    )
    if (calibrator or part != "test") and not any(block.shown for block in results_table.blocks):
        asked = f"part {part!r}" + (f" after {', '.join(calibrator)}" if calibrator else "")
        raise InputError(
            f"{out} has no figures of {asked}: `calibrant bench status {out}` lists runs, and "
            "measurements under `after:` name their own calibrators"
        )
    text: str = getattr(results_table, f"to_{form}")()
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
        Flag(
            "--output", "-o", help="Output file. Default: report.html in OUT.", metavar="FILE.html"
        ),
    ] = None,
    error: Annotated[
        str | None,
        Flag(
            "--error",
            help="Metric that decides which method is best. Default: the suite's first "
            "calibration error.",
            metavar="NAME",
        ),
    ] = None,
    allow_plugins: AllowPlugins = False,
    quiet: Quiet = False,
) -> None:
    """Write an HTML page of a suite's results: which method is best, tables and pictures."""
    from calibrant.bench import Store, write_page
    from calibrant.bench.tables.gallery import gallery

    tuned = with_choices(_read_suite(out, suite, allow_plugins), out)
    frame = Store(find_store(out)).frame()
    drawn = gallery(tuned, frame)
    path = write_page(tuned, frame, output or out / "report.html", pictures=drawn, error=error)
    if not quiet:
        make_console().print(f"report: {path}", soft_wrap=True)


@bench.command("list")
@command
def list_command(
    folder: Annotated[
        Path | None,
        typer.Argument(
            help="Folder of suites. Default: CALIBRANT_SUITES and the package.", show_default=False
        ),
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


def _read_suite(out: Path, named: str | None, allow_plugins: bool) -> Suite:
    from calibrant.bench import Suite

    path = out / "suite.yaml"
    if not out.is_dir():
        raise InputError(f"{out}: no such folder; `calibrant bench run SUITE -o {out}` makes one")
    if named is None and not path.is_file():
        raise InputError(f"{out} does not name its suite: add --suite")
    approve = make_approval(allow_plugins)
    if named is None:
        return Suite.read(path, approve=approve)
    return Suite.read(named, out, approve=approve)


def with_choices(suite: Suite, out: Path) -> Suite:
    """Return the suite with the settings that tuning has chosen so far."""
    from calibrant.bench.select import tune

    return tune.with_choices(suite, out)


def find_store(out: Path) -> Path:
    """Return the folder of results in a folder of runs, or the folder itself if it has results."""
    if any(out.glob("*.parquet")):
        return out
    if not (out / "store").is_dir():
        raise InputError(f"{out} holds no results: `calibrant bench run SUITE -o {out}` makes them")
    return out / "store"


def _parse_seeds(text: str | None) -> list[int] | None:
    if text is None:
        return None
    seeds: list[int] = []
    for part in text.split(","):
        first, sign, last = part.strip().partition("-")
        if sign and not last:
            raise InputError(f"--seeds takes whole numbers, as in 0,2 or 0-4, found {show(text)}")
        numbers = range(_parse_seed(first, text), _parse_seed(last or first, text) + 1)
        if len(numbers) + len(seeds) > 100_000:
            raise InputError(f"--seeds {shorten(text, 80)} are more than 100,000")
        seeds += numbers
    return seeds


def _parse_seed(text: str, whole: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 19):
        raise InputError(f"--seeds takes whole numbers, as in 0,2 or 0-4, found {show(whole)}")
    return int(text)


def _format_time(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"
