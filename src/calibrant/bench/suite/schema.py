"""The keys of a suite file: what each may be, declared once and checked when a file is read."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import fields
from difflib import get_close_matches
from typing import Annotated, Any, ClassVar

from calibrant.core.errors import InputError, shorten, show
from calibrant.core.extras import require
from calibrant.core.yaml_text import parse_yaml
from calibrant.training.config import Config

require("pydantic", extra="bench", purpose="reading a suite")
from pydantic import (  # noqa: E402
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
)

OF_A_RUN = ("calibrators", "after", "keep")  # settings of a run beside those of its training
SETTABLE = (*(field.name for field in fields(Config)), *OF_A_RUN, "skip")


def read_yaml(text: str, where: str) -> dict[str, Any]:
    """Read a suite file's keys and values; a repeated key is an error."""
    entries = parse_yaml(
        text, where, extra="bench", check=lambda root: _check_twice(root, where, set())
    )
    if not isinstance(entries, dict):
        raise InputError(f"{where}: expected a suite as `key: value` lines")
    return entries


def _check_twice(node: Any, where: str, seen: set[int]) -> None:
    """Raise an error for a repeated key: YAML would silently take the last."""
    if node is None or isinstance(node.value, str) or id(node) in seen:
        return
    seen.add(id(node))  # an anchor stands in several places, or in itself
    for entry in node.value:
        for child in entry if isinstance(entry, tuple) else (entry,):
            _check_twice(child, where, seen)
    pairs = [entry[0] for entry in node.value if isinstance(entry, tuple)]
    keys = [(key.tag, key.value) for key in pairs if isinstance(key.value, str)]
    for tag, key in keys:
        if keys.count((tag, key)) > 1 and not tag.endswith(":merge"):
            raise InputError(
                f"{where}: {key!r} stands twice, line {node.start_mark.line + 1} and on"
            )


def check_known(names: Iterable[Any], known: Iterable[str], kind: str) -> None:
    """Raise an error that suggests the nearest name for an unknown name."""
    choices = list(known)
    for name in names:
        if name not in choices:
            near = get_close_matches(shorten(str(name), 80), choices, n=1)
            hint = f"did you mean {near[0]}?" if near else f"known: {', '.join(choices)}"
            raise InputError(f"{show(name)} is no {kind}; {hint}")


def check_settings(settings: dict[Any, Any]) -> dict[Any, Any]:
    """Return settings; raise an error for an unknown one, or for a seed."""
    check_known(settings, SETTABLE, "setting")
    if "seed" in settings:
        raise InputError("seeds are given as `seeds: [0, 1, 2]`, not seed")
    return settings


def _check_grid(grid: dict[Any, Any]) -> dict[Any, Any]:
    check_known(grid, (*SETTABLE, "cases"), "setting")
    for name, values in grid.items():
        if name != "cases" and (not isinstance(values, list) or not values):
            raise InputError(f"{name} is a list of values, found {show(values)}")
    return grid


def _check_condition(condition: dict[Any, Any]) -> dict[Any, Any]:
    check_known(condition, ("method", *SETTABLE), "setting")
    return condition


def _check_names(names: Any) -> Any:
    if names is not None and not isinstance(names, (str, dict)):
        raise InputError(f"is a name, or a mapping from our names, found {show(names)}")
    return names


def _check_share(share: Any) -> Any:
    if isinstance(share, bool) or not isinstance(share, (int, float)) or not 0 <= share < 1:
        raise InputError(f"is a share in [0, 1), found {show(share)}")
    return share


def _default(value: Any) -> Any:
    return {} if value is None else value


def _as_list(value: Any) -> Any:
    return [value] if isinstance(value, dict) else [] if value is None else value


Settings = Annotated[dict[Any, Any], BeforeValidator(_default), AfterValidator(check_settings)]
Names = Annotated[Any, AfterValidator(_check_names)]  # the paper's names, in place of ours
OptionalList = Annotated[list[Any], BeforeValidator(lambda value: [] if value is None else value)]


