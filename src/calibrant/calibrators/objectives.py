"""What a calibrator's fit makes small: one interface for every objective of methods by name.

Every objective is a function of a few numbers a row (`Rows`), so one engine streams them
all (see `descent`). There are three kinds: a *smooth* one gives a loss to minimise; a
*reweighted* one gives each row a weight that is held constant under the derivative, so that
its fit is the root of Σ_n w_n ∂(−ln p_y), a fixed point and not a minimum; a *searched* one
has no gradient.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from calibrant.functional.errors import InputError
from calibrant.losses.focal import focal_weight
from calibrant.losses.label_smoothing import smoothed
from calibrant.losses.sb_ece import soft_binned_error
from calibrant.metrics.toplabel import ece

if TYPE_CHECKING:
    from calibrant.calibrators.descent import Problem


class Rows(NamedTuple):
    """What objectives need of each row after a calibrator's map, float64."""

    log_true: Tensor  # ln p_y
    log_mean: Tensor  # (1/K) Σ_k ln p_k
    confidence: Tensor  # max_k p_k
    correct: Tensor  # 1[ŷ = y]
    target: Tensor  # y


def rows_after(mapped: Tensor, target: Tensor) -> Rows:
    """The rows of mapped (N,K) logits or log-probabilities."""
    log_probs = torch.log_softmax(mapped, dim=1)
    best, predicted = log_probs.max(1)
    log_true = log_probs.gather(1, target.unsqueeze(1)).squeeze(1)
    return Rows(log_true, log_probs.mean(1), best.exp(), predicted == target, target)


class Objective:
    """The common interface; subclasses give `loss`, `weights` or `value` by their kind."""

    name: ClassVar[str]
    kind: ClassVar[str] = "smooth"  # or "reweighted" or "searched"

    def prepare(self, problem: Problem) -> None:
        """Settle what is settled once, at temperature 1, before the fit."""

    def loss(self, rows: Rows) -> Tensor:
        """The mean loss, to be minimised."""
        raise NotImplementedError

    def weights(self, rows: Rows) -> Tensor:
        """Weights of the rows' cross-entropies at this point."""
        raise NotImplementedError

    def value(self, mapped: Tensor, target: Tensor) -> float:
        """The value at mapped logits, for a search without gradients."""
        raise NotImplementedError

    def facts(self) -> dict[str, float]:
        """Numbers the fit settled, for the calibrator to keep."""
        return {}


class NegativeLogLikelihood(Objective):
    """mean −ln p_y: the default."""

    name = "nll"

    def loss(self, rows: Rows) -> Tensor:
        """−ln p_y."""
        return -rows.log_true.mean()


class Balanced(Objective):
    """The mean over classes of their mean −ln p_y: a class counts the same, whatever its rows.

    For rows at hand that have a long tail, and rows to come that do not. It is `class_scaled`
    (class-scaling eq. 8, over the classes present) with its w_i left at 0: what those add.
    """

    name = "balanced"

    def loss(self, rows: Rows) -> Tensor:
        """−ln p_y over the rows of its class and the classes present."""
        counts = torch.bincount(rows.target)
        present = torch.count_nonzero(counts)
        return -(rows.log_true / counts[rows.target]).sum() / present


class Focal(Objective):
    """mean −(1−p_y)^γ ln p_y, the gradient flowing through the weight."""

    name = "focal"

    def __init__(self, *, gamma: float = 3.0) -> None:
        self.gamma = gamma

    def loss(self, rows: Rows) -> Tensor:
        """See `losses.focal`."""
        return -(focal_weight(rows.log_true, self.gamma) * rows.log_true).mean()


class DetachedFocal(Objective):
    """Focal with its weight held constant, as the code of class-scaling fits it."""

    name = "focal"
    kind = "reweighted"

    def __init__(self, *, gamma: float = 3.0) -> None:
        self.gamma = gamma

    def weights(self, rows: Rows) -> Tensor:
        """(1−p_y)^γ."""
        return focal_weight(rows.log_true, self.gamma)


class LabelSmoothing(Objective):
    """Cross-entropy against (1−ε)·onehot + ε/K (acls eq. 4)."""

    name = "label_smoothing"

    def __init__(self, *, smoothing: float = 0.05) -> None:
        if not 0 <= smoothing < 1:
            raise InputError(f"smoothing lies in [0, 1), found {smoothing!r}")
        self.smoothing = smoothing

    def loss(self, rows: Rows) -> Tensor:
        """See `losses.label_smoothing`."""
        return smoothed(rows.log_true, rows.log_mean, self.smoothing).mean()


class SoftBinned(Objective):
    """SB-ECE, form `bin` (TS-SB-ECE of soft-calibration; eq. 11).

    The paper leaves the membership's T open; 0.001 makes bins of about their own width.
    """

    name = "sb_ece"

    def __init__(
        self,
        *,
        form: str = "bin",
        num_bins: int = 15,
        temperature: float = 0.001,
        order: float = 2.0,
    ) -> None:
        self.form, self.num_bins = form, num_bins
        self.temperature, self.order = temperature, order
        zero = torch.zeros(1)
        self.loss(Rows(zero, zero, zero, zero, zero))  # refuses bad options now

    def loss(self, rows: Rows) -> Tensor:
        """See `losses.sb_ece`."""
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

    Which ECE is said by the options of `calibrant.metrics.ece`. It is minimised on the rows
    `fit` is given: on the training set that is r-aurc's choice of T, on a validation set acls's.
    """

    name = "ece"
    kind = "searched"

    def __init__(
        self, *, num_bins: int = 15, order: float = 1, binning: str = "width", form: str = "bin"
    ) -> None:
        self.options: dict[str, Any] = {
            "num_bins": num_bins,
            "order": order,
            "binning": binning,
            "form": form,
        }
        self.value(torch.zeros(1, 2), torch.zeros(1, dtype=torch.int64))  # refuses bad options now

    def value(self, mapped: Tensor, target: Tensor) -> float:
        """ECE of the mapped logits."""
        return float(ece(mapped, target, **self.options))


OBJECTIVES = ("nll", "balanced", "focal", "label_smoothing", "sb_ece", "ece", "class_scaled")


def get_objective(name: str, options: dict[str, Any] | None = None) -> Objective:
    """A fresh objective by name, with its options."""
    from calibrant.calibrators.class_scaled import ClassScaled

    given = dict(options or {})
    kinds: dict[str, type[Objective]] = {
        "nll": NegativeLogLikelihood,
        "balanced": Balanced,
        "focal": DetachedFocal if given.pop("detach_weight", False) else Focal,
        "label_smoothing": LabelSmoothing,
        "sb_ece": SoftBinned,
        "ece": HardBinned,
        "class_scaled": ClassScaled,
    }
    if name not in kinds:
        raise InputError(f"no objective is called {name!r}; there are {', '.join(OBJECTIVES)}")
    if name != "focal" and "detach_weight" in (options or {}):
        raise InputError("detach_weight is an option of focal alone")
    try:
        return kinds[name](**given)
    except TypeError as error:
        raise InputError(f"objective {name!r}: {error}") from None
