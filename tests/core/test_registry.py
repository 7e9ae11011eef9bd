"""One registry: built-in names, registered ones, and the digest of their source."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from calibrant import losses, metrics
from calibrant.bench import register as deprecated
from calibrant.core.errors import InputError
from calibrant.core.registry import Registry, version
from calibrant.losses.registry import LOSSES
from calibrant.metrics.registry import METRICS


@pytest.fixture
def shapes():
    registry = Registry("shape", {"path": ("pathlib:Path", "a path")})
    yield registry
    for name in registry:
        registry.unregister(name)


def test_built_in_entries_are_imported_when_asked_for(shapes):
    assert shapes.load("path") is Path
    assert shapes.available() == {"path": "a path"}
    assert shapes.create("path", "a/b") == Path("a/b")
    with pytest.raises(InputError, match="no shape is called 'pth'"):
        shapes.load("pth")


def test_a_registered_thing_is_known_at_once(shapes):
    before = version()

    @shapes.register
    def circle(*, radius=1.0):
        """Round."""
        return radius

    assert version() != before
    assert "circle" in shapes
    assert shapes.available()["circle"] == "Round."
    assert shapes.create("circle", radius=2) == 2
    with pytest.raises(InputError, match="'circle' has no option 'size'; its options: radius"):
        shapes.create("circle", size=2)
    shapes.unregister("circle")
    assert "circle" not in shapes


def test_the_source_is_known_by_its_digest(shapes):
    @shapes.register
    def square():
        """Four sides."""

    assert shapes.digest_of("path") is None
    assert len(shapes.digest_of("square")) == len(hashlib.sha256().hexdigest())


def test_built_in_names_cannot_be_taken_nor_words_that_results_use():
    class Focal(losses.PrimaryLoss):
        name = "focal"

    with pytest.raises(InputError, match="a loss called 'focal' is built in: choose another"):
        losses.register(Focal)
    for name, match in (("temperature", "a calibrator called"), ("none", "is reserved in results")):
        with pytest.raises(InputError, match=match):
            metrics.register(name=name)(lambda probs, target: 0.0)
    with pytest.raises(InputError, match=r"must be a subclass of calibrant\.losses\.Loss"):
        losses.register(int)


def test_the_former_functions_register_with_a_warning():
    class Mine(losses.SecondaryLoss):
        """Mine."""

        name = "former_mine"

    with pytest.warns(DeprecationWarning, match=r"use calibrant\.losses\.register"):
        assert deprecated.loss(Mine) is Mine
    with pytest.warns(DeprecationWarning, match=r"use calibrant\.metrics\.register"):
        deprecated.metric("former_metric", lambda probs, target: 0.5, label="Former")
    try:
        assert isinstance(losses.make("former_mine"), Mine)
        assert metrics.measure("former_metric").name == "former_metric"
    finally:
        LOSSES.unregister("former_mine")
        METRICS.unregister("former_metric")
