"""Every metric as a `torchmetrics.Metric`, over the same streaming states as the functions.

Each class takes the options of the function that it is named after, the options of
`MetricModule` and those of `torchmetrics.Metric`. Sums are float64 and add up across processes;
lists of rows are concatenated. torchmetrics takes seconds to import, so import this module only
where it is used.

>>> import torch
>>> from calibrant.metrics.modules import ECE
>>> metric = ECE(num_bins=10)
>>> metric.update(torch.tensor([[2.0, 0.0], [0.0, 2.0]]), torch.tensor([0, 1]))
>>> round(metric.compute().item(), 4)
0.1192
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import torch
from torch import Tensor

from calibrant.core.errors import InputError
from calibrant.core.extras import require
from calibrant.functional.arrays import Array
from calibrant.functional.blocks import blocks, find_view, warn_of_probabilities
from calibrant.metrics.base import Measure, State
from calibrant.metrics.classwise import ProbState
from calibrant.metrics.registry import METRICS, measure
from calibrant.metrics.selective import SELECTIVE

require("torchmetrics", extra="metrics", purpose="a metric class")
from torchmetrics import Metric  # noqa: E402
from torchmetrics.utilities.distributed import gather_all_tensors  # noqa: E402

__all__ = [
    "AUGRC",
    "AURC",
    "AUROC",
    "Accuracy",
    "AdaptiveECE",
    "AveragePrecision",
    "Brier",
    "BrierCalibration",
    "BrierDSC",
    "BrierMCB",
    "BrierRefinement",
    "BrierSkill",
    "BrierUNC",
    "CalibrationInTheLarge",
    "CalibrationIntercept",
    "CalibrationSlope",
    "ChanceECE",
    "ClasswiseECE",
    "ClasswiseNLLStd",
    "CoverageAtRisk",
    "DebiasedECE",
    "E50",
    "E90",
    "EAURC",
    "ECE",
    "Emax",
    "FPR95",
    "FailureAUROC",
    "HosmerLemeshow",
    "ICI",
    "KDEECE",
    "KSError",
    "LogECE",
    "MCE",
    "MIoU",
    "MarginalECE",
    "MeanEntropy",
    "MeanGap",
    "NLL",
    "NetBenefit",
    "OERatio",
    "OODAUROC",
    "RiskAtCoverage",
    "SmoothECE",
    "Spiegelhalter",
    "SweepECE",
]

# Dtypes of stored rows, each wide enough for those before it.
_DTYPES = (torch.bool, torch.int64, torch.float16, torch.bfloat16, torch.float32, torch.float64)


class MetricModule(Metric):
    """A metric of the registry behind torchmetrics' interface.

    `update` of a batch whose rows are all ignored adds nothing. `compute` from no rows at all,
    and so `forward` of such a batch, raises `InputError`.

    Args:
        from_logits: Whether ``preds`` are logits; False for probabilities. Default: True (ours:
            networks give logits).
        ignore_index: The label of rows to leave out. Default: None (ours: every row counts).
        num_classes: The number of classes K. Required where the sums have a row for each class;
            if given, `update` refuses predictions of another number of classes. Default: None
            (ours: most metrics do not need it).
        validate_args: Check the values of every batch. Default: True (torchmetrics).
        view: ``"events"`` judges the probability of the positive class, ``"top"`` that of the
            predicted class. Default: None (ours: events for (N,) scores and two classes, where
            the metric can judge events).
        pos_label: The positive class of two. Default: None (ours: class 1).
        options: The options of the metric's function, and of `torchmetrics.Metric`.
    """

    is_differentiable = False
    full_state_update = False
    metric: ClassVar[str]

    def __init_subclass__(cls, *, metric: str, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        make = METRICS.load(metric)
        cls.metric = metric
        cls.higher_is_better = {"higher": True, "lower": False}.get(make().better)
        # For help() and editors: the metric's own options, then the shared ones.
        *common, rest = list(inspect.signature(MetricModule.__init__).parameters.values())[1:]
        parameters = inspect.signature(make).parameters.values()
        cls.__signature__ = inspect.Signature([*parameters, *common, rest.replace(name="kwargs")])

    def __init__(
        self,
        *,
        from_logits: bool = True,
        ignore_index: int | None = None,
        num_classes: int | None = None,
        validate_args: bool = True,
        view: str | None = None,
        pos_label: int | None = None,
        **options: Any,
    ) -> None:
        parameters = inspect.signature(METRICS.load(self.metric)).parameters
        chosen = {name: options.pop(name) for name in parameters if name in options}
        try:
            super().__init__(**options)
        except ValueError as error:
            known = ", ".join(parameters) or "none"
            raise InputError(f"{type(self).__name__}: {error}; its own options: {known}") from None
        self.options = chosen
        self.from_logits = from_logits
        self.ignore_index = ignore_index
        self.num_classes = num_classes
        self.validate_args = validate_args
        # Selective metrics rank events only where the event is "correct", which view= says.
        only_top = "events" not in self._measure.views or self.metric in SELECTIVE
        several = num_classes is not None and num_classes > 2  # so that all can share their states
        self.view = "top" if view is None and (only_top or several) else view
        if self.view == "events" and "events" not in self._measure.views:
            raise InputError(f"{type(self).__name__} judges classes, not events: leave view out")
        self.pos_label = pos_label
        self._seen: set[bool] = set()  # whether batches had weights
        self._warns = from_logits  # until the first batch, which shows whether it holds logits
        for key, state, name in self._entries(self._build(self._measure)):
            if name in state.lists:
                self.add_state(key, [], dist_reduce_fx="cat")
            else:
                self.add_state(key, self._zeros(state, name), dist_reduce_fx="sum")

    @property
    def _measure(self) -> Measure:
        # Not stored: a measure holds closures, which cannot be pickled.
        return measure(self.metric, **self.options)

    def _build(self, measure: Measure) -> tuple[State, ...]:
        """Make empty states."""
        states = measure.build()
        for state in states:
            if isinstance(state, ProbState):
                # A training loop may overwrite this batch with the next.
                state.copy, state.logits = True, self.from_logits
        return states

    def _entries(self, states: tuple[State, ...]) -> Iterator[tuple[str, State, str]]:
        """Yield the attribute for each tensor of the states, its state and its name there.

        The attribute names every option that the contents depend on: a `MetricCollection` lets
        metrics share a state if their attributes have equal names and, for one batch, equal
        values.
        """
        common = "" if self.from_logits else "_probs"
        if self.ignore_index is not None:
            common += f"_ignore_{self.ignore_index}"
        if self.view is not None:
            common += f"_{self.view}"
        if self.pos_label is not None:
            common += f"_positive_{self.pos_label}"
        for state in states:
            options = [o for o in state.options()[1:] if not isinstance(o, bool)]
            words = [getattr(o, "__qualname__", str(o)) for o in options]
            kind = type(state).__name__.removesuffix("State").lower()
            for name in (*state.sums, *state.lists):
                text = "_".join([kind, *words, name]) + common
                yield re.sub(r"\W", "_", text.replace("-", "minus")), state, name

    def _zeros(self, state: State, name: str) -> Tensor:
        """Make an empty sum; a state updated with one row of K classes shows its shape."""

        def make_sum(classes: int) -> Tensor:
            fed = type(state)(*state.options()[1:])
            for block in blocks(torch.zeros(1, classes), torch.zeros(1, dtype=torch.int64)):
                fed.update(block)
            return torch.zeros_like(getattr(fed, name))

        if self.num_classes is not None:
            return make_sum(self.num_classes)
        if make_sum(2).shape != make_sum(3).shape:
            raise InputError(
                f"{type(self).__name__} keeps sums for each class: give num_classes, "
                f"for example {type(self).__name__}(num_classes=10)"
            )
        return make_sum(2)

    def update(
        self, preds: Array, target: Array | None = None, weights: Array | None = None
    ) -> None:
        """Add a batch.

        Args:
            preds: Scores of shape (N,K), (N,) (binary) or (N,K,...) (dense).
            target: Labels of shape (N,) or (N,...).
            weights: A positive weight for each row; in all batches or in none.
        """
        measure = self._measure
        seen = self._seen | {weights is not None}
        if True in seen:
            measure.check_weights(seen)
        states = self._build(measure)
        positive = find_view(tuple(preds.shape), self.view, self.pos_label)
        if self._warns:
            self._warns = False
            warn_of_probabilities(preds, stacklevel=3, wait=True)
        for block in blocks(
            preds,
            target,
            from_logits=self.from_logits,
            ignore_index=self.ignore_index,
            num_labels=states[0].num_labels,
            validate=self.validate_args,
            weights=weights,
            positive=positive,
        ):
            if self.num_classes not in (None, block.num_classes):
                raise InputError(
                    f"{type(self).__name__} was made for {self.num_classes} classes, found "
                    f"scores of {block.num_classes}"
                )
            for state in states:
                state.update(block)
        # Only now, so that a batch refused halfway changes nothing.
        self._seen = seen
        for key, state, name in self._entries(states):
            value, total = getattr(state, name), getattr(self, key)
            if name in state.lists:
                total.extend(value)
            elif value is not None:
                setattr(self, key, total + value.to(total.device))

    def reset(self) -> None:
        """Forget all batches."""
        super().reset()
        self._seen = set()

    def compute(self) -> Tensor:
        """Compute the value over all batches, a 0-dim float64 tensor."""
        states = self._build(self._measure)
        for key, state, name in self._entries(states):
            value = getattr(self, key)
            if name in state.sums:
                setattr(state, name, value if bool(value.any()) else None)
            else:  # after a sync the rows of all processes are one tensor
                parts = [value] if isinstance(value, Tensor) else value
                setattr(state, name, [part for part in parts if len(part)])
        return self._measure.compute(*states)

    def extra_repr(self) -> str:
        """Return the options that were given."""
        return ", ".join(f"{name}={value!r}" for name, value in self.options.items())

    def _apply(self, fn: Callable[[Tensor], Tensor], *args: Any, **kwargs: Any) -> Any:
        """Follow a change of device but not of precision: sums stay float64.

        torchmetrics stops ``.half()`` but not ``model.to(torch.bfloat16)``.
        """

        def move(tensor: Tensor) -> Tensor:
            device = fn(torch.empty(0, device=tensor.device)).device
            no_float64 = device.type == "mps" and tensor.dtype == torch.float64
            return tensor if no_float64 else tensor.to(device)

        return super()._apply(move, *args, **kwargs)

    def _sync_dist(
        self,
        dist_sync_fn: Callable[..., list[Tensor]] = gather_all_tensors,
        process_group: Any | None = None,
    ) -> None:
        """Gather from all processes, some of which may have no rows.

        Only tensors of one dtype and one number of dimensions can be gathered, so the processes
        first exchange the dtypes and widths of their lists.
        """
        lists = {k: v for k, v in self.metric_state.items() if isinstance(v, list)}
        if lists:
            mine = torch.full((len(lists), 2), -1, device=self.device)
            for row, parts in zip(mine, lists.values(), strict=True):
                if parts:
                    row[0] = max(_DTYPES.index(part.dtype) for part in parts)
                    row[1] = parts[0].shape[1] if parts[0].ndim > 1 else 0
            everyone = dist_sync_fn(mine, group=process_group or self.process_group)
            agreed = torch.stack(everyone).amax(0).tolist()
            for (key, parts), (kind, width) in zip(lists.items(), agreed, strict=True):
                if kind >= 0:
                    shape = (0, width) if width else (0,)
                    none = torch.empty(shape, dtype=_DTYPES[kind], device=self.device)
                    setattr(self, key, [torch.cat([none, *(p.to(none) for p in parts)])])
        super()._sync_dist(dist_sync_fn, process_group)


class Accuracy(MetricModule, metric="accuracy"):
    """Share of rows whose largest score is the true class. See `calibrant.metrics.accuracy`."""


class NLL(MetricModule, metric="nll"):
    """Mean of −ln p_y in nats. See `calibrant.metrics.nll`."""


class Brier(MetricModule, metric="brier"):
    """Mean of Σ_k (p_k − 1[k=y])². See `calibrant.metrics.brier`."""


class BrierCalibration(MetricModule, metric="brier_calibration"):
    """Calibration part of the Brier score. See `calibrant.metrics.brier_calibration`."""


class BrierRefinement(MetricModule, metric="brier_refinement"):
    """Refinement part of the Brier score. See `calibrant.metrics.brier_refinement`."""


class ECE(MetricModule, metric="ece"):
    """Expected calibration error of the top label. See `calibrant.metrics.ece`."""


class MCE(MetricModule, metric="mce"):
    """Largest gap between confidence and accuracy of a bin. See `calibrant.metrics.mce`."""


class AdaptiveECE(MetricModule, metric="adaptive_ece"):
    """ECE with bins of equal mass; stores confidences. See `calibrant.metrics.adaptive_ece`."""


class ClasswiseECE(MetricModule, metric="classwise_ece"):
    """Mean over classes of their ECE. See `calibrant.metrics.classwise_ece`."""


class MarginalECE(MetricModule, metric="marginal_ece"):
    """Root of the mean over classes of squared errors. See `calibrant.metrics.marginal_ece`."""


class KSError(MetricModule, metric="ks_error"):
    """Kolmogorov–Smirnov error; stores confidences. See `calibrant.metrics.ks_error`."""


class SweepECE(MetricModule, metric="sweep_ece"):
    """Monotone-sweep ECE; stores confidences. See `calibrant.metrics.sweep_ece`."""


class DebiasedECE(MetricModule, metric="debiased_ece"):
    """ECE less an estimate of its upward bias. See `calibrant.metrics.debiased_ece`."""


class ChanceECE(MetricModule, metric="chance_ece"):
    """Mean ECE of perfect calibration by chance. See `calibrant.metrics.chance_ece`."""


class KDEECE(MetricModule, metric="kde_ece"):
    """Kernel calibration error; stores every row's scores. See `calibrant.metrics.kde_ece`."""


