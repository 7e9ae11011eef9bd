"""Read many image files in parallel; name those that cannot be read."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from calibrant.core.errors import InputError, first
from calibrant.core.extras import require

if TYPE_CHECKING:
    from PIL.Image import Image as Picture

SUFFIXES = {".jpg", ".jpeg", ".png", ".bmp", ".gif", ".webp", ".ppm", ".pgm", ".tif", ".tiff"}
MEMORY_LIMIT = 8 << 30  # bytes


def read_files(
    files: Sequence[Path],
    read: Callable[[Path], np.ndarray],
    limit: int,
    *,
    total: int | None = None,
    bytes_per_byte: float = 1.0,
) -> np.ndarray:
    """Read every file into one array; try all of them, then name those that failed.

    Args:
        files: The files.
        read: Reads one file as uint8; all arrays must have one shape.
        limit: Bytes of memory; more are refused before the files are read.
        total: The number of files that will be held at once; None for ``len(files)``.
        bytes_per_byte: Bytes held in memory for each byte read.
    """
    attempts = (_try(read, file) for file in files)
    shape = next((pixels.shape for pixels in attempts if not isinstance(pixels, str)), (0,))
    count = len(files) if total is None else total
    need = bytes_per_byte * count * int(np.prod(shape, dtype=np.int64))
    if need > limit:
        raise InputError(
            f"{count:,} images of {_sides(shape)} need {need / 2**30:.1f} GiB, more than the limit "
            f"of {limit / 2**30:.1f}: give a smaller size, or stream them with DataLoaders "
            "(calibrant.data.folder_datasets, for one folder a class)"
        )
    out = np.empty((len(files), *shape), np.uint8)

    def fill(row: int) -> str | None:
        pixels = _try(read, files[row])
        if isinstance(pixels, str):
            return f"{files[row]} ({pixels})"
        if pixels.shape != shape:
            return f"{files[row]} ({_sides(pixels.shape)}, others {_sides(shape)}: give a size)"
        out[row] = pixels
        return None

    with ThreadPoolExecutor() as pool:
        failures = [failure for failure in pool.map(fill, range(len(files))) if failure]
    if failures:
        raise InputError(
            f"{len(failures)} of {len(files):,} files cannot be used: {first(failures)}"
        )
    return out


def read_image(file: Path, size: int | None) -> np.ndarray:
    """Read an image as RGB (3,H,W); scale the shorter side to ``size`` and keep the middle."""
    image = require("PIL.Image", extra="train", purpose="reading images")
    with image.open(file) as opened:
        picture = to_rgb(opened)
    if size is not None:
        scale = size / min(picture.size)
        width, height = (max(size, round(side * scale)) for side in picture.size)
        if (width, height) != picture.size:
            picture = picture.resize((width, height), image.Resampling.BILINEAR)
        left, top = (width - size) // 2, (height - size) // 2
        picture = picture.crop((left, top, left + size, top + size))
    return np.ascontiguousarray(np.asarray(picture).transpose(2, 0, 1))


def to_rgb(picture: Picture) -> Picture:
    """Convert a Pillow image to RGB; refuse one of more than 8 bits, which would be clipped."""
    if picture.mode[0] in "IF":
        raise ValueError(f"mode {picture.mode}: expected 8 bits a channel")
    return picture.convert("RGB")


def _sides(shape: tuple[int, ...]) -> str:
    return "x".join(map(str, shape[1:]))


def _try(read: Callable[[Path], np.ndarray], file: Path) -> np.ndarray | str:
    try:
        return read(file)
    except pillow_errors() as error:
        return "not an image" if "cannot identify" in str(error) else str(error)


def pillow_errors() -> tuple[type[Exception], ...]:
    """Return what Pillow raises for files that it cannot read: SyntaxError for a broken PNG."""
    image = require("PIL.Image", extra="train", purpose="reading images")
    return (OSError, ValueError, SyntaxError, image.DecompressionBombError)
