"""Build a job from a config: data, network, loss, optimiser, device and processes."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor, nn

from calibrant import losses
from calibrant.core.errors import InputError
from calibrant.core.extras import require
from calibrant.data.augment import Normalise
from calibrant.data.batches import LoaderBatches, derive_seed
from calibrant.data.images import IGNORE_INDEX, Images, Splits
from calibrant.training.config import Config
from calibrant.training.optimizer import make_optimizer
from calibrant.training.recipes import get as get_recipe
from calibrant.training.recipes.base import Data, Job, check_targets

Loaders: TypeAlias = tuple[Iterable[Any], Iterable[Any], Iterable[Any]]


def make_job(
    config: Config, data: Splits | Loaders | None, network: nn.Module | None, fabric: Any = None
) -> Job:
    """Build everything that a run needs, from its settings and its seed.

    Args:
        config: The settings.
        data: `Splits`, or loaders of training, validation and test rows; None loads the data
            that the settings name.
        network: A network; None builds the one that the settings name.
        fabric: Lightning's Fabric; None creates it.
    """
    fabric = make_fabric(config) if fabric is None else fabric
    device = fabric.device
    source = data if data is not None else load_data(config)
    torch.manual_seed(derive_seed(config.seed, 0x5EED))  # initial weights
    if network is None:
        if not isinstance(source, Splits):
            raise InputError("with loaders as data, give a network too")
        network = _build_network(config, source.train)
    form = torch.channels_last if config.channels_last else torch.contiguous_format
    network = network.to(device=device, memory_format=form)  # type: ignore[call-overload]
    parts = _make_parts(source, network, device, config)
    recipe = get_recipe(config.recipe, **config.recipe_options)
    if isinstance(parts.train, Images) and parts.train.is_dense and not recipe.dense:
        raise InputError(
            f"{recipe.name} needs one label an image, and these images have one a pixel: use the "
            "recipe standard, mit, interleaved, plp, mc_dropout or deep_ensemble"
        )
    job = Job(
        config=config,
        recipe=recipe,
        loss=losses.get(
            config.loss, ignore_index=parts.ignore_index, num_samples=parts.num_rows
        ).to(device),
        network=network,
        train=parts.train,
        validation=parts.validation,
        test=parts.test,
        num_classes=parts.num_classes,
        device=device,
        normalise=parts.normalise,
        fabric=fabric,
        generator=torch.Generator(device),
    )
    check_targets(recipe, job.loss)
    if config.compile:
        torch.compiler.reset()  # the compiler keeps few graphs; drop those of earlier runs
    # On CUDA a loss that is not compiled becomes a CUDA graph; elsewhere it is called as it is.
    job.criterion = (
        _CompiledLoss(job.loss, config, device) if config.compile else losses.graphed(job.loss)
    )
    job.recipe.to(device)
    job.recipe.prepare(job)
    job.network.to(device=device, memory_format=form)  # type: ignore[call-overload]
    compiles = config.compile and job.recipe.steady
    called = _compile(job.network, config, device) if compiles else job.network
    optimizer = make_optimizer(config, job.network.parameters())
    job.model, job.optimizer = fabric.setup(called, optimizer)
    return job


def graph_mode(config: Config, device: torch.device) -> str | None:
    """Return the compiler's mode: CUDA graphs on a single GPU, the default elsewhere.

    For networks of CIFAR size the host takes longer to launch kernels than the GPU to run them;
    a CUDA graph launches all of them at once.
    """
    single = device.type == "cuda" and config.devices == 1
    return "reduce-overhead" if single else None


def _compile(module: nn.Module, config: Config, device: torch.device) -> Any:
    return torch.compile(module, mode=graph_mode(config, device))


class _CompiledLoss:
    """A compiled loss; if the compiler fails, it warns and calls the loss uncompiled."""

    def __init__(self, loss: nn.Module, config: Config, device: torch.device) -> None:
        self._loss, self._name = loss, config.loss
        self._call = _compile(loss, config, device)

    def __call__(self, *inputs: Any, **named: Any) -> Tensor:
        """Compute the loss."""
        try:
            value: Tensor = self._call(*inputs, **named)
        except RuntimeError as error:
            from torch._dynamo.exc import BackendCompilerFailed

            if not isinstance(error, BackendCompilerFailed):
                raise
            reason = (str(error.inner_exception).strip().splitlines() or ["no reason given"])[0]
            warnings.warn(
                f"the compiler failed on the loss {self._name} ({reason}): it is not compiled",
                stacklevel=2,
            )
            self._call = losses.graphed(self._loss)
            value = self._call(*inputs, **named)
        return value


class _Parts(NamedTuple):
    train: Data
    validation: Data
    test: Data
    num_classes: int
    num_rows: int
    ignore_index: int
    normalise: Normalise | None


def _make_parts(
    source: Splits | Loaders, network: nn.Module, device: torch.device, config: Config
) -> _Parts:
    """Move training and validation images to the device; test images follow when they are read."""
    if isinstance(source, Splits):
        train = source.train
        normalise = Normalise(source.mean, source.std, device, channels_last=config.channels_last)
        sizes = (train.num_classes, len(train), train.ignore_index)
        moved = train.to(device), source.validation.to(device)
        return _Parts(*moved, source.test, *sizes, normalise)
    if not isinstance(source, tuple) or len(source) != 3:
        raise InputError(
            "data must be calibrant.data.Splits or three loaders (train, validation, test), found "
            f"{type(source).__name__}"
        )
    loader = source[0]
    if config.devices > 1 and not isinstance(
        getattr(loader, "sampler", None), torch.utils.data.DistributedSampler
    ):
        raise InputError(
            f"each of {config.devices} processes would train on all rows of this loader: give it a "
            "torch.utils.data.DistributedSampler, or the data as calibrant.data.Splits"
        )
    dataset: Any = getattr(loader, "dataset", loader)
    try:
        count = len(loader) and len(dataset)  # type: ignore[arg-type]
    except TypeError as error:
        raise InputError(
            f"the training loader must know its length, which schedules need: {error}"
        ) from None
    inputs = next(iter(LoaderBatches(loader, device, None))).inputs
    was_training = network.training
    with torch.no_grad():
        classes = network.eval()(inputs).shape[1]
    network.train(was_training)
    return _Parts(*source, classes, count, IGNORE_INDEX, None)


def _build_network(config: Config, data: Images) -> nn.Module:
    from calibrant import models

    options = dict(config.model_options)
    if config.model == "mlp":
        options.setdefault("inputs", math.prod(data.images.shape[1:]))
    else:
        options.setdefault("channels", data.images.shape[1])
    network: nn.Module = models.build(config.model, data.num_classes, **options)
    shape = tuple(data.images.shape[1:])
    try:  # try one image now: a training step would fail with a less helpful message
        with torch.no_grad():
            network.eval()(torch.zeros(1, *shape))
    except RuntimeError as error:
        size = " x ".join(map(str, shape))
        raise InputError(
            f"{config.model} does not take images of {size} ({error}): use mlp or a ResNet, which "
            "take any size, or resize the images of a folder with size="
        ) from error
    return network.train()


def load_data(config: Config) -> Splits:
    """Load the data that the settings name."""
    from calibrant.data import load

    return load(
        config.data,
        folder=config.data_folder,
        download=config.download,
        validation=config.validation,
        seed=config.split_seed,
        long_tail=config.long_tail,
        size=config.size,
    )


def make_fabric(config: Config) -> Any:
    """Set up device and precision, and start the processes if there are several."""
    fabrics = require("lightning.fabric", extra="train", purpose="training")
    strategies = require("lightning.fabric.strategies", extra="train", purpose="training")
    accelerator = {"auto": "auto", "cpu": "cpu", "cuda": "gpu"}[config.device]
    if config.device == "cuda" and not torch.cuda.is_available():
        raise InputError("device is cuda, but no CUDA device was found: use auto or cpu")
    steady = get_recipe(config.recipe, **config.recipe_options).steady
    # Frozen layers give no gradient: other processes must not wait for one.
    several = strategies.DDPStrategy(find_unused_parameters=not steady)
    fabric = fabrics.Fabric(
        accelerator=accelerator,
        devices=config.devices,
        strategy=several if config.devices > 1 else "auto",
        precision="bf16-mixed" if config.precision == "bf16" else "32-true",
    )
    fabric.launch()
    return fabric
