"""MaC-Cal's second stage: a head retrained under random masks on features that stay fixed.

One piece of code for the calibrator `mac_cal_head` and for the training recipe. Heads of
several γ are trained side by side on the same batches, masks and first weights: γ whose
sparsity has been the same so far share one head, and a head is copied when they part.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from calibrant.calibrators.masked_heads import Layers, MaskedHeads, logits_of
from calibrant.functional.errors import InputError
from calibrant.metrics.toplabel import ece

GAMMA = 0.96  # without validation rows to choose it on
GAMMAS = (0.90, 0.92, 0.94, 0.95, 0.96, 0.97, 0.98, 0.99, 0.995)
ETA_FIRST, ETA_LAST, ETA_CONSTANT = 0.1, 0.001, 0.05
MOST_SPARSE = 0.98
ACCURACY_LOST = 0.01  # at most, against the best γ, for a γ to be considered
_RUNGS = (0.25, 0.5)  # shares of the epochs after which the worse half of the γ is dropped
_FEW, _MANY, _CLASSES = 128, 256, 32  # width of the bottleneck, by the number of classes
_APART = 1_000_003
_LARGEST = 1.0  # root mean square of features that are left as they are
_SHORTEST = 3.0  # root mean square length of rows that are left as they are


@dataclass(frozen=True)
class Settings:
    """How stage two is trained; the defaults are the method as methods.md decides it.

    head, width: linear-ReLU-linear with a bottleneck (128 for up to 32 classes, else 256), or
        one linear layer.
    reading: ``"sparsity"``: q of the paper is the share of weights masked; a masked weight
        does not move in that step, by gradient, momentum or decay; Conf, Acc and inference
        use expected weights (1−s)·W. ``"printed"``: q of eq. 8 is the share kept, the mask is
        on the gradient alone (eq. 11), and Conf, Acc and inference use W unmasked.
    restrict_gradient: whether masks stop the update (eq. 11), or gradients are passed straight
        through to every weight.
    schedule: how the sparsity moves: ``"decaying"`` η (eq. 13), ``"constant"`` η, ``"fixed"``.
    sparsity: at the start. Fixed at 0 it is plain retraining of the head.
    epochs, learning_rate, momentum, weight_decay, batch_size: SGD as in the paper's section
        5.1, the rate constant. Decay falls on biases too, as in PyTorch.
    """

    head: Literal["bottleneck", "linear"] = "bottleneck"
    width: int | None = None
    reading: Literal["sparsity", "printed"] = "sparsity"
    restrict_gradient: bool = True
    schedule: Literal["decaying", "constant", "fixed"] = "decaying"
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
        """Whether momentum and decay, too, leave a masked weight alone."""
        return self.restrict_gradient and self.reading == "sparsity"

    def kept(self, sparsity: float) -> float:
        """The factor of the weights at inference."""
        return 1.0 - sparsity if self.reading == "sparsity" else 1.0

    def sizes(self, num_features: int, num_classes: int) -> tuple[int, ...]:
        """Width of the input, of the bottleneck where there is one, and of the output."""
        if self.head == "linear":
            return (num_features, num_classes)
        usual = _FEW if num_classes <= _CLASSES else _MANY
        return (num_features, self.width or usual, num_classes)


# The paper's table 5 below its first row: each adds one component to the one before.
TABLE_5: dict[str, Settings] = {
    "masked_retraining": Settings(head="linear", restrict_gradient=False, schedule="fixed"),
    "gradient_restriction": Settings(head="linear", schedule="fixed"),
    "classifier_restructure": Settings(schedule="fixed"),
    "static_adaptive_sparsity": Settings(schedule="constant"),
    "decaying_adaptive_sparsity": Settings(),
}


def eta_at(epoch: int, epochs: int, schedule: str = "decaying") -> float:
    """η_t = 0.1·(0.001/0.1)^(t/T), t = 1..T (mac-cal eq. 13); 0.05 where it is constant."""
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
    """s_t = s_(t−1) + clip(Conf_t − γ·Acc_t, ±η_t), held in [0, 0.98] (mac-cal eq. 12).

    As printed, q = 1 − s takes that step, and is held in [0, 1].
    """
    step = min(max(confidence - gamma * accuracy, -eta), eta)
    if reading == "printed":
        return min(max(sparsity - step, 0.0), 1.0)
    return min(max(sparsity + step, 0.0), MOST_SPARSE)


def sparsity_trace(
    confidence: Sequence[float],
    accuracy: Sequence[float],
    *,
    gamma: float = GAMMA,
    settings: Settings | None = None,
) -> list[float]:
    """s_0, s_1, ..., s_T that these Conf_t and Acc_t, t = 1..T, lead to."""
    how = settings or Settings()
    found = [how.sparsity]
    for epoch, (conf, acc) in enumerate(zip(confidence, accuracy, strict=True), start=1):
        eta = eta_at(epoch, len(confidence), how.schedule)
        found.append(next_sparsity(found[-1], conf, acc, gamma=gamma, eta=eta, reading=how.reading))
    return found


@dataclass
class Run:
    """One γ: its trace by epoch and, where there are validation rows, how it did on them.

    ``sparsity`` is s_0..s_T: epoch t is trained at ``sparsity[t - 1]``.
    """

    gamma: float
    sparsity: list[float]
    confidence: list[float] = field(default_factory=list)
    accuracy: list[float] = field(default_factory=list)
    epochs: int = 0
    validation_ece: float | None = None
    validation_accuracy: float | None = None


@dataclass(frozen=True)
class TrainedHead:
    """What stage two made: layers as (weight (in, out), bias), the γ chosen and every γ's run.

    The layers take features as they were given, and are those of inference.
    """

    layers: Layers
    chosen: Run
    runs: tuple[Run, ...]
    scale: float  # features were divided by it in training


def train_head(
    features: Tensor,
    target: Tensor,
    num_classes: int,
    *,
    settings: Settings | None = None,
    gammas: Sequence[float] = (GAMMA,),
    validation: tuple[Tensor, Tensor] | None = None,
    race: bool = False,
    tick: Callable[[int], None] = lambda epoch: None,
    dtype: torch.dtype = torch.float32,
) -> TrainedHead:
    """Algorithm 1 of mac-cal on (N,D) features, where they are; the best γ of several.

    Of several γ, that of the lowest validation ECE (15 bins) is taken, among those whose
    validation accuracy is within one point of the best, or two standard errors of it where
    that is more. With ``race``, the worse half is left behind after a quarter of the epochs,
    and again after half, by the same rule: nine γ then cost three to four. Inference uses the
    sparsity of the last epoch, s_(T−1): what was measured last is what is deployed.

    Ours, where the paper is silent: weights and biases start uniform in ±1/√(fan in), as of
    `torch.nn.Linear`; features are divided by one number where their root mean square is above
    1 (it becomes 1: this learning rate would diverge) or rows are shorter than 3 (they become
    3 long, in the root mean square: it would hardly move).
    """
    how = settings or Settings()
    features = features.detach()
    for gamma in gammas:
        if not 0 < gamma <= 1:
            raise InputError(f"gamma must lie in (0, 1], found {gamma!r}")
    if len(gammas) > 1 and validation is None:
        raise InputError("choosing gamma needs validation features and labels")
    # Not the seed of the first weights: masks would be drawn from the same bits.
    generator = torch.Generator(features.device).manual_seed(how.seed + _APART)
    scale = _scale_of(features)
    sizes = how.sizes(features.shape[1], num_classes)
    heads = MaskedHeads.fresh(sizes, how, scale=scale, device=features.device, dtype=dtype)
    runs = [Run(float(gamma), [how.sparsity]) for gamma in gammas]
    alive, head_of = list(runs), [0] * len(runs)
    rungs = {max(1, round(share * how.epochs)) for share in _RUNGS} if race else set()
    for epoch in range(1, how.epochs + 1):
        # Runs that share a head have been at one sparsity: any of them can tell it.
        at = [alive[head_of.index(head)].sparsity[-1] for head in range(heads.count)]
        heads.train_epoch(features, target, at, generator)
        measured = heads.measure(features, target).tolist()
        _check(measured, epoch)
        eta = eta_at(epoch, how.epochs, how.schedule)
        for run, head in zip(alive, head_of, strict=True):
            conf, acc = measured[head]
            run.confidence.append(conf)
            run.accuracy.append(acc)
            run.epochs = epoch
            run.sparsity.append(
                next_sparsity(
                    run.sparsity[-1], conf, acc, gamma=run.gamma, eta=eta, reading=how.reading
                )
            )
        tick(epoch)
        last = epoch == how.epochs
        if validation is not None and (last or (epoch in rungs and len(alive) > 1)):
            _judge(heads, alive, head_of, validation)
            if not last:
                alive, head_of = _better_half(alive, head_of, len(validation[1]))
        if not last:
            heads, head_of = _parted(heads, alive, head_of)
    best = alive[0] if validation is None else _ordered(alive, len(validation[1]))[0]
    head = head_of[alive.index(best)]
    return TrainedHead(heads.layers(head), best, tuple(runs), scale)


def _scale_of(features: Tensor) -> float:
    mean_square = float(torch.linalg.vector_norm(features, dtype=torch.float64)) ** 2
    root = math.sqrt(mean_square / max(1, features.numel()))
    smallest = min(_LARGEST, _SHORTEST / math.sqrt(features.shape[1]))
    return root / min(max(root, smallest), _LARGEST) if root > 0 else 1.0


def _check(measured: list[list[float]], epoch: int) -> None:
    if not all(math.isfinite(value) for pair in measured for value in pair):
        raise InputError(
            f"training the head diverged in epoch {epoch}; give a smaller learning_rate, or "
            "standardised features"
        )


def _judge(
    heads: MaskedHeads,
    runs: list[Run],
    head_of: list[int],
    validation: tuple[Tensor, Tensor],
) -> None:
    features, target = validation
    logits = [logits_of(features, heads.layers(head)) for head in range(heads.count)]
    right = [float((found.argmax(1) == target).double().mean()) for found in logits]
    errors = [float(ece(found, target)) for found in logits]
    for run, head in zip(runs, head_of, strict=True):
        run.validation_ece, run.validation_accuracy = errors[head], right[head]


def _ordered(runs: list[Run], rows: int) -> list[Run]:
    """Best first: enough accuracy, then the lowest ECE, then the largest γ."""
    best = max(run.validation_accuracy or 0.0 for run in runs)
    enough = best - max(ACCURACY_LOST, 2.0 * math.sqrt(best * (1.0 - best) / rows))

    def place(run: Run) -> tuple[bool, float, float]:
        assert run.validation_ece is not None
        return ((run.validation_accuracy or 0.0) < enough, run.validation_ece, -run.gamma)

    return sorted(runs, key=place)


def _better_half(runs: list[Run], head_of: list[int], rows: int) -> tuple[list[Run], list[int]]:
    better = _ordered(runs, rows)[: max(1, len(runs) // 2)]
    places = [i for i, run in enumerate(runs) if any(run is one for one in better)]
    return [runs[i] for i in places], [head_of[i] for i in places]


def _parted(
    heads: MaskedHeads, runs: list[Run], head_of: list[int]
) -> tuple[MaskedHeads, list[int]]:
    """A head for each group of runs that were together and still have one sparsity."""
    groups: dict[tuple[int, float], int] = {}
    for run, head in zip(runs, head_of, strict=True):
        groups.setdefault((head, run.sparsity[-1]), len(groups))
    parents = [head for head, _ in groups]
    if parents != list(range(heads.count)):
        heads = heads.select(parents)
    return heads, [groups[head, run.sparsity[-1]] for run, head in zip(runs, head_of, strict=True)]
