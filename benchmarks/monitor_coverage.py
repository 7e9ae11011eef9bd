"""How often does the monitor raise a false alarm, and how soon does it notice a change? Simulated.

    python benchmarks/monitor_coverage.py --jobs 16 --write benchmarks/COVERAGE.md
    python benchmarks/monitor_coverage.py --part peers --streams 100 --write benchmarks/COVERAGE.md
    python benchmarks/monitor_coverage.py --part delays --line 3 --keep kept   # one line, kept
    python benchmarks/monitor_coverage.py --keep kept --only-kept --write benchmarks/COVERAGE.md

A stream is a baseline, drawn anew for each, and 200 batches of 500 labelled rows. The monitor is
asked after every batch. Events of probability p happen with chance p − g. Part ``peers`` needs
river and gives every method the same streams.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np

from calibrant import Monitor, Predictions

BATCHES, ROWS, CHANGE = 200, 500, 50
CLUSTER = 5  # rows of a cluster
CHUNK = 10  # streams after which results are kept
GROUPS = 5


class Case(NamedTuple):
    """One line of a table.

    Args:
        words: What is simulated.
        baseline: The number of rows of the baseline.
        gap: By how much probabilities are too high from the change on.
        at: The batch of the change; 0 is the first.
        kind: ``events``, ``classes``, ``clusters`` or ``groups``.
        labelled: The share of rows whose label ever arrives, a batch late.
        rate: ``wide`` for probabilities around one half, ``rare`` for those around 5%.
    """

    words: str
    baseline: int
    gap: float
    at: int
    kind: str = "events"
    labelled: float = 1.0
    rate: str = "wide"


def draw(rows: int, gap: float, case: Case, rng: np.random.Generator) -> Predictions:
    """Rows whose probabilities are too high by ``gap``; of a new cluster each five rows."""
    alike = case.kind == "clusters"
    units = rows // CLUSTER if alike else rows
    said = rng.beta(1, 19, units) if case.rate == "rare" else 0.1 + 0.8 * rng.beta(1.5, 1.5, units)
    if not alike:
        happened = rng.random(rows) < said - gap
    else:  # rows of a cluster share their probability, and four of five share the outcome's draw
        common = rng.random(units)
        own = rng.random((units, CLUSTER))
        shared = rng.random((units, CLUSTER)) < 0.8
        drawn = np.where(shared, common[:, None], own)
        happened = (drawn < (said - gap)[:, None]).reshape(-1)
        said = np.repeat(said, CLUSTER)
        names = rng.integers(0, 2**62, units).repeat(CLUSTER)
        return Predictions.from_events(said, happened, clusters=names, validate=False)
    if case.kind != "classes":
        return Predictions.from_events(said, happened, validate=False)
    # Three classes; the predicted one has probability 0.4 to 0.96, less the gap.
    top = 0.4 + 0.6 * (said - 0.1) * 0.9 / 0.8 + 0.1
    predicted = rng.integers(0, 3, rows)
    right = rng.random(rows) < top - gap
    other = (predicted + rng.integers(1, 3, rows)) % 3
    probs = np.repeat(((1 - top) / 2)[:, None], 3, 1)
    probs[np.arange(rows), predicted] = top
    return Predictions.from_probs(probs, np.where(right, predicted, other), validate=False)


def run_stream(case: Case, seed: int) -> int:
    """Return the number of batches until the first alarm; 0 if there is none."""
    rng = np.random.default_rng([20, seed])

    def group(rows: int) -> Any:
        return rng.integers(0, GROUPS, rows) if case.kind == "groups" else None

    monitor = Monitor(draw(case.baseline, 0.0, case, rng), groups=group(case.baseline))
    for batch in range(BATCHES):
        rows = draw(ROWS, case.gap if batch >= case.at else 0.0, case, rng)
        labels = None
        if case.labelled < 1:
            known = rng.random(ROWS) < case.labelled
            labels = np.where(known, rows.labels, -1)
        monitor.append(rows, labels=labels, groups=group(ROWS), name=str(batch))
    alarms = monitor.status().alarms
    return 1 + min(int(alarm.batch) for alarm in alarms) if alarms else 0


class Work(NamedTuple):
    """How lines are made: by how many processes, which one alone, and where they are kept."""

    jobs: int
    line: int | None = None
    keep: Path | None = None
    only_kept: bool = False

    def run(self, name: str, function: Callable[[int], Any], streams: int) -> list[Any]:
        """Return the results of a function of a seed; those kept under a name are read.

        Results are kept after every chunk, so that a run that was killed resumes.
        """
        kept = None if self.keep is None else self.keep / f"{name}.json"
        results = json.loads(kept.read_text()) if kept is not None and kept.exists() else []
        if self.only_kept:
            return results
        with ProcessPoolExecutor(self.jobs) if self.jobs > 1 else nullcontext() as pool:
            for start in range(len(results), streams, CHUNK * self.jobs):
                seeds = range(start, min(start + CHUNK * self.jobs, streams))
                results += (map if pool is None else pool.map)(function, seeds)
                if kept is not None:
                    kept.parent.mkdir(parents=True, exist_ok=True)
                    temporary = kept.with_suffix(".part")
                    temporary.write_text(json.dumps(results))
                    temporary.replace(kept)
        return results[:streams]

    def choose(self, cases: Sequence[Case]) -> list[tuple[int, Case]]:
        """Return the cases to run with their places: all, or one."""
        return [(at, each) for at, each in enumerate(cases) if self.line in (None, at)]


QUIET = (
    Case("nothing changes, calibrated", 5_000, 0.0, 0),
    Case("nothing changes, 5% of events", 5_000, 0.0, 0, rate="rare"),
    Case("at the limit: too high by the tolerance from the start", 5_000, 0.01, 0),
    Case("at the limit, baseline of 500 rows", 500, 0.01, 0),
    Case("at the limit, baseline of 100,000 rows", 100_000, 0.01, 0),
    Case("at the limit, three classes", 5_000, 0.01, 0, "classes"),
    Case("at the limit, five groups", 5_000, 0.01, 0, "groups"),
    Case("at the limit, clusters of five rows", 5_000, 0.01, 0, "clusters"),
    Case("at the limit, three in ten rows labelled", 5_000, 0.01, 0, labelled=0.3),
)
CHANGED = tuple(
    Case(f"{kind}, by {gap:.0%}", size, gap, CHANGE, kind)
    for kind in ("events", "classes", "groups", "clusters")
    for size in (5_000, 50_000)
    for gap in (0.02, 0.05, 0.10)
    if kind in ("events", "classes") or size == 5_000
)


def false_alarms_part(streams: int, work: Work) -> tuple[str, str, Iterator[list[str]]]:
    words = (
        f"Streams (± one standard error) of {BATCHES} batches of {ROWS} labelled rows, the "
        "baseline drawn anew for each; the monitor is asked after every "
        "batch, with its default tolerance of one point and alpha of 5% for all tests "
        "together. *Alarm*: the share of streams with any alarm at any time. It is far below "
        "5% because the baseline is taken at its worst, and alpha is shared by three or more "
        "tests."
    )

    def lines() -> Iterator[list[str]]:
        yield ["stream", "rows of the baseline", "streams", "alarm"]
        for at, case in work.choose(QUIET):
            found = work.run(f"false_alarms-{at}", partial(run_stream, case), streams)
            yield [case.words, f"{case.baseline:,}", f"{len(found):,}", share(np.array(found) > 0)]

    return "The monitor: false alarms", words, lines()


def delays_part(streams: int, work: Work) -> tuple[str, str, Iterator[list[str]]]:
    words = (
        f"Streams of {BATCHES} batches of {ROWS} rows. From batch 51 on, probabilities are too "
        "high by 2, 5 or 10 points. *Batches until the alarm*: from the change on, the median and "
        "the middle 80% of all streams, where those without an alarm count as more than 150. A "
        "change must exceed the tolerance and what the baseline leaves in doubt: of 2 points, a "
        "baseline of 5,000 rows leaves too little to see."
    )

    def lines() -> Iterator[list[str]]:
        yield [
            *("stream", "rows of the baseline", "streams", "alarm", "batches until the alarm"),
            "too early",
        ]
        for at, case in work.choose(CHANGED):
            found = np.array(work.run(f"delays-{at}", partial(run_stream, case), streams))
            early = (found > 0) & (found <= CHANGE)
            delay = np.where(found > CHANGE, found - CHANGE, np.inf)[~early]
            low, middle, high = np.quantile(delay, (0.1, 0.5, 0.9), method="inverted_cdf")
            yield [
                case.words,
                f"{case.baseline:,}",
                f"{len(found):,}",
                share(found > CHANGE),
                f"{batches(middle)} ({batches(low)} – {batches(high)})",
                share(early),
            ]

    return "The monitor: how soon it notices", words, lines()


def batches(value: float) -> str:
    return f"{value:.0f}" if np.isfinite(value) else "> 150"


def share(found: np.ndarray) -> str:
    """A share with its standard error."""
    rate = float(np.mean(found))
    if rate in (0.0, 1.0):
        return f"{rate:.0%}"
    return f"{rate:.1%} ± {(rate * (1 - rate) / len(found)) ** 0.5:.1%}"


# Other ways to watch the same streams.


def weekly(gaps: np.ndarray, base: np.ndarray, *, corrected: bool) -> int:
    """A z-test of every batch against the baseline plus the tolerance, both ways, at 5%."""
    from scipy.stats import norm

    limit = norm.isf(0.025 / (len(gaps) if corrected else 1))
    error = np.sqrt(gaps.var(1) / gaps.shape[1] + base.var() / len(base))
    change = np.abs(gaps.mean(1) - base.mean()) - 0.01
    crossed = np.flatnonzero(change / error > limit)
    return int(crossed[0]) + 1 if len(crossed) else 0


def watch_river(make: Callable[[], Any], values: np.ndarray, base: np.ndarray) -> int:
    """A detector of river, fed row by row; the baseline first."""
    detector = make()
    update = detector.update
    for value in base.tolist():
        update(value)
    for place, row in enumerate(values):
        for value in row.tolist():
            update(value)
            if detector.drift_detected:
                return place + 1
    return 0


def run_peers(case: Case, seed: int) -> dict[str, int]:
    """Return the batch of each method's first alarm."""
    from river import drift

    rng = np.random.default_rng([20, seed])
    base = draw(case.baseline, 0.0, case, rng)
    monitor = Monitor(base)
    gaps, squares = np.empty((BATCHES, ROWS)), np.empty((BATCHES, ROWS))
    for batch in range(BATCHES):
        rows = draw(ROWS, case.gap if batch >= case.at else 0.0, case, rng)
        monitor.append(rows, name=str(batch))
        gaps[batch] = np.asarray(rows.array) - np.asarray(rows.labels)
        squares[batch] = gaps[batch] ** 2
    alarms = monitor.status().alarms
    own = np.asarray(base.array) - np.asarray(base.labels)
    return {
        "calibrant": 1 + min(int(alarm.batch) for alarm in alarms) if alarms else 0,
        "z-test every week, 5% each": weekly(gaps, own, corrected=False),
        "z-test every week, Bonferroni for 200": weekly(gaps, own, corrected=True),
        "river ADWIN, gap": watch_river(drift.ADWIN, gaps, own),
        "river ADWIN, Brier": watch_river(drift.ADWIN, squares, own**2),
        "river PageHinkley, gap": watch_river(drift.PageHinkley, gaps, own),
    }


