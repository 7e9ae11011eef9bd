"""A suite's results as cells: one setting, one method, a value for each seed.

A cell is what methods are compared in: a data set and a network, and whatever else of a
run's settings a suite varies without calling it a method.
"""

from __future__ import annotations

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
# Asked before the others when data and model do not tell runs apart.
FIRST = ("long_tail", "epochs", "validation", "batch_size", "lr")
CODED = ("key", "part", "calibrator", "metric", "model")
KEPT = ("key", "part", "calibrator", "metric", "value", "seconds", "machine")
OF_A_METHOD = ("loss", "recipe", "recipe_options", "seed")
Cell = tuple[Any, ...]
Runs = dict[int, float]  # a value for each seed


@dataclass(frozen=True, eq=False)
class Results:
    """What a suite asked for and what its store has of it."""

    suite: Suite
    frame: pd.DataFrame
    by: tuple[str, ...]
    _known: dict[tuple[str, str, str], dict[tuple[Cell, str], Runs]] = field(default_factory=dict)

    @cached_property
    def plan(self) -> dict[str, list[tuple[str, Cell, int]]]:
        """Each run's key, with the method, cell and seed it stands for."""
        found: dict[str, list[tuple[str, Cell, int]]] = {}
        keys: dict[tuple[str, Cell, int], str] = {}
        for method, spec in self.suite.specs:
            cell = self.cell_of(spec.config)
            entry = (method, cell, spec.config.seed)
            if keys.setdefault(entry, spec.key) != spec.key:
                raise InputError(
                    f"{self.suite.name} has two runs of {method} with seed {entry[2]} in "
                    f"{self.name_of(cell)}: name a setting that tells them apart in by="
                )
            if entry not in found.setdefault(spec.key, []):
                found[spec.key].append(entry)
        return found

    @cached_property
    def _settings(self) -> dict[Cell, dict[str, Any]]:
        found: dict[Cell, dict[str, Any]] = {}
        for _, spec in self.suite.specs:
            for _, cell, _ in self.plan[spec.key]:
                if cell not in found:
                    found[cell] = spec.config.to_dict()
        return found

    @cached_property
    def planned(self) -> dict[tuple[Cell, str], int]:
        """How many runs the suite asks for, by cell and method."""
        found: dict[tuple[Cell, str], int] = {}
        for entries in self.plan.values():
            for method, cell, _ in entries:
                found[cell, method] = found.get((cell, method), 0) + 1
        return found

    @cached_property
    def lacking(self) -> dict[tuple[Cell, str], int]:
        """How many of those runs are not done."""
        found: dict[tuple[Cell, str], int] = {}
        for key, entries in self.plan.items():
            for method, cell, _ in entries if key not in self.done else ():
                found[cell, method] = found.get((cell, method), 0) + 1
        return found

    @cached_property
    def diverged(self) -> dict[tuple[Cell, str], int]:
        """How many of those not done stopped because their loss was no number any more."""
        ended = set(self.rows.loc[self.rows["metric"] == "diverged", "key"]) - self.done
        found: dict[tuple[Cell, str], int] = {}
        for key in ended & self.plan.keys():
            for method, cell, _ in self.plan[key]:
                found[cell, method] = found.get((cell, method), 0) + 1
        return found

    @cached_property
    def former(self) -> dict[tuple[Cell, str], str]:
        """By cell and method, the former defaults that its runs were made with, if any."""
        found = {
            (cell, method): describe_former(spec.config)
            for _, spec in self.suite.specs
            for method, cell, _ in self.plan[spec.key]
            if spec.logits is None
        }
        return {place: text for place, text in found.items() if text}

    @cached_property
    def cells(self) -> list[Cell]:
        """In the order of the suite."""
        return list(dict.fromkeys(cell for entries in self.plan.values() for _, cell, _ in entries))

    @cached_property
    def done(self) -> set[str]:
        """Keys of runs that have results on the test rows."""
        return set(self.rows.loc[self.rows["part"] == "test", "key"])

    @cached_property
    def rows(self) -> pd.DataFrame:
        """The store's rows of this suite, metrics and calibrators written one way."""
        ours = self.frame["key"].isin(self.plan) & (self.frame["metric"] != MARK)
        frame = self.frame.loc[ours, list(KEPT)].copy()
        for column in ("metric", "calibrator"):
            names = {name: canonical_name(str(name)) for name in frame[column].unique()}
            frame[column] = frame[column].map(names)
        return frame

    @cached_property
    def _groups(self) -> dict[Any, Any]:
        """Where the rows of each (metric, calibrator) are."""
        return dict(self.rows.groupby(["metric", "calibrator"], sort=False, observed=True).indices)

    @cached_property
    def calibrators(self) -> tuple[str, ...]:
        """Every calibrator of test rows: none, those of the suite in its order, others.

        Names with a colon, such as ``hard_classes:even``, are of looks into a network.
        """
        judged = self.rows.loc[self.rows["part"] == "test", "calibrator"]
        measured = [str(name) for name in dict.fromkeys(judged) if ":" not in str(name)]
        return tuple(dict.fromkeys([*(one for one in self._asked if one in measured), *measured]))

    @property
    def own_calibrators(self) -> tuple[str, ...]:
        """Those of them that the suite asks for, not another of the same runs."""
        return tuple(one for one in self.calibrators if one in self._asked)

    @cached_property
    def _asked(self) -> dict[str, None]:
        """The calibrators and second stages of the suite, in its order, ``none`` first."""
        names = (canonical_name(name) for _, spec in self.suite.specs for name in spec.judged)
        return dict.fromkeys(["none", *names])

    def find_calibrator(self, text: str) -> str:
        """Find the name in these rows of what a person calls so: as stored, or as in suites.

        What the suite asks for comes before what was measured besides.
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
        """By cell and method, the figure of each seed; ``part`` may be a pattern.

        Of several parts that fit, such as ``test:*:5``, a seed's figure is the mean; a seed
        that lacks a part which others of its method have is left out. ``exact`` says that the
        calibrator is named as in these rows.
        """
        name = calibrator if exact else self.find_calibrator(calibrator)
        asked = (canonical_name(metric), name, part)
        if asked not in self._known:
            self._known[asked] = self._values(*asked)
        return self._known[asked]

    def _values(self, name: str, calibrator: str, part: str) -> dict[tuple[Cell, str], Runs]:
        column = "value"
        if name == "seconds":  # of fitting: a column of every row, whatever its metric
            name, column = "accuracy", "seconds"
        rows = self.rows.iloc[self._groups.get((name, calibrator), [])]
        rows = rows[rows[column].notna()]
        parts = [one for one in rows["part"].unique() if fnmatchcase(str(one), part)]
        rows = rows[rows["part"].isin(parts)]
        tally: dict[tuple[Cell, str], dict[int, list[float]]] = {}
        for key, value in zip(rows["key"].tolist(), rows[column].tolist(), strict=True):
            for method, cell, seed in self.plan[key]:
                tally.setdefault((cell, method), {}).setdefault(seed, []).append(float(value))
        found: dict[tuple[Cell, str], Runs] = {}
        for place in self.planned:  # in the order of the suite, not of the store
            if (runs := tally.get(place)) is None:
                continue
            most = max(len(each) for each in runs.values())
            found[place] = {
                seed: sum(each) / most for seed, each in sorted(runs.items()) if len(each) == most
            }
        return found

    def setting(self, cell: Cell, name: str) -> Any:
        """A setting that all runs of a cell share."""
        return self._settings[cell][name]

    def cell_of(self, config: Config) -> Cell:
        """The cell that runs of these settings are in."""
        settings = config.to_dict()
        return tuple(_plain(settings[name]) for name in self.by)

    def name_of(self, cell: Cell) -> str:
        """A cell in words: ``cifar10, resnet18``."""
        parts = [
            str(value) if name in USUAL else f"{name} {value}"
            for name, value in zip(self.by, cell, strict=True)
            if value is not None
        ]
        return ", ".join(parts)


def collect_results(suite: Suite, frame: pd.DataFrame, by: Iterable[str] | None = None) -> Results:
    """A suite's results; ``by`` names the settings that make a cell, else they are found."""
    check_current(suite.plugins)
    by = None if by is None else tuple(by)
    for name in by or ():
        if suite.specs and name not in (known := suite.specs[0][1].config.to_dict()):
            raise no_such("setting", name, known)
    return Results(suite, code_columns(frame), by if by is not None else _apart(suite))


