"""MaC-Cal's head: the last layers of a network, trained anew on cached features.

One piece of code serves the calibrator `mac_cal_head` and the training recipe. Heads of
several γ are trained side by side on the same batches, masks and first weights: γ whose
sparsity has been the same so far share one head, and a head is copied when they part. The
masks are in `mac_cal_mask`.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from calibrant.calibrators.heads.base import FeatureHead, Held, Tick, check_classes
from calibrant.calibrators.heads.mac_cal_mask import (
    Layers,
    MaskedHeads,
    Settings,
    eta_at,
    logits_of,
    next_sparsity,
)
from calibrant.core.errors import InputError
from calibrant.metrics.toplabel import ece
from calibrant.predictions.split import split_rows

GAMMA = 0.96  # γ without validation rows to choose it on
GAMMAS = (0.90, 0.92, 0.94, 0.95, 0.96, 0.97, 0.98, 0.99, 0.995)
ACCURACY_LOST = 0.01  # a γ is considered if it loses at most this against the best γ
_RUNGS = (0.25, 0.5)  # shares of the epochs after which the worse half of the γ is dropped
_APART = 1_000_003
_STEP, _MORE, _LOWEST = 0.02, 3, 0.5  # by which, and to which, the grid of γ widens
_LARGEST = 1.0  # largest root mean square of features that are not scaled down
_SHORTEST = 3.0  # least root mean square length of rows that are not scaled up


class MacCalHead(FeatureHead):
    """Features ↦ logits by a head trained under random masks (MaC-Cal, stage two; Ni et al.).

    Takes (N,D) features, what the network's own last layer is given, of the rows the network
    was *trained* on, not augmented, and replaces that layer: `attach(extractor, head)`. Masks
    fall on a share s of the weights, anew in every batch (eq. 8 and 9); s follows the gap
    between confidence and γ times accuracy on those rows (eq. 12 and 13); expected weights
    (1−s)·W answer at inference. docs/decisions.md settles what the paper leaves
    open.

    ``summary_`` keeps the trace of s, confidence and accuracy by epoch, the γ chosen and the
    figures of every γ.

    Args:
        gamma: γ of eq. 12. None chooses it from ``gammas`` on the validation rows that `fit` is
            given, by the lowest ECE among those within one point of the best accuracy (or two
            standard errors, if more); without such rows it is 0.96. Default: None
            (docs/decisions.md: the paper does not say).
        gammas: The γ to choose from. None takes 0.9, 0.92, 0.94, 0.95, 0.96, 0.97, 0.98, 0.99 and
            0.995, and more in steps of 0.02 while the choice is the lowest, down to 0.5, or 1 where
            it is the highest; with ``race`` the nine alone. Default: None (ours: on CIFAR-100 102
            of 111 choices among the nine were the lowest).
        race: True drops the worse half of ``gammas`` after a quarter and after half of the
            epochs. It takes less than half the time but is biased: small γ pass through the
            right sparsity early and may be kept for it. The published runs set it.
            Default: False (ours: no bias).
        validation_fraction: The share of the rows held out to choose γ, if `fit` is given no
            validation rows. Only useful if the network was not trained on the rows given.
            Default: None (ours: features of training rows look better than those of new rows).
        num_classes: The number of classes, where the last ones have no rows. Default: None (as
            many as the largest label or the class names need).
        head: ``"bottleneck"`` is linear-ReLU-linear, ``"linear"`` one linear layer. Default:
            'bottleneck' (mac-cal, section 4.1).
        start: ``"fresh"`` weights, or ``"trained"``, those of the network's own classifier, for
            ``head="linear"``: call `begin_from` before `fit`; the recipe `mac_cal` does. Default:
            'fresh' (docs/decisions.md; mac-cal, section 4.1 may be read either way).
        width: The width of the bottleneck; None is 128 for up to 32 classes, else 256. Default:
            None (docs/decisions.md).
        reading: ``"sparsity"``: q of the paper is the share of weights masked; a masked weight
            does not move in that step, by gradient, momentum or decay; Conf, Acc and inference
            use expected weights (1−s)·W. ``"printed"``: q of eq. 8 is the share kept, the mask
            falls on the gradient alone (eq. 11), and Conf, Acc and inference use W unmasked.
            Default: 'sparsity' (docs/decisions.md).
        restrict_gradient: True lets masks stop the update (eq. 11); False passes gradients
            straight through to every weight. Default: True (mac-cal, eq. 11).
        schedule: How the sparsity moves: with ``"decaying"`` η (eq. 13), with ``"constant"`` η,
            or ``"fixed"``. Default: 'decaying' (mac-cal, eq. 13).
        mask_every: ``"batch"`` draws masks for every batch, ``"epoch"`` for every epoch (the text
            of mac-cal, section 4.2). Default: 'batch' (docs/decisions.md).
        sparsity: s_0, the sparsity at the start. Fixed at 0 it is plain retraining of the head.
            Default: 0.5 (docs/decisions.md).
        epochs: The number of epochs. Default: 40 (mac-cal, section 5.1).
        learning_rate: The learning rate of SGD, constant. Default: 0.1 (mac-cal, section 5.1).
        momentum: The momentum of SGD. Default: 0.9 (mac-cal, section 5.1).
        weight_decay: The weight decay, on biases too, as in PyTorch. Default: 0.0005 (mac-cal,
            section 5.1).
        batch_size: Rows in a batch. Default: 128 (mac-cal, section 5.1).
        seed: The seed of first weights, batches and masks. Default: 0 (ours: a fit repeats
            exactly).
    """

    name = "mac_cal_head"

    hidden_weight_: Tensor
    hidden_bias_: Tensor
    weight_: Tensor
    bias_: Tensor

    def __init__(
        self,
        *,
        gamma: float | None = None,
        gammas: Sequence[float] | None = None,
        race: bool = False,
        validation_fraction: float | None = None,
        num_classes: int | None = None,
        head: Literal["bottleneck", "linear"] = "bottleneck",
        start: Literal["fresh", "trained"] = "fresh",
        width: int | None = None,
        reading: Literal["sparsity", "printed"] = "sparsity",
        restrict_gradient: bool = True,
        schedule: Literal["decaying", "constant", "fixed"] = "decaying",
        mask_every: Literal["batch", "epoch"] = "batch",
        sparsity: float = 0.5,
        epochs: int = 40,
        learning_rate: float = 0.1,
        momentum: float = 0.9,
        weight_decay: float = 5e-4,
        batch_size: int = 128,
        seed: int = 0,
    ) -> None:
        super().__init__()
        if gamma is not None and not 0 < gamma <= 1:
            raise InputError(f"gamma must lie in (0, 1], found {gamma!r}")
        if gammas is not None and (not gammas or not all(0 < value <= 1 for value in gammas)):
            raise InputError(f"gammas must be numbers in (0, 1], found {gammas!r}")
        if validation_fraction is not None and not 0 < validation_fraction < 1:
            raise InputError(
                f"validation_fraction must lie between 0 and 1, found {validation_fraction!r}"
            )
        if start not in ("fresh", "trained"):
            raise InputError(f"start must be fresh or trained, found {start!r}")
        if start == "trained" and head != "linear":
            raise InputError("start='trained' begins from one linear layer: give head='linear'")
        self.start: Literal["fresh", "trained"] = start
        self._classifier: tuple[Tensor, Tensor] | None = None
        self.gamma, self.race = gamma, race
        self.gammas = None if gammas is None else tuple(gammas)
        self.mask_every: Literal["batch", "epoch"] = mask_every
        self.validation_fraction, self.num_classes = validation_fraction, check_classes(num_classes)
        self.head: Literal["bottleneck", "linear"] = head
        self.width = width
        self.reading: Literal["sparsity", "printed"] = reading
        self.restrict_gradient = restrict_gradient
        self.schedule: Literal["decaying", "constant", "fixed"] = schedule
        self.sparsity, self.epochs, self.learning_rate = sparsity, epochs, learning_rate
        self.momentum, self.weight_decay = momentum, weight_decay
        self.batch_size, self.seed = batch_size, seed
        self.settings()  # refuses bad ones now
        for key in ("hidden_weight_", "hidden_bias_", "weight_", "bias_"):
            self.register_buffer(key, torch.zeros(0))

    def begin_from(self, classifier: nn.Module) -> None:
        """Take the first weights of ``start="trained"`` from a network's own classifier.

        Args:
            classifier: A linear layer from D features to K classes.
        """
        if not isinstance(classifier, nn.Linear):
            raise InputError(
                f"start='trained' needs a linear classifier, found {type(classifier).__name__}"
            )
        weight = classifier.weight.detach()
        bias = weight.new_zeros(len(weight)) if classifier.bias is None else classifier.bias
        self._classifier = weight.t().clone(), bias.detach().clone()

    def settings(self) -> Settings:
        """Return how it is trained."""
        fields = dataclasses.fields(Settings)
        return Settings(**{field.name: getattr(self, field.name) for field in fields})

    @property
    def input_width(self) -> int:
        """Return D, the number of features of a row."""
        return (self.hidden_weight_ if self.hidden_weight_.numel() else self.weight_).shape[0]

    def _train(
        self, rows: Tensor, labels: Tensor, classes: int, held: Held | None, tick: Tick
    ) -> dict[str, Any]:
        if self.start == "trained" and self._classifier is None:
            raise InputError(
                "start='trained' begins from the network's own classifier: call "
                "begin_from(classifier) before fit"
            )
        choose = train_head if self.gammas is not None or self.race else train_widening
        candidates = self._candidates(held is not None)
        trained = (choose if len(candidates) > 1 else train_head)(
            rows,
            labels,
            classes,
            settings=self.settings(),
            gammas=candidates,
            validation=held,
            race=self.race,
            first=self._classifier if self.start == "trained" else None,
            tick=tick,
        )
        self._take(trained)
        return summarise_training(trained)

    def _map(self, logits: Tensor) -> Tensor:
        last = (self.weight_, self.bias_)
        if self.hidden_weight_.numel() == 0:
            return logits_of(logits, (last,))
        return logits_of(logits, ((self.hidden_weight_, self.hidden_bias_), last))

    def _candidates(self, choosing: bool) -> Sequence[float]:
        if self.gamma is not None:
            return (self.gamma,)
        return (self.gammas or GAMMAS) if choosing and self.schedule != "fixed" else (GAMMA,)

    def _hold_out(self, rows: Tensor, labels: Tensor) -> tuple[Tensor, Tensor, Held | None]:
        if self.validation_fraction is None:
            return rows, labels, None
        strata = labels.cpu().numpy()
        parts: list[np.ndarray[Any, np.dtype[np.int64]]] = list(
            split_rows(len(labels), self.validation_fraction, seed=self.seed, strata=strata)
        )
        validation, training = (torch.from_numpy(part).to(labels.device) for part in parts)
        return rows[training], labels[training], (rows[validation], labels[validation])

    def _take(self, trained: TrainedHead) -> None:
        *hidden, last = trained.layers
        empty = torch.zeros(0, device=last[0].device)
        self.hidden_weight_, self.hidden_bias_ = hidden[0] if hidden else (empty, empty)
        self.weight_, self.bias_ = last


def summarise_training(trained: TrainedHead) -> dict[str, Any]:
    """Return the figures of training, as plain values."""
    chosen = trained.chosen
    table = [
        {
            "gamma": run.gamma,
            "epochs": run.epochs,
            "sparsity": run.sparsity[-2],
            "confidence": run.confidence[-1],
            "accuracy": run.accuracy[-1],
            "validation_ece": run.validation_ece,
            "validation_accuracy": run.validation_accuracy,
            "chosen": run is chosen,
        }
        for run in trained.runs
    ]
    return {
        "gamma": chosen.gamma,
        "sparsity": chosen.sparsity,
        "confidence": chosen.confidence,
        "accuracy": chosen.accuracy,
        "gammas": table,
        "scale": trained.scale,
    }


@dataclass
class GammaRun:
    """One γ: its trace by epoch and, if there are validation rows, its figures on them.

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
    """The result of stage two: layers as (weight (in, out), bias), the γ chosen, every γ's run.

    The layers are those of inference and take features as they were given.
    """

    layers: Layers
    chosen: GammaRun
    runs: tuple[GammaRun, ...]
    scale: float  # the number that features were divided by in training


