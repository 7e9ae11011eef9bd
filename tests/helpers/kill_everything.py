"""Kill train, bench, fit, report and monitor at random moments, and hold the results against
those of undisturbed processes.

    python -m tests.helpers.kill_everything FOLDER KILLS [--markdown FILE]

Each work is forked from a warm parent, killed (SIGKILL) at a random moment of its usual time, and
begun again in the same folder until the wanted number of kills is reached; then it runs to its
end. After each kill, every file that has its final name must be whole. The last line is JSON.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import os
import random
import signal
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

import calibrant
from calibrant import calibrators, report
from calibrant.bench import Store, Suite, run_suite
from calibrant.core.errors import InputError
from calibrant.monitor import Monitor
from calibrant.predictions import Predictions
from calibrant.training import Config, train
from tests.helpers.kill_nursery import some_digits

SUITE = """
name: kills
defaults: {data: digits, model: mlp, model_options: {hidden: [16]}, epochs: 3, device: cpu}
seeds: [0]
methods:
  cross_entropy: {}
  focal: {loss: focal}
calibrators: [temperature]
metrics: [accuracy, ece]
"""
CONFIG = Config(
    epochs=6,
    batch_size=50,
    lr=0.05,
    model_options={"hidden": [24], "dropout": 0.2},
    loss="crl",
    average="ema",
    crop=1,
    device="cpu",
)
BATCHES = 6


@dataclass(frozen=True)
class Work:
    """Something that a process does in a folder.

    Args:
        run: Does it, or resumes it.
        digest: Describes the result: equal texts mean equal results.
        check: Raises an error if a file that a kill left is not whole.
    """

    run: Callable[[Path], None]
    digest: Callable[[Path], str]
    check: Callable[[Path], None]


def hash_files(paths: list[Path]) -> str:
    return " ".join(hashlib.sha256(path.read_bytes()).hexdigest()[:16] for path in paths)


def make_rows(seed: int, rows: int = 4000) -> Predictions:
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 5, rows)
    return Predictions.from_logits(rng.normal(size=(rows, 5)) + 2 * np.eye(5)[labels], labels)


def run_train(folder: Path) -> None:
    train(CONFIG, folder / "run", data=SPLITS)


def digest_train(folder: Path) -> str:
    names = ("weights.safetensors", "metrics.jsonl", "chosen.json")
    files = [folder / "run" / name for name in names]
    files += sorted((folder / "run").glob("predictions/*.safetensors"))
    return hash_files(files)


def check_train(folder: Path) -> None:
    for path in folder.glob("run/predictions/[!.]*.safetensors"):
        Predictions.read(path)


def run_bench(folder: Path) -> None:
    # A run whose worker died several times counts as failed until it is asked for again.
    summary = run_suite(Suite.parse(SUITE), folder, retry=True)
    if summary.failed or summary.left:
        raise RuntimeError(str(summary))


def digest_bench(folder: Path) -> str:
    frame = Store(folder / "store").frame()
    frame = frame[~frame["metric"].isin(["measured"]) & ~frame["metric"].str.contains("seconds")]
    rows = frame[["key", "part", "calibrator", "metric", "value"]].sort_values(
        ["key", "part", "calibrator", "metric"]
    )
    return hashlib.sha256(rows.to_csv(index=False).encode()).hexdigest()[:16] + f" {len(rows)} rows"


def check_bench(folder: Path) -> None:
    for path in folder.glob("store/[!.]*.parquet"):
        import pyarrow.parquet

        pyarrow.parquet.read_table(path)


def run_fit(folder: Path) -> None:
    for name in ("temperature", "matrix", "isotonic", "histogram"):
        calibrators.get(name).fit(ROWS).save(folder / f"{name}.safetensors")
    ROWS.write(folder / "rows.npz")


def digest_fit(folder: Path) -> str:
    return hash_files(sorted(folder.glob("[!.]*")))


def check_fit(folder: Path) -> None:
    for path in folder.glob("[!.]*.safetensors"):
        calibrant.load(path)
    for path in folder.glob("[!.]*.npz"):
        Predictions.read(path)


def run_report(folder: Path) -> None:
    evaluation = calibrant.evaluate(ROWS, metrics=["ece", "nll"], resamples=100)
    report.write(evaluation, folder / "report.html", predictions=ROWS)


def digest_report(folder: Path) -> str:
    return hash_files([folder / "report.html"])


def check_report(folder: Path) -> None:
    path = folder / "report.html"
    if path.exists() and not path.read_bytes().rstrip().endswith(b"</html>"):
        raise RuntimeError("half a report")


def run_monitor(folder: Path) -> None:
    path = folder / "state.json"
    for number in range(BATCHES):
        with Monitor.update(path, create=Monitor(BASELINE)) as monitor:
            monitor.append(LATER[number], name=f"batch {number}", when=f"2026-01-0{number + 1}")


def digest_monitor(folder: Path) -> str:
    state = json.loads((folder / "state.json").read_bytes())
    for delivery in state["deliveries"]:
        delivery.pop("learned")  # the clock differs
    return hashlib.sha256(json.dumps(state).encode()).hexdigest()[:16]


def check_monitor(folder: Path) -> None:
    if (folder / "state.json").exists():
        Monitor.load(folder / "state.json").status()


WORKS = {
    "train": Work(run_train, digest_train, check_train),
    "bench": Work(run_bench, digest_bench, check_bench),
    "fit": Work(run_fit, digest_fit, check_fit),
    "report": Work(run_report, digest_report, check_report),
    "monitor": Work(run_monitor, digest_monitor, check_monitor),
}


def fork(work: Work, folder: Path, *, slow: bool) -> int:
    """Start a work in a forked process; a slow one writes slowly, so that kills hit its writing."""
    process = os.fork()
    if process:
        return process
    try:
        sys.stderr = sys.stdout = open(os.devnull, "w")  # noqa: SIM115
        if slow:
            flush = os.fsync

            def fsync(file: int) -> None:
                time.sleep(0.02)
                flush(file)
                time.sleep(0.02)

            os.fsync = fsync
        work.run(folder)
        os._exit(0)
    except BaseException:
        folder.with_suffix(".error").write_text(traceback.format_exc())
        os._exit(1)


def wait_for(process: int, seconds: float) -> int | None:
    """Return the exit code of a process that ends in time; None for one that does not."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        done, status = os.waitpid(process, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.002)
    return None


