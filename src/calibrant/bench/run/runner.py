"""Make the runs of a suite: in this process, in a pool, or on a Ray cluster."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from calibrant.bench.measure.pooled import has_family, held_out_path
from calibrant.bench.run.worker import Bench, Tell, work
from calibrant.bench.select.tune import Unfinished, tune_suite
from calibrant.bench.suite import plugins
from calibrant.bench.suite.after_names import LATE
from calibrant.bench.suite.published import copy_files
from calibrant.bench.suite.spec import Spec, distinct
from calibrant.bench.suite.suite import Suite
from calibrant.core.errors import InputError, no_such
from calibrant.core.files import hold_lock, write_file
from calibrant.core.plugins import check_current

PLACES = ("here", "pool", "ray")


@dataclass
class Summary:
    """Keys of runs by outcome."""

    done: list[str] = field(default_factory=list)  # made by this call
    before: list[str] = field(default_factory=list)  # made earlier
    failed: list[str] = field(default_factory=list)
    left: list[str] = field(default_factory=list)  # time was up, or another process holds them
    waiting: list[str] = field(default_factory=list)  # need runs of other seeds: see `pooled`


def run_suite(
    suite: Suite,
    out: str | os.PathLike[str],
    *,
    on: str = "here",
    workers: int | None = None,
    threads: int | None = None,
    limit_minutes: float | None = None,
    only: Iterable[str] | None = None,
    seeds: Sequence[int] | None = None,
    retry: bool = False,
    machine: dict[str, Any] | None = None,
    progress: Tell | None = None,
    beside: Sequence[Suite] = (),
) -> Summary:
    """Make the missing runs of a suite; several processes may work on one folder.

    Args:
        suite: the suite.
        out: the folder of runs; resumed if it exists.
        on: ``here``, ``pool`` (processes of this machine) or ``ray``. Default: here.
        workers: runs at a time. Default: None, chosen for the machine or the cluster.
        threads: threads of a run. Default: None, chosen for the machine.
        limit_minutes: start no run after this time. Default: None, no limit.
        only: select runs, as `Suite.chosen` does. Default: None, all.
        seeds: select runs by seed. Default: None, all.
        retry: whether to repeat runs and measurements that failed. Default: False.
        machine: settings of the machine to change, such as ``data_folder``. Default: None.
        progress: is given events as mappings, with the keys ``event`` (begun, epoch, measured,
            done, failed, lost or plan) and ``method``. Default: None.
        beside: further suites; runs that they share with this suite get their measurements too,
            from one training. Default: none.
    """
    chosen = replace(suite, specs=suite.chosen(only, seeds))
    if not chosen.specs:
        raise InputError(f"no run of suite {suite.name} has that method, setting and seed")
    for other in (suite, *beside):
        check_current(other.plugins)
    _copy_suites(suite, Path(out), beside)
    limit = None if limit_minutes is None else time.time() + 60 * limit_minutes
    summaries: list[Summary] = []

    others = distinct(spec for other in beside for _, spec in other.specs)
    wanted = {spec.key: spec for spec in others}
    for other in beside:
        if not {spec.key for _, spec in other.specs} & {spec.key for _, spec in suite.specs}:
            raise InputError(f"{other.name} has no run in common with {suite.name}")

    def make(asked: list[Spec]) -> Summary:
        # A sealed run stays sealed.
        specs = [spec if spec.sealed else spec.join(wanted.get(spec.key, spec)) for spec in asked]
        left = None if limit is None else max(0.0, (limit - time.time()) / 60)
        summaries.append(
            run_specs(
                specs,
                out,
                on=on,
                workers=workers,
                threads=threads,
                limit_minutes=left,
                retry=retry,
                machine=machine,
                progress=_add_methods(progress, chosen),
            )
        )
        return summaries[-1]

    if suite.tune:
        try:
            chosen = tune_suite(chosen, out, lambda specs: make(specs).failed)
        except Unfinished:
            if not summaries[-1].left:
                raise  # not a matter of time
            return summaries[-1]
    return make([spec for _, spec in chosen.specs])


def run_specs(
    specs: Iterable[Spec],
    out: str | os.PathLike[str],
    *,
    on: str = "here",
    workers: int | None = None,
    threads: int | None = None,
    limit_minutes: float | None = None,
    retry: bool = False,
    machine: dict[str, Any] | None = None,
    progress: Tell | None = None,
) -> Summary:
    """Make these runs; see `run_suite`."""
    if on not in PLACES:
        raise no_such("place for runs", on, PLACES)
    bench = Bench(Path(out).absolute())
    wanted = [spec.on_machine(**(machine or {})) for spec in distinct(specs)]
    store = bench.store
    if retry:
        bench.repeat_failed(wanted, store)
    before = [spec.key for spec in wanted if bench.is_done(spec, store)]
    limit = None if limit_minutes is None else time.time() + 60 * limit_minutes
    tell = progress or (lambda event: None)

    def make(specs: list[Spec]) -> None:
        ready = [spec.key for spec in specs if bench.is_done(spec, store)]
        tell({"event": "plan", "runs": len(specs), "before": len(ready)})
        _make(
            [spec for spec in specs if spec.key not in ready],
            bench,
            tell,
            on,
            workers,
            threads,
            limit,
        )

    late = [spec for spec in wanted if spec.is_late]
    for spec in late:
        if spec.key not in before and not held_out_path(bench.folder(spec.key)).is_file():
            bench.repeat(spec.key, ["none"])  # other runs need its predictions
    make([spec.early for spec in wanted])
    # Measurements that need other runs come last, where those runs are made.
    ready = [spec for spec in late if not bench.is_done(spec, store) and _has_family(spec, bench)]
    if ready:
        make(ready)
    return _summarise(wanted, before, bench)


def _make(
    specs: list[Spec],
    bench: Bench,
    tell: Tell,
    on: str,
    workers: int | None,
    threads: int | None,
    limit: float | None,
) -> None:
    if specs and on == "here":
        with _use_threads(threads):
            work(specs, bench, tell, limit=limit)
    elif specs and on == "pool":
        from calibrant.bench.run.pool import run_pool

        run_pool(specs, bench, tell, workers=workers, threads=threads, limit=limit)
    elif specs:
        from calibrant.bench.run.ray_cluster import run_ray

        run_ray(specs, bench, tell, workers=workers, threads=threads, limit=limit)


def _has_family(spec: Spec, bench: Bench) -> bool:
    """Return whether the runs that its late measurements need are made."""
    folder = bench.folder(spec.key)
    late = [json.loads(options) for name, options in spec.after if name in LATE]
    return held_out_path(folder).is_file() and all(
        has_family(folder, options_of) for options_of in late
    )


def _add_methods(progress: Tell | None, suite: Suite) -> Tell | None:
    """Add the suite's name of the method to events; candidates of tuning have none."""
    if progress is None:
        return None
    names: dict[str, list[str]] = {}
    for method, spec in suite.specs:
        if method not in names.setdefault(spec.key, []):
            names[spec.key].append(method)

    def tell(event: dict[str, Any]) -> None:
        methods = names.get(event.get("key", ""))
        progress({**event, "method": ", ".join(methods)} if methods else event)

    return tell


