"""The words for what is judged: the predicted class of a row, or an event."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from calibrant.evaluation.groups.value import OVER, UNDER

if TYPE_CHECKING:
    from calibrant.evaluation import Evaluation


class Words(NamedTuple):
    """What the judged probability and its outcome are called."""

    claimed: str  # "confidence" or "probability"
    happened: str  # "accuracy" or "frequency of fraud"
    short: str  # "accuracy" or "frequency"
    over: str  # what a probability above the outcome is called
    under: str
    event: str | None = None


CLASSES = Words("confidence", "accuracy", "accuracy", OVER, UNDER)


def find_words(evaluation: Evaluation) -> Words:
    """Return the words for the predicted class, or for the event that is judged."""
    if evaluation.view != "events":
        return CLASSES
    event = "a label" if evaluation.task == "multilabel" else evaluation.event or "the event"
    return Words("probability", f"frequency of {event}", "frequency", "too high", "too low", event)
