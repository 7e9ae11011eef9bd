"""Read predictions: one reader for each format, chosen by the ending of the file."""

from __future__ import annotations

import glob
import math
import os
import re
import sys
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from calibrant.core.errors import InputError, first
from calibrant.core.extras import require
from calibrant.functional.arrays import as_numpy
from calibrant.predictions.columns import (
    ColumnNames,
    blank_missing,
    make_plain,
    match_class_names,
    rename_members,
    settle_labels,
)
from calibrant.predictions.examples import PREFIX, read_example
from calibrant.predictions.files import (
    EVENT_SCORES,
    KINDS,
    OPTIONAL_KEYS,
    ROW_KEYS,
    SIDECARS,
    Contents,
    NpyScores,
    Paths,
    agree_kind,
    check_file,
    explain_read_errors,
    find_keys,
    parse_notes,
)
from calibrant.predictions.harness_logs import is_harness_log, read_harness_logs
from calibrant.predictions.limits import check_growth, check_zip
from calibrant.predictions.tables import (
    TABLE_ENDINGS,
    find_ending,
    open_table,
    open_tables,
    read_table,
)

ARRAY_ENDINGS = (".npz", ".npy", ".safetensors", ".pt")
ENDINGS = (*ARRAY_ENDINGS, *TABLE_ENDINGS)
LABEL_ENDINGS = (
    *(".npy", ".npz", ".csv", ".csv.gz", ".txt", ".parquet", ".jsonl"),
    *(".arrow", ".feather", ".pt", ".safetensors"),
)
# Above this, scores stay in the file and are read in chunks.
LAZY_BYTES = 1 << 30
_SAFE_TORCH = (2, 10)  # earlier ones run code in some files despite weights_only=True
_NO_PICKLE = "the file holds pickled Python objects, which can run code and are never loaded"


def find_files(path: Paths) -> tuple[Path, list[Path]]:
    """Return what to call the files in errors, and the files of a path, glob, folder or list."""
    if isinstance(path, (str, os.PathLike)):
        return Path(path), _expand(path)
    if not isinstance(path, Sequence) or not path:
        raise InputError(f"give a file, or a list of at least one file, found {path!r:.100}")
    files = [file for entry in path for file in _expand(entry)]
    twice = sorted({str(file) for file in files if files.count(file) > 1}) if len(files) > 1 else []
    if twice:
        raise InputError(f"files are given twice: {first(twice)}")
    if len(path) == 1:
        return Path(path[0]), files
    common = Path(os.path.commonpath([file.parent for file in map(Path.absolute, files)]))
    return common, files


def _expand(path: str | os.PathLike[str]) -> list[Path]:
    """Return the files of a glob or folder, in the order of their names; or the path itself."""
    text, file = os.fspath(path), Path(path)
    if file.is_dir():
        files = [
            candidate
            for candidate in sorted(file.rglob("*"))
            if candidate.suffix.lower() == ".parquet"
            and candidate.is_file()
            # Others' tools name what is no data so, such as _metadata.
            and not any(part.startswith(("_", ".")) for part in candidate.relative_to(file).parts)
        ]
        if not files:
            raise InputError(
                f"{file}: is a directory without .parquet files; name files, or a glob"
            )
        return files
    if not text.startswith(PREFIX) and glob.has_magic(text) and not file.exists():
        matches = sorted(glob.glob(text, recursive=True))
        if not matches:
            raise InputError(f"{text}: no file matches")
        return [Path(match) for match in matches]
    return [file]


def are_harness_logs(path: Paths) -> bool:
    """Return whether these are several sample logs of lm-evaluation-harness, one for each task."""
    _, files = find_files(path)
    if len(files) < 2:
        return False
    return all(f.is_file() and find_ending(f) == ".jsonl" and is_harness_log(f) for f in files)


