"""Each row's log-partition as a function of its temperature: all that dividing a row changes."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from calibrant.calibrators.base import row_blocks
from calibrant.calibrators.descent import LOG_BOUNDS, Problem
from calibrant.calibrators.objectives import Rows

_CELLS = 64  # of ln β, 0.14 wide: L is then good to 2e-7
_WIDE = 64  # classes from which a pass through the logits costs more than interpolation
_LEAST = -80.0  # exponent below which a class counts for nothing (smaller ones are slow to add)
_TABLE = 1 << 25  # numbers a table may hold where logits are fewer
_BLOCK = 1 << 18


class Partition:
    """L_n(β) = ln Σ_k exp(β(z_nk − max_k z_nk)) of every row, β = 1/T in [0.01, 100].

    Confidence −L, true class β(z_y − max z) − L and mean log-probability β(z̄ − max z) − L
    of a row divided by T need nothing else of its K logits. In ln β, L falls smoothly from
    ln K to 0. Where there are many classes it is tabulated: at nodes of ln β, computed when
    first needed, L and three derivatives (by the moments of β(z − max z) under the softmax)
    are found in one streaming pass, and between two nodes L is the polynomial of degree
    seven that has them all. An evaluation then takes O(N) and not O(NK) operations.
    """

    def __init__(self, logits: Tensor, target: Tensor) -> None:
        rows, self.num_classes = logits.shape
        self._logits, self._target = logits, target
        top = torch.empty_like(logits[:, 0])
        predicted, mean = torch.empty_like(target), torch.empty_like(top)
        for part in row_blocks(logits, _BLOCK):
            block = logits[part]
            top[part], predicted[part] = block.max(1)
            mean[part] = (block - top[part].unsqueeze(1)).mean(1)
        self._top, self._mean = top.unsqueeze(1), mean.double()
        true = logits.gather(1, target.unsqueeze(1))
        self._true = (true.double() - self._top.double()).squeeze(1)
        self._correct = predicted == target
        fits = 4 * (_CELLS + 1) * rows <= max(_TABLE, logits.numel())
        self._table: Tensor | None = None
        if self.num_classes >= _WIDE and fits:
            self._table = self._mean.new_empty((_CELLS + 1, rows, 4))
        self._known = [False] * (_CELLS + 1)
        self._each = torch.arange(rows, device=logits.device)
        self._basis = _hermite().to(logits.device)

    def __call__(self, log_beta: Tensor) -> Tensor:
        """L of each row at its ln β, differentiable once."""
        here = log_beta.detach().expand(len(self._target))
        value, slope = self._exact(here) if self._table is None else self._between(here)
        return value + slope * (log_beta - here)  # the bracket is 0, its derivative 1

    def rows(self, log_beta: Tensor) -> Rows:
        """What objectives need of each row times its β."""
        value, beta = self(log_beta), log_beta.exp()
        return Rows(
            beta * self._true - value,
            beta * self._mean - value,
            (-value).exp(),
            self._correct,
            self._target,
        )

    def _exact(self, log_beta: Tensor) -> tuple[Tensor, Tensor]:
        found = self._moments(log_beta.exp(), 1)
        return found[:, 0], found[:, 1]

    def _moments(self, beta: Tensor, most: int) -> Tensor:
        """L, then E_p[u^k] for k = 1 to ``most``, u = β(z − max z), in one streaming pass."""
        found = self._mean.new_empty((len(self._target), most + 1))
        for part in row_blocks(self._logits, _BLOCK):
            u = self._logits[part] - self._top[part]
            u.mul_(beta[part].to(u.dtype).unsqueeze(1)).clamp_min_(_LEAST)
            weight = u.exp()
            total = weight.sum(1)
            found[part, 0] = total.double().log()
            for k in range(1, most + 1):
                found[part, k] = (weight.mul_(u).sum(1) / total).double()
        return found

    def _node(self, place: int) -> None:
        """Fill in L and its derivatives in ln β at one node, in units of a cell."""
        assert self._table is not None
        beta = self._mean.new_full((len(self._target),), math.exp(LOG_BOUNDS[0] + place * _WIDTH))
        value, one, two, three = self._moments(beta, 3).unbind(1)
        # d E[u^k] / d ln β = k E[u^k] + E[u^(k+1)] − E[u^k] E[u].
        second = one + two - one * one
        third = second + (2 * two + three - two * one) - 2 * one * second
        units = (value, one * _WIDTH, second * _WIDTH**2, third * _WIDTH**3)
        self._table[place] = torch.stack(units, 1)
        self._known[place] = True

    def _between(self, log_beta: Tensor) -> tuple[Tensor, Tensor]:
        assert self._table is not None
        place = ((log_beta - LOG_BOUNDS[0]) / _WIDTH).clamp(0.0, float(_CELLS))
        cell = place.long().clamp_max(_CELLS - 1)
        for index in torch.unique(cell).tolist():
            for node in (index, index + 1):
                if not self._known[node]:
                    self._node(node)
        ends = torch.cat((self._table[cell, self._each], self._table[cell + 1, self._each]), 1)
        polynomial = ends @ self._basis  # (N,8), coefficients of rising powers
        share = place - cell
        value, slope = polynomial[:, 7], torch.zeros_like(share)
        for power in range(6, -1, -1):
            slope = slope * share + value
            value = value * share + polynomial[:, power]
        return value, slope / _WIDTH


class TemperedProblem(Problem):
    """A problem whose map divides rows, so that a `Partition` tells all rows' numbers."""

    def __init__(
        self,
        rows: Callable[[Tensor], Rows],
        logits: Tensor,
        target: Tensor,
        size: int,
        penalty: Callable[[Tensor], Tensor] | None = None,
    ) -> None:
        super().__init__(_no_map, logits, target, size, penalty)
        self._rows = rows
        self._blocks = [slice(None)]

    def _block(self, which: slice, parameters: Tensor) -> Rows:
        return self._rows(parameters)


_WIDTH = (LOG_BOUNDS[1] - LOG_BOUNDS[0]) / _CELLS


def _hermite() -> Tensor:
    """(8,8): powers of t in [0, 1] of the polynomials with one of f, …, f‴ at 0 or 1 equal to 1."""
    conditions = np.zeros((8, 8))
    for order in range(4):
        conditions[order, order] = math.factorial(order)
        for power in range(order, 8):
            conditions[4 + order, power] = math.perm(power, order)
    return torch.from_numpy(np.linalg.inv(conditions).T.copy())


def _no_map(logits: Tensor, parameters: Tensor) -> Tensor:
    raise AssertionError("the rows come from the partition function, not from a map")
