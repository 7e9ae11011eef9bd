"""Fitting problems: a map with a few parameters, and the numbers of each row it produces.

An objective (see `objectives`) is a function of these numbers, so one `Problem` streams the
value and the gradient of every objective. `Partition` makes the same numbers cheap for maps
that only divide rows by temperatures.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from calibrant.functional.arrays import row_slices

Vector: TypeAlias = "NDArray[np.float64]"
Map: TypeAlias = Callable[[Tensor, Tensor], Tensor]  # logits and parameters to logits

COLDEST, HOTTEST = 1e-2, 1e2  # bounds of T; separable or uninformative logits run to one of them
LOG_BOUNDS = (math.log(COLDEST), math.log(HOTTEST))
_GRAPH_BLOCK = 1 << 21  # elements of a block whose graph is held while it is differentiated
_CELLS = 64  # cells of ln β, each 0.14 wide: L is then exact to 2e-7
_WIDTH = (LOG_BOUNDS[1] - LOG_BOUNDS[0]) / _CELLS
_WIDE = 64  # number of classes from which a pass through the logits costs more than interpolation
_LEAST = -80.0  # exponents below this count as zero; smaller ones are slow to add
_TABLE = 1 << 25  # numbers a table may hold where there are fewer logits
_BLOCK = 1 << 18


class Rows(NamedTuple):
    """The numbers of each row that objectives need after a calibrator's map, in float64."""

    log_true: Tensor  # ln p_y
    log_mean: Tensor  # (1/K) Σ_k ln p_k
    confidence: Tensor  # max_k p_k
    correct: Tensor  # 1[ŷ = y]
    target: Tensor  # y
    weights: Tensor | None = None  # w, 1 on average; None if all are 1

    def mean(self, values: Tensor) -> Tensor:
        """Return the mean of one value a row, weighted where rows have weights."""
        return values.mean() if self.weights is None else (values * self.weights).mean()


def rows_after(mapped: Tensor, target: Tensor) -> Rows:
    """Return the numbers of each row of mapped (N,K) logits or log-probabilities."""
    log_probs = torch.log_softmax(mapped, dim=1)
    best, predicted = log_probs.max(1)
    log_true = log_probs.gather(1, target.unsqueeze(1)).squeeze(1)
    return Rows(log_true, log_probs.mean(1), best.exp(), predicted == target, target)


