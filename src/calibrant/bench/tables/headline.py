"""Say in a sentence which method is best in each cell of a suite, by how much and how surely."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from calibrant.bench.tables import statistics
from calibrant.bench.tables.formatting import (
    check_metric,
    higher_is_better,
    label,
    number,
    shown_calibrator,
    unit,
)
from calibrant.bench.tables.results import Cell, Results, Runs
from calibrant.bench.tables.tabulate import choose_error
from calibrant.core.errors import InputError

MOST_NAMES = 5  # listed of the candidates that a test does not tell from the best
Candidate = tuple[str, str]  # a method, and a calibrator after it


@dataclass(frozen=True)
class Headline:
    """The best method of a cell, and how sure that is."""

    cell: Cell
    name: str  # of the cell
    best: Candidate
    answer: str  # which is best, and by how much
    certainty: str  # how sure
    shown: bool | None  # whether the test shows it better than the baseline; None: not tested


def make_headlines(results: Results, error: str | None = None) -> list[Headline]:
    """Answer for every cell that has results.

    Candidates are the suite's methods, as trained and after temperature scaling; with a single
    method, its calibrators. The best has the lowest mean error over seeds.

    Args:
        results: a suite's results.
        error: the metric that decides. Default: None, see `tabulate.choose_error`.
    """
    metric = check_metric(error) if error else choose_error(results.suite)
    if higher_is_better(metric) is not False:
        raise InputError(
            f"{metric} is no error: choose a metric where lower is better, such as ece"
        )
    headlines = (_answer(results, cell, metric) for cell in results.cells)
    return [headline for headline in headlines if headline is not None]


def summarize(headlines: list[Headline], metric: str) -> str:
    """Count in a sentence where each candidate is best; '' for a single cell."""
    if len(headlines) < 2:
        return ""
    wins = Counter(name_candidate(*headline.best) for headline in headlines).most_common()
    shown = sum(headline.shown is True for headline in headlines)
    counts = [f"{name} in {count} of {len(headlines)} settings" for name, count in wins[:3]]
    more = sum(count for _, count in wins[3:])
    rest = f", another in {more}" if more else ""
    return (
        f"Lowest {label(metric)}: {', '.join(counts)}{rest}. "
        f"In {shown} of {len(headlines)} the test shows the best to beat the baseline."
    )


def name_candidate(method: str, calibrator: str) -> str:
    """Name a method after a calibrator: ``acls, then temperature``."""
    return method if calibrator == "none" else f"{method}, then {shown_calibrator(calibrator)}"


def list_candidates(results: Results, metric: str, cell: Cell) -> dict[Candidate, Runs]:
    """Return the figures of every candidate of a cell, by seed."""
    single = len(results.suite.methods) == 1
    usual = ("none", *(name for name in results.calibrators if name == "temperature"))
    return {
        (method, calibrator): runs
        for calibrator in (results.own_calibrators if single else usual)
        for (where, method), runs in results.values(
            metric, calibrator=calibrator, exact=True
        ).items()
        if where == cell and runs
    }


def find_baseline(results: Results, candidates: dict[Candidate, Runs]) -> Candidate | None:
    """Return the candidate that others are compared with: the suite's baseline, as trained."""
    single = len(results.suite.methods) == 1
    method = results.suite.methods[0] if single else results.suite.baseline
    return (method, "none") if method and (method, "none") in candidates else None


def _answer(results: Results, cell: Cell, metric: str) -> Headline | None:
    candidates = list_candidates(results, metric, cell)
    named = {name_candidate(*candidate): runs for candidate, runs in candidates.items()}
    best_name, tied = statistics.find_best_and_tied(named, higher=False)
    if best_name is None:
        return None
    best = next(candidate for candidate in candidates if name_candidate(*candidate) == best_name)
    mean = statistics.mean_of(list(candidates[best].values()))
    what, percent = label(metric), unit(metric)
    error = "" if mean.error is None else f" ± {number(metric, mean.error)}"
    answer = f"{best_name} has the lowest mean {what}: {number(metric, mean.mean)}{error}{percent}"
    baseline = find_baseline(results, candidates)
    if len(candidates) == 1 or baseline == best:
        rivals = f", and no other of {len(candidates)} is lower" if len(candidates) > 1 else ""
        certainty = _name_rivals(named, best_name, tied) if len(candidates) > 1 else ""
        return Headline(
            cell, results.name_of(cell), best, f"{answer}{rivals}.", certainty.strip(), None
        )
    against = baseline or _find_second(candidates, best)
    test = _test(candidates, best, against)
    margin = f"{number(metric, -test.mean)}{' points' if percent else ''}"
    accuracy = _compare_accuracy(results, cell, best, against)
    certainty, shown = _describe_certainty(test, metric, len(candidates) - 1)
    doubt = {True: "", False: ", which may be chance", None: ", which is not tested"}[shown]
    answer += f", {margin} below {name_candidate(*against)}{doubt}."
    certainty = f"{accuracy}{certainty}{_name_rivals(named, best_name, tied)}"
    return Headline(cell, results.name_of(cell), best, answer, certainty, shown)


def _find_second(candidates: dict[Candidate, Runs], best: Candidate) -> Candidate:
    means = {
        name: statistics.mean_of(list(runs.values())).mean for name, runs in candidates.items()
    }
    return min((name for name in candidates if name != best), key=lambda name: means[name])


def _test(
    candidates: dict[Candidate, Runs], best: Candidate, against: Candidate
) -> statistics.Paired:
    """Test the best against another, at a level that allows for choosing it from all others."""
    left, right = candidates[best], candidates[against]
    differences = [left[seed] - right[seed] for seed in sorted(left.keys() & right.keys())]
    return statistics.paired(differences, level=statistics.LEVEL / (len(candidates) - 1))


def _describe_certainty(
    test: statistics.Paired, metric: str, count: int
) -> tuple[str, bool | None]:
    """Describe how sure the difference is, and whether the test shows it."""
    if test.p is None or test.low is None or test.high is None:
        seeds = f"{test.count} common seed{'' if test.count == 1 else 's'}"
        return (
            f"Not tested: there are {seeds}, and a test needs {statistics.FEWEST}.",
            None,
        )
    p = min(1.0, test.p * count)
    shown = p < statistics.LEVEL
    words = "Sure" if shown else "Not sure"
    scale = f"{number(metric, -test.high)} to {number(metric, -test.low)}"
    points = " points" if unit(metric) else ""
    corrected = "" if count == 1 else f", corrected for choosing the best from {count} others"
    return (
        f"{words}: p = {p:.2g}, 95% interval {scale}{points} (paired t-test over {test.count} "
        f"seeds{corrected}).",
        shown,
    )


def _name_rivals(named: dict[str, Runs], best: str, tied: set[str]) -> str:
    if not tied:
        return ""
    means = {name: statistics.mean_of(list(named[name].values())).mean for name in tied}
    names = sorted(tied, key=lambda name: means[name])
    listed = "; ".join(names[:MOST_NAMES])
    more = f"; and {len(names) - MOST_NAMES} more" if len(names) > MOST_NAMES else ""
    return f" A test does not tell it from: {listed}{more}."


def _compare_accuracy(results: Results, cell: Cell, best: Candidate, against: Candidate) -> str:
    figures = []
    for method, calibrator in (best, against):
        values = results.values("accuracy", calibrator=calibrator, exact=True)
        runs = values.get((cell, method))
        if not runs:
            return ""
        figures.append(number("accuracy", statistics.mean_of(list(runs.values())).mean))
    return f"Accuracy {figures[0]}% against {figures[1]}%. "
