"""Objectives: what the fit of a calibrator minimises, one interface for all, by name.

Every objective is a function of a few numbers of each row (`Rows`), so one `Problem` streams
them all. There are three kinds. A *smooth* objective is a loss to minimise. A *reweighted*
objective gives each row a weight that is held constant under the derivative: its fit is the
root of Σ_n w_n ∂(−ln p_y), a fixed point and not a minimum. A *searched* objective has no
gradient.
"""

from __future__ import annotations

import math
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from calibrant.calibrators.solvers.problem import Problem, Rows
from calibrant.core.errors import InputError
from calibrant.losses.focal import focal_weight
from calibrant.losses.label_smoothing import smooth_cross_entropy
from calibrant.losses.sb_ece import soft_binned_error
from calibrant.metrics.toplabel import ece

# Of class scaling (class-scaling, ICML 2023).
START = (1.0, 1.5)  # α, β (section 5.1)
FIRST_STEP = 0.02
NORMALISATIONS = ("nd", "mm", "cm")
ESTIMATES = ("printed", "corrected")


class Objective:
    """The common interface; subclasses give `loss`, `weights` or `value` by their kind."""

    name: ClassVar[str]
    kind: ClassVar[str] = "smooth"  # or "reweighted" or "searched"
    max_likelihood_loss: float | None = None  # see `SoftBinned`

    def prepare(self, problem: Problem) -> None:
        """Settle what is settled once, at temperature 1, before the fit."""

    def loss(self, rows: Rows) -> Tensor:
        """Return the mean loss, to be minimised."""
        raise NotImplementedError

    def weights(self, rows: Rows) -> Tensor:
        """Return the weights of the rows' cross-entropies at this point."""
        raise NotImplementedError

    def row_weights(self, rows: Rows) -> Tensor:
        """Return `weights`, times those of the rows themselves."""
        weights = self.weights(rows)
        return weights if rows.weights is None else weights * rows.weights

    def value(self, mapped: Tensor, target: Tensor) -> float:
        """Return the value at mapped logits, for a search without gradients."""
        raise NotImplementedError

    def facts(self) -> dict[str, float]:
        """Return the numbers that the fit settled, for the calibrator to keep."""
        return {}


class NegativeLogLikelihood(Objective):
    """Mean −ln p_y: the default."""

    name = "nll"

    def loss(self, rows: Rows) -> Tensor:
        """Return the mean of −ln p_y."""
        return -rows.mean(rows.log_true)


class Balanced(Objective):
    """The mean over classes of their mean −ln p_y: every class counts the same.

    For a fit on rows with a long tail, where rows to come have none. It is `class_scaled`
    (class-scaling eq. 8, over the classes present) with every w_i = 0, so comparing the two
    shows what the w_i add.
    """

    name = "balanced"

    def loss(self, rows: Rows) -> Tensor:
        """Return the mean over the classes present of the mean −ln p_y of their rows."""
        counts = torch.bincount(rows.target, rows.weights)
        present = torch.count_nonzero(counts)
        shares = rows.log_true if rows.weights is None else rows.log_true * rows.weights
        return -(shares / counts[rows.target]).sum() / present


class Focal(Objective):
    """Mean −(1−p_y)^γ ln p_y, the gradient flowing through the weight.

    Args:
        gamma: γ, the exponent of the weight. Default: 3.0 (docs/decisions.md).
    """

    name = "focal"

    def __init__(self, *, gamma: float = 3.0) -> None:
        self.gamma = gamma

    def loss(self, rows: Rows) -> Tensor:
        """Return the mean focal loss; see `losses.focal`."""
        return -rows.mean(focal_weight(rows.log_true, self.gamma) * rows.log_true)


class DetachedFocal(Focal):
    """Focal with its weight held constant, as the code of class-scaling fits it.

    Args:
        gamma: γ, the exponent of the weight. Default: 3.0 (docs/decisions.md).
    """

    kind = "reweighted"

    def weights(self, rows: Rows) -> Tensor:
        """Return (1−p_y)^γ of each row."""
        return focal_weight(rows.log_true, self.gamma)


