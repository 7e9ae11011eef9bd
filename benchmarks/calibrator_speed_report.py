"""How the results of ``calibrator_speed`` are judged and written."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median
from typing import Any

from calibrator_speed import KINDS, Line
from harness import shown, table

# Solvers stop a little beside the optimum: test NLL no further apart than this is equal.
EQUAL = 1e-4
PASSES = 8
LEADS = {"5,000x10": 4.0, "25,000x1,000": 5.0, "2,500x32,000": 10.0}
BUSY = 0.05

METHOD = (
    "Every fit starts from float32 logits and integer labels in memory and ends with a "
    "calibrator ready to use; making probabilities or float64 is counted where a library wants "
    "them. Contestants take turns in one process, after a first fit that is not timed (unless it "
    "is so long that it stays the only one). *Best* is the fastest fit, ratios are of the best. "
    "Test NLL is on rows not fitted on, probabilities floored at 1e-12; *zeros* are test rows "
    "whose class was given probability 0, so that NLL without the floor is infinite. A peer's NLL "
    "is equal or better where it is above ours by no more than one standard error of the paired "
    "difference over test rows (or 1e-4); a fast fit that is worse than that is no rival, and is "
    "shown all the same."
)


def speed_report(lines: Sequence[Line]) -> str:
    """Markdown of everything the lines say."""
    sizes = list(dict.fromkeys(line["size"] for line in lines))
    parts = ["# Speed of the calibrators"]
    parts += ["Written by `make bench-calibrators` (`benchmarks/calibrators.py speed`)."]
    if not lines:
        return "\n\n".join([*parts, "Nothing measured."]) + "\n"
    where = list(dict.fromkeys(text for line in lines for text in line["machine"]))
    parts += ["\n".join(f"- {text}" for text in where), METHOD, "## Targets", targets(lines)]
    for size in sizes:
        parts += [f"## {size}", size_table([line for line in lines if line["size"] == size])]
        failed = [x for x in lines if x["size"] == size and x["failure"]]
        said = [f"- {x['kind']} by {x['contestant']}: {x['failure'].rstrip('.')}." for x in failed]
        parts += ["\n".join(said)] if said else []
    return "\n\n".join(parts) + "\n"


def best(line: Line) -> float:
    return min(line["seconds"], default=math.nan)


def rivals(lines: Sequence[Line], ours: Line) -> list[Line]:
    """Peers that finished the same kind of fit on the same rows."""
    same = [x for x in lines if x["size"] == ours["size"] and x["kind"] == ours["kind"]]
    return [x for x in same if x["peer"] and x["seconds"] and math.isfinite(x["nll"])]


def matches(ours: Line, peer: Line) -> bool:
    """Whether a peer's test NLL is equal to ours or better."""
    return bool(peer["nll"] - ours["nll"] <= max(EQUAL, peer["nll_error"]))


def lead(ours: Line, found: Sequence[Line]) -> tuple[float, str]:
    """How many times faster ours is than the fastest of these, and which that is."""
    if not found or not ours["seconds"]:
        return math.nan, "none"
    rival = min(found, key=best)
    return best(rival) / best(ours), rival["contestant"]


def targets(lines: Sequence[Line]) -> str:
    mine = {(x["size"], x["kind"]): x for x in lines if not x["peer"]}
    rows = []
    for (size, kind), line in mine.items():
        if kind == "temperature":
            few = line["passes"] <= PASSES
            wanted = f"temperature at {size}: at most {PASSES} passes"
            rows.append((wanted, str(line["passes"]), verdict(few, True, 0.0), "", ""))
    for kind in KINDS:
        for (size, found), line in mine.items():
            if found == kind:
                rows.append(against_peers(lines, line, LEADS.get(size, 1.0)))
    held = [x for x in mine.values() if x["kind"] in ("isotonic", "histogram")]
    if held:
        zeros = sum(x["zeros"] for x in held)
        wanted = "isotonic and histogram: no true class has probability 0"
        rows.append((wanted, f"{zeros} rows", verdict(zeros == 0, True, 0.0), "", ""))
    header = ("target", "peers of equal or better NLL", "verdict", "peers of any NLL", "verdict")
    return table(header, rows)


def against_peers(lines: Sequence[Line], ours: Line, temperature_lead: float) -> tuple[str, ...]:
    """One row: how many times faster than the fastest rival, and than the fastest of all."""
    kind, size = ours["kind"], ours["size"]
    wanted = temperature_lead if kind == "temperature" else 1.0
    every = rivals(lines, ours)
    equal = [peer for peer in every if matches(ours, peer)]
    ratio, name = lead(ours, equal)
    any_ratio, any_name = lead(ours, every)
    text = f"{kind} at {size}: " + (f"at least {wanted:g}x faster" if wanted > 1 else "faster")
    known = bool(every) and bool(ours["seconds"])
    said = verdict(ahead(ratio, wanted), known, ours["busy"])
    if known and not equal:
        said = "met: no peer reaches its NLL"
    said_of_any = verdict(ahead(any_ratio, wanted), known, ours["busy"])
    tried = any(x["peer"] and (x["kind"], x["size"]) == (kind, size) for x in lines)
    if tried and not every and ours["seconds"]:
        said = said_of_any = "met: no peer finishes"
    return (
        text,
        f"{shown(ratio, '.1f', 'x')} ({name})",
        said,
        f"{shown(any_ratio, '.1f', 'x')} ({any_name})",
        said_of_any,
    )


def ahead(ratio: float, wanted: float) -> bool:
    return ratio >= wanted if wanted > 1 else ratio > 1


def verdict(met: bool, known: bool, busy: float) -> str:
    if not known:
        return "not measured"
    if busy > BUSY:
        return "undecided: machine busy"
    return "met" if met else "**missed**"


def size_table(lines: Sequence[Line]) -> str:
    header = ("method", "by", "best, s", "median, s", "fits", "of ours", "test NLL", "zeros", "")
    rows: list[tuple[str, ...]] = []
    for kind in KINDS:
        same = [line for line in lines if line["kind"] == kind]
        ours = next((best(line) for line in same if not line["peer"]), math.nan)
        for line in same:
            taken: list[Any] = line["seconds"]
            rows.append(
                (
                    kind,
                    line["contestant"],
                    shown(best(line), ".3g"),
                    shown(median(taken), ".3g") if taken else "-",
                    str(len(taken)),
                    shown(best(line) / ours, ".1f", "x"),
                    shown(line["nll"], ".4f"),
                    str(line["zeros"]),
                    remark(line),
                )
            )
    return table((*header[:-1], "remark"), rows)


def remark(line: Line) -> str:
    if line["failure"]:
        return "failed"
    if line["passes"]:
        return f"{line['passes']} passes, {line['memory'] / 1e6:.0f} MB"
    return ""
