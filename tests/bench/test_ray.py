"""Runs on a Ray cluster of this machine: the same store, and a lost worker's run is retried."""

from __future__ import annotations

import os
import signal
import threading
import time

import pytest

from calibrant.bench import Store, Suite, run_suite
from calibrant.bench.run.locks import read_note
from calibrant.bench.run.worker import Bench
from calibrant.core.plugins import forget_plugins
from tests.helpers.bench_cases import TINY, tiny

ray = pytest.importorskip("ray")
pytestmark = pytest.mark.slow


@pytest.fixture
def cluster(tmp_path):
    """One process at a time; workers see what this process sees."""
    ray.init(
        num_cpus=1,
        include_dashboard=False,
        log_to_driver=False,
        object_store_memory=80_000_000,
        runtime_env={"env_vars": {"PYTHONPATH": os.pathsep.join(_paths()), "OMP_NUM_THREADS": "1"}},
    )
    yield
    ray.shutdown()
    assert not ray.is_initialized()


def _paths():
    import calibrant

    source = os.path.dirname(os.path.dirname(calibrant.__file__))
    return [source, *filter(None, [os.environ.get("PYTHONPATH")])]


def test_workers_have_the_suites_plugins(cluster, tmp_path):
    (tmp_path / "mine.py").write_text(
        "from calibrant import losses\n\n\n"
        "@losses.register\nclass Mine(losses.Brier):\n    name = 'mine'\n"
    )
    (tmp_path / "own.yaml").write_text(
        TINY.format(seeds=[0], epochs=1, keep="rows").replace("brier}", "mine}")
        + "plugins: [mine.py]\n"
    )
    suite = Suite.read(tmp_path / "own.yaml")
    (tmp_path / "mine.py").unlink()  # they are given what was read
    try:
        summary = run_suite(suite, tmp_path / "out", on="ray")
    finally:
        forget_plugins()
    assert summary.done == [spec.key for spec in suite.runs]
    assert set(Store(tmp_path / "out" / "store").frame()["loss"]) == {"cross_entropy", "mine"}


def test_a_lost_workers_run_is_made_again(cluster, tmp_path):
    suite, out = tiny(epochs=30), tmp_path / "out"
    killed: list[int] = []
    over = threading.Event()

    def kill_the_first_worker():
        lock = Bench(out).lock_path(suite.runs[0].key)
        while not over.is_set() and not killed:
            note = read_note(lock)
            if note.get("epoch"):
                os.kill(note["pid"], signal.SIGKILL)
                killed.append(note["pid"])
            time.sleep(0.005)

    watcher = threading.Thread(target=kill_the_first_worker)
    watcher.start()
    events = []
    try:
        summary = run_suite(suite, out, on="ray", progress=events.append)
    finally:
        over.set()
        watcher.join()
    assert killed
    assert killed[0] != os.getpid()
    keys = [spec.key for spec in suite.runs]
    assert summary.done == keys
    assert [event["key"] for event in events if event["event"] == "done"] == keys
    frame = Store(out / "store").frame()
    assert set(frame["key"]) == set(keys)
    assert read_note(Bench(out).lock_path(keys[0]))["pid"] != killed[0]
    assert ray.is_initialized()  # a cluster that was there before stays
