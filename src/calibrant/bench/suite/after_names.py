"""Measurements under ``after:``: their kinds, and the names that their figures get."""

from __future__ import annotations

from typing import Any

from calibrant.bench import calibrator_text
from calibrant.core.errors import InputError

LATE = ("pooled",)  # measurements that need the predictions of other runs
OPTIONS = ("then", "crossfit", "precision")  # of a second stage's measurement, not of its recipe
BY_NAME = ("shift", "ood")  # measurements whose option `calibrators` names what is judged
RECIPES = {"mac_cal_head": "mac_cal", "tst": "tst", "vtst": "vtst"}
NAMED = "pooled"  # as in temperature(on=pooled): the name of its figures


def after_mark(name: str, options: str) -> str:
    """Return the mark that the store has for a finished measurement."""
    return f"after:{name}" if options in ("", "{}") else f"after:{name}({options})"


def list_names(name: str, options: dict[str, Any]) -> list[str]:
    """List the calibrators under which a measurement's test figures are stored.

    >>> list_names("mac_cal_head", {"gamma": 0.9, "then": ["temperature"]})
    ['mac_cal_head(gamma=0.9)', 'mac_cal_head(gamma=0.9)+temperature']
    """
    if name == "pooled":
        named = options.get("named", NAMED)
        every = calibrator_text.expand_calibrators(options.get("calibrators", ("temperature",)))
        return [name_pooled(text, named) for text in every]
    if name not in RECIPES:
        return (
            list(calibrator_text.expand_calibrators(options.get("calibrators", ())))
            if name in BY_NAME
            else []
        )
    called = calibrator_text.spell(
        name, {key: value for key, value in options.items() if key not in OPTIONS}
    )
    return [
        called,
        *(
            f"{called}+{text}"
            for text in calibrator_text.expand_calibrators(options.get("then", ()))
        ),
    ]


def is_head(text: str) -> bool:
    """Return whether a text names a second stage, with or without a calibrator on top."""
    return calibrator_text.parse(text.partition("+")[0])[0] in RECIPES


def spell_stages(text: str) -> str:
    """Normalise the text of a second stage and of the calibrator on top."""
    return "+".join(calibrator_text.normalise_text(part) for part in text.split("+", 1))


def name_pooled(text: str, named: str = NAMED) -> str:
    """Return the name under which a pooled calibrator's figures are stored.

    >>> name_pooled("temperature(objective=sb_ece)")
    'temperature(objective=sb_ece,on=pooled)'
    """
    name, options = calibrator_text.parse(text)
    if "on" in options:
        raise InputError(f"pooled says itself which rows calibrators are fitted on, found {text!r}")
    return calibrator_text.spell(name, {**options, "on": named})
