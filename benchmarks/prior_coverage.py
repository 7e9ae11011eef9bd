"""How well are shares of classes estimated in rows without labels? Simulated.

    python benchmarks/prior_coverage.py --jobs 16 --write benchmarks/COVERAGE.md
    python benchmarks/prior_coverage.py --part power --sets 1000
    python benchmarks/prior_coverage.py --part shares --keep kept   # resumes; a file a line

Rows of class k are normal around their class's mean, with distance 2 between an axis and the
origin, so that the posterior is known; the scores are then made overconfident by 1.5 and biased by
class. Each set draws source rows with labels and new rows without.
"""

from __future__ import annotations

import argparse
import json
import os
import time
import warnings
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np

import calibrant
from calibrant import Predictions
from calibrant.calibrators import apply
from calibrant.decisions.adapt import _prepare  # whose estimate has no intervals yet
from monitor_coverage import share, write_section

DISTANCE = 2.0
RESAMPLES = 200
EVEN = "even"


class Case(NamedTuple):
    """One line of a table.

    Args:
        classes: The number of classes; 2 are an event.
        source: The share of the event in the source; ``even`` or ``long tail`` for classes.
        target: The same of the new rows; ``random``: drawn evenly from all shares for each set.
        rows: The number of source rows.
        new: The number of new rows.
        cluster: The rows of a cluster; 1 if rows are independent.
        change: What else changes; none under label shift.
    """

    classes: int
    source: float | str
    target: float | str
    rows: int
    new: int
    cluster: int = 1
    change: str = ""

    @property
    def words(self) -> str:
        """Return what is shifted to what."""
        if self.classes == 2:
            return f"event, {self.source:.0%} to {self.target:.0%}"
        return f"{self.classes} classes, {self.source} to {self.target}"


def make_shares(kind: float | str, classes: int, rng: np.random.Generator) -> np.ndarray:
    """The shares of the classes."""
    if not isinstance(kind, str):
        return np.array([1 - kind, kind])
    if kind == "random":
        return rng.dirichlet(np.ones(classes))
    shares = np.ones(classes) if kind == EVEN else np.logspace(0, -2, classes)
    return shares / shares.sum()


def draw(
    number: int, shares: np.ndarray, case: Case, rng: np.random.Generator, change: str = ""
) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
    """Features of rows, their labels and clusters; half of a cluster's rows share its label."""
    classes, clusters, shared = len(shares), None, 0.0
    labels = rng.choice(classes, number, p=shares)
    noise = rng.normal(size=(number, classes))
    if case.cluster > 1:
        clusters = np.arange(number) // case.cluster
        of_cluster = rng.choice(classes, clusters.max() + 1, p=shares)[clusters]
        labels = np.where(rng.random(number) < 0.5, of_cluster, labels)
        shared = rng.normal(size=(clusters.max() + 1, classes))[clusters]
        noise = np.sqrt(0.5) * (noise + shared)
    means = DISTANCE * np.eye(classes)
    if change == "rows are harder":
        means = 0.75 * means
    if change == "one class moves":
        means[0] = 0.5 * (means[0] + means[1])
    if change == "scores are noisier":
        noise = 1.25 * noise
    features = means[labels] + noise
    if change == "a tenth is of a new kind":
        strange = rng.random(number) < 0.1
        features[strange] = 1.0 * noise[strange] - 1.0
        if classes == 2:  # an event cannot be between: it is far on the wrong side of both
            features[strange] = noise[strange] + 0.5 * DISTANCE
    return features, labels, clusters


def make_predictions(
    number: int,
    shares: np.ndarray,
    prior: np.ndarray,
    case: Case,
    rng: np.random.Generator,
    *,
    labelled: bool,
    change: str = "",
) -> Predictions:
    """Rows with the logits of Bayes' rule at the source's prior, overconfident and biased."""
    features, labels, clusters = draw(number, shares, case, rng, change)
    logits = 1.5 * (DISTANCE * features + np.log(prior))
    logits += np.linspace(0, 0.5, len(prior))
    if len(prior) == 2:
        return Predictions.from_events(
            logits[:, 1] - logits[:, 0],
            labels if labelled else None,
            is_logits=True,
            clusters=clusters,
            validate=False,
        )
    return Predictions.from_logits(
        logits, labels if labelled else None, clusters=clusters, validate=False
    )


