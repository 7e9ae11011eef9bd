"""Tune the settings of a suite, one after another, on validation rows.

As in appendix G of soft-calibration: try every value of a setting, keep the best, and go to the
next setting. The best candidate has the lowest ECE among those that lose less than 1% of accuracy
to the most accurate. A candidate is an ordinary run, which several searches may share. Its test
predictions stay sealed: nothing reads them until a choice that names the run is written.
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
from calibrant.bench.run.worker import Bench
from calibrant.bench.select.choices import ValidationRows, choice_path, read_choice, write_choice
from calibrant.bench.store.store import Store
from calibrant.bench.suite.key import OF_THE_MACHINE, canonical_json
from calibrant.bench.suite.sources import list_sources
from calibrant.bench.suite.spec import Spec
from calibrant.bench.suite.suite import Suite
from calibrant.bench.suite.tuning import BESIDE, Choice, Tuning
from calibrant.core.errors import InputError
from calibrant.core.files import hold_lock
from calibrant.training.config import Config


class Unfinished(InputError):
    """Candidates are still to be run before the choice."""


def best(
    candidates: Sequence[Mapping[str, Any]], *, metric: str = "ece", accuracy_lost: float = 0.01
) -> int:
    """Return the place of the candidate with the lowest error that is accurate enough.

    Its accuracy is at most ``accuracy_lost`` below the best. Ties are broken by lower NLL, then
    by order. Candidates whose figures are not finite are skipped.
    """
    sound = [
        place
        for place, candidate in enumerate(candidates)
        if all(math.isfinite(candidate[name]) for name in (metric, *BESIDE))
    ]
    if not sound:
        raise InputError("every candidate failed: there is nothing to choose from")
    most = max(candidates[place]["accuracy"] for place in sound)
    # A margin for rounding: accuracies are sums of floats.
    near = [p for p in sound if candidates[p]["accuracy"] >= most - accuracy_lost - 1e-9]
    return min(near, key=lambda p: (candidates[p][metric], candidates[p]["nll"], p))


def tune_suite(
    suite: Suite, out: str | os.PathLike[str], run: Callable[[list[Spec]], Collection[str]]
) -> Suite:
    """Tune every method, and return the suite with the chosen settings.

    Args:
        suite: the suite.
        out: the folder of its runs.
        run: makes runs, of all methods and cases at once, and returns the keys of failed runs.

    Raises:
        Unfinished: some candidates were not made, as when time is up; call again to resume.
    """
    if not suite.tune:
        return suite
    searches = _list_searches(suite, out)
    while waiting := [search for search in searches if not search.is_done]:
        failed = run([spec for search in waiting for spec in search.candidates()])
        view = ValidationRows(Store(Path(out) / "store"))
        for search in waiting:
            search.choose(view, failed)
    tuned = _apply_choices(suite, searches)
    _prune_losers(Bench(Path(out)), searches, {spec.key for _, spec in tuned.specs})
    return tuned


def _prune_losers(bench: Bench, searches: Iterable[_Search], final: Collection[str]) -> None:
    """Delete files that candidates kept in case they were chosen, except of opened runs."""
    store = bench.store
    for search in searches:
        written = read_choice(search.path) or {"candidates": []}
        tried = [candidate for step in written["candidates"] for candidate in step["candidates"]]
        for key in dict.fromkeys(key for candidate in tried for key in candidate["keys"]):
            if key in final or ("run", "none") in store.done(key):
                continue
            with hold_lock(bench.lock_path(key)) as ours:
                if ours:
                    prune(bench.folder(key), search.specs[0].keep)


def with_choices(suite: Suite, out: str | os.PathLike[str]) -> Suite:
    """Return the suite with the choices written so far; other methods are left out."""
    if not suite.tune:
        return suite
    searches = [search for search in _list_searches(suite, out) if search.is_done]
    return _apply_choices(suite, searches)


def _list_searches(suite: Suite, out: str | os.PathLike[str]) -> list[_Search]:
    """Return the search of each method and case of a suite that tunes."""
    tuning = Tuning.of(suite.tune)
    return [_Search(suite, tuning, out, *group) for group in _group_runs(suite).items()]


class _Search:
    """The search for one method and case: the settings chosen, and those left to try."""

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
        self.left = [setting for setting in tuning.settings if setting.applies(self.config)]
        self.steps: list[dict[str, Any]] = []
        question: dict[str, Any] = {
            "tune": tuning.to_dict(),
            "method": self.method,
            "run": json.loads(group[1]),
        }
        tried = [
            setting.put(self.config, value) for setting in self.left for value in setting.values
        ]
        if registered := sorted(
            {source for config in (self.config, *tried) for source in list_sources(config)}
        ):
            question["plugins"] = registered  # with another source the question is another
        self.path = choice_path(out, f"{suite.name}-{self.method}", question)
        self.question = question
        written = read_choice(self.path)
        if written is not None:
            self.config, self.left = self.config.changed(**written["chosen"]), []

    @property
    def is_done(self) -> bool:
        """Whether no setting is left to try."""
        return not self.left

    def candidates(self) -> list[Spec]:
        """Return the runs of the setting that is tried now."""
        return [spec for tried in self._list_tried() for spec in tried[1]]

    def choose(self, view: ValidationRows, failed: Collection[str] = ()) -> None:
        """Choose the current setting's value; after the last setting, write the choice."""
        setting, metrics = self.left[0], tuple(dict.fromkeys((*BESIDE, self.tuning.metric)))
        candidates = []
        for value, specs in self._list_tried():
            keys = [spec.key for spec in specs]
            rows = view.figures(keys, metrics)
            whole = len(rows) == len(set(keys))
            if not whole and not set(keys) & set(failed):
                raise Unfinished(f"{self.method}: candidates of {setting.name} are still to be run")
            # Means over fewer seeds are not comparable: a failed seed leaves none.
            figures = {name: float(rows[name].mean()) if whole else math.nan for name in metrics}
            candidates.append({"value": value, "keys": keys, **figures})
        if not self.config.validation and all(math.isnan(each["nll"]) for each in candidates):
            raise InputError(
                f"{self.method}: tune chooses on validation rows, and no candidate has figures of "
                "them: hold rows out, as in validation: 0.1"
            )
        place = best(candidates, metric=self.tuning.metric, accuracy_lost=self.tuning.accuracy_lost)
        self.steps.append(
            {
                "setting": setting.name,
                "of": list(setting.of),
                "candidates": [_replace_nan(candidate) for candidate in candidates],
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
                "chosen": _list_settings(self.config),
                "keys": [spec.key for spec in self.final_specs()],
            },
        )

    def final_specs(self) -> list[Spec]:
        """Return the suite's runs of this method and case, with the chosen settings."""
        return [
            replace(spec, config=self.config.changed(seed=spec.config.seed)) for spec in self.specs
        ]

    def _list_tried(self) -> list[tuple[Any, list[Spec]]]:
        setting = self.left[0]
        configs = [(value, setting.put(self.config, value)) for value in setting.values]
        return [
            (value, [self._spec(config.changed(seed=seed)) for seed in self.tuning.seeds])
            for value, config in configs
        ]

    def _spec(self, config: Config) -> Spec:
        return replace(self.specs[0], config=config, sealed=True)


def _replace_nan(candidate: Mapping[str, Any]) -> dict[str, Any]:
    """Replace NaN, which JSON lacks, by None."""
    return {
        name: None if isinstance(value, float) and math.isnan(value) else value
        for name, value in candidate.items()
    }


def _group_runs(suite: Suite) -> dict[tuple[str, str], list[Spec]]:
    """Group runs that differ in their seed alone, by method and settings."""
    groups: dict[tuple[str, str], list[Spec]] = {}
    for method, spec in suite.specs:
        groups.setdefault((method, canonical_json(_list_settings(spec.config))), []).append(spec)
    return groups


def _list_settings(config: Config) -> dict[str, Any]:
    """Return the settings that decide a run's result, except its seed."""
    settings = config.to_dict()
    return {key: settings[key] for key in settings if key != "seed" and key not in OF_THE_MACHINE}


def _apply_choices(suite: Suite, searches: Sequence[_Search]) -> Suite:
    """Return the suite with each group's choice; runs keep their order."""
    replaced = {
        (search.method, old.key): new
        for search in searches
        for old, new in zip(search.specs, search.final_specs(), strict=True)
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
