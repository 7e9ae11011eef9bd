"""Two processes never train in one folder."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

pytest.importorskip("lightning")
from calibrant.core.errors import InputError
from calibrant.core.files import hold_lock
from calibrant.training import train
from calibrant.training.config import Config
from tests.helpers.kill_nursery import some_digits

CONFIG = Config(epochs=1, batch_size=50, model_options={"hidden": [4]}, device="cpu")
HOLD = """
import sys
from pathlib import Path
from calibrant.core.files import hold_lock
with hold_lock(Path(sys.argv[1])) as ours:
    print(ours, flush=True)
    sys.stdin.read()
"""


def test_a_folder_in_which_another_process_trains_is_refused(tmp_path):
    folder, splits = tmp_path / "run", some_digits()
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    other = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(folder / ".train.lock")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
    )
    assert other.stdout.readline() == "True\n"
    with pytest.raises(InputError, match="another process trains in this folder"):
        train(CONFIG, folder, data=splits)
    assert not (folder / "config.yaml").exists()  # the settings there are the other's to write
    other.kill()
    other.communicate()
    assert train(CONFIG, folder, data=splits).is_done  # a lock ends with its process


def test_a_folder_that_is_no_run_gets_no_lock(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(InputError, match="holds files, but not a run"):
        train(CONFIG, tmp_path, data=some_digits())
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


def test_a_finished_run_is_read_while_its_lock_is_held(tmp_path):
    splits = some_digits()
    train(CONFIG, tmp_path / "run", data=splits)
    with hold_lock(tmp_path / "run/.train.lock"):
        assert train(CONFIG, tmp_path / "run", data=splits).is_done
