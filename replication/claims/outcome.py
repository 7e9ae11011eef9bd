"""What the runs of one suite say of a claim."""

from __future__ import annotations

from dataclasses import dataclass, field

from calibrant.bench.tables.statistics import FEWEST, LEVEL, Paired
from replication.claims.claim import Claim
from replication.claims.comparisons import Comparison
from replication.claims.conditions import Conditions
from replication.claims.costs import Cost
from replication.claims.verdicts import HOLDS, OPEN

REPRODUCED, NOT_REPRODUCED = "reproduced", "not reproduced"
SEEN, NOT_SEEN = "seen here", "not seen here"
NOT_DECIDED = "not decided"
STATUSES = (REPRODUCED, NOT_REPRODUCED, SEEN, NOT_SEEN, NOT_DECIDED)


@dataclass(frozen=True)
class Outcome:
    """What our runs of one suite say of a claim.

    ``effect`` is what left gains over right, in the metric's own units (for a correlation
    Pearson's r or, with ``against``, a difference of Fisher's z), with its 95% interval.
    """

    claim: Claim
    suite: str
    finding: str  # what the test says: holds, fails, not decided
    reason: str
    metric: str
    effect: float | None = None
    low: float | None = None
    high: float | None = None
    pairs: int = 0  # seeds, settings or points: what the interval rests on
    comparisons: tuple[Comparison, ...] = ()
    missing: tuple[str, ...] = ()  # methods the suite plans and has no run of
    absent: tuple[str, ...] = ()  # methods of the claim that the suite does not have
    detectable: float | None = None  # the effect our runs would have shown, 4 times of 5
    expected: int | None = None  # so many pairs would show that, by the spread of other runs
    elsewhere: bool = False  # only a suite with more methods could decide it
    seeds: int | None = None  # in all, that would decide the effect seen; None: not known
    beyond: bool = False  # whether that takes more than 1,000, of which the cost is then
    cost: Cost | None = None  # of what lacks; None: not known
    conditions: Conditions = field(
        default_factory=Conditions
    )  # how our runs differ from the paper's

    @property
    def status(self) -> str:
        """One of `STATUSES`: what our runs say of the claim, given how they were made."""
        if self.finding == OPEN or self.conditions.disqualified:
            return NOT_DECIDED
        if self.conditions.differences:
            return SEEN if self.finding == HOLDS else NOT_SEEN
        return REPRODUCED if self.finding == HOLDS else NOT_REPRODUCED

    @property
    def minutes(self) -> float | None:
        """Of the GPU, for what lacks; None: not known."""
        return None if self.cost is None else self.cost.minutes

    @property
    def evidence(self) -> frozenset[tuple[object, ...]]:
        """The figures it rests on, seed by seed: two suites may have the same runs."""
        return frozenset(
            (one.cell, one.left, one.right, one.metric, *gain)
            for one in self.comparisons
            for gain in one.gains.items()
        )

    @property
    def begun(self) -> bool:
        """Whether there is a figure to speak of."""
        return self.effect is not None

    @property
    def tested(self) -> bool:
        """Whether there were pairs enough for a test, in every comparison."""
        if self.claim.test.decide == "mean":
            return self.pairs >= FEWEST
        return all(one.shifted.tested for one in self.comparisons)

    def tally(self) -> tuple[int, int, int]:
        """Comparisons decided for left, against it, and open, each by itself."""
        stands = [stand(one.shifted) for one in self.comparisons]
        return stands.count(1), stands.count(-1), stands.count(0)


def stand(paired: Paired, p: float | None = None) -> int:
    """1 for left, −1 against it, 0 open, at 5%."""
    p = paired.p if p is None else p
    if p is None or p >= LEVEL:
        return 0
    return 1 if paired.mean > 0 else -1
