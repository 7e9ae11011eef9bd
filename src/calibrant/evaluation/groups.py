"""What an evaluation found group by group: figures, and which groups are off."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from calibrant.evaluation.verdict import chance_words, percent, rows

if TYPE_CHECKING:
    import pandas as pd

    from calibrant.evaluation.value import Verdict

OVER, UNDER, UNSHOWN, FEW = "overconfident", "underconfident", "no gap shown", "too few rows"
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
    finding: str | None = None  # one of the four words above

    @property
    def is_off(self) -> bool:
        """Whether it is shown to be over- or underconfident."""
        return self.finding in (OVER, UNDER)


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
        raise KeyError(f"no group is called {value!r}")

    def __len__(self) -> int:
        return len(self.groups)

    @property
    def by_gap(self) -> list[Group]:
        """The groups, the most overconfident first; those of too few rows last."""

        def place(group: Group) -> tuple[bool, float]:
            few = group.finding == FEW or math.isnan(group.gap)
            return few, 0.0 if math.isnan(group.gap) else -group.gap

        return sorted(self.groups, key=place)

    @property
    def off(self) -> list[Group]:
        """The groups shown to be off, the most overconfident first."""
        return [group for group in self.by_gap if group.is_off]

    @property
    def few(self) -> list[Group]:
        """The groups with too few rows to judge."""
        return [group for group in self.groups if group.finding == FEW]

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
        tested = sum(group.p_value is not None for group in self.groups)
        among = f"corrected for {tested} groups (Holm)"
        sides = {finding: self._shown(finding) for finding in (OVER, UNDER)}
        parts = [
            f"{len(found)} of {len(self)} groups by {self.name} "
            f"{'is' if len(found) == 1 else 'are'} {finding}, {among}: {self._told(found)}."
            for finding, found in sides.items()
            if found
        ]
        worst = self.worst
        if not parts and worst is not None:
            enough = " with rows enough" if self.few else ""
            parts.append(
                f"None of the {len(self) - len(self.few)} groups by {self.name}{enough} is shown "
                f"to be over- or underconfident, {among}; the widest gap is that of "
                f"{self._described(worst)}, which chance could explain."
            )
        return " ".join([*parts, *self._too_few()])

    def _told(self, found: Sequence[Group]) -> str:
        worst = max(found, key=lambda group: abs(group.gap))
        others = [group.value for group in found if group is not worst]
        text = ("the worst is " if others else "") + self._described(worst)
        if not others:
            return text
        more = ", ..." if len(others) > _NAMED else ""
        return f"{text}; also {', '.join(others[:_NAMED])}{more}"

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
        if not self.few:
            return []
        named = ", ".join(f"{one.value} ({rows(one.num_rows)})" for one in self.few[:_NAMED])
        more = ", ..." if len(self.few) > _NAMED else ""
        number = "1 group has" if len(self.few) == 1 else f"{len(self.few)} groups have"
        return [f"{number} too few rows to judge: {named}{more}."]

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
