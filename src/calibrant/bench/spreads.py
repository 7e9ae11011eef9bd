"""How much figures of networks trained alike differ from seed to seed."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from calibrant.bench.figures import canonical
from calibrant.bench.statistics import FEWEST

if TYPE_CHECKING:
    import pandas as pd


def spreads_of(frame: pd.DataFrame) -> dict[str, dict[str, float]]:
    """By metric and data, the standard deviation over seeds, pooled over all else that differs.

    Of test rows before any calibrator, of settings with three seeds or more that were trained;
    a file of logits has splits, not seeds.
    """
    rows = frame[(frame["part"] == "test") & (frame["calibrator"] == "none")]
    alike = {text: _alike(str(text)) for text in rows["config"].unique()}
    rows = rows.assign(alike=rows["config"].map(alike), metric=rows["metric"].astype(str))
    rows = rows[rows["alike"].notna() & rows["value"].notna()]
    grouped = rows.groupby(["metric", "data", "alike"], observed=True)["value"]
    table = grouped.agg(["var", "count"]).reset_index()
    table = table[table["count"] >= FEWEST]
    found: dict[str, dict[str, float]] = {}
    for (metric, data), variance in table.groupby(["metric", "data"])["var"].mean().items():
        found.setdefault(canonical(metric), {})[str(data)] = float(variance) ** 0.5
    return found


def _alike(config: str) -> str | None:
    told = json.loads(config)
    if told.pop("logits", None) is not None:
        return None
    told.pop("seed")
    return json.dumps(told, sort_keys=True)
