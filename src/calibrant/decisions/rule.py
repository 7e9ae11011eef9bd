"""`Rule`, what to do with a row: a calibrator, thresholds on its output, and what they promise.

A rule is saved with its calibrator in one ``.safetensors`` file: their tensors, and a header that
says what the rule promises, on which rows it was made, and when. `load` reads it again.
"""

from __future__ import annotations

import datetime
import math
import os
import typing
from collections.abc import Sequence
from dataclasses import MISSING, asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from calibrant._version import __version__
from calibrant.calibrators import files
from calibrant.calibrators.base import Calibrator, rows_of
from calibrant.calibrators.fitted_rows import FittedRows, describe_rows
from calibrant.calibrators.rank import apply
from calibrant.calibrators.registry import get
from calibrant.core.errors import InputError
from calibrant.decisions.risk_tests import Design
from calibrant.functional.arrays import Array, as_numpy, to_tensor
from calibrant.predictions import Predictions
from calibrant.predictions.files import check_file, explain_read_errors

Floats = NDArray[np.float64]
T = TypeVar("T")

FEWEST_CLUSTERS = 10


@dataclass(frozen=True)
class MadeOn:
    """The rows that a rule was made on.

    Args:
        name: The name of the predictions.
        num_rows: How many rows counted.
        digest: The SHA-256 of their scores' hashes, whatever their order.
        num_clusters: How many clusters they lie in; None if rows are independent.
        weighted: Whether they have weights.
        date: When the rule was made, in UTC, as 2026-11-19T08:00:00.
        version: The version of calibrant that made it.
    """

    name: str
    num_rows: int
    digest: str
    num_clusters: int | None
    weighted: bool
    date: str
    version: str


@dataclass(frozen=True)
class Part:
    """The threshold and the figures of a rule for one class or group, or for all rows.

    Args:
        name: The class or group; "all rows".
        threshold: The least probability that is accepted, None if nothing is; for sets, of a class
            in them, None if it always is (``aps``: the largest total).
        num_rows: The rows on which the threshold was chosen.
        share: The share of these that the rule accepts (sets: that have one class in their set).
        num_errors: The errors among them: wrong rows, false alarms, missed events or classes.
        risk: Their share: of accepted rows, or of the rows in which the event happened.
        bound: The upper bound of the risk with the stated confidence; None where there is no
            exact one.
        more_rows: Roughly how many more rows of this kind would grant a threshold; None if there is
            one, or if no number would.
        size: For sets: the mean number of classes in a set.
    """

    name: str
    threshold: float | None
    num_rows: int
    share: float
    num_errors: int
    risk: float | None
    bound: float | None = None
    more_rows: int | None = None
    size: float | None = None


@dataclass(frozen=True)
class Terms:
    """The promise of a rule, and the rows that it is about.

    Args:
        target: ``max_error``, ``min_precision``, ``min_recall``, ``costs`` or ``coverage``.
        value: The target's value; for costs the probability from which to act.
        confidence_level: How often, over draws of the rows, the promise holds; None for costs and
            for coverage that holds on average.
        test: ``exact``, ``betting``, ``approximate``; ``none`` for costs.
        by: ``class`` or ``group``, each of which has a threshold; None for one threshold.
        names: The names of the parts.
        positive: The class whose event a two-class rule predicts; None for the predicted class,
            and for events.
        score: For sets ``lac`` or ``aps``.
        costs: The costs by name, if the target is ``costs``.
        mean_cost: The mean cost of a row under the rule, and its interval.
        other_costs: The mean cost of a row if all rows, or none, are accepted.
    """

    target: str
    value: float
    confidence_level: float | None
    test: str
    by: str | None = None
    names: tuple[str, ...] = ("all rows",)
    positive: int | None = None
    score: str | None = None
    costs: dict[str, float] = field(default_factory=dict)
    mean_cost: tuple[float, ...] = ()
    other_costs: tuple[float, ...] = ()


class NoThresholdError(InputError):
    """No threshold can keep the promise on these rows; ``parts`` say what would."""

    def __init__(self, message: str, parts: Sequence[Part]) -> None:
        super().__init__(message)
        self.parts = tuple(parts)


