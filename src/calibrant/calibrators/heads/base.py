"""The base class of heads: features in, logits out, in place of a network's last layer."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor

from calibrant.calibrators.base import Calibrator
from calibrant.calibrators.heads.features import count_classes, feature_rows
from calibrant.core.errors import InputError
from calibrant.core.progress import progress_bar
from calibrant.functional.arrays import Array
from calibrant.metrics.base import compute_all
from calibrant.metrics.means import accuracy_measure, nll_measure
from calibrant.metrics.toplabel import ece_measure

H = TypeVar("H", bound="FeatureHead")
Held = tuple[Tensor, Tensor]  # features and labels of validation rows
Tick = Callable[[int], None]


class FeatureHead(Calibrator):
    """A head trained on (N,D) features: the inputs of the network's own last layer.

    The features are those of the rows the network was *trained* on, not augmented, and the head
    replaces that layer: `attach(extractor, head)`. Subclasses give ``_train``, ``input_width``
    and ``_map``.
    """

    takes_features = True
    num_classes: int | None
    epochs: int

    def fit(  # type: ignore[override]
        self: H,
        features: Array,
        target: Array,
        *,
        ignore_index: int | None = None,
        validation: tuple[Array, Array] | None = None,
        progress: bool = False,
    ) -> H:
        """Train the head on (N,D) features, on their device.

        Args:
            features: (N,D) features.
            target: (N,) labels.
            ignore_index: The label of rows to leave out. Default: None (all count).
            validation: Features and labels on which open choices are made and figures measured.
                Default: None (no such rows).
            progress: True shows a bar on stderr. Default: False (silent).
        """
        rows, labels = feature_rows(features, target, ignore_index=ignore_index)
        held: Held | None = None
        if validation is not None:
            held = feature_rows(*validation, ignore_index=ignore_index)
            if held[0].shape[1] != rows.shape[1]:
                raise InputError(
                    f"validation features have width {held[0].shape[1]}, the others {rows.shape[1]}"
                )
            held = held[0].to(rows.device), held[1].to(rows.device)
        else:
            rows, labels, held = self._hold_out(rows, labels)
        named = None if self.class_names_ is None else len(self.class_names_)
        validated = () if held is None else (held[1],)
        classes = count_classes(labels, *validated, num_classes=self.num_classes, named=named)
        self.num_classes_ = torch.zeros_like(self.num_classes_)  # an interrupted fit counts as none
        with (
            torch.no_grad(),
            progress_bar("training the head", self.epochs, shown=progress) as advance,
        ):
            training = self._train(rows, labels, classes, held, lambda epoch: advance(1))
        self.num_classes_ = torch.tensor(classes, device=rows.device)
        self.summary_ = {
            "rows": len(labels),
            "classes": classes,
            "features": rows.shape[1],
            **self._figures(rows, labels, "after"),
            **({} if held is None else self._figures(*held, "validation")),
            **training,
        }
        return self

    @abstractmethod
    def _train(
        self, rows: Tensor, labels: Tensor, classes: int, held: Held | None, tick: Tick
    ) -> dict[str, Any]:
        """Set the buffers and return the figures of training; call ``tick`` after each epoch."""

    def _hold_out(self, rows: Tensor, labels: Tensor) -> tuple[Tensor, Tensor, Held | None]:
        """Split rows to train on from rows to choose on, if no validation rows are given."""
        return rows, labels, None

    def fit_loader(
        self: H,
        model: Callable[..., Any],
        loader: Iterable[Any],
        *,
        device: str | torch.device | None = None,
        progress: bool = True,
        class_names: Sequence[str] | None = None,
        ignore_index: int | None = None,
        validation: tuple[Array, Array] | None = None,
    ) -> H:
        """Fit on the features that a network gives for a loader's rows, in evaluation mode.

        Args:
            model: The network without its last layer.
            loader: Batches of inputs and labels.
            device: The device to run the model on. Default: None (where it is).
            progress: False hides the bars on stderr. Default: True (shown in a terminal).
            class_names: The names of the classes. Default: None (no names).
            ignore_index: The label of rows to leave out. Default: None (all count).
            validation: Features and labels of validation rows, as of `fit`. Default: None (no
                such rows).
        """
        from calibrant.predictions.model import collect

        rows, labels = collect(model, loader, device=device, progress=progress, outputs="logits")
        if class_names is not None:
            self.class_names_ = tuple(class_names)
        return self.fit(
            rows, labels, ignore_index=ignore_index, validation=validation, progress=progress
        )

    def forward(self, features: Tensor) -> Tensor:
        """Return (N,K) logits of (N,D) features."""
        self._check_fitted()
        self._check_width(features)
        return self._map(features if features.dtype == torch.float64 else features.float())

    def _check_width(self, logits: Tensor) -> None:
        if torch.compiler.is_compiling():
            return
        if logits.ndim != 2 or logits.shape[1] != self.input_width:
            raise InputError(
                f"{self.name} was fitted on {self.input_width} features of "
                f"{int(self.num_classes_)} classes, found shape {tuple(logits.shape)}; give (N, D) "
                "features, the inputs of the network's own last layer, not logits"
            )

    def _figures(self, rows: Tensor, labels: Tensor, when: str) -> dict[str, float]:
        measures = [nll_measure(), accuracy_measure(), ece_measure()]
        values = compute_all(measures, [(self.calibrate(rows), labels)])
        names = ("nll", "accuracy", "ece")
        return {f"{name}_{when}": float(value) for name, value in zip(names, values, strict=True)}


def check_classes(num_classes: int | None) -> int | None:
    """Return the number of classes, if it is valid."""
    if num_classes is not None and num_classes < 2:
        raise InputError(f"num_classes must be at least 2, found {num_classes!r}")
    return num_classes