class SmoothECE(MetricModule, metric="smooth_ece"):
    """Smooth calibration error; stores confidences. See `calibrant.metrics.smooth_ece`."""


class AURC(MetricModule, metric="aurc"):
    """Area under risk-coverage; stores scores and losses. See `calibrant.metrics.aurc`."""


class EAURC(MetricModule, metric="e_aurc"):
    """AURC above the best order's; stores scores and losses. See `calibrant.metrics.e_aurc`."""


class AUGRC(MetricModule, metric="augrc"):
    """Generalised risk-coverage area; stores scores and losses. See `calibrant.metrics.augrc`."""


class RiskAtCoverage(MetricModule, metric="risk_at_coverage"):
    """Mean loss of the most confident share. See `calibrant.metrics.risk_at_coverage`."""


class CoverageAtRisk(MetricModule, metric="coverage_at_risk"):
    """Largest share of rows accepted at a risk. See `calibrant.metrics.coverage_at_risk`."""


class FailureAUROC(MetricModule, metric="failure_auroc"):
    """AUROC of confidence, correct against wrong. See `calibrant.metrics.failure_auroc`."""


class OODAUROC(MetricModule, metric="ood_auroc"):
    """AUROC of in-distribution rows, label 1, against 0. See `calibrant.metrics.ood_auroc`."""


