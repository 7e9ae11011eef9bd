"""Work on runs in one process: claim a run, train it, measure it, store the results."""

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
from calibrant.bench.run.locks import read_note, write_note
from calibrant.bench.store.rows import Row, make_row, now
from calibrant.bench.store.store import Store
from calibrant.bench.suite.after_names import LATE
from calibrant.bench.suite.key import key_of
from calibrant.bench.suite.spec import FAILED, MARK, SEALED, SECONDS, Spec
from calibrant.core.files import hold_lock, write_file
from calibrant.training import Diverged, Run, train

DEATHS = 5  # processes in a row that may die on a run without finishing an epoch
OFTEN = 20.0  # seconds of measuring after which results are written
PAUSE = 0.3  # seconds between looks at runs that other processes hold
Tell = Callable[[dict[str, Any]], None]


@dataclass(frozen=True)
class Bench:
    """A folder of runs and results."""

    out: Path

    @property
    def store(self) -> Store:
        """The results."""
        return Store(self.out / "store")

    def folder(self, key: str) -> Path:
        """Return the folder of a run."""
        return self.out / "runs" / key

    def lock_path(self, key: str) -> Path:
        """Return the file whose lock is the claim on a run."""
        return self.out / "runs" / f"{key}.lock"

    def failure_path(self, key: str) -> Path:
        """Return the file that records why a run failed."""
        return self.out / "failed" / f"{key}.json"

    def repeat_path(self, key: str) -> Path:
        """Return the file that lists the measurements to repeat."""
        return self.out / "again" / f"{key}.json"

    def done(self, key: str, store: Store) -> set[tuple[str, str]]:
        """Return the marks of finished measurements, except those to repeat."""
        return store.done(key) - {("run", mark) for mark in self.to_repeat(key)}

    def to_repeat(self, key: str) -> list[str]:
        """Return the marks of measurements to repeat."""
        try:
            return list(map(str, json.loads(self.repeat_path(key).read_bytes())))
        except (OSError, ValueError, TypeError):
            return []

    def repeat_failed(self, specs: Iterable[Spec], store: Store) -> None:
        """Schedule failed runs again, and failed measurements whose files were kept.

        Other measurements would need a new training: a warning counts them.
        """
        failed, left = store.failed(), 0
        for spec in specs:
            self.failure_path(spec.key).unlink(missing_ok=True)
            marks = [mark for mark in failed.get(spec.key, ()) if ("run", mark) in spec.wanted]
            kept = [mark for mark in marks if spec.logits or self._has_files(spec.key, mark)]
            left += len(marks) - len(kept)
            if kept:
                self.repeat(spec.key, kept)
        if left:
            warnings.warn(
                f"{left} failed measurements are not repeated: the files they need were not kept "
                "(`keep: weights` keeps them), and they would need another training",
                stacklevel=2,
            )

    def repeat(self, key: str, marks: Sequence[str]) -> None:
        """Schedule measurements to be repeated."""
        self._repeat(key, list(dict.fromkeys([*self.to_repeat(key), *marks])))

    def _repeat(self, key: str, marks: Sequence[str]) -> None:
        if not marks:
            self.repeat_path(key).unlink(missing_ok=True)
            return
        self.repeat_path(key).parent.mkdir(parents=True, exist_ok=True)
        write_file(self.repeat_path(key), json.dumps(list(marks)).encode())

    def _has_files(self, key: str, mark: str) -> bool:
        folder = self.folder(key)
        name = mark.removeprefix("after:").partition("(")[0]
        if mark.startswith("after:") and name not in LATE and needs_network(name):
            return (folder / run_folder.WEIGHTS).is_file()
        return (folder / run_folder.PREDICTIONS / "test.safetensors").is_file()

    def clear_repeated(self, spec: Spec) -> None:
        """Remove the measurements of a run from the list to repeat."""
        wanted = {mark for _, mark in spec.wanted}
        self._repeat(spec.key, [mark for mark in self.to_repeat(spec.key) if mark not in wanted])

    def is_done(self, spec: Spec, store: Store) -> bool:
        """Return whether all measurements are stored, and the folder, if there is one, is whole."""
        if not spec.is_measured(self.done(spec.key, store)):
            return False
        folder = self.folder(spec.key)
        if not folder.exists():
            return True  # made elsewhere and merged
        whole = run_folder.find_fault(folder, spec, large=False) is None
        return whole and (spec.logits is not None or (folder / "run.json").is_file())


def work(specs: Iterable[Spec], bench: Bench, tell: Tell, *, limit: float | None = None) -> None:
    """Make every run that no other process makes; take over runs of processes that die.

    No run is started after ``limit``, a time of `time.time`.
    """
    _load_libraries()
    store = bench.store
    left = {spec.key: spec for spec in specs}
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
    """Make a run if needed; return held (by another process), before, done or failed."""
    with hold_lock(bench.lock_path(spec.key)) as ours:
        if not ours:
            return "held"
        if bench.is_done(spec, store):
            return "before"
        if bench.failure_path(spec.key).is_file():
            return "failed"
        facts = {"key": spec.key, "label": spec.label, "epochs": spec.config.epochs}
        hold = _Hold(bench.lock_path(spec.key))
        try:
            if hold.note["deaths"] >= DEATHS:
                raise RuntimeError(
                    f"{DEATHS} processes ended while they made this run, none after a full epoch: "
                    "out of memory, or a crash outside Python"
                )
            tell({"event": "begun", **facts})
            _make(spec, bench, store, hold, lambda line: tell({**facts, **line}))
            bench.clear_repeated(spec)
            if not spec.sealed:  # a sealed run may be chosen, and is needed then
                run_folder.prune(bench.folder(spec.key), spec.keep)
            tell({"event": "done", **facts, "seconds": hold.spent()})
            return "done"
        except Exception as error:
            _write_failure(spec, bench, store, error)
            tell({"event": "failed", **facts, "why": _summarise_error(error)})
            return "failed"
        finally:
            hold.write(ended=True)
            _free_memory(spec)