def train_head(
    features: Tensor,
    target: Tensor,
    num_classes: int,
    *,
    settings: Settings | None = None,
    gammas: Sequence[float] = (GAMMA,),
    validation: tuple[Tensor, Tensor] | None = None,
    race: bool = False,
    first: tuple[Tensor, Tensor] | None = None,
    tick: Callable[[int], None] = lambda epoch: None,
    dtype: torch.dtype = torch.float32,
) -> TrainedHead:
    """Run algorithm 1 of mac-cal on (N,D) features, on their device; return the best γ's head.

    With several γ, the one with the lowest validation ECE (15 bins) is taken, among those whose
    validation accuracy is within one point of the best, or two standard errors of it if that
    is more. Inference uses the sparsity of the last epoch, s_(T−1): what was measured last is
    what is deployed.

    Ours, where the paper is silent: weights and biases start uniform in ±1/√(fan in), as in
    `torch.nn.Linear`; features are divided by one number if their root mean square is above 1
    (it becomes 1, because this learning rate would diverge) or if rows are shorter than 3 (they
    become 3 long in the root mean square, because it would hardly move them).

    Args:
        features: (N,D) features.
        target: (N,) labels.
        num_classes: K.
        settings: How stage two is trained. Default: None (the method's defaults).
        gammas: The γ to train. Default: (0.96,) (docs/decisions.md).
        validation: Features and labels to choose γ on. Default: None (for a single γ).
        race: True drops the worse half of the γ after a quarter of the epochs and again after
            half, by the same rule: nine γ then cost three to four. Default: False (no bias).
        first: Weight (D,K) and bias of a linear head to begin from. Default: None (fresh ones).
        tick: Called with the number of each finished epoch. Default: a function that does
            nothing.
        dtype: The precision of training. Default: torch.float32 (ours: as networks have).
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
    if first is not None:
        heads.set_weights(*first)
    runs = [GammaRun(float(gamma), [how.sparsity]) for gamma in gammas]
    alive, head_of = list(runs), [0] * len(runs)
    rungs = {max(1, round(share * how.epochs)) for share in _RUNGS} if race else set()
    for epoch in range(1, how.epochs + 1):
        # Runs that share a head have had the same sparsity, so any of them knows it.
        sparsities = [alive[head_of.index(head)].sparsity[-1] for head in range(heads.count)]
        heads.train_epoch(features, target, sparsities, generator)
        measured = heads.measure(features, target).tolist()
        _check_finite(measured, epoch)
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
            _validate(heads, alive, head_of, validation)
            if not last:
                alive, head_of = _better_half(alive, head_of, len(validation[1]))
        if not last:
            heads, head_of = _part_heads(heads, alive, head_of)
    best = alive[0] if validation is None else _order_runs(alive, len(validation[1]))[0]
    head = head_of[alive.index(best)]
    return TrainedHead(heads.layers(head), best, tuple(runs), scale)


def train_widening(
    features: Tensor,
    target: Tensor,
    num_classes: int,
    *,
    gammas: Sequence[float] = GAMMAS,
    validation: tuple[Tensor, Tensor] | None = None,
    **how: Any,
) -> TrainedHead:
    """Train as `train_head` does, with further γ while the choice lies at the grid's edge.

    Args:
        features: (N,D) features.
        target: (N,) labels.
        num_classes: K.
        gammas: The γ to begin with. Default: nine from 0.9 to 0.995 (`MacCalHead`).
        validation: Features and labels to choose γ on. Default: None (`train_head` then refuses).
        how: Further options of `train_head`.
    """
    trained = train_head(features, target, num_classes, gammas=gammas, validation=validation, **how)
    assert validation is not None
    tried = sorted(gammas)
    while more := _list_beyond(tried, trained.chosen.gamma):
        beyond = train_head(
            features, target, num_classes, gammas=more, validation=validation, **how
        )
        runs = (*trained.runs, *beyond.runs)
        # γ that were trained to the end are judged together, by the same rule.
        best = _order_runs(list(runs), len(validation[1]))[0]
        layers = trained.layers if best.gamma == trained.chosen.gamma else beyond.layers
        if best.gamma not in (trained.chosen.gamma, beyond.chosen.gamma):
            again = train_head(
                features, target, num_classes, gammas=[best.gamma], validation=validation, **how
            )
            layers = again.layers
        trained = TrainedHead(layers, best, runs, trained.scale)
        tried = sorted([*tried, *more])
    return trained


def _list_beyond(tried: Sequence[float], chosen: float) -> list[float]:
    """List the γ to add where the choice is the lowest or the highest of those tried."""
    if chosen == tried[0]:
        lower = [round(chosen - _STEP * place, 4) for place in range(1, _MORE + 1)]
        return [gamma for gamma in lower if gamma >= _LOWEST]
    return [1.0] if chosen == tried[-1] < 1.0 else []


def _scale_of(features: Tensor) -> float:
    mean_square = float(torch.linalg.vector_norm(features, dtype=torch.float64)) ** 2
    root = math.sqrt(mean_square / max(1, features.numel()))
    smallest = min(_LARGEST, _SHORTEST / math.sqrt(features.shape[1]))
    return root / min(max(root, smallest), _LARGEST) if root > 0 else 1.0


def _check_finite(measured: list[list[float]], epoch: int) -> None:
    if not all(math.isfinite(value) for pair in measured for value in pair):
        raise InputError(
            f"training the head diverged in epoch {epoch}; give a smaller learning_rate, or "
            "standardised features"
        )


def _validate(
    heads: MaskedHeads,
    runs: list[GammaRun],
    head_of: list[int],
    validation: tuple[Tensor, Tensor],
) -> None:
    features, target = validation
    logits = [logits_of(features, heads.layers(head)) for head in range(heads.count)]
    right = [float((scores.argmax(1) == target).double().mean()) for scores in logits]
    errors = [float(ece(scores, target)) for scores in logits]
    for run, head in zip(runs, head_of, strict=True):
        run.validation_ece, run.validation_accuracy = errors[head], right[head]


def _order_runs(runs: list[GammaRun], rows: int) -> list[GammaRun]:
    """Sort runs, best first: enough accuracy, then the lowest ECE, then the largest γ."""
    best = max(run.validation_accuracy or 0.0 for run in runs)
    enough = best - max(ACCURACY_LOST, 2.0 * math.sqrt(best * (1.0 - best) / rows))

    def place(run: GammaRun) -> tuple[bool, float, float]:
        assert run.validation_ece is not None
        ece = round(run.validation_ece, 6)  # heads trained side by side differ by rounding
        return ((run.validation_accuracy or 0.0) < enough, ece, -run.gamma)

    return sorted(runs, key=place)


def _better_half(
    runs: list[GammaRun], head_of: list[int], rows: int
) -> tuple[list[GammaRun], list[int]]:
    better = _order_runs(runs, rows)[: max(1, len(runs) // 2)]
    places = [i for i, run in enumerate(runs) if any(run is candidate for candidate in better)]
    return [runs[i] for i in places], [head_of[i] for i in places]


def _part_heads(
    heads: MaskedHeads, runs: list[GammaRun], head_of: list[int]
) -> tuple[MaskedHeads, list[int]]:
    """Give a head to each group of runs that shared one and still have the same sparsity."""
    groups: dict[tuple[int, float], int] = {}
    for run, head in zip(runs, head_of, strict=True):
        groups.setdefault((head, run.sparsity[-1]), len(groups))
    parents = [head for head, _ in groups]
    if parents != list(range(heads.count)):
        heads = heads.select(parents)
    return heads, [groups[head, run.sparsity[-1]] for run, head in zip(runs, head_of, strict=True)]
