"""The trained network of a run, rebuilt from its weights to be looked at again."""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path

import torch
from torch import Tensor, nn

from calibrant.data.value import Images, Splits
from calibrant.models.split import Split, split
from calibrant.training.checkpoint import under
from calibrant.training.job import Data, Job
from calibrant.training.making import make_job
from calibrant.training.recipes.stage_two import MacCal
from calibrant.training.run import PARTS, Run

BATCH = 2048  # rows at once; nothing is kept for a backward pass


class Trained(Job):
    """A run's job after its end: its features are computed once, its head is named."""

    head_name: str | None = None
    taken: nn.Module | None = None  # the head a second stage made

    @classmethod
    def of(cls, job: Job) -> Trained:
        """The same job, ended."""
        made = cls(**{one.name: getattr(job, one.name) for one in fields(job)})
        made._found = {}
        return made

    _found: dict[str, tuple[Tensor, Tensor]]

    def split(self) -> Split:
        """Extractor and head; also where a second stage has put a head of its own."""
        return split(self.network, head=self.head_name or self.config.head)

    def features(self, data: Data, rows: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """What the classifier sees of unaugmented rows; of a whole part, computed once."""
        part = next((name for name in PARTS if getattr(self, name) is data), None)
        if rows is not None or part is None:
            return super().features(self._here(data), rows)
        if part not in self._found:
            self._found[part] = super().features(self._here(data))
        return self._found[part]

    def predict(self, data: Data, rows: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Float32 logits and labels of unaugmented rows, on the device."""
        return super().predict(self._here(data), rows)

    def replace_head(self, head: nn.Module) -> None:
        """Take the head of a second stage, and leave the network as it is."""
        self.taken = head

    def _here(self, data: Data) -> Data:
        return data.to(self.device) if isinstance(data, Images) else data


def rebuild(
    run: Run, data: Splits, *, device: str | None = None, precision: str = "fp32"
) -> list[Trained]:
    """The trained networks whose mean softmax is the run's answer: mostly one.

    Logits are float32 without autocast, whatever the run was trained in, unless ``precision``
    says ``bf16``: a calibrator is fitted on, and judged by, the run's own predictions.
    """
    return [_one(Run(folder), data, device, precision) for folder in _folders(run)]


@torch.no_grad()
def through(head: nn.Module, features: Tensor) -> Tensor:
    """A head's logits of features, in float32 on the CPU."""
    parts = [head.eval()(rows).float() for rows in torch.split(features, 4 * BATCH)]
    return torch.cat(parts).cpu()


def _folders(run: Run) -> list[Path]:
    members = run.folder / "members"
    if not members.is_dir():
        return [run.folder]
    chosen = json.loads((run.folder / "chosen.json").read_text(encoding="utf-8"))
    found = sorted(members.iterdir(), key=lambda path: int(path.name))
    return [found[chosen["member"]]] if "member" in chosen else found


def _one(run: Run, data: Splits, device: str | None, precision: str) -> Trained:
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
    network = under(weights, "network.")
    if isinstance(job.recipe, MacCal):
        name = job.split().name
        head = job.recipe.kind(**job.recipe.options)
        head.load_state_dict(under(network, f"{name}."))  # its empty buffers take their shapes
        Job.replace_head(job, head.to(job.device))
        job.head_name = name
    job.network.load_state_dict(network)
    job.recipe.load_state_dict(under(weights, "recipe."))
    job.loss.load_state_dict(under(weights, "loss."), strict=False)  # earlier runs kept none
    job.network.eval()
    return job
