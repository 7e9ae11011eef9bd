"""How many threads small steps of work take."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock

import torch

_lock = Lock()
_within, _before = 0, 1  # how many are within, and the threads there were before the first


@contextmanager
def one_thread() -> Iterator[None]:
    """Run tensors of the CPU in one thread, and leave the caller's number of threads be.

    Steps that take microseconds gain nothing by more, and where other work keeps the cores busy
    threads spin while they wait for each other: a hundred times the time, measured on two cores.
    The number is the whole process's: where several are within, the last one brings it back.
    """
    global _within, _before
    with _lock:
        if not _within:
            _before = torch.get_num_threads()
        _within += 1
        torch.set_num_threads(1)
    try:
        yield
    finally:
        with _lock:
            _within -= 1
            if not _within:
                torch.set_num_threads(_before)
