"""Choose which columns of a table hold scores, labels, weights and clusters, and convert them."""

from __future__ import annotations

import difflib
import re
import warnings
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from calibrant.core.errors import InputError, first
from calibrant.functional.arrays import Array, as_numpy, as_texts
from calibrant.predictions.files import EVENT_SCORES, KINDS, OUTCOMES, Contents, agree_kind

_INDEX = ("", "Unnamed: 0", "__index_level_0__")  # pandas' names of row numbers
_CLASS_SCORES = re.compile(r"(logit|prob)(?:_(0|[1-9]\d{0,17}))?")
_LABEL_OF_MANY = re.compile(r"label_(0|[1-9]\d{0,17})")
_KIND = {"logit": "logits", "prob": "probs"}
_EXPECTED = (
    "expected logit_0, logit_1, ... or prob_0, prob_1, ... (or one column logit or prob for a "
    "binary score) with label, or probability or confidence with happened or correct, and "
    "optionally id, weight and cluster; or name your columns with score_columns= and label_column="
)
# Names of an outcome that do not say what happened.
_ANY_OUTCOME = ("label", "labels", "happened", "outcome", "target", "y", "y_true")
# Values of a label column that say that it happened, not what.
_ANSWERS = ("yes", "y", "true", "t", "positive", "pos", "correct", "right", "case", "event")
_SEPARATORS = "_-.: "
_TRUE_FALSE = {"true": 1, "false": 0, "1": 1, "0": 0}
_WHOLE_NUMBER = re.compile(r"0|-?[1-9][0-9]{0,17}")
_MOST_DIGITS = 8  # more printed digits than this miss 1 by less than is accepted anyway
_ACCEPTED_MISS = 1e-3  # what `ScoreCheck` accepts as rounding of a softmax


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnNames:
    """The columns that the caller names, and what to do with their values.

    Args:
        scores: The score columns: a list, names joined by commas, or the prefix of their names.
        label: The column of labels or outcomes; a list for many labels a row.
        weight: The column of weights.
        cluster: The column of clusters.
        id: The column of ids.
        event: What the one score column is the probability of.
        pos_label: The value of the label column that means that the event happened; without a
            meaning for classes.
        drop_unlabelled: Leave out rows whose label is missing.
        class_names: The names of the classes, which labels of text are matched with.
        extra: Further columns to return, such as groups.
    """

    scores: str | Sequence[str] | None = None
    label: str | Sequence[str] | None = None
    weight: str | None = None
    cluster: str | None = None
    id: str | None = None
    event: str | None = None
    pos_label: str | int | bool | None = None
    drop_unlabelled: bool = False
    class_names: Sequence[str] | None = None
    extra: Sequence[str] = ()


@dataclass
class Selection:
    """The columns of one table by what they hold."""

    kind: str | None
    scores: list[str]
    is_one_column: bool
    task: str
    event: str | None = None
    labels: list[str] = field(default_factory=list)
    class_names: tuple[str, ...] | None = None  # of score columns that the caller named
    weight: str | None = None
    cluster: str | None = None
    id: str | None = None
    num_options: str | None = None
    extra: tuple[str, ...] = ()

    @property
    def small(self) -> list[str]:
        """Return every column but the scores, each once."""
        names = [*self.labels, self.weight, self.cluster, self.id, self.num_options, *self.extra]
        return list(dict.fromkeys(name for name in names if name is not None))


class Column(NamedTuple):
    """The values of a column, and where they are missing (None: nowhere)."""

    values: npt.NDArray[Any]
    missing: npt.NDArray[np.bool_] | None = None


