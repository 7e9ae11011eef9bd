"""Read folders of images with a label for every pixel: pairs, CamVid's form, PASCAL VOC's form."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch

from calibrant.core.errors import InputError, first
from calibrant.data.image_files import MEMORY_LIMIT, SUFFIXES, read_files, to_rgb
from calibrant.data.image_folder import VALIDATION, list_entries
from calibrant.data.images import IGNORE_INDEX, Images

if TYPE_CHECKING:
    from PIL.Image import Image as Picture

VOID = 255  # the byte of a mask that means "no class", in every form
VOID_NAMES = {"void", "unlabelled", "unlabeled", "ignore", "ignored"}
UNKNOWN = -1  # the label of a byte that no class has
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
    limit: int = MEMORY_LIMIT,
) -> tuple[Images, ...]:
    """Read the training, validation (if there is a test part too) and test images.

    Three forms: ``train/images`` and ``train/masks`` (``val``, ``test``); CamVid's ``train``
    and ``trainannot``; PASCAL VOC's ``JPEGImages``, ``SegmentationClass`` and
    ``ImageSets/Segmentation/{train,val}.txt``, whose val is the test part. Masks hold class
    numbers, grey or as a palette; 255 means no class. ``classes.txt`` names the classes in the
    order of their numbers; one called void means no class too.

    Args:
        path: The folder.
        size: A side, or height and width, of all images; None keeps their own size.
        fit: How to reach ``size``: ``pad`` (shrink to fit inside, then pad with black without a
            class), ``crop`` (scale to cover, then keep the middle) or ``resize`` (stretch).
            Masks take the label of the nearest pixel.
        limit: Bytes of memory. A folder that needs more is refused before it is read.
    """
    if fit not in FITS:
        raise InputError(f"fit must be one of {', '.join(FITS)}, found {fit!r}")
    root = Path(path)
    names, parts = _find_parts(root)
    lookup, classes = _make_lookup(names)
    sides = (size, size) if isinstance(size, int) else size

    pairs = {pair.image: pair for part in parts.values() for pair in part}

    def read(image: Path) -> np.ndarray:
        return read_pair(pairs[image], sides, fit, allowed=lookup != UNKNOWN)

    total = sum(len(part) for part in parts.values())
    planes = {
        name: read_files(
            [pair.image for pair in part],
            read,
            limit,
            total=total,
            bytes_per_byte=11 / 4,  # four bytes are read for a pixel; its label alone holds eight
        )
        for name, part in parts.items()
    }
    if names is None:
        masks = (plane[:, 3] for plane in planes.values())
        largest = max(int(mask[mask != VOID].max(initial=0)) for mask in masks)
        classes = tuple(str(label) for label in range(largest + 1))
    return tuple(
        Images(
            torch.from_numpy(np.ascontiguousarray(plane[:, :3])),
            torch.from_numpy(lookup[plane[:, 3]]),
            classes,
            name=f"{root.name} {name}",
            ignore_index=IGNORE_INDEX,
        )
        for name, plane in planes.items()
    )


def _make_lookup(names: tuple[str, ...] | None) -> tuple[np.ndarray, tuple[str, ...]]:
    """Return the label of every byte of a mask, and the names of the classes without void."""
    lookup = np.full(256, UNKNOWN, np.int64)
    if names is None:
        lookup[:] = np.arange(256)
        classes: tuple[str, ...] = ()
    else:
        classes = tuple(name for name in names if name.lower() not in VOID_NAMES)
        for value, name in enumerate(names):
            lookup[value] = classes.index(name) if name in classes else IGNORE_INDEX
    lookup[VOID] = IGNORE_INDEX
    return lookup, classes


def read_pair(
    pair: Pair, sides: tuple[int, int] | None, fit: str, *, allowed: np.ndarray
) -> np.ndarray:
    """Read RGB and the mask as one array (4,H,W); refuse bytes of the mask not ``allowed``."""
    from PIL import Image

    with Image.open(pair.image) as opened:
        image = to_rgb(opened)
    with Image.open(pair.mask) as mask:
        if mask.mode not in ("L", "P", "1"):
            raise ValueError(f"{pair.mask.name} is {mask.mode}: masks must hold class numbers")
        if mask.size != image.size:
            sizes = f"{mask.size[0]}x{mask.size[1]}, its image {image.size[0]}x{image.size[1]}"
            raise ValueError(f"{pair.mask.name} is {sizes}")
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


def _find_parts(root: Path) -> tuple[tuple[str, ...] | None, dict[str, list[Pair]]]:
    """Find the class names by number, if they are known, and the pairs of every part."""
    for home in (root, *root.glob("VOC2*"), *root.glob("VOCdevkit/VOC2*")):
        if (home / "ImageSets" / "Segmentation").is_dir():
            return VOC, {
                "train": _read_voc(home, "train"),
                "test": _read_voc(home, "val"),
            }
    names, parts = _read_names(root), {}
    for name, folders in (("train", ("train",)), ("validation", VALIDATION), ("test", ("test",))):
        for folder in folders:
            inside = root / folder
            if (inside / "images").is_dir() and (inside / "masks").is_dir():
                parts[name] = _match_pairs(inside / "images", inside / "masks")
            elif (root / f"{folder}annot").is_dir():
                parts[name] = _match_pairs(inside, root / f"{folder}annot")
                names = names or CAMVID
    if "test" not in parts and "validation" in parts:
        parts["test"] = parts.pop("validation")
    if "train" not in parts or "test" not in parts:
        raise InputError(
            f"{root}: dense pairs are train/images with train/masks and the same in val or test, "
            "or CamVid's train and trainannot, or PASCAL VOC's JPEGImages, SegmentationClass and "
            f"ImageSets; found {first(list_entries(root)) or 'nothing'}"
        )
    return names, parts


def _read_names(root: Path) -> tuple[str, ...] | None:
    file = root / "classes.txt"
    if not file.is_file():
        return None
    return tuple(line.strip() for line in file.read_text(encoding="utf-8").splitlines() if line)


def _read_voc(home: Path, part: str) -> list[Pair]:
    listing = home / "ImageSets" / "Segmentation" / f"{part}.txt"
    if not listing.is_file():
        raise InputError(f"{listing} is missing: it lists the images of the part")
    stems = listing.read_text(encoding="utf-8").split()
    pairs = [
        Pair(home / "JPEGImages" / f"{stem}.jpg", home / "SegmentationClass" / f"{stem}.png")
        for stem in stems
    ]
    missing = [file for pair in pairs for file in pair if not file.is_file()]
    if missing or not pairs:
        raise InputError(f"{listing} lists missing files: {first(missing) or 'it is empty'}")
    return pairs


def _match_pairs(images: Path, masks: Path) -> list[Pair]:
    """Match images with the masks of their names; CamVid's own masks end in ``_L``."""
    mask_files = {file.stem.removesuffix("_L"): file for file in _image_files(masks)}
    files = _image_files(images)
    unmatched = [file.name for file in files if file.stem not in mask_files]
    if unmatched or not files:
        raise InputError(
            f"{images}: {len(unmatched)} images without a mask in {masks}: {first(unmatched)}"
            if files
            else f"{images}: no images"
        )
    return [Pair(file, mask_files[file.stem]) for file in files]


def _image_files(folder: Path) -> list[Path]:
    files = folder.iterdir() if folder.is_dir() else ()
    return sorted(file for file in files if file.suffix.lower() in SUFFIXES)
