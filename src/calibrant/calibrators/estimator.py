"""Every calibrator as a scikit-learn estimator around any classifier."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
from sklearn.base import BaseEstimator, ClassifierMixin, MetaEstimatorMixin, clone
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import StratifiedGroupKFold, StratifiedKFold, check_cv
from sklearn.utils import indexable
from sklearn.utils.metadata_routing import (
    MetadataRouter,
    MethodMapping,
    _routing_enabled,
    process_routing,
)
from sklearn.utils.metaestimators import _safe_split
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import (
    _check_method_params,
    _check_sample_weight,
    check_is_fitted,
    column_or_1d,
    has_fit_parameter,
)

from calibrant.calibrators.base import Calibrator
from calibrant.calibrators.choose import calibrate
from calibrant.calibrators.registry import get_for_scores
from calibrant.core.errors import InputError, first
from calibrant.predictions import Predictions

_RESPONSES = ("auto", "decision_function", "predict_proba")
_FOLDS = 5


class CalibrantClassifier(ClassifierMixin, MetaEstimatorMixin, BaseEstimator):  # type: ignore[misc]
    """A classifier with calibrated probabilities, by any of calibrant's methods.

    After `fit`, ``classes_`` holds the labels, ``estimator_`` the fitted classifier and
    ``calibrator_`` the fitted calibrator.

    Args:
        estimator: A classifier with ``decision_function`` or ``predict_proba``. Default: None (a
            logistic regression).
        method: The name of the calibrator; see ``calibrant.calibrators.available()``. ``"auto"``
            chooses as `calibrate` does; ``calibrator_.choice_`` explains the choice. Default:
            'temperature' (ours: the simplest).
        options: Options of the calibrator, by name; with ``"auto"`` those of `calibrate`, such as
            ``preserve_predictions``. Default: None (the defaults).
        cv: How to make held-out rows: None, a number of folds, a splitter, or ``"prefit"`` if
            the estimator is fitted already and all rows given were held out. Otherwise the
            calibrator is fitted on out-of-fold scores and the estimator, anew, on all rows. A
            ``FrozenEstimator`` is never refitted. Folds never split the clusters given to `fit`.
            Default: None (five stratified folds, or as many as the smallest class has rows, as in
            scikit-learn).
        response: Where scores come from: ``"decision_function"``, taken as logits,
            ``"predict_proba"``, or ``"auto"``, the first of the two that the estimator has.
            Default: 'auto' (as in scikit-learn).

    >>> from sklearn.datasets import load_iris
    >>> X, y = load_iris(return_X_y=True)
    >>> CalibrantClassifier(method="temperature").fit(X, y).predict_proba(X[:2]).shape
    (2, 3)
    """

    def __init__(
        self,
        estimator: Any = None,
        *,
        method: str = "temperature",
        options: Mapping[str, Any] | None = None,
        cv: Any = None,
        response: str = "auto",
    ) -> None:
        self.estimator = estimator
        self.method = method
        self.options = options
        self.cv = cv
        self.response = response

    def fit(
        self, X: Any, y: Any, sample_weight: Any = None, clusters: Any = None
    ) -> CalibrantClassifier:
        """Fit the classifier, unless it is fitted already, and its calibrator.

        Args:
            X: The inputs.
            y: The labels.
            sample_weight: A weight for each row, for the calibrator, and for the classifier if its
                ``fit`` takes weights; a row of weight 0 does not count. Default: None (all count
                the same).
            clusters: The cluster of each row, such as its patient. Default: None (rows are
                independent).
        """
        if self.response not in _RESPONSES:
            raise InputError(f"response must be one of {_RESPONSES}, found {self.response!r}")
        if y is None:
            raise InputError("requires y to be passed, but the target y is None")
        X, y, clusters = indexable(X, y, clusters)
        if len(shape := np.shape(y)) == 2 and shape[1] > 1:
            raise InputError(
                f"y should be a 1d array, got an array of shape {shape} instead: for many labels a "
                "row wrap this classifier in sklearn.multioutput.MultiOutputClassifier, or give "
                "Predictions.from_multilabel to calibrant.calibrate"
            )
        y = column_or_1d(y, warn=True)
        check_classification_targets(y)
        if sample_weight is not None:
            sample_weight = _check_sample_weight(sample_weight, X)
            if not (sample_weight >= 0).all() or not sample_weight.any():
                raise InputError("sample_weight must not be negative, and not all zero")
        base = self._base()
        fit_params = self._route(base, sample_weight)
        prefit = isinstance(self.cv, str) and self.cv == "prefit"
        if prefit:
            check_is_fitted(base)
            self.estimator_, self.classes_ = base, np.asarray(base.classes_)
        else:
            self.classes_ = np.unique(y)
        if len(self.classes_) < 2:
            raise InputError(f"at least two classes are needed, found one class: {self.classes_}")
        target = self._encode(y)
        rows = np.arange(len(target))
        if prefit:
            is_logits, scores = self._scores(base, X)
        else:
            is_logits, scores, rows = self._hold_out(base, X, y, target, fit_params, clusters)
            self.estimator_ = clone(base).fit(X, y, **fit_params)
        for name in ("n_features_in_", "feature_names_in_"):
            if hasattr(self.estimator_, name):
                setattr(self, name, getattr(self.estimator_, name))
        weights = None if sample_weight is None else sample_weight[rows]
        codes = None
        if clusters is not None:
            codes = np.unique(np.asarray(clusters), return_inverse=True)[1].reshape(-1)[rows]
        if weights is not None:
            keep = weights > 0
            scores, rows, weights = scores[keep], rows[keep], weights[keep]
            codes = None if codes is None else codes[keep]
        self.calibrator_ = self._fit_calibrator(is_logits, scores, target[rows], weights, codes)
        self.calibrator_.class_names_ = tuple(str(name) for name in self.classes_)
        return self

    def _fit_calibrator(
        self, is_logits: bool, scores: Any, target: Any, weights: Any, clusters: Any
    ) -> Calibrator:
        options = dict(self.options or {})
        if self.method == "auto":
            make = Predictions.from_logits if is_logits else Predictions.from_probs
            held_out = make(scores, target, weights=weights, clusters=clusters)
            return calibrate(held_out, **options)
        calibrator = get_for_scores(self.method, from_logits=is_logits, **options)
        return calibrator.fit(scores, target, weights=weights, clusters=clusters)

    def get_metadata_routing(self) -> MetadataRouter:
        """Return how `sample_weight` reaches the classifier; see scikit-learn's user guide."""
        mapping = MethodMapping().add(caller="fit", callee="fit")
        router = MetadataRouter(owner=type(self).__name__).add_self_request(self)
        return router.add(estimator=self._base(), method_mapping=mapping)

    def _base(self) -> Any:
        return LogisticRegression() if self.estimator is None else self.estimator

    def _route(self, base: Any, sample_weight: Any) -> dict[str, Any]:
        """Return the arguments of the classifier's own fit."""
        if sample_weight is None:
            return {}
        if _routing_enabled():
            routed = process_routing(self, "fit", sample_weight=sample_weight)
            return dict(routed.estimator.fit)
        if has_fit_parameter(base, "sample_weight"):
            return {"sample_weight": sample_weight}
        return {}

    def predict_proba(self, X: Any) -> npt.NDArray[np.float64]:
        """Return calibrated probabilities, (N,K) in the order of ``classes_``."""
        check_is_fitted(self, "calibrator_")
        _, scores = self._scores(self.estimator_, X)
        probs = np.asarray(self.calibrator_.predict_proba(scores), dtype=np.float64)
        return np.stack((1.0 - probs, probs), axis=1) if probs.ndim == 1 else probs

    def predict(self, X: Any) -> npt.NDArray[Any]:
        """Return the label of the largest calibrated probability."""
        best = self.predict_proba(X).argmax(axis=1)
        return self.classes_[best]

    def _encode(self, y: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
        place = {label: index for index, label in enumerate(self.classes_.tolist())}
        unknown = sorted({str(label) for label in y.tolist() if label not in place})
        if unknown:
            raise InputError(f"labels the fitted estimator does not know: {first(unknown)}")
        return np.array([place[label] for label in y.tolist()], dtype=np.int64)

    def _hold_out(
        self,
        base: Any,
        X: Any,
        y: npt.NDArray[Any],
        target: npt.NDArray[np.int64],
        fit_params: dict[str, Any],
        clusters: Any,
    ) -> tuple[bool, npt.NDArray[np.float64], npt.NDArray[np.intp]]:
        """Return scores of rows by estimators that were not trained on them, and their numbers."""
        parts, rows, is_logits = [], [], True
        for train, test in self._folds(X, y, target, clusters):
            fold = clone(base)
            train_params = _check_method_params(X, fit_params, train)
            fold.fit(*_safe_split(fold, X, y, train), **train_params)
            missing = set(self.classes_.tolist()) - set(fold.classes_.tolist())
            if missing:
                raise InputError(
                    f"a training fold has no row of class {first(sorted(map(str, missing)))}: "
                    "use fewer or stratified folds"
                )
            is_logits, scores = self._scores(fold, _safe_split(fold, X, y, test, train)[0])
            parts.append(scores)
            rows.append(test)
        return is_logits, np.concatenate(parts), np.concatenate(rows)

    def _folds(
        self, X: Any, y: npt.NDArray[Any], target: npt.NDArray[np.int64], clusters: Any
    ) -> Iterator[tuple[npt.NDArray[np.intp], npt.NDArray[np.intp]]]:
        smallest = int(np.bincount(target, minlength=len(self.classes_)).min())
        wanted = min(_FOLDS, smallest) if self.cv is None else self.cv
        if isinstance(wanted, (int, np.integer)) and not 2 <= wanted <= smallest:
            raise InputError(
                f"cv={self.cv!r}: every fold needs a row of every class, and the smallest class "
                f"has {smallest} of {len(target)} n_samples; give fewer folds (at least 2) or "
                "cv='prefit' with a fitted estimator"
            )
        if isinstance(wanted, (int, np.integer)):
            number = int(wanted)
            if clusters is None:
                wanted = StratifiedKFold(number)
            else:
                count = len(np.unique(np.asarray(clusters)))
                if count < 2:
                    raise InputError("all rows are one cluster, which is never split into folds")
                wanted = StratifiedGroupKFold(min(number, count))
        folds: Iterator[tuple[Any, Any]] = check_cv(wanted, y, classifier=True).split(
            X, y, clusters
        )
        return folds

    def _scores(self, fitted: Any, X: Any) -> tuple[bool, npt.NDArray[np.float64]]:
        """Return whether scores are logits, and the scores: (N,K), or a binary (N,) decision."""
        names = _RESPONSES[1:] if self.response == "auto" else (self.response,)
        name = next((name for name in names if hasattr(fitted, name)), None)
        if name is None:
            raise InputError(f"{type(fitted).__name__} has no {' and no '.join(names)}")
        scores = np.asarray(getattr(fitted, name)(X), dtype=np.float64)
        width = 2 if scores.ndim == 1 else scores.shape[1]
        if width != len(self.classes_):
            raise InputError(
                f"{name} gives {width} columns for {len(self.classes_)} classes; one for each "
                "class is needed (set decision_function_shape='ovr' if there is such an option)"
            )
        if name == "predict_proba":
            # Rows of some classifiers sum to one only within their own precision.
            scores = scores / scores.sum(axis=1, keepdims=True)
        return name == "decision_function", scores

    def __sklearn_tags__(self) -> Any:
        from sklearn.utils import get_tags

        tags = super().__sklearn_tags__()
        tags.input_tags = get_tags(self._base()).input_tags
        return tags
