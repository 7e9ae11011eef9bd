"""Who is measured in ``calibrators.py``: calibrant's calibrators, and those of the peers.

Every entry is one function, ``fit(logits, labels) -> predict``, and ``predict(logits)`` gives
probabilities. Logits are float32 arrays (N,K). A library that takes logits is given them; one
that wants probabilities is given the softmax in float64, floored at 1e-12 and renormalised,
the same for all. Options are the library's own unless the name says otherwise. Nothing is
worked around: a method that does not import, or raises, is recorded with what it said.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

Floats = NDArray[Any]
Labels = NDArray[np.int64]
Predict = Callable[[Floats], Floats]
Fit = Callable[[Floats, Labels], Predict]

FLOOR = 1e-12
OURS = "calibrant"


@dataclass(frozen=True)
class Entry:
    """One calibrator of one library; ``kind`` is what `calibrator_speed` races it as."""

    library: str
    method: str
    fit: Fit
    kind: str = ""

    @property
    def name(self) -> str:
        """Library and method."""
        return f"{self.library} {self.method}"

    @property
    def is_peer(self) -> bool:
        """Whether it is another library's."""
        return self.library != OURS


def softmax(logits: Floats) -> Floats:
    """Probabilities in float64, by PyTorch's threads."""
    return torch.from_numpy(np.asarray(logits)).double().softmax(1).numpy()


def floored(probs: Floats) -> Floats:
    """Probabilities no smaller than 1e-12 (about), each row summing to one; NaN counts as 0."""
    kept = torch.from_numpy(np.array(probs, dtype=np.float64)).nan_to_num_(nan=0.0)
    kept.clamp_min_(FLOOR)
    return kept.div_(kept.sum(1, keepdim=True)).numpy()


def pair(positive: Floats) -> Floats:
    """(N,2) probabilities from those of the second class."""
    flat = np.asarray(positive, dtype=np.float64).reshape(-1)
    return np.stack((1 - flat, flat), axis=1)


# --- calibrant -------------------------------------------------------------------------


def leave_alone(logits: Floats, labels: Labels) -> Predict:
    """The softmax as it is."""
    del logits, labels
    return softmax


def fit_ours(name: str, logits: Floats, labels: Labels) -> Predict:
    from calibrant.calibrators import get

    made = get(name).fit(logits, labels)
    return lambda given: softmax(made.calibrate(given))


def fit_auto(logits: Floats, labels: Labels) -> Predict:
    import calibrant

    made = calibrant.calibrate(calibrant.Predictions.from_logits(logits, labels))

    def predict(given: Floats) -> Floats:
        return softmax(made.calibrate(given))

    predict.says = getattr(made.choice_, "method", made.name)  # type: ignore[attr-defined]
    return predict


def takes_logits(name: str) -> bool:
    """Whether a calibrator maps (N,K) logits: not dense predictions, not features."""
    from calibrant.calibrators import get

    made = get(name)
    return not (made.dense_only or made.takes_features)


def ours() -> list[Entry]:
    """Uncalibrated, the choosing one, and every calibrator of the registry for (N,K)."""
    from calibrant.calibrators import available

    names = [name for name in available() if name != "identity" and takes_logits(name)]
    return [
        Entry(OURS, "uncalibrated", leave_alone),
        Entry(OURS, "auto", fit_auto),
        *(Entry(OURS, name, partial(fit_ours, name), kind=name) for name in names),
    ]


# --- probmetrics -----------------------------------------------------------------------


def fit_probmetrics(make: Callable[[], Any], logits: Floats, labels: Labels) -> Predict:
    from probmetrics.distributions import CategoricalLogits

    made = make()
    made.fit_torch(CategoricalLogits(torch.from_numpy(logits)), torch.from_numpy(labels))

    def predict(given: Floats) -> Floats:
        found = made.predict_proba_torch(CategoricalLogits(torch.from_numpy(given)))
        return found.get_probs().detach().numpy()

    return predict


def by_name(method: str, **options: Any) -> Any:
    from probmetrics.calibrators import get_calibrator

    return get_calibrator(method, **options)


def by_class(class_name: str, **options: Any) -> Any:
    import probmetrics.calibrators as found

    return getattr(found, class_name)(**options)


def one_vs_rest(class_name: str, **options: Any) -> Any:
    from probmetrics.calibrators import MulticlassOneVsRestCalibrator

    return MulticlassOneVsRestCalibrator(by_class(class_name, **options))


