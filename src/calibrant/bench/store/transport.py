"""Pack the results of a folder of runs into an archive, and merge results of others."""

from __future__ import annotations

import io
import os
import re
import shutil
import tarfile
import warnings
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from calibrant.bench.run import folder as run_folder
from calibrant.bench.run.locks import hold_lock
from calibrant.bench.run.worker import Bench
from calibrant.core.errors import InputError
from calibrant.core.files import write_file

ENDINGS = {".tar": "w", ".tar.gz": "w:gz", ".tgz": "w:gz"}
_KEY = r"[0-9a-f]{16}"
# Files that are taken from an archive; all others are ignored.
_STORE = re.compile(r"store/([\w-]+\.parquet)")
_FAILED = re.compile(rf"failed/({_KEY})\.json")
_RUN = re.compile(rf"runs/({_KEY})/((?:predictions/)?[\w-]+\.\w+)")
_CHOICE = re.compile(r"choices/(\w[\w.-]*\.json)")
_SUITE = "suite.yaml"
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
    if not target.absolute().parent.is_dir():
        raise InputError(f"{target}: the folder {target.parent} does not exist")
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

    Existing results stay; unfinished runs are replaced by finished ones. Returns counts of what
    was new.
    """
    bench = Bench(Path(into).absolute())
    counts = {"results": 0, "runs": 0, "failed": 0, "choices": 0}
    for source in sources:
        files = dict(_read(Path(source)))
        if not files:
            raise InputError(f"{source}: holds no results")
        _take_files(files, bench, counts)
    return counts


def _read(source: Path) -> Iterator[tuple[str, bytes]]:
    if source.is_dir():
        inside = (source / "store").is_dir() or (source / "runs").is_dir()
        if inside:
            yield from _list_contents(source, predictions=True)
        for path in [] if inside else sorted(source.glob("*.parquet")):
            yield f"store/{path.name}", path.read_bytes()
        return
    try:
        with tarfile.open(source) as tar:
            for info in tar:
                file = tar.extractfile(info) if info.isfile() else None
                if file is not None:
                    yield info.name, file.read()
    except FileNotFoundError:
        raise InputError(f"{source}: there is no such file or folder") from None
    except (tarfile.TarError, EOFError, OSError) as error:
        raise InputError(f"{source}: not an archive of results, or damaged: {error}") from None


def _take_files(contents: dict[str, bytes], bench: Bench, counts: dict[str, int]) -> None:
    store = bench.store
    runs: dict[str, dict[str, bytes]] = {}
    failed: dict[str, bytes] = {}
    for name, content in contents.items():
        if fits := _STORE.fullmatch(name):
            counts["results"] += store.take_file(fits[1], content)
        elif fits := _RUN.fullmatch(name):
            runs.setdefault(fits[1], {})[fits[2]] = content
        elif fits := _FAILED.fullmatch(name):
            failed[fits[1]] = content
        elif fits := _CHOICE.fullmatch(name):
            counts["choices"] += _take_choice(bench.out / "choices" / fits[1], content)
        elif name == _SUITE and not (bench.out / _SUITE).exists() and _is_safe(content):
            bench.out.mkdir(parents=True, exist_ok=True)
            write_file(bench.out / _SUITE, content)
    for key, files in runs.items():
        counts["runs"] += _take_run(bench, key, files)
    for key, content in failed.items():
        path = bench.failure_path(key)
        if not path.exists() and not store.done(key):
            path.parent.mkdir(parents=True, exist_ok=True)
            write_file(path, content)
            counts["failed"] += 1


def _is_safe(suite: bytes) -> bool:
    """Return whether a suite has no plugins: looking at others' results must run no code."""
    from calibrant.bench.suite.schema import read_yaml

    try:
        named = read_yaml(suite.decode(), _SUITE).get("plugins")
    except (InputError, UnicodeDecodeError):
        return True  # unreadable
    if named:
        warnings.warn(
            f"the merged suite has plugins ({named}), which are code, and is not copied. Name your "
            "own suite with --suite to see its results",
            stacklevel=4,
        )
    return not named


def _take_choice(path: Path, content: bytes) -> bool:
    """Copy a choice unless there is one; return whether it was new."""
    if path.exists():
        return False
    path.parent.mkdir(parents=True, exist_ok=True)
    write_file(path, content)
    return True


def _take_run(bench: Bench, key: str, files: dict[str, bytes]) -> bool:
    """Copy a finished run's files unless there is one; return whether it was new."""
    folder = bench.folder(key)
    with hold_lock(bench.lock_path(key)) as ours:
        if not ours or (folder / "run.json").is_file():
            return False
        made = folder.with_name(f".{key}.tmp")
        shutil.rmtree(made, ignore_errors=True)
        for name, content in files.items():
            (made / name).parent.mkdir(parents=True, exist_ok=True)
            write_file(made / name, content)
        if folder.exists():
            shutil.rmtree(folder)
        os.replace(made, folder)
        return True
