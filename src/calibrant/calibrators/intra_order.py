"""An order-preserving map: a temperature that depends on how far a class lies behind."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

import torch
from torch import Tensor

from calibrant.calibrators.base import Calibrator, row_blocks
from calibrant.calibrators.intra_order_network import fit_network, mapped, seen
from calibrant.calibrators.one_vs_rest import minimise
from calibrant.calibrators.temperature import COLDEST, HOTTEST, fit_temperature
from calibrant.functional.errors import InputError

_SORTED = 5  # the largest logits of a row, whose gaps decide where the pieces end
_MOST_GAPS = 1 << 20


class IntraOrder(Calibrator):
    """Order-preserving maps of a row: no two of its classes change places (Rahimi et al. 2020).

    ``form="network"``, the published one: the gaps of the sorted row are stretched by what a
    small network (``hidden`` widths, ``depth`` largest log-probabilities in, as many gaps out)
    says of it, starting from and drawn to the best temperature; see `intra_order_network`.
    How far a row's tail lies behind tells much of whether its first class is right.

    ``form="line"``: z_k ↦ −m(max z − z_k), m a rising broken line, the diagonal family of §3.3,
    for few rows. m has slopes s_1, ..., s_J between quantiles of the gaps between a row's five
    largest logits, and all slopes equal is a temperature of 1/s. In s the likelihood is
    concave; it is maximised exactly, with a penalty of ½(s − β)ᵀP(s − β), β the inverse of the
    best temperature and P = (sharing/N)·H + I/1000, H the Hessian there: as if ``sharing`` more
    rows had agreed with temperature. Slopes are 1/100 or more, so m rises strictly.
    """

    name = "intra_order"
    preserves_predictions = True

    knots_: Tensor
    slopes_: Tensor
    beta_: Tensor
    mean_: Tensor
    scale_: Tensor

    def __init__(
        self,
        *,
        form: str = "network",
        depth: int = 20,
        hidden: Sequence[int] = (50, 50),
        num_pieces: int = 6,
        sharing: float = 50.0,
        seed: int = 0,
        from_logits: bool = True,
    ) -> None:
        super().__init__(from_logits=from_logits)
        if form not in ("network", "line"):
            raise InputError(f"form is network or line, found {form!r}")
        if depth < 1 or not all(width >= 1 for width in hidden):
            raise InputError(
                f"depth and every hidden width must be 1 or more, found {depth} and {hidden}"
            )
        if num_pieces < 1 or not sharing >= 0:
            raise InputError(
                "num_pieces must be 1 or more and sharing not negative, found "
                f"{num_pieces} and {sharing}"
            )
        self.form, self.depth, self.hidden = form, depth, tuple(hidden)
        self.num_pieces, self.sharing, self.seed = num_pieces, sharing, seed
        self.register_buffer("knots_", torch.zeros(0, dtype=torch.float64))
        self.register_buffer("slopes_", torch.zeros(0, dtype=torch.float64))
        self.register_buffer("beta_", torch.ones(()))
        for name in ("mean_", "scale_", *self._layer_names()):
            self.register_buffer(name, torch.zeros(0))

    def _layer_names(self) -> list[str]:
        return [f"{kind}{i}_" for i in range(len(self.hidden) + 1) for kind in ("weight", "bias")]

    def _layers(self, like: Tensor) -> list[tuple[Tensor, Tensor]]:
        found = [getattr(self, name).to(like) for name in self._layer_names()]
        return list(zip(found[::2], found[1::2], strict=True))

    def _fit(self, logits: Tensor, target: Tensor) -> None:
        found = fit_temperature(logits, target)
        beta = min(max(found.value, 1.0 / HOTTEST), 1.0 / COLDEST)
        if found.at_bound:
            warnings.warn(
                f"the best temperature lies beyond {1.0 / beta:.3g}, near which the curve is "
                "held: every row may be right, or the logits may say nothing of the labels",
                stacklevel=4,
            )
        if self.form == "line":
            self._fit_line(logits, target, beta)
            return
        depth = min(self.depth, logits.shape[1] - 1)
        layers, self.mean_, self.scale_ = fit_network(
            logits, target, beta, depth=depth, hidden=self.hidden, seed=self.seed
        )
        self.beta_ = torch.tensor(beta, device=logits.device)
        flat = [tensor for pair in layers for tensor in pair]
        for name, tensor in zip(self._layer_names(), flat, strict=True):
            setattr(self, name, tensor)

    def _fit_line(self, logits: Tensor, target: Tensor, beta: float) -> None:
        best = logits.topk(min(_SORTED, logits.shape[1]), dim=1).values.double()
        gaps = (best[:, :1] - best[:, 1:]).reshape(-1)
        gaps = gaps[:: max(1, len(gaps) // _MOST_GAPS)].sort().values
        shares = torch.arange(1, self.num_pieces, device=gaps.device) / self.num_pieces
        inner = gaps[(shares * len(gaps)).long()]
        knots = torch.unique(torch.cat((gaps.new_zeros(1), inner[inner > 0])))
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
        if self.form == "line":
            return self._map_line(logits)
        ordered, order = logits.sort(dim=1, descending=True)  # of ties, any order will do
        inputs = (seen(ordered, self.mean_.shape[0] - 1) - self.mean_.to(logits)) / (
            self.scale_.to(logits)
        )
        found = mapped(ordered, inputs, self._layers(logits), self.beta_.to(logits))
        return torch.zeros_like(found).scatter(1, order, found)

    def _map_line(self, logits: Tensor) -> Tensor:
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
