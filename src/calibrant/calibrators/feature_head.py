"""What heads on cached features share: features in, logits out, in the last layer's place."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
from torch import Tensor

from calibrant.calibrators.base import Calibrator
from calibrant.calibrators.features import classes_of, feature_rows
from calibrant.functional.blocks import Array
from calibrant.functional.errors import InputError
from calibrant.metrics.base import compute_all
from calibrant.metrics.means import accuracy_measure, nll_measure
from calibrant.metrics.toplabel import ece_measure

H = TypeVar("H", bound="FeatureHead")
Held = tuple[Tensor, Tensor]  # features and labels of validation rows
Tick = Callable[[int], None]


class FeatureHead(Calibrator):
    """A head trained on (N,D) features, what the network's own last layer is given.

    Of the rows the network was *trained* on, not augmented; it replaces that layer:
    `attach(extractor, head)`. Subclasses give ``_train``, ``input_width`` and ``_map``.
    """

    takes_features = True
    num_classes: int | None
    epochs: int

    def fit(
        self: H,
        features: Array,
        target: Array,
        *,
        ignore_index: int | None = None,
        validation: tuple[Array, Array] | None = None,
        progress: bool = False,
    ) -> H:
        """Train the head on (N,D) features, where they are.

        ``validation`` rows choose what the method leaves open, and are judged.
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
        others = () if held is None else (held[1],)
        classes = classes_of(labels, *others, num_classes=self.num_classes, named=named)
        self.num_classes_ = torch.zeros_like(self.num_classes_)  # half a fit is none
        with torch.no_grad(), bar(self.epochs, shown=progress) as tick:
            told = self._train(rows, labels, classes, held, tick)
        self.num_classes_ = torch.tensor(classes, device=rows.device)
        self.summary_ = {
            "rows": len(labels),
            "classes": classes,
            "features": rows.shape[1],
            **self._figures(rows, labels, "after"),
            **({} if held is None else self._figures(*held, "validation")),
            **told,
        }
        return self

    @abstractmethod
    def _train(
        self, rows: Tensor, labels: Tensor, classes: int, held: Held | None, tick: Tick
    ) -> dict[str, Any]:
        """Set the buffers, and tell how it went; ``tick`` is given each epoch that is done."""

    def _hold_out(self, rows: Tensor, labels: Tensor) -> tuple[Tensor, Tensor, Held | None]:
        """Rows to train on and rows to choose on, where none are given for that."""
        return rows, labels, None

    def fit_loader(self: H, model: Callable[..., Any], loader: Iterable[Any], **how: Any) -> H:
        """Fit on the features a network gives for a loader's rows, in evaluation mode.

        Options: ``device``, ``progress``, ``class_names``, ``ignore_index``, ``validation``.
        """
        from calibrant.predictions.model import collect

        device, shown = how.pop("device", None), how.pop("progress", True)
        names = how.pop("class_names", None)
        rows, labels = collect(model, loader, device=device, progress=shown, outputs="logits")
        if names is not None:
            self.class_names_ = tuple(names)
        return self.fit(rows, labels, progress=shown, **how)

    def forward(self, features: Tensor) -> Tensor:
        """Logits (N,K) of features (N,D)."""
        self._check_fitted()
        self._check_width(features)
        return self._map(features if features.dtype == torch.float64 else features.float())

    def _check_width(self, logits: Tensor) -> None:
        if torch.compiler.is_compiling():
            return
        if logits.ndim != 2 or logits.shape[1] != self.input_width:
            raise InputError(
                f"{self.name} was fitted on {self.input_width} features of "
                f"{int(self.num_classes_)} classes, found shape {tuple(logits.shape)}; give what "
                "the network's own last layer is given, (N, D), not logits"
            )

    def _figures(self, rows: Tensor, labels: Tensor, when: str) -> dict[str, float]:
        measures = [nll_measure(), accuracy_measure(), ece_measure()]
        found = compute_all(measures, [(self.calibrate(rows), labels)])
        names = ("nll", "accuracy", "ece")
        return {f"{name}_{when}": float(value) for name, value in zip(names, found, strict=True)}


def check_classes(num_classes: int | None) -> int | None:
    """The number of classes, if it is one."""
    if num_classes is not None and num_classes < 2:
        raise InputError(f"num_classes must be at least 2, found {num_classes!r}")
    return num_classes


@contextmanager
def bar(epochs: int, *, shown: bool) -> Iterator[Tick]:
    """A bar on stderr, told the epochs that are done."""
    if not shown:
        yield lambda epoch: None
        return
    from rich.console import Console
    from rich.progress import Progress

    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as shown_bar:
        task = shown_bar.add_task("training the head", total=epochs)
        yield lambda epoch: shown_bar.update(task, completed=epoch)
