"""Keep copies of a suite's plugins in the folder of its runs, and load them from there."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from calibrant.core.files import write_file
from calibrant.core.plugins import Approve, Plugin, load_plugins
from calibrant.core.yaml_text import decode_text

FOLDER, INDEX = "plugins", "index.json"  # in a folder of runs: copies of plugins, and their names
NONE = ""  # in place of an index: a suite that uses its own files, not copies
SUITES = "suites"  # beside it: copies of suites, each with an index of its own
_COPY = re.compile(r"[\w-][\w.-]*\.py")


def load(
    names: Iterable[Any], folder: Path, index: str = INDEX, approve: Approve | None = None
) -> tuple[Plugin, ...]:
    """Load the plugins that a suite names.

    Args:
        names: What the suite has under ``plugins:``.
        folder: The suite's folder.
        index: The file that says which copies in the folder are the suite's.
        approve: Called with the plugins before their code runs; see `load_plugins`.
    """
    copies = {name: f"{FOLDER}/{copy}" for name, copy in _copies(folder / FOLDER / index).items()}
    return load_plugins(names, folder, copies, approve)


def load_from(out: Path, approve: Approve | None = None) -> None:
    """Load the plugins of the suites that were run in a folder; the last suite's come last.

    Args:
        out: The folder of runs.
        approve: Called with the plugins before their code runs; see `load_plugins`.
    """
    from calibrant.bench.suite.schema import read_yaml

    for path in (*sorted((out / SUITES).glob("*.yaml")), out / "suite.yaml"):
        if path.is_file():
            named = read_yaml(decode_text(path.read_bytes(), str(path)), str(path)).get("plugins")
            load(named if isinstance(named, list) else (), *find_home(path), approve)


def copy_plugins(plugins: Iterable[Plugin], folder: Path, out: Path, index: str = INDEX) -> None:
    """Copy the plugin files of a suite from another folder into the folder of its runs.

    A suite of the same folder finds its files there: a copy would hide later edits.
    """
    destination = (out / FOLDER).resolve()
    files = [plugin for plugin in plugins if plugin.source is not None]
    copies: dict[str, str] = {}
    for plugin in files:
        if Path(plugin.path).resolve().parent == destination:  # already a copy
            copies[plugin.name] = Path(plugin.path).name
        elif folder.resolve() != out.resolve():
            stem = re.sub(r"[^\w-]", "_", Path(plugin.name).stem)
            copies[plugin.name] = f"{stem}-{plugin.digest[:12]}.py"
            destination.mkdir(parents=True, exist_ok=True)
            write_file(destination / copies[plugin.name], (plugin.source or "").encode())
    if files and (copies or index != INDEX or (destination / index).is_file()):
        destination.mkdir(parents=True, exist_ok=True)
        write_file(destination / index, json.dumps(copies, indent=1).encode())


def index_name(suite: Path) -> str:
    """Return the name of the index of a suite that is kept in the folder of its runs."""
    return f"{suite.stem}.{INDEX}"


def find_home(suite: Path) -> tuple[Path, str]:
    """Return the folder that a suite file's plugins are in, and the index of its copies."""
    out, index = suite.absolute().parent.parent, index_name(suite)
    if suite.absolute().parent.name == SUITES and (out / FOLDER / index).is_file():
        return out, index
    # For any other suite in that folder, the plugin file is meant as it is.
    return suite.parent, INDEX if suite.name == "suite.yaml" else NONE


def _copies(index: Path) -> dict[str, str]:
    """Read an index: the copies in the folder of a bench, by their name in the suite."""
    try:
        entries = json.loads(index.read_bytes())
        return {str(name): copy for name, copy in entries.items() if _COPY.fullmatch(copy)}
    except (OSError, ValueError, AttributeError, TypeError):
        return {}
