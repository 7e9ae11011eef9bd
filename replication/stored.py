"""Read the published results: their store, and the suites with runs in it."""

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
from replication.proposals import find_proposer

if TYPE_CHECKING:
    import pandas as pd

HERE = Path(__file__).parent
ROOT, RESULTS, SUITES = HERE.parent, HERE / "results", HERE / "suites"


def list_suites() -> list[str]:
    """List the names of our suites and of the package's."""
    return sorted({*available(SUITES), *available()})


def find_suite(name: str) -> Path | str:
    """Find the file of one of our suites; return the name if it is a suite of the package."""
    path = SUITES / f"{name}.yaml"
    return path if path.is_file() else name


class StoredResults:
    """Read a results folder, each part once."""

    def __init__(self, folder: Path = RESULTS) -> None:
        self.folder = folder
        self.sizes: dict[str, int] = {}  # runs by suite, including those that wait for tuning
        self._suites: dict[str, Suite] = {}
        self._results: dict[str, Results] = {}

    @cached_property
    def store(self) -> Store:
        """Open the store."""
        inner = self.folder / "store"
        return Store(inner if inner.is_dir() else self.folder)

    @cached_property
    def frame(self) -> pd.DataFrame:
        """Read every row of the store."""
        rows = self.store.frame()
        if rows.empty:
            raise SystemExit(f"{self.folder} has no results")
        return code_columns(rows)

    def read_suite(self, name: str) -> Suite:
        """Read a suite as it was run, with its tuning choices from beside the store."""
        if name not in self._suites:
            own = self.folder / "suites" / f"{name}.yaml"
            whole = Suite.read(own if own.is_file() else find_suite(name))
            self._suites[name] = with_choices(whole, self.folder)
            self.sizes[name] = len(whole.runs)
        return self._suites[name]

    def get_results(self, name: str) -> Results:
        """Collect the results of a suite."""
        if name not in self._results:
            self._results[name] = collect_results(self.read_suite(name), self.frame)
        return self._results[name]

    @cached_property
    def outcomes(self) -> list[Outcome]:
        """Judge every claim."""
        claims = read_claims()
        names = dict.fromkeys(
            part for claim in claims for name in claim.suites for part in name.split("+")
        )
        return judge(claims, self.frame, [self.read_suite(name) for name in names])

    def judge_in(self, name: str) -> list[Outcome]:
        """Judge the claims that name a suite by its runs alone."""
        claims = [claim for claim in read_claims() if self.read_suite(name).name in claim.suites]
        return judge(claims, self.frame, [self.read_suite(name)])

    @cached_property
    def combinations(self) -> list[tuple[dict[str, Any], pd.DataFrame]]:
        """List every chosen combination with its test figures beside the papers' methods."""
        with tempfile.TemporaryDirectory() as folder:
            return [
                (read_choice(path) or {}, report_choice(path, self.store, find_proposer))
                for path in choose_combinations(folder, store=self.store)
            ]
