"""Load plugins: files and modules whose import registers methods of the user's.

Loading a plugin runs its code. A file is run from the bytes that its digest covers, so what a
run's key says is what was run; other processes are sent those bytes.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import re
import sys
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.machinery import SourceFileLoader
from pathlib import Path
from typing import Any, TypeAlias

from calibrant.core import registry
from calibrant.core.errors import InputError

_MODULE = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")


@dataclass(frozen=True)
class Plugin:
    """A plugin as it was read."""

    name: str  # as the user wrote it
    digest: str  # SHA-256 of its source
    path: str
    source: str | None = None  # None for a module, which every process imports for itself

    @property
    def module(self) -> str:
        """Return the name of the plugin's module in this process."""
        if self.source is None:
            return self.name
        return f"{registry.FILE_PREFIX}{self.digest[:16]}"

    @property
    def identity(self) -> tuple[str, str]:
        """Return a key for the plugin; one file under two names has one key."""
        return self.module, self.digest

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, for other processes."""
        return asdict(self)


Approve: TypeAlias = Callable[[Sequence[Plugin]], None]
_Entries = Mapping[tuple[str, str], registry.Entry]
_active: dict[tuple[str, str], tuple[Plugin, _Entries]] = {}  # by identity


def load_plugins(
    names: Iterable[Any],
    folder: Path = Path(),
    copies: Mapping[str, str] | None = None,
    approve: Approve | None = None,
) -> tuple[Plugin, ...]:
    """Load the plugins named, and run those that have not been run.

    Args:
        names: Files (``my_methods.py``) or modules (``my_package.methods``).
        folder: The folder that relative paths start from.
        copies: Paths to read in place of files, by name.
        approve: Called with the plugins before their code runs; it raises an error to refuse them.
            Default: None, they are run.
    """
    plugins = tuple(_find(name, folder, copies or {}) for name in names)
    if approve is not None and plugins:
        approve(plugins)
    owners: dict[tuple[str, str], Plugin] = {}
    for plugin in plugins:
        _load(plugin)
        for key in _active[plugin.identity][1]:
            for rival in registry.rivals(key) & owners.keys():
                if owners[rival].digest != plugin.digest:
                    raise InputError(
                        f"plugins {owners[rival].name} and {plugin.name} both register a {key[0]} "
                        f"called {key[1]!r}: rename one"
                    )
            owners[key] = plugin
    return plugins


def receive_plugins(sent: Iterable[Mapping[str, Any]]) -> None:
    """Load plugins that another process has loaded: what `list_loaded` gave there."""
    for fields in sent:
        plugin = Plugin(**fields)
        if plugin.source is None and _find_module(plugin.name).digest != plugin.digest:
            raise InputError(
                f"plugin {plugin.name} differs from the one that the suite was read with"
            )
        _load(plugin)


def list_loaded() -> list[dict[str, Any]]:
    """Return the plugins in force in this process, for `receive_plugins` in others."""
    return [plugin.to_dict() for plugin, _ in _active.values()]


def check_current(plugins: Iterable[Plugin]) -> None:
    """Raise an error if another plugin, or another version, has replaced one of these."""
    for plugin in plugins:
        if plugin.identity not in _active:
            raise InputError(
                f"plugin {plugin.name} has been replaced in this process since the suite was read, "
                "by one that registers the same names: read the suite again"
            )


def forget_plugins() -> None:
    """Unload every plugin that `load_plugins` loaded."""
    for _, digest in list(_active):
        _unload(digest)


def _find(name: Any, folder: Path, copies: Mapping[str, str]) -> Plugin:
    if not isinstance(name, str) or not name:
        raise InputError(f"plugins are files or modules, by name, found {name!r}")
    if not name.endswith(".py") and "/" not in name:
        return _find_module(name)
    path = folder / Path(copies.get(name, name)).expanduser()
    try:
        content = path.read_bytes()
        source = content.decode()
    except OSError as error:
        why = "there is no such file" if isinstance(error, FileNotFoundError) else error.strerror
        raise InputError(
            f"plugin {name}: {path}: {why}; relative paths start from {folder.absolute()}"
        ) from None
    except UnicodeDecodeError:
        raise InputError(f"plugin {name}: {path} is not Python source in UTF-8") from None
    return Plugin(name, hashlib.sha256(content).hexdigest(), str(path.absolute()), source)


def _find_module(name: str) -> Plugin:
    if not _MODULE.fullmatch(name):
        raise InputError(f"plugin {name!r} is neither a .py file nor the name of a module")
    try:
        digest, path = registry.digest_of_package(name.partition(".")[0])
    except InputError as error:
        raise InputError(f"plugin {name}: {error}") from None
    return Plugin(name, digest, path)


def _load(plugin: Plugin) -> None:
    """Run a plugin unless it is in force, and let its names mean what it registers."""
    if plugin.identity in _active:
        return
    for other in [active for active, _ in _active.values()]:
        if other.path == plugin.path and other.digest != plugin.digest:  # an earlier version
            if plugin.source is None:
                raise InputError(
                    f"plugin {plugin.name} has changed since it was imported: start a new process"
                )
            _unload(other.digest)
    try:
        _run(plugin)
    except (Exception, SystemExit) as error:
        sys.modules.pop(plugin.module, None)
        registry.forget_module(plugin.module)
        raise InputError(f"plugin {plugin.name}{_describe(error, plugin.path)}") from error
    top = plugin.module.partition(".")[0]
    entries = registry.registered_by(top)
    if plugin.source is None and (path := registry.edited_file(top)) is not None:
        raise InputError(
            f"plugin {plugin.name}: {path} has changed since it was imported: start a new process"
        )
    if not entries:
        raise InputError(
            f"plugin {plugin.name} registers nothing: write @calibrant.losses.register (or "
            "metrics, calibrators, models, training.recipes) before a class"
        )
    taken = {rival for key in entries for rival in registry.rivals(key)}
    for other, names in list(_active.values()):
        if names.keys() & taken and other.digest != plugin.digest:
            _unload(other.digest)
    registry.activate(entries)
    _active[plugin.identity] = plugin, entries


def _run(plugin: Plugin) -> None:
    name = plugin.module
    if plugin.source is None:
        importlib.import_module(name)
    elif name not in sys.modules:  # otherwise it was in force before: its entries are known
        registry.set_digest(name, plugin.digest)
        spec = importlib.util.spec_from_file_location(name, plugin.path, loader=_Loader(plugin))
        if spec is None or spec.loader is None:
            raise InputError(f"{plugin.path} is not a Python file")
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module  # as an import does: dataclasses and the compiler look there
        spec.loader.exec_module(module)


class _Loader(SourceFileLoader):
    """Run the source as it was read: read no file again, keep no bytecode."""

    def __init__(self, plugin: Plugin) -> None:
        super().__init__(plugin.module, plugin.path)
        self._source = (plugin.source or "").encode()

    def get_data(self, path: Any) -> bytes:
        """Return the source."""
        return self._source

    def path_stats(self, path: Any) -> Mapping[str, Any]:
        """Refuse: bytecode is looked up by these."""
        raise OSError


def _describe(error: BaseException, path: str) -> str:
    """Say why a plugin cannot be imported, and in which of its lines."""
    if isinstance(error, InputError):
        return f": {error}"
    lines = [
        frame.lineno
        for frame in traceback.extract_tb(error.__traceback__)
        if frame.filename == path
    ]
    if isinstance(error, SyntaxError) and error.filename == path:
        lines = [error.lineno]
    where = f", line {lines[-1]}" if lines else ""
    return f" cannot be imported{where}: {type(error).__name__}: {error}"


def _unload(digest: str) -> None:
    for identity in [identity for identity in _active if identity[1] == digest]:
        registry.deactivate(_active.pop(identity)[1])
