"""Recipes: hooks that the engine calls, and the job that they see and change."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from calibrant.core.errors import InputError
from calibrant.data.augment import Augment, Normalise
from calibrant.data.batches import Batch, DeviceBatches, LoaderBatches, derive_seed
from calibrant.data.images import Images
from calibrant.data.splits import stratified_split
from calibrant.losses import Composed
from calibrant.models.split import Split, split
from calibrant.training.config import Config

Data = Images | Iterable[Any]  # a set that lives on the device, or an ordinary loader


class Pass(NamedTuple):
    """One sweep over training rows, with its loss."""

    rows: Tensor | None  # numbers of training rows; None for all
    loss: Callable[[Job, Batch], Tensor]


class Recipe(nn.Module):
    """Train as usual: every row once an epoch, one step a batch.

    Subclasses override the hooks they need. The options of a recipe are keyword arguments.
    What it learns or counts lives in buffers or parameters: the engine checkpoints them beside
    the network's, so that a resumed run continues as if it had never stopped.
    """

    name: ClassVar[str] = "standard"
    together: ClassVar[str] = "mean"  # how members become one run; see `members.train_members`
    dense: ClassVar[bool] = True  # whether it accepts one label a pixel
    soft: ClassVar[bool] = False  # whether it gives the loss class probabilities as target
    steady: ClassVar[bool] = True  # whether one compiled graph serves all epochs

    def members(self, config: Config) -> list[Config]:
        """Return the configs of runs to train and combine in place of this one; usually none."""
        return []

    def prepare(self, job: Job) -> None:
        """Run once before the optimiser is created: replace a head, hold out rows.

        It must do the same again, from the seed, when a run is resumed.
        """

    def before_epoch(self, job: Job) -> None:
        """Run before each epoch: freeze a layer, refresh targets."""

    def passes(self, job: Job) -> Sequence[Pass]:
        """Return the sweeps of one epoch."""
        return [Pass(None, self.loss)]

    def loss(self, job: Job, batch: Batch) -> Tensor:
        """Compute the loss of one batch."""
        return self.of_logits(job, job.model(batch.inputs), batch)

    @staticmethod
    def of_logits(job: Job, logits: Tensor, batch: Batch) -> Tensor:
        """Compute the run's loss of logits; pass row numbers if the loss needs them."""
        extra = {"index": batch.index} if getattr(job.loss, "needs_index", False) else {}
        try:
            value: Tensor = job.criterion(logits, batch.target, **extra)
        except (RuntimeError, IndexError, TypeError, ValueError) as error:
            soft = batch.target.is_floating_point()
            explanation = _explain_soft_failure(error, job.loss) if soft else None
            if explanation is None:
                raise
            raise explanation from error
        return value

    def after_epoch(self, job: Job) -> dict[str, float]:
        """Run after each epoch; the returned figures join the epoch's line of metrics."""
        return {}

    def finish(self, job: Job) -> dict[str, float]:
        """Run a second stage after the last epoch, from the seed and the weights alone."""
        return {}

    def predict(self, job: Job, inputs: Tensor) -> Tensor:
        """Return logits, or log-probabilities, of normalised inputs; the model is in eval mode."""
        logits: Tensor = job.model(inputs)
        return logits


