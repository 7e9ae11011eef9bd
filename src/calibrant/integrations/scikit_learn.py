"""scikit-learn: scorers for searches, a display, and the predictions of a fitted classifier.

`calibrant.calibrators.CalibrantClassifier` is the estimator that repairs a classifier.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt
from sklearn.metrics._scorer import _BaseScorer
from sklearn.utils.validation import check_is_fitted, column_or_1d

from calibrant.core.errors import InputError, first
from calibrant.evaluation import Evaluation, evaluate
from calibrant.predictions import Predictions

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = [
    "CalibrationScorer",
    "ReliabilityDisplay",
    "adaptive_ece_scorer",
    "brier_scorer",
    "classifier_predictions",
    "ece_scorer",
    "nll_scorer",
    "smooth_ece_scorer",
]


def classifier_predictions(
    estimator: Any,
    X: Any,
    y: Any,
    *,
    sample_weight: Any = None,
    clusters: Any = None,
    name: str | None = None,
) -> Predictions:
    """Return the predictions of a fitted classifier on rows it was not fitted on.

    Labels may be words: they are matched with the classifier's ``classes_``.

    Args:
        estimator: A fitted classifier with ``predict_proba``.
        X: The inputs.
        y: The labels; None if they are not known.
        sample_weight: A weight for each row; rows of weight 0 are left out. Default: None (all
            count the same).
        clusters: The cluster of each row, such as its patient. Default: None (rows are
            independent).
        name: The name shown in reports. Default: None (the name of the classifier's class).

    >>> from sklearn.datasets import load_iris
    >>> from sklearn.linear_model import LogisticRegression
    >>> X, y = load_iris(return_X_y=True)
    >>> classifier_predictions(LogisticRegression(max_iter=500).fit(X, y), X, y)
    Predictions('LogisticRegression': 150 rows, 3 classes, probabilities, numpy float64)
    """
    if not hasattr(estimator, "predict_proba"):
        raise InputError(
            f"{type(estimator).__name__} has no predict_proba; CalibrantClassifier(...) around it "
            "has one"
        )
    check_is_fitted(estimator)
    probs = np.asarray(estimator.predict_proba(X), dtype=np.float64)
    return _make_predictions(
        y,
        probs,
        np.asarray(estimator.classes_),
        sample_weight=sample_weight,
        clusters=clusters,
        name=name or type(estimator).__name__,
    )


def _make_predictions(
    y: Any,
    probs: npt.NDArray[np.float64],
    labels: npt.NDArray[Any],
    *,
    sample_weight: Any,
    clusters: Any,
    name: str,
) -> Predictions:
    if probs.ndim == 2 and probs.shape[1] == 2:
        probs = probs[:, 1]
    width = 2 if probs.ndim == 1 else probs.shape[1]
    if len(labels) != width:
        raise InputError(
            f"found {len(labels)} labels ({first(labels.tolist())}) for probabilities of {width} "
            "classes: there must be one for each"
        )
    if probs.ndim == 2:  # rows of some classifiers sum to one only within their own precision
        probs = probs / probs.sum(axis=1, keepdims=True)
    target = None if y is None else _encode(column_or_1d(y, warn=True), labels)
    weights = None if sample_weight is None else np.asarray(sample_weight, dtype=np.float64)
    groups = None if clusters is None else np.asarray(clusters)
    if weights is not None and weights.shape == (len(probs),) and (weights == 0).any():
        keep = weights > 0
        probs, weights = probs[keep], weights[keep]
        target = None if target is None else target[keep]
        groups = None if groups is None else groups[keep]
    return Predictions.from_probs(
        probs,
        target,
        class_names=[str(label) for label in labels.tolist()],
        weights=weights,
        clusters=groups,
        name=name,
    )


def _encode(y: npt.NDArray[Any], labels: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
    """Return the place of each label among the known ones."""
    place = {label: index for index, label in enumerate(labels.tolist())}
    unknown = sorted({str(label) for label in y.tolist() if label not in place})
    if unknown:
        raise InputError(
            f"labels the classifier does not know: {first(unknown)}; it knows "
            f"{first(labels.tolist(), 12)}"
        )
    return np.array([place[label] for label in y.tolist()], dtype=np.int64)


class CalibrationScorer(_BaseScorer):  # type: ignore[misc]
    """A metric as a scorer, for `cross_val_score`, `GridSearchCV` and ``scoring=``.

    Larger scores are better in scikit-learn, so an error is negated. Two classes are judged by the
    probability of the second of ``classes_``. `sample_weight` can be routed to it.

    An ECE alone is a poor aim of a search: a model that always says how common each class is has
    none. Search by ``nll_scorer`` or ``brier_scorer``, and look at the ECE beside it.

    Args:
        metric: The name of a metric, also with options: ``"risk_at_coverage(coverage=0.9)"``.
        options: Options of the metric.

    >>> from sklearn.datasets import load_iris
    >>> from sklearn.linear_model import LogisticRegression
    >>> from sklearn.model_selection import cross_val_score
    >>> X, y = load_iris(return_X_y=True)
    >>> model = LogisticRegression(max_iter=500)
    >>> cross_val_score(model, X, y, scoring=CalibrationScorer("ece", num_bins=10)).shape
    (5,)
    """

    def __init__(self, metric: str, **options: Any) -> None:
        from calibrant.metrics.registry import measure

        self.metric, self.options = metric, options
        better = measure(metric, **options).better
        super().__init__(_take_weights, -1 if better == "lower" else 1, options, "predict_proba")

    def _score(
        self, method_caller: Any, estimator: Any, X: Any, y_true: Any, **params: Any
    ) -> float:
        predictions = classifier_predictions(
            estimator, X, y_true, sample_weight=params.get("sample_weight")
        )
        return self._sign * _measure(predictions, self.metric, self.options)

    def __repr__(self) -> str:
        options = "".join(f", {name}={value!r}" for name, value in self.options.items())
        return f"CalibrationScorer({self.metric!r}{options})"


def _take_weights(y_true: Any, y_prob: Any, sample_weight: Any = None) -> None:
    """Tell scikit-learn by its signature that scorers take `sample_weight`; never called."""


def _measure(predictions: Predictions, metric: str, options: dict[str, Any]) -> float:
    wanted = {metric: options} if options else [metric]
    evaluation = evaluate(predictions, metrics=wanted, intervals=False)
    return next(iter(evaluation.figures.values())).value


ece_scorer = CalibrationScorer("ece")
adaptive_ece_scorer = CalibrationScorer("adaptive_ece")
smooth_ece_scorer = CalibrationScorer("smooth_ece")
nll_scorer = CalibrationScorer("nll")
brier_scorer = CalibrationScorer("brier")


class ReliabilityDisplay:
    """A reliability diagram, in the manner of scikit-learn's displays.

    Make one with ``from_estimator`` or ``from_predictions``. ``ax_`` and ``figure_`` hold the
    drawing, ``evaluation`` the figures with their intervals.

    Args:
        evaluation: The result of `calibrant.evaluate`.
    """

    ax_: Axes
    figure_: Figure

    def __init__(self, evaluation: Evaluation) -> None:
        self.evaluation = evaluation

    @classmethod
    def from_estimator(
        cls,
        estimator: Any,
        X: Any,
        y: Any,
        *,
        sample_weight: Any = None,
        clusters: Any = None,
        name: str | None = None,
        curve: Literal["corp", "kernel", "bins"] = "corp",
        ax: Axes | None = None,
    ) -> ReliabilityDisplay:
        """Draw the diagram of a fitted classifier.

        Args:
            estimator: A fitted classifier with ``predict_proba``.
            X: Inputs it was not fitted on.
            y: Their labels.
            sample_weight: A weight for each row. Default: None (all count the same).
            clusters: The cluster of each row. Default: None (rows are independent).
            name: The name of the model. Default: None (the name of its class).
            curve: ``"corp"``, ``"kernel"`` or ``"bins"``; see
                `calibrant.report.plot_reliability`. Default: 'corp' (needs no bins).
            ax: The axes to draw on. Default: None (a new figure).
        """
        predictions = classifier_predictions(
            estimator, X, y, sample_weight=sample_weight, clusters=clusters, name=name
        )
        return cls._draw(predictions, curve, ax)

    @classmethod
    def from_predictions(
        cls,
        y_true: Any,
        y_prob: Any,
        *,
        labels: Sequence[Any] | None = None,
        sample_weight: Any = None,
        clusters: Any = None,
        name: str = "classifier",
        curve: Literal["corp", "kernel", "bins"] = "corp",
        ax: Axes | None = None,
    ) -> ReliabilityDisplay:
        """Draw the diagram of probabilities.

        Args:
            y_true: The labels.
            y_prob: Probabilities of shape (N,K) in the order of the labels, or (N,), of the second
                of two labels.
            labels: The labels in the order of the columns. Default: None (the sorted labels of
                ``y_true``, as in scikit-learn).
            sample_weight: A weight for each row. Default: None (all count the same).
            clusters: The cluster of each row. Default: None (rows are independent).
            name: The name of the model. Default: 'classifier'.
            curve: ``"corp"``, ``"kernel"`` or ``"bins"``. Default: 'corp' (needs no bins).
            ax: The axes to draw on. Default: None (a new figure).
        """
        known = np.unique(np.asarray(y_true)) if labels is None else np.asarray(labels)
        predictions = _make_predictions(
            y_true,
            np.asarray(y_prob, dtype=np.float64),
            known,
            sample_weight=sample_weight,
            clusters=clusters,
            name=name,
        )
        return cls._draw(predictions, curve, ax)

    @classmethod
    def _draw(
        cls, predictions: Predictions, curve: Literal["corp", "kernel", "bins"], ax: Axes | None
    ) -> ReliabilityDisplay:
        return cls(evaluate(predictions, metrics=("ece", "smooth_ece"))).plot(ax, curve=curve)

    def plot(
        self, ax: Axes | None = None, *, curve: Literal["corp", "kernel", "bins"] = "corp"
    ) -> ReliabilityDisplay:
        """Draw the diagram again.

        Args:
            ax: The axes to draw on. Default: None (a new figure).
            curve: ``"corp"``, ``"kernel"`` or ``"bins"``. Default: 'corp' (needs no bins).
        """
        from calibrant.report import plot_reliability

        self.ax_ = plot_reliability(self.evaluation, curve, ax=ax)
        figure: Any = self.ax_.figure
        self.figure_ = figure
        return self