def code_columns(frame: pd.DataFrame) -> pd.DataFrame:
    """The same rows with repeated texts coded as categories, in which they are soon found."""
    names = [name for name in CODED if str(frame[name].dtype) != "category"]
    return frame.astype(dict.fromkeys(names, "category")) if names else frame


def _apart(suite: Suite) -> tuple[str, ...]:
    """Data, model, and the fewest further settings that tell all runs of a method apart."""
    runs: dict[str, list[Mapping[str, Any]]] = {}
    for method, spec in suite.specs:
        runs.setdefault(method, []).append(spec.config.to_dict())
    by = list(USUAL)
    known = next(iter(runs.values()), [{}])[0]
    rest = [name for name in known if name not in (*USUAL, *FIRST, *OF_A_METHOD)]
    for name in (*FIRST, *rest):
        before = _distinct(runs, by)
        if before == sum(len(each) for each in runs.values()):
            break
        if _distinct(runs, [*by, name]) > before:
            by.append(name)
    return tuple(by)


def _distinct(runs: Mapping[str, list[Mapping[str, Any]]], by: list[str]) -> int:
    names = [*by, "seed"]
    return sum(
        len({tuple(_plain(config[name]) for name in names) for config in each})
        for each in runs.values()
    )


def _plain(value: Any) -> Any:
    """A setting as something that can be a key."""
    if isinstance(value, dict):
        return ", ".join(f"{key}={value[key]}" for key in sorted(value)) or None
    return ", ".join(map(str, value)) or None if isinstance(value, (list, tuple)) else value
