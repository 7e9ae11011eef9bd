"""calibrant: confidence you can believe.

>>> import calibrant
>>> import numpy as np
>>> logits, labels = np.random.default_rng(0).normal(size=(500, 4)), np.arange(500) % 4
>>> evaluation = calibrant.evaluate(calibrant.Predictions.from_logits(logits, labels))
>>> evaluation.verdict.direction
'overconfident'
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from calibrant._version import __version__

if TYPE_CHECKING:
    from calibrant.calibrators import attach, calibrate
    from calibrant.core.errors import InputError
    from calibrant.decisions import adapt, decide, evaluate_unlabelled, load, prediction_sets
    from calibrant.evaluation import (
        Evaluation,
        bootstrap_interval,
        compare,
        evaluate,
        evaluate_shards,
    )
    from calibrant.monitor import Monitor
    from calibrant.predictions import Predictions

__all__ = [
    "Evaluation",
    "InputError",
    "Monitor",
    "Predictions",
    "__version__",
    "adapt",
    "attach",
    "bootstrap_interval",
    "calibrate",
    "compare",
    "decide",
    "evaluate",
    "evaluate_shards",
    "evaluate_unlabelled",
    "load",
    "prediction_sets",
]

# Imported when first asked for, so that `import calibrant` costs next to nothing.
_HOME = {
    "Evaluation": "calibrant.evaluation",
    "InputError": "calibrant.core.errors",
    "Monitor": "calibrant.monitor",
    "Predictions": "calibrant.predictions",
    "adapt": "calibrant.decisions",
    "attach": "calibrant.calibrators",
    "bootstrap_interval": "calibrant.evaluation",
    "calibrate": "calibrant.calibrators",
    "compare": "calibrant.evaluation",
    "decide": "calibrant.decisions",
    "evaluate": "calibrant.evaluation",
    "evaluate_shards": "calibrant.evaluation",
    "evaluate_unlabelled": "calibrant.decisions",
    "load": "calibrant.decisions",
    "prediction_sets": "calibrant.decisions",
}
_ROOMS = (
    "calibrators",
    "data",
    "decisions",
    "evaluation",
    "losses",
    "metrics",
    "models",
    "monitor",
    "predictions",
    "report",
    "training",
)


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(import_module(_HOME[name]), name)
    if name in _ROOMS:
        return import_module(f"calibrant.{name}")
    raise AttributeError(f"module 'calibrant' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*__all__, *_ROOMS])
