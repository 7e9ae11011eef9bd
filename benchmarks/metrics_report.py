"""How the results of ``metrics.py`` are judged and written: targets, tables, remarks."""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass, field

import peers
from harness import Contestant, milliseconds, shown, table

BOUNDS = {
    "ece": 1.5,
    "nll": 1.5,
    "brier": 1.5,
    "adaptive_ece": 2.5,
    "classwise_ece": 3.0,
    "evaluate": 4.0,
}
TITLES = {
    "ece": "ECE",
    "nll": "NLL",
    "brier": "Brier",
    "adaptive_ece": "equal-mass ECE",
    "classwise_ece": "class-wise ECE",
    "evaluate": "`evaluate`, seven figures",
}
MEMORY_BOUND = 100e6
BOOTSTRAP_BOUND = 50.0
IMPORT_BOUND = 0.5
IMPORTS = ("import torch", "import torch, calibrant", "import torch, torchmetrics")
BOOTSTRAP_REMARK = (
    "calibrant draws the number of rows and of right answers in each bin, which is all that ECE "
    "depends on, and corrects the upward bias; uncertainty-calibration draws rows, of an "
    "equal-mass error, and has no setting for how often. The target is held against the faster "
    "of its two modes."
)
# Above this share of the machine used by others, times are shown but decide nothing.
BUSY = 0.05


@dataclass(frozen=True)
class Plan:
    """How much to measure."""

    sizes: tuple[tuple[int, int], ...] = ((10_000, 100), (50_000, 1_000), (1_000_000, 10))
    memory_size: tuple[int, int] = (50_000, 1_000)
    bootstrap_size: tuple[int, int] = (10_000, 10)
    resamples: int = 1_000
    rounds: int = 7
    import_rounds: int = 5
    limit: float = 60.0
    patience: float = 20.0


@dataclass
class Results:
    """Everything measured, to be written out."""

    yardsticks: dict[str, list[Contestant]] = field(default_factory=dict)
    tasks: dict[str, dict[str, list[Contestant]]] = field(default_factory=dict)
    references: dict[str, dict[str, float]] = field(default_factory=dict)
    busy: dict[str, float] = field(default_factory=dict)
    memory: dict[str, dict[str, float]] = field(default_factory=dict)
    bootstrap: list[Contestant] = field(default_factory=list)
    imports: dict[str, list[float]] = field(default_factory=dict)

    def pace(self, size: str) -> Contestant:
        """The yardstick at its fastest block size."""
        return min(self.yardsticks[size], key=lambda entry: entry.best)


def label(size: tuple[int, int]) -> str:
    return f"{size[0]:,}x{size[1]:,}"


def report(results: Results, plan: Plan, outcomes: list[peers.Outcome], where: list[str]) -> str:
    parts = [
        "# Speed and memory of the metrics",
        "Written by `make bench-metrics` (`benchmarks/metrics.py`).",
        "\n".join(f"- {line}" for line in where),
        describe_method(plan),
        "## Targets",
        targets(results),
        "## Peers",
        table(
            ("peer", "version", "state"),
            [(o.name, o.version or "-", o.reason or "measured") for o in outcomes],
        ),
    ]
    for size in results.tasks:
        parts += [f"## {size}", *describe_size(results, size)]
    parts += ["## Memory above the input, " + label(plan.memory_size), memory_table(results)]
    parts += [f"## Bootstrap interval of ECE, {label(plan.bootstrap_size)}"]
    parts += [bootstrap_table(results), BOOTSTRAP_REMARK, "## Import", import_table(results)]
    return "\n\n".join(parts) + "\n"


def describe_method(plan: Plan) -> str:
    return (
        "Every call starts from float32 logits and integer labels in memory and ends with the "
        "figure; the softmax is counted where a library wants probabilities. Contestants take "
        f"turns, {plan.rounds} times each (short calls in bursts, those that need longer fewer "
        f"times; cut off after {plan.limit:.0f} s), after a first call that is not timed. "
        "*Best* is the fastest call, *median* the median one; ratios are of the best. The "
        "yardstick is one `logsumexp` + `max` pass in row blocks, at the fastest of six block "
        "sizes. *Off by* is the distance to the definition evaluated in float64; 15 bins "
        "throughout."
    )


