"""Measure what evaluating shards costs, from 10^6 rows on, and write benchmarks/SHARDS.md.

Each size is evaluated in a process of its own, which reports its time, its processor time and its
peak memory. Results are kept in a file and not measured again, so that a run that was stopped goes
on. Up to `--real` rows every file holds rows of its own; beyond, the same files are linked under
more names, which costs as much and needs no more disk.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

FILE_ROWS = {"events": 10_000_000, "classes": 1_000_000}
SIZES = (1_000_000, 3_000_000, 10_000_000, 30_000_000, 100_000_000, 300_000_000, 1_000_000_000)
FIGURES = ("seven figures", "all with a verdict")


def write_file(task: str, path: Path, seed: int, rows: int) -> None:
    """Write rows as two row groups per million; scores are float32."""
    import pyarrow as pa
    import pyarrow.parquet as parquet

    rng = np.random.default_rng(seed)
    group = 500_000
    writer = None
    for start in range(0, rows, group):
        number = min(group, rows - start)
        if task == "events":
            place = rng.normal(size=number) * 2 - 2
            chance = (1 / (1 + np.exp(-place))).astype(np.float32)
            happened = (rng.random(number) < 1 / (1 + np.exp(-0.9 * place))).astype(np.int8)
            columns = {"probability": chance, "happened": happened}
        else:
            logits = (rng.normal(size=(number, 10)) * 3).astype(np.float32)
            noise = rng.gumbel(size=(number, 10)) * 1.5
            columns = {f"logit_{k}": logits[:, k] for k in range(10)}
            columns["label"] = (logits + noise).argmax(1).astype(np.int16)
        table = pa.table(columns)
        if writer is None:
            writer = parquet.ParquetWriter(
                path, table.schema, use_dictionary=False, compression="none"
            )
        writer.write_table(table)
    assert writer is not None
    writer.close()


def make_files(task: str, rows: int, real: int, folder: Path) -> Path:
    """Return a folder of files with so many rows; files beyond ``real`` rows are links."""
    source, target = folder / task, folder / f"{task}-{rows}"
    source.mkdir(parents=True, exist_ok=True)
    size = min(rows, FILE_ROWS[task])
    own = max(1, min(rows, real) // size)
    for part in range(own):
        file = source / f"{size}-{part:04}.parquet"
        if not file.exists():
            write_file(task, file.with_suffix(".part"), part, size)
            file.with_suffix(".part").rename(file)
    target.mkdir(exist_ok=True)
    for part in range(rows // size):
        link = target / f"part-{part:05}.parquet"
        if not link.exists():
            link.symlink_to(source / f"{size}-{part % own:04}.parquet")
    return target


def measure(folder: Path, task: str, figures: str, ranks: str) -> dict[str, float]:
    """Evaluate one folder in this process."""
    from calibrant import evaluate_shards
    from calibrant.evaluation.shards import evaluate as entry

    if ranks == "cells":
        entry.EXACT_ROWS = 0
    options: dict[str, object] = {}
    if figures == FIGURES[0]:
        names = ["accuracy", "nll", "brier", "ece", "adaptive_ece", "classwise_ece", "aurc"]
        if task == "events":
            names = ["oe_ratio", "brier", "nll", "ece", "adaptive_ece", "auroc", "log_ece"]
        options |= {"metrics": names, "intervals": False}
    before = time.process_time()
    start = time.perf_counter()
    evaluation = evaluate_shards(folder, **options)  # type: ignore[arg-type]
    seconds = time.perf_counter() - start
    return {
        "seconds": seconds,
        "cpu": time.process_time() - before,
        "memory": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024**2,
        "rows": evaluation.num_rows,
        "ranks": evaluation.settings["shards"]["ranks"],
        "load": os.getloadavg()[0],
    }


def report(found: dict[str, dict[str, float]]) -> str:
    """Return the page: what was measured, and what follows for more rows."""
    loads = [line["load"] for line in found.values()]
    lines = [
        "# What evaluating shards costs",
        "",
        "`calibrant evaluate FOLDER --on local`: events (one float32 probability and an outcome, 8",
        "bytes a row) and classes (ten float32 logits and a label, 44 bytes a row), in Parquet",
        "files of half a million rows a row group. *Seven figures* has no intervals; *all with a",
        "verdict* has the default figures, intervals, tables and the verdict. Made by",
        "`benchmarks/shards.py`, each size once, in a process of its own.",
        "",
        "Processor time is that of all threads of the process. Others kept the two cores of the",
        f"machine busy (load {min(loads):.0f} to {max(loads):.0f}): time on the clock says",
        "nothing, and is left out. A cluster of several machines was not measured. Lines marked",
        "*extrapolated* were not measured either: they continue the largest size measured with its",
        "cost for each further row.",
        "",
        "| rows | what | ranks | processor s | μs a row | peak memory, GB | |",
        "|---:|---|---|---:|---:|---:|---|",
    ]
    series = sorted({tuple(key.split("/")[:3]) for key in found})
    for task, figures, ranks in series:
        sizes = sorted(
            int(key.split("/")[3]) for key in found if key.startswith(f"{task}/{figures}/{ranks}/")
        )
        for rows in sizes:
            line = found[f"{task}/{figures}/{ranks}/{rows}"]
            lines.append(
                f"| {rows:,} | {task}, {figures} | {ranks} | {line['cpu']:.1f} | "
                f"{1e6 * line['cpu'] / rows:.2f} | {line['memory']:.2f} | |"
            )
        if len(sizes) < 2:
            continue
        first, last = (found[f"{task}/{figures}/{ranks}/{rows}"] for rows in (sizes[0], sizes[-1]))
        span = sizes[-1] - sizes[0]
        seconds = (last["cpu"] - first["cpu"]) / span
        memory = max(0.0, (last["memory"] - first["memory"]) / span)
        for rows in (100_000_000, 1_000_000_000):
            if rows <= sizes[-1] or (ranks == "exact" and rows > 100_000_000):
                continue
            grown = f"{last['memory'] + memory * (rows - sizes[-1]):.0f}"
            lines.append(
                f"| {rows:,} | {task}, {figures} | {ranks} | "
                f"{last['cpu'] + seconds * (rows - sizes[-1]):.0f} | {1e6 * seconds:.2f} | "
                f"{grown if ranks == 'exact' else '–'} | extrapolated |"
            )
    lines += [
        "",
        "With exact ranks memory grows with the rows, whose probabilities are kept; with cells it",
        "is bounded by the number of cells. A piece of four million rows sends 32 MB with exact",
        "ranks.",
        "",
    ]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, default=Path("/tmp/shards"))
    parser.add_argument("--results", type=Path, default=Path("benchmarks/shards.json"))
    parser.add_argument("--most", type=int, default=SIZES[-1], help="Rows; larger sizes are left.")
    parser.add_argument("--real", type=int, default=10_000_000, help="Rows that are not links.")
    parser.add_argument("--report", type=Path, help="Write the page from the results alone.")
    parser.add_argument("--task", choices=FILE_ROWS, action="append")
    parser.add_argument("--figures", choices=FIGURES, action="append")
    parser.add_argument("--one", nargs=4, metavar=("FOLDER", "TASK", "FIGURES", "RANKS"))
    parser.add_argument("--ranks", choices=("exact", "cells"), default="exact")
    given = parser.parse_args()
    given.folder = given.folder.resolve()  # links need whole paths
    if given.one:
        folder, task, figures, ranks = given.one
        print(json.dumps(measure(Path(folder), task, figures, ranks)))
        return
    found = json.loads(given.results.read_text()) if given.results.exists() else {}
    if given.report:
        given.report.write_text(report(found))
        return
    for rows in SIZES:
        for task in given.task or FILE_ROWS:
            for figures in given.figures or FIGURES:
                key = f"{task}/{figures}/{given.ranks}/{rows}"
                if key in found or rows > given.most:
                    continue
                folder = make_files(task, rows, given.real, given.folder)
                command = [
                    sys.executable,
                    __file__,
                    "--one",
                    str(folder),
                    task,
                    figures,
                    given.ranks,
                ]
                done = subprocess.run(command, capture_output=True, text=True, check=False)
                if done.returncode:
                    print(key, done.stderr[-2000:])
                    continue
                found[key] = json.loads(done.stdout.splitlines()[-1])
                given.results.write_text(json.dumps(found, indent=1, sort_keys=True) + "\n")
                print(key, found[key], flush=True)


if __name__ == "__main__":
    main()
