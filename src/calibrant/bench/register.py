"""Methods of one's own, by name beside those that are built in, in a suite's runs.

A suite names a file or module under ``plugins:``, which calls these; see `plugins`. Registering
takes effect where a suite that names the plugin is read, and nowhere else: in code of one's own,
the loss itself is passed, as in ``losses.compose(losses.get("focal"), (0.5, MyLoss()))``.

What is registered is known by the digest of its source: that is part of the key of every run that
trains with it, and of the name under which figures of its calibrators and metrics are kept.
"""

from __future__ import annotations

import inspect
import keyword
import os
import re
import sys
import types
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from typing import Any, NamedTuple, TypeVar

from calibrant.bench.own_metrics import maker
from calibrant.calibrators.base import Calibrator
from calibrant.calibrators.registry import CALIBRATORS
from calibrant.functional.errors import InputError
from calibrant.losses.base import Loss, SecondaryLoss
from calibrant.losses.registry import PRIMARY, SECONDARY, terms
from calibrant.metrics.registry import METRICS, Entry
from calibrant.models.registry import MODELS
from calibrant.training.config import Config
from calibrant.training.recipes import RECIPES
from calibrant.training.recipes.base import Recipe

L = TypeVar("L", bound=Loss)
C = TypeVar("C", bound=Calibrator)
R = TypeVar("R", bound=Recipe)
SOURCE = "source"  # the option that says which source a calibrator's or metric's figures are of
MEASURED = ("calibrator", "metric")
# Words that stand for something else where results name calibrators and metrics.
TAKEN: tuple[str, ...] = (
    "none",
    "argmax_preserving",
    "validation",
    "diverged",
    "measured",
    "failed",
    "changed",
)
TAKEN += ("seconds", "train_seconds", "bench_seconds", "epoch", "parameters", "inactive")
TAKEN += ("confidence", "share", "tst", "vtst", "mac_cal_head")
_WORD = re.compile(r"[A-Za-z_]\w*")
_REGISTRIES: dict[str, tuple[MutableMapping[str, Any], ...]] = {
    "loss": (PRIMARY, SECONDARY),
    "calibrator": (CALIBRATORS,),
    "recipe": (RECIPES,),
    "metric": (METRICS,),
    "model": (MODELS,),
}


class Name(NamedTuple):
    """What is registered: a kind (loss, calibrator, ...), and the name it has in suites."""

    kind: str
    name: str


OWN: dict[Name, str] = {}  # what plugins brought, and the digest of each one's source
_stamps: dict[str, tuple[str, tuple[int, int] | None]] = {}  # by module: its file, when imported
_noted: dict[str, dict[Name, tuple[Any, Any]]] = {}  # by module: what it registers, its entry


def loss(kind: type[L]) -> type[L]:
    """A `PrimaryLoss` or `SecondaryLoss`, called in suites by its ``name``. A decorator."""
    _check_kind("loss", kind, Loss)
    _note(Name("loss", kind.name), kind, kind)
    return kind


def calibrator(kind: type[C]) -> type[C]:
    """A `Calibrator`, called in suites by its ``name``. A decorator."""
    _check_kind("calibrator", kind, Calibrator)
    _check_options("calibrator", kind.name, kind)
    _note(Name("calibrator", kind.name), kind, (kind, _first_line(kind)))
    return kind


def recipe(kind: type[R]) -> type[R]:
    """A `Recipe`, called in suites by its ``name``. A decorator."""
    _check_kind("recipe", kind, Recipe)
    _note(Name("recipe", kind.name), kind, (kind, _first_line(kind)))
    return kind


def metric(
    name: str,
    function: Callable[..., Any],
    *,
    label: str = "",
    says: str = "",
    better: str | None = None,
) -> None:
    """A metric: ``function(probs, target, **options)`` gives its value on all rows of a part.

    They are NumPy arrays, float64 probabilities (N,K) and int64 labels (N,). The label heads its
    column; ``better`` is lower, unless higher or neither is said. In the place of such a function
    one that needs no arguments, ``make(**options)``, may give a streaming `Measure`.
    """
    make = maker(name, function, better)
    _check_options("metric", name, function)
    entry = Entry(make, label or name, says or _first_line(function))
    _note(Name("metric", name), function, entry)


def model(name: str, build: Callable[..., Any], *, says: str = "") -> None:
    """A network: ``build(num_classes, *, channels, **options)`` makes one, with fresh weights."""
    _note(Name("model", name), build, (build, says or _first_line(build)))


def source_of(name: str) -> str | None:
    """What tells the source of a calibrator or metric from others; None of one built in."""
    for kind in MEASURED if OWN else ():
        if (digest := OWN.get(Name(kind, name))) is not None:
            return f"s{digest[:8]}"
    return None


def checked_source(name: str, options: dict[str, Any]) -> dict[str, Any]:
    """Options without the source, which must be the one that is loaded."""
    rest = {key: value for key, value in options.items() if key != SOURCE}
    now = source_of(name)
    if now is not None and options.get(SOURCE, now) != now:
        raise InputError(
            f"{name} of {options[SOURCE]} is asked for, and the plugin's source is {now} by now: "
            f"write {name} alone"
        )
    return options if now is None else rest