def targets(results: Results) -> str:
    sizes = list(results.tasks)
    noise = max(results.busy[size] for size in sizes)
    rows = []
    for task, bound in BOUNDS.items():
        mine = [results.tasks[size][task][0] for size in sizes]
        ratios = [m.best / results.pace(s).best for m, s in zip(mine, sizes, strict=True)]
        met = verdict(all(ratio <= bound for ratio in ratios), ratios, noise)
        cells = [shown(ratio, ".2f", "x") for ratio in ratios]
        rows.append((f"{TITLES[task]}: at most {bound:g}x the pass", *cells, met))
    for task in BOUNDS:
        pairs = [fastest_peer(results.tasks[size][task]) for size in sizes]
        if any(pairs):
            leads = [lead for pair in pairs if pair for lead in pair[:1]]
            cells = [f"{shown(pair[0], '.1f', 'x')} ({pair[1]})" if pair else "-" for pair in pairs]
            met = verdict(all(lead > 1 for lead in leads), leads, noise)
            rows.append((f"{TITLES[task]}: faster than every peer", *cells, met))
    blanks = [""] * (len(sizes) - 1)
    mine = [found["calibrant"] for found in results.memory.values() if "calibrant" in found]
    worst = max(mine, default=math.nan)
    met = verdict(worst <= MEMORY_BOUND, [worst])
    rows.append(
        ("memory: at most 100 MB above the input", shown(worst / 1e6, ".0f", " MB"), *blanks, met)
    )
    lead = bootstrap_lead(results)
    met = verdict(lead >= BOOTSTRAP_BOUND, [lead], results.busy["bootstrap"])
    rows.append(("ECE interval: at least 50x faster", shown(lead, ".0f", "x"), *blanks, met))
    cost = import_cost(results, IMPORTS[1])
    met = verdict(cost <= IMPORT_BOUND, [cost])
    rows.append(("import: at most 0.5 s above torch", shown(cost, ".2f", " s"), *blanks, met))
    return table(("target", *sizes, "verdict"), rows)


def verdict(met: bool, measured: list[float], noise: float = 0.0) -> str:
    if not measured or any(math.isnan(value) for value in measured):
        return "not measured"
    if noise > BUSY:
        return "undecided: machine busy"
    return "met" if met else "**missed**"


def fastest_peer(entries: list[Contestant]) -> tuple[float, str] | None:
    """How many times faster ours is than the fastest peer, and which that is."""
    finished = [entry for entry in entries if entry.peer and entry.seconds]
    if not finished:
        return None
    rival = min(finished, key=lambda entry: entry.best)
    return rival.best / entries[0].best, rival.name


def describe_size(results: Results, size: str) -> list[str]:
    pace = results.pace(size)
    blocks = ", ".join(f"{e.name} {milliseconds(e.best)}" for e in results.yardsticks[size])
    rows = [("the pass", pace.name, *timing(pace), "1.00x", "", "")]
    failures = []
    for task, entries in results.tasks[size].items():
        truth = results.references[size].get("ece" if task == "evaluate" else task, math.nan)
        for entry in entries:
            ratio = shown(entry.best / pace.best, ".2f", "x")
            value, off = shown(entry.value, ".6f"), shown(abs(entry.value - truth), ".1e")
            rows.append((TITLES[task], entry.name, *timing(entry), ratio, value, off))
            if entry.failure:
                failures.append(f"- {TITLES[task]} by {entry.name}: {entry.failure}.")
    header = ("figure", "by", "best, ms", "median, ms", "calls", "of the pass", "value", "off by")
    busy = shown(100 * results.busy[size], ".0f", "%")
    quiet = f"Other processes used {busy} of the machine meanwhile."
    parts = [f"The pass by block size, best in ms: {blocks}. {quiet}", table(header, rows)]
    return [*parts, "\n".join(failures)] if failures else parts


def timing(entry: Contestant) -> tuple[str, str, str]:
    return milliseconds(entry.best), milliseconds(entry.median), str(len(entry.seconds))


def memory_table(results: Results) -> str:
    names = list(dict.fromkeys(name for found in results.memory.values() for name in found))
    rows = []
    for name in names:
        peaks = [found.get(name, math.nan) for found in results.memory.values()]
        rows.append((name, *(shown(peak / 1e6, ".0f") for peak in peaks)))
    return table(("MB", *(TITLES[task] for task in results.memory)), rows)


def bootstrap_lead(results: Results) -> float:
    """How many times faster ours is than the quickest interval of a peer."""
    rivals = [entry.best for entry in results.bootstrap if entry.peer and entry.seconds]
    return min(rivals, default=math.nan) / results.bootstrap[0].best


def bootstrap_table(results: Results) -> str:
    mine = results.bootstrap[0].best
    rows = [
        (e.name, *timing(e), shown(e.best / mine, ",.1f", "x"), shown(e.value, ".4f"))
        for e in results.bootstrap
    ]
    failures = [f"- {e.name}: {e.failure}." for e in results.bootstrap if e.failure]
    header = ("interval", "best, ms", "median, ms", "calls", "of ours", "upper end")
    return "\n".join([table(header, rows), *(["", *failures] if failures else [])])


def import_cost(results: Results, statement: str) -> float:
    """Median seconds above ``import torch``."""
    base, whole = results.imports[IMPORTS[0]], results.imports[statement]
    return statistics.median(whole) - statistics.median(base) if base and whole else math.nan


def import_table(results: Results) -> str:
    rows = []
    for statement, seconds in results.imports.items():
        middle = f"{statistics.median(seconds):.2f}" if seconds else "failed"
        spread = f"{min(seconds):.2f} to {max(seconds):.2f}" if seconds else "-"
        rows.append(
            (f"`{statement}`", middle, spread, shown(import_cost(results, statement), "+.2f"))
        )
    return table(("fresh process", "median, s", "range, s", "above torch, s"), rows)
