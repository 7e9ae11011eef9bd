"""Do intervals hold the truth, and are alarms rarely false? Simulated, with known truths.

    python benchmarks/interval_coverage.py --write benchmarks/COVERAGE.md
    python benchmarks/interval_coverage.py --part groups --write benchmarks/COVERAGE.md
    python benchmarks/interval_coverage.py --part verdict_classes --lines '^1,000' --jobs 16 ...

Each part is a section of the file; ``--part`` makes one again and leaves the others, and
``--lines`` makes some lines of a part whose first columns match a regular expression. The part
``ece`` is here, the others are in closed_coverage.py,
coverage_parts.py, verdict_parts.py and event_coverage.py.

Confidences are 0.55 + 0.45·Beta(3, 1). A prediction of confidence c is right with chance
c − g(c). Where the gap g keeps one sign, the true ECE is E|g| whatever the bins; where it
changes sign only at edges of the 15 bins, likewise.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from calibrant import bootstrap_interval, metrics
from calibrant.evaluation.verdict import calibration_test
from calibrant.metrics.base import compute_all
from calibrant.metrics.rank_state import RankState
from closed_coverage import closed_part
from coverage_parts import (
    Plan,
    compare_groups_part,
    compare_part,
    coverage_at_risk_part,
    groups_part,
)
from event_coverage import clusters_part, totals_part
from verdict_parts import verdict_classes_part, verdict_events_part

LOW, WIDTH = 0.55, 0.45


# E[0.3 (1 − c)], with E c = LOW + WIDTH · 3/4.
SLOPED = 0.3 * (1 - LOW - WIDTH * 0.75)

# name: gap(c), true ECE
MODELS: dict[str, tuple[Callable[[np.ndarray], np.ndarray], float]] = {
    "calibrated": (np.zeros_like, 0.0),
    "overconfident by 2%": (lambda c: np.full_like(c, 0.02), 0.02),
    "overconfident by 10%": (lambda c: np.full_like(c, 0.10), 0.10),
    "underconfident, 0.3(1 − c)": (lambda c: -0.3 * (1 - c), SLOPED),
    "off by ±0.3(1 − c), sign by bin": (
        lambda c: 0.3 * (1 - c) * np.where(np.ceil(c * 15) % 2 == 0, 1.0, -1.0),
        SLOPED,
    ),
}


def draw(num_rows: int, gap: Callable, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    confidence = LOW + WIDTH * rng.beta(3, 1, size=num_rows)
    right = rng.random(num_rows) < confidence - gap(confidence)
    return np.stack((1 - confidence, confidence), axis=1), right.astype(np.int64)


def one_cell(num_rows: int, gap: Callable, truth: float, trials: int, naive: int) -> list[str]:
    rng = np.random.default_rng(20_000 + num_rows)
    measure = metrics.measure("ece")
    inside, width, corrected, plain, alarms = 0, 0.0, [], [], 0
    naive_inside = 0
    for trial in range(trials):
        probs, labels = draw(num_rows, gap, rng)
        found = bootstrap_interval(
            measure, probs, labels, from_logits=False, seed=trial, view="top"
        )
        inside += found.low <= truth <= found.high
        width += (found.high - found.low) / trials
        corrected.append(found.estimate)
        plain.append(float(metrics.ece(probs, labels, from_logits=False, view="top")))
        state = RankState()
        compute_all([], [(probs, labels)], from_logits=False, extra=[state])
        alarms += calibration_test(state, resamples=500, seed=trial) < 0.05
        if trial < naive:
            picks = rng.integers(0, num_rows, size=(200, num_rows))
            drawn = [
                metrics.ece(probs[rows], labels[rows], from_logits=False, view="top")
                for rows in picks
            ]
            low, high = np.quantile(drawn, (0.025, 0.975))
            naive_inside += low <= truth <= high
    share = inside / trials
    error = (share * (1 - share) / trials) ** 0.5
    return [
        f"{num_rows:,}",
        f"{truth:.4f}",
        f"{share:.1%} ± {error:.1%}",
        f"{naive_inside / naive:.0%}" if naive else "—",
        f"{width:.4f}",
        f"{np.mean(plain):.4f}",
        f"{np.mean(corrected):.4f}",
        f"{alarms / trials:.1%}",
    ]


def ece_part(plan: Plan) -> tuple[str, str, Iterator[list[str]]]:
    """The 95% interval of ECE, and the test of "calibrated"."""
    trials = plan.trials
    naive = min(trials, 100)
    words = (
        f"{trials:,} data sets a line (± one standard error), 15 equal-width bins, 1,000 resamples "
        f"an interval; the plain percentile bootstrap on the first {naive} of them with 200 "
        "resamples. The truth is known in closed form. The last column is the share of data sets "
        'on which the hypothesis "calibrated" is rejected at 5%: the false-alarm rate in the first '
        "two lines, the power in the others."
    )

    def lines() -> Iterator[list[str]]:
        yield [
            *("model", "rows", "true ECE", "covers", "percentile bootstrap covers", "mean width"),
            *("mean plug-in", "mean corrected", "test rejects at 5%"),
        ]
        for name, (gap, truth) in MODELS.items():
            for num_rows in (500, 10_000):
                yield [name, *one_cell(num_rows, gap, truth, trials, naive)]

    return "The 95% interval of ECE", words, lines()


PARTS = {
    "ece": ece_part,
    "closed": closed_part,
    "coverage_at_risk": coverage_at_risk_part,
    "groups": groups_part,
    "compare": compare_part,
    "compare_groups": compare_groups_part,
    "verdict_events": verdict_events_part,
    "verdict_classes": verdict_classes_part,
    "clusters": clusters_part,
    "totals": totals_part,
}
TITLE = "# How often intervals hold the truth, and alarms are false"
MADE_BY = (
    "Made by `python benchmarks/interval_coverage.py --write benchmarks/COVERAGE.md` (`--part` "
    "makes one section, `--trials` says of how many sets)."
)


# How many columns name a line.
MERGED = {"verdict_events": 4, "verdict_classes": 3, "clusters": 2, "totals": 3}


def merge_lines(made: list[list[str]], before: str, names: int) -> list[list[str]]:
    """Put lines into the table of a section, in place of those of the same name."""
    table = [
        [cell.strip() for cell in line.strip("| ").split(" | ")]
        for line in before.splitlines()
        if line.startswith("| ")
    ]
    found = {tuple(line[:names]): line for line in table[1:]}
    found.update({tuple(line[:names]): line for line in made[1:]})
    return [made[0], *found.values()]


def sections(text: str) -> dict[str, str]:
    """The sections of a file by their headings."""
    parts = re.split(r"^## (.*)\n", text.replace(MADE_BY, ""), flags=re.M)
    return {heading: body.strip() for heading, body in zip(parts[1::2], parts[2::2], strict=True)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trials", type=int, default=1000)
    parser.add_argument("--part", choices=list(PARTS), action="append")
    parser.add_argument("--lines", default="", help=f"lines to make, of {', '.join(MERGED)}")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--write", type=Path)
    options = parser.parse_args()
    plan = Plan(options.trials, options.jobs, options.lines)
    made = {}
    before = {}
    if options.write and options.write.exists():
        before = sections(options.write.read_text())
    for name in options.part or PARTS:
        heading, words, lines = PARTS[name](plan)
        table = []
        for line in lines:
            table.append(line)
            print(format_line(line), flush=True)
        if options.lines and name in MERGED:
            table = merge_lines(table, before.get(heading, ""), MERGED[name])
        rule = "|" + "---|" * len(table[0])
        rows = [format_line(line) for line in table]
        made[heading] = "\n".join([words, "", rows[0], rule, *rows[1:]])
    if options.write:
        order = [make(Plan(1))[0] for make in PARTS.values()]
        found = {**before, **made}
        order += [each for each in before if each not in order]  # other scripts' sections
        bodies = [f"## {each}\n\n{found[each]}\n" for each in order if each in found]
        options.write.write_text("\n".join([TITLE, "", *bodies, MADE_BY, ""]))


def format_line(cells: list[str]) -> str:
    """Return a line of a Markdown table."""
    return "| " + " | ".join(cells) + " |"


if __name__ == "__main__":
    main()
