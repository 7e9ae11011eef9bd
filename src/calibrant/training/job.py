"""What a recipe may see and change while it trains."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from calibrant.data.augment import Augment, Normalise
from calibrant.data.batches import Batch, DeviceBatches, derived_seed
from calibrant.data.splits import stratified_split
from calibrant.data.value import Images
from calibrant.functional.errors import InputError
from calibrant.models.split import Split, split
from calibrant.training.config import Config
from calibrant.training.recipes.base import Recipe

Data = Images | Iterable[Any]  # a set that lives on the device, or an ordinary loader


@dataclass
class Job:
    """A run in progress."""

    config: Config
    recipe: Recipe
    loss: nn.Module
    network: nn.Module  # bare: its weights, parts and mode
    train: Data
    validation: Data | None
    test: Data | None
    num_classes: int
    device: torch.device
    normalise: Normalise | None = None
    fabric: Any = None
    model: Any = None  # the network as it is called: precision, processes, compilation
    criterion: Any = None  # the loss as it is called
    optimizer: Any = None
    epoch: int = 0  # epochs done
    step: int = 0
    generator: torch.Generator = field(default_factory=torch.Generator)  # on the device
    draws: torch.Generator = field(default_factory=torch.Generator)  # on the CPU
    rows: Tensor | None = None  # the training rows a pass of "all rows" means; None: every one

    @property
    def epochs(self) -> int:
        """Epochs in all."""
        return self.config.epochs

    @property
    def num_rows(self) -> int:
        """Rows of the training set, those held out by a recipe included."""
        return len(self.train)  # type: ignore[arg-type]

    def batches(self, rows: Tensor | None = None, *, train: bool = True, offset: int = 0) -> Any:
        """Batches of training rows: shuffled and augmented, or in order as they are.

        ``offset`` tells apart several shuffled sweeps of one epoch.
        """
        rows = self.rows if rows is None else rows
        if not isinstance(self.train, Images):
            return LoaderBatches(self.train, self.device, rows)
        config = self.config
        return DeviceBatches(
            self.train,
            rows,
            batch_size=config.batch_size if train else config.eval_batch_size,
            normalise=self._normalise(),
            seed=derived_seed(config.seed, offset),
            epoch=self.epoch,
            shuffle=train,
            # A last batch of one row would break BatchNorm, and unequal ones a rank's steps.
            drop_last=train,
            augment=self._augment() if train else None,
            rank=self.fabric.global_rank if self.fabric and train else 0,
            world=self.fabric.world_size if self.fabric and train else 1,
        )

    @torch.no_grad()
    def predict(self, data: Data, rows: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Float32 logits and labels of unaugmented rows, on the device, by the recipe."""
        was, called = self.network.training, self.model
        self.network.eval()
        if self.config.compile:
            # Another mode and a last batch of another size would each be compiled anew.
            self.model = self._uncompiled
        try:
            parts = [
                (self.recipe.predict(self, batch.inputs).float(), batch.target)
                for batch in self.rows_of(data, rows)
            ]
        finally:
            self.network.train(was)
            self.model = called
        if not parts:
            raise InputError("there are no rows to predict")
        logits, labels = zip(*parts, strict=True)
        return torch.cat(logits), torch.cat(labels)

    @torch.no_grad()
    def features(self, data: Data, rows: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """What the network's classifier sees of unaugmented rows, in float32."""
        was = self.network.training
        self.network.eval()
        try:
            extractor = self.split().extractor
            with self.fabric.autocast():
                parts = [
                    (extractor(batch.inputs).float(), batch.target)
                    for batch in self.rows_of(data, rows)
                ]
        finally:
            self.network.train(was)
        found, labels = zip(*parts, strict=True)
        return torch.cat(found), torch.cat(labels)

    def split(self) -> Split:
        """The network's feature extractor and head."""
        return split(self.network, head=self.config.head)

    def replace_head(self, head: nn.Module) -> None:
        """Put another module in the place of the network's head."""
        parent, _, last = self.split().name.rpartition(".")
        setattr(self.network.get_submodule(parent), last, head)

    def some_rows(self, count: int) -> Tensor | None:
        """A fixed part of the training rows, by class; None where there are no more."""
        if not isinstance(self.train, Images) or len(self.train) <= count:
            return None
        return stratified_split(self.train.labels, count, seed=0)[1]

    def rows_of(self, data: Data, rows: Tensor | None = None) -> Iterable[Batch]:
        """Unaugmented batches of any part, in order."""
        if not isinstance(data, Images):
            return LoaderBatches(data, self.device, rows)
        return DeviceBatches(
            data, rows, batch_size=self.config.eval_batch_size, normalise=self._normalise()
        )

    def backward_step(self, loss: Tensor) -> None:
        """One step of the optimiser down a loss."""
        self.optimizer.zero_grad(set_to_none=True)
        self.fabric.backward(loss)
        if self.config.clip is not None:
            # Asking whether they are finite would wait for the device; the epoch's loss tells.
            self.fabric.clip_gradients(
                self.model, self.optimizer, max_norm=self.config.clip, error_if_nonfinite=False
            )
        self.optimizer.step()
        self.step += 1

    def _uncompiled(self, inputs: Tensor) -> Tensor:
        with self.fabric.autocast():
            logits: Tensor = self.network(inputs)
        return logits

    def _normalise(self) -> Normalise:
        assert self.normalise is not None
        return self.normalise

    def _augment(self) -> Augment | None:
        config = self.config
        if not (config.crop or config.flip or config.cutout):
            return None
        return Augment(config.crop, config.flip, config.cutout)


class LoaderBatches:
    """An ordinary loader of (inputs, target) or (inputs, target, index) as batches."""

    def __init__(self, loader: Iterable[Any], device: torch.device, rows: Tensor | None) -> None:
        if rows is not None:
            raise InputError(
                "this recipe chooses training rows, which a DataLoader does not offer: give the "
                "data as calibrant.data.Images"
            )
        self._loader, self._device = loader, device

    def __len__(self) -> int:
        return len(self._loader)  # type: ignore[arg-type]

    def __iter__(self) -> Iterator[Batch]:
        for item in self._loader:
            if not isinstance(item, (list, tuple)) or len(item) not in (2, 3):
                raise InputError(
                    "a loader gives (inputs, target) or (inputs, target, index), found "
                    f"{type(item).__name__}"
                )
            inputs, target = (one.to(self._device, non_blocking=True) for one in item[:2])
            index = item[2].to(self._device) if len(item) == 3 else torch.empty(0).long()
            yield Batch(inputs, target, index)
