"""Everything a run needs, made from its settings and its seed."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor, nn

from calibrant import losses
from calibrant.data.augment import Normalise
from calibrant.data.batches import derived_seed
from calibrant.data.value import Images, Splits
from calibrant.functional.errors import InputError
from calibrant.training.config import Config
from calibrant.training.job import Data, Job, LoaderBatches
from calibrant.training.optimise import make_optimizer
from calibrant.training.recipes import get as get_recipe
from calibrant.training.recipes.soft import check_targets

NEEDS_LIGHTNING = (
    "training needs Lightning: pip install 'calibrant[train]', or in a clone "
    "pip install -e '.[train]'"
)
Loaders: TypeAlias = tuple[Iterable[Any], Iterable[Any], Iterable[Any]]


def make_job(
    config: Config, data: Splits | Loaders | None, network: nn.Module | None, fabric: Any = None
) -> Job:
    """Everything a run needs, from its settings and its seed."""
    fabric = make_fabric(config) if fabric is None else fabric
    device = fabric.device
    given = data if data is not None else load_data(config)
    torch.manual_seed(derived_seed(config.seed, 0x5EED))  # the start of weights
    if network is None:
        if not isinstance(given, Splits):
            raise InputError("loaders do not say what network they need: give one")
        network = _build(config, given.train)
    form = torch.channels_last if config.channels_last else torch.contiguous_format
    network = network.to(device=device, memory_format=form)  # type: ignore[call-overload]
    parts = _parts(given, network, device, config)
    recipe = get_recipe(config.recipe, **config.recipe_options)
    if isinstance(parts.train, Images) and parts.train.is_dense and not recipe.dense:
        raise InputError(
            f"{recipe.name} is for one label an image, and these are labelled pixel by pixel: use "
            "the recipe standard, mit, interleaved, plp, mc_dropout or deep_ensemble"
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
        torch.compiler.reset()  # graphs of earlier runs in this process fill a small store
    # On a card what is not compiled is a graph of its own; elsewhere it is the loss as it is.
    job.criterion = (
        _CompiledLoss(job.loss, config, device) if config.compile else losses.graphed(job.loss)
    )
    job.recipe.to(device)
    job.recipe.prepare(job)
    job.network.to(device=device, memory_format=form)  # type: ignore[call-overload]
    compile_it = config.compile and job.recipe.steady
    called = _compiled(job.network, config, device) if compile_it else job.network
    optimizer = make_optimizer(config, job.network.parameters())
    job.model, job.optimizer = fabric.setup(called, optimizer)
    return job


def graph_mode(config: Config, device: torch.device) -> str | None:
    """The compiler's mode: on one card CUDA graphs, started whole and not kernel by kernel.

    Networks of CIFAR size keep a card less busy than the host is with starting their kernels.
    """
    alone = device.type == "cuda" and config.devices == 1
    return "reduce-overhead" if alone else None


def _compiled(module: nn.Module, config: Config, device: torch.device) -> Any:
    return torch.compile(module, mode=graph_mode(config, device))


class _CompiledLoss:
    """A compiled loss, or the loss as it is where the compiler fails on it, which it says."""

    def __init__(self, loss: nn.Module, config: Config, device: torch.device) -> None:
        self._loss, self._name = loss, config.loss
        self._call = _compiled(loss, config, device)

    def __call__(self, *given: Any, **named: Any) -> Tensor:
        """The loss."""
        try:
            value: Tensor = self._call(*given, **named)
        except RuntimeError as error:
            from torch._dynamo.exc import BackendCompilerFailed

            if not isinstance(error, BackendCompilerFailed):
                raise
            why = (str(error.inner_exception).strip().splitlines() or ["no reason given"])[0]
            warnings.warn(
                f"the compiler failed on the loss {self._name}, which is not compiled then ({why})",
                stacklevel=2,
            )
            self._call = losses.graphed(self._loss)
            value = self._call(*given, **named)
        return value


class _Parts(NamedTuple):
    train: Data
    validation: Data
    test: Data
    num_classes: int
    num_rows: int
    ignore_index: int
    normalise: Normalise | None


def _parts(
    given: Splits | Loaders, network: nn.Module, device: torch.device, config: Config
) -> _Parts:
    """The three parts; images go to the device, but the test images only when they are read."""
    if isinstance(given, Splits):
        train = given.train
        change = Normalise(given.mean, given.std, device, channels_last=config.channels_last)
        here, held = train.to(device), given.validation.to(device)
        sizes = (train.num_classes, len(train), train.ignore_index)
        return _Parts(here, held, given.test, *sizes, change)
    if not isinstance(given, tuple) or len(given) != 3:
        raise InputError(
            "data is calibrant.data.Splits or three loaders (train, validation, test), found "
            f"{type(given).__name__}"
        )
    if config.devices > 1 and not isinstance(
        getattr(given[0], "sampler", None), torch.utils.data.DistributedSampler
    ):
        raise InputError(
            f"each of {config.devices} processes would train on all rows of this loader: give it a "
            "torch.utils.data.DistributedSampler, or the data as calibrant.data.Splits"
        )
    dataset: Any = getattr(given[0], "dataset", given[0])
    try:
        count = len(given[0]) and len(dataset)  # type: ignore[arg-type]
    except TypeError as error:
        raise InputError(
            f"the training loader must know its length, which schedules go by: {error}"
        ) from None
    rows = next(iter(LoaderBatches(given[0], device, None))).inputs
    was = network.training
    with torch.no_grad():
        classes = network.eval()(rows).shape[1]
    network.train(was)
    return _Parts(*given, classes, count, -100, None)


def _build(config: Config, data: Images) -> nn.Module:
    from calibrant import models

    options = dict(config.model_options)
    if config.model == "mlp":
        options.setdefault("inputs", math.prod(data.images.shape[1:]))
    else:
        options.setdefault("channels", data.images.shape[1])
    network: nn.Module = models.build(config.model, data.num_classes, **options)
    shape = tuple(data.images.shape[1:])
    try:  # one image tells now what a training step would tell in other words
        with torch.no_grad():
            network.eval()(torch.zeros(1, *shape))
    except RuntimeError as error:
        size = " x ".join(map(str, shape))
        raise InputError(
            f"{config.model} does not take images of {size} ({error}); mlp and the ResNets take "
            "any size, and size= resizes an image folder's"
        ) from error
    return network.train()


def load_data(config: Config) -> Splits:
    """The data a run's settings name."""
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
    """Device, precision and processes, which are started here where there are several."""
    try:
        from lightning.fabric import Fabric
        from lightning.fabric.strategies.ddp import DDPStrategy
    except ImportError:
        raise InputError(NEEDS_LIGHTNING) from None
    accelerator = {"auto": "auto", "cpu": "cpu", "cuda": "gpu"}[config.device]
    if config.device == "cuda" and not torch.cuda.is_available():
        raise InputError("device is cuda, but no CUDA device was found: use auto or cpu")
    steady = get_recipe(config.recipe, **config.recipe_options).steady
    fabric = Fabric(
        accelerator=accelerator,
        devices=config.devices,
        # Layers that stop learning give no gradient, which the other processes must not wait for.
        strategy=DDPStrategy(find_unused_parameters=not steady) if config.devices > 1 else "auto",
        precision="bf16-mixed" if config.precision == "bf16" else "32-true",
    )
    fabric.launch()
    return fabric