class Rule(nn.Module):
    """What to do with a row. `decide` and `prediction_sets` make rules; `calibrant.load` reads one.

    A rule takes what its calibrator takes: the logits or probabilities of the network.

    Args:
        calibrator: The calibrator that scores go through first.
        thresholds: (P,) thresholds, one a part.
        terms: What the rule promises.
        parts: What the rule does in each class or group.
        made_on: The rows it was made on.
    """

    kind: ClassVar[str]

    thresholds: Tensor

    def __init__(
        self,
        calibrator: Calibrator,
        thresholds: Tensor,
        terms: Terms,
        parts: Sequence[Part],
        made_on: MadeOn,
    ) -> None:
        super().__init__()
        self.calibrator = calibrator
        self.terms = terms
        self.parts = tuple(parts)
        self.made_on = made_on
        self.register_buffer("thresholds", thresholds)
        self.eval()

    @property
    def task(self) -> str:
        """Return ``"events"`` or ``"classes"``, the rows that the rule takes."""
        return "events" if self.calibrator.for_events_ else "classes"

    @property
    def num_classes(self) -> int:
        """Return the number of classes; 2 for events."""
        return max(2, int(self.calibrator.num_classes_))

    @property
    def class_names(self) -> tuple[str, ...]:
        """Return the names of the classes, or their numbers; for events "no" and the event's."""
        names = self.calibrator.class_names_
        if self.task == "events":
            return ("no", names[0] if names else "event")
        return names or tuple(str(k) for k in range(self.num_classes))

    @property
    def promise(self) -> str:
        """Return what the rule promises, in a sentence or two."""
        raise NotImplementedError

    def decide_logits(self, logits: Tensor, extra: Tensor | None = None, /) -> Tensor:
        """Return the decision on each row of calibrated logits."""
        raise NotImplementedError

    def describe(self) -> dict[str, Any]:
        """Return everything the rule says of itself, as plain values."""
        return {
            "kind": self.kind,
            "promise": self.promise,
            "terms": asdict(self.terms),
            "parts": [asdict(part) for part in self.parts],
            "made_on": asdict(self.made_on),
        }

    def __str__(self) -> str:
        return self.promise

    def extra_repr(self) -> str:
        """Return the promise."""
        return self.promise

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the rule and its calibrator to a ``.safetensors`` file, whole or not at all.

        Args:
            path: The file, ending in ``.safetensors``; `calibrant.load` reads it.
        """
        target = files.check_target(path, "a rule")
        header = {
            "format": files.RULE_FORMAT,
            "version": __version__,
            "rule": self.describe(),
            "calibrator": files.make_header(self.calibrator),
        }
        files.write_tensors(target, header, files.gather_tensors(self))
        return target

    def _read_scores(self, scores: Array | Predictions) -> Array:
        """Return checked scores as an array; predictions must be of the calibrator's kind."""
        if isinstance(scores, Predictions):
            _check_kind(scores)
            return apply(self.calibrator, scores).array
        shape = tuple(scores.shape)
        wanted = "(N,)" if self.task == "events" else f"(N, {self.num_classes})"
        fits = len(shape) == 1 if self.task == "events" else shape[1:] == (self.num_classes,)
        if not fits and not (len(shape) == 1 and self.num_classes == 2):
            raise InputError(f"this rule takes scores of shape {wanted}, found {shape}")
        mapped: Array = self.calibrator.calibrate(scores)
        return mapped


def load(path: str | os.PathLike[str]) -> Calibrator | Rule:
    """Load a calibrator, or a rule with its calibrator, from the file that its ``save`` wrote.

    Args:
        path: The file.
    """
    file = check_file(path, (files.ENDING,))
    with explain_read_errors(file):
        header, tensors = files.read_tensors(file)
        if "rule" not in header:
            return files.restore(header, tensors)
        return _restore(header, tensors)


def _restore(header: dict[str, Any], tensors: dict[str, Tensor]) -> Rule:
    """Make a rule from its header and tensors."""
    # By name: the modules of the rules import this one.
    from calibrant.core.registry import resolve

    rule, inner = header["rule"], header.get("calibrator")
    kinds = {
        "threshold": "calibrant.decisions.thresholds:Threshold",
        "sets": "calibrant.decisions.sets:PredictionSets",
    }
    if not isinstance(rule, dict) or not isinstance(inner, dict):
        raise InputError("damaged: its header does not describe a rule and a calibrator")
    if rule.get("kind") not in kinds:
        raise InputError(f"damaged: a rule cannot be of kind {rule.get('kind')!r:.40}")
    prefix = "calibrator."
    rule_tensors = {key: value for key, value in tensors.items() if not key.startswith(prefix)}
    calibrator = files.restore(
        inner,
        {
            key.removeprefix(prefix): value
            for key, value in tensors.items()
            if key.startswith(prefix)
        },
    )
    terms = _rebuild(Terms, rule.get("terms"))
    written = rule.get("parts")
    parts = [_rebuild(Part, part) for part in written] if isinstance(written, list) else []
    thresholds = rule_tensors.get("thresholds")
    if (
        rule_tensors.keys() != {"thresholds"}
        or thresholds is None
        or not thresholds.is_floating_point()
    ):
        raise InputError(
            f"damaged: a rule has one tensor, thresholds; found {sorted(rule_tensors)!r:.80}"
        )
    if tuple(thresholds.shape) != (len(parts),) or len(terms.names) != len(parts):
        raise InputError(
            f"damaged: thresholds of shape {tuple(thresholds.shape)} for {len(parts)} parts"
        )
    if bool(torch.isnan(thresholds).any()):
        raise InputError("damaged: the thresholds hold NaN")
    kind: type[Rule] = resolve(kinds[rule["kind"]])
    return kind(calibrator, thresholds, terms, parts, _rebuild(MadeOn, rule.get("made_on")))


