"""`adapt`: a calibrator for rows whose classes have other shares than those it was fitted on."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from calibrant.calibrators.base import Calibrator
from calibrant.calibrators.fitted_rows import FittedRows
from calibrant.calibrators.methods.prior_shift import (
    ASSUMPTION,
    LEAST_SINGULAR_VALUE,
    PriorShift,
    Shift,
)
from calibrant.calibrators.rank import apply
from calibrant.core.errors import InputError, first
from calibrant.decisions import label_shift
from calibrant.decisions.label_shift import Correction, Rows
from calibrant.decisions.rule import (
    FEWEST_CLUSTERS,
    check_share,
    count_fitted_rows,
    describe_source,
    make_identity,
)
from calibrant.evaluation.evaluate import evaluate
from calibrant.evaluation.verdict import Span
from calibrant.functional.arrays import as_numpy
from calibrant.predictions import Predictions
from calibrant.predictions.shares import Shares, read_shares

Floats: TypeAlias = NDArray[np.float64]
Codes: TypeAlias = NDArray[np.int64]

_MOST_CLASSES = 2_000  # matrices of classes by classes
_CLASS_FIGURES = ("accuracy", "confidence", "nll", "brier")
_EVENT_FIGURES = ("rate", "mean", "nll", "brier")


class ShiftError(InputError):
    """The shares of the classes cannot be estimated, or other things changed too."""


def adapt(
    calibrator: Calibrator | None,
    *,
    source: Predictions | Shares,
    target: Predictions | None = None,
    prevalence: Shares | None = None,
    confidence_level: float = 0.95,
    resamples: int = 400,
    seed: int = 0,
    force: bool = False,
) -> PriorShift:
    """Adapt a calibrator to rows whose classes have other shares than those it was fitted on.

    Assumes label shift: the shares of the classes differ, and the rows of each class are as they
    were. Then each class's probability is multiplied by the ratio of its shares. Give
    ``prevalence``, the new shares, where they are known; else ``target``, new rows without labels,
    in whose scores the shares are estimated: EM (Saerens, Latinne and Decaestecker 2002) on
    bias-corrected calibration that the source rows fit (Alexandari, Kundaje and Shrikumar 2020),
    with BBSE (Lipton, Wang and Smola 2018) beside it, and intervals by a bootstrap of both samples.

    The result is a calibrator like any other. ``explanation`` says in words what the shift is and
    what was done, ``shift_`` holds the numbers. If the scores cannot tell the classes apart, or
    something else changed too, the estimate is refused; a fit test with p < .05 warns.

    Args:
        calibrator: The calibrator, fitted on rows like the source; None takes scores as they are.
        source: Labelled rows with the old shares, best such that did not fit the calibrator. With
            known prevalence the old shares alone will do: a number, or one for each class; then
            nothing is corrected.
        target: New rows; labels, if they have any, are not used. Default: None (shares are known).
        prevalence: The share of the event, or of the positive class of two, such as 0.05; else a
            share for each class, in order or by name. Default: None (it is estimated).
        confidence_level: The level of the intervals of the shares. Default: 0.95 (ours, the usual
            one).
        resamples: The number of bootstrap resamples; fewer, but 100 at least, for very many rows
            and classes. Default: 400 (ours: the ends of a 95% interval are steady).
        seed: The seed of the bootstrap. Default: 0 (ours: an estimate repeats exactly).
        force: True goes on where the estimate would be refused. Default: False (ours: failure is
            loud).

    >>> import calibrant, numpy as np
    >>> logits = np.array([0.0, 2.0])
    >>> given = calibrant.calibrators.get("identity")
    >>> rows = Predictions.from_events(logits, [0, 1], is_logits=True)
    >>> adapted = calibrant.adapt(given.fit(rows), source=0.3, prevalence=0.05)
    >>> adapted.predict_proba(logits).round(3)
    array([0.109, 0.476])
    """
    _check_options(target, prevalence, confidence_level, resamples)
    if not isinstance(source, Predictions):
        return _adapt_to_shares(calibrator, source, prevalence)
    return _prepare(calibrator, source, target, prevalence, force=force).adapt(
        confidence_level, resamples, seed
    )


@dataclass(frozen=True)
class Unlabelled:
    """The quality of a calibrator on rows without labels, under label shift; see
    `evaluate_unlabelled`.

    Args:
        before: The figures of the calibrator as it was given, with intervals.
        after: The figures of the adapted calibrator.
        calibrator: The adapted calibrator.
        event: What the probability is the probability of, where rows are events; else None.
        confidence_level: The level of the intervals.
        worth: How many rows with equal weights the reweighted source rows are worth.
    """

    before: dict[str, Span]
    after: dict[str, Span]
    calibrator: PriorShift
    event: str | None
    confidence_level: float
    worth: float

    @property
    def shift(self) -> Shift:
        """Return how the shares of the classes differ."""
        return self.calibrator.shift_

    @property
    def sentences(self) -> tuple[str, ...]:
        """Return the answer in words; the assumption first."""
        level = f"{100 * self.confidence_level:g}%"
        what = "accuracy" if self.event is None else "Brier score"
        key = "accuracy" if self.event is None else "brier"
        lines = [*self.shift.sentences]
        lines.append(
            f"Then on these rows {what} is {_describe(self.before[key], key)} before and "
            f"{_describe(self.after[key], key)} after adapting, calibration error (ECE) "
            f"{_describe(self.before['ece'], 'ece')} and {_describe(self.after['ece'], 'ece')} "
            f"({level} intervals; those of ECE take the shares as known)."
        )
        lines.append(
            f"Source rows stand in for the new ones, weighted by class; they are worth about "
            f"{self.worth:,.0f} rows."
        )
        return tuple(lines)

    def __str__(self) -> str:
        return "\n".join(self.sentences)

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain values; the assumption comes first."""
        from dataclasses import asdict

        return {
            "assumption": ASSUMPTION,
            "before": {name: asdict(span) for name, span in self.before.items()},
            "after": {name: asdict(span) for name, span in self.after.items()},
            "shift": asdict(self.shift),
            "event": self.event,
            "confidence_level": self.confidence_level,
            "worth_rows": self.worth,
            "sentences": list(self.sentences),
        }


