"""Estimate the GPU time of further runs from the runs made so far."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from calibrant.bench import Cell, Results, run_seconds
from calibrant.bench.tables.statistics import mean_of
from replication.claims.workload import SETTINGS, count_images, estimate_work

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Cost:
    """Hold GPU seconds; ``estimated`` if they follow from the work of other networks."""

    seconds: float
    estimated: bool = False

    @property
    def minutes(self) -> float:
        """Convert to minutes."""
        return self.seconds / 60

    def scale(self, factor: float) -> Cost:
        """Multiply the cost by a factor."""
        return Cost(factor * self.seconds, self.estimated)

    def __add__(self, other: Cost) -> Cost:
        """Add two costs."""
        return Cost(self.seconds + other.seconds, self.estimated or other.estimated)


def estimate_seeds_cost(
    results: Results, places: Iterable[tuple[Cell, str]], seeds: float
) -> Cost | None:
    """Estimate the cost of ``seeds`` more runs at each place; None if a cost is unknown."""
    return _sum_costs(
        (estimate_costs(results).get(place), seeds) for place in dict.fromkeys(places)
    )


def estimate_plan_cost(results: Results, places: Iterable[tuple[Cell, str]]) -> Cost | None:
    """Estimate the cost of all runs planned at these places; None if a cost is unknown.

    Count finished runs that lack this measurement as well: the files they left are seldom enough
    to measure more.
    """
    return _sum_costs(
        (estimate_costs(results).get(place), results.planned[place])
        for place in dict.fromkeys(places)
    )


def _sum_costs(runs: Iterable[tuple[Cost | None, float]]) -> Cost | None:
    total = Cost(0.0)
    for cost, count in runs:
        if cost is None:
            return None
        total += cost.scale(count)
    return total


@lru_cache(maxsize=64)
def estimate_costs(results: Results) -> dict[tuple[Cell, str], Cost | None]:
    """Estimate the cost of one run at each place, alone on its machine.

    Use the mean of the method in its cell, else the mean of the cell. For a cell without runs,
    use the seconds per epoch of the same network elsewhere in the store, scaled by the number of
    images, or of other networks, scaled by their work. Runs on files of logits need no GPU.
    """
    rows = run_seconds(results.frame)
    took = dict(zip(rows["key"].astype(str), rows["value"], strict=True))
    runs: dict[tuple[Cell, str], list[float]] = {}
    for key, entries in results.plan.items():
        for method, cell, _ in entries if key in took else ():
            runs.setdefault((cell, method), []).append(float(took[key]))
    means = {place: mean_of(seconds).mean for place, seconds in runs.items()}
    epochs = _list_epochs(rows)
    logits = any(spec.logits is not None for _, spec in results.suite.specs)
    of_cells: dict[Cell, Cost | None] = {}
    for cell in results.cells:
        beside = [seconds for (other, _), seconds in means.items() if other == cell]
        if logits:
            of_cells[cell] = Cost(0.0)
        elif beside:
            of_cells[cell] = Cost(mean_of(beside).mean)
        else:
            epoch = _estimate_epoch(
                {name: results.setting(cell, name) for name in SETTINGS}, epochs
            )
            of_cells[cell] = None if epoch is None else epoch.scale(results.setting(cell, "epochs"))
    return {
        (cell, method): Cost(means[cell, method])
        if (cell, method) in means and not logits
        else of_cells[cell]
        for cell, method in results.planned
    }


def _list_epochs(rows: pd.DataFrame) -> pd.DataFrame:
    """List the seconds and the work per epoch of every timed training in the store."""
    configs = {text: json.loads(text) for text in rows["config"].unique()}
    trained = [text for text, config in configs.items() if config.get("logits") is None]
    rows = rows[rows["config"].isin(trained)]
    images = {text: count_images(configs[text]) for text in trained}
    work = {text: estimate_work(configs[text]) for text in trained}
    return rows.assign(
        seconds=rows["value"] / rows["epochs"].clip(lower=1),
        images=rows["config"].map(images).astype("float64"),
        work=rows["config"].map(work).astype("float64"),
    )[["data", "model", "seconds", "images", "work"]]


def _estimate_epoch(settings: Mapping[str, Any], epochs: pd.DataFrame) -> Cost | None:
    """Estimate an epoch of a network from its runs elsewhere, or from other networks' work.

    Prefer other networks on the same data. Assume that all seconds of a run, including those
    spent on measuring, are proportional to its images and its work.
    """
    own = epochs[epochs["model"] == settings["model"]]
    if len(own):
        here, trained_images = count_images(settings), float(own["images"].mean(skipna=False))
        share = here / trained_images if here is not None and trained_images > 0 else 1.0
        return Cost(float(own["seconds"].mean()) * share, estimated=share != 1.0)
    work, others = estimate_work(settings), epochs[epochs["work"].notna()]
    near = others[others["data"] == settings["data"]]
    others = near if len(near) else others
    if work is None or others.empty:
        return None
    share = work / float(others["work"].mean())
    return Cost(float(others["seconds"].mean()) * share, estimated=True)
