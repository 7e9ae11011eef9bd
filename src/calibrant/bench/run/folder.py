"""The folder of a run: check it, prepare it for training, and remove what is not kept."""

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
from calibrant.core.errors import InputError, first, shorten
from calibrant.core.files import write_file
from calibrant.training.config import Config
from calibrant.training.run import Run

MANIFEST = "files.json"  # written when training has ended: every file with its digest
LARGE = 1 << 20  # bytes
SMALL = ("config.yaml", "environment.json", "metrics.jsonl", "chosen.json", "run.json")
PREDICTIONS, WEIGHTS = "predictions", "weights.safetensors"


def prepare_folder(folder: Path, spec: Spec) -> str | None:
    """Prepare a folder for training, or to be resumed; return its fault, if it had one.

    A damaged folder is renamed. A folder from another machine gets the settings of this machine,
    such as the data folder.
    """
    wrong = find_fault(folder, spec)
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
        # A run begun before a default changed is resumed with the former default.
        now = train_settings(before.changed(**machine))
        if now != before:
            write_file(path, now.to_yaml().encode())
    return None


def find_fault(folder: Path, spec: Spec, *, large: bool = True) -> str | None:
    """Return why a folder cannot be resumed; None if it is whole or missing.

    Without ``large``, files above a megabyte are compared by size alone. Checkpoints are not
    checked: training detects a damaged checkpoint, and resumes from the one before it.
    """
    if not folder.exists():
        return None
    try:
        inside = [path for path in folder.iterdir() if not path.name.startswith(".")]
        if not inside:
            return None
        if key_of(Config.read(folder / "config.yaml"), logits=spec.logits) != spec.key:
            return "its settings belong to another run"
        for path in sorted(folder.glob("members/*/config.yaml")):
            Config.read(path)
        for path in [*folder.glob("run.json"), *folder.glob("members/*/run.json")]:
            if not isinstance(json.loads(path.read_bytes()), dict):
                return f"{path.name} holds no outcome"
        if (folder / "run.json").is_file() and (folder / MANIFEST).is_file():
            return _compare_manifest(folder, large=large)
        for path in sorted(folder.glob("**/predictions/*.safetensors")):
            Run(path.parent.parent).predictions(path.stem)
    except (InputError, OSError, ValueError, KeyError, TypeError) as error:
        return " ".join(str(error).split())
    return None


def find_fault_of_copy(copy: Path, target: Path) -> str | None:
    """Return why a finished run from elsewhere may not stand at its target; None if it may.

    Its files must be those of its manifest, and its settings those of a run begun there.
    """
    try:
        outcome = json.loads((copy / "run.json").read_bytes())
        if not isinstance(outcome, dict) or not isinstance(outcome.get("figures"), dict):
            return "run.json holds no outcome"
        manifest = json.loads((copy / MANIFEST).read_bytes())
        wrong = _compare_manifest(copy, large=True)
        if wrong is not None:
            return wrong
        names = {p.relative_to(copy).as_posix() for p in copy.rglob("*") if p.is_file()}
        extra = names - {MANIFEST, "config.yaml", *manifest}
        if extra:
            return f"{first(sorted(extra))} is not in the manifest"
        settings = Config.read(copy / "config.yaml")
        if any(target.glob("**/checkpoint/*.json")):  # hours of work may be in there
            machine = {name: getattr(settings, name) for name in OF_THE_MACHINE}
            if Config.read(target / "config.yaml").changed(**machine) != settings:
                return "its settings are not those of the run that was begun here"
    except (InputError, OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        return shorten(" ".join(str(error).split()), 200)
    except RecursionError:
        return "a file is nested too deeply"
    return None


def _compare_manifest(folder: Path, *, large: bool) -> str | None:
    for name, facts in json.loads((folder / MANIFEST).read_bytes()).items():
        path = folder / name
        if not path.is_file():
            return f"{name} is missing"
        same = path.stat().st_size == facts["bytes"]
        if same and (large or facts["bytes"] < LARGE):
            same = _digest(path) == facts["sha256"]
        if not same:
            return f"{name} has changed"
    return None


def set_aside(folder: Path) -> Path:
    """Rename a folder, so that nothing reads it."""
    number = 1
    while (aside := folder.with_name(f"{folder.name}.damaged-{number}")).exists():
        number += 1
    os.replace(folder, aside)
    return aside


def seal(folder: Path) -> None:
    """Write the manifest of a finished run, and delete its checkpoints."""
    for path in (folder / "checkpoint", *folder.glob("members/*/checkpoint")):
        shutil.rmtree(path, ignore_errors=True)
    _write_manifest(folder)


def prune(folder: Path, keep: str) -> None:
    """Delete what is not kept of a measured run; a kill meanwhile leaves a whole run.

    The manifest is first written without the files that are deleted or rewritten in half
    precision, so that it never names a file that is missing or different.
    """
    if keep == "weights" or not folder.is_dir():  # runs of logits have no folder
        return
    goes = [*folder.glob(f"**/{WEIGHTS}")]
    members = "" if keep == "rows" else "members/*/"  # the ensemble's mean is kept
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
    files = {
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
    write_file(folder / MANIFEST, json.dumps(files, indent=1).encode())


def reopen(folder: Path) -> None:
    """Mark a run as unfinished, so that training makes deleted files again."""
    for path in (folder, *folder.glob("members/*")):
        (path / "run.json").unlink(missing_ok=True)
        (path / MANIFEST).unlink(missing_ok=True)


def read_portable(folder: Path, *, predictions: bool = False) -> dict[str, bytes]:
    """Read the files of a finished run that an archive holds, with a manifest of these files."""
    paths = [folder / name for name in SMALL]
    if predictions:
        kept = [folder / PREDICTIONS / f"{part}.safetensors" for part in ("validation", "test")]
        paths += [*kept, *map(largest_path, kept)]
    files: dict[str, bytes] = {}
    for path in paths:
        with suppress(FileNotFoundError):
            files[path.relative_to(folder).as_posix()] = path.read_bytes()
    if "run.json" not in files:
        return {}
    manifest = {
        name: {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
        for name, content in files.items()
        if name != "config.yaml"
    }
    return {**files, MANIFEST: json.dumps(manifest, indent=1).encode()}


def _digest(path: Path) -> str:
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while chunk := file.read(1 << 20):
            digest.update(chunk)
    return digest.hexdigest()
