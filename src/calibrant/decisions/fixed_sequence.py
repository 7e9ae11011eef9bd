"""Find the best threshold that keeps a promise, by tests in a fixed sequence.

Thresholds lie on a grid that is known before any row is seen, and are tested from the strictest on,
each by a p-value of "the risk above it exceeds the limit". Testing stops where a p-value is too
large; every threshold before that is granted, at the full level, because the first that must not be
granted is granted with probability δ at most (Angelopoulos, Bates, Candès, Jordan and Lei 2021,
"Learn then test", section 3).

If the surest rows err, a single sequence stops at once. So there are up to four starts, at numbers
of rows that grow geometrically from the fewest that can prove anything. Each has its share of δ,
and a sequence that reaches the next start without a failure adds its share to that of the start
(the fallback procedure: Wiens 2003, "A fixed sequence Bonferroni procedure for testing multiple
endpoints"). The starts depend on how many rows are above a threshold, never on their losses.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from calibrant.decisions.risk_tests import (
    STAKES,
    Design,
    approximate_p_value,
    betting_p_value,
    binomial_p_values,
)

Floats = NDArray[np.float64]
Codes = NDArray[np.int64]

MOST_STARTS = 4
_MOST_TESTED = 2_000  # thresholds, at equal distances in rows
_MOST_SLOW = 150  # of tests that walk through all rows
# Log-odds, with steps of 0.002 near 0 and of 0.2% far from it, in float32 so that every device
# compares with the same number.
GRID: Floats = np.sinh(np.linspace(-14, 14, (1 << 14) + 1)).astype(np.float32).astype(np.float64)
GRID[0] = -np.inf


def find_cells(scores: Floats) -> Codes:
    """Return the number of the highest grid point that each score reaches.

    Args:
        scores: (N,) log-odds.
    """
    return np.searchsorted(GRID, scores, side="right").astype(np.int64) - 1


def count_above(cells: Codes, *amounts: Floats) -> tuple[Codes, list[Floats]]:
    """Return the cells that hold rows, highest first, and sums of the amounts down to each.

    Args:
        cells: (N,) the cell of each row.
        amounts: (N,) numbers to add up, such as losses.
    """
    used, codes = np.unique(-cells, return_inverse=True)
    return -used, [np.bincount(codes.reshape(-1), amount).cumsum() for amount in amounts]


def fewest_rows(limit: float, delta: float) -> float:
    """Return the number of rows whose risk is shown to be below the limit if none is wrong.

    Args:
        limit: The largest risk allowed.
        delta: The probability of an error.
    """
    return math.log(delta) / math.log1p(-limit)


def plan_starts(num_rows: float, limit: float, delta: float) -> list[float]:
    """Return the numbers of rows at which sequences start; none if no threshold can be granted.

    Args:
        num_rows: The number of rows, or of clusters that count as rows.
        limit: The largest risk allowed.
        delta: The probability of an error that the starts share.
    """
    for number in range(MOST_STARTS, 0, -1):
        least = fewest_rows(limit, delta / number)
        # Starts closer than a factor of 1.4 would split δ for little.
        if least * 1.4 ** (number - 1) <= num_rows:
            return [least * (num_rows / least) ** (s / number) for s in range(number)]
    return []


def run_sequence(
    counts: Floats,
    starts: list[float],
    delta: float,
    compute_p_values: Callable[[slice], Floats],
) -> int:
    """Return the last place that is granted; −1 if none is.

    Args:
        counts: How many rows lie above each threshold, ascending.
        starts: The numbers of rows at which sequences start.
        delta: The probability of an error that the starts share.
        compute_p_values: Computes p-values of a slice of the thresholds.
    """
    if not starts:
        return -1
    share, carried, granted = delta / len(starts), 0.0, -1
    begins = np.searchsorted(counts, np.ceil(starts)).tolist()
    for begin, end in zip(begins, [*begins[1:], len(counts)], strict=True):
        level = share + carried
        carried = level
        for block in range(begin, end, 64):
            rows = slice(block, min(block + 64, end))
            failed = np.flatnonzero(compute_p_values(rows) > level)
            if len(failed):
                granted = max(granted, rows.start + int(failed[0]) - 1 if failed[0] else granted)
                carried = 0.0
                break
            granted = rows.stop - 1
    return granted


def thin(counts: Floats, most: int) -> Codes:
    """Return at most so many places at equal distances in rows, the last among them.

    Args:
        counts: Ascending numbers of rows.
        most: The most places.
    """
    if len(counts) <= most:
        return np.arange(len(counts))
    wanted = np.linspace(0, counts[-1], most + 1)[1:]
    return np.unique(np.searchsorted(counts, wanted).clip(max=len(counts) - 1))


def find_selective(
    cells: Codes, losses: Floats, limit: float, delta: float, design: Design
) -> int | None:
    """Find the lowest cell at and above which the risk is at most the limit; None if none is shown.

    Args:
        cells: (N,) the cell of each row's score.
        losses: (N,) the loss, 0 or 1, of each row.
        limit: The largest risk allowed.
        delta: The probability of an error.
        design: Weights and clusters of the rows.
    """
    used, (counts, errors) = count_above(cells, np.ones(len(cells)), losses)
    if design.is_plain:
        places = thin(counts, _MOST_TESTED)
        return pick(used[places], counts[places], errors[places], limit, delta)
    places = thin(counts, _MOST_SLOW)
    used, counts = used[places], counts[places]
    compute = betting_p_value if design.bound is not None else approximate_p_value

    def p_values(rows: slice) -> Floats:
        computed = []
        for cell in used[rows]:
            above = cells >= cell
            computed.append(compute(losses[above], design.take(above), limit))
        return np.array(computed)

    units = counts * (count_units(design, len(cells)) / counts[-1])
    # The mean over stakes costs a bet on the best stake a factor of their number.
    least = delta / len(STAKES) if design.bound is not None else delta
    granted = run_sequence(units, plan_starts(units[-1], limit, least), delta, p_values)
    return int(used[granted]) if granted >= 0 else None


def count_units(design: Design, num_rows: int) -> float:
    """Return how many independent rows the rows are worth at least, if none of them is wrong.

    Args:
        design: Weights and clusters of the rows.
        num_rows: The number of rows.
    """
    if design.is_plain:
        return float(num_rows)
    totals = design.sum_clusters(np.ones(num_rows))
    if design.bound is not None:
        return float(totals.sum() / design.bound)
    return float(totals.sum() ** 2 / (totals @ totals))


def pick(used: Codes, counts: Floats, errors: Floats, limit: float, delta: float) -> int | None:
    """Find the last cell that exact tests grant; None if none is granted.

    Args:
        used: Cells, highest first.
        counts: The number of rows at and above each cell.
        errors: The number of errors among them.
        limit: The largest risk allowed.
        delta: The probability of an error.
    """
    starts = plan_starts(float(counts[-1]), limit, delta)
    granted = run_sequence(
        counts, starts, delta, lambda rows: binomial_p_values(errors[rows], counts[rows], limit)
    )
    return int(used[granted]) if granted >= 0 else None


def rows_needed(
    counts: Floats, errors: Floats, expected: Floats, limit: float, delta: float
) -> float | None:
    """Estimate how many times as many rows would grant some threshold; None if none would.

    The rows above a threshold are taken to err as often as those at hand and, as if there were
    1/limit more of them, as their confidences say: a few rows without an error say little.

    Args:
        counts: The number of rows at and above each threshold.
        errors: The number of errors among them.
        expected: The number of errors that their confidences expect.
        limit: The largest risk allowed.
        delta: The probability of an error.
    """
    from scipy.special import betaincc

    places = thin(counts, 200)
    counts, prior = counts[places], 1 / limit
    risk = (errors[places] + prior * expected[places] / counts) / (counts + prior)
    hopeful = risk < limit
    if not hopeful.any():
        return None
    factors = 2.0 ** (np.arange(1, 161) / 8)  # up to a million times
    rows = factors[:, None] * counts[hopeful]
    wrong = rows * risk[hopeful]
    granted = (betaincc(wrong + 1, rows - wrong, limit) <= delta / MOST_STARTS).any(1)
    return float(factors[granted.argmax()]) if granted.any() else None


def find_quantile(scores: Floats, limit: float, delta: float, design: Design) -> float | None:
    """Find the highest threshold with at most a share ``limit`` of rows below; None if none is.

    Independent rows: the j-th smallest score for the largest j with P(Binomial(n, limit) < j) ≤ δ.
    The share of new rows below that score is at most Beta(j, n − j + 1) (Vovk 2012, "Conditional
    validity of inductive conformal predictors", proposition 2; Tong, Feng and Li 2018,
    "Neyman-Pearson classification algorithms and NP receiver operating characteristics",
    proposition 1). Else tests in sequence from the lowest score up, with one start: shares below
    only grow.

    Args:
        scores: (N,) the score that must reach the threshold.
        limit: The largest share of rows below it.
        delta: The probability of an error.
        design: Weights and clusters of the rows.
    """
    ordered = np.sort(scores)
    if design.is_plain:
        place = find_rank(len(ordered), limit, delta)
        return float(ordered[place - 1]) if place else None
    compute = betting_p_value if design.bound is not None else approximate_p_value
    thresholds = np.unique(ordered)
    thresholds = thresholds[thin(np.arange(1.0, len(thresholds) + 1), 4 * _MOST_SLOW)]
    granted = None
    for threshold in thresholds:
        if compute((scores < threshold).astype(np.float64), design, limit) > delta:
            break
        granted = float(threshold)
    return granted


def find_rank(num_rows: int, limit: float, delta: float) -> int:
    """Return the largest j with P(Binomial(num_rows, limit) ≤ j − 1) ≤ delta; 0 if there is none.

    Args:
        num_rows: The number of rows.
        limit: The largest share of rows below the threshold.
        delta: The probability of an error.
    """
    from scipy.special import bdtr

    low, high = 0, num_rows + 1
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if bdtr(middle - 1, num_rows, limit) <= delta else (low, middle)
    return low
