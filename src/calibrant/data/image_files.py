"""Many image files read at once, and those that cannot be read named."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from calibrant.functional.errors import InputError, first

if TYPE_CHECKING:
    from PIL.Image import Image as Picture

SUFFIXES = {".jpg", ".jpeg", ".png", ".bmp", ".gif", ".webp", ".ppm", ".pgm", ".tif", ".tiff"}
LIMIT = 8 << 30  # bytes held in memory


def read_files(
    files: Sequence[Path],
    read: Callable[[Path], np.ndarray],
    limit: int,
    *,
    total: int | None = None,
    held: float = 1.0,
) -> np.ndarray:
    """Every file's array, one below the other; all are tried, and those that fail are named.

    What ``total`` files take, ``held`` bytes for each that is read, is refused above the limit.
    """
    tries = (_try(read, file) for file in files)
    shape = next((found.shape for found in tries if not isinstance(found, str)), (0,))
    count = len(files) if total is None else total
    need = held * count * int(np.prod(shape, dtype=np.int64))
    if need > limit:
        raise InputError(
            f"{count:,} images of {_sides(shape)} need {need / 2**30:.1f} GiB, more than the limit "
            f"of {limit / 2**30:.1f}: give a smaller size, or stream them through ordinary "
            "DataLoaders (calibrant.data.folder_datasets, where a folder is a class)"
        )
    out = np.empty((len(files), *shape), np.uint8)

    def one(row: int) -> str | None:
        found = _try(read, files[row])
        if isinstance(found, str):
            return f"{files[row]} ({found})"
        if found.shape != shape:
            return f"{files[row]} ({_sides(found.shape)}, others {_sides(shape)}: give a size)"
        out[row] = found
        return None

    with ThreadPoolExecutor() as pool:
        bad = [said for said in pool.map(one, range(len(files))) if said is not None]
    if bad:
        raise InputError(f"{len(bad)} of {len(files):,} files cannot be used: {first(bad)}")
    return out


def read_image(file: Path, size: int | None) -> np.ndarray:
    """Red, green, blue (3,H,W), scaled to a shorter side of ``size`` and cut to the middle."""
    from PIL import Image

    with Image.open(file) as opened:
        picture = as_colours(opened)
    if size is not None:
        scale = size / min(picture.size)
        width, height = (max(size, round(side * scale)) for side in picture.size)
        if (width, height) != picture.size:
            picture = picture.resize((width, height), Image.Resampling.BILINEAR)
        left, top = (width - size) // 2, (height - size) // 2
        picture = picture.crop((left, top, left + size, top + size))
    return np.ascontiguousarray(np.asarray(picture).transpose(2, 0, 1))


def as_colours(picture: Picture) -> Picture:
    """A Pillow image as RGB; one of more than bytes, which would be cut off, is refused."""
    if picture.mode[0] in "IF":
        raise ValueError(f"mode {picture.mode}: bytes are wanted")
    return picture.convert("RGB")


def _sides(shape: tuple[int, ...]) -> str:
    return "x".join(map(str, shape[1:]))


def _try(read: Callable[[Path], np.ndarray], file: Path) -> np.ndarray | str:
    try:
        return read(file)
    except unreadable() as error:
        return "not an image" if "cannot identify" in str(error) else str(error)


def unreadable() -> tuple[type[Exception], ...]:
    """What Pillow raises for files it cannot read: broken PNGs are a SyntaxError."""
    from PIL import Image

    return (OSError, ValueError, SyntaxError, Image.DecompressionBombError)