def read_contents(
    path: Path,
    files: Sequence[Path],
    *,
    labels: Any,
    kind: str | None,
    lazy: bool | None,
    options: ColumnNames,
    normalise: str,
) -> Contents:
    """Read one or several files, with their kind and labels.

    Args:
        path: What the caller gave, to name the predictions.
        files: The files, or one ``example:NAME``.
        labels: A file of labels, an array of labels, or None for those in the file.
        kind: ``logits``, ``probs``, or None for what the file says.
        lazy: Whether scores stay in the file; None decides by its size.
        options: The columns that the caller names.
        normalise: ``none``, ``length`` or ``bytes``: what log-likelihoods are divided by.
    """
    # Labels from elsewhere are settled once they are there.
    inside = options if labels is None else replace(options, drop_unlabelled=False)
    if str(path).startswith(PREFIX):
        contents = read_example(str(path))
    else:
        contents = _read_files(path, files, kind, lazy, inside, normalise)
        ending = find_ending(path)
        contents.name = path.name.removesuffix(ending) if ending == ".csv.gz" else path.stem
        if len(files) > 1:
            is_glob = glob.has_magic(path.name)
            contents.name = (is_glob and path.absolute().parent.name) or path.name
    contents.kind = agree_kind(contents.kind, kind)
    if labels is not None:
        # Labels that lie beside an .npy may be replaced; labels inside a file may not.
        if contents.labels is not None and path.suffix.lower() != ".npy":
            raise InputError("the file holds labels, and labels= gives others: leave one out")
        is_path = isinstance(labels, (str, os.PathLike))
        contents.labels = read_labels(labels) if is_path else labels
        contents.label_column = "labels"
        if is_path or options.drop_unlabelled or options.pos_label is not None:
            names = options.class_names or contents.class_names
            contents = settle_labels(replace(contents, class_names=names), options)
    return contents


def _read_files(
    path: Path,
    files: Sequence[Path],
    kind: str | None,
    lazy: bool | None,
    options: ColumnNames,
    normalise: str,
) -> Contents:
    checked = [check_file(file, ENDINGS) for file in files]
    endings = {find_ending(file) for file in checked}
    logs = [file for file in checked if find_ending(file) == ".jsonl" and is_harness_log(file)]
    if logs:
        if len(logs) < len(checked):
            others = [file.name for file in checked if file not in logs]
            raise InputError(
                f"some files are sample logs of lm-evaluation-harness, {first(others)} are not: "
                "read them one by one"
            )
        return read_harness_logs(logs, normalise, options.extra)
    if normalise != "none":
        raise InputError(
            "normalise= is for sample logs of lm-evaluation-harness, which these files are not"
        )
    if endings <= set(TABLE_ENDINGS):
        is_one = len(checked) == 1 and checked[0] == path
        table = open_table(checked[0]) if is_one else open_tables(path, checked)
        largest = {None: LAZY_BYTES, True: 0, False: sys.maxsize}[lazy]
        return read_table(table, options, largest=largest)
    if len(checked) == 1:
        return _read_arrays(checked[0], kind, lazy, options)
    if endings & set(TABLE_ENDINGS):
        raise InputError(f"files of arrays and tables cannot be one set, found {first(endings)}")
    parts = []
    for file in checked:
        with explain_read_errors(file):
            parts.append(_read_arrays(file, kind, False, options))
    return _join(parts, checked)


def _read_arrays(path: Path, kind: str | None, lazy: bool | None, options: ColumnNames) -> Contents:
    """Read a file of arrays."""
    ending = path.suffix.lower()
    large = path.stat().st_size > LAZY_BYTES if lazy is None else lazy
    if ending == ".npy":
        if any((options.scores, options.label, options.weight, options.cluster, options.id)):
            raise InputError("an .npy has no names: leave score_columns= and the like out")
        contents = read_npy(path, lazy=large)
    elif ending == ".npz":
        if lazy:
            raise InputError("an .npz is read whole: write .npy or .parquet to stream")
        contents = _to_contents(read_npz(path), options, kind)
    elif ending == ".safetensors":
        contents = _to_contents(read_safetensors(path), options, kind)
    else:
        loaded = load_pt(path, mapped=large)
        if isinstance(loaded, torch.Tensor):
            contents = Contents(scores=loaded, kind=None)
        elif isinstance(loaded, dict):
            members = {str(key): value for key, value in loaded.items()}
            contents = _to_contents(members, options, kind)
        else:
            raise InputError(f"expected a dict of tensors, found {type(loaded).__name__}")
    if options.extra and not contents.extra:
        raise InputError(
            f"a {ending} file of one array has no columns such as {options.extra[0]!r}: give them "
            "in a file of their own (groups=, --groups)"
        )
    if contents.task == "classes" and options.event:
        if contents.scores.ndim != 1:
            raise InputError(
                "event= says what one score a row is the probability of; found scores of shape "
                f"{tuple(contents.scores.shape)}"
            )
        contents.task = "events"
    if contents.task == "events":
        contents.event = options.event or contents.event
    names = options.class_names or contents.class_names
    if contents.labels is not None and contents.task == "classes":
        contents.labels = match_class_names(contents.labels, names)
    if contents.task == "events" or options.drop_unlabelled:
        contents = settle_labels(contents, options)
    return contents


