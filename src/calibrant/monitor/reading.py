"""Read a batch whose labels are there, come from a file of their own, or are partly missing."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from calibrant.core.errors import InputError, first
from calibrant.predictions import Predictions
from calibrant.predictions.columns import (
    ColumnNames,
    blank_missing,
    find_missing,
    settle_labels,
)
from calibrant.predictions.files import OUTCOMES, Contents, agree_kind, explain_read_errors
from calibrant.predictions.read import read_labels
from calibrant.predictions.tables import TABLE_ENDINGS, find_ending, open_table, read_table

_LABEL_NAMES = ("label", "labels", *OUTCOMES)
_IDS = ("id", "ids")


def read_unlabelled(
    file: Path, options: ColumnNames, kind: str | None
) -> tuple[Predictions, NDArray[Any], dict[str, NDArray[Any]]] | None:
    """Read a table whose labels are partly missing; None if that is not what the file is.

    Args:
        file: The file.
        options: The columns that the caller names.
        kind: ``logits`` or ``probs``, or None for what the names say.

    Returns:
        The rows without labels, the labels with None where they are missing, and the columns of
        ``options.extra``.
    """
    if not file.is_file() or find_ending(file) not in TABLE_ENDINGS:
        return None
    with explain_read_errors(file):
        table = open_table(file)
        named = options.label if isinstance(options.label, str) else None
        column = named or next((name for name in _LABEL_NAMES if name in table.names), None)
        if column is None or column not in table.names:
            return None
        _, read = table.read([column])
        labels = blank_missing(read[column])
        if not find_missing(labels).any():
            return None
        table = open_table(file)
        table.names = [name for name in table.names if name != column]
        event = column if column == "correct" else "event"
        if options.event is None and column in OUTCOMES:
            options = replace(options, event=event)
        options = replace(options, label=None, drop_unlabelled=False)
        contents = read_table(table, options, largest=sys.maxsize)
        contents.kind = agree_kind(contents.kind, kind)
        return _make_predictions(contents, file), labels, contents.extra


def _make_predictions(contents: Contents, file: Path) -> Predictions:
    shared: dict[str, Any] = {
        "ids": contents.ids,
        "weights": contents.weights,
        "clusters": contents.clusters,
        "name": file.name.removesuffix(".gz").rpartition(".")[0] or file.name,
    }
    is_logits = contents.kind == "logits"
    if contents.task == "events":
        event = contents.event or "event"
        return Predictions.from_events(
            contents.scores, None, event=event, is_logits=is_logits, **shared
        )
    make = Predictions.from_logits if is_logits else Predictions.from_probs
    return make(contents.scores, None, class_names=contents.class_names, **shared)


def match_labels(
    file: Path,
    predictions: Predictions,
    *,
    label_column: str | None = None,
    id_column: str | None = None,
) -> NDArray[Any]:
    """Return a label for each row, None where the file has none: by ids, or else by order.

    Args:
        file: The file of labels. A table may have labels of some rows only, if both it and the
            predictions have ids; ids that the predictions do not have are left out.
        predictions: The rows.
        label_column: The column of labels. Default: None (``label``, ``happened``, ``correct``, or
            the only one).
        id_column: The column of ids. Default: None (``id``, if it is there).
    """
    with explain_read_errors(file):
        values, ids = _read_label_table(file, label_column, id_column)
        if ids is None or predictions.ids is None:
            if values.shape != (predictions.num_rows,):
                missing = "the labels" if ids is None else "the batch"
                raise InputError(
                    f"found {len(values):,} labels for {predictions.num_rows:,} rows, and "
                    f"{missing} have no ids to match them by: give a column id in both files, or a "
                    "label for each row"
                )
            return values
        wanted = np.array(list(map(str, predictions.ids.tolist())))
        label_ids = np.array(list(map(str, ids.tolist())))
        for name, texts in (("the batch", wanted), ("the labels", label_ids)):
            kinds, counts = np.unique(texts, return_counts=True)
            if len(kinds) < len(texts):
                twice = first(kinds[counts > 1].tolist(), 3)
                raise InputError(f"ids of {name} occur more than once ({twice}): make them unique")
        order = np.argsort(label_ids)
        places = np.searchsorted(label_ids[order], wanted)
        places = order[np.minimum(places, len(label_ids) - 1)]
        matches = label_ids[places] == wanted
        if not matches.any():
            some = first(map(repr, label_ids.tolist()), 2)
            raise InputError(
                f"none of the ids of the labels ({some}) is an id of the batch "
                f"({first(map(repr, wanted.tolist()), 2)}): name another column with id_column="
            )
        labels = np.full(predictions.num_rows, None, dtype=object)
        labels[matches] = values[places[matches]]
        return labels


def _read_label_table(
    file: Path, label_column: str | None, id_column: str | None
) -> tuple[NDArray[Any], NDArray[Any] | None]:
    if not file.is_file() or find_ending(file) not in TABLE_ENDINGS:
        return np.asarray(read_labels(file)), None
    table = open_table(file)
    ids = id_column or next((name for name in _IDS if name in table.names), None)
    rest = [name for name in table.names if name != ids]
    usual = next((name for name in _LABEL_NAMES if name in rest), None)
    column = label_column or usual or (rest[0] if len(rest) == 1 else None)
    for name in (column, ids):
        if name is not None and name not in table.names:
            raise InputError(
                f"no column is called {name!r}; found {first(map(repr, table.names), 12)}"
            )
    if column is None:
        raise InputError(
            f"which column holds the labels? Name it with label_column=; found "
            f"{first(map(repr, table.names), 12)}"
        )
    if ids is not None:
        table.kinds.update({ids: "text"})
    _, read = table.read([column] if ids is None else [column, ids])
    if column not in read:
        raise InputError("the table is empty: no labels")
    return blank_missing(read[column]), None if ids is None else read[ids].values


def settle(
    labels: NDArray[Any], predictions: Predictions, pos_label: str | None
) -> NDArray[np.int64]:
    """Return labels as class numbers or outcomes, −1 where they are missing.

    Args:
        labels: Labels as a file has them.
        predictions: The rows that they belong to.
        pos_label: The label that means that the event happened.
    """
    known = ~find_missing(labels)
    if predictions.task == "events":
        known &= np.array([str(label).strip() not in ("-1", "-1.0") for label in labels.tolist()])
    settled = np.full(len(labels), -1, dtype=np.int64)
    if known.any():
        contents = Contents(
            np.zeros(int(known.sum())),
            "probs",
            labels[known],
            class_names=predictions.class_names,
            task=predictions.task,
            event=predictions.event,
        )
        options = ColumnNames(pos_label=pos_label if predictions.task == "events" else None)
        settled[known] = np.asarray(settle_labels(contents, options).labels)
    return settled
