"""Folders of images, a folder a class: held in memory, or streamed.

``train/<class>/...`` with ``val/`` (or ``validation/``) and ``test/`` of the same form, images
at any depth; and Tiny-ImageNet's ``val/images`` with its ``val_annotations.txt``. A test part
without class folders has no labels and is left out; without one, ``val`` is the test part.
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

from calibrant.data.augment import Normalise
from calibrant.data.image_files import LIMIT, SUFFIXES, read_files, read_image, unreadable
from calibrant.data.splits import stratified_split
from calibrant.data.value import Images, moments
from calibrant.functional.errors import InputError, first

VALIDATION = ("val", "validation", "valid")
SAMPLE = 1_000  # images whose mean and deviation stand for all, where they are streamed


class Part(NamedTuple):
    """Files and their labels."""

    files: list[Path]
    labels: list[int]


def image_folder(
    path: str | os.PathLike[str], *, size: int | None = None, limit: int = LIMIT
) -> tuple[Images, ...]:
    """Training, validation where there is some beside a test part, and test images, as RGB.

    ``size`` scales the shorter side to it and keeps the middle square; without it all images
    must be of one size. What needs more than ``limit`` bytes is refused before it is read.
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
            name=f"{Path(path).name} {which}",
        )
        for which, part in parts.items()
    )


class FolderDataset(Dataset[tuple[Tensor, int, int]]):
    """Images read when they are asked for: (x/255 − mean)/std, the label, and the row number.

    For sets that memory does not hold, with an ordinary DataLoader. ``change`` is done to the
    bytes (3,S,S) first: an augmentation.
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
        # Names as one array: workers would copy a list's every string.
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
        except unreadable() as error:
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
    """Training, validation and test images to stream; ``change`` is for the training part alone.

    The validation rows are those that ``load`` holds out. Without ``mean`` and ``std`` those of
    1,000 training images, drawn by the seed, are taken.
    """
    names, parts = find_parts(Path(path))
    train = parts["train"]
    if "validation" not in parts:
        kept, held = stratified_split(torch.tensor(train.labels), validation, seed=seed)
        parts = {**parts, "train": _rows(train, kept), "validation": _rows(train, held)}
        train = parts["train"]
    if mean is None or std is None:
        how = torch.Generator().manual_seed(seed)
        some = _rows(train, torch.randperm(len(train.files), generator=how)[:SAMPLE])
        seen = read_files(some.files, lambda file: read_image(file, size), LIMIT)
        found = moments(torch.from_numpy(seen))
        mean, std = mean or found[0], std or found[1]
    made = [
        FolderDataset(
            parts[which],
            names,
            size=size,
            mean=mean,
            std=std,
            change=change if which == "train" else None,
        )
        for which in ("train", "validation", "test")
    ]
    return made[0], made[1], made[2]


def find_parts(root: Path) -> tuple[tuple[str, ...], dict[str, Part]]:
    """Class names, in alphabetical order, and the parts: train, perhaps validation, test."""
    train = root / "train"
    names = tuple(_folders(train)) if train.is_dir() else ()
    if not names:
        raise InputError(
            f"{root}: a folder of images holds train/<class>/..., found "
            f"{first(_entries(train if train.is_dir() else root)) or 'nothing'}"
        )
    parts = {"train": _labelled(train, names)}
    val = next((root / name for name in VALIDATION if (root / name).is_dir()), None)
    if val is not None:
        parts["validation"] = _labelled(val, names)
    # A test part is often published without labels, as files or in one folder `images`.
    if set(_folders(root / "test")) - {"images"}:
        parts["test"] = _labelled(root / "test", names)
    elif val is not None:
        parts["test"] = parts.pop("validation")
    else:
        raise InputError(
            f"{root}: nothing to judge on: it needs test/<class>/... or val/<class>/..., found "
            f"{first(_entries(root))}"
        )
    return names, parts


def _labelled(root: Path, names: tuple[str, ...]) -> Part:
    """The files of class folders, or those that an annotations file names."""
    folders = _folders(root)
    said = root / "val_annotations.txt"
    if said.is_file() and not set(folders) & set(names):
        return _annotated(root, said, names)
    unknown = [folder for folder in folders if folder not in names]
    if unknown or not folders:
        what = f"classes that train has not: {first(unknown)}" if folders else "no class folders"
        raise InputError(f"{root}: {what}; {names[0]!r} is one of {len(names)} that train has")
    part, empty = Part([], []), []
    for folder in folders:
        files = sorted(
            file for file in (root / folder).rglob("*") if file.suffix.lower() in SUFFIXES
        )
        part.files.extend(files)
        part.labels.extend([names.index(folder)] * len(files))
        if not files:
            held = first(_entries(root / folder)) or "nothing"
            empty.append(f"{root / folder} (holds {held})")
    if empty:
        raise InputError(f"class folders without images: {first(empty)}")
    return part


def _annotated(root: Path, said: Path, names: tuple[str, ...]) -> Part:
    """Tiny-ImageNet's form: a line an image, its file and its class, then what is not read."""
    part, missing = Part([], []), []
    number = {name: label for label, name in enumerate(names)}
    for count, line in enumerate(said.read_text(encoding="utf-8").splitlines(), start=1):
        if not line.strip():
            continue
        file, label, *_ = [*line.split(), "", ""]
        if label not in number:
            raise InputError(f"{said}, line {count}: {label!r} is no class of train")
        places = [place for place in (root / "images" / file, root / file) if place.is_file()]
        if not places:
            missing.append(file)
            continue
        part.files.append(places[0])
        part.labels.append(number[label])
    if missing or not part.files:
        raise InputError(f"{said} names {len(missing)} files that are not there: {first(missing)}")
    return part


def _rows(part: Part, rows: Tensor) -> Part:
    return Part([part.files[row] for row in rows], [part.labels[row] for row in rows])


def _entries(root: Path) -> list[str]:
    return sorted(entry.name for entry in root.iterdir()) if root.is_dir() else []


def _folders(root: Path) -> list[str]:
    return [name for name in _entries(root) if name[0] != "." and (root / name).is_dir()]
