"""Levels: scaling, then binning, so that the accuracy of each confidence can be counted."""

from __future__ import annotations

import math
import warnings
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from calibrant.calibrators.base import FLOOR, Calibrator, rows_of
from calibrant.calibrators.registry import get, kind_of
from calibrant.calibrators.solvers.one_vs_rest import log_sigmoid, search_sorted
from calibrant.core.errors import InputError
from calibrant.functional.arrays import Array, row_slices
from calibrant.functional.binning import bin_sums
from calibrant.functional.statistics import wilson
from calibrant.metrics.base import compute_all
from calibrant.metrics.means import accuracy_measure

if TYPE_CHECKING:
    import pandas as pd

REFUTED = 0.001  # the chance that correct levels are called refuted
# Options under which a calibrator keeps predictions, where its defaults do not.
KEEPING: dict[str, dict[str, Any]] = {"isotonic": {"form": "m2b"}}


class Levels(Calibrator):
    """q_1 = the mean of c over the fit's rows of its level; c the top probability of g(z).

    Scaling-binning (Kumar, Liang & Ma 2019, §4): a calibrator g is fitted, its confidences are
    cut into levels, and each becomes the mean of its level: scaled scores, which vary less
    than hit rates. There are so few confidences that the accuracy of each can be verified by
    counting (`table`), which a continuous map does not allow. The paper fits g, cuts and takes
    means on three separate parts of the rows; here all rows serve for all three.

    Edges lie midway, in log-odds, between neighbouring rows, and equal confidences share a
    level. Too few rows or distinct confidences give fewer levels, none empty. Other classes
    keep their proportions under g and share 1 − q_1. Where one of them would reach the top
    class, near a tie, the row stays as g gives it, so that no prediction changes; ``counts_``
    and ``hits_`` count such rows with their level. No q_1 is nearer to 1 than 1e-12.

    Args:
        scaling: The name of g, a calibrator that keeps predictions; isotonic is used in its form
            m2b. Default: 'temperature' (ours: the simplest).
        num_levels: The largest number of levels. Default: 10 (ours: each level then has rows
            enough to count).
        binning: ``"mass"`` gives levels equal numbers of rows, as in the paper;
            ``"deviation"`` equal shares of Σ√(c(1 − c)), the standard deviation of a hit, so
            that a network that is nearly always certain does not spend most levels near 1.
            Default: 'deviation' (ours: levels are then about equally well known).
        from_logits: False if scores are probabilities, not logits. Default: True (ours: logits
            keep digits that probabilities lose).
    """

    name = "levels"
    preserves_predictions = True

    edges_: Tensor
    odds_: Tensor
    counts_: Tensor
    hits_: Tensor

    def __init__(
        self,
        *,
        scaling: str = "temperature",
        num_levels: int = 10,
        binning: str = "deviation",
        from_logits: bool = True,
    ) -> None:
        super().__init__(from_logits=from_logits)
        if not (1 <= num_levels < 1 << 31 and int(num_levels) == num_levels):
            raise InputError(
                f"num_levels must be a whole number of at least 1, found {num_levels!r}"
            )
        if binning not in ("deviation", "mass"):
            raise InputError(f"binning must be 'deviation' or 'mass', found {binning!r}")
        self.scaling, self.num_levels, self.binning = scaling, int(num_levels), binning
        self.scaler = make_scaler(scaling)
        for name in ("edges_", "odds_"):
            self.register_buffer(name, torch.zeros(0, dtype=torch.float64))
        for name in ("counts_", "hits_"):
            self.register_buffer(name, torch.zeros(0, dtype=torch.int64))

    @property
    def levels_(self) -> Tensor:
        """Return the confidences of the levels, in ascending order."""
        return self.odds_.sigmoid()

    def table(self, scores: Array | None = None, target: Array | None = None) -> pd.DataFrame:
        """Return each level's confidence, its rows, and their accuracy with a 95% interval.

        ``holds`` is True where the interval contains the confidence, and missing where a level has
        no rows. One in twenty correct levels is rejected by chance.

        Args:
            scores: Scores to count, as `fit` takes them; only rows that were not fitted on verify
                a level. Default: None (the rows of the fit).
            target: Their labels. Default: None (the rows of the fit).
        """
        import pandas as pd

        self._check_fitted()
        if (scores is None) != (target is None):
            raise InputError("give both scores and target: one of them was not given")
        counts, right = self.counts_, self.hits_
        if scores is not None and target is not None:
            counts, right = self._count_rows(scores, target)
        rows, hits = counts.cpu().numpy().astype(float), right.cpu().numpy()
        with np.errstate(invalid="ignore"):
            share = hits / rows
        low, high = wilson(share, rows, 0.95)
        columns = {"level": range(1, len(rows) + 1), "confidence": self.levels_.cpu().numpy()}
        counted = {"rows": rows.astype(int), "accuracy": share, "low": low, "high": high}
        frame = pd.DataFrame({**columns, **counted})
        holds = frame["confidence"].between(frame["low"], frame["high"]).astype("boolean")
        return frame.assign(holds=holds.where(frame["rows"] > 0))

    def _count_rows(self, scores: Array, target: Array) -> tuple[Tensor, Tensor]:
        """Count rows and correct rows of each level, among the rows given."""
        how: dict[str, Any] = {"from_logits": self.from_logits, "ignore_index": None}
        compute_all([accuracy_measure()], [(scores, target)], **how)  # validates everything
        logits, labels = rows_of(scores, target, **how)
        self._check_width(logits)
        return self._tally(self._odds(logits), logits.argmax(1) == labels)

    def _fit(self, logits: Tensor, target: Tensor) -> None:
        self.scaler.fit(logits, target)
        odds = self._odds(logits)
        values, times = torch.unique(odds, return_counts=True)
        weights = times.double()
        if self.binning == "deviation":
            weights = weights * (values.sigmoid() * (-values).sigmoid()).sqrt()
        self.edges_ = cut_evenly(values, weights, self.num_levels)
        place, size = torch.searchsorted(self.edges_, values), len(self.edges_) + 1
        # Two means, because 1 − q would keep no digits of a q near 1.
        mean, rest = (bin_sums(place, size, times * (s * values).sigmoid()) for s in (1, -1))
        least = FLOOR - math.log(logits.shape[1] - 1)  # just above 1/K
        self.odds_ = (mean.log() - rest.log()).clamp(least, -math.log(FLOOR))
        self.counts_, self.hits_ = self._tally(odds, logits.argmax(1) == target)
        self._warn_of_refuted()

    def _warn_of_refuted(self) -> None:
        """Warn if the rows of the fit refute a level: g does not fit them."""
        from scipy.special import bdtr, bdtrc

        rows, hits = self.counts_.cpu().numpy(), self.hits_.cpu().numpy()
        confidence = self.levels_.double().cpu().numpy()
        fewer, more = bdtr(hits, rows, confidence), bdtrc(hits - 1, rows, confidence)
        more[hits == 0] = 1.0
        if wrong := int((np.minimum(fewer, more) < REFUTED / (2 * len(rows))).sum()):
            warnings.warn(
                f"{wrong} of {len(rows)} levels are refuted by the rows they were fitted on (see "
                f"table()): {self.scaling} does not fit these rows; try another scaling=",
                stacklevel=4,
            )

    def _tally(self, odds: Tensor, right: Tensor) -> tuple[Tensor, Tensor]:
        """Count the rows of each level, and the correct ones among them."""
        place, size = torch.searchsorted(self.edges_.double(), odds), len(self.edges_) + 1
        counts, hits = (
            bin_sums(place, size, part) for part in (torch.ones_like(odds), right.double())
        )
        return counts.long(), hits.long()

    def _odds(self, logits: Tensor) -> Tensor:
        """Return the log-odds of the top class under g, (N,)."""
        parts = [self._scale_rows(logits[rows])[2].squeeze(1) for rows in row_slices(logits.shape)]
        return torch.cat(parts).double()

    def _scale_rows(self, logits: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return g(z), its top class, (N,1), and that class's log-odds, exact near c = 1."""
        scaled = self.scaler._map(logits)
        top = logits.argmax(dim=1, keepdim=True)  # g may tie classes by rounding
        rest = scaled.scatter(1, top, -torch.inf)
        return scaled, top, scaled.gather(1, top) - rest.logsumexp(dim=1, keepdim=True)

    def _map(self, logits: Tensor) -> Tensor:
        scaled, top, odds = self._scale_rows(logits)
        # In float64, so that an edge between float32 neighbours does not round to one of them.
        place = search_sorted(self.edges_.double().unsqueeze(0), odds.double().t().contiguous()).t()
        # Logarithms of the levels, not of the rows: each level is one number, to the last bit.
        levels = self.odds_.to(scaled)
        top_log, rest_log = log_sigmoid(levels)[place], log_sigmoid(-levels)[place]
        others = torch.log_softmax(scaled.scatter(1, top, -torch.inf), dim=1) + rest_log
        below_top = others.amax(dim=1, keepdim=True) < top_log
        return torch.where(
            below_top, others.scatter(1, top, top_log), torch.log_softmax(scaled, dim=1)
        )


def make_scaler(name: str) -> Calibrator:
    """Return a fresh calibrator to scale by."""
    kind = kind_of(name)
    if name != Levels.name and not (kind.takes_features or kind.dense_only):
        calibrator = get(name, **KEEPING.get(name, {}))
        if calibrator.preserves_predictions:
            return calibrator
    raise InputError(
        f"levels cannot be scaled by {name}, only by a calibrator of logits that keeps every "
        "prediction, such as temperature or intra_order"
    )


def cut_evenly(values: Tensor, weights: Tensor, parts: int) -> Tensor:
    """Return edges between ascending, distinct values that split their weights evenly.

    A value lies in the part that holds the middle of its weight, so that rows of weight 1 are
    split into equal numbers, within one.
    """
    total = weights.cumsum(0)
    shares = total[-1] * torch.arange(1, parts, device=total.device) / parts
    above = torch.unique(torch.searchsorted(total - 0.5 * weights, shares, right=True))
    above = above[(above > 0) & (above < len(values))]
    below, next_one = values[above - 1], values[above]
    middle = 0.5 * (below + next_one)
    return torch.where(middle < next_one, middle, below)  # where no number lies between
