"""How the results of ``calibrators.py`` are written: targets, tables, remarks."""

from __future__ import annotations

import csv
import math
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import peers
from calibrator_contestants import OURS
from calibrator_quality import Key, Line
from calibrator_statistics import (
    AUTO,
    BEFORE,
    RIVAL,
    TEMPERATURE,
    Counts,
    Results,
    count,
)
from harness import shown, table

WANTED_SETS = 15
AT_OR_BELOW = 13
NEAR_BEST = 9
FIGURES = ("nll", "ece", "accuracy", "brier")

METHOD = (
    "Each set is split into halves, by seed; every calibrator is fitted on the one and judged on "
    "the other. A library that takes logits is given them in float32; one that wants "
    "probabilities is given the softmax in float64, floored at 1e-12 and renormalised, as are "
    "all probabilities that come out. *±* is the standard error of the paired difference over "
    "splits; since the splits share rows, it is an optimistic one, and where it matters the "
    "error over rows is given too. A difference of at most one standard error is a tie. The best "
    "peer is the method of lowest mean test NLL on that set, chosen in hindsight among all "
    "methods of all peers: no one could have known it beforehand."
)
HONESTY = (
    "What the test rows had a hand in: an earlier table of these sets (seeds 0 to 4) showed where "
    "`auto` fell behind, and because of it `intra_order` became a network and joined the menu, "
    "`beta` shares less between two classes, and the menu ends in a mixture of its methods. Those "
    "changes were made on calibration halves alone, those of seeds 10 to 14; but halves of other "
    "seeds are halves of the same rows, so no split of the real sets is fresh any more. Defaults "
    "of isotonic, histogram, and class and parameterized temperatures were set while the earlier "
    "tables were at hand."
)
CLEAN = (
    "The families `sisters` and `priors` were never run before this table: they are the only "
    "clean test here."
)


def quality_report(lines: Mapping[Key, Line]) -> str:
    """Markdown of everything the lines say."""
    results = Results(lines)
    parts = [
        "# Quality of the calibrators",
        "Written by `make bench-calibrators` (`benchmarks/calibrators.py quality`).",
        "\n".join(f"- {line}" for line in provenance(results)),
        METHOD,
        f"{HONESTY} {CLEAN}"
        if results.made_up
        else f"{HONESTY} The synthetic sets are yet to run.",
    ]
    if results.real:
        parts += ["## Targets", targets(count(results, results.real))]
        parts += section(results, results.real, f"{len(results.real)} sets of real networks")
    if results.made_up:
        parts += section(results, results.made_up, "Synthetic families")
        parts.append(
            "Described in `benchmarks/synthetic.py`; nothing was tuned on them, and `sisters` and "
            "`priors` were written after the menu's last change. "
            + summary(count(results, results.made_up))
        )
    parts += [
        "## Peers",
        peer_table(results.lines.values()),
        "## What failed",
        failure_table(results),
    ]
    return "\n\n".join(parts) + "\n"


def provenance(results: Results) -> list[str]:
    """Versions and sources that the lines themselves name."""
    found = sorted({(x["library"], x["version"]) for x in results.lines.values()})
    libraries = ", ".join(f"{name} {number}" for name, number in found if number)
    torch = sorted({line["torch"] for line in results.lines.values()})
    sources = {line["source"] for line in results.lines.values() if line["source"]}
    said = [f"{libraries}, torch {', '.join(torch)}"]
    said.append(f"{len(results.seeds)} splits, {len(results.contestants)} methods")
    if len(sources) > 1:
        said.append(f"**lines of calibrant come from {len(sources)} states of its code**")
    return said


def targets(found: Counts) -> str:
    whole = found.sets >= WANTED_SETS
    below = found.mean_auto < found.mean_rival
    rows = [
        (
            f"`auto` at or below `logistic-mix` on at least {AT_OR_BELOW} of {WANTED_SETS} sets",
            f"{found.at_or_below_rival} of {found.sets}",
            verdict(found.at_or_below_rival >= AT_OR_BELOW, whole),
        ),
        (
            "`auto` below it in the mean over sets",
            f"{found.mean_auto:.4f} against {found.mean_rival:.4f}",
            verdict(below, whole),
        ),
        (
            f"within one standard error of the best peer in hindsight on at least {NEAR_BEST}",
            f"{found.near_best_peer} of {found.sets}",
            verdict(found.near_best_peer >= NEAR_BEST, whole),
        ),
        (
            "on no set significantly worse than uncalibrated in NLL",
            ", ".join(found.worse_nll) or "none",
            verdict(not found.worse_nll, whole),
        ),
        (
            "nor in ECE",
            ", ".join(found.worse_ece) or "none",
            verdict(not found.worse_ece, whole),
        ),
    ]
    return table(("target", "measured", "verdict"), rows)