@dataclass
class Job:
    """A run in progress: what a recipe may see and change.

    Args:
        config: The settings of the run.
        recipe: The recipe.
        loss: The loss, with its state.
        network: The bare network: its weights, parts and mode.
        train: Training rows.
        validation: Validation rows, or None.
        test: Test rows, or None; the engine reads them at the end only.
        num_classes: K.
        device: The device of network and data.
        normalise: Converts bytes to numbers; None for loaders.
        fabric: Lightning's Fabric.
        model: The network as it is called: with precision, processes and compilation.
        criterion: The loss as it is called.
        optimizer: The optimiser.
        epoch: Epochs finished.
        step: Optimiser steps finished.
        generator: Random numbers on the device, seeded anew every epoch.
        draws: Random numbers on the CPU, seeded anew every epoch.
        rows: The training rows of a pass over "all rows"; None for every row.
        head: The name of the network's head, once it was found: one that a recipe puts in its
            place need not look like a head.
    """

    config: Config
    recipe: Recipe
    loss: nn.Module
    network: nn.Module
    train: Data
    validation: Data | None
    test: Data | None
    num_classes: int
    device: torch.device
    normalise: Normalise | None = None
    fabric: Any = None
    model: Any = None
    criterion: Any = None
    optimizer: Any = None
    epoch: int = 0
    step: int = 0
    generator: torch.Generator = field(default_factory=torch.Generator)
    draws: torch.Generator = field(default_factory=torch.Generator)
    rows: Tensor | None = None
    head: str | None = None

    @property
    def epochs(self) -> int:
        """Return the number of epochs of the run."""
        return self.config.epochs

    @property
    def num_rows(self) -> int:
        """Return the number of training rows, including those that a recipe holds out."""
        return len(self.train)  # type: ignore[arg-type]

    @property
    def has_validation(self) -> bool:
        """Return whether there are validation rows."""
        return self.validation is not None and len(self.validation) > 0  # type: ignore[arg-type]

    def batches(self, rows: Tensor | None = None, *, train: bool = True, offset: int = 0) -> Any:
        """Return batches of training rows.

        Args:
            rows: Numbers of training rows; None for all.
            train: Whether to shuffle and augment them; else they come in order, unchanged.
            offset: The number of this sweep within the epoch: each sweep shuffles differently.
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
            seed=derive_seed(config.seed, offset),
            epoch=self.epoch,
            shuffle=train,
            # A last batch of one row would break BatchNorm; unequal ones, the steps of a rank.
            drop_last=train,
            augment=self._augment() if train else None,
            rank=self.fabric.global_rank if self.fabric and train else 0,
            world=self.fabric.world_size if self.fabric and train else 1,
        )

    def rows_of(self, data: Data, rows: Tensor | None = None) -> Iterable[Batch]:
        """Return unaugmented batches of any part, in order."""
        if not isinstance(data, Images):
            return LoaderBatches(data, self.device, rows)
        return DeviceBatches(
            data, rows, batch_size=self.config.eval_batch_size, normalise=self._normalise()
        )

    def some_rows(self, count: int) -> Tensor | None:
        """Return a fixed sample of training rows, by class; None if there are no more rows."""
        if not isinstance(self.train, Images) or len(self.train) <= count:
            return None
        return stratified_split(self.train.labels, count, seed=0)[1]

    @torch.no_grad()
    def predict(self, data: Data, rows: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Return the recipe's float32 logits and the labels of unaugmented rows, on the device."""
        called = self.model
        if self.config.compile:
            # Eval mode and a smaller last batch would each be compiled anew.
            self.model = self._call_uncompiled
        try:
            return self._apply(lambda inputs: self.recipe.predict(self, inputs), data, rows)
        finally:
            self.model = called

    @torch.no_grad()
    def features(self, data: Data, rows: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Return the float32 inputs of the network's classifier, and the labels."""
        extractor = self.split().extractor
        with self.fabric.autocast():
            return self._apply(extractor, data, rows)

    def split(self) -> Split:
        """Return the network's feature extractor and head."""
        parts = split(self.network, head=self.head or self.config.head)
        self.head = parts.name
        return parts

    def replace_head(self, head: nn.Module) -> None:
        """Replace the network's head."""
        parent, _, last = self.split().name.rpartition(".")
        setattr(self.network.get_submodule(parent), last, head)

    def backward_step(self, loss: Tensor) -> None:
        """Take one step of the optimiser down a loss."""
        self.optimizer.zero_grad(set_to_none=True)
        self.fabric.backward(loss)
        if self.config.clip is not None:
            # Checking for finite gradients would wait for the device; the epoch's loss shows it.
            self.fabric.clip_gradients(
                self.model, self.optimizer, max_norm=self.config.clip, error_if_nonfinite=False
            )
        self.optimizer.step()
        self.step += 1

    def _apply(
        self, function: Callable[[Tensor], Tensor], data: Data, rows: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        was_training = self.network.training
        self.network.eval()
        try:
            parts = [
                (function(batch.inputs).float(), batch.target) for batch in self.rows_of(data, rows)
            ]
        finally:
            self.network.train(was_training)
        if not parts:
            raise InputError("there are no rows to predict")
        outputs, labels = zip(*parts, strict=True)
        return torch.cat(outputs), torch.cat(labels)

    def _call_uncompiled(self, inputs: Tensor) -> Tensor:
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


def check_targets(recipe: Recipe, loss: nn.Module) -> None:
    """Refuse a loss that declares ``soft_targets = False`` where a recipe gives probabilities."""
    for part in _parts(loss) if recipe.soft else ():
        if not getattr(part, "soft_targets", True):
            raise InputError(
                f"{recipe.name} gives class probabilities (N, K) as target, and {_name(part)} "
                "takes labels alone (soft_targets = False): use another recipe, or another loss"
            )


def _explain_soft_failure(error: Exception, loss: nn.Module) -> InputError | None:
    """Explain the failure of a user's loss on class probabilities; None for other failures."""
    own_parts = [
        part for part in _parts(loss) if not type(part).__module__.startswith("calibrant.")
    ]
    if not own_parts or isinstance(error, (InputError, torch.cuda.OutOfMemoryError)):
        return None
    names = " and ".join(map(_name, own_parts))
    return InputError(
        f"{names}: the target was class probabilities (N, K), as recipes that mix give, not labels "
        f"(N,), and it failed with {type(error).__name__}: {error}. Accept both, as in "
        "`hard = target.argmax(1) if target.is_floating_point() else target`, or set "
        "soft_targets = False in the class of the loss"
    )


def _parts(loss: nn.Module) -> list[nn.Module]:
    return [loss.primary, *loss.secondaries] if isinstance(loss, Composed) else [loss]


def _name(part: nn.Module) -> str:
    return str(getattr(part, "name", type(part).__name__))
