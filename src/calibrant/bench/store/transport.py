"""Pack the results of a folder of runs into an archive, and merge results of others."""

from __future__ import annotations

import io
import json
import os
import re
import shutil
import tarfile
import warnings
import zlib
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import BinaryIO

from calibrant.bench.run import folder as run_folder
from calibrant.bench.run.worker import Bench
from calibrant.core.errors import InputError, shorten
from calibrant.core.files import check_folder, flush_folder, hold_lock, write_file
from calibrant.core.yaml_text import decode_text
from calibrant.predictions.limits import BoundedGzip, check_growth

ENDINGS = {".tar": "w", ".tar.gz": "w:gz", ".tgz": "w:gz"}
_KEY = r"[0-9a-f]{16}"
# Files that are taken from an archive; all others are ignored.
_STORE = re.compile(r"store/([\w-]+\.parquet)")
_FAILED = re.compile(rf"failed/({_KEY})\.json")
_RUN = re.compile(rf"runs/({_KEY})/((?:predictions/)?[\w-]+\.\w+)")
_CHOICE = re.compile(r"choices/(\w[\w.-]*\.json)")
_SUITE = "suite.yaml"
_TAKEN = (_STORE, _FAILED, _RUN, _CHOICE, re.compile(re.escape(_SUITE)))
_KINDS = {"results": "store/", "failed": "failed/", "choices": "choices/"}


def pack(
    out: str | os.PathLike[str], archive: str | os.PathLike[str], *, predictions: bool = False
) -> dict[str, int]:
    """Pack the store and the small files of finished runs into a tar file, all or nothing.

    Runs may be made meanwhile: each file in the archive is whole. With ``predictions``, kept
    predictions are packed too. Returns counts of what was packed.
    """
    folder, target = Path(out), Path(archive)
    mode = next((how for end, how in ENDINGS.items() if target.name.endswith(end)), None)
    if mode is None:
        raise InputError(f"{target}: an archive ends in {', '.join(ENDINGS)}")
    if not folder.is_dir():
        raise InputError(f"{folder}: there is no such folder")
    check_folder(target)
    sink = io.BytesIO()
    counts = {"results": 0, "runs": 0, "failed": 0, "choices": 0}
    # Runs first: a run that ends meanwhile has, at worst, rows without a folder.
    with tarfile.open(fileobj=sink, mode=mode) as tar:  # type: ignore[call-overload]
        for name, content in _list_contents(folder, predictions=predictions):
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
            for kind, sign in _KINDS.items():
                counts[kind] += name.startswith(sign)
            counts["runs"] += name.endswith("/run.json")
    write_file(target, sink.getvalue())
    return {**counts, "bytes": len(sink.getvalue())}


def _list_contents(folder: Path, *, predictions: bool) -> Iterator[tuple[str, bytes]]:
    """Give the name and content of each file to pack."""
    bench = Bench(folder)
    for path in sorted((folder / "runs").glob("*/")):
        if re.fullmatch(_KEY, path.name):
            files = run_folder.read_portable(bench.folder(path.name), predictions=predictions)
            yield from ((f"runs/{path.name}/{name}", content) for name, content in files.items())
    noted = [
        path for kind in ("failed", "choices") for path in sorted((folder / kind).glob("*.json"))
    ]
    for path in [*bench.store.files(), *noted]:
        with suppress(FileNotFoundError):  # removed meanwhile
            yield f"{path.parent.name}/{path.name}", path.read_bytes()
    with suppress(FileNotFoundError):
        yield _SUITE, (folder / _SUITE).read_bytes()


def merge(
    sources: list[str | os.PathLike[str]] | list[str] | list[Path],
    into: str | os.PathLike[str],
) -> dict[str, int]:
    """Merge folders of runs, archives of `pack`, or folders of Parquet files.

    Existing results stay; unfinished runs are replaced by finished ones whose files are those of
    their manifest. Returns counts of what was new.
    """
    bench = Bench(Path(into).absolute())
    counts = {"results": 0, "runs": 0, "failed": 0, "choices": 0}
    staged = bench.out / ".merge"
    bench.out.mkdir(parents=True, exist_ok=True)
    with hold_lock(bench.out / ".merge.lock", wait=True):
        for source in sources:
            shutil.rmtree(staged, ignore_errors=True)  # of a merge that was killed
            try:
                if not _take_files(_read(Path(source)), bench, counts, staged):
                    raise InputError(f"{source}: holds no results")
                _take_runs(staged, bench, counts)
            finally:
                shutil.rmtree(staged, ignore_errors=True)
    return counts


