"""Choose the best combination of objective, recipe and calibrator on validation rows.

For each data set and network, the choice has the lowest ECE on rows that the calibrator was not
fitted on (`crossfit`), among combinations that lose at most half a percent of accuracy against
plain cross-entropy. Two more choices stand beside it: by the lowest NLL, which a few thousand
rows estimate better than an ECE; and among calibrators with few confidences, whose ECE by chance
is smaller, so that the lowest ECE would always be theirs. The choices are written before test
figures are read (`combine_report`).
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
# Runs of one protocol may differ in these settings alone.
VARIED = (
    "loss",
    "recipe",
    "recipe_options",
    "average",
    "ema_decay",
    "swa_start",
    "cutout",
    "clip",
    "evaluate_every",  # changes no weight
)
PLAIN = {
    "loss": "cross_entropy",
    "recipe": "standard",
    "average": "none",
    "cutout": 0,
    "clip": None,
}
OWN = "own"  # each seed holds out its own rows
# Heads trained on features of training rows; validation rows chose a single number.
HEADS = ("mac_cal_head", "tst", "vtst")
FEW = ("levels",)  # calibrators with few confidences


@dataclass(frozen=True)
class Combination:
    """A way of training with a calibrator, and validation figures by seed."""

    settings: dict[str, Any]  # those of VARIED
    calibrator: str
    keys: dict[int, str]  # of its runs, by seed
    accuracy: dict[int, float]
    nll: dict[int, float]
    ece: dict[int, float]

    @property
    def is_plainly_trained(self) -> bool:
        """Whether it is cross-entropy, with or without a calibrator."""
        return all(self.settings[name] == value for name, value in PLAIN.items())

    @property
    def is_plain(self) -> bool:
        """Whether it is cross-entropy and nothing else."""
        return self.is_plainly_trained and self.calibrator == "none"

    @property
    def says_few(self) -> bool:
        """Whether its calibrator has few confidences."""
        return any(part.partition("(")[0] in FEW for part in self.calibrator.split("+"))

    def mean(self, metric: str) -> float:
        """Return the mean over seeds."""
        return mean_of(list(getattr(self, metric).values())).mean

    def of(self, seeds: Collection[int]) -> Combination:
        """Return the combination with these seeds alone."""
        kept: dict[str, Any] = {
            name: {seed: value for seed, value in getattr(self, name).items() if seed in seeds}
            for name in ("keys", "accuracy", "nll", "ece")
        }
        return replace(self, **kept)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, with the means."""
        return {**asdict(self), "means": {name: self.mean(name) for name in FIGURES}}


def list_combinations(view: ValidationRows) -> dict[str, list[Combination]]:
    """List combinations that have validation figures, by protocol (canonical JSON)."""
    frame = view.frame
    frame = frame[frame["key"].isin(view.opened)]  # sealed runs have no test figures
    frame = frame[frame["metric"].isin(FIGURES) & ~frame["calibrator"].str.contains(":tried")]
    right = frame["part"].eq(CROSSFIT) | frame["calibrator"].map(_is_fair).astype(bool)
    table = frame[right].pivot_table(
        index=["config", "calibrator", "key", "seed"], columns="metric", values="value"
    )
    table = table.reindex(columns=list(FIGURES)).dropna().reset_index()
    by_protocol: dict[str, dict[tuple[str, str, Any], Combination]] = {}
    for row in table.to_dict("records"):
        protocol, settings, split = _split_settings(row["config"])
        group, seed = by_protocol.setdefault(protocol, {}), int(row["seed"])
        # A method's runs may all hold out the same rows, or each run its own.
        for way in (split, OWN) if split == seed else (split,):
            name = (canonical_json(settings), row["calibrator"], way)
            combination = group.setdefault(
                name, Combination(settings, row["calibrator"], {}, {}, {}, {})
            )
            combination.keys[seed] = row["key"]
            for metric in FIGURES:
                getattr(combination, metric)[seed] = float(row[metric])
    return {
        protocol: _match_seeds(_drop_contained(group)) for protocol, group in by_protocol.items()
    }


def _drop_contained(group: Mapping[tuple[str, str, Any], Combination]) -> list[Combination]:
    """Drop combinations whose runs another has: seed 0 of split 0 fits both ways to hold out."""
    kept: dict[tuple[str, str], list[Combination]] = {}
    for (settings, calibrator, _), combination in sorted(
        group.items(), key=lambda item: (-len(item[1].keys), str(item[0][2]) == OWN)
    ):
        same = kept.setdefault((settings, calibrator), [])
        if not any(combination.keys.items() <= other.keys.items() for other in same):
            same.append(combination)
    return [combination for same in kept.values() for combination in same]


def _match_seeds(candidates: list[Combination]) -> list[Combination]:
    """Limit plain cross-entropy to the seeds that most ways of training have too.

    A choice needs every seed of plain cross-entropy, so further seeds of it would exclude all
    other combinations.
    """
    seeds: dict[str, set[int]] = {}
    for candidate in candidates:
        if not candidate.is_plainly_trained:  # with any calibrator
            seeds.setdefault(canonical_json(candidate.settings), set()).update(candidate.keys)
    often = Counter(seed for method_seeds in seeds.values() for seed in method_seeds)
    shared = {seed for seed, times in often.items() if 2 * times > len(seeds)}
    return [
        candidate.of(shared) if candidate.is_plain and shared & candidate.keys.keys() else candidate
        for candidate in candidates
    ]