class LabelSmoothing(Objective):
    """Cross-entropy against (1−ε)·onehot + ε/K (acls eq. 4).

    Args:
        smoothing: ε, the share spread over all classes. Default: 0.05 (docs/decisions.md).
    """

    name = "label_smoothing"

    def __init__(self, *, smoothing: float = 0.05) -> None:
        if not 0 <= smoothing < 1:
            raise InputError(f"smoothing lies in [0, 1), found {smoothing!r}")
        self.smoothing = smoothing

    def loss(self, rows: Rows) -> Tensor:
        """Return the mean smoothed loss; see `losses.label_smoothing`."""
        return rows.mean(smooth_cross_entropy(rows.log_true, rows.log_mean, self.smoothing))


def _check_share(share: float | None) -> float | None:
    if share is not None and not 0 <= share < math.inf:
        raise InputError(f"max_likelihood_loss is a share of at least 0, or None, found {share!r}")
    return share


class SoftBinned(Objective):
    """SB-ECE, form `bin` (TS-SB-ECE of soft-calibration; eq. 11).

    Args:
        form: ``"bin"`` (eq. 11) or ``"label"`` (eq. 12). Default: 'bin' (docs/decisions.md).
        num_bins: The number of equal-width bins. Default: 15 (docs/decisions.md).
        temperature: T of the membership. Default: 0.001 (ours: the paper leaves it open, and
            0.001 makes bins of about their own width).
        order: p of the error's p-norm. Default: 2.0 (soft-calibration, eq. 11).
        max_likelihood_loss: For `temperature` alone: the share by which T may raise the negative
            log-likelihood of the fit's own rows above that at T = 1, such as 0.01. The error is
            also small where every row is certain, whatever the labels, and its exact minimum may
            lie there. Where the bound decides T, the fit warns and ``facts_`` says so. Default:
            None (soft-calibration, section 4.3: the minimum).
    """

    name = "sb_ece"

    def __init__(
        self,
        *,
        form: str = "bin",
        num_bins: int = 15,
        temperature: float = 0.001,
        order: float = 2.0,
        max_likelihood_loss: float | None = None,
    ) -> None:
        self.max_likelihood_loss = _check_share(max_likelihood_loss)
        self.form, self.num_bins = form, num_bins
        self.temperature, self.order = temperature, order
        zero = torch.zeros(1)
        self.loss(Rows(zero, zero, zero, zero, zero))  # refuses bad options now

    def loss(self, rows: Rows) -> Tensor:
        """Return the soft-binned error; see `losses.sb_ece`."""
        return soft_binned_error(
            rows.confidence,
            rows.correct,
            form=self.form,
            num_bins=self.num_bins,
            temperature=self.temperature,
            order=self.order,
        )


class HardBinned(Objective):
    """The hard-binned ECE (TS-HB-ECE, soft-calibration appendix C), by search alone.

    It is minimised on the rows that `fit` is given: on the training set that is how r-aurc
    chooses T, on a validation set how acls does.

    Args:
        num_bins: The number of bins. Default: 15 (`calibrant.metrics.ece`).
        order: The order of the error. Default: 1 (`calibrant.metrics.ece`).
        binning: ``"width"`` or ``"mass"``. Default: 'width' (`calibrant.metrics.ece`).
        form: ``"bin"`` or ``"label"``. Default: 'bin' (`calibrant.metrics.ece`).
        max_likelihood_loss: As of `SoftBinned`. Default: None (soft-calibration, appendix C: the
            minimum).
    """

    name = "ece"
    kind = "searched"

    def __init__(
        self,
        *,
        num_bins: int = 15,
        order: float = 1,
        binning: str = "width",
        form: str = "bin",
        max_likelihood_loss: float | None = None,
    ) -> None:
        self.max_likelihood_loss = _check_share(max_likelihood_loss)
        self.options: dict[str, Any] = {
            "num_bins": num_bins,
            "order": order,
            "binning": binning,
            "form": form,
        }
        self.value(torch.zeros(1, 2), torch.zeros(1, dtype=torch.int64))  # refuses bad options now

    def value(self, mapped: Tensor, target: Tensor) -> float:
        """Return the ECE of the mapped logits."""
        return float(ece(mapped, target, **self.options))


