"""The verdict of an evaluation: a test of calibration, and its outcome in words."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from calibrant.metrics.rank_state import RankState
from calibrant.metrics.toplabel import binned_error, ks_of_cells

_CELLS = 480  # enough that rows of a cell are nearly equally confident
_BINS = 15  # of the test
_SMALL_SAMPLE = 500  # rows
_LARGE_ERROR = 0.1  # an error that too little data cannot rule out


@dataclass(frozen=True)
class Verdict:
    """Whether the probabilities can be believed, in words, and the numbers behind the words."""

    direction: str  # "overconfident", "underconfident" or "neither"
    headline: str
    sentences: tuple[str, ...]
    gap: float  # mean confidence − accuracy
    gap_low: float
    gap_high: float
    p_value: float  # of the hypothesis that the top label is calibrated
    chance_ece: float  # 95% quantile of the ECE that a calibrated model has by chance


def percent(value: float, digits: int = 1) -> str:
    """Format a share as a percentage, with more digits if it is small."""
    if 0 < abs(value) < 0.001:
        digits = max(digits, 2)
    return f"{100 * value:.{digits}f}%"


def format_rows(number: int) -> str:
    """Format a number of rows."""
    return "1 row" if number == 1 else f"{number:,} rows"


def format_p_value(p_value: float) -> str:
    """Format a p-value with no-break spaces, which keep it on one line."""
    return "p\u00a0<\u00a00.001" if p_value <= 0.001 else f"p\u00a0=\u00a0{p_value:.3f}"


def conclude(
    *,
    num_rows: int,
    accuracy: float,
    gap: float,
    gap_low: float,
    gap_high: float,
    ece: float,
    ece_low: float,
    ece_high: float,
    p_value: float,
    chance_ece: float,
    level: float,
) -> Verdict:
    """Say whether confidence can be believed, how far it is off, and how certain that is."""
    sure = p_value < 1 - level
    confidence = accuracy + gap
    if sure and gap_low > 0:
        direction = "overconfident"
    elif sure and gap_high < 0:
        direction = "underconfident"
    else:
        direction = "neither"
    return Verdict(
        direction=direction,
        headline=_write_headline(
            direction, sure, gap, confidence, accuracy, ece_high, leans=gap_low * gap_high > 0
        ),
        sentences=(
            _describe_size(gap, gap_low, gap_high, ece_low, ece_high, level),
            _describe_certainty(sure, p_value, num_rows),
            _describe_sample(num_rows, chance_ece, ece, ece_high),
        ),
        gap=gap,
        gap_low=gap_low,
        gap_high=gap_high,
        p_value=p_value,
        chance_ece=chance_ece,
    )


def _write_headline(
    direction: str,
    sure: bool,
    gap: float,
    confidence: float,
    accuracy: float,
    high: float,
    *,
    leans: bool,
) -> str:
    if direction == "neither":
        if sure:
            return (
                "Neither over- nor underconfident on average, but confidence and accuracy "
                "part ways in places."
            )
        if leans:
            more = "more" if gap > 0 else "less"
            return (
                f"Not settled: on average it is {percent(confidence)} sure and right "
                f"{percent(accuracy)} of the time, {more} sure than chance explains, but bin by "
                "bin chance could explain what is seen."
            )
        if high >= _LARGE_ERROR:
            return (
                "Too little data to tell: no miscalibration was found, but an error of up to "
                f"{percent(high)} could hide in it."
            )
        return "No miscalibration was found: confidence matches accuracy as far as this data shows."
    size = "slightly " if high < 0.01 else "strongly " if abs(gap) >= 0.1 else ""
    return (
        f"This classifier is {size}{direction}: on average it is {percent(confidence)} sure "
        f"and right {percent(accuracy)} of the time."
    )


def _describe_size(
    gap: float,
    gap_low: float,
    gap_high: float,
    low: float,
    high: float,
    level: float,
) -> str:
    # The interval belongs to the words: how far confidence exceeds accuracy, or falls short.
    side, near, far = (
        ("exceeds", gap_low, gap_high) if gap >= 0 else ("falls short of", -gap_high, -gap_low)
    )
    span = f"{percent(near)} to {percent(far)}"
    return (
        f"Mean confidence {side} accuracy by {percent(abs(gap))} ({level:.0%} interval {span}); "
        f"bin by bin, the true calibration error lies between {percent(low)} and {percent(high)}."
    )


def _describe_certainty(sure: bool, p_value: float, num_rows: int) -> str:
    if sure:
        return (
            f"Were it perfectly calibrated, {format_rows(num_rows)} would hardly look like this "
            f"({format_p_value(p_value)})."
        )
    return (
        f"A perfectly calibrated classifier could well look like this ({format_p_value(p_value)}); "
        "that is absence of evidence, and not proof of calibration."
    )


def _describe_sample(num_rows: int, chance_ece: float, value: float, high: float) -> str:
    text = (
        f"With {format_rows(num_rows)}, a perfectly calibrated classifier of these confidences "
        f"would show an ECE of up to {percent(chance_ece)} by chance alone; this one shows "
        f"{percent(value)}."
    )
    if num_rows < _SMALL_SAMPLE:
        return text + (
            f" So few rows cannot show small errors, nor rule out one as large as "
            f"{percent(high)}: collect more before relying on this."
        )
    return text


def calibration_test(state: RankState, *, resamples: int = 1000, seed: int = 0) -> float:
    """Return the p-value of "a prediction of confidence c is right with chance c".

    Under the hypothesis the correctness of every row is a coin of known bias, so its null
    distribution can be drawn exactly (consistency resampling). Two statistics are compared with
    their null values: the KS error, which sees over- and underconfidence overall, and the
    squared error of 15 equal-mass bins, which sees it locally. The smaller of the two p-values
    is itself compared with its null distribution, so that two statistics raise no more false
    alarms than one.

    Args:
        state: Confidence and correctness of all rows.
        resamples: The number of sets drawn under the hypothesis.
        seed: The seed of the draws.
    """
    cells = state.mass_totals(_CELLS).cpu().double()
    count = cells[:, 0].round().long().numpy()
    chance = np.clip((cells[:, 1] / cells[:, 0]).numpy(), 0.0, 1.0)
    generator = np.random.default_rng(seed)
    drawn = generator.binomial(count, chance, size=(resamples, len(count)))
    null = cells.expand(resamples, -1, -1).clone()
    null[..., 2] = torch.from_numpy(drawn)
    sets = torch.cat((cells.unsqueeze(0), null))  # the observed set first
    values = torch.stack((ks_of_cells(sets), binned_error(_merge_cells(sets), 2.0)), dim=1)
    # For every set and both statistics: how many sets are at least as extreme.
    ordered = values.sort(dim=0).values
    below = torch.searchsorted(
        ordered.t().contiguous(), values.t().contiguous() - 1e-12, right=False
    )
    smallest = (len(sets) - below).double().amin(0)
    return float((smallest <= smallest[0]).double().mean())


def _merge_cells(cells: torch.Tensor) -> torch.Tensor:
    """Merge neighbouring cells into at most 15 bins."""
    number = cells.shape[-2]
    home = torch.arange(number) * min(_BINS, number) // number
    total = cells.new_zeros(*cells.shape[:-2], min(_BINS, number), 3)
    return total.index_add_(-2, home, cells)
