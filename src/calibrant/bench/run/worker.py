"""One process's part of the work: claim a run, make it, measure it, write it down; the next."""

from __future__ import annotations

import gc
import json
import os
import time
import traceback
import warnings
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from calibrant.bench.measure.pooled import list_family
from calibrant.bench.measure.steps import needs_network, run_steps
from calibrant.bench.measure.subject import FilesGone, splits_of
from calibrant.bench.run import folder as run_folder
from calibrant.bench.run.locks import locked, read_note, write_note
from calibrant.bench.store.rows import Row, make_row, now
from calibrant.bench.store.store import Store
from calibrant.bench.suite.after_names import LATE
from calibrant.bench.suite.key import key_of
from calibrant.bench.suite.spec import FAILED, MARK, SEALED, SECONDS, Spec
from calibrant.core.files import write_file
from calibrant.training import Diverged, Run, train

DEATHS = 5  # times a run may take its process along, one after another, without an epoch done
OFTEN = 20.0  # seconds of measuring after which what there is is written
PAUSE = 0.3  # seconds between looks at runs that others hold
Tell = Callable[[dict[str, Any]], None]


@dataclass(frozen=True)
class Bench:
    """A folder of runs and their results."""

    out: Path

    @property
    def store(self) -> Store:
        """The results."""
        return Store(self.out / "store")

    def folder(self, key: str) -> Path:
        """Where a run is made."""
        return self.out / "runs" / key

    def lock(self, key: str) -> Path:
        """The file whose lock is the claim on a run."""
        return self.out / "runs" / f"{key}.lock"

    def failure(self, key: str) -> Path:
        """Where it is written why a run failed."""
        return self.out / "failed" / f"{key}.json"

    def again(self, key: str) -> Path:
        """Where it is written which measurements are to be made again."""
        return self.out / "again" / f"{key}.json"

    def done(self, key: str, store: Store) -> set[tuple[str, str]]:
        """What is measured of a run, less what is to be made again."""
        return store.done(key) - {("run", mark) for mark in self.to_repeat(key)}

    def to_repeat(self, key: str) -> list[str]:
        """The marks of measurements that failed and are to be made again."""
        try:
            return list(map(str, json.loads(self.again(key).read_bytes())))
        except (OSError, ValueError, TypeError):
            return []

    def repeat_failed(self, specs: Iterable[Spec], store: Store) -> None:
        """Let runs that failed be made again, and measurements whose files were kept.

        Others are left, with a warning: a training is more than was asked for.
        """
        failed, left = store.failed(), 0
        for one in specs:
            self.failure(one.key).unlink(missing_ok=True)
            marks = [mark for mark in failed.get(one.key, ()) if ("run", mark) in one.wanted]
            kept = [mark for mark in marks if one.logits or self._has_files(one.key, mark)]
            left += len(marks) - len(kept)
            if kept:
                self.repeat(one.key, kept)
        if left:
            warnings.warn(
                f"{left} measurements that failed are left as they are: the files they need were "
                "not kept (keep: weights would), and they would need another training",
                stacklevel=2,
            )

    def repeat(self, key: str, marks: Sequence[str]) -> None:
        """Let these be measured again, with what is to be already."""
        self._repeat(key, list(dict.fromkeys([*self.to_repeat(key), *marks])))

    def _repeat(self, key: str, marks: Sequence[str]) -> None:
        if not marks:
            self.again(key).unlink(missing_ok=True)
            return
        self.again(key).parent.mkdir(parents=True, exist_ok=True)
        write_file(self.again(key), json.dumps(list(marks)).encode())

    def _has_files(self, key: str, mark: str) -> bool:
        folder = self.folder(key)
        name = mark.removeprefix("after:").partition("(")[0]
        if mark.startswith("after:") and name not in LATE and needs_network(name):
            return (folder / run_folder.WEIGHTS).is_file()
        return (folder / run_folder.PREDICTIONS / "test.safetensors").is_file()

    def made(self, spec: Spec) -> None:
        """Take off the list of what is to be made again what has been."""
        wanted = {mark for _, mark in spec.wanted}
        self._repeat(spec.key, [one for one in self.to_repeat(spec.key) if one not in wanted])

    def is_done(self, spec: Spec, store: Store) -> bool:
        """Whether all that is wanted of a run is in the store, and its folder, if any, whole."""
        if not spec.is_measured(self.done(spec.key, store)):
            return False
        folder = self.folder(spec.key)
        if not folder.exists():
            return True  # it was made elsewhere, and merged
        whole = run_folder.what_is_wrong(folder, spec, large=False) is None
        return whole and (spec.logits is not None or (folder / "run.json").is_file())


