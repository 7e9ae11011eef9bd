"""Killed at any moment, a run goes on from its last checkpoint and ends the same to the bit."""

from __future__ import annotations

import errno
import hashlib
import os
import random
import signal
import sys
import time
import warnings

import pytest
import torch

pytest.importorskip("lightning")
from calibrant import data
from calibrant.training import Run, checkpoint, train
from calibrant.training.config import Config

# Dropout, momentum, an average, a rule and a loss with memory: all that a checkpoint must hold.
CONFIG = Config(
    epochs=10,
    batch_size=50,
    lr=0.05,
    model_options={"hidden": [24], "dropout": 0.2},
    loss="crl",
    average="ema",
    report_epoch="lowest_ece_after:3",
    crop=1,
    device="cpu",
)


@pytest.fixture(scope="module")
def splits():
    found = data.load("digits", validation=100)
    return data.Splits(
        found.train.take(torch.arange(300)),
        found.validation,
        found.test.take(torch.arange(100)),
        found.mean,
        found.std,
    )


@pytest.fixture(scope="module")
def whole(splits, tmp_path_factory):
    """The same run, never killed."""
    return train(CONFIG, tmp_path_factory.mktemp("whole") / "run", data=splits)


def digest(run):
    """Of the bytes of weights, optimiser, random state, metrics and predictions."""
    files = [run.folder / name for name in ("weights.safetensors", "metrics.jsonl", "chosen.json")]
    files += sorted((run.folder / "checkpoint").glob("*.safetensors"))
    files += sorted((run.folder / "predictions").glob("*.safetensors"))
    assert len(files) == 8
    return {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in files}


def child(folder, splits, slow):
    """Train in a process of its own; ``slow`` makes writing take long, so that kills fall there."""
    process = os.fork()
    if process:
        return process
    try:
        sys.stderr = sys.stdout = open(os.devnull, "w")  # noqa: SIM115
        if slow:
            flush = os.fsync

            def fsync(file):
                time.sleep(0.02)
                flush(file)
                time.sleep(0.02)

            os.fsync = fsync
        train(CONFIG, folder, data=splits)
        os._exit(0)
    except BaseException:
        os._exit(1)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_twenty_kills_change_nothing(splits, whole, tmp_path):
    draw = random.Random(5)
    kills, mid_write, folder = 0, 0, tmp_path / "run"
    while kills < 20:
        process = child(folder, splits, slow=kills % 2 == 0)
        deadline = time.monotonic() + draw.uniform(0.05, 1.0)
        while time.monotonic() < deadline:
            ended, status = os.waitpid(process, os.WNOHANG)
            if ended:
                break
            time.sleep(0.002)
        else:
            os.kill(process, signal.SIGKILL)
            os.waitpid(process, 0)
            kills += 1
            mid_write += any(folder.glob("**/.*.tmp"))
            continue
        assert os.waitstatus_to_exitcode(status) == 0
        # Done before the kill: what is there must be right; begin anew for more kills.
        assert digest(Run(folder)) == digest(whole)
        folder = tmp_path / f"run{kills}"
    process = child(folder, splits, slow=False)
    _, status = os.waitpid(process, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    assert digest(Run(folder)) == digest(whole)
    assert mid_write > 0  # or nothing was proven about writing


def stopped(folder, splits, after):
    """A run stopped after some epochs."""

    class Stop(Exception):
        pass

    def stop(line):
        if line["epoch"] == after + 1:
            raise Stop

    with pytest.raises(Stop):
        train(CONFIG, folder, data=splits, on_epoch=stop)
    return folder / "checkpoint"


@pytest.mark.parametrize("damage", ["cut", "flip", "json", "empty", "gone"])
def test_a_damaged_checkpoint_is_noticed(damage, splits, whole, tmp_path):
    held = stopped(tmp_path / "run", splits, after=5)
    tensors = held / "epoch-000005.safetensors"
    content = tensors.read_bytes()
    if damage == "cut":
        tensors.write_bytes(content[:-100])
    elif damage == "flip":
        tensors.write_bytes(content[:-7] + bytes([content[-7] ^ 1]) + content[-6:])
    elif damage == "json":
        (held / "epoch-000005.json").write_text('{"epoch": 5')
    elif damage == "empty":
        tensors.write_bytes(b"")
    else:
        tensors.unlink()
    with pytest.warns(UserWarning, match="after epoch 5 is damaged"):
        found = checkpoint.load(held)
    assert found[1]["epoch"] == 4
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        run = train(CONFIG, tmp_path / "run", data=splits)
    assert digest(run) == digest(whole)


def test_no_whole_checkpoint_begins_anew(splits, whole, tmp_path):
    held = stopped(tmp_path / "run", splits, after=2)
    for path in held.glob("*.safetensors"):
        path.write_bytes(b"x")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        run = train(CONFIG, tmp_path / "run", data=splits)
    assert digest(run) == digest(whole)


def test_a_full_disk_loses_nothing(splits, whole, tmp_path, monkeypatch):
    held = stopped(tmp_path / "run", splits, after=4)
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
