"""What further runs would cost, from what those made so far did."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from calibrant.bench import Cell, Results, run_seconds
from calibrant.bench.tables.statistics import mean_of
from replication.claims.workload import SETTINGS, images_of, work_of

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Cost:
    """Seconds of a GPU; ``estimated`` where they are by the work of other runs."""

    seconds: float
    estimated: bool = False

    @property
    def minutes(self) -> float:
        """The same in minutes."""
        return self.seconds / 60

    def times(self, factor: float) -> Cost:
        """So many times that."""
        return Cost(factor * self.seconds, self.estimated)

    def __add__(self, other: Cost) -> Cost:
        """Both together."""
        return Cost(self.seconds + other.seconds, self.estimated or other.estimated)


def cost_of_seeds(
    results: Results, places: Iterable[tuple[Cell, str]], seeds: float
) -> Cost | None:
    """Of ``seeds`` more runs of each (cell, method); None where one is not known."""
    return _total((estimate_costs(results).get(place), seeds) for place in dict.fromkeys(places))


def cost_of_plan(results: Results, places: Iterable[tuple[Cell, str]]) -> Cost | None:
    """Of all the runs the suite plans at these (cell, method); None where one is not known.

    Those that were made, but not measured in this way, are counted as well: what they left
    behind is seldom enough to measure more.
    """
    return _total(
        (estimate_costs(results).get(place), results.planned[place])
        for place in dict.fromkeys(places)
    )


def _total(runs: Iterable[tuple[Cost | None, float]]) -> Cost | None:
    total = Cost(0.0)
    for one, count in runs:
        if one is None:
            return None
        total += one.times(count)
    return total


@lru_cache(maxsize=64)
def estimate_costs(results: Results) -> dict[tuple[Cell, str], Cost | None]:
    """A run alone on its machine: its own method's mean, else that of its cell.

    A cell without a run takes the seconds an epoch of the same network elsewhere in the store,
    by the number of images, or of other networks, by their work; runs on files of logits take
    no GPU.
    """
    rows = run_seconds(results.frame)
    took = dict(zip(rows["key"].astype(str), rows["value"], strict=True))
    runs: dict[tuple[Cell, str], list[float]] = {}
    for key, entries in results.plan.items():
        for method, cell, _ in entries if key in took else ():
            runs.setdefault((cell, method), []).append(float(took[key]))
    means = {place: mean_of(seconds).mean for place, seconds in runs.items()}
    epochs = _epochs(rows)
    logits = any(spec.logits is not None for _, spec in results.suite.specs)
    of_cells: dict[Cell, Cost | None] = {}
    for cell in results.cells:
        beside = [seconds for (other, _), seconds in means.items() if other == cell]
        if logits:
            of_cells[cell] = Cost(0.0)
        elif beside:
            of_cells[cell] = Cost(mean_of(beside).mean)
        else:
            one = _epoch({name: results.setting(cell, name) for name in SETTINGS}, epochs)
            of_cells[cell] = None if one is None else one.times(results.setting(cell, "epochs"))
    return {
        (cell, method): Cost(means[cell, method])
        if (cell, method) in means and not logits
        else of_cells[cell]
        for cell, method in results.planned
    }


def _epochs(rows: pd.DataFrame) -> pd.DataFrame:
    """Of every timed training of the store, what an epoch took and how much work it was."""
    told = {text: json.loads(text) for text in rows["config"].unique()}
    trained = [text for text, one in told.items() if one.get("logits") is None]
    rows = rows[rows["config"].isin(trained)]
    images = {text: images_of(told[text]) for text in trained}
    work = {text: work_of(told[text]) for text in trained}
    return rows.assign(
        seconds=rows["value"] / rows["epochs"].clip(lower=1),
        images=rows["config"].map(images).astype("float64"),
        work=rows["config"].map(work).astype("float64"),
    )[["data", "model", "seconds", "images", "work"]]


def _epoch(settings: Mapping[str, Any], epochs: pd.DataFrame) -> Cost | None:
    """An epoch of a network, as it took elsewhere, or by the work of others.

    That of others on the same data where there are some, else on any. All of a run's seconds
    are taken to go with its images and its work, those of measuring too.
    """
    own = epochs[epochs["model"] == settings["model"]]
    if len(own):
        here, there = images_of(settings), float(own["images"].mean(skipna=False))
        share = here / there if here is not None and there > 0 else 1.0
        return Cost(float(own["seconds"].mean()) * share, estimated=share != 1.0)
    work, others = work_of(settings), epochs[epochs["work"].notna()]
    near = others[others["data"] == settings["data"]]
    others = near if len(near) else others
    if work is None or others.empty:
        return None
    share = work / float(others["work"].mean())
    return Cost(float(others["seconds"].mean()) * share, estimated=True)
