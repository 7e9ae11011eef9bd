"""Every calibrator by its canonical name."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from calibrant.calibrators.base import Calibrator
from calibrant.functional.errors import InputError, no_such, wrong_options

# name: (module, class, a line on when to use it). Modules are imported when asked for.
CALIBRATORS: dict[str, tuple[str, str, str]] = {
    "identity": ("identity", "Identity", "leave it alone: the choice when nothing helps"),
    "temperature": ("temperature", "Temperature", "one number; keeps every prediction; first try"),
    "vector": ("vector", "Vector", "a factor and a shift for each class, held to temperature"),
    "matrix": ("matrix", "Matrix", "mixes logits of all classes, held to temperature; K ≤ 2,000"),
    "dirichlet": ("dirichlet", "Dirichlet", "a matrix on log-probabilities; K ≤ 2,000"),
    "ensemble_temperature": (
        "ensemble_temperature",
        "EnsembleTemperature",
        "temperature mixed with the uniform; keeps every prediction; bounds the loss",
    ),
    "parameterized_temperature": (
        "parameterized_temperature",
        "ParameterizedTemperature",
        "a temperature for each row by a small network; keeps every prediction",
    ),
    "class_temperature": (
        "class_temperature",
        "ClassTemperature",
        "a temperature for each class; may change predictions",
    ),
    "isotonic": ("isotonic", "Isotonic", "a rising curve a class; may change predictions"),
    "histogram": ("histogram", "Histogram", "shares of hits in bins; may change predictions"),
    "beta": ("beta", "Beta", "three numbers a class; for binary problems; may change predictions"),
    "spline": ("spline", "Spline", "the top confidence by a spline; may change predictions"),
    "intra_order": (
        "intra_order",
        "IntraOrder",
        "a small network on the sorted row; keeps predictions",
    ),
    "levels": (
        "levels",
        "Levels",
        "few confidences, each verified by counting; keeps predictions",
    ),
    "mixture": ("mixture", "Mixture", "several of these, averaged as held-out rows say"),
    "meta_cal": ("meta_cal", "MetaCal", "turns doubtful rows away, with a stated guarantee"),
    "local_temperature": (
        "local_temperature",
        "LocalTemperature",
        "a temperature for each pixel of dense predictions; keeps every prediction",
    ),
    "mac_cal_head": (
        "mac_cal_head",
        "MacCalHead",
        "a new last layer trained under masks; takes features, not logits",
    ),
    "tst_head": ("tst_head", "TSTHead", "a new last layer, trained afresh; takes features"),
    "vtst_head": ("vtst_head", "VTSTHead", "a new, variational last layer; takes features"),
}


def available() -> dict[str, str]:
    """Every calibrator's name and a line on when to use it."""
    return {name: says for name, (_, _, says) in CALIBRATORS.items()}


def kind_of(name: str) -> type[Calibrator]:
    """The class of a calibrator by name."""
    if name not in CALIBRATORS:
        raise no_such("calibrator", name, CALIBRATORS)
    module, class_name, _ = CALIBRATORS[name]
    kind: type[Calibrator] = getattr(import_module(f"calibrant.calibrators.{module}"), class_name)
    return kind


def get(name: str, **options: Any) -> Calibrator:
    """A fresh calibrator by name, with its options."""
    kind = kind_of(name)
    try:
        return kind(**options)
    except TypeError as error:
        raise wrong_options("calibrator", name, kind, error) from None


def get_for_scores(name: str, *, from_logits: bool, **options: Any) -> Calibrator:
    """A fresh calibrator of logits or probabilities; one of features says what to give it."""
    if kind_of(name).takes_features:
        kind = "logits" if from_logits else "probabilities"
        raise InputError(
            f"{name} is fitted on features, what the network's own last layer is given, and "
            f"these are {kind}: give a file with 'features' (N, D) and 'labels', or call "
            f"calibrators.get({name!r}).fit(features, labels)"
        )
    return get(name, from_logits=from_logits, **options)