def peers_part(streams: int, work: Work) -> tuple[str, str, Iterator[list[str]]]:
    words = (
        "Streams of events, the same for every method; baseline of 20,000 rows, "
        f"{BATCHES} batches of {ROWS}. *False alarm*: where nothing changes, and where "
        "probabilities are too high by half the tolerance from the start. *Noticed*: after a "
        "change by 5 or 10 points at batch 51, streams with a false alarm before counting as "
        "not noticed, and the median number of batches. The z-test compares each batch with "
        "the baseline and the tolerance; river's detectors, with their defaults, see the "
        "baseline first, then every row. A test of 5% a week is almost sure to raise a false "
        "alarm within 200 weeks; detectors of any change have no level for the whole stream, "
        "and no tolerance: ADWIN on the gap notices sooner for that. Corrected for 200 looks "
        "known beforehand, the z-test is as good; the monitor needs no such number. Few streams, "
        "since river is fed row by row."
    )

    def lines() -> Iterator[list[str]]:
        cases = [
            Case("", 20_000, 0.0, 0),
            Case("", 20_000, 0.005, 0),
            Case("", 20_000, 0.05, CHANGE),
            Case("", 20_000, 0.10, CHANGE),
        ]
        yield [
            *("method", "streams a case", "false alarm, nothing changes"),
            "false alarm, half the tolerance",
            *("5 points: noticed", "batches", "10 points: noticed", "batches"),
        ]
        found = [
            work.run(f"peers-{at}", partial(run_peers, case), streams)
            for at, case in work.choose(cases)
        ]
        if work.line is not None:
            return
        for name in found[0][0]:
            by_case = [np.array([each[name] for each in results]) for results in found]
            count = " / ".join(dict.fromkeys(f"{len(each)}" for each in by_case))
            cells = [count, share(by_case[0] > 0), share(by_case[1] > 0)]
            for places in by_case[2:]:
                after = places[places > CHANGE] - CHANGE
                cells += [share(places > CHANGE), f"{np.median(after):.0f}" if len(after) else "–"]
            yield [name, *cells]

    return "The monitor beside other detectors", words, lines()


