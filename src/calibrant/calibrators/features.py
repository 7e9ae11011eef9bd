"""Cached features and their labels: checked, read from files, and given to a head."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from calibrant.functional.blocks import Array, to_tensor
from calibrant.functional.errors import InputError, first
from calibrant.predictions import Predictions
from calibrant.predictions.archives import load_npy
from calibrant.predictions.arrays import as_class_names, as_labels
from calibrant.predictions.checks import check_labels
from calibrant.predictions.contents import KINDS, OPTIONAL_KEYS, notes_from_text
from calibrant.predictions.reading import existing_file, read_labels
from calibrant.predictions.sources import reading

if TYPE_CHECKING:
    from calibrant.calibrators.base import Calibrator

KEY = "features"
ENDINGS = (".npz", ".safetensors")


@dataclass(frozen=True)
class Features:
    """Features of N rows, (N,D), their labels, and what else their file says."""

    array: Array
    labels: Array
    class_names: tuple[str, ...] | None = None
    ids: Any = None
    ignore_index: int | None = None
    name: str = KEY


def holds_features(path: str | os.PathLike[str]) -> bool:
    """Whether a file names features, and neither logits nor probabilities."""
    file = Path(path)
    if file.suffix.lower() not in ENDINGS or not file.is_file():
        return False
    try:
        names = set(_open(file, only_names=True))
    except Exception:  # whoever reads the file tells what is wrong with it
        return False
    return KEY in names and not names & set(KINDS)


def read_features(
    path: str | os.PathLike[str],
    *,
    labels: str | os.PathLike[str] | None = None,
    ignore_index: int | None = None,
) -> Features:
    """Read ``.npz`` or ``.safetensors`` with keys ``features`` and ``labels``.

    ``class_names``, ``ids`` and ``ignore_index`` are optional, as in files of predictions;
    ``labels`` names a file of labels where there are none inside.
    """
    file = existing_file(path, ENDINGS)
    with reading(file):
        held = _open(file)
        known = (KEY, "labels", *OPTIONAL_KEYS)
        if KEY not in held:
            found = first((repr(name) for name in sorted(held)), 12) or "nothing"
            raise InputError(
                f"no features: expected 'features', (N,D) with what the network's last layer is "
                f"given, and 'labels'; found {found}"
            )
        unknown = sorted(held.keys() - set(known))
        if unknown:
            raise InputError(f"unknown keys {first(map(repr, unknown))}: rename or drop them")
        if labels is not None and held.get("labels") is not None:
            raise InputError("the file holds labels, and labels= gives others: leave one out")
        target = held.get("labels") if labels is None else read_labels(labels)
        if target is None:
            raise InputError("no labels found: put them in the file under 'labels'")
        names, marked = held.get("class_names"), held.get("ignore_index")
        if ignore_index is None and marked is not None:
            ignore_index = int(marked)
        return Features(
            held[KEY],
            target,
            None if names is None else as_class_names(list(names), len(names)),
            held.get("ids"),
            ignore_index,
            file.stem,
        )


def apply_features(calibrator: Calibrator, features: Features) -> Predictions:
    """What a fitted head says of features: predictions as logits."""
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
    """(N,D) features and (N,) labels to learn from, checked, without needless copies."""
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
            raise InputError(f"no label is left: every one equals ignore_index ({ignore_index})")
    return rows, labels


def classes_of(
    labels: Tensor, *others: Tensor, num_classes: int | None, named: int | None = None
) -> int:
    """K: as said, or one for each class name, or as many as the largest label needs."""
    seen = 1 + max(int(one.max()) for one in (labels, *others))
    wanted = num_classes or named or seen
    for one in (labels, *others):
        check_labels(one, wanted, None)
    if wanted < 2:
        raise InputError(
            "all labels are 0, and at least 2 classes are needed: give num_classes= if others "
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
        notes = {} if only_names else notes_from_text((opened.metadata() or {}).get("calibrant"))
        held = {key: None if only_names else opened.get_tensor(key) for key in names}
    return {**notes, **held}
