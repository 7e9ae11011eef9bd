"""What further runs would cost, from what those made so far did."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from calibrant.bench.cells import Cell, Results
from calibrant.bench.spec import SECONDS
from calibrant.bench.statistics import mean_of

if TYPE_CHECKING:
    import pandas as pd

Array: TypeAlias = "np.ndarray[Any, np.dtype[np.float64]]"


def minutes_for(results: Results, places: Iterable[tuple[Cell, str]], seeds: int) -> float | None:
    """GPU minutes of ``seeds`` more runs of each (cell, method); None where nothing is known."""
    known = results.seconds
    found = [known.get(place) for place in dict.fromkeys(places)]
    if any(one is None for one in found):
        return None
    return seeds * sum(one for one in found if one is not None) / 60


def seconds_of_runs(results: Results) -> dict[tuple[Cell, str], float | None]:
    """Seconds a run alone on its machine: its own method's mean, else that of its cell.

    A cell without a run takes the seconds an epoch of the same network elsewhere in the store;
    runs on files of logits take no GPU.
    """
    rows = _timed(results.frame)
    took = dict(zip(rows["key"].astype(str), rows["value"], strict=True))
    runs: dict[tuple[Cell, str], list[float]] = {}
    for key, entries in results.plan.items():
        for method, cell, _ in entries if key in took else ():
            runs.setdefault((cell, method), []).append(float(took[key]))
    timed = {place: mean_of(seconds).mean for place, seconds in runs.items()}
    rates = _rates(rows)
    logits = any(spec.logits is not None for _, spec in results.suite.specs)
    found: dict[tuple[Cell, str], float | None] = {}
    for cell, method in results.planned:
        beside = [seconds for (other, _), seconds in timed.items() if other == cell]
        rate = rates.get(results.setting(cell, "model"))
        if logits:
            found[cell, method] = 0.0
        elif (cell, method) in timed:
            found[cell, method] = timed[cell, method]
        elif beside:
            found[cell, method] = mean_of(beside).mean
        elif rate is not None:
            found[cell, method] = rate * results.setting(cell, "epochs")
        else:
            found[cell, method] = None
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


def alone(ends: Array, seconds: Array, machines: Sequence[str]) -> Array:
    """The seconds each run would have taken alone, from when it ended and how long it took.

    While k runs are at work at once on machines of one name, each is taken to have a k-th of
    one: a run cost the time it took, by the share it had.
    """
    found = seconds.copy()
    for name in set(machines):
        here = [place for place, machine in enumerate(machines) if machine == name]
        begin, end = ends[here] - seconds[here], ends[here]
        moments, where = np.unique(np.concatenate([begin, end]), return_inverse=True)
        change = np.bincount(where, np.repeat([1.0, -1.0], len(here)), len(moments))
        at_work = np.maximum(np.cumsum(change)[:-1], 1.0)
        share = np.concatenate([[0.0], np.cumsum(np.diff(moments) / at_work)])
        found[here] = share[where[len(here) :]] - share[where[: len(here)]]
    return found


def _timed(frame: pd.DataFrame) -> pd.DataFrame:
    """A row a run, with the seconds it took: all of it, or where that was not kept, training."""
    import pandas as pd

    rows = frame[(frame["part"] == "run") & frame["metric"].isin((SECONDS, "train_seconds"))]
    whole = rows["metric"] == SECONDS
    rows = rows[whole | ~rows["key"].isin(rows.loc[whole, "key"])]
    written = pd.to_datetime(rows["written"], utc=True, format="ISO8601")
    ends = (written - pd.Timestamp(0, tz="UTC")) / pd.Timedelta(seconds=1)
    machines = rows["machine"].astype(str).tolist()
    return rows.assign(value=alone(ends.to_numpy(), rows["value"].to_numpy(), machines))


def _rates(rows: pd.DataFrame) -> dict[str, float]:
    """Seconds an epoch by network, over every timed run of the store."""
    seconds = rows["value"] / rows["epochs"].clip(lower=1)
    return {
        str(name): float(mean)
        for name, mean in seconds.groupby(rows["model"].astype(str)).mean().items()
    }