# Speed.

_MANY = 1_000_000


def time_append(kind: str) -> tuple[float, float]:
    """Return the seconds in which labelled rows are appended, by the clock and of the processor."""
    rng = np.random.default_rng(0)
    case = Case("", 0, 0.0, 0, kind)
    monitor = Monitor(draw(20_000, 0.0, case, rng))
    rows = draw(_MANY, 0.0, case, rng)
    begin, used = time.perf_counter(), time.process_time()
    monitor.append(rows)
    return time.perf_counter() - begin, time.process_time() - used


def speed_part(streams: int, work: Work) -> tuple[str, str, Iterator[list[str]]]:
    words = (
        "A batch of a million labelled rows, whose probabilities are there already, is appended: "
        "hashed, scored and summed for every test. The best of five, by one process, and by two at "
        "once of which each has a batch; other programs ran on the same two cores."
    )

    def lines() -> Iterator[list[str]]:
        yield ["rows", "processes", "million rows a second"]
        for kind, name in (("events", "events"), ("classes", "three classes")):
            for count in (1, 2):
                with ProcessPoolExecutor(count) as pool:
                    rounds = [list(pool.map(time_append, [kind] * count)) for _ in range(5)]
                best = min(max(clock for clock, _ in each) for each in rounds)
                yield [name, str(count), f"{count * _MANY / best / 1e6:.1f}"]

    return "The monitor: speed", words, lines()


