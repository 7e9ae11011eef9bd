"""Read predictions: one reader for each format, chosen by the ending of the file."""

from __future__ import annotations

import os
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from calibrant.core.errors import InputError, first
from calibrant.predictions.examples import PREFIX, read_example
from calibrant.predictions.files import (
    OPTIONAL_KEYS,
    Contents,
    FileScores,
    NpyScores,
    agree_kind,
    check_file,
    explain_read_errors,
    find_kind,
    parse_notes,
)
from calibrant.predictions.tables import TABLE_ENDINGS, open_table, read_table

ENDINGS = (".npz", ".npy", ".safetensors", ".pt", *TABLE_ENDINGS)
LABEL_ENDINGS = (
    *(".npy", ".npz", ".csv", ".txt", ".parquet"),
    *(".arrow", ".feather", ".pt", ".safetensors"),
)
# Above this, scores stay in the file and are read in chunks.
LAZY_BYTES = 1 << 30
_NO_PICKLE = "the file holds pickled Python objects, which can run code and are never loaded"


def read_contents(path: Path, *, labels: Any, kind: str | None, lazy: bool | None) -> Contents:
    """Read a file, with its kind and its labels.

    Args:
        path: The file, or ``example:NAME``.
        labels: A file of labels, an array of labels, or None for those in the file.
        kind: ``logits``, ``probs``, or None for what the file says.
        lazy: Whether scores stay in the file; None decides by its size.
    """
    if str(path).startswith(PREFIX):
        contents = read_example(str(path))
    else:
        contents = _open(check_file(path, ENDINGS), lazy)
        contents.name = path.stem
    contents.kind = agree_kind(contents.kind, kind)
    if labels is not None:
        # Labels that lie beside an .npy may be replaced; labels inside a file may not.
        if contents.labels is not None and path.suffix.lower() != ".npy":
            raise InputError("the file holds labels, and labels= gives others: leave one out")
        is_path = isinstance(labels, (str, os.PathLike))
        contents.labels = read_labels(labels) if is_path else labels
    if contents.labels is None:
        raise InputError(
            "no labels found: put them in the file as the column 'label' or the key 'labels', "
            "or give a file of labels with labels="
        )
    return contents


def make_placeholder_labels(path: Path) -> NDArray[np.int64] | None:
    """Make zeros of the shape of labels; None if the file holds labels."""
    with explain_read_errors(check_file(path, ENDINGS)):
        contents = _open(path, None)
    if contents.labels is not None:
        return None
    shape = tuple(contents.scores.shape)
    return np.zeros((*shape[:1], *shape[2:]), dtype=np.int64)


def _open(path: Path, lazy: bool | None) -> Contents:
    ending = path.suffix.lower()
    large = path.stat().st_size > LAZY_BYTES if lazy is None else lazy
    if ending == ".npz":
        if lazy:
            raise InputError("an .npz is read whole: write .npy or .parquet to stream")
        return read_npz(path)
    if ending == ".npy":
        return read_npy(path, lazy=large)
    if ending == ".safetensors":
        return read_safetensors(path)
    if ending == ".pt":
        return read_pt(path, lazy=large)
    contents = read_table(path)
    if isinstance(contents.scores, FileScores):
        # A table may be compressed, so its size in memory decides.
        size = int(np.prod(contents.scores.shape)) * contents.scores.dtype.itemsize
        if not (size > LAZY_BYTES if lazy is None else lazy):
            contents.scores = contents.scores.load()
    return contents


def read_labels(path: str | os.PathLike[str]) -> Any:
    """Read labels from a file of their own."""
    file = check_file(path, LABEL_ENDINGS)
    with explain_read_errors(file):
        ending = file.suffix.lower()
        if ending in (".npy", ".npz"):
            return _pick_labels(load_npy(file))
        if ending == ".pt":
            return _pick_labels(load_pt(file))
        if ending == ".safetensors":
            from safetensors.torch import load_file

            return _pick_labels(load_file(file))
        if ending == ".txt" or (ending == ".csv" and not _has_header(file)):
            return _read_lines(file)
        return _read_column(file)


def _pick_labels(loaded: Any) -> Any:
    """Return an array as it is; of several, the one called labels or the only one."""
    if not hasattr(loaded, "keys"):
        return loaded
    names = list(loaded.keys())
    for name in ("labels", "label"):
        if name in names:
            return loaded[name]
    if len(names) != 1:
        raise InputError(f"expected an array 'labels', found {first(map(repr, names)) or 'none'}")
    return loaded[names[0]]


