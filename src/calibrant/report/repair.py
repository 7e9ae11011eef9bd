"""Before and after a repair: the rows of the table that says what changed."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

from calibrant.functional.errors import InputError
from calibrant.report import words

if TYPE_CHECKING:
    from calibrant.evaluation import Comparison, Evaluation

# These do not depend on bins, so that another setting of those is not taken for other rows.
PLAIN = ("accuracy", "nll", "brier")


class Change(NamedTuple):
    """One figure before and after, in words."""

    name: str
    label: str
    before: str
    after: str
    difference: str
    interval: str
    winner: str  # "after", "before" or "neither"; empty where no comparison was given
    better: str
    sure: bool = True  # whether a winner holds up among so many figures


class Repair(NamedTuple):
    """What the section on the repair says."""

    paragraphs: list[str]
    changes: list[Change]
    headline: str
    tone: str
    level: str
    paired: bool
    metrics: int = 0  # how many the headline is corrected for


def repair(
    before: Evaluation,
    after: Evaluation,
    comparison: Comparison | None,
    explanation: str | None,
) -> Repair:
    """The section's words; an error where the three are not of the same rows."""
    check_pair(before, after, comparison)
    paragraphs = paragraphs_of(explanation)
    if comparison is None:
        changes = [
            Change(
                name,
                figure.label,
                words.figure_text(name, figure.value),
                words.figure_text(name, after.figures[name].value),
                words.difference_text(name, after.figures[name].value - figure.value),
                "",
                "",
                figure.better,
            )
            for name, figure in before.figures.items()
            if name in after.figures
        ]
        return Repair(paragraphs, changes, "", "", words.level(before.settings), False)
    changes = [
        Change(
            name,
            one.label,
            words.figure_text(name, one.a),
            words.figure_text(name, one.b),
            words.difference_text(name, one.difference),
            words.range_text(name, one.low, one.high),
            {"a": "before", "b": "after"}.get(one.winner, "neither"),
            one.better,
            name in comparison.shown,
        )
        for name, one in comparison.differences.items()
    ]
    # Of so many metrics one may differ by chance: the headline has what holds up among them.
    headline, tone = _headline([one for one in changes if one.sure])
    level = words.level(comparison.settings)
    return Repair(paragraphs, changes, headline, tone, level, True, comparison.num_tested)


def _headline(changes: list[Change]) -> tuple[str, str]:
    """The outcome in one sentence, and whether it is good, bad, both or nothing."""
    gained = [one.label for one in changes if one.winner == "after"]
    lost = [one.label for one in changes if one.winner == "before"]
    if gained and lost:
        return f"The repair helps and harms: better {_of(gained)}, worse {_of(lost)}.", "mixed"
    if gained:
        return f"The repair helps: better {_of(gained)}, worse in none.", "helps"
    if lost:
        return f"The repair harms: worse {_of(lost)}, better in none.", "harms"
    return "These rows show no difference between before and after.", "mixed"


def _of(labels: list[str]) -> str:
    # Names keep their capitals: Brier was a person, ECE is an abbreviation.
    kept = tuple(text for text in labels if text.startswith("Brier") or text[:2].isupper())
    small = [text if text in kept else text[:1].lower() + text[1:] for text in labels]
    return "in " + (small[0] if len(small) == 1 else f"{', '.join(small[:-1])} and {small[-1]}")


def paragraphs_of(text: str | None) -> list[str]:
    """The parts of a text between its empty lines."""
    return [part.strip() for part in (text or "").split("\n\n") if part.strip()]


def check_pair(
    before: Evaluation,
    after: Evaluation,
    comparison: Comparison | None,
    *,
    called: tuple[str, str] = ("before", "after"),
) -> None:
    """An error unless two evaluations are of the same rows, and the comparison is of them."""
    for what in ("num_rows", "num_classes"):
        one, two = getattr(before, what), getattr(after, what)
        if one != two:
            raise InputError(
                f"{' and '.join(called)} must be of the same rows: {before.name} has {one:,} "
                f"{what[4:]}, {after.name} has {two:,}"
            )
    if comparison is None:
        return
    for name in PLAIN:
        if name not in comparison.differences:
            continue
        one = comparison.differences[name]
        for side, found, told in (("a", before, one.a), ("b", after, one.b)):
            figure = found.figures.get(name)
            if figure is not None and not _same(figure.value, told):
                raise InputError(
                    f"the comparison is not of these two: its {side} has {name} {told:.4f}, "
                    f"{found.name} has {figure.value:.4f}; give compare({', '.join(called)})"
                )


def _same(one: float, two: float) -> bool:
    return one == two or math.isclose(one, two, rel_tol=1e-6) or (one != one and two != two)
