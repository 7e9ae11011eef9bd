"""Vector scaling of few classes: several fits at once, by Newton's method."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from calibrant.calibrators.multinomial import Ridge
from calibrant.functional.errors import InputError

MOST_CLASSES = 32  # beyond, (2K)² curvatures cost more than the gradients they save
WEAKEST = 1e-3  # ridge under which a curvature may be singular in single precision
_BLOCK = 1 << 16  # numbers: what the cache holds several times


class Evaluation(NamedTuple):
    """F fits at their coefficients: losses of rows, and what the data say of the next step."""

    losses: Tensor  # (F,N), of every row, kept or not
    gradient: Tensor  # (F,2K), of the loss of rows kept
    hessian: Tensor  # (F,2K,2K)


class NarrowFits:
    """F ridge fits c(x) = d∘x + b of `multinomial.Problem`, each on its own choice of rows.

    Rows lie along the last axis, where sums over them and over few classes are both fast. With
    p = softmax(s·x + c(x)) and q = p∘x of every row, the Hessian in (d, b) is

        [diag(Σ q∘x), diag(Σ q); diag(Σ q), diag(Σ p)] − Σ (q, p)(q, p)ᵀ

    and as p sums to one over classes, Σ q and Σ p are sums of rows of the second part: taken
    from there, shifts of all logits together are free to the last digit, as they should be.
    """

    def __init__(
        self, features: Tensor, target: Tensor, scale: float, keep: Tensor | None = None
    ) -> None:
        """Features (K,N), labels (N,), and which rows (F,N) each fit keeps (by default all)."""
        self.features, self.target, self.scale = features, target, scale
        self.keep = keep
        kept = features.new_ones(1, len(target)) if keep is None else keep
        self.rows = kept.sum(1).double()
        hot = torch.zeros_like(features).scatter_(0, target.unsqueeze(0), 1.0)
        # What the labels add to every gradient does not depend on the coefficients.
        self._labels = torch.cat((kept @ (hot * features).t(), kept @ hot.t()), 1).double()

    def at(self, coefficients: Tensor) -> Evaluation:
        """Losses, gradient and Hessian at coefficients (F,2,K), without the ridge."""
        count, classes = coefficients.shape[0], self.features.shape[0]
        found = coefficients.to(self.features.dtype).unsqueeze(-1)
        slope, shift = found[:, 0] + self.scale, found[:, 1]
        losses = []
        products = self._labels.new_zeros(count, 2 * classes, 2 * classes)
        squares = self._labels.new_zeros(count, classes)
        width = max(256, _BLOCK // (count * classes))
        for begin in range(0, len(self.target), width):
            rows = slice(begin, begin + width)
            x, y = self.features[:, rows], self.target[rows]
            logs = torch.log_softmax(torch.addcmul(shift, x, slope), dim=1)
            losses.append(logs.gather(1, y.expand(count, 1, len(y))).squeeze(1).neg_())
            parts = logs.new_empty(count, 2 * classes, len(y))
            q, p = parts[:, :classes], parts[:, classes:]
            torch.exp(logs, out=p)
            if self.keep is not None:
                p.mul_(self.keep[:, None, rows])
            torch.mul(p, x, out=q)
            products += parts @ parts.transpose(1, 2)
            squares += torch.mul(q, x, out=logs).sum(2)
        crossed, plain = products[:, :classes, classes:], products[:, classes:, classes:]
        first, mass = crossed.sum(2), plain.sum(2)
        hessian = products.neg()
        for part, diagonal in (
            (hessian[:, :classes, :classes], squares),
            (hessian[:, :classes, classes:], first),
            (hessian[:, classes:, :classes], first),
            (hessian[:, classes:, classes:], mass),
        ):
            part.diagonal(dim1=1, dim2=2).add_(diagonal)
        gradient = torch.cat((first, mass), 1) - self._labels
        return Evaluation(torch.cat(losses, 1), gradient, hessian)

    def minimise(
        self,
        ridge: Ridge,
        start: Tensor,
        *,
        tolerance: float,
        most: int = 100,
        known: Evaluation | None = None,
    ) -> tuple[Tensor, Evaluation]:
        """The coefficients (F,2,K) of least penalised loss, and the evaluation there.

        Damped Newton from ``start``, whose evaluation may be given. Converged when every fit's
        step promises less than ``tolerance`` nats a row, or precision allows no more.
        """
        weights = ridge.weights(start[0]).double().flatten()
        here, seen = start.double(), known or self.at(start)
        value = self._value(here, seen, weights)
        precision = torch.finfo(self.features.dtype).eps
        for _ in range(most):
            flat = here.flatten(1)
            gradient = seen.gradient + weights * flat
            curved = seen.hessian + torch.diag(weights)
            step = -torch.linalg.solve(curved, gradient.unsqueeze(2)).squeeze(2)
            promise = -(gradient * step).sum(1)
            if not bool((promise > tolerance * self.rows).any()):
                return here, seen
            slack = 4.0 * precision * value.abs()
            share = torch.ones_like(promise)
            while True:
                there = (flat + share.unsqueeze(1) * step).view_as(here)
                then = self.at(there)
                lower = self._value(there, then, weights)
                good = lower <= value - 1e-4 * share * promise + slack
                if bool(good.all()):
                    break
                share = torch.where(good, share, 0.3 * share)
                if float(share.min()) < 1e-10:
                    if bool((promise <= 1e-4 * self.rows).all()):
                        return here, seen  # rounding hides what little is left
                    raise InputError(
                        "the fit did not converge; give a larger strength (such as 10), divide "
                        "logits of extreme size by a constant, or use temperature"
                    )
            here, seen, value = there, then, lower
        return here, seen

    def _value(self, coefficients: Tensor, seen: Evaluation, weights: Tensor) -> Tensor:
        losses = seen.losses if self.keep is None else seen.losses * self.keep
        penalty = 0.5 * (weights * coefficients.flatten(1).square()).sum(1)
        return losses.sum(1, dtype=torch.float64) + penalty
