"""Calibrators by name."""

from __future__ import annotations

from typing import Any, TypeVar

from calibrant.calibrators.base import Calibrator
from calibrant.core.errors import InputError
from calibrant.core.registry import Registry, check_subclass

C = TypeVar("C", bound=type[Calibrator])
_AT = "calibrant.calibrators"
CALIBRATORS: Registry[type[Calibrator]] = Registry(
    "calibrator",
    {
        "identity": (
            f"{_AT}.methods.identity:Identity",
            "leave it alone: the choice when nothing helps",
        ),
        "temperature": (
            f"{_AT}.methods.temperature:Temperature",
            "one number; keeps every prediction; first try",
        ),
        "vector": (
            f"{_AT}.methods.vector:Vector",
            "a factor and a shift for each class, held to temperature",
        ),
        "matrix": (
            f"{_AT}.methods.matrix:Matrix",
            "mixes logits of all classes, held to temperature; K ≤ 2,000",
        ),
        "dirichlet": (
            f"{_AT}.methods.dirichlet:Dirichlet",
            "a matrix on log-probabilities; K ≤ 2,000",
        ),
        "ensemble_temperature": (
            f"{_AT}.methods.ensemble_temperature:EnsembleTemperature",
            "temperature mixed with the uniform; keeps every prediction; bounds the loss",
        ),
        "parameterized_temperature": (
            f"{_AT}.methods.parameterized_temperature:ParameterizedTemperature",
            "a temperature for each row by a small network; keeps every prediction",
        ),
        "class_temperature": (
            f"{_AT}.methods.class_temperature:ClassTemperature",
            "a temperature for each class; may change predictions",
        ),
        "isotonic": (
            f"{_AT}.methods.isotonic:Isotonic",
            "a rising curve a class; may change predictions",
        ),
        "histogram": (
            f"{_AT}.methods.histogram:Histogram",
            "shares of hits in bins; may change predictions",
        ),
        "beta": (
            f"{_AT}.methods.beta:Beta",
            "three numbers a class; for binary problems; may change predictions",
        ),
        "platt": (
            f"{_AT}.methods.platt:Platt",
            "a slope and an intercept on the logit; for events; may change predictions",
        ),
        "quadratic": (
            f"{_AT}.methods.quadratic:Quadratic",
            "a parabola on the logit; for events; may change predictions",
        ),
        "venn_abers": (
            f"{_AT}.methods.venn_abers:VennAbers",
            "two isotonic fits a score, (p0, p1); for events; may change predictions",
        ),
        "spline": (
            f"{_AT}.methods.spline:Spline",
            "the top confidence by a spline; may change predictions",
        ),
        "intra_order": (
            f"{_AT}.methods.intra_order:IntraOrder",
            "a small network on the sorted row; keeps predictions",
        ),
        "levels": (
            f"{_AT}.methods.levels:Levels",
            "few confidences, each verified by counting; keeps predictions",
        ),
        "blend": (
            f"{_AT}.methods.blend:Blend",
            "nested maps from identity to matrix, weighed by held-out rows: what auto fits",
        ),
        "mixture": (
            f"{_AT}.methods.mixture:Mixture",
            "several of these, averaged as held-out rows say",
        ),
        "meta_cal": (
            f"{_AT}.methods.meta_cal:MetaCal",
            "turns doubtful rows away, with a stated guarantee",
        ),
        "local_temperature": (
            f"{_AT}.methods.local_temperature:LocalTemperature",
            "a temperature for each pixel of dense predictions; keeps every prediction",
        ),
        "mac_cal_head": (
            f"{_AT}.heads.mac_cal_head:MacCalHead",
            "a new last layer trained under masks; takes features, not logits",
        ),
        "tst_head": (
            f"{_AT}.heads.tst_head:TSTHead",
            "a new last layer, trained afresh; takes features",
        ),
        "vtst_head": (
            f"{_AT}.heads.vtst_head:VTSTHead",
            "a new, variational last layer; takes features",
        ),
    },
    check=check_subclass("calibrator", f"{_AT}.base:Calibrator"),
    rival="calibrant.metrics.registry:METRICS",
    names_results=True,
)


def available() -> dict[str, str]:
    """Return every calibrator's name with a line on when to use it."""
    return CALIBRATORS.available()


def register(calibrator: C) -> C:
    """Register a calibrator of your own under its ``name``; a class decorator.

    Args:
        calibrator: A subclass of `Calibrator`.
    """
    CALIBRATORS.register(calibrator)
    return calibrator


def kind_of(name: str) -> type[Calibrator]:
    """Return the class of the calibrator called ``name``."""
    return CALIBRATORS.load(name)


def get(name: str, **options: Any) -> Calibrator:
    """Make a fresh calibrator.

    Args:
        name: Its name.
        options: Its options.
    """
    calibrator: Calibrator = CALIBRATORS.create(name, **options)
    return calibrator


def get_for_scores(name: str, *, from_logits: bool, **options: Any) -> Calibrator:
    """Make a fresh calibrator of logits or probabilities; refuse one of features.

    Args:
        name: Its name.
        from_logits: True for logits, False for probabilities.
        options: Its options.
    """
    if kind_of(name).takes_features:
        kind = "logits" if from_logits else "probabilities"
        raise InputError(
            f"{name} is fitted on features, the input of the network's last layer, and these are "
            f"{kind}: give a file with 'features' (N, D) and 'labels', or call "
            f"calibrators.get({name!r}).fit(features, labels)"
        )
    return get(name, from_logits=from_logits, **options)
