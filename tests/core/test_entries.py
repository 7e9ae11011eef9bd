"""Every built-in entry of every registry can be imported, under its own name."""

from __future__ import annotations

import pytest

from calibrant.calibrators.registry import CALIBRATORS
from calibrant.data.datasets import DATASETS
from calibrant.losses.registry import LOSSES
from calibrant.metrics.registry import METRICS
from calibrant.models.registry import MODELS
from calibrant.training.recipes import RECIPES

ENTRIES = [
    (registry, name)
    for registry in (CALIBRATORS, DATASETS, LOSSES, METRICS, MODELS, RECIPES)
    for name in registry
]


@pytest.mark.parametrize(
    ("registry", "name"), ENTRIES, ids=lambda value: getattr(value, "kind", value)
)
def test_the_entry_exists(registry, name):
    method = registry.load(name)
    assert callable(method)
    if registry in (CALIBRATORS, LOSSES, RECIPES):
        assert method.name == name
    assert registry.available()[name]
