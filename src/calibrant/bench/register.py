"""Deprecated: register methods with ``@calibrant.losses.register`` and the like.

These functions register as before, with a warning, for one more release.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any, TypeVar

from calibrant import calibrators, losses, metrics, models
from calibrant.training import recipes

T = TypeVar("T", bound=type)


def loss(kind: T) -> T:
    """Register a loss; use ``@calibrant.losses.register``."""
    _warn("loss", "losses.register")
    return losses.register(kind)


def calibrator(kind: T) -> T:
    """Register a calibrator; use ``@calibrant.calibrators.register``."""
    _warn("calibrator", "calibrators.register")
    return calibrators.register(kind)


def recipe(kind: T) -> T:
    """Register a recipe; use ``@calibrant.training.recipes.register``."""
    _warn("recipe", "training.recipes.register")
    return recipes.register(kind)


def metric(
    name: str,
    function: Callable[..., Any],
    *,
    label: str = "",
    says: str = "",
    better: str | None = None,
) -> None:
    """Register a metric; use ``@calibrant.metrics.register``.

    Args:
        name: Its name.
        function: A function of (probs, target), or a maker of a `Measure`.
        label: The heading of its column; the name by default.
        says: A line on what it says; the first line of its docstring by default.
        better: ``lower`` (the default), ``higher`` or ``neither``.
    """
    _warn("metric", "metrics.register")
    metrics.register(name=name, label=label, summary=says, better=better)(function)


def model(name: str, build: Callable[..., Any], *, says: str = "") -> None:
    """Register a network; use ``@calibrant.models.register``.

    Args:
        name: Its name.
        build: ``build(num_classes, *, channels, **options)``, which returns a fresh network.
        says: A line on what it is; the first line of its docstring by default.
    """
    _warn("model", "models.register")
    models.register(name=name, summary=says)(build)


def _warn(name: str, replacement: str) -> None:
    warnings.warn(
        f"calibrant.bench.register.{name} goes in the next release: use calibrant.{replacement}",
        DeprecationWarning,
        stacklevel=3,
    )
