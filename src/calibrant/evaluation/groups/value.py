"""`Groups`: the figures of every group, and which groups are over- or underconfident."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from calibrant.core.errors import first, no_such
from calibrant.evaluation.verdict import Verdict, format_p_value, format_rows, percent

if TYPE_CHECKING:
    import pandas as pd

FEWEST = 20  # rows, or images: a group with fewer is not tested
COULD_HIDE = 0.1  # a group that cannot rule out a gap this large has too few rows
OVER, UNDER, UNSHOWN = "overconfident", "underconfident", "no gap shown"
FEW = f"too few rows to rule out {100 * COULD_HIDE:.0f} points"
UNTESTED = f"not tested: fewer than {FEWEST} rows"
UNTESTED_IMAGES = f"not tested: fewer than {FEWEST} images"
LOOKS_OFF = "looks off, more rows are needed"  # beside a finding of too few rows


@dataclass(frozen=True)
class Group:
    """The figures of one group; without intervals, its ends, p-values and finding are None."""

    value: str
    num_rows: int
    num_units: int  # independent units: rows, or images of dense predictions
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
    p_adjusted: float | None = None  # after Holm's correction for the number of groups
    finding: str | None = None  # one of the constants above

    @property
    def is_off(self) -> bool:
        """Return whether the group is shown to be over- or underconfident."""
        return self.finding in (OVER, UNDER)

    @property
    def is_tested(self) -> bool:
        """Return whether the group has enough rows for a test."""
        return self.p_value is not None

    @property
    def is_few(self) -> bool:
        """Return whether the group has too few rows to be tested, or to rule out a wide gap."""
        return self.finding in (FEW, UNTESTED, UNTESTED_IMAGES)

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


@dataclass(frozen=True)
class Groups:
    """The figures of all groups, in the order of their values, and a summary in words."""

    name: str  # what the values are, such as "camera"
    groups: tuple[Group, ...]
    level: float

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

        Its ``finding`` says which. None if no group could be judged.
        """
        off = self._with(OVER) or self._with(UNDER)
        candidates = off or [group for group in self.groups if group.finding == UNSHOWN]
        return max(candidates, key=lambda group: abs(group.gap), default=None)

    def _with(self, finding: str) -> list[Group]:
        return [group for group in self.by_gap if group.finding == finding]

    @property
    def headline(self) -> str:
        """Return the outcome in a few sentences: how many groups are off, and the worst of them."""
        if all(group.finding is None for group in self.groups):
            return f"{len(self)} groups by {self.name}, not judged: that needs intervals."
        tested = sum(group.is_tested for group in self.groups)
        among = f", corrected for {tested} groups (Holm)" if tested > 1 else ""
        sides = {finding: self._with(finding) for finding in (OVER, UNDER)}
        parts = [
            f"{len(groups)} of {len(self)} groups by {self.name} "
            f"{'is' if len(groups) == 1 else 'are'} {finding}{among}: {self._list_off(groups)}."
            for finding, groups in sides.items()
            if groups
        ]
        if not parts and tested:
            worst = self.worst
            tested_text = "" if tested == len(self) else " tested"
            sentence = f"None of the {tested} groups by {self.name}{tested_text} is"
            if tested == 1:
                sentence = f"The one group by {self.name} tested is not"
            sentence += f" shown to be over- or underconfident{among}"
            if worst is not None:
                enough = " with enough rows" if self._with(FEW) else ""
                sentence += (
                    f"; the widest gap{enough} is that of {self._describe(worst)}, which chance "
                    "could explain"
                )
            parts.append(f"{sentence}.")
        return " ".join([*parts, *self._describe_few()])

    def _list_off(self, groups: Sequence[Group]) -> str:
        worst = max(groups, key=lambda group: abs(group.gap))
        others = [group.value for group in groups if group is not worst]
        if not others:
            return self._describe(worst)
        return f"the worst is {self._describe(worst)}; also {first(others)}"

    def _describe(self, group: Group) -> str:
        assert group.gap_low is not None
        assert group.gap_high is not None
        assert group.p_adjusted is not None
        ends, side = (group.gap_low, group.gap_high), "sure"
        if group.gap < 0:
            ends, side = (-group.gap_high, -group.gap_low), "unsure"
        return (
            f"{group.value}, {percent(group.confidence)} sure and right {percent(group.accuracy)} "
            f"of the time ({format_rows(group.num_rows)}; too {side} by "
            f"{percent(abs(group.gap))}, {self.level:.0%} interval {percent(ends[0])} to "
            f"{percent(ends[1])}; corrected {format_p_value(group.p_adjusted)})"
        )

    def _describe_few(self) -> list[str]:
        few = self._with(FEW)
        untested = [group for group in self.few if group.finding != FEW]
        sentences = []
        if few:
            number = "1 group has" if len(few) == 1 else f"{len(few)} groups have"
            names = [
                f"{group.value} ({format_rows(group.num_rows)}, up to {percent(group.widest)})"
                for group in few
            ]
            sentences.append(f"{number} {FEW}: {first(names)}.")
        if untested:
            number = "1 group was" if len(untested) == 1 else f"{len(untested)} groups were"
            names = [f"{group.value} ({_format_size(group)})" for group in untested]
            why = str(untested[0].finding).replace(": ", ", with ")
            sentences.append(f"{number} {why}: {first(names)}.")
        if odd := [group.value for group in self.few if group.looks_off]:
            verb = "looks" if len(odd) == 1 else "look"
            sentences.append(f"Of these {first(odd)} {verb} off: more rows are needed.")
        return sentences

    def to_frame(self) -> pd.DataFrame:
        """Return the groups as a table, a row for each."""
        import pandas as pd

        return pd.DataFrame([asdict(group) for group in self.groups]).set_index("value")

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain values."""
        worst = self.worst
        return {
            "name": self.name,
            "headline": self.headline,
            "worst": None if worst is None else worst.value,
            "groups": [asdict(group) for group in self.groups],
        }


def _format_size(group: Group) -> str:
    if group.num_units == group.num_rows:
        return format_rows(group.num_rows)
    return "1 image" if group.num_units == 1 else f"{group.num_units:,} images"


def add_groups(verdict: Verdict, groups: Groups) -> Verdict:
    """Return the verdict with a sentence on the groups; its headline names groups that differ."""
    others = [group for group in groups.off if group.finding != verdict.direction]
    headline = verdict.headline
    if others:
        worst = max(others, key=lambda group: (group.finding == OVER, abs(group.gap)))
        headline += (
            f" But {groups.name} {worst.value} is {worst.finding}: {percent(worst.confidence)} "
            f"sure and right {percent(worst.accuracy)} of the time."
        )
    return replace(verdict, headline=headline, sentences=(*verdict.sentences, groups.headline))
