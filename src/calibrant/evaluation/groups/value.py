"""`Groups`: the figures of every group, and in which groups probabilities are off."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from calibrant.core.errors import first, no_such
from calibrant.core.frames import frame_of_rows
from calibrant.evaluation.clustered import FEWEST_CLUSTERS
from calibrant.evaluation.verdict import (
    OFF,
    Verdict,
    format_p_value,
    format_rows,
    name_event,
    percent,
    points,
)

FEWEST = 20  # rows: a group with fewer is not tested
COULD_HIDE = 0.1  # a group that cannot rule out a gap this large has too few rows
FACTOR_COULD_HIDE = 2.0  # nor one of events, observed over expected off by this factor
OVER, UNDER, UNSHOWN = "overconfident", "underconfident", "no gap shown"
TOO_HIGH, TOO_LOW = "too high", "too low"  # the probabilities of an event
FEW = f"too few rows to rule out {100 * COULD_HIDE:.0f} points"
FEW_EVENTS = f"too few events to rule out a factor of {FACTOR_COULD_HIDE:.0f}"
UNTESTED = f"not tested: fewer than {FEWEST} rows"
UNTESTED_IMAGES = f"not tested: fewer than {FEWEST_CLUSTERS} images"
UNTESTED_CLUSTERS = f"not tested: fewer than {FEWEST_CLUSTERS} clusters"
# Names of groups that are dates: those of one form sort by time as text.
_MONTH, _DAY = r"(19|20)\d\d-(0[1-9]|1[0-2])", r"(0[1-9]|[12]\d|3[01])"
_DATES = tuple(
    re.compile(pattern, re.ASCII)
    for pattern in (
        r"(19|20)\d\d",
        r"(19|20)\d\d-?Q[1-4]",
        r"(19|20)\d\d-?W[0-5]\d",
        _MONTH,
        f"{_MONTH}-{_DAY}",
        rf"{_MONTH}-{_DAY}[T ]\d\d:\d\d.*",
    )
)
LOOKS_OFF = "looks off, more rows are needed"  # beside a finding of too few rows


def are_dates(names: Sequence[str]) -> bool:
    """Return whether several names are dates of one form: a year, quarter, month, week or day.

    Args:
        names: The names of groups.
    """
    return len(names) > 1 and any(
        all(pattern.fullmatch(name) for name in names) for pattern in _DATES
    )


@dataclass(frozen=True)
class Group:
    """The figures of one group; without intervals, its ends, p-values and finding are None.

    For events, ``confidence`` is the mean probability, ``accuracy`` the frequency, and ``ratio``
    observed over expected events.
    """

    value: str
    num_rows: int
    num_units: int  # independent units: rows, or clusters (images of dense predictions)
    accuracy: float
    confidence: float
    gap: float  # mean confidence − accuracy
    ece: float
    nll: float
    aurc: float
    gap_low: float | None = None
    gap_high: float | None = None
    ece_low: float | None = None
    ece_high: float | None = None
    chance_ece: float | None = None  # 95% quantile of the ECE of as many calibrated rows
    p_value: float | None = None  # of the hypothesis that the mean gap is chance
    p_adjusted: float | None = None  # after the correction for the number of groups
    finding: str | None = None  # one of the constants above
    ratio: float | None = None  # observed over expected; None unless rows are events
    ratio_low: float | None = None
    ratio_high: float | None = None

    @property
    def is_off(self) -> bool:
        """Return whether the group's probabilities are shown to be off."""
        return self.finding in (OVER, UNDER, TOO_HIGH, TOO_LOW)

    @property
    def is_tested(self) -> bool:
        """Return whether the group has enough rows for a test."""
        return self.p_value is not None

    @property
    def is_few(self) -> bool:
        """Return whether the group has too few rows to be tested, or to rule out a wide gap."""
        return self.finding in (FEW, FEW_EVENTS, UNTESTED, UNTESTED_IMAGES, UNTESTED_CLUSTERS)

    @property
    def looks_off(self) -> bool:
        """Return whether the group has too few rows, but a gap whose interval excludes 0."""
        low, high = self.gap_low or 0.0, self.gap_high or 0.0
        return self.is_few and low * high > 0

    @property
    def widest(self) -> float:
        """Return the size of the widest gap in the interval; NaN without an interval."""
        if self.gap_low is None or self.gap_high is None:
            return math.nan
        return max(abs(self.gap_low), abs(self.gap_high))

    @property
    def sure_factor(self) -> float:
        """Return the factor by which events surely differ from the expected; 1 if unsure."""
        if self.ratio_low is None or self.ratio_high is None:
            return 1.0
        return max(1.0, self.ratio_low, 1 / self.ratio_high if self.ratio_high > 0 else math.inf)