def work(specs: Iterable[Spec], bench: Bench, tell: Tell, *, limit: float | None = None) -> None:
    """Make every run nobody else makes; wait for those others hold, and take them if they die.

    ``limit`` is the time, as of `time.time`, after which no run is begun.
    """
    _warm()
    store = bench.store
    left = {one.key: one for one in specs}
    while left:
        waiting = True
        for key, spec in list(left.items()):
            if limit is not None and time.time() >= limit:
                return
            outcome = attempt(spec, bench, store, tell)
            if outcome != "held":
                waiting = False
                del left[key]
        if left and waiting:
            time.sleep(PAUSE)


def attempt(spec: Spec, bench: Bench, store: Store, tell: Tell) -> str:
    """Make a run unless it is made: held (by another), before, done or failed."""
    with locked(bench.lock(spec.key)) as ours:
        if not ours:
            return "held"
        if bench.is_done(spec, store):
            return "before"
        if bench.failure(spec.key).is_file():
            return "failed"
        told = {"key": spec.key, "label": spec.label, "epochs": spec.config.epochs}
        hold = _Hold(bench.lock(spec.key))
        try:
            if hold.note["deaths"] >= DEATHS:
                raise RuntimeError(
                    f"{DEATHS} processes ended while they made this run, none with an epoch done: "
                    "memory, or a fault below Python"
                )
            tell({"event": "begun", **told})
            _make(spec, bench, store, hold, lambda line: tell({**told, **line}))
            bench.made(spec)
            if not spec.sealed:  # else it may be the one that is chosen, and opened
                run_folder.prune(bench.folder(spec.key), spec.keep)
            tell({"event": "done", **told, "seconds": hold.spent()})
            return "done"
        except Exception as error:
            _fail(spec, bench, store, error)
            tell({"event": "failed", **told, "why": _first_line(error)})
            return "failed"
        finally:
            hold.write(ended=True)
            _tidy(spec)


class _Hold:
    """A claim on a run; its file says by whom, since when, how far, and after what deaths."""

    def __init__(self, lock: Path) -> None:
        before = read_note(lock)
        died = "pid" in before and not before.get("ended")
        stuck = died and not before.get("progress")
        self._lock, self._begun = lock, time.time()
        self.earlier = float(before.get("spent", 0.0)) if died else 0.0
        self.note: dict[str, Any] = {
            "pid": os.getpid(),
            "since": now(),
            "deaths": int(before.get("deaths", 0)) + 1 if stuck else 0,
            "progress": 0,
            "epoch": 0,
        }
        self.write()

    def restart(self) -> None:
        """Let the time begin now: what was done for many runs is not this one's."""
        self._begun = time.time()

    def spent(self) -> float:
        """Seconds of all attempts at this run."""
        return self.earlier + time.time() - self._begun

    def write(self, **more: Any) -> None:
        """Put it down."""
        write_note(self._lock, {**self.note, "spent": round(self.spent(), 3), **more})

    def epoch(self, number: int) -> None:
        """Say that an epoch is done."""
        self.note |= {"progress": self.note["progress"] + 1, "epoch": number}
        self.write()


