"""Other models beside the one reported on: the table that says which is better in what."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from calibrant.functional.errors import InputError
from calibrant.report import words
from calibrant.report.repair import check_pair, paragraphs_of

if TYPE_CHECKING:
    from calibrant.evaluation import Comparison, Evaluation

THIS, REPAIRED = "this model", "this model, repaired"
# What the table shows, and how a difference is said where it is in the model's favour or not.
SHOWN = {
    "accuracy": ("more accurate", "less accurate"),
    "ece": ("better calibrated", "worse calibrated"),
    "nll": ("lower NLL", "higher NLL"),
}


class Alternatives(NamedTuple):
    """Evaluations of other models on the same rows, each with ``compare(this one's, its)``."""

    models: Sequence[tuple[Evaluation, Comparison]]
    explanation: str = ""  # in what they differ, in words


class Row(NamedTuple):
    """One model, in words."""

    name: str
    accuracy: str
    ece: str
    interval: str
    nll: str
    outcome: str  # what is better and worse than in this model; empty for itself
    tone: str  # "after", "before" or "neither", as in the table of a repair


class Table(NamedTuple):
    """What the section says."""

    paragraphs: list[str]
    headline: str
    tone: str
    rows: list[Row]
    level: str


def tabulate(
    evaluation: Evaluation,
    given: Alternatives,
    repaired: tuple[Evaluation, Comparison] | None = None,
) -> Table:
    """The section's words; an error where not all are of the same rows and figures."""
    models = list(given.models)
    if not models:
        raise InputError("no alternatives: give (evaluation, comparison) pairs, or leave it out")
    for found, comparison in models:
        check_pair(evaluation, found, comparison, called=("this model", "an alternative"))
        missing = [name for name in SHOWN if name not in comparison.differences]
        if missing:
            raise InputError(f"the comparison with {found.name} lacks {', '.join(missing)}")
    repairs = [] if repaired is None else [repaired]
    everyone: list[tuple[str, Evaluation, Comparison | None]] = [(THIS, evaluation, None)]
    everyone += [(REPAIRED, found, comparison) for found, comparison in repairs]
    everyone += [(found.name, found, comparison) for found, comparison in models]
    headline, tone = _headline([comparison for _, comparison in models])
    best = min(everyone, key=lambda one: one[1]["nll"].value)
    lowest = f"The lowest NLL of the table is that of {best[0]}."
    return Table(
        [*paragraphs_of(given.explanation), lowest],
        headline,
        tone,
        [_row(*one) for one in everyone],
        words.level(evaluation.settings),
    )


def _row(name: str, found: Evaluation, comparison: Comparison | None) -> Row:
    accuracy, ece, nll = (found[one] for one in SHOWN)
    interval = words.NOTHING
    if ece.low is not None and ece.high is not None:
        interval = f"{words.number(ece.low)} to {words.number(ece.high)}"
    outcome, tone = ("", "neither") if comparison is None else _outcome(comparison)
    return Row(
        name,
        words.figure_text("accuracy", accuracy.value),
        words.number(ece.value),
        interval,
        words.number(nll.value),
        outcome,
        tone,
    )


def _outcome(comparison: Comparison) -> tuple[str, str]:
    """What differs from this model in more than chance, and whether that is good."""
    winners = {name: comparison[name].winner for name in SHOWN}
    gained = [SHOWN[name][0] for name, winner in winners.items() if winner == "b"]
    lost = [SHOWN[name][1] for name, winner in winners.items() if winner == "a"]
    told = " but ".join(", ".join(part) for part in (gained, lost) if part)
    tone = "neither" if bool(gained) == bool(lost) else "after" if gained else "before"
    return told or "no difference shown", tone


def _headline(comparisons: list[Comparison]) -> tuple[str, str]:
    """How many are better calibrated and how many less accurate, in one sentence."""
    count = len(comparisons)
    gained = sum(one["ece"].winner == "b" for one in comparisons)
    lost = sum(one["accuracy"].winner == "a" for one in comparisons)
    tone = "helps" if gained and not lost else "harms" if lost and not gained else "mixed"
    return (
        f"{_many(gained, count)} better calibrated than this model; "
        f"{_many(lost, count).lower()} less accurate.",
        tone,
    )


def _many(some: int, count: int) -> str:
    if not some:
        return "None is shown to be" if count > 1 else "It is not shown to be"
    if some == count:
        return f"All {count} are" if count > 1 else "It is"
    return f"{some} of {count} {'is' if some == 1 else 'are'}"
