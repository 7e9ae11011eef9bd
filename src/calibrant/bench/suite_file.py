"""The words of a suite file: what they may be, and the runs they come to."""

from __future__ import annotations

import itertools
import json
import warnings
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields
from difflib import get_close_matches
from functools import lru_cache
from pathlib import PurePosixPath
from typing import Any

from calibrant.bench.spec import KEEPS, LATE, Spec, canonical
from calibrant.bench.texts import with_sources
from calibrant.functional.errors import InputError, no_such
from calibrant.training.config import Config

KEYS = (
    "name",
    "about",
    "plugins",
    "defaults",
    "grid",
    "cases",
    "seeds",
    "methods",
    "where",
    "calibrators",
    "after",
    "logits",
    "keep",
    "baseline",
    "tune",
    "published",
    "metrics",
)
# What each may be besides left out; the rest say themselves what is wrong.
FORMS: dict[str, tuple[type, str]] = {
    "name": (str, "a name"),
    "about": (str, "a line of text"),
    "plugins": (list, "a list of files or modules, as in `plugins: [my_methods.py]`"),
    "methods": (dict, "a mapping of names to settings, as in `methods: {focal: {loss: focal}}`"),
    "grid": (dict, "a mapping of settings to lists of values, as in `grid: {data: [cifar10]}`"),
    "tune": (dict, "a mapping, as in `tune: {rule: ..., settings: [...]}`"),
    "metrics": (list, "a list of names, as in `metrics: [ece, nll]`"),
}
SETTINGS = tuple(one.name for one in fields(Config))
OF_A_RUN = ("calibrators", "after", "keep")  # settings of a run that are not the training's
SETTABLE = (*SETTINGS, *OF_A_RUN, "skip")


def parse(text: str, where: str) -> dict[str, Any]:
    """The file's mapping."""
    import yaml

    try:
        _check_keys(yaml.compose(text, yaml.SafeLoader), where, set())
        found = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise InputError(f"{where}: not YAML: {error}") from None
    if not isinstance(found, dict):
        raise InputError(f"{where}: expected a suite as `key: value` lines")
    return found


def _check_keys(node: Any, where: str, seen: set[int]) -> None:
    """An error for a key that stands twice: YAML would take the last, and say nothing."""
    if node is None or isinstance(node.value, str) or id(node) in seen:
        return
    seen.add(id(node))  # an anchor stands in several places, or in itself
    for one in node.value:
        for child in one if isinstance(one, tuple) else (one,):
            _check_keys(child, where, seen)
    pairs = [one[0] for one in node.value if isinstance(one, tuple)]
    keys = [(key.tag, key.value) for key in pairs if isinstance(key.value, str)]
    for tag, key in keys:
        if keys.count((tag, key)) > 1 and not tag.endswith(":merge"):
            raise InputError(
                f"{where}: {key!r} stands twice, line {node.start_mark.line + 1} and on"
            )


def only_known(found: Iterable[Any], known: Iterable[str], kind: str) -> None:
    """An error, with the nearest name, for a key nobody has."""
    names = list(known)
    for key in found:
        if key not in names:
            near = get_close_matches(str(key), names, n=1)
            hint = f"did you mean {near[0]}?" if near else f"known: {', '.join(names)}"
            raise InputError(f"{key!r} is no {kind}; {hint}")


def check_forms(found: Mapping[str, Any]) -> None:
    """An error that shows how a key is written, for one that is written otherwise."""
    for key, (kind, says) in FORMS.items():
        value = found.get(key)
        if value is not None and not isinstance(value, kind):
            raise InputError(f"{key} is {says}, found {value!r}")
    for name in found.get("metrics") or ():
        if not isinstance(name, str):
            raise InputError(f"metrics is {FORMS['metrics'][1]}, found {name!r} in it")


