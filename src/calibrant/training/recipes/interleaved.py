"""Interleaved training: the secondary loss on rows the primary never sees."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from calibrant.data.splits import stratified_split
from calibrant.data.value import Images
from calibrant.functional.errors import InputError
from calibrant.losses import Composed, Graphed, graphed
from calibrant.metrics import ece
from calibrant.training.recipes.base import Pass, Recipe

if TYPE_CHECKING:
    from calibrant.data.batches import Batch
    from calibrant.training.config import Config
    from calibrant.training.job import Job

MEMORISED = 0.01  # a train ECE below this is suspiciously low (appendix B)


class _Added(nn.Module):
    """The secondary part of a loss alone."""

    def __init__(self, loss: Composed) -> None:
        super().__init__()
        self.loss, self.needs_index = loss, loss.needs_index

    def forward(self, input: Tensor, target: Tensor, *, index: Tensor | None = None) -> Tensor:
        return self.loss.added(input, target, index=index)


class Interleaved(Recipe):
    """Soft-calibration appendix B: each epoch, primary on most rows, then secondary on the rest.

    Needs a loss with a secondary part, such as ``cross_entropy+0.5*s_avuc``. ``interleave``:
    ``"always"``, or ``"auto"``, the paper's rule: with validation rows two runs are trained,
    with and without, and the one of lower ECE on them is taken; without, interleaving begins
    after the epoch in which the ECE on training rows falls below 1%, both parts being on all
    rows until then.
    """

    name = "interleaved"
    together = "lowest_validation_ece"

    interleaving: Tensor

    def __init__(self, *, held_out: float = 0.1, interleave: str = "always") -> None:
        super().__init__()
        if interleave not in ("always", "auto"):
            raise InputError(f"interleave is always or auto, found {interleave!r}")
        if not 0 < held_out < 1:
            raise InputError(f"held_out is a share in (0, 1), found {held_out!r}")
        self.held_out, self.interleave = held_out, interleave
        self.register_buffer("interleaving", torch.tensor(interleave == "always"))
        self._kept = self._held = torch.empty(0, dtype=torch.int64)
        self._parts: tuple[Graphed, ...] = ()  # the run's loss, which keeps its own state

    def members(self, config: Config) -> list[Config]:
        """A run without interleaving and one with, where there are rows to compare them on."""
        if self.interleave != "auto" or not config.validation:
            return []
        options = {"held_out": self.held_out, "interleave": "always"}
        return [
            config.changed(recipe="standard", recipe_options={}),
            config.changed(recipe=self.name, recipe_options=options),
        ]

    def prepare(self, job: Job) -> None:
        """Hold rows out, by class."""
        if not isinstance(job.loss, Composed) or not len(job.loss.secondaries):
            raise InputError(
                "interleaved training needs a secondary loss, as in cross_entropy+0.5*s_avuc, "
                f"found {job.config.loss!r}"
            )
        if not isinstance(job.train, Images):
            raise InputError("interleaved training holds rows out: give the data as Images")
        self._parts = graphed(job.loss.primary), graphed(_Added(job.loss))
        seed = job.config.split_seed + 1
        self._kept, self._held = stratified_split(job.train.labels, self.held_out, seed=seed)

    def passes(self, job: Job) -> Sequence[Pass]:
        """One sweep over each part, or one over all."""
        if not bool(self.interleaving):
            return [Pass(None, self.loss)]
        return [Pass(self._kept, self._primary), Pass(self._held, self._secondary)]

    def after_epoch(self, job: Job) -> dict[str, float]:
        """Whether the training rows are known by heart by now."""
        if self.interleave == "auto" and not bool(self.interleaving):
            error = float(ece(*job.predict(job.train, self._kept)))
            self.interleaving.fill_(error < MEMORISED)
        return {"interleaving": float(self.interleaving)}

    def _primary(self, job: Job, batch: Batch) -> Tensor:
        loss: Tensor = self._parts[0](job.model(batch.inputs), batch.target)
        return loss

    def _secondary(self, job: Job, batch: Batch) -> Tensor:
        added = self._parts[1]
        index = batch.index if added.needs_index else None
        loss: Tensor = added(job.model(batch.inputs), batch.target, index=index)
        return loss
