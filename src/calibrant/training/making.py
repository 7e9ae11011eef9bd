"""Everything a run needs, made from its settings and its seed."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn

from calibrant import losses
from calibrant.data.augment import Normalise
from calibrant.data.batches import derived_seed
from calibrant.data.value import Images, Splits
from calibrant.functional.errors import InputError
from calibrant.training.config import Config
from calibrant.training.job import Job
from calibrant.training.optimise import make_optimizer
from calibrant.training.recipes import get as get_recipe


def make_job(config: Config, data: Splits | None, network: nn.Module | None) -> Job:
    """Everything a run needs, from its settings and its seed."""
    fabric = _fabric(config)
    device = fabric.device
    splits = data if data is not None else _load(config)
    torch.manual_seed(derived_seed(config.seed, 0x5EED))  # the start of weights
    if network is None:
        network = _build(config, splits.train)
    loss = losses.get(config.loss, ignore_index=splits.train.ignore_index)
    form = torch.channels_last if config.channels_last else torch.contiguous_format
    job = Job(
        config=config,
        recipe=get_recipe(config.recipe, **config.recipe_options),
        loss=_sized(loss, len(splits.train)).to(device),
        network=network.to(device=device, memory_format=form),  # type: ignore[call-overload]
        train=splits.train.to(device),
        validation=splits.validation.to(device),
        test=splits.test,
        num_classes=splits.train.num_classes,
        device=device,
        normalise=Normalise(splits.mean, splits.std, device, channels_last=config.channels_last),
        fabric=fabric,
        generator=torch.Generator(device),
    )
    job.recipe.to(device)
    job.recipe.prepare(job)
    job.network.to(device=device, memory_format=form)  # type: ignore[call-overload]
    called = torch.compile(job.network) if config.compile else job.network
    optimizer = make_optimizer(config, job.network.parameters())
    job.model, job.optimizer = fabric.setup(called, optimizer)
    return job


def _sized(loss: nn.Module, rows: int) -> nn.Module:
    """A loss with memory of every sample learns how many there are."""
    for part in loss.modules():
        if callable(getattr(part, "remember", None)):
            part.remember(rows)  # type: ignore[operator]
    return loss


def _build(config: Config, data: Images) -> nn.Module:
    from calibrant import models

    options = dict(config.model_options)
    if config.model == "mlp":
        options.setdefault("inputs", math.prod(data.images.shape[1:]))
    else:
        options.setdefault("channels", data.images.shape[1])
    return models.build(config.model, data.num_classes, **options)


def _load(config: Config) -> Splits:
    from calibrant.data import load

    return load(
        config.data,
        folder=config.data_folder,
        download=config.download,
        validation=config.validation,
        seed=config.split_seed,
        long_tail=config.long_tail,
    )


def _fabric(config: Config) -> Any:
    try:
        from lightning.fabric import Fabric
    except ImportError:
        raise InputError("training needs Lightning: pip install 'calibrant[train]'") from None
    accelerator = {"auto": "auto", "cpu": "cpu", "cuda": "gpu"}[config.device]
    if config.device == "cuda" and not torch.cuda.is_available():
        raise InputError("device is cuda, but no CUDA device was found: use auto or cpu")
    fabric = Fabric(
        accelerator=accelerator,
        devices=config.devices,
        strategy="ddp" if config.devices > 1 else "auto",
        precision="bf16-mixed" if config.precision == "bf16" else "32-true",
    )
    fabric.launch()
    return fabric
