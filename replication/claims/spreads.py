"""Estimate how much figures vary over seeds."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from calibrant.bench import canonical_name, result_settings
from calibrant.bench.tables.statistics import FEWEST

if TYPE_CHECKING:
    import pandas as pd


def estimate_spreads(frame: pd.DataFrame) -> dict[str, dict[str, float]]:
    """Estimate, by metric and data, the standard deviation over seeds of the median setting.

    Use test rows before calibration, from trained settings with at least three seeds; a file of
    logits has splits, not seeds. Correct the downward bias of the median of a variance with few
    seeds. A mean would follow the one method that does not converge.
    """
    from scipy.stats import chi2

    rows = frame[(frame["part"] == "test") & (frame["calibrator"] == "none")]
    alike = {text: _describe_setting(str(text)) for text in rows["config"].unique()}
    rows = rows.assign(alike=rows["config"].map(alike), metric=rows["metric"].astype(str))
    rows = rows[rows["alike"].notna() & rows["value"].notna()]
    grouped = rows.groupby(["metric", "data", "alike"], observed=True)["value"]
    table = grouped.agg(["var", "count"]).reset_index()
    table = table[table["count"] >= FEWEST]
    spreads: dict[str, dict[str, float]] = {}
    free = table["count"] - 1
    table = table.assign(var=table["var"] * free / chi2.median(free))
    for (metric, data), variance in table.groupby(["metric", "data"])["var"].median().items():
        spreads.setdefault(canonical_name(metric), {})[str(data)] = float(variance) ** 0.5
    return spreads


def _describe_setting(config: str) -> str | None:
    settings = json.loads(config)
    if settings.pop("logits", None) is not None:
        return None
    kept = {name: value for name, value in result_settings(settings).items() if name != "seed"}
    return json.dumps(kept, sort_keys=True)
