"""Scaling, then binning: few confidences, so that each one's accuracy can be counted."""

from __future__ import annotations

import math
import warnings
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from calibrant.calibrators.base import FLOOR, Calibrator, row_blocks, rows_of
from calibrant.calibrators.one_vs_rest import log_sigmoid, search
from calibrant.calibrators.registry import get, kind_of
from calibrant.functional.binning import bin_sums
from calibrant.functional.blocks import Array
from calibrant.functional.errors import InputError
from calibrant.functional.proportions import wilson
from calibrant.metrics.base import compute_all
from calibrant.metrics.means import accuracy_measure

if TYPE_CHECKING:
    import pandas as pd

REFUTED = 0.001  # the chance that levels which are right are said to be refuted
# Options under which a calibrator keeps predictions, where its usual ones do not.
KEEPING: dict[str, dict[str, Any]] = {"isotonic": {"form": "m2b"}}


class Levels(Calibrator):
    """q_1 = the mean of c over the fit's rows of its level; c the top probability of g(z).

    Scaling-binning (Kumar, Liang & Ma 2019, §4): a calibrator g, ``scaling``, is fitted, the
    confidences it gives are cut into at most ``num_levels`` levels, and each becomes the mean
    of its level's: scaled scores, which vary less than hit rates. So few confidences are said
    that the accuracy of each can be verified by counting (`table`), as that of a continuous
    map cannot. The paper fits g, cuts and takes means on three separate parts of the rows;
    here all rows do all three.

    ``binning="mass"`` gives levels equal numbers of rows (the paper's), ``"deviation"`` equal
    shares of Σ√(c(1 − c)), the standard deviation of a hit, so that a network that is nearly
    always certain does not spend most levels on rows near 1. Edges lie midway, in log-odds,
    between neighbouring rows, and equal confidences share a level: fewer rows or distinct
    confidences than levels, or many that are equal, give fewer levels, none empty.

    Other classes keep their proportions under g and share 1 − q_1. Where one of them would
    then reach the top one, near a tie, the row is left as g says it, so that no prediction
    changes; ``counts_`` and ``hits_`` count such rows with their level's. No q_1 is nearer to
    1 than 1e-12. ``scaling`` names a calibrator that keeps predictions; isotonic is its m2b.
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
        if not (math.isfinite(num_levels) and int(num_levels) == num_levels >= 1):
            raise InputError(
                f"num_levels must be a whole number of at least 1, found {num_levels!r}"
            )
        if binning not in ("deviation", "mass"):
            raise InputError(f"levels have equal 'deviation' or 'mass', not {binning!r}")
        self.scaling, self.num_levels, self.binning = scaling, int(num_levels), binning
        self.scaler = scaler(scaling)
        for name in ("edges_", "odds_"):
            self.register_buffer(name, torch.zeros(0, dtype=torch.float64))
        for name in ("counts_", "hits_"):
            self.register_buffer(name, torch.zeros(0, dtype=torch.int64))

    @property
    def levels_(self) -> Tensor:
        """The confidences that are said, in ascending order."""
        return self.odds_.sigmoid()

    def table(self, scores: Array | None = None, target: Array | None = None) -> pd.DataFrame:
        """Each level's confidence, rows, their accuracy with its 95% interval, and if it holds.

        Of the rows it was fitted on, or of those given, which are the ones that verify it: scores
        and labels as `fit` takes them. A level without rows has no accuracy. ``holds`` says
        whether the interval has the confidence in it (none where there are no rows): of levels that
        are right, one in twenty has not.
        """
        import pandas as pd

        self._check_fitted()
        if (scores is None) != (target is None):
            raise InputError("rows to count need scores and labels: one of them was not given")
        counts, right = self.counts_, self.hits_
        if scores is not None and target is not None:
            counts, right = self._counted(scores, target)
        rows, hits = counts.cpu().numpy().astype(float), right.cpu().numpy()
        with np.errstate(invalid="ignore"):
            share = hits / rows
        low, high = wilson(share, rows, 0.95)
        found = {"level": range(1, len(rows) + 1), "confidence": self.levels_.cpu().numpy()}
        rest = {"rows": rows.astype(int), "accuracy": share, "low": low, "high": high}
        made = pd.DataFrame({**found, **rest})
        holds = made["confidence"].between(made["low"], made["high"]).astype("boolean")
        return made.assign(holds=holds.where(made["rows"] > 0))

    def _counted(self, scores: Array, target: Array) -> tuple[Tensor, Tensor]:
        """Rows and right ones of each level, of rows as they are given."""
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
        self.edges_ = cut(values, weights, self.num_levels)
        place, size = torch.searchsorted(self.edges_, values), len(self.edges_) + 1
        # Two means, as 1 − q would keep no digits of a q near 1.
        mean, rest = (bin_sums(place, size, times * (s * values).sigmoid()) for s in (1, -1))
        least = FLOOR - math.log(logits.shape[1] - 1)  # just above 1/K
        self.odds_ = (mean.log() - rest.log()).clamp(least, -math.log(FLOOR))
        self.counts_, self.hits_ = self._tally(odds, logits.argmax(1) == target)
        self._doubt()

    def _doubt(self) -> None:
        """A warning where the rows of the fit refute a level: g does not fit them."""
        from scipy.special import bdtr, bdtrc

        rows, hits = self.counts_.cpu().numpy(), self.hits_.cpu().numpy()
        said = self.levels_.double().cpu().numpy()
        fewer, more = bdtr(hits, rows, said), bdtrc(hits - 1, rows, said)
        more[hits == 0] = 1.0
        if wrong := int((np.minimum(fewer, more) < REFUTED / (2 * len(rows))).sum()):
            warnings.warn(
                f"{wrong} of {len(rows)} levels say what the rows they were fitted on refute (see "
                f"table()): {self.scaling} does not fit these rows, try another scaling=",
                stacklevel=4,
            )

    def _tally(self, odds: Tensor, right: Tensor) -> tuple[Tensor, Tensor]:
        """Rows of each level, and those among them that are right."""
        place, size = torch.searchsorted(self.edges_.double(), odds), len(self.edges_) + 1
        counts, hits = (
            bin_sums(place, size, one) for one in (torch.ones_like(odds), right.double())
        )
        return counts.long(), hits.long()

    def _odds(self, logits: Tensor) -> Tensor:
        """Log-odds of the top class under g, (N,)."""
        parts = [self._scaled(logits[rows])[2].squeeze(1) for rows in row_blocks(logits)]
        return torch.cat(parts).double()

    def _scaled(self, logits: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """g(z), its top class, (N,1), and that one's log-odds, exact where c rounds to 1."""
        scaled = self.scaler._map(logits)
        top = logits.argmax(dim=1, keepdim=True)  # g may tie what differs by a rounding error
        rest = scaled.scatter(1, top, -torch.inf)
        return scaled, top, scaled.gather(1, top) - rest.logsumexp(dim=1, keepdim=True)

    def _map(self, logits: Tensor) -> Tensor:
        scaled, top, odds = self._scaled(logits)
        # In float64: an edge between neighbours of float32 must not round to one of them.
        place = search(self.edges_.double().unsqueeze(0), odds.double().t().contiguous()).t()
        # Logarithms of the levels, not of the rows: each says one number, to the last bit.
        levels = self.odds_.to(scaled)
        said, left = log_sigmoid(levels)[place], log_sigmoid(-levels)[place]
        others = torch.log_softmax(scaled.scatter(1, top, -torch.inf), dim=1) + left
        kept = others.amax(dim=1, keepdim=True) < said
        return torch.where(kept, others.scatter(1, top, said), torch.log_softmax(scaled, dim=1))


def scaler(name: str) -> Calibrator:
    """A fresh calibrator to scale by."""
    kind = kind_of(name)
    if name != Levels.name and not (kind.takes_features or kind.dense_only):
        made = get(name, **KEEPING.get(name, {}))
        if made.preserves_predictions:
            return made
    raise InputError(
        f"levels cannot be scaled by {name}, but by another calibrator of rows of logits that "
        "keeps every prediction, such as temperature or intra_order"
    )


def cut(values: Tensor, weights: Tensor, parts: int) -> Tensor:
    """Edges between ascending, distinct values that part their weights as evenly as they may.

    A value lies in the part that holds the middle of its weight, so that rows of weight 1 are
    parted into equal numbers within one.
    """
    total = weights.cumsum(0)
    shares = total[-1] * torch.arange(1, parts, device=total.device) / parts
    above = torch.unique(torch.searchsorted(total - 0.5 * weights, shares, right=True))
    above = above[(above > 0) & (above < len(values))]
    below, next_one = values[above - 1], values[above]
    middle = 0.5 * (below + next_one)
    return torch.where(middle < next_one, middle, below)  # of two with nothing between
