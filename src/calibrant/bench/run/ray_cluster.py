"""Make runs on a Ray cluster whose machines share the folder of runs."""

from __future__ import annotations

import logging
import time
from pathlib import Path
from typing import Any

from calibrant.bench.run.worker import Bench, Tell, attempt
from calibrant.bench.suite.spec import Spec
from calibrant.core import plugins
from calibrant.core.extras import require

RETRIES = 5  # of a run whose process or machine was lost


def run_ray(
    specs: list[Spec],
    bench: Bench,
    tell: Tell,
    *,
    workers: int | None = None,
    threads: int | None = None,
    limit: float | None = None,
) -> None:
    """Make runs on a Ray cluster, at most ``workers`` at a time.

    Uses the cluster that this process is connected to, else the cluster that ``RAY_ADDRESS``
    names, else a new cluster on this machine. ``threads`` is the number of cores of a run; GPUs
    are shared evenly.
    """
    ray = require("ray", extra="scale", purpose="a Ray cluster")
    ours = not ray.is_initialized()
    if ours:
        ray.init(include_dashboard=False, log_to_driver=False, logging_level=logging.WARNING)
    try:
        _distribute(ray, specs, bench, tell, workers, threads or 1, limit)
    finally:
        if ours:
            ray.shutdown()


def _distribute(
    ray: Any,
    specs: list[Spec],
    bench: Bench,
    tell: Tell,
    workers: int | None,
    threads: int,
    limit: float | None,
) -> None:
    room = ray.cluster_resources()
    at_once = min(workers or max(1, int(room.get("CPU", 1)) // threads), len(specs))
    make = ray.remote(
        num_cpus=threads,
        num_gpus=min(1.0, room.get("GPU", 0) / at_once),
        max_retries=RETRIES,
    )(_make_run)
    plugin_files = plugins.list_loaded()
    waiting = list(specs)
    running: dict[Any, Spec] = {}
    while waiting or running:
        late = limit is not None and time.time() >= limit
        while waiting and len(running) < at_once and not late:
            spec = waiting.pop(0)
            running[make.remote(spec.to_dict(), str(bench.out), threads, plugin_files)] = spec
        if not running:
            return  # the time is up
        ended, _ = ray.wait(list(running), timeout=1.0)
        for task in ended:
            spec = running.pop(task)
            facts = {"key": spec.key, "label": spec.label}
            try:
                outcome, events = ray.get(task)
            except ray.exceptions.RayError as error:
                tell({"event": "lost", **facts, "why": str(error).splitlines()[0]})
                continue  # Ray has used all retries
            for event in events:
                tell(event)
            if outcome == "held":  # by a process outside the cluster, which may die
                waiting.append(spec)
                time.sleep(0.2)


def _make_run(
    spec: dict[str, Any], out: str, threads: int, plugin_files: list[dict[str, Any]]
) -> tuple[str, list[dict[str, Any]]]:
    """Make a run in a process of Ray, which keeps libraries and data loaded."""
    import torch

    torch.set_num_threads(threads)
    plugins.receive_plugins(plugin_files)
    events: list[dict[str, Any]] = []
    bench = Bench(Path(out))

    def tell(event: dict[str, Any]) -> None:
        if event["event"] != "epoch":
            events.append(event)

    return attempt(Spec.of(spec), bench, bench.store, tell), events