def disturb(name: str, base: Path, wanted: int, draw: random.Random) -> dict[str, Any]:
    """Kill a work as often as wanted; return what was seen."""
    work = WORKS[name]
    whole = base / f"{name}-whole"
    whole.mkdir()
    start = time.monotonic()
    code = wait_for(fork(work, whole, slow=False), 600)
    usual = time.monotonic() - start
    if code != 0:
        raise RuntimeError(whole.with_suffix(".error").read_text())
    reference = work.digest(whole)
    kills, halves, finished, same, damaged = 0, 0, 0, 0, 0

    def judge(folder: Path) -> None:
        nonlocal finished, same
        finished += 1
        same += work.digest(folder) == reference

    while kills < wanted:
        folder = base / f"{name}-{finished}"
        folder.mkdir(exist_ok=True)
        process = fork(work, folder, slow=kills % 2 == 0)
        code = wait_for(process, draw.uniform(0.01, 0.9 * usual))
        if code is None:
            os.kill(process, signal.SIGKILL)
            os.waitpid(process, 0)
            kills += 1
            halves += any(folder.rglob(".*.tmp"))
            try:
                work.check(folder)
            except (InputError, RuntimeError, ValueError, OSError):
                damaged += 1
        elif code:
            raise RuntimeError(folder.with_suffix(".error").read_text())
        else:
            judge(folder)  # it ended before its kill: the next one begins anew
    folder = base / f"{name}-{finished}"
    folder.mkdir(exist_ok=True)
    if wait_for(fork(work, folder, slow=False), 600) != 0:
        raise RuntimeError(folder.with_suffix(".error").read_text())
    judge(folder)
    return {
        "kills": kills,
        "during a write": halves,
        "damaged": damaged,
        "finished": finished,
        "equal": same,
        "seconds": round(usual, 2),
    }


def format_page(results: dict[str, dict[str, Any]]) -> str:
    """Return what was measured as a page."""
    total = sum(each["kills"] for each in results.values())
    lines = [
        "# Kills",
        "",
        f"`python -m tests.helpers.kill_everything FOLDER {total}` killed (SIGKILL) five kinds of",
        f"work {total} times at random moments, each uniformly within its usual time, began each",
        "again in its folder, and held the end against the result of a process that nothing",
        "disturbed. Every second process flushed its files slowly, so that more kills hit a write.",
        "",
        "| work | kills | during a write | files damaged | finished | equal to undisturbed |",
        "|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {name} | {each['kills']} | {each['during a write']} | {each['damaged']} | "
        f"{each['finished']} | {each['equal']} |"
        for name, each in results.items()
    ]
    lines += [
        "",
        "Equal means: weights, metrics and predictions to the bit (train); every figure in the",
        "store (bench); the same files (fit, report); the same state but for the clock (monitor).",
        "A kill may leave a file with a name such as `.run.json.tmp`; nothing reads it.",
        "",
    ]
    return "\n".join(lines)


def main(
    base: Path, kills: int, page: Path | None = None, names: list[str] | None = None, seed: int = 5
) -> int:
    """Kill every work; return 0 if nothing was lost."""
    global SPLITS, ROWS, BASELINE, LATER  # made once, before forking
    torch.set_num_threads(1)
    SPLITS, ROWS, BASELINE = some_digits(), make_rows(0), make_rows(1)
    LATER = [make_rows(2 + number, 500) for number in range(BATCHES)]
    names = names or list(WORKS)
    warm = base / "warm"
    for name in names:  # import everything once
        (warm / name).mkdir(parents=True)
        WORKS[name].run(warm / name)
    draw = random.Random(seed)
    each = math.ceil(kills / len(names))
    results = {name: disturb(name, base, each, draw) for name in names}
    if page is not None:
        page.write_text(format_page(results), encoding="utf-8")
    print(json.dumps(results))
    lost = sum(seen["damaged"] + seen["finished"] - seen["equal"] for seen in results.values())
    return 1 if lost else 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("kills", type=int)
    parser.add_argument("--markdown", type=Path)
    parser.add_argument("--works", nargs="*", choices=list(WORKS))
    options = parser.parse_args()
    sys.exit(main(options.folder, options.kills, options.markdown, options.works))