def _rebuild(kind: type[T], values: Any) -> T:
    """Make a dataclass of plain values whose types fit; raise an error if they do not."""
    hints = typing.get_type_hints(kind)
    known = {entry.name: entry for entry in fields(kind)}  # type: ignore[arg-type]
    if not isinstance(values, dict) or not values.keys() <= known.keys():
        raise InputError(f"damaged: {kind.__name__} cannot be {values!r:.80}")
    arguments = {}
    for name, entry in known.items():
        if name not in values:
            if entry.default is MISSING and entry.default_factory is MISSING:
                raise InputError(f"damaged: {kind.__name__} has no {name}")
            continue
        value = values[name]
        if not files.fits_hint(value, hints[name]):
            raise InputError(f"damaged: {name} cannot be {value!r:.80}")
        arguments[name] = tuple(value) if isinstance(value, list) else value
    return kind(**arguments)


class Calibrated(typing.NamedTuple):
    """The rows a rule is made on: calibrated logits, what happened, and how rows were drawn."""

    predictions: Predictions  # calibrated, in memory
    logits: Tensor
    labels: NDArray[np.int64]
    design: Design
    calibrator: Calibrator
    kept: NDArray[np.int64]  # the numbers of the rows that count
    made_on: MadeOn


def prepare(
    predictions: Predictions,
    calibrator: Calibrator | None,
    *,
    max_weight: float | None,
    max_cluster_size: int | None,
) -> Calibrated:
    """Check the rows that a rule is made on, and calibrate them.

    Args:
        predictions: The rows, with labels; rows whose label is ignored or missing are left out.
        calibrator: A fitted calibrator; None leaves scores as they are.
        max_weight: The largest weight that a row can have; None if it is not known.
        max_cluster_size: The most rows that a cluster can have; None if it is not known.
    """
    _check_kind(predictions)
    rows = predictions.in_memory()
    labels = as_numpy(rows.known_labels).astype(np.int64)
    ignored = -1 if rows.task == "events" else rows.ignore_index
    kept = np.flatnonzero(labels != ignored) if ignored is not None else np.arange(len(labels))
    if not len(kept):
        raise InputError("no row has a label that counts")
    if len(kept) < len(labels):
        rows = rows.take(kept)
    rows = replace(rows, ignore_index=-1 if rows.task == "events" else None)
    if calibrator is None:
        calibrator = make_identity(rows)
    elif not calibrator.is_fitted:
        raise InputError(f"{calibrator.name} is not fitted: call fit first")
    else:
        _refuse_fitted_rows(calibrator, rows)
    calibrated = apply(calibrator, rows)
    return Calibrated(
        calibrated,
        to_tensor(calibrated.array),
        labels[kept],
        _make_design(rows, max_weight, max_cluster_size),
        calibrator,
        kept,
        MadeOn(
            name=predictions.name,
            num_rows=len(kept),
            digest=describe_source(rows).digest,
            num_clusters=None if rows.clusters is None else len(np.unique(rows.clusters)),
            weighted=rows.weights is not None,
            date=datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%S"),
            version=__version__,
        ),
    )


def make_identity(predictions: Predictions) -> Calibrator:
    """Return the calibrator that leaves scores as they are.

    Args:
        predictions: Predictions of the kind that it takes.
    """
    width = 1 if predictions.task == "events" else predictions.num_classes
    calibrator = get("identity", from_logits=predictions.is_logits)
    calibrator.load_state_dict({"num_classes_": torch.tensor(width)})
    named = predictions.task == "events" and predictions.event is not None
    calibrator.class_names_ = (str(predictions.event),) if named else predictions.class_names
    return calibrator


def _check_kind(predictions: Predictions) -> None:
    """Raise an error that says what to do instead of a rule for many labels or pixels."""
    if predictions.task == "multilabel":
        raise InputError(
            "a rule takes one class, or one event, a row, and these rows have many labels: make "
            "one for each label, from predictions.to_events(label)"
        )
    if predictions.is_dense:
        raise InputError(
            "a rule takes one decision a row, and these predictions are dense: give pixels as rows "
            "with their image as cluster"
        )


def _as_rows(predictions: Predictions) -> Tensor:
    """Return scores as a calibrator's fit sees them."""
    labels = to_tensor(predictions.known_labels).to(torch.int64)
    return rows_of(predictions.array, labels, from_logits=predictions.is_logits, ignore_index=None)[
        0
    ]


