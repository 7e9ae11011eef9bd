"""Methods as text, ``name(option=value, ...)``: read, spelled one way, and made."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable, Mapping
from typing import Any

from calibrant.bench.suite.former import make_options, store_calibrator
from calibrant.bench.suite.sources import drop_source, source_of
from calibrant.calibrators.base import Calibrator
from calibrant.calibrators.registry import CALIBRATORS, get, kind_of
from calibrant.core.errors import InputError
from calibrant.core.method_text import format_method, parse_method
from calibrant.core.registry import SOURCE

ALL = "argmax_preserving"  # every calibrator that keeps predictions, but for `BY_NAME_ONLY`
# Forms of calibrators that keep predictions beside each one's default form, as suites write them.
FORMS = (
    "temperature(objective=sb_ece)",
    "temperature(objective=ece)",
    "temperature(objective=class_scaled)",
    "isotonic(form=m2b)",
)
DENSE = ("temperature", "ensemble_temperature", "local_temperature")  # of millions of pixels
# Asked for by name: came after the runs that say argmax_preserving.
BY_NAME_ONLY = ("levels",)
_WORDS = re.compile(r"[A-Za-z_]\w*")
parse = parse_method


def spell(name: str, options: Mapping[str, Any]) -> str:
    """Write a method the one way that results use; a registered one with its source."""
    source = source_of(name)
    return format_method(name, options if source is None else {SOURCE: source, **options})


def spelled(text: str) -> str:
    """The same method, written the one way."""
    return spell(*parse(text))


def with_sources(value: Any) -> Any:
    """Options of a measurement, calibrators and metrics of plugins in them spelled the one way."""
    if isinstance(value, dict):
        return {key: with_sources(one) for key, one in value.items()}
    if isinstance(value, list):
        return [with_sources(one) for one in value]
    if isinstance(value, str) and any(map(source_of, _WORDS.findall(value))):
        return "+".join(_own_spelled(part) for part in value.split("+", 1))
    return value


def _own_spelled(text: str) -> str:
    try:
        return spelled(text) if source_of(parse(text)[0]) else text
    except InputError:  # it is no method: whoever has the option says what is wrong
        return text


def make(text: str) -> Calibrator:
    """A fresh calibrator; options that are not its own are its objective's."""
    name, options = parse(text)
    options = make_options(name, drop_source(name, options))
    options.pop("on", None)  # which rows it is fitted on: not its own concern
    own = inspect.signature(kind_of(name)).parameters
    extra = {key: options.pop(key) for key in list(options) if key not in own}
    if extra and "objective_options" not in own:
        raise InputError(f"{name} has no option {', '.join(extra)}, in {text!r}")
    if extra:
        options["objective_options"] = {**options.get("objective_options", {}), **extra}
    return get(name, **options)


def fitted_on(text: str) -> str:
    """The part of a run whose rows a calibrator is fitted on: ``on=``, else validation."""
    part = str(parse(text)[1].get("on", "validation"))
    if part not in ("train", "validation"):
        raise InputError(f"a calibrator is fitted on train or validation, found {text!r}")
    return part


def expanded(texts: Iterable[str], *, dense: bool = False) -> tuple[str, ...]:
    """Every calibrator asked for, once, each spelled one way."""
    found: dict[str, None] = {}
    for text in texts:
        name, options = parse(text)
        if name == ALL:
            _check_set(text, options)
            listed = keeping(dense=dense, former=bool(options.get("former", True)))
        else:
            listed = (spelled(text),)
        for one in listed:
            fitted_on(one)
            found[one] = None
    return tuple(found)


def _check_set(text: str, options: Mapping[str, Any]) -> None:
    if options and (set(options) != {"former"} or not isinstance(options["former"], bool)):
        raise InputError(f"{ALL} takes former=true or former=false alone, found {text!r}")


def keeping(*, dense: bool = False, former: bool = True) -> tuple[str, ...]:
    """What `ALL` stands for, as stored; of dense predictions those fit for their size.

    Args:
        dense: Whether predictions are dense. Default: False.
        former: Whether forms have their former defaults: see `suite.former`. Default: True, what
            stored runs mean.
    """
    if dense:
        return DENSE
    left_out = ("identity", *BY_NAME_ONLY)
    names = [
        name
        for name in CALIBRATORS
        if name not in left_out and source_of(name) is None and _keeps(name)
    ]
    return (*names, *(FORMS if former else (spelled(store_calibrator(one)) for one in FORMS)))


def _keeps(name: str) -> bool:
    kind = kind_of(name)
    if kind.takes_features or kind.dense_only:
        return False
    return bool(get(name).preserves_predictions)
