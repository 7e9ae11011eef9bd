"""Runs by several processes of this machine, which may share one GPU."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import Any

from calibrant.bench.run.worker import Bench, Tell, work
from calibrant.bench.suite.spec import Spec
from calibrant.core import plugins

THREAD_SETTINGS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


def run_pool(
    specs: list[Spec],
    bench: Bench,
    tell: Tell,
    *,
    workers: int | None = None,
    threads: int | None = None,
    limit: float | None = None,
) -> None:
    """Start the processes, pass on what they tell, and put others in place of those that die.

    Each lives as long as there is work, so that libraries and data are loaded once. They claim
    runs for themselves: what a dead one held is free the moment it dies.
    """
    cores = os.cpu_count() or 1
    count = min(workers or usual_workers(), len(specs))
    each = threads or max(1, cores // count)
    task = json.dumps(
        {
            "specs": [one.to_dict() for one in specs],
            "out": str(bench.out),
            "threads": each,
            "limit": limit,
            "plugins": plugins.list_loaded(),
        }
    )
    left = {one.key for one in specs}

    def hear(event: dict[str, Any]) -> None:
        if event["event"] in ("done", "failed"):
            left.discard(event["key"])
        tell(event)

    pool = _Pool(task, each, hear)
    try:
        for _ in range(count):
            pool.start()
        while pool.members:
            pool.listen()
            if not left:
                pool.stop(lambda member: not member.ready)  # there is nothing for them to do
            for member in pool.dead():
                if not member.ready:
                    raise RuntimeError(
                        f"a process of the pool ended before it could work, with code "
                        f"{member.process.exitcode}: its words are above"
                    )
                if member.process.exitcode != 0 and not (limit and time.time() >= limit):
                    tell({"event": "lost", "pid": member.process.pid})
                    pool.start()
    finally:
        pool.stop()


def usual_workers() -> int:
    """Two where they share a GPU, which more would not make faster; else half the cores."""
    import torch

    if torch.cuda.is_available():
        return 2 * torch.cuda.device_count()
    return max(1, (os.cpu_count() or 1) // 2)


class _Member:
    def __init__(self, process: SpawnProcess, words: Connection) -> None:
        self.process, self.words, self.ready = process, words, False


class _Pool:
    """Processes, each with a pipe of its own: one killed amid a word blocks no other."""

    def __init__(self, task: str, threads: int, tell: Tell) -> None:
        self._task, self._threads, self._tell = task, threads, tell
        self._context = multiprocessing.get_context("spawn")
        self.members: list[_Member] = []

    def start(self) -> None:
        ours, theirs = self._context.Pipe(duplex=False)
        process = self._context.Process(target=_member, args=(self._task, theirs), daemon=True)
        with _thread_settings(self._threads):
            process.start()
        theirs.close()
        self.members.append(_Member(process, ours))

    def listen(self) -> None:
        """Pass on what has been told, or wait for it a second."""
        ends: list[Any] = [one.words for one in self.members if not one.words.closed]
        ready = wait(ends + [one.process.sentinel for one in self.members], timeout=1.0)
        for one in self.members:
            if one.words in ready:
                self._hear(one)

    def _hear(self, member: _Member) -> None:
        try:
            while member.words.poll():
                event = json.loads(member.words.recv_bytes())
                if event["event"] == "ready":
                    member.ready = True
                else:
                    self._tell(event)
        except (EOFError, OSError, ValueError):
            member.words.close()

    def dead(self) -> list[_Member]:
        """Those that have ended since the last look; they are members no more."""
        found = [one for one in self.members if not one.process.is_alive()]
        for one in found:
            if not one.words.closed:
                self._hear(one)  # its last words
                one.words.close()
            one.process.join()
        self.members = [one for one in self.members if one not in found]
        return found

    def stop(self, which: Callable[[_Member], bool] = lambda member: True) -> None:
        found = [one for one in self.members if which(one)]
        for one in found:
            one.process.terminate()
        for one in found:
            one.process.join(5)
            if one.process.is_alive():
                one.process.kill()
                one.process.join()
            one.words.close()
        self.members = [one for one in self.members if one not in found]


@contextmanager
def _thread_settings(count: int) -> Iterator[None]:
    """What a process started meanwhile reads before it loads its libraries."""
    before = {name: os.environ.get(name) for name in THREAD_SETTINGS}
    os.environ.update(dict.fromkeys(THREAD_SETTINGS, str(count)))
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _member(task: str, words: Connection) -> None:
    """The whole life of a process of the pool."""
    import torch

    def tell(event: dict[str, Any]) -> None:
        try:
            words.send_bytes(json.dumps(event).encode())
        except OSError:
            sys.exit(1)  # whoever started us is gone; the run goes on from its checkpoint

    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    found = json.loads(task)
    torch.set_num_threads(found["threads"])
    plugins.receive_plugins(found["plugins"])  # before specs are made: keys tell of them
    tell({"event": "ready"})
    specs = [Spec.of(one) for one in found["specs"]]
    try:
        work(specs, Bench(Path(found["out"])), tell, limit=found["limit"])
    except KeyboardInterrupt:
        sys.exit(130)
