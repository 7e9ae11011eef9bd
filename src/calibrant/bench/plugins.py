"""The ``plugins:`` of a suite: files and modules whose import registers methods of one's own.

Reading a suite that names plugins runs their code. A file is run from the bytes its digest is
of, so that what a run's key says is what was run; processes of a pool and of Ray are given those
bytes. The folder of the runs gets a copy, which is what is read when its suite is.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import json
import re
import sys
import traceback
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib.machinery import SourceFileLoader
from pathlib import Path
from typing import Any

from calibrant.bench import register
from calibrant.functional.errors import InputError
from calibrant.training.checkpoint import write_whole

FOLDER, INDEX = "plugins", "index.json"  # below the folder of a bench: copies, and whose they are
NONE = ""  # the index of a suite that goes by its own files
SUITES = "suites"  # beside it: the suites that were run there, each with an index of its own
_MODULE = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")
_COPY = re.compile(r"[\w-][\w.-]*\.py")


@dataclass(frozen=True)
class Plugin:
    """A plugin as it was read."""

    name: str  # as the suite writes it
    digest: str  # SHA-256 of its source
    path: str  # where that was
    source: str | None = None  # None of a module, which every process imports for itself

    @property
    def module(self) -> str:
        """What its module is called in this process."""
        return self.name if self.source is None else f"calibrant_plugin_{self.digest[:16]}"

    @property
    def identity(self) -> tuple[str, str]:
        """What tells it from others: a file by any name is the same."""
        return self.module, self.digest

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for other processes."""
        return {"name": self.name, "digest": self.digest, "path": self.path, "source": self.source}


# Those in force, by identity, and the names they brought.
_loaded: dict[tuple[str, str], tuple[Plugin, frozenset[register.Name]]] = {}


def load(names: Iterable[Any], folder: Path, index: str = INDEX) -> tuple[Plugin, ...]:
    """Find the plugins a suite in that folder names, and run those that have not been.

    ``index`` tells which copies in the folder are the suite's.
    """
    found = tuple(_find(name, folder, index) for name in names)
    owner: dict[register.Name, Plugin] = {}
    for one in found:
        _take(one)
        for name in _loaded[one.identity][1]:
            rivals = [owner[other] for other in register.rivals(name) if other in owner]
            owner[name] = one
            for other in rivals:
                if other.digest == one.digest:
                    continue
                raise InputError(
                    f"plugins {other.name} and {one.name} both register a {name.kind} called "
                    f"{name.name!r}: rename one"
                )
    return found


def load_of(out: Path) -> None:
    """Load those of the suites that were run in a folder, the last one's last."""
    from calibrant.bench.suite_file import parse

    for path in (*sorted((out / SUITES).glob("*.yaml")), out / "suite.yaml"):
        if path.is_file():
            named = parse(path.read_text(encoding="utf-8"), str(path)).get("plugins")
            load(named if isinstance(named, list) else (), *home(path))


def take(told: Iterable[Mapping[str, Any]]) -> None:
    """Run plugins that another process has run: what `loaded` gave there."""
    for one in told:
        plugin = Plugin(**one)
        if plugin.source is None:
            here = _module(plugin.name)
            if here.digest != plugin.digest:
                raise InputError(
                    f"plugin {plugin.name}: {here.path} is not the source the suite was read with"
                )
        _take(plugin)


def loaded() -> list[dict[str, Any]]:
    """The plugins in force in this process, for others to `take`."""
    return [one.to_dict() for one, _ in _loaded.values()]


def check_current(plugins: Iterable[Plugin]) -> None:
    """An error where another plugin, or another version of it, has come in one's place."""
    for one in plugins:
        if one.identity not in _loaded:
            raise InputError(
                f"plugin {one.name} has been replaced in this process since the suite was read, by "
                "one that registers the same names: read the suite again"
            )


def put_down(plugins: Iterable[Plugin], folder: Path, out: Path, index: str = INDEX) -> None:
    """Copy files into the folder of the runs, for the suite, of another folder, that is put there.

    Where it is the same, they are found as they are, and a copy would hide what is edited.
    """
    here, files = (out / FOLDER).resolve(), [one for one in plugins if one.source is not None]
    copies: dict[str, str] = {}
    for one in files:
        if Path(one.path).resolve().parent == here:  # it was read from a copy
            copies[one.name] = Path(one.path).name
        elif folder.resolve() != out.resolve():
            stem = re.sub(r"[^\w-]", "_", Path(one.name).stem)
            copies[one.name] = f"{stem}-{one.digest[:12]}.py"
            here.mkdir(parents=True, exist_ok=True)
            write_whole(here / copies[one.name], (one.source or "").encode())
    if files and (copies or index != INDEX or (here / index).is_file()):
        here.mkdir(parents=True, exist_ok=True)
        write_whole(here / index, json.dumps(copies, indent=1).encode())


def index_of(suite: Path) -> str:
    """The index of a suite that is kept in the folder of its runs."""
    return f"{suite.stem}.{INDEX}"


def home(suite: Path) -> tuple[Path, str]:
    """The folder that a suite file's plugins are looked for from, and the index of its copies."""
    out, index = suite.absolute().parent.parent, index_of(suite)
    if suite.absolute().parent.name == SUITES and (out / FOLDER / index).is_file():
        return out, index
    # Of any other suite that lies there the file is meant, as it is.
    return suite.parent, INDEX if suite.name == "suite.yaml" else NONE


def forget() -> None:
    """Unload every plugin: names are as if none had ever been read."""
    for _, digest in list(_loaded):
        _drop(digest)
    _forget_checks()


