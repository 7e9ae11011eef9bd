"""`Registry`: methods of one kind by name, built in or registered by a user.

Each room that has methods makes one registry: losses, metrics, calibrators, recipes, models
and data sets. Built-in entries are texts, ``module:name``, imported when first asked for.
``register`` adds a method of the user's; a package announces a module that registers methods by
an entry point in the group ``calibrant.plugins``.

A registered method is known by the SHA-256 of its source, so that stored results of one source
are never taken for another's.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import inspect
import keyword
import os
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Generic, TypeVar

from calibrant.core.errors import InputError, no_such, show, wrong_options

T = TypeVar("T")
ENTRY_POINTS = "calibrant.plugins"
FILE_PREFIX = "calibrant_plugin_"  # modules that `core.plugins` made from files
# Words that mean something else where results name calibrators and metrics.
RESERVED = (
    *("none", "argmax_preserving", "validation", "diverged", "measured", "failed", "changed"),
    *("seconds", "train_seconds", "bench_seconds", "epoch", "parameters", "inactive"),
    *("confidence", "share", "tst", "vtst", "mac_cal_head"),
)
SOURCE = "source"  # the option by which results name the source of a registered method

_registries: dict[str, Registry[Any]] = {}
_history: dict[str, dict[tuple[str, str], Entry]] = {}  # by module: what it registered
_stamps: dict[str, tuple[str, tuple[int, int] | None]] = {}  # by module: its file when imported
_digests: dict[str, str] = {}  # by module: the digest of its source, where it is known already
_state = {"version": 0, "entry_points": False}


@dataclass(frozen=True)
class Entry:
    """A registered or built-in method."""

    target: Any  # the method, or 'module:name'
    summary: str  # one line on when to use it
    module: str | None = None  # the module that registered it; None for a built-in method


class Registry(Generic[T]):
    """Methods of one kind by name.

    Args:
        kind: What an entry is, in messages: ``loss``.
        builtin: By name, ``module:name`` of the method and a line on when to use it.
        check: A function that raises `InputError` for a thing that is not of this kind.
        rival: ``module:name`` of the registry whose names must differ from these.
        names_results: True if results name methods of this kind: some words are reserved then.
    """

    def __init__(
        self,
        kind: str,
        builtin: Mapping[str, tuple[str, str]],
        *,
        check: Callable[[Any], None] | None = None,
        rival: str | None = None,
        names_results: bool = False,
    ) -> None:
        self.kind = kind
        self._check, self._rival, self._names_results = check, rival, names_results
        self._entries = {name: Entry(*entry) for name, entry in builtin.items()}
        _registries[kind] = self

    def __contains__(self, name: object) -> bool:
        if name not in self._entries:
            load_entry_points()
        return name in self._entries

    def __iter__(self) -> Iterator[str]:
        load_entry_points()
        return iter(list(self._entries))

    def available(self) -> dict[str, str]:
        """Return every name with a line on when to use the method."""
        return {name: self._entries[name].summary for name in self}

    def load(self, name: str) -> T:
        """Return the method called ``name``, imported if it has not been."""
        if name not in self:
            raise no_such(self.kind, name, self._entries)
        target = self._entries[name].target
        return resolve(target) if isinstance(target, str) else target

    def create(self, name: str, *args: Any, shared: tuple[str, ...] = (), **options: Any) -> Any:
        """Call the method called ``name``; refused options raise an error that lists all."""
        maker: Any = self.load(name)
        for option, value in options.items():
            if isinstance(value, int) and abs(value) >= 1 << 63:
                raise InputError(
                    f"{self.kind} {name!r}: {option} must fit 64 bits, found {show(value)}"
                )
        try:
            return maker(*args, **options)
        except TypeError as error:
            raise wrong_options(self.kind, name, maker, error, *shared) from None

    def register(self, thing: T, *, name: str | None = None, summary: str | None = None) -> T:
        """Add a method of the user's, and return it.

        Args:
            thing: The class or function.
            name: Its name; ``thing.name`` or the function's own by default.
            summary: A line on when to use it; the first line of its docstring by default.
        """
        if self._check is not None:
            self._check(thing)
        word = name or getattr(thing, "name", None) or getattr(thing, "__name__", None)
        self._check_name(word, thing)
        line = (inspect.getdoc(thing) or "").partition("\n")[0] if summary is None else summary
        module = _module_of(thing)
        key, entry = (self.kind, str(word)), Entry(thing, line, module)
        earlier = _history.setdefault(module, {}).get(key)
        if earlier is not None and _qualify(earlier.target) != _qualify(thing):
            raise InputError(f"the {self.kind} {word!r} is registered twice: give each a name")
        path = getattr(sys.modules.get(module), "__file__", None) or ""
        _stamps[module] = path, _stamp(path)
        _history[module][key] = entry
        self._put(str(word), entry)
        return thing

    def unregister(self, name: str) -> None:
        """Remove a method that was registered; a built-in one stays."""
        if name in self._entries and self._entries[name].module is not None:
            del self._entries[name]
            _state["version"] += 1

    def module_of(self, name: str) -> str | None:
        """Return the module that registered ``name``; None for a built-in method."""
        entry = self._entries.get(name)
        return None if entry is None else entry.module

    def digest_of(self, name: str) -> str | None:
        """Return the SHA-256 of the source that registered ``name``; None for a built-in one."""
        module = self.module_of(name)
        return None if module is None else digest_of_module(module)

    def _put(self, name: str, entry: Entry) -> None:
        self._entries[name] = entry
        _state["version"] += 1

    def _check_name(self, name: Any, thing: Any) -> None:
        if not isinstance(name, str) or not name.isidentifier() or keyword.iskeyword(name):
            raise InputError(
                f"the name of a {self.kind} must be a word, such as my_{self.kind}, found {name!r}"
            )
        for registry in (self, *([resolve(self._rival)] if self._rival else [])):
            entry = registry._entries.get(name)
            if entry is not None and entry.module is None:
                raise InputError(f"a {registry.kind} called {name!r} is built in: choose another")
        if self._names_results:
            if name in RESERVED:
                raise InputError(f"{name!r} is reserved in results: choose another name")
            if SOURCE in inspect.signature(thing).parameters:
                raise InputError(
                    f"the option {SOURCE!r} of the {self.kind} {name!r} is reserved: "
                    "choose another name"
                )
        holder, module = self.module_of(name), _module_of(thing)
        files = [owner for owner in (holder, module) if owner and owner.startswith(FILE_PREFIX)]
        if holder not in (None, module) and not files:
            raise InputError(
                f"the {self.kind} {name!r} is registered by {holder} already: choose another name"
            )


def resolve(text: str) -> Any:
    """Import ``module:name``."""
    module, _, name = text.partition(":")
    return getattr(importlib.import_module(module), name)


def version() -> int:
    """Return a number that changes with every registration: caches of names depend on it."""
    return _state["version"]


def load_entry_points() -> None:
    """Import the modules that installed packages announce, once a process."""
    if _state["entry_points"]:
        return
    _state["entry_points"] = True
    from importlib.metadata import entry_points

    for point in entry_points(group=ENTRY_POINTS):
        try:
            point.load()
        except Exception as error:
            warnings.warn(
                f"the plugin {point.name} ({point.value}) cannot be imported: "
                f"{type(error).__name__}: {error}",
                stacklevel=3,
            )


def registered_by(module: str) -> dict[tuple[str, str], Entry]:
    """Return what a module and its submodules registered, by kind and name."""
    return {
        key: entry
        for owner, entries in _history.items()
        if owner == module or owner.startswith(f"{module}.")
        for key, entry in entries.items()
    }


def activate(entries: Mapping[tuple[str, str], Entry]) -> None:
    """Make these entries the ones that their names mean."""
    for (kind, name), entry in entries.items():
        _registries[kind]._put(name, entry)


def deactivate(entries: Mapping[tuple[str, str], Entry]) -> None:
    """Remove these entries where their names still mean them."""
    for (kind, name), entry in entries.items():
        if _registries[kind]._entries.get(name) is entry:
            _registries[kind].unregister(name)


def rivals(key: tuple[str, str]) -> set[tuple[str, str]]:
    """Return the keys that must not belong to another source: its own, and the rival kind's."""
    kind, name = key
    rival = _registries[kind]._rival
    return {key} if rival is None else {key, (resolve(rival).kind, name)}


