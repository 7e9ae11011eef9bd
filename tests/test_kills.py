"""Kills at random moments lose nothing: benchmarks/KILLS.md has a hundred of them."""

import json
import os
import subprocess
import sys

import pytest

pytest.importorskip("lightning")
pytest.importorskip("pydantic")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.slow
def test_killed_work_ends_as_undisturbed_work_does(tmp_path):
    # Use a fresh process: forking one that has run other tests is unsafe.
    done = subprocess.run(
        [sys.executable, "-m", "tests.helpers.kill_everything", str(tmp_path), "10"],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    for seen in json.loads(done.stdout.splitlines()[-1]).values():
        assert (seen["kills"], seen["damaged"]) == (2, 0)
        assert seen["equal"] == seen["finished"] > 0


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_killed_monitor_ends_as_an_undisturbed_one_does(tmp_path):
    done = subprocess.run(
        [
            *(sys.executable, "-m", "tests.helpers.kill_everything", str(tmp_path), "3"),
            *("--works", "monitor"),
        ],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    seen = json.loads(done.stdout.splitlines()[-1])["monitor"]
    assert (seen["kills"], seen["damaged"]) == (3, 0)
    assert seen["equal"] == seen["finished"] > 0
