"""`prediction_sets`: the classes that a row may have, with a guarantee for the true one.

A class is in a row's set if its score reaches a threshold, chosen on rows with labels (split
conformal prediction; Vovk, Gammerman and Shafer 2005, "Algorithmic learning in a random world"):

- ``lac``: the log-odds of the class's probability. The smallest sets (Sadinle, Lei and Wasserman
  2019, "Least ambiguous set-valued classifiers with bounded error levels"); a row may have none.
- ``aps``: minus the total probability of more likely classes, and a random share of its own. Sets
  that are larger where the network is in doubt (Romano, Sesia and Candès 2020, "Classification with
  valid and adaptive coverage").
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from calibrant.calibrators.base import Calibrator, as_pair
from calibrant.core.errors import InputError, first
from calibrant.decisions import fixed_sequence
from calibrant.decisions.risk_tests import Design
from calibrant.decisions.rule import (
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
from calibrant.functional.arrays import Array, as_numpy, to_tensor
from calibrant.predictions import Predictions

if TYPE_CHECKING:
    import pandas as pd

Floats = NDArray[np.float64]

METHODS = ("lac", "aps")
GUARANTEES = ("marginal", "pac")
# Thresholds are lowered by this much, so that single precision leaves no class out.
_MARGIN = 1e-6


class PredictionSets(Rule):
    """The classes that each row may have. Made by `prediction_sets`; see `Rule`."""

    kind = "sets"

    def forward(self, scores: Tensor, random: Tensor | None = None) -> Tensor:
        """Return whether each class is in each row's set, shape (N,K).

        Args:
            scores: What the calibrator takes: logits or probabilities.
            random: (N,) numbers in [0, 1), if the sets are ``aps``.
        """
        return self.decide_logits(self.calibrator(scores), random)

    def decide_logits(self, logits: Tensor, random: Tensor | None = None) -> Tensor:
        """Return whether each class is in each row's set, from calibrated logits.

        Args:
            logits: Calibrated logits.
            random: (N,) numbers in [0, 1), if the sets are ``aps``.
        """
        pairs = as_pair(logits) if logits.ndim == 1 else logits
        conformity = measure_conformity(pairs, str(self.terms.score), random)
        return (conformity >= self.thresholds) & (pairs > -torch.inf)

    def sets(
        self, scores: Array | Predictions, *, random: Any = None, seed: int | None = None
    ) -> Any:
        """Return whether each class is in each row's set, (N,K): NumPy or torch, as given.

        For events the two columns are "no" and the event.

        Args:
            scores: What the calibrator takes: an array or tensor of logits or probabilities, or
                predictions.
            random: For ``aps``: a number in [0, 1) for each row, drawn anew. Default: None (drawn
                from ``seed``).
            seed: For ``aps``: the seed to draw the random numbers from. Default: None (they are
                given).
        """
        logits = self._read_scores(scores)
        drawn = self._draw(random, seed, len(logits))
        device = self.thresholds.device
        with torch.no_grad():
            members = self.decide_logits(
                to_tensor(logits).to(device), None if drawn is None else drawn.to(device)
            )
        if isinstance(logits, Tensor):
            return members.to(logits.device)
        return members.cpu().numpy()

    def _draw(self, random: Any, seed: int | None, num_rows: int) -> Tensor | None:
        """Return the random number of each row; None where sets need none."""
        if self.terms.score != "aps":
            if random is not None:
                raise InputError("only aps sets take random numbers: leave random= out")
            return None
        if random is None:
            if seed is None:
                raise InputError(
                    "aps sets take a random number for each row: give random=, numbers in [0, 1), "
                    "or a seed= to draw them from"
                )
            return torch.from_numpy(np.random.default_rng(seed).random(num_rows))
        drawn = to_tensor(random if isinstance(random, Tensor) else np.asarray(random)).double()
        if tuple(drawn.shape) != (num_rows,) or not bool(((drawn >= 0) & (drawn <= 1)).all()):
            raise InputError(f"random must hold a number in [0, 1) for each of {num_rows:,} rows")
        return drawn

    def to_frame(
        self, predictions: Predictions, *, random: Any = None, seed: int | None = None
    ) -> pd.DataFrame:
        """Return a table: the id, the most likely class, the set with ``|`` between, and its size.

        Args:
            predictions: Rows of the kind that the calibrator takes, with labels or without.
            random: For ``aps``: a number in [0, 1) for each row. Default: None (from ``seed``).
            seed: For ``aps``: the seed to draw the numbers from. Default: None (they are given).
        """
        import pandas as pd

        members = as_numpy(to_tensor(self.sets(predictions, random=random, seed=seed)))
        logits = to_tensor(self._read_scores(predictions))
        pairs = as_pair(logits) if logits.ndim == 1 else logits
        names = np.array(self.class_names, dtype=object)
        ids = np.arange(len(members)) if predictions.ids is None else predictions.ids
        return pd.DataFrame(
            {
                "id": ids,
                "prediction": names[as_numpy(pairs.argmax(1))],
                "set": ["|".join(names[row]) for row in members],
                "size": members.sum(1),
            }
        )

    @property
    def promise(self) -> str:
        """Return what the sets promise, in a sentence or two."""
        terms = self.terms
        content = "the true class" if self.task == "classes" else "what happens"
        share = format_share(terms.value)
        scope = " of every class" if terms.by == "class" else ""
        end = "if new rows come from where these came from"
        if terms.confidence_level is None:
            whole = " of a new cluster" if self.made_on.num_clusters is not None else ""
            return (
                f"On average over draws of these rows, the set of a new row{whole}{scope} holds "
                f"{content} with probability at least {share}, {end}.{self._describe_always()}"
            )
        about = "roughly " if terms.test == "approximate" else ""
        if about:
            end += (
                "; approximate, because no largest weight or cluster size was stated (max_weight, "
                "max_cluster_size)"
            )
        level = format_share(terms.confidence_level)
        together = ", for all classes at once" if scope else ""
        return (
            f"With {about}{level} confidence{together}, the sets of at least {share} of new rows"
            f"{scope} hold {content}, {end}.{self._describe_always()}"
        )

    def _describe_always(self) -> str:
        """Name the classes that are in every set because they have too few rows."""
        names = [part.name for part in self.parts if part.threshold is None]
        if not names:
            return ""
        verb = "has too few rows and is" if len(names) == 1 else "have too few rows and are"
        return f" {first(names)} {verb} in every set."


def prediction_sets(
    predictions: Predictions,
    *,
    coverage: float = 0.9,
    method: Literal["lac", "aps"] = "lac",
    by: Literal["class"] | None = None,
    guarantee: Literal["marginal", "pac"] = "marginal",
    confidence_level: float = 0.95,
    calibrator: Calibrator | None = None,
    seed: int = 0,
    max_weight: float | None = None,
    max_cluster_size: int | None = None,
) -> PredictionSets:
    """Make sets of classes that hold the true one with a stated probability.

    The rows must be new to the network, and to the calibrator: rows that fitted it are refused.

    Args:
        predictions: Rows with labels, as the network gives them.
        coverage: The probability that the true class is in the set. Default: 0.9 (the usual one).
        method: ``"lac"``, the smallest sets, or ``"aps"``, sets that grow with the network's doubt.
            Default: 'lac' (ours: nothing random).
        by: ``"class"``: the coverage holds for the rows of each true class. A class with too few
            rows is in every set. Default: None (for all rows).
        guarantee: ``"marginal"``: the coverage holds on average over draws of these rows.
            ``"pac"``: it holds with confidence, for these rows (Vovk 2012). Default: 'marginal'
            (split conformal prediction as usual).
        confidence_level: How often, over draws of the rows, a ``pac`` coverage holds. Default: 0.95
            (ours, the usual one).
        calibrator: A fitted calibrator for the scores to go through first. Default: None (scores
            are taken as they are).
        seed: The seed of the random numbers of these rows, for ``aps``. Default: 0 (ours).
        max_weight: The largest weight that a row can have, as in `decide`. Default: None (not
            known).
        max_cluster_size: The most rows that a cluster can have, as in `decide`. Default: None (not
            known).

    >>> import calibrant
    >>> rows = calibrant.predictions.example("cifar10-resnet18")
    >>> rule = calibrant.prediction_sets(rows, coverage=0.95)
    >>> f"{rule.sets(rows).sum(1).mean():.2f} classes a row"
    '1.05 classes a row'
    """
    alpha = 1 - check_share(coverage, "coverage")
    delta = 1 - check_share(confidence_level, "confidence_level")
    for name, value, known in (
        ("method", method, METHODS),
        ("guarantee", guarantee, GUARANTEES),
        ("by", by, (None, "class")),
    ):
        if value not in known:
            shown = " or ".join(repr(classes) for classes in known)
            raise InputError(f"{name} must be {shown}, found {value!r}")
    rows = prepare(
        predictions, calibrator, max_weight=max_weight, max_cluster_size=max_cluster_size
    )
    if guarantee == "marginal" and rows.design.weights is not None:
        raise InputError(
            "sets with a marginal guarantee cannot weigh rows, because the weight of a new row is "
            "not known: use guarantee='pac'"
        )
    if by == "class" and rows.predictions.num_options is not None:
        raise InputError("options are positions, not classes: leave by='class' out")
    pairs = as_pair(rows.logits) if rows.logits.ndim == 1 else rows.logits
    drawn = torch.from_numpy(np.random.default_rng(seed).random(len(pairs)))
    conformity = measure_conformity(pairs, method, drawn)
    labels = torch.from_numpy(rows.labels).to(pairs.device)
    scores = as_numpy(conformity.gather(1, labels.unsqueeze(1)).squeeze(1)).astype(np.float64)
    calibrator = rows.calibrator
    whole = np.zeros(len(labels), dtype=np.int64)
    codes = rows.labels if by == "class" else whole
    count = pairs.shape[1] if by == "class" else 1
    thresholds = []
    for place in range(count):
        in_group = codes == place
        design = rows.design.take(in_group)
        if guarantee == "pac":
            quantile = fixed_sequence.find_quantile(scores[in_group], alpha, delta / count, design)
        else:
            quantile = find_marginal(scores[in_group], alpha, design)
        thresholds.append(
            -np.inf if quantile is None else quantile - _MARGIN * max(1.0, abs(quantile))
        )
    buffer = torch.tensor(thresholds, dtype=torch.float32)
    terms = Terms(
        target="coverage",
        value=coverage,
        confidence_level=confidence_level if guarantee == "pac" else None,
        test=name_test(rows.design) if guarantee == "pac" else "exact",
        by=by,
        score=method,
    )
    if by == "class":
        names = rows.predictions.class_names or tuple(str(k) for k in range(count))
        if rows.predictions.task == "events":
            names = ("no", rows.predictions.event or "event")
        terms = replace(terms, names=names)
    rule = PredictionSets(calibrator, buffer, terms, [], rows.made_on)
    members = as_numpy(rule.decide_logits(rows.logits, drawn))
    share_of_delta = delta / count if guarantee == "pac" else None
    rule.parts = tuple(
        _summarise(
            terms.names[place],
            thresholds[place],
            members[codes == place],
            rows.labels[codes == place],
            rows.design.take(codes == place),
            alpha,
            share_of_delta,
            method,
        )
        for place in range(count)
    )
    if all(part.threshold is None for part in rule.parts):
        more = min(part.more_rows or 0 for part in rule.parts)
        level = f" with {format_share(confidence_level)} confidence" * (guarantee == "pac")
        would = f"; about {more:,} more{' of a class' * (by == 'class')} would do" * (more > 0)
        raise NoThresholdError(
            f"only sets of all classes can promise a coverage of {format_share(coverage)}{level} "
            f"with these {len(labels):,} rows{would}",
            rule.parts,
        )
    return rule


def measure_conformity(logits: Tensor, method: str, random: Tensor | None = None) -> Tensor:
    """Return the score of every class, (N,K): higher where the class is more likely.

    Args:
        logits: (N,K) calibrated logits.
        method: ``"lac"`` or ``"aps"``; see the module.
        random: (N,) numbers in [0, 1), for ``aps``.
    """
    log_probs = torch.log_softmax(logits, dim=1)
    if method == "lac":
        top, predicted = measure_odds(logits, "classes", None)
        # ln(1 − p) loses its digits where p is near 1: there it is computed from the others.
        odds = log_probs - torch.log1p(-log_probs.exp().clamp(max=0.5))
        return odds.scatter(1, predicted.unsqueeze(1), top.unsqueeze(1))
    assert random is not None
    ordered, order = log_probs.exp().sort(dim=1, descending=True)
    before = ordered.cumsum(dim=1) - ordered
    totals = before + random.to(ordered.dtype).unsqueeze(1) * ordered
    return -torch.zeros_like(totals).scatter(1, order, totals)


def find_marginal(scores: Floats, alpha: float, design: Design) -> float | None:
    """Find the highest threshold that a new row's score misses with probability at most alpha.

    Rows of one cluster share the weight of one new cluster (Lee, Barber and Willett 2023,
    "Distribution-free inference with hierarchical data"): 1/(G + 1), where a row alone has
    1/(n + 1). The threshold is the largest score at and below which weights add up to at most
    alpha.

    Args:
        scores: (N,) the scores of the true classes.
        alpha: The largest probability of a miss.
        design: The clusters of the rows.
    """
    if not len(scores):
        return None
    if design.clusters is None:
        weights = np.full(len(scores), 1 / (len(scores) + 1))
    else:
        _, codes, sizes = np.unique(design.clusters, return_inverse=True, return_counts=True)
        weights = 1 / ((len(sizes) + 1) * sizes[codes.reshape(-1)])
    order = np.argsort(scores)
    reached = np.flatnonzero(weights[order].cumsum() <= alpha * (1 + 1e-12))
    return float(scores[order[reached[-1]]]) if len(reached) else None


def _summarise(
    name: str,
    threshold: float,
    members: NDArray[np.bool_],
    labels: NDArray[np.int64],
    design: Design,
    alpha: float,
    delta: float | None,
    method: str,
) -> Part:
    """Describe a threshold on the rows it was chosen on."""
    from scipy.special import betaincinv

    count = len(labels)
    if threshold == -np.inf:
        least = 1 / alpha - 1 if delta is None else fixed_sequence.fewest_rows(alpha, delta)
        more = round_up(max(1.0, math.ceil(least - 1e-9) - count)) if design.is_plain else None
        size = float(members.sum(1).mean()) if count else None
        return Part(name, None, count, 0.0, 0, 0.0, None, more, size)
    misses = int((~members[np.arange(count), labels]).sum())
    bound = None
    if delta is not None and design.is_plain and misses < count:
        bound = float(betaincinv(misses + 1, count - misses, 1 - delta))
    sizes = members.sum(1)
    return Part(
        name=name,
        threshold=to_probability(threshold) if method == "lac" else -threshold,
        num_rows=count,
        share=float((sizes == 1).mean()),
        num_errors=misses,
        risk=misses / count,
        bound=bound,
        size=float(sizes.mean()),
    )
