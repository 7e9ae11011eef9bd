"""Writers of tables, one batch of rows at a time: parquet, arrow and csv."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from calibrant.functional.rows import as_numpy, rows_per_block
from calibrant.predictions.contents import notes_to_text

if TYPE_CHECKING:
    from calibrant.predictions.value import Predictions

# A batch becomes a row group, and each column of each group costs a hundred bytes of footer.
_BATCH_VALUES = 1 << 22
_LEAST_ROWS = 10_000


def write_table(predictions: Predictions, path: Path, ending: str, *, labels: bool = True) -> None:
    """Columns logit_k or prob_k (or logit, prob), label, and id where there are ids."""
    import pyarrow

    stem = "logit" if predictions.is_logits else "prob"
    names = [f"{stem}_{k}" for k in range(predictions.num_classes)]
    if predictions.is_binary:
        names = [stem]
    if labels:
        names.append("label")
    if predictions.ids is not None:
        names.append("id")
    notes = {"class_names": predictions.class_names, "ignore_index": predictions.ignore_index}
    metadata = {b"calibrant": notes_to_text(notes).encode()}
    writer, schema = None, None
    with ExitStack() as stack:
        for columns in _column_batches(predictions, widen=ending == ".csv", labelled=labels):
            arrays = [pyarrow.array(column) for column in columns]
            if writer is None:
                fields = [(name, array.type) for name, array in zip(names, arrays, strict=True)]
                schema = pyarrow.schema(fields, metadata=metadata)
                writer = stack.enter_context(_open_writer(path, schema, ending))
            writer.write_batch(pyarrow.record_batch(arrays, schema=schema))


def _column_batches(
    predictions: Predictions, *, widen: bool, labelled: bool
) -> Iterator[list[npt.NDArray[Any]]]:
    start = 0
    labels = as_numpy(predictions.labels)
    rows = max(_LEAST_ROWS, rows_per_block(predictions.scores.shape, _BATCH_VALUES))
    for scores, _ in predictions.batches(rows):
        chunk = as_numpy(scores)
        if widen:
            # As float64 text gives back the very number; the shortest float32 text would not.
            chunk = chunk.astype(np.float64)
        stop = start + len(chunk)
        columns = [chunk] if chunk.ndim == 1 else list(np.ascontiguousarray(chunk.T))
        if labelled:
            columns.append(labels[start:stop])
        if predictions.ids is not None:
            columns.append(predictions.ids[start:stop])
        start = stop
        yield columns


def _open_writer(path: Path, schema: Any, ending: str) -> Any:
    if ending == ".parquet":
        from pyarrow import parquet

        # Scores hardly ever repeat: a dictionary costs time and gives nothing.
        return parquet.ParquetWriter(path, schema, use_dictionary=["label"])
    if ending == ".csv":
        from pyarrow import csv

        return csv.CSVWriter(path, schema)
    from pyarrow import ipc

    return ipc.new_file(str(path), schema)
