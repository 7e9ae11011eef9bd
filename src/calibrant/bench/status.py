"""How far a suite is, and how long the rest will take."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from calibrant.bench.costs import timed
from calibrant.bench.locking import is_held, read_note
from calibrant.bench.spec import SECONDS, Spec, distinct
from calibrant.bench.store import Store
from calibrant.bench.work import Bench


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
    rows = timed(store.frame())
    rows = rows[rows["metric"] == SECONDS]
    found: dict[tuple[str, ...], list[float]] = {}
    for row in rows.itertuples():
        settings = json.loads(str(row.config))
        each = float(row.value) / int(settings["epochs"])
        for likeness in _alike(settings):
            found.setdefault(likeness, []).append(each)
    return {key: sum(values) / len(values) for key, values in found.items()}


def _likeness(spec: Spec) -> list[tuple[str, ...]]:
    return _alike(spec.config.to_dict())


def _alike(settings: dict[str, Any]) -> list[tuple[str, ...]]:
    """From the most alike to the least."""
    names = ("data", "model", "recipe", "loss")
    return [tuple(str(settings[one]) for one in names[:count]) for count in range(4, 1, -1)]
