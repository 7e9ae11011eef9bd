"""Data sets by name, split into what a run trains on, chooses on, and is judged on."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path

from calibrant.data.cifar import cifar
from calibrant.data.dense_pairs import dense_pairs
from calibrant.data.digits import digits
from calibrant.data.folders import image_folder
from calibrant.data.packs import packed
from calibrant.data.splits import long_tail_rows, stratified_split
from calibrant.data.value import Images, Splits, moments
from calibrant.functional.errors import InputError, no_such

# name: (its reader, of a folder and leave to download, giving training and test images; a line).
SETS: dict[str, tuple[Callable[..., tuple[Images, ...]], str]] = {
    "digits": (lambda folder, download: digits(), "1,797 digits of 8x8, embedded"),
    "cifar10": (partial(cifar, "cifar10"), "60,000 photographs of 32x32, 10 classes"),
    "cifar100": (partial(cifar, "cifar100"), "60,000 photographs of 32x32, 100 classes"),
    "camvid": (partial(packed, "camvid"), "701 street scenes, 11 classes and void, dense"),
}
# Forms of folders: (their reader, of a path and a size; a line).
FORMS: dict[str, tuple[Callable[..., tuple[Images, ...]], str]] = {
    "folder": (image_folder, "images in train/<class>, val/<class>, test/<class>"),
    "dense": (dense_pairs, "images and masks in folders, or in CamVid's or PASCAL VOC's form"),
}


def available() -> dict[str, str]:
    """Every data set's name and what it is."""
    forms = {f"{form}:PATH": says for form, (_, says) in FORMS.items()}
    return {**{name: says for name, (_, says) in SETS.items()}, **forms}


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
    """A data set by name, or ``folder:PATH`` or ``dense:PATH``.

    ``validation`` is the share of training rows held out by class, or their number, drawn by
    ``seed``; ``long_tail`` thins the training classes first (class-scaling eq. 16), and then
    halves what is left into training and validation, as that paper does. ``size`` makes the
    images of a folder one size.
    """
    parts = _find(name, size)(folder, download)
    train, test = parts[0], parts[-1]
    if long_tail is not None and (train.is_dense or len(parts) == 3):
        raise InputError(
            f"{name} has {'a label a pixel' if train.is_dense else 'its own validation rows'}: "
            "a long tail thins the rows of classes, then halves them into training and validation"
        )
    if len(parts) == 3:  # it comes with its own validation rows
        kept_images, held_images = train, parts[1]
    else:
        if long_tail is not None:
            rows = long_tail_rows(train.labels, train.num_classes, ratio=long_tail, seed=seed)
            train, validation = train.take(rows), 0.5
        kept, held = stratified_split(train.labels, validation, seed=seed)
        kept_images, held_images = train.take(kept), train.take(held)
    return Splits(kept_images, held_images, test, *moments(kept_images.images))


def _find(name: str, size: int | None) -> Callable[..., tuple[Images, ...]]:
    form, _, path = name.partition(":")
    if form in FORMS and path:
        return lambda folder, download: FORMS[form][0](Path(path).expanduser(), size=size)
    if name in SETS:
        if size is not None:
            raise InputError(f"{name} has its own size: size is for folder:PATH and dense:PATH")
        return SETS[name][0]
    raise no_such("data set", name, available())