def run_set(case: Case, resamples: int, seed: int) -> dict[str, Any]:
    """Estimate the shares in one set of rows."""
    rng = np.random.default_rng([25, seed])
    prior = make_shares(case.source, case.classes, rng)
    truth = make_shares(case.target, case.classes, rng)
    source = make_predictions(case.rows, prior, prior, case, rng, labelled=True)
    target = make_predictions(case.new, truth, prior, case, rng, labelled=False, change=case.change)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        prepared = _prepare(None, source, target, None, force=True)
        shift = prepared.shift
        if resamples:
            shift = prepared.adapt(0.95, resamples, seed).shift_
    return {
        "truth": truth.tolist(),
        "em": shift.target,
        "bbse": shift.bbse,
        "low": shift.low,
        "high": shift.high,
        "p": shift.fit_p_value,
        "misfit": shift.misfit,
        "refused": shift.forced,
    }


def run_unlabelled(case: Case, resamples: int, seed: int) -> dict[str, Any]:
    """Judge one set of rows without labels; the truth is that of many rows of its shares."""
    rng = np.random.default_rng([27, seed])
    prior = make_shares(case.source, case.classes, rng)
    truth = make_shares(case.target, case.classes, rng)
    source = make_predictions(case.rows, prior, prior, case, rng, labelled=True)
    target = make_predictions(case.new, truth, prior, case, rng, labelled=False)
    there = make_predictions(50_000, truth, prior, case, rng, labelled=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        judged = calibrant.evaluate_unlabelled(
            None, source=source, target=target, resamples=resamples, seed=seed, force=True
        )
    found: dict[str, Any] = {}
    for when, spans, rows in (
        ("before", judged.before, there),
        ("after", judged.after, apply(judged.calibrator, there)),
    ):
        names = ["brier", "nll", "ece", *(["accuracy"] if case.classes > 2 else [])]
        figures = calibrant.evaluate(rows, metrics=names, intervals=False)
        for name in names:
            span, value = spans[name], figures[name].value
            found[f"{name} {when}"] = [span.low <= value <= span.high, span.value - value]
    return found


class Work(NamedTuple):
    """How lines are made: by how many processes, which one alone, and where they are kept."""

    jobs: int
    keep: Path | None = None
    line: int | None = None
    kept_only: bool = False

    def choose(self, cases: Sequence[Case]) -> list[tuple[int, Case]]:
        """Return the cases to run with their places: all, or one."""
        return [(at, each) for at, each in enumerate(cases) if self.line in (None, at)]

    def run(self, name: str, case: Case, resamples: int, sets: int) -> list[dict[str, Any]]:
        """Return the results of all sets; those kept in a file are read, and more are added."""
        kept = None if self.keep is None else self.keep / f"{name}.jsonl"
        results = []
        if kept is not None and kept.exists():
            results = [json.loads(line) for line in kept.read_text().splitlines()]
            results = results if self.kept_only else results[:sets]
        if self.kept_only and results:
            return results
        work = partial(
            run_unlabelled if name.startswith("unlabelled") else run_set, case, resamples
        )
        seeds = range(len(results), sets)
        if kept is not None:
            kept.parent.mkdir(parents=True, exist_ok=True)
        if self.jobs == 1:
            for seed in seeds:
                results.append(work(seed))
                if kept is not None:
                    with kept.open("a") as file:
                        file.write(json.dumps(results[-1]) + "\n")
            return results
        with ProcessPoolExecutor(self.jobs) as pool:
            return results + list(pool.map(work, seeds, chunksize=8))


SHARES = (
    Case(2, 0.3, 0.3, 1_000, 500),
    Case(2, 0.3, 0.05, 1_000, 500),
    Case(2, 0.3, 0.05, 5_000, 2_000),
    Case(2, 0.3, 0.01, 1_000, 500),
    Case(2, 0.1, 0.5, 1_000, 500),
    Case(2, 0.3, 0.05, 1_000, 1_000, 5),
    Case(10, EVEN, EVEN, 1_000, 500),
    Case(10, EVEN, "random", 1_000, 500),
    Case(10, EVEN, "random", 4_000, 2_000),
    Case(10, EVEN, "long tail", 2_000, 1_000),
    Case(10, "long tail", EVEN, 2_000, 1_000),
    Case(10, EVEN, "random", 2_000, 1_000, 5),
)
CHANGES = (
    "",
    "rows are harder",
    "scores are noisier",
    "one class moves",
    "a tenth is of a new kind",
)
POWER = tuple(
    Case(classes, source, target, rows, new, change=change)
    for classes, source, target in ((2, 0.3, 0.1), (10, EVEN, "random"))
    for rows, new in ((1_000, 500), (5_000, 2_000))
    for change in CHANGES
)


def find_distance(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """The total variation between shares."""
    return 0.5 * np.abs(first - second).sum(1)


def mean_error(values: np.ndarray) -> str:
    """A mean in points, with its standard error."""
    return f"{100 * values.mean():.2f} ± {100 * values.std(ddof=1) / len(values) ** 0.5:.2f}"


def shares_part(sets: int, work: Work) -> tuple[str, str, Iterator[list[str]]]:
    words = (
        f"As many sets as said (± one standard error); {RESAMPLES} resamples. Normal rows around "
        "each class, scores that are overconfident and biased by class; *random*: shares drawn "
        "anew for each set, evenly from all; *long tail*: the last class is 100 times rarer than "
        "the first. *Error*: the total variation between estimated and true shares, in points, of "
        "EM and of BBSE. *Coverage*: how often 95% intervals hold the true share: for an event its "
        "own, else of all classes, and of those below 1%. *Warned*: the fit test at 5%; *refused*: "
        "p below 1% and a misfit above 5 points. Nothing but the shares changes, so every warning "
        "is false."
    )

    def lines() -> Iterator[list[str]]:
        yield [
            *("shares", "source rows", "new rows", "sets", "error of EM", "error of BBSE"),
            *("coverage", "coverage below 1%", "warned", "refused"),
        ]
        for at, case in work.choose(SHARES):
            number = sets // 5 if case.rows > 3_000 else sets if case.classes == 2 else sets // 3
            found = work.run(f"shares-{at}", case, RESAMPLES, number)
            truth, em, bbse, low, high = (
                np.array([each[name] for each in found])
                for name in ("truth", "em", "bbse", "low", "high")
            )
            held = (low <= truth) & (truth <= high)
            rare = truth < 0.01
            if case.classes == 2:
                coverage, tail = share(held[:, 1]), "–"
            else:
                # Classes of a set are not independent: the error is over sets.
                each = held.mean(1)
                coverage = f"{each.mean():.1%} ± {each.std(ddof=1) / len(each) ** 0.5:.1%}"
                tail = f"{held[rare].mean():.1%}" if rare.any() else "–"
            p_values = np.array([1.0 if each["p"] is None else each["p"] for each in found])
            rows = f"{case.rows:,}"
            new = f"{case.new:,}"
            if case.cluster > 1:
                rows, new = (f"{n} in clusters of {case.cluster}" for n in (rows, new))
            yield [
                *(case.words, rows, new, f"{len(found):,}"),
                mean_error(find_distance(em, truth)),
                mean_error(find_distance(bbse, truth)),
                *(coverage, tail, share(p_values < 0.05)),
                share(np.array([each["refused"] for each in found])),
            ]

    return "Changed priors: estimated shares", words, lines()


def power_part(sets: int, work: Work) -> tuple[str, str, Iterator[list[str]]]:
    words = (
        "As many sets as said (± one standard error). Beside the shares (an event from 30% to "
        "10%, 10 even classes to random shares) something else changes in the new rows: all are "
        "harder (a quarter less distance between classes), their scores are noisier (by a "
        "quarter), one class moves half-way to another, or one row in ten is of a new kind. "
        "*Warned* and *refused* as above; *error*: the total variation between estimated and true "
        "shares, in points."
    )

    def lines() -> Iterator[list[str]]:
        yield [
            *("classes", "source rows", "new rows", "what else changes", "sets"),
            *("warned", "refused", "median misfit, points", "error of EM"),
        ]
        for at, case in work.choose(POWER):
            many = case.classes > 2 and case.rows > 3_000
            found = work.run(f"power-{at}", case, 0, sets // 3 if many else sets)
            p_values = np.array([1.0 if each["p"] is None else each["p"] for each in found])
            misfit = np.array([each["misfit"] or 0.0 for each in found])
            truth, em = (np.array([each[name] for each in found]) for name in ("truth", "em"))
            yield [
                "event" if case.classes == 2 else f"{case.classes}",
                *(f"{case.rows:,}", f"{case.new:,}", case.change or "nothing", f"{len(found):,}"),
                share(p_values < 0.05),
                share(np.array([each["refused"] for each in found])),
                f"{100 * np.median(misfit):.1f}",
                mean_error(find_distance(em, truth)),
            ]

    return "Changed priors: does the fit test notice other changes?", words, lines()


UNLABELLED = (
    Case(2, 0.3, 0.05, 1_000, 500),
    Case(10, EVEN, "random", 1_000, 500),
)


def unlabelled_part(sets: int, work: Work) -> tuple[str, str, Iterator[list[str]]]:
    words = (
        f"As many sets as said (± one standard error); {RESAMPLES} resamples. Accuracy, Brier "
        "score, NLL and ECE are estimated on new rows without labels, before and after adapting. "
        "*Coverage*: how often 95% intervals hold the figure of 50,000 further rows with the same "
        "shares. *Bias*: the mean estimate less that figure. Intervals of ECE take the shares as "
        "known."
    )

    def lines() -> Iterator[list[str]]:
        yield ["shares", "source rows", "new rows", "sets", "figure", "coverage", "bias"]
        for at, case in work.choose(UNLABELLED):
            found = work.run(f"unlabelled-{at}", case, RESAMPLES, sets)
            for name in found[0]:
                held = np.array([each[name][0] for each in found])
                off = np.array([each[name][1] for each in found])
                error = off.std(ddof=1) / len(off) ** 0.5
                yield [
                    *(case.words, f"{case.rows:,}", f"{case.new:,}", f"{len(found):,}", name),
                    *(share(held), f"{off.mean():.4f} ± {error:.4f}"),
                ]

    return "Changed priors: figures without labels", words, lines()


PARTS = {"shares": shares_part, "power": power_part, "unlabelled": unlabelled_part}


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sets", type=int, default=1000)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--part", choices=list(PARTS), action="append")
    parser.add_argument("--keep", type=Path, help="folder of sets made before")
    parser.add_argument("--line", type=int, help="make this line alone")
    parser.add_argument("--kept-only", action="store_true", help="make no sets where some are kept")
    parser.add_argument("--write", type=Path)
    options = parser.parse_args(arguments)
    work = Work(options.jobs, options.keep, options.line, options.kept_only)
    for name in options.part or PARTS:
        begin = time.perf_counter()
        heading, words, lines = PARTS[name](options.sets, work)
        table = []
        for line in lines:
            table.append("| " + " | ".join(line) + " |")
            print(table[-1], f"({time.perf_counter() - begin:.0f} s)", flush=True)
        table.insert(1, "|" + "---|" * (table[0].count("|") - 1))
        made_by = f"Made by `python benchmarks/prior_coverage.py --part {name}`."
        if options.write and options.line is None:
            write_section(
                options.write, heading, "\n".join([words, "", *table, "", f"({made_by})"])
            )


if __name__ == "__main__":
    main()
