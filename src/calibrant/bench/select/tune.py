"""The ``tune:`` block of a suite: one setting after another, by validation figures alone.

Soft-calibration appendix G: the values of one setting are tried, the best is kept, and the
next setting is tried with it; the best is the lowest ECE that gives up less than 1% accuracy
against the most accurate. Candidates are runs like any other, and one that two questions ask
for is made once; but they are sealed: their validation rows alone are measured, and the file of
their test predictions stays closed until a choice that names them is written.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from calibrant.bench.run.folder import prune
from calibrant.bench.run.locks import locked
from calibrant.bench.run.worker import Bench
from calibrant.bench.select.choices import ValidationRows, choice_path, read_choice, write_choice
from calibrant.bench.store.store import Store
from calibrant.bench.suite.key import OF_THE_MACHINE, canonical_json
from calibrant.bench.suite.sources import list_sources
from calibrant.bench.suite.spec import Spec
from calibrant.bench.suite.suite import Suite
from calibrant.bench.suite.tuning import BESIDE, Choice, Tuning
from calibrant.core.errors import InputError
from calibrant.training.config import Config


class Unfinished(InputError):
    """Candidates are still to be run before there is anything to choose from."""


def best(
    candidates: Sequence[Mapping[str, Any]], *, metric: str = "ece", accuracy_lost: float = 0.01
) -> int:
    """The place of the candidate of lowest error among those accurate enough.

    Accurate enough: at most ``accuracy_lost`` below the most accurate. Of equal errors the
    lower NLL, then the earlier. Candidates whose figures are not finite are not considered.
    """
    sound = [
        place
        for place, one in enumerate(candidates)
        if all(math.isfinite(one[name]) for name in (metric, *BESIDE))
    ]
    if not sound:
        raise InputError("every candidate failed: there is nothing to choose from")
    most = max(candidates[place]["accuracy"] for place in sound)
    # Shares of rows are sums of floats: a hair below the line is on it.
    near = [p for p in sound if candidates[p]["accuracy"] >= most - accuracy_lost - 1e-9]
    return min(near, key=lambda p: (candidates[p][metric], candidates[p]["nll"], p))


def tune_suite(
    suite: Suite, out: str | os.PathLike[str], run: Callable[[list[Spec]], Collection[str]]
) -> Suite:
    """The suite with every method's settings as its choice has them.

    Args:
        suite: the suite.
        out: the folder of its runs.
        run: makes runs, those of all methods and cases side by side, and returns the keys of
            those that failed.

    Raises:
        Unfinished: some candidates were not made, as when time was up; call again to resume.
    """
    if not suite.tune:
        return suite
    tuning = Tuning.of(suite.tune)
    searches = [_Search(suite, tuning, out, *one) for one in _groups(suite).items()]
    while waiting := [one for one in searches if not one.is_done]:
        failed = run([spec for one in waiting for spec in one.candidates()])
        view = ValidationRows(Store(Path(out) / "store"))
        for one in waiting:
            one.take(view, failed)
    found = _chosen(suite, searches)
    _prune_losers(Bench(Path(out)), searches, {spec.key for _, spec in found.specs})
    return found


def _prune_losers(bench: Bench, searches: Iterable[_Search], final: Collection[str]) -> None:
    """Drop what sealed runs kept in case they were chosen; what others opened is theirs."""
    store = bench.store
    for one in searches:
        written = read_choice(one.path) or {"candidates": []}
        tried = [each for step in written["candidates"] for each in step["candidates"]]
        for key in dict.fromkeys(key for each in tried for key in each["keys"]):
            if key in final or ("run", "none") in store.done(key):
                continue
            with locked(bench.lock(key)) as ours:
                if ours:
                    prune(bench.folder(key), one.specs[0].keep)


def with_choices(suite: Suite, out: str | os.PathLike[str]) -> Suite:
    """The same from what is written down alone; methods not chosen yet are left out."""
    if not suite.tune:
        return suite
    tuning = Tuning.of(suite.tune)
    searches = [_Search(suite, tuning, out, *one) for one in _groups(suite).items()]
    return _chosen(suite, [one for one in searches if one.is_done])


class _Search:
    """One method on one case: which setting is being tried, and what was found so far."""

    def __init__(
        self,
        suite: Suite,
        tuning: Tuning,
        out: str | os.PathLike[str],
        group: tuple[str, str],
        specs: list[Spec],
    ) -> None:
        self.method, self.specs, self.tuning = group[0], specs, tuning
        self.group = group
        self.config = specs[0].config
        self.left = [one for one in tuning.settings if one.applies(self.config)]
        self.steps: list[dict[str, Any]] = []
        question: dict[str, Any] = {
            "tune": tuning.to_dict(),
            "method": self.method,
            "run": json.loads(group[1]),
        }
        tried = [one.put(self.config, value) for one in self.left for value in one.values]
        if own := sorted({one for config in (self.config, *tried) for one in list_sources(config)}):
            question["plugins"] = own  # another source is another question
        self.path = choice_path(out, f"{suite.name}-{self.method}", question)
        self.question = question
        written = read_choice(self.path)
        if written is not None:
            self.config, self.left = self.config.changed(**written["chosen"]), []

    @property
    def is_done(self) -> bool:
        """Whether nothing is left to try."""
        return not self.left

    def candidates(self) -> list[Spec]:
        """Runs of the setting that is tried now."""
        return [spec for tried in self._tried() for spec in tried[1]]

    def take(self, view: ValidationRows, failed: Collection[str] = ()) -> None:
        """Choose among them, and go on to the next setting; after the last write it down."""
        setting, metrics = self.left[0], tuple(dict.fromkeys((*BESIDE, self.tuning.metric)))
        told = []
        for value, specs in self._tried():
            keys = [spec.key for spec in specs]
            found = view.figures(keys, metrics)
            whole = len(found) == len(set(keys))
            if not whole and not set(keys) & set(failed):
                raise Unfinished(f"{self.method}: candidates of {setting.name} are still to be run")
            # A mean over fewer seeds is another mean: where one failed there is none.
            figures = {name: float(found[name].mean()) if whole else math.nan for name in metrics}
            told.append({"value": value, "keys": keys, **figures})
        place = best(told, metric=self.tuning.metric, accuracy_lost=self.tuning.accuracy_lost)
        self.steps.append(
            {
                "setting": setting.name,
                "of": list(setting.of),
                "candidates": [_plain(one) for one in told],
                "chosen": setting.values[place],
            }
        )
        self.config = setting.put(self.config, setting.values[place])
        self.left.pop(0)
        if self.is_done:
            self._write()

    def _write(self) -> None:
        write_choice(
            self.path,
            {
                "rule": f"{self.tuning.rule} of validation rows",
                "question": self.question,
                "candidates": self.steps,
                "chosen": _result_settings(self.config),
                "keys": [spec.key for spec in self.final()],
            },
        )

    def final(self) -> list[Spec]:
        """The suite's runs of this method and case, with the settings that were found."""
        return [
            replace(spec, config=self.config.changed(seed=spec.config.seed)) for spec in self.specs
        ]

    def _tried(self) -> list[tuple[Any, list[Spec]]]:
        setting = self.left[0]
        configs = [(value, setting.put(self.config, value)) for value in setting.values]
        return [
            (value, [self._spec(config.changed(seed=seed)) for seed in self.tuning.seeds])
            for value, config in configs
        ]

    def _spec(self, config: Config) -> Spec:
        return replace(self.specs[0], config=config, sealed=True)