def forget_module(module: str) -> None:
    """Remove what a module registered: its import failed."""
    deactivate(_history.pop(module, {}))


def set_digest(module: str, digest: str) -> None:
    """Note the digest of a module's source: of the bytes that were run."""
    _digests[module] = digest


def digest_of_module(module: str) -> str:
    """Return the SHA-256 of a module's source; of a package, of all its Python files."""
    if module in _digests:
        return _digests[module]
    top = module.partition(".")[0]
    if top in ("__main__", "builtins") or importlib.util.find_spec(top) is None:
        path = _stamps.get(module, ("", None))[0]
        if not path or not Path(path).is_file():
            raise InputError(
                f"{module} registers a method that has no source file: write the method into a "
                "file, so that results name the version of its source"
            )
        digest = hashlib.sha256(Path(path).read_bytes()).hexdigest()
    else:
        digest = digest_of_package(top)[0]
    edited = edited_file(top)
    if edited is not None:
        raise InputError(f"{edited} has changed since it was imported: start a new process")
    return digest


def digest_of_package(name: str) -> tuple[str, str]:
    """Return the digest of a top-level module or package, and the path of its source.

    Files of a package import each other, so the digest covers all of them.
    """
    try:
        spec = importlib.util.find_spec(name)
    except (ImportError, ValueError):
        spec = None
    if spec is None:
        raise InputError(
            f"no module {name!r} can be imported; a file is written with its ending, as in "
            f"{name}.py"
        )
    roots = [Path(folder) for folder in spec.submodule_search_locations or ()]
    files = [(path.relative_to(root), path) for root in roots for path in root.rglob("*.py")]
    if not roots and spec.origin is not None and Path(spec.origin).is_file():
        files = [(Path(Path(spec.origin).name), Path(spec.origin))]
    if not files:
        raise InputError(f"{name} has no Python files: it is part of Python itself")
    total = hashlib.sha256()
    for relative, path in sorted(files):
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        total.update(f"{relative.as_posix()} {digest}\n".encode())
    return total.hexdigest(), str(roots[0] if roots else files[0][1])


def edited_file(module: str) -> str | None:
    """Return a file of a module or its submodules that was changed since it was imported."""
    for owner, (path, stamp) in _stamps.items():
        if (owner == module or owner.startswith(f"{module}.")) and _stamp(path) != stamp:
            return path
    return None


def _stamp(path: str) -> tuple[int, int] | None:
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size


def _module_of(thing: Any) -> str:
    while isinstance(thing, partial):
        thing = thing.func
    return str(getattr(thing, "__module__", None) or "__main__")


def _qualify(thing: object) -> str:
    return str(getattr(thing, "__qualname__", type(thing).__qualname__))


def check_subclass(kind: str, parent: str) -> Callable[[Any], None]:
    """Make a check that a class derives from ``parent`` ('module:Class') and has a name."""

    def check(thing: Any) -> None:
        base: type = resolve(parent)
        if not isinstance(thing, type) or not issubclass(thing, base):
            where = f"{base.__module__.removesuffix('.base')}.{base.__name__}"
            raise InputError(f"a {kind} to register must be a subclass of {where}, found {thing!r}")
        if not isinstance(getattr(thing, "name", None), str) or "name" not in vars(thing):
            raise InputError(f"{thing.__name__} has no name: write `name = ...` in the class")

    return check
