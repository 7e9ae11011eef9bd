"""Find suites by name: in a folder of runs, in CALIBRANT_SUITES, and in the package."""

from __future__ import annotations

import os
import re
from pathlib import Path

from calibrant.bench.suite.schema import read_yaml
from calibrant.core.errors import InputError, no_such
from calibrant.core.yaml_text import decode_text

VARIABLE = "CALIBRANT_SUITES"  # folders of suites, separated as in PATH
SHIPPED = Path(__file__).parent / "shipped"
COPIES = "suites"  # below a folder of runs: copies of the suites that were run there
MARK = ".kept"  # a file in folders of copies; a folder without it is left alone


def available(folder: str | os.PathLike[str] | None = None) -> dict[str, str]:
    """List suites by name, with the description in each file.

    Args:
        folder: list the suites of this folder. Default: None, those of the folders in the
            environment variable CALIBRANT_SUITES and of the package.
    """
    if folder is not None and not Path(folder).is_dir():
        raise InputError(f"{folder}: there is no such folder")
    suites: dict[str, str] = {}
    for place in search_path() if folder is None else [Path(folder)]:
        for path in sorted(place.glob("*.yaml")):
            about = read_yaml(decode_text(path.read_bytes(), path.name), path.name).get("about", "")
            suites.setdefault(path.stem, str(about))
    return suites


def search_path() -> list[Path]:
    """Return the folders that suite names are looked up in, in order."""
    named = os.environ.get(VARIABLE, "").split(os.pathsep)
    return [*(Path(folder).expanduser() for folder in named if folder), SHIPPED]


def find_path(suite: str | os.PathLike[str], out: Path | None = None) -> Path:
    """Find the file of a suite: a path, or a name.

    A name is looked up among the suites that were run in the folder ``out``, then in the folders
    of CALIBRANT_SUITES, then among those of the package.
    """
    path = Path(suite)
    if path.is_file():
        return path
    if path.suffix in (".yaml", ".yml") or len(path.parts) > 1:
        raise InputError(f"{path}: there is no such file")
    name, copy = str(suite), None if out is None else copy_path(out, str(suite))
    places = [place_folder / f"{path.name}.yaml" for place_folder in search_path()]
    for place in [*([copy] if copy is not None else []), *places]:
        if place.is_file():
            return place
    run_here = [] if copy is None else sorted(file.stem for file in copy.parent.glob("*.yaml"))
    raise no_such("suite", name, dict.fromkeys([*run_here, *available()]))


def copy_path(out: Path, name: str) -> Path:
    """Return where the folder of runs keeps a copy of the suite of that name."""
    stem = re.sub(r"[^\w-]", "_", name)
    return out / COPIES / f"{stem}.yaml"


def is_copy(path: Path) -> bool:
    """Return whether a suite file is a copy in a folder of runs."""
    return path.name == "suite.yaml" or (path.parent / MARK).is_file()
