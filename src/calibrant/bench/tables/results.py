"""Collect a suite's results by cell, method and seed.

Methods are compared within a cell: a data set, a network, and other settings that the suite
varies without naming a method for each.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import cached_property
from typing import TYPE_CHECKING, Any

from calibrant.bench.suite.former import describe_former, store_calibrator
from calibrant.bench.suite.spec import MARK
from calibrant.bench.tables.formatting import canonical_name
from calibrant.core.errors import InputError, no_such
from calibrant.core.plugins import check_current

if TYPE_CHECKING:
    import pandas as pd

    from calibrant.bench.suite.suite import Suite
    from calibrant.training.config import Config

USUAL = ("data", "model")
# Settings tried first when data and model do not tell runs apart.
FIRST = ("long_tail", "epochs", "validation", "batch_size", "lr")
CODED = ("key", "part", "calibrator", "metric", "model")
KEPT = ("key", "part", "calibrator", "metric", "value", "seconds", "machine")
OF_A_METHOD = ("loss", "recipe", "recipe_options", "seed")
Cell = tuple[Any, ...]
Runs = dict[int, float]  # a value for each seed


@dataclass(frozen=True, eq=False)
class Results:
    """The runs of a suite, and the results that the store has of them."""

    suite: Suite
    frame: pd.DataFrame
    by: tuple[str, ...]
    _known: dict[tuple[str, str, str], dict[tuple[Cell, str], Runs]] = field(default_factory=dict)

    @cached_property
    def plan(self) -> dict[str, list[tuple[str, Cell, int]]]:
        """The (method, cell, seed) entries of each run, by key."""
        plan: dict[str, list[tuple[str, Cell, int]]] = {}
        keys: dict[tuple[str, Cell, int], str] = {}
        for method, spec in self.suite.specs:
            cell = self.cell_of(spec.config)
            entry = (method, cell, spec.config.seed)
            if keys.setdefault(entry, spec.key) != spec.key:
                raise InputError(
                    f"{self.suite.name} has two runs of {method} with seed {entry[2]} in "
                    f"{self.name_of(cell)}: name a setting that tells them apart in by="
                )
            if entry not in plan.setdefault(spec.key, []):
                plan[spec.key].append(entry)
        return plan

    @cached_property
    def _settings(self) -> dict[Cell, dict[str, Any]]:
        pairs = ((self.cell_of(spec.config), spec.config) for _, spec in reversed(self.suite.specs))
        return {cell: config.to_dict() for cell, config in dict(pairs).items()}

    @cached_property
    def planned(self) -> dict[tuple[Cell, str], int]:
        """The number of runs of the suite, by cell and method."""
        return self._count(self.plan)

    @cached_property
    def lacking(self) -> dict[tuple[Cell, str], int]:
        """The number of runs that are not done, by cell and method."""
        return self._count(key for key in self.plan if key not in self.done)

    @cached_property
    def diverged(self) -> dict[tuple[Cell, str], int]:
        """The number of runs that diverged, by cell and method."""
        ended = set(self.rows.loc[self.rows["metric"] == "diverged", "key"]) - self.done
        return self._count(ended & self.plan.keys())

    def _count(self, keys: Iterable[str]) -> dict[tuple[Cell, str], int]:
        return dict(Counter((cell, method) for key in keys for method, cell, _ in self.plan[key]))

    @cached_property
    def former(self) -> dict[tuple[Cell, str], str]:
        """The former defaults that runs were made with, if any, by cell and method."""
        texts = {
            (cell, method): describe_former(spec.config)
            for _, spec in self.suite.specs
            for method, cell, _ in self.plan[spec.key]
            if spec.logits is None
        }
        return {place: text for place, text in texts.items() if text}

    @cached_property
    def cells(self) -> list[Cell]:
        """The cells, in the order of the suite."""
        return list(dict.fromkeys(cell for entries in self.plan.values() for _, cell, _ in entries))

    @cached_property
    def done(self) -> set[str]:
        """Keys of runs that have test figures."""
        return set(self.rows.loc[self.rows["part"] == "test", "key"])

    @cached_property
    def rows(self) -> pd.DataFrame:
        """The store's rows of this suite, with normalised metrics and calibrators."""
        ours = self.frame["key"].isin(self.plan) & (self.frame["metric"] != MARK)
        frame = self.frame.loc[ours, list(KEPT)].copy()
        for column in ("metric", "calibrator"):
            names = {name: canonical_name(str(name)) for name in frame[column].unique()}
            frame[column] = frame[column].map(names)
        return frame

    @cached_property
    def _groups(self) -> dict[Any, Any]:
        """Positions of rows by (metric, calibrator)."""
        return dict(self.rows.groupby(["metric", "calibrator"], sort=False, observed=True).indices)

    @cached_property
    def calibrators(self) -> tuple[str, ...]:
        """Calibrators with test figures: none, the suite's in its order, then others.

        Names with a colon, such as ``hard_classes:even``, are no calibrators.
        """
        of_test = self.rows.loc[self.rows["part"] == "test", "calibrator"]
        measured = [str(name) for name in dict.fromkeys(of_test) if ":" not in str(name)]
        return tuple(
            dict.fromkeys([*(name for name in self._asked if name in measured), *measured])
        )

    @property
    def own_calibrators(self) -> tuple[str, ...]:
        """Calibrators that the suite names; others belong to suites that share its runs."""
        return tuple(name for name in self.calibrators if name in self._asked)

    @cached_property
    def _asked(self) -> dict[str, None]:
        """The calibrators and second stages of the suite, in its order, ``none`` first."""
        names = (canonical_name(name) for _, spec in self.suite.specs for name in spec.judged)
        return dict.fromkeys(["none", *names])

    def find_calibrator(self, text: str) -> str:
        """Find a calibrator's name in these rows, given its stored name or a suite's.

        The suite's own calibrators are preferred.
        """
        names = (canonical_name(text), canonical_name(store_calibrator(text)))
        known = [name for where in (self._asked, self._measured) for name in names if name in where]
        return (known or names)[0]

    @cached_property
    def _measured(self) -> frozenset[str]:
        return frozenset(map(str, self.rows["calibrator"].unique()))

    def values(
        self, metric: str, *, calibrator: str = "none", part: str = "test", exact: bool = False
    ) -> dict[tuple[Cell, str], Runs]:
        """Return the figure of each seed by cell and method; ``part`` may be a pattern.

        If several parts match, as with ``test:*:5``, a seed's figure is their mean; a seed that
        lacks some of its method's parts is left out. With ``exact``, the calibrator's name is
        used as given.
        """
        name = calibrator if exact else self.find_calibrator(calibrator)
        asked = (canonical_name(metric), name, part)
        if asked not in self._known:
            self._known[asked] = self._values(*asked)
        return self._known[asked]

    def _values(self, name: str, calibrator: str, part: str) -> dict[tuple[Cell, str], Runs]:
        column = "value"
        if name == "seconds":  # of fitting: a column, not a metric
            name, column = "accuracy", "seconds"
        rows = self.rows.iloc[self._groups.get((name, calibrator), [])]
        rows = rows[rows[column].notna()]
        parts = [
            each_part for each_part in rows["part"].unique() if fnmatchcase(str(each_part), part)
        ]
        rows = rows[rows["part"].isin(parts)]
        tally: dict[tuple[Cell, str], dict[int, list[float]]] = {}
        for key, value in zip(rows["key"].tolist(), rows[column].tolist(), strict=True):
            for method, cell, seed in self.plan[key]:
                tally.setdefault((cell, method), {}).setdefault(seed, []).append(float(value))
        by_place: dict[tuple[Cell, str], Runs] = {}
        for place in self.planned:  # in the order of the suite, not of the store
            if (runs := tally.get(place)) is None:
                continue
            most = max(len(seed_values) for seed_values in runs.values())
            by_place[place] = {
                seed: sum(seed_values) / most
                for seed, seed_values in sorted(runs.items())
                if len(seed_values) == most
            }
        return by_place

    def setting(self, cell: Cell, name: str) -> Any:
        """Return a setting that all runs of a cell share."""
        return self._settings[cell][name]

    def cell_of(self, config: Config) -> Cell:
        """Return the cell of runs with these settings."""
        settings = config.to_dict()
        return tuple(_make_hashable(settings[name]) for name in self.by)

    def name_of(self, cell: Cell) -> str:
        """Describe a cell: ``cifar10, resnet18``."""
        parts = [
            str(value) if name in USUAL else f"{name} {value}"
            for name, value in zip(self.by, cell, strict=True)
            if value is not None
        ]
        return ", ".join(parts)


