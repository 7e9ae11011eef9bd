"""Read, normalise and make methods written as ``name(option=value, ...)``."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable, Mapping
from typing import Any

from calibrant.bench.suite.former import make_options, store_calibrator
from calibrant.bench.suite.sources import drop_source, source_of
from calibrant.calibrators.base import Calibrator
from calibrant.calibrators.registry import get, kind_of
from calibrant.core.errors import InputError
from calibrant.core.method_text import format_method, parse_method
from calibrant.core.registry import SOURCE

ALL = "argmax_preserving"  # stands for `PRESERVING` and `FORMS`
# Calibrators that never change a prediction. Stored runs mean these: a calibrator that came later,
# such as `levels`, is measured only if a suite names it.
PRESERVING = (
    "temperature",
    "ensemble_temperature",
    "parameterized_temperature",
    "intra_order",
    "meta_cal",
)
# Further forms of calibrators that keep predictions, as suites write them.
FORMS = (
    "temperature(objective=sb_ece)",
    "temperature(objective=ece)",
    "temperature(objective=class_scaled)",
    "isotonic(form=m2b)",
)
DENSE = ("temperature", "ensemble_temperature", "local_temperature")  # fast on millions of pixels
_WORDS = re.compile(r"[A-Za-z_]\w*")
parse = parse_method


def spell(name: str, options: Mapping[str, Any]) -> str:
    """Format a method as results do; a registered method gets its source."""
    source = source_of(name)
    return format_method(name, options if source is None else {SOURCE: source, **options})


def normalise_text(text: str) -> str:
    """Return a method's text as results write it."""
    return spell(*parse(text))


def add_sources(value: Any) -> Any:
    """Add the source to the calibrators and metrics of plugins in a measurement's options."""
    if isinstance(value, dict):
        return {key: add_sources(item) for key, item in value.items()}
    if isinstance(value, list):
        return [add_sources(item) for item in value]
    if isinstance(value, str) and any(map(source_of, _WORDS.findall(value))):
        return "+".join(_normalise_own(part) for part in value.split("+", 1))
    return value


def _normalise_own(text: str) -> str:
    try:
        return normalise_text(text) if source_of(parse(text)[0]) else text
    except InputError:  # not a method: the measurement reports it
        return text


def make(text: str) -> Calibrator:
    """Make a calibrator; options that it does not have go to its objective."""
    name, options = parse(text)
    options = make_options(name, drop_source(name, options))
    options.pop("on", None)  # names the rows to fit on: see `fitting_part`
    parameters = inspect.signature(kind_of(name)).parameters
    extra = {key: options.pop(key) for key in list(options) if key not in parameters}
    if extra and "objective_options" not in parameters:
        raise InputError(f"{name} has no option {', '.join(extra)}, in {text!r}")
    if extra:
        options["objective_options"] = {**options.get("objective_options", {}), **extra}
    return get(name, **options)


def fitting_part(text: str) -> str:
    """Return the part whose rows a calibrator is fitted on: its ``on=``, else validation."""
    part = str(parse(text)[1].get("on", "validation"))
    if part not in ("train", "validation"):
        raise InputError(f"a calibrator is fitted on train or validation, found {text!r}")
    return part


def expand_calibrators(texts: Iterable[str], *, dense: bool = False) -> tuple[str, ...]:
    """List calibrators without repetition, normalised, with `ALL` written out."""
    names: dict[str, None] = {}
    for text in texts:
        name, options = parse(text)
        if name == ALL:
            _check_set(text, options)
            listed = list_preserving(dense=dense, former=bool(options.get("former", True)))
        else:
            listed = (normalise_text(text),)
        for name_text in listed:
            fitting_part(name_text)
            names[name_text] = None
    return tuple(names)


def _check_set(text: str, options: Mapping[str, Any]) -> None:
    if options and (set(options) != {"former"} or not isinstance(options["former"], bool)):
        raise InputError(f"{ALL} takes former=true or former=false alone, found {text!r}")


def list_preserving(*, dense: bool = False, former: bool = True) -> tuple[str, ...]:
    """List the calibrators that `ALL` stands for, as stored.

    Args:
        dense: Whether predictions are dense: then only `DENSE`. Default: False.
        former: Whether forms have their former defaults: see `suite.former`. Default: True, what
            stored runs mean.
    """
    if dense:
        return DENSE
    forms = FORMS if former else (normalise_text(store_calibrator(form)) for form in FORMS)
    return (*PRESERVING, *forms)
