"""The suites that were run in a folder: each is kept there, and found by its name."""

from __future__ import annotations

import re
from pathlib import Path

from calibrant.bench import plugins
from calibrant.bench.suite import SHIPPED, Suite, available
from calibrant.functional.errors import no_such
from calibrant.training.checkpoint import write_whole

MARK = ".kept"  # in a folder of suites that is ours


def keep(suite: Suite, out: Path) -> None:
    """Leave a copy as ``suites/NAME.yaml``, but of a shipped one, which is found without.

    A folder of that name that somebody else made is left as it is, and so is a suite that is
    read from ours: its plugins may lie beside it.
    """
    path, content = _path(out, suite.name), suite.text.encode()
    folder, shipped = path.parent, SHIPPED / path.name
    if folder.is_dir() and not (folder / MARK).is_file():
        return
    if suite.folder.resolve() == folder.resolve():
        return
    if shipped.is_file() and shipped.read_text(encoding="utf-8") == suite.text:
        path.unlink(missing_ok=True)  # the name means the shipped one again
        return
    plugins.put_down(suite.plugins, suite.folder, out, plugins.index_of(path))
    if not path.is_file() or path.read_bytes() != content:
        folder.mkdir(exist_ok=True)
        (folder / MARK).touch()
        write_whole(path, content)


def find(out: Path, named: str) -> Suite:
    """A suite by its file, else by its name: one that was run in the folder, or a shipped one."""
    given, own = Path(named), _path(out, named)
    if given.is_file() or given.suffix in (".yaml", ".yml") or len(given.parts) > 1:
        return Suite.read(given)
    if own.is_file():
        return Suite.read(own)
    shipped = available()
    if named not in shipped:
        run_here = sorted(path.stem for path in own.parent.glob("*.yaml"))
        raise no_such("suite", named, dict.fromkeys([*run_here, *shipped]))
    return Suite.read(named)


def _path(out: Path, name: str) -> Path:
    stem = re.sub(r"[^\w-]", "_", name)
    return out / plugins.SUITES / f"{stem}.yaml"