def _join(parts: Sequence[Contents], files: Sequence[Path]) -> Contents:
    """Join the rows of several files of arrays."""
    start = parts[0]
    for part, file in zip(parts, files, strict=True):
        for name, what in (
            ("kind", "kind of scores"),
            ("task", "task"),
            ("event", "event"),
            ("class_names", "class names"),
            ("ignore_index", "ignore_index"),
        ):
            if getattr(part, name) != getattr(start, name):
                raise InputError(
                    f"{file.name} has another {what} than {files[0].name}: "
                    f"{str(getattr(part, name))[:60]!r}, {str(getattr(start, name))[:60]!r}"
                )
        if tuple(part.scores.shape[1:]) != tuple(start.scores.shape[1:]):
            raise InputError(
                f"{file.name} has scores of shape {tuple(part.scores.shape)}, {files[0].name} of "
                f"{tuple(start.scores.shape)}: one set needs the same classes"
            )
    extra = {name: [part.extra[name] for part in parts] for name in start.extra}
    joined: dict[str, Any] = {
        "extra": {name: np.concatenate(values) for name, values in extra.items()}
    }
    for name in ("scores", "labels", "ids", "weights", "clusters", "num_options"):
        values = [getattr(part, name) for part in parts]
        lacks = [file.name for file, value in zip(files, values, strict=True) if value is None]
        if lacks and len(lacks) < len(parts):
            raise InputError(f"some files have {name}, {first(lacks)} do not")
        if lacks:
            continue
        if all(isinstance(value, torch.Tensor) for value in values):
            joined[name] = torch.cat(values)
        else:
            joined[name] = np.concatenate([np.asarray(value) for value in values])
    return replace(start, **joined)


def count_rows(path: str | os.PathLike[str]) -> int:
    """Return the number of rows of a file, of which no more is read than that takes."""
    file = check_file(path, (*ENDINGS, ".txt"))
    with explain_read_errors(file):
        ending = find_ending(file)
        if ending == ".parquet":
            parquet = require("pyarrow.parquet", extra="tables", purpose="reading Parquet")
            return int(parquet.read_metadata(file).num_rows)
        if ending == ".txt":
            return len(_read_lines(file))
        if ending == ".jsonl":
            with file.open(encoding="utf-8-sig") as lines:
                return sum(1 for line in lines if line.strip())
        if ending in TABLE_ENDINGS:
            table = open_table(file)
            return table.read(table.names[:1])[0]
        if ending == ".npy":
            return len(load_npy(file, mapped=True))
        if ending == ".npz":
            return _longest(read_npz(file))
        if ending == ".safetensors":
            return _longest(read_safetensors(file))
        loaded = load_pt(file, mapped=True)
        return _longest(loaded) if isinstance(loaded, dict) else len(loaded)


def list_names(path: Paths) -> list[str] | None:
    """Return the names of the columns or arrays of a file, or of the first of several.

    None if the file has no names, or none that can be listed without reading it.
    """
    if str(path).startswith(PREFIX):
        return None
    file = check_file(find_files(path)[1][0], (*ENDINGS, *LABEL_ENDINGS))
    with explain_read_errors(file):
        ending = find_ending(file)
        if ending == ".jsonl" and is_harness_log(file):
            return None
        if ending in TABLE_ENDINGS:
            return list(open_table(file).names)
        if ending == ".npz":
            with load_npy(file) as archive:
                return list(archive.files)
        if ending == ".safetensors":
            return list(read_safetensors(file))
    return None


def _longest(members: Mapping[str, Any]) -> int:
    """Return the number of rows of the scores, or of the longest array of a file without."""
    shapes = {
        key: tuple(member.shape) for key, member in members.items() if hasattr(member, "shape")
    }
    named = [shapes[key] for key in (*KINDS, *EVENT_SCORES) if shapes.get(key)]
    return max((shape[0] for shape in named or shapes.values() if shape), default=0)