def _plain(candidate: Mapping[str, Any]) -> dict[str, Any]:
    """JSON has no NaN: a failed candidate's figures are null."""
    return {
        name: None if isinstance(value, float) and math.isnan(value) else value
        for name, value in candidate.items()
    }


def _groups(suite: Suite) -> dict[tuple[str, str], list[Spec]]:
    """Runs that differ in their seed alone, by method and settings."""
    found: dict[tuple[str, str], list[Spec]] = {}
    for method, spec in suite.specs:
        found.setdefault((method, canonical_json(_result_settings(spec.config))), []).append(spec)
    return found


def _result_settings(config: Config) -> dict[str, Any]:
    """What decides a run's result, less its seed."""
    found = config.to_dict()
    return {key: found[key] for key in found if key != "seed" and key not in OF_THE_MACHINE}


def _chosen(suite: Suite, searches: Sequence[_Search]) -> Suite:
    """The suite's runs in their order, each with its group's choice."""
    replaced = {
        (search.method, old.key): new
        for search in searches
        for old, new in zip(search.specs, search.final(), strict=True)
    }
    specs = tuple(
        (method, replaced[method, spec.key])
        for method, spec in suite.specs
        if (method, spec.key) in replaced
    )
    tune = Tuning.of(suite.tune).to_dict()
    choices = tuple(
        Choice.of(search.method, search.config, tune, written["candidates"])
        for search in searches
        if (written := read_choice(search.path)) is not None
    )
    return replace(suite, specs=specs, tune={}, choices=choices)
