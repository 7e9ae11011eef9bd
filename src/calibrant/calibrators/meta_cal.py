"""Meta-calibration: a temperature for rows worth trusting, the uniform for the others."""

from __future__ import annotations

import math
import warnings
from typing import Any

import torch
from torch import Tensor

from calibrant.calibrators.base import Calibrator, row_blocks
from calibrant.calibrators.temperature import fit_temperature
from calibrant.functional.errors import InputError

FORMS = ("miscoverage", "coverage_accuracy")
_TILT = 1e-3  # of the near-uniform answer, so that the prediction can still be read off
_SLACK = 1e-6  # rounding must not turn away the row that set the threshold


class MetaCal(Calibrator):
    """z ↦ z/T where the entropy h(softmax(z)) ≤ r, else the uniform distribution.

    Ma & Blaschko (2021), with entropy as the ranking model and temperature, fitted on the
    rows kept, as the base. ``form="miscoverage"``: r is the ⌈(n+1)(1−α)⌉-th smallest entropy
    of the n rows predicted right, so that a new such row is turned away with probability at
    most α = ``miscoverage``. ``form="coverage_accuracy"`` (MetaAcc): the largest r whose
    kept rows reach ``accuracy``; an error where no r does. Where nothing need be turned away
    this is temperature.

    Rows turned away cost ln K nats each: this method is for calibration error under a stated
    guarantee, not for likelihood. ``keep_predictions=False`` is the authors': such a row is
    uniform to the last digit, names no class (the first, to who asks), and is right as often as
    it says; accuracy pays. By default the uniform is tilted by 1e-3 in the order of the logits,
    so that predictions are kept; rows turned away are then right more often than they say, which
    ECE counts.
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
        """Whether no argmax ever changes."""
        return self.keep_predictions

    def _fit(self, logits: Tensor, target: Tensor) -> None:
        spread = torch.cat([entropy(logits[rows]) for rows in row_blocks(logits)]).double()
        right = logits.argmax(1) == target
        if self.form == "miscoverage":
            threshold = order_statistic(spread[right], self.miscoverage)
        else:
            threshold = widest_accurate(spread, right, self.accuracy)
        kept = spread <= threshold + _SLACK
        found = fit_temperature(logits[kept], target[kept])
        if found.at_bound:
            warnings.warn(
                f"the best temperature of the {int(kept.sum())} rows kept lies beyond "
                f"{1.0 / found.value:.3g}, where it is held: all of them may be right",
                stacklevel=3,
            )
        make: dict[str, Any] = {"dtype": torch.float64, "device": logits.device}
        # Nothing has more entropy than ln K: a threshold there turns no row away.
        most = min(threshold, math.log(logits.shape[1]))
        self.threshold_ = torch.tensor(most + _SLACK, **make)
        self.temperature_ = torch.tensor(1.0 / found.value, **make)

    def _map(self, logits: Tensor) -> Tensor:
        behind = logits - logits.amax(dim=1, keepdim=True)
        deepest = behind.amin(dim=1, keepdim=True).abs()
        flat = _TILT * behind / deepest.clamp_min(torch.finfo(behind.dtype).tiny)
        if not self.keep_predictions:
            flat = torch.zeros_like(behind)
        trusted = (entropy(logits) <= self.threshold_.to(logits.dtype)).unsqueeze(1)
        return torch.where(trusted, behind / self.temperature_.to(logits.dtype), flat)


def entropy(logits: Tensor) -> Tensor:
    """h = −Σ p ln p of p = softmax(z), in nats."""
    logs = torch.log_softmax(logits, dim=1)
    return -(logs.exp() * logs).sum(dim=1)


def order_statistic(values: Tensor, share: float) -> float:
    """A bound that a new value like these n exceeds with probability at most ``share``."""
    rank = math.ceil((len(values) + 1) * (1.0 - share))
    return float(values.sort().values[rank - 1]) if rank <= len(values) else math.inf


def widest_accurate(spread: Tensor, right: Tensor, accuracy: float) -> float:
    """The largest threshold on ``spread`` that keeps rows of the accuracy asked for."""
    ordered, order = spread.sort()
    rate = right[order].double().cumsum(0) / torch.arange(1, len(spread) + 1).to(spread)
    # Rows of one entropy are kept or turned away together.
    last = torch.cat((ordered[1:] > ordered[:-1], torch.ones_like(right[:1])))
    reached = ((rate >= accuracy - 1e-12) & last).nonzero()
    if not len(reached):
        best = float(rate[last].max())
        raise InputError(
            f"meta_cal reaches an accuracy of at most {best:.3f} on the rows it keeps, not the "
            f"{accuracy} asked for; ask for less, or use form='miscoverage'"
        )
    return float(ordered[reached[-1]])
