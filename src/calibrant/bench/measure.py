"""Everything that is measured of a run, as rows."""

from __future__ import annotations

import json
import time
import warnings
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from calibrant.bench import looks, texts
from calibrant.bench.crossfit import crossfit
from calibrant.bench.judging import Figure, checked, counted, figures, told
from calibrant.bench.logits import halves_of, uncalibrated_halves
from calibrant.bench.ood import ood
from calibrant.bench.pooled import pooled
from calibrant.bench.rows import Row, make_row
from calibrant.bench.sealed import Validation
from calibrant.bench.shift import shift
from calibrant.bench.spec import FAILED, MARK, OF_LOGITS, SEALED, Spec, after_mark
from calibrant.bench.stage_two import OPTIONS, RECIPES, is_head, stage_two
from calibrant.bench.subject import FilesGone, Parts, Subject, calibrated_figures, judged
from calibrant.data.corruptions import KINDS, SEVERITIES
from calibrant.data.value import Splits
from calibrant.functional.errors import InputError, no_such
from calibrant.training.run import Run

__all__ = ["FilesGone", "check_after", "measure", "measurements"]

# In the file of weights, but not learnt: BatchNorm's, and those of the recipes' heads.
FIXED: tuple[str, ...] = ("running_mean", "running_var", "num_batches_tracked")
FIXED += ("num_classes_", "draws", "frame", "share")


def measure(
    spec: Spec,
    run: Run | None,
    done: Collection[tuple[str, str]] = (),
    *,
    data: Splits | None = None,
    device: str | None = None,
) -> list[Row]:
    """Rows of a finished run, or of a file of logits, that are not ``done`` yet.

    Figures of its parts uncalibrated, its epochs and its cost; of validation and test rows
    after every calibrator, fitted on validation rows; then every further measurement. What is
    done is told by rows of the metric ``measured``, part ``run``: see `Spec.wanted`. A
    calibrator or measurement that does not go with the run leaves a row ``failed``, and a
    warning that says why. `FilesGone` where what it needs was not kept.
    """
    found = measurements(spec, run, done, data=data, device=device)
    return [make_row(spec, **one._asdict()) for one in found]


def measurements(
    spec: Spec,
    run: Run | None,
    done: Collection[tuple[str, str]] = (),
    *,
    data: Splits | None = None,
    device: str | None = None,
) -> Iterator[Figure]:
    """The same, as they come, without what is known of the run."""
    if spec.sealed:
        if run is None:
            raise InputError("a file of logits is its own test: there is nothing to seal")
        if not spec.is_measured(done):
            yield from _sealed(Validation(run))
        return
    subject: Parts
    if spec.logits is not None:
        subject = halves = halves_of(spec)
        first = partial(uncalibrated_halves, halves)
    elif run is not None:
        subject = trained = Subject(run, data=data, device=device)
        first = partial(uncalibrated, trained)
    else:
        raise InputError("there is nothing to measure: neither a run nor a file of logits")
    if ("run", "none") not in done:
        yield from _step("none", first)
    for text in spec.calibrators:
        if ("run", text) not in done:
            yield from _step(text, partial(_calibrated, subject, text))
    for name, options in spec.after:
        mark = after_mark(name, options)
        if spec.logits is not None and name not in OF_LOGITS:
            raise InputError(f"{name} needs a network: a file of logits has none")
        if ("run", mark) not in done:
            yield from _step(mark, partial(_after(name), subject, **json.loads(options or "{}")))


def _step(mark: str, make: Callable[[], Iterator[Figure]]) -> Iterator[Figure]:
    """What one step gives, the seconds it took, and its mark, which comes last."""
    begun = time.perf_counter()
    try:
        yield from list(make())
    except FilesGone:
        raise
    except InputError as error:
        warnings.warn(f"{mark} was not measured: {error}", stacklevel=2)
        yield Figure("run", mark, FAILED, 1.0)
    yield Figure("run", mark, MARK, 1.0, time.perf_counter() - begun)


def _sealed(run: Validation) -> Iterator[Figure]:
    """Figures of validation rows, by the view that has no others; without them it has failed."""
    begun = time.perf_counter()
    said = run.predictions
    yield from told("validation", "none", figures(said), rows=counted(said))
    yield Figure("run", SEALED, MARK, 1.0, time.perf_counter() - begun)


def uncalibrated(subject: Subject) -> Iterator[Figure]:
    """Figures of the run's own predictions, of its epochs, and what it cost."""
    run = subject.run
    for part in subject.parts:
        said = subject.said(part)
        yield from told(part, "none", figures(said), rows=counted(said))
    outcome = run.outcome
    values = {"train_seconds": outcome["seconds"], "epoch": outcome["epoch"]}
    values |= {f"recipe:{name}": value for name, value in outcome["recipe"].items()}
    with suppress(FileNotFoundError, InputError):  # not kept, or those of several networks
        values["parameters"] = _parameters(run)
    yield from told("run", "none", values)
    for line in run.metrics:
        yield from _epoch(line)


