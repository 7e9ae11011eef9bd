"""The best combination of objective, recipe and calibrator, chosen on validation rows alone.

For each data set and network: the lowest ECE of rows the calibrator was not fitted on
(`crossfit`), among combinations that lose at most half a percent of accuracy against plain
cross-entropy. The choice is written down; then, and not before, the test figures are read.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from calibrant.bench.choosing import (
    ValidationRows,
    choice_path,
    open_test_rows,
    put_down,
    read_choice,
)
from calibrant.bench.crossfit import PART as CROSSFIT
from calibrant.bench.spec import ADDED, OF_THE_MACHINE, canonical
from calibrant.bench.statistics import mean_of
from calibrant.bench.store import Store
from calibrant.bench.texts import spell
from calibrant.functional.errors import InputError
from calibrant.losses.registry import terms

if TYPE_CHECKING:
    import pandas as pd

ACCURACY_LOST = 0.005
FIGURES = ("accuracy", "nll", "ece")
BY_CHANCE = "chance_ece"
# What makes two runs of one protocol: everything but these is the same.
VARIED = (
    "loss",
    "recipe",
    "recipe_options",
    "average",
    "ema_decay",
    "swa_start",
    "cutout",
    "clip",
    "evaluate_every",  # when validation rows are looked at, which changes no weight
)
PLAIN = {
    "loss": "cross_entropy",
    "recipe": "standard",
    "average": "none",
    "cutout": 0,
    "clip": None,
}
OWN = "own"  # rows held out by the seed of the run
# Heads trained on features of training rows: validation rows chose one number of theirs.
HEADS = ("mac_cal_head", "tst", "vtst")


@dataclass(frozen=True)
class Combination:
    """One way of training and one calibrator, with validation figures by seed."""

    settings: dict[str, Any]  # those of VARIED
    calibrator: str
    keys: dict[int, str]  # of its runs, by seed
    accuracy: dict[int, float]
    nll: dict[int, float]
    ece: dict[int, float]

    @property
    def is_plain(self) -> bool:
        """Whether it is cross-entropy and nothing else."""
        told = all(self.settings[name] == value for name, value in PLAIN.items())
        return told and self.calibrator == "none"

    def mean(self, metric: str) -> float:
        """Over seeds."""
        return mean_of(list(getattr(self, metric).values())).mean

    def to_dict(self) -> dict[str, Any]:
        """Plain values, with the means."""
        return {**asdict(self), "means": {name: self.mean(name) for name in FIGURES}}


def combinations(view: ValidationRows) -> dict[str, list[Combination]]:
    """Every combination there are validation figures of, by protocol (canonical JSON)."""
    frame = view.frame
    frame = frame[frame["key"].isin(view.opened)]  # a sealed run has no test rows to be judged by
    frame = frame[frame["metric"].isin(FIGURES) & ~frame["calibrator"].str.contains(":tried")]
    right = frame["part"].eq(CROSSFIT) | frame["calibrator"].map(_is_fair).astype(bool)
    table = frame[right].pivot_table(
        index=["config", "calibrator", "key", "seed"], columns="metric", values="value"
    )
    table = table.reindex(columns=list(FIGURES)).dropna().reset_index()
    found: dict[str, dict[tuple[str, str, Any], Combination]] = {}
    for row in table.to_dict("records"):
        protocol, settings, split = _split(row["config"])
        group, seed = found.setdefault(protocol, {}), int(row["seed"])
        # All of a method may hold out the same rows, or each run its own, by its seed.
        for way in (split, OWN) if split == seed else (split,):
            name = (canonical(settings), row["calibrator"], way)
            one = group.setdefault(name, Combination(settings, row["calibrator"], {}, {}, {}, {}))
            one.keys[seed] = row["key"]
            for metric in FIGURES:
                getattr(one, metric)[seed] = float(row[metric])
    return {protocol: _apart(group) for protocol, group in found.items()}


def _apart(group: Mapping[tuple[str, str, Any], Combination]) -> list[Combination]:
    """Those that are not a part of another: seed 0 of split 0 is of both ways to hold out."""
    kept: dict[tuple[str, str], list[Combination]] = {}
    for (settings, calibrator, _), one in sorted(
        group.items(), key=lambda item: (-len(item[1].keys), str(item[0][2]) == OWN)
    ):
        same = kept.setdefault((settings, calibrator), [])
        if not any(one.keys.items() <= other.keys.items() for other in same):
            same.append(one)
    return [one for same in kept.values() for one in same]


def _is_fair(calibrator: str) -> bool:
    """Whether its figures of validation rows are not of the rows it was fitted on."""
    head, _, then = calibrator.partition("+")
    return calibrator == "none" or (not then and head.partition("(")[0] in HEADS)


def best_combination(
    found: Sequence[Combination], *, accuracy_lost: float = ACCURACY_LOST
) -> tuple[Combination, Combination]:
    """The combination chosen, and plain cross-entropy, which it is held against.

    Only those with every seed of cross-entropy count, and with a mean accuracy of at most
    ``accuracy_lost`` less. Of those that the lowest ECE does not beat by more than the standard
    error of their difference over seeds, the one of lowest NLL.
    """
    plain = max((one for one in found if one.is_plain), key=lambda one: len(one.keys), default=None)
    if plain is None:
        raise InputError("combinations are held against cross_entropy, of which there is no run")
    seeds = plain.keys.keys()
    enough = [
        one
        for one in found
        if seeds <= one.keys.keys()
        and _mean(one.accuracy, seeds) >= _mean(plain.accuracy, seeds) - accuracy_lost - 1e-9
    ]
    lowest = min(enough, key=lambda one: (_mean(one.ece, seeds), _mean(one.nll, seeds)))
    tied = [one for one in enough if _within_error(one, lowest, sorted(seeds))]
    return min(tied, key=lambda one: (_mean(one.nll, seeds), _mean(one.ece, seeds))), plain


def _within_error(one: Combination, lowest: Combination, seeds: Sequence[int]) -> bool:
    gap = mean_of([one.ece[seed] - lowest.ece[seed] for seed in seeds])
    return gap.mean <= (gap.error or 0.0)


def _mean(values: Mapping[int, float], seeds: Any) -> float:
    return mean_of([values[seed] for seed in seeds]).mean


def choose(
    out: str | os.PathLike[str], *, accuracy_lost: float = ACCURACY_LOST, store: Store | None = None
) -> list[Path]:
    """Choose for every protocol in the store of a bench's folder, and write each choice down."""
    view = ValidationRows(store or Store(Path(out) / "store"))
    return list(_choices(view, out, accuracy_lost))


