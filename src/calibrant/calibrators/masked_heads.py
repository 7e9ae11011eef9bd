"""Heads trained side by side under random masks, with gradients written out."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, TypeAlias

import torch
from torch import Tensor

if TYPE_CHECKING:
    from calibrant.calibrators.mac_cal import Settings

Layers: TypeAlias = "tuple[tuple[Tensor, Tensor], ...]"  # (weight (in, out), bias) of each

_STEPS = 1 << 16  # a mask is drawn from 16 random bits
_BLOCK = 1 << 21  # hidden values of a block when measuring


class MaskedHeads:
    """G heads of one shape, all parameters in one vector; every step is on all of them.

    A head is linear-ReLU-linear, or one linear layer. First weights are (D,G,H), so that the
    first layers of all heads are one matrix product; second ones (G,H,K). Masks fall on
    weights, not on biases. Heads share batches and the random bits behind their masks, and
    differ in how many weights are masked. Nothing in a step waits for a device.
    """

    def __init__(
        self,
        values: list[Tensor],
        velocity: list[Tensor],
        count: int,
        how: Settings,
        scale: float,
    ) -> None:
        self.count, self._how, self._scale = count, how, scale
        self._kept = [how.kept(how.sparsity)] * count
        self._shapes = [part.shape for part in values]
        self.values = torch.cat([part.reshape(-1) for part in values])
        self.velocity = torch.cat([part.reshape(-1) for part in velocity])
        self.mask = torch.ones_like(self.values)  # of biases it stays 1
        self._masked = torch.empty_like(self.values)
        self.slope = torch.empty_like(self.values)
        device = self.values.device
        needed = [math.prod(shape) // count for shape in self._shapes[::2]]
        words = torch.empty(math.ceil(sum(needed) / 4), dtype=torch.int64, device=device)
        bits = words.view(torch.int16)[: sum(needed)].split(needed)  # type: ignore[no-untyped-call]
        first = self._shapes[0]
        self._words = words
        self._bits = [bits[0].view(first[0], 1, first[2])]
        if len(bits) > 1:
            self._bits.append(bits[1].view(1, *self._shapes[2][1:]))
        self._bounds = torch.zeros(count, dtype=torch.int16, device=device)
        # Views are made once: a step is short enough that making them anew would show.
        self._masks = self.parts(self.mask)[::2]
        self._used, self._slopes = self.parts(self._masked), self.parts(self.slope)
        self._minus_one = torch.full((1, 1, 1), -1.0, dtype=values[0].dtype, device=device)

    @classmethod
    def fresh(
        cls,
        sizes: Sequence[int],
        how: Settings,
        *,
        scale: float = 1.0,
        device: torch.device | None = None,
        dtype: torch.dtype = torch.float32,
    ) -> MaskedHeads:
        """One head, each layer uniform in ±1/√(fan in), the same by seed on every device.

        ``scale`` is what features are divided by in training.
        """
        generator = torch.Generator().manual_seed(how.seed)
        parts: list[Tensor] = []
        for layer, (into, out) in enumerate(pairwise(sizes)):
            bound = 1.0 / math.sqrt(into)
            for shape in ((into, 1, out) if layer == 0 else (1, into, out), (1, out)):
                drawn = torch.empty(shape).uniform_(-bound, bound, generator=generator)
                parts.append(drawn.to(device, dtype))
        return cls(parts, [torch.zeros_like(part) for part in parts], 1, how, scale)

    def select(self, heads: Sequence[int]) -> MaskedHeads:
        """Some of the heads, or some of them more than once."""
        index = torch.tensor(heads, device=self.values.device)

        def taken(flat: Tensor) -> list[Tensor]:
            # The heads are the second axis of the first weights, the first of all else.
            parts = self.parts(flat)
            return [part.index_select(int(i == 0), index) for i, part in enumerate(parts)]

        return MaskedHeads(
            taken(self.values), taken(self.velocity), len(heads), self._how, self._scale
        )

    def train_epoch(
        self,
        features: Tensor,
        target: Tensor,
        sparsity: Sequence[float],
        generator: torch.Generator,
    ) -> None:
        """One pass over shuffled rows, each batch under masks of its own."""
        self.set_sparsity(sparsity)
        order = torch.randperm(len(target), generator=generator, device=features.device)
        for rows in order.split(self._how.batch_size):  # type: ignore[no-untyped-call]
            batch = features.index_select(0, rows).to(self.values.dtype)
            if self._scale != 1.0:
                batch = batch / self._scale
            self.draw(generator)
            self.slopes(batch, target.index_select(0, rows))
            self.update()

    def set_sparsity(self, sparsity: Sequence[float]) -> None:
        """The share of weights masked in each head, in steps of 2⁻¹⁶."""
        bounds = [min(round(s * _STEPS), _STEPS - 1) - _STEPS // 2 for s in sparsity]
        self._kept = [self._how.kept(s) for s in sparsity]
        self._bounds = torch.tensor(bounds, dtype=torch.int16, device=self.values.device)

    def draw(self, generator: torch.Generator) -> None:
        """Fresh masks M ~ Bernoulli(1 − s) on the weights (mac-cal eq. 8, s the sparsity)."""
        self._words.random_(-(1 << 63), None, generator=generator)
        shapes = ((1, -1, 1), (-1, 1, 1))
        for mask, bits, shape in zip(self._masks, self._bits, shapes, strict=False):
            torch.ge(bits, self._bounds.view(shape), out=mask)

    def slopes(self, features: Tensor, target: Tensor) -> None:
        """The gradient of the mean cross-entropy in the masked weights (eq. 9 and 10).

        With p − 1[k=y] at the logits, each layer's is its input times what comes back.
        """
        torch.mul(self.values, self.mask, out=self._masked)
        weights, slopes = self._used, self._slopes
        rows, count = len(target), self.count
        first, first_bias = weights[0].flatten(1), weights[1].view(-1)
        out = torch.addmm(first_bias, features, first)
        if len(weights) == 2:
            back = out.view(rows, count, -1)
            back = _less_target(back, target.view(-1, 1, 1), self._minus_one)
        else:
            hidden = out.relu_().view(rows, count, -1).transpose(0, 1)
            logits = torch.baddbmm(weights[3].unsqueeze(1), hidden, weights[2])
            error = _less_target(logits, target.view(1, -1, 1), self._minus_one)
            torch.bmm(hidden.transpose(1, 2), error, out=slopes[2])
            torch.sum(error, dim=1, out=slopes[3])
            back = torch.bmm(error, weights[2].transpose(1, 2)).transpose(0, 1)
            # What the ReLU let through is positive: its sign is the ReLU's derivative.
            back = back.mul(out.view(rows, count, -1).sign_())
        flat = back.reshape(rows, -1)
        torch.mm(features.t(), flat, out=slopes[0].flatten(1))
        torch.sum(flat, dim=0, out=slopes[1].view(-1))

    def update(self) -> None:
        """A step of SGD with momentum and decay, v ← μv + g + λW, W ← W − lr·v (eq. 11).

        Where masked weights are held, neither W nor v of one moves.
        """
        how, slope, mask = self._how, self.slope, self.mask
        if how.holds_masked:
            slope.add_(self.values, alpha=how.weight_decay)
            slope.add_(self.velocity, alpha=how.momentum - 1.0)
            self.velocity.addcmul_(slope, mask)
            self.values.addcmul_(self.velocity, mask, value=-how.learning_rate)
            return
        if how.restrict_gradient:
            slope.mul_(mask)
        slope.add_(self.values, alpha=how.weight_decay)
        self.velocity.mul_(how.momentum).add_(slope)
        self.values.add_(self.velocity, alpha=-how.learning_rate)

    def measure(self, features: Tensor, target: Tensor) -> Tensor:
        """(G,2): mean confidence and accuracy of every head with its weights of inference."""
        total = torch.zeros(self.count, 2, dtype=torch.float64, device=features.device)
        kept = torch.tensor(self._kept, dtype=self.values.dtype, device=features.device)
        weights = self.parts(self.values)
        first = (weights[0] * (kept / self._scale).view(1, -1, 1)).flatten(1)
        for rows in _blocks(len(target), first.shape[1]):
            out = torch.addmm(weights[1].view(-1), features[rows].to(first.dtype), first)
            logits = out.view(len(out), self.count, -1)
            if len(weights) > 2:
                hidden = logits.relu_().transpose(0, 1)
                logits = torch.baddbmm(
                    weights[3].unsqueeze(1), hidden, weights[2] * kept.view(-1, 1, 1)
                ).transpose(0, 1)
            top, predicted = logits.max(dim=2)
            confidence = (top - logits.logsumexp(2)).exp_()
            correct = predicted == target[rows].unsqueeze(1)
            total[:, 0] += confidence.sum(0, dtype=torch.float64)
            total[:, 1] += correct.sum(0)
        return total / len(target)

    def layers(self, head: int) -> Layers:
        """A head as it is used at inference, on features as they were given.

        Its weights are expected ones, (1−s)·W at the sparsity of the last epoch; as printed,
        W itself.
        """
        weights = self.parts(self.values)
        kept = self._kept[head]
        found = [(weights[0][:, head] * (kept / self._scale), weights[1][head].clone())]
        if len(weights) > 2:
            found.append((weights[2][head] * kept, weights[3][head].clone()))
        return tuple(found)

    def parts(self, flat: Tensor) -> list[Tensor]:
        """Views of ``values``, ``velocity``, ``mask`` or ``slope``: weight, bias of each layer."""
        pieces = flat.split([math.prod(shape) for shape in self._shapes])  # type: ignore[no-untyped-call]
        return [piece.view(shape) for piece, shape in zip(pieces, self._shapes, strict=True)]


def logits_of(features: Tensor, layers: Layers) -> Tensor:
    """What a head says of (N,D) features."""
    out = features
    for place, (weight, bias) in enumerate(layers):
        if place:
            out = torch.relu(out)
        out = torch.addmm(bias.to(out.dtype), out, weight.to(out.dtype))
    return out


def _less_target(logits: Tensor, target: Tensor, minus_one: Tensor) -> Tensor:
    """(softmax − one-hot)/rows: the slope of the mean cross-entropy in the logits."""
    error = torch.softmax(logits, dim=2)
    place = target.expand(*logits.shape[:2], 1)
    error.scatter_add_(2, place, minus_one.expand_as(place))
    return error.div_(target.numel())


def _blocks(rows: int, width: int) -> Iterator[slice]:
    step = max(1, _BLOCK // width)
    for begin in range(0, rows, step):
        yield slice(begin, min(begin + step, rows))
