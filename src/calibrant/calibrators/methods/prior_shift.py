"""Calibrators for rows whose classes have other shares than those that fitted them."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from calibrant.calibrators.base import Calibrator
from calibrant.calibrators.registry import get
from calibrant.core.errors import InputError

ASSUMPTION = (
    "Assumes label shift: the shares of the classes differ, and the rows of each class are as they "
    "were."
)
LEAST_SINGULAR_VALUE = 0.05  # of the confusion matrix
LEVEL = 0.05  # of the fit test
LARGEST_MISFIT = 0.05  # in total variation
_NAMED = 5  # classes that a sentence lists


@dataclass(frozen=True)
class Shift:
    """The shares of classes in the source rows and in the new ones.

    Args:
        how: ``"stated"`` by the user, or estimated by ``"em"``.
        names: The names of the classes; for events "no" and the event.
        source: The share of each class among the source rows.
        target: Its share among the new rows.
        low: The lower end of the interval of each share; empty if they are stated.
        high: The upper end.
        confidence_level: The level of the intervals, each of which holds for itself.
        resamples: The number of bootstrap resamples; 0 if shares are stated.
        bbse: The share of each class by black box shift estimation, beside EM.
        smallest_singular_value: That of the source rows' confusion matrix; None if not computed.
        fit_p_value: The p-value of "label shift explains the new scores"; None if not tested.
        fit_bins: The number of score bins of that test.
        misfit: The total variation between the new scores and the closest that label shift can
            explain, less what chance adds; None if not tested.
        source_rows: The number of source rows; 0 if only their shares are known.
        target_rows: The number of new rows; 0 if shares are stated.
        corrected: Whether the source rows fitted a slope and an intercept a class.
        forced: Whether ``force=True`` let it go on where it would have been refused.
    """

    how: str
    names: tuple[str, ...]
    source: tuple[float, ...]
    target: tuple[float, ...]
    low: tuple[float, ...] = ()
    high: tuple[float, ...] = ()
    confidence_level: float = 0.95
    resamples: int = 0
    bbse: tuple[float, ...] = ()
    smallest_singular_value: float | None = None
    fit_p_value: float | None = None
    fit_bins: int = 0
    misfit: float | None = None
    source_rows: int = 0
    target_rows: int = 0
    corrected: bool = False
    forced: bool = False

    @property
    def largest(self) -> list[int]:
        """Return the classes whose shares changed by the largest factors, largest first."""
        ratio = np.abs(np.log(np.array(self.target) / np.array(self.source)))
        return [int(k) for k in np.argsort(-ratio, kind="stable")]

    @property
    def moved(self) -> list[int]:
        """Return the classes whose interval leaves out the source share, largest factor first."""
        if not self.low:
            return [k for k in self.largest if not np.isclose(self.target[k], self.source[k])]
        return [k for k in self.largest if not self.low[k] <= self.source[k] <= self.high[k]]

    def describe_class(self, k: int) -> str:
        """Say how the share of one class differs.

        Args:
            k: The class.
        """
        now = _percent(self.target[k])
        if self.low:
            now += f" ({_percent(self.low[k])} to {_percent(self.high[k])})"
        name = f"class {self.names[k]}" if self.names[k].isdigit() else self.names[k]
        return f"{name} {now} instead of {_percent(self.source[k])}"

    @property
    def sentences(self) -> tuple[str, ...]:
        """Return what the shift is, how that is known, and what to doubt; the assumption first."""
        events = len(self.names) == 2
        shown = [1] if events else self.largest[:_NAMED]
        listed = "; ".join(self.describe_class(k) for k in shown)
        others = "" if len(shown) >= len(self.names) - 1 else "; the others by smaller factors"
        sentences = [ASSUMPTION]
        if self.how == "stated":
            sentences.append(f"As stated, the shares are: {listed}{others}.")
            return tuple(sentences)
        level = f"{100 * self.confidence_level:g}%"
        separately = "" if events else ", each by itself"
        sentences.append(
            f"Estimated by EM from {self.target_rows:,} new rows without labels: {listed}{others} "
            f"({level} intervals{separately})."
        )
        if not self.moved:
            sentences.append("No share differs from its source share by more than chance explains.")
        if self.fit_p_value is None:
            sentences.append("Whether label shift explains the new scores could not be tested.")
        elif self.fit_p_value < LEVEL:
            sentences.append(
                f"Label shift does not explain the new scores (p = {_p_value(self.fit_p_value)}; "
                f"misfit {_percent(self.misfit or 0.0)} of the rows): something else changed too, "
                "and the shares may be wrong."
            )
        else:
            sentences.append(
                f"Label shift explains the new scores (p = {_p_value(self.fit_p_value)})."
            )
        value = self.smallest_singular_value
        if value is not None and value < LEAST_SINGULAR_VALUE:
            sentences.append(
                f"The scores hardly tell some classes apart (smallest singular value {value:.3f}): "
                "their shares are guesses."
            )
        return tuple(sentences)


class PriorShift(Calibrator):
    """z ↦ a·c(z) + b + ln(π_t/π_s): a calibrator c, corrected, for classes with other shares.

    Made by `calibrant.adapt`. If the rows of each class are as they were, Bayes' rule multiplies
    the probability of class k by π_t,k/π_s,k, the ratio of its new share to that in the source
    (Saerens, Latinne and Decaestecker 2002, eq. 2.4). a and b correct the bias of c on source rows
    (bias-corrected temperature scaling: Alexandari, Kundaje and Shrikumar 2020, section 3.1).

    Args:
        member: The calibrator c, as ``{"method": name, option: value}``. Default: None (identity).
        from_logits: False if scores are probabilities, not logits. Default: True (ours: logits
            keep digits that probabilities lose).
    """

    name = "prior_shift"

    slope_: Tensor  # a
    intercept_: Tensor  # (K,) b
    log_ratio_: Tensor  # (K,) ln(π_t/π_s)

    def __init__(self, *, member: dict[str, Any] | None = None, from_logits: bool = True) -> None:
        super().__init__(from_logits=from_logits)
        self.member = {"method": "identity"} if member is None else dict(member)
        options = {key: value for key, value in self.member.items() if key != "method"}
        part = get(self.member.get("method", ""), **{**options, "from_logits": from_logits})
        if part.takes_features or part.dense_only or part.takes_labels:
            raise InputError(f"{part.name} does not map rows of logits: it cannot be adapted")
        self.part = part
        self.takes_events = part.takes_events
        self.register_buffer("slope_", torch.ones((), dtype=torch.float64))
        for name in ("intercept_", "log_ratio_"):
            self.register_buffer(name, torch.zeros(0, dtype=torch.float64))

    @classmethod
    def make(
        cls,
        part: Calibrator,
        *,
        slope: float,
        intercept: NDArray[np.float64],
        shift: Shift,
    ) -> PriorShift:
        """Adapt a fitted calibrator to a shift.

        Args:
            part: The calibrator, fitted.
            slope: a.
            intercept: (K,) b; K is 2 for events.
            shift: The shares in the source and of the new rows.
        """
        options = {key: value for key, value in part.options().items() if key != "from_logits"}
        calibrator = cls(member={"method": part.name, **options}, from_logits=part.from_logits)
        calibrator.part = part
        device = part.num_classes_.device
        ratio = np.log(np.array(shift.target)) - np.log(np.array(shift.source))
        calibrator.slope_ = torch.tensor(slope, dtype=torch.float64, device=device)
        calibrator.intercept_ = torch.tensor(intercept, dtype=torch.float64, device=device)
        calibrator.log_ratio_ = torch.tensor(ratio, dtype=torch.float64, device=device)
        calibrator._set_width(part.num_classes_.clone())
        calibrator.class_names_ = part.class_names_
        calibrator.fitted_rows_ = part.fitted_rows_
        calibrator.summary_ = {
            "rows": shift.source_rows,
            "classes": int(calibrator.num_classes_),
            "shift": asdict(shift),
        }
        return calibrator.eval()

    @property
    def shift_(self) -> Shift:
        """Return how the shares of classes differ, with intervals and the fit test."""
        shift = self.summary_.get("shift")
        known = {entry.name for entry in fields(Shift)}
        if not isinstance(shift, dict) or not shift.keys() <= known:
            raise InputError("damaged: this prior_shift does not say which shift it is for")
        values: dict[str, Any] = {
            k: tuple(v) if isinstance(v, list) else v for k, v in shift.items()
        }
        return Shift(**values)

    @property
    def explanation(self) -> str:
        """Return what the shift is, how that is known, and what was done; the assumption first."""
        done = "Probabilities are multiplied by the ratio of the shares and normalised"
        if self.shift_.corrected:
            done += ", after a slope and an intercept a class that the source rows fitted"
        return " ".join((*self.shift_.sentences, f"{done}."))

    def fit(self, *_: Any, **__: Any) -> Any:
        """Refuse: shares are estimated from rows without labels, or stated."""
        raise InputError("prior_shift is made by calibrant.adapt(calibrator, source=...)")

    def _map(self, logits: Tensor) -> Tensor:
        mapped = self.part._map(logits)
        shift = (self.intercept_ + self.log_ratio_).to(mapped.dtype)
        return self.slope_.to(mapped.dtype) * mapped + shift

    def _map_events(self, odds: Tensor) -> Tensor:
        mapped = self.part._map_events(odds)
        shift = (self.intercept_ + self.log_ratio_).to(mapped.dtype)
        return self.slope_.to(mapped.dtype) * mapped + (shift[1] - shift[0])


def _percent(share: float) -> str:
    """Write a share as a percentage, with more digits if it is small."""
    return f"{100 * share:.{1 if share >= 0.001 or share == 0 else 3}f}%"


def _p_value(value: float) -> str:
    return f"{value:.3f}" if value >= 0.001 else "below 0.001"
