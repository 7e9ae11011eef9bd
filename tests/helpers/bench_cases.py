"""Small suites of digits, and processes to kill, for the tests of the bench."""

from __future__ import annotations

import json
import os
import signal
import time
import traceback
from pathlib import Path

from calibrant.bench import Suite
from calibrant.bench.run.worker import Bench, work

TINY = """
name: tiny
about: for tests
defaults: {{data: digits, model: mlp, epochs: {epochs}, batch_size: 400, device: cpu}}
seeds: {seeds}
methods:
  cross_entropy: {{}}
  brier: {{loss: brier}}
calibrators: [temperature]
keep: {keep}
baseline: cross_entropy
metrics: [accuracy, ece]
"""


def tiny(*, seeds=(0,), epochs=1, keep="rows"):
    return Suite.parse(TINY.format(seeds=list(seeds), epochs=epochs, keep=keep))


def child(out: Path, specs, log: Path, *, stop_at: str | None = None, slow: float = 0.0) -> int:
    """Work in a process of its own, which writes what it tells, a line an event, into a file.

    ``stop_at`` names an event after which it does nothing more, its claim held.
    """
    process = os.fork()
    if process:
        return process
    try:
        with open(log, "a") as file:

            def tell(event):
                file.write(json.dumps(event) + "\n")
                file.flush()
                time.sleep(slow)
                while event["event"] == stop_at:
                    time.sleep(1)

            work(specs, Bench(out), tell)
        os._exit(0)
    except BaseException:
        log.with_suffix(".error").write_text(traceback.format_exc())
        os._exit(1)


def events(log: Path, *kinds: str) -> list[dict]:
    """What a process has told so far, of these kinds."""
    lines = log.read_text().splitlines() if log.is_file() else []
    records = [json.loads(line) for line in lines]
    return [record for record in records if not kinds or record["event"] in kinds]


def until(condition, seconds: float = 60.0) -> None:
    """Wait until it holds."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not come to that in time"
        time.sleep(0.02)


def kill(process: int) -> None:
    os.kill(process, signal.SIGKILL)
    os.waitpid(process, 0)


def ended_well(process: int, seconds: float = 60.0) -> bool:
    """Whether a process ends by itself, and without an error; one that does not is killed."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        ended, status = os.waitpid(process, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status) == 0
        time.sleep(0.02)
    kill(process)
    return False