def intra_order() -> Any:
    from probmetrics.calibrators.orderpreserving import IntraOrderPreservingCalibrator

    return IntraOrderPreservingCalibrator()


def of_probmetrics() -> list[Entry]:
    """Its factory's methods, those with a mixture, and the classes the factory leaves out.

    ``logistic-mix`` is the factory's own (affine for two classes); the class itself defaults
    to quadratic. Its tree calibrators, and what repeats another library's, are left out.
    """
    mixed = {"calibrate_with_mixture": True}
    plain = {
        "temp-scaling": "temperature",
        "ts-mix": "temperature",
        "guo-ts": "temperature",
        "torchcal-ts": "temperature",
        "autogluon-ts": "temperature",
        "autogluon-inv-ts": "temperature",
        "svs": "vector",
        "sms": "matrix",
        "logistic": "matrix",
        "logistic-mix": "matrix",
        "dircal": "dirichlet",
        "isotonic": "isotonic",
        "cir": "isotonic",
        "platt": "",
        "platt-logits": "",
        "ivap": "",
        "ivap-ovr": "",
        "ivap-ovo": "",
    }
    quiet = {"svs": {"svs_print_init_info": False}, "sms": {"sms_print_init_info": False}}
    makers: list[tuple[str, str, Callable[[], Any]]] = [
        (name, kind, partial(by_name, name, **quiet.get(name, {}))) for name, kind in plain.items()
    ]
    makers += [
        (f"{name}, mixture", plain[name], partial(by_name, name, **mixed))
        for name in ("svs", "sms", "isotonic", "ivap-ovr")
    ]
    makers += [
        (
            "logistic-mix, quadratic",
            "",
            partial(by_name, "logistic-mix", logistic_binary_type="quadratic"),
        ),
        ("vector", "vector", partial(by_class, "VectorScalingCalibrator")),
        ("matrix", "matrix", partial(by_class, "MatrixScalingCalibrator")),
        ("ets", "", partial(by_class, "ETSCalibrator")),
        ("ets, cross-entropy", "", partial(by_class, "ETSCalibrator", loss="ce")),
        ("beta, one-vs-rest", "", partial(one_vs_rest, "BetacalCalibrator")),
        (
            "quadratic, one-vs-rest",
            "",
            partial(one_vs_rest, "BinaryLogisticCalibrator", type="quadratic"),
        ),
        (
            "histogram, one-vs-rest",
            "histogram",
            partial(one_vs_rest, "BinaryHistogramBinningCalibrator"),
        ),
        ("platt-binner, one-vs-rest", "", partial(one_vs_rest, "BinaryPlattBinnerCalibrator")),
        ("mli-spline, one-vs-rest", "", partial(one_vs_rest, "MLISplineCalibrator")),
        ("cdf-spline, one-vs-rest", "", partial(one_vs_rest, "CDFSplineCalibrator")),
        ("kernel", "", partial(by_class, "KernelCalibrator")),
        ("intra-order", "", intra_order),
        ("softplus", "", partial(by_class, "SoftPlusCalibrator")),
    ]
    return [
        Entry("probmetrics", name, partial(fit_probmetrics, make), kind)
        for name, kind, make in makers
    ]


# --- netcal ----------------------------------------------------------------------------


def fit_netcal(
    module: str, class_name: str, options: dict[str, Any], logits: Floats, labels: Labels
) -> Predict:
    from importlib import import_module

    binary = logits.shape[1] == 2
    made = getattr(import_module(f"netcal.{module}"), class_name)(**options)

    def given(scores: Floats) -> Floats:
        probs = floored(softmax(scores))
        return probs[:, 1] if binary else probs

    quiet = {"tensorboard": False} if module == "scaling" else {}
    made.fit(given(logits), labels, **quiet)

    def predict(scores: Floats) -> Floats:
        found = np.asarray(made.transform(given(scores)))
        return pair(found) if binary else found

    return predict


