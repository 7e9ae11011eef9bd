"""Speed and memory of calibrant's metrics beside its peers, from logits to figure.

``make bench-metrics`` makes the peers' environment and runs this in it. Ratios are taken
against a yardstick of the same run, so they carry from one machine to another; the times do
not. ``--quick`` runs everything on tiny inputs, to see that it works.
"""

from __future__ import annotations

import argparse
import math
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

import contestants
import peers
from harness import (
    Contestant,
    import_seconds,
    machine,
    peak_memory,
    race,
    share_of_others,
    versions,
)
from metrics_report import IMPORTS, Plan, Results, label, report

WARM_UP_ROWS = 256

QUICK = Plan(
    sizes=((300, 12), (600, 4)),
    memory_size=(300, 12),
    bootstrap_size=(300, 4),
    resamples=100,
    rounds=1,
    import_rounds=1,
)


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def measure(plan: Plan, packages: list[str]) -> Results:
    results = Results()
    for size in plan.sizes:
        name = label(size)
        say(f"racing on {name} ...")
        logits, labels = contestants.make_input(*size)
        results.references[name] = contestants.reference(logits, labels)
        tasks = contestants.line_up(logits, labels, packages=packages)
        pass_ = contestants.yardstick(logits, labels)
        everyone = [*pass_, *(entry for task in tasks.values() for entry in task)]
        results.busy[name] = timed_race(everyone, plan)
        results.yardsticks[name], results.tasks[name] = pass_, tasks
        if size == plan.memory_size:
            say(f"measuring memory on {name} ...")
            results.memory = measure_memory(logits, labels, tasks, packages)
    say("racing bootstrap intervals ...")
    logits, labels = contestants.make_input(*plan.bootstrap_size)
    results.bootstrap = contestants.bootstrap_line_up(
        logits, labels, packages=packages, resamples=plan.resamples
    )
    results.busy["bootstrap"] = timed_race(results.bootstrap, plan)
    say("timing imports ...")
    results.imports = import_seconds(IMPORTS, rounds=plan.import_rounds)
    return results


def timed_race(entries: list[Contestant], plan: Plan) -> float:
    """Race, and give the share of the machine that others used meanwhile."""
    return share_of_others(
        lambda: race(entries, rounds=plan.rounds, limit=plan.limit, patience=plan.patience)
    )


def measure_memory(logits, labels, tasks, packages) -> dict[str, dict[str, float]]:
    """Peak bytes above the input of each call that came through, each in a fresh process."""
    peaks: dict[str, dict[str, float]] = {task: {} for task in tasks}
    with tempfile.TemporaryDirectory() as folder:
        np.save(Path(folder) / "logits.npy", logits.numpy())
        np.save(Path(folder) / "labels.npy", labels.numpy())
        for task, entries in tasks.items():
            for entry in entries:
                if entry.failure:
                    continue
                command = [sys.executable, __file__, "--threads", str(torch.get_num_threads())]
                command += ["--memory", task, entry.name, folder, *packages]
                done = subprocess.run(command, capture_output=True, text=True)
                peaks[task][entry.name] = (
                    float(done.stdout.split()[-1]) if done.returncode == 0 else math.nan
                )
    return peaks


def memory_of(task: str, name: str, folder: Path, packages: list[str]) -> int:
    """In a fresh process: load the input, warm up on a few rows, measure one call."""
    logits = torch.from_numpy(np.load(folder / "logits.npy"))
    labels = torch.from_numpy(np.load(folder / "labels.npy"))

    def call(rows: int) -> Contestant:
        entries = contestants.line_up(logits[:rows], labels[:rows], packages=packages)[task]
        return next(entry for entry in entries if entry.name == name)

    call(WARM_UP_ROWS).call()
    return peak_memory(call(len(labels)).call)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--write", type=Path, metavar="PATH", help="also write the tables here")
    parser.add_argument("--quick", action="store_true", help="tiny inputs, one round")
    parser.add_argument("--rounds", type=int, metavar="N", help="rounds of the race; 7 by default")
    parser.add_argument("--no-peers", action="store_true", help="measure calibrant alone")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--memory", nargs="+", help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    if options.memory:
        task, name, folder, *packages = options.memory
        print(memory_of(task, name, Path(folder), packages))
        return
    plan = QUICK if options.quick else Plan()
    if options.rounds:
        plan = replace(plan, rounds=options.rounds, patience=2.0 * options.rounds)
    outcomes = [] if options.no_peers else peers.read_record()
    packages = [outcome.name for outcome in outcomes if outcome.ready]
    if not options.no_peers:
        packages += ["scikit-learn", "torch"]
    where = machine(options.threads)
    where.append(versions(["calibrant", "torch", "numpy", "scipy", "scikit-learn"]))
    text = report(measure(plan, packages), plan, outcomes, where)
    print(text)
    if options.write:
        options.write.write_text(text)


if __name__ == "__main__":
    main()
