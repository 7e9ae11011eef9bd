"""One class against the rest: log-odds, curves through knots, and a batched Newton solver."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from calibrant.core.errors import InputError

# Value, gradient and Hessian of a batch of convex functions: (B,), (B,P) and (B,P,P).
Convex = Callable[[Tensor], tuple[Tensor, Tensor, Tensor]]


def log_odds(logits: Tensor) -> Tensor:
    """Return ln p_k − ln(1 − p_k) of p = softmax(z), exact also where p_k rounds to 0 or 1.

    For all but the largest, p_k ≤ 1/2 and the logarithms keep every digit; the largest follows
    from the others: z_1 − ln Σ_(j≠1) exp z_j.
    """
    largest = logits.topk(2, dim=1).values
    best, second = largest[:, :1], largest[:, 1:]
    others = torch.exp(logits - second)
    top = logits.argmax(dim=1, keepdim=True)
    rest = others.scatter(1, top, 0.0).sum(dim=1, keepdim=True)
    most = best - second - rest.log()
    logs = torch.log_softmax(logits, dim=1)
    below = logs - torch.log1p(-logs.exp().clamp(max=0.5))
    # Equal logits stay equal, and none passes the largest by a rounding error.
    return torch.where(logits == best, most, torch.minimum(below, most))


def normalise_odds(odds: Tensor) -> Tensor:
    """Return ln of q_k / Σ_j q_j, where q_k is the sigmoid of the class's log-odds."""
    return torch.log_softmax(log_sigmoid(odds), dim=1)


def log_sigmoid(x: Tensor) -> Tensor:
    """Return ln(1/(1 + exp(−x))) as −softplus(−x): ONNX splits log-sigmoid in lossy steps."""
    return -torch.nn.functional.softplus(-x)


def search_sorted(rows: Tensor, x: Tensor, *, right: bool = False) -> Tensor:
    """Count the entries of each ascending row that are below x, or with ``right`` at most x."""
    if not torch.compiler.is_compiling():
        return torch.searchsorted(rows, x, right=right)
    return bisect(rows, x, right=right)


def bisect(rows: Tensor, x: Tensor, *, right: bool = False) -> Tensor:
    """Do `search_sorted` by gathers, for exported programs: ONNX has no sorted search."""
    count = rows.shape[1]
    place = torch.zeros_like(x, dtype=torch.int64)
    step = 1
    while 2 * step <= count:
        step *= 2
    while step:
        trial = place + step
        entry = rows.gather(1, (trial - 1).clamp(max=count - 1))
        below = (entry <= x) if right else (entry < x)
        place = torch.where(below & (trial <= count), trial, place)
        step //= 2
    return place


def interpolate(x: Tensor, knots: Tensor, values: Tensor) -> Tensor:
    """Evaluate broken lines through (knots, values), flat beyond their ends.

    Args:
        x: (C,N), the places at which each line is evaluated.
        knots: (C,M), M ≥ 2, each row ascending and padded with its last knot.
        values: (C,M), the values at the knots.
    """
    places = search_sorted(knots, x, right=True).clamp(1, knots.shape[1] - 1)
    left, right = knots.gather(1, places - 1), knots.gather(1, places)
    tiny = torch.finfo(x.dtype).tiny
    share = ((x - left) / (right - left).clamp_min(tiny)).clamp(0.0, 1.0)
    return torch.lerp(values.gather(1, places - 1), values.gather(1, places), share)


def stack_padded(rows: list[Tensor]) -> Tensor:
    """Stack rows of any length as one (C,M) tensor, M ≥ 2, each padded with its last value."""
    longest = max(2, *(len(row) for row in rows))
    filled = [torch.cat((row, row[-1:].expand(longest - len(row)))) for row in rows]
    return torch.stack(filled)


