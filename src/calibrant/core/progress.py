"""Show progress on stderr where stderr is a terminal; stay silent elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

Advance = Callable[[int], None]


@contextmanager
def progress_bar(description: str, total: int | None, *, shown: bool = True) -> Iterator[Advance]:
    """Show a bar and yield a function that advances it.

    Args:
        description: The text before the bar.
        total: The number of steps; None for an unknown number.
        shown: False shows nothing.
    """
    if not shown or not sys.stderr.isatty():
        yield lambda steps: None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(description, total=total)
        yield lambda steps: bar.advance(task, steps)


@contextmanager
def status(message: str, *, shown: bool = True) -> Iterator[None]:
    """Show a line while the block runs."""
    if not shown or not sys.stderr.isatty():
        yield
        return
    from rich.console import Console

    with Console(stderr=True).status(message):
        yield
