"""Runs by a Ray cluster whose machines share the folder: the same claims, the same store."""

from __future__ import annotations

import logging
import time
from pathlib import Path
from typing import Any

from calibrant.bench.run.worker import Bench, Tell, attempt
from calibrant.bench.suite.spec import Spec
from calibrant.core import plugins
from calibrant.core.extras import require

RETRIES = 5  # times Ray starts a run again whose process or machine was lost


def run_ray(
    specs: list[Spec],
    bench: Bench,
    tell: Tell,
    *,
    workers: int | None = None,
    threads: int | None = None,
    limit: float | None = None,
) -> None:
    """Hand runs to Ray, as many at a time as ``workers`` says or the cluster has room for.

    Uses the cluster this process is connected to, or the one ``RAY_ADDRESS`` names, or a new
    one on this machine. ``threads`` are the cores each run takes; GPUs are shared evenly.
    """
    ray = require("ray", extra="scale", purpose="a Ray cluster")
    ours = not ray.is_initialized()
    if ours:
        ray.init(include_dashboard=False, log_to_driver=False, logging_level=logging.WARNING)
    try:
        _hand_out(ray, specs, bench, tell, workers, threads or 1, limit)
    finally:
        if ours:
            ray.shutdown()


def _hand_out(
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
    )(_make_one)
    own = plugins.list_loaded()
    waiting = list(specs)
    running: dict[Any, Spec] = {}
    while waiting or running:
        late = limit is not None and time.time() >= limit
        while waiting and len(running) < at_once and not late:
            spec = waiting.pop(0)
            running[make.remote(spec.to_dict(), str(bench.out), threads, own)] = spec
        if not running:
            return  # the time is up
        ended, _ = ray.wait(list(running), timeout=1.0)
        for one in ended:
            spec = running.pop(one)
            told = {"key": spec.key, "label": spec.label}
            try:
                outcome, events = ray.get(one)
            except ray.exceptions.RayError as error:
                tell({"event": "lost", **told, "why": str(error).splitlines()[0]})
                continue  # more often than Ray tries again
            for event in events:
                tell(event)
            if outcome == "held":  # by someone outside the cluster, who may yet die
                waiting.append(spec)
                time.sleep(0.2)


def _make_one(
    found: dict[str, Any], out: str, threads: int, own: list[dict[str, Any]]
) -> tuple[str, list[dict[str, Any]]]:
    """In a process of Ray's, which it keeps, and with it the libraries and the data."""
    import torch

    torch.set_num_threads(threads)
    plugins.receive_plugins(own)
    events: list[dict[str, Any]] = []
    bench = Bench(Path(out))

    def tell(event: dict[str, Any]) -> None:
        if event["event"] != "epoch":
            events.append(event)

    return attempt(Spec.of(found), bench, bench.store, tell), events
