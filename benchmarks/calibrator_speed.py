"""How long a fit takes: ours and the peers' that have the method, in turn, in one process.

A fit goes from float32 logits and integer labels in memory to a calibrator ready to use; what
a library needs made of them (probabilities, float64) is counted in its time. Speed means
nothing without quality, so the test NLL stands beside it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from calibrator_contestants import Entry, Predict, everyone, floored, quiet_warnings, version_of
from calibrator_quality import describe, source_digest
from harness import Contestant, cut_off, machine, peak_memory, race, share_of_others

Set = tuple[NDArray[np.float32], NDArray[np.int64]]
Size = tuple[int, int]
Line = dict[str, Any]

KINDS = ("temperature", "vector", "matrix", "dirichlet", "isotonic", "histogram")
WARM_UP_ROWS = 64
# Out of memory at 1,000 classes and 24 GiB, which ends the process and loses the other figures.
MOST_CLASSES = {"probmetrics dircal": 200}


@dataclass(frozen=True)
class Plan:
    """How much to measure."""

    sizes: dict[Size, tuple[str, ...]] = field(
        default_factory=lambda: {
            (5_000, 10): KINDS,
            (5_000, 100): KINDS,
            (25_000, 1_000): KINDS,
            (2_500, 32_000): ("temperature",),
        }
    )
    test_rows: int = 5_000
    rounds: int = 5
    limit: float = 120.0
    patience: float = 40.0


QUICK = Plan(
    sizes={(300, 4): KINDS, (200, 30): ("temperature",)},
    test_rows=300,
    rounds=1,
    limit=30.0,
    patience=5.0,
)


def make_input(rows: int, classes: int, *, seed: int = 0) -> Set:
    """Overconfident logits of a classifier that is uneven between classes.

    Class scores are g ~ N(0, I) with m = √(2 ln K) + 0.22 added to that of the true class, so
    that m·g are calibrated logits; given are 1.5·(a_k·m·g_k + b_k), a ~ N(1, 0.02²) and
    b ~ N(0, 0.15²). About three predictions in four are right, the best temperature has a test
    NLL of about .87 at 100 classes, and class-wise methods can gain a little on it.
    """
    generator = torch.Generator().manual_seed(seed)
    mean = math.sqrt(2 * math.log(classes)) + 0.22
    scale = 1 + 0.02 * torch.randn(classes, generator=generator)
    shift = 0.15 * torch.randn(classes, generator=generator)
    labels = torch.randint(classes, (rows,), generator=generator)
    logits = torch.randn(rows, classes, generator=generator)
    logits[torch.arange(rows), labels] += mean
    logits.mul_(mean * scale).add_(shift).mul_(1.5)
    return logits.numpy(), labels.numpy()


def label(size: Size) -> str:
    return f"{size[0]:,}x{size[1]:,}"


def line_up(kind: str, only: Sequence[str] | None) -> list[Entry]:
    """Ours first, then every peer's method of that kind."""
    found = [entry for entry in everyone().values() if entry.kind == kind]
    if only:
        found = [e for e in found if not e.is_peer or any(word in e.name for word in only)]
    return found


class Fitting:
    """A fit to be timed, which keeps what it made for judging it afterwards."""

    def __init__(self, entry: Entry, train: Set) -> None:
        self.entry, self.train = entry, train
        self.predict: Predict | None = None

    def __call__(self) -> float:
        """Fit once; the figure comes later, outside the time."""
        self.predict = None
        self.predict = self.entry.fit(*self.train)
        return math.nan

    def judge(self, test: Set, limit: float) -> tuple[NDArray[np.float64], int, str]:
        """Loss of each test row (floored), rows given probability 0, and what failed."""
        nothing = np.full(len(test[1]), math.nan)
        if self.predict is None:
            return nothing, 0, ""
        logits, labels = test
        try:
            with cut_off(limit):
                raw = np.asarray(self.predict(logits), dtype=np.float64)
        except Exception as error:  # a peer may fail in any way: say so and go on
            return nothing, 0, describe(error)
        rows = np.arange(len(labels))
        zeros = int((~(raw[rows, labels] > 0)).sum())
        return -np.log(floored(raw)[rows, labels]), zeros, ""


def measure(plan: Plan, *, threads: int, only: Sequence[str] | None = None) -> Iterator[Line]:
    """Lines, one for each size and contestant."""
    quiet_warnings()
    torch.set_num_threads(threads)
    where = machine(threads)
    for size, kinds in plan.sizes.items():
        rows, classes = size
        tested = min(plan.test_rows, max(1, plan.test_rows * 6_400 // classes))
        logits, labels = make_input(rows + tested, classes)
        train = logits[:rows], labels[:rows]
        test = logits[rows:], labels[rows:]
        common = {"size": label(size), "machine": where, "threads": threads, "test_rows": tested}
        common |= {"rounds": plan.rounds, "limit": plan.limit, "torch": version_of("torch")}
        for kind in kinds:
            for line in race_kind(kind, train, test, plan, only):
                yield common | line


def race_kind(
    kind: str, train: Set, test: Set, plan: Plan, only: Sequence[str] | None
) -> Iterator[Line]:
    classes = train[0].shape[1]
    fittings = [Fitting(entry, train) for entry in line_up(kind, only)]
    passes, memory = own_facts(train) if kind == "temperature" else (0, math.nan)
    runs = [Contestant(f.entry.name, f, peer=f.entry.is_peer) for f in fittings]
    for run in runs:
        if classes > MOST_CLASSES.get(run.name, classes):
            run.failure = f"not tried above {MOST_CLASSES[run.name]} classes: it ends the process"
    able = [run for run in runs if not run.failure]
    busy = share_of_others(
        lambda: race(able, rounds=plan.rounds, limit=plan.limit, patience=plan.patience)
    )
    ours: NDArray[np.float64] | None = None
    for fitting, run in zip(fittings, runs, strict=True):
        losses, zeros, failure = fitting.judge(test, plan.limit)
        ours = losses if ours is None else ours
        yield {
            "kind": kind,
            "contestant": run.name,
            "peer": run.peer,
            "version": version_of(fitting.entry.library),
            "source": "" if run.peer else source_digest(),
            "seconds": run.seconds,
            "nll": float(losses.mean()),
            "nll_error": float((losses - ours).std(ddof=1) / len(losses) ** 0.5),
            "zeros": zeros,
            "failure": run.failure or failure,
            "busy": busy,
            "passes": passes if not run.peer else 0,
            "memory": memory if not run.peer else math.nan,
        }


def own_facts(train: Set) -> tuple[int, float]:
    """Passes over the data of our temperature, and bytes it needs above its input."""
    from calibrant.calibrators import get

    logits, labels = train
    get("temperature").fit(logits[:WARM_UP_ROWS], labels[:WARM_UP_ROWS])
    made = get("temperature")
    call: Callable[[], object] = lambda: made.fit(logits, labels)  # noqa: E731
    memory = float(peak_memory(call))
    return int(made.passes_), memory


def read_lines(path: Path) -> list[Line]:
    """The latest line of each size, kind and contestant, in the order they were written."""
    found: dict[tuple[str, str, str], Line] = {}
    for text in path.read_text().splitlines() if path.exists() else []:
        line = json.loads(text)
        found[line["size"], line["kind"], line["contestant"]] = line
    return list(found.values())
