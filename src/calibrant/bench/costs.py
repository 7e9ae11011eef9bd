"""What further runs would cost, from what those made so far did."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from calibrant.bench.cells import Cell, Results
from calibrant.bench.statistics import mean_of

if TYPE_CHECKING:
    import pandas as pd


def minutes_for(results: Results, places: Iterable[tuple[Cell, str]], seeds: int) -> float | None:
    """GPU minutes of ``seeds`` more runs of each (cell, method); None where nothing is known."""
    known = results.seconds
    found = [known.get(place) for place in dict.fromkeys(places)]
    if any(one is None for one in found):
        return None
    return seeds * sum(one for one in found if one is not None) / 60


def seconds_of_runs(results: Results) -> dict[tuple[Cell, str], float | None]:
    """Training seconds a run: its own method's mean, else that of others in its cell.

    A cell without a run takes the seconds an epoch of the same network elsewhere in the store;
    runs on files of logits take no GPU.
    """
    timed = {
        place: mean_of(list(runs.values())).mean
        for place, runs in results.values("train_seconds", part="run").items()
    }
    rates = _rates(results.frame)
    logits = any(spec.logits is not None for _, spec in results.suite.specs)
    found: dict[tuple[Cell, str], float | None] = {}
    for cell, method in results.planned:
        beside = [seconds for (other, _), seconds in timed.items() if other == cell]
        rate = rates.get(results.setting(cell, "model"))
        if (cell, method) in timed:
            found[cell, method] = timed[cell, method]
        elif beside:
            found[cell, method] = mean_of(beside).mean
        elif rate is not None:
            found[cell, method] = rate * results.setting(cell, "epochs")
        else:
            found[cell, method] = 0.0 if logits else None
    return found


def minutes_missing(results: Results, places: Iterable[tuple[Cell, str]]) -> float | None:
    """GPU minutes of all the runs the suite plans at these (cell, method).

    Those that were made, but not measured in this way, are counted as well: what they left
    behind is seldom enough to measure more.
    """
    known = results.seconds
    total = 0.0
    for place in dict.fromkeys(places):
        seconds = known.get(place)
        if seconds is None:
            return None
        total += results.planned[place] * seconds
    return total / 60


def _rates(frame: pd.DataFrame) -> dict[str, float]:
    """Seconds an epoch by network, over every timed run of the store."""
    rows = frame[(frame["metric"] == "train_seconds") & (frame["part"] == "run")]
    seconds = rows["value"] / rows["epochs"].clip(lower=1)
    return {
        str(name): float(mean)
        for name, mean in seconds.groupby(rows["model"].astype(str)).mean().items()
    }
