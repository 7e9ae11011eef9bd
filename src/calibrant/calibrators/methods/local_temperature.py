"""Local temperature scaling: a temperature for each pixel, from the logits around it."""

from __future__ import annotations

import math
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.nn.functional import conv2d, cross_entropy, pad

from calibrant.calibrators.base import Calibrator, rows_of, to_logits
from calibrant.calibrators.methods.temperature import fit_temperature
from calibrant.calibrators.solvers.problem import COLDEST, HOTTEST
from calibrant.core.errors import InputError
from calibrant.functional.arrays import Array, to_tensor
from calibrant.metrics.base import compute_all
from calibrant.metrics.means import accuracy_measure, nll_measure
from calibrant.predictions import Predictions

L = TypeVar("L", bound="LocalTemperature")
Patches = tuple[Tensor, ...]  # logits, log-probabilities and labels

DECAYS = (0.01, 0.1, 1.0, 10.0)  # tried, beside a single temperature
_PATCH = 32  # side of the patches the network is fitted on
_PIXELS = 1 << 18  # of all patches; if there are more, some are drawn
_REACH = 3.0  # |ln T(x) − ln T| stays below this
_KERNEL = 3
_NOWHERE = -(1 << 40)  # marks pixels that do not count


class LocalTemperature(Calibrator):
    """z(x) ↦ z(x) / T(x) at each pixel x of (N,K,H,W) logits (LTS, Ding et al. 2021).

    ln T(x) = ln T + 3·tanh(g(x)/3), where g is two 3×3 convolutions with a tanh between,
    over the standardised log-probabilities, and T the best single temperature. The published
    tree of convolutions also reads the image; this one reads only the logits. g starts at 0
    and is fitted by L-BFGS with weight decay, so that the likelihood on the patches used
    (at most 262,144 pixels, from all images) is never below temperature's. Seeds are fixed.
    All logits of a pixel are divided by one positive number, so every prediction is kept. Not
    for (N,K) logits, which have no neighbours.

    Args:
        hidden: The channels between the two convolutions. Default: 6 (ours: more overfit).
        decay: The weight decay. None takes the one, of 0.01 to 10, with which a fit on the first
            half of the images has the highest likelihood on the second half and the reverse, in
            the order given (so that frames of one film stay together); if none beats T alone,
            T(x) = T, and ``facts_`` keeps the choice. Default: None (ours: images differ more
            than pixels, and a fit to some may harm others).
        iterations: The largest number of L-BFGS iterations. Default: 40 (ours: later ones
            change little).
        from_logits: False if scores are probabilities, not logits. Default: True (ours: logits
            keep digits that probabilities lose).
    """

    name = "local_temperature"
    preserves_predictions = True
    dense_only = True

    centre_: Tensor
    scale_: Tensor
    base_: Tensor
    first_weight_: Tensor
    first_bias_: Tensor
    second_weight_: Tensor
    second_bias_: Tensor

    def __init__(
        self,
        *,
        hidden: int = 6,
        decay: float | None = None,
        iterations: int = 40,
        from_logits: bool = True,
    ) -> None:
        super().__init__(from_logits=from_logits)
        if hidden < 1 or iterations < 1 or not (decay is None or decay >= 0):
            raise InputError(
                "hidden and iterations must be at least 1 and decay not negative, found "
                f"{hidden}, {iterations} and {decay}"
            )
        self.hidden, self.decay, self.iterations = hidden, decay, iterations
        self.facts_: dict[str, float] = {}
        for name in ("centre_", "scale_", "base_", *_WEIGHTS):
            self.register_buffer(name, torch.zeros(0))

    def fit(
        self: L,
        logits: Array | Predictions,
        target: Array | None = None,
        *,
        ignore_index: int | None = None,
        weights: Array | None = None,
        clusters: Array | None = None,
        task: str = "classes",
        absent: bool = False,
    ) -> L:
        """Fit on held-out (N,K,H,W) logits and (N,H,W) labels, NumPy or torch.

        Args:
            logits: The scores; or predictions, which bring the rest.
            target: The labels. Default: None (those of the predictions).
            ignore_index: The label of pixels to leave out. Default: None (all count).
            weights: Refused: images count the same. Default: None.
            clusters: Not used: images are split in the order given. Default: None.
            task: Only ``"classes"``. Default: 'classes'.
            absent: Refused. Default: False.
        """
        if isinstance(logits, Predictions):
            self._check_task(logits)
            predictions = logits.in_memory()
            self.class_names_, weights = predictions.class_names, predictions.weights
            task, absent = predictions.task, predictions.num_options is not None
            logits, target = predictions.array, predictions.known_labels
            ignore_index = predictions.ignore_index
        if target is None:
            raise InputError("fit needs labels beside the scores, or Predictions")
        self._check_takes(for_events=task == "events", weighted=weights is not None, absent=absent)
        scores, labels = to_tensor(logits), to_tensor(target)
        _check_dense(scores)
        how: dict[str, Any] = {"from_logits": self.from_logits, "ignore_index": ignore_index}
        nll, accuracy = compute_all([nll_measure(), accuracy_measure()], [(logits, target)], **how)
        rows, row_labels = rows_of(logits, target, **how)
        labels = labels.long().to(scores.device)
        if ignore_index is not None:
            labels = labels.masked_fill(labels == ignore_index, _NOWHERE)
        if not self.from_logits:
            scores = to_logits(scores.double())
        with torch.no_grad():
            self._fit_dense(scores, labels, 1.0 / fit_temperature(rows, row_labels).value)
            self.num_classes_ = torch.tensor(scores.shape[1], device=scores.device)
            after = 0.0
            for i in range(len(scores)):
                part = self._map_dense(scores[i : i + 1].double())
                truth = labels[i : i + 1]
                after += float(cross_entropy(part, truth, ignore_index=_NOWHERE, reduction="sum"))
        self.summary_ = {
            "rows": len(row_labels),
            "classes": scores.shape[1],
            "nll_before": float(nll),
            "accuracy_before": float(accuracy),
            "nll_after": after / len(row_labels),
            "accuracy_after": float(accuracy),
            "changed": 0,
        }
        return self

    def forward(self, logits: Tensor) -> Tensor:
        """Return calibrated logits of (N,K,H,W) scores."""
        self._check_fitted()
        _check_dense(logits)
        self._check_width(logits)
        scores = logits if logits.dtype == torch.float64 else logits.float()
        return self._map_dense(scores if self.from_logits else to_logits(scores))

    def _map_dense(self, logits: Tensor) -> Tensor:
        weights = [getattr(self, name).to(logits) for name in _WEIGHTS]
        inputs = torch.log_softmax(logits, dim=1)
        return logits / temperatures(
            inputs, self.centre_.to(logits), self.scale_.to(logits), self.base_.to(logits), *weights
        )

    def _fit_dense(self, logits: Tensor, labels: Tensor, best: float) -> None:
        scores, wanted, images = cut_patches(logits, labels)
        # The network is fitted in float32: there are many pixels, and its start is exact.
        scores = scores.float()
        inputs = torch.log_softmax(scores, dim=1)
        self.centre_ = inputs.mean((0, 2, 3)).reshape(1, -1, 1, 1)
        self.scale_ = inputs.std((0, 2, 3), correction=0).clamp_min(1e-3).reshape(1, -1, 1, 1)
        self.base_ = torch.tensor(best, dtype=torch.float32, device=scores.device)
        data = (scores, inputs, wanted)
        decay = self._choose_decay(data, images) if self.decay is None else self.decay
        self.facts_ = {"decay": decay} if math.isfinite(decay) else {}
        for name, tensor in zip(_WEIGHTS, self._descend(data, decay), strict=True):
            setattr(self, name, tensor)

    def _choose_decay(self, data: Patches, images: list[int]) -> float:
        """Return the decay whose fit on one half does best on the other; infinite for T alone."""
        halves = [tuple(part[half] for part in data) for half in split_halves(images)]
        if len(halves) < 2:
            return math.inf  # too few patches to judge a network
        losses = {math.inf: sum(self._loss(half, self._start(half)) for half in halves)}
        for decay in DECAYS[::-1]:
            losses[decay] = sum(
                self._loss(rest, self._descend(half, decay))
                for half, rest in (halves, halves[::-1])
            )
        return min(losses, key=losses.__getitem__)

    def _start(self, data: Patches) -> list[Tensor]:
        """Return weights of T(x) = T."""
        classes, device = data[0].shape[1], data[0].device
        shape = (self.hidden, classes, _KERNEL, _KERNEL)
        seeded = torch.Generator().manual_seed(0)
        first = torch.randn(shape, generator=seeded, dtype=torch.float32) / (classes * 9) ** 0.5
        sizes = ((self.hidden,), (1, self.hidden, _KERNEL, _KERNEL), (1,))
        zeros = (torch.zeros(size, dtype=torch.float32, device=device) for size in sizes)
        return [first.to(device), *zeros]

    def _loss(self, data: Patches, weights: list[Tensor]) -> float:
        """Return the summed loss, because the halves may differ in size."""
        return float(self._tempered_loss(data, weights, reduction="sum"))

    def _tempered_loss(
        self, data: Patches, weights: list[Tensor], reduction: str = "mean"
    ) -> Tensor:
        scores, inputs, wanted = data
        divided = scores / temperatures(inputs, self.centre_, self.scale_, self.base_, *weights)
        return cross_entropy(divided, wanted, ignore_index=_NOWHERE, reduction=reduction)

    def _descend(self, data: Patches, decay: float) -> list[Tensor]:
        """Run L-BFGS from temperature; return the weights of the best value seen."""
        weights = self._start(data)
        if math.isinf(decay):
            return weights
        start = weights[0].clone()
        leaves = [tensor.requires_grad_() for tensor in weights]
        options: dict[str, Any] = {"max_iter": self.iterations, "line_search_fn": "strong_wolfe"}
        solver = torch.optim.LBFGS(leaves, tolerance_grad=1e-6, **options)
        best, kept = torch.inf, [tensor.detach().clone() for tensor in leaves]

        def closure() -> Tensor:
            nonlocal best, kept
            solver.zero_grad()
            loss = self._tempered_loss(data, leaves)
            size = (leaves[0] - start).square().sum() + leaves[2].square().sum()
            loss = loss + decay * size
            if float(loss.detach()) < best:
                best, kept = float(loss.detach()), [tensor.detach().clone() for tensor in leaves]
            loss.backward()  # type: ignore[no-untyped-call]
            return loss

        with torch.enable_grad():
            solver.step(closure)  # type: ignore[no-untyped-call]
        return kept


