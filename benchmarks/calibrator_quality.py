"""Every calibrator on every set and split: test figures, one JSON line each.

A line holds all that the report needs, so that runs may be done in pieces and on several
machines, and their lines put into one file. Each fit runs in a worker process with one
thread; one that goes beyond the time limit is stopped and recorded, as is one that fails.
"""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import os
import resource
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from functools import lru_cache
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

import synthetic
from calibrator_contestants import (
    OURS,
    everyone,
    floored,
    quiet_warnings,
    softmax,
    version_of,
)

ROOT = Path(__file__).resolve().parent.parent
SEEDS = (0, 1, 2, 3, 4)
BINS = 15
RESAMPLES = 500
START = 300.0  # seconds a worker may take to start and import
Line = dict[str, Any]
Key = tuple[str, int, str]


# --- sets and splits -------------------------------------------------------------------


def data_folder(named: str | None) -> Path | None:
    """The folder of real data: as named, by the environment, or beside the checkout."""
    chosen = named or os.environ.get("CALIBRANT_TEST_DATA")
    folder = Path(chosen) if chosen else ROOT.parent / "shared" / "data"
    return folder if (folder / "logits").is_dir() else None


def set_names(folder: Path | None) -> list[str]:
    """Real sets by name, then the synthetic ones."""
    real = sorted(path.stem for path in (folder / "logits").glob("*.npz")) if folder else []
    return [*real, *synthetic.NAMES]


