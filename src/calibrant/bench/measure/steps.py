"""Measure a run, step by step."""

from __future__ import annotations

import inspect
import json
import time
import warnings
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from calibrant.bench import calibrator_text
from calibrant.bench.measure.logits import measure_parts, parts_of
from calibrant.bench.measure.measurement import (
    Measurement,
    check_metrics,
    make_measurements,
    measure_metrics,
    measure_part,
)
from calibrant.bench.measure.subject import (
    FilesGone,
    Parts,
    Subject,
    Validation,
    measure_calibrated,
)
from calibrant.bench.store.rows import Row, make_row
from calibrant.bench.suite.after_names import OPTIONS, RECIPES, after_mark, is_head
from calibrant.bench.suite.spec import FAILED, MARK, SEALED, Spec
from calibrant.core.errors import InputError, no_such
from calibrant.core.registry import Registry
from calibrant.data.corruptions import KINDS, SEVERITIES
from calibrant.data.images import Splits
from calibrant.training.run import Run

# Tensors in the file of weights that are not learned: of BatchNorm, and of the recipes' heads.
FIXED: tuple[str, ...] = ("running_mean", "running_var", "num_batches_tracked")
FIXED += ("num_classes_", "draws", "frame", "share")
WITHOUT_NETWORK = ("metrics", "crossfit")  # measurements that need predictions alone
PRECISIONS = ("fp32", "bf16")
_HERE = "calibrant.bench.measure"
MEASUREMENTS: Registry[Callable[..., Iterator[Measurement]]] = Registry(
    "measurement",
    {
        "mac_cal_head": (f"{_HERE}.stage_two:mac_cal_head", "MaC-Cal's second stage"),
        "tst": (f"{_HERE}.stage_two:tst", "the second stage of TST"),
        "vtst": (f"{_HERE}.stage_two:vtst", "the second stage of VTST"),
        "shift": (f"{_HERE}.shift:shift", "corrupted test images"),
        "ood": (f"{_HERE}.ood:ood", "test rows against those of another data set"),
        "metrics": (f"{_HERE}.steps:measure_more", "further metrics"),
        "crossfit": (f"{_HERE}.crossfit:measure_crossfit", "calibrators on rows held out"),
        "pooled": (f"{_HERE}.pooled:pooled", "calibrators fitted on rows of several runs"),
    },
)


