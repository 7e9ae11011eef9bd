"""Predictions of real networks that come with the package."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from calibrant.functional.errors import InputError, no_such
from calibrant.predictions.value import Predictions

FOLDER = Path(__file__).parent / "embedded"
PREFIX = "example:"
PARTS = ("test", "validation")
FIRST = "cross_entropy"  # the method a set's bare name stands for


def examples() -> dict[str, str]:
    """Every example's name and what it is.

    >>> examples()["cifar10-resnet18"]
    'ResNet-18 on CIFAR-10, 30 epochs, trained with cross_entropy'
    """
    found = {}
    for path in sorted(FOLDER.glob("*.npz")):
        with np.load(path, allow_pickle=False) as file:
            methods = [key.removesuffix("/test") for key in file.files if key.endswith("/test")]
        for method in methods:
            if method == "labels":
                continue
            name = path.stem if method == FIRST else f"{path.stem}-{method}"
            found[name] = f"ResNet-18 on CIFAR-10, 30 epochs, trained with {method}"
    return found


def example(name: str, part: str = "test") -> Predictions:
    """Logits and labels of a real network's test or validation rows, in half precision.

    ``cifar10-resnet18`` was trained with cross-entropy; other names end in their method. All
    are of one seed of the suite ``quick-cifar``. ``example:NAME`` and ``example:NAME/validation``
    stand for them wherever a file of predictions is read.

    >>> len(example("cifar10-resnet18")), len(example("cifar10-resnet18", "validation"))
    (10000, 5000)
    """
    if name not in examples():
        raise no_such("example", name, examples())
    if part not in PARTS:
        raise InputError(f"an example's parts are {' and '.join(PARTS)}, found {part!r}")
    path = next(one for one in FOLDER.glob("*.npz") if f"{name}-".startswith(f"{one.stem}-"))
    method = name.removeprefix(path.stem).removeprefix("-") or FIRST
    with np.load(path, allow_pickle=False) as file:
        return Predictions.from_logits(
            file[f"{method}/{part}"],
            file[f"labels/{part}"].astype(np.int64),
            class_names=[str(one) for one in file["class_names"]],
            name=name if part == "test" else f"{name}, {part}",
        )


def of_path(text: str) -> Predictions:
    """What ``example:NAME`` or ``example:NAME/PART`` stands for."""
    name, _, part = text.removeprefix(PREFIX).partition("/")
    return example(name, part or "test")
