"""Expand a suite file into runs, and check the names it uses."""

from __future__ import annotations

import itertools
import json
import math
import warnings
from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import PurePosixPath
from typing import Any

from calibrant.bench.calibrator_text import add_sources
from calibrant.bench.suite.after_names import LATE
from calibrant.bench.suite.former import store_calibrator, store_measurement, store_settings
from calibrant.bench.suite.key import canonical_json
from calibrant.bench.suite.schema import (
    OF_A_RUN,
    SETTABLE,
    SuiteFile,
    check_known,
    check_settings,
)
from calibrant.bench.suite.spec import KEEPS, Spec
from calibrant.core.errors import InputError, no_such, show
from calibrant.core.method_text import merge_options
from calibrant.core.registry import version
from calibrant.training.config import Config

_MOST_RUNS = 100_000


def expand(file: SuiteFile) -> Iterator[tuple[str, Spec]]:
    """Give every run of a suite with its method: all of the first seed, then all of the next.

    So a suite that is cut short has every method before it has a second seed of any.
    """
    methods = _list_methods(file)
    for rule in file.where:
        named = rule.condition.get("method", [])
        check_known(named if isinstance(named, list) else [named], methods, "method of this suite")
    shared = {name: getattr(file, name) for name in OF_A_RUN if name in file.model_fields_set}
    grid = [values for name, values in file.grid.items() if name != "cases"]
    lists = (file.seeds, methods, file.grid.get("cases", file.cases) or (), file.logits or ())
    count = math.prod(
        max(1, len(choices)) for choices in (*grid, *lists) if hasattr(choices, "__len__")
    )
    if count > _MOST_RUNS:
        raise InputError(f"the suite has {count:,} runs; {_MOST_RUNS:,} are allowed")
    cases = list(_list_cases(file))
    if len(file.seeds) > 1 and any(isinstance(case.get("logits"), tuple) for case in cases):
        raise InputError(
            "logits: separate validation and test files are not split, so seeds change nothing: "
            f"give one seed, found {file.seeds}"
        )
    for seed, case in itertools.product(file.seeds, cases):
        for method, method_settings in methods.items():
            settings = {**shared, **file.defaults, **case, **method_settings, "seed": seed}
            for rule in file.where:
                if _holds(rule.condition, settings, method):
                    settings |= rule.change
            if not settings.pop("skip", False):
                yield method, _make_spec(settings)


def _list_methods(file: SuiteFile) -> dict[str, dict[str, Any]]:
    if file.logits is not None:
        if file.methods:
            raise InputError("a suite has methods, which are trained, or logits, not both")
        return {"logits": {}}
    if not file.methods:
        raise InputError("methods is missing: `methods: {cross_entropy: {}}` is the least")
    return {str(name): method_settings for name, method_settings in file.methods.items()}


def _list_cases(file: SuiteFile) -> Iterator[dict[str, Any]]:
    """Give every combination of the grid with each of the cases, or of the files of logits."""
    grid = {name: values for name, values in file.grid.items() if name != "cases"}
    cases = [
        check_settings(entry) for entry in _as_list(file.grid.get("cases", file.cases), "cases")
    ]
    files = [_read_logits(entry) for entry in file.logits or ()]
    for case, logits in itertools.product(cases or [{}], files or [{}]):
        for values in itertools.product(*grid.values()):
            yield {**logits, **case, **dict(zip(grid, values, strict=True))}


def _read_logits(entry: Any) -> dict[str, Any]:
    """Return the settings of a file of logits, or of two: of validation and of test rows.

    ``logits/cifar10-resnet20.npz`` is of the data cifar10 and the model resnet20; of two files,
    the test file's name counts.
    """
    settings = dict(entry) if isinstance(entry, dict) else {"file": entry}
    names = ("file",) if "file" in settings else ("validation", "test")
    files = tuple(settings.pop(name, None) for name in names)
    if not all(isinstance(file, str) for file in files) or "test" in settings:
        raise InputError(
            f"logits: each names a file, or `{{validation: FILE, test: FILE}}`, found {show(entry)}"
        )
    check_known(settings, SETTABLE, "setting")
    data, _, model = PurePosixPath(files[-1]).stem.partition("-")
    return {
        "data": data,
        "model": model or "unknown",
        **settings,
        "logits": files[0] if len(files) == 1 else files,
    }


