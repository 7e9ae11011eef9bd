"""`decide`: from which confidence on to accept rows, with a guarantee.

The score of a row is the log-odds of its calibrated confidence: of the predicted class, or of the
event. Rows at or above the threshold are accepted.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from calibrant.calibrators.base import Calibrator
from calibrant.core.errors import InputError, first
from calibrant.decisions import fixed_sequence
from calibrant.decisions.risk_tests import Design
from calibrant.decisions.rule import (
    Calibrated,
    NoThresholdError,
    Part,
    Rule,
    Terms,
    check_share,
    format_share,
    measure_odds,
    name_test,
    prepare,
    round_up,
    to_probability,
)
from calibrant.evaluation.clustered import influence_interval, mean_influence
from calibrant.evaluation.groups.files import check_groups, make_text
from calibrant.evaluation.verdict import name_event
from calibrant.functional.arrays import Array, as_numpy, to_tensor
from calibrant.predictions import Predictions

if TYPE_CHECKING:
    import pandas as pd

Floats = NDArray[np.float64]
Codes = NDArray[np.int64]

_MOST_MORE = 1_000  # times the rows at hand: what may be asked for
COSTS = {"classes": ("error", "review"), "events": ("false_alarm", "miss")}


class Threshold(Rule):
    """Accept a row if its confidence reaches a threshold. Made by `decide`; see `Rule`."""

    kind = "threshold"

    def forward(self, scores: Tensor, group: Tensor | None = None) -> Tensor:
        """Return whether each row is accepted.

        Args:
            scores: What the calibrator takes: logits or probabilities.
            group: (N,) the number of each row's group, if the rule has thresholds by group.
        """
        return self.decide_logits(self.calibrator(scores), group)

    def decide_logits(self, logits: Tensor, group: Tensor | None = None) -> Tensor:
        """Return whether each row of calibrated logits is accepted.

        Args:
            logits: Calibrated logits.
            group: (N,) the number of each row's group, if the rule has thresholds by group.
        """
        odds, predicted = measure_odds(logits, self.task, self.terms.positive)
        if self.terms.by is None:
            return odds >= self.thresholds[0]
        return odds >= self.thresholds[predicted if self.terms.by == "class" else group]

    def accept(self, scores: Array | Predictions, *, groups: Any = None) -> Any:
        """Return a truth value for each row: NumPy or torch, as given.

        For events, and for the positive class of two: whether to act as if it will happen.

        Args:
            scores: What the calibrator takes: an array or tensor of logits or probabilities, or
                predictions.
            groups: The group of each row, where the rule has thresholds by group. Default: None
                (it has none).
        """
        logits = self._read_scores(scores)
        codes = self._find_groups(groups, len(logits))
        with torch.no_grad():
            accepted = self.decide_logits(
                to_tensor(logits).to(self.thresholds.device),
                None if codes is None else codes.to(self.thresholds.device),
            )
        if isinstance(logits, Tensor):
            return accepted.to(logits.device)
        return accepted.cpu().numpy()

    def _find_groups(self, groups: Any, num_rows: int) -> Tensor | None:
        """Return the number of each row's group; raise an error for groups that are not known."""
        if self.terms.by != "group":
            if groups is not None:
                raise InputError("this rule has no thresholds by group: leave the groups out")
            return None
        if groups is None:
            raise InputError("this rule has thresholds by group: give the group of each row")
        array = as_numpy(groups) if isinstance(groups, Tensor) else np.asarray(groups)
        if array.shape != (num_rows,):
            raise InputError(f"there are {num_rows:,} rows, and groups of shape {array.shape}")
        places = {name: place for place, name in enumerate(self.terms.names)}
        texts = [make_text(value) for value in array.tolist()]
        if unknown := sorted({text for text in texts if text not in places}):
            raise InputError(
                f"the rule promises nothing for the groups {first(unknown)}; it was made for "
                f"{first(self.terms.names, 12)}"
            )
        return torch.tensor([places[text] for text in texts], dtype=torch.int64)

    def to_frame(self, predictions: Predictions, *, groups: Any = None) -> pd.DataFrame:
        """Return a table: the id, the prediction, its probability, and whether it is accepted.

        Args:
            predictions: Rows of the kind that the calibrator takes, with labels or without.
            groups: The group of each row, where the rule has thresholds by group. Default: None
                (it has none).
        """
        import pandas as pd

        accepted = self.accept(predictions, groups=groups)
        odds, predicted = measure_odds(
            to_tensor(self._read_scores(predictions)), self.task, self.terms.positive
        )
        ids = np.arange(len(accepted)) if predictions.ids is None else predictions.ids
        columns: dict[str, Any] = {"id": ids}
        if self._is_of_event:
            columns["probability"] = as_numpy(torch.sigmoid(odds))
        else:
            columns["prediction"] = np.array(self.class_names, dtype=object)[as_numpy(predicted)]
            columns["confidence"] = as_numpy(torch.sigmoid(odds))
        return pd.DataFrame({**columns, "accepted": as_numpy(to_tensor(accepted))})

    @property
    def _is_of_event(self) -> bool:
        return self.task == "events" or self.terms.positive is not None

    @property
    def promise(self) -> str:
        """Return what the rule promises, in a sentence or two."""
        terms = self.terms
        if terms.target == "costs":
            return self._describe_costs()
        level, value = format_share(terms.confidence_level or 0), format_share(terms.value)
        event = name_event(self.class_names[1 if terms.positive is None else terms.positive])
        promised = {
            "max_error": f"at most {value} of the accepted rows are wrong",
            "min_precision": f"at least {value} of the accepted rows have {event}",
            "min_recall": f"at least {value} of the rows with {event} are accepted",
        }[terms.target]
        scope = ""
        if terms.by is not None:
            unit = "predicted class" if terms.by == "class" else "group"
            scope = f" in each {unit} that has a threshold, all at once"
        start = f"With {level} confidence"
        end = "if new rows come from where these came from"
        if terms.test == "approximate":
            start = f"With roughly {level} confidence"
            end += (
                "; approximate, because no largest weight or cluster size was stated "
                "(max_weight, max_cluster_size)"
            )
        return f"{start} {promised}{scope}, {end}."

    def _describe_costs(self) -> str:
        """Return what a rule of costs is, and what it costs."""
        terms, (mean, low, high) = self.terms, self.terms.mean_cost
        named = " and ".join(f"{name} {value:g}" for name, value in terms.costs.items())
        every, nothing = terms.other_costs
        return (
            f"Least expected cost for {named.replace('_', ' ')}, if probabilities are calibrated: "
            f"{mean:.4g} a row, 95% interval {low:.4g} to {high:.4g}; accepting all rows costs "
            f"{every:.4g}, none {nothing:.4g}."
        )