def register_measurement(
    name: str, *, needs_network: bool = True
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register a measurement, which suites then name under ``after:``.

    The function takes a run (`calibrant.bench.Subject`) and options by keyword, and gives
    `calibrant.bench.Measurement` values.

    Args:
        name: its name in suites.
        needs_network: whether it needs the trained network. Measurements that do not can be
            made on files of logits. Default: True.
    """

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        function.needs_network = needs_network  # type: ignore[attr-defined]
        return MEASUREMENTS.register(function, name=name)

    return register


def needs_network(name: str) -> bool:
    """Return whether a measurement needs a run's network beside its predictions."""
    if name in WITHOUT_NETWORK or name not in MEASUREMENTS:
        return name not in WITHOUT_NETWORK
    return getattr(MEASUREMENTS.load(name), "needs_network", True)


def measure_run(
    spec: Spec,
    run: Run | None,
    done: Collection[tuple[str, str]] = (),
    *,
    data: Splits | None = None,
    device: str | None = None,
) -> list[Row]:
    """Measure a finished run, or a file of logits, except what is ``done``; return rows.

    Rows are figures of all parts before any calibrator, of epochs and cost; figures of
    validation and test rows after every calibrator, fitted on validation rows; and figures of
    further measurements. Rows of the metric ``measured``, part ``run``, mark what is done: see
    `Spec.wanted`. A calibrator or measurement that does not fit the run leaves a row ``failed``
    and a warning.

    Raises:
        FilesGone: files that a measurement needs were not kept.
    """
    steps = run_steps(spec, run, done, data=data, device=device)
    return [make_row(spec, **measurement._asdict()) for measurement in steps]


def run_steps(
    spec: Spec,
    run: Run | None,
    done: Collection[tuple[str, str]] = (),
    *,
    data: Splits | None = None,
    device: str | None = None,
) -> Iterator[Measurement]:
    """Give the measurements of `measure_run` as they are made."""
    if spec.sealed:
        if run is None:
            raise InputError("a file of logits cannot be sealed: it has no separate test rows")
        if not spec.is_measured(done):
            yield from _measure_sealed(Validation(run))
        return
    subject: Parts
    if spec.logits is not None:
        subject = parts = parts_of(spec)
        first = partial(measure_parts, parts)
    elif run is not None:
        subject = trained = Subject(run, data=data, device=device)
        first = partial(measure_uncalibrated, trained)
    else:
        raise InputError("there is nothing to measure: neither a run nor a file of logits")
    if ("run", "none") not in done:
        yield from _step("none", first)
    for text in spec.calibrators:
        if ("run", text) not in done:
            yield from _step(text, partial(_measure_after, subject, text))
    for name, options in spec.after:
        mark = after_mark(name, options)
        if spec.logits is not None and needs_network(name):
            raise InputError(f"{name} needs a network: a file of logits has none")
        if ("run", mark) not in done:
            function = MEASUREMENTS.load(name)
            yield from _step(mark, partial(function, subject, **json.loads(options or "{}")))


def _step(mark: str, measure: Callable[[], Iterator[Measurement]]) -> Iterator[Measurement]:
    """Give the measurements of one step, the seconds it took, and last its mark."""
    begun = time.perf_counter()
    try:
        yield from list(measure())
    except FilesGone:
        raise
    except InputError as error:
        warnings.warn(f"{mark} was not measured: {error}", stacklevel=2)
        yield Measurement("run", mark, FAILED, 1.0)
    yield Measurement("run", mark, MARK, 1.0, time.perf_counter() - begun)


def _measure_sealed(run: Validation) -> Iterator[Measurement]:
    """Measure validation rows; a run without them has failed."""
    begun = time.perf_counter()
    yield from measure_part("validation", "none", run.predictions)
    yield Measurement("run", SEALED, MARK, 1.0, time.perf_counter() - begun)


def measure_uncalibrated(subject: Subject) -> Iterator[Measurement]:
    """Measure a run's own predictions, its epochs, and its cost."""
    run = subject.run
    for part in subject.parts:
        yield from measure_part(part, "none", subject.predictions(part))
    outcome = run.outcome
    values = {"train_seconds": outcome["seconds"], "epoch": outcome["epoch"]}
    values |= {f"recipe:{name}": value for name, value in outcome["recipe"].items()}
    with suppress(FileNotFoundError, InputError):  # not kept, or weights of several networks
        values["parameters"] = _count_parameters(run)
    yield from make_measurements("run", "none", values)
    for line in run.metrics:
        yield from _measure_epoch(line)


def _measure_epoch(line: dict[str, Any]) -> Iterator[Measurement]:
    """Read an epoch's line: ``validation_ece`` is metric ``ece`` of part ``validation@12``."""
    epoch = line["epoch"]
    for name, value in line.items():
        if name in ("epoch", "lr") or not isinstance(value, (int, float)):
            continue
        part, _, metric = name.partition("_")
        if part not in ("train", "validation") or not metric:
            part, metric = "run", name
        yield Measurement(f"{part}@{epoch}", "none", metric, float(value))


def _count_parameters(run: Run) -> float:
    learnt = [
        tensor.numel()
        for name, tensor in run.weights().items()
        if name.startswith("network.") and not name.endswith(FIXED)
    ]
    return float(sum(learnt))


def _measure_after(subject: Parts, text: str) -> Iterator[Measurement]:
    yield from measure_calibrated(text, subject.fit(text), subject.judged_parts())


def measure_more(
    subject: Parts,
    *,
    names: Sequence[str],
    parts: Sequence[str] = ("validation", "test"),
    calibrators: Sequence[str] = (),
) -> Iterator[Measurement]:
    """Measure further metrics, such as ``kde_ece``.

    Args:
        subject: the run.
        names: the metrics.
        parts: the parts. Default: validation and test rows.
        calibrators: after which they are measured, besides before any.
    """
    wanted = check_metrics(names)
    for calibrator in ("none", *calibrator_text.expand_calibrators(calibrators)):
        for part in parts:
            predictions = subject.calibrate(calibrator, subject.predictions(part))
            yield from measure_metrics(part, calibrator, predictions, wanted)


def check_after(name: str, options: dict[str, Any]) -> None:
    """Raise an error for an unknown measurement or option."""
    function = MEASUREMENTS.load(name)
    if name in RECIPES:
        from calibrant.training.recipes import get

        recipe_options = {key: value for key, value in options.items() if key not in OPTIONS}
        get(RECIPES[name], **recipe_options)
        _check_calibrators(options.get("then", ()))
        _check_precision(options.get("precision", PRECISIONS[0]))
        return
    known = [option for option in inspect.signature(function).parameters if option != "subject"]
    for option, value in options.items():
        if option not in known:
            raise no_such(f"option of {name}", option, known)
        if option in CHECKS:
            CHECKS[option](value)


def _check_calibrators(names: Sequence[str]) -> None:
    for name in calibrator_text.expand_calibrators([name for name in names if not is_head(name)]):
        calibrator_text.make(name)


def _check_kinds(kinds: Sequence[str]) -> None:
    for kind in kinds:
        if kind not in KINDS:
            raise no_such("corruption", kind, KINDS)


def _check_severities(severities: Sequence[int]) -> None:
    if not severities or any(severity not in SEVERITIES for severity in severities):
        raise InputError(
            f"severities must be among {', '.join(map(str, SEVERITIES))}, found {severities}"
        )


def _check_precision(precision: str) -> None:
    if precision not in PRECISIONS:
        raise no_such("precision", precision, PRECISIONS)


def _check_named(named: Any) -> None:
    if not isinstance(named, str) or not named.isidentifier() or named in ("train", "validation"):
        raise InputError(f"named must be a word other than train or validation, found {named!r}")


# Values of options are checked before the first run.
CHECKS: dict[str, Callable[[Any], object]] = {
    "calibrators": _check_calibrators,
    "kinds": _check_kinds,
    "severities": _check_severities,
    "precision": _check_precision,
    "metrics": check_metrics,
    "names": check_metrics,
    "named": _check_named,
}