def _holds(condition: Mapping[str, Any], settings: Mapping[str, Any], method: str) -> bool:
    """Return whether each setting has the value, or one of the values, of the condition."""
    recipe, options = _parse_recipe(settings)
    known = {**settings, "method": method, "recipe": recipe, "recipe_options": options}
    for name, value in condition.items():
        wanted = value if isinstance(value, list) else [value]
        if name == "recipe":  # matches by name alone, or with exactly these options
            texts = [_parse_recipe({"recipe": text}) for text in wanted]
            if all(named not in ((recipe, {}), (recipe, options)) for named in texts):
                return False
        elif known.get(name, _default_of(name)) not in wanted:
            return False
    return True


def _parse_recipe(settings: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """Return a recipe's name and its options, including those in its text."""
    named = str(settings.get("recipe", _default_of("recipe")))
    options = settings.get("recipe_options") or {}
    return (
        merge_options(named, options, kind="recipe") if isinstance(options, dict) else (named, {})
    )


@lru_cache
def _default_of(name: str) -> Any:
    return getattr(Config(), name, None)


def _make_spec(settings: dict[str, Any]) -> Spec:
    remaining = dict(settings)
    texts = canonical_json(remaining.pop("calibrators", []))
    calibrators = _parse_calibrators(
        texts, str(remaining.get("data", _default_of("data"))), version()
    )
    after = tuple(_parse_after(entry) for entry in _as_list(remaining.pop("after", []), "after"))
    for entry in after:
        _check_after(*entry, version())
    keep = remaining.pop("keep", KEEPS[0])
    logits = remaining.pop("logits", None)
    config = store_settings(Config.of(remaining))
    if logits is None:
        check_names(config)
    for name, options in after:
        if name in LATE:
            from calibrant.bench.measure.pooled import list_family

            list_family(config, json.loads(options).get("seeds") or ())
    return Spec(config, calibrators, after, keep, logits)


@lru_cache(maxsize=1024)
def _check_after(name: str, options: str, known: int) -> None:
    from calibrant.bench.measure.steps import check_after

    check_after(name, json.loads(options))


def _parse_after(entry: Any) -> tuple[str, str]:
    """Read ``shift`` or ``shift: {severities: [1, 3]}`` as (name, options in JSON)."""
    if isinstance(entry, str):
        entry = {entry: None}
    if isinstance(entry, dict) and len(entry) == 1:
        ((name, options),) = entry.items()
        if options is None or isinstance(options, dict):
            stored = store_measurement(str(name), options or {})
            return str(name), canonical_json(add_sources(stored))
    raise InputError(f"after: each is a name, or `name: {{option: value}}`, found {show(entry)}")


@lru_cache(maxsize=1024)
def _parse_calibrators(entries: str, data: str, known: int) -> tuple[str, ...]:
    """Return normalised calibrators, with ``argmax_preserving`` written out."""
    from calibrant.bench.calibrator_text import expand_calibrators, make

    texts = [str(entry) for entry in _as_list(json.loads(entries), "calibrators")]
    names = expand_calibrators(
        map(store_calibrator, texts), dense=data == "camvid" or data.startswith("dense:")
    )
    for name in names:
        make(name)
    return names


def check_names(config: Config) -> None:
    """Raise an error, before the first run, for an unknown name in the settings."""
    options = json.dumps(config.recipe_options, sort_keys=True, default=str)
    _check_names(config.data, config.model, config.loss, config.recipe, options, version())


@lru_cache(maxsize=4096)
def _check_names(data: str, model: str, loss: str, recipe: str, options: str, known: int) -> None:
    from calibrant import losses, models
    from calibrant.training import recipes
    from calibrant.training.recipes.base import check_targets

    _check_data(data)
    if model not in models.available():
        raise no_such("model", model, models.available())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the warning comes when it is trained
        loss_function = losses.get(loss, num_samples=2)
    check_targets(recipes.get(recipe, **json.loads(options)), loss_function)


def _check_data(name: str) -> None:
    from calibrant.data.datasets import DATASETS, FOLDER_FORMS, available

    form, _, path = name.partition(":")
    if name not in DATASETS and not (form in FOLDER_FORMS and path):
        raise no_such("data set", name, available())


def _as_list(value: Any, where: str) -> list[Any]:
    if value is None:
        return []
    if not isinstance(value, list):
        raise InputError(f"{where} is a list, found {show(value)}")
    return value