def decide(
    predictions: Predictions,
    *,
    max_error: float | None = None,
    min_precision: float | None = None,
    min_recall: float | None = None,
    costs: Mapping[str, float] | None = None,
    confidence_level: float = 0.95,
    calibrator: Calibrator | None = None,
    by: Literal["class"] | None = None,
    groups: Any = None,
    positive: int | None = None,
    max_weight: float | None = None,
    max_cluster_size: int | None = None,
) -> Threshold:
    """Find the threshold that accepts most rows and keeps a promise about them.

    Name one target. The promise holds for new rows from where these came from. The rows must be new
    to the network, and to the calibrator: rows that fitted it are refused.

    Args:
        predictions: Rows with labels, as the network gives them.
        max_error: The largest share of wrong rows among those accepted; for events, of rows in
            which it did not happen. Default: None (another target).
        min_precision: For events and two classes: the least share of rows accepted in which the
            event happens. Default: None (another target).
        min_recall: For events and two classes: the least share of events that are accepted.
            Default: None (another target).
        costs: For events ``{"false_alarm": 1, "miss": 9}``, for classes ``{"error": 20, "review":
            1}``: accept where that costs least. Default: None (another target).
        confidence_level: How often, over draws of these rows, the promise holds. Default: 0.95
            (ours, the usual one).
        calibrator: A fitted calibrator for the scores to go through first. Default: None (scores
            are taken as they are).
        by: ``"class"``: a threshold for each predicted class, and the promise in each, all at once.
            Default: None (one threshold).
        groups: The group of each row: a threshold for each, and the promise in each, all at once.
            Default: None (one threshold).
        positive: The class that precision, recall and costs are of, where there are two. Default:
            None (class 1, as everywhere).
        max_weight: The largest weight that a row can have, on the scale of the weights. With it the
            promise for weighted rows is exact, else approximate. Default: None (not known).
        max_cluster_size: The most rows that a cluster can have. With it the promise for clusters is
            exact, else approximate. Default: None (not known).

    >>> import calibrant
    >>> rows = calibrant.predictions.example("cifar10-resnet18")
    >>> rule = calibrant.decide(rows, max_error=0.01)
    >>> f"{rule.parts[0].share:.0%} accepted, from a confidence of {rule.parts[0].threshold:.3f}"
    '77% accepted, from a confidence of 0.994'
    """
    target, value = _choose_target(max_error, min_precision, min_recall, costs)
    delta = 1 - check_share(confidence_level, "confidence_level")
    if by not in (None, "class"):
        raise InputError(f"by must be 'class' or None, found {by!r}; give groups with groups=")
    if by is not None and groups is not None:
        raise InputError("thresholds are by class or by group: leave by= or groups= out")
    rows = prepare(
        predictions, calibrator, max_weight=max_weight, max_cluster_size=max_cluster_size
    )
    positive = _find_positive(rows.predictions, target, positive)
    if by == "class" and (positive is not None or rows.predictions.task == "events"):
        raise InputError("by='class' is for the predicted class: use max_error on classes")
    if by == "class" and rows.predictions.num_options is not None:
        raise InputError("options are positions, not classes: leave by='class' out")
    odds, predicted = measure_odds(rows.logits, rows.predictions.task, positive)
    scores = as_numpy(odds).astype(np.float64)
    if target == "costs":
        if by is not None or groups is not None:
            raise InputError("costs need one threshold: leave by= and groups= out")
        return _decide_costs(rows, scores, as_numpy(predicted), dict(costs or {}), positive)
    names: tuple[str, ...] = ("all rows",)
    codes = np.zeros(len(scores), dtype=np.int64)
    if by == "class":
        names = rows.predictions.class_names or tuple(
            str(k) for k in range(rows.predictions.num_classes)
        )
        codes = as_numpy(predicted).astype(np.int64)
    elif groups is not None:
        checked = check_groups(groups, predictions)
        names, codes = checked.names, checked.codes[rows.kept]
    if positive is not None or rows.predictions.task == "events":
        good = rows.labels == (1 if positive is None else positive)
    else:
        good = rows.labels == as_numpy(predicted)
    find = _find_recall if target == "min_recall" else _find_precision
    limit = value if target == "max_error" else 1 - value
    parts, thresholds = [], []
    for place, name in enumerate(names):
        members = codes == place
        threshold, part = find(
            scores[members], good[members], rows.design.take(members), limit, delta / len(names)
        )
        thresholds.append(threshold)
        parts.append(replace(part, name=name))
    terms = Terms(
        target=target,
        value=value,
        confidence_level=confidence_level,
        test=name_test(rows.design),
        by="class" if by == "class" else "group" if groups is not None else None,
        names=names,
        positive=positive,
    )
    if all(part.threshold is None for part in parts):
        raise NoThresholdError(_explain_none(terms, parts, rows), tuple(parts))
    buffer = torch.tensor(thresholds, dtype=torch.float32)
    return Threshold(rows.calibrator, buffer, terms, parts, rows.made_on)


