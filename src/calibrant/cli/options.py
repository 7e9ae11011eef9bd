"""Options that several commands share, and the functions that read their values."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_type_hints

import typer

from calibrant.cli.console import command
from calibrant.core.errors import InputError, first
from calibrant.core.method_text import parse_value
from calibrant.core.plugins import load_plugins
from calibrant.core.progress import status
from calibrant.core.yaml_text import parse_yaml

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from calibrant.predictions import Predictions

Scores = Annotated[
    bool | None,
    typer.Option(
        "--logits/--probs",
        help="What the scores are. Required for .npy and for --score-columns; other files say it.",
        show_default=False,
    ),
]
Labels = Annotated[
    Path | None, typer.Option(help="File with the labels, if FILE holds none.", metavar="FILE")
]
Ignored = Annotated[
    int | None, typer.Option(help="Leave out rows with this label, such as -100.", metavar="N")
]
Metrics = Annotated[
    list[str] | None,
    typer.Option(
        "--metric",
        "-m",
        help="Compute this metric instead of the default ones; repeatable. "
        "`calibrant metrics` lists all.",
        metavar="NAME",
    ),
]
Bins = Annotated[int, typer.Option(min=1, help="Number of bins of binned metrics.", metavar="N")]
Resamples = Annotated[
    int, typer.Option(min=100, help="Number of bootstrap resamples for intervals.", metavar="N")
]
Seed = Annotated[int, typer.Option(min=0, help="Random seed.", metavar="N")]
View = Annotated[
    str | None,
    typer.Option(
        help="Judge two classes by the probability of the positive class (events, the default) or "
        "of the predicted class (top).",
        metavar="top|events",
    ),
]
Prevalence = Annotated[
    list[str] | None,
    typer.Option(
        help="Known share of the event, or of the positive class of two, in use, such as 0.05; "
        "else NAME=SHARE for each class, repeatable.",
        metavar="SHARE",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print only errors and failed limits.")]


def _use_plugins(names: list[str] | None) -> list[str] | None:
    """Load the plugins while the options are parsed: other options name their methods."""
    if names:
        _load_plugins(names)
    return names


@command
def _load_plugins(names: list[str]) -> None:
    load_plugins(names)


AllowPlugins = Annotated[
    bool,
    typer.Option(
        "--allow-plugins",
        help="Run the plugins that the suite names, which are code, and remember them.",
    ),
]
Plugins = Annotated[
    list[str] | None,
    typer.Option(
        "--plugins",
        help="Load a .py file or a module that registers methods of your own; repeatable.",
        metavar="FILE_OR_MODULE",
        callback=_use_plugins,
    ),
]
KINDS: dict[bool | None, Literal["logits", "probs"]] = {True: "logits", False: "probs"}


LabelColumn = Annotated[
    str | None,
    typer.Option(
        help="Column with the label, or with whether the event happened. Default: label, happened "
        "or correct.",
        metavar="NAME",
        show_default=False,
    ),
]
ScoreColumns = Annotated[
    str | None,
    typer.Option(
        help="Score columns, one per class: A,B,C, or the prefix of their names. A single column "
        "is the score of an event. Weights and clusters then count only if these are named.",
        metavar="NAMES",
    ),
]
WeightColumn = Annotated[
    str | None,
    typer.Option(
        help="Column with sampling or importance weights, not frequencies; their scale does not "
        "matter. Default: weight.",
        metavar="NAME",
        show_default=False,
    ),
]
ClusterColumn = Annotated[
    str | None,
    typer.Option(
        help="Column with the cluster of each row, such as its patient: rows of a cluster are not "
        "independent. Default: cluster.",
        metavar="NAME",
        show_default=False,
    ),
]
IdColumn = Annotated[
    str | None,
    typer.Option(help="Column with the ids, if it is not called id.", metavar="NAME"),
]
Event = Annotated[
    str | None,
    typer.Option(
        help="Name of the event that a single score predicts, such as fraud.", metavar="NAME"
    ),
]
PosLabel = Annotated[
    str | None,
    typer.Option(
        help="Label of rows in which the event happened, such as yes; or the positive class of "
        "two. Default: 1, or the second class.",
        metavar="VALUE",
        show_default=False,
    ),
]
DropUnlabelled = Annotated[
    bool, typer.Option("--drop-unlabelled", help="Leave out rows whose label is missing.")
]
Normalise = Annotated[
    str,
    typer.Option(
        help="In sample logs of lm-evaluation-harness, divide each log-likelihood by the length of "
        "its option: in characters (length, as acc_norm does) or in bytes.",
        metavar="none|length|bytes",
    ),
]


@dataclass(frozen=True, kw_only=True)
class InputOptions:
    """What the shared options say about the files of predictions; see `takes_input`."""

    logits: Scores = None
    labels: Labels = None
    ignore_index: Ignored = None
    label_column: LabelColumn = None
    score_columns: ScoreColumns = None
    weight_column: WeightColumn = None
    cluster_column: ClusterColumn = None
    id_column: IdColumn = None
    event: Event = None
    pos_label: PosLabel = None
    drop_unlabelled: DropUnlabelled = False
    normalise: Normalise = "none"

    def find_positive(self, predictions: Predictions) -> int | None:
        """Return the number of the class that --pos-label names; None if these are events."""
        if self.pos_label is None or predictions.task == "events":
            return None
        names = predictions.class_names or ()
        if self.pos_label in names:
            return names.index(self.pos_label)
        if self.pos_label.isascii() and self.pos_label.isdigit():
            return int(self.pos_label)
        raise InputError(
            f"--pos-label {self.pos_label[:60]} is no class: give "
            f"{f'one of {first(names, 8)}' if names else 'its number'}"
        )

    def fit_files(self, *files: Path | Sequence[Path] | None) -> list[InputOptions]:
        """Return the options of each of several files that one command reads; None is no file.

        Columns that are named need not be in all of them. If another file has the score columns,
        one with scores of the usual names (such as `calibrant apply` writes) is read by these; and
        if another file has the column of ids, one without it is read by its own ids, if any.
        """
        from calibrant.predictions.columns import has_scores, has_usual_scores
        from calibrant.predictions.read import list_names

        if self.score_columns is None and self.id_column is None:
            return [self] * len(files)
        listed = [None if file is None else list_names(file) for file in files]
        held = [names for names in listed if names is not None]
        wanted, ids = self.score_columns, self.id_column
        found_scores = wanted is not None and any(has_scores(names, wanted) for names in held)
        found_ids = any(ids in names for names in held)
        fitted = []
        for names in listed:
            own = self
            if names is not None and found_ids and ids not in names:
                own = replace(own, id_column=None)
            if (
                names is not None
                and wanted is not None
                and found_scores
                and has_usual_scores(names)
                and not has_scores(names, wanted)
            ):
                own = own._leave_out(names)
            fitted.append(own)
        return fitted

    def _leave_out(self, names: Sequence[str]) -> InputOptions:
        """Return the options without the score columns, and without others not in this file."""
        columns: dict[str, Any] = {
            name: getattr(self, name) if getattr(self, name) in names else None
            for name in ("label_column", "weight_column", "cluster_column")
        }
        positive = None if columns["label_column"] is None else self.pos_label
        return replace(self, score_columns=None, logits=None, pos_label=positive, **columns)

    def read(self, files: Path | Sequence[Path], *, quiet: bool = False) -> Predictions:
        """Read a file, a glob, a folder of Parquet files, or several of these as one set."""
        return self.read_with_columns(files, (), quiet=quiet)[0]

    def read_with_columns(
        self, files: Path | Sequence[Path], columns: Sequence[str], *, quiet: bool = False
    ) -> tuple[Predictions, dict[str, NDArray[Any]]]:
        """Read predictions, and further columns of the same rows, such as groups."""
        from calibrant.predictions import Predictions

        paths = [files] if isinstance(files, Path) else list(files)
        shown = str(paths[0]) + (f" and {len(paths) - 1} more" if len(paths) > 1 else "")
        settings = {option.name: getattr(self, option.name) for option in fields(self)}
        settings["kind"] = KINDS.get(settings.pop("logits"))
        with status(f"reading {shown}", shown=not quiet):
            return Predictions.read_with_columns(
                paths[0] if len(paths) == 1 else paths, columns, **settings
            )


def takes_input(function: Callable[..., None]) -> Callable[..., None]:
    """Decorate a command: its parameter ``inputs`` becomes an option for each of `InputOptions`."""
    hints = get_type_hints(InputOptions, include_extras=True)
    # Python 3.10's get_type_hints hides Annotated in Optional where the default is None.
    hints_of_command = inspect.get_annotations(function, eval_str=True)
    keyword = inspect.Parameter.KEYWORD_ONLY
    options = [
        inspect.Parameter(
            option.name, keyword, default=option.default, annotation=hints[option.name]
        )
        for option in fields(InputOptions)
    ]
    parameters: list[inspect.Parameter] = []
    for parameter in inspect.signature(function).parameters.values():
        if parameter.name == "inputs":
            parameters += options
        else:
            parameters.append(
                parameter.replace(annotation=hints_of_command[parameter.name], kind=keyword)
            )

    @functools.wraps(function)
    def run(**arguments: Any) -> None:
        inputs = InputOptions(**{option.name: arguments.pop(option.name) for option in options})
        function(inputs=inputs, **arguments)

    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return run


def parse_settings(texts: Iterable[str] | None, option: str) -> dict[str, Any]:
    """Parse the ``NAME=VALUE`` texts of a repeatable option."""
    settings: dict[str, Any] = {}
    for text in texts or ():
        name, sign, value = text.partition("=")
        if not sign or not name.strip():
            raise InputError(f"{option} takes NAME=VALUE, found {text!r}")
        settings[name.strip()] = _parse_value(value, f"{option} {name}")
    return settings


def read_prevalence(texts: Sequence[str] | None, option: str) -> float | dict[str, Any] | None:
    """Return one share, or those of NAME=SHARE texts; None if there are none."""
    entries = list(texts or ())
    if not entries:
        return None
    if len(entries) > 1 or "=" in entries[0]:
        return parse_settings(entries, option)
    try:
        return float(entries[0])
    except ValueError:
        raise InputError(
            f"{option} takes a share such as 0.05, or NAME=SHARE for each class, found "
            f"{entries[0]!r:.60}"
        ) from None


def _parse_value(text: str, option: str) -> Any:
    """Parse a plain value; brackets may hold YAML, as in {hidden: [32]}."""
    try:
        return parse_value(text)
    except InputError:
        return parse_yaml(text, option, extra="train")


def split_metrics(metric: list[str] | None) -> list[str]:
    """Return the names that --metric gives; check them before a large file is read."""
    from calibrant.core.method_text import split_outside
    from calibrant.metrics import measure

    names = [name.strip() for text in metric or () for name in split_outside(text, ",")]
    for name in names:
        measure(name)
    return names
