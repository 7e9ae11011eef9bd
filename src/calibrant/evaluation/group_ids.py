"""Which row of a file of groups belongs to which row of the predictions, by their ids."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from calibrant.functional.errors import InputError, first

_UNCOMPARED = "ids could not be compared: {} have none; rows were taken in the order of the file"


def places(ids: NDArray[Any], theirs: NDArray[Any]) -> NDArray[np.int64]:
    """Where each row of the predictions is among the groups: the same ids, in whatever order."""
    if ids.shape != theirs.shape:
        raise InputError(f"found ids of shape {ids.shape} for {len(theirs):,} rows: one for each")
    mine = np.array([as_text(one) for one in ids.tolist()])
    wanted = np.array([as_text(one) for one in theirs.tolist()])
    wrong = np.flatnonzero(mine != wanted)
    if not len(wrong):
        return np.arange(len(wanted))
    names, where = np.unique(mine, return_index=True)
    if not np.isin(wanted, names).any():
        raise InputError(
            f"none of the ids of the groups ({_two(mine)}) is an id of the predictions "
            f"({_two(wanted)}): name another column with --id-column (id_column=)"
        )
    missing = wanted[~np.isin(wanted, names)]
    if len(missing):
        raise InputError(
            f"the ids of the groups are not those of the predictions: {len(missing):,} of "
            f"{len(wanted):,} have no group, first {first(missing.tolist(), 2)}"
        )
    others, repeats = np.unique(wanted, return_counts=True)
    if twice := others[repeats > 1].tolist():
        raise InputError(
            f"the ids of the groups are not those of the predictions in {len(wrong):,} rows, first "
            f"{first(wrong.tolist())}, and some are there more than once ({first(twice, 2)}), so "
            "that rows cannot be found by them: bring both into the same order"
        )
    return where[np.searchsorted(names, wanted)].astype(np.int64)


def as_text(value: Any) -> str:
    """A value as text, the same whether a file holds it as text, bytes or a number."""
    if isinstance(value, bytes):
        value = value.decode("utf-8", "replace")
    whole = isinstance(value, float) and value.is_integer()
    return str(int(value) if whole else value).strip()


def uncompared(ids: NDArray[Any] | None, theirs: NDArray[Any] | None) -> tuple[str, ...]:
    """A warning where one side alone has ids: nothing then shows that the rows are the same."""
    if (ids is None) == (theirs is None):
        return ()
    return (_UNCOMPARED.format("the groups" if ids is None else "the predictions"),)


def _two(ids: NDArray[Any]) -> str:
    return first((repr(str(one)) for one in ids), 2)