def _epoch(line: dict[str, Any]) -> Iterator[Figure]:
    """An epoch's line: ``validation_ece`` is metric ``ece`` of part ``validation@12``."""
    epoch = line["epoch"]
    for name, value in line.items():
        if name in ("epoch", "lr") or not isinstance(value, (int, float)):
            continue
        part, _, metric = name.partition("_")
        if part not in ("train", "validation") or not metric:
            part, metric = "run", name
        yield Figure(f"{part}@{epoch}", "none", metric, float(value))


def _parameters(run: Run) -> float:
    return float(
        sum(
            one.numel()
            for name, one in run.weights().items()
            if name.startswith("network.") and not name.endswith(FIXED)
        )
    )


def _calibrated(subject: Parts, text: str) -> Iterator[Figure]:
    yield from calibrated_figures(text, subject.fit(text), judged(subject))


def more_metrics(
    subject: Parts,
    *,
    names: Sequence[str],
    parts: Sequence[str] = ("validation", "test"),
    calibrators: Sequence[str] = (),
) -> Iterator[Figure]:
    """Metrics beyond the usual ones, such as ``kde_ece``."""
    wanted = checked(names)
    for calibrator in ("none", *texts.expanded(calibrators)):
        for part in parts:
            said = subject.calibrated(calibrator, subject.said(part))
            yield from told(part, calibrator, figures(said, wanted), rows=counted(said))


def crossfits(subject: Parts, *, calibrators: Sequence[str] = (texts.ALL,)) -> Iterator[Figure]:
    """Calibrators on validation rows they were not fitted on: what a choice among them needs."""
    for text in texts.expanded(calibrators, dense=subject.is_dense):
        subject.allows(text)
        yield from crossfit(text, subject.said("validation"))


def _second(name: str, subject: Subject, **options: Any) -> Iterator[Figure]:
    return stage_two(name, subject, options)


AFTER: dict[str, Callable[..., Iterator[Figure]]] = {
    **{name: partial(_second, name) for name in RECIPES},
    "shift": shift,
    "ood": ood,
    "metrics": more_metrics,
    "crossfit": crossfits,
    "pooled": pooled,
    "hard_classes": looks.hard,
    "masked": looks.masked,
    "inactive": looks.inactive,
}


def _after(name: str) -> Callable[..., Iterator[Figure]]:
    if name not in AFTER:
        raise no_such("further measurement", name, AFTER)
    return AFTER[name]


def check_after(name: str, options: dict[str, Any]) -> None:
    """An error where there is no such measurement, or it has no such option."""
    import inspect

    made = _after(name)
    if name in RECIPES:
        from calibrant.training.recipes import get

        get(RECIPES[name], **{key: one for key, one in options.items() if key not in OPTIONS})
        _check_calibrators(options.get("then", ()))
        _check_precision(options.get("precision", PRECISIONS[0]))
        return
    known = [one for one in inspect.signature(made).parameters if one != "subject"]
    for option, value in options.items():
        if option not in known:
            raise no_such(f"option of {name}", option, known)
        if option in CHECKS:
            CHECKS[option](value)


def _check_calibrators(names: Sequence[str]) -> None:
    for name in texts.expanded([one for one in names if not is_head(one)]):
        texts.make(name)


def _check_kinds(kinds: Sequence[str]) -> None:
    for kind in kinds:
        if kind not in KINDS:
            raise no_such("corruption", kind, KINDS)


def _check_severities(severities: Sequence[int]) -> None:
    if not severities or any(one not in SEVERITIES for one in severities):
        raise InputError(f"severities are of {', '.join(map(str, SEVERITIES))}, found {severities}")


def _check_precision(precision: str) -> None:
    if precision not in PRECISIONS:
        raise no_such("precision", precision, PRECISIONS)


def _check_named(named: Any) -> None:
    if not isinstance(named, str) or not named.isidentifier() or named in ("train", "validation"):
        raise InputError(
            f"named is a word that figures are told apart by, and no part of a run, found {named!r}"
        )


# What is wrong with an option's value is said before the first run.
PRECISIONS = ("fp32", "bf16")
CHECKS: dict[str, Callable[[Any], object]] = {
    "calibrators": _check_calibrators,
    "kinds": _check_kinds,
    "severities": _check_severities,
    "precision": _check_precision,
    "metrics": checked,
    "names": checked,
    "named": _check_named,
}