def choose_columns(
    names: Sequence[str],
    options: ColumnNames,
    notes: Mapping[str, Any] | None = None,
    known: Iterable[str] = (),
) -> Selection:
    """Choose the columns by the caller's names, or else by their usual names.

    One score column that the caller names, with a column of outcomes, is an event. If the caller
    names score columns, other columns count only if the caller names them too (but ``label`` and
    ``id``): a ``weight`` may be in kilograms.

    Args:
        names: The names of all columns.
        options: The columns that the caller names.
        notes: The notes of the file, which may hold its task and event.
        known: Columns that may be there without a use, such as partitions.
    """
    notes = notes or {}
    twice = sorted(name for name, count in Counter(names).items() if count > 1)
    if twice:
        raise InputError(f"columns found more than once: {first(twice)}")
    present = set(names)
    label = None if options.label is None else _split_names(options.label, present)
    asked = [options.weight, options.cluster, options.id, *(label or ()), *options.extra]
    for name in asked:
        if name is not None and name not in present:
            raise _no_column(name, names, is_label=name in (label or ()))
    if options.scores is None:
        chosen = _choose_usual(names, present, notes)
    else:
        chosen = _choose_named(names, present, options.scores, {name for name in asked if name})
    chosen.labels = _choose_labels(present, chosen, label, options)
    if set(chosen.labels) & set(chosen.scores):
        raise InputError(f"column {chosen.labels[0]!r} cannot be both a score and the label")
    _choose_task(chosen, options, notes)
    usual = options.scores is None
    chosen.weight = options.weight or ("weight" if usual and "weight" in present else None)
    chosen.cluster = options.cluster or ("cluster" if usual and "cluster" in present else None)
    chosen.id = options.id or ("id" if "id" in {*names} - {*chosen.scores} else None)
    chosen.num_options = "num_options" if usual and "num_options" in present else None
    chosen.extra = tuple(options.extra)
    if usual:
        _check_unknown(names, chosen, known)
    return chosen


def _split_names(written: str | Sequence[str], present: set[str]) -> list[str]:
    """Return a list of names; text is one name, or several joined by commas."""
    if not isinstance(written, str):
        return [str(name) for name in written]
    if written in present or "," not in written:
        return [written]
    return [name.strip() for name in written.split(",") if name.strip()]


def _no_column(name: str, names: Sequence[str], *, is_label: bool = False) -> InputError:
    near = difflib.get_close_matches(name, names[:1000], n=3)
    hint = f" Did you mean {' or '.join(map(repr, near))}?" if near else ""
    separators = [mark for mark in (";", "\t", "|") if len(names) == 1 and mark in names[0]]
    if separators:
        hint = f" The columns of a .csv are separated by commas, not by {separators[0]!r}."
    elif is_label and not near:
        hint = " If these rows have no labels, leave label_column= out."
    return InputError(
        f"no column is called {name!r}; found {first(map(repr, names), 12) or 'none'}.{hint}"
    )


def _choose_usual(names: Sequence[str], present: set[str], notes: Mapping[str, Any]) -> Selection:
    """Choose score columns that have their usual names."""
    mismatch = f"found columns {first((repr(name) for name in names), 12)}; {_EXPECTED}"
    matches = {name: match for name in names if (match := _CLASS_SCORES.fullmatch(name))}
    kinds = sorted({match[1] for match in matches.values()})
    events = [name for name in EVENT_SCORES if name in present]
    if len(kinds) == 2:
        raise InputError("the table holds both logits and probs: keep the columns of one")
    if len(events) + len(kinds) > 1:
        several = first(map(repr, [*matches, *events]))
        raise InputError(
            f"several columns may hold the scores ({several}): keep one form, or say which with "
            "score_columns="
        )
    if events:
        return Selection("probs", events, True, "events")
    if not kinds:
        raise InputError(f"no columns of logits or probabilities: {mismatch}")
    stem = kinds[0]
    if stem in matches:
        if len(matches) > 1:
            raise InputError(f"column {stem!r} (binary) beside {stem}_k: keep one form; {mismatch}")
        return Selection(_KIND[stem], [stem], True, "classes")
    return Selection(_KIND[stem], _number_columns(matches.values(), stem), False, "classes")


def _number_columns(matches: Iterable[re.Match[str]], stem: str) -> list[str]:
    """Return ``stem_0``, ``stem_1``, ... in order; raise if one is missing."""
    numbers = {int(match[match.re.groups]) for match in matches}
    if max(numbers) + 1 != len(numbers):
        gaps = (f"{stem}_{k}" for k in range(max(numbers) + 1) if k not in numbers)
        raise InputError(
            f"columns missing between {stem}_0 and {stem}_{max(numbers)}: {first(islice(gaps, 6))}"
        )
    return [f"{stem}_{k}" for k in range(len(numbers))]


