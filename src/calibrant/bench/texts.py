"""Methods as text, ``name(option=value, ...)``: read, spelled one way, and made."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterable, Mapping
from typing import Any

from calibrant.bench import register
from calibrant.calibrators.base import Calibrator
from calibrant.calibrators.registry import CALIBRATORS, get, kind_of
from calibrant.functional.errors import InputError

ALL = "argmax_preserving"  # every calibrator that keeps predictions, but for `BY_NAME_ONLY`
# Forms of calibrators that keep predictions beside each one's default form.
FORMS = (
    "temperature(objective=sb_ece)",
    "temperature(objective=ece)",
    "temperature(objective=class_scaled)",
    "isotonic(form=m2b)",
)
DENSE = ("temperature", "ensemble_temperature", "local_temperature")  # of millions of pixels
# Asked for by name: came after the runs that say argmax_preserving.
BY_NAME_ONLY = ("levels",)
_WORD = re.compile(r"[A-Za-z_]\w*$")
_WORDS = re.compile(r"[A-Za-z_]\w*")


def parse(text: str) -> tuple[str, dict[str, Any]]:
    """Name and options; a value is a plain one, or a bare word, which is text.

    >>> parse("temperature(objective=sb_ece, num_bins=10)")
    ('temperature', {'objective': 'sb_ece', 'num_bins': 10})
    """
    try:
        found = ast.parse(text.strip(), mode="eval").body
        if isinstance(found, ast.Name):
            return found.id, {}
        if isinstance(found, ast.Call) and isinstance(found.func, ast.Name) and not found.args:
            return found.func.id, {str(one.arg): _value(one) for one in found.keywords}
    except (SyntaxError, ValueError):
        pass
    raise InputError(f"expected name(option=value, ...), found {text!r}")


def _value(option: ast.keyword) -> Any:
    if option.arg is None:
        raise ValueError("**options")
    if isinstance(option.value, ast.Name):
        return option.value.id
    return ast.literal_eval(option.value)


def spell(name: str, options: Mapping[str, Any]) -> str:
    """The one way a method is written in results: options by name, no spaces.

    One of a plugin is written with its source: figures of another are not its own.
    """
    source = register.source_of(name)
    if source is not None:
        options = {register.SOURCE: source, **options}
    if not options:
        return name
    return f"{name}({','.join(f'{key}={_spelled(options[key])}' for key in sorted(options))})"


def _spelled(value: Any) -> str:
    if isinstance(value, str) and _WORD.match(value) and value not in ("None", "True", "False"):
        return value
    if isinstance(value, (list, tuple)):
        return f"[{','.join(map(repr, value))}]"
    return repr(value)


def spelled(text: str) -> str:
    """The same method, written the one way."""
    return spell(*parse(text))


def with_sources(value: Any) -> Any:
    """Options of a measurement, calibrators and metrics of plugins in them spelled the one way."""
    if isinstance(value, dict):
        return {key: with_sources(one) for key, one in value.items()}
    if isinstance(value, list):
        return [with_sources(one) for one in value]
    if isinstance(value, str) and any(map(register.source_of, _WORDS.findall(value))):
        return "+".join(_own_spelled(part) for part in value.split("+", 1))
    return value


def _own_spelled(text: str) -> str:
    try:
        return spelled(text) if register.source_of(parse(text)[0]) else text
    except InputError:  # it is no method: whoever has the option says what is wrong
        return text


def make(text: str) -> Calibrator:
    """A fresh calibrator; options that are not its own are its objective's."""
    name, options = parse(text)
    options = register.checked_source(name, options)
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
        for one in keeping(dense=dense) if text.strip() == ALL else (spelled(text),):
            fitted_on(one)
            found[one] = None
    return tuple(found)


def keeping(*, dense: bool = False) -> tuple[str, ...]:
    """What `ALL` stands for; of dense predictions those fit for their size."""
    if dense:
        return DENSE
    left_out = ("identity", *BY_NAME_ONLY)
    names = [
        name
        for name in CALIBRATORS
        if name not in left_out and register.source_of(name) is None and _keeps(name)
    ]
    return (*names, *FORMS)


def _keeps(name: str) -> bool:
    kind = kind_of(name)
    if kind.takes_features or kind.dense_only:
        return False
    return bool(get(name).preserves_predictions)