def verdict(met: bool, whole: bool) -> str:
    if not whole:
        return "incomplete"
    return "met" if met else "**missed**"


def summary(found: Counts) -> str:
    worse = sorted({*found.worse_nll, *found.worse_ece})
    return (
        f"`auto` is at or below `logistic-mix` on {found.at_or_below_rival} of {found.sets} sets, "
        f"in the mean {found.mean_auto:.4f} against {found.mean_rival:.4f}; within one standard "
        f"error of the best peer in hindsight on {found.near_best_peer}; significantly worse than "
        f"uncalibrated on {', '.join(worse) or 'none'}."
    )


def section(results: Results, names: Sequence[str], title: str) -> list[str]:
    return [
        f"## {title}: test NLL",
        nll_table(results, names),
        f"## {title}: against the uncalibrated",
        safety_table(results, names),
        f"## {title}: every method, mean over sets",
        method_table(results, names),
    ]


def nll_table(results: Results, names: Sequence[str]) -> str:
    header = (
        "set",
        "fitted on",
        "uncalibrated",
        "temperature",
        "`auto`",
        "chose",
        "`logistic-mix`",
        "auto − it",
        "is",
        "best peer",
        "its NLL",
        "auto − it",
        "is",
    )
    rows = []
    for name in names:
        best = results.best_peer(name)
        to_rival = results.difference(name, AUTO, RIVAL)
        to_best = results.difference(name, AUTO, best)
        rows.append(
            (
                name,
                size_of(results, name),
                shown(results.mean(name, BEFORE), ".4f"),
                shown(results.mean(name, TEMPERATURE), ".4f"),
                shown(results.mean(name, AUTO), ".4f"),
                choices(results, name),
                shown(results.mean(name, RIVAL), ".4f"),
                str(to_rival),
                word(to_rival.mean, to_rival.error),
                best or "-",
                shown(results.mean(name, best), ".4f") if best else "-",
                str(to_best),
                word(to_best.mean, to_best.error),
            )
        )
    return table(header, rows)


def word(mean: float, error: float) -> str:
    if math.isnan(mean) or math.isnan(error):
        return "-"
    if abs(mean) <= error:
        return "tie"
    return "lower" if mean < 0 else "**higher**"


def size_of(results: Results, name: str) -> str:
    sizes = {
        f"{line['rows_fit']:,}x{line['classes']:,}"
        for line in results.lines.values()
        if line["set"] == name and "rows_fit" in line
    }
    return ", ".join(sorted(sizes)) or "-"


def choices(results: Results, name: str) -> str:
    """What was chosen, and on how many of the splits."""
    said = Counter(line.get("says", "") for line in results.of(name, AUTO))
    return ", ".join(f"{method} {times}" for method, times in said.most_common() if method) or "-"


def safety_table(results: Results, names: Sequence[str]) -> str:
    header = ("set", "NLL change", "rows", "ECE before", "after", "change", "rows", "worse")
    rows = []
    for name in names:
        found = results.of(name, AUTO)
        worse = [
            figure.upper()
            for figure in ("nll", "ece")
            if results.difference(name, AUTO, BEFORE, figure).significantly_above
        ]
        rows.append(
            (
                name,
                str(results.difference(name, AUTO, BEFORE, "nll")),
                row_error(found, "nll"),
                shown(results.mean(name, BEFORE, "ece"), ".4f"),
                shown(results.mean(name, AUTO, "ece"), ".4f"),
                str(results.difference(name, AUTO, BEFORE, "ece")),
                row_error(found, "ece"),
                ", ".join(worse) or ("no" if found else "-"),
            )
        )
    remark = (
        "*rows*: the mean standard error of the change over the rows of one test half (of ECE: by "
        "paired resampling), and on how many splits the change is upward by more than two of them."
    )
    return table(header, rows) + "\n\n" + remark


