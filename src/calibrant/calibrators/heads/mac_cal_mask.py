"""MaC-Cal's mask: heads trained under random masks, and the sparsity that they follow.

Heads of several sparsities are trained side by side, with gradients written out.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal, TypeAlias

import torch
from torch import Tensor

from calibrant.core.errors import InputError
from calibrant.functional.arrays import row_slices

Layers: TypeAlias = "tuple[tuple[Tensor, Tensor], ...]"  # (weight (in, out), bias) of each

ETA_FIRST, ETA_LAST, ETA_CONSTANT = 0.1, 0.001, 0.05
MOST_SPARSE = 0.98
_FEW, _MANY, _CLASSES = 128, 256, 32  # widths of the bottleneck, by the number of classes
_STEPS = 1 << 16  # a mask is drawn from 16 random bits
_BLOCK = 1 << 21  # hidden values of a block when measuring


@dataclass(frozen=True)
class Settings:
    """Settings of stage two's training. See `MacCalHead` for the options and their defaults."""

    head: Literal["bottleneck", "linear"] = "bottleneck"
    width: int | None = None
    reading: Literal["sparsity", "printed"] = "sparsity"
    restrict_gradient: bool = True
    schedule: Literal["decaying", "constant", "fixed"] = "decaying"
    mask_every: Literal["batch", "epoch"] = "batch"
    sparsity: float = 0.5
    epochs: int = 40
    learning_rate: float = 0.1
    momentum: float = 0.9
    weight_decay: float = 5e-4
    batch_size: int = 128
    seed: int = 0

    def __post_init__(self) -> None:
        for name, allowed in (
            ("head", ("bottleneck", "linear")),
            ("reading", ("sparsity", "printed")),
            ("schedule", ("decaying", "constant", "fixed")),
            ("mask_every", ("batch", "epoch")),
        ):
            if getattr(self, name) not in allowed:
                raise InputError(f"{name} must be one of {allowed}, found {getattr(self, name)!r}")
        if not 0 <= self.sparsity <= MOST_SPARSE:
            raise InputError(f"sparsity must lie in [0, {MOST_SPARSE}], found {self.sparsity!r}")
        if self.width is not None and self.width < 1:
            raise InputError(f"width must be at least 1, found {self.width!r}")
        if self.epochs < 1 or self.batch_size < 1:
            raise InputError(
                f"epochs and batch_size must be at least 1, found {self.epochs!r} and "
                f"{self.batch_size!r}"
            )
        if not (self.learning_rate > 0 and 0 <= self.momentum < 1 and self.weight_decay >= 0):
            raise InputError(
                "learning_rate must be positive, momentum in [0, 1) and weight_decay not "
                f"negative, found {self.learning_rate!r}, {self.momentum!r}, {self.weight_decay!r}"
            )

    @property
    def holds_masked(self) -> bool:
        """Return whether momentum and decay, too, leave a masked weight alone."""
        return self.restrict_gradient and self.reading == "sparsity"

    def find_factor(self, sparsity: float) -> float:
        """Return the factor of the weights at inference."""
        return 1.0 - sparsity if self.reading == "sparsity" else 1.0

    def sizes(self, num_features: int, num_classes: int) -> tuple[int, ...]:
        """Return the widths of the input, of the bottleneck if there is one, and of the output."""
        if self.head == "linear":
            return (num_features, num_classes)
        usual = _FEW if num_classes <= _CLASSES else _MANY
        return (num_features, self.width or usual, num_classes)


def eta_at(epoch: int, epochs: int, schedule: str = "decaying") -> float:
    """Return η_t = 0.1·(0.001/0.1)^(t/T), t = 1..T (mac-cal eq. 13), or the constant 0.05."""
    if schedule == "fixed":
        return 0.0
    if schedule == "constant":
        return ETA_CONSTANT
    return ETA_FIRST * math.exp(math.log(ETA_LAST / ETA_FIRST) * epoch / epochs)


def next_sparsity(
    sparsity: float,
    confidence: float,
    accuracy: float,
    *,
    gamma: float,
    eta: float,
    reading: str = "sparsity",
) -> float:
    """Return s_t = s_(t−1) + clip(Conf_t − γ·Acc_t, ±η_t), held in [0, 0.98] (mac-cal eq. 12).

    In the printed reading q = 1 − s takes that step, and is held in [0, 1].

    Args:
        sparsity: s_(t−1).
        confidence: Conf_t.
        accuracy: Acc_t.
        gamma: γ, the share of the accuracy that confidence should reach.
        eta: η_t, the largest step.
        reading: ``"sparsity"`` or ``"printed"``. Default: 'sparsity' (docs/decisions.md).
    """
    step = min(max(confidence - gamma * accuracy, -eta), eta)
    if reading == "printed":
        return min(max(sparsity - step, 0.0), 1.0)
    return min(max(sparsity + step, 0.0), MOST_SPARSE)