def of_netcal() -> list[Entry]:
    """Its scaling and binning methods, by maximum likelihood."""
    found = [
        ("temperature", "scaling", "TemperatureScaling", {}, "temperature"),
        ("logistic", "scaling", "LogisticCalibration", {}, "vector"),
        ("beta", "scaling", "BetaCalibration", {}, ""),
        ("histogram", "binning", "HistogramBinning", {}, "histogram"),
        ("isotonic", "binning", "IsotonicRegression", {}, "isotonic"),
        ("bbq", "binning", "BBQ", {}, ""),
        ("enir", "binning", "ENIR", {}, ""),
    ]
    return [
        Entry("netcal", name, partial(fit_netcal, module, class_name, options), kind)
        for name, module, class_name, options, kind in found
    ]


# --- scikit-learn ----------------------------------------------------------------------


def fit_sklearn(
    method: str, scores: str, precision: type, logits: Floats, labels: Labels
) -> Predict:
    from sklearn.base import BaseEstimator, ClassifierMixin
    from sklearn.calibration import CalibratedClassifierCV
    from sklearn.frozen import FrozenEstimator

    classes = logits.shape[1]

    class Given(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
        """A fitted classifier whose scores are its input."""

        classes_ = np.arange(classes)

        def fit(self, x: Floats, y: Labels) -> Any:
            return self

        def predict(self, x: Floats) -> Labels:
            return x.argmax(1)

        def __sklearn_is_fitted__(self) -> bool:
            return True

    def decision_function(self: Any, x: Floats) -> Floats:
        return x[:, 1] - x[:, 0] if classes == 2 else x

    def predict_proba(self: Any, x: Floats) -> Floats:
        return floored(softmax(x))

    setattr(Given, scores, decision_function if scores == "decision_function" else predict_proba)
    made = CalibratedClassifierCV(FrozenEstimator(Given()), method=method)
    made.fit(logits.astype(precision), labels)
    return lambda given: made.predict_proba(given.astype(precision))


def of_sklearn() -> list[Entry]:
    """`CalibratedClassifierCV` around a frozen classifier, from logits or probabilities."""
    logits, probs = "decision_function", "predict_proba"
    found = [
        ("temperature", "temperature", logits, np.float64, "temperature"),
        ("temperature, float32", "temperature", logits, np.float32, "temperature"),
        ("isotonic", "isotonic", probs, np.float64, "isotonic"),
        ("isotonic, logits", "isotonic", logits, np.float64, "isotonic"),
        ("sigmoid", "sigmoid", probs, np.float64, ""),
        ("sigmoid, logits", "sigmoid", logits, np.float64, ""),
    ]
    return [
        Entry("scikit-learn", name, partial(fit_sklearn, method, scores, precision), kind)
        for name, method, scores, precision, kind in found
    ]


# --- uncertainty-calibration -----------------------------------------------------------

VERIFIED_BINS = 10  # the number its own examples use; it has no default


def fit_verified(class_name: str, logits: Floats, labels: Labels) -> Predict:
    import calibration

    made = getattr(calibration, class_name)(len(labels), VERIFIED_BINS)
    made.train_calibration(floored(softmax(logits)), labels)
    return lambda given: np.asarray(made.calibrate(floored(softmax(given))))


def fit_verified_platt(logits: Floats, labels: Labels) -> Predict:
    import calibration

    if logits.shape[1] != 2:
        raise ValueError("its Platt scaling is for two classes")
    made = calibration.PlattCalibrator(len(labels), VERIFIED_BINS)
    made.train_calibration(floored(softmax(logits))[:, 1], labels)
    return lambda given: pair(made.calibrate(floored(softmax(given))[:, 1]))


def of_verified() -> list[Entry]:
    """Its calibrators of all classes; those of the top label give no distribution."""
    library = "uncertainty-calibration"
    return [
        Entry(
            library, "histogram", partial(fit_verified, "HistogramMarginalCalibrator"), "histogram"
        ),
        Entry(library, "platt-binner", partial(fit_verified, "PlattBinnerMarginalCalibrator")),
        Entry(library, "platt", fit_verified_platt),
    ]


def peers() -> list[Entry]:
    """Every peer's methods, whether or not it is installed."""
    return [*of_probmetrics(), *of_netcal(), *of_sklearn(), *of_verified()]


def everyone() -> dict[str, Entry]:
    """All entries by name, ours first."""
    return {entry.name: entry for entry in [*ours(), *peers()]}


def version_of(library: str) -> str:
    """The installed version, or nothing."""
    try:
        return version(library)
    except PackageNotFoundError:
        return ""


def quiet_warnings() -> None:
    """Warnings of a fit are not part of a benchmark's output."""
    warnings.simplefilter("ignore")