_WEIGHTS = ("first_weight_", "first_bias_", "second_weight_", "second_bias_")


def temperatures(
    inputs: Tensor,
    centre: Tensor,
    scale: Tensor,
    base: Tensor,
    first_weight: Tensor,
    first_bias: Tensor,
    second_weight: Tensor,
    second_bias: Tensor,
) -> Tensor:
    """Return T(x), (N,1,H,W), of log-probabilities; the image's edge is continued outwards."""
    edge = (1, 1, 1, 1)
    hidden = conv2d(pad((inputs - centre) / scale, edge, "replicate"), first_weight, first_bias)
    g = conv2d(pad(torch.tanh(hidden), edge, "replicate"), second_weight, second_bias)
    return (base * torch.exp(_REACH * torch.tanh(g / _REACH))).clamp(COLDEST, HOTTEST)


def cut_patches(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor, list[int]]:
    """Cut patches with a pixel that counts; return logits, labels and each one's image.

    They cover the images to their edges; of too many some are drawn, the same each time.
    """
    high, wide = (min(_PATCH, side) for side in logits.shape[2:])
    corners = [
        (n, i, j)
        for n in range(len(logits))
        for i in _starts(logits.shape[2], high)
        for j in _starts(logits.shape[3], wide)
        if bool((labels[n, i : i + high, j : j + wide] != _NOWHERE).any())
    ]
    if not corners:
        raise InputError("no pixel counts: check whether all labels are ignored")
    most = max(1, _PIXELS // (high * wide))
    if len(corners) > most:
        drawn = torch.randperm(len(corners), generator=torch.Generator().manual_seed(0))[:most]
        corners = [corners[k] for k in sorted(drawn.tolist())]
    cut = [(n, slice(i, i + high), slice(j, j + wide)) for n, i, j in corners]
    return (
        torch.stack([logits[n, :, rows, columns] for n, rows, columns in cut]),
        torch.stack([labels[n, rows, columns] for n, rows, columns in cut]),
        [n for n, _, _ in corners],
    )


def _starts(side: int, size: int) -> list[int]:
    """Return where patches begin along a side, the first and the last at its ends."""
    count = -(-side // size)
    return [k * (side - size) // max(1, count - 1) for k in range(count)]


def split_halves(images: list[int]) -> list[slice]:
    """Return the patches of the first half of the images and of the second.

    >>> split_halves([0, 0, 1, 2, 2, 2])
    [slice(0, 3, None), slice(3, 6, None)]
    """
    count, names = len(images), sorted(set(images))
    several = len(names) > 1
    middle = images.index(names[len(names) // 2 + len(names) % 2]) if several else count // 2
    return [slice(0, middle), slice(middle, count)] if middle else []


def _check_dense(logits: Tensor) -> None:
    if logits.ndim != 4:
        raise InputError(
            "local_temperature is for dense predictions of shape (N, K, H, W), found "
            f"{tuple(logits.shape)}; use temperature or intra_order"
        )