def read_labels(path: str | os.PathLike[str]) -> Any:
    """Read labels from a file of their own."""
    file = check_file(path, LABEL_ENDINGS)
    with explain_read_errors(file):
        ending = find_ending(file)
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
    _, columns = table.read(names)
    if not columns:
        raise InputError("the table is empty: no labels")
    return blank_missing(columns[names[0]])


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
        if start.startswith(b"\x93NUMPY"):
            file.seek(0)
            _check_header(file, path.stat().st_size)
        else:
            _check_archive(path)
    try:
        return np.load(path, mmap_mode="r" if mapped else None, allow_pickle=False)
    except ValueError as error:
        raise _explain_pickle(error) from error


def _check_archive(path: Path) -> None:
    """Raise if an archive, or the header of an array in it, announces more than it holds."""
    check_zip(path)
    with zipfile.ZipFile(path) as packed:
        for entry in packed.infolist():
            # Deflate packs at most 1,032 bytes into one.
            if entry.file_size > 1100 * entry.compress_size + 1024:
                raise InputError(
                    f"member {entry.filename[:60]!r} announces {entry.file_size:,} bytes in "
                    f"{entry.compress_size:,}: damaged"
                )
            if entry.filename.endswith(".npy"):
                with packed.open(entry) as member:
                    _check_header(member, entry.file_size)


def _check_header(file: Any, size: int) -> None:
    """Raise if the header of an array announces more than its file, of this size, holds."""
    version = np.lib.format.read_magic(file)
    read = np.lib.format.read_array_header_1_0
    if version != (1, 0):
        read = np.lib.format.read_array_header_2_0
    try:
        shape, _, dtype = read(file)
    except ValueError as error:
        raise InputError(f"the header is damaged: {str(error)[:200]}") from error
    if dtype.hasobject:
        raise InputError(f"{_NO_PICKLE}: save plain numeric and text arrays")
    if dtype.itemsize == 0 and math.prod(int(length) for length in shape) > 0:
        raise InputError(f"the header announces values of no size ({dtype}): damaged")
    # Plain integers, since NumPy's overflow.
    needed = math.prod(int(length) for length in shape) * dtype.itemsize
    bytes_left = size - file.tell()
    if any(length < 0 for length in shape) or needed > bytes_left:
        raise InputError(
            f"the header announces shape {str(shape)[:80]} of {dtype}, {needed:,} bytes, but the "
            f"file holds {bytes_left:,}: damaged or cut short"
        )


def _explain_pickle(error: ValueError) -> ValueError:
    """Return the error to raise: about pickles if NumPy found one, else the same."""
    if "pickle" in str(error).lower():
        return InputError(f"{_NO_PICKLE}: save plain numeric and text arrays")
    return error


def _to_contents(members: Mapping[str, Any], options: ColumnNames, kind: str | None) -> Contents:
    """Make `Contents` of the members of a file, by their names."""
    missing = [name for name in options.extra if name not in members]
    if missing:
        raise InputError(
            f"no array is called {missing[0]!r}; found {first(map(repr, sorted(members)), 12)}"
        )
    extra = {name: as_numpy(members[name]) for name in options.extra}
    members = rename_members(
        {key: member for key, member in members.items() if key not in extra}, options, kind
    )
    scores, labels, task = find_keys(members)

    def plain(key: str) -> Any:
        value = members.get(key)
        return value.item() if isinstance(value, np.ndarray | torch.Tensor) else value

    event = plain("event")
    if task == "events" and event is None:
        event = "correct" if labels == "correct" else "event"
    contents = Contents(
        scores=members[scores],
        kind=scores if scores in ("logits", "probs") else "probs",
        labels=None if labels is None else members[labels],
        class_names=_as_list(members.get("class_names")),
        ids=members.get("ids"),
        ignore_index=plain("ignore_index"),
        task=plain("task") or task,
        event=event,
        extra=extra,
        label_column=labels or "labels",
    )
    for key, name in ROW_KEYS.items():
        if members.get(key) is not None:
            if getattr(contents, name) is not None:
                raise InputError(f"the file holds {key!r} twice, as {name!r} too: keep one")
            setattr(contents, name, members[key])
    contents.clusters = make_plain(contents.clusters)
    return contents


def _as_list(names: Any) -> Any:
    return names.tolist() if isinstance(names, np.ndarray) else names


