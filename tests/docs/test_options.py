"""Every option of every public method is documented, with its default and where it comes from."""

from __future__ import annotations

import inspect
import re

import pytest

from calibrant import calibrators, losses, metrics, models
from calibrant.calibrators.registry import CALIBRATORS
from calibrant.losses.registry import LOSSES
from calibrant.metrics.registry import METRICS
from calibrant.training.recipes import RECIPES

VARIABLE = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
# Arguments that every method of a room takes; the room's base class documents them.
SHARED = {
    "losses": {"input", "target", "weight", "ignore_index", "reduction"},
    "metrics": {"preds", "target", "from_logits", "ignore_index"},
    "calibrators": {"from_logits"},
    "recipes": set(),
}
PUBLIC_FUNCTIONS = [
    *(losses.get, losses.make, losses.parse, losses.register, losses.compose),
    *(metrics.register, metrics.measure, models.build, models.register),
    *(calibrators.get, calibrators.calibrate, calibrators.attach, calibrators.load),
    *(calibrators.save, calibrators.rank, calibrators.export_onnx, calibrators.export_program),
    calibrators.register,
]


def list_methods():
    for name in LOSSES:
        yield "losses", getattr(losses, name)
        yield "losses", LOSSES.load(name)
    for name in METRICS:
        yield "metrics", getattr(metrics, name)
    for name in CALIBRATORS:
        yield "calibrators", CALIBRATORS.load(name)
    for name in RECIPES:
        yield "recipes", RECIPES.load(name)


def read_args(thing, room=None):
    """Return the entries of a docstring's ``Args:`` block, those of the twin it names included."""
    text = inspect.getdoc(thing) or ""
    entries = {}
    block = re.search(r"^Args:\n((?:[ ]{4}.*\n?|\n)*)", text, flags=re.M)
    if block is not None:
        for match in re.finditer(
            r"^    (\*{0,2}\w+): (.*(?:\n(?: {5,}.*)?)*)", block[1], flags=re.M
        ):
            entries[match[1].lstrip("*")] = " ".join(match[2].split())
    twin = re.search(r"See `([\w.]+)`", text)
    if twin is not None and room is not None:
        scope = {"losses": losses, "metrics": metrics}.get(room)
        function = getattr(scope, twin[1].rpartition(".")[2], None)
        if function is not None and function is not thing:
            entries = {**read_args(function), **entries}
    return entries


def list_problems(thing, room=None):
    entries = read_args(thing, room)
    for parameter in inspect.signature(thing).parameters.values():
        if parameter.kind in VARIABLE or parameter.name in SHARED.get(room, ()):
            continue
        entry = entries.get(parameter.name)
        if entry is None:
            yield f"{parameter.name}: not under Args"
        elif room is not None and parameter.default is not parameter.empty:
            stated = re.search(r"Default: (.+?) \(.+\)", entry)
            if stated is None:
                yield f"{parameter.name}: no `Default: value (source)` in {entry!r}"
            elif not equals(stated[1], parameter.default):
                yield f"{parameter.name}: the default is {parameter.default!r}, not {stated[1]}"


def equals(text, default):
    text = text.strip("`")
    return text in (repr(default), str(default), repr(default).replace("'", '"'))


METHODS = list(list_methods())


@pytest.mark.parametrize(
    ("room", "thing"), METHODS, ids=[thing.__qualname__ for _, thing in METHODS]
)
def test_options_of_methods(room, thing):
    assert not list(list_problems(thing, room))


@pytest.mark.parametrize("function", PUBLIC_FUNCTIONS, ids=lambda function: function.__qualname__)
def test_options_of_functions(function):
    assert not list(list_problems(function))


def test_a_missing_option_and_a_wrong_default_are_found():
    def method(preds, *, bins=15, order=1):
        """Do.

        Args:
            bins: The number of bins. Default: 10 (Guo et al. 2017).
        """

    assert list(list_problems(method, "metrics")) == [
        "bins: the default is 15, not 10",
        "order: not under Args",
    ]
