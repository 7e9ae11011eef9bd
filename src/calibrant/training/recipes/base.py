"""What a recipe is: a way of training, in hooks the engine calls."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from torch import Tensor, nn

from calibrant.training.recipes.soft import told

if TYPE_CHECKING:
    from calibrant.data.batches import Batch
    from calibrant.training.config import Config
    from calibrant.training.job import Job


class Pass(NamedTuple):
    """One sweep over some training rows, with its loss."""

    rows: Tensor | None  # row numbers of the training set; None is all of them
    loss: Callable[[Job, Batch], Tensor]


class Recipe(nn.Module):
    """The usual way: every row once an epoch, its loss, its step.

    Subclasses change what they must. A recipe's own options are keyword arguments kept under
    their names; what it learns or counts is in buffers or parameters, which the engine
    checkpoints beside the model's, so that a resumed run goes on as if never stopped.
    """

    name: ClassVar[str] = "standard"
    together: ClassVar[str] = "mean"  # how members become one run; see `family`
    dense: ClassVar[bool] = True  # whether it takes images labelled pixel by pixel
    soft: ClassVar[bool] = False  # whether it gives the loss class probabilities as target
    steady: ClassVar[bool] = True  # one graph of the network serves all epochs, so it can compile

    def members(self, config: Config) -> list[Config]:
        """Runs to be trained in this one's place and put together; most have none."""
        return []

    def prepare(self, job: Job) -> None:
        """Once, before the optimiser is made: replace a head, hold rows out.

        Must do the same thing again, from the seed, when a run is resumed.
        """

    def before_epoch(self, job: Job) -> None:
        """Before each epoch: freeze a layer, refresh targets."""

    def passes(self, job: Job) -> Sequence[Pass]:
        """The sweeps of one epoch."""
        return [Pass(None, self.loss)]

    def loss(self, job: Job, batch: Batch) -> Tensor:
        """The loss of one batch; what a pass calls."""
        return self.of_logits(job, job.model(batch.inputs), batch)

    @staticmethod
    def of_logits(job: Job, logits: Tensor, batch: Batch) -> Tensor:
        """The run's loss of logits, told which samples they are where it asks."""
        extra = {"index": batch.index} if getattr(job.loss, "needs_index", False) else {}
        try:
            value: Tensor = job.criterion(logits, batch.target, **extra)
        except (RuntimeError, IndexError, TypeError, ValueError) as error:
            words = told(error, job.loss) if batch.target.is_floating_point() else None
            if words is None:
                raise
            raise words from error
        return value

    def after_epoch(self, job: Job) -> dict[str, float]:
        """After each epoch; figures it returns join the epoch's line of metrics."""
        return {}

    def finish(self, job: Job) -> dict[str, float]:
        """After the last epoch: a second stage. From the seed and the weights alone."""
        return {}

    def predict(self, job: Job, inputs: Tensor) -> Tensor:
        """Logits (or log-probabilities) in use, of normalised inputs, model in eval mode."""
        logits: Tensor = job.model(inputs)
        return logits
