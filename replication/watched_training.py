"""Train as usual, and look at test rows and at gradients after each epoch.

r-aurc's figures 4 and 8 need networks in the course of training, of which a run keeps the last
alone. Suites load this file as a plugin, and its digest is in the keys of their runs: edit it with
care.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from calibrant import losses, metrics
from calibrant.core.errors import InputError
from calibrant.data.images import Images
from calibrant.training import recipes

METRICS = {"accuracy": metrics.accuracy, "nll": metrics.nll, "ece": metrics.ece}
BINS = 20  # of the probability of the true class
NEARLY_ONE = 1 - 1e-12  # beyond it the share of other classes has no digits left


@recipes.register
class Watched(recipes.Recipe):
    """Train as usual; add figures of test rows, and gradients of losses, to an epoch's line.

    Batches, weights and random numbers are those of plain training. Figures are ``test_accuracy``,
    ``test_nll`` and ``test_ece``; ``gradient:NAME:BIN``, the mean of ∂ℓ/∂p over training rows whose
    true class has a probability in the bin; and ``gradient:rows:BIN``, the share of such rows.

    Args:
        every: Epochs between looks at test rows. Default: 1 (r-aurc, figure 8).
        gradients: Losses by the names that their figures get. Default: None (no gradients).
        gradients_every: Epochs between gradients; they are also computed after the first and the
            last epoch. Default: 10 (ours).
        rows: Training rows of the gradients, the same each time. Default: 20_000 (r-aurc,
            figure 4).
    """

    name = "watched"
    dense = False

    def __init__(
        self,
        *,
        every: int = 1,
        gradients: Mapping[str, str] | None = None,
        gradients_every: int = 10,
        rows: int = 20_000,
    ) -> None:
        super().__init__()
        for name, count in (("every", every), ("gradients_every", gradients_every), ("rows", rows)):
            if not isinstance(count, int) or count < 1:
                raise InputError(f"{name} must be a whole number of at least 1, found {count!r}")
        self.every, self.gradients_every, self.rows = every, gradients_every, rows
        self.gradients = dict(gradients or {})
        for text in self.gradients.values():
            losses.get(text, reduction="none")  # refuse bad texts before training

    def prepare(self, job: Any) -> None:
        """Refuse averages of weights, which the looks would not see."""
        if job.config.average != "none":
            raise InputError(f"watched looks at plain weights, found average {job.config.average}")

    def after_epoch(self, job: Any) -> dict[str, float]:
        """Compute the figures of this epoch; ``job.epoch`` counts it already."""
        figures: dict[str, float] = {}
        last = job.epoch == job.epochs
        if job.test is not None and (last or job.epoch % self.every == 0):
            test = job.test.to(job.device) if isinstance(job.test, Images) else job.test
            logits, labels = job.predict(test)
            figures = {f"test_{name}": float(f(logits, labels)) for name, f in METRICS.items()}
        if self.gradients and (last or job.epoch == 1 or job.epoch % self.gradients_every == 0):
            logits, labels = job.predict(job.train, job.some_rows(self.rows))
            figures |= self._compute_gradients(logits.cpu(), labels.cpu(), job.config.batch_size)
        return figures

    def _compute_gradients(
        self, logits: Tensor, labels: Tensor, batch_size: int
    ) -> dict[str, float]:
        order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
        logits, labels = logits[order], labels[order]
        p = torch.softmax(logits.double(), 1).gather(1, labels.unsqueeze(1)).squeeze(1)
        place = (p * BINS).long().clamp_max(BINS - 1)
        rows = torch.bincount(place, minlength=BINS)
        figures = {f"gradient:rows:{at}": int(rows[at]) / len(p) for at in range(BINS) if rows[at]}
        for name, text in self.gradients.items():
            slopes = compute_slopes(logits, labels, text, batch_size=batch_size)
            means = torch.zeros(BINS, dtype=torch.float64).index_add_(0, place, slopes) / rows
            figures |= {f"gradient:{name}:{at}": float(means[at]) for at in range(BINS) if rows[at]}
        return figures


def compute_slopes(logits: Tensor, labels: Tensor, loss: str, *, batch_size: int) -> Tensor:
    """Compute ∂ℓ/∂p of each row, p the probability of its true class, as r-aurc figure 4 draws it.

    Along the simplex: as p grows the other classes keep their proportions. So cross-entropy has
    −1/p, and a rank in the batch moves with the row's confidence, as in eq. 43. ℓ is the sum over
    the batch, so that a row's effect on the ranks of others counts, as it does in training.

    Args:
        logits: (N,K) logits.
        labels: (N,) labels.
        loss: a primary loss by its text.
        batch_size: rows that are ranked together.
    """
    function = losses.get(loss, reduction="none")
    slopes = []
    for z, y in zip(logits.split(batch_size), labels.split(batch_size), strict=True):
        log_p = torch.log_softmax(z.double(), 1)
        own = torch.nn.functional.one_hot(y, z.shape[1]).bool()
        others = log_p.masked_fill(own, -torch.inf)
        shares = (others - others.logsumexp(1, keepdim=True)).masked_fill(own, 0.0)
        p = log_p[own].exp().clamp_max(NEARLY_ONE).requires_grad_()
        inputs = torch.where(own, p.log().unsqueeze(1), shares + torch.log1p(-p).unsqueeze(1))
        (slope,) = torch.autograd.grad(function(inputs, y).sum(), p)
        slopes.append(slope)
    return torch.cat(slopes)