class FPR95(MetricModule, metric="fpr95"):
    """False-positive rate at 95% true positives, labels 1 and 0. See `calibrant.metrics.fpr95`."""


class MeanEntropy(MetricModule, metric="mean_entropy"):
    """Mean entropy of the predictions, without labels. See `calibrant.metrics.mean_entropy`."""


class ClasswiseNLLStd(MetricModule, metric="classwise_nll_std"):
    """Spread over classes of their NLL. See `calibrant.metrics.classwise_nll_std`."""


class MIoU(MetricModule, metric="miou"):
    """Mean intersection over union, for dense prediction. See `calibrant.metrics.miou`."""


class CalibrationInTheLarge(MetricModule, metric="calibration_in_the_large"):
    """Offset of the log odds; stores rows. See `calibrant.metrics.calibration_in_the_large`."""


class CalibrationSlope(MetricModule, metric="calibration_slope"):
    """Slope of recalibration; stores rows. See `calibrant.metrics.calibration_slope`."""


class CalibrationIntercept(MetricModule, metric="calibration_intercept"):
    """Intercept of recalibration; stores rows. See `calibrant.metrics.calibration_intercept`."""


class OERatio(MetricModule, metric="oe_ratio"):
    """Observed over expected events; stores rows. See `calibrant.metrics.oe_ratio`."""