def read_npz(path: Path) -> dict[str, Any]:
    """Read the members of an archive."""
    if path.stat().st_size and not zipfile.is_zipfile(path):
        load_npy(path)  # raises its own error for a pickle
        raise InputError("damaged or cut short: not a zip archive, which an .npz is")
    with load_npy(path) as archive:
        try:
            return {key: archive[key] for key in archive.files}
        except ValueError as error:
            raise _explain_pickle(error) from error


def read_npy(path: Path, *, lazy: bool) -> Contents:
    """Read a bare array of scores, and what lies beside it, such as ``NAME.labels.npy``."""
    array = load_npy(path, mapped=lazy)
    if not isinstance(array, np.ndarray):
        raise InputError("the file is an archive of arrays: give it the ending .npz")
    beside = {}
    for key in SIDECARS:
        file = path.with_suffix(f".{key}.npy")
        if file.exists():
            with explain_read_errors(file):
                beside[key] = load_npy(file, mapped=lazy)
    outcomes = [key for key in ("labels", "happened", "correct", "multilabels") if key in beside]
    if len(outcomes) > 1:
        names = first(path.with_suffix(f".{key}.npy").name for key in outcomes)
        raise InputError(f"{names} lie beside the file: keep one")
    key = outcomes[0] if outcomes else "labels"
    task = {"labels": "classes", "multilabels": "multilabel"}.get(key, "events")
    return Contents(
        scores=NpyScores(path) if lazy else array,
        kind=None,
        labels=beside.get(key),
        task=task,
        event=None if task != "events" else ("correct" if key == "correct" else "event"),
        label_column=key,
        weights=beside.get("weights"),
        clusters=beside.get("clusters"),
        num_options=beside.get("num_options"),
    )


def read_safetensors(path: Path) -> dict[str, Any]:
    """Read tensors; class names and text are JSON in the metadata.

    The library maps the file to memory, whatever its size.
    """
    from safetensors import safe_open

    with safe_open(path, framework="pt") as file:
        tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
        metadata = file.metadata() or {}
    notes = parse_notes(metadata.get("calibrant"))
    known = (*OPTIONAL_KEYS, "task", "event", "clusters")
    members = {key: notes[key] for key in known if notes.get(key) is not None} | tensors
    if "class_names" not in notes:
        members.pop("class_names", None)
    return members


def load_pt(path: Path, *, mapped: bool = False) -> Any:
    """Load tensors and plain values only (``weights_only=True``)."""
    import pickle  # nosec B403

    _refuse_unsafe_torch()
    if path.stat().st_size == 0:
        raise InputError("the file is empty (0 bytes)")
    is_zip = zipfile.is_zipfile(path)
    if is_zip:
        check_zip(path)
    try:
        # Only the zip format of torch.save can be mapped.
        loaded = torch.load(path, map_location="cpu", weights_only=True, mmap=mapped and is_zip)
    except pickle.UnpicklingError as error:
        raise InputError(
            f"{_NO_PICKLE}: save a dict of tensors, such as "
            "torch.save({'logits': logits, 'labels': labels}, path)"
        ) from error
    for value in loaded.values() if isinstance(loaded, dict) else (loaded,):
        if isinstance(value, torch.Tensor):
            _check_storage(value)
    return loaded


def _refuse_unsafe_torch() -> None:
    """Raise if this PyTorch runs code from some files in spite of ``weights_only=True``."""
    version = re.match(r"(\d+)\.(\d+)", torch.__version__)
    if version is not None and (int(version[1]), int(version[2])) < _SAFE_TORCH:
        raise InputError(
            f"PyTorch {torch.__version__} can run code that a .pt file holds (CVE-2025-32434, "
            "CVE-2026-24747): install torch 2.10 or newer, or write .safetensors or .npz"
        )


def _check_storage(tensor: torch.Tensor) -> None:
    """Raise if a tensor has no values of its own, or repeats few of them beyond all measure."""
    if tensor.layout != torch.strided or tensor.is_quantized:
        return  # refused where it is used
    if tensor.device.type != "cpu":
        raise InputError(f"a tensor of the device {tensor.device.type!r} holds no values")
    check_growth(
        tensor.numel() * tensor.element_size(), tensor.untyped_storage().nbytes(), "a tensor"
    )
