"""Calibrators of many labels a row: each label is an event, with a calibrator of its own."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.functional import softplus

from calibrant.calibrators.base import Calibrator, to_logits
from calibrant.calibrators.registry import get
from calibrant.core.errors import InputError
from calibrant.functional.arrays import row_slices, to_tensor
from calibrant.predictions import Predictions


class ByLabel(Calibrator):
    """A calibrator of events for each of L labels; several labels may share one.

    Made by `calibrant.calibrate` of many labels a row. ``labels_`` holds each label's calibrator.

    Args:
        members: The method of each calibrator, as ``{"method": name, option: value}``. Default: ()
            (none).
        owners: For each label, the number of its calibrator among the members. Default: () (none).
        from_logits: False if scores are probabilities, not logits. Default: True (ours: logits
            keep digits that probabilities lose).
    """

    name = "by_label"
    takes_labels = True

    def __init__(
        self,
        *,
        members: Sequence[dict[str, Any]] = (),
        owners: Sequence[int] = (),
        from_logits: bool = True,
    ) -> None:
        super().__init__(from_logits=from_logits)
        self.members, self.owners = list(members), list(owners)
        if not all(0 <= owner < len(self.members) for owner in self.owners):
            raise InputError(
                f"owners must be numbers of the {len(self.members)} members, found {self.owners}"
            )
        parts = []
        for member in self.members:
            part = get(**{"name": member.get("method", ""), **_without(member, "method")})
            if not part.takes_events:
                raise InputError(f"{part.name} does not take events, and each label is one")
            parts.append(part)
        self.parts = nn.ModuleList(parts)

    @property
    def labels_(self) -> tuple[Calibrator, ...]:
        """Return the calibrator of each label."""
        return tuple(cast(Calibrator, self.parts[owner]) for owner in self.owners)

    def extra_repr(self) -> str:
        """Return the number of labels; the parts show their methods."""
        return f"{len(self.owners)} labels"

    def fit(self, *_: Any, **__: Any) -> Any:
        """Refuse: each label's method is chosen where the labels are known."""
        raise InputError("by_label is fitted by calibrate(predictions, method=...)")

    def forward(self, logits: Tensor) -> Tensor:
        """Return calibrated (N,L) logits of logits, or of probabilities."""
        self._check_fitted()
        if not torch.compiler.is_compiling() and (
            logits.ndim != 2 or logits.shape[1] != len(self.owners)
        ):
            raise InputError(
                f"by_label was fitted on {len(self.owners)} labels, found scores of shape "
                f"{tuple(logits.shape)}"
            )
        return self._map(self._to_scores(logits))

    def _to_scores(self, scores: Tensor) -> Tensor:
        scores = scores if scores.dtype == torch.float64 else scores.float()
        return scores if self.from_logits else to_logits(scores.reshape(-1)).reshape(scores.shape)

    def _map(self, logits: Tensor) -> Tensor:
        columns = [part._map_events(logits[:, k]) for k, part in enumerate(self.labels_)]
        return torch.stack(columns, dim=1)

    def predict_proba(self, logits: Any) -> Any:
        """Return the calibrated probability of each label, (N,L).

        Args:
            logits: The scores.
        """
        probs = torch.sigmoid(torch.as_tensor(self.calibrate(logits)))
        return probs if isinstance(logits, Tensor) else probs.numpy()


@dataclass(frozen=True)
class LabelChoices:
    """Why the calibrator of each label was chosen."""

    labels: dict[str, Any]  # the `Choice` of each label; labels that share a calibrator share it

    @property
    def explanation(self) -> str:
        """Return the choices in words, a line a label."""
        return "\n".join(f"{name}: {choice.explanation}" for name, choice in self.labels.items())

    def __str__(self) -> str:
        return self.explanation


def fit_by_label(
    predictions: Predictions,
    fit: Callable[[Predictions], Calibrator],
    *,
    pool: bool | None = None,
    least: int = 20,
) -> ByLabel:
    """Fit a calibrator for each label, or one for all.

    Args:
        predictions: Predictions of many labels a row.
        fit: Fits a calibrator of logits on predictions of events.
        pool: True pools all labels, False none. Default: None (those with fewer than ``least`` rows
            where the label is true, or where it is not).
        least: The fewest rows of either kind that a label of its own fit has. Default: 20 (ours:
            about ten for each of a slope and an intercept).
    """
    rows = predictions.in_memory()
    calibrator = ByLabel(from_logits=rows.is_logits)
    scores, labels = to_tensor(rows.array), to_tensor(rows.known_labels)
    logits = calibrator._to_scores(scores)
    rows = replace(rows, scores=logits, labels=labels, is_logits=True)
    fewest = torch.minimum((labels == 1).sum(0), (labels == 0).sum(0)).tolist()
    few = [count < (1 if pool is False else least) if not pool else True for count in fewest]
    parts: list[Calibrator] = []
    if any(few):
        parts.append(fit(rows.to_events()))
        if not all(few):
            warnings.warn(
                f"{sum(few)} of {len(few)} labels have fewer than {1 if pool is False else least} "
                "rows where they are true, or where they are not: they share a calibrator fitted "
                "on all labels",
                stacklevel=3,
            )
    owners = []
    for k, shared in enumerate(few):
        owners.append(0 if shared else len(parts))
        if not shared:
            parts.append(fit(rows.to_events(k)))
    members = [{"method": part.name, **_without(part.options(), "from_logits")} for part in parts]
    calibrator = ByLabel(members=members, owners=owners, from_logits=predictions.is_logits)
    calibrator.parts = nn.ModuleList(parts)
    calibrator.num_classes_ = torch.tensor(len(few), device=scores.device)
    calibrator.class_names_ = rows.class_names
    if all(part.choice_ is not None for part in parts):
        names = rows.class_names or [f"label {k}" for k in range(len(owners))]
        calibrator.choice_ = LabelChoices(
            {name: parts[owner].choice_ for name, owner in zip(names, owners, strict=True)}
        )
    calibrator.summary_ = _summarise(calibrator, logits, labels, rows.weights, few)
    return calibrator


def _summarise(
    calibrator: ByLabel, logits: Tensor, labels: Tensor, weights: Any, pooled: list[bool]
) -> dict[str, Any]:
    """Return the likelihood of all labels, before and after, and how many have their own fit."""
    rows = torch.ones(len(labels), dtype=torch.float64) if weights is None else to_tensor(weights)
    row_weights = rows.to(labels.device).unsqueeze(1) * (labels >= 0)
    before = after = 0.0
    with torch.no_grad():
        for part in row_slices(logits.shape):
            y, scores = labels[part].double(), logits[part].double()
            mapped = calibrator._map(scores)
            before += float((row_weights[part] * (softplus(scores) - y * scores)).sum())
            after += float((row_weights[part] * (softplus(mapped) - y * mapped)).sum())
    total = float(row_weights.sum())
    return {
        "rows": len(labels),
        "classes": labels.shape[1],
        "nll_before": before / total,
        "nll_after": after / total,
        "calibrators": len(calibrator.members),
        "pooled": sum(pooled),
    }


def _without(values: dict[str, Any], name: str) -> dict[str, Any]:
    return {key: value for key, value in values.items() if key != name}
