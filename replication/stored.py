"""The results that are published here: their store, and the suites it has runs of."""

from __future__ import annotations

import tempfile
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from calibrant.bench import (
    Results,
    Store,
    Suite,
    available,
    choose_combinations,
    code_columns,
    collect_results,
    read_choice,
    report_choice,
    with_choices,
)
from replication.claims.claim import read_claims
from replication.claims.judge import judge
from replication.claims.outcome import Outcome
from replication.proposals import proposed_by

if TYPE_CHECKING:
    import pandas as pd

HERE = Path(__file__).parent
ROOT, RESULTS, SUITES = HERE.parent, HERE / "results", HERE / "suites"


def list_suites() -> list[str]:
    """Return the names of our suites and of the package's."""
    return sorted({*available(SUITES), *available()})


def find_suite(name: str) -> Path | str:
    """Return the file of one of our suites, or the name of one of the package."""
    path = SUITES / f"{name}.yaml"
    return path if path.is_file() else name


class Stored:
    """A folder of results, each part of it read once."""

    def __init__(self, folder: Path = RESULTS) -> None:
        self.folder = folder
        self.sizes: dict[str, int] = {}  # runs by suite, those that wait for tuning included
        self._suites: dict[str, Suite] = {}
        self._results: dict[str, Results] = {}

    @cached_property
    def store(self) -> Store:
        """The store."""
        inner = self.folder / "store"
        return Store(inner if inner.is_dir() else self.folder)

    @cached_property
    def frame(self) -> pd.DataFrame:
        """Every row of the store."""
        rows = self.store.frame()
        if rows.empty:
            raise SystemExit(f"{self.folder} holds no results")
        return code_columns(rows)

    def suite(self, name: str) -> Suite:
        """Read a suite as it was run: with the choices of its tuning, beside the store."""
        if name not in self._suites:
            own = self.folder / "suites" / f"{name}.yaml"
            whole = Suite.read(own if own.is_file() else find_suite(name))
            self._suites[name] = with_choices(whole, self.folder)
            self.sizes[name] = len(whole.runs)
        return self._suites[name]

    def of(self, name: str) -> Results:
        """Return the results of a suite."""
        if name not in self._results:
            self._results[name] = collect_results(self.suite(name), self.frame)
        return self._results[name]

    @cached_property
    def outcomes(self) -> list[Outcome]:
        """Every claim, judged."""
        claims = read_claims()
        names = dict.fromkeys(
            part for claim in claims for name in claim.suites for part in name.split("+")
        )
        return judge(claims, self.frame, [self.suite(name) for name in names])

    def judge_in(self, name: str) -> list[Outcome]:
        """Judge the claims that name a suite, by its runs alone."""
        claims = [claim for claim in read_claims() if self.suite(name).name in claim.suites]
        return judge(claims, self.frame, [self.suite(name)])

    @cached_property
    def combinations(self) -> list[tuple[dict[str, Any], pd.DataFrame]]:
        """Every choice of a combination, and its test figures beside the papers' methods."""
        with tempfile.TemporaryDirectory() as folder:
            return [
                (read_choice(path) or {}, report_choice(path, self.store, proposed_by))
                for path in choose_combinations(folder, store=self.store)
            ]
