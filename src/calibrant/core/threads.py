"""Limit torch to one thread for work made of many small steps."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock

import torch

_lock = Lock()
_active, _before = 0, 1  # callers inside `one_thread`, and the thread count before the first


@contextmanager
def one_thread() -> Iterator[None]:
    """Run CPU tensors in one thread, then restore the caller's thread count.

    Steps that take microseconds gain nothing from more threads. On busy cores the threads
    spin while they wait for each other: a hundred times slower, measured on two cores.
    The thread count belongs to the whole process, so the last caller to leave restores it.
    """
    global _active, _before
    with _lock:
        if not _active:
            _before = torch.get_num_threads()
        _active += 1
        torch.set_num_threads(1)
    try:
        yield
    finally:
        with _lock:
            _active -= 1
            if not _active:
                torch.set_num_threads(_before)