def has_scores(names: Sequence[str], given: str) -> bool:
    """Return whether a file with these names has the score columns that the caller names."""
    present = set(names)
    columns = _split_names(given, present)
    if len(columns) > 1:
        return set(columns) <= present
    return any(name.startswith(columns[0]) for name in names) if columns else False


def has_usual_scores(names: Sequence[str]) -> bool:
    """Return whether a file with these names has scores with a usual name."""
    return any(name in (*KINDS, *EVENT_SCORES) or _CLASS_SCORES.fullmatch(name) for name in names)


def _choose_named(
    names: Sequence[str], present: set[str], written: str | Sequence[str], others: set[str]
) -> Selection:
    """Choose the score columns that the caller names, or whose prefix the caller names."""
    columns = _split_names(written, present)
    class_names: tuple[str, ...] = tuple(columns)
    if isinstance(written, str) and len(columns) == 1 and columns[0] not in present:
        prefix = columns[0]
        if not prefix:
            raise InputError("score_columns= names no column: name at least one")
        columns = [
            name for name in names if name.startswith(prefix) and name not in {*others, "label"}
        ]
        if not columns:
            raise _no_column(prefix, names)
        ends = {name: name[len(prefix) :].lstrip(_SEPARATORS) for name in columns}
        if all(_WHOLE_NUMBER.fullmatch(end) for end in ends.values()):
            columns.sort(key=lambda name: int(ends[name]))
        class_names = tuple(ends[name] or name for name in columns)
    for name in columns:
        if name not in present:
            raise _no_column(name, names)
    if not columns:
        raise InputError("score_columns= names no column: name at least one")
    if len(set(columns)) < len(columns):
        raise InputError(f"score_columns= names a column twice: {first(map(repr, columns), 12)}")
    kind = None
    if all(name.startswith("logit") for name in columns):
        kind = "logits"
    elif all(name.startswith(("prob", "confidence")) for name in columns):
        kind = "probs"
    return Selection(kind, columns, len(columns) == 1, "classes", class_names=class_names)


def _choose_labels(
    present: set[str], chosen: Selection, label: list[str] | None, options: ColumnNames
) -> list[str]:
    if label is not None:
        return label
    outcomes = [name for name in OUTCOMES if name in present] if chosen.is_one_column else []
    if options.scores is not None:
        outcomes = []  # other columns count only if the caller names them
    candidates = [*outcomes, *(["label"] if "label" in present else [])]
    if len(candidates) > 1:
        raise InputError(
            f"several columns may hold the outcomes ({first(map(repr, candidates))}): "
            "say which with label_column="
        )
    if candidates or options.scores is not None:
        return candidates
    many = [match for name in present if (match := _LABEL_OF_MANY.fullmatch(name))]
    return _number_columns(many, "label") if many else []


def _choose_task(chosen: Selection, options: ColumnNames, notes: Mapping[str, Any]) -> None:
    """Set the task and the event."""
    labels = chosen.labels
    is_many = not chosen.is_one_column and (
        len(labels) > 1 or (bool(labels) and _LABEL_OF_MANY.fullmatch(labels[0]) is not None)
    )
    if len(labels) > 1 and not is_many:
        raise InputError(
            f"found {len(labels)} columns of labels ({first(map(repr, labels))}) for one score "
            "column: name one with label_column="
        )
    if is_many or notes.get("task") == "multilabel":
        chosen.task = "multilabel"
        if labels and len(labels) != len(chosen.scores):
            raise InputError(
                f"found {len(labels)} columns of labels for {len(chosen.scores)} columns of "
                "scores: many labels a row need one of each"
            )
    named = options.scores is not None and chosen.is_one_column
    if chosen.is_one_column and (
        named
        or options.event is not None
        or notes.get("task") == "events"
        or (bool(labels) and labels[0] in OUTCOMES)
    ):
        chosen.task = "events"
    if chosen.task != "events":
        if options.event is not None:
            raise InputError(
                "event= says what one score column is the probability of; found "
                f"{len(chosen.scores)} score columns"
            )
        return
    chosen.class_names = None
    outcome = labels[0] if labels else "happened"
    default = "event" if outcome in _ANY_OUTCOME else outcome
    if isinstance(options.pos_label, str) and not _is_answer(options.pos_label):
        default = options.pos_label  # a column "diagnosis" does not happen, "malignant" does
    chosen.event = options.event or notes.get("event") or default


