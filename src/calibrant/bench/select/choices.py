"""Choosing by the results of many runs: validation figures, the choice written, then the test.

`sealed` is the same for one run's files. Whoever chooses is given `ValidationRows`, which has
no test figures in it; `open_test_rows` gives those of the runs a written choice names.
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
FOLDER = "choices"  # below the folder of a bench
NEEDED = ("rule", "candidates", "chosen", "keys")
# Of the others' accuracy: with less a network has not learned, and a low ECE is no merit of it.
LEARNED = 0.5


class ValidationRows:
    """The validation figures of a store, and no others; which runs are opened, it may know."""

    __slots__ = ("_frame", "opened")

    def __init__(self, store: Store) -> None:
        everything = store.frame()
        kept = everything[everything["part"].isin(PARTS)]
        # A copy: a view would keep the rest within reach.
        self._frame: pd.DataFrame = kept.reset_index(drop=True).copy(deep=True)
        sealed = everything["metric"].eq(MARK) & everything["calibrator"].eq(SEALED)
        opened = everything["metric"].eq(MARK) & everything["calibrator"].eq("none")
        keys = set(everything.loc[sealed, "key"]) - set(everything.loc[opened, "key"])
        self.opened = frozenset(map(str, set(everything["key"]) - keys))

    @property
    def frame(self) -> pd.DataFrame:
        """Rows of the parts ``validation`` and ``validation:crossfit``."""
        return self._frame.copy()

    def figures(self, keys: Iterable[str], metrics: Sequence[str]) -> pd.DataFrame:
        """Uncalibrated figures, a row a run (of those that have them all), a column a metric."""
        rows = self._frame[
            self._frame["key"].isin(list(keys))
            & (self._frame["part"] == "validation")
            & (self._frame["calibrator"] == "none")
            & self._frame["metric"].isin(metrics)
        ]
        table = rows.pivot(index="key", columns="metric", values="value")
        return table.reindex(columns=list(metrics)).dropna()


def choice_path(out: str | os.PathLike[str], name: str, question: Mapping[str, Any]) -> Path:
    """Where the answer to a question is written: another question, another file."""
    digest = hashlib.sha256(canonical_json(question).encode()).hexdigest()[:12]
    safe = "".join(sign if sign.isalnum() or sign in "._-" else "_" for sign in name)
    return Path(out) / FOLDER / f"{safe}-{digest}.json"


def write_choice(path: Path, choice: dict[str, Any]) -> dict[str, Any]:
    """Write a choice: by what rule, from which candidates, what, and the runs it opens."""
    lacking = [name for name in NEEDED if name not in choice]
    if lacking:
        raise InputError(f"a choice tells its {', '.join(lacking)}, found none")
    path.parent.mkdir(parents=True, exist_ok=True)
    _write_once(path, choice)
    return choice


def read_choice(path: Path) -> dict[str, Any] | None:
    """A choice as written; None where none is."""
    if not path.is_file():
        return None
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except ValueError:
        found = None
    if not isinstance(found, dict) or any(name not in found for name in NEEDED):
        raise InputError(f"{path} holds no whole choice: delete it, and choose again")
    return found


def open_test_rows(path: Path, store: Store) -> pd.DataFrame:
    """Test figures of the runs a written choice names; an error where nothing is chosen yet."""
    choice = read_choice(path)
    if choice is None:
        raise InputError(f"{path}: nothing is chosen yet, and the test is opened after the choice")
    everything = store.frame()
    opened = everything["key"].isin(choice["keys"]) & everything["part"].str.startswith("test")
    return everything[opened].reset_index(drop=True)


def _write_once(target: Path, choice: dict[str, Any]) -> None:
    """Write a choice down; one that is there already may not be changed."""
    text = json.dumps(choice, indent=1, sort_keys=True)
    whole = target.with_name(f".{target.name}.{os.getpid()}")
    write_file(whole, text.encode())
    try:
        os.link(whole, target)  # unlike a rename, this never takes another's place
    except FileExistsError:
        if _read_json(target) != json.loads(text):
            raise InputError(f"{target} holds another choice, made before: it stands") from None
    finally:
        whole.unlink()


def _read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, json.JSONDecodeError):
        return None
