"""P-values of "the risk exceeds the limit", for rows that are independent, clustered or weighted.

The risk is Σ w·loss / Σ w in expectation, over the rows that count, with losses of 0 and 1. A small
p-value grants a threshold. Three tests:

- `binomial_p_values`: independent rows that count the same. Exact.
- `betting_p_value`: clusters or weights with stated bounds. Let X_c = Σ_{i in c} w_i (r − loss_i).
  The hypothesis is E[X_c] ≤ 0, and X_c ≥ −(1 − r)·B, where B bounds the total weight of a
  cluster. So Π (1 + λ X_c) has expectation at most 1 for each 0 ≤ λ < 1/((1 − r) B), and so has
  its mean over a grid of λ: the reciprocal is a p-value (Markov). Valid for any number of
  clusters, whatever the order of rows. (Waudby-Smith and Ramdas 2024, "Estimating means of
  bounded random variables by betting", section 4.)
- `approximate_p_value`: clusters or weights without bounds. The larger of two: a t-test with CR2
  variance (Bell and McCaffrey 2002) and Satterthwaite's degrees of freedom, and a binomial test
  with the effective number of rows of that variance (Korn and Graubard 1998). With few errors the
  t-test alone would grant too much: without errors its variance is 0.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from calibrant.evaluation.clustered import influence_interval

Floats = NDArray[np.float64]
Codes = NDArray[np.int64]

# λ as shares of its upper end. Neighbours differ by 0.7: the best of them grows nearly as fast as
# the best λ, and sixteen reach down to 0.5% of the end.
STAKES: Floats = np.asarray(0.95 * 0.7 ** np.arange(16), dtype=np.float64)


class Design(NamedTuple):
    """The weights and clusters of rows; None where they count the same, or are independent.

    Args:
        weights: (N,) positive weights.
        clusters: (N,) the number of each row's cluster.
        bound: The largest total weight that a cluster can have; without clusters, a row. None if
            nobody has said so.
    """

    weights: Floats | None = None
    clusters: Codes | None = None
    bound: float | None = None

    @property
    def is_plain(self) -> bool:
        """Return whether rows are independent and count the same."""
        return self.weights is None and self.clusters is None

    def take(self, rows: NDArray[np.bool_] | Codes) -> Design:
        """Return the design of some rows."""
        return Design(
            None if self.weights is None else self.weights[rows],
            None if self.clusters is None else self.clusters[rows],
            self.bound,
        )

    def sum_clusters(self, values: Floats) -> Floats:
        """Return Σ weight·value of each cluster that has rows; of each row without clusters."""
        products = values if self.weights is None else self.weights * values
        if self.clusters is None:
            return products
        codes = np.unique(self.clusters, return_inverse=True)[1]
        return np.bincount(codes.reshape(-1), products).astype(np.float64, copy=False)


PLAIN = Design()


def binomial_p_values(errors: Floats, counts: Floats, limit: float) -> Floats:
    """Compute P(Binomial(count, limit) ≤ errors): Clopper and Pearson's test that risk ≥ limit.

    Args:
        errors: The number of errors at each threshold.
        counts: The number of rows at each threshold.
        limit: The largest risk allowed.
    """
    from scipy.special import betaincc

    below = np.minimum(errors, counts - 1)  # all wrong: p = 1
    return np.where(errors < counts, betaincc(below + 1, counts - below, limit), 1.0)


def betting_p_value(losses: Floats, design: Design, limit: float) -> float:
    """Return 1 / mean over λ of Π (1 + λ X_c), at most 1; see the module.

    Args:
        losses: (N,) the loss, 0 or 1, of each row that counts.
        design: Weights, clusters and the bound of these rows.
        limit: r, the largest risk allowed.
    """
    assert design.bound is not None
    gains = design.sum_clusters(limit - losses) / ((1 - limit) * design.bound)
    values, repeats = np.unique(gains, return_counts=True)  # clusters repeat a few sums
    logs = np.log1p(STAKES[:, None] * values) @ repeats
    return float(min(1.0, np.exp(-(np.logaddexp.reduce(logs) - np.log(len(STAKES))))))


def approximate_p_value(losses: Floats, design: Design, limit: float) -> float:
    """Return the larger p-value of a t-test with CR2 variance and of an effective binomial test.

    Args:
        losses: (N,) the loss, 0 or 1, of each row that counts.
        design: Weights and clusters of these rows.
        limit: The largest risk allowed.
    """
    from scipy.special import stdtr

    totals = design.sum_clusters(np.ones(len(losses)))
    if len(totals) < 2:
        return 1.0
    rate = float(design.sum_clusters(losses).sum() / totals.sum())
    if rate >= limit:
        return 1.0
    units = float(totals.sum() ** 2 / (totals @ totals))  # Kish's effective number of clusters
    if rate == 0:
        return float(binomial_p_values(np.zeros(1), np.array([units]), limit)[0])
    robust = influence_interval(
        rate, losses - rate, clusters=design.clusters, weights=design.weights, heavy_tails=True
    )
    by_t = float(stdtr(robust.degrees, (rate - limit) / robust.standard_error))
    effective = min(float(len(losses)), rate * (1 - rate) / robust.standard_error**2)
    by_count = binomial_p_values(np.array([effective * rate]), np.array([effective]), limit)
    return max(by_t, float(by_count[0]))
