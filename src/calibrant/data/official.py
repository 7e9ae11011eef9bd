"""Read data sets in their published files: SVHN, Tiny-ImageNet, ImageNet, and corrupted ones."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from calibrant.core.errors import InputError, first, no_such
from calibrant.data.image_folder import image_folder, read_classes
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
CORRUPTED_FOLDERS = {"imagenet": "ImageNet-C", "tiny_imagenet": "Tiny-ImageNet-C"}
SIDES = {"imagenet": 224, "tiny_imagenet": 64}
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


tiny_imagenet = partial(read_named_folder, "tiny_imagenet", SIDES["tiny_imagenet"])
imagenet = partial(read_named_folder, "imagenet", SIDES["imagenet"])


def read_corrupted(
    name: str, kind: str, severity: int, *, folder: str | os.PathLike[str] | None = None
) -> Images:
    """Read the corrupted test images of CIFAR-10-C, CIFAR-100-C, ImageNet-C or Tiny-ImageNet-C.

    Hendrycks & Dietterich 2019. The last two are folders ``KIND/SEVERITY/CLASS`` of images.

    Args:
        name: ``cifar10``, ``cifar100``, ``imagenet`` or ``tiny_imagenet``.
        kind: A corruption, the name of its file or folder: ``fog`` for ``fog.npy``.
        severity: 1 to 5.
        folder: The folder that holds ``CIFAR-10-C``, ``CIFAR-100-C``, ``ImageNet-C`` or
            ``Tiny-ImageNet-C``; else the one CALIBRANT_DATA names. Default: None.
    """
    published = {**CORRUPTED, **CORRUPTED_FOLDERS}
    if name not in published:
        raise no_such("data set with official corruptions", name, published)
    if severity not in LEVELS:
        raise InputError(f"severity must be 1, 2, 3, 4 or 5, found {severity!r}")
    where = data_folder(folder)
    place = None if where is None else where / published[name]
    if place is None or not place.is_dir():
        form = ".npy files" if name in CORRUPTED else "folders KIND/SEVERITY/CLASS"
        raise InputError(
            f"official corruptions of {name} were not found: put the folder {published[name]} of "
            f"{form} in {name_folder(where)}"
        )
    if name in CORRUPTED_FOLDERS:
        return _read_corrupted_folder(place, name, kind, severity)
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


def _read_corrupted_folder(place: Path, name: str, kind: str, severity: int) -> Images:
    """Read KIND/SEVERITY/CLASS/*.JPEG; classes are in the order of their folders' names."""
    root = place / kind / str(severity)
    if not root.is_dir():
        known = [path.name for path in sorted(place.iterdir()) if path.is_dir()]
        raise InputError(f"{place} has no {kind}/{severity}; it has: {first(known) or 'nothing'}")
    images = read_classes(root, size=SIDES[name])
    return replace(images, name=f"{name}-c {kind} {severity}")


def _read_array(path: Path) -> np.ndarray[Any, Any]:
    try:
        return np.load(path, allow_pickle=False, mmap_mode="r")
    except (OSError, ValueError) as error:
        raise InputError(f"{path} cannot be read as an array: {error}") from None