class _Hold:
    """A claim on a run; its note has the process, start, progress, and deaths before it."""

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
        """Start the clock again: work for many runs is not counted."""
        self._begun = time.time()

    def spent(self) -> float:
        """Return the seconds of all attempts at this run."""
        return self.earlier + time.time() - self._begun

    def write(self, **more: Any) -> None:
        """Write the note."""
        write_note(self._lock, {**self.note, "spent": round(self.spent(), 3), **more})

    def epoch(self, number: int) -> None:
        """Record a finished epoch."""
        self.note |= {"progress": self.note["progress"] + 1, "epoch": number}
        self.write()


def _make(spec: Spec, bench: Bench, store: Store, hold: _Hold, tell: Tell) -> None:
    """Train and measure what is missing, and store the results."""
    done, again = bench.done(spec.key, store), store.failed().get(spec.key, [])
    if spec.logits is not None:
        _measure(spec, None, done, store, tell, spent=hold.spent, again=again)
        return
    folder = bench.folder(spec.key)
    if run_folder.prepare_folder(folder, spec) is not None:
        done = set()
    run = Run(folder)
    if run.is_done:
        if not (folder / run_folder.MANIFEST).is_file():
            run_folder.seal(folder)
        try:
            before = {("run", "none"), ("run", SEALED)} & done  # stored with the run's seconds
            spent = None if before else hold.spent
            _measure(spec, run, done, store, tell, spent=spent, again=again)
            return
        except FilesGone:
            run_folder.reopen(folder)

    def on_epoch(line: dict[str, Any]) -> None:
        hold.epoch(int(line["epoch"]))
        tell({"event": "epoch", **line})

    data = splits_of(spec.config)
    hold.restart()
    run = train(spec.trained, folder, data=data, on_epoch=on_epoch)
    run_folder.seal(folder)
    _repeat_pooled(spec, bench, store)
    # Everything is measured again: figures of two trainings are never mixed.
    how: dict[str, Any] = {"spent": hold.spent, "earlier": hold.earlier, "again": again}
    _measure(spec, run, set(), store, tell, **how)


def _repeat_pooled(spec: Spec, bench: Bench, store: Store) -> None:
    """Repeat measurements of other runs that used an earlier training of this run."""
    for _, mark in store.done(spec.key):
        name, _, options = mark.removeprefix("after:").partition("(")
        if mark.startswith("after:") and name in LATE:
            for config in list_family(spec.config, json.loads(options.removesuffix(")"))["seeds"]):
                key = key_of(config)
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
    """Measure a run and store rows after whole steps, so that a kill loses little.

    ``spent`` gives the seconds in total, for a row of their own; ``earlier`` are the seconds of
    killed attempts, which the run does not know. ``again`` are marks that failed before: their
    ``failed`` rows are cleared on success.
    """
    rows: list[Row] = []
    begun = time.monotonic()
    for measurement in run_steps(spec, run, done):
        if measurement.metric == "train_seconds":
            measurement = measurement._replace(value=measurement.value + earlier)
        rows.append(make_row(spec, **measurement._asdict()))
        if measurement.metric == FAILED:
            again = [mark for mark in again if mark != measurement.calibrator]
        if measurement.metric != MARK:
            continue
        if measurement.calibrator in again:
            cleared = measurement._replace(metric=FAILED, value=0.0)
            rows.append(make_row(spec, **cleared._asdict()))
        tell({"event": "measured", "what": measurement.calibrator})
        if time.monotonic() - begun > OFTEN:
            store.add(spec.key, rows)
            rows, begun = [], time.monotonic()
    if spent is not None:
        rows.append(make_row(spec, part="run", metric=SECONDS, value=spent()))
    if rows:
        store.add(spec.key, rows)


def _write_failure(spec: Spec, bench: Bench, store: Store, error: Exception) -> None:
    """Record why a run failed; divergence is stored as a result."""
    diverged = isinstance(error, Diverged)
    failure = {
        "key": spec.key,
        "label": spec.label,
        "kind": "diverged" if diverged else "error",
        "error": type(error).__name__,
        "message": str(error),
        "traceback": "".join(traceback.format_exception(error)),
        "config": spec.config.to_dict(),
        "written": now(),
    }
    path = bench.failure_path(spec.key)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_file(path, json.dumps(failure, indent=1).encode())
    if diverged:
        row = make_row(spec, part="run", calibrator="diverged", metric="diverged", value=1.0)
        store.add(spec.key, [row])


def _summarise_error(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error) else ''}"


def _load_libraries() -> None:
    """Import what every run needs, before the first run is timed."""
    import pandas  # noqa: F401
    import pyarrow.parquet  # noqa: F401

    with suppress(ImportError):  # reported where it is needed
        import lightning.fabric  # noqa: F401


def _free_memory(spec: Spec) -> None:
    """Free the memory of a run for the next run, or for another process."""
    import torch

    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    if spec.config.compile:
        import torch._dynamo

        torch._dynamo.reset()  # its limits would hold for later networks too