def _choose_target(
    max_error: float | None,
    min_precision: float | None,
    min_recall: float | None,
    costs: Mapping[str, float] | None,
) -> tuple[str, float]:
    """Return the one target that was named, and its value."""
    shares = {"max_error": max_error, "min_precision": min_precision, "min_recall": min_recall}
    targets = {name: value for name, value in shares.items() if value is not None}
    named = [*targets, *(["costs"] if costs is not None else [])]
    if len(named) != 1:
        raise InputError(
            f"name one target of max_error, min_precision, min_recall and costs; found "
            f"{' and '.join(named) or 'none'}"
        )
    if costs is not None:
        return "costs", 0.0
    name, value = next(iter(targets.items()))
    return name, check_share(value, name)


def _find_positive(predictions: Predictions, target: str, positive: int | None) -> int | None:
    """Return the class whose event a target is of; None for events and the predicted class."""
    if predictions.task == "events":
        if positive is not None:
            raise InputError("positive is for two classes: these rows are events already")
        return None
    two = predictions.num_classes == 2 and predictions.num_options is None
    if positive is not None and (not two or positive not in (0, 1)):
        raise InputError(
            f"positive must be 0 or 1, of two classes; found {positive!r} of "
            f"{predictions.num_classes}"
        )
    if target in ("min_precision", "min_recall"):
        if not two:
            raise InputError(
                f"{target} is for events and two classes, found {predictions.num_classes} classes: "
                "use max_error, with by='class' for the precision of each class"
            )
        return 1 if positive is None else positive
    return positive