class Problem:
    """A map of logits with parameters, and the rows it is fitted on, all in float64.

    A gradient takes two streaming passes. The first computes each row's numbers and the
    derivative of the loss in them; the second pulls that derivative back through the map,
    block by block. A loss that couples all rows then needs no more memory than one that
    does not.

    Args:
        map: The map from (N,K) logits and the parameters to (N,K) logits.
        logits: (N,K) logits to fit on.
        target: (N,) labels.
        size: The number of parameters.
        penalty: A function of the parameters that is added to the loss; None adds nothing.
        weights: (N,) weights, 1 on average; None if all count the same.
    """

    def __init__(
        self,
        map: Map,
        logits: Tensor,
        target: Tensor,
        size: int,
        penalty: Callable[[Tensor], Tensor] | None = None,
        weights: Tensor | None = None,
    ) -> None:
        self._map, self._logits, self._target = map, logits, target
        self._weights = weights
        self.size, self._penalty = size, penalty
        self.num_classes = logits.shape[1]
        self._blocks = list(row_slices(logits.shape, _GRAPH_BLOCK))
        self.passes = 0

    def _tensor(self, point: Vector) -> Tensor:
        return torch.from_numpy(np.array(point, dtype=np.float64)).to(self._logits.device)

    def _block(self, block: slice, parameters: Tensor) -> Rows:
        mapped = self._map(self._logits[block].double(), parameters)
        rows = rows_after(mapped, self._target[block])
        return rows if self._weights is None else rows._replace(weights=self._weights[block])

    def rows(self, point: Vector) -> Rows:
        """Return each row's numbers at these parameters."""
        self.passes += 1
        parameters = self._tensor(point)
        with torch.no_grad():
            parts = [self._block(block, parameters) for block in self._blocks]
        columns = [torch.cat(column) for column in zip(*(part[:5] for part in parts), strict=True)]
        weights = [part.weights for part in parts if part.weights is not None]
        whole = Rows(columns[0], columns[1], columns[2], columns[3], columns[4])
        return whole._replace(weights=torch.cat(weights)) if weights else whole

    def loss(self, point: Vector, loss: Callable[[Rows], Tensor]) -> float:
        """Return the value of a loss, without the penalty."""
        return float(loss(self.rows(point)))

    def gradient(self, point: Vector, loss: Callable[[Rows], Tensor]) -> tuple[float, Vector]:
        """Return value and gradient of a loss of all rows, with the penalty."""
        parameters = self._tensor(point).requires_grad_()
        with torch.enable_grad():
            if len(self._blocks) == 1:
                self.passes += 1
                total = loss(self._block(self._blocks[0], parameters))
                total.backward()  # type: ignore[no-untyped-call]
            else:
                rows = self.rows(point)
                floats = [column.requires_grad_() for column in rows[:3]]
                total = loss(
                    rows._replace(log_true=floats[0], log_mean=floats[1], confidence=floats[2])
                )
                slopes = torch.autograd.grad(total, floats, allow_unused=True)
                used = [i for i, slope in enumerate(slopes) if slope is not None]
                self.passes += 1
                for part in self._blocks:
                    block = self._block(part, parameters)
                    torch.autograd.backward(
                        [block[:3][i] for i in used], [slopes[i][part] for i in used]
                    )
            if self._penalty is not None:
                extra = self._penalty(parameters)
                extra.backward()  # type: ignore[no-untyped-call]
                total = total + extra
        slope = np.zeros(self.size) if parameters.grad is None else parameters.grad.cpu().numpy()
        return float(total.detach()), slope

    def weighted_gradient(self, point: Vector, weights: Tensor) -> tuple[float, Vector]:
        """Return value and gradient of Σ_n w_n (−ln p_y), the weights held constant."""
        return self.gradient(point, lambda rows: -(weights * rows.log_true).sum())


