"""Choices by validation figures: written to a file before test figures can be read.

A choice is made from `ValidationRows`, which has no test figures. `open_test_rows` returns the
test figures of the runs that a written choice names.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from calibrant.bench.measure.crossfit import PART as CROSSFIT
from calibrant.bench.store.store import Store
from calibrant.bench.suite.key import canonical_json
from calibrant.bench.suite.spec import MARK, SEALED
from calibrant.core.errors import InputError
from calibrant.core.files import write_file

if TYPE_CHECKING:
    import pandas as pd

PARTS = ("validation", CROSSFIT)
FOLDER = "choices"  # in a folder of runs
NEEDED = ("rule", "candidates", "chosen", "keys")
# Share of the others' accuracy; a network below it has not learned, whatever its ECE.
LEARNED = 0.5


class ValidationRows:
    """The validation figures of a store; ``opened`` names the runs that are not sealed."""

    __slots__ = ("_frame", "opened")

    def __init__(self, store: Store) -> None:
        everything = store.frame()
        kept = everything[everything["part"].isin(PARTS)]
        # A copy, so that no test figure stays in memory.
        self._frame: pd.DataFrame = kept.reset_index(drop=True).copy(deep=True)
        sealed = everything["metric"].eq(MARK) & everything["calibrator"].eq(SEALED)
        opened = everything["metric"].eq(MARK) & everything["calibrator"].eq("none")
        keys = set(everything.loc[sealed, "key"]) - set(everything.loc[opened, "key"])
        self.opened = frozenset(map(str, set(everything["key"]) - keys))

    @property
    def frame(self) -> pd.DataFrame:
        """The rows of the parts ``validation`` and ``validation:crossfit``."""
        return self._frame.copy()

    def figures(self, keys: Iterable[str], metrics: Sequence[str]) -> pd.DataFrame:
        """Return uncalibrated figures: a row for each complete run, a column for each metric."""
        rows = self._frame[
            self._frame["key"].isin(list(keys))
            & (self._frame["part"] == "validation")
            & (self._frame["calibrator"] == "none")
            & self._frame["metric"].isin(metrics)
        ]
        table = rows.pivot(index="key", columns="metric", values="value")
        return table.reindex(columns=list(metrics)).dropna()


def choice_path(out: str | os.PathLike[str], name: str, question: Mapping[str, Any]) -> Path:
    """Return the file of the answer to a question; every question has its own file."""
    digest = hashlib.sha256(canonical_json(question).encode()).hexdigest()[:12]
    safe = "".join(sign if sign.isalnum() or sign in "._-" else "_" for sign in name)
    return Path(out) / FOLDER / f"{safe}-{digest}.json"


def write_choice(path: Path, choice: dict[str, Any]) -> dict[str, Any]:
    """Write a choice: its rule, its candidates, the chosen ones, and the runs it opens."""
    lacking = [name for name in NEEDED if name not in choice]
    if lacking:
        raise InputError(f"a choice needs {', '.join(lacking)}")
    path.parent.mkdir(parents=True, exist_ok=True)
    _write_once(path, choice)
    return choice


def read_choice(path: Path) -> dict[str, Any] | None:
    """Read a choice; None if there is none."""
    if not path.is_file():
        return None
    try:
        choice = json.loads(path.read_text(encoding="utf-8"))
    except ValueError:
        choice = None
    if not isinstance(choice, dict) or any(name not in choice for name in NEEDED):
        raise InputError(f"{path} holds no complete choice: delete it, and choose again")
    return choice


def open_test_rows(path: Path, store: Store) -> pd.DataFrame:
    """Return test figures of the runs that a written choice names."""
    choice = read_choice(path)
    if choice is None:
        raise InputError(
            f"{path}: nothing is chosen yet; test figures stay sealed until a choice is made"
        )
    everything = store.frame()
    opened = everything["key"].isin(choice["keys"]) & everything["part"].str.startswith("test")
    return everything[opened].reset_index(drop=True)


def _write_once(target: Path, choice: dict[str, Any]) -> None:
    """Write a choice; a different choice that exists is an error."""
    text = json.dumps(choice, indent=1, sort_keys=True)
    whole = target.with_name(f".{target.name}.{os.getpid()}")
    write_file(whole, text.encode())
    try:
        os.link(whole, target)  # unlike a rename, never replaces a file
    except FileExistsError:
        if read_choice(target) != json.loads(text):
            raise InputError(f"{target} holds another choice, which cannot be changed") from None
    finally:
        whole.unlink()