def _choices(
    view: ValidationRows, out: str | os.PathLike[str], accuracy_lost: float
) -> Iterator[Path]:
    for protocol, found in sorted(combinations(view).items()):
        if len(found) < 2 or not any(one.is_plain for one in found):
            continue  # sweeps of something else, with nothing to be held against
        chosen, plain = best_combination(found, accuracy_lost=accuracy_lost)
        settings = json.loads(protocol)
        # More combinations in the store are another question, and another choice.
        question = {
            "protocol": settings,
            "accuracy_lost": accuracy_lost,
            "candidates": sorted([*one.keys.values(), one.calibrator] for one in found),
        }
        path = choice_path(out, f"combination-{settings['data']}-{settings['model']}", question)
        if read_choice(path) is None:
            put_down(
                path,
                {
                    "rule": "lowest validation ECE, crossfitted, ties by NLL, accuracy kept",
                    "accuracy_lost": accuracy_lost,
                    "protocol": settings,
                    "candidates": [one.to_dict() for one in found],
                    "chosen": chosen.to_dict(),
                    "plain": plain.to_dict(),
                    "keys": sorted({key for one in found for key in one.keys.values()}),
                },
            )
        yield path


def report(path: Path, store: Store) -> pd.DataFrame:
    """Test figures of a written choice beside every method of the five papers.

    A row each: the chosen combination, plain cross-entropy, and what the papers propose (see
    `proposed_by`), of the same protocol and seeds; means over seeds and their standard errors.
    """
    import pandas as pd

    choice = read_choice(path)
    rows = open_test_rows(path, store)
    assert choice is not None
    rows = rows[(rows["part"] == "test") & rows["metric"].isin((*FIGURES, BY_CHANCE))]
    seeds = sorted(int(seed) for seed in choice["plain"]["keys"])
    told = [{"who": "chosen", **choice["chosen"]}, {"who": "cross_entropy", **choice["plain"]}]
    told += [
        {"who": paper, **one}
        for one in choice["candidates"]
        if (paper := proposed_by(one["settings"], one["calibrator"])) is not None
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
    chosen, others = found.iloc[0], found[~found["who"].isin(("chosen", "cross_entropy"))]
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
    chance = chosen.get(BY_CHANCE, math.nan)
    if math.isfinite(chance):
        text += f" Perfectly calibrated it would show {chance:.2%} on average, by chance."
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


def _split(config: str) -> tuple[str, dict[str, Any], int]:
    """A run's settings: those of the protocol, those that are varied, and by what it holds out."""
    told = json.loads(config)
    settings = {name: told[name] for name in VARIED}
    rest = {
        name: value
        for name, value in told.items()
        if name not in (*VARIED, "seed", "split_seed", *OF_THE_MACHINE)
        and not (name in ADDED and ADDED[name] == value)  # which older runs do not name
    }
    return canonical(rest), settings, int(told["split_seed"])
