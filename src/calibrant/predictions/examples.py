"""Predictions of real networks that come with the package."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from calibrant.core.errors import InputError, no_such
from calibrant.predictions.files import Contents

FOLDER = Path(__file__).parent / "embedded"
PREFIX = "example:"
PARTS = ("test", "validation")
DEFAULT_METHOD = "cross_entropy"  # of the name of a file without a method


def examples() -> dict[str, str]:
    """Return the name and the description of every example.

    >>> examples()["cifar10-resnet18"]
    'ResNet-18 on CIFAR-10, 30 epochs, trained with cross_entropy'
    """
    return {
        name: f"ResNet-18 on CIFAR-10, 30 epochs, trained with {method}"
        for name, (_, method) in _locate_examples().items()
    }


def _locate_examples() -> dict[str, tuple[Path, str]]:
    """Return the file and the method of every example."""
    places = {}
    for path in sorted(FOLDER.glob("*.npz")):
        with np.load(path, allow_pickle=False) as file:
            methods = [key.removesuffix("/test") for key in file.files if key.endswith("/test")]
        for method in methods:
            if method != "labels":
                name = path.stem if method == DEFAULT_METHOD else f"{path.stem}-{method}"
                places[name] = (path, method)
    return places


def read_example(text: str) -> Contents:
    """Read ``example:NAME`` (its test rows) or ``example:NAME/PART``."""
    name, _, part = text.removeprefix(PREFIX).partition("/")
    part = part or "test"
    places = _locate_examples()
    if name not in places:
        raise no_such("example", name, places)
    if part not in PARTS:
        raise InputError(f"an example's parts are {' and '.join(PARTS)}, found {part!r}")
    path, method = places[name]
    with np.load(path, allow_pickle=False) as file:
        return Contents(
            scores=file[f"{method}/{part}"],
            kind="logits",
            labels=file[f"labels/{part}"].astype(np.int64),
            class_names=file["class_names"].tolist(),
            name=name if part == "test" else f"{name}, {part}",
        )
