"""MaC-Cal's head: the last layers of a network, trained anew on cached features."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from calibrant.calibrators.feature_head import FeatureHead, Held, Tick, check_classes
from calibrant.calibrators.mac_cal import GAMMA, GAMMAS, Settings, TrainedHead, train_head
from calibrant.calibrators.masked_heads import logits_of
from calibrant.functional.errors import InputError
from calibrant.predictions.splitting import split_rows


class MacCalHead(FeatureHead):
    """Features ↦ logits by a head trained under random masks (MaC-Cal, stage two; Ni et al.).

    Takes (N,D) features, what the network's own last layer is given, of the rows the network
    was *trained* on, not augmented, and replaces that layer: `attach(extractor, head)`. Masks
    fall on a share s of the weights, anew in every batch (eq. 8 and 9); s follows the gap
    between confidence and γ times accuracy on those rows (eq. 12 and 13); expected weights
    (1−s)·W answer at inference. methods.md ("MaC-Cal, decided") settles what the paper leaves
    open; see `calibrant.calibrators.mac_cal` for the training and its switches.

    Parameters
    ----------
    gamma : γ of eq. 12. None: chosen from ``gammas`` on validation rows, where `fit` is given
        some, by the lowest ECE among those within one point of the best accuracy (or two
        standard errors, if more); else 0.96 (the paper does not say).
    race : leave the worse half of ``gammas`` behind after a quarter and after half of the epochs.
        Less than half the time, and a bias: small γ pass through the right
        sparsity early, and may be kept for it. The published runs have it, and suites, unless
        they say otherwise.
    validation_fraction : share of the rows held out to choose γ on, where `fit` is given no
        validation rows. Only of use if the network was not trained on the rows given:
        features of rows it was trained on look better than any new row will.
    num_classes : where the last classes have no rows.

    All others are those of `Settings`. ``summary_`` has the trace of s, confidence and accuracy
    by epoch, the γ chosen and how every γ did.
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
        gammas: Sequence[float] = GAMMAS,
        race: bool = False,
        validation_fraction: float | None = None,
        num_classes: int | None = None,
        head: Literal["bottleneck", "linear"] = "bottleneck",
        width: int | None = None,
        reading: Literal["sparsity", "printed"] = "sparsity",
        restrict_gradient: bool = True,
        schedule: Literal["decaying", "constant", "fixed"] = "decaying",
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
        if not gammas or not all(0 < one <= 1 for one in gammas):
            raise InputError(f"gammas must be numbers in (0, 1], found {gammas!r}")
        if validation_fraction is not None and not 0 < validation_fraction < 1:
            raise InputError(
                f"validation_fraction must lie between 0 and 1, found {validation_fraction!r}"
            )
        self.gamma, self.gammas, self.race = gamma, tuple(gammas), race
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

    def settings(self) -> Settings:
        """How it is trained."""
        names = [one.name for one in dataclasses.fields(Settings)]
        return Settings(**{name: getattr(self, name) for name in names})

    @property
    def input_width(self) -> int:
        """D: how many features a row has."""
        return (self.hidden_weight_ if self.hidden_weight_.numel() else self.weight_).shape[0]

    def _train(
        self, rows: Tensor, labels: Tensor, classes: int, held: Held | None, tick: Tick
    ) -> dict[str, Any]:
        trained = train_head(
            rows,
            labels,
            classes,
            settings=self.settings(),
            gammas=self._candidates(held is not None),
            validation=held,
            race=self.race,
            tick=tick,
        )
        self._take(trained)
        return _told(trained)

    def _map(self, logits: Tensor) -> Tensor:
        last = (self.weight_, self.bias_)
        if self.hidden_weight_.numel() == 0:
            return logits_of(logits, (last,))
        return logits_of(logits, ((self.hidden_weight_, self.hidden_bias_), last))

    def _candidates(self, choosing: bool) -> Sequence[float]:
        if self.gamma is not None:
            return (self.gamma,)
        return self.gammas if choosing and self.schedule != "fixed" else (GAMMA,)

    def _hold_out(self, rows: Tensor, labels: Tensor) -> tuple[Tensor, Tensor, Held | None]:
        if self.validation_fraction is None:
            return rows, labels, None
        strata = labels.cpu().numpy()
        parts: list[np.ndarray[Any, np.dtype[np.int64]]] = list(
            split_rows(len(labels), self.validation_fraction, seed=self.seed, strata=strata)
        )
        held, kept = (torch.from_numpy(part).to(labels.device) for part in parts)
        return rows[kept], labels[kept], (rows[held], labels[held])

    def _take(self, trained: TrainedHead) -> None:
        *hidden, last = trained.layers
        empty = torch.zeros(0, device=last[0].device)
        self.hidden_weight_, self.hidden_bias_ = hidden[0] if hidden else (empty, empty)
        self.weight_, self.bias_ = last


def _told(trained: TrainedHead) -> dict[str, Any]:
    """The figures of training, as plain values."""
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
