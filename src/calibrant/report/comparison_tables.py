"""The report's comparisons: before and after a repair, and this model beside others."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from calibrant.core.errors import InputError
from calibrant.report import formatting

if TYPE_CHECKING:
    from calibrant.evaluation import Comparison, Evaluation

# These do not depend on the number of bins, which may differ between evaluations of the same rows.
UNBINNED = ("accuracy", "nll", "brier")
THIS, REPAIRED = "this model", "this model, repaired"
# The metrics of the table of models, with the words for a better and for a worse value.
OUTCOMES = {
    "accuracy": ("more accurate", "less accurate"),
    "ece": ("better calibrated", "worse calibrated"),
    "nll": ("lower NLL", "higher NLL"),
}
EVENT_OUTCOMES = {  # events are not named right or wrong
    "brier": ("lower Brier score", "higher Brier score"),
    "ece": OUTCOMES["ece"],
    "nll": OUTCOMES["nll"],
}


def _choose_outcomes(evaluation: Evaluation) -> dict[str, tuple[str, str]]:
    return EVENT_OUTCOMES if evaluation.view == "events" else OUTCOMES


class Change(NamedTuple):
    """One figure before and after the repair, as text."""

    name: str
    label: str
    before: str
    after: str
    difference: str
    interval: str
    winner: str  # "after", "before" or "neither"; empty without a comparison
    better: str
    sure: bool = True  # whether the winner stands after Holm's correction


class Repair(NamedTuple):
    """The content of the section on the repair."""

    paragraphs: list[str]
    changes: list[Change]
    headline: str
    tone: str
    level: str
    paired: bool
    metrics: int = 0  # how many metrics the headline is corrected for


class Alternatives(NamedTuple):
    """Evaluations of other models on the same rows, each with ``compare(this model, other)``."""

    models: Sequence[tuple[Evaluation, Comparison]]
    explanation: str = ""  # how the models differ; an empty line starts a new paragraph


class ModelRow(NamedTuple):
    """One model of the table, as text."""

    name: str
    skill: str  # accuracy; of events the Brier score
    ece: str
    interval: str
    nll: str
    outcome: str  # what is better and worse than in this model; empty for this model
    tone: str  # "after", "before" or "neither", as in the table of a repair


class ModelTable(NamedTuple):
    """The content of the section on other models."""

    paragraphs: list[str]
    headline: str
    tone: str
    rows: list[ModelRow]
    level: str


def compare_repair(
    before: Evaluation,
    after: Evaluation,
    comparison: Comparison | None,
    explanation: str | None,
) -> Repair:
    """Make the section on a repair; raise an error if the three belong to different rows."""
    _check_pair(before, after, comparison)
    paragraphs = _split_paragraphs(explanation)
    if comparison is None:
        changes = [
            Change(
                name,
                figure.label,
                formatting.page_text(name, figure.value),
                formatting.page_text(name, after.figures[name].value),
                formatting.page_difference(name, after.figures[name].value - figure.value),
                "",
                "",
                figure.better,
            )
            for name, figure in before.figures.items()
            if name in after.figures
        ]
        return Repair(paragraphs, changes, "", "", formatting.level(before.settings), False)
    changes = [
        Change(
            name,
            f"{difference.label} (corrected)" if difference.is_corrected else difference.label,
            formatting.page_text(name, difference.compared[0]),
            formatting.page_text(name, difference.compared[1]),
            formatting.page_difference(name, difference.difference),
            formatting.page_range(name, difference.low, difference.high),
            {"a": "before", "b": "after"}.get(difference.winner, "neither"),
            difference.better,
            name in comparison.shown,
        )
        for name, difference in comparison.differences.items()
    ]
    # With many metrics one may differ by chance: the headline counts those that stand.
    headline, tone = _summarize_repair([change for change in changes if change.sure])
    level = formatting.level(comparison.settings)
    return Repair(paragraphs, changes, headline, tone, level, True, comparison.num_tested)


def _summarize_repair(changes: list[Change]) -> tuple[str, str]:
    """Return the outcome in one sentence, and its tone."""
    gained = [change.label for change in changes if change.winner == "after"]
    lost = [change.label for change in changes if change.winner == "before"]
    better, worse = _join_labels(gained), _join_labels(lost)
    if gained and lost:
        return f"The repair helps and harms: better {better}, worse {worse}.", "mixed"
    if gained:
        return f"The repair helps: better {better}, worse in none.", "helps"
    if lost:
        return f"The repair harms: worse {worse}, better in none.", "harms"
    return "These rows show no difference between before and after.", "mixed"


def _join_labels(labels: list[str]) -> str:
    # Names keep their capitals: Brier was a person, ECE is an abbreviation.
    small = [
        text if text.startswith("Brier") or text[:2].isupper() else text[:1].lower() + text[1:]
        for text in labels
    ]
    return "in " + " and ".join(filter(None, [", ".join(small[:-1]), *small[-1:]]))


def compare_alternatives(
    evaluation: Evaluation,
    alternatives: Alternatives,
    repaired: tuple[Evaluation, Comparison] | None = None,
) -> ModelTable:
    """Make the section on other models; raise an error if rows or metrics do not match."""
    models = list(alternatives.models)
    if not models:
        raise InputError("no alternatives: give (evaluation, comparison) pairs, or leave it out")
    outcomes = _choose_outcomes(evaluation)
    for other, comparison in models:
        _check_pair(evaluation, other, comparison, called=("this model", "an alternative"))
        missing = [name for name in outcomes if name not in comparison.differences]
        if missing:
            raise InputError(f"the comparison with {other.name} lacks {', '.join(missing)}")
    entries: list[tuple[str, Evaluation, Comparison | None]] = [(THIS, evaluation, None)]
    if repaired is not None:
        entries.append((REPAIRED, *repaired))
    entries += [(other.name, other, comparison) for other, comparison in models]
    headline, tone = _summarize_alternatives([comparison for _, comparison in models], outcomes)
    best = min(entries, key=lambda entry: entry[1]["nll"].value)
    return ModelTable(
        [
            *_split_paragraphs(alternatives.explanation),
            f"The lowest NLL of the table is that of {best[0]}.",
        ],
        headline,
        tone,
        [_make_row(*entry) for entry in entries],
        formatting.level(evaluation.settings),
    )


def _make_row(name: str, evaluation: Evaluation, comparison: Comparison | None) -> ModelRow:
    outcomes = _choose_outcomes(evaluation)
    skill, ece, nll = (evaluation[metric] for metric in outcomes)
    interval = formatting.NOTHING
    if ece.low is not None and ece.high is not None:
        interval = formatting.page_interval("ece", ece.low, ece.high)
    outcome, tone = (
        ("", "neither") if comparison is None else _describe_outcome(comparison, outcomes)
    )
    return ModelRow(
        name,
        formatting.page_text(skill.name, skill.value),
        formatting.page_text("ece", ece.value),
        interval,
        formatting.number(nll.value),
        outcome,
        tone,
    )


def _describe_outcome(
    comparison: Comparison, outcomes: dict[str, tuple[str, str]]
) -> tuple[str, str]:
    """Return what differs from this model by more than chance, and whether that is good."""
    winners = {name: comparison[name].winner for name in outcomes}
    gained = [outcomes[name][0] for name, winner in winners.items() if winner == "b"]
    lost = [outcomes[name][1] for name, winner in winners.items() if winner == "a"]
    outcome = " but ".join(", ".join(part) for part in (gained, lost) if part)
    tone = "neither" if bool(gained) == bool(lost) else "after" if gained else "before"
    return outcome or "no difference shown", tone


def _summarize_alternatives(
    comparisons: list[Comparison], outcomes: dict[str, tuple[str, str]]
) -> tuple[str, str]:
    """Return how many are better calibrated and how many less accurate, and a tone."""
    count = len(comparisons)
    skill = next(iter(outcomes))
    worse = "less accurate" if skill == "accuracy" else "worse in Brier score"
    gained = sum(comparison["ece"].winner == "b" for comparison in comparisons)
    lost = sum(comparison[skill].winner == "a" for comparison in comparisons)
    tone = "helps" if gained and not lost else "harms" if lost and not gained else "mixed"
    return (
        f"{_count_models(gained, count)} better calibrated than this model; "
        f"{_count_models(lost, count).lower()} {worse}.",
        tone,
    )


def _count_models(some: int, count: int) -> str:
    if not some:
        return "None is shown to be" if count > 1 else "It is not shown to be"
    if some == count:
        return f"All {count} are" if count > 1 else "It is"
    return f"{some} of {count} {'is' if some == 1 else 'are'}"


def _split_paragraphs(text: str | None) -> list[str]:
    """Return the parts of a text between its empty lines."""
    return [part.strip() for part in (text or "").split("\n\n") if part.strip()]


def _check_pair(
    before: Evaluation,
    after: Evaluation,
    comparison: Comparison | None,
    *,
    called: tuple[str, str] = ("before", "after"),
) -> None:
    """Raise an error unless both evaluations hold the same rows and the comparison is theirs."""
    for field in ("num_rows", "num_classes"):
        a, b = getattr(before, field), getattr(after, field)
        if a != b:
            raise InputError(
                f"{' and '.join(called)} must hold the same rows: {before.name} has {a:,} "
                f"{field[4:]}, {after.name} has {b:,}"
            )
    if comparison is None:
        return
    for name in UNBINNED:
        if name not in comparison.differences:
            continue
        difference = comparison.differences[name]
        sides = (("a", before, difference.a), ("b", after, difference.b))
        for side, evaluation, value in sides:
            figure = evaluation.figures.get(name)
            if figure is not None and not _is_same(figure.value, value):
                raise InputError(
                    f"the comparison is not of these two: its {side} has {name} {value:.4f}, "
                    f"{evaluation.name} has {figure.value:.4f}; give compare({', '.join(called)})"
                )


def _is_same(a: float, b: float) -> bool:
    return a == b or math.isclose(a, b, rel_tol=1e-6) or (a != a and b != b)