def _has_header(file: Path) -> bool:
    with file.open(encoding="utf-8-sig") as lines:
        return not _is_number(lines.readline())


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _read_lines(file: Path) -> Any:
    """Read one whole number a line."""
    labels: list[int] = []
    with file.open(encoding="utf-8-sig") as lines:
        for number, line in enumerate(lines, start=1):
            text = line.strip()
            if not text:
                continue
            try:
                labels.append(int(text))
            except ValueError:
                raise InputError(
                    f"line {number} is {text[:40]!r}, expected one whole number a line"
                ) from None
    if not labels:
        raise InputError("the file is empty: no labels")
    return np.array(labels, dtype=np.int64)


def _read_column(file: Path) -> Any:
    """Read the column ``label`` (or ``labels``, or the only one) of a table."""
    table = open_table(file)
    names = [name for name in ("label", "labels") if name in table.names] or table.names
    if len(names) != 1:
        shown = first((repr(name) for name in table.names), 12)
        raise InputError(f"expected a column 'label', found {shown}")
    _, columns = table.columns(names)
    if not columns:
        raise InputError("the table is empty: no labels")
    return columns[names[0]]


def load_npy(path: Path, *, mapped: bool = False) -> Any:
    """Load an array, or open the members of an npz; never unpickle."""
    with path.open("rb") as file:
        start = file.read(6)
    if not start:
        raise InputError("the file is empty (0 bytes)")
    if not (start.startswith((b"\x93NUMPY", b"PK"))):
        # NumPy would take anything else for a pickle.
        kind = _NO_PICKLE if start.startswith(b"\x80") else "not a NumPy file"
        raise InputError(f"{kind}: write it with numpy.save or numpy.savez")
    try:
        return np.load(path, mmap_mode="r" if mapped else None, allow_pickle=False)
    except ValueError as error:
        raise _explain_pickle(error) from error


def _explain_pickle(error: ValueError) -> ValueError:
    """Return the error to raise: about pickles if NumPy found one, else the same."""
    if "pickle" in str(error).lower():
        return InputError(f"{_NO_PICKLE}: save plain numeric and text arrays")
    return error


def _to_contents(members: Mapping[str, Any]) -> Contents:
    """Make `Contents` of the members of a file, by their names."""
    kind = find_kind(members)
    names, ignored = members.get("class_names"), members.get("ignore_index")
    return Contents(
        scores=members[kind],
        kind=kind,
        labels=members.get("labels"),
        class_names=names.tolist() if isinstance(names, np.ndarray) else names,
        ids=members.get("ids"),
        ignore_index=ignored.item() if isinstance(ignored, np.ndarray | torch.Tensor) else ignored,
    )


def read_npz(path: Path) -> Contents:
    """Read the members ``logits`` or ``probs``, ``labels``, and optional ones."""
    if path.stat().st_size and not zipfile.is_zipfile(path):
        load_npy(path)  # raises its own error for a pickle
        raise InputError("damaged or cut short: not a zip archive, which an .npz is")
    with load_npy(path) as archive:
        find_kind(archive.files)
        try:
            return _to_contents({key: archive[key] for key in archive.files})
        except ValueError as error:
            raise _explain_pickle(error) from error


def read_npy(path: Path, *, lazy: bool) -> Contents:
    """Read a bare array of scores, and the labels beside it in ``NAME.labels.npy``."""
    array = load_npy(path, mapped=lazy)
    if not isinstance(array, np.ndarray):
        raise InputError("the file is an archive of arrays: give it the ending .npz")
    beside = path.with_suffix(".labels.npy")
    labels = load_npy(beside, mapped=lazy) if beside.exists() else None
    return Contents(scores=NpyScores(path) if lazy else array, kind=None, labels=labels)


def read_safetensors(path: Path) -> Contents:
    """Read tensors by the same names; class names and text ids are JSON in the metadata.

    The library maps the file to memory, whatever its size.
    """
    from safetensors import safe_open

    with safe_open(path, framework="pt") as file:
        keys = list(file.keys())
        find_kind(keys)
        tensors = {key: file.get_tensor(key) for key in keys}
        metadata = file.metadata() or {}
    notes = parse_notes(metadata.get("calibrant"))
    contents = _to_contents({key: notes.get(key) for key in OPTIONAL_KEYS} | tensors)
    contents.class_names = notes.get("class_names")
    return contents


def load_pt(path: Path, *, mapped: bool = False) -> Any:
    """Load tensors and plain values only (``weights_only=True``)."""
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
    """Read a dict of tensors by the same names, or a bare tensor."""
    loaded = load_pt(path, mapped=lazy)
    if isinstance(loaded, torch.Tensor):
        return Contents(scores=loaded, kind=None)
    if not isinstance(loaded, dict):
        raise InputError(f"expected a dict of tensors, found {type(loaded).__name__}")
    return _to_contents({str(key): value for key, value in loaded.items()})
