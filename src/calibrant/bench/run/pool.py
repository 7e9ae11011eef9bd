"""Make runs in several processes of this machine, which may share a GPU."""

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
    """Start processes, pass on their events, and replace processes that die.

    A process lives as long as there is work, so that libraries and data are loaded once. It
    claims runs by locks, which end with the process.
    """
    cores = os.cpu_count() or 1
    count = min(workers or count_workers(), len(specs))
    num_threads = threads or max(1, cores // count)
    task = json.dumps(
        {
            "specs": [spec.to_dict() for spec in specs],
            "out": str(bench.out),
            "threads": num_threads,
            "limit": limit,
            "plugins": plugins.list_loaded(),
        }
    )
    left = {spec.key for spec in specs}

    def hear(event: dict[str, Any]) -> None:
        if event["event"] in ("done", "failed"):
            left.discard(event["key"])
        tell(event)

    pool = _Pool(task, num_threads, hear)
    try:
        for _ in range(count):
            pool.start()
        while pool.members:
            pool.listen()
            if not left:
                pool.stop(lambda member: not member.ready)  # no work is left for them
            for member in pool.remove_ended():
                if not member.ready:
                    raise RuntimeError(
                        f"a process of the pool ended while it started, with exit code "
                        f"{member.process.exitcode}; its error is above"
                    )
                if member.process.exitcode != 0 and not (limit and time.time() >= limit):
                    tell({"event": "lost", "pid": member.process.pid})
                    pool.start()
    finally:
        pool.stop()


def count_workers() -> int:
    """Return two processes a GPU, as more would not be faster; without a GPU, half the cores."""
    import torch

    if torch.cuda.is_available():
        return 2 * torch.cuda.device_count()
    return max(1, (os.cpu_count() or 1) // 2)


class _Member:
    def __init__(self, process: SpawnProcess, words: Connection) -> None:
        self.process, self.words, self.ready = process, words, False


class _Pool:
    """Processes with a pipe each: a process killed while it writes blocks no other."""

    def __init__(self, task: str, threads: int, tell: Tell) -> None:
        self._task, self._threads, self._tell = task, threads, tell
        self._context = multiprocessing.get_context("spawn")
        self.members: list[_Member] = []

    def start(self) -> None:
        ours, theirs = self._context.Pipe(duplex=False)
        process = self._context.Process(target=_run_member, args=(self._task, theirs), daemon=True)
        with _set_threads(self._threads):
            process.start()
        theirs.close()
        self.members.append(_Member(process, ours))

    def listen(self) -> None:
        """Pass on events; wait at most a second for them."""
        ends: list[Any] = [member.words for member in self.members if not member.words.closed]
        ready = wait(ends + [member.process.sentinel for member in self.members], timeout=1.0)
        for member in self.members:
            if member.words in ready:
                self._hear(member)

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

    def remove_ended(self) -> list[_Member]:
        """Remove and return the members that have ended."""
        ended = [member for member in self.members if not member.process.is_alive()]
        for member in ended:
            if not member.words.closed:
                self._hear(member)  # its last events
                member.words.close()
            member.process.join()
        self.members = [member for member in self.members if member not in ended]
        return ended

    def stop(self, which: Callable[[_Member], bool] = lambda member: True) -> None:
        stopped = [member for member in self.members if which(member)]
        for member in stopped:
            member.process.terminate()
        for member in stopped:
            member.process.join(5)
            if member.process.is_alive():
                member.process.kill()
                member.process.join()
            member.words.close()
        self.members = [member for member in self.members if member not in stopped]


@contextmanager
def _set_threads(count: int) -> Iterator[None]:
    """Set the variables that a new process reads when it loads its libraries."""
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


def _run_member(task: str, words: Connection) -> None:
    """The whole life of a process of the pool."""
    import torch

    def tell(event: dict[str, Any]) -> None:
        try:
            words.send_bytes(json.dumps(event).encode())
        except OSError:
            sys.exit(1)  # the parent is gone; another process resumes from the checkpoint

    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    content = json.loads(task)
    torch.set_num_threads(content["threads"])
    plugins.receive_plugins(content["plugins"])  # before specs are made: keys depend on them
    tell({"event": "ready"})
    specs = [Spec.of(spec) for spec in content["specs"]]
    try:
        work(specs, Bench(Path(content["out"])), tell, limit=content["limit"])
    except KeyboardInterrupt:
        sys.exit(130)
