"""Read folders of images with one folder a class: into memory, or as a stream.

The form is ``train/<class>/...``, with ``val/`` (or ``validation/``) and ``test/`` alike and
images at any depth; or Tiny-ImageNet's ``val/images`` with ``val_annotations.txt``. A test part
without class folders has no labels and is left out. Without a test part, ``val`` is the test
part.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from calibrant.core.errors import InputError, first
from calibrant.data.augment import Normalise
from calibrant.data.image_files import (
    MEMORY_LIMIT,
    SUFFIXES,
    pillow_errors,
    read_files,
    read_image,
)
from calibrant.data.images import Images, moments
from calibrant.data.splits import stratified_split

VALIDATION = ("val", "validation", "valid")  # folder names of the validation part
SAMPLE = 1_000  # images that give the mean and deviation of a stream


class Part(NamedTuple):
    """The files of a part and their labels."""

    files: list[Path]
    labels: list[int]


def image_folder(
    path: str | os.PathLike[str], *, size: int | None = None, limit: int = MEMORY_LIMIT
) -> tuple[Images, ...]:
    """Read the training, validation (if there is a test part too) and test images, as RGB.

    Args:
        path: The folder that holds ``train``.
        size: Scales the shorter side to ``size`` and keeps the middle square. Without it all
            images must have one size.
        limit: Bytes of memory. A folder that needs more is refused before it is read.
    """
    names, parts = find_parts(Path(path))
    total = sum(len(part.files) for part in parts.values())
    return tuple(
        Images(
            torch.from_numpy(
                read_files(part.files, lambda file: read_image(file, size), limit, total=total)
            ),
            torch.tensor(part.labels, dtype=torch.int64),
            names,
            name=f"{Path(path).name} {name}",
        )
        for name, part in parts.items()
    )


def read_classes(
    path: str | os.PathLike[str], *, size: int | None = None, limit: int = MEMORY_LIMIT
) -> Images:
    """Read one folder of class folders, as RGB; the classes are the folders by name.

    Args:
        path: The folder that holds a folder for each class.
        size: As of `image_folder`.
        limit: As of `image_folder`.
    """
    root = Path(path)
    names = tuple(_folders(root))
    if not names:
        raise InputError(f"{root} has no class folders, only {first(list_entries(root))}")
    part = _find_files(root, names)
    pixels = read_files(part.files, lambda file: read_image(file, size), limit)
    labels = torch.tensor(part.labels, dtype=torch.int64)
    return Images(torch.from_numpy(pixels), labels, names, name=root.name)


class FolderDataset(Dataset[tuple[Tensor, int, int]]):
    """Images read on demand: (x/255 − mean)/std, the label, and the row number.

    Use it with a DataLoader, for sets that do not fit into memory.

    Args:
        part: Files and labels.
        class_names: One name a class.
        size: The side of the images.
        mean: The mean of each channel, divided by 255.
        std: The standard deviation of each channel, divided by 255.
        change: An augmentation of the bytes (3,S,S), applied before the normalisation.
    """

    def __init__(
        self,
        part: Part,
        class_names: tuple[str, ...],
        *,
        size: int,
        mean: Sequence[float],
        std: Sequence[float],
        change: Callable[[Tensor], Tensor] | None = None,
    ) -> None:
        # One array of names: worker processes would copy every string of a list.
        self._files = np.array([str(file) for file in part.files])
        self.labels = torch.tensor(part.labels, dtype=torch.int64)
        self.class_names, self.size, self.change = class_names, size, change
        self.mean, self.std = tuple(mean), tuple(std)
        self._normalise = Normalise(mean, std)

    def __len__(self) -> int:
        return len(self._files)

    def __getitem__(self, row: int) -> tuple[Tensor, int, int]:
        file = Path(str(self._files[row]))
        try:
            pixels = torch.from_numpy(read_image(file, self.size))
        except pillow_errors() as error:
            raise InputError(f"{file} cannot be read as an image: {error}") from None
        pixels = pixels if self.change is None else self.change(pixels)
        return self._normalise(pixels), int(self.labels[row]), row


def folder_datasets(
    path: str | os.PathLike[str],
    *,
    size: int,
    validation: float = 0.1,
    seed: int = 0,
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
    change: Callable[[Tensor], Tensor] | None = None,
) -> tuple[FolderDataset, FolderDataset, FolderDataset]:
    """Return training, validation and test images to stream.

    Args:
        path: The folder that holds ``train``.
        size: The side of the images.
        validation: Training rows to hold out, the same rows as `load` holds out.
        seed: The seed of that draw.
        mean: The mean of each channel, divided by 255; None takes that of 1,000 training images.
        std: The standard deviation of each channel, likewise.
        change: An augmentation of the training images' bytes (3,S,S).
    """
    names, parts = find_parts(Path(path))
    train = parts["train"]
    if "validation" not in parts:
        train_rows, validation_rows = stratified_split(
            torch.tensor(train.labels), validation, seed=seed
        )
        parts = {
            **parts,
            "train": _take(train, train_rows),
            "validation": _take(train, validation_rows),
        }
        train = parts["train"]
    if mean is None or std is None:
        generator = torch.Generator().manual_seed(seed)
        sample = _take(train, torch.randperm(len(train.files), generator=generator)[:SAMPLE])
        pixels = read_files(sample.files, lambda file: read_image(file, size), MEMORY_LIMIT)
        sample_mean, sample_std = moments(torch.from_numpy(pixels))
        mean, std = mean or sample_mean, std or sample_std
    train_set, validation_set, test_set = (
        FolderDataset(
            parts[name],
            names,
            size=size,
            mean=mean,
            std=std,
            change=change if name == "train" else None,
        )
        for name in ("train", "validation", "test")
    )
    return train_set, validation_set, test_set


def find_parts(root: Path) -> tuple[tuple[str, ...], dict[str, Part]]:
    """Find class names, in alphabetical order, and the parts: train, perhaps validation, test."""
    train = root / "train"
    names = tuple(_folders(train)) if train.is_dir() else ()
    if not names:
        raise InputError(
            f"{root}: a folder of images must hold train/<class>/..., found "
            f"{first(list_entries(train if train.is_dir() else root)) or 'nothing'}"
        )
    parts = {"train": _find_files(train, names)}
    val = next((root / name for name in VALIDATION if (root / name).is_dir()), None)
    if val is not None:
        parts["validation"] = _find_files(val, names)
    # A test part is often published without labels, as files or in one folder `images`.
    if set(_folders(root / "test")) - {"images"}:
        parts["test"] = _find_files(root / "test", names)
    elif val is not None:
        parts["test"] = parts.pop("validation")
    else:
        raise InputError(
            f"{root}: there are no test images: add test/<class>/... or val/<class>/..., found "
            f"{first(list_entries(root))}"
        )
    return names, parts


def _find_files(root: Path, names: tuple[str, ...]) -> Part:
    """Find the files in class folders, or those that an annotations file lists."""
    folders = _folders(root)
    annotations = root / "val_annotations.txt"
    if annotations.is_file() and not set(folders) & set(names):
        return _read_annotations(root, annotations, names)
    unknown = [folder for folder in folders if folder not in names]
    if unknown or not folders:
        problem = f"classes missing from train: {first(unknown)}" if folders else "no class folders"
        raise InputError(f"{root}: {problem}; train has {len(names)} classes such as {names[0]!r}")
    part, empty = Part([], []), []
    for folder in folders:
        files = sorted(
            file for file in (root / folder).rglob("*") if file.suffix.lower() in SUFFIXES
        )
        part.files.extend(files)
        part.labels.extend([names.index(folder)] * len(files))
        if not files:
            content = first(list_entries(root / folder)) or "nothing"
            empty.append(f"{root / folder} (holds {content})")
    if empty:
        raise InputError(f"class folders without images: {first(empty)}")
    return part


def _read_annotations(root: Path, annotations: Path, names: tuple[str, ...]) -> Part:
    """Read Tiny-ImageNet's list: one line an image, with its file, its class and a box."""
    part, missing = Part([], []), []
    number = {name: label for label, name in enumerate(names)}
    for count, line in enumerate(annotations.read_text(encoding="utf-8").splitlines(), start=1):
        if not line.strip():
            continue
        file, label, *_ = [*line.split(), "", ""]
        if label not in number:
            raise InputError(f"{annotations}, line {count}: {label!r} is not a class of train")
        places = [place for place in (root / "images" / file, root / file) if place.is_file()]
        if not places:
            missing.append(file)
            continue
        part.files.append(places[0])
        part.labels.append(number[label])
    if missing or not part.files:
        raise InputError(f"{annotations} lists {len(missing)} missing files: {first(missing)}")
    return part


def _take(part: Part, rows: Tensor) -> Part:
    return Part([part.files[row] for row in rows], [part.labels[row] for row in rows])


def list_entries(root: Path) -> list[str]:
    """Return the names in a folder, sorted; none if it does not exist."""
    return sorted(entry.name for entry in root.iterdir()) if root.is_dir() else []


def _folders(root: Path) -> list[str]:
    return [name for name in list_entries(root) if name[0] != "." and (root / name).is_dir()]
