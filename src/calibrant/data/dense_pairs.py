"""Folders of images with a label for every pixel: pairs, CamVid's and PASCAL VOC's form."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch

from calibrant.data.folders import VALIDATION
from calibrant.data.image_files import LIMIT, SUFFIXES, as_colours, read_files
from calibrant.data.packs import IGNORED
from calibrant.data.value import Images
from calibrant.functional.errors import InputError, first

if TYPE_CHECKING:
    from PIL.Image import Image as Picture

VOID = 255  # no label, in every form
NO_CLASS = {"void", "unlabelled", "unlabeled", "ignore", "ignored"}
FITS = ("pad", "crop", "resize")
CAMVID: tuple[str, ...] = (
    *("sky", "building", "pole", "road", "pavement", "tree", "sign", "fence", "car"),
    *("pedestrian", "bicyclist", "void"),
)
VOC: tuple[str, ...] = (
    *("background", "aeroplane", "bicycle", "bird", "boat", "bottle", "bus", "car", "cat"),
    *("chair", "cow", "diningtable", "dog", "horse", "motorbike", "person", "pottedplant"),
    *("sheep", "sofa", "train", "tvmonitor"),
)


class Pair(NamedTuple):
    """An image and its mask."""

    image: Path
    mask: Path


def dense_pairs(
    path: str | os.PathLike[str],
    *,
    size: int | tuple[int, int] | None = None,
    fit: str = "pad",
    limit: int = LIMIT,
) -> tuple[Images, ...]:
    """Training, validation where there is some beside a test part, and test images.

    Three forms: ``train/images`` and ``train/masks`` (``val``, ``test``); CamVid's ``train``
    and ``trainannot``; PASCAL VOC's ``JPEGImages``, ``SegmentationClass`` and
    ``ImageSets/Segmentation/{train,val}.txt``, whose val is the test part. Masks hold class
    numbers, grey or as a palette; 255 is no label. ``classes.txt`` names the classes in the
    order of their numbers, and one called void is no label either.

    ``size`` (a side, or height and width) makes all one: ``fit`` is ``pad`` (shrunk until it
    fits, and black without a label around), ``crop`` (scaled until it covers, and the middle
    kept) or ``resize`` (stretched). Masks take the nearest pixel's label.
    """
    if fit not in FITS:
        raise InputError(f"fit is one of {', '.join(FITS)}, found {fit!r}")
    root = Path(path)
    names, parts = _find(root)
    lookup, classes = _lookup(names)
    sides = (size, size) if isinstance(size, int) else size

    masks = {pair.image: pair for part in parts.values() for pair in part}

    def read(image: Path) -> np.ndarray:
        return read_pair(masks[image], sides, fit, allowed=lookup != _UNKNOWN)

    total = sum(len(part) for part in parts.values())
    planes = {
        # For four bytes a pixel that are read eleven are held: a label takes eight.
        which: read_files([pair.image for pair in part], read, limit, total=total, held=11 / 4)
        for which, part in parts.items()
    }
    if names is None:
        labels = (plane[:, 3] for plane in planes.values())
        most = max(int(label[label != VOID].max(initial=0)) for label in labels)
        classes = tuple(str(label) for label in range(most + 1))
    return tuple(
        Images(
            torch.from_numpy(np.ascontiguousarray(plane[:, :3])),
            torch.from_numpy(lookup[plane[:, 3]]),
            classes,
            name=f"{root.name} {which}",
            ignore_index=IGNORED,
        )
        for which, plane in planes.items()
    )


_UNKNOWN = -1


def _lookup(names: tuple[str, ...] | None) -> tuple[np.ndarray, tuple[str, ...]]:
    """What every byte of a mask means, and the classes that count."""
    lookup = np.full(256, _UNKNOWN, np.int64)
    if names is None:
        lookup[:] = np.arange(256)
        counted: tuple[str, ...] = ()
    else:
        counted = tuple(name for name in names if name.lower() not in NO_CLASS)
        for value, name in enumerate(names):
            lookup[value] = counted.index(name) if name in counted else IGNORED
    lookup[VOID] = IGNORED
    return lookup, counted


def read_pair(
    pair: Pair, sides: tuple[int, int] | None, fit: str, *, allowed: np.ndarray
) -> np.ndarray:
    """Red, green, blue and the mask (4,H,W)."""
    from PIL import Image

    with Image.open(pair.image) as opened:
        image = as_colours(opened)
    with Image.open(pair.mask) as mask:
        if mask.mode not in ("L", "P", "1"):
            raise ValueError(f"{pair.mask.name} is {mask.mode}: masks hold class numbers")
        if mask.size != image.size:
            found = f"{mask.size[0]}x{mask.size[1]}, its image {image.size[0]}x{image.size[1]}"
            raise ValueError(f"{pair.mask.name} is {found}")
        values = np.asarray(mask).astype(np.uint8)
    wrong = np.flatnonzero(~allowed & (np.bincount(values.ravel(), minlength=256) > 0))
    if len(wrong):
        raise ValueError(f"{pair.mask.name} holds {first(wrong)}, which no class has")
    planes = _fit(image, sides, fit, Image.Resampling.BILINEAR, 0)
    labels = _fit(Image.fromarray(values), sides, fit, Image.Resampling.NEAREST, VOID)
    return np.concatenate((planes.transpose(2, 0, 1), labels[None]))


def _fit(
    picture: Picture, sides: tuple[int, int] | None, fit: str, resample: int, fill: int
) -> np.ndarray:
    if sides is None:
        return np.asarray(picture)
    height, width = sides
    ratios = (width / picture.size[0], height / picture.size[1])
    if fit == "resize":
        return np.asarray(picture.resize((width, height), resample))
    scale = max(ratios) if fit == "crop" else min(*ratios, 1.0)
    wide, high = (max(1, round(side * scale)) for side in picture.size)
    scaled = np.asarray(picture.resize((wide, high), resample))
    if fit == "crop":
        top, left = (high - height) // 2, (wide - width) // 2
        return scaled[top : top + height, left : left + width]
    out = np.full((height, width, *scaled.shape[2:]), fill, np.uint8)
    top, left = (height - high) // 2, (width - wide) // 2
    out[top : top + high, left : left + wide] = scaled
    return out


def _find(root: Path) -> tuple[tuple[str, ...] | None, dict[str, list[Pair]]]:
    """Names by number, where they are known, and the pairs of every part."""
    for home in (root, *root.glob("VOC2*"), *root.glob("VOCdevkit/VOC2*")):
        if (home / "ImageSets" / "Segmentation").is_dir():
            return VOC, {"train": _voc(home, "train"), "test": _voc(home, "val")}
    names, parts = _names(root), {}
    for which, folders in (("train", ("train",)), ("validation", VALIDATION), ("test", ("test",))):
        for folder in folders:
            inside = root / folder
            if (inside / "images").is_dir() and (inside / "masks").is_dir():
                parts[which] = _matched(inside / "images", inside / "masks")
            elif (root / f"{folder}annot").is_dir():
                parts[which] = _matched(inside, root / f"{folder}annot")
                names = names or CAMVID
    if "test" not in parts and "validation" in parts:
        parts["test"] = parts.pop("validation")
    if "train" not in parts or "test" not in parts:
        held = sorted(entry.name for entry in root.iterdir()) if root.is_dir() else []
        raise InputError(
            f"{root}: dense pairs are train/images with train/masks and the same in val or test, "
            "or CamVid's train and trainannot, or PASCAL VOC's JPEGImages, SegmentationClass and "
            f"ImageSets; found {first(held) or 'nothing'}"
        )
    return names, parts


def _names(root: Path) -> tuple[str, ...] | None:
    file = root / "classes.txt"
    if not file.is_file():
        return None
    return tuple(line.strip() for line in file.read_text(encoding="utf-8").splitlines() if line)


def _voc(home: Path, part: str) -> list[Pair]:
    said = home / "ImageSets" / "Segmentation" / f"{part}.txt"
    if not said.is_file():
        raise InputError(f"{said} is not there: it names the images of the part")
    stems = said.read_text(encoding="utf-8").split()
    pairs = [
        Pair(home / "JPEGImages" / f"{stem}.jpg", home / "SegmentationClass" / f"{stem}.png")
        for stem in stems
    ]
    missing = [file for pair in pairs for file in pair if not file.is_file()]
    if missing or not pairs:
        raise InputError(
            f"{said} names files that are not there: {first(missing) or 'none at all'}"
        )
    return pairs


def _matched(images: Path, masks: Path) -> list[Pair]:
    """Images with the masks of their names; CamVid's own masks have an ``_L`` behind."""
    found = {file.stem.removesuffix("_L"): file for file in _pictures(masks)}
    pictures = _pictures(images)
    alone = [file.name for file in pictures if file.stem not in found]
    if alone or not pictures:
        raise InputError(
            f"{images}: {len(alone)} images without a mask in {masks}: {first(alone)}"
            if pictures
            else f"{images}: no images"
        )
    return [Pair(file, found[file.stem]) for file in pictures]


def _pictures(folder: Path) -> list[Path]:
    files = folder.iterdir() if folder.is_dir() else ()
    return sorted(file for file in files if file.suffix.lower() in SUFFIXES)