def _copy_suites(suite: Suite, out: Path, beside: Sequence[Suite] = ()) -> None:
    """Copy the suites and their files to the folder of runs, under a lock."""
    out.mkdir(parents=True, exist_ok=True)
    with hold_lock(out / ".suite.lock", wait=True):
        for copied in (*beside, suite):  # of suites with one name, the main one stays
            copied.copy_to(out)
        plugins.copy_plugins(suite.plugins, suite.folder, out)
        copy_files(suite.published, suite.folder, out)
        write_file(out / "suite.yaml", suite.text.encode())


def _summarise(wanted: list[Spec], before: list[str], bench: Bench) -> Summary:
    summary, store = Summary(before=before), bench.store
    for spec in wanted:
        if spec.key in before:
            continue
        done = bench.done(spec.key, store)
        if spec.is_measured(done):
            summary.done.append(spec.key)
        elif bench.failure_path(spec.key).is_file():
            summary.failed.append(spec.key)
        elif spec.is_late and spec.early.is_measured(done) and not _has_family(spec, bench):
            summary.waiting.append(spec.key)
        else:
            summary.left.append(spec.key)
    return summary


@contextmanager
def _use_threads(count: int | None) -> Iterator[None]:
    """Set the number of torch's threads for a while."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(count or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)