def evaluate_unlabelled(
    calibrator: Calibrator | None,
    *,
    source: Predictions,
    target: Predictions | None = None,
    prevalence: Shares | None = None,
    confidence_level: float = 0.95,
    resamples: int = 400,
    seed: int = 0,
    force: bool = False,
) -> Unlabelled:
    """Estimate accuracy and calibration on rows without labels, under label shift only.

    The labelled source rows stand in for the new ones, each weighted by the ratio of its class's
    new share to its old one. A figure is a mean of the figures of the classes, with the new shares
    as weights; its interval is from the bootstrap that also gives those of the shares.

    Args:
        calibrator: The calibrator, fitted on rows like the source; None takes scores as they are.
        source: Labelled rows with the old shares, best such that did not fit the calibrator.
        target: New rows; labels, if they have any, are not used. Default: None (shares are known).
        prevalence: The new shares, as in `adapt`. Default: None (they are estimated).
        confidence_level: The level of the intervals. Default: 0.95 (ours, the usual one).
        resamples: The number of bootstrap resamples; fewer, but 100 at least, for very many rows
            and classes. Default: 400 (ours: the ends of a 95% interval are steady).
        seed: The seed of the bootstrap. Default: 0 (ours: an estimate repeats exactly).
        force: True goes on where the estimate would be refused. Default: False (ours: failure is
            loud).
    """
    _check_options(target, prevalence, confidence_level, resamples)
    if not isinstance(source, Predictions):
        raise InputError("source must be rows with labels (Predictions): they are judged")
    prepared = _prepare(calibrator, source, target, prevalence, force=force)
    return prepared.evaluate(calibrator, confidence_level, resamples, seed)


