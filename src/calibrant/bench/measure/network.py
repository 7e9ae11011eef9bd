"""The trained network of a run, rebuilt from its weights."""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path

import torch
from torch import Tensor, nn

from calibrant.data.images import Images, Splits
from calibrant.training.checkpoint import strip_prefix
from calibrant.training.recipes.base import Data, Job
from calibrant.training.recipes.stage_two import MacCal
from calibrant.training.run import PARTS, Run
from calibrant.training.setup import make_job

BATCH = 2048  # rows at once; nothing is kept for a backward pass


class Trained(Job):
    """A run's job after training: features of each part are computed once."""

    taken: nn.Module | None = None  # the head that a second stage made

    @classmethod
    def of(cls, job: Job) -> Trained:
        """Return the same job, trained."""
        trained = cls(**{field.name: getattr(job, field.name) for field in fields(job)})
        trained._features = {}
        return trained

    _features: dict[str, tuple[Tensor, Tensor]]

    def features(self, data: Data, rows: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Compute features and labels of unaugmented rows; of a whole part once."""
        part = next((name for name in PARTS if getattr(self, name) is data), None)
        if rows is not None or part is None:
            return super().features(self._to_device(data), rows)
        if part not in self._features:
            self._features[part] = super().features(self._to_device(data))
        return self._features[part]

    def predict(self, data: Data, rows: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Compute float32 logits and labels of unaugmented rows, on the device."""
        return super().predict(self._to_device(data), rows)

    def replace_head(self, head: nn.Module) -> None:
        """Keep the head of a second stage, and leave the network as it is."""
        self.taken = head

    def _to_device(self, data: Data) -> Data:
        return data.to(self.device) if isinstance(data, Images) else data


def rebuild(
    run: Run, data: Splits, *, device: str | None = None, precision: str = "fp32"
) -> list[Trained]:
    """Rebuild the trained networks whose mean softmax is the run's prediction: mostly one.

    Args:
        run: the run.
        data: its images.
        device: to compute on. Default: None, that of the run's settings.
        precision: fp32, without autocast whatever the run was trained in, or bf16. Default: fp32.
    """
    return [_rebuild_one(Run(folder), data, device, precision) for folder in _folders(run)]


@torch.no_grad()
def apply_head(head: nn.Module, features: Tensor) -> Tensor:
    """Compute a head's logits of features, in float32 on the CPU."""
    parts = [head.eval()(rows).float() for rows in torch.split(features, 4 * BATCH)]
    return torch.cat(parts).cpu()


def _folders(run: Run) -> list[Path]:
    members = run.folder / "members"
    if not members.is_dir():
        return [run.folder]
    chosen = json.loads((run.folder / "chosen.json").read_text(encoding="utf-8"))
    folders = sorted(members.iterdir(), key=lambda path: int(path.name))
    return [folders[chosen["member"]]] if "member" in chosen else folders


def _rebuild_one(run: Run, data: Splits, device: str | None, precision: str) -> Trained:
    config = run.config
    config = config.changed(
        eval_batch_size=max(BATCH, config.eval_batch_size) if not data.test.is_dense else 8,
        compile=False,
        devices=1,
        precision=precision,
        device=device or config.device,
    )
    job = Trained.of(make_job(config, data, None))
    weights = run.weights()
    network = strip_prefix(weights, "network.")
    if isinstance(job.recipe, MacCal):
        name = job.split().name
        head = job.recipe.kind(**job.recipe.options)
        # Its empty buffers take the shapes of the saved ones.
        head.load_state_dict(strip_prefix(network, f"{name}."))
        Job.replace_head(job, head.to(job.device))
    job.network.load_state_dict(network)
    job.recipe.load_state_dict(strip_prefix(weights, "recipe."))
    job.loss.load_state_dict(strip_prefix(weights, "loss."), strict=False)  # earlier runs kept none
    job.network.eval()
    return job