def fit_logistic(
    features: Tensor,
    hits: Tensor,
    centre: Tensor,
    lower: Tensor,
    *,
    ridge: float,
    name: str,
    sharing: float = 0.0,
    times: Tensor | None = None,
) -> Tensor:
    """Fit C penalised logistic regressions on (C,P,N) features; return (C,P) coefficients.

    The penalty is ½(θ − θ₀)ᵀP(θ − θ₀), P = (s/n)·H + ridge·I, H the Hessian at θ₀ and n the
    smaller of hits and misses.

    Args:
        features: (C,P,N) features.
        hits: (C,N), 1 for a hit.
        centre: (P,), θ₀, the coefficients that the penalty draws to.
        lower: (P,), the lower bounds of the coefficients.
        ridge: The ridge of the penalty.
        name: The calibrator's name, for errors.
        sharing: s, the hits that the centre counts as. Default: 0.0 (the ridge alone).
        times: (C,N), how often each row counts. Default: None (once).
    """
    if times is not None:
        hits = hits * times
    linear = (features * hits.unsqueeze(1)).sum(2)
    size = features.shape[1]
    start = centre.expand(len(features), size)

    def likelihood(theta: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        score = torch.bmm(theta.unsqueeze(1), features).squeeze(1)
        q = score.sigmoid()
        loss, spread = torch.nn.functional.softplus(score), q * (1.0 - q)
        if times is not None:
            loss, q, spread = loss * times, q * times, spread * times
        value = loss.sum(1) - (theta * linear).sum(1)
        gradient = torch.bmm(features, q.unsqueeze(2)).squeeze(2) - linear
        weighted = features * spread.unsqueeze(1)
        return value, gradient, torch.bmm(weighted, features.transpose(1, 2))

    penalty = ridge * torch.eye(size, dtype=features.dtype, device=features.device)
    if sharing > 0:
        count = hits.sum(1)
        fewer = torch.minimum(count, features.shape[2] - count).clamp_min(1.0)
        penalty = (sharing / fewer).reshape(-1, 1, 1) * likelihood(start)[2] + penalty
    penalty = penalty.expand(len(features), size, size)

    def loss(theta: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        value, gradient, curvature = likelihood(theta)
        away = theta - start
        pull = torch.bmm(penalty, away.unsqueeze(2)).squeeze(2)
        return value + 0.5 * (away * pull).sum(1), gradient + pull, curvature + penalty

    return minimise(loss, start, lower.expand_as(start), name=name)


def minimise(
    function: Convex,
    start: Tensor,
    lower: Tensor,
    *,
    name: str,
    tolerance: float = 1e-7,
    most: int = 200,
) -> Tensor:
    """Find the minima of a batch of strictly convex functions over θ ≥ lower.

    Projected Newton (Bertsekas 1982): coordinates at their bound that the gradient holds there
    are fixed, the others take a Newton step, and the step is halved until the value falls
    enough.

    Args:
        function: Values, gradients and Hessians of the batch.
        start: (B,P), the points to start from.
        lower: (B,P), the lower bounds.
        name: The calibrator's name, for the error.
        tolerance: The fit has converged when no projected gradient step moves a coordinate by
            this much times its scale, the curvature. Default: 1e-07 (ours: far below the
            error of the rows).
        most: The largest number of steps; more are an error. Default: 200 (ours: Newton takes
            a handful).
    """
    theta = torch.maximum(start, lower)
    value, gradient, curvature = function(theta)
    for _ in range(most):
        fixed = (theta <= lower) & (gradient > 0)
        scale = curvature.diagonal(dim1=-2, dim2=-1).clamp_min(1e-12)
        scaled_gradient = torch.where(fixed, torch.zeros_like(gradient), gradient) / scale
        if float(scaled_gradient.abs().max()) < tolerance:
            return theta
        free = (~fixed).to(theta.dtype)
        masked = curvature * free.unsqueeze(-1) * free.unsqueeze(-2)
        masked = masked + torch.diag_embed(torch.where(fixed, scale, 1e-10 * scale))
        step = -torch.linalg.solve(masked, (gradient * free).unsqueeze(-1)).squeeze(-1)
        length = torch.ones_like(value)
        slack = 1e-12 * (1.0 + value.abs())
        for _ in range(40):
            trial = torch.maximum(theta + length.unsqueeze(-1) * step, lower)
            trial_value = function(trial)
            wanted = 1e-4 * (gradient * (trial - theta)).sum(-1)
            worse = ~(trial_value[0] <= value + wanted + slack)
            if not bool(worse.any()):
                break
            length = torch.where(worse, 0.5 * length, length)
        else:
            break
        theta, (value, gradient, curvature) = trial, trial_value
    raise InputError(
        f"{name} did not converge, perhaps because logits differ widely in size: try temperature, "
        "or divide the logits by a constant"
    )
