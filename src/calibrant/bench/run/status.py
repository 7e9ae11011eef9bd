"""The progress of a suite, and the time left."""

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
    """Runs by state."""

    done: int
    running: list[dict[str, Any]]  # label, epoch, epochs, since, pid
    failed: list[dict[str, Any]]  # label, kind (diverged or error), message
    waiting: list[str]  # labels
    unmeasured: list[dict[str, Any]]  # failed measurements: label, what
    seconds_left: float | None  # None: no similar run has ended yet

    @property
    def total(self) -> int:
        """The number of runs."""
        return self.done + len(self.running) + len(self.failed) + len(self.waiting)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values."""
        return {"total": self.total, **asdict(self)}


def status(specs: Iterable[Spec], out: str | Path) -> Status:
    """Read the state of runs from their folder, without changing it."""
    bench = Bench(Path(out).absolute())
    store = bench.store
    done, running, failed, waiting, unmeasured = 0, [], [], [], []
    lacking = store.failed()
    parts: list[tuple[Spec, float]] = []  # unfinished runs, with the share that is left
    for spec in distinct(specs):
        if is_held(bench.lock_path(spec.key)):
            note = read_note(bench.lock_path(spec.key))
            epoch = int(note.get("epoch", 0))
            running.append(
                {
                    "key": spec.key,
                    "label": spec.label,
                    "epoch": epoch,
                    "epochs": spec.config.epochs,
                    "since": note.get("since"),
                    "pid": note.get("pid"),
                }
            )
            parts.append((spec, max(0.0, 1.0 - epoch / spec.config.epochs)))
        elif bench.is_done(spec, store):
            done += 1
            marks = [mark for mark in lacking.get(spec.key, ()) if ("run", mark) in spec.wanted]
            unmeasured += [{"key": spec.key, "label": spec.label, "what": mark} for mark in marks]
        elif bench.failure_path(spec.key).is_file():
            failed.append(
                {
                    "key": spec.key,
                    "label": spec.label,
                    **_read_failure(bench.failure_path(spec.key)),
                }
            )
        else:
            waiting.append(spec.label)
            trained = spec.is_late and spec.early.is_measured(bench.done(spec.key, store))
            parts.append((spec, 0.0 if trained else 1.0))  # trained, waits for other runs
    left = _estimate_left(parts, store)
    return Status(done, running, failed, waiting, unmeasured, left)


def _read_failure(path: Path) -> dict[str, Any]:
    try:
        failure = json.loads(path.read_bytes())
        return {"kind": failure["kind"], "message": failure["message"]}
    except (OSError, ValueError, KeyError, TypeError):
        return {"kind": "error", "message": f"{path} cannot be read"}


def _estimate_left(parts: list[tuple[Spec, float]], store: Store) -> float | None:
    """Estimate the seconds left from the epochs of the most similar runs."""
    if not parts:
        return 0.0
    taken = compute_epoch_seconds(store)
    times = []
    for spec, share in parts:
        groups = _list_groups(spec.config.to_dict())
        group = next((group for group in groups if group in taken), None)
        if group is None:
            return None
        times.append(taken[group] * spec.config.epochs * share)
    return sum(times)


def compute_epoch_seconds(store: Store) -> dict[tuple[str, ...], float]:
    """Compute mean seconds of an epoch, measurements included, by group of similar runs.

    Runs that shared a machine count with their share of its time: see `share_time`.
    """
    rows = run_seconds(store.frame())
    rows = rows[rows["metric"] == SECONDS]
    times: dict[tuple[str, ...], list[float]] = {}
    for row in rows.itertuples():
        settings = json.loads(str(row.config))
        epoch_seconds = float(str(row.value)) / int(settings["epochs"])
        for group in _list_groups(settings):
            times.setdefault(group, []).append(epoch_seconds)
    return {key: sum(values) / len(values) for key, values in times.items()}


def share_time(ends: Array, seconds: Array, machines: Sequence[str]) -> Array:
    """Divide the time of machines among the runs that shared them.

    While k runs work at once on machines of one name, each is counted with 1/k of the time.
    """
    shares = seconds.copy()
    for name in set(machines):
        on_machine = [place for place, machine in enumerate(machines) if machine == name]
        begin, end = ends[on_machine] - seconds[on_machine], ends[on_machine]
        moments, where = np.unique(np.concatenate([begin, end]), return_inverse=True)
        change = np.bincount(where, np.repeat([1.0, -1.0], len(on_machine)), len(moments))
        at_work = np.maximum(np.cumsum(change)[:-1], 1.0)
        share = np.concatenate([[0.0], np.cumsum(np.diff(moments) / at_work)])
        shares[on_machine] = share[where[len(on_machine) :]] - share[where[: len(on_machine)]]
    return shares


def run_seconds(frame: pd.DataFrame) -> pd.DataFrame:
    """Return a row for each run with its seconds: in total or, if unknown, of training."""
    import pandas as pd

    rows = frame[(frame["part"] == "run") & frame["metric"].isin((SECONDS, "train_seconds"))]
    whole = rows["metric"] == SECONDS
    rows = rows[whole | ~rows["key"].isin(rows.loc[whole, "key"])]
    written = pd.to_datetime(rows["written"], utc=True, format="ISO8601")
    ends = (written - pd.Timestamp(0, tz="UTC")) / pd.Timedelta(seconds=1)
    machines = rows["machine"].astype(str).tolist()
    seconds = np.asarray(rows["value"], dtype=np.float64)
    shared = share_time(np.asarray(ends, dtype=np.float64), seconds, machines)
    return rows.assign(value=shared)


def _list_groups(settings: dict[str, Any]) -> list[tuple[str, ...]]:
    """List groups of similar runs, the most similar first."""
    names = ("data", "model", "recipe", "loss")
    return [tuple(str(settings[name]) for name in names[:count]) for count in range(4, 1, -1)]