def expand(found: Mapping[str, Any]) -> Iterator[tuple[str, Spec]]:
    """(method, run) of the file: all of the first seed, then all of the next.

    So a suite that is cut short has every method before it has a second seed of any.
    """
    seeds = found.get("seeds", [0])
    if not isinstance(seeds, list) or not seeds or not all(type(one) is int for one in seeds):
        raise InputError(f"seeds is a list of whole numbers, found {seeds!r}")
    defaults = _settings(found.get("defaults"), "defaults")
    methods = _methods(found)
    rules = [_rule(one) for one in _list(found.get("where"), "where")]
    for condition, _ in rules:
        named = condition.get("method", [])
        only_known(named if isinstance(named, list) else [named], methods, "method of this suite")
    usual = {name: found[name] for name in OF_A_RUN if name in found}
    for seed, case in itertools.product(seeds, list(_cases(found))):
        for method, own in methods.items():
            settings = {**usual, **defaults, **case, **own, "seed": seed}
            for condition, change in rules:
                if _holds(condition, settings, method):
                    settings |= change
            if not settings.pop("skip", False):
                yield method, _spec(settings)


def _methods(found: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    if found.get("logits") is not None:
        if found.get("methods"):
            raise InputError("a suite has methods, which are trained, or logits, not both")
        return {"logits": {}}
    methods = found.get("methods")
    if not isinstance(methods, dict) or not methods:
        raise InputError("methods is missing: `methods: {cross_entropy: {}}` is the least")
    return {str(name): _settings(own, f"methods, {name}") for name, own in methods.items()}


def _cases(found: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Every combination of the grid with each of the cases, or of the files of logits."""
    grid = dict(found.get("grid") or {})
    listed = [
        _settings(one, "cases") for one in _list(grid.pop("cases", found.get("cases")), "cases")
    ]
    files = [_logits(one) for one in _list(found.get("logits"), "logits")]
    only_known(grid, SETTABLE, "setting")
    for name, values in grid.items():
        if not isinstance(values, list) or not values:
            raise InputError(f"grid: {name} is a list of values, found {values!r}")
    for case, file in itertools.product(listed or [{}], files or [{}]):
        for values in itertools.product(*grid.values()):
            yield {**file, **case, **dict(zip(grid, values, strict=True))}


def _logits(entry: Any) -> dict[str, Any]:
    """Settings of a file of logits: ``logits/cifar10-resnet20.npz`` is of that data and model."""
    told = {"file": entry} if not isinstance(entry, dict) else dict(entry)
    if not isinstance(told.get("file"), str):
        raise InputError(f"logits: each names a file, found {entry!r}")
    file = told.pop("file")
    only_known(told, SETTABLE, "setting")
    data, _, model = PurePosixPath(file).stem.partition("-")
    return {"data": data, "model": model or "unknown", **told, "logits": file}


def _rule(found: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    if not isinstance(found, dict) or "set" not in found:
        raise InputError(f"where: each line is {{if: ..., set: ...}}, found {found!r}")
    only_known(found, ("if", "set"), "key of a `where` line")
    condition = found.get("if") or {}
    if not isinstance(condition, dict):
        raise InputError(f"where: `if` is a mapping of settings to values, found {condition!r}")
    only_known(condition, ("method", *SETTABLE), "setting")
    return condition, _settings(found["set"], "where, set")


def _holds(condition: Mapping[str, Any], settings: Mapping[str, Any], method: str) -> bool:
    """Whether each setting is the one named, or one of those named."""
    recipe, options = _recipe(settings)
    seen = {**settings, "method": method, "recipe": recipe, "recipe_options": options}
    for name, value in condition.items():
        wanted = value if isinstance(value, list) else [value]
        if name == "recipe":  # by name alone, or with just these options
            texts = [_recipe({"recipe": one}) for one in wanted]
            if all(one not in ((recipe, {}), (recipe, options)) for one in texts):
                return False
        elif seen.get(name, _default(name)) not in wanted:
            return False
    return True


def _recipe(settings: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """A recipe's name and its options, those in its text among them."""
    from calibrant.training.recipes.texts import whole

    named = str(settings.get("recipe", _default("recipe")))
    options = settings.get("recipe_options") or {}
    return whole(named, options) if isinstance(options, dict) else (named, {})


@lru_cache
def _default(name: str) -> Any:
    return getattr(Config(), name, None)


def _spec(settings: dict[str, Any]) -> Spec:
    given = dict(settings)
    texts = canonical(given.pop("calibrators", []))
    calibrators = _calibrators(texts, str(given.get("data", _default("data"))))
    after = tuple(_after(one) for one in _list(given.pop("after", []), "after"))
    for one in after:
        _check_after(*one)
    keep = given.pop("keep", KEEPS[0])
    logits = given.pop("logits", None)
    config = Config.of(given)
    if logits is None:
        check_names(config)
    for name, options in after:
        if name in LATE:
            from calibrant.bench.pooled import family

            family(config, json.loads(options).get("seeds") or ())
    return Spec(config, calibrators, after, keep, logits)


@lru_cache(maxsize=1024)
def _check_after(name: str, options: str) -> None:
    from calibrant.bench.measure import check_after

    check_after(name, json.loads(options))


def _after(found: Any) -> tuple[str, str]:
    """``shift``, or ``shift: {severities: [1, 3]}``, as (name, options in JSON)."""
    if isinstance(found, str):
        return found, "{}"
    if isinstance(found, dict) and len(found) == 1:
        ((name, options),) = found.items()
        if options is None or isinstance(options, dict):
            return str(name), canonical(with_sources(options or {}))
    raise InputError(f"after: each is a name, or `name: {{option: value}}`, found {found!r}")


@lru_cache(maxsize=1024)
def _calibrators(found: str, data: str) -> tuple[str, ...]:
    """Each spelled one way, ``argmax_preserving`` written out."""
    from calibrant.bench.texts import expanded, make

    texts = [str(one) for one in _list(json.loads(found), "calibrators")]
    names = expanded(texts, dense=data == "camvid" or data.startswith("dense:"))
    for name in names:
        make(name)
    return names


def check_names(config: Config) -> None:
    """An error before the first run, where a name is one nobody has."""
    options = json.dumps(config.recipe_options, sort_keys=True, default=str)
    _check_names(config.data, config.model, config.loss, config.recipe, options)


@lru_cache(maxsize=4096)
def _check_names(data: str, model: str, loss: str, recipe: str, options: str) -> None:
    from calibrant import losses, models
    from calibrant.training import recipes
    from calibrant.training.recipes.soft import check_targets

    _check_data(data)
    if model not in models.available():
        raise no_such("model", model, models.available())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a loss that warns of its options does so when trained
        made = losses.get(loss, num_samples=2)
    check_targets(recipes.get(recipe, **json.loads(options)), made)


def forget_checks() -> None:
    """Look at every name anew: others may be known by now."""
    for one in (_check_names, _check_after, _calibrators):
        one.cache_clear()


def _check_data(name: str) -> None:
    from calibrant.data.sets import FORMS, SETS, available

    form, _, path = name.partition(":")
    if name not in SETS and not (form in FORMS and path):
        raise no_such("data set", name, available())


def _settings(found: Any, where: str) -> dict[str, Any]:
    if found is None:
        return {}
    if not isinstance(found, dict):
        raise InputError(f"{where}: expected settings as `name: value`, found {found!r}")
    only_known(found, SETTABLE, "setting")
    if "seed" in found:
        raise InputError(f"{where}: seeds are given as `seeds: [0, 1, 2]`, not seed")
    return dict(found)


def _list(found: Any, where: str) -> list[Any]:
    if found is None:
        return []
    if not isinstance(found, list):
        raise InputError(f"{where} is a list, found {found!r}")
    return found
