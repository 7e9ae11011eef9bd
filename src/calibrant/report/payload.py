"""The numbers the page draws, as one small JSON document.

Only what the page shows goes in, rounded to five significant digits, so that a report on a
thousand classes stays well under a megabyte. NaN becomes null; the infinities, which JSON
lacks, become the strings "inf" and "-inf".
"""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any

import numpy as np

from calibrant.report import words

if TYPE_CHECKING:
    import pandas as pd

    from calibrant.evaluation import Evaluation

BIN_COLUMNS = (
    "low",
    "high",
    "count",
    "confidence",
    "accuracy",
    "accuracy_low",
    "accuracy_high",
    "band_low",
    "band_high",
)
CLASS_COLUMNS = (
    "index",
    "name",
    "count",
    "predicted",
    "recall",
    "precision",
    "mean_probability",
    "frequency",
    "gap",
    "nll",
    "ece",
)
# With more classes than this, only the worst calibrated carry a diagram of their own.
MOST_CLASS_DIAGRAMS = 2000


def payload(
    evaluation: Evaluation,
    *,
    after: Evaluation | None = None,
    temperature: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """What the scripts of the page need, as plain lists, numbers and strings."""
    return {
        "name": evaluation.name,
        "rows": int(evaluation.num_rows),
        "level": words.level(evaluation.settings),
        "z": _rounded(words.deviations(evaluation.settings)),
        "tail": _rounded((1 - words.level_share(evaluation.settings)) / 2),
        "binColumns": BIN_COLUMNS,
        "bins": {
            "width": _records(evaluation.bins, BIN_COLUMNS),
            "mass": _records(evaluation.mass_bins, BIN_COLUMNS),
        },
        "after": None if after is None else _records(after.bins, BIN_COLUMNS),
        "temperature": temperature,
        "classColumns": CLASS_COLUMNS,
        "classes": _records(evaluation.classes, CLASS_COLUMNS),
        "classBins": _class_bins(evaluation),
        "riskCoverage": _records(evaluation.risk_coverage, ("coverage", "risk", "threshold")),
    }


def embed(document: dict[str, Any]) -> str:
    """JSON that is safe inside a ``<script>`` element, whatever the strings in it hold."""
    text = json.dumps(document, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    # These appear only inside strings of JSON, where the escapes mean the same characters.
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    # A lone surrogate in a name cannot be written as UTF-8.
    return text.encode("utf-8", "replace").decode("utf-8")


def _records(table: pd.DataFrame, columns: tuple[str, ...]) -> list[list[Any]]:
    cells = [[_cell(value) for value in table[column].tolist()] for column in columns]
    return [list(row) for row in zip(*cells, strict=True)]


def _cell(value: object) -> object:
    if isinstance(value, str | bool):
        return value
    if isinstance(value, int | np.integer):
        return int(value)
    if value is None:
        return None
    return _rounded(float(value))  # type: ignore[arg-type]


def _rounded(value: float) -> float | int | str | None:
    if math.isnan(value):
        return None
    if math.isinf(value):
        return "inf" if value > 0 else "-inf"
    short = float(f"{value:.5g}")
    return int(short) if short.is_integer() else short


def _class_bins(evaluation: Evaluation) -> dict[str, list[list[Any]]]:
    """For each class index, its non-empty bins: bin, count, mean probability, frequency."""
    table = np.asarray(evaluation.class_bins, dtype=float)
    kept = list(range(len(table)))
    if len(table) > MOST_CLASS_DIAGRAMS:
        error = np.nan_to_num(evaluation.classes["ece"].to_numpy(float), nan=-1.0)
        kept = sorted(np.argsort(-error, kind="stable")[:MOST_CLASS_DIAGRAMS].tolist())
    return {
        str(index): [
            [int(place), int(count), _rounded(float(mean)), _rounded(float(frequency))]
            for place, (count, mean, frequency) in enumerate(table[index])
            if count > 0
        ]
        for index in kept
    }