def _make(spec: Spec, bench: Bench, store: Store, hold: _Hold, tell: Tell) -> None:
    """Train what is not trained, measure what is not measured, and add that to the store."""
    done, again = bench.done(spec.key, store), store.failed().get(spec.key, [])
    if spec.logits is not None:
        _measure(spec, None, done, store, tell, spent=hold.spent, again=again)
        return
    folder = bench.folder(spec.key)
    if run_folder.take_up(folder, spec) is not None:
        done = set()
    run = Run(folder)
    if run.is_done:
        if not (folder / run_folder.MANIFEST).is_file():
            run_folder.seal(folder)
        try:
            before = {("run", "none"), ("run", SEALED)} & done  # and with it what the run took
            spent = None if before else hold.spent
            _measure(spec, run, done, store, tell, spent=spent, again=again)
            return
        except FilesGone:
            run_folder.begin_again(folder)

    def on_epoch(line: dict[str, Any]) -> None:
        hold.epoch(int(line["epoch"]))
        tell({"event": "epoch", **line})

    data = splits_of(spec.config)
    hold.restart()
    run = train(spec.trained, folder, data=data, on_epoch=on_epoch)
    run_folder.seal(folder)
    _outdate(spec, bench, store)
    # What an earlier training gave is measured again: no figures of two are mixed.
    how: dict[str, Any] = {"spent": hold.spent, "earlier": hold.earlier, "again": again}
    _measure(spec, run, set(), store, tell, **how)


def _outdate(spec: Spec, bench: Bench, store: Store) -> None:
    """Let what other runs measured with an earlier training of this one be measured again."""
    for _, mark in store.done(spec.key):
        name, _, options = mark.removeprefix("after:").partition("(")
        if mark.startswith("after:") and name in LATE:
            for one in list_family(spec.config, json.loads(options.removesuffix(")"))["seeds"]):
                key = key_of(one)
                if ("run", mark) in store.done(key):
                    bench.repeat(key, [mark])


def _measure(
    spec: Spec,
    run: Run | None,
    done: set[tuple[str, str]],
    store: Store,
    tell: Tell,
    *,
    spent: Callable[[], float] | None = None,
    earlier: float = 0.0,
    again: Sequence[str] = (),
) -> None:
    """Add rows as they come, by whole steps, so that a kill costs little of them.

    ``spent`` gives the seconds of it all, for a row of their own; ``earlier`` are those of
    attempts that were killed, which the run itself does not know of. ``again`` are marks of what
    had failed: it is written down when they have not.
    """
    rows: list[Row] = []
    begun = time.monotonic()
    for one in run_steps(spec, run, done):
        if one.metric == "train_seconds":
            one = one._replace(value=one.value + earlier)
        rows.append(make_row(spec, **one._asdict()))
        if one.metric == FAILED:
            again = [mark for mark in again if mark != one.calibrator]
        if one.metric != MARK:
            continue
        if one.calibrator in again:
            cleared = one._replace(metric=FAILED, value=0.0)
            rows.append(make_row(spec, **cleared._asdict()))
        tell({"event": "measured", "what": one.calibrator})
        if time.monotonic() - begun > OFTEN:
            store.add(spec.key, rows)
            rows, begun = [], time.monotonic()
    if spent is not None:
        rows.append(make_row(spec, part="run", metric=SECONDS, value=spent()))
    if rows:
        store.add(spec.key, rows)


def _fail(spec: Spec, bench: Bench, store: Store, error: Exception) -> None:
    """Write down why a run failed; a loss that stopped being a number is a result."""
    diverged = isinstance(error, Diverged)
    told = {
        "key": spec.key,
        "label": spec.label,
        "kind": "diverged" if diverged else "error",
        "error": type(error).__name__,
        "message": str(error),
        "traceback": "".join(traceback.format_exception(error)),
        "config": spec.config.to_dict(),
        "written": now(),
    }
    path = bench.failure(spec.key)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_file(path, json.dumps(told, indent=1).encode())
    if diverged:
        row = make_row(spec, part="run", calibrator="diverged", metric="diverged", value=1.0)
        store.add(spec.key, [row])


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error) else ''}"


def _warm() -> None:
    """Load what every run loads, before the first one's time is taken."""
    import pandas  # noqa: F401
    import pyarrow.parquet  # noqa: F401

    with suppress(ImportError):  # its absence is told where it is needed
        import lightning.fabric  # noqa: F401


def _tidy(spec: Spec) -> None:
    """Give back the memory of a run, so that the next, or another process's, has it."""
    import torch

    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    if spec.config.compile:
        import torch._dynamo

        torch._dynamo.reset()  # else a later run's network meets this one's limits
