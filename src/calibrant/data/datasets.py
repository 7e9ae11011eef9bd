"""Load data sets by name, split into training, validation and test rows."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import torch

from calibrant.core.errors import InputError, no_such
from calibrant.core.registry import Registry
from calibrant.data.cifar import cifar
from calibrant.data.dense_folder import dense_pairs
from calibrant.data.image_folder import image_folder
from calibrant.data.images import Images, Splits, moments
from calibrant.data.packs import load_pack
from calibrant.data.splits import long_tail_rows, stratified_split

R = TypeVar("R", bound=Callable[..., Any])


def digits(*, test: float = 0.3) -> tuple[Images, Images]:
    """Return scikit-learn's 1,797 handwritten digits of 8x8, as training and test images.

    Args:
        test: The share of the rows that are test rows; they are the same for every seed.
    """
    from sklearn.datasets import load_digits

    bunch = load_digits()
    images = torch.tensor(bunch.images * (255.0 / 16.0)).round().to(torch.uint8).unsqueeze(1)
    whole = Images(
        images,
        torch.tensor(bunch.target, dtype=torch.int64),
        tuple(str(digit) for digit in range(10)),
        name="digits",
    )
    kept, out = stratified_split(whole.labels, test, seed=20)
    return whole.take(kept), whole.take(out)


def _digits(folder: object, download: bool) -> tuple[Images, Images]:
    return digits()


_cifar10, _cifar100 = partial(cifar, "cifar10"), partial(cifar, "cifar100")
_camvid = partial(load_pack, "camvid")
Reader = Callable[..., tuple[Images, ...]]
DATASETS: Registry[Reader] = Registry(
    "data set",
    {
        "digits": ("calibrant.data.datasets:_digits", "1,797 digits of 8x8, embedded"),
        "cifar10": (
            "calibrant.data.datasets:_cifar10",
            "60,000 photographs of 32x32, 10 classes",
        ),
        "cifar100": (
            "calibrant.data.datasets:_cifar100",
            "60,000 photographs of 32x32, 100 classes",
        ),
        "camvid": (
            "calibrant.data.datasets:_camvid",
            "701 street scenes, 11 classes and void, dense",
        ),
        "svhn": (
            "calibrant.data.official:svhn",
            "99,289 house numbers of 32x32, 10 classes",
        ),
        "tiny_imagenet": (
            "calibrant.data.official:tiny_imagenet",
            "110,000 photographs of 64x64, 200 classes",
        ),
        "imagenet": (
            "calibrant.data.official:imagenet",
            "photographs at 224x224, 1,000 classes; held in memory, so take a part of it",
        ),
    },
)
# form: (reader of a path and a size, giving training and test images; description).
FOLDER_FORMS: dict[str, tuple[Reader, str]] = {
    "folder": (image_folder, "images in train/<class>, val/<class>, test/<class>"),
    "dense": (dense_pairs, "images and masks in folders, or in CamVid's or PASCAL VOC's form"),
}


def available() -> dict[str, str]:
    """Return the name and a description of every data set."""
    forms = {f"{form}:PATH": text for form, (_, text) in FOLDER_FORMS.items()}
    return {**DATASETS.available(), **forms}


def register(reader: R) -> R:
    """Register a data set of your own under the function's name; a decorator.

    Args:
        reader: ``reader(folder, download)``, which returns training and test `Images`, or
            training, validation and test `Images`.
    """
    DATASETS.register(reader)
    return reader


def load(
    name: str,
    *,
    folder: str | os.PathLike[str] | None = None,
    download: bool = False,
    validation: float = 0.1,
    seed: int = 0,
    long_tail: float | None = None,
    size: int | None = None,
) -> Splits:
    """Load a data set by name, or from ``folder:PATH`` or ``dense:PATH``.

    Args:
        name: One of `available`.
        folder: The folder of the data files; else the one that CALIBRANT_DATA names.
        download: Whether to download CIFAR if it is missing.
        validation: Training rows to hold out by class: a share if below 1, else a number.
            Ignored if the data set has validation rows of its own.
        seed: The seed of the draws of validation rows and of the long tail.
        long_tail: ρ, which thins the training classes (class-scaling eq. 16). What is left is
            halved into training and validation rows, as that paper does.
        size: The side of the images of a folder; None keeps their own size.
    """
    parts = _find_reader(name, size)(folder, download)
    train, test = parts[0], parts[-1]
    if long_tail is not None and (train.is_dense or len(parts) == 3):
        raise InputError(
            f"{name} has {'one label a pixel' if train.is_dense else 'its own validation rows'}: "
            "long_tail thins classes, then halves the rows into training and validation"
        )
    if len(parts) == 3:  # the data set has its own validation rows
        kept_images, held_images = train, parts[1]
    else:
        if long_tail is not None:
            rows = long_tail_rows(train.labels, train.num_classes, ratio=long_tail, seed=seed)
            train, validation = train.take(rows), 0.5
        train_rows, validation_rows = stratified_split(train.labels, validation, seed=seed)
        kept_images, held_images = train.take(train_rows), train.take(validation_rows)
    return Splits(kept_images, held_images, test, *moments(kept_images.images))


def _find_reader(name: str, size: int | None) -> Reader:
    form, _, path = name.partition(":")
    if form in FOLDER_FORMS and path:
        return lambda folder, download: FOLDER_FORMS[form][0](Path(path).expanduser(), size=size)
    if name in DATASETS:
        if size is not None:
            raise InputError(f"{name} has its own size: size is for folder:PATH and dense:PATH")
        return DATASETS.load(name)
    raise no_such("data set", name, available())
