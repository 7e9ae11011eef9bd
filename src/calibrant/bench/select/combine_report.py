"""What a written choice of a combination comes to on test rows, beside plain cross-entropy."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from calibrant.bench.select.choices import LEARNED, open_test_rows, read_choice
from calibrant.bench.select.combine import FIGURES
from calibrant.bench.store.store import Store
from calibrant.bench.tables.statistics import mean_of
from calibrant.bench.texts import spell

if TYPE_CHECKING:
    import pandas as pd

BY_CHANCE = "chance_ece"
Rival = Callable[[Mapping[str, Any], str], "str | None"]
CHOSEN, PLAIN = "chosen", "cross_entropy"
# Other choices: the row's name, the key of the file, words for it.
OTHERS = (
    ("chosen by NLL", "by_nll", "Chosen by NLL"),
    ("chosen, few confidences", "few", "With few confidences"),
)
OURS = (CHOSEN, *(who for who, _, _ in OTHERS), PLAIN)  # the other rows are rivals


def report_choice(path: Path, store: Store, rival_of: Rival | None = None) -> pd.DataFrame:
    """Compute test figures of a written choice, means over seeds and their standard errors.

    A row each: the chosen combination, that chosen by NLL, that of few confidences where there
    are any, plain cross-entropy, and rivals, of the same protocol and seeds. Rivals that have not
    learned, with less than half of cross-entropy's validation accuracy, are left out.

    Args:
        path: the file of the choice.
        store: the results.
        rival_of: names a candidate, given its settings and its calibrator, that is to be
            compared with; None for others. Default: None, there are no rivals.
    """
    import pandas as pd

    choice = read_choice(path)
    rows = open_test_rows(path, store)
    assert choice is not None
    rows = rows[(rows["part"] == "test") & rows["metric"].isin((*FIGURES, BY_CHANCE))]
    seeds = sorted(int(seed) for seed in choice["plain"]["keys"])
    others = [{"who": who, **choice[key]} for who, key, _ in OTHERS if choice.get(key)]
    told = [{"who": CHOSEN, **choice["chosen"]}, *others, {"who": PLAIN, **choice["plain"]}]
    enough = LEARNED * choice["plain"]["means"]["accuracy"]
    if rival_of is not None:
        told += [
            {"who": rival, **one}
            for one in choice["candidates"]
            if (rival := rival_of(one["settings"], one["calibrator"])) is not None
            and one["means"]["accuracy"] >= enough
        ]
    found = []
    for one in told:
        keys = {int(seed): key for seed, key in one["keys"].items()}
        if not set(seeds) <= keys.keys():
            continue
        mine = rows[
            rows["key"].isin([keys[seed] for seed in seeds])
            & (rows["calibrator"] == one["calibrator"])
        ]
        line: dict[str, Any] = {
            "who": one["who"],
            "loss": one["settings"]["loss"],
            "recipe": spell(one["settings"]["recipe"], one["settings"]["recipe_options"] or {}),
            "average": one["settings"]["average"],
            "calibrator": one["calibrator"],
            "seeds": len(seeds),
        }
        for metric in FIGURES:
            value = mean_of(mine.loc[mine["metric"] == metric, "value"].tolist())
            error = math.nan if value.error is None else value.error
            line |= {metric: value.mean, f"{metric}_error": error}
        chance = mine.loc[mine["metric"] == BY_CHANCE, "value"]  # which older runs do not have
        line[BY_CHANCE] = mean_of(chance.tolist()).mean if len(chance) == len(seeds) else math.nan
        found.append(line)
    return pd.DataFrame(found)


def describe_choice(found: pd.DataFrame, rivals: str = "") -> str:
    """Say what was chosen, and whether its test ECE is lower than that of what it is held against.

    That is every rival, or without any plain cross-entropy. The seeds tell two apart by two
    standard errors.

    Args:
        found: what `report_choice` computed.
        rivals: whose the rivals are, as in ``the five papers``. Default: "", there are none.
    """
    chosen, others = found.iloc[0], found[~found["who"].isin(OURS)]
    if rivals and others.empty:
        return f"No method of {rivals} was run under this protocol to compare with."
    if not rivals:
        others = found[found["who"] == PLAIN]
    best = others.loc[others["ece"].idxmin()]
    where = "below" if chosen["ece"] < best["ece"] else "not below"
    text = f"Chosen: {_named(chosen)}. The ECE of the choice, {chosen['ece']:.2%}, is {where} that "
    if rivals:
        text += f"of every method of {rivals} run here, of which {best['who']}'s {_named(best)} "
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
        for _, one in found[found["who"] == who].iterrows():
            text += f" {words}, {_named(one)}: {one['ece']:.2%}"
            chance = one.get(BY_CHANCE, math.nan)
            text += f", by chance {chance:.2%}." if math.isfinite(chance) else "."
    return text


def _named(row: pd.Series[Any]) -> str:
    """A way of training and a calibrator in words."""
    usual = [row[name] for name in ("recipe", "average") if row[name] not in ("standard", "none")]
    then = [] if row["calibrator"] == "none" else [f"then {row['calibrator']}"]
    return ", ".join([row["loss"], *usual, *then])
