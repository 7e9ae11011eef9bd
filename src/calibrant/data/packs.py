"""Data sets packed in one `.npz` file, of images and labels as arrays."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import torch

from calibrant.data.value import Images
from calibrant.functional.errors import InputError

IGNORED = -100
# What a pack holds: images (N,H,W,C) or (N,H,W) as bytes, labels (N,) or, dense, (N,H,W);
# validation rows where the set has its own; class names; the label of void pixels.
PARTS = ("train", "validation", "test")


def data_folder(folder: str | os.PathLike[str] | None) -> Path | None:
    """The folder said, or the one CALIBRANT_DATA names."""
    named = folder or os.environ.get("CALIBRANT_DATA")
    return Path(named) if named else None


def read_pack(path: Path) -> tuple[Images, ...]:
    """Training, validation where there is some, and test images of a pack."""
    try:
        with np.load(path, allow_pickle=False) as pack:
            held = {key: pack[key] for key in pack.files}
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: cannot be read as a pack of images ({error})") from None
    missing = [
        key for key in ("x_train", "y_train", "x_test", "y_test", "classes") if key not in held
    ]
    if missing:
        raise InputError(
            f"{path}: a pack holds x_train, y_train, x_test, y_test and classes, and may hold "
            f"x_validation, y_validation and void; missing: {', '.join(missing)}"
        )
    names = tuple(str(name) for name in held["classes"])
    void = int(held["void"]) if "void" in held else None
    return tuple(
        _part(held[f"x_{part}"], held[f"y_{part}"], names, void, f"{path.stem} {part}")
        for part in PARTS
        if f"x_{part}" in held
    )


def packed(
    name: str, folder: str | os.PathLike[str] | None = None, download: bool = False
) -> tuple[Images, ...]:
    """A set that is only known packed."""
    where = data_folder(folder)
    if where is None or not (where / f"{name}.npz").is_file():
        raise InputError(
            f"{name} is not here: put {name}.npz in "
            f"{where if where is not None else 'a folder that CALIBRANT_DATA names'}"
        )
    return read_pack(where / f"{name}.npz")


def _part(
    images: np.ndarray, labels: np.ndarray, names: tuple[str, ...], void: int | None, name: str
) -> Images:
    planes = images[..., None] if images.ndim == 3 else images
    found = torch.from_numpy(labels.astype(np.int64))
    if void is not None:
        found = torch.where(found == void, IGNORED, found)
    counted = found[found != IGNORED]
    if len(counted) and (int(counted.min()) < 0 or int(counted.max()) >= len(names)):
        raise InputError(
            f"{name}: labels lie in 0..{len(names) - 1}, found {int(counted.min())} to "
            f"{int(counted.max())}"
        )
    pixels = torch.from_numpy(np.ascontiguousarray(planes.transpose(0, 3, 1, 2)))
    return Images(pixels, found, names, name=name, ignore_index=IGNORED)
