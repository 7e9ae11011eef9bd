"""Show progress on stderr where stderr is a terminal; stay silent elsewhere."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

Advance = Callable[[int], None]


@contextmanager
def progress_bar(
    description: str, total: int | None, *, shown: bool = True, after: float = 0.0
) -> Iterator[Advance]:
    """Show a bar and yield a function that advances it.

    Args:
        description: The text before the bar.
        total: The number of steps; None for an unknown number.
        shown: False shows nothing.
        after: Seconds to wait before the bar is shown.
    """
    if not shown or not sys.stderr.isatty():
        yield lambda steps: None
        return
    from rich.console import Console
    from rich.progress import Progress

    # What is printed meanwhile stands above the bar, unless it goes to a file or a pipe.
    bar = Progress(
        console=Console(stderr=True), transient=True, redirect_stdout=sys.stdout.isatty()
    )
    task = bar.add_task(description, total=total)
    timer = threading.Timer(after, bar.start)
    timer.daemon = True
    timer.start()
    try:
        yield lambda steps: bar.advance(task, steps)
    finally:
        timer.cancel()
        timer.join()  # else a bar might start after it was stopped
        bar.stop()


@contextmanager
def status(message: str, *, shown: bool = True) -> Iterator[None]:
    """Show a line while the block runs."""
    if not shown or not sys.stderr.isatty():
        yield
        return
    from rich.console import Console

    with Console(stderr=True).status(message):
        yield
