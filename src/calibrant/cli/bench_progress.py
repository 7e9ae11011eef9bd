"""Show the progress and the end of a suite's runs: as bars, lines or JSON."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from calibrant.cli.console import UNEXPECTED, make_console

if TYPE_CHECKING:
    from calibrant.bench.run.runner import Summary

Tell = Callable[[dict[str, Any]], None]
_WORDS = {
    "done": "made now",
    "before": "made before",
    "failed": "failed",
    "diverged": "diverged",
    "left": "left",
    "waiting": "made, and measured once runs of other seeds are made",
}


def report_end(name: str, summary: Summary, out: Path, *, quiet: bool, as_json: bool) -> None:
    """Report how runs ended; exit with an error if any failed other than by divergence.

    Divergence is a result of the method, which tables show.
    """
    from calibrant.bench.run.worker import Bench

    counts = {
        "done": len(summary.done),
        "before": len(summary.before),
        "failed": len(summary.failed),
        "left": len(summary.left),
        "waiting": len(summary.waiting),
    }
    failures = [json.loads(Bench(out).failure_path(key).read_bytes()) for key in summary.failed]
    diverged = sum(failure["kind"] == "diverged" for failure in failures)
    if as_json:
        print(json.dumps({"event": "end", **counts}))
    elif not quiet:
        shown = {**counts, "failed": counts["failed"] - diverged, "diverged": diverged}
        words = ", ".join(f"{shown[key]} {text}" for key, text in _WORDS.items() if shown[key])
        make_console().print(f"{name}: {words}", soft_wrap=True)
    console = make_console(stderr=True)
    for failure in failures:
        line = failure["message"].strip().splitlines()[:1] or [""]
        if not as_json:
            text = f"{failure['kind']}: {failure['label']}: {failure['error']}: {line[0]}"
            console.print(text, soft_wrap=True)
    if len(failures) > diverged:
        console.print(
            f"tracebacks are in {out / 'failed'}; --retry repeats failed runs", soft_wrap=True
        )
        raise typer.Exit(UNEXPECTED)


@contextmanager
def show_progress(*, quiet: bool, as_json: bool) -> Iterator[Tell]:
    """Show bars on a terminal, a line for each run elsewhere, JSON lines, or nothing."""
    if as_json:
        yield lambda event: print(json.dumps(event), flush=True)
        return
    console = make_console(stderr=True)
    if quiet:
        yield lambda event: None
    elif not console.is_terminal:
        yield _Lines(console)
    else:
        from rich.progress import MofNCompleteColumn, Progress, TimeElapsedColumn

        columns = [*Progress.get_default_columns()[:2], MofNCompleteColumn(), TimeElapsedColumn()]
        with Progress(*columns, console=console, transient=True) as bars:
            yield _Bars(bars)


def _label(event: dict[str, Any]) -> str:
    """Describe the run, after the suite's name of its method."""
    label = str(event.get("label", "a process, whose run another takes over"))
    return f"{event['method']}: {label}" if "method" in event else label


class _Lines:
    """Print a line for each run that ended."""

    def __init__(self, console: Any) -> None:
        self._console, self._ended, self._runs = console, 0, 0

    def __call__(self, event: dict[str, Any]) -> None:
        kind = event["event"]
        if kind == "plan":
            self._runs, self._ended = event["runs"], event["before"]
        if kind not in ("done", "failed", "lost"):
            return
        self._ended += kind != "lost"
        label = _label(event)
        took = f", {event['seconds']:.1f} s" if kind == "done" else ""
        line = f"{self._ended}/{self._runs} {kind}: {label}{took}"
        self._console.print(line, soft_wrap=True)


class _Bars:
    """Show a bar for the suite, and a bar for each run in progress."""

    def __init__(self, bars: Any) -> None:
        self._bars = bars
        self._all = bars.add_task("runs", total=None)
        self._runs: dict[str, Any] = {}

    def __call__(self, event: dict[str, Any]) -> None:
        kind, key = event["event"], event.get("key", "")
        if kind == "plan":
            self._bars.update(self._all, total=event["runs"], completed=event["before"])
        elif kind == "begun":
            self._end(key)
            self._runs[key] = self._bars.add_task(_label(event), total=event["epochs"])
        elif kind == "epoch" and key in self._runs:
            self._bars.update(self._runs[key], completed=event["epoch"])
        elif kind in ("done", "failed"):
            self._end(key)
            self._bars.advance(self._all)

    def _end(self, key: str) -> None:
        if key in self._runs:
            self._bars.remove_task(self._runs.pop(key))
