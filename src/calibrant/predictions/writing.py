"""Writing predictions; the ending picks the format, and a failed write leaves what was there."""

from __future__ import annotations

import os
import uuid
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from calibrant.functional.errors import InputError
from calibrant.functional.rows import as_numpy, as_tensor
from calibrant.predictions.contents import notes_to_text
from calibrant.predictions.reading import ENDINGS, TABLE_ENDINGS
from calibrant.predictions.table_writing import write_table

if TYPE_CHECKING:
    from calibrant.predictions.value import Predictions


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A fresh file in the same folder that takes the path's place only if all goes well."""
    target = path.resolve()  # a link keeps pointing where it did
    temporary = target.with_name(f".{target.name}.{uuid.uuid4().hex}.tmp")
    try:
        yield temporary
        mask = os.umask(0)
        os.umask(mask)
        temporary.chmod(0o666 & ~mask)  # safetensors would keep it from everyone else
        os.replace(temporary, target)
    finally:
        temporary.unlink(missing_ok=True)


def write(predictions: Predictions, path: str | os.PathLike[str], *, labels: bool = True) -> Path:
    """Write to the format of the ending; ``labels=False`` leaves the labels out."""
    target = Path(path)
    ending = target.suffix.lower()
    if ending not in ENDINGS:
        raise InputError(
            f"{target}: unsupported ending {target.suffix or '(none)'!r}, "
            f"expected one of {', '.join(ENDINGS)}"
        )
    if target.is_dir():
        raise InputError(f"{target}: is a directory")
    if not target.parent.is_dir():
        raise InputError(f"{target}: the folder {target.parent} does not exist")
    if ending in TABLE_ENDINGS and predictions.is_dense:
        raise InputError(
            f"{target}: dense predictions of shape {tuple(predictions.scores.shape)} do not fit "
            f"the columns of a table: write .npz, .npy, .safetensors or .pt"
        )
    _warn_of_losses(predictions, ending)
    if ending == ".npy":
        _write_npy(predictions, target, labels)
        return target
    with replacing(target) as temporary:
        if ending in TABLE_ENDINGS:
            write_table(predictions, temporary, ending, labels=labels)
        elif ending == ".npz":
            _write_npz(predictions.in_memory(), temporary, labels)
        elif ending == ".safetensors":
            _write_safetensors(predictions.in_memory(), temporary, labels)
        else:
            _write_pt(predictions.in_memory(), temporary, labels)
    return target


def _warn_of_losses(predictions: Predictions, ending: str) -> None:
    cannot_hold = {
        ".csv": ["class_names", "ignore_index"],
        ".npy": ["class_names", "ignore_index", "ids"],
    }
    names = [n for n in cannot_hold.get(ending, []) if getattr(predictions, n) is not None]
    if names:
        warnings.warn(
            f"a {ending} file cannot hold {' and '.join(names)}; .npz and .parquet can",
            UserWarning,
            stacklevel=4,
        )


def _kind(predictions: Predictions) -> str:
    return "logits" if predictions.is_logits else "probs"


def _write_npz(predictions: Predictions, path: Path, labels: bool) -> None:
    held: dict[str, Any] = {_kind(predictions): as_numpy(predictions.array)}
    if labels:
        held["labels"] = as_numpy(predictions.labels)
    if predictions.class_names is not None:
        held["class_names"] = np.array(predictions.class_names)
    if predictions.ids is not None:
        held["ids"] = predictions.ids
    if predictions.ignore_index is not None:
        held["ignore_index"] = np.array(predictions.ignore_index)
    with path.open("wb") as file:
        np.savez(file, **held)


def _write_npy(predictions: Predictions, path: Path, labels: bool) -> None:
    """Scores here, chunk by chunk; labels beside them as ``NAME.labels.npy``."""
    beside = path.with_suffix(".labels.npy")
    with ExitStack() as stack:
        if labels:
            labels_file = stack.enter_context(replacing(beside))
            with labels_file.open("wb") as file:
                np.save(file, as_numpy(predictions.labels), allow_pickle=False)
        scores_file = stack.enter_context(replacing(path))
        with scores_file.open("wb") as file:
            header: dict[str, Any] | None = None
            for scores, _ in predictions.batches():
                chunk = np.ascontiguousarray(as_numpy(scores))
                if header is None:
                    header = np.lib.format.header_data_from_array_1_0(chunk)
                    header["shape"] = tuple(predictions.scores.shape)
                    np.lib.format.write_array_header_1_0(file, header)
                file.write(chunk.data.cast("B"))


def _tensors(predictions: Predictions, labels: bool) -> dict[str, torch.Tensor]:
    held = {_kind(predictions): as_tensor(predictions.array).cpu().contiguous()}
    if labels:
        held["labels"] = as_tensor(predictions.labels).cpu().contiguous()
    ids = predictions.ids
    if ids is not None and ids.dtype.kind != "U":
        held["ids"] = as_tensor(ids).contiguous()
    return held


def _write_safetensors(predictions: Predictions, path: Path, labels: bool) -> None:
    from safetensors.torch import save_file

    ids = predictions.ids
    notes = {
        "class_names": predictions.class_names,
        "ids": ids.tolist() if ids is not None and ids.dtype.kind == "U" else None,
        "ignore_index": predictions.ignore_index,
    }
    save_file(_tensors(predictions, labels), path, metadata={"calibrant": notes_to_text(notes)})


def _write_pt(predictions: Predictions, path: Path, labels: bool) -> None:
    held: dict[str, Any] = {}
    for key, tensor in _tensors(predictions, labels).items():
        # torch.save writes the whole storage behind a view.
        whole = tensor.numel() * tensor.element_size() == tensor.untyped_storage().nbytes()
        held[key] = tensor if whole else tensor.clone()
    if predictions.class_names is not None:
        held["class_names"] = list(predictions.class_names)
    if predictions.ids is not None and "ids" not in held:
        held["ids"] = predictions.ids.tolist()
    if predictions.ignore_index is not None:
        held["ignore_index"] = predictions.ignore_index
    torch.save(held, path)
