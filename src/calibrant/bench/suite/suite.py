"""Suites: YAML files that describe many runs, their measurements and their tables."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import cached_property
from pathlib import Path
from typing import Any

from calibrant.bench.suite.expansion import expand
from calibrant.bench.suite.lookup import MARK, SHIPPED, copy_path, find_path, is_copy
from calibrant.bench.suite.plugins import NONE, copy_plugins, find_home, index_name, load
from calibrant.bench.suite.published import Source, copy_files, read_sources
from calibrant.bench.suite.schema import check_file, read_yaml
from calibrant.bench.suite.spec import Spec, distinct
from calibrant.bench.suite.tuning import Choice, Tuning
from calibrant.core.errors import InputError, no_such
from calibrant.core.files import write_file
from calibrant.core.plugins import Approve, Plugin
from calibrant.core.yaml_text import decode_text


@dataclass(frozen=True)
class Suite:
    """A suite: its runs by method, in the order they are made, and what tables show."""

    name: str
    about: str
    specs: tuple[tuple[str, Spec], ...]
    baseline: str | None = None
    metrics: tuple[str, ...] = ()
    published: tuple[Source, ...] = ()
    tune: dict[str, Any] = field(default_factory=dict)
    text: str = ""  # the file's text
    found: dict[str, Any] = field(default_factory=dict)  # the file's keys and values
    plugins: tuple[Plugin, ...] = ()
    folder: Path = Path()  # that relative paths start from
    choices: tuple[Choice, ...] = ()  # what `tune` chose

    @classmethod
    def read(
        cls,
        name_or_path: str | os.PathLike[str],
        out: str | os.PathLike[str] | None = None,
        *,
        approve: Approve | None = None,
    ) -> Suite:
        """Read a suite from its file, or by its name, and run the plugins that it names.

        Plugins are code: read those of a suite from elsewhere first.

        Args:
            name_or_path: a file, or the name of a suite. Names are looked up among the suites that
                were run in ``out``, in the folders of the environment variable CALIBRANT_SUITES,
                and in the package.
            out: a folder of runs. Default: None, no such folder is searched.
            approve: called with the plugins before their code runs; it raises an error to refuse
                them. Default: None, they are run.
        """
        path = find_path(name_or_path, None if out is None else Path(out))
        where = path.stem if path.parent == SHIPPED else str(path)
        folder, index = find_home(path)
        text = decode_text(path.read_bytes(), where)
        return cls._parse(text, where, folder, index, is_copy(path), approve)

    @classmethod
    def parse(cls, text: str, *, where: str = "suite", folder: Path | None = None) -> Suite:
        """Read a suite from its text; paths in it are relative to ``folder``."""
        return cls._parse(text, where, folder or Path(), NONE, False)

    @classmethod
    def _parse(
        cls,
        text: str,
        where: str,
        folder: Path,
        index: str,
        copied: bool,
        approve: Approve | None = None,
    ) -> Suite:
        entries = read_yaml(text, where)
        try:
            return cls._of(entries, text, folder, index, copied, approve)
        except InputError as error:
            raise InputError(f"{where}: {error}") from None

    @classmethod
    def _of(
        cls,
        entries: dict[str, Any],
        text: str,
        folder: Path,
        index: str,
        copied: bool,
        approve: Approve | None,
    ) -> Suite:
        file = check_file(entries)
        plugins = load(file.plugins, folder, index, approve)
        specs = tuple(expand(file))
        names = {method for method, _ in specs}
        if file.baseline is not None and str(file.baseline) not in names:
            raise no_such("method, as baseline,", str(file.baseline), sorted(names))
        _check_metrics(file.metrics)
        if file.tune is not None:
            if file.logits:
                raise InputError("tune tries settings of training: files of logits have none")
            Tuning.of(entries["tune"]).check([spec.config for _, spec in specs])
        return cls(
            name=file.name or "suite",
            about=file.about or "",
            specs=specs,
            baseline=None if file.baseline is None else str(file.baseline),
            metrics=tuple(file.metrics),
            published=read_sources(file.published, folder, is_copy=copied),
            tune=dict(entries.get("tune") or {}),
            text=text,
            found=entries,
            plugins=plugins,
            folder=folder,
        )

    def copy_to(self, out: Path) -> None:
        """Copy the suite, under its name, and its files to the folder of runs ``out``.

        Nothing is copied into a folder ``suites`` that the bench did not make, nor from such a
        folder to itself, nor if the package has the same suite.
        """
        path, content = copy_path(out, self.name), self.text.encode()
        folder, shipped = path.parent, SHIPPED / path.name
        if folder.is_dir() and not (folder / MARK).is_file():
            return
        if self.folder.resolve() == folder.resolve():
            return
        if shipped.is_file() and shipped.read_text(encoding="utf-8") == self.text:
            path.unlink(missing_ok=True)  # an older copy would hide the package's suite
            return
        copy_plugins(self.plugins, self.folder, out, index_name(path))
        copy_files(self.published, self.folder, out)
        if not path.is_file() or path.read_bytes() != content:
            folder.mkdir(exist_ok=True)
            (folder / MARK).touch()
            write_file(path, content)

    @cached_property
    def runs(self) -> tuple[Spec, ...]:
        """The runs without repetition: methods may share a run."""
        return tuple(distinct(spec for _, spec in self.specs))

    @property
    def named(self) -> tuple[str, ...]:
        """The methods of the file, including methods that have no runs yet."""
        methods = self.found.get("methods")
        return tuple(methods) if isinstance(methods, dict) else ()

    @property
    def methods(self) -> tuple[str, ...]:
        """The methods that have runs, in the file's order."""
        named = self.named
        present = {method for method, _ in self.specs}
        rest = [method for method, _ in self.specs if method not in named]
        return tuple(dict.fromkeys([name for name in named if name in present] + rest))

    def chosen(
        self, only: Iterable[str] | None = None, seeds: Sequence[int] | None = None
    ) -> tuple[tuple[str, Spec], ...]:
        """Select runs by seed and by ``METHOD/SETTING=VALUE``, as in ``acls/data=cifar10``."""
        wanted = [_terms(text, self.methods) for text in only or ()]
        return tuple(
            (method, spec)
            for method, spec in self.specs
            if (seeds is None or spec.config.seed in seeds)
            and (not wanted or any(_fits(method, spec, terms) for terms in wanted))
        )


def _terms(text: str, methods: Collection[str]) -> list[tuple[str, str]]:
    """Parse ``acls/data=cifar10`` into pairs; a method's name may contain = as well."""
    from dataclasses import fields

    from calibrant.training.config import Config

    known = [setting.name for setting in fields(Config)]
    terms = []
    for part in filter(None, text.split("/")):
        name, sign, value = part.partition("=")
        if not sign or any(fnmatchcase(method, part) for method in methods):
            name, value = "method", part
        elif name != "method" and name not in known:
            raise no_such("setting", name, ["method", *known])
        terms.append((name, value))
    return terms


def _fits(method: str, spec: Spec, terms: list[tuple[str, str]]) -> bool:
    settings = {**spec.config.to_dict(), "method": method}
    return all(fnmatchcase(str(settings[name]), value) for name, value in terms)


def _check_metrics(names: Iterable[str]) -> None:
    from calibrant.bench.measure.measurement import check_metrics

    # Figures such as train_seconds describe a run, not predictions.
    check_metrics(name for name in names if not str(name).endswith(("_seconds", "changed")))
