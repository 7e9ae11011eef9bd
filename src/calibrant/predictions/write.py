"""Write predictions: the ending chooses the format, and a failed write keeps the old file."""

from __future__ import annotations

import warnings
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from calibrant.core.errors import InputError
from calibrant.core.files import check_folder, replace_file
from calibrant.functional.arrays import Array, as_numpy, to_tensor
from calibrant.predictions.files import (
    OUTCOMES,
    SIDECARS,
    Contents,
    FileScores,
    format_notes,
    iterate_scores,
)
from calibrant.predictions.read import ENDINGS
from calibrant.predictions.tables import TABLE_ENDINGS, find_ending, outcome_name, write_table

_CANNOT_HOLD = {
    ".csv": ("class_names", "ignore_index", "event"),
    ".csv.gz": ("class_names", "ignore_index", "event"),
    ".jsonl": ("class_names", "ignore_index", "event"),
    ".npy": ("class_names", "ignore_index", "ids", "event"),
}


def write_contents(contents: Contents, path: Path) -> Path:
    """Write a file in the format of its ending; ``labels`` that are None are left out."""
    ending = find_ending(path)
    if ending not in ENDINGS:
        raise InputError(
            f"{path}: unsupported ending {path.suffix or '(none)'!r}, "
            f"expected one of {', '.join(ENDINGS)}"
        )
    if path.is_dir():
        raise InputError(f"{path}: is a directory")
    check_folder(path)
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
    plain = replace(contents)
    if contents.task != "classes":
        plain.ignore_index = None  # a missing outcome is always −1
    if contents.event in ("event", "correct"):
        plain.event = None  # the name of the outcomes says it
    names = [n for n in _CANNOT_HOLD.get(ending, ()) if getattr(plain, n) is not None]
    if contents.labels is None and contents.task != "classes" and ending in _CANNOT_HOLD:
        columns = contents.task == "events" and contents.kind == "probs" and ending != ".npy"
        names += [] if columns else ["task"]
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


def _load_members(contents: Contents) -> dict[str, Any]:
    """Return what a file of arrays holds, by key; the scores are in memory."""
    kind, scores = _load_scores(contents)
    is_event = contents.task == "events"
    if is_event and kind == "probs":
        kind = "confidence" if contents.event == "correct" else "probability"
    members = {
        kind: scores,
        outcome_name(contents) if is_event else "labels": contents.labels,
        "class_names": contents.class_names,
        "ids": contents.ids,
        "ignore_index": contents.ignore_index if contents.task == "classes" else None,
        "weights": contents.weights,
        "clusters": contents.clusters,
        "num_options": contents.num_options,
        "task": contents.task if contents.task != "classes" else None,
        "event": contents.event,
    }
    return {key: value for key, value in members.items() if value is not None}


def _write_npz(contents: Contents, path: Path) -> None:
    members: dict[str, Any] = {
        key: as_numpy(value) if isinstance(value, torch.Tensor) else np.array(value)
        for key, value in _load_members(contents).items()
    }
    with path.open("wb") as file:
        np.savez(file, **members)


def _write_npy(contents: Contents, path: Path) -> None:
    """Write the scores in chunks, and the labels beside them as ``NAME.labels.npy``."""
    key = {"classes": "labels", "multilabel": "multilabels"}.get(contents.task)
    beside = {
        key or outcome_name(contents): contents.labels,
        "weights": contents.weights,
        "clusters": contents.clusters,
        "num_options": contents.num_options,
    }
    beside = {name: values for name, values in beside.items() if values is not None}
    with ExitStack() as stack:
        for name, values in beside.items():
            values_file = stack.enter_context(replace_file(path.with_suffix(f".{name}.npy")))
            with values_file.open("wb") as file:
                np.save(file, as_numpy(values), allow_pickle=False)
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
    for name in SIDECARS:
        # What lay beside the file that was replaced is not that of the new one.
        if name not in beside and name != "labels":
            path.with_suffix(f".{name}.npy").unlink(missing_ok=True)
    if "labels" not in beside and beside.keys() & {*OUTCOMES, "multilabels"}:
        path.with_suffix(".labels.npy").unlink(missing_ok=True)


def _split_members(contents: Contents) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    """Return the members that are numbers as tensors, and the others as plain values."""
    tensors: dict[str, torch.Tensor] = {}
    plain: dict[str, Any] = {}
    for key, value in _load_members(contents).items():
        if isinstance(value, torch.Tensor):
            tensors[key] = value.detach().cpu().contiguous()
        elif isinstance(value, np.ndarray) and value.dtype.kind != "U":
            tensors[key] = to_tensor(value, widen=False).contiguous()
        else:
            plain[key] = value.tolist() if isinstance(value, np.ndarray) else value
    return tensors, plain


def _write_safetensors(contents: Contents, path: Path) -> None:
    from safetensors.torch import save_file

    tensors, plain = _split_members(contents)
    notes = {key: plain.pop(key, None) for key in ("class_names", "ids", "ignore_index")}
    save_file(tensors, path, metadata={"calibrant": format_notes({**notes, **plain})})


def _write_pt(contents: Contents, path: Path) -> None:
    members: dict[str, Any] = {}
    tensors, plain = _split_members(contents)
    for key, tensor in tensors.items():
        # torch.save writes the whole storage behind a view.
        whole = tensor.numel() * tensor.element_size() == tensor.untyped_storage().nbytes()
        members[key] = tensor if whole else tensor.clone()
    for key, value in plain.items():
        members[key] = list(value) if isinstance(value, tuple) else value
    with path.open("wb") as file:
        try:
            torch.save(members, file)
        except RuntimeError as error:  # PyTorch hides the error of a full disk behind its own
            if isinstance(error.__context__, OSError):
                raise error.__context__ from error
            raise