PARTS = {
    "false_alarms": false_alarms_part,
    "delays": delays_part,
    "peers": peers_part,
    "speed": speed_part,
}


def write_section(path: Path, heading: str, body: str) -> None:
    """Replace a section of the file, or add it as the last one."""
    text = path.read_text()
    start = text.find(f"## {heading}\n")
    if start < 0:
        start = text.rfind("\nMade by ") + 1 or len(text)
        end = start
    else:
        ends = [text.find(mark, start + 3) for mark in ("\n## ", "\nMade by ")]
        end = min((each + 1 for each in ends if each >= 0), default=len(text))
    path.write_text(f"{text[:start]}## {heading}\n\n{body}\n\n{text[end:]}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--streams", type=int, default=1000)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--part", choices=list(PARTS), action="append")
    parser.add_argument("--line", type=int, help="make this line alone, and write no table")
    parser.add_argument("--keep", type=Path, help="folder of lines made before")
    parser.add_argument("--only-kept", action="store_true", help="make tables of what is kept")
    parser.add_argument("--write", type=Path)
    options = parser.parse_args()
    work = Work(options.jobs, options.line, options.keep, options.only_kept)
    for name in options.part or PARTS:
        begin = time.perf_counter()
        heading, words, lines = PARTS[name](options.streams, work)
        table = []
        for line in lines:
            table.append("| " + " | ".join(line) + " |")
            print(table[-1], f"({time.perf_counter() - begin:.0f} s)", flush=True)
        table.insert(1, "|" + "---|" * (table[0].count("|") - 1))
        made_by = f"Made by `python benchmarks/monitor_coverage.py --part {name}`."
        if options.write and options.line is None:
            write_section(
                options.write, heading, "\n".join([words, "", *table, "", f"({made_by})"])
            )


if __name__ == "__main__":
    main()