def _is_answer(value: str) -> bool:
    """Return whether a value of a label column only says yes or no to what the column asks."""
    text = value.strip().lower()
    return text in _ANSWERS or not any(letter.isalpha() for letter in text)


def _check_unknown(names: Sequence[str], chosen: Selection, known: Iterable[str]) -> None:
    """Raise for columns without a use: all of them, or for events those that look mistyped."""
    used = {*chosen.scores, *chosen.small, *known, *_INDEX}
    unknown = [name for name in names if name not in used]
    if chosen.task == "events":
        # Logs of events have columns of text beside them, such as the prompt.
        usual = (*OUTCOMES, "label", "id", "weight", "cluster")
        unknown = [
            name for name in unknown if difflib.get_close_matches(name.lower(), usual, cutoff=0.8)
        ]
    if unknown:
        shown = first(repr(name) for name in unknown)
        raise InputError(
            f"unknown columns {shown}: rename or drop them, or say what they hold "
            "(weight_column=, cluster_column=); "
            f"found columns {first((repr(name) for name in names), 12)}; {_EXPECTED}"
        )


def make_contents(
    chosen: Selection,
    scores: Any,
    columns: Mapping[str, Column],
    options: ColumnNames,
    notes: Mapping[str, Any] | None = None,
) -> Contents:
    """Make `Contents` of the chosen columns; labels become numbers."""
    notes = notes or {}

    def values_of(name: str | None, what: str) -> npt.NDArray[Any] | None:
        if name is None:
            return None
        _refuse_missing(columns[name], f"column {name!r} ({what})")
        return columns[name].values

    class_names = options.class_names or notes.get("class_names") or chosen.class_names
    contents = Contents(
        scores=scores,
        kind=chosen.kind,
        class_names=class_names,
        ids=make_plain(values_of(chosen.id, "ids")),
        ignore_index=notes.get("ignore_index"),
        task=chosen.task,
        event=chosen.event,
        weights=values_of(chosen.weight, "weights"),
        clusters=make_plain(values_of(chosen.cluster, "clusters")),
        num_options=values_of(chosen.num_options, "numbers of options"),
        extra={name: blank_missing(columns[name]) for name in chosen.extra},
        label_column=chosen.labels[0] if chosen.labels else "label",
    )
    if len(chosen.labels) == 1 and chosen.task != "multilabel":
        contents.labels = blank_missing(columns[chosen.labels[0]])
    elif chosen.labels:
        parts = [
            _to_outcomes(columns[name].values, columns[name].missing, None, f"column {name!r}")
            for name in chosen.labels
        ]
        contents.labels = np.stack(parts, axis=1)
    contents = settle_labels(contents, options)
    names = contents.class_names
    is_own = options.class_names is None and names is not None and names == chosen.class_names
    if is_own and list(names) == [str(k) for k in range(len(names))]:
        contents.class_names = None  # score_0, score_1, ... are numbers, not names
    return contents


def settle_labels(contents: Contents, options: ColumnNames) -> Contents:
    """Turn labels of text, truth values or whole floats into class numbers or outcomes.

    Missing labels (None, NaN or empty text) are an error, or left out where that was asked for.
    """
    labels = contents.labels
    if labels is None:
        if options.drop_unlabelled:
            raise InputError(
                "drop_unlabelled=True leaves out rows without a label, but there are no labels"
            )
        return contents
    if contents.task == "multilabel":
        if options.drop_unlabelled:
            values = as_numpy(labels)
            known = (values != -1) & (values == values)
            return _drop(contents, ~known.reshape(len(values), -1).any(1))
        return contents
    is_event = contents.task == "events"
    if isinstance(labels, torch.Tensor) and not (is_event or labels.is_floating_point()):
        return contents
    values = as_numpy(labels) if isinstance(labels, torch.Tensor) else np.asarray(labels)
    if values.ndim != 1 or not len(values):
        return contents
    missing = find_missing(values)
    if is_event and options.drop_unlabelled and values.dtype.kind in "if":
        missing = missing | (values == -1)
    where = f"column {contents.label_column!r}"
    if missing.any():
        if options.drop_unlabelled:
            contents = _drop(contents, missing)
            labels = contents.labels
            values = as_numpy(labels) if isinstance(labels, torch.Tensor) else np.asarray(labels)
            missing = np.zeros(len(values), dtype=bool)
        else:
            rows = np.flatnonzero(missing)
            raise InputError(
                f"{where} has missing values (first rows: {first(rows.tolist())}), {len(rows):,} "
                "in all: leave these rows out with drop_unlabelled=True"
            )
    if is_event:
        settled: Any = _to_outcomes(values, None, options.pos_label, where)
    else:
        settled, names = _to_class_numbers(values, contents.class_names, options, where)
        contents = replace(contents, class_names=names)
    return replace(contents, labels=settled)