class ClassScaled(Objective):
    """Σ_i (1 + w_i) L_i over the classes present (eq. 8), w_i constant under the derivative.

    L_i is the mean cross-entropy of class i (eq. 3 prints a sum), L̄_i its normalised value
    (`nd` eq. 9 with the unbiased deviation, `mm` eq. 10, `cm` eq. 11) and
    w_i = β/(1 + exp(−L̄_i/α)) − β/2 (eq. 5), so that classes that lose more weigh more. The
    fit is the root of Σ (1 + w_i) L_i′. Classes without rows are left out.

    α and β are settled once by SLSQP after the first step from T = 1 (one step of L-BFGS at
    rate 0.02: against the gradient g, of length 0.02·min(1, 1/|g|₁)·|g|), so that the
    estimated spread of the class losses after it, √Σ (E_i − mean L¹)², is least. Bounds:
    α in [0.1, max(0.1, ln(K)/2)], β in [1.5, 2].

    Args:
        estimate: ``"printed"``: E_i = L⁰_i − w_i (L¹_i − L⁰_i), eq. 6 as printed;
            ``"corrected"``: E_i = L⁰_i + (1 + w_i)(L¹_i − L⁰_i), the first-order prediction.
            Default: 'printed' (class-scaling, eq. 6).
        normalisation: ``"nd"``, ``"mm"`` or ``"cm"``. Default: 'nd' (class-scaling, table 3).
        alpha: α, given together with β; None settles both as above. Default: None
            (class-scaling, section 4).
        beta: β, given together with α; None settles both. Default: None (class-scaling,
            section 4).
    """

    name = "class_scaled"
    kind = "reweighted"

    def __init__(
        self,
        *,
        estimate: str = "printed",
        normalisation: str = "nd",
        alpha: float | None = None,
        beta: float | None = None,
    ) -> None:
        if estimate not in ESTIMATES:
            raise InputError(f"estimate is printed or corrected, found {estimate!r}")
        if normalisation not in NORMALISATIONS:
            raise InputError(f"normalisation is nd, mm or cm, found {normalisation!r}")
        if (alpha is None) != (beta is None):
            raise InputError("give alpha and beta together, or neither")
        self.estimate, self.normalisation = estimate, normalisation
        self.fixed = alpha is not None
        self.alpha = START[0] if alpha is None else alpha
        self.beta = START[1] if beta is None else beta
        if self.alpha <= 0:
            raise InputError(f"alpha must be positive, found {self.alpha!r}")

    def prepare(self, problem: Problem) -> None:
        """Settle α and β.

        Args:
            problem: The fit in ln T; at T = 1, ∂/∂ln T equals ∂/∂T.
        """
        if self.fixed:
            return
        bounds = bounds_of(problem.num_classes)
        self.alpha, self.beta = (
            min(max(value, low), high) for value, (low, high) in zip(START, bounds, strict=True)
        )
        start = np.zeros(problem.size)
        rows = problem.rows(start)
        before, _ = class_losses(rows)
        # The paper's total is a sum over classes, where `weights` gives their mean.
        weights = self.weights(rows) * len(before)
        _, gradient = problem.weighted_gradient(start, weights)
        length = FIRST_STEP * min(1.0, 1.0 / max(float(np.abs(gradient).sum()), 1e-300))
        after, _ = class_losses(problem.rows(np.log(1.0 - length * gradient)))
        self.alpha, self.beta = settle_weights(
            before.cpu().numpy(),
            after.cpu().numpy(),
            normalise(after, self.normalisation).cpu().numpy(),
            bounds=bounds,
            start=(self.alpha, self.beta),
            estimate=self.estimate,
        )

    def weights(self, rows: Rows) -> Tensor:
        """Return (1 + w_i) of each row's class, divided by its rows and the classes present."""
        losses, index = class_losses(rows)
        scaled = 1.0 + class_weights(normalise(losses, self.normalisation), self.alpha, self.beta)
        counts = torch.bincount(index, minlength=len(losses))
        return (scaled / (counts * len(losses)))[index]

    def facts(self) -> dict[str, float]:
        """Return α and β."""
        return {"alpha": self.alpha, "beta": self.beta}


def bounds_of(num_classes: int) -> tuple[tuple[float, float], tuple[float, float]]:
    """Return the bounds of α and those of β."""
    return (0.1, max(0.1, math.log(num_classes) / 2)), (1.5, 2.0)


