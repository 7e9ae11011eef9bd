"""What is shown while a suite's runs are made: bars, lines, or JSON."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from calibrant.cli.console import make_console

Tell = Callable[[dict[str, Any]], None]


@contextmanager
def showing(*, quiet: bool, as_json: bool) -> Iterator[Tell]:
    """Bars on a terminal, a line a run elsewhere, JSON lines on stdout, or nothing."""
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


class _Lines:
    """A line for each run that ended."""

    def __init__(self, console: Any) -> None:
        self._console, self._ended, self._runs = console, 0, 0

    def __call__(self, event: dict[str, Any]) -> None:
        kind = event["event"]
        if kind == "plan":
            self._runs, self._ended = event["runs"], event["before"]
        if kind not in ("done", "failed", "lost"):
            return
        self._ended += kind != "lost"
        label = event.get("label", "a process, whose run another takes up")
        took = f", {event['seconds']:.1f} s" if kind == "done" else ""
        line = f"{self._ended}/{self._runs} {kind}: {label}{took}"
        self._console.print(line, soft_wrap=True)


class _Bars:
    """A bar for the suite, and one for each run in progress."""

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
            self._runs[key] = self._bars.add_task(event["label"], total=event["epochs"])
        elif kind == "epoch" and key in self._runs:
            self._bars.update(self._runs[key], completed=event["epoch"])
        elif kind in ("done", "failed"):
            self._end(key)
            self._bars.advance(self._all)

    def _end(self, key: str) -> None:
        if key in self._runs:
            self._bars.remove_task(self._runs.pop(key))
