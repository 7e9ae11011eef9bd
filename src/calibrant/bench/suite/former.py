"""Defaults that changed after runs were stored: what stored texts mean, and what suites mean.

A stored text that omits such an option means the former default, so that stored runs keep their
keys. A suite that omits it means the current default, which is written into its text and so
gives a new key; a suite that writes the former default reaches the stored runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple, TypeAlias

from calibrant.core.errors import InputError
from calibrant.core.method_text import (
    Term,
    edit_options,
    edit_terms,
    parse_method,
    parse_terms,
    split_terms,
)
from calibrant.training.config import Config

Options = dict[str, Any]


class Change(NamedTuple):
    """An option whose default changed."""

    option: str
    former: Any
    current: Any
    matters: Callable[[Mapping[str, Any]], bool] = lambda options: True  # beside these options


Changes: TypeAlias = Sequence[Change]
# Given the options of a method, those to drop and those to add.
Edit: TypeAlias = Callable[[Changes, Mapping[str, Any]], tuple[list[str], Options]]


def _chooses_gamma(options: Mapping[str, Any]) -> bool:
    return options.get("gamma") is None and options.get("schedule") != "fixed"


def _is_soft_binned(options: Mapping[str, Any]) -> bool:
    return options.get("objective") == "sb_ece"


_RACE = Change("race", True, False, _chooses_gamma)
# By the name of the method; ``beta`` of a loss is its weight.
OF_LOSSES: dict[str, Changes] = {
    "sb_ece": (Change("beta", 1.0, 0.1),),
    "r_aurc": (Change("reference_batch", None, 128, lambda options: not options.get("hard_rank")),),
}
OF_RECIPES: dict[str, Changes] = {"mac_cal": (_RACE,)}
OF_CALIBRATORS: dict[str, Changes] = {
    "mac_cal_head": (_RACE,),
    "temperature": (Change("max_likelihood_loss", 0.01, None, _is_soft_binned),),
    # The set of calibrators of that name, whose forms have the former defaults, too.
    "argmax_preserving": (Change("former", True, False),),
    # The measurement, which judges that set unless others are named.
    "crossfit": (
        Change("calibrators", ["argmax_preserving"], ["argmax_preserving(former=False)"]),
    ),
}


def _add_former(changes: Changes, options: Mapping[str, Any]) -> tuple[list[str], Options]:
    """Edit stored options into those to train with."""
    omitted = [
        change for change in changes if change.option not in options and change.matters(options)
    ]
    return [], {change.option: change.former for change in omitted}


def _drop_former(changes: Changes, options: Mapping[str, Any]) -> tuple[list[str], Options]:
    """Edit options to train with into stored ones."""
    written = [change for change in changes if change.option in options]
    return [change.option for change in written if options[change.option] == change.former], {}


def _add_current(changes: Changes, options: Mapping[str, Any]) -> tuple[list[str], Options]:
    """Edit a suite's options into stored ones."""
    omitted = [
        change for change in changes if change.option not in options and change.matters(options)
    ]
    return _drop_former(changes, options)[0], {change.option: change.current for change in omitted}


def _drop_current(changes: Changes, options: Mapping[str, Any]) -> tuple[list[str], Options]:
    """Edit stored options into a suite's."""
    known = [change for change in changes if change.matters(options)]
    written = [change for change in known if change.option in options]
    former = {change.option: change.former for change in known if change.option not in options}
    return [change.option for change in written if options[change.option] == change.current], former


def train_settings(config: Config) -> Config:
    """Write the former defaults into stored settings: as the run is trained."""
    return _edit_settings(config, _add_former)


def key_settings(config: Config) -> Config:
    """Leave out of settings what stored ones mean anyway: as keys and results have them."""
    return _edit_settings(config, _drop_former)


def store_settings(config: Config) -> Config:
    """Turn settings of a suite into stored ones."""
    return _edit_settings(config, _add_current)


