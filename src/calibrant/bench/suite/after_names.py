"""Measurements under ``after:``: their kinds, and the names that their figures get."""

from __future__ import annotations

from typing import Any

from calibrant.bench import texts
from calibrant.core.errors import InputError

LATE = ("pooled",)  # those that need what other runs of the suite said
OPTIONS = ("then", "crossfit", "precision")  # of the measurement, and not of the recipe
BY_NAME = ("shift", "ood")  # measurements that are told which calibrators to judge
RECIPES = {"mac_cal_head": "mac_cal", "tst": "tst", "vtst": "vtst"}
NAMED = "pooled"  # as in temperature(on=pooled): the name of its figures


def after_mark(name: str, options: str) -> str:
    """How the store writes that a further measurement was made."""
    return f"after:{name}" if options in ("", "{}") else f"after:{name}({options})"


def list_names(name: str, options: dict[str, Any]) -> list[str]:
    """What a measurement's figures of test rows are named after.

    >>> list_names("mac_cal_head", {"gamma": 0.9, "then": ["temperature"]})
    ['mac_cal_head(gamma=0.9)', 'mac_cal_head(gamma=0.9)+temperature']
    """
    if name == "pooled":
        named = options.get("named", NAMED)
        every = texts.expanded(options.get("calibrators", ("temperature",)))
        return [name_pooled(text, named) for text in every]
    if name not in RECIPES:  # such as shift: by those it is told to look at
        return list(texts.expanded(options.get("calibrators", ()))) if name in BY_NAME else []
    called = texts.spell(name, {key: one for key, one in options.items() if key not in OPTIONS})
    return [called, *(f"{called}+{text}" for text in texts.expanded(options.get("then", ())))]


def is_head(text: str) -> bool:
    """Whether a text names a second stage, perhaps with a calibrator on top of it."""
    return texts.parse(text.partition("+")[0])[0] in RECIPES


def spell_stages(text: str) -> str:
    """The same second stage, with what is on top of it, written the one way."""
    return "+".join(texts.spelled(part) for part in text.split("+", 1))


def name_pooled(text: str, named: str = NAMED) -> str:
    """What the figures of such a calibrator are named after.

    >>> name_pooled("temperature(objective=sb_ece)")
    'temperature(objective=sb_ece,on=pooled)'
    """
    name, options = texts.parse(text)
    if "on" in options:
        raise InputError(f"pooled says itself which rows calibrators are fitted on, found {text!r}")
    return texts.spell(name, {**options, "on": named})
