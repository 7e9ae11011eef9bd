"""An order-preserving map: a temperature that depends on how far a class lies behind."""

from __future__ import annotations

import warnings

import torch
from torch import Tensor

from calibrant.calibrators.base import Calibrator, row_blocks
from calibrant.calibrators.one_vs_rest import minimise
from calibrant.calibrators.temperature import COLDEST, HOTTEST, fit_temperature
from calibrant.functional.errors import InputError

_SORTED = 5  # the largest logits of a row, whose gaps decide where the pieces end
_MOST_GAPS = 1 << 20


class IntraOrder(Calibrator):
    """z_k ↦ −m(max z − z_k), m rising: no two classes of a row change places.

    The diagonal, order-invariant family of intra order-preserving functions (Rahimi et al.
    2020, §3.3), with the published network replaced by a broken line: m has slopes
    s_1, ..., s_J between quantiles of the gaps between a row's five largest logits, and all
    slopes equal is a temperature of 1/s. In s the likelihood is concave; it is maximised
    exactly, with a penalty of ½(s − β)ᵀP(s − β), β the inverse of the best temperature and
    P = (sharing/N)·H + I/1000, H the Hessian there: as if ``sharing`` more rows had agreed
    with temperature. Slopes are 1/100 or more, so m rises strictly.
    """

    name = "intra_order"
    preserves_predictions = True

    knots_: Tensor
    slopes_: Tensor

    def __init__(
        self, *, num_pieces: int = 6, sharing: float = 50.0, from_logits: bool = True
    ) -> None:
        super().__init__(from_logits=from_logits)
        if num_pieces < 1 or not sharing >= 0:
            raise InputError(
                "num_pieces must be 1 or more and sharing not negative, found "
                f"{num_pieces} and {sharing}"
            )
        self.num_pieces, self.sharing = num_pieces, sharing
        self.register_buffer("knots_", torch.zeros(0, dtype=torch.float64))
        self.register_buffer("slopes_", torch.zeros(0, dtype=torch.float64))

    def _fit(self, logits: Tensor, target: Tensor) -> None:
        best = logits.topk(min(_SORTED, logits.shape[1]), dim=1).values.double()
        gaps = (best[:, :1] - best[:, 1:]).reshape(-1)
        gaps = gaps[:: max(1, len(gaps) // _MOST_GAPS)].sort().values
        shares = torch.arange(1, self.num_pieces, device=gaps.device) / self.num_pieces
        inner = gaps[(shares * len(gaps)).long()]
        knots = torch.unique(torch.cat((gaps.new_zeros(1), inner[inner > 0])))
        found = fit_temperature(logits, target)
        beta = min(max(found.value, 1.0 / HOTTEST), 1.0 / COLDEST)
        if found.at_bound:
            warnings.warn(
                f"the best temperature lies beyond {1.0 / beta:.3g}, near which the curve is "
                "held: every row may be right, or the logits may say nothing of the labels",
                stacklevel=4,
            )
        start = torch.full((1, len(knots)), beta, dtype=torch.float64, device=logits.device)
        _, _, curvature = likelihood(logits, target, knots, start)
        penalty = (self.sharing / len(target)) * curvature[0]
        penalty = penalty + 1e-3 * torch.eye(len(knots), dtype=torch.float64).to(penalty.device)

        def loss(slopes: Tensor) -> tuple[Tensor, Tensor, Tensor]:
            value, gradient, bend = likelihood(logits, target, knots, slopes)
            away = slopes - start
            pull = away @ penalty
            return value + 0.5 * (away * pull).sum(1), gradient + pull, bend + penalty

        least = torch.full_like(start, 1.0 / HOTTEST)
        self.slopes_ = minimise(loss, start, least, name="intra_order")[0]
        self.knots_ = knots

    def _map(self, logits: Tensor) -> Tensor:
        gaps = logits.amax(dim=1, keepdim=True) - logits
        knots, slopes = self.knots_.to(gaps), self.slopes_.to(gaps)
        # Σ_j (s_j − s_(j−1))(u − k_j)₊ would cancel; pieces are all of one sign.
        ends = torch.cat((knots[1:], torch.full_like(knots[:1], torch.inf)))
        mapped = torch.zeros_like(gaps)
        for j in range(knots.shape[0]):
            mapped = mapped + slopes[j] * (gaps.clamp(max=ends[j]) - knots[j]).clamp_min(0.0)
        return -mapped


def pieces(gaps: Tensor, knots: Tensor) -> Tensor:
    """How far each gap reaches into each piece: (J, N, K), summing to the gap."""
    ends = torch.cat((knots[1:], knots.new_full((1,), torch.inf)))
    parts = [
        (gaps.clamp(max=high) - low).clamp_min(0) for low, high in zip(knots, ends, strict=True)
    ]
    return torch.stack(parts)


def likelihood(
    logits: Tensor, target: Tensor, knots: Tensor, slopes: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Negative log-likelihood of (1,J) slopes, its gradient and its Hessian, in row blocks."""
    count = len(knots)
    value = slopes.new_zeros(1)
    gradient, curvature = slopes.new_zeros(1, count), slopes.new_zeros(1, count, count)
    for rows in row_blocks(logits, 1 << 17):
        z = logits[rows].double()
        parts = pieces(z.amax(1, keepdim=True) - z, knots)
        logs = torch.log_softmax(-torch.einsum("jnk,j->nk", parts, slopes[0]), dim=1)
        true = target[rows].unsqueeze(1)
        value -= logs.gather(1, true).sum()
        p = logs.exp()
        mean = torch.einsum("jnk,nk->jn", parts, p)
        own = parts.gather(2, true.expand(count, -1, 1)).squeeze(2)
        gradient += (own - mean).sum(1)
        scaled = (parts * p.sqrt()).reshape(count, -1)
        curvature += scaled @ scaled.t() - mean @ mean.t()
    return value, gradient, curvature
