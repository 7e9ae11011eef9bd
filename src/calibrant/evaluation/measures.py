"""Which measures an evaluation computes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from calibrant.functional.errors import InputError
from calibrant.metrics.base import Measure
from calibrant.metrics.registry import measure

DEFAULT_METRICS = (
    "accuracy",
    "nll",
    "brier",
    "ece",
    "adaptive_ece",
    "classwise_ece",
    "ks_error",
    "smooth_ece",
    "mce",
    "aurc",
    "e_aurc",
    "failure_auroc",
)
Wanted = Sequence[str] | Mapping[str, Mapping[str, Any]]

_BINNED = {
    "ece",
    "mce",
    "adaptive_ece",
    "classwise_ece",
    "marginal_ece",
    "debiased_ece",
    "chance_ece",
    "brier_calibration",
    "brier_refinement",
}


def choose_measures(metrics: Wanted | None, num_bins: int) -> dict[str, Measure]:
    """Measures by name, those that bin with ``num_bins`` bins unless they say otherwise."""
    wanted = DEFAULT_METRICS if metrics is None else metrics
    if isinstance(wanted, str):
        wanted = (wanted,)
    options = wanted if isinstance(wanted, Mapping) else {name: {} for name in wanted}
    if not options:
        raise InputError("no metrics were asked for; name at least one, or leave them out")
    made = {}
    for name, given in options.items():
        if name in ("ood_auroc", "fpr95"):
            raise InputError(
                f"{name} compares in- with out-of-distribution rows, not classes: call "
                f"calibrant.metrics.{name}(preds, target) with labels 1 and 0"
            )
        chosen = dict(given)
        if name in _BINNED:
            chosen.setdefault("num_bins", num_bins)
        made[name] = measure(name, **chosen)
    return made
