"""Making the runs of a suite: here, by a pool of processes, or by Ray."""

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
from calibrant.bench.run.locks import locked
from calibrant.bench.run.worker import Bench, Tell, work
from calibrant.bench.select.tune import Unfinished, tune_suite
from calibrant.bench.suite import plugins
from calibrant.bench.suite.after_names import LATE
from calibrant.bench.suite.published import copy_files
from calibrant.bench.suite.spec import Spec, distinct
from calibrant.bench.suite.suite import Suite
from calibrant.core.errors import InputError, no_such
from calibrant.core.files import write_file
from calibrant.core.plugins import check_current

PLACES = ("here", "pool", "ray")


@dataclass
class Summary:
    """What became of the runs asked for."""

    done: list[str] = field(default_factory=list)  # now
    before: list[str] = field(default_factory=list)  # already
    failed: list[str] = field(default_factory=list)
    left: list[str] = field(default_factory=list)  # the time was up, or others hold them
    waiting: list[str] = field(default_factory=list)  # for runs of other seeds: see `pooled`


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
    """Make every run of a suite that is not made, here, by a pool of processes, or by Ray.

    Several may work on one folder at once. After ``limit_minutes`` no new run is begun. Runs and
    measurements that failed before are tried again only on ``retry``. ``machine`` changes
    settings of the machine alone, such as ``data_folder``. ``progress`` is given what happens,
    as mappings whose ``event`` is begun, epoch, done, failed or left, with the run's ``method``
    where the suite names it. Of runs that suites ``beside`` it have as well, what these want is
    measured too, from one training.
    """
    chosen = replace(suite, specs=suite.chosen(only, seeds))
    if not chosen.specs:
        raise InputError(f"no run of suite {suite.name} is of that method, setting and seed")
    for one in (suite, *beside):
        check_current(one.plugins)
    _put_down(suite, Path(out), beside)
    limit = None if limit_minutes is None else time.time() + 60 * limit_minutes
    made: list[Summary] = []

    others = distinct(spec for one in beside for _, spec in one.specs)
    wanted = {one.key: one for one in others}
    for one in beside:
        if not {spec.key for _, spec in one.specs} & {spec.key for _, spec in suite.specs}:
            raise InputError(f"{one.name} has no run in common with {suite.name}")

    def make(asked: list[Spec]) -> Summary:
        # A sealed one stays so, whatever else is asked of it.
        specs = [one if one.sealed else one.joined(wanted.get(one.key, one)) for one in asked]
        left = None if limit is None else max(0.0, (limit - time.time()) / 60)
        made.append(
            run_specs(
                specs,
                out,
                on=on,
                workers=workers,
                threads=threads,
                limit_minutes=left,
                retry=retry,
                machine=machine,
                progress=_naming(progress, chosen),
            )
        )
        return made[-1]

    if suite.tune:
        try:
            chosen = tune_suite(chosen, out, lambda specs: make(specs).failed)
        except Unfinished:
            if not made[-1].left:
                raise  # no more time would help
            return made[-1]
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
    wanted = [one.on_machine(**(machine or {})) for one in distinct(specs)]
    store = bench.store
    if retry:
        bench.repeat_failed(wanted, store)
    before = [one.key for one in wanted if bench.is_done(one, store)]
    limit = None if limit_minutes is None else time.time() + 60 * limit_minutes
    tell = progress or (lambda event: None)

    def make(specs: list[Spec]) -> None:
        ready = [one.key for one in specs if bench.is_done(one, store)]
        tell({"event": "plan", "runs": len(specs), "before": len(ready)})
        _make(
            [one for one in specs if one.key not in ready], bench, tell, on, workers, threads, limit
        )

    late = [one for one in wanted if one.is_late]
    for one in late:
        if one.key not in before and not held_out_path(bench.folder(one.key)).is_file():
            bench.repeat(one.key, ["none"])  # what the others need of it was not kept
    make([one.early for one in wanted])
    # What needs other runs comes once these are made; where some are not, it is left for later.
    ready = [one for one in late if not bench.is_done(one, store) and _has_family(one, bench)]
    if ready:
        make(ready)
    return _summary(wanted, before, bench)


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
        with _threads(threads):
            work(specs, bench, tell, limit=limit)
    elif specs and on == "pool":
        from calibrant.bench.run.pool import run_pool

        run_pool(specs, bench, tell, workers=workers, threads=threads, limit=limit)
    elif specs:
        from calibrant.bench.run.ray_cluster import run_ray

        run_ray(specs, bench, tell, workers=workers, threads=threads, limit=limit)


def _has_family(spec: Spec, bench: Bench) -> bool:
    """Whether the runs that its late measurements need have been made."""
    folder = bench.folder(spec.key)
    late = [json.loads(options) for name, options in spec.after if name in LATE]
    return held_out_path(folder).is_file() and all(has_family(folder, one) for one in late)


def _naming(progress: Tell | None, suite: Suite) -> Tell | None:
    """The same, told what the suite calls a run; candidates of its tuning have no name."""
    if progress is None:
        return None
    names: dict[str, list[str]] = {}
    for method, spec in suite.specs:
        if method not in names.setdefault(spec.key, []):
            names[spec.key].append(method)

    def tell(event: dict[str, Any]) -> None:
        found = names.get(event.get("key", ""))
        progress({**event, "method": ", ".join(found)} if found else event)

    return tell


def _put_down(suite: Suite, out: Path, beside: Sequence[Suite] = ()) -> None:
    """Leave the suite in the folder, for whoever looks at it; several may begin at once."""
    out.mkdir(parents=True, exist_ok=True)
    with locked(out / ".suite.lock", wait=True):
        for one in (*beside, suite):  # of two of a name, the one that is run
            one.copy_to(out)
        plugins.put_down(suite.plugins, suite.folder, out)
        copy_files(suite.published, suite.folder, out)
        write_file(out / "suite.yaml", suite.text.encode())


def _summary(wanted: list[Spec], before: list[str], bench: Bench) -> Summary:
    found, store = Summary(before=before), bench.store
    for one in wanted:
        if one.key in before:
            continue
        done = bench.done(one.key, store)
        if one.is_measured(done):
            found.done.append(one.key)
        elif bench.failure(one.key).is_file():
            found.failed.append(one.key)
        elif one.is_late and one.early.is_measured(done) and not _has_family(one, bench):
            found.waiting.append(one.key)
        else:
            found.left.append(one.key)
    return found


@contextmanager
def _threads(count: int | None) -> Iterator[None]:
    """Torch's threads in this process, for as long as the runs take."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(count or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)
