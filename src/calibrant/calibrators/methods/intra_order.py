"""Order-preserving maps of a row: by a small network, or by one rising curve.

The published form multiplies the sorted gaps g_j = z_(j) − z_(j+1) ≥ 0 of a row by m_j > 0,
which a network computes from the row's largest log-probabilities, and sums them up again
(Rahimi et al. 2020, §3.2 to 3.4, order-invariant): whatever the network gives, no two classes
change places.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from calibrant.calibrators.base import PLAIN, Calibrator, Design
from calibrant.calibrators.methods.temperature import fit_temperature, warn_of_bound
from calibrant.calibrators.solvers.one_vs_rest import minimise
from calibrant.calibrators.solvers.problem import COLDEST, HOTTEST
from calibrant.core.errors import InputError
from calibrant.core.threads import one_thread
from calibrant.functional.arrays import row_slices

LEAST = 1e-2  # the least multiplier: gaps never close
ONE = 0.5413248546129181  # its softplus is 1
RATE, DECAY, BATCH, EPOCHS = 5e-3, 1e-3, 256, 40
WARM = 0.1  # share of the steps in which the learning rate rises
_SORTED = 5  # the largest logits of a row, whose gaps decide where the pieces end
_MOST_GAPS = 1 << 20
_FARTHEST = 1e9  # a class that lies farther behind counts as this far: beyond, numbers overflow

Layers = Sequence[tuple[Tensor, Tensor]]


class IntraOrder(Calibrator):
    """Order-preserving maps of a row: no two of its classes change places (Rahimi et al. 2020).

    The network form, the published one, starts from the best temperature and is drawn to it.
    How far a row's tail lies behind tells much about whether its first class is right.

    The line form is z_k ↦ −m(max z − z_k), m a rising broken line: the diagonal family of
    §3.3, for few rows. m has slopes s_1, ..., s_J between quantiles of the gaps between a row's
    five largest logits; with all slopes equal it is a temperature of 1/s. The likelihood is
    concave in s and is maximised exactly, with a penalty of ½(s − β)ᵀP(s − β), β the inverse
    of the best temperature and P = (sharing/N)·H + I/1000, H the Hessian there. Slopes are at
    least 1/100, so m rises strictly.

    Args:
        form: ``"network"`` or ``"line"``. Default: 'network' (Rahimi et al. 2020, section 3.4).
        depth: How many of the largest log-probabilities the network sees, and how many gaps it
            stretches. Default: 20 (ours: later classes add little).
        hidden: The widths of the network's hidden layers. Default: (50, 50) (ours: larger
            networks overfit the rows held out for calibration).
        num_pieces: The number of pieces of the line. Default: 6 (ours: few rows cannot support
            more).
        sharing: How many rows the penalty of the line form counts as, all of them agreeing with
            temperature. Default: 50.0 (ours: a fit of few rows stays near temperature).
        seed: The seed of the network's first weights and batches. Default: 0 (ours: a fit
            repeats exactly).
        from_logits: False if scores are probabilities, not logits. Default: True (ours: logits
            keep digits that probabilities lose).
    """

    name = "intra_order"
    preserves_predictions = True
    takes_weights = True

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
            raise InputError(f"form must be 'network' or 'line', found {form!r}")
        if depth < 1 or not all(width >= 1 for width in hidden):
            raise InputError(
                f"depth and every hidden width must be at least 1, found {depth} and {hidden}"
            )
        if num_pieces < 1 or not sharing >= 0:
            raise InputError(
                "num_pieces must be at least 1 and sharing not negative, found "
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
        tensors = [getattr(self, name).to(like) for name in self._layer_names()]
        return list(zip(tensors[::2], tensors[1::2], strict=True))

    def _fit(self, logits: Tensor, target: Tensor, design: Design = PLAIN) -> None:
        logits, weights = bound_gaps(logits), design.weights
        root = fit_temperature(logits, target, weights=weights)
        beta = min(max(root.value, 1.0 / HOTTEST), 1.0 / COLDEST)
        if root.at_bound:
            warn_of_bound(1.0 / beta, stacklevel=4)
        if self.form == "line":
            self._fit_line(logits, target, beta, weights)
            return
        depth = min(self.depth, logits.shape[1] - 1)
        layers, self.mean_, self.scale_ = fit_network(
            logits, target, beta, weights, depth=depth, hidden=self.hidden, seed=self.seed
        )
        self.beta_ = torch.tensor(beta, device=logits.device)
        flat = [tensor for pair in layers for tensor in pair]
        for name, tensor in zip(self._layer_names(), flat, strict=True):
            setattr(self, name, tensor)

    def _fit_line(
        self, logits: Tensor, target: Tensor, beta: float, weights: Tensor | None
    ) -> None:
        best = logits.topk(min(_SORTED, logits.shape[1]), dim=1).values.double()
        gaps = (best[:, :1] - best[:, 1:]).reshape(-1)
        gaps = gaps[:: max(1, len(gaps) // _MOST_GAPS)].sort().values
        shares = torch.arange(1, self.num_pieces, device=gaps.device) / self.num_pieces
        inner = gaps[(shares * len(gaps)).long()]
        knots = torch.unique(torch.cat((gaps.new_zeros(1), inner[inner > 0])))
        start = torch.full((1, len(knots)), beta, dtype=torch.float64, device=logits.device)
        _, _, curvature = likelihood(logits, target, knots, start, weights)
        penalty = (self.sharing / len(target)) * curvature[0]
        penalty = penalty + 1e-3 * torch.eye(len(knots), dtype=torch.float64).to(penalty.device)

        def loss(slopes: Tensor) -> tuple[Tensor, Tensor, Tensor]:
            value, gradient, bend = likelihood(logits, target, knots, slopes, weights)
            away = slopes - start
            pull = away @ penalty
            return value + 0.5 * (away * pull).sum(1), gradient + pull, bend + penalty

        least = torch.full_like(start, 1.0 / HOTTEST)
        self.slopes_ = minimise(loss, start, least, name="intra_order")[0]
        self.knots_ = knots

    def _map(self, logits: Tensor) -> Tensor:
        logits = bound_gaps(logits)
        if self.form == "line":
            return self._map_line(logits)
        ordered, order = logits.sort(dim=1, descending=True)  # ties may be in any order
        inputs = network_inputs(ordered, self.mean_.shape[0] - 1) - self.mean_.to(logits)
        inputs = inputs / self.scale_.to(logits)
        mapped = map_sorted(ordered, inputs, self._layers(logits), self.beta_.to(logits))
        return torch.zeros_like(mapped).scatter(1, order, mapped)

    def _map_line(self, logits: Tensor) -> Tensor:
        gaps = logits.amax(dim=1, keepdim=True) - logits
        knots, slopes = self.knots_.to(gaps), self.slopes_.to(gaps)
        # Σ_j (s_j − s_(j−1))(u − k_j)₊ would cancel digits; these pieces all have one sign.
        ends = torch.cat((knots[1:], torch.full_like(knots[:1], torch.inf)))
        mapped = torch.zeros_like(gaps)
        for j in range(knots.shape[0]):
            mapped = mapped + slopes[j] * (gaps.clamp(max=ends[j]) - knots[j]).clamp_min(0.0)
        return -mapped


def bound_gaps(logits: Tensor) -> Tensor:
    """Return the logits with no class farther behind the first than numbers can bear."""
    return torch.maximum(logits, logits.amax(dim=1, keepdim=True) - _FARTHEST)


def cut_pieces(gaps: Tensor, knots: Tensor) -> Tensor:
    """Return how far each gap reaches into each piece: (J, N, K), summing to the gap."""
    ends = torch.cat((knots[1:], knots.new_full((1,), torch.inf)))
    parts = [
        (gaps.clamp(max=high) - low).clamp_min(0) for low, high in zip(knots, ends, strict=True)
    ]
    return torch.stack(parts)


def likelihood(
    logits: Tensor, target: Tensor, knots: Tensor, slopes: Tensor, weights: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the negative log-likelihood of (1,J) slopes, its gradient and its Hessian."""
    count = len(knots)
    value = slopes.new_zeros(1)
    gradient, curvature = slopes.new_zeros(1, count), slopes.new_zeros(1, count, count)
    for rows in row_slices(logits.shape, 1 << 17):
        z = logits[rows].double()
        parts = cut_pieces(z.amax(1, keepdim=True) - z, knots)
        logs = torch.log_softmax(-torch.einsum("jnk,j->nk", parts, slopes[0]), dim=1)
        true = target[rows].unsqueeze(1)
        row_weights = torch.ones_like(logs[:, 0]) if weights is None else weights[rows]
        value -= (row_weights * logs.gather(1, true).squeeze(1)).sum()
        p = logs.exp()
        mean = torch.einsum("jnk,nk->jn", parts, p)
        true_parts = parts.gather(2, true.expand(count, -1, 1)).squeeze(2)
        gradient += (row_weights * (true_parts - mean)).sum(1)
        scaled = (parts * (row_weights.unsqueeze(1) * p).sqrt()).reshape(count, -1)
        curvature += scaled @ scaled.t() - (row_weights * mean) @ mean.t()
    return value, gradient, curvature