def class_losses(rows: Rows) -> tuple[Tensor, Tensor]:
    """Return the mean cross-entropy of each class present, and each row's index among those."""
    present, index = torch.unique(rows.target, return_inverse=True)
    total = torch.zeros(len(present), dtype=torch.float64, device=rows.target.device)
    total.index_add_(0, index, -rows.log_true.detach().double())
    return total / torch.bincount(index, minlength=len(present)), index


def normalise(losses: Tensor, how: str) -> Tensor:
    """Return L̄ by `nd`, `mm` or `cm`; 0 where the classes do not differ."""
    if len(losses) < 2 or bool(losses.max() - losses.min() <= 1e-12 * losses.abs().max()):
        return torch.zeros_like(losses)
    reach = losses.std() if how == "nd" else losses.max() - losses.min()
    return (losses - (losses.min() if how == "mm" else losses.mean())) / reach


def class_weights(normalised: Tensor, alpha: float, beta: float) -> Tensor:
    """Return w_i = β/(1 + exp(−L̄_i/α)) − β/2 (eq. 5)."""
    return beta * torch.sigmoid(normalised / alpha) - beta / 2


def settle_weights(
    before: NDArray[np.float64],
    after: NDArray[np.float64],
    normalised: NDArray[np.float64],
    *,
    bounds: tuple[tuple[float, float], tuple[float, float]],
    start: tuple[float, float],
    estimate: str,
) -> tuple[float, float]:
    """Return α and β of least estimated spread (eq. 6), by SLSQP with the exact gradient."""
    from scipy.optimize import minimize
    from scipy.special import expit

    change = after - before
    base = before if estimate == "printed" else after
    sign = -1.0 if estimate == "printed" else 1.0
    # In units of the change: after one short step it is small beside the losses.
    unit = float(np.abs(change).max()) or 1.0
    offset, change = (base - after.mean()) / unit, change / unit
    size = float(np.linalg.norm(offset)) or 1.0

    def spread(logs: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
        alpha, beta = logs
        share = expit(normalised / alpha)
        gap = offset + sign * (beta * share - beta / 2) * change
        # Only the excess over the norm without weights, so that no digits are lost beside `size`.
        norm = max(float(np.linalg.norm(gap)), 1e-300)
        excess = float(np.sum((gap - offset) * (gap + offset))) / (norm + size)
        by_alpha = sign * change * beta * share * (1 - share) * (-normalised / alpha**2)
        by_beta = sign * change * (share - 0.5)
        return excess, np.array([gap @ by_alpha, gap @ by_beta]) / norm

    solution = minimize(
        spread,
        np.array(start),
        jac=True,
        bounds=bounds,
        method="SLSQP",
        options={"ftol": 1e-12, "maxiter": 200},
    )
    alpha, beta = (
        float(np.clip(value, low, high))
        for value, (low, high) in zip(solution.x, bounds, strict=True)
    )
    return alpha, beta


WEIGHTED = ("nll", "balanced", "focal", "label_smoothing")  # those that can weigh rows
OBJECTIVES = ("nll", "balanced", "focal", "label_smoothing", "sb_ece", "ece", "class_scaled")


def get_objective(name: str, options: dict[str, Any] | None = None) -> Objective:
    """Return a fresh objective by name, with its options.

    Args:
        name: One of `OBJECTIVES`.
        options: Options of the objective; ``detach_weight=True`` holds the weight of focal
            constant. Default: None (no option).
    """
    remaining = dict(options or {})
    kinds: dict[str, type[Objective]] = {
        "nll": NegativeLogLikelihood,
        "balanced": Balanced,
        "focal": DetachedFocal if remaining.pop("detach_weight", False) else Focal,
        "label_smoothing": LabelSmoothing,
        "sb_ece": SoftBinned,
        "ece": HardBinned,
        "class_scaled": ClassScaled,
    }
    if name not in kinds:
        raise InputError(f"no objective is called {name!r}; choose one of {', '.join(OBJECTIVES)}")
    if name != "focal" and "detach_weight" in (options or {}):
        raise InputError("detach_weight is an option of the objective focal only")
    try:
        return kinds[name](**remaining)
    except TypeError as error:
        raise InputError(f"objective {name!r}: {error}") from None