def _find_precision(
    scores: Floats, good: NDArray[np.bool_], design: Design, limit: float, delta: float
) -> tuple[float, Part]:
    """Find the lowest threshold whose accepted rows are good often enough."""
    num_rows = len(scores)
    if not num_rows:
        return np.inf, Part("", None, 0, 0.0, 0, None, None)
    cells = fixed_sequence.find_cells(scores)
    losses = (~good).astype(np.float64)
    cell = fixed_sequence.find_selective(cells, losses, limit, delta, design)
    if cell is None:
        expected = np.exp(-np.logaddexp(0.0, scores))  # 1 − confidence
        _, (counts, errors, likely) = fixed_sequence.count_above(
            cells, np.ones(num_rows), losses, expected
        )
        factor = fixed_sequence.rows_needed(counts, errors, likely, limit, delta)
        more = None if factor is None else round_up(num_rows * (factor - 1))
        return np.inf, Part("", None, num_rows, 0.0, 0, None, None, more)
    threshold = float(fixed_sequence.GRID[cell])
    above = cells >= cell
    return threshold, _summarise(threshold, above, losses, above, design, delta)


def _find_recall(
    scores: Floats, good: NDArray[np.bool_], design: Design, limit: float, delta: float
) -> tuple[float, Part]:
    """Find the highest threshold that few enough of the events miss."""
    events = int(good.sum())
    if not events:
        return np.inf, Part("", None, 0, 0.0, 0, None, None)
    quantile = fixed_sequence.find_quantile(scores[good], limit, delta, design.take(good))
    if quantile is None:
        units = fixed_sequence.count_units(design.take(good), events)
        least = fixed_sequence.fewest_rows(limit, delta) * events / units
        more = round_up(max(1.0, least - events)) if design.is_plain else None
        return np.inf, Part("", None, events, 0.0, 0, None, None, more)
    cell = int(fixed_sequence.find_cells(np.array([quantile]))[0])
    threshold = float(fixed_sequence.GRID[cell])
    missed = (scores < threshold).astype(np.float64)
    return threshold, _summarise(threshold, good, missed, scores >= threshold, design, delta)


def _summarise(
    threshold: float,
    counted: NDArray[np.bool_],
    losses: Floats,
    accepted: NDArray[np.bool_],
    design: Design,
    delta: float,
) -> Part:
    """Describe a threshold on the rows it was chosen on.

    Args:
        threshold: The threshold, in log-odds.
        counted: The rows among which errors are counted.
        losses: Whether each row is an error.
        accepted: The rows at or above the threshold.
        design: Weights and clusters of all rows.
        delta: The probability of an error.
    """
    from scipy.special import betaincinv

    weights = np.ones(len(losses)) if design.weights is None else design.weights
    count, errors = int(counted.sum()), int(losses[counted].sum())
    risk = float(weights[counted] @ losses[counted] / weights[counted].sum())
    bound = None
    if design.is_plain:
        bound = 1.0 if errors == count else float(betaincinv(errors + 1, count - errors, 1 - delta))
    return Part(
        name="",
        threshold=to_probability(threshold),
        num_rows=len(losses),
        share=float(weights[accepted].sum() / weights.sum()),
        num_errors=errors,
        risk=risk,
        bound=bound,
    )


