"""How far a suite is, and how long the rest will take."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from calibrant.bench.run.locks import is_held, read_note
from calibrant.bench.run.worker import Bench
from calibrant.bench.store.store import Store
from calibrant.bench.suite.spec import SECONDS, Spec, distinct

if TYPE_CHECKING:
    import pandas as pd

Array: TypeAlias = "np.ndarray[Any, np.dtype[np.float64]]"


@dataclass(frozen=True)
class Status:
    """Runs by what has become of them."""

    done: int
    running: list[dict[str, Any]]  # label, epoch, epochs, since, pid
    failed: list[dict[str, Any]]  # label, kind (diverged or error), message
    waiting: list[str]  # labels
    unmeasured: list[dict[str, Any]]  # of runs done: label, what (the measurement that failed)
    seconds_left: float | None  # None: no run like those left has ended yet

    @property
    def total(self) -> int:
        """All runs."""
        return self.done + len(self.running) + len(self.failed) + len(self.waiting)

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return {"total": self.total, **asdict(self)}


def status(specs: Iterable[Spec], out: str | Path) -> Status:
    """Look at a folder of runs; nothing in it is changed, and runs in progress go on."""
    bench = Bench(Path(out).absolute())
    store = bench.store
    done, running, failed, waiting, unmeasured = 0, [], [], [], []
    lacking = store.failed()
    parts: list[tuple[Spec, float]] = []  # runs not ended, and the share of each that is left
    for one in distinct(specs):
        if is_held(bench.lock(one.key)):
            note = read_note(bench.lock(one.key))
            epoch = int(note.get("epoch", 0))
            running.append(
                {
                    "key": one.key,
                    "label": one.label,
                    "epoch": epoch,
                    "epochs": one.config.epochs,
                    "since": note.get("since"),
                    "pid": note.get("pid"),
                }
            )
            parts.append((one, max(0.0, 1.0 - epoch / one.config.epochs)))
        elif bench.is_done(one, store):
            done += 1
            marks = [mark for mark in lacking.get(one.key, ()) if ("run", mark) in one.wanted]
            unmeasured += [{"key": one.key, "label": one.label, "what": mark} for mark in marks]
        elif bench.failure(one.key).is_file():
            failed.append({"key": one.key, "label": one.label, **_why(bench.failure(one.key))})
        else:
            waiting.append(one.label)
            trained = one.is_late and one.early.is_measured(bench.done(one.key, store))
            parts.append((one, 0.0 if trained else 1.0))  # some only wait for others
    left = _left(parts, store)
    return Status(done, running, failed, waiting, unmeasured, left)


def _why(path: Path) -> dict[str, Any]:
    try:
        told = json.loads(path.read_bytes())
        return {"kind": told["kind"], "message": told["message"]}
    except (OSError, ValueError, KeyError, TypeError):
        return {"kind": "error", "message": f"{path} cannot be read"}


def _left(parts: list[tuple[Spec, float]], store: Store) -> float | None:
    """Seconds at the pace so far, by what the most similar runs took an epoch."""
    if not parts:
        return 0.0
    taken = seconds_an_epoch(store)
    found = []
    for spec, share in parts:
        likeness = next((one for one in _likeness(spec) if one in taken), None)
        if likeness is None:
            return None
        found.append(taken[likeness] * spec.config.epochs * share)
    return sum(found)


def seconds_an_epoch(store: Store) -> dict[tuple[str, ...], float]:
    """Mean seconds of an epoch, measuring included, of runs alike in this and that.

    Of each run its share of the machine, where others were at work on it as well: so many at
    once take as long as one after another.
    """
    rows = run_seconds(store.frame())
    rows = rows[rows["metric"] == SECONDS]
    found: dict[tuple[str, ...], list[float]] = {}
    for row in rows.itertuples():
        settings = json.loads(str(row.config))
        each = float(row.value) / int(settings["epochs"])
        for likeness in _alike(settings):
            found.setdefault(likeness, []).append(each)
    return {key: sum(values) / len(values) for key, values in found.items()}


def share_time(ends: Array, seconds: Array, machines: Sequence[str]) -> Array:
    """The seconds each run would have taken alone, from when it ended and how long it took.

    While k runs are at work at once on machines of one name, each is taken to have a k-th of
    one: a run cost the time it took, by the share it had.
    """
    found = seconds.copy()
    for name in set(machines):
        here = [place for place, machine in enumerate(machines) if machine == name]
        begin, end = ends[here] - seconds[here], ends[here]
        moments, where = np.unique(np.concatenate([begin, end]), return_inverse=True)
        change = np.bincount(where, np.repeat([1.0, -1.0], len(here)), len(moments))
        at_work = np.maximum(np.cumsum(change)[:-1], 1.0)
        share = np.concatenate([[0.0], np.cumsum(np.diff(moments) / at_work)])
        found[here] = share[where[len(here) :]] - share[where[: len(here)]]
    return found


def run_seconds(frame: pd.DataFrame) -> pd.DataFrame:
    """A row a run, with the seconds it took: all of it, or where that was not kept, training."""
    import pandas as pd

    rows = frame[(frame["part"] == "run") & frame["metric"].isin((SECONDS, "train_seconds"))]
    whole = rows["metric"] == SECONDS
    rows = rows[whole | ~rows["key"].isin(rows.loc[whole, "key"])]
    written = pd.to_datetime(rows["written"], utc=True, format="ISO8601")
    ends = (written - pd.Timestamp(0, tz="UTC")) / pd.Timedelta(seconds=1)
    machines = rows["machine"].astype(str).tolist()
    return rows.assign(value=share_time(ends.to_numpy(), rows["value"].to_numpy(), machines))


def _likeness(spec: Spec) -> list[tuple[str, ...]]:
    return _alike(spec.config.to_dict())


def _alike(settings: dict[str, Any]) -> list[tuple[str, ...]]:
    """From the most alike to the least."""
    names = ("data", "model", "recipe", "loss")
    return [tuple(str(settings[one]) for one in names[:count]) for count in range(4, 1, -1)]
