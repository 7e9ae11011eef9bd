"""Cached features and their labels: read them from files, check them, give them to a head."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from calibrant.core.errors import InputError, first
from calibrant.functional.arrays import Array, to_tensor
from calibrant.predictions import Predictions
from calibrant.predictions.arrays import as_class_names, as_labels
from calibrant.predictions.checks import check_labels
from calibrant.predictions.files import (
    KINDS,
    OPTIONAL_KEYS,
    check_file,
    explain_read_errors,
    parse_notes,
)
from calibrant.predictions.read import load_npy, read_labels

if TYPE_CHECKING:
    from calibrant.calibrators.base import Calibrator

KEY = "features"
ENDINGS = (".npz", ".safetensors")


@dataclass(frozen=True)
class Features:
    """Features of N rows, (N,D), their labels, and the rest of their file."""

    array: Array
    labels: Array
    class_names: tuple[str, ...] | None = None
    ids: Any = None
    ignore_index: int | None = None
    name: str = KEY


def holds_features(path: str | os.PathLike[str]) -> bool:
    """Return whether a file holds features, and neither logits nor probabilities."""
    file = Path(path)
    if file.suffix.lower() not in ENDINGS or not file.is_file():
        return False
    try:
        names = set(_open(file, only_names=True))
    except Exception:  # the reader of the file will report what is wrong
        return False
    return KEY in names and not names & set(KINDS)


def read_features(
    path: str | os.PathLike[str],
    *,
    labels: str | os.PathLike[str] | None = None,
    ignore_index: int | None = None,
) -> Features:
    """Read ``.npz`` or ``.safetensors`` with keys ``features`` and ``labels``.

    The keys ``class_names``, ``ids`` and ``ignore_index`` are optional, as in files of
    predictions.

    Args:
        path: The file.
        labels: A file of labels, if the first has none. Default: None (labels are inside).
        ignore_index: The label of rows to leave out. Default: None (as the file says).
    """
    file = check_file(path, ENDINGS)
    with explain_read_errors(file):
        members = _open(file)
        known = (KEY, "labels", *OPTIONAL_KEYS)
        if KEY not in members:
            keys = first((repr(name) for name in sorted(members)), 12) or "nothing"
            raise InputError(
                f"no features: expected 'features', the (N, D) inputs of the network's last layer, "
                f"and 'labels'; found {keys}"
            )
        unknown = sorted(members.keys() - set(known))
        if unknown:
            raise InputError(f"unknown keys {first(map(repr, unknown))}: rename or drop them")
        if labels is not None and members.get("labels") is not None:
            raise InputError("the file holds labels and labels= gives others: leave one out")
        target = members.get("labels") if labels is None else read_labels(labels)
        if target is None:
            raise InputError("no labels found: put them in the file under 'labels'")
        names, marked = members.get("class_names"), members.get("ignore_index")
        if ignore_index is None and marked is not None:
            ignore_index = int(marked)
        return Features(
            members[KEY],
            target,
            None if names is None else as_class_names(list(names), len(names)),
            members.get("ids"),
            ignore_index,
            file.stem,
        )


def apply_features(calibrator: Calibrator, features: Features) -> Predictions:
    """Return the predictions of a fitted head for features, as logits."""
    return Predictions.from_logits(
        calibrator.calibrate(features.array),
        features.labels,
        class_names=features.class_names or calibrator.class_names_,
        ids=features.ids,
        ignore_index=features.ignore_index,
        name=features.name,
    )


def feature_rows(
    features: Array, target: Array, *, ignore_index: int | None = None
) -> tuple[Tensor, Tensor]:
    """Return checked (N,D) features and (N,) labels, without needless copies."""
    rows = to_tensor(features)
    if rows.ndim != 2:
        raise InputError(
            f"features must have shape (N, D), found {tuple(rows.shape)}: pool or flatten them"
        )
    if rows.shape[0] == 0 or rows.shape[1] == 0:
        raise InputError(f"features are empty: shape {tuple(rows.shape)}")
    if not rows.is_floating_point():
        raise InputError(f"features must be floating point, found {rows.dtype}")
    if not all(math.isfinite(float(end)) for end in torch.aminmax(rows)):
        bad = (~torch.isfinite(rows)).any(1).nonzero().squeeze(1)
        raise InputError(f"features hold NaN or infinity, first in rows {first(bad.tolist())}")
    labels = to_tensor(as_labels(target, rows)).long().to(rows.device)
    if ignore_index is not None:
        keep = labels != ignore_index
        if not bool(keep.all()):
            rows, labels = rows[keep], labels[keep]
        if len(labels) == 0:
            raise InputError(f"no label is left: all equal ignore_index ({ignore_index})")
    return rows, labels


def count_classes(*labels: Tensor, num_classes: int | None, named: int | None = None) -> int:
    """Return K: as given, or one for each class name, or as many as the largest label needs."""
    needed = 1 + max(int(part.max()) for part in labels)
    wanted = num_classes or named or needed
    for part in labels:
        check_labels(part, wanted, None)
    if wanted < 2:
        raise InputError(
            "all labels are 0, but at least 2 classes are needed: give num_classes= if others "
            "have no rows"
        )
    return wanted


def _open(file: Path, *, only_names: bool = False) -> dict[str, Any]:
    if file.suffix.lower() == ".npz":
        with load_npy(file) as archive:
            return {key: None if only_names else archive[key] for key in archive.files}
    from safetensors import safe_open

    with safe_open(file, framework="pt") as opened:
        names = list(opened.keys())
        notes = {} if only_names else parse_notes((opened.metadata() or {}).get("calibrant"))
        tensors = {key: None if only_names else opened.get_tensor(key) for key in names}
    return {**notes, **tensors}
