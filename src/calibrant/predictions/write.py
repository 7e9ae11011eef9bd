"""Write predictions: the ending chooses the format, and a failed write keeps the old file."""

from __future__ import annotations

import warnings
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import torch

from calibrant.core.errors import InputError
from calibrant.core.files import replace_file
from calibrant.functional.arrays import Array, as_numpy, to_tensor
from calibrant.predictions.files import Contents, FileScores, format_notes, iterate_scores
from calibrant.predictions.read import ENDINGS
from calibrant.predictions.tables import TABLE_ENDINGS, write_table

_CANNOT_HOLD = {
    ".csv": ("class_names", "ignore_index"),
    ".npy": ("class_names", "ignore_index", "ids"),
}


def write_contents(contents: Contents, path: Path) -> Path:
    """Write a file in the format of its ending; ``labels`` that are None are left out."""
    ending = path.suffix.lower()
    if ending not in ENDINGS:
        raise InputError(
            f"{path}: unsupported ending {path.suffix or '(none)'!r}, "
            f"expected one of {', '.join(ENDINGS)}"
        )
    if path.is_dir():
        raise InputError(f"{path}: is a directory")
    if not path.parent.is_dir():
        raise InputError(f"{path}: the folder {path.parent} does not exist")
    if ending in TABLE_ENDINGS and contents.scores.ndim > 2:
        raise InputError(
            f"{path}: dense predictions of shape {tuple(contents.scores.shape)} do not fit "
            f"the columns of a table: write .npz, .npy, .safetensors or .pt"
        )
    _warn_of_losses(contents, ending)
    if ending == ".npy":
        _write_npy(contents, path)
        return path
    with replace_file(path) as temporary:
        if ending in TABLE_ENDINGS:
            write_table(contents, temporary, ending)
        elif ending == ".npz":
            _write_npz(contents, temporary)
        elif ending == ".safetensors":
            _write_safetensors(contents, temporary)
        else:
            _write_pt(contents, temporary)
    return path


def _warn_of_losses(contents: Contents, ending: str) -> None:
    """Warn of what the format cannot hold."""
    names = [n for n in _CANNOT_HOLD.get(ending, ()) if getattr(contents, n) is not None]
    if names:
        warnings.warn(
            f"a {ending} file cannot hold {' and '.join(names)}; .npz and .parquet can",
            UserWarning,
            stacklevel=4,
        )


def _load_scores(contents: Contents) -> tuple[str, Array]:
    """Return ``logits`` or ``probs``, and the scores in memory."""
    scores = contents.scores
    return str(contents.kind), scores.load() if isinstance(scores, FileScores) else scores


def _write_npz(contents: Contents, path: Path) -> None:
    kind, scores = _load_scores(contents)
    members: dict[str, Any] = {kind: as_numpy(scores)}
    if contents.labels is not None:
        members["labels"] = as_numpy(contents.labels)
    if contents.class_names is not None:
        members["class_names"] = np.array(contents.class_names)
    if contents.ids is not None:
        members["ids"] = contents.ids
    if contents.ignore_index is not None:
        members["ignore_index"] = np.array(contents.ignore_index)
    with path.open("wb") as file:
        np.savez(file, **members)


def _write_npy(contents: Contents, path: Path) -> None:
    """Write the scores in chunks, and the labels beside them as ``NAME.labels.npy``."""
    beside = path.with_suffix(".labels.npy")
    with ExitStack() as stack:
        if contents.labels is not None:
            labels_file = stack.enter_context(replace_file(beside))
            with labels_file.open("wb") as file:
                np.save(file, as_numpy(contents.labels), allow_pickle=False)
        scores_file = stack.enter_context(replace_file(path))
        with scores_file.open("wb") as file:
            header: dict[str, Any] | None = None
            for scores in iterate_scores(contents.scores):
                chunk = np.ascontiguousarray(as_numpy(scores))
                if header is None:
                    header = np.lib.format.header_data_from_array_1_0(chunk)
                    header["shape"] = tuple(contents.scores.shape)
                    np.lib.format.write_array_header_1_0(file, header)
                file.write(chunk.data.cast("B"))


def _tensors(contents: Contents) -> dict[str, torch.Tensor]:
    kind, scores = _load_scores(contents)
    tensors = {kind: to_tensor(scores).cpu().contiguous()}
    if contents.labels is not None:
        tensors["labels"] = to_tensor(contents.labels, widen=False).cpu().contiguous()
    if contents.ids is not None and contents.ids.dtype.kind != "U":
        tensors["ids"] = to_tensor(contents.ids, widen=False).contiguous()
    return tensors


def _write_safetensors(contents: Contents, path: Path) -> None:
    from safetensors.torch import save_file

    ids = contents.ids
    notes = {
        "class_names": contents.class_names,
        "ids": ids.tolist() if ids is not None and ids.dtype.kind == "U" else None,
        "ignore_index": contents.ignore_index,
    }
    save_file(_tensors(contents), path, metadata={"calibrant": format_notes(notes)})


def _write_pt(contents: Contents, path: Path) -> None:
    members: dict[str, Any] = {}
    for key, tensor in _tensors(contents).items():
        # torch.save writes the whole storage behind a view.
        whole = tensor.numel() * tensor.element_size() == tensor.untyped_storage().nbytes()
        members[key] = tensor if whole else tensor.clone()
    if contents.class_names is not None:
        members["class_names"] = list(contents.class_names)
    if contents.ids is not None and "ids" not in members:
        members["ids"] = contents.ids.tolist()
    if contents.ignore_index is not None:
        members["ignore_index"] = contents.ignore_index
    torch.save(members, path)
