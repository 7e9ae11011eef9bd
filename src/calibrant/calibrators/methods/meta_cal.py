"""Meta-calibration: a temperature for rows worth trusting, the uniform for the others."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from calibrant.calibrators.base import Calibrator
from calibrant.calibrators.methods.temperature import fit_temperature, warn_of_bound
from calibrant.core.errors import InputError
from calibrant.functional.arrays import row_slices

FORMS = ("miscoverage", "coverage_accuracy")
_TILT = 1e-3  # tilt of the nearly uniform answer, from which the prediction can be read
_SLACK = 1e-6  # keeps rounding from turning away the row that set the threshold


class MetaCal(Calibrator):
    """z ↦ z/T where the entropy h(softmax(z)) ≤ r, else the uniform distribution.

    Ma & Blaschko (2021), with entropy as the ranking model and temperature, fitted on the
    rows kept, as the base. If no row need be turned away, this is temperature. Rows turned
    away cost ln K nats each: this method is for calibration error under a stated guarantee,
    not for likelihood.

    Args:
        form: ``"miscoverage"``: r is the ⌈(n+1)(1−α)⌉-th smallest entropy of the n rows
            predicted right, so that a new such row is turned away with probability at most α.
            ``"coverage_accuracy"`` (MetaAcc of r-aurc): the largest r whose kept rows reach
            ``accuracy``; an error if none does. Default: 'miscoverage' (Ma & Blaschko 2021).
        miscoverage: α of the first form. Default: 0.05 (Ma & Blaschko 2021).
        accuracy: The accuracy asked for in the second form. Default: 0.9 (ours: within reach of
            most networks).
        keep_predictions: True tilts the uniform by 1e-3 in the order of the logits, which keeps
            predictions; rows turned away are then right more often than they say, which ECE
            counts. False is the authors' form: such a row is exactly uniform, its argmax is the
            first class, and accuracy falls. Default: True (ours: predictions stay usable).
        from_logits: False if scores are probabilities, not logits. Default: True (ours: logits
            keep digits that probabilities lose).
    """

    name = "meta_cal"

    threshold_: Tensor
    temperature_: Tensor

    def __init__(
        self,
        *,
        form: str = "miscoverage",
        miscoverage: float = 0.05,
        accuracy: float = 0.9,
        keep_predictions: bool = True,
        from_logits: bool = True,
    ) -> None:
        super().__init__(from_logits=from_logits)
        if form not in FORMS:
            raise InputError(f"meta_cal has no form {form!r}; it has {' and '.join(FORMS)}")
        if not (0 < miscoverage < 1 and 0 < accuracy <= 1):
            raise InputError(
                "miscoverage must lie in (0, 1) and accuracy in (0, 1], found "
                f"{miscoverage} and {accuracy}"
            )
        self.form, self.miscoverage, self.accuracy = form, miscoverage, accuracy
        self.keep_predictions = keep_predictions
        self.register_buffer("threshold_", torch.zeros((), dtype=torch.float64))
        self.register_buffer("temperature_", torch.ones((), dtype=torch.float64))

    @property
    def preserves_predictions(self) -> bool:  # type: ignore[override]
        """Return whether no prediction ever changes."""
        return self.keep_predictions

    def _fit(self, logits: Tensor, target: Tensor) -> None:
        spread = torch.cat([entropy(logits[rows]) for rows in row_slices(logits.shape)]).double()
        right = logits.argmax(1) == target
        if self.form == "miscoverage":
            threshold = order_statistic(spread[right], self.miscoverage)
        else:
            threshold = widest_accurate(spread, right, self.accuracy)
        confident = spread <= threshold + _SLACK
        root = fit_temperature(logits[confident], target[confident])
        if root.at_bound:
            warn_of_bound(
                1.0 / root.value, stacklevel=3, rows=f" of the {int(confident.sum())} rows kept"
            )
        make: dict[str, Any] = {"dtype": torch.float64, "device": logits.device}
        # No row has more entropy than ln K: a threshold there turns none away.
        most = min(threshold, math.log(logits.shape[1]))
        self.threshold_ = torch.tensor(most + _SLACK, **make)
        self.temperature_ = torch.tensor(1.0 / root.value, **make)

    def _map(self, logits: Tensor) -> Tensor:
        behind = logits - logits.amax(dim=1, keepdim=True)
        deepest = behind.amin(dim=1, keepdim=True).abs()
        flat = _TILT * behind / deepest.clamp_min(torch.finfo(behind.dtype).tiny)
        if not self.keep_predictions:
            flat = torch.zeros_like(behind)
        trusted = (entropy(logits) <= self.threshold_.to(logits.dtype)).unsqueeze(1)
        return torch.where(trusted, behind / self.temperature_.to(logits.dtype), flat)


def entropy(logits: Tensor) -> Tensor:
    """Return h = −Σ p ln p of p = softmax(z), in nats."""
    logs = torch.log_softmax(logits, dim=1)
    return -(logs.exp() * logs).sum(dim=1)


def order_statistic(values: Tensor, share: float) -> float:
    """Return a bound that a new value like these n exceeds with probability at most ``share``."""
    rank = math.ceil((len(values) + 1) * (1.0 - share))
    return float(values.sort().values[rank - 1]) if rank <= len(values) else math.inf


def widest_accurate(spread: Tensor, right: Tensor, accuracy: float) -> float:
    """Return the largest threshold on ``spread`` whose kept rows reach the accuracy."""
    ordered, order = spread.sort()
    rate = right[order].double().cumsum(0) / torch.arange(1, len(spread) + 1).to(spread)
    # Rows with the same entropy are kept or turned away together.
    last = torch.cat((ordered[1:] > ordered[:-1], torch.ones_like(right[:1])))
    reached = ((rate >= accuracy - 1e-12) & last).nonzero()
    if not len(reached):
        best = float(rate[last].max())
        raise InputError(
            f"meta_cal reaches an accuracy of at most {best:.3f} on the rows it keeps, not the "
            f"{accuracy} asked for; ask for less or use form='miscoverage'"
        )
    return float(ordered[reached[-1]])