@dataclass(frozen=True)
class _Prepared:
    """A calibrator and the source rows, with the new ones or the stated shares."""

    part: Calibrator
    held: Predictions  # the source rows that count, as given
    source: Rows
    target: Rows | None
    correction: Correction
    shift: Shift  # without intervals
    fitted_rows: FittedRows | None

    def adapt(self, level: float, resamples: int, seed: int) -> PriorShift:
        """Return the adapted calibrator, with intervals of the shares."""
        if self.target is None:
            return self.make(self.shift)
        number = label_shift.limit_resamples(self.source, self.target, resamples)
        draws = np.array([shares for _, shares in self.resample(number, seed)])
        return self.make(self.bound(draws, level, seed))

    def resample(self, number: int, seed: int) -> Any:
        """Yield weights of source rows and shares, in resamples of both samples."""
        assert self.target is not None
        return label_shift.resample_shares(
            self.source,
            self.target,
            self.correction,
            np.array(self.shift.target),
            number,
            seed,
        )

    def bound(self, draws: Floats, level: float, seed: int) -> Shift:
        """Return the shift with intervals from resampled shares."""
        assert self.target is not None
        low, high = label_shift.bound_shares(
            np.array(self.shift.target), draws, self.target.num_units, level, seed
        )
        return replace(
            self.shift,
            low=tuple(low.tolist()),
            high=tuple(high.tolist()),
            confidence_level=level,
            resamples=len(draws),
        )

    def make(self, shift: Shift) -> PriorShift:
        """Return the calibrator for a shift."""
        calibrator = PriorShift.make(
            self.part,
            slope=self.correction.slope,
            intercept=self.correction.intercept,
            shift=shift,
        )
        calibrator.class_names_ = calibrator.class_names_ or _name_classes(self.held)
        calibrator.fitted_rows_ = self.fitted_rows
        return calibrator

    def evaluate(
        self, calibrator: Calibrator | None, level: float, resamples: int, seed: int
    ) -> Unlabelled:
        """Judge the calibrator before and after; see `evaluate_unlabelled`."""
        point = self.make(self.shift)
        outputs = [
            apply(calibrator_shown, self.held)
            for calibrator_shown in (calibrator or self.part, point)
        ]
        values = np.concatenate([self.measure(output) for output in outputs], axis=1)
        width = len(self.shift.target)
        shares, labels = np.array(self.shift.target), self.source.labels

        def average(weights: Floats, mix: Floats) -> Floats:
            sums = np.zeros((width, values.shape[1]))
            np.add.at(sums, labels, values * weights[:, None])
            return np.asarray(mix @ (sums / np.bincount(labels, weights, width)[:, None]))

        averages = average(self.source.weights, shares)
        drawn, draws = [], []
        if self.target is None:
            rng = np.random.default_rng(seed)
            for _ in range(resamples):
                drawn.append(average(label_shift.draw_weights(self.source, rng), shares))
        else:
            number = label_shift.limit_resamples(self.source, self.target, resamples)
            for weights, mix in self.resample(number, seed):
                drawn.append(average(weights, mix))
                draws.append(mix)
        low, high = np.quantile(np.array(drawn), ((1 - level) / 2, (1 + level) / 2), axis=0)
        spans = [Span(*map(float, ends)) for ends in zip(averages, low, high, strict=True)]
        row_weights = self.source.weights * (shares / self._count())[labels]
        figures = []
        half = len(spans) // 2
        for place, output in enumerate(outputs):
            names = (*self.figure_names, "gap")
            named_spans = dict(zip(names, spans[place * half : (place + 1) * half], strict=True))
            named_spans["ece"] = self.measure_ece(output, row_weights, level, resamples, seed)
            figures.append(named_spans)
        shift = self.bound(np.array(draws), level, seed) if draws else self.shift
        return Unlabelled(
            before=figures[0],
            after=figures[1],
            calibrator=self.make(shift),
            event=(self.held.event or "event") if self.held.task == "events" else None,
            confidence_level=level,
            worth=float(row_weights.sum() ** 2 / (row_weights @ row_weights)),
        )

    @property
    def figure_names(self) -> tuple[str, ...]:
        """Return the names of the figures that are means."""
        return _EVENT_FIGURES if self.held.task == "events" else _CLASS_FIGURES

    def _count(self) -> Floats:
        """Return the share of each class among the labels of the source."""
        width = len(self.shift.target)
        counts = np.bincount(self.source.labels, self.source.weights, width)
        return np.asarray(counts / counts.sum())

    def measure(self, output: Predictions) -> Floats:
        """Return the figures of each source row, (N,F): see ``figure_names``, then the gap."""
        logits, labels = _as_logits(output), self.source.labels
        logs = logits - np.logaddexp.reduce(logits, axis=1, keepdims=True)
        probs = np.exp(logs)
        rows = np.arange(len(labels))
        hits = np.zeros_like(probs)
        hits[rows, labels] = 1
        nll = -logs[rows, labels]
        if output.task == "events":
            claimed, happened = probs[:, 1], hits[:, 1]
            brier = (claimed - happened) ** 2
        else:
            claimed = probs.max(1)
            happened = (probs.argmax(1) == labels).astype(np.float64)
            brier = ((probs - hits) ** 2).sum(1)
        return np.stack((happened, claimed, nll, brier, claimed - happened), axis=1)

    def measure_ece(
        self, output: Predictions, weights: Floats, level: float, resamples: int, seed: int
    ) -> Span:
        """Return ECE on the reweighted source rows, with its interval."""
        figure = evaluate(
            replace(output, weights=weights),
            metrics=["ece"],
            view=None if output.task == "events" else "top",
            confidence_level=level,
            resamples=resamples,
            seed=seed,
        )["ece"]
        low, high = figure.low, figure.high
        value = figure.value
        return Span(value, value if low is None else low, value if high is None else high)


