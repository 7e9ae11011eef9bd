"""Compare our runs with the paper's runs behind a claim.

The papers' settings are in ``protocols.yaml``; ours are read from the suite, so that no difference
is forgotten. A claim's ``here:`` describes by hand only what settings do not show.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from calibrant.bench import Cell, Results, Spec
from calibrant.core.errors import InputError, no_such
from calibrant.core.method_text import parse_terms

FILE = Path(__file__).parents[1] / "protocols.yaml"
FEWEST_SEEDS = 3
# Settings to compare, and how to describe a difference.
COMPARED = {
    "data": "{ours} in place of {theirs}",
    "model": "{ours} in place of {theirs}",
    "epochs": "{ours} epochs in place of {theirs}",
    "batch_size": "batches of {ours} in place of {theirs}",
}
REFERENCE_BATCH = 128  # the batch size that r-AURC's strengths are made for


@dataclass(frozen=True)
class Protocol:
    """Hold the settings of a paper's runs."""

    name: str
    settings: tuple[Mapping[str, tuple[Any, ...]], ...]
    tuned: bool = False  # whether the paper tunes every method


@dataclass(frozen=True)
class Conditions:
    """Hold the differences from the paper, and the reasons why our runs are no evidence."""

    differences: tuple[str, ...] = ()
    disqualified: tuple[str, ...] = ()


def read_protocols(path: Path = FILE) -> dict[str, Protocol]:
    """Read protocols by name from a file. Default: the five papers' protocols."""
    return _read_file(path)


@lru_cache(maxsize=4)
def _read_file(path: Path) -> dict[str, Protocol]:
    import yaml

    protocols = {}
    for name, entry in yaml.safe_load(path.read_text(encoding="utf-8")).items():
        for key in entry:
            if key not in ("settings", "tuned"):
                raise InputError(
                    f"{path.name}: {name}: {no_such('key', key, ('settings', 'tuned'))}"
                )
        settings = tuple(
            {
                key: tuple(value) if isinstance(value, list) else (value,)
                for key, value in row.items()
            }
            for row in entry["settings"]
        )
        for row in settings:
            for key in row:
                if key not in (*COMPARED, "logits"):
                    raise InputError(f"{path.name}: {name}: unknown setting {key!r}")
        protocols[name] = Protocol(name, settings, bool(entry.get("tuned", False)))
    return protocols


def compare_conditions(
    protocol: Protocol,
    results: Results,
    places: Collection[tuple[Cell, str]],
    *,
    parts: Iterable[str] = ("test",),
    seeds: int | None = None,
    note: str = "",
) -> Conditions:
    """Compare runs with the protocol of a paper.

    Args:
        protocol: the paper's settings.
        results: our results of a suite.
        places: the cells and methods that were judged.
        parts: the parts of the data that were judged. Default: test rows.
        seeds: the smallest number of seeds in a comparison. Default: None, the claim is not
            tested over seeds.
        note: other differences, in words. Default: none.
    """
    specs = {
        (cell, method): spec
        for _, spec in results.suite.specs
        for method, cell, _ in results.plan[spec.key]
        if (cell, method) in places
    }
    if not specs:
        return Conditions()
    differences = dict.fromkeys(
        text for spec in specs.values() for text in _compare_settings(protocol, spec)
    )
    texts = [*_format_differences(differences)]
    clipped = sorted({method for (_, method), spec in specs.items() if spec.config.clip})
    if clipped:
        texts.append(f"gradients clipped for {', '.join(clipped)}")
    if any(_has_race(spec) for spec in specs.values()):
        texts.append("γ of mac_cal chosen by a race that stops weak candidates early")
    if any(part.startswith("test:") for part in parts):
        texts.append("corruptions made here in place of the official files")
    if any(part.startswith("ood:") for part in parts):
        texts.append("the other CIFAR alone in place of the mean over it and SVHN")
    if seeds is not None and seeds < FEWEST_SEEDS:
        texts.append(f"only {seeds} seed{'s' * (seeds != 1)}; a verdict needs {FEWEST_SEEDS}")
    if note:
        texts.append(note)
    disqualified = []
    if protocol.tuned and not (results.suite.tune or results.suite.choices):
        disqualified.append("the paper tunes every method, and these runs are not tuned")
    unmatched = sorted({m for (_, m), spec in specs.items() if has_unmatched_strength(spec)})
    if unmatched:
        batches = _join(sorted({spec.config.batch_size for spec in specs.values()}))
        disqualified.append(
            f"{', '.join(unmatched)} has the strength for batches of {REFERENCE_BATCH} but trains "
            f"with batches of {batches}, "
            "which makes it another method (reference_batch=None)"
        )
    return Conditions(tuple(texts), tuple(disqualified))


def has_unmatched_strength(spec: Spec) -> bool:
    """Return whether a run trained r_aurc with a strength made for another batch size."""
    if spec.logits is not None or spec.config.batch_size == REFERENCE_BATCH:
        return False
    terms = [term for term in parse_terms(spec.config.loss) if term[1] == "r_aurc"]
    return any(term[2].get("reference_batch") is None for term in terms)


def _has_race(spec: Spec) -> bool:
    """Return whether a race chose γ; without the option, assume the former default, True."""
    return spec.config.recipe == "mac_cal" and bool(spec.config.recipe_options.get("race", True))


def _compare_settings(protocol: Protocol, spec: Spec) -> list[tuple[str, str, str]]:
    """List (setting, ours, theirs) that differ from the paper's settings nearest to a run's."""
    return min((_compare_with(row, spec) for row in protocol.settings), key=_distance)


def _compare_with(row: Mapping[str, tuple[Any, ...]], spec: Spec) -> list[tuple[str, str, str]]:
    if spec.logits is not None:
        wanted = row.get("logits", ("the paper's own",))
        same = any(str(part) in str(spec.logits) for part in wanted)
        return [] if same else [("logits", "logits of other networks", "the paper's")]
    ours = spec.config.to_dict()
    return [
        (name, str(ours[name]), " or ".join(map(str, row[name])))
        for name in COMPARED
        if name in row and ours[name] not in row[name]
    ]


def _distance(differences: list[tuple[str, str, str]]) -> tuple[bool, int]:
    """Rank by the same data first, then by the fewest differences."""
    return any(name == "data" for name, _, _ in differences), len(differences)


def _format_differences(differences: Iterable[tuple[str, str, str]]) -> Iterable[str]:
    """Describe each setting once, with all of our values."""
    ours: dict[tuple[str, str], list[str]] = {}
    for name, value, theirs in differences:
        ours.setdefault((name, theirs), []).append(value)
    for (name, theirs), values in ours.items():
        form = COMPARED.get(name, "{ours} in place of {theirs}")
        yield form.format(ours=_join(values), theirs=theirs)


def _join(values: Iterable[object]) -> str:
    return " and ".join(map(str, values))