def describe_source(predictions: Predictions) -> FittedRows:
    """Return the digest and the sample of labelled rows.

    Args:
        predictions: The rows.
    """
    return describe_rows(_as_rows(predictions))


def count_fitted_rows(calibrator: Calibrator, predictions: Predictions) -> int:
    """Estimate how many of the rows that fitted a calibrator are among these.

    Args:
        calibrator: The calibrator.
        predictions: The rows, with labels.
    """
    fitted = calibrator.fitted_rows_
    return 0 if fitted is None else fitted.count_shared(_as_rows(predictions))


def _refuse_fitted_rows(calibrator: Calibrator, predictions: Predictions) -> None:
    """Raise an error if some rows fitted the calibrator."""
    fitted = calibrator.fitted_rows_
    shared = count_fitted_rows(calibrator, predictions)
    if fitted is not None and shared:
        about = "all" if shared == fitted.num_rows else f"about {shared:,}"
        raise InputError(
            f"{about} of the {fitted.num_rows:,} rows that fitted this {calibrator.name} are among "
            "these rows, on which it looks better than it is: give rows that neither the network "
            "nor the calibrator has seen, for instance the other half of predictions.split()"
        )


def _make_design(
    predictions: Predictions, max_weight: float | None, max_cluster_size: int | None
) -> Design:
    """Check stated bounds against the rows; return weights, clusters and the bound."""
    weights, codes = predictions.weights, predictions.cluster_codes
    for name, stated, values in (
        ("max_weight", max_weight, weights),
        ("max_cluster_size", max_cluster_size, codes),
    ):
        if stated is None:
            continue
        if values is None:
            kind = "weights" if name == "max_weight" else "clusters"
            raise InputError(f"{name} needs rows with {kind}, and these have none")
        largest = float(values.max()) if name == "max_weight" else int(np.bincount(values).max())
        if not stated >= largest:
            raise InputError(
                f"{name}={stated:g} is below the largest found, {largest:g}: state a bound that "
                "holds for every row that can come"
            )
    if codes is not None:
        number = int(codes.max()) + 1
        if number < FEWEST_CLUSTERS:
            raise InputError(
                f"found {number} clusters: nothing can be promised with fewer than "
                f"{FEWEST_CLUSTERS}"
            )
    known = (weights is None or max_weight is not None) and (
        codes is None or max_cluster_size is not None
    )
    bound = (max_weight or 1.0) * (max_cluster_size or 1) if known else None
    return Design(weights, codes, bound)


def check_share(value: float, name: str) -> float:
    """Return a number between 0 and 1, both excluded.

    Args:
        value: The number.
        name: The name of the option.
    """
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < 1:
        raise InputError(f"{name} must lie between 0 and 1, found {value!r}")
    return float(value)


def format_share(value: float) -> str:
    """Write a share as a percentage with as few digits as it needs."""
    return f"{100 * value:.4g}%"


def measure_odds(logits: Tensor, task: str, positive: int | None) -> tuple[Tensor, Tensor]:
    """Return the log-odds of each row's confidence, and the predicted class.

    Args:
        logits: Calibrated logits, (N,) or (N,K).
        task: ``"classes"`` or ``"events"``.
        positive: The class whose probability counts, of two; None for the predicted class.
    """
    if task == "events":
        odds = logits if logits.ndim == 1 else logits[:, 1] - logits[:, 0]
        return odds, torch.ones_like(odds, dtype=torch.int64)
    if logits.ndim == 1 or positive is not None:
        odds = logits if logits.ndim == 1 else logits[:, 1] - logits[:, 0]
        predicted = (odds > 0).to(torch.int64)
        if positive is None:
            return odds.abs(), predicted
        return (odds if positive == 1 else -odds), predicted
    top, predicted = logits.max(dim=1)
    # The others' sum apart from the top one: 1 − confidence would lose all digits near 1.
    others = logits.scatter(1, predicted.unsqueeze(1), -torch.inf)
    return top - others.logsumexp(dim=1), predicted


def name_test(design: Design) -> str:
    """Return which p-values a design gets.

    Args:
        design: Weights, clusters and their bound.
    """
    if design.is_plain:
        return "exact"
    return "approximate" if design.bound is None else "betting"


def round_up(number: float) -> int:
    """Round a number of rows up to two digits.

    Args:
        number: The number.
    """
    size = 10 ** max(0, math.floor(math.log10(max(number, 1))) - 1)
    return int(math.ceil(number / size) * size)


def to_probability(odds: float) -> float:
    """Return the probability of log-odds.

    Args:
        odds: The log-odds.
    """
    return 1 / (1 + math.exp(-odds)) if odds >= 0 else math.exp(odds) / (1 + math.exp(odds))