def sources_of(config: Config) -> list[str]:
    """Digests of the plugins that a training needs; none where all is built in."""
    if not OWN:
        return []
    used = [Name("model", config.model), *_recipes(config.recipe, config.recipe_options)]
    used += [Name("loss", name) for name in _losses(config.loss)]
    return sorted({OWN[one] for one in used if one in OWN})


def noted(module: str) -> dict[Name, Any]:
    """What a module, and those below it, have registered so far, with their entries."""
    return {
        name: entry
        for where, told in _noted.items()
        if where == module or where.startswith(f"{module}.")
        for name, (_, entry) in told.items()
    }


def edited(module: str) -> str | None:
    """A file of a module, or of those below it, that is another than when it was imported."""
    for where, (path, stamp) in _stamps.items():
        if (where == module or where.startswith(f"{module}.")) and _stamp(path) != stamp:
            return path
    return None


def _stamp(path: str | None) -> tuple[int, int] | None:
    try:
        found = os.stat(path or "")
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size


def rivals(name: Name) -> list[Name]:
    """Names that cannot be two sources' at once: calibrators and metrics are spelled alike."""
    kinds = MEASURED if name.kind in MEASURED else (name.kind,)
    return [Name(kind, name.name) for kind in kinds]


def put(name: Name, entry: Any, digest: str) -> None:
    """Let suites find it, in the place of what had that name."""
    drop(name)
    if name.kind == "loss":
        (SECONDARY if issubclass(entry, SecondaryLoss) else PRIMARY)[name.name] = entry
    elif name.kind == "calibrator":
        CALIBRATORS[name.name] = _shelved("calibrant.calibrators", name.name, *entry)
    elif name.kind == "recipe":
        RECIPES[name.name] = _shelved("calibrant.training.recipes", name.name, *entry)
    else:
        _REGISTRIES[name.kind][0][name.name] = entry
    OWN[name] = digest


def drop(name: Name) -> None:
    """Let suites find it no more."""
    if OWN.pop(name, None) is not None:
        for one in _REGISTRIES[name.kind]:
            one.pop(name.name, None)


def _note(name: Name, thing: Any, entry: Any) -> None:
    """Keep it until a suite asks for the module that registers it."""
    word = name.name
    if not isinstance(word, str) or not _WORD.fullmatch(word) or keyword.iskeyword(word):
        raise InputError(f"a {name.kind} is called by a word, such as my_{name.kind}, not {word!r}")
    for other in rivals(name):
        if any(word in one for one in _REGISTRIES[other.kind]) and other not in OWN:
            raise InputError(
                f"a {other.kind} called {word!r} is built in: call yours something else"
            )
    if name.kind in MEASURED and word in TAKEN:
        raise InputError(f"{word!r} means something else in results: call your {name.kind} another")
    # The module that called `loss`, `metric`, ...: two frames up.
    about = sys._getframe(2).f_globals
    module = str(about.get("__name__", "?"))
    _stamps[module] = str(about.get("__file__") or ""), _stamp(about.get("__file__"))
    told = _noted.setdefault(module, {})
    before = told.get(name)
    if before is not None and _qualified(before[0]) != _qualified(thing):
        raise InputError(f"the {name.kind} {word!r} is registered twice: give each a name")
    told[name] = thing, entry


def _check_kind(what: str, kind: object, parent: type) -> None:
    if not isinstance(kind, type) or not issubclass(kind, parent):
        where = f"{parent.__module__.removesuffix('.base')}.{parent.__name__}"
        raise InputError(f"a {what} of your own is a subclass of {where}, found {kind!r}")
    if not isinstance(getattr(kind, "name", None), str):
        raise InputError(f"{kind.__name__} has no name: write `name = ...` in the class")


def _check_options(what: str, name: str, maker: Callable[..., Any]) -> None:
    if SOURCE in inspect.signature(maker).parameters:
        raise InputError(
            f"the option {SOURCE} of the {what} {name!r} is ours: call it something else"
        )


def _shelved(package: str, name: str, kind: type, says: str) -> tuple[str, str, str]:
    """A registry's entry: it names a module of its package, and this is one that is no file."""
    shelf = sys.modules.setdefault(f"{package}.own", types.ModuleType(f"{package}.own"))
    setattr(shelf, name, kind)
    return "own", name, says


def _first_line(thing: object) -> str:
    return (inspect.getdoc(thing) or "").partition("\n")[0]


def _qualified(thing: object) -> str:
    return str(getattr(thing, "__qualname__", type(thing).__qualname__))


def _recipes(name: str, options: Mapping[str, Any]) -> Iterator[Name]:
    """A recipe, and the one that its members are trained by."""
    yield Name("recipe", name)
    inner, its = options.get("recipe"), options.get("recipe_options")
    if isinstance(inner, str):
        yield from _recipes(inner, its if isinstance(its, Mapping) else {})


def _losses(text: str) -> list[str]:
    try:
        return [name for _, name, _ in terms(text)]
    except InputError:  # told where the loss is made
        return []