def _drop(contents: Contents, missing: npt.NDArray[np.bool_]) -> Contents:
    if not missing.any():
        return contents
    if missing.all():
        raise InputError("no label is left: every row's label is missing")
    warnings.warn(
        f"left out {int(missing.sum()):,} of {len(missing):,} rows without a label",
        UserWarning,
        stacklevel=2,
    )
    return contents.take(np.flatnonzero(~missing))


def find_missing(values: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    """Return where values are None, NaN, not a time, or empty text."""
    if values.dtype.kind in "iub":
        return np.zeros(values.shape, dtype=bool)
    if values.dtype.kind in "fc":
        return np.isnan(values)
    if values.dtype.kind in "mM":
        return np.isnat(values)
    if values.dtype.kind in "SU":
        return np.asarray(np.char.strip(values) == values.dtype.type())
    flat = [_is_missing(item) for item in values.reshape(-1).tolist()]
    return np.array(flat, dtype=bool).reshape(values.shape)


def _is_missing(item: Any) -> bool:
    if item is None or (isinstance(item, str) and not item.strip()):
        return True
    if type(item).__name__ in ("NAType", "NaTType"):  # pandas, which need not be there
        return True
    return isinstance(item, float) and item != item


def blank_missing(column: Column) -> npt.NDArray[Any]:
    """Return the values, with None where they are missing."""
    if column.missing is None or not column.missing.any():
        return column.values
    values = column.values.astype(object)
    values[column.missing] = None
    return values


def _refuse_missing(column: Column, where: str) -> None:
    missing = column.missing
    if missing is not None and missing.any():
        rows = np.flatnonzero(missing)
        raise InputError(
            f"{where} has missing values in {len(rows):,} rows (first rows: "
            f"{first(rows.tolist())}): fill them in, or drop those rows"
        )


def make_plain(values: Any) -> Any:
    """Return values as whole numbers if all are, else as text; tensors and None as they are."""
    if values is None or isinstance(values, torch.Tensor):
        return values
    values = np.asarray(values)
    if values.dtype.kind == "b":
        return values.astype(np.int64)
    if values.dtype.kind == "f":
        whole = _to_whole(values)
        return values.astype(np.str_) if whole is None else whole
    if values.dtype.kind == "O":
        items = values.reshape(-1).tolist()
        if all(type(item) is int and -(2**63) <= item < 2**63 for item in items):
            return np.array(items, dtype=np.int64).reshape(values.shape)
    if values.dtype.kind in "OmM":
        return as_texts(values, "ids and clusters")
    return values


def _to_whole(values: npt.NDArray[Any]) -> npt.NDArray[np.int64] | None:
    """Return floats as int64; None if some have a fraction or do not fit."""
    if not (np.isfinite(values).all() and (values == np.floor(values)).all()):
        return None
    return values.astype(np.int64) if (np.abs(values) < 2**63).all() else None


def _to_numbers(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return whole numbers and truth values as int64 where values are such, else as given."""
    if values.dtype.kind == "O":
        items = values.tolist()
        if all(type(item) is bool for item in items):
            return values.astype(bool)
        if all(isinstance(item, (int, float)) and not isinstance(item, bool) for item in items):
            values = np.array(items)
    if values.dtype.kind == "f":
        whole = _to_whole(values)
        return values if whole is None else whole
    return values


def _to_class_numbers(
    values: npt.NDArray[Any], class_names: Any, options: ColumnNames, where: str
) -> tuple[Any, Any]:
    """Return class numbers, and the names of the classes that the labels matched."""
    numbers = _to_numbers(values)
    is_named = options.scores is not None and options.class_names is None
    if numbers.dtype.kind in "iu":
        # Columns called 1, 2, 3 are classes 1, 2, 3, not the second, third and fourth class.
        if (
            is_named
            and class_names is not None
            and all(_WHOLE_NUMBER.fullmatch(name) for name in class_names)
        ):
            return _match_names(numbers.astype(np.str_), class_names, where), class_names
        return numbers, class_names
    if numbers.dtype.kind not in "OSU" or not all(isinstance(v, str) for v in numbers.tolist()):
        return numbers, class_names  # refused by `as_labels`
    if class_names is None:
        return numbers, None  # refused by `as_labels`
    texts = np.array([text.strip() for text in numbers.tolist()], dtype=object)
    names = tuple(class_names)
    short = _strip_common_prefix(names) if is_named else names
    written = set(texts.tolist())
    if short != names and not written <= set(names) and written <= set(short):
        names = short
    return _match_names(texts, names, where), names


def _strip_common_prefix(names: tuple[str, ...]) -> tuple[str, ...]:
    """Return ``cat, dog`` of ``prob_cat, prob_dog``."""
    ends = (min(names), max(names))  # what the first and last share, all share
    same = [a == b for a, b in zip(*ends, strict=False)]
    prefix = ends[0][: same.index(False) if False in same else len(same)]
    end = 1 + max(prefix.rfind(separator) for separator in _SEPARATORS)
    short = tuple(name[end:] for name in names)
    return short if all(short) else names


def _match_names(
    texts: npt.NDArray[Any], class_names: Sequence[str], where: str
) -> npt.NDArray[np.int64]:
    numbers = {str(name): number for number, name in enumerate(class_names)}
    numbers_of_rows = np.array([numbers.get(text, -1) for text in texts.tolist()], dtype=np.int64)
    unmatched = np.flatnonzero(numbers_of_rows < 0)
    if len(unmatched):
        shown = first((repr(text[:60]) for text in dict.fromkeys(texts[unmatched].tolist())), 5)
        raise InputError(
            f"{where}: {shown} is no class, in {len(unmatched):,} rows (first rows: "
            f"{first(unmatched.tolist())}); the classes are "
            f"{first((repr(str(name)[:60]) for name in class_names), 12)}"
        )
    return numbers_of_rows


def match_class_names(labels: Any, class_names: Sequence[str] | None) -> Any:
    """Return the class numbers of labels that are names of classes; other labels as they are."""
    if class_names is None or isinstance(labels, (torch.Tensor, str, bytes, dict)):
        return labels
    if isinstance(class_names, str) or not all(isinstance(name, str) for name in class_names):
        return labels
    try:
        values = np.asarray(labels)
    except (ValueError, TypeError):
        return labels
    texts = values.reshape(-1).tolist() if values.dtype.kind in "OU" and values.ndim == 1 else []
    if not texts or not all(isinstance(text, str) for text in texts):
        return labels
    return _match_names(values, class_names, "labels")


def _to_outcomes(
    values: npt.NDArray[Any],
    missing: npt.NDArray[np.bool_] | None,
    pos_label: str | int | bool | None,
    where: str,
) -> npt.NDArray[np.int8]:
    """Return 1 where the event happened, 0 where not, and −1 where the outcome is missing."""
    if missing is None:
        missing = np.zeros(len(values), dtype=bool)
    missing = missing | find_missing(values)
    known = values[~missing]
    numbers = _to_numbers(known)
    if pos_label is not None:
        texts = _as_texts(numbers)
        happened = texts == str(pos_label)
        if not happened.any():
            shown = first((repr(text[:60]) for text in dict.fromkeys(texts.tolist())), 8)
            raise InputError(f"{where} never has the value pos_label={pos_label!r}; found {shown}")
    elif numbers.dtype.kind in "OSU":
        texts = _as_texts(numbers)
        lower = [text.strip().lower() for text in texts.tolist()]
        if not set(lower) <= set(_TRUE_FALSE):
            shown = first((repr(text[:60]) for text in dict.fromkeys(texts.tolist())), 8)
            raise InputError(
                f"{where} holds text ({shown}): say which value means that the event happened with "
                "pos_label="
            )
        happened = np.array([_TRUE_FALSE[text] for text in lower])
    else:
        happened = numbers
        wrong = happened[(happened != 0) & (happened != 1) & (happened != -1)]
        if len(wrong):
            raise InputError(
                f"{where} must be 0 or 1, or -1 where missing; found "
                f"{first(np.unique(wrong).tolist())}: say which value means that the event "
                "happened with pos_label="
            )
    outcomes = np.full(len(values), -1, dtype=np.int8)
    outcomes[~missing] = happened
    return outcomes


def _as_texts(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    return np.array([str(item) for item in values.tolist()], dtype=object)


# Probabilities that were printed with few digits.


def count_digits(values: Array) -> int | None:
    """Return how many digits after the point print these numbers; None if more than eight."""
    numbers = as_numpy(values).reshape(-1).astype(np.float64)
    for digits in range(_MOST_DIGITS, -1, -1):
        scaled = numbers * 10.0**digits
        if (np.abs(scaled - np.rint(scaled)) > 1e-6).any():
            return None if digits == _MOST_DIGITS else digits + 1
    return 0


def rounding_miss(num_classes: int, digits: int) -> float:
    """Return by how much K probabilities of d printed digits may miss 1: 4·sqrt(K/12)·10^−d."""
    return float(4 * np.sqrt(num_classes / 12) * 10.0**-digits)


class RoundedSums:
    """Look for rows of printed probabilities that miss 1, by no more than rounding explains."""

    def __init__(self) -> None:
        self._worst, self._count, self._digits, self._rows = 0.0, 0, 0, 0
        self._is_printed = True

    def update(self, block: npt.NDArray[Any]) -> None:
        """Look at some rows."""
        misses = np.abs(block.sum(1) - 1)
        self._rows += len(block)
        if np.isnan(misses).any() or not self._is_printed:
            self._is_printed = False
            return
        self._worst = max(self._worst, float(misses.max()))
        self._count += int((misses > 1e-9).sum())
        digits = count_digits(block)
        self._is_printed = digits is not None
        self._digits = max(self._digits, digits or 0)

    def explains(self, num_classes: int) -> bool:
        """Return whether rounding explains sums that would be refused; warn if so."""
        if not self._is_printed or self._worst <= _ACCEPTED_MISS:
            return False
        if self._worst > rounding_miss(num_classes, self._digits) + 1e-12:
            return False
        warnings.warn(
            f"{self._count:,} of {self._rows:,} rows of probabilities miss 1 by up to "
            f"{self._worst:.2g}, as rounding to {self._digits} digits explains: they were divided "
            "by their sums",
            UserWarning,
            stacklevel=2,
        )
        return True


def normalise_rows(block: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Divide each row that misses 1 by its sum."""
    sums = block.sum(1, keepdims=True)
    scaled: npt.NDArray[Any] = np.where(np.abs(sums - 1) > 1e-9, block / sums, block)
    return scaled


def rename_members(
    members: Mapping[str, Any], options: ColumnNames, kind: str | None
) -> dict[str, Any]:
    """Give the arrays that the caller names in a file of arrays their usual keys."""
    moves = [
        (options.scores, (*KINDS, *EVENT_SCORES), kind),
        (options.label, ("labels", *OUTCOMES), "labels"),
        (options.weight, ("weights", "weight"), "weights"),
        (options.cluster, ("clusters", "cluster"), "clusters"),
        (options.id, ("ids",), "ids"),
    ]
    renamed = dict(members)
    if options.scores is not None:
        named = {name for name, _, _ in moves if isinstance(name, str)}
        renamed = {
            key: array for key, array in renamed.items() if key in {*named, "labels", "class_names"}
        }
    for name, usual, key in moves:
        if name is None:
            continue
        if not isinstance(name, str) or name not in members:
            raise InputError(
                f"no array is called {name!r}; found {first(map(repr, members), 12) or 'none'}"
            )
        for other in set(usual) - {name}:
            renamed.pop(other, None)
        if name not in usual:
            renamed[agree_kind(key, None) if usual[0] in KINDS else str(key)] = renamed.pop(name)
    return renamed
