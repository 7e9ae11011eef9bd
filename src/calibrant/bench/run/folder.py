"""The folder of a run in a bench: whether it is whole, taking it up, and what of it is kept."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import warnings
from contextlib import suppress
from pathlib import Path

from calibrant.bench.store.half_precision import halve_files, largest_path
from calibrant.bench.suite.former import train_settings
from calibrant.bench.suite.key import OF_THE_MACHINE, key_of
from calibrant.bench.suite.spec import Spec
from calibrant.core.errors import InputError
from calibrant.core.files import write_file
from calibrant.training.config import Config
from calibrant.training.run import Run

MANIFEST = "files.json"  # written when training has ended: every file that stays, and its digest
LARGE = 1 << 20  # bytes
SMALL = ("config.yaml", "environment.json", "metrics.jsonl", "chosen.json", "run.json")
PREDICTIONS, WEIGHTS = "predictions", "weights.safetensors"


def take_up(folder: Path, spec: Spec) -> str | None:
    """Make the folder fit to be trained in, or gone on with; what was wrong with it, if aught.

    A damaged one is set aside. One of another machine's settings, such as where the data are,
    gets this machine's.
    """
    wrong = what_is_wrong(folder, spec)
    if wrong is not None:
        aside = set_aside(folder)
        warnings.warn(
            f"run {spec.key} is damaged ({wrong}) and set aside as {aside.name}", stacklevel=2
        )
        return wrong
    for path in (folder / "config.yaml", *sorted(folder.glob("members/*/config.yaml"))):
        if not path.is_file():
            continue
        before = Config.read(path)
        machine = {name: getattr(spec.config, name) for name in OF_THE_MACHINE}
        # Begun before an option had another usual value, it goes on with the one it had.
        now = train_settings(before.changed(**machine))
        if now != before:
            write_file(path, now.to_yaml().encode())
    return None


def what_is_wrong(folder: Path, spec: Spec, *, large: bool = True) -> str | None:
    """Why a folder cannot be gone on with; None of one that is whole, or not there.

    Without ``large``, of files above a megabyte only their size is looked at. Checkpoints are
    not: the engine knows damaged ones, and uses those before them.
    """
    if not folder.exists():
        return None
    try:
        inside = [path for path in folder.iterdir() if not path.name.startswith(".")]
        if not inside:
            return None
        if key_of(Config.read(folder / "config.yaml"), logits=spec.logits) != spec.key:
            return "its settings are another run's"
        for path in sorted(folder.glob("members/*/config.yaml")):
            Config.read(path)
        for path in [*folder.glob("run.json"), *folder.glob("members/*/run.json")]:
            if not isinstance(json.loads(path.read_bytes()), dict):
                return f"{path.name} holds no outcome"
        if (folder / "run.json").is_file() and (folder / MANIFEST).is_file():
            return _against_manifest(folder, large=large)
        for path in sorted(folder.glob("**/predictions/*.safetensors")):
            Run(path.parent.parent).predictions(path.stem)
    except (InputError, OSError, ValueError, KeyError, TypeError) as error:
        return " ".join(str(error).split())
    return None


def _against_manifest(folder: Path, *, large: bool) -> str | None:
    for name, told in json.loads((folder / MANIFEST).read_bytes()).items():
        path = folder / name
        if not path.is_file():
            return f"{name} is missing"
        same = path.stat().st_size == told["bytes"]
        if same and (large or told["bytes"] < LARGE):
            same = _digest(path) == told["sha256"]
        if not same:
            return f"{name} is not what it was"
    return None


def set_aside(folder: Path) -> Path:
    """Rename a folder to one nothing reads."""
    number = 1
    while (aside := folder.with_name(f"{folder.name}.damaged-{number}")).exists():
        number += 1
    os.replace(folder, aside)
    return aside


def seal(folder: Path) -> None:
    """Write down every file of an ended run, and drop the checkpoints it no longer needs."""
    for path in (folder / "checkpoint", *folder.glob("members/*/checkpoint")):
        shutil.rmtree(path, ignore_errors=True)
    _write_manifest(folder)


def prune(folder: Path, keep: str) -> None:
    """Drop what is not kept once the run is measured; a kill amid it leaves a whole run.

    The manifest is written first without what goes or is rewritten, in half precision, so that
    nothing it names is ever missing or another's.
    """
    if keep == "weights" or not folder.is_dir():  # a file of logits is a run without a folder
        return
    goes = [*folder.glob(f"**/{WEIGHTS}")]
    members = "" if keep == "rows" else "members/*/"  # what they say together is enough
    goes += [*folder.glob(f"{members}**/{PREDICTIONS}/*")]
    stays = [] if keep == "rows" else [*folder.glob(f"{PREDICTIONS}/*")]
    _write_manifest(folder, without={*goes, *stays})
    for path in goes:
        path.unlink(missing_ok=True)
    if stays:
        halve_files(folder)
        _write_manifest(folder)
    for path in folder.glob(f"**/{PREDICTIONS}"):
        if not any(path.iterdir()):
            path.rmdir()


def _write_manifest(folder: Path, without: set[Path] | None = None) -> None:
    found = {
        path.relative_to(folder).as_posix(): {
            "bytes": path.stat().st_size,
            "sha256": _digest(path),
        }
        for path in sorted(folder.rglob("*"))
        if path.is_file()
        and path.name not in (MANIFEST, "config.yaml")  # settings are checked by their key
        and not path.name.startswith(".")
        and path not in (without or ())
    }
    write_file(folder / MANIFEST, json.dumps(found, indent=1).encode())


def begin_again(folder: Path) -> None:
    """Take back the end of a run, so that training makes again what was dropped."""
    for path in (folder, *folder.glob("members/*")):
        (path / "run.json").unlink(missing_ok=True)
        (path / MANIFEST).unlink(missing_ok=True)


def portable(folder: Path, *, predictions: bool = False) -> dict[str, bytes]:
    """Files of an ended run that travel, by name, with a manifest of just these."""
    paths = [folder / name for name in SMALL]
    if predictions:
        kept = [folder / PREDICTIONS / f"{part}.safetensors" for part in ("validation", "test")]
        paths += [*kept, *map(largest_path, kept)]
    found: dict[str, bytes] = {}
    for path in paths:
        with suppress(FileNotFoundError):
            found[path.relative_to(folder).as_posix()] = path.read_bytes()
    if "run.json" not in found:
        return {}
    manifest = {
        name: {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
        for name, content in found.items()
        if name != "config.yaml"
    }
    return {**found, MANIFEST: json.dumps(manifest, indent=1).encode()}


def _digest(path: Path) -> str:
    found = hashlib.sha256()
    with open(path, "rb") as file:
        while chunk := file.read(1 << 20):
            found.update(chunk)
    return found.hexdigest()
