"""Time and memory of `evaluate`: this tree beside another one, in paired runs.

    python benchmarks/evaluate_speed.py --before OTHER_TREE/src --repeats 5
    python benchmarks/evaluate_speed.py --events 10000000
    python benchmarks/evaluate_speed.py --passes --repeats 5

Every run is a process of its own; the two trees take turns, so that a machine that slows down
slows both. Each process evaluates several times and gives its least seconds, of the clock and of
the processor, which others on the machine disturb less. Printed are the median of the paired
ratios and their range.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np

HERE = Path(__file__).resolve().parents[1] / "src"
CASES = {  # rows, classes, intervals
    "10,000 x 100, intervals": (10_000, 100, True),
    "100,000 x 10, intervals": (100_000, 10, True),
    "5,000 x 1,000, intervals": (5_000, 1_000, True),
    "1,000,000 x 10, figures": (1_000_000, 10, False),
    "50,000 x 1,000, figures": (50_000, 1_000, False),
}
CHILD = """
import json, resource, sys, time
import numpy as np
from calibrant import Predictions, evaluate
rows, classes, intervals, times = json.loads(sys.argv[1])
rng = np.random.default_rng(0)
if classes:
    logits = rng.standard_normal((rows, classes), dtype=np.float32) * 2
    labels = (logits + rng.gumbel(size=(rows, classes)).astype(np.float32)).argmax(1)
    held = Predictions.from_logits(logits, labels)
else:
    p = rng.beta(1, 20, rows)
    held = Predictions.from_events(p, rng.random(rows) < p, event="fraud")
evaluate(held.take(np.arange(200)), intervals=intervals)
found = []
for _ in range(times):
    clock, processor = time.perf_counter(), time.process_time()
    evaluate(held, intervals=intervals)
    found.append((time.perf_counter() - clock, time.process_time() - processor))
memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
print(json.dumps([min(each) for each in zip(*found)] + [memory]))
"""


PASSES = """
import json, sys, time
import torch
torch.set_num_threads(1)
import calibrant
from contestants import SEVEN, make_input, yardstick
rows, classes, repeats = json.loads(sys.argv[1])
logits, labels = make_input(rows, classes)
held = calibrant.Predictions.from_logits(logits, labels)
calls = {f"pass {n}": each.call for n, each in enumerate(yardstick(logits, labels))}
calls["seven"] = lambda: calibrant.evaluate(held, metrics=list(SEVEN), intervals=False)
calls["twelve"] = lambda: calibrant.evaluate(held, intervals=False)
calls["intervals"] = lambda: calibrant.evaluate(held)
taken = {name: [] for name in calls}
for _ in range(repeats + 1):
    for name, call in calls.items():
        start = time.process_time()
        call()
        taken[name].append(time.process_time() - start)
best = {name: min(each[1:]) for name, each in taken.items()}
best["pass"] = min(value for name, value in best.items() if name.startswith("pass"))
print(json.dumps(best))
"""
SIZES = ((10_000, 100), (1_000_000, 10), (50_000, 1_000))


def count_passes(repeats: int) -> None:
    """Print how many passes over the logits figures take, and how many times that intervals do."""
    print("| rows x classes | pass, ms | seven figures | twelve | twelve with intervals, s | x |")
    print("|---|---|---|---|---|---|")
    for rows, classes in SIZES:
        paths = f"{HERE}:{Path(__file__).parent}"
        environment = {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}
        command = [sys.executable, "-c", PASSES, json.dumps((rows, classes, repeats))]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        best = json.loads(done.stdout.splitlines()[-1])
        print(
            f"| {rows:,} x {classes:,} | {1e3 * best['pass']:.3g} | "
            f"{best['seven'] / best['pass']:.1f} passes | "
            f"{best['twelve'] / best['pass']:.1f} passes | {best['intervals']:.3f} | "
            f"{best['intervals'] / best['twelve']:.1f} |",
            flush=True,
        )


def run(source: Path, case: tuple[int, int, bool], times: int) -> tuple[float, float, float]:
    """Least seconds of clock and processor, and peak memory (MB), in a process of its own."""
    environment = {**os.environ, "PYTHONPATH": str(source)}
    command = [sys.executable, "-c", CHILD, json.dumps([*case, times])]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    clock, processor, memory = json.loads(done.stdout.splitlines()[-1])
    return clock, processor, memory


def compare(before: Path, repeats: int, times: int) -> None:
    print("| case | processor seconds before | now | ratio (range) | clock | memory before | now |")
    print("|---|---|---|---|---|---|---|")
    for name, case in CASES.items():
        pairs = [(run(before, case, times), run(HERE, case, times)) for _ in range(repeats)]
        then, now = (np.median([pair[side] for pair in pairs], axis=0) for side in (0, 1))
        ratios = np.array([np.divide(b, a) for a, b in pairs])
        low, middle, high = np.quantile(ratios, (0, 0.5, 1), axis=0)
        print(
            f"| {name} | {then[1]:.2f} | {now[1]:.2f} | "
            f"{middle[1]:.2f} ({low[1]:.2f} to {high[1]:.2f}) | "
            f"{middle[0]:.2f} ({low[0]:.2f} to {high[0]:.2f}) | "
            f"{then[2]:.0f} MB | {now[2]:.0f} MB |",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--before", type=Path, help="src of the tree to compare with")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--times", type=int, default=3, help="evaluations a process")
    parser.add_argument("--events", type=int, help="evaluate so many events with intervals")
    parser.add_argument("--passes", action="store_true", help="count passes over the logits")
    options = parser.parse_args()
    if options.passes:
        count_passes(options.repeats)
    if options.before:
        compare(options.before.resolve(), options.repeats, options.times)
    if options.events:
        clock, processor, memory = run(HERE, (options.events, 0, True), 1)
        print(
            f"{options.events:,} events with intervals: {clock:.1f} s of the clock, "
            f"{processor:.1f} s of the processor, {memory:.0f} MB"
        )


if __name__ == "__main__":
    main()