class Partition:
    """L_n(β) = ln Σ_k exp(β(z_nk − max_k z_nk)) of every row, β = 1/T in [0.01, 100].

    Confidence −L, true class β(z_y − max z) − L and mean log-probability β(z̄ − max z) − L
    of a row divided by T need nothing else of its K logits. In ln β, L falls smoothly from
    ln K to 0. With many classes L is tabulated: at nodes of ln β, computed when first needed,
    one streaming pass finds L and three derivatives (by the moments of β(z − max z) under the
    softmax), and between two nodes L is the polynomial of degree seven that matches them all.
    An evaluation then takes O(N) and not O(NK) operations.

    Args:
        logits: (N,K) logits; −inf for options that a row does not have.
        target: (N,) labels.
        weights: (N,) weights, 1 on average; None if all count the same.
    """

    def __init__(self, logits: Tensor, target: Tensor, weights: Tensor | None = None) -> None:
        rows, self.num_classes = logits.shape
        self._logits, self._target = logits, target
        self._weights = weights
        top = torch.empty_like(logits[:, 0])
        predicted, mean = torch.empty_like(target), torch.empty_like(top)
        for part in row_slices(logits.shape, _BLOCK):
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
        """Return L of each row at its ln β, differentiable once."""
        point = log_beta.detach().expand(len(self._target))
        value, slope = self._exact(point) if self._table is None else self._between(point)
        return value + slope * (log_beta - point)  # the bracket is 0, its derivative 1

    def rows(self, log_beta: Tensor) -> Rows:
        """Return what objectives need of each row times its β."""
        value, beta = self(log_beta), log_beta.exp()
        return Rows(
            beta * self._true - value,
            beta * self._mean - value,
            (-value).exp(),
            self._correct,
            self._target,
            self._weights,
        )

    def _exact(self, log_beta: Tensor) -> tuple[Tensor, Tensor]:
        moments = self._moments(log_beta.exp(), 1)
        return moments[:, 0], moments[:, 1]

    def _moments(self, beta: Tensor, most: int) -> Tensor:
        """Compute L, then E_p[u^k] for k = 1 to ``most``, u = β(z − max z), in one pass."""
        moments = self._mean.new_empty((len(self._target), most + 1))
        for part in row_slices(self._logits.shape, _BLOCK):
            u = self._logits[part] - self._top[part]
            u.mul_(beta[part].to(u.dtype).unsqueeze(1)).clamp_min_(_LEAST)
            weight = u.exp()
            total = weight.sum(1)
            moments[part, 0] = total.double().log()
            for k in range(1, most + 1):
                moments[part, k] = (weight.mul_(u).sum(1) / total).double()
        return moments

    def _fill_node(self, place: int) -> None:
        """Compute L and its derivatives in ln β at one node, in units of a cell."""
        assert self._table is not None
        beta = self._mean.new_full((len(self._target),), math.exp(LOG_BOUNDS[0] + place * _WIDTH))
        value, mean, square, cube = self._moments(beta, 3).unbind(1)
        # d E[u^k] / d ln β = k E[u^k] + E[u^(k+1)] − E[u^k] E[u].
        second = mean + square - mean * mean
        third = second + (2 * square + cube - square * mean) - 2 * mean * second
        units = (value, mean * _WIDTH, second * _WIDTH**2, third * _WIDTH**3)
        self._table[place] = torch.stack(units, 1)
        self._known[place] = True

    def _between(self, log_beta: Tensor) -> tuple[Tensor, Tensor]:
        """Interpolate L and its slope between the nodes of the table."""
        assert self._table is not None
        place = ((log_beta - LOG_BOUNDS[0]) / _WIDTH).clamp(0.0, float(_CELLS))
        cell = place.long().clamp_max(_CELLS - 1)
        for index in torch.unique(cell).tolist():
            for node in (index, index + 1):
                if not self._known[node]:
                    self._fill_node(node)
        ends = torch.cat((self._table[cell, self._each], self._table[cell + 1, self._each]), 1)
        polynomial = ends @ self._basis  # (N,8), coefficients of rising powers
        share = place - cell
        value, slope = polynomial[:, 7], torch.zeros_like(share)
        for power in range(6, -1, -1):
            slope = slope * share + value
            value = value * share + polynomial[:, power]
        return value, slope / _WIDTH


class TemperedProblem(Problem):
    """A problem whose map divides rows, so that a `Partition` gives the rows' numbers.

    Args:
        rows: The rows' numbers as a function of the parameters.
        logits: (N,K) logits to fit on.
        target: (N,) labels.
        size: The number of parameters.
        penalty: A function of the parameters that is added to the loss; None adds nothing.
    """

    def __init__(
        self,
        rows: Callable[[Tensor], Rows],
        logits: Tensor,
        target: Tensor,
        size: int,
        penalty: Callable[[Tensor], Tensor] | None = None,
    ) -> None:
        super().__init__(_refuse_map, logits, target, size, penalty)
        self._rows = rows  # which know their weights
        self._blocks = [slice(None)]

    def _block(self, block: slice, parameters: Tensor) -> Rows:
        return self._rows(parameters)


def _hermite() -> Tensor:
    """Return (8,8) powers of t in [0, 1]: one of f, …, f‴ at 0 or at 1 equals 1, the others 0."""
    conditions = np.zeros((8, 8))
    for order in range(4):
        conditions[order, order] = math.factorial(order)
        for power in range(order, 8):
            conditions[4 + order, power] = math.perm(power, order)
    return torch.from_numpy(np.linalg.inv(conditions).T.copy())


def _refuse_map(logits: Tensor, parameters: Tensor) -> Tensor:
    raise AssertionError("the rows come from the partition function, not from a map")