def _describe(span: Span, name: str) -> str:
    """Write a figure with its interval."""
    if name == "brier":
        return f"{span.value:.4f} ({span.low:.4f} to {span.high:.4f})"
    return f"{100 * span.value:.1f}% ({100 * span.low:.1f}% to {100 * span.high:.1f}%)"


def _check_options(
    target: Predictions | None, prevalence: Shares | None, level: float, resamples: int
) -> None:
    """Raise an error unless the new shares are stated or can be estimated, not both."""
    if (target is None) == (prevalence is None):
        both = "not both" if target is not None else "found neither"
        raise InputError(
            "give prevalence, the shares of the classes in the new rows, or target, the new rows "
            f"in which to estimate them; {both}"
        )
    if target is not None and not isinstance(target, Predictions):
        raise InputError(
            f"target must be Predictions, found {type(target).__name__}; make some with "
            "Predictions.from_logits(logits, None) or .read(...)"
        )
    check_share(level, "confidence_level")
    if isinstance(resamples, bool) or not isinstance(resamples, int) or resamples < 100:
        raise InputError(f"resamples must be at least 100, found {resamples!r}")


def _adapt_to_shares(
    calibrator: Calibrator | None, source: Shares, prevalence: Shares | None
) -> PriorShift:
    """Adapt a calibrator by old and new shares alone."""
    if prevalence is None:
        raise InputError(
            "to estimate shares in new rows, source must be rows with labels (Predictions); shares "
            "alone will do where prevalence is given too"
        )
    if calibrator is None:
        raise InputError(
            "give a calibrator, or source rows with labels (Predictions): shares alone do not say "
            "what the scores are"
        )
    part = _unwrap(calibrator)
    for_events = part.for_events_
    width = 2 if for_events else int(part.num_classes_)
    names, event = part.class_names_, None
    if for_events and len(names or ()) != 2:  # two names are those of two classes
        event = names[0] if names else "event"
        names = ("no", event)
    stated = [
        read_shares(stated, num_classes=width, class_names=names, event=event, what=what)
        for stated, what in ((source, "source"), (prevalence, "prevalence"))
    ]
    shift = Shift(
        how="stated",
        names=tuple(names or (str(k) for k in range(width))),
        source=tuple(stated[0].tolist()),
        target=tuple(stated[1].tolist()),
    )
    return PriorShift.make(part, slope=1.0, intercept=np.zeros(width), shift=shift)


def _unwrap(calibrator: Calibrator) -> Calibrator:
    """Return the calibrator for the source; shifts are not stacked."""
    if isinstance(calibrator, PriorShift):
        part = calibrator.part
        assert isinstance(part, Calibrator)
        return part
    if calibrator.takes_labels:
        raise InputError(
            "adapt takes one class, or one event, a row, and this calibrator is for many labels: "
            "adapt one for each label, from predictions.to_events(label)"
        )
    if calibrator.takes_features or calibrator.dense_only:
        what = "features" if calibrator.takes_features else "dense predictions"
        raise InputError(
            f"{calibrator.name} takes {what}: apply it first, then adapt(None, ...) its output"
        )
    if not calibrator.is_fitted:
        raise InputError(f"{calibrator.name} is not fitted: call fit first")
    return calibrator


