"""A suite: a YAML file that names many runs, and what is measured and shown of them."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import cached_property
from pathlib import Path
from typing import Any

from calibrant.bench.beside import Source, sources
from calibrant.bench.chosen import Choice
from calibrant.bench.plugins import NONE, Plugin, home, load
from calibrant.bench.spec import Spec, distinct
from calibrant.bench.suite_file import KEYS, check_forms, expand, only_known, parse
from calibrant.functional.errors import InputError, no_such

SHIPPED = Path(__file__).parent / "suites"


@dataclass(frozen=True)
class Suite:
    """Runs by the name of their method, in the order they are made."""

    name: str
    about: str
    specs: tuple[tuple[str, Spec], ...]
    baseline: str | None = None
    metrics: tuple[str, ...] = ()
    published: tuple[Source, ...] = ()
    tune: dict[str, Any] = field(default_factory=dict)
    text: str = ""  # the file, as it was read
    found: dict[str, Any] = field(default_factory=dict)  # the file's own keys and values
    plugins: tuple[Plugin, ...] = ()
    folder: Path = Path()  # that their paths are taken from
    choices: tuple[Choice, ...] = ()  # what `tune` came to, where it has been

    @classmethod
    def read(cls, name_or_path: str | os.PathLike[str]) -> Suite:
        """From a file, or a shipped suite by name. Plugins that it names are run."""
        path = Path(name_or_path)
        if path.is_file():
            folder, index = home(path)
            text = path.read_text(encoding="utf-8")
            return cls.parse(text, where=str(path), folder=folder, index=index)
        if path.suffix in (".yaml", ".yml") or len(path.parts) > 1:
            raise InputError(f"{path}: there is no such file")
        shipped = SHIPPED / f"{path.name}.yaml"
        if not shipped.is_file():
            raise no_such("suite", path.name, available())
        return cls.parse(shipped.read_text(encoding="utf-8"), where=path.name)

    @classmethod
    def parse(
        cls, text: str, *, where: str = "suite", folder: Path | None = None, index: str = NONE
    ) -> Suite:
        """From the text of such a file, and the folder that paths of plugins are taken from."""
        found = parse(text, where)
        try:
            return cls._of(found, text, folder or Path(), index)
        except InputError as error:
            raise InputError(f"{where}: {error}") from None

    @classmethod
    def _of(cls, found: dict[str, Any], text: str, folder: Path, index: str) -> Suite:
        only_known(found, KEYS, "key of a suite")
        check_forms(found)
        plugins = load(found.get("plugins") or (), folder, index)
        specs = tuple(expand(found))
        names = {method for method, _ in specs}
        baseline = found.get("baseline")
        if baseline is not None and baseline not in names:
            raise no_such("method, as baseline,", str(baseline), sorted(names))
        metrics = tuple(found.get("metrics") or ())
        _check_metrics(metrics)
        if found.get("tune"):
            from calibrant.bench.tune import Tuning

            if found.get("logits"):
                raise InputError("tune tries settings of training: files of logits have none")
            Tuning.of(found["tune"]).check([spec.config for _, spec in specs])
        return cls(
            name=str(found.get("name", "suite")),
            about=str(found.get("about", "")),
            specs=specs,
            baseline=baseline,
            metrics=metrics,
            published=sources(found.get("published")),
            tune=dict(found.get("tune") or {}),
            text=text,
            found=found,
            plugins=plugins,
            folder=folder,
        )

    @cached_property
    def runs(self) -> tuple[Spec, ...]:
        """Each run once, whatever methods share it."""
        return tuple(distinct(spec for _, spec in self.specs))

    @property
    def named(self) -> tuple[str, ...]:
        """The methods of the file, those among them that have no runs (yet)."""
        found = self.found.get("methods")
        return tuple(found) if isinstance(found, dict) else ()

    @property
    def methods(self) -> tuple[str, ...]:
        """The methods' names, in the file's order."""
        named = self.named
        present = {method for method, _ in self.specs}
        rest = [method for method, _ in self.specs if method not in named]
        return tuple(dict.fromkeys([name for name in named if name in present] + rest))

    def chosen(
        self, only: Iterable[str] | None = None, seeds: Sequence[int] | None = None
    ) -> tuple[tuple[str, Spec], ...]:
        """The runs that one of ``only`` names (as in ``acls/data=cifar10``), of these seeds."""
        wanted = [_terms(text, self.methods) for text in only or ()]
        return tuple(
            (method, spec)
            for method, spec in self.specs
            if (seeds is None or spec.config.seed in seeds)
            and (not wanted or any(_fits(method, spec, terms) for terms in wanted))
        )


def available() -> dict[str, str]:
    """Every shipped suite's name and what it is."""
    found = {}
    for path in sorted(SHIPPED.glob("*.yaml")):
        told = parse(path.read_text(encoding="utf-8"), path.name)
        found[path.stem] = str(told.get("about", ""))
    return found


def _terms(text: str, methods: Collection[str]) -> list[tuple[str, str]]:
    """``acls/data=cifar10`` as (method, acls), (data, cifar10); methods may have a = as well."""
    from dataclasses import fields

    from calibrant.training.config import Config

    known = [one.name for one in fields(Config)]
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
    from calibrant.bench.judging import checked

    # Figures of a run, such as train_seconds, are no metrics of predictions.
    checked(name for name in names if not str(name).endswith(("_seconds", "changed")))
