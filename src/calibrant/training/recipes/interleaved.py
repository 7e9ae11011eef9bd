"""Interleaved training: the secondary loss on rows that the primary loss never sees."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from calibrant.core.errors import InputError
from calibrant.data.batches import Batch
from calibrant.data.images import Images
from calibrant.data.splits import stratified_split
from calibrant.losses import Composed, Graphed, graphed
from calibrant.metrics import ece
from calibrant.training.config import Config
from calibrant.training.recipes.base import Job, Pass, Recipe

MEMORISED = 0.01  # a training ECE below this is suspiciously low (appendix B)


class _Secondary(nn.Module):
    """The secondary part of a loss alone."""

    def __init__(self, loss: Composed) -> None:
        super().__init__()
        self.loss, self.needs_index = loss, loss.needs_index

    def forward(self, input: Tensor, target: Tensor, *, index: Tensor | None = None) -> Tensor:
        return self.loss.added(input, target, index=index)


class Interleaved(Recipe):
    """Train the primary loss on most rows and the secondary loss on the rest, in every epoch.

    Soft-calibration, appendix B. It needs a loss with a secondary part, such as
    ``cross_entropy+0.5*s_avuc``.

    Args:
        held_out: The share of the training rows that the secondary loss sees. Default: 0.1
            (docs/decisions.md).
        interleave: ``always``; or ``auto``, the paper's rule. With validation rows, ``auto``
            trains two runs, with and without interleaving, and takes the one of lower
            validation ECE. Without them, it trains both parts on all rows, and interleaves once
            the training ECE falls below 1%. Default: 'always' (soft-calibration, table 2: its
            CIFAR rows are interleaved runs).
    """

    name = "interleaved"
    together = "lowest_validation_ece"

    interleaving: Tensor

    def __init__(self, *, held_out: float = 0.1, interleave: str = "always") -> None:
        super().__init__()
        if interleave not in ("always", "auto"):
            raise InputError(f"interleave must be always or auto, found {interleave!r}")
        if not 0 < held_out < 1:
            raise InputError(f"held_out must be a share in (0, 1), found {held_out!r}")
        self.held_out, self.interleave = held_out, interleave
        self.register_buffer("interleaving", torch.tensor(interleave == "always"))
        self._kept = self._held = torch.empty(0, dtype=torch.int64)
        self._parts: tuple[Graphed, ...] = ()  # of the run's loss, which keeps its own state

    def members(self, config: Config) -> list[Config]:
        """Return a run without interleaving and one with, if validation rows can compare them."""
        if self.interleave != "auto" or not config.validation:
            return []
        options = {"held_out": self.held_out, "interleave": "always"}
        return [
            config.changed(recipe="standard", recipe_options={}),
            config.changed(recipe=self.name, recipe_options=options),
        ]

    def prepare(self, job: Job) -> None:
        """Hold out rows by class."""
        if not isinstance(job.loss, Composed) or not len(job.loss.secondaries):
            raise InputError(
                "interleaved training needs a secondary loss, as in cross_entropy+0.5*s_avuc, "
                f"found {job.config.loss!r}"
            )
        if not isinstance(job.train, Images):
            raise InputError("interleaved training holds out rows: give the data as Images")
        self._parts = graphed(job.loss.primary), graphed(_Secondary(job.loss))
        seed = job.config.split_seed + 1
        self._kept, self._held = stratified_split(job.train.labels, self.held_out, seed=seed)

    def passes(self, job: Job) -> Sequence[Pass]:
        """Return one sweep over each part, or one over all rows."""
        if not bool(self.interleaving):
            return [Pass(None, self.loss)]
        return [Pass(self._kept, self._primary), Pass(self._held, self._secondary)]

    def after_epoch(self, job: Job) -> dict[str, float]:
        """Start to interleave once the training rows are memorised."""
        if self.interleave == "auto" and not bool(self.interleaving):
            error = float(ece(*job.predict(job.train, self._kept)))
            self.interleaving.fill_(error < MEMORISED)
        return {"interleaving": float(self.interleaving)}

    def _primary(self, job: Job, batch: Batch) -> Tensor:
        loss: Tensor = self._parts[0](job.model(batch.inputs), batch.target)
        return loss

    def _secondary(self, job: Job, batch: Batch) -> Tensor:
        secondary = self._parts[1]
        index = batch.index if secondary.needs_index else None
        loss: Tensor = secondary(job.model(batch.inputs), batch.target, index=index)
        return loss
