"""How much figures of networks trained alike differ from seed to seed."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from calibrant.bench import canonical_name, result_settings
from calibrant.bench.tables.statistics import FEWEST

if TYPE_CHECKING:
    import pandas as pd


def spreads_of(frame: pd.DataFrame) -> dict[str, dict[str, float]]:
    """By metric and data, the standard deviation over seeds of the median setting.

    Of test rows before any calibrator, of settings with three seeds or more that were trained;
    a file of logits has splits, not seeds. The median of a variance of few is below it, which
    is put right; a mean would be that of the one method that does not settle.
    """
    from scipy.stats import chi2

    rows = frame[(frame["part"] == "test") & (frame["calibrator"] == "none")]
    alike = {text: _alike(str(text)) for text in rows["config"].unique()}
    rows = rows.assign(alike=rows["config"].map(alike), metric=rows["metric"].astype(str))
    rows = rows[rows["alike"].notna() & rows["value"].notna()]
    grouped = rows.groupby(["metric", "data", "alike"], observed=True)["value"]
    table = grouped.agg(["var", "count"]).reset_index()
    table = table[table["count"] >= FEWEST]
    found: dict[str, dict[str, float]] = {}
    free = table["count"] - 1
    table = table.assign(var=table["var"] * free / chi2.median(free))
    for (metric, data), variance in table.groupby(["metric", "data"])["var"].median().items():
        found.setdefault(canonical_name(metric), {})[str(data)] = float(variance) ** 0.5
    return found


def _alike(config: str) -> str | None:
    told = json.loads(config)
    if told.pop("logits", None) is not None:
        return None
    kept = {name: value for name, value in result_settings(told).items() if name != "seed"}
    return json.dumps(kept, sort_keys=True)
