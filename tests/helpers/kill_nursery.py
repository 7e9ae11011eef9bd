"""Train in forked processes, kill some of them at random moments, and print the outcome.

    python tests/helpers/kill_nursery.py FOLDER KILLS

Every second process writes slowly, so that some kills hit the writing of a checkpoint. The last
line is JSON: the kills, how many left a half-written file, and the runs that finished.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
import traceback
from pathlib import Path

import torch

from calibrant import data
from calibrant.training import train
from calibrant.training.config import Config

# Dropout, momentum, an average, a rule and a loss with memory: a checkpoint must hold them all.
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


def some_digits(train=300, validation=100, test=100):
    digits = data.load("digits", validation=validation)
    return data.Splits(
        digits.train.take(torch.arange(train)),
        digits.validation,
        digits.test.take(torch.arange(test)),
        digits.mean,
        digits.std,
    )


def fork_training(folder, splits, slow):
    """Train in a forked process and return its id."""
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
        (folder.parent / "error.txt").write_text(traceback.format_exc())
        os._exit(1)


def wait_for(process, seconds):
    """Return the exit code of a process that ends in time; None for one that does not."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        done, status = os.waitpid(process, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.002)
    return None


def main(base, wanted):
    torch.set_num_threads(1)
    splits = some_digits()
    train(CONFIG, base / "warm", data=splits)  # import everything once, before forking
    draw = random.Random(5)
    kills, mid_write, count, done = 0, 0, 0, [str(base / "warm")]
    while kills < wanted:
        folder = base / f"run{count}"
        process = fork_training(folder, splits, slow=kills % 2 == 0)
        code = wait_for(process, draw.uniform(0.05, 0.6))
        if code is None:
            os.kill(process, signal.SIGKILL)
            os.waitpid(process, 0)
            kills += 1
            mid_write += any(folder.glob("**/.*.tmp"))
            continue
        assert code == 0, (base / "error.txt").read_text()
        done.append(str(folder))  # it finished before its kill: start another for the rest
        count += 1
    folder = base / f"run{count}"
    assert wait_for(fork_training(folder, splits, slow=False), 120) == 0
    done.append(str(folder))
    print(json.dumps({"kills": kills, "mid_write": mid_write, "done": done}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