def _prepare(
    calibrator: Calibrator | None,
    source: Predictions,
    target: Predictions | None,
    prevalence: Shares | None,
    *,
    force: bool,
) -> _Prepared:
    """Check all rows, calibrate and correct them, and estimate the shares or read them."""
    for rows, what in ((source, "source"), (target, "target")):
        if rows is not None:
            _check_kind(rows, what)
    source_rows = _keep_labelled(source)
    part = make_identity(source_rows) if calibrator is None else _unwrap(calibrator)
    base_rows = _make_rows(part, source_rows, "source")
    width = base_rows.logits.shape[1]
    names = _list_names(source_rows, part, width)
    _check_source(base_rows, names)
    new_rows = None
    if target is not None:
        new = target.in_memory()
        if new.is_logits != source_rows.is_logits or new.task != source_rows.task:
            raise InputError(
                f"source and target must be alike, found {_describe_kind(source_rows)} and "
                f"{_describe_kind(new)}"
            )
        if (
            source_rows.class_names
            and new.class_names
            and source_rows.class_names != new.class_names
        ):
            raise InputError(
                f"source and target name their classes differently: "
                f"{first(source_rows.class_names, 8)} and {first(new.class_names, 8)}"
            )
        new_rows = _make_rows(part, new, "target")
        _warn_of_fitted_rows(part, source_rows)
    correction = label_shift.fit_correction(base_rows.logits, base_rows.labels, base_rows.weights)
    probs = label_shift.apply_correction(base_rows.logits, correction)
    base = base_rows.weights @ probs / base_rows.weights.sum()
    common: dict[str, Any] = {
        "names": names,
        "source": tuple(base.tolist()),
        "source_rows": len(base_rows.labels),
        "corrected": True,
    }
    if new_rows is None:
        assert prevalence is not None
        stated = read_shares(
            prevalence,
            num_classes=width,
            class_names=None if source_rows.task == "events" else names,
            event=(source_rows.event or "event") if source_rows.task == "events" else None,
        )
        shift = Shift(how="stated", target=tuple(stated.tolist()), **common)
    else:
        shift = _estimate(base_rows, new_rows, probs, correction, base, common, force=force)
    return _Prepared(
        part,
        source_rows,
        base_rows,
        new_rows,
        correction,
        shift,
        _join_fitted_rows(part, source_rows),
    )


def _estimate(
    source: Rows,
    target: Rows,
    probs: Floats,
    correction: Correction,
    base: Floats,
    common: dict[str, Any],
    *,
    force: bool,
) -> Shift:
    """Estimate the shares, and test whether they can be estimated and explain the new scores."""
    width, names = len(base), common["names"]
    predicted = label_shift.predict_evenly(probs, base)
    confusion = label_shift.tabulate(predicted, source.labels, source.weights, width, width)
    _, values, right = np.linalg.svd(confusion)
    smallest, refusals = float(values[-1]), []
    if smallest < LEAST_SINGULAR_VALUE:
        pair = [names[int(right[-1].argmax())], names[int(right[-1].argmin())]]
        alike = f"{names[1]} or not" if width == 2 else f"{pair[0]} and {pair[1]} above all"
        refusals.append(
            f"the scores hardly tell the classes apart ({alike}): the smallest singular value of "
            f"the confusion matrix is {smallest:.3f}, below {LEAST_SINGULAR_VALUE:g}, so their "
            f"shares cannot be estimated; {'' if width == 2 else 'merge such classes, or '}state "
            "the shares with prevalence"
        )
    new_probs = label_shift.apply_correction(target.logits, correction)
    shares = label_shift.estimate_em(new_probs, base, target.weights)
    predicted_sums = np.bincount(label_shift.predict_evenly(new_probs, base), target.weights, width)
    fit = label_shift.test_fit(source, target, probs, new_probs, shares)
    misfit = 100 * (fit.misfit or 0.0)
    if fit.is_refused:
        refusals.append(
            f"label shift does not explain the new scores: {misfit:.1f}% of them lie elsewhere "
            f"than any shares of the classes would put them (p = {fit.p_value:.2g}, "
            f"{fit.num_bins} bins), so something else changed too; label some new rows and fit on "
            "them"
        )
    if refusals and not force:
        raise ShiftError(f"{'; and '.join(refusals)}; or adapt all the same with force=True")
    if refusals:
        warnings.warn(f"adapted all the same, although {'; and '.join(refusals)}", stacklevel=4)
    elif fit.is_off:
        warnings.warn(
            f"label shift does not explain the new scores (p = {fit.p_value:.2g}, misfit "
            f"{misfit:.1f}% of the rows): something else changed too, and the "
            "shares may be wrong",
            stacklevel=4,
        )
    return Shift(
        how="em",
        target=tuple(shares.tolist()),
        bbse=tuple(
            label_shift.estimate_bbse(confusion, predicted_sums / predicted_sums.sum()).tolist()
        ),
        smallest_singular_value=smallest,
        fit_p_value=fit.p_value,
        fit_bins=fit.num_bins,
        misfit=fit.misfit,
        target_rows=len(target.weights),
        forced=bool(refusals),
        **common,
    )