class MeanGap(MetricModule, metric="mean_gap"):
    """Mean probability less frequency; stores rows. See `calibrant.metrics.mean_gap`."""


class ICI(MetricModule, metric="ici"):
    """Integrated calibration index; stores rows. See `calibrant.metrics.ici`."""


class E50(MetricModule, metric="e50"):
    """Median error of the smoothed curve; stores rows. See `calibrant.metrics.e50`."""


class E90(MetricModule, metric="e90"):
    """90% quantile of the curve's errors; stores rows. See `calibrant.metrics.e90`."""


class Emax(MetricModule, metric="emax"):
    """Largest error of the smoothed curve; stores rows. See `calibrant.metrics.emax`."""


class Spiegelhalter(MetricModule, metric="spiegelhalter"):
    """Spiegelhalter's test; stores rows. See `calibrant.metrics.spiegelhalter`."""


class HosmerLemeshow(MetricModule, metric="hosmer_lemeshow"):
    """Hosmer-Lemeshow test; stores rows. See `calibrant.metrics.hosmer_lemeshow`."""


class BrierSkill(MetricModule, metric="brier_skill"):
    """Brier skill score; stores rows. See `calibrant.metrics.brier_skill`."""


class LogECE(MetricModule, metric="log_ece"):
    """ECE with log-spaced bins; stores rows. See `calibrant.metrics.log_ece`."""


class AUROC(MetricModule, metric="auroc"):
    """Chance that an event ranks above another row. See `calibrant.metrics.auroc`."""


class AveragePrecision(MetricModule, metric="average_precision"):
    """Average precision; stores rows. See `calibrant.metrics.average_precision`."""


class NetBenefit(MetricModule, metric="net_benefit"):
    """Net benefit at a threshold; stores rows. See `calibrant.metrics.net_benefit`."""


class BrierMCB(MetricModule, metric="brier_mcb"):
    """Miscalibration part of the Brier score (CORP). See `calibrant.metrics.brier_mcb`."""


class BrierDSC(MetricModule, metric="brier_dsc"):
    """Discrimination part of the Brier score (CORP). See `calibrant.metrics.brier_dsc`."""


class BrierUNC(MetricModule, metric="brier_unc"):
    """Uncertainty part of the Brier score (CORP). See `calibrant.metrics.brier_unc`."""
