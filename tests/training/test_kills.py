"""A run killed at any moment resumes from its last checkpoint and ends the same to the bit."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import subprocess
import sys
import warnings
from pathlib import Path

import pytest

pytest.importorskip("lightning")
from calibrant.training import Run, checkpoint, train
from tests.helpers.kill_nursery import CONFIG, some_digits


@pytest.fixture(scope="module")
def splits():
    return some_digits()


@pytest.fixture(scope="module")
def whole(splits, tmp_path_factory):
    """The same run, never killed."""
    return train(CONFIG, tmp_path_factory.mktemp("whole") / "run", data=splits)


def digest(run):
    """Hash weights, optimiser, random state, metrics and predictions."""
    files = [run.folder / name for name in ("weights.safetensors", "metrics.jsonl", "chosen.json")]
    files += sorted((run.folder / "checkpoint").glob("*.safetensors"))
    files += sorted((run.folder / "predictions").glob("*.safetensors"))
    assert len(files) == 8
    return {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in files}


@pytest.mark.sampled(count=1)
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.parametrize("kills", [4, pytest.param(20, marks=pytest.mark.slow)])
def test_kills_at_random_moments_change_nothing(kills, whole, tmp_path):
    # Use a fresh process: forking one that has run other tests is unsafe.
    nursery = Path(__file__).parents[1] / "helpers" / "kill_nursery.py"
    process = subprocess.run(
        [sys.executable, str(nursery), str(tmp_path), str(kills)],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert process.returncode == 0, process.stderr[-2000:]
    outcome = json.loads(process.stdout.splitlines()[-1])
    assert outcome["kills"] == kills
    assert outcome["mid_write"] > 0 or kills < 20  # or nothing is proven about writing
    assert len(outcome["done"]) >= 1
    for folder in outcome["done"]:
        assert digest(Run(Path(folder))) == digest(whole)


def stop_run(folder, splits, after):
    """Train and stop after some epochs; return the folder of the checkpoints."""

    class Stop(Exception):
        pass

    def stop(line):
        if line["epoch"] == after + 1:
            raise Stop

    with pytest.raises(Stop):
        train(CONFIG, folder, data=splits, on_epoch=stop)
    return folder / "checkpoint"


FACTS = {  # wrong content of a JSON file that is still readable
    "step": lambda facts: facts | {"step": facts["step"] + 10},
    "epoch": lambda facts: facts | {"epoch": 6},
    "best": lambda facts: facts | {"best_value": 0.5},
    "metric": lambda facts: facts | {"metrics": facts["metrics"][:-1]},
    "renamed": lambda facts: {key.replace("step", "stop"): facts[key] for key in facts},
    "unsigned": lambda facts: {key: facts[key] for key in facts if key != "facts_sha256"},
    "list": lambda facts: [facts],
}


@pytest.mark.sampled(count=6)
@pytest.mark.parametrize("damage", ["cut", "flip", "json", "empty", "gone", *FACTS])
def test_a_damaged_checkpoint_is_noticed(damage, splits, whole, tmp_path):
    held = stop_run(tmp_path / "run", splits, after=5)
    tensors = held / "epoch-000005.safetensors"
    content = tensors.read_bytes()
    if damage == "cut":
        tensors.write_bytes(content[:-100])
    elif damage == "flip":
        tensors.write_bytes(content[:-7] + bytes([content[-7] ^ 1]) + content[-6:])
    elif damage == "json":
        (held / "epoch-000005.json").write_text('{"epoch": 5')
    elif damage in FACTS:
        facts = held / "epoch-000005.json"
        facts.write_text(json.dumps(FACTS[damage](json.loads(facts.read_text()))))
    elif damage == "empty":
        tensors.write_bytes(b"")
    else:
        tensors.unlink()
    with pytest.warns(UserWarning, match="after epoch 5 is damaged"):
        _, facts = checkpoint.load(held)
    assert facts["epoch"] == 4
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        run = train(CONFIG, tmp_path / "run", data=splits)
    assert digest(run) == digest(whole)


def test_without_a_whole_checkpoint_training_starts_again(splits, whole, tmp_path):
    held = stop_run(tmp_path / "run", splits, after=2)
    for path in held.glob("*.safetensors"):
        path.write_bytes(b"x")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        run = train(CONFIG, tmp_path / "run", data=splits)
    assert digest(run) == digest(whole)


def test_a_full_disk_loses_nothing(splits, whole, tmp_path, monkeypatch):
    held = stop_run(tmp_path / "run", splits, after=4)
    flush, calls = os.fsync, []

    def full(file):
        calls.append(file)
        if len(calls) > 5:
            raise OSError(errno.ENOSPC, "No space left on device")
        flush(file)

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        train(CONFIG, tmp_path / "run", data=splits)
    monkeypatch.undo()
    assert not list(held.glob(".*"))  # no half file stays
    assert checkpoint.load(held) is not None
    assert digest(train(CONFIG, tmp_path / "run", data=splits)) == digest(whole)


def test_only_the_last_two_are_kept(whole):
    names = sorted(path.name for path in (whole.folder / "checkpoint").iterdir())
    assert names == [
        "epoch-000009.json",
        "epoch-000009.safetensors",
        "epoch-000010.json",
        "epoch-000010.safetensors",
    ]


def test_remains_of_a_kill_are_deleted(splits, whole, tmp_path):
    held = stop_run(tmp_path / "run", splits, after=4)
    (held / "epoch-000001.safetensors").write_bytes(b"its JSON was deleted, then came the kill")
    (held / ".epoch-000003.safetensors.tmp").write_bytes(b"half")
    run = train(CONFIG, tmp_path / "run", data=splits)
    assert digest(run) == digest(whole)
    assert not list(held.glob(".*"))


def test_a_kill_after_the_last_checkpoint_leaves_no_third(splits, whole, tmp_path, monkeypatch):
    class Killed(BaseException):
        pass

    def kill(folder):
        if (folder / "epoch-000010.json").exists():
            raise Killed
        tidy(folder)

    tidy = checkpoint.tidy
    monkeypatch.setattr(checkpoint, "tidy", kill)
    with pytest.raises(Killed):
        train(CONFIG, tmp_path / "run", data=splits)
    monkeypatch.undo()
    assert (tmp_path / "run/checkpoint/epoch-000008.safetensors").exists()
    assert digest(train(CONFIG, tmp_path / "run", data=splits)) == digest(whole)