def collect_results(suite: Suite, frame: pd.DataFrame, by: Iterable[str] | None = None) -> Results:
    """Collect a suite's results; ``by`` names the settings of a cell. Default: None, found."""
    check_current(suite.plugins)
    by = None if by is None else tuple(by)
    for name in by or ():
        if suite.specs and name not in (known := suite.specs[0][1].config.to_dict()):
            raise no_such("setting", name, known)
    return Results(suite, code_columns(frame), by if by is not None else _find_settings(suite))


def code_columns(frame: pd.DataFrame) -> pd.DataFrame:
    """Code repeated texts as categories, which are faster to search."""
    names = [name for name in CODED if str(frame[name].dtype) != "category"]
    return frame.astype(dict.fromkeys(names, "category")) if names else frame


def _find_settings(suite: Suite) -> tuple[str, ...]:
    """Find data, model, and the fewest further settings that tell a method's runs apart."""
    runs: dict[str, list[Mapping[str, Any]]] = {}
    for method, spec in suite.specs:
        runs.setdefault(method, []).append(spec.config.to_dict())
    by = list(USUAL)
    known = next(iter(runs.values()), [{}])[0]
    rest = [name for name in known if name not in (*USUAL, *FIRST, *OF_A_METHOD)]
    for name in (*FIRST, *rest):
        before = _count_distinct(runs, by)
        if before == sum(len(method_runs) for method_runs in runs.values()):
            break
        if _count_distinct(runs, [*by, name]) > before:
            by.append(name)
    return tuple(by)


def _count_distinct(runs: Mapping[str, list[Mapping[str, Any]]], by: list[str]) -> int:
    names = [*by, "seed"]
    return sum(
        len({tuple(_make_hashable(config[name]) for name in names) for config in method_runs})
        for method_runs in runs.values()
    )


def _make_hashable(value: Any) -> Any:
    """Return a setting's value in a hashable form."""
    if isinstance(value, dict):
        return ", ".join(f"{key}={value[key]}" for key in sorted(value)) or None
    return ", ".join(map(str, value)) or None if isinstance(value, (list, tuple)) else value
