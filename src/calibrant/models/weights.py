"""Load pretrained weights from a file into a network, with a fresh head for other classes."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn

from calibrant.core.errors import InputError, first

# What torchvision and timm call the parts of a ResNet, and what they are called here.
_RENAMED = (
    (r"^conv1\.", "stem.0."),
    (r"^bn1\.", "stem.1."),
    *((rf"^layer{number + 1}\.", f"stages.{number}.") for number in range(4)),
    (r"\.bn(\d+)\.", r".norm\1."),
    (r"\.downsample\.", ".shortcut."),
    (r"^fc\.", "classifier."),
)
_PREFIXES = ("module.", "network.", "backbone.", "model.")  # of wrappers
_WRAPPED = ("state_dict", "model", "model_state_dict", "network")  # keys that hold the weights
HEAD = "classifier."  # what the networks here call it
_COUNTERS = "num_batches_tracked"


def load_weights(network: nn.Module, path: str | os.PathLike[str]) -> tuple[str, ...]:
    """Load pretrained weights into a network; return the names that keep their fresh values.

    The names are those of the network here, or those of a ResNet of torchvision or timm, in a
    DeepLab's body too. A head for another number of classes is left fresh, as is all of a
    DeepLab above its body if the file holds a classifier alone. Weights in the file that the
    network has no place for, such as another library's auxiliary head, are refused.

    Args:
        network: A network of `calibrant.models.build`.
        path: A ``.safetensors`` file, or a state dict that ``torch.save`` wrote. Only tensors
            are read: a file that holds other objects is refused.
    """
    tensors = _read(Path(path).expanduser())
    state = network.state_dict()
    named = _match_names(tensors, state)
    wrong = {
        name: tuple(tensors[source].shape)
        for name, source in named.items()
        if tensors[source].shape != state[name].shape
    }
    others = [name for name in wrong if not name.startswith(HEAD)]
    if others:
        name = others[0]
        raise InputError(
            f"{path}: {name} has the shape {wrong[name]}, the network's is "
            f"{tuple(state[name].shape)}: are these weights of another network, or of another stem?"
        )
    extra = set(tensors) - set(named.values())
    if extra:
        raise InputError(f"{path}: the network has no place for {first(sorted(extra))}")
    loaded = {name: tensors[source] for name, source in named.items() if name not in wrong}
    body = _name_body(network)
    fresh = [name for name in state if name not in loaded and not name.endswith(_COUNTERS)]
    missing = [name for name in fresh if name.startswith(body) and not name.startswith(HEAD)]
    if missing:
        raise InputError(f"{path}: weights are missing: {first(missing)}")
    network.load_state_dict({**state, **loaded})
    return tuple(fresh)


def _read(path: Path) -> dict[str, Tensor]:
    if not path.is_file():
        raise InputError(f"weights: {path} does not exist")
    try:
        if path.suffix == ".safetensors":
            from safetensors.torch import load_file

            content = dict(load_file(path))
        else:
            # weights_only: nothing but tensors and containers is unpickled, so no code runs.
            content = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        raise InputError(f"weights: {path} cannot be read: {str(error).splitlines()[0]}") from None
    for name in _WRAPPED:
        if isinstance(content, dict) and isinstance(content.get(name), dict):
            content = content[name]
    if not isinstance(content, dict) or not all(
        isinstance(value, Tensor) for value in content.values()
    ):
        raise InputError(f"weights: {path} holds no state dict of tensors")
    return {_drop_prefix(str(name)): tensor for name, tensor in content.items()}


def _drop_prefix(name: str) -> str:
    for prefix in _PREFIXES:
        name = name.removeprefix(prefix)
    return name


def _match_names(tensors: dict[str, Tensor], state: dict[str, Tensor]) -> dict[str, str]:
    """Map the network's names to those of the file, with the naming that fits most."""

    def rename(name: str) -> str:
        for pattern, ours in _RENAMED:
            name = re.sub(pattern, ours, name)
        return name

    changes: tuple[Callable[[str], str], ...] = (
        lambda name: name,
        rename,
        lambda name: f"body.{name}",
        lambda name: f"body.{rename(name)}",
    )
    ways = [
        {ours: name for name in tensors if (ours := change(name)) in state} for change in changes
    ]
    best = max(ways, key=len)
    if any(name.startswith("body.") for name in best):  # a classifier: its head has no place
        for source in [name for name in tensors if rename(name).startswith("classifier.")]:
            tensors.pop(source)
            best = {ours: name for ours, name in best.items() if name != source}
    if not best:
        raise InputError(
            f"no name in the file is one of the network: it has {first(list(tensors))}, "
            f"the network {first(list(state))}"
        )
    return best


def _name_body(network: nn.Module) -> str:
    """Name the part that must be loaded whole: all of a classifier, the body of a DeepLab."""
    return "body." if hasattr(network, "body") else ""