def _find(name: Any, folder: Path, index: str) -> Plugin:
    if not isinstance(name, str) or not name:
        raise InputError(f"plugins are files or modules, by name, found {name!r}")
    if not name.endswith(".py") and "/" not in name:
        return _module(name)
    copy = _copies(folder / FOLDER / index).get(name)
    path = folder / Path(name).expanduser() if copy is None else folder / FOLDER / copy
    try:
        content = path.read_bytes()
        source = content.decode()
    except OSError as error:
        why = "there is no such file" if isinstance(error, FileNotFoundError) else error.strerror
        raise InputError(
            f"plugin {name}: {path}: {why}; a path is taken from the suite file's folder"
        ) from None
    except UnicodeDecodeError:
        raise InputError(f"plugin {name}: {path} is no Python source in UTF-8") from None
    return Plugin(name, hashlib.sha256(content).hexdigest(), str(path.absolute()), source)


def _copies(index: Path) -> dict[str, str]:
    """The copies in the folder of a bench, by what a suite calls them."""
    try:
        found = json.loads(index.read_bytes())
        return {str(name): one for name, one in found.items() if _COPY.fullmatch(one)}
    except (OSError, ValueError, AttributeError, TypeError):
        return {}


def _module(name: str) -> Plugin:
    """A module by name; the digest is of its whole package, whose files import each other."""
    if not _MODULE.fullmatch(name):
        raise InputError(f"plugin {name!r} is neither a .py file nor the name of a module")
    top = name.partition(".")[0]
    try:
        spec = importlib.util.find_spec(top)
    except (ImportError, ValueError):
        spec = None
    if spec is None:
        raise InputError(
            f"plugin {name}: no module {top!r} can be imported; a file is written with its ending, "
            f"as in {top}.py"
        )
    roots = [Path(one) for one in spec.submodule_search_locations or ()]
    files = [(path.relative_to(root), path) for root in roots for path in root.rglob("*.py")]
    if not roots and spec.origin is not None and Path(spec.origin).is_file():
        files = [(Path(Path(spec.origin).name), Path(spec.origin))]
    if not files:
        raise InputError(f"plugin {name}: {top} has no Python files: it is part of Python itself")
    total = hashlib.sha256()
    for relative, path in sorted(files):
        own = hashlib.sha256(path.read_bytes()).hexdigest()
        total.update(f"{relative.as_posix()} {own}\n".encode())
    return Plugin(name, total.hexdigest(), str(roots[0] if roots else files[0][1]))


def _take(plugin: Plugin) -> None:
    """Run it, unless it is in force, and let suites find what it registers."""
    if plugin.identity in _loaded:
        return
    for other in [one for one, _ in _loaded.values()]:
        if other.path == plugin.path and other.digest != plugin.digest:  # an earlier version
            if plugin.source is None:
                raise InputError(
                    f"plugin {plugin.name} has changed since it was imported: start a new process"
                )
            _drop(other.digest)
    try:
        _run(plugin)
    except (Exception, SystemExit) as error:
        sys.modules.pop(plugin.module, None)
        raise InputError(f"plugin {plugin.name}{_cause(error, plugin.path)}") from error
    top = plugin.module.partition(".")[0]
    entries = register.noted(top)
    if plugin.source is None and (path := register.edited(top)) is not None:
        raise InputError(
            f"plugin {plugin.name}: {path} has changed since it was imported: start a new process"
        )
    if not entries:
        raise InputError(
            f"plugin {plugin.name} registers nothing: let it call calibrant.bench.register, as in "
            "`@register.loss` before a class"
        )
    wanted = {other for name in entries for other in register.rivals(name)}
    for other, names in list(_loaded.values()):
        if names & wanted and other.digest != plugin.digest:
            _drop(other.digest)
    for name, entry in entries.items():
        register.put(name, entry, plugin.digest)
    _loaded[plugin.identity] = plugin, frozenset(entries)
    _forget_checks()


def _run(plugin: Plugin) -> None:
    name = plugin.module
    if plugin.source is None:
        importlib.import_module(name)
    elif name not in sys.modules:  # else it was in force before: what it registers is noted
        spec = importlib.util.spec_from_file_location(name, plugin.path, loader=_Loader(plugin))
        if spec is None or spec.loader is None:
            raise InputError(f"{plugin.path} is no Python file")
        made = importlib.util.module_from_spec(spec)
        sys.modules[name] = made  # as an import does: dataclasses and the compiler look there
        spec.loader.exec_module(made)


class _Loader(SourceFileLoader):
    """Runs the source as it was read: no file is looked at again, and no bytecode is kept."""

    def __init__(self, plugin: Plugin) -> None:
        super().__init__(plugin.module, plugin.path)
        self._source = (plugin.source or "").encode()

    def get_data(self, path: Any) -> bytes:
        """The source."""
        return self._source

    def path_stats(self, path: Any) -> Mapping[str, Any]:
        """None: bytecode goes by them."""
        raise OSError


def _cause(error: BaseException, path: str) -> str:
    """In words, what an import failed of, and where in the plugin."""
    if isinstance(error, InputError):
        return f": {error}"
    frames = traceback.extract_tb(error.__traceback__)
    lines = [one.lineno for one in frames if one.filename == path]
    if isinstance(error, SyntaxError) and error.filename == path:
        lines = [error.lineno]
    where = f", line {lines[-1]}" if lines else ""
    return f" cannot be imported{where}: {type(error).__name__}: {error}"


def _drop(digest: str) -> None:
    for identity in [one for one in _loaded if one[1] == digest]:
        for name in _loaded.pop(identity)[1]:
            register.drop(name)


def _forget_checks() -> None:
    """What was found of names before is not so any more."""
    from calibrant.bench import suite_file

    suite_file.forget_checks()
