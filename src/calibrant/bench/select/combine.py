"""The best combination of objective, recipe and calibrator, chosen on validation rows alone.

For each data set and network: the lowest ECE of rows the calibrator was not fitted on
(`crossfit`), among combinations that lose at most half a percent of accuracy against plain
cross-entropy. Beside it stands the choice by the lowest NLL, which a few thousand rows tell
better than an ECE, and the choice among calibrators that say few confidences: chance leaves
those less of an ECE, so that the lowest of all would always be the coarsest. The choices are
written down; then, and not before, the test figures are read (`combine_report`).
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from calibrant.bench.measure.crossfit import PART as CROSSFIT
from calibrant.bench.select.choices import ValidationRows, choice_path, read_choice, write_choice
from calibrant.bench.store.store import Store
from calibrant.bench.suite.key import canonical_json, result_settings
from calibrant.bench.tables.statistics import mean_of
from calibrant.core.errors import InputError

ACCURACY_LOST = 0.005
RULE = "lowest validation ECE, crossfitted, ties by NLL, accuracy kept; by NLL; few confidences"
FIGURES = ("accuracy", "nll", "ece")
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
FEW = ("levels",)  # calibrators that say few confidences


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
    def is_plainly_trained(self) -> bool:
        """Whether it is cross-entropy, with a calibrator or without."""
        return all(self.settings[name] == value for name, value in PLAIN.items())

    @property
    def is_plain(self) -> bool:
        """Whether it is cross-entropy and nothing else."""
        return self.is_plainly_trained and self.calibrator == "none"

    @property
    def says_few(self) -> bool:
        """Whether its calibrator says few confidences."""
        return any(part.partition("(")[0] in FEW for part in self.calibrator.split("+"))

    def mean(self, metric: str) -> float:
        """Over seeds."""
        return mean_of(list(getattr(self, metric).values())).mean

    def of(self, seeds: Collection[int]) -> Combination:
        """With these seeds alone."""
        kept: dict[str, Any] = {
            name: {seed: one for seed, one in getattr(self, name).items() if seed in seeds}
            for name in ("keys", "accuracy", "nll", "ece")
        }
        return replace(self, **kept)

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
            name = (canonical_json(settings), row["calibrator"], way)
            one = group.setdefault(name, Combination(settings, row["calibrator"], {}, {}, {}, {}))
            one.keys[seed] = row["key"]
            for metric in FIGURES:
                getattr(one, metric)[seed] = float(row[metric])
    return {protocol: _evened(_apart(group)) for protocol, group in found.items()}


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


def _evened(found: list[Combination]) -> list[Combination]:
    """With those seeds of plain cross-entropy that most ways of training were run with as well.

    Others need every seed of it to be chosen: more of it alone, made for another question, would
    leave them out.
    """
    seeds: dict[str, set[int]] = {}
    for one in found:
        if not one.is_plainly_trained:  # whatever comes after
            seeds.setdefault(canonical_json(one.settings), set()).update(one.keys)
    often = Counter(seed for each in seeds.values() for seed in each)
    shared = {seed for seed, times in often.items() if 2 * times > len(seeds)}
    return [one.of(shared) if one.is_plain and shared & one.keys.keys() else one for one in found]


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
    plain, enough = _allowed(found, accuracy_lost)
    seeds = plain.keys.keys()
    lowest = min(enough, key=lambda one: (_mean(one.ece, seeds), _mean(one.nll, seeds)))
    tied = [one for one in enough if _within_error(one, lowest, sorted(seeds))]
    return _lowest_nll(tied, seeds), plain


def _allowed(
    found: Sequence[Combination], accuracy_lost: float
) -> tuple[Combination, list[Combination]]:
    """Plain cross-entropy, and those with its seeds and nearly its accuracy."""
    plain = max((one for one in found if one.is_plain), key=lambda one: len(one.keys), default=None)
    if plain is None:
        raise InputError("combinations are held against cross_entropy, of which there is no run")
    seeds = plain.keys.keys()
    least = _mean(plain.accuracy, seeds) - accuracy_lost - 1e-9
    return plain, [
        one for one in found if seeds <= one.keys.keys() and _mean(one.accuracy, seeds) >= least
    ]


def _lowest_nll(found: Sequence[Combination], seeds: Any) -> Combination:
    return min(found, key=lambda one: (_mean(one.nll, seeds), _mean(one.ece, seeds)))


def _within_error(one: Combination, lowest: Combination, seeds: Sequence[int]) -> bool:
    gap = mean_of([one.ece[seed] - lowest.ece[seed] for seed in seeds])
    return gap.mean <= (gap.error or 0.0)


def _mean(values: Mapping[int, float], seeds: Any) -> float:
    return mean_of([values[seed] for seed in seeds]).mean


def choose_combinations(
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
        many = [one for one in found if not one.says_few]
        chosen, plain = best_combination(many, accuracy_lost=accuracy_lost)
        sharpest = _lowest_nll(_allowed(many, accuracy_lost)[1], plain.keys.keys())
        coarse = [plain, *(one for one in found if one.says_few)]
        few, _ = best_combination(coarse, accuracy_lost=accuracy_lost)
        settings = json.loads(protocol)
        # More combinations in the store are another question, and another choice.
        question = {
            "rule": RULE,
            "protocol": settings,
            "accuracy_lost": accuracy_lost,
            "candidates": sorted([*one.keys.values(), one.calibrator] for one in found),
        }
        path = choice_path(out, f"combination-{settings['data']}-{settings['model']}", question)
        if read_choice(path) is None:
            write_choice(
                path,
                {
                    "rule": RULE,
                    "accuracy_lost": accuracy_lost,
                    "protocol": settings,
                    "candidates": [one.to_dict() for one in found],
                    "chosen": chosen.to_dict(),
                    "by_nll": sharpest.to_dict(),
                    "few": None if few is plain else few.to_dict(),
                    "plain": plain.to_dict(),
                    "keys": sorted({key for one in found for key in one.keys.values()}),
                },
            )
        yield path


def _split(config: str) -> tuple[str, dict[str, Any], int]:
    """A run's settings: those of the protocol, those that are varied, and by what it holds out."""
    told = json.loads(config)
    settings = {name: told[name] for name in VARIED}
    rest = {
        name: value
        for name, value in result_settings(told).items()
        if name not in (*VARIED, "seed", "split_seed")
    }
    return canonical_json(rest), settings, int(told["split_seed"])
