"""Time and memory of `evaluate`: this tree beside another one, in paired runs.

    python benchmarks/evaluate_speed.py --before OTHER_TREE/src --repeats 5
    python benchmarks/evaluate_speed.py --events 10000000

Every run is a process of its own; the two trees take turns, so that a machine that slows down
slows both. Printed are the median of the paired ratios and their range.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from statistics import median

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
rows, classes, intervals = json.loads(sys.argv[1])
rng = np.random.default_rng(0)
if classes:
    logits = rng.standard_normal((rows, classes), dtype=np.float32) * 2
    labels = (logits + rng.gumbel(size=(rows, classes)).astype(np.float32)).argmax(1)
    held = Predictions.from_logits(logits, labels)
else:
    p = rng.beta(1, 20, rows)
    held = Predictions.from_events(p, rng.random(rows) < p, event="fraud")
evaluate(held.take(np.arange(200)), intervals=intervals)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
start = time.perf_counter()
evaluate(held, intervals=intervals)
seconds = time.perf_counter() - start
print(json.dumps([seconds, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024]))
"""


def run(source: Path, case: tuple[int, int, bool]) -> tuple[float, float]:
    """Seconds and peak memory (MB) of one evaluation in a process of its own."""
    environment = {**os.environ, "PYTHONPATH": str(source)}
    command = [sys.executable, "-c", CHILD, json.dumps(case)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    seconds, memory = json.loads(done.stdout.splitlines()[-1])
    return seconds, memory


def compare(before: Path, repeats: int) -> None:
    print("| case | seconds before | now | ratio (range) | memory before | now |")
    print("|---|---|---|---|---|---|")
    for name, case in CASES.items():
        pairs = [(run(before, case), run(HERE, case)) for _ in range(repeats)]
        ratios = sorted(now[0] / then[0] for then, now in pairs)
        then, now = ([pair[side] for pair in pairs] for side in (0, 1))
        print(
            f"| {name} | {median(s for s, _ in then):.2f} | {median(s for s, _ in now):.2f} | "
            f"{median(ratios):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f}) | "
            f"{median(m for _, m in then):.0f} MB | {median(m for _, m in now):.0f} MB |",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--before", type=Path, help="src of the tree to compare with")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--events", type=int, help="evaluate so many events with intervals")
    options = parser.parse_args()
    if options.before:
        compare(options.before.resolve(), options.repeats)
    if options.events:
        seconds, memory = run(HERE, (options.events, 0, True))
        print(f"{options.events:,} events with intervals: {seconds:.1f} s, {memory:.0f} MB")


if __name__ == "__main__":
    main()
