"""What a written choice of a combination comes to on test rows, beside the five papers' methods."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from calibrant.bench.choosing import LEARNED, open_test_rows, read_choice
from calibrant.bench.combine import FIGURES
from calibrant.bench.statistics import mean_of
from calibrant.bench.store import Store
from calibrant.bench.texts import spell
from calibrant.losses.registry import terms

if TYPE_CHECKING:
    import pandas as pd

BY_CHANCE = "chance_ece"
CHOSEN, PLAIN = "chosen", "cross_entropy"
# Other choices: the row's name, the key of the file, words for it.
OTHERS = (
    ("chosen by NLL", "by_nll", "Chosen by NLL"),
    ("chosen, few confidences", "few", "With few confidences"),
)
OURS = (CHOSEN, *(who for who, _, _ in OTHERS), PLAIN)  # the other rows are the papers'


def report(path: Path, store: Store) -> pd.DataFrame:
    """Test figures of a written choice beside every method of the five papers.

    A row each: the chosen combination, that chosen by NLL, that of few confidences where there
    are any, plain cross-entropy, and what the papers propose (see `proposed_by`), of the same
    protocol and seeds; means over seeds and their standard errors. Networks of the papers that
    have not learned, with less than half of cross-entropy's validation accuracy, are left out.
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
    told += [
        {"who": paper, **one}
        for one in choice["candidates"]
        if (paper := proposed_by(one["settings"], one["calibrator"])) is not None
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


def verdict(found: pd.DataFrame) -> str:
    """Whether what was chosen has a lower test ECE than every method of the papers, in a few words.

    And whether the seeds tell it from the lowest of theirs: by two standard errors.
    """
    chosen, others = found.iloc[0], found[~found["who"].isin(OURS)]
    if others.empty:
        return "No method of the five papers was run under this protocol to compare with."
    best = others.loc[others["ece"].idxmin()]
    where = "below" if chosen["ece"] < best["ece"] else "not below"
    text = (
        f"Chosen: {_named(chosen)}. "
        f"The ECE of the choice, {chosen['ece']:.2%}, is {where} that of every method of the five "
        f"papers run here, of which {best['who']}'s {_named(best)} has the lowest, "
        f"{best['ece']:.2%}"
    )
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


def proposed_by(settings: Mapping[str, Any], calibrator: str) -> str | None:
    """The paper a combination is a proposal of, alone: not on top of another's.

    Its losses with the usual recipe and no calibrator (soft-calibration's also with its own
    temperature), mac-cal's head on plain cross-entropy, class-scaling's objective of any
    calibrator on plain cross-entropy.
    """
    losses = {name for _, name, _ in terms(settings["loss"])}
    recipe = settings["recipe"]
    if settings["average"] != "none" or settings["cutout"]:
        return None
    if recipe in ("standard", "interleaved") and losses & {"s_avuc", "sb_ece"}:
        own = calibrator in ("none", "temperature", "temperature(objective=sb_ece)")
        return "soft-calibration" if own else None
    plain = losses == {"cross_entropy"}
    if plain and calibrator == "temperature(objective=sb_ece)" and recipe == "standard":
        return "soft-calibration"
    if plain and "objective=class_scaled" in calibrator and recipe == "standard":
        return "class-scaling"
    head = calibrator.partition("(")[0] == "mac_cal_head"
    if plain and (
        (recipe == "mac_cal" and calibrator == "none") or (recipe == "standard" and head)
    ):
        return "mac-cal"
    if recipe != "standard" or calibrator not in ("none", "temperature"):
        return None
    if losses & {"r_aurc", "acls"}:
        return "r-aurc" if "r_aurc" in losses else "acls"
    return None
