"""Test figures of a written choice of a combination, beside plain cross-entropy."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from calibrant.bench.calibrator_text import spell
from calibrant.bench.select.choices import LEARNED, open_test_rows, read_choice
from calibrant.bench.select.combine import FIGURES
from calibrant.bench.store.store import Store
from calibrant.bench.tables.statistics import mean_of

if TYPE_CHECKING:
    import pandas as pd

BY_CHANCE = "chance_ece"
Rival = Callable[[Mapping[str, Any], str], "str | None"]
CHOSEN, PLAIN = "chosen", "cross_entropy"
# Other choices: the row's name, the key in the file, and words.
OTHERS = (
    ("chosen by NLL", "by_nll", "Chosen by NLL"),
    ("chosen, few confidences", "few", "With few confidences"),
)
OURS = (CHOSEN, *(who for who, _, _ in OTHERS), PLAIN)  # other rows are rivals


def report_choice(path: Path, store: Store, rival_of: Rival | None = None) -> pd.DataFrame:
    """Compute test figures of a written choice, means over seeds and their standard errors.

    Rows are the chosen combination, the choice by NLL, the choice with few confidences if there
    is one, plain cross-entropy, and rivals, all with the same protocol and seeds. Rivals with less
    than half of cross-entropy's validation accuracy have not learned, and are left out.

    Args:
        path: the file of the choice.
        store: the results.
        rival_of: given a candidate's settings and calibrator, returns its name if it is a rival,
            else None. Default: None, there are no rivals.
    """
    import pandas as pd

    choice = read_choice(path)
    rows = open_test_rows(path, store)
    assert choice is not None
    rows = rows[(rows["part"] == "test") & rows["metric"].isin((*FIGURES, BY_CHANCE))]
    seeds = sorted(int(seed) for seed in choice["plain"]["keys"])
    others = [{"who": who, **choice[key]} for who, key, _ in OTHERS if choice.get(key)]
    entries = [{"who": CHOSEN, **choice["chosen"]}, *others, {"who": PLAIN, **choice["plain"]}]
    enough = LEARNED * choice["plain"]["means"]["accuracy"]
    if rival_of is not None:
        entries += [
            {"who": rival, **candidate}
            for candidate in choice["candidates"]
            if (rival := rival_of(candidate["settings"], candidate["calibrator"])) is not None
            and candidate["means"]["accuracy"] >= enough
        ]
    lines = []
    for entry in entries:
        keys = {int(seed): key for seed, key in entry["keys"].items()}
        if not set(seeds) <= keys.keys():
            continue
        mine = rows[
            rows["key"].isin([keys[seed] for seed in seeds])
            & (rows["calibrator"] == entry["calibrator"])
        ]
        line: dict[str, Any] = {
            "who": entry["who"],
            "loss": entry["settings"]["loss"],
            "recipe": spell(entry["settings"]["recipe"], entry["settings"]["recipe_options"] or {}),
            "average": entry["settings"]["average"],
            "calibrator": entry["calibrator"],
            "seeds": len(seeds),
        }
        for metric in FIGURES:
            value = mean_of(mine.loc[mine["metric"] == metric, "value"].tolist())
            error = math.nan if value.error is None else value.error
            line |= {metric: value.mean, f"{metric}_error": error}
        chance = mine.loc[mine["metric"] == BY_CHANCE, "value"]  # missing in older runs
        line[BY_CHANCE] = mean_of(chance.tolist()).mean if len(chance) == len(seeds) else math.nan
        lines.append(line)
    return pd.DataFrame(lines)


def describe_choice(rows: pd.DataFrame, rivals: str = "") -> str:
    """Describe the choice, and whether its test ECE is below that of every rival.

    Without rivals it is compared with plain cross-entropy. The seeds tell two apart if the
    difference exceeds two standard errors.

    Args:
        rows: the result of `report_choice`.
        rivals: where rivals come from, as in ``the five papers``. Default: "", no rivals.
    """
    chosen, others = rows.iloc[0], rows[~rows["who"].isin(OURS)]
    if rivals and others.empty:
        return f"No method of {rivals} was run under this protocol to compare with."
    if not rivals:
        others = rows[rows["who"] == PLAIN]
    best = others.iloc[int(others["ece"].argmin())]
    where = "below" if chosen["ece"] < best["ece"] else "not below"
    text = f"Chosen: {_describe_row(chosen)}. The ECE of the choice, {chosen['ece']:.2%}, is "
    text += f"{where} that "
    if rivals:
        text += (
            f"of every method of {rivals} run here, of which {best['who']}'s {_describe_row(best)} "
        )
        text += f"has the lowest, {best['ece']:.2%}"
    else:
        text += f"of plain cross-entropy, {best['ece']:.2%}"
    error = math.hypot(chosen["ece_error"], best["ece_error"])
    if math.isfinite(error):
        apart = abs(chosen["ece"] - best["ece"]) > 2 * error
        text += "; the seeds tell the two apart" if apart else "; the seeds do not tell them apart"
    text += "."
    if math.isfinite(chance := chosen.get(BY_CHANCE, math.nan)):
        text += f" Perfectly calibrated it would show {chance:.2%} on average, by chance."
    for who, _, words in OTHERS:
        for _, row in rows[rows["who"] == who].iterrows():
            text += f" {words}, {_describe_row(row)}: {row['ece']:.2%}"
            chance = row.get(BY_CHANCE, math.nan)
            text += f", by chance {chance:.2%}." if math.isfinite(chance) else "."
    return text


def _describe_row(row: pd.Series[Any]) -> str:
    """Describe a way of training and a calibrator."""
    usual = [row[name] for name in ("recipe", "average") if row[name] not in ("standard", "none")]
    then = [] if row["calibrator"] == "none" else [f"then {row['calibrator']}"]
    return ", ".join([row["loss"], *usual, *then])
