"""Does the 95% interval of ECE hold the truth 95 times in 100? Simulated, truth in closed form.

    python benchmarks/interval_coverage.py --write benchmarks/COVERAGE.md

Confidences are 0.55 + 0.45·Beta(3, 1). A prediction of confidence c is right with chance
c − g(c). Where the gap g keeps one sign, the true ECE is E|g| whatever the bins; where it
changes sign only at edges of the 15 bins, likewise.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

import numpy as np

from calibrant import bootstrap_interval, metrics
from calibrant.evaluation.hypothesis import calibration_test
from calibrant.metrics.base import compute_all
from calibrant.metrics.ranked import RankState

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
        found = bootstrap_interval(measure, probs, labels, from_logits=False, seed=trial)
        inside += found.low <= truth <= found.high
        width += (found.high - found.low) / trials
        corrected.append(found.estimate)
        plain.append(float(metrics.ece(probs, labels, from_logits=False)))
        state = RankState()
        compute_all([], [(probs, labels)], from_logits=False, extra=[state])
        alarms += calibration_test(state, resamples=500, seed=trial) < 0.05
        if trial < naive:
            picks = rng.integers(0, num_rows, size=(200, num_rows))
            drawn = [metrics.ece(probs[rows], labels[rows], from_logits=False) for rows in picks]
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trials", type=int, default=1000)
    parser.add_argument("--naive", type=int, default=100)
    parser.add_argument("--write", type=Path)
    options = parser.parse_args()
    head = ["model", "rows", "true ECE", "covers", "percentile bootstrap covers", "mean width"]
    head += ["mean plug-in", "mean corrected", "test rejects at 5%"]
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    for name, (gap, truth) in MODELS.items():
        for num_rows in (500, 10_000):
            cells = one_cell(num_rows, gap, truth, options.trials, options.naive)
            lines.append("| " + " | ".join([name, *cells]) + " |")
            print(lines[-1], flush=True)
    text = "\n".join(
        [
            "# Coverage of the 95% interval of ECE",
            "",
            f"Simulated: {options.trials:,} data sets a line (± one standard error), 15 "
            "equal-width bins, 1,000 resamples an interval; the plain percentile bootstrap on the "
            f"first {options.naive} of them with 200 resamples. The truth is known in closed form. "
            'The last column is the share of data sets on which the hypothesis "calibrated" is '
            "rejected at 5%: the false-alarm rate in the first two lines, the power in the others.",
            "",
            *lines,
            "",
            "Made by `python benchmarks/interval_coverage.py --write benchmarks/COVERAGE.md`.",
            "",
        ]
    )
    if options.write:
        options.write.write_text(text)


if __name__ == "__main__":
    main()