@lru_cache(maxsize=2)
def read_set(name: str, folder: Path | None) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Logits and labels; probabilities become the logarithm of the floored ones."""
    if name in synthetic.NAMES:
        return synthetic.make(name)
    if folder is None:
        raise FileNotFoundError(f"no data folder for {name}")
    with np.load(folder / "logits" / f"{name}.npz", allow_pickle=False) as found:
        labels = found["labels"].astype(np.int64)
        if "logits" in found:
            return found["logits"].astype(np.float32), labels
        return np.log(floored(found["probs"])).astype(np.float32), labels


def halves(rows: int, seed: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Rows to fit on and rows to test on."""
    order = np.random.default_rng(seed).permutation(rows)
    return order[: rows // 2], order[rows // 2 :]


# --- figures ---------------------------------------------------------------------------


def bin_gaps(probs: NDArray[np.float64], labels: NDArray[np.int64]) -> NDArray[np.float64]:
    """(rows, bins): confidence minus correctness in the row's bin, 0 elsewhere."""
    confidence, right = probs.max(1), probs.argmax(1) == labels
    index = np.clip(np.ceil(confidence * BINS).astype(int) - 1, 0, BINS - 1)
    gaps = np.zeros((len(labels), BINS))
    gaps[np.arange(len(labels)), index] = confidence - right
    return gaps


def figures(probs: NDArray[np.float64], labels: NDArray[np.int64]) -> dict[str, float]:
    """Test figures of floored probabilities."""
    rows = len(labels)
    true = probs[np.arange(rows), labels]
    return {
        "nll": float(-np.log(true).mean()),
        "ece": float(np.abs(bin_gaps(probs, labels).sum(0)).sum() / rows),
        "accuracy": float((probs.argmax(1) == labels).mean()),
        "brier": float(((probs**2).sum(1) - 2 * true + 1).mean()),
    }


def against(
    probs: NDArray[np.float64], before: NDArray[np.float64], labels: NDArray[np.int64], seed: int
) -> dict[str, float]:
    """Difference from the uncalibrated on the same rows, with its error over rows.

    The error of NLL is that of a mean of paired differences; that of ECE is the standard
    deviation over resamples of rows, the same rows for both.
    """
    rows = len(labels)
    each = np.arange(rows)
    change = np.log(before[each, labels]) - np.log(probs[each, labels])
    after, first = bin_gaps(probs, labels), bin_gaps(before, labels)
    generator = np.random.default_rng(seed)
    differences = []
    for _ in range(RESAMPLES):
        counts = np.bincount(generator.integers(rows, size=rows), minlength=rows)
        differences.append(np.abs(counts @ after).sum() - np.abs(counts @ first).sum())
    return {
        "nll_change": float(change.mean()),
        "nll_change_error": float(change.std(ddof=1) / rows**0.5),
        "ece_change": float((np.abs(after.sum(0)).sum() - np.abs(first.sum(0)).sum()) / rows),
        "ece_change_error": float(np.std(differences, ddof=1) / rows),
    }


# --- one line --------------------------------------------------------------------------


@lru_cache(maxsize=1)
def source_digest() -> str:
    """Which state of calibrant's own code a line of ours comes from."""
    import calibrant

    folder = Path(calibrant.__file__).parent
    digest = hashlib.sha256()
    for path in sorted(folder.glob("*/*.py")):
        if path.parent.name in ("calibrators", "functional"):
            digest.update(path.read_bytes())
    return digest.hexdigest()[:12]


def start_line(key: Key) -> Line:
    name, seed, contestant = key
    library = everyone()[contestant].library
    return {
        "set": name,
        "seed": seed,
        "contestant": contestant,
        "library": library,
        "version": version_of(library),
        "source": source_digest() if library == OURS else "",
        "torch": version_of("torch"),
        "at": time.strftime("%Y-%m-%d %H:%M", time.gmtime()),
        "failure": "",
    }


def measure(key: Key, folder: Path | None) -> Line:
    """Fit on one half, predict the other; never raises for what the contestant does."""
    name, seed, contestant = key
    logits, labels = read_set(name, folder)
    fit, test = halves(len(labels), seed)
    torch.manual_seed(seed)
    np.random.seed(seed)  # noqa: NPY002 - peers that draw at all draw from here
    line = start_line(key)
    line |= {"rows_fit": len(fit), "rows_test": len(test), "classes": logits.shape[1]}
    entry = everyone()[contestant]
    try:
        begun = time.perf_counter()
        predict = entry.fit(logits[fit], labels[fit])
        line["fit_seconds"] = time.perf_counter() - begun
        begun = time.perf_counter()
        raw = np.asarray(predict(logits[test]), dtype=np.float64)
        line["predict_seconds"] = time.perf_counter() - begun
        if raw.shape != (len(test), logits.shape[1]):
            raise ValueError(f"gave probabilities of shape {raw.shape}")
    except Exception as error:  # a peer may fail in any way: say so and go on
        line["failure"] = describe(error)
        return line
    # How often the class that came true was given no chance at all: NLL would be infinite.
    true = raw[np.arange(len(test)), labels[test]]
    line["zeros"] = int((~(true > 0)).sum())
    line["not_numbers"] = int(np.isnan(raw).any(1).sum())
    probs = floored(raw)
    line |= figures(probs, labels[test])
    if entry.library == OURS:
        line |= against(probs, floored(softmax(logits[test])), labels[test], seed)
        line["says"] = getattr(predict, "says", "")
    return line


def describe(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}".strip().splitlines()[0][:160]


# --- many, in worker processes ---------------------------------------------------------


def work(channel: Connection, folder: Path | None, memory: float) -> None:
    """A worker: measures what it is sent until it is told to stop."""
    quiet_warnings()
    torch.set_num_threads(1)
    if memory > 0:
        limit = int(memory * 2**30)
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    with open(os.devnull, "w") as nowhere:  # peers print
        sys.stdout, sys.stderr = nowhere, nowhere
        everyone()
        channel.send(None)
        while (key := channel.recv()) is not None:
            channel.send(measure(key, folder))


@dataclass
class Worker:
    """A process, how to talk to it, and what it is doing until when."""

    process: Any
    channel: Connection
    key: Key | None = None
    deadline: float = float("inf")


def start_worker(folder: Path | None, memory: float) -> Worker:
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    process = context.Process(target=work, args=(there, folder, memory), daemon=True)
    process.start()
    there.close()
    return Worker(process, here, deadline=time.monotonic() + START)


def stop_worker(worker: Worker) -> None:
    worker.process.kill()
    worker.process.join()
    worker.channel.close()


def hear(worker: Worker, ready: Sequence[object]) -> tuple[str, Line | None]:
    """What became of a worker: ``busy``, ``idle`` (with its line), ``died`` or ``overdue``."""
    if worker.channel not in ready:
        return ("overdue" if time.monotonic() > worker.deadline else "busy"), None
    try:
        return "idle", worker.channel.recv()
    except (EOFError, OSError):
        return "died", None


def run(
    keys: Sequence[Key], folder: Path | None, *, jobs: int, limit: float, memory: float
) -> Iterator[Line]:
    """Lines as they come. After one split was cut off, the set's others are not tried."""
    for variable in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        os.environ[variable] = "1"
    waiting = list(reversed(keys))
    too_slow: dict[tuple[str, str], int] = {}
    workers = [start_worker(folder, memory) for _ in range(min(jobs, len(keys)))]
    while workers:
        ready = wait([worker.channel for worker in workers], timeout=0.5)
        for worker in list(workers):
            state, line = hear(worker, ready)
            if state == "busy":
                continue
            if state != "idle":
                stop_worker(worker)
                workers.remove(worker)
                if worker.key is None:
                    raise RuntimeError("a worker did not start")
                name, seed, contestant = worker.key
                reason = "the process ended"
                if state == "overdue":
                    too_slow[name, contestant] = seed
                    reason = f"cut off after {limit:.0f} s"
                yield start_line(worker.key) | {"failure": reason}
                if waiting:
                    workers.append(start_worker(folder, memory))
                continue
            if line is not None:
                yield line
            while waiting and (waiting[-1][0], waiting[-1][2]) in too_slow:
                skipped = waiting.pop()
                seed = too_slow[skipped[0], skipped[2]]
                yield start_line(skipped) | {"failure": f"not tried: cut off on split {seed}"}
            worker.key = waiting.pop() if waiting else None
            worker.deadline = time.monotonic() + limit
            worker.channel.send(worker.key)
            if worker.key is None:
                worker.process.join()
                worker.channel.close()
                workers.remove(worker)


# --- the file of lines -----------------------------------------------------------------


def read_lines(paths: Iterable[Path]) -> dict[Key, Line]:
    """The latest line of each (set, seed, contestant).

    A peer's failure (a package that one of several machines lacks) replaces no result.
    """
    found: dict[Key, Line] = {}
    for path in paths:
        for text in path.read_text().splitlines() if path.exists() else []:
            line = json.loads(text)
            key = line["set"], line["seed"], line["contestant"]
            earlier = found.get(key, line)
            if line["library"] == OURS or not line["failure"] or earlier["failure"]:
                found[key] = line
    return found


def select(
    folder: Path | None,
    *,
    sets: Sequence[str] | None,
    seeds: Sequence[int],
    only: Sequence[str] | None,
) -> list[Key]:
    """What to run, smallest sets first; sets by parts of their names."""
    names = [n for n in set_names(folder) if not sets or any(part in n for part in sets)]
    entries = [entry for entry in everyone().values() if not only or wanted(entry, only)]
    size = {name: read_set(name, folder)[0].size for name in names}
    return [
        (name, seed, entry.name)
        for name in sorted(names, key=lambda name: size[name])
        for entry in entries
        for seed in seeds
    ]


def wanted(entry: Any, only: Sequence[str]) -> bool:
    """``ours``, ``peers``, a library, a method or a whole name; ``*`` stands for anything."""
    kinds = {"ours": not entry.is_peer, "peers": entry.is_peer}
    names = (entry.library, entry.method, entry.name)
    return any(kinds.get(word) or any(fnmatch(n, word) for n in names) for word in only)