def _read(source: Path) -> Iterator[tuple[str, bytes]]:
    """Yield the name and content of each file of a source, one at a time."""
    if source.is_dir():
        inside = (source / "store").is_dir() or (source / "runs").is_dir()
        if inside:
            yield from _list_contents(source, predictions=True)
        for path in [] if inside else sorted(source.glob("*.parquet")):
            yield f"store/{path.name}", path.read_bytes()
        return
    try:
        with _open_archive(source) as packed, tarfile.open(fileobj=packed, mode="r:") as tar:
            announced, size = 0, source.stat().st_size
            for info in tar:
                _check_member(info)
                announced += info.size
                check_growth(announced, size, "the archive")
                # Others are never read.
                if info.isfile() and any(kind.fullmatch(info.name) for kind in _TAKEN):
                    file = tar.extractfile(info)
                    yield info.name, b"" if file is None else file.read()
    except FileNotFoundError:
        raise InputError(f"{source}: there is no such file or folder") from None
    except InputError as error:
        raise InputError(f"{source}: {error}") from None
    # A damaged header of an archive raises errors of many kinds.
    except (tarfile.TarError, EOFError, OSError, ValueError, OverflowError, zlib.error) as error:
        why = shorten(" ".join(str(error).split()), 200)
        raise InputError(f"{source}: not an archive of results, or damaged: {why}") from None


def _open_archive(source: Path) -> BinaryIO:
    """Open a tar file, packed or not."""
    with source.open("rb") as file:
        is_packed = file.read(2) == b"\x1f\x8b"
    return BoundedGzip(source) if is_packed else source.open("rb")  # type: ignore[return-value]


def _check_member(info: tarfile.TarInfo) -> None:
    """Raise an error for a member that `pack` never writes and that may do harm."""
    name, path = repr(shorten(info.name, 80)), PurePosixPath(info.name)
    if path.is_absolute() or ".." in path.parts:
        raise InputError(f"member {name} lies outside of the archive: it is refused")
    if not info.isfile() and not info.isdir():
        raise InputError(f"member {name} is a link or a device: it is refused")
    if info.issparse() or info.size < 0:
        raise InputError(f"member {name} is a sparse file: it is refused")


def _take_files(
    contents: Iterable[tuple[str, bytes]], bench: Bench, counts: dict[str, int], staged: Path
) -> bool:
    """Take what a source holds; runs go to a folder of their own until they are whole.

    Returns whether there was anything.
    """
    store, failed, is_empty = bench.store, dict[str, bytes](), True
    for name, content in contents:
        is_empty = False
        if fits := _STORE.fullmatch(name):
            counts["results"] += store.take_file(fits[1], content)
        elif fits := _RUN.fullmatch(name):
            path = staged / fits[1] / fits[2]
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        elif fits := _FAILED.fullmatch(name):
            failed[fits[1]] = content
        elif fits := _CHOICE.fullmatch(name):
            counts["choices"] += _take_choice(bench.out / "choices" / fits[1], content)
        elif name == _SUITE and not (bench.out / _SUITE).exists() and _is_safe(content):
            write_file(bench.out / _SUITE, content)
    for key, content in failed.items():
        path = bench.failure_path(key)
        if not path.exists() and not store.done(key) and _is_record(f"failed/{key}.json", content):
            path.parent.mkdir(parents=True, exist_ok=True)
            write_file(path, content)
            counts["failed"] += 1
    return not is_empty


def _is_record(name: str, content: bytes) -> bool:
    """Return whether a file holds a JSON object; warn if not."""
    try:
        fits = isinstance(json.loads(content), dict)
    except (ValueError, RecursionError):
        fits = False
    if not fits:
        warnings.warn(f"{name} is damaged at its source, and was not copied", stacklevel=5)
    return fits


def _is_safe(suite: bytes) -> bool:
    """Return whether a suite has no plugins: looking at others' results must run no code."""
    from calibrant.bench.suite.schema import read_yaml

    try:
        named = read_yaml(decode_text(suite, _SUITE), _SUITE).get("plugins")
    except InputError as error:
        warnings.warn(f"the merged suite cannot be read and is not copied: {error}", stacklevel=4)
        return False
    if named:
        warnings.warn(
            f"the merged suite has plugins ({named}), which are code, and is not copied. Name your "
            "own suite with --suite to see its results",
            stacklevel=4,
        )
    return not named


def _take_choice(path: Path, content: bytes) -> bool:
    """Copy a choice unless there is one; return whether it was new."""
    if path.exists() or not _is_record(f"choices/{path.name}", content):
        return False
    path.parent.mkdir(parents=True, exist_ok=True)
    write_file(path, content)
    return True


def _take_runs(staged: Path, bench: Bench, counts: dict[str, int]) -> None:
    """Move each finished run to its place unless there is one, or its files are damaged."""
    for folder in sorted(staged.glob("*/")):
        target, key = bench.folder(folder.name), folder.name
        with hold_lock(bench.lock_path(key)) as ours:
            if not ours or (target / "run.json").is_file():
                continue
            fault = run_folder.find_fault_of_copy(folder, target)
            if fault is not None:
                warnings.warn(
                    f"run {key} is damaged at its source ({fault}), and was not copied",
                    stacklevel=3,
                )
                continue
            flush_folder(folder)
            if target.exists():
                shutil.rmtree(target)
            os.replace(folder, target)
            counts["runs"] += 1
