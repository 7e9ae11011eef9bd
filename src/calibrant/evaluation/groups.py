"""What an evaluation found group by group: figures, and which groups are off."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from calibrant.evaluation.verdict import chance_words, percent, rows
from calibrant.functional.errors import no_such

if TYPE_CHECKING:
    import pandas as pd

    from calibrant.evaluation.value import Verdict

FEWEST = 20  # rows, or images: fewer are not tested
COULD_HIDE = 0.1  # a gap that a group must be able to rule out, or it has too few rows
OVER, UNDER, UNSHOWN = "overconfident", "underconfident", "no gap shown"
FEW = f"too few rows to rule out {100 * COULD_HIDE:.0f} points"
UNTESTED = f"not tested: fewer than {FEWEST} rows"
UNTESTED_IMAGES = f"not tested: fewer than {FEWEST} images"
LOOKS_OFF = "looks off, more rows are needed"  # beside a finding of too few rows
_NAMED = 5  # groups that a sentence names


@dataclass(frozen=True)
class Group:
    """The figures of one group; intervals and judgement are None where none were asked for."""

    value: str
    num_rows: int
    num_units: int  # what is independent: rows, or images of dense predictions
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
    chance_ece: float | None = None  # the ECE calibrated rows as many reach by chance, 95% quantile
    p_value: float | None = None  # of the hypothesis that the group's mean gap is chance
    p_adjusted: float | None = None  # the same among so many groups, by Holm
    finding: str | None = None  # one of the words above

    @property
    def is_off(self) -> bool:
        """Whether it is shown to be over- or underconfident."""
        return self.finding in (OVER, UNDER)

    @property
    def is_tested(self) -> bool:
        """Whether it has rows enough for a test."""
        return self.p_value is not None

    @property
    def is_few(self) -> bool:
        """Whether it has too few rows: to be tested, or to rule out a wide gap."""
        return self.finding in (FEW, UNTESTED, UNTESTED_IMAGES)

    @property
    def looks_off(self) -> bool:
        """Whether it has too few rows, but an interval of the gap without 0."""
        low, high = self.gap_low or 0.0, self.gap_high or 0.0
        return self.is_few and low * high > 0

    @property
    def widest(self) -> float:
        """The widest gap that the interval leaves, by its size; NaN without an interval."""
        if self.gap_low is None or self.gap_high is None:
            return math.nan
        return max(abs(self.gap_low), abs(self.gap_high))


@dataclass(frozen=True)
class Groups:
    """Every group's figures, in the order of their values, and what they come to in words."""

    name: str  # of what the groups are groups by
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
        """The groups' names."""
        return [group.value for group in self.groups]

    @property
    def by_gap(self) -> list[Group]:
        """The most overconfident first; those of too few rows last, the widest gap first."""

        def place(group: Group) -> tuple[bool, float]:
            if math.isnan(group.gap):
                return True, 0.0
            return group.is_few, -abs(group.gap) if group.is_few else -group.gap

        return sorted(self.groups, key=place)

    @property
    def off(self) -> list[Group]:
        """The groups shown to be off, the most overconfident first."""
        return [group for group in self.by_gap if group.is_off]

    @property
    def few(self) -> list[Group]:
        """The groups with too few rows to be tested, or to rule out a wide gap; widest first."""
        return [group for group in self.by_gap if group.is_few]

    @property
    def worst(self) -> Group | None:
        """The most overconfident of those shown to be off; if none is, that of the widest gap.

        Its ``finding`` says which. None where no group could be judged.
        """
        shown = self._shown(OVER) or self._shown(UNDER)
        judged = shown or [group for group in self.groups if group.finding == UNSHOWN]
        return max(judged, key=lambda group: abs(group.gap), default=None)

    def _shown(self, finding: str) -> list[Group]:
        return [group for group in self.by_gap if group.finding == finding]

    @property
    def headline(self) -> str:
        """The outcome in a sentence or two: how many groups are off, and the worst of them."""
        if all(group.finding is None for group in self.groups):
            return f"{len(self)} groups by {self.name}, not judged: that needs intervals."
        tested = sum(group.is_tested for group in self.groups)
        among = f", corrected for {tested} groups (Holm)" if tested > 1 else ""
        sides = {finding: self._shown(finding) for finding in (OVER, UNDER)}
        parts = [
            f"{len(found)} of {len(self)} groups by {self.name} "
            f"{'is' if len(found) == 1 else 'are'} {finding}{among}: {self._told(found)}."
            for finding, found in sides.items()
            if found
        ]
        if not parts and tested:
            worst = self.worst
            which = "" if tested == len(self) else " tested"
            none = f"None of the {tested} groups by {self.name}{which} is"
            if tested == 1:
                none = f"The one group by {self.name} tested is not"
            told = f"{none} shown to be over- or underconfident{among}"
            if worst is not None:
                enough = " with rows enough" if any(one.finding == FEW for one in self) else ""
                told += (
                    f"; the widest gap{enough} is that of {self._described(worst)}, which chance "
                    "could explain"
                )
            parts.append(f"{told}.")
        return " ".join([*parts, *self._too_few()])

    def _told(self, found: Sequence[Group]) -> str:
        worst = max(found, key=lambda group: abs(group.gap))
        others = [group.value for group in found if group is not worst]
        text = ("the worst is " if others else "") + self._described(worst)
        if not others:
            return text
        return f"{text}; also {_listed(others)}"

    def _described(self, group: Group) -> str:
        assert group.gap_low is not None
        assert group.gap_high is not None
        assert group.p_adjusted is not None
        ends = (group.gap_low, group.gap_high)
        low, high = ends if group.gap >= 0 else (-ends[1], -ends[0])
        return (
            f"{group.value}, {percent(group.confidence)} sure and right {percent(group.accuracy)} "
            f"of the time ({rows(group.num_rows)}; too {'sure' if group.gap >= 0 else 'unsure'} by "
            f"{percent(abs(group.gap))}, {self.level:.0%} interval {percent(low)} to "
            f"{percent(high)}; corrected {chance_words(group.p_adjusted)})"
        )

    def _too_few(self) -> list[str]:
        few = [one for one in self.few if one.finding == FEW]
        untested = [one for one in self.few if one.finding != FEW]
        said = []
        if few:
            number = "1 group has" if len(few) == 1 else f"{len(few)} groups have"
            named = [
                f"{one.value} ({rows(one.num_rows)}, up to {percent(one.widest)})" for one in few
            ]
            said.append(f"{number} {FEW}: {_listed(named)}.")
        if untested:
            number = "1 group was" if len(untested) == 1 else f"{len(untested)} groups were"
            named = [f"{one.value} ({_size(one)})" for one in untested]
            why = str(untested[0].finding).replace(": ", ", with ")
            said.append(f"{number} {why}: {_listed(named)}.")
        if odd := [one.value for one in self.few if one.looks_off]:
            verb = "looks" if len(odd) == 1 else "look"
            said.append(f"Of these {_listed(odd)} {verb} off: more rows are needed.")
        return said

    def to_frame(self) -> pd.DataFrame:
        """The groups as a table, one row each."""
        import pandas as pd

        return pd.DataFrame([asdict(group) for group in self.groups]).set_index("value")

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain values."""
        worst = self.worst
        return {
            "name": self.name,
            "headline": self.headline,
            "worst": None if worst is None else worst.value,
            "groups": [asdict(group) for group in self.groups],
        }


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:_NAMED]) + (", ..." if len(names) > _NAMED else "")


def _size(group: Group) -> str:
    """How many rows, or images, it has."""
    if group.num_units == group.num_rows:
        return rows(group.num_rows)
    return "1 image" if group.num_units == 1 else f"{group.num_units:,} images"


def told_of_groups(verdict: Verdict, groups: Groups) -> Verdict:
    """A verdict that also says what the groups show, in its headline where they differ from it."""
    others = [group for group in groups.off if group.finding != verdict.direction]
    headline = verdict.headline
    if others:
        worst = max(others, key=lambda group: (group.finding == OVER, abs(group.gap)))
        headline += (
            f" But {groups.name} {worst.value} is {worst.finding}: {percent(worst.confidence)} "
            f"sure and right {percent(worst.accuracy)} of the time."
        )
    return replace(verdict, headline=headline, sentences=(*verdict.sentences, groups.headline))
