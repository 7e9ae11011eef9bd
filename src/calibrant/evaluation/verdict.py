"""The verdict of an evaluation: a test of calibration, and its outcome in words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from calibrant.core.errors import InputError, first
from calibrant.functional.statistics import holm
from calibrant.metrics.rank_state import RankState
from calibrant.metrics.toplabel import binned_error, ks_of_cells

_CELLS = 480  # enough that rows of a cell are nearly equally confident
_BINS = 15  # of the test
_SMALL_SAMPLE = 500  # rows
_FEWEST = 10  # expected events, or rows without, for a statement on them
_MANY = 30  # three times as many: so many that happened refute even ten expected ones
_NAMED = 3  # the most classes or labels a headline names
_POWER = 3.6  # standard errors between truth and tolerance: 95% level, 90% power on both sides

OFF, HOLDS, UNSURE = "off", "holds", "cannot tell"
_ROUNDING = 1e-9  # a bound of a gap this near to 0 is 0
INDEPENDENCE = (
    "This assumes independent rows. If rows share a patient, document or video, give clusters; "
    "otherwise results look too certain."
)

WEIGHTED = "Rows are weighted: sampling or importance weights, free of scale."


@dataclass(frozen=True)
class Tolerance:
    """The error up to which probabilities count as fit for use.

    Args:
        error: The largest calibration error of the predicted class, and the largest gap between
            mean confidence and accuracy. Default: 0.05 (ours).
        ratio: The largest ratio of observed to expected events; the smallest is its inverse.
            Default: 1.25 (ours).
        slope: The largest calibration slope of events; the smallest is its inverse. Default:
            1.25 (ours).
    """

    error: float = 0.05
    ratio: float = 1.25
    slope: float = 1.25

    def __post_init__(self) -> None:
        if not 0 < self.error < 1:
            raise InputError(f"the tolerated error must lie in (0, 1), found {self.error!r}")
        for name in ("ratio", "slope"):
            if not 1 < getattr(self, name) < float("inf"):
                raise InputError(
                    f"the tolerated {name} must be a finite number above 1, such as 1.25, found "
                    f"{getattr(self, name)!r}"
                )


@dataclass(frozen=True)
class Span:
    """A number with its interval."""

    value: float
    low: float
    high: float

    def within(self, largest: float) -> bool:
        """Return whether the interval lies in [1/largest, largest]."""
        return 1 / largest <= self.low and self.high <= largest


@dataclass(frozen=True)
class ClassFinding:
    """A class, or a label, whose probability is off."""

    name: str
    fault: str  # "too high", "too low", "too extreme" or "too timid"
    expected: float  # mean probability
    observed: float  # frequency


@dataclass(frozen=True)
class Verdict:
    """The verdict on the probabilities in words, and the numbers behind the words."""

    # Of classes "overconfident" or "underconfident"; of events "too high", "too low",
    # "too extreme" or "too timid"; else "neither".
    direction: str
    headline: str
    sentences: tuple[str, ...]
    gap: float  # mean confidence − accuracy; of events mean probability − frequency
    gap_low: float
    gap_high: float
    p_value: float  # of the hypothesis that the probabilities are calibrated; NaN if not tested
    chance_ece: float  # 95% quantile of the ECE that a calibrated model has by chance
    state: str = UNSURE  # "off", "holds" (within the tolerance) or "cannot tell"
    tolerance: Tolerance = Tolerance()
    ratio: Span | None = None  # of events: observed over expected
    slope: Span | None = None  # of events: the calibration slope
    classes: tuple[ClassFinding, ...] = ()  # those that are off, worst first
    rows_needed: int | None = None  # roughly, where rows are too few to tell
    mean: float = float("nan")  # mean confidence; of events mean probability
    rate: float = float("nan")  # accuracy; of events frequency

    def __str__(self) -> str:
        return "\n".join((self.headline, *self.sentences))

    def with_sentences(self, *sentences: str) -> Verdict:
        """Return the verdict with more sentences at its end."""
        return replace(self, sentences=(*self.sentences, *sentences))


def percent(value: float, digits: int = 1) -> str:
    """Format a share as a percentage, with more digits if it is small."""
    if 0 < abs(value) < 0.001:
        digits = max(digits, 2)
    return f"{100 * value:.{digits}f}%"


def points(value: float) -> str:
    """Format a gap or a calibration error in percentage points, without the unit: ``3.3``."""
    return percent(value)[:-1]


def format_rows(number: int) -> str:
    """Format a number of rows."""
    return "1 row" if number == 1 else f"{number:,} rows"


def format_p_value(p_value: float) -> str:
    """Format a p-value with no-break spaces, which keep it on one line."""
    return "p\u00a0<\u00a00.001" if p_value <= 0.001 else f"p\u00a0=\u00a0{p_value:.3f}"


def round_rows(number: float) -> int:
    """Round a number of rows up to two digits; at most 10¹⁵."""
    number = min(number, 1e15)
    digits = max(0, len(str(int(number))) - 2)
    return int(-(-number // 10**digits) * 10**digits)


# Classes


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
    tolerance: Tolerance | None = None,
    class_p_value: float | None = None,
    classes: Sequence[ClassFinding] = (),
    few_classes: int = 0,
    num_classes: int = 0,
) -> Verdict:
    """Say whether confidence can be believed, how far it is off, and how certain that is.

    The predicted class and the classes share alpha evenly if the classes are tested.

    Args:
        num_rows: The number of rows.
        accuracy: The share of rows that are right.
        gap: Mean confidence less accuracy.
        gap_low: The lower end of its interval.
        gap_high: The upper end.
        ece: The calibration error of the predicted class.
        ece_low: The lower end of its interval.
        ece_high: The upper end.
        p_value: That of the test of the predicted class; NaN if nothing was tested.
        chance_ece: The error that chance explains.
        level: The confidence level.
        tolerance: What still counts as fit for use; the default one if None.
        class_p_value: The smallest corrected p-value of a class; None if classes are not tested.
        classes: The classes that are off, worst first.
        few_classes: The number of classes with too few expected rows.
        num_classes: The number of classes.
    """
    allowed = tolerance or Tolerance()
    confidence = accuracy + gap
    top, by_class = p_value, 1.0
    if class_p_value is not None:
        top, by_class = min(1.0, 2 * p_value), min(1.0, 2 * class_p_value)
    top_off, class_off = top < 1 - level, by_class < 1 - level and bool(classes)
    direction = "neither"
    if top_off and gap_low > 0:
        direction = "overconfident"
    elif top_off and gap_high < 0:
        direction = "underconfident"
    widest = max(ece_high, abs(gap_low), abs(gap_high))
    tested = p_value == p_value
    state = OFF if top_off or class_off else HOLDS if widest <= allowed.error else UNSURE
    state = state if tested else UNSURE
    smallest = min(top, by_class)
    lines = [
        _describe_size(gap, gap_low, gap_high, ece_low, ece_high, level),
        _describe_certainty(state == OFF, smallest, num_rows, tested=tested),
        _describe_sample(num_rows, chance_ece, ece, ece_high),
    ]
    if class_off:
        lines.append(f"Class by class: {_list_classes(classes)}.")
    elif class_p_value is not None and tested:
        few = f"; {few_classes} of {num_classes:,} have under ten expected rows, which say little"
        lines.append(f"Class by class, nothing was found to be off{few * bool(few_classes)}.")
    return Verdict(
        direction=direction,
        headline=_write_headline(
            state,
            direction,
            gap,
            confidence,
            accuracy,
            widest,
            allowed,
            classes=classes if class_off else (),
            top_off=top_off,
            leans=gap_low > _ROUNDING or gap_high < -_ROUNDING,
            tested=tested,
        ),
        sentences=tuple(lines),
        gap=gap,
        gap_low=gap_low,
        gap_high=gap_high,
        p_value=smallest if tested else float("nan"),
        chance_ece=chance_ece,
        state=state,
        tolerance=allowed,
        classes=tuple(classes) if class_off else (),
        rows_needed=round_rows(num_rows * (widest / allowed.error) ** 2)
        if state == UNSURE and tested
        else None,
        mean=confidence,
        rate=accuracy,
    )


def _list_classes(classes: Sequence[ClassFinding], kind: str = "class") -> str:
    """Describe the worst classes; if only slopes are off, name the classes alone."""
    faults = {finding.fault for finding in classes}
    if len(classes) > 1 and len(faults) == 1 and faults <= {"too extreme", "too timid"}:
        many = {"class": "classes"}.get(kind, f"{kind}s")
        return (
            f"the probabilities of {len(classes):,} {many} are {faults.pop()} "
            f"({first(finding.name for finding in classes)})"
        )
    named = [_describe_class(finding, kind) for finding in classes[:_NAMED]]
    more = len(classes) - _NAMED
    rest = "" if more <= 0 else "; 1 more is off" if more == 1 else f"; {more:,} more are off"
    return "; ".join(named) + rest


def _describe_class(finding: ClassFinding, kind: str) -> str:
    text = (
        f"{kind} {finding.name} is given {percent(finding.expected)} on average and occurs in "
        f"{percent(finding.observed)} of rows"
    )
    if finding.fault in ("too extreme", "too timid"):
        return f"{text}, but its probabilities are {finding.fault}"
    return text


def _write_headline(
    state: str,
    direction: str,
    gap: float,
    confidence: float,
    accuracy: float,
    widest: float,
    tolerance: Tolerance,
    *,
    classes: Sequence[ClassFinding],
    top_off: bool,
    leans: bool,
    tested: bool,
) -> str:
    within = (
        f"confidence matches accuracy to within {100 * tolerance.error:g} points, the stated "
        "tolerance"
    )
    average = (
        f"on average it is {percent(confidence)} sure and right {percent(accuracy)} of the time"
    )
    if not tested:
        return f"Cannot tell: too few clusters to test anything; {average}."
    if state == HOLDS:
        if leans:
            return f"Within the tolerance of {100 * tolerance.error:g} points: {average}."
        return f"No miscalibration was found, and {within}."
    if state == UNSURE:
        if leans:
            more = "more" if gap > 0 else "less"
            return (
                f"Cannot tell: {average}, {more} sure than chance explains, but bin by bin "
                "chance could explain what is seen."
            )
        return (
            "Cannot tell, for too little data: no miscalibration was found, but an error of up to "
            f"{points(widest)} points could hide in it; the stated tolerance is "
            f"{100 * tolerance.error:g}."
        )
    if not top_off:
        rest = "" if len(classes) == 1 else f" ({len(classes):,} classes are off)"
        return f"Off by class: {_describe_class(classes[0], 'class')}{rest}."
    if direction == "neither":
        return (
            "Neither over- nor underconfident on average, but confidence and accuracy "
            "part ways in places."
        )
    size = "slightly " if widest < 0.01 else "strongly " if abs(gap) >= 0.1 else ""
    # Many rows show even small faults: the headline names a class only if it is far off.
    low, high = 1 / tolerance.ratio, tolerance.ratio
    wrong = [
        finding
        for finding in classes
        if not low <= finding.observed / max(finding.expected, 1e-300) <= high
    ]
    worst = f" Worst class: {_describe_class(wrong[0], 'class')}." if wrong else ""
    return f"This classifier is {size}{direction}: {average}.{worst}"


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
    span = f"{points(near)} to {points(far)}"
    return (
        f"Mean confidence {side} accuracy by {points(abs(gap))} points ({level:.0%} interval "
        f"{span}); bin by bin, the true calibration error lies between {points(low)} and "
        f"{points(high)} points."
    )


def _describe_certainty(sure: bool, p_value: float, num_rows: int, *, tested: bool = True) -> str:
    if not tested:
        return (
            "Nothing is tested: rows of a cluster are alike, and with fewer than ten clusters no "
            "test is reliable."
        )
    if sure:
        return (
            f"Chance does not explain this: {format_rows(num_rows)} of a calibrated model would "
            f"hardly look so ({format_p_value(p_value)})."
        )
    return (
        f"Chance could explain what is seen ({format_p_value(p_value)}); that does not prove "
        "calibration."
    )


def _describe_sample(num_rows: int, chance_ece: float, value: float, high: float) -> str:
    text = (
        f"With {format_rows(num_rows)}, a perfectly calibrated classifier of these confidences "
        f"would show an ECE of up to {points(chance_ece)} points by chance alone; this one shows "
        f"{points(value)}."
    )
    if num_rows < _SMALL_SAMPLE:
        return text + (
            f" So few rows cannot show small errors, nor rule out one as large as "
            f"{points(high)} points: collect more before relying on this."
        )
    return text


# Events


@dataclass(frozen=True)
class Place:
    """The place on the scale where events differ most from their probabilities."""

    low: float
    high: float
    count: int
    mean: float
    rate: float


def conclude_events(
    *,
    event: str,
    num_rows: int,
    num_events: int,
    mean: float,
    gap: Span,
    ratio: Span | None,
    slope: Span | None,
    error: Span,
    p_total: float,
    p_slope: float | None,
    p_local: float,
    place: Place | None,
    chance_ece: float,
    level: float,
    tolerance: Tolerance | None = None,
    expected: float,
    observed: int,
    constant: bool = False,
) -> Verdict:
    """Say whether the probability of an event can be believed: its total, its slope, its places.

    The test of the total gets half of alpha; those of the slope and of the places share the rest.
    Under ten expected events nothing can be told, unless 30 or more happened.

    Args:
        event: What may happen.
        num_rows: The number of rows.
        num_events: The number of events.
        mean: The mean probability.
        gap: Mean probability less frequency.
        ratio: Observed over expected events; None if none are expected.
        slope: The calibration slope; None if it is not defined.
        error: The calibration error, bin by bin.
        p_total: The p-value of the total; NaN if nothing was tested.
        p_slope: The p-value of the slope; None if it was not tested.
        p_local: The p-value of the test along the scale.
        place: Where along the scale it is furthest off.
        chance_ece: The calibration error that chance explains.
        level: The confidence level.
        tolerance: What still counts as fit for use; the default one if None.
        expected: The unweighted number of events, or of rows without if fewer, that are expected.
        observed: How many of these there are.
        constant: Whether all probabilities are equal: they have no slope, and need none.
    """
    allowed = tolerance or Tolerance()
    tested = p_total == p_total
    alpha = 1 - level
    shares = {"total": min(1.0, 2 * p_total), "local": min(1.0, 4 * p_local)}
    if p_slope is not None:
        shares["slope"] = min(1.0, 4 * p_slope)
    p_value = min(shares.values()) if tested else float("nan")
    rate = min(max(mean - gap.value, 0.0), 1.0)
    if num_events in (0, num_rows):  # exactly
        rate = float(num_events > 0)
    direction = "neither"
    enough = expected >= _FEWEST or observed >= _MANY
    total_off = tested and enough and shares["total"] < alpha
    slope_off = tested and enough and shares.get("slope", 1.0) < alpha and slope is not None
    if p_slope is None and slope is not None and tested and enough and p_value < alpha:
        # Extreme probabilities leave the slope too little variance for a test. Another test has
        # rejected calibration: the interval of the slope says how.
        slope_off = slope.high < 1 or slope.low > 1
    if slope_off and slope is not None and not (total_off and _is_total_worse(mean, rate, slope)):
        direction = "too extreme" if slope.value < 1 else "too timid"
    elif total_off:
        direction = "too high" if gap.value > 0 else "too low"
    inside = ratio is not None and ratio.within(allowed.ratio)
    inside = inside and (constant or (slope is not None and slope.within(allowed.slope)))
    if tested and enough and p_value < alpha:
        state = OFF
    elif tested and inside and expected >= _FEWEST:
        state = HOLDS
    else:
        state = UNSURE
    needed = None
    if state == UNSURE and tested:
        needed = _count_needed(num_rows, num_events, mean, ratio, slope, allowed)
    lines = [_describe_ratio(event, num_rows, num_events, mean, rate, ratio, level)]
    if slope is not None:
        lines.append(_describe_slope(slope, level))
    elif constant:
        lines.append("All probabilities are equal, so that they have no slope.")
    else:
        lines.append("The calibration slope is not defined on these rows.")
    lines.append(
        f"Bin by bin, the true calibration error lies between {points(error.low)} and "
        f"{points(error.high)} points; a calibrated model would show up to {points(chance_ece)} "
        f"by chance, this one shows {points(error.value)}."
    )
    if place is not None and tested and enough and shares["local"] < alpha:
        lines.append(
            f"It is furthest off {_say_range(place.low, place.high)}: there it says "
            f"{percent(place.mean)} on average, and {_say_rate(event, place.rate)} of "
            f"{format_rows(place.count)}."
        )
    if tested and p_value < alpha and not enough:
        lines.append(
            f"Chance hardly explains what is seen ({format_p_value(p_value)}), but under ten "
            f"expected events are too few to rely on, unless {_MANY} or more happen."
        )
    else:
        lines.append(_describe_certainty(state == OFF, p_value, num_rows, tested=tested))
    tolerated = _describe_tolerance(
        state, allowed, inside=inside, needed=needed, rows=num_rows, has_slope=not constant
    )
    lines.append(tolerated)
    return Verdict(
        direction=direction,
        headline=_write_event_headline(
            state, direction, event, mean, rate, ratio, slope, expected, num_rows, tested
        ),
        sentences=tuple(lines),
        gap=gap.value,
        gap_low=gap.low,
        gap_high=gap.high,
        p_value=p_value,
        chance_ece=chance_ece,
        state=state,
        tolerance=allowed,
        ratio=ratio,
        slope=slope,
        rows_needed=needed,
        mean=mean,
        rate=rate,
    )


def name_event(event: str) -> str:
    """Return what sentences call an event: one that was given no name is "the event"."""
    return "the event" if event == "event" else event


def _say_range(low: float, high: float) -> str:
    """Say where on the scale a range lies; its ends may print alike."""
    first_end, last_end = percent(low), percent(high)
    if first_end == last_end:
        return f"near {first_end}"
    return f"between {first_end} and {last_end}"


def _say_rate(event: str, rate: float) -> str:
    """Say in how many rows the event happens."""
    subject = {"correct": "it is right", "label": "a label is true"}.get(
        event, f"{name_event(event)} happens"
    )
    return f"{subject} in {percent(rate)}"


def _is_total_worse(mean: float, rate: float, slope: Span) -> bool:
    """Return whether the total is further off than the slope, both as ratios.

    The ratio of the total is that of the events, or of the rows without, whichever is further off.
    """
    claimed, observed = np.array([mean, 1 - mean]), np.array([rate, 1 - rate])
    if (claimed * observed <= 0).any():
        return True
    total = np.abs(np.log(observed / claimed)).max()
    return bool(total >= abs(np.log(max(slope.value, 0.1))))


def _write_event_headline(
    state: str,
    direction: str,
    event: str,
    mean: float,
    rate: float,
    ratio: Span | None,
    slope: Span | None,
    expected: float,
    num_rows: int,
    tested: bool,
) -> str:
    average = f"it says {percent(mean)} on average, and {_say_rate(event, rate)} of rows"
    if not tested:
        return f"Cannot tell: too few clusters to test anything; {average}."
    if state == HOLDS:
        return f"No miscalibration was found, and it holds within the tolerance: {average}."
    if state == UNSURE:
        if expected < _FEWEST:
            few = f"{format_rows(num_rows)} with {expected:.1f} expected of the rarer outcome"
            return f"Cannot tell: {few} are too few; {average}."
        return f"Cannot tell, for too little data: no miscalibration was found; {average}."
    if direction in ("too high", "too low"):
        return f"The probabilities are {direction}: {average}."
    if slope is not None and direction != "neither":
        what = "high ones too high, low ones too low"
        if direction == "too timid":
            what = "high ones too low, low ones too high"
        return f"The probabilities are {direction} ({what}; slope {slope.value:.2f}): {average}."
    return f"The probabilities are off in places, though {average}."


# Of events that are no nouns, and of one that was given no name.
_NAMES = {"correct": "are right", "label": "are true", "event": "are events"}


def _describe_ratio(
    event: str,
    num_rows: int,
    num_events: int,
    mean: float,
    rate: float,
    ratio: Span | None,
    level: float,
) -> str:
    what = _NAMES.get(event, f"are events of {event}")
    rows = f"{num_rows:,} labels" if event == "label" else format_rows(num_rows)
    text = (
        f"Of {rows}, {num_events:,} {what}: frequency "
        f"{percent(rate)}, mean probability {percent(mean)}"
    )
    if ratio is None:
        return f"{text}."
    return (
        f"{text}; observed over expected is {ratio.value:.3g} ({level:.0%} interval "
        f"{ratio.low:.3g} to {ratio.high:.3g})."
    )


def _describe_slope(slope: Span, level: float) -> str:
    meaning = "1 is right"
    if slope.high < 1:
        meaning = "below 1: too extreme"
    elif slope.low > 1:
        meaning = "above 1: too timid"
    return (
        f"The calibration slope is {slope.value:.2f} ({level:.0%} interval {slope.low:.2f} to "
        f"{slope.high:.2f}; {meaning})."
    )


def _describe_tolerance(
    state: str,
    tolerance: Tolerance,
    *,
    inside: bool,
    needed: int | None,
    rows: int,
    has_slope: bool = True,
) -> str:
    text = (
        f"Tolerance: observed over expected from {1 / tolerance.ratio:.3g} to "
        f"{tolerance.ratio:.3g}, slope from {1 / tolerance.slope:.3g} to {tolerance.slope:.3g}"
    )
    if state == HOLDS:
        inner = "both intervals lie" if has_slope else "the interval of the first lies"
        return f"{text}; {inner} inside it."
    if state == OFF and inside:
        return f"{text}; total and slope lie inside it."
    if needed is not None and needed > rows:
        return f"{text}; about {needed:,} rows like these would show whether it holds."
    return f"{text}; the intervals reach beyond it."


def _count_needed(
    num_rows: int,
    num_events: int,
    mean: float,
    ratio: Span | None,
    slope: Span | None,
    tolerance: Tolerance,
) -> int | None:
    """Estimate how many rows like these would show that the tolerance is kept, if it is."""
    if mean <= 0 or mean >= 1:
        return None
    # ln of observed over expected varies by (1 − p̄)/(N p̄) at least, if rows are independent.
    errors = [((1 - mean) / (num_rows * mean)) ** 0.5 / np.log(tolerance.ratio)]
    if ratio is not None and ratio.low > 0 and num_events >= _FEWEST:
        errors.append(np.log(ratio.high / ratio.low) / 3.92 / np.log(tolerance.ratio))
    if slope is not None and np.isfinite(slope.high - slope.low):
        errors.append((slope.high - slope.low) / 3.92 / (1 - 1 / tolerance.slope))
    return round_rows(num_rows * (_POWER * max(errors)) ** 2)


# Many labels


def add_labels(pooled: Verdict, labels: Sequence[tuple[str, Verdict]], *, level: float) -> Verdict:
    """Return the verdict of pooled labels with those of each label, corrected for their number.

    Half of alpha goes to the pooled labels, half to the single ones.

    Args:
        pooled: The verdict of all labels together.
        labels: The name and the verdict of each label.
        level: The confidence level.
    """
    tested = [(name, verdict) for name, verdict in labels if verdict.p_value == verdict.p_value]
    corrected = holm([verdict.p_value for _, verdict in tested])
    by_label = [min(1.0, 2 * p) for p in corrected if p is not None]
    off = [
        ClassFinding(name, verdict.direction, verdict.mean, verdict.rate)
        for p, (name, verdict) in zip(by_label, tested, strict=True)
        if p < 1 - level and verdict.state == OFF  # not where too few events are expected
    ]
    classes = tuple(sorted(off, key=lambda label: -abs(label.expected - label.observed)))
    pooled_p = min(1.0, 2 * pooled.p_value) if pooled.p_value == pooled.p_value else pooled.p_value
    pooled_off = pooled_p < 1 - level and pooled.state == OFF
    state = pooled.state
    if classes or pooled_off:
        state = OFF
    elif pooled.state == OFF:
        state = UNSURE  # significant alone, but not with its share of alpha
    unsure = sum(verdict.state == UNSURE for _, verdict in labels)
    if state == HOLDS and unsure:
        sentence = (
            f"Label by label, nothing was found to be off; {unsure} have too few rows to tell."
        )
    elif classes:
        sentence = f"Label by label: {_list_classes(classes, 'label')}."
    else:
        sentence = "Label by label, nothing was found to be off."
    headline = pooled.headline
    if classes:
        label = _describe_class(classes[0], "label")
        headline = f"{headline} And {label}." if pooled_off else f"Off by label: {label}."
    elif state == UNSURE and pooled.state == OFF:
        headline = f"Cannot tell, for too little data. {headline}"
    p_value = min([pooled_p, *by_label]) if by_label else pooled_p
    # The pooled test alone is not the verdict: its sentence gives way to that of all tests.
    openings = ("Chance could explain", "Chance does not explain", "Chance hardly explains")
    pooled_sentences = [text for text in pooled.sentences if not text.startswith(openings)]
    tests = (
        f"Pooled and label by label, corrected for the number of tests: {format_p_value(p_value)}."
    )
    return replace(
        pooled,
        headline=headline,
        sentences=(*pooled_sentences, *([tests] if p_value == p_value else []), sentence),
        state=state,
        direction=pooled.direction if pooled_off else "neither",
        classes=classes,
        p_value=p_value,
    )


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
