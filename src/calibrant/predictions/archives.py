"""Readers of files that hold whole arrays by name: npz, npy, safetensors, pt."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import torch

from calibrant.functional.errors import InputError
from calibrant.predictions.contents import Contents, kind_of_keys, notes_from_text
from calibrant.predictions.sources import NpyScores

_NO_PICKLE = "it holds pickled Python objects, which can run code and are never loaded"


def load_npy(path: Path, *, mapped: bool = False) -> Any:
    """One array, or the members of an npz, without ever unpickling."""
    with path.open("rb") as file:
        start = file.read(6)
    if not start:
        raise InputError("the file is empty (0 bytes)")
    if not (start.startswith((b"\x93NUMPY", b"PK"))):
        # NumPy takes anything else for a pickle.
        kind = _NO_PICKLE if start.startswith(b"\x80") else "it is not a NumPy file"
        raise InputError(f"{kind}: write it with numpy.save or numpy.savez")
    try:
        return np.load(path, mmap_mode="r" if mapped else None, allow_pickle=False)
    except ValueError as error:
        raise _refusal(error) from error


def _refusal(error: ValueError) -> ValueError:
    if "pickle" in str(error).lower():
        return InputError(f"{_NO_PICKLE}: save plain numeric and text arrays")
    return error


def read_npz(path: Path) -> Contents:
    """Members ``logits`` or ``probs``, ``labels``, and optional ones."""
    if path.stat().st_size and not zipfile.is_zipfile(path):
        load_npy(path)  # a pickle is refused as such
        raise InputError("damaged or cut short: not a zip archive, which an .npz is")
    with load_npy(path) as archive:
        kind = kind_of_keys(archive.files)
        try:
            held: dict[str, Any] = {key: archive[key] for key in archive.files}
        except ValueError as error:
            raise _refusal(error) from error
    names = held.get("class_names")
    ignored = held.get("ignore_index")
    return Contents(
        scores=held[kind],
        kind=kind,
        labels=held.get("labels"),
        class_names=None if names is None else names.tolist(),
        ids=held.get("ids"),
        ignore_index=None if ignored is None else ignored.item(),
    )


def read_npy(path: Path, *, lazy: bool) -> Contents:
    """A bare array of scores; labels beside it as ``NAME.labels.npy`` are found by themselves."""
    array = load_npy(path, mapped=lazy)
    if not isinstance(array, np.ndarray):
        raise InputError("it is an archive of arrays: give it the ending .npz")
    beside = path.with_suffix(".labels.npy")
    labels = load_npy(beside, mapped=lazy) if beside.exists() else None
    return Contents(scores=NpyScores(path) if lazy else array, kind=None, labels=labels)


def read_safetensors(path: Path) -> Contents:
    """Tensors by the same names; class names and text ids are JSON in the metadata.

    The library maps the file to memory, whatever its size.
    """
    from safetensors import safe_open

    with safe_open(path, framework="pt") as file:
        keys = list(file.keys())
        kind = kind_of_keys(keys)
        held = {key: file.get_tensor(key) for key in keys}
        metadata = file.metadata() or {}
    notes = notes_from_text(metadata.get("calibrant"))
    ignored = held.get("ignore_index")
    return Contents(
        scores=held[kind],
        kind=kind,
        labels=held.get("labels"),
        class_names=notes.get("class_names"),
        ids=held.get("ids", notes.get("ids")),
        ignore_index=notes.get("ignore_index") if ignored is None else ignored.item(),
    )


def load_pt(path: Path, *, mapped: bool = False) -> Any:
    """Tensors and plain values only (``weights_only=True``)."""
    import pickle

    if path.stat().st_size == 0:
        raise InputError("the file is empty (0 bytes)")
    try:
        # Only the zip format of torch.save can be mapped.
        mapped = mapped and zipfile.is_zipfile(path)
        return torch.load(path, map_location="cpu", weights_only=True, mmap=mapped)
    except pickle.UnpicklingError as error:
        raise InputError(
            f"{_NO_PICKLE}: save a dict of tensors, such as "
            "torch.save({'logits': logits, 'labels': labels}, path)"
        ) from error


def read_pt(path: Path, *, lazy: bool) -> Contents:
    """A dict of tensors by the same names, or a bare tensor."""
    held = load_pt(path, mapped=lazy)
    if isinstance(held, torch.Tensor):
        return Contents(scores=held, kind=None)
    if not isinstance(held, dict):
        raise InputError(f"expected a dict of tensors, found {type(held).__name__}")
    kind = kind_of_keys([str(key) for key in held])
    ignored = held.get("ignore_index")
    return Contents(
        scores=held[kind],
        kind=kind,
        labels=held.get("labels"),
        class_names=held.get("class_names"),
        ids=held.get("ids"),
        ignore_index=ignored.item() if isinstance(ignored, torch.Tensor) else ignored,
    )
