"""CIFAR-10 and CIFAR-100 from a pack, from the official binary archives, or downloaded.

The official archives come pickled or binary; only the binary ones are read, since reading a
pickle runs whatever it holds.
"""

from __future__ import annotations

import hashlib
import io
import os
import tarfile
import tempfile
import urllib.request
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from calibrant.data.packs import data_folder, read_pack
from calibrant.data.value import Images
from calibrant.functional.errors import InputError

HOME = "https://www.cs.toronto.edu/~kriz"


class Archive(NamedTuple):
    """An official archive."""

    file: str
    md5: str
    inside: str
    train: tuple[str, ...]
    test: tuple[str, ...]
    names: str
    label_bytes: int  # the last of them is the label


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
    """Training and test images of ``cifar10`` or ``cifar100``."""
    where, archive = data_folder(folder), ARCHIVES[name]
    if where is not None:
        if (where / f"{name}.npz").is_file():
            return read_pack(where / f"{name}.npz")
        if (where / archive.file).is_file():
            return read_archive(where / archive.file, archive, name)
        if (where / PICKLED[name]).is_file() and not download:
            raise InputError(
                f"{where / PICKLED[name]} is the pickled form, which is not read since it could "
                f"run anything: get {archive.file} from {HOME}, or allow the download"
            )
    if not download:
        raise InputError(
            f"{name} is not here: put {name}.npz or {archive.file} in "
            f"{where if where is not None else 'a folder that CALIBRANT_DATA names'}, or allow "
            "the download (download=True, --download)"
        )
    target = (where or Path.cwd()) / archive.file
    fetch(f"{HOME}/{archive.file}", target, archive.md5)
    return read_archive(target, archive, name)


def fetch(address: str, target: Path, md5: str) -> None:
    """Download a file whole, and keep it only if its checksum fits."""
    target.parent.mkdir(parents=True, exist_ok=True)
    digest = hashlib.md5(usedforsecurity=False)
    with tempfile.NamedTemporaryFile(dir=target.parent, delete=False) as file:
        part = Path(file.name)
        try:
            with urllib.request.urlopen(address, timeout=60) as answer:
                while block := answer.read(1 << 20):
                    digest.update(block)
                    file.write(block)
            file.flush()
            if digest.hexdigest() != md5:
                raise InputError(
                    f"{address}: the checksum is {digest.hexdigest()}, not {md5}: nothing was kept"
                )
            os.replace(part, target)
        except OSError as error:
            raise InputError(f"{address} could not be downloaded: {error}") from None
        finally:
            part.unlink(missing_ok=True)


def read_archive(path: Path, archive: Archive, name: str) -> tuple[Images, Images]:
    """Training and test images of an official binary archive, checked against its checksum."""
    content = path.read_bytes()
    found = hashlib.md5(content, usedforsecurity=False).hexdigest()
    if found != archive.md5:
        raise InputError(f"{path}: the checksum is {found}, not {archive.md5}: get it again")
    with tarfile.open(fileobj=io.BytesIO(content), mode="r:gz") as packed:

        def member(file: str) -> bytes:
            inside = packed.extractfile(f"{archive.inside}/{file}")
            if inside is None:
                raise InputError(f"{path}: holds no {archive.inside}/{file}")
            return inside.read()

        names = tuple(member(archive.names).decode().split())
        return tuple(  # type: ignore[return-value]
            _images(
                b"".join(member(file) for file in files),
                archive.label_bytes,
                names,
                f"{name} {part}",
            )
            for part, files in (("train", archive.train), ("test", archive.test))
        )


def _images(content: bytes, label_bytes: int, names: tuple[str, ...], name: str) -> Images:
    rows = np.frombuffer(content, np.uint8).reshape(-1, label_bytes + 3072)
    labels = rows[:, label_bytes - 1].astype(np.int64)
    pixels = rows[:, label_bytes:].reshape(-1, 3, 32, 32).copy()
    return Images(torch.from_numpy(pixels), torch.from_numpy(labels), names, name=name)
