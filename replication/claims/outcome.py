"""Hold what the runs of one suite say about a claim."""

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
    """Hold what our runs of one suite say about a claim.

    ``effect`` is left's gain over right in the metric's own units, with its 95% interval. For a
    correlation it is Pearson's r or, with ``against``, a difference of Fisher's z.
    """

    claim: Claim
    suite: str
    finding: str  # result of the test: holds, fails, not decided
    reason: str
    metric: str
    effect: float | None = None
    low: float | None = None
    high: float | None = None
    pairs: int = 0  # number of seeds, settings or networks behind the interval
    comparisons: tuple[Comparison, ...] = ()
    missing: tuple[str, ...] = ()  # planned methods without runs
    absent: tuple[str, ...] = ()  # methods of the claim that the suite does not have
    detectable: float | None = None  # the effect that our runs detect 4 times out of 5
    expected: int | None = None  # pairs that would detect it, by the spread of other runs
    elsewhere: bool = False  # only a suite with more methods could decide it
    seeds: int | None = None  # total that would decide the effect seen; None: unknown
    beyond: bool = False  # whether that takes more than 1,000; the cost is then for 1,000
    cost: Cost | None = None  # of the runs still needed; None: unknown
    # How our runs differ from the paper's.
    conditions: Conditions = field(default_factory=Conditions)

    @property
    def status(self) -> str:
        """Combine the finding with the conditions of our runs into one of `STATUSES`."""
        if self.finding == OPEN or self.conditions.disqualified:
            return NOT_DECIDED
        if self.conditions.differences:
            return SEEN if self.finding == HOLDS else NOT_SEEN
        return REPRODUCED if self.finding == HOLDS else NOT_REPRODUCED

    @property
    def minutes(self) -> float | None:
        """Return the GPU minutes still needed; None: unknown."""
        return None if self.cost is None else self.cost.minutes

    @property
    def evidence(self) -> frozenset[tuple[object, ...]]:
        """List the figures behind the outcome by seed; two suites may share runs."""
        return frozenset(
            (comparison.cell, comparison.left, comparison.right, comparison.metric, *gain)
            for comparison in self.comparisons
            for gain in comparison.gains.items()
        )

    @property
    def begun(self) -> bool:
        """Return whether there is any figure."""
        return self.effect is not None

    @property
    def tested(self) -> bool:
        """Return whether every comparison has enough pairs for a test."""
        if self.claim.test.decide == "mean":
            return self.pairs >= FEWEST
        return all(comparison.shifted.tested for comparison in self.comparisons)

    def tally(self) -> tuple[int, int, int]:
        """Count the comparisons that are for left, against it, and open."""
        stands = [decide_sign(comparison.shifted) for comparison in self.comparisons]
        return stands.count(1), stands.count(-1), stands.count(0)


def decide_sign(paired: Paired, p: float | None = None) -> int:
    """Return 1 for left, −1 against it, 0 if open, at 5%."""
    p = paired.p if p is None else p
    if p is None or p >= LEVEL:
        return 0
    return 1 if paired.mean > 0 else -1