def _decide_costs(
    rows: Calibrated,
    scores: Floats,
    predicted: Codes,
    costs: dict[str, float],
    positive: int | None,
) -> Threshold:
    """Accept where that costs least if probabilities are calibrated, and measure what it costs."""
    of_event = rows.predictions.task == "events" or positive is not None
    wanted = COSTS["events" if of_event else "classes"]
    for name, value in costs.items():
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < np.inf:
            raise InputError(f"the cost {name} must be a positive number, found {value!r}")
    if costs.keys() != set(wanted):
        raise InputError(
            f"{'events' if of_event else 'classes'} have the costs {wanted[0]} and {wanted[1]}, "
            f"found {first(costs) or 'none'}"
            + ("" if of_event else "; for two classes give positive= for those of an event")
        )
    if of_event:
        threshold = math.log(costs["false_alarm"]) - math.log(costs["miss"])
        happened = rows.labels == (1 if positive is None else positive)
        act, refrain = costs["false_alarm"] * ~happened, costs["miss"] * happened
    else:
        if costs["review"] >= costs["error"]:
            raise InputError("a review that costs as much as an error never pays: accept all rows")
        threshold = math.log(costs["error"] - costs["review"]) - math.log(costs["review"])
        wrong = rows.labels != predicted
        act, refrain = costs["error"] * wrong, costs["review"] * np.ones(len(wrong))
    threshold = float(np.float32(threshold))
    accepted = scores >= threshold
    weights = rows.design.weights
    cost = np.where(accepted, act, refrain)
    mean, influence = mean_influence(cost, weights)
    interval = influence_interval(mean, influence, clusters=rows.design.clusters, weights=weights)
    wrong_rows = accepted & (act > 0)
    row_weights = np.ones(len(cost)) if weights is None else weights
    part = Part(
        name="all rows",
        threshold=to_probability(threshold),
        num_rows=len(cost),
        share=float(row_weights[accepted].sum() / row_weights.sum()),
        num_errors=int(wrong_rows.sum()),
        risk=float(row_weights[wrong_rows].sum() / row_weights[accepted].sum())
        if accepted.any()
        else None,
    )
    terms = Terms(
        target="costs",
        value=to_probability(threshold),
        confidence_level=None,
        test="none",
        positive=positive,
        costs={name: float(value) for name, value in costs.items()},
        mean_cost=(mean, interval.low, interval.high),
        other_costs=tuple(
            float(np.average(each_cost, weights=weights)) for each_cost in (act, refrain)
        ),
    )
    buffer = torch.tensor([threshold], dtype=torch.float32)
    return Threshold(rows.calibrator, buffer, terms, [part], rows.made_on)


def _explain_none(terms: Terms, parts: list[Part], rows: Calibrated) -> str:
    """Say that no threshold can keep the promise, and what would."""
    what = {
        "max_error": f"an error of at most {format_share(terms.value)}",
        "min_precision": f"a precision of at least {format_share(terms.value)}",
        "min_recall": f"a recall of at least {format_share(terms.value)}",
    }[terms.target]
    unit = "rows" if terms.target != "min_recall" else "rows with the event"
    number = sum(part.num_rows for part in parts)
    level = format_share(terms.confidence_level or 0)
    start = f"no threshold can promise {what} with {level} confidence with these {number:,} {unit}"
    if len(parts) > 1:
        start += f" in any of {len(parts)} {'classes' if terms.by == 'class' else 'groups'}"
    # Beyond that, these rows cannot tell whether the error lies below the bound at all.
    hopeful = [
        part.more_rows
        for part in parts
        if part.more_rows is not None and part.more_rows <= _MOST_MORE * part.num_rows
    ]
    # Of recall nothing is estimated for such rows.
    if not rows.design.is_plain and (hopeful or terms.target == "min_recall"):
        smaller = ", or a smaller bound on weight or cluster size,"
        return (
            f"{start}: rows with weights or in clusters say less than as many independent ones; "
            f"more of them{smaller * (rows.design.bound is not None)} may do"
        )
    if hopeful:
        in_best = " in the best of them" if len(parts) > 1 else ""
        return f"{start}; about {min(hopeful):,} more{in_best} would"
    return (
        f"{start}, and more would hardly help: even the surest rows seem to be wrong too often; "
        "calibrate first, or promise less"
    )
