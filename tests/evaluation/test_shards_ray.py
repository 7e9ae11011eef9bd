"""Shards summed on a Ray cluster: the same bits, and a lost worker's piece counts once."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from calibrant import InputError, Predictions, evaluate_shards

ray = pytest.importorskip("ray")
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def cluster():
    """Two processes of this machine; they see what this process sees."""
    import calibrant

    source = os.path.dirname(os.path.dirname(calibrant.__file__))
    paths = [source, *filter(None, [os.environ.get("PYTHONPATH")])]
    ray.init(
        num_cpus=2,
        include_dashboard=False,
        log_to_driver=False,
        object_store_memory=200_000_000,
        runtime_env={"env_vars": {"PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1"}},
    )
    yield
    ray.shutdown()


def write_events(folder, parts, rows, **units):
    folder.mkdir()
    rng = np.random.default_rng(0)
    for part in range(parts):
        chance = rng.random(rows)
        own = {"clusters": rng.integers(0, 500, rows)} if units.get("clusters") else {}
        own |= {"weights": rng.random(rows) + 0.5} if units.get("weights") else {}
        happened = rng.random(rows) < chance**1.2
        Predictions.from_events(chance, happened, **own).write(folder / f"{part:03}.parquet")
    return folder


@pytest.mark.parametrize("units", [{}, {"clusters": True, "weights": True}], ids=["plain", "units"])
def test_a_cluster_gives_the_same_bits(cluster, tmp_path, units):
    folder = write_events(tmp_path / "shards", 7, 3000, **units)
    local = evaluate_shards(folder / "**" / "*.parquet", resamples=200)
    found = evaluate_shards(folder / "**" / "*.parquet", on="ray", resamples=200)
    assert found.to_json() == local.to_json()
    assert found.num_rows == 21_000
    assert ray.is_initialized()  # a cluster that was there before stays


def test_a_lost_workers_piece_is_summed_again_and_counts_once(cluster, tmp_path):
    folder = write_events(tmp_path / "shards", 4, 1_000_000)
    names = ["brier", "oe_ratio", "auroc"]
    local = evaluate_shards(folder, metrics=names, resamples=100)
    killed: list[int] = []
    over = threading.Event()

    def kill_a_worker():
        while not over.is_set() and not killed:
            for worker in find_workers(os.getpid()):
                time.sleep(0.3)  # it is at work
                if worker in find_workers(os.getpid()):
                    os.kill(worker, signal.SIGKILL)
                    killed.append(worker)
                    break
            time.sleep(0.01)

    watcher = threading.Thread(target=kill_a_worker)
    watcher.start()
    try:
        found = evaluate_shards(folder, on="ray", metrics=names, resamples=100)
    finally:
        over.set()
        watcher.join()
    assert killed
    assert found.num_rows == 4_000_000
    assert found.to_json() == local.to_json()


def find_workers(driver):
    """Return the processes of this driver's cluster that sum a piece now."""
    workers = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            name = (process / "cmdline").read_bytes()
            parent = read_parent(process.name)
            if b"_sum_piece" in name and read_parent(parent) == str(driver):
                workers.append(int(process.name))
        except OSError:
            continue  # it has ended
    return workers


def read_parent(process):
    return (Path("/proc") / process / "stat").read_text().rpartition(")")[2].split()[1]


def test_errors_of_workers_are_those_of_this_process(cluster, tmp_path):
    folder = write_events(tmp_path / "shards", 3, 500)
    rng = np.random.default_rng(0)
    Predictions.from_logits(rng.normal(size=(50, 3)), rng.integers(0, 3, 50)).write(
        folder / "002.parquet"
    )
    with pytest.raises(InputError) as here:
        evaluate_shards(folder, resamples=100)
    with pytest.raises(InputError) as there:
        evaluate_shards(folder, on="ray", resamples=100)
    assert str(here.value) == str(there.value)
