"""What a file of predictions holds, and which of its names say what."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from calibrant.functional.errors import InputError, first
from calibrant.functional.rows import Array
from calibrant.predictions.sources import FileScores

KINDS = ("logits", "probs")
OPTIONAL_KEYS = ("class_names", "ids", "ignore_index")


@dataclass
class Contents:
    """The pieces found in a file; ``kind`` is None where the file does not say."""

    scores: Array | FileScores
    kind: str | None
    labels: Any = None
    class_names: Any = None
    ids: Any = None
    ignore_index: Any = None


def kind_of_keys(keys: Collection[str]) -> str:
    """``logits`` or ``probs``, whichever is among the keys; anything unknown is an error."""
    expected = "expected 'logits' or 'probs', 'labels', and optionally " + ", ".join(
        repr(key) for key in OPTIONAL_KEYS
    )
    if not keys:
        raise InputError(f"the file is empty; {expected}")
    found = f"found {first((repr(key) for key in sorted(keys)), 12)}; {expected}"
    kinds = [kind for kind in KINDS if kind in keys]
    if len(kinds) == 2:
        raise InputError("both logits and probs are given: keep the one to be judged")
    if not kinds:
        raise InputError(f"neither logits nor probs: {found}")
    unknown = set(keys) - {*KINDS, "labels", *OPTIONAL_KEYS}
    if unknown:
        names = first(repr(key) for key in sorted(unknown))
        raise InputError(f"unknown keys {names}: rename or drop them; {found}")
    return kinds[0]


def agreed_kind(found: str | None, asked: str | None) -> str:
    """The kind the file says, or the one the caller says; they must not contradict."""
    if asked is not None and asked not in KINDS:
        raise InputError(f"kind must be 'logits' or 'probs', found {asked!r}")
    if found is None and asked is None:
        raise InputError(
            "a bare array does not say whether it holds logits or probabilities: "
            "say kind='logits' or kind='probs'"
        )
    if found is not None and asked is not None and found != asked:
        raise InputError(
            f"kind={asked!r} was asked for, but the file's own names say {found!r}: "
            f"rename them where they are wrong"
        )
    return found or asked or ""


def notes_to_text(notes: Mapping[str, Any]) -> str:
    """Class names and the like as JSON, for formats that carry text beside the columns."""
    return json.dumps({key: value for key, value in notes.items() if value is not None})


def notes_from_text(text: str | bytes | None) -> dict[str, Any]:
    """The inverse of ``notes_to_text``; nothing written is nothing noted."""
    if text is None:
        return {}
    notes = json.loads(text)
    if not isinstance(notes, dict):
        raise InputError(f"its calibrant metadata should be a JSON object, found {notes!r}")
    return notes
