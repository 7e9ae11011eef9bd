"""Fuzz every entrance: ``python -m tests.fuzz --cases 100000``; ``make fuzz`` runs it.

Each target runs in a process of its own with bounded memory, so that a case that kills the
process is found, too. Failing cases are shrunk, printed and kept in ``tests/fuzz/corpus``.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import multiprocessing.connection
import os
import sys
import time
import traceback
from collections import Counter
from typing import Any

from tests.fuzz.harness import Target, check, find_folder, iterate_targets, keep, read_corpus

_MEMORY = 6 << 30  # bytes of address space above what the libraries take


def _limit_memory() -> None:
    try:
        import resource
    except ImportError:  # no such limits on this system
        return
    with open("/proc/self/statm") as file:
        now = int(file.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (now + _MEMORY, resource.RLIM_INFINITY))


def _run(target: Target, cases: int, seed: int, line: Any, last: str) -> None:
    """Run a target's corpus and new cases; send counts, or the case that failed."""
    import torch
    from hypothesis import HealthCheck, Phase, given, settings
    from hypothesis import seed as set_seed

    torch.set_num_threads(1)
    counts: Counter[bool] = Counter()
    failing: list[dict[str, Any]] = []
    with open(last, "w", encoding="utf-8") as journal:

        def run(case: dict[str, Any]) -> None:
            journal.seek(0)
            journal.truncate()
            journal.write(json.dumps(case))
            journal.flush()
            failing[:] = [case]
            counts[check(target, case)] += 1

        test = set_seed(seed)(
            settings(
                max_examples=cases,
                database=None,
                deadline=None,
                phases=[Phase.generate, Phase.shrink],
                suppress_health_check=list(HealthCheck),
                print_blob=False,
            )(given(target.cases)(run))
        )
        try:
            for case in read_corpus(target.name):
                run(case)
            _limit_memory()
            test()
        except BaseException:
            line.send((dict(counts), failing[0] if failing else None, traceback.format_exc()))
        else:
            line.send((dict(counts), None, None))


class Job:
    """A target that runs in a process of its own."""

    def __init__(self, target: Target, cases: int, seed: int) -> None:
        context = multiprocessing.get_context("fork")
        self.target, self.begin = target, time.monotonic()
        self.ours, theirs = context.Pipe(duplex=False)
        self.last = str(find_folder() / f"last-{target.name}.json")
        self.process = context.Process(target=_run, args=(target, cases, seed, theirs, self.last))
        self.process.start()
        theirs.close()

    def finish(self) -> tuple[int, bool]:
        """Print how it ended; return how many cases ran, and whether one failed."""
        try:
            counts, case, trace = self.ours.recv()
        except EOFError:  # the process was killed
            with open(self.last, encoding="utf-8") as file:
                counts, case, trace = {}, json.loads(file.read()), "the process was killed"
        self.process.join()
        seconds = time.monotonic() - self.begin
        done = sum(counts.values())
        print(
            f"{self.target.name:12} {done:7,} cases, {counts.get(True, 0):7,} with a result, "
            f"{seconds:6.1f} s ({1000 * seconds / max(1, done):.1f} ms each)",
            flush=True,
        )
        if case is not None:
            keep(self.target.name, case)
            print(f"  FAILED (code {self.process.exitcode}): {json.dumps(case)}\n{trace[-3000:]}")
        elif trace is not None:
            print(trace)
        return done, trace is not None


def main() -> int:
    """Run the targets, as many at a time as there are cores."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("targets", nargs="*", help="names of targets (default: all)")
    parser.add_argument("--cases", type=int, default=100_000, help="cases of all targets")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="targets at a time")
    options = parser.parse_args()
    targets = list(iterate_targets(options.targets))
    total = sum(target.share for target in targets)
    running: dict[Any, Job] = {}
    failed, ran, start = 0, 0, time.monotonic()
    while targets or running:
        while targets and len(running) < options.jobs:
            target = targets.pop(0)
            job = Job(target, max(10, round(options.cases * target.share / total)), options.seed)
            running[job.ours] = job
        for line in multiprocessing.connection.wait(list(running)):
            done, broken = running.pop(line).finish()
            ran, failed = ran + done, failed + broken
    print(f"{ran:,} cases in {time.monotonic() - start:.0f} s, {failed} targets failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