class _Entry(BaseModel):
    """Keys of one mapping in the file; ``kind`` names a key, ``form`` shows the mapping."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)
    kind: ClassVar[str] = ""
    form: ClassVar[str] = ""


class WhereEntry(_Entry):
    """A line of ``where``: settings for the runs that meet its condition."""

    kind: ClassVar[str] = "key of a `where` line"
    form: ClassVar[str] = "where: each line is {if: ..., set: ...}"

    condition: Annotated[
        dict[Any, Any], BeforeValidator(_default), AfterValidator(_check_condition)
    ] = Field(default={}, alias="if", description="a mapping of settings to values")
    change: Settings = Field(alias="set")


class TunedEntry(_Entry):
    """A setting under ``tune: settings:``: the values to try, and the losses it is an option of."""

    kind: ClassVar[str] = "key of a setting that is tuned"
    form: ClassVar[str] = "tune: each setting is {name: ..., values: [...]}"

    name: str = Field(description="the name of a setting")
    values: list[Any] = Field(min_length=1, description="a list")
    of: OptionalList = Field(default=[], description="a list of losses")


class TuneEntry(_Entry):
    """The block ``tune``."""

    kind: ClassVar[str] = "key of tune"
    form: ClassVar[str] = "tune is a mapping, as in `tune: {rule: ..., settings: [...]}`"

    rule: str = Field(default="lowest_ece", description="a name")
    metric: str = Field(default="ece", description="a metric")
    accuracy_lost: Annotated[Any, AfterValidator(_check_share)] = 0.01
    seeds: list[int] = Field(default=[0], min_length=1, description="a list of whole numbers")
    settings: list[TunedEntry] = Field(
        min_length=1, description="a list of what is tried, in order"
    )


class PublishedEntry(_Entry):
    """An entry of ``published``."""

    kind: ClassVar[str] = "key of published"
    form: ClassVar[str] = (
        "published is a mapping, as in `published: {file: published.csv, paper: acls, "
        "tables: [Table 3]}`, or a list of such"
    )

    file: str = Field(default="", description="a CSV file of figures, relative to the suite")
    paper: str = Field(description="the name of a paper in the file")
    tables: OptionalList = Field(default=[], description="a list of the paper's tables")
    data: Names = None
    model: Names = None
    methods: Names = None
    note: str = Field(default="", description="how the figures differ from ours, in words")


class SuiteFile(_Entry):
    """A suite file, checked."""

    kind: ClassVar[str] = "key of a suite"

    name: str | None = Field(default=None, description="a name")
    about: str | None = Field(default=None, description="a line of text")
    plugins: OptionalList = Field(
        default=[], description="a list of files or modules, as in `plugins: [my_methods.py]`"
    )
    defaults: Settings = {}
    grid: Annotated[dict[Any, Any], BeforeValidator(_default), AfterValidator(_check_grid)] = Field(
        default={},
        description="a mapping of settings to lists of values, as in `grid: {data: [cifar10]}`",
    )
    cases: Annotated[list[Settings], BeforeValidator(_as_list)] = Field(
        default=[], description="a list of settings"
    )
    seeds: list[int] = Field(default=[0], min_length=1, description="a list of whole numbers")
    methods: Annotated[dict[Any, Settings], BeforeValidator(_default)] = Field(
        default={},
        description="a mapping of names to settings, as in `methods: {focal: {loss: focal}}`",
    )
    where: Annotated[list[WhereEntry], BeforeValidator(_as_list)] = Field(
        default=[], description="a list of {if: ..., set: ...}"
    )
    calibrators: OptionalList = Field(default=[], description="a list")
    after: OptionalList = Field(default=[], description="a list")
    logits: list[Any] | None = Field(default=None, description="a list")
    keep: Any = Field(default=None, description="rows, predictions or weights")
    baseline: Any = Field(default=None, description="the name of a method")
    tune: Annotated[TuneEntry | None, BeforeValidator(lambda value: value or None)] = None
    published: Annotated[list[PublishedEntry], BeforeValidator(_as_list)] = Field(
        default=[], description=PublishedEntry.form.removeprefix("published is ")
    )
    metrics: Annotated[list[str], BeforeValidator(lambda value: value or [])] = Field(
        default=[], description="a list of names, as in `metrics: [ece, nll]`"
    )


_PARTS: dict[tuple[str, ...], type[_Entry]] = {
    (): SuiteFile,
    ("where",): WhereEntry,
    ("tune",): TuneEntry,
    ("tune", "settings"): TunedEntry,
    ("published",): PublishedEntry,
}


def check_file(entries: Mapping[str, Any]) -> SuiteFile:
    """Check the keys and values of a suite file."""
    try:
        return SuiteFile.model_validate(dict(entries))
    except ValidationError as error:
        raise _explain(error, ()) from None


def check_tune(entry: Mapping[str, Any]) -> TuneEntry:
    """Check a block ``tune``."""
    try:
        return TuneEntry.model_validate(dict(entry))
    except ValidationError as error:
        raise _explain(error, ("tune",)) from None


def _explain(error: ValidationError, start: tuple[str, ...]) -> InputError:
    """Describe the first error: the key, its expected form, and the value."""
    errors = error.errors()
    first = next((error for error in errors if error["type"] == "extra_forbidden"), errors[0])
    place = (*start, *(part for part in first["loc"] if isinstance(part, str)))
    kind, value = first["type"], show(first["input"])
    if kind == "extra_forbidden":
        part = _PARTS[place[:-1]]
        known = [field.alias or name for name, field in part.model_fields.items()]
        try:
            check_known(place[-1:], known, part.kind)
        except InputError as unknown:
            return unknown
    if kind == "value_error":
        return InputError(f"{', '.join(place)}: {first['ctx']['error']}")
    if kind in ("missing", "model_type", "model_attributes_type", "dict_type"):
        part = _PARTS.get(place[:-1] if kind == "missing" else place, SuiteFile)
        if part.form:
            missing = f"{place[-1]!r} is missing; " if kind == "missing" else ""
            return InputError(f"{missing}{part.form}, found {value}")
    where, name = place[:-1], place[-1]
    fields_of = _PARTS[where].model_fields.items() if where in _PARTS else ()
    says = next((f.description for key, f in fields_of if name in (key, f.alias)), None)
    inside = " in it" if isinstance(first["loc"][-1], int) else ""
    if says is None:
        return InputError(f"{', '.join(place)}: expected settings as `name: value`, found {value}")
    prefix = f"{', '.join(where)}: `{name}`" if where else name
    return InputError(f"{prefix} is {says}, found {value}{inside}")
