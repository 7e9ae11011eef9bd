"""What is decided of a claim, and what runs still to be made could turn."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from calibrant.bench import Cell
from calibrant.bench.tables.statistics import Paired
from replication.claims.claim import Test
from replication.claims.comparisons import Comparison, Place
from replication.claims.power_analysis import wilson

HOLDS, FAILS, OPEN = "holds", "fails", "not decided"


@dataclass(frozen=True)
class Verdict:
    """Holds, fails or not decided, why, and the differences that would have to be clearer."""

    status: str
    reason: str
    unclear: tuple[Paired, ...] = ()
    places: tuple[tuple[Cell, str], ...] = ()  # the runs to be repeated with more seeds
    by: tuple[Comparison, ...] = ()  # the comparisons that decided it
    others: bool = False  # whether methods this suite cannot run could change it


def unless_others(
    test: Test, verdict: Verdict, away: Collection[str], lacking: Collection[Place]
) -> Verdict:
    """Open where a side picks its best and lost, while some it could pick have no runs.

    ``away`` are methods this suite does not have, or has to tune first; ``lacking`` what it
    plans. Where one comparison decides, a cell with runs of all that could be picked is enough.
    """
    side = {FAILS: test.left, HOLDS: test.right}.get(verdict.status)
    if side is None or not side.best:
        return verdict
    cells = dict.fromkeys(one.places[0][0] for one in verdict.by)
    open_ones = {cell: _rivals(side.methods, cell, away, lacking) for cell in cells}
    alone = (test.decide, verdict.status) in (("every", FAILS), ("some", HOLDS))
    turns = all(open_ones.values()) if alone else any(open_ones.values())
    if not turns:
        return verdict
    names = {one.places[0][0]: one.cell for one in verdict.by}
    told = dict.fromkeys(
        method if method in away else f"{method} ({names[cell]})"
        for cell, rivals in open_ones.items()
        for method in rivals
    )
    reason = f"{verdict.reason}; but {listed(list(told))} may be better, of which there are no runs"
    others = any(method in away for rivals in open_ones.values() for method in rivals)
    if others:
        reason += ", and this suite has none to make"
    places = [(cell, one) for cell, rivals in open_ones.items() for one in rivals]
    return Verdict(OPEN, reason, places=tuple(p for p in places if p in lacking), others=others)


def _rivals(
    methods: Sequence[str], cell: Cell, away: Collection[str], lacking: Collection[Place]
) -> list[str]:
    return [one for one in methods if one in away or (cell, one) in lacking]


def unless_overturned(verdict: Verdict, found: Sequence[Comparison], to_come: int) -> Verdict:
    """Open where comparisons still to come, all against it, would leave a share undecided."""
    if verdict.status == OPEN or to_come <= 0:
        return verdict
    ahead = sum((one.shifted.mean > 0) == (verdict.status == HOLDS) for one in found)
    if wilson(ahead, len(found) + to_come)[0] > 0.5:
        return verdict
    reason = f"{verdict.reason}; {to_come} more to come could overturn it"
    return replace(verdict, status=OPEN, reason=reason)


def listed(names: Sequence[str], most: int = 4) -> str:
    """The first few of several names, and how many more there are."""
    shown = "; ".join(names[:most])
    return shown + (f" and {len(names) - most} more" if len(names) > most else "")