def describe_former(config: Config) -> str:
    """Name the former defaults that stored settings mean; '' if there are none."""
    texts: dict[str, None] = {}
    for name, changes, options in _list_methods(config):
        for change in changes:
            if change.option not in options and change.matters(options):
                weighted = f"{change.former!r}*{name}" if change.option == "beta" else None
                texts[weighted or f"{change.option}={change.former!r}"] = None
    return ", ".join(texts)


def _list_methods(config: Config) -> Iterator[tuple[str, Changes, Options]]:
    """Give the parts of a run's loss, its recipe and that of its members, with their options."""
    with suppress(InputError):  # raised where the loss is made
        for term in parse_terms(config.loss):
            yield term.name, OF_LOSSES.get(term.name, ()), _options_of(term)
    recipe: Any = config.recipe
    options: Any = config.recipe_options
    while isinstance(recipe, str) and isinstance(options, Mapping):
        yield recipe, OF_RECIPES.get(recipe, ()), dict(options)
        recipe, options = options.get("recipe"), options.get("recipe_options") or {}


def _options_of(term: Term) -> Options:
    return term.options if term.weight is None else {**term.options, "beta": term.weight}


def _edit_settings(config: Config, edit: Edit) -> Config:
    loss = config.loss
    with suppress(InputError):  # raised where the loss is made
        loss = edit_terms(loss, lambda term: edit(OF_LOSSES.get(term.name, ()), _options_of(term)))
    options = edit_recipe(config.recipe, config.recipe_options, edit)
    if loss == config.loss and options == config.recipe_options:
        return config
    return config.changed(loss=loss, recipe_options=options)


def edit_recipe(recipe: str, options: Mapping[str, Any], edit: Edit = _add_former) -> Options:
    """Edit the options of a recipe, and of the recipe of its members.

    Args:
        recipe: Its name.
        options: Its options.
        edit: How. Default: stored options as the recipe is to be made.
    """
    drop, add = edit(OF_RECIPES.get(recipe, ()), options)
    edited = {name: value for name, value in options.items() if name not in drop} | add
    inner = edited.get("recipe")
    if inner not in OF_RECIPES:
        return edited
    members = edit_recipe(inner, edited.pop("recipe_options", None) or {}, edit)
    return edited | ({"recipe_options": members} if members else {})


def make_options(name: str, options: Mapping[str, Any]) -> Options:
    """Write the former defaults into the options of a stored calibrator, to make it."""
    return {**_add_former(OF_CALIBRATORS.get(name, ()), options)[1], **options}


def store_calibrator(text: str) -> str:
    """Turn the text of a calibrator in a suite, perhaps one on a second stage, into a stored one.

    >>> store_calibrator("mac_cal_head+temperature")
    'mac_cal_head(race=False)+temperature'
    >>> store_calibrator("mac_cal_head(race=True)")
    'mac_cal_head'
    """
    return _edit_calibrator(text, _add_current)


def show_calibrator(text: str) -> str:
    """Turn a stored text into that of a suite: the inverse of `store_calibrator`.

    >>> show_calibrator("mac_cal_head"), show_calibrator("mac_cal_head(race=False)")
    ('mac_cal_head(race=True)', 'mac_cal_head')
    """
    return _edit_calibrator(text, _drop_current)


def _edit_calibrator(text: str, edit: Edit) -> str:
    parts = []
    for part in split_terms(text):
        with suppress(InputError):  # not a calibrator: raised where it is made
            name, options = parse_method(part)
            if changes := OF_CALIBRATORS.get(name):
                drop, add = edit(changes, options)
                part = edit_options(part, drop=drop, add=add)
        parts.append(part)
    return "+".join(parts)


def store_measurement(name: str, options: Mapping[str, Any]) -> Options:
    """Turn the options of a measurement in a suite, calibrators in them too, into stored ones."""
    stored = dict(options)
    for key in ("calibrators", "then"):
        if isinstance(texts := stored.get(key), Iterable) and not isinstance(texts, str):
            stored[key] = [
                store_calibrator(text) if isinstance(text, str) else text for text in texts
            ]
    drop, add = _add_current(OF_CALIBRATORS.get(name, ()), stored)
    return {key: value for key, value in stored.items() if key not in drop} | add
