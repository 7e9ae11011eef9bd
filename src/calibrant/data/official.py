"""Read data sets in their published files: SVHN, Tiny-ImageNet, ImageNet, CIFAR-10-C and -100-C."""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from calibrant.core.errors import InputError, first, no_such
from calibrant.data.image_folder import image_folder
from calibrant.data.images import Images
from calibrant.data.packs import data_folder, name_folder, read_pack

SVHN_FILES = ("train_32x32.mat", "test_32x32.mat")
# Where each set's files are looked for in the data folder, the first that is there.
FOLDERS = {
    "svhn": ("svhn", "SVHN", "."),
    "tiny_imagenet": ("tiny_imagenet", "tiny-imagenet-200"),
    "imagenet": ("imagenet", "ImageNet", "ILSVRC2012"),
}
CORRUPTED = {"cifar10": "CIFAR-10-C", "cifar100": "CIFAR-100-C"}
LEVELS = (1, 2, 3, 4, 5)


def svhn(
    folder: str | os.PathLike[str] | None = None, download: bool = False
) -> tuple[Images, ...]:
    """Read the 73,257 training and 26,032 test digits of SVHN, 32x32 in colour.

    Args:
        folder: The folder of ``train_32x32.mat`` and ``test_32x32.mat``, or of a folder ``svhn``
            with them; else the one CALIBRANT_DATA names. Default: None.
        download: Not used: get the files from http://ufldl.stanford.edu/housenumbers.
            Default: False.
    """
    where = data_folder(folder)
    places = [] if where is None else [where / name for name in FOLDERS["svhn"]]
    place = next((path for path in places if (path / SVHN_FILES[1]).is_file()), None)
    if place is None or not (place / SVHN_FILES[0]).is_file():
        raise InputError(
            f"svhn was not found: put {' and '.join(SVHN_FILES)} in a folder svhn in "
            f"{name_folder(where)}"
        )
    return tuple(_read_svhn(place / name, name.partition("_")[0]) for name in SVHN_FILES)


def _read_svhn(path: Path, part: str) -> Images:
    """Read one file: X (32,32,3,N) in bytes, and y (N,1) in 1..10, where 10 is the digit 0."""
    from scipy.io import loadmat

    try:
        content: Mapping[str, Any] = loadmat(str(path))
        pixels, labels = content["X"], content["y"].reshape(-1)
    except Exception as error:  # SciPy raises many kinds where a file is damaged
        raise InputError(f"{path} is no file of SVHN's cropped digits: {error!r}") from None
    if pixels.ndim != 4 or pixels.shape[2] != 3 or pixels.shape[3] != len(labels):
        raise InputError(
            f"{path}: X must be (32,32,3,N) with N labels y, found {pixels.shape} and {len(labels)}"
        )
    images = np.ascontiguousarray(pixels.transpose(3, 2, 0, 1)).astype(np.uint8, copy=False)
    target = torch.from_numpy(labels.astype(np.int64) % 10)
    names = tuple(str(digit) for digit in range(10))
    return Images(torch.from_numpy(images), target, names, name=f"svhn {part}")


def read_named_folder(
    name: str,
    size: int | None,
    folder: str | os.PathLike[str] | None = None,
    download: bool = False,
) -> tuple[Images, ...]:
    """Read a set of image folders by name, from its pack if there is one.

    Args:
        name: ``tiny_imagenet`` or ``imagenet``.
        size: The side of the images.
        folder: The folder that holds ``NAME.npz`` or the set's folder, as it is published; else
            the one CALIBRANT_DATA names. Default: None.
        download: Not used: these sets must be fetched by hand. Default: False.
    """
    where = data_folder(folder)
    if where is not None and (where / f"{name}.npz").is_file():
        return read_pack(where / f"{name}.npz")
    places = [] if where is None else [where / place for place in FOLDERS[name]]
    place = next((path for path in places if (path / "train").is_dir()), None)
    if place is None:
        raise InputError(
            f"{name} was not found: put {name}.npz, or a folder {FOLDERS[name][-1]} with train and "
            f"val, in {name_folder(where)}"
        )
    return image_folder(place, size=size)


tiny_imagenet = partial(read_named_folder, "tiny_imagenet", 64)
imagenet = partial(read_named_folder, "imagenet", 224)


def read_corrupted(
    name: str, kind: str, severity: int, *, folder: str | os.PathLike[str] | None = None
) -> Images:
    """Read the test images of CIFAR-10-C or CIFAR-100-C (Hendrycks & Dietterich 2019).

    Args:
        name: ``cifar10`` or ``cifar100``.
        kind: A corruption, the name of its file: ``fog`` for ``fog.npy``.
        severity: 1 to 5.
        folder: The folder that holds ``CIFAR-10-C`` or ``CIFAR-100-C``; else the one
            CALIBRANT_DATA names. Default: None.
    """
    if name not in CORRUPTED:
        raise no_such("data set with official corruptions", name, CORRUPTED)
    if severity not in LEVELS:
        raise InputError(f"severity must be 1, 2, 3, 4 or 5, found {severity!r}")
    where = data_folder(folder)
    place = None if where is None else where / CORRUPTED[name]
    if place is None or not place.is_dir():
        raise InputError(
            f"official corruptions of {name} were not found: put the folder {CORRUPTED[name]} of "
            f".npy files in {name_folder(where)}"
        )
    path = place / f"{kind}.npy"
    if not path.is_file():
        known = [file.stem for file in sorted(place.glob("*.npy")) if file.stem != "labels"]
        raise InputError(f"{place} has no {kind}.npy; it has: {first(known) or 'nothing'}")
    pixels, labels = _read_array(path), _read_array(place / "labels.npy")
    rows = len(pixels) // len(LEVELS)
    if pixels.ndim != 4 or pixels.dtype != np.uint8 or len(pixels) != rows * len(LEVELS):
        raise InputError(
            f"{path}: bytes of shape (5·N,H,W,3) are expected, the five severities one after the "
            f"other, found {pixels.dtype} of shape {pixels.shape}"
        )
    if len(labels) not in (rows, len(pixels)):
        raise InputError(f"{place}: {len(labels)} labels for {len(pixels)} images")
    start = (severity - 1) * rows
    images = np.ascontiguousarray(pixels[start : start + rows].transpose(0, 3, 1, 2))
    # Labels repeat with every severity, and some copies of the files hold them once.
    severity_labels = labels[start : start + rows] if len(labels) == len(pixels) else labels
    target = torch.from_numpy(np.array(severity_labels, dtype=np.int64))
    count = 10 if name == "cifar10" else 100
    names = tuple(str(number) for number in range(count))
    return Images(torch.from_numpy(images), target, names, name=f"{name}-c {kind} {severity}")


def _read_array(path: Path) -> np.ndarray[Any, Any]:
    try:
        return np.load(path, allow_pickle=False, mmap_mode="r")
    except (OSError, ValueError) as error:
        raise InputError(f"{path} cannot be read as an array: {error}") from None
