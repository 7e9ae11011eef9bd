"""What every benchmark shares: racing contestants, peak memory, the machine, tables."""

from __future__ import annotations

import gc
import math
import os
import platform
import resource
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

# A burst lets a quick call run on warm caches, the same for everybody.
BURST_SECONDS = 0.1
BURST_CALLS = 8


@dataclass
class Contestant:
    """One way from logits to a figure, and what running it gave."""

    name: str
    call: Callable[[], float]
    peer: bool = False
    value: float = float("nan")
    seconds: list[float] = field(default_factory=list)
    failure: str = ""

    @property
    def best(self) -> float:
        """The fastest run, in seconds; NaN where none finished."""
        return min(self.seconds, default=float("nan"))

    @property
    def median(self) -> float:
        """The median run, in seconds; NaN where none finished."""
        return statistics.median(self.seconds) if self.seconds else float("nan")


def race(contestants: Sequence[Contestant], *, rounds: int, limit: float, patience: float) -> None:
    """Time all contestants in turn, round after round, so that noise falls on all alike.

    A run longer than ``limit`` seconds is cut off and recorded; a contestant that has used
    ``patience`` seconds in all sits out the remaining rounds.
    """
    bursts: dict[int, int] = {}
    for index, contestant in enumerate(contestants):
        started = time.perf_counter()
        try:
            with cut_off(limit):
                contestant.value = float(contestant.call())
        except TimeoutError:
            contestant.failure = f"cut off after {limit:.0f} s"
            continue
        except Exception as error:  # a peer may fail in any way: say so and go on
            contestant.failure = f"{type(error).__name__}: {error}".splitlines()[0][:120]
            continue
        elapsed = time.perf_counter() - started
        bursts[index] = max(1, min(BURST_CALLS, int(BURST_SECONDS / max(elapsed, 1e-9))))
        if elapsed > patience:
            contestant.seconds.append(elapsed)
    for _ in range(rounds):
        for index, burst in bursts.items():
            contestant = contestants[index]
            if sum(contestant.seconds) > patience:
                continue
            gc.collect()
            gc.disable()
            for _ in range(burst):
                started = time.perf_counter()
                contestant.call()
                contestant.seconds.append(time.perf_counter() - started)
            gc.enable()


def processor_seconds() -> tuple[float, float]:
    """Seconds all processors were busy since the machine started, and this process's part."""
    own = os.times()
    try:
        fields = Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]
    except OSError:
        return math.nan, own.user + own.system
    ticks = [int(value) for value in fields]
    idle = ticks[3] + ticks[4]
    return (sum(ticks) - idle) / os.sysconf("SC_CLK_TCK"), own.user + own.system


def share_of_others(call: Callable[[], object]) -> float:
    """Run ``call`` and say what part of the machine other processes used meanwhile.

    Two threads that wait for each other lose a whole time slice whenever one of them is put
    off, in every round alike: on a busy machine not even the fastest call means anything.
    """
    (busy, own), started = processor_seconds(), time.perf_counter()
    call()
    (busy_after, own_after), elapsed = processor_seconds(), time.perf_counter() - started
    others = (busy_after - busy) - (own_after - own)
    return max(0.0, others) / (elapsed * (os.cpu_count() or 1)) if others == others else math.nan


@contextmanager
def cut_off(seconds: float) -> Iterator[None]:
    """Raise TimeoutError inside the block after so many seconds, where the system can.

    Code that catches it, or turns it into an error of its own, is out of time all the same.
    """
    if not hasattr(signal, "SIGALRM"):
        yield
        return

    fired = False

    def stop(*_: object) -> None:
        nonlocal fired
        fired = True
        raise TimeoutError

    previous = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    except Exception as error:
        if fired and not isinstance(error, TimeoutError):
            raise TimeoutError from error
        raise
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)
    if fired:
        raise TimeoutError


def peak_memory(call: Callable[[], object]) -> int:
    """Bytes the resident set grew by, at its highest, while ``call`` ran.

    Meant for a fresh process that has run the same call on a few rows before, so that
    neither imports nor thread stacks are counted. Where the kernel cannot reset the
    high-water mark, growth below the earlier peak of the process goes unseen.
    """
    gc.collect()
    status = Path("/proc/self/status")
    try:
        Path("/proc/self/clear_refs").write_text("5")
        before = _kibibytes(status, "VmRSS")
        call()
        return 1024 * max(0, _kibibytes(status, "VmHWM") - before)
    except OSError:
        unit = 1 if sys.platform == "darwin" else 1024
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        call()
        return unit * (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)


def _kibibytes(status: Path, name: str) -> int:
    for line in status.read_text().splitlines():
        if line.startswith(name + ":"):
            return int(line.split()[1])
    raise OSError(f"no {name} in the process status")


def import_seconds(statements: Sequence[str], *, rounds: int) -> dict[str, list[float]]:
    """Wall seconds of fresh processes running each statement, in turn; the first is not kept."""
    times: dict[str, list[float]] = {statement: [] for statement in statements}
    for turn in range(rounds + 1):
        for statement in statements:
            started = time.perf_counter()
            done = subprocess.run([sys.executable, "-c", statement], capture_output=True)
            elapsed = time.perf_counter() - started
            if turn > 0 and done.returncode == 0:
                times[statement].append(elapsed)
    return times


def machine(threads: int) -> list[str]:
    """Lines that say what the figures were measured on."""
    processor = platform.processor() or platform.machine()
    memory = ""
    cpuinfo, meminfo = Path("/proc/cpuinfo"), Path("/proc/meminfo")
    if cpuinfo.exists():
        names = [x for x in cpuinfo.read_text().splitlines() if x.startswith("model name")]
        processor = names[0].split(":", 1)[1].strip() if names else processor
    if meminfo.exists():
        kibibytes = int(meminfo.read_text().split("MemTotal:")[1].split()[0])
        memory = f", {kibibytes / 2**20:.0f} GiB of memory"
    load = (
        f"; load average {os.getloadavg()[0]:.1f} at the start" if hasattr(os, "getloadavg") else ""
    )
    return [
        f"{processor}, {os.cpu_count()} cores{memory}",
        f"{platform.system()}, Python {platform.python_version()}, {threads} threads{load}",
    ]


def versions(packages: Sequence[str]) -> str:
    """``name version`` of those packages that are installed."""
    found = []
    for package in packages:
        try:
            found.append(f"{package} {version(package)}")
        except PackageNotFoundError:
            continue
    return ", ".join(found)


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A markdown table, padded so that it also reads well in a terminal."""
    widths = [max(len(row[i]) for row in (header, *rows)) for i in range(len(header))]

    def line(cells: Sequence[str]) -> str:
        first, *others = zip(cells, widths, strict=True)
        padded = [first[0].ljust(first[1]), *(cell.rjust(width) for cell, width in others)]
        return "| " + " | ".join(padded) + " |"

    rule = ["-" * widths[0], *("-" * (width - 1) + ":" for width in widths[1:])]
    return "\n".join([line(header), line(rule), *map(line, rows)])


def milliseconds(seconds: float) -> str:
    """Three significant digits of milliseconds, or a dash."""
    value = seconds * 1e3
    return shown(value, ",.0f" if value >= 100 else ".3g")


def shown(value: float, form: str, unit: str = "") -> str:
    """A number and its unit, or a dash where there is none."""
    return "-" if math.isnan(value) else f"{value:{form}}{unit}"