class MaskedHeads:
    """G heads of one shape, all parameters in one vector; every step moves all of them.

    A head is linear-ReLU-linear, or one linear layer. First weights are (D,G,H), so that the
    first layers of all heads are one matrix product; second ones are (G,H,K). Masks fall on
    weights, not on biases. Heads share batches and the random bits behind their masks, and
    differ in how many weights are masked. Nothing in a step waits for a device.

    Args:
        values: Weights and biases of each layer.
        velocity: Their velocities.
        count: G.
        how: How stage two is trained.
        scale: The number that features are divided by in training.
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
        self._kept = [how.find_factor(how.sparsity)] * count
        self._shapes = [part.shape for part in values]
        self.values = torch.cat([part.reshape(-1) for part in values])
        self.velocity = torch.cat([part.reshape(-1) for part in velocity])
        self.mask = torch.ones_like(self.values)  # stays 1 for biases
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
        # Views are made once, because a step is so short that making them anew would cost time.
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
        """Return one head, each layer uniform in ±1/√(fan in), the same by seed on every device.

        Args:
            sizes: The widths of input, hidden layers and output.
            how: How stage two is trained.
            scale: The number that features are divided by in training. Default: 1.0 (none).
            device: The device. Default: None (the CPU).
            dtype: The precision. Default: torch.float32 (ours: as networks have).
        """
        generator = torch.Generator().manual_seed(how.seed)
        parts: list[Tensor] = []
        for layer, (into, out) in enumerate(pairwise(sizes)):
            bound = 1.0 / math.sqrt(into)
            for shape in ((into, 1, out) if layer == 0 else (1, into, out), (1, out)):
                drawn = torch.empty(shape).uniform_(-bound, bound, generator=generator)
                parts.append(drawn.to(device, dtype))
        return cls(parts, [torch.zeros_like(part) for part in parts], 1, how, scale)

    def set_weights(self, weight: Tensor, bias: Tensor) -> None:
        """Begin from a linear layer's weight (D,K), of features as they were given, and bias."""
        parts = self.parts(self.values)
        if self.count != 1 or len(parts) != 2 or weight.shape != parts[0][:, 0].shape:
            raise InputError(
                f"the head begins from a linear layer of {tuple(parts[0][:, 0].shape)} weights, "
                f"found {tuple(weight.shape)}"
            )
        parts[0][:, 0] = weight.to(self.values) * self._scale
        parts[1][0] = bias.to(self.values)

    def select(self, heads: Sequence[int]) -> MaskedHeads:
        """Return some of the heads, or some of them more than once."""
        index = torch.tensor(heads, device=self.values.device)

        def take(flat: Tensor) -> list[Tensor]:
            # Heads are the second axis of the first weights and the first axis of all others.
            parts = self.parts(flat)
            return [part.index_select(int(i == 0), index) for i, part in enumerate(parts)]

        return MaskedHeads(
            take(self.values), take(self.velocity), len(heads), self._how, self._scale
        )

    def train_epoch(
        self,
        features: Tensor,
        target: Tensor,
        sparsity: Sequence[float],
        generator: torch.Generator,
    ) -> None:
        """Train for one pass over shuffled rows, under masks drawn as ``mask_every`` says."""
        self.set_sparsity(sparsity)
        order = torch.randperm(len(target), generator=generator, device=features.device)
        if self._how.mask_every == "epoch":
            self.draw_masks(generator)
        for rows in order.split(self._how.batch_size):  # type: ignore[no-untyped-call]
            batch = features.index_select(0, rows).to(self.values.dtype)
            if self._scale != 1.0:
                batch = batch / self._scale
            if self._how.mask_every == "batch":
                self.draw_masks(generator)
            self.compute_gradient(batch, target.index_select(0, rows))
            self.update()

    def set_sparsity(self, sparsity: Sequence[float]) -> None:
        """Set the share of weights masked in each head, in steps of 2⁻¹⁶."""
        bounds = [min(round(s * _STEPS), _STEPS - 1) - _STEPS // 2 for s in sparsity]
        self._kept = [self._how.find_factor(s) for s in sparsity]
        self._bounds = torch.tensor(bounds, dtype=torch.int16, device=self.values.device)

    def draw_masks(self, generator: torch.Generator) -> None:
        """Draw masks M ~ Bernoulli(1 − s) on the weights (mac-cal eq. 8, s the sparsity)."""
        self._words.random_(-(1 << 63), None, generator=generator)
        shapes = ((1, -1, 1), (-1, 1, 1))
        for mask, bits, shape in zip(self._masks, self._bits, shapes, strict=False):
            torch.ge(bits, self._bounds.view(shape), out=mask)

    def compute_gradient(self, features: Tensor, target: Tensor) -> None:
        """Compute the gradient of the mean cross-entropy in the masked weights (eq. 9 and 10).

        From p − 1[k=y] at the logits, each layer's gradient is its input times the error that
        is passed back.
        """
        torch.mul(self.values, self.mask, out=self._masked)
        weights, slopes = self._used, self._slopes
        rows, count = len(target), self.count
        first, first_bias = weights[0].flatten(1), weights[1].view(-1)
        out = torch.addmm(first_bias, features, first)
        if len(weights) == 2:
            back = out.view(rows, count, -1)
            back = _subtract_target(back, target.view(-1, 1, 1), self._minus_one)
        else:
            hidden = out.relu_().view(rows, count, -1).transpose(0, 1)
            logits = torch.baddbmm(weights[3].unsqueeze(1), hidden, weights[2])
            error = _subtract_target(logits, target.view(1, -1, 1), self._minus_one)
            torch.bmm(hidden.transpose(1, 2), error, out=slopes[2])
            torch.sum(error, dim=1, out=slopes[3])
            back = torch.bmm(error, weights[2].transpose(1, 2)).transpose(0, 1)
            # Outputs of the ReLU are positive or 0: their sign is its derivative.
            back = back.mul(out.view(rows, count, -1).sign_())
        flat = back.reshape(rows, -1)
        torch.mm(features.t(), flat, out=slopes[0].flatten(1))
        torch.sum(flat, dim=0, out=slopes[1].view(-1))

    def update(self) -> None:
        """Take a step of SGD with momentum and decay: v ← μv + g + λW, W ← W − lr·v (eq. 11).

        Where masked weights are held, neither their W nor their v moves.
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
        """Return (G,2) mean confidence and accuracy of every head, with inference weights."""
        total = torch.zeros(self.count, 2, dtype=torch.float64, device=features.device)
        mask = torch.tensor(self._kept, dtype=self.values.dtype, device=features.device)
        weights = self.parts(self.values)
        first = (weights[0] * (mask / self._scale).view(1, -1, 1)).flatten(1)
        for rows in row_slices((len(target), first.shape[1]), _BLOCK):
            out = torch.addmm(weights[1].view(-1), features[rows].to(first.dtype), first)
            logits = out.view(len(out), self.count, -1)
            if len(weights) > 2:
                hidden = logits.relu_().transpose(0, 1)
                logits = torch.baddbmm(
                    weights[3].unsqueeze(1), hidden, weights[2] * mask.view(-1, 1, 1)
                ).transpose(0, 1)
            top, predicted = logits.max(dim=2)
            confidence = (top - logits.logsumexp(2)).exp_()
            correct = predicted == target[rows].unsqueeze(1)
            total[:, 0] += confidence.sum(0, dtype=torch.float64)
            total[:, 1] += correct.sum(0)
        return total / len(target)

    def layers(self, head: int) -> Layers:
        """Return a head as used at inference, on features as they were given.

        Its weights are the expected ones, (1−s)·W at the sparsity of the last epoch; in the
        printed reading W itself.
        """
        weights = self.parts(self.values)
        mask = self._kept[head]
        layers = [(weights[0][:, head] * (mask / self._scale), weights[1][head].clone())]
        if len(weights) > 2:
            layers.append((weights[2][head] * mask, weights[3][head].clone()))
        return tuple(layers)

    def parts(self, flat: Tensor) -> list[Tensor]:
        """Return views of ``values``, ``velocity``, ``mask`` or ``slope`` by layer."""
        pieces = flat.split([math.prod(shape) for shape in self._shapes])  # type: ignore[no-untyped-call]
        return [piece.view(shape) for piece, shape in zip(pieces, self._shapes, strict=True)]


def logits_of(features: Tensor, layers: Layers) -> Tensor:
    """Return the logits of a head for (N,D) features."""
    out = features
    for place, (weight, bias) in enumerate(layers):
        if place:
            out = torch.relu(out)
        out = torch.addmm(bias.to(out.dtype), out, weight.to(out.dtype))
    return out


def _subtract_target(logits: Tensor, target: Tensor, minus_one: Tensor) -> Tensor:
    """Return (softmax − one-hot)/rows: the gradient of the mean cross-entropy in the logits."""
    error = torch.softmax(logits, dim=2)
    place = target.expand(*logits.shape[:2], 1)
    error.scatter_add_(2, place, minus_one.expand_as(place))
    return error.div_(target.numel())
