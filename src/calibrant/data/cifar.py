"""Read CIFAR-10 and CIFAR-100 from a pack, an official binary archive, or a download.

The official archives come pickled or binary. Only the binary ones are read, since reading a
pickle runs any code that it holds.
"""

from __future__ import annotations

import hashlib
import io
import os
import tarfile
import urllib.request
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from calibrant.core.errors import InputError
from calibrant.core.files import replace_file
from calibrant.data.images import Images
from calibrant.data.packs import data_folder, name_folder, read_pack

HOME = "https://www.cs.toronto.edu/~kriz"


class Archive(NamedTuple):
    """An official binary archive."""

    file: str
    md5: str
    inside: str  # the folder of its files
    train: tuple[str, ...]
    test: tuple[str, ...]
    names: str  # the file of the class names
    label_bytes: int  # bytes before the pixels of a row; the last of them is the label


ARCHIVES = {
    "cifar10": Archive(
        "cifar-10-binary.tar.gz",
        "c32a1d4ab5d03f1284b67883e8d87530",
        "cifar-10-batches-bin",
        tuple(f"data_batch_{number}.bin" for number in range(1, 6)),
        ("test_batch.bin",),
        "batches.meta.txt",
        1,
    ),
    "cifar100": Archive(
        "cifar-100-binary.tar.gz",
        "03b5dce01913d631647c71ecec9e9cb8",
        "cifar-100-binary",
        ("train.bin",),
        ("test.bin",),
        "fine_label_names.txt",
        2,
    ),
}
PICKLED = {"cifar10": "cifar-10-python.tar.gz", "cifar100": "cifar-100-python.tar.gz"}


def cifar(
    name: str, folder: str | os.PathLike[str] | None = None, download: bool = False
) -> tuple[Images, ...]:
    """Read the training and test images of CIFAR.

    Args:
        name: ``cifar10`` or ``cifar100``.
        folder: The folder of ``NAME.npz`` or of the archive; else the one CALIBRANT_DATA names.
        download: Whether to download the archive if neither is there.
    """
    where, archive = data_folder(folder), ARCHIVES[name]
    if where is not None:
        if (where / f"{name}.npz").is_file():
            return read_pack(where / f"{name}.npz")
        if (where / archive.file).is_file():
            return read_archive(where / archive.file, archive, name)
        if (where / PICKLED[name]).is_file() and not download:
            raise InputError(
                f"{where / PICKLED[name]} is the pickled form, which is not read since a pickle "
                f"can run any code: get {archive.file} from {HOME}, or allow the download"
            )
    if not download:
        raise InputError(
            f"{name} was not found: put {name}.npz or {archive.file} in {name_folder(where)}, or "
            "allow the download (download=True, --download)"
        )
    target = (where or Path.cwd()) / archive.file
    fetch(f"{HOME}/{archive.file}", target, archive.md5)
    return read_archive(target, archive, name)


def fetch(address: str, target: Path, md5: str) -> None:
    """Download a file; keep it only if it is whole and its checksum is right."""
    target.parent.mkdir(parents=True, exist_ok=True)
    digest = hashlib.md5(usedforsecurity=False)
    try:
        with replace_file(target) as temporary, open(temporary, "wb") as file:
            # The address is ours, and the checksum is held against a known one.
            with urllib.request.urlopen(address, timeout=60) as response:  # nosec B310
                while block := response.read(1 << 20):
                    digest.update(block)
                    file.write(block)
            if digest.hexdigest() != md5:
                raise InputError(
                    f"{address}: the checksum is {digest.hexdigest()}, not {md5}: nothing was kept"
                )
    except OSError as error:
        raise InputError(f"{address} could not be downloaded: {error}") from None


def read_archive(path: Path, archive: Archive, name: str) -> tuple[Images, Images]:
    """Read the training and test images of an official binary archive; check its checksum."""
    content = path.read_bytes()
    digest = hashlib.md5(content, usedforsecurity=False).hexdigest()
    if digest != archive.md5:
        raise InputError(f"{path}: the checksum is {digest}, not {archive.md5}: download it again")
    with tarfile.open(fileobj=io.BytesIO(content), mode="r:gz") as tar:

        def read_member(file: str) -> bytes:
            member = tar.extractfile(f"{archive.inside}/{file}")
            if member is None:
                raise InputError(f"{path}: {archive.inside}/{file} is missing: download it again")
            return member.read()

        names = tuple(read_member(archive.names).decode().split())
        return tuple(  # type: ignore[return-value]
            _make_images(
                b"".join(read_member(file) for file in files),
                archive.label_bytes,
                names,
                f"{name} {part}",
            )
            for part, files in (("train", archive.train), ("test", archive.test))
        )


def _make_images(content: bytes, label_bytes: int, names: tuple[str, ...], name: str) -> Images:
    rows = np.frombuffer(content, np.uint8).reshape(-1, label_bytes + 3072)
    labels = rows[:, label_bytes - 1].astype(np.int64)
    pixels = rows[:, label_bytes:].reshape(-1, 3, 32, 32).copy()
    return Images(torch.from_numpy(pixels), torch.from_numpy(labels), names, name=name)
