"""Calibrators: better probabilities for a classifier already trained."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from calibrant.calibrators.attach import Calibrated, attach
from calibrant.calibrators.base import Calibrator
from calibrant.calibrators.choose import calibrate
from calibrant.calibrators.export import export_onnx, export_program
from calibrant.calibrators.files import load, save
from calibrant.calibrators.rank import apply, rank
from calibrant.calibrators.registry import available, get, register

if TYPE_CHECKING:
    from calibrant.calibrators.estimator import CalibrantClassifier

__all__ = [
    "CalibrantClassifier",
    "Calibrated",
    "Calibrator",
    "apply",
    "attach",
    "available",
    "calibrate",
    "export_onnx",
    "export_program",
    "get",
    "load",
    "rank",
    "register",
    "save",
]


def __getattr__(name: str) -> Any:
    if name == "CalibrantClassifier":  # it needs scikit-learn, which is slow to import
        from calibrant.calibrators.estimator import CalibrantClassifier

        return CalibrantClassifier
    raise AttributeError(f"module 'calibrant.calibrators' has no attribute {name!r}")
