"""How many threads small steps of work take."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def one_thread() -> Iterator[None]:
    """Run tensors of the CPU in one thread, and leave the caller's number of threads be.

    Steps that take microseconds gain nothing by more, and where other work keeps the cores busy
    threads spin while they wait for each other: a hundred times the time, measured on two cores.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
