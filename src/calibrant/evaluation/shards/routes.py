"""Sum pieces in this process, one after the other, or on a Ray cluster."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterator, Sequence
from copy import deepcopy
from typing import Any, Literal, TypeAlias

from calibrant.core import plugins
from calibrant.core.errors import InputError
from calibrant.core.extras import require
from calibrant.core.progress import progress_bar
from calibrant.evaluation.shards.sums import Job, Sums
from calibrant.predictions.shards import Piece

Route: TypeAlias = Literal["local", "ray"]

RETRIES = 5  # of a piece whose worker or machine was lost
_AHEAD = 2  # pieces for each worker that are under way or wait to be merged


def run_pieces(
    job: Job, pieces: Sequence[Piece], *, on: str, workers: int | None, progress: bool
) -> Sums:
    """Sum all pieces and merge their sums in order.

    Args:
        job: What to sum of each piece.
        pieces: The pieces.
        on: ``local`` or ``ray``.
        workers: The most pieces at a time; None for as many as the cluster has cores.
        progress: Show progress on the terminal.
    """
    total = deepcopy(job.empty)
    parts = _run_local(job, pieces) if on == "local" else _run_ray(job, pieces, workers)
    rows = sum(piece.num_rows for piece in pieces)
    with progress_bar("reading shards", rows, shown=progress) as advance:
        for piece, part in zip(pieces, parts, strict=True):
            total.merge(part)
            advance(piece.num_rows)
    return total


def _run_local(job: Job, pieces: Sequence[Piece]) -> Iterator[Sums]:
    return map(job.run, pieces)


def _run_ray(job: Job, pieces: Sequence[Piece], workers: int | None) -> Iterator[Sums]:
    """Yield the sums of the pieces in order.

    Uses the cluster that this process is connected to, else the cluster that ``RAY_ADDRESS``
    names, else a new cluster on this machine. A piece whose worker is lost is summed again; the
    sums of a piece come back once.
    """
    ray = require("ray", extra="scale", purpose="--on ray")
    ours = not ray.is_initialized()
    if ours:
        ray.init(include_dashboard=False, log_to_driver=False, logging_level=logging.WARNING)
    try:
        at_once = workers or max(1, int(ray.cluster_resources().get("CPU", 1)))
        make = ray.remote(num_cpus=1, max_retries=RETRIES)(_sum_piece)
        shared, plugin_files = ray.put(job), plugins.list_loaded()
        waiting = deque(pieces)
        running: deque[Any] = deque()
        while waiting or running:
            while waiting and len(running) < _AHEAD * at_once:
                running.append(make.remote(shared, waiting.popleft(), plugin_files))
            yield _get(ray, running.popleft())
    finally:
        if ours:
            ray.shutdown()


def _get(ray: Any, task: Any) -> Sums:
    try:
        sums: Sums = ray.get(task)
    except ray.exceptions.RayTaskError as error:
        if isinstance(error.cause, InputError):
            raise InputError(str(error.cause)) from error
        raise
    except ray.exceptions.RayError as error:
        raise InputError(
            f"a worker was lost {RETRIES + 1} times on the same piece: "
            f"{str(error).splitlines()[0]}; give workers more memory, or write smaller row groups"
        ) from error
    return sums


def _sum_piece(job: Job, piece: Piece, plugin_files: list[dict[str, Any]]) -> Sums:
    """Sum a piece in a process of Ray."""
    plugins.receive_plugins(plugin_files)
    return job.run(piece)
