"""The pass over the predictions: with a bar if asked for, and a look at what they are."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext

from calibrant.functional.blocks import Array, warn_of_probabilities
from calibrant.predictions import Predictions

# Who reads or makes such logits is warned there and then, in other words.
LIKE_PROBABILITIES = (
    "rows of these logits lie in [0, 1] and sum to one: if they are probabilities, every "
    "figure here is wrong; give them as probabilities (from_probs, --probs, or 'probs' as "
    "their name in the file)"
)


def batches(predictions: Predictions, progress: bool) -> Iterator[tuple[Array, Array | None]]:
    """Scores and labels, with a bar on the terminal if asked for."""
    if not progress:
        yield from predictions.batches()
        return
    from rich.console import Console
    from rich.progress import Progress

    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("reading predictions", total=len(predictions))
        for preds, target in predictions.batches():
            yield preds, target
            bar.advance(task, len(preds))


def status(message: str, progress: bool) -> AbstractContextManager[object]:
    """A line on the terminal while something long goes on, if asked for."""
    if not progress:
        return nullcontext()
    from rich.console import Console

    console = Console(stderr=True)
    return console.status(message) if console.is_terminal else nullcontext()


def doubts(predictions: Predictions) -> tuple[str, ...]:
    """What is suspect about the predictions, in words: logits that look like probabilities.

    Who made or read the predictions was warned then; whoever gets the result was not.
    """
    if not predictions.is_logits:
        return ()
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        some = next(iter(predictions.batches()))[0] if predictions.is_lazy else predictions.array
        seen.clear()
        warn_of_probabilities(some, stacklevel=2)
    return (LIKE_PROBABILITIES,) if seen else ()