def _check_kind(predictions: Predictions, what: str) -> None:
    """Raise an error that says what to do instead for rows that have no single class."""
    if predictions.task == "multilabel":
        raise InputError(
            f"adapt takes one class, or one event, a row, and {what} has many labels: adapt one "
            "calibrator for each label, from predictions.to_events(label)"
        )
    if predictions.is_dense:
        raise InputError(
            f"adapt takes one class a row, and {what} is dense: give pixels as rows with their "
            "image as cluster"
        )
    if predictions.num_options is not None:
        raise InputError(
            f"{what} has options, which are positions and not classes: they have no shares"
        )


def _keep_labelled(source: Predictions) -> Predictions:
    """Return the source rows whose label counts."""
    rows = source.in_memory()
    if rows.labels is None:
        raise InputError(
            "source has no labels, and the class of its rows must be known: name their column with "
            "label_column=, or give labels="
        )
    labels = as_numpy(rows.known_labels)
    ignored = -1 if rows.task == "events" else rows.ignore_index
    kept = np.arange(len(labels)) if ignored is None else np.flatnonzero(labels != ignored)
    if not len(kept):
        raise InputError("no row of source has a label that counts")
    return rows if len(kept) == len(labels) else rows.take(kept)


def _make_rows(part: Calibrator, predictions: Predictions, what: str) -> Rows:
    """Return calibrated rows in double precision."""
    logits = _as_logits(apply(part, predictions))
    if logits.shape[1] > _MOST_CLASSES:
        raise InputError(
            f"adapt takes at most {_MOST_CLASSES:,} classes, found {logits.shape[1]:,}"
        )
    weights = (
        np.ones(len(logits))
        if predictions.weights is None
        else predictions.weights / predictions.weights.mean()
    )
    rows = Rows(
        logits,
        np.asarray(weights, dtype=np.float64),
        predictions.cluster_codes,
        as_numpy(predictions.known_labels).astype(np.int64)
        if what == "source"
        else np.empty(0, np.int64),
    )
    if rows.num_units < FEWEST_CLUSTERS:
        unit = "rows" if rows.clusters is None else "clusters"
        raise InputError(
            f"{what} has {rows.num_units} {unit}: nothing can be estimated with fewer than "
            f"{FEWEST_CLUSTERS}"
        )
    return rows


def _as_logits(calibrated: Predictions) -> Floats:
    """Return (N,K) logits in double precision; K is 2 for events."""
    logits = as_numpy(calibrated.array).astype(np.float64)
    return logits if logits.ndim == 2 else np.stack((np.zeros_like(logits), logits), axis=1)


def _check_source(rows: Rows, names: Sequence[str]) -> None:
    """Raise an error if a class has no source row."""
    counts = np.bincount(rows.labels, minlength=len(names))
    if missing := [names[k] for k in np.flatnonzero(counts == 0).tolist()]:
        raise InputError(
            f"source has no row of {first(missing)}: give rows of every class, or its share "
            "cannot be changed or estimated"
        )


def _list_names(predictions: Predictions, part: Calibrator, width: int) -> tuple[str, ...]:
    """Return the names of the classes, or their numbers; for events "no" and the event's."""
    if predictions.task == "events":
        return ("no", predictions.event or "event")
    names = predictions.class_names or part.class_names_
    return tuple(names or (str(k) for k in range(width)))


def _name_classes(predictions: Predictions) -> tuple[str, ...] | None:
    """Return the class names that a calibrator remembers."""
    if predictions.task == "events":
        return None if predictions.event is None else (str(predictions.event),)
    return predictions.class_names


def _describe_kind(predictions: Predictions) -> str:
    scores = "logits" if predictions.is_logits else "probabilities"
    return f"{scores} of {predictions.task}"


def _warn_of_fitted_rows(part: Calibrator, predictions: Predictions) -> None:
    """Warn if source rows fitted the calibrator, which then looks better on them than it is."""
    shared = count_fitted_rows(part, predictions)
    if shared and part.name not in ("identity", "temperature"):  # these cannot overfit
        warnings.warn(
            f"this {part.name} was fitted on about {shared:,} of the source rows and looks better "
            "on them than it is: other labelled rows give better shares and intervals",
            stacklevel=5,
        )


def _join_fitted_rows(part: Calibrator, predictions: Predictions) -> FittedRows:
    """Return a description of the rows that fitted the calibrator and of the source rows."""
    source_rows, before = describe_source(predictions), part.fitted_rows_
    if before is None or before.digest == source_rows.digest or part.name == "identity":
        return source_rows
    both = tuple(sorted({*source_rows.sample, *before.sample}))
    return FittedRows(source_rows.num_rows + before.num_rows, source_rows.digest, both)