def _is_fair(calibrator: str) -> bool:
    """Return whether a calibrator was not fitted on the validation rows."""
    head, _, then = calibrator.partition("+")
    return calibrator == "none" or (not then and head.partition("(")[0] in HEADS)


def choose_best(
    candidates: Sequence[Combination], *, accuracy_lost: float = ACCURACY_LOST
) -> tuple[Combination, Combination]:
    """Choose a combination; return it and plain cross-entropy, its baseline.

    Candidates have every seed of cross-entropy, and a mean accuracy at most ``accuracy_lost``
    below it. Candidates whose ECE is within a standard error of the lowest, over seeds, are tied;
    the lowest NLL among them is chosen.
    """
    plain, enough = _filter_accurate(candidates, accuracy_lost)
    seeds = plain.keys.keys()
    lowest = min(
        enough, key=lambda candidate: (_mean(candidate.ece, seeds), _mean(candidate.nll, seeds))
    )
    tied = [candidate for candidate in enough if _is_within_error(candidate, lowest, sorted(seeds))]
    return _pick_lowest_nll(tied, seeds), plain


def _filter_accurate(
    candidates: Sequence[Combination], accuracy_lost: float
) -> tuple[Combination, list[Combination]]:
    """Return plain cross-entropy, and the candidates with its seeds and nearly its accuracy."""
    plain = max(
        (candidate for candidate in candidates if candidate.is_plain),
        key=lambda candidate: len(candidate.keys),
        default=None,
    )
    if plain is None:
        raise InputError("combinations are compared with cross_entropy, and there is no run of it")
    seeds = plain.keys.keys()
    least = _mean(plain.accuracy, seeds) - accuracy_lost - 1e-9
    return plain, [
        candidate
        for candidate in candidates
        if seeds <= candidate.keys.keys() and _mean(candidate.accuracy, seeds) >= least
    ]


def _pick_lowest_nll(candidates: Sequence[Combination], seeds: Any) -> Combination:
    return min(
        candidates, key=lambda candidate: (_mean(candidate.nll, seeds), _mean(candidate.ece, seeds))
    )


def _is_within_error(candidate: Combination, lowest: Combination, seeds: Sequence[int]) -> bool:
    gap = mean_of([candidate.ece[seed] - lowest.ece[seed] for seed in seeds])
    return gap.mean <= (gap.error or 0.0)


def _mean(values: Mapping[int, float], seeds: Any) -> float:
    return mean_of([values[seed] for seed in seeds]).mean


def choose_combinations(
    out: str | os.PathLike[str], *, accuracy_lost: float = ACCURACY_LOST, store: Store | None = None
) -> list[Path]:
    """Choose for every protocol in a store, and write each choice to a file."""
    view = ValidationRows(store or Store(Path(out) / "store"))
    return list(_choose_each(view, out, accuracy_lost))


def _choose_each(
    view: ValidationRows, out: str | os.PathLike[str], accuracy_lost: float
) -> Iterator[Path]:
    for protocol, candidates in sorted(list_combinations(view).items()):
        if len(candidates) < 2 or not any(candidate.is_plain for candidate in candidates):
            continue  # nothing to choose from, or no baseline
        many = [candidate for candidate in candidates if not candidate.says_few]
        chosen, plain = choose_best(many, accuracy_lost=accuracy_lost)
        sharpest = _pick_lowest_nll(_filter_accurate(many, accuracy_lost)[1], plain.keys.keys())
        coarse = [plain, *(candidate for candidate in candidates if candidate.says_few)]
        few, _ = choose_best(coarse, accuracy_lost=accuracy_lost)
        settings = json.loads(protocol)
        # With more combinations in the store the question is another.
        question = {
            "rule": RULE,
            "protocol": settings,
            "accuracy_lost": accuracy_lost,
            "candidates": sorted(
                [*candidate.keys.values(), candidate.calibrator] for candidate in candidates
            ),
        }
        path = choice_path(out, f"combination-{settings['data']}-{settings['model']}", question)
        if read_choice(path) is None:
            write_choice(
                path,
                {
                    "rule": RULE,
                    "accuracy_lost": accuracy_lost,
                    "protocol": settings,
                    "candidates": [candidate.to_dict() for candidate in candidates],
                    "chosen": chosen.to_dict(),
                    "by_nll": sharpest.to_dict(),
                    "few": None if few is plain else few.to_dict(),
                    "plain": plain.to_dict(),
                    "keys": sorted(
                        {key for candidate in candidates for key in candidate.keys.values()}
                    ),
                },
            )
        yield path


def _split_settings(config: str) -> tuple[str, dict[str, Any], int]:
    """Split settings into those of the protocol and those varied; also return the split's seed."""
    config_values = json.loads(config)
    settings = {name: config_values[name] for name in VARIED}
    rest = {
        name: value
        for name, value in result_settings(config_values).items()
        if name not in (*VARIED, "seed", "split_seed")
    }
    return canonical_json(rest), settings, int(config_values["split_seed"])