def network_inputs(ordered: Tensor, depth: int) -> Tensor:
    """Return what the network sees: the largest log-probabilities of sorted rows."""
    return torch.log_softmax(ordered, dim=1)[:, : depth + 1]


def multipliers(inputs: Tensor, layers: Layers) -> Tensor:
    """Return m > 0 from standardised inputs; m is 1 where the last layer is 0."""
    hidden = inputs
    for weight, bias in layers[:-1]:
        hidden = torch.relu(F.linear(hidden, weight, bias))
    return F.softplus(F.linear(hidden, *layers[-1]) + ONE) + LEAST


def map_sorted(ordered: Tensor, inputs: Tensor, layers: Layers, beta: Tensor) -> Tensor:
    """Return logits of sorted rows, 0 for the largest: −β Σ_(i<j) m_i·g_i.

    Gaps beyond the depth of the network take its last multiplier.
    """
    factors = multipliers(inputs, layers)
    gaps = ordered[:, :-1] - ordered[:, 1:]
    depth = factors.shape[1]
    first = torch.cumsum(gaps[:, :depth] * factors, dim=1)
    rest = first[:, -1:] + factors[:, -1:] * (
        ordered[:, depth : depth + 1] - ordered[:, depth + 1 :]
    )
    zero = torch.zeros_like(ordered[:, :1])
    return -beta * torch.cat((zero, first, rest), dim=1)