@dataclass(frozen=True)
class Groups:
    """The figures of all groups, in the order of their values, and a summary in words."""

    name: str  # what the values are, such as "camera"
    groups: tuple[Group, ...]
    level: float
    event: str | None = None  # what the judged probability is the probability of
    unit: str = "row"  # what is independent: "row", "cluster" or "image"
    correction: str = "Holm"  # for the number of groups

    def __str__(self) -> str:
        """Return the summary, and a line for each group."""
        lines = [self.headline]
        for group in self.groups:
            found = f", {group.finding}" if group.finding else ""
            gap = f"{100 * group.gap:+.1f}"
            lines.append(f"{group.value}: {group.num_rows:,} rows, gap {gap} points{found}")
        return "\n".join(lines)

    def __getitem__(self, value: object) -> Group:
        for group in self.groups:
            if group.value == str(value):
                return group
        raise no_such("group", str(value), self.keys())

    def __iter__(self) -> Iterator[Group]:
        return iter(self.groups)

    def __contains__(self, value: object) -> bool:
        return value in self.groups or str(value) in self.keys()

    def __len__(self) -> int:
        return len(self.groups)

    def keys(self) -> list[str]:
        """Return the values of the groups."""
        return [group.value for group in self.groups]

    @property
    def by_gap(self) -> list[Group]:
        """Return the groups, most overconfident first; last those with too few rows, by width."""

        def sort_key(group: Group) -> tuple[bool, float]:
            if math.isnan(group.gap):
                return True, 0.0
            return group.is_few, -abs(group.gap) if group.is_few else -group.gap

        return sorted(self.groups, key=sort_key)

    @property
    def are_dates(self) -> bool:
        """Return whether every group is a date of one form: a year, quarter, month, week, day."""
        return are_dates([group.value for group in self.groups])

    @property
    def in_order(self) -> list[Group]:
        """Return the groups as they are shown: by time if they are dates, else as `by_gap`."""
        if self.are_dates:
            return sorted(self.groups, key=lambda group: group.value)
        return self.by_gap

    @property
    def off(self) -> list[Group]:
        """Return the groups shown to be off, most overconfident first."""
        return [group for group in self.by_gap if group.is_off]

    @property
    def few(self) -> list[Group]:
        """Return groups with too few rows for a test or to rule out a wide gap, widest first."""
        return [group for group in self.by_gap if group.is_few]

    @property
    def worst(self) -> Group | None:
        """Return the most overconfident group shown to be off, else the one with the widest gap.

        For events it is the group whose events surely differ from the expected by the largest
        factor. Its ``finding`` says which. None if no group could be judged.
        """
        off = self._with(OVER) or self._with(UNDER) or self.off
        candidates = off or [group for group in self.groups if group.finding == UNSHOWN]
        return max(candidates, key=_severity, default=None)

    def _with(self, finding: str) -> list[Group]:
        return [group for group in self.by_gap if group.finding == finding]

    @property
    def headline(self) -> str:
        """Return the outcome in a few sentences: how many groups are off, and the worst of them."""
        if all(group.finding is None for group in self.groups):
            return f"{len(self)} groups by {self.name}, not judged: that needs intervals."
        tested = sum(group.is_tested for group in self.groups)
        among = f", corrected for {tested} groups ({self.correction})" if tested > 1 else ""
        parts = [
            self._describe_side(finding, groups, among)
            for finding in (OVER, UNDER, TOO_HIGH, TOO_LOW)
            if (groups := self._with(finding))
        ]
        if not parts and tested:
            parts.append(self._describe_unshown(tested, among))
        return " ".join([*parts, *self._describe_few()])

    def _describe_side(self, finding: str, groups: Sequence[Group], among: str) -> str:
        number = f"{len(groups)} of {len(self)} groups by {self.name}"
        if self.event is None:
            verb = "is" if len(groups) == 1 else "are"
            return f"{number} {verb} {finding}{among}: {self._list_off(groups)}."
        return (
            f"Probabilities of {name_event(self.event)} are {finding} in {number}{among}: "
            f"{self._list_off(groups)}."
        )

    def _describe_unshown(self, tested: int, among: str) -> str:
        worst = self.worst
        tested_text = "" if tested == len(self) else " tested"
        if self.event is None:
            sentence = f"None of the {tested} groups by {self.name}{tested_text} is"
            if tested == 1:
                sentence = f"The one group by {self.name} tested is not"
            sentence += f" shown to be over- or underconfident{among}"
        else:
            sentence = f"In none of the {tested} groups by {self.name}{tested_text}"
            if tested == 1:
                sentence = f"In the one group by {self.name} tested"
            sentence += (
                f" are probabilities of {name_event(self.event)}{' not' if tested == 1 else ''}"
            )
            sentence += f" shown to be too high or too low{among}"
        if worst is not None:
            enough = " with enough rows" if self._with(FEW) or self._with(FEW_EVENTS) else ""
            assert worst.p_adjusted is not None
            # A gap counts as shown if the test rejects and the interval excludes none.
            why = "which chance could explain"
            if worst.p_adjusted < 1 - self.level:
                why = "and this interval does not rule out that there is no gap"
            sentence += f"; the widest gap{enough} is that of {self._describe(worst)}, {why}"
        return f"{sentence}."

    def _list_off(self, groups: Sequence[Group]) -> str:
        worst = max(groups, key=_severity)
        others = [group.value for group in groups if group is not worst]
        if not others:
            return self._describe(worst)
        return f"the worst is {self._describe(worst)}; also {first(others)}"

    def _describe(self, group: Group) -> str:
        assert group.gap_low is not None
        assert group.gap_high is not None
        assert group.p_adjusted is not None
        corrected = f"corrected {format_p_value(group.p_adjusted)}"
        if group.ratio is not None:
            return (
                f"{group.value}, where they say {percent(group.confidence)} on average and it "
                f"happens {percent(group.accuracy)} of the time "
                f"({self._format_size(group)}; observed/expected "
                f"{format_ratio(group.ratio)}, {self.level:.0%} interval "
                f"{format_ratio(group.ratio_low)} to {format_ratio(group.ratio_high)}; "
                f"{corrected})"
            )
        ends, side = (group.gap_low, group.gap_high), "sure"
        if group.gap < 0:
            ends, side = (-group.gap_high, -group.gap_low), "unsure"
        return (
            f"{group.value}, {percent(group.confidence)} sure and right {percent(group.accuracy)} "
            f"of the time ({format_rows(group.num_rows)}; too {side} by "
            f"{points(abs(group.gap))} points, {self.level:.0%} interval {points(ends[0])} to "
            f"{points(ends[1])}; {corrected})"
        )

    def _describe_few(self) -> list[str]:
        few = self._with(FEW if self.event is None else FEW_EVENTS)
        sentences = []
        if few:
            number = "1 group has" if len(few) == 1 else f"{len(few)} groups have"
            names = [f"{group.value} ({self._format_size(group)}{_reach(group)})" for group in few]
            sentences.append(f"{number} {few[0].finding}: {first(names)}.")
        for finding in (UNTESTED, UNTESTED_IMAGES, UNTESTED_CLUSTERS):
            if untested := self._with(finding):
                number = "1 group was" if len(untested) == 1 else f"{len(untested)} groups were"
                names = [f"{group.value} ({self._format_size(group)})" for group in untested]
                why = finding.replace(": ", ", with ")
                sentences.append(f"{number} {why}: {first(names)}.")
        if odd := [group.value for group in self.few if group.looks_off]:
            verb = "looks" if len(odd) == 1 else "look"
            sentences.append(f"Of these {first(odd)} {verb} off: more rows are needed.")
        return sentences

    def _format_size(self, group: Group) -> str:
        if self.unit == "row":
            return format_rows(group.num_rows)
        units = f"{group.num_units:,} {self.unit}{'' if group.num_units == 1 else 's'}"
        return units if self.unit == "image" else f"{format_rows(group.num_rows)} in {units}"

    def to_frame(self, *, library: str = "pandas") -> Any:
        """Return the groups as a table, a row for each.

        Args:
            library: ``"pandas"`` or ``"polars"``. Default: 'pandas' (comes with calibrant).
        """
        rows = [asdict(group) for group in self.groups]
        return frame_of_rows(rows, index="value", library=library)

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain values."""
        worst = self.worst
        return {
            "name": self.name,
            "headline": self.headline,
            "worst": None if worst is None else worst.value,
            "event": self.event,
            "unit": self.unit,
            "groups": [asdict(group) for group in self.groups],
        }


def _severity(group: Group) -> tuple[float, float]:
    """Return what the worst group has most of: a sure factor of events, then the gap."""
    return group.sure_factor, abs(group.gap)


def format_ratio(ratio: float | None) -> str:
    """Format observed over expected with two digits after the point, or two digits if small."""
    if ratio is None or math.isnan(ratio):
        return "unknown"
    if math.isinf(ratio):
        return "∞"
    return f"{ratio:.2g}" if 0 < ratio < 0.1 else f"{ratio:.2f}"


def _reach(group: Group) -> str:
    """Say how far off a group with too few rows may be."""
    if group.ratio is None:
        return f", up to {points(group.widest)} points"
    ends = f"{format_ratio(group.ratio_low)} to {format_ratio(group.ratio_high)}"
    return f", observed/expected {ends}"


def add_groups(verdict: Verdict, groups: Groups) -> Verdict:
    """Return the verdict with a sentence on the groups; its headline names groups that differ."""
    others = [group for group in groups.off if group.finding != verdict.direction]
    headline = verdict.headline
    if others and verdict.state != OFF:  # "no miscalibration was found" is not all that is said
        headline = f"Over all rows: {headline[0].lower()}{headline[1:]}"
    if others and groups.event is not None:
        worst = max(others, key=_severity)
        headline += (
            f" But in {groups.name} {worst.value} the probabilities are {worst.finding}: "
            f"{percent(worst.confidence)} on average, while it happens "
            f"{percent(worst.accuracy)} of the time (observed/expected "
            f"{format_ratio(worst.ratio)})."
        )
    elif others:
        worst = max(others, key=lambda group: (group.finding == OVER, abs(group.gap)))
        headline += (
            f" But {groups.name} {worst.value} is {worst.finding}: {percent(worst.confidence)} "
            f"sure and right {percent(worst.accuracy)} of the time."
        )
    return replace(
        verdict,
        headline=headline,
        sentences=(*verdict.sentences, groups.headline),
        state=OFF if groups.off else verdict.state,
    )
