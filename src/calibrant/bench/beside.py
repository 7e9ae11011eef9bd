"""Which published figures stand beside a suite's own: its papers, tables, and their networks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from calibrant.bench.published import PAPERS, Figure, find, of_description
from calibrant.functional.errors import InputError, no_such

KEYS = ("paper", "tables", "data", "model", "methods")
HOW = "a mapping, as in `published: {paper: acls, tables: [Table 3]}`, or a list of such"


@dataclass(frozen=True)
class Source:
    """Tables of one paper, for the suite's data, network and methods, or those said here.

    ``data`` and ``model`` name what the paper has in the place of ours, for all of ours or by
    ours: ``model: {wrn_28_10: wrn_26_10}``. So do ``methods``, by ours.
    """

    paper: str
    tables: tuple[str, ...]
    data: Mapping[str, str] | str | None = None
    model: Mapping[str, str] | str | None = None
    methods: Mapping[str, str] | None = None

    @classmethod
    def of(cls, found: Any) -> Source:
        """From a suite's file; an error for a table or name the paper does not have."""
        if not isinstance(found, dict):
            raise InputError(f"published is {HOW}, found {found!r}")
        for key in found:
            if key not in KEYS:
                raise no_such("key of published", str(key), KEYS)
        if found.get("paper") not in PAPERS:
            raise no_such("paper", str(found.get("paper")), PAPERS)
        figures = find(paper=found["paper"])
        tables = found.get("tables") or list(dict.fromkeys(one.table for one in figures))
        if not isinstance(tables, list):
            raise InputError(f"published: tables is a list, found {tables!r}")
        made = cls(**{**found, "tables": tuple(map(str, tables))})
        for side in ("data", "model", "methods"):
            value = getattr(made, side)
            if value is not None and not isinstance(value, (str, dict)):
                raise InputError(f"published: {side} is a name, or names by ours, found {value!r}")
        for side, asked in (
            ("table", made.tables),
            ("data", _named(made.data)),
            ("model", _named(made.model)),
            ("method", _named(made.methods)),
        ):
            known = dict.fromkeys(getattr(one, side) for one in figures)
            for name in asked:
                if name not in known:
                    raise no_such(f"{side} in {made.paper}", name, known)
        return made

    def figure(
        self,
        *,
        data: str,
        model: str,
        method: str,
        metric: str,
        calibrator: str,
        part: str,
        long_tail: float | None,
    ) -> Figure | None:
        """The figure beside one of ours, from the first of the tables that has it."""
        fits = of_description(
            paper=self.paper,
            data=_instead(self.data, data),
            model=_instead(self.model, model),
            method=_instead(self.methods, method),
            metric=metric,
            calibrator=calibrator,
            part=part,
            long_tail=long_tail,
        )
        fits = [one for one in fits if one.table in self.tables]
        return min(fits, key=lambda one: self.tables.index(one.table), default=None)

    def told(self, figure: Figure) -> str:
        """Where a figure is from, and what it is of where that is not what ours are of."""
        sides = {"data": self.data, "model": self.model, "method": self.methods}
        others = [str(getattr(figure, side)) for side, instead in sides.items() if instead]
        return f"{figure.paper}, {figure.table}" + (f", of {' '.join(others)}" if others else "")


def sources(found: Any) -> tuple[Source, ...]:
    """The key ``published`` of a suite, read."""
    listed = [found] if isinstance(found, dict) else found
    if listed is not None and not isinstance(listed, list):
        raise InputError(f"published is {HOW}, found {found!r}")
    return tuple(Source.of(one) for one in listed or ())


def _instead(names: Mapping[str, str] | str | None, ours: str) -> str:
    if isinstance(names, str):
        return names
    return ours if names is None else names.get(ours, ours)


def _named(names: Mapping[str, str] | str | None) -> list[str]:
    if names is None:
        return []
    return [names] if isinstance(names, str) else [str(one) for one in names.values()]
