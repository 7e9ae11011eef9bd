"""Read data sets packed in one ``.npz`` file: images and labels as arrays.

A pack holds ``x_train``, ``y_train``, ``x_test``, ``y_test`` and ``classes``, the class names.
It may hold ``x_validation``, ``y_validation``, and ``void``, the label of pixels without a
class. Images are uint8, (N,H,W,C) or (N,H,W); labels are (N,), or (N,H,W) if dense.
"""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import torch

from calibrant.core.errors import InputError
from calibrant.data.images import IGNORE_INDEX, Images

PARTS = ("train", "validation", "test")
REQUIRED = ("x_train", "y_train", "x_test", "y_test", "classes")


def data_folder(folder: str | os.PathLike[str] | None) -> Path | None:
    """Return ``folder``, else the folder that CALIBRANT_DATA names, else None."""
    named = folder or os.environ.get("CALIBRANT_DATA")
    return Path(named) if named else None


def read_pack(path: Path) -> tuple[Images, ...]:
    """Read the training, validation (if any) and test images of a pack."""
    try:
        with np.load(path, allow_pickle=False) as pack:
            arrays = {key: pack[key] for key in pack.files}
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: cannot be read as a pack of images ({error})") from None
    missing = [key for key in REQUIRED if key not in arrays]
    if missing:
        raise InputError(
            f"{path}: a pack holds x_train, y_train, x_test, y_test and classes, and may hold "
            f"x_validation, y_validation and void; missing: {', '.join(missing)}"
        )
    names = tuple(str(name) for name in arrays["classes"])
    void = int(arrays["void"]) if "void" in arrays else None
    return tuple(
        _make_part(arrays[f"x_{part}"], arrays[f"y_{part}"], names, void, f"{path.stem} {part}")
        for part in PARTS
        if f"x_{part}" in arrays
    )


def load_pack(
    name: str, folder: str | os.PathLike[str] | None = None, download: bool = False
) -> tuple[Images, ...]:
    """Read the pack ``name.npz`` from the data folder; there is nothing to download."""
    where = data_folder(folder)
    if where is None or not (where / f"{name}.npz").is_file():
        raise InputError(f"{name} was not found: put {name}.npz in {name_folder(where)}")
    return read_pack(where / f"{name}.npz")


def name_folder(where: Path | None) -> str:
    """Name the data folder in a message."""
    return str(where) if where is not None else "a folder that CALIBRANT_DATA names"


def _make_part(
    images: np.ndarray, labels: np.ndarray, names: tuple[str, ...], void: int | None, name: str
) -> Images:
    planes = images[..., None] if images.ndim == 3 else images
    target = torch.from_numpy(labels.astype(np.int64))
    if void is not None:
        target = torch.where(target == void, IGNORE_INDEX, target)
    known = target[target != IGNORE_INDEX]
    if len(known) and (int(known.min()) < 0 or int(known.max()) >= len(names)):
        raise InputError(
            f"{name}: labels must lie in 0..{len(names) - 1}, found {int(known.min())} to "
            f"{int(known.max())}"
        )
    pixels = torch.from_numpy(np.ascontiguousarray(planes.transpose(0, 3, 1, 2)))
    return Images(pixels, target, names, name=name, ignore_index=IGNORE_INDEX)
