"""Hold the verdict on a claim, and reopen it if planned runs could overturn it."""

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
    """Hold the status, the reason, and the differences that are not clear enough."""

    status: str
    reason: str
    unclear: tuple[Paired, ...] = ()
    places: tuple[tuple[Cell, str], ...] = ()  # runs to repeat with more seeds
    deciding: tuple[Comparison, ...] = ()  # comparisons that decided the claim
    others: bool = False  # whether methods that this suite cannot run could change the verdict


def reopen_for_rivals(
    test: Test, verdict: Verdict, away: Collection[str], lacking: Collection[Place]
) -> Verdict:
    """Reopen a verdict if the losing side picks its best method and a candidate has no runs.

    ``away`` are methods that this suite does not have or must tune first; ``lacking`` are planned
    places without runs. If one comparison decides, one cell with runs of every candidate is
    enough.
    """
    side = {FAILS: test.left, HOLDS: test.right}.get(verdict.status)
    if side is None or not side.best:
        return verdict
    cells = dict.fromkeys(comparison.places[0][0] for comparison in verdict.deciding)
    rivals_by_cell = {cell: _list_rivals(side.methods, cell, away, lacking) for cell in cells}
    alone = (test.decide, verdict.status) in (("every", FAILS), ("some", HOLDS))
    turns = all(rivals_by_cell.values()) if alone else any(rivals_by_cell.values())
    if not turns:
        return verdict
    names = {comparison.places[0][0]: comparison.cell for comparison in verdict.deciding}
    rival_names = dict.fromkeys(
        method if method in away else f"{method} ({names[cell]})"
        for cell, rivals in rivals_by_cell.items()
        for method in rivals
    )
    names_text = join_names(list(rival_names))
    reason = f"{verdict.reason}; but {names_text} may be better and has no runs"
    others = any(method in away for rivals in rivals_by_cell.values() for method in rivals)
    if others:
        reason += ", and this suite cannot make them"
    places = [(cell, method) for cell, rivals in rivals_by_cell.items() for method in rivals]
    return Verdict(OPEN, reason, places=tuple(p for p in places if p in lacking), others=others)


def _list_rivals(
    methods: Sequence[str], cell: Cell, away: Collection[str], lacking: Collection[Place]
) -> list[str]:
    return [method for method in methods if method in away or (cell, method) in lacking]


def reopen_for_planned(
    verdict: Verdict, comparisons: Sequence[Comparison], to_come: int
) -> Verdict:
    """Reopen a verdict if the planned comparisons could overturn its share."""
    if verdict.status == OPEN or to_come <= 0:
        return verdict
    ahead = sum(
        (comparison.shifted.mean > 0) == (verdict.status == HOLDS) for comparison in comparisons
    )
    if wilson(ahead, len(comparisons) + to_come)[0] > 0.5:
        return verdict
    reason = f"{verdict.reason}; {to_come} planned comparisons could overturn it"
    return replace(verdict, status=OPEN, reason=reason)


def join_names(names: Sequence[str], most: int = 4) -> str:
    """Join the first names, and say how many more there are."""
    shown = "; ".join(names[:most])
    return shown + (f" and {len(names) - most} more" if len(names) > most else "")