def row_error(lines: Sequence[Line], figure: str) -> str:
    if not lines:
        return "-"
    errors = [line[f"{figure}_change_error"] for line in lines]
    above = sum(line[f"{figure}_change"] > 2 * line[f"{figure}_change_error"] for line in lines)
    return f"{statistics.fmean(errors):.4f}, {above} up"


def method_table(results: Results, names: Sequence[str]) -> str:
    """Those that came through everywhere, by mean NLL; then the others by name."""
    whole = results.finished_everywhere(names)
    whole.sort(key=lambda c: statistics.fmean(results.mean(name, c) for name in names))
    rows = []
    for contestant in whole:
        found = [line for name in names for line in results.of(name, contestant)]
        means = [
            statistics.fmean(results.mean(name, contestant, figure) for name in names)
            for figure in FIGURES
        ]
        rows.append(
            (
                contestant,
                *(f"{mean:.4f}" for mean in means),
                str(sum(results.best_of(name) == contestant for name in names)),
                f"{sum(line['zeros'] for line in found):,}",
                f"{statistics.fmean(map(seconds, found)):.2f}",
            )
        )
    header = ("method", "NLL", "ECE", "accuracy", "Brier", "best on", "zeros", "seconds")
    rest = [c for c in results.contestants if c not in whole]
    remark = (
        "*zeros*: test rows whose class was given probability 0, over all splits; without the "
        "floor their NLL is infinite. *best on*: sets on which no other method has a lower mean "
        "NLL. *seconds*: fit and prediction of one half in the mean, on one thread and first calls "
        "included: no comparison of speed."
    )
    left_out = f" Not on every set: {', '.join(rest)}." if rest else ""
    return table(header, rows) + "\n\n" + remark + left_out


def seconds(line: Line) -> float:
    return line["fit_seconds"] + line["predict_seconds"]


def peer_table(lines: Iterable[Line]) -> str:
    """Who was measured by the lines themselves, and who could not be."""
    found = {line["library"]: line["version"] for line in lines if line["version"]}
    found.pop(OURS, None)
    rows = [(name, number, "measured") for name, number in sorted(found.items())]
    for outcome in peers.read_record():
        if outcome.name not in found:
            state = outcome.reason if not outcome.ready else "has no calibrators"
            rows.append((outcome.name, outcome.version or "-", state))
    return table(("peer", "version", "state"), rows)


def failure_table(results: Results) -> str:
    """Each contestant's reasons, with the sets they befell."""
    found: dict[tuple[str, str], set[str]] = {}
    for line in results.lines.values():
        if line["failure"]:
            found.setdefault((line["contestant"], line["failure"]), set()).add(line["set"])
    if not found:
        return "Nothing."
    rows = []
    for (contestant, reason), sets in found.items():
        where = "every set" if len(sets) == len(results.sets) else ", ".join(sorted(sets))
        rows.append((contestant, reason.replace("|", "/"), where))
    return table(("method", "what it said", "where"), rows)


def write_csv(lines: Mapping[Key, Line], path: Path) -> None:
    """Every method on every set: means over splits, and what failed."""
    results = Results(lines)
    header = ["set", "classes", "rows_fit", "method", "library", "version", "splits"]
    header += [x for figure in FIGURES for x in (figure, f"{figure}_error")]
    header += ["zeros", "seconds", "failure"]
    with path.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(header)
        for name in [*results.real, *results.made_up]:
            for contestant in results.contestants:
                row = csv_row(results, name, contestant)
                if row:
                    writer.writerow(row)


def csv_row(results: Results, name: str, contestant: str) -> list[str]:
    found = [results.lines.get((name, seed, contestant)) for seed in results.seeds]
    every = [line for line in found if line]
    good = [line for line in every if not line["failure"]]
    if not every:
        return []
    first = every[0]
    row = [name, first.get("classes", ""), first.get("rows_fit", ""), contestant]
    row += [first["library"], first["version"], len(good)]
    for figure in FIGURES:
        values = [line[figure] for line in good]
        error = statistics.stdev(values) / len(values) ** 0.5 if len(values) > 1 else math.nan
        row += [f"{statistics.fmean(values):.6f}" if values else "", f"{error:.6f}"]
    row.append(sum(line["zeros"] for line in good) if good else "")
    row.append(f"{statistics.median(map(seconds, good)):.3f}" if good else "")
    row.append("; ".join(sorted({line["failure"] for line in every if line["failure"]})))
    return [str(cell).replace("nan", "") if cell == "nan" else str(cell) for cell in row]