@one_thread()
def fit_network(
    logits: Tensor,
    target: Tensor,
    beta: float,
    weights: Tensor | None = None,
    *,
    depth: int,
    hidden: Sequence[int],
    seed: int,
) -> tuple[list[tuple[Tensor, Tensor]], Tensor, Tensor]:
    """Fit the layers by Adam; return them with the mean and scale of their inputs.

    The last layer starts at 0: the map is the temperature 1/β, to which weight decay draws it.
    A network that does no better than that temperature on the rows of the fit is replaced by it.
    """
    ordered, order = logits.float().sort(dim=1, descending=True, stable=True)
    place = (order == target.unsqueeze(1)).int().argmax(1)
    inputs = network_inputs(ordered, depth)
    mean, scale = inputs.mean(0), inputs.std(0, correction=0).clamp_min(1e-3)
    inputs = (inputs - mean) / scale
    factor = torch.tensor(beta, dtype=torch.float32, device=logits.device)
    layers = _first_layers(inputs.shape[1], hidden, depth, seed, logits.device)
    whole = [tensor for pair in layers for tensor in pair]
    steps = EPOCHS * -(-len(target) // BATCH)
    optimizer = torch.optim.Adam(whole, lr=RATE, weight_decay=DECAY)
    draw = torch.Generator().manual_seed(seed)
    done = 0
    for _ in range(EPOCHS):
        order = torch.randperm(len(target), generator=draw).to(logits.device)
        for rows in torch.split(order, BATCH):
            for group in optimizer.param_groups:
                group["lr"] = RATE * _rate_share(done / steps)
            with torch.enable_grad():
                mapped = map_sorted(ordered[rows], inputs[rows], layers, factor)
                if weights is None:
                    loss = F.cross_entropy(mapped, place[rows])
                else:
                    losses = F.cross_entropy(mapped, place[rows], reduction="none")
                    loss = (weights[rows].to(losses.dtype) * losses).mean()
                optimizer.zero_grad()
                loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            done += 1
    plain = _first_layers(inputs.shape[1], hidden, depth, seed, logits.device)
    rows_of = ordered, inputs, place
    if not _mean_loss(*rows_of, layers, factor, weights) < _mean_loss(
        *rows_of, plain, factor, weights
    ):
        layers = plain
    fixed = [(weight.detach(), bias.detach()) for weight, bias in layers]
    if not all(bool(torch.isfinite(part).all()) for pair in fixed for part in pair):
        raise InputError("intra_order met a value that is not finite: check for very large logits")
    return fixed, mean, scale


def _rate_share(passed: float) -> float:
    """Return the share of the largest learning rate: linear warm-up, then a cosine."""
    if passed < WARM:
        return 0.04 + 0.96 * passed / WARM
    return float(0.5 * (1.0 + torch.cos(torch.tensor((passed - WARM) / (1 - WARM) * torch.pi))))


def _first_layers(
    inputs: int, hidden: Sequence[int], depth: int, seed: int, device: torch.device
) -> list[tuple[Tensor, Tensor]]:
    """Return seeded first layers whose last one is 0."""
    draw = torch.Generator().manual_seed(seed + 1)
    layers = []
    for width in hidden:
        bound = inputs**-0.5
        weight = (torch.rand(width, inputs, generator=draw) * 2 - 1) * bound
        bias = (torch.rand(width, generator=draw) * 2 - 1) * bound
        layers.append((weight, bias))
        inputs = width
    layers.append((torch.zeros(depth, inputs), torch.zeros(depth)))
    return [
        (weight.to(device).requires_grad_(), bias.to(device).requires_grad_())
        for weight, bias in layers
    ]


@torch.no_grad()
def _mean_loss(
    ordered: Tensor,
    inputs: Tensor,
    place: Tensor,
    layers: Layers,
    beta: Tensor,
    weights: Tensor | None = None,
) -> float:
    total = 0.0
    for rows in torch.split(torch.arange(len(place), device=place.device), 4096):
        mapped = map_sorted(ordered[rows], inputs[rows], layers, beta)
        if weights is None:
            total += float(F.cross_entropy(mapped, place[rows], reduction="sum"))
        else:
            losses = F.cross_entropy(mapped, place[rows], reduction="none")
            total += float((weights[rows] * losses).sum())
    return total / len(place)
