"""Read the papers' claims from ``claims.yaml``.

A claim is a comparison: ``left`` has a better figure than ``right``. Its test has these keys:

- ``metric``: a metric or a list of metrics. ``better: lower`` or ``higher`` replaces the
  metric's own direction;
- ``left``, ``right``: the two sides. Each side may set ``method``, ``calibrator``, ``part`` and
  ``metric``, as a value or a list. Every left entry is compared with every right entry. With
  ``pick: best`` a side uses only its method with the best figure on validation rows, among
  methods whose accuracy is at least half of the highest. If that side loses while a method that
  it could pick has no runs, the claim stays open;
- ``method``: methods that both sides share; ``"*"`` means every method of the suite. Each method
  is compared with itself, for example before and after a calibrator;
- ``zip: true``: compare the first left entry with the first right entry, the second with the
  second, and so on;
- ``only``: the settings that the claim is about, such as ``{data: cifar10}``;
- ``margin``: how much worse left may be;
- ``ratio``: compare left with this many times right;
- ``decide``: the claim holds if ``every`` comparison favours left (the default), if their
  ``mean`` does, if ``some`` comparison does, or if the ``count`` of those that do is more than
  half. A ``count`` stays open while planned comparisons could change it;
- ``pairs``: test over ``seeds`` (the default) or ``settings``. With ``settings`` each comparison
  is one pair; a suite with fewer than three settings but at least three seeds uses seeds;
- ``correlation``, in place of ``left`` and ``right``: two metrics that correlate over methods and
  ``calibrator``s. ``against`` names a third metric that correlates less with the second.

``protocol`` names the settings of the paper's own runs in ``protocols.yaml``. Default: the paper's
name. Differences from our settings are derived from the protocol. ``here`` describes differences
that settings do not show, by suite, or as one text for every suite but the paper's own.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from calibrant.bench.tables.formatting import check_metric, higher_is_better
from calibrant.core.errors import InputError, no_such
from replication.claims.conditions import read_protocols
from replication.published import PAPERS

FILE = Path(__file__).parents[1] / "claims.yaml"
KEYS = ("id", "paper", "where", "says", "suites", "test")
OPTIONAL_KEYS = ("here", "protocol")
TEST_KEYS = (
    "metric",
    "better",
    "left",
    "right",
    "method",
    "calibrator",
    "part",
    "zip",
    "only",
    "margin",
    "ratio",
    "decide",
    "pairs",
    "correlation",
    "against",
)
SIDE_KEYS = ("method", "calibrator", "part", "metric", "pick")
DECIDE = ("every", "mean", "some", "count")
PAIRS = ("seeds", "settings")


@dataclass(frozen=True)
class Side:
    """Describe one side of a comparison. Without methods it uses the test's shared methods."""

    methods: tuple[str, ...]
    calibrators: tuple[str, ...]
    part: str
    metrics: tuple[str, ...]  # empty: use the test's metrics
    best: bool  # use only the method that is best on validation rows


@dataclass(frozen=True)
class Test:
    """Define how to test a claim."""

    metrics: tuple[str, ...]
    lower: bool
    left: Side
    right: Side
    methods: tuple[str, ...]  # shared by both sides; ("*",): every method of the suite
    zipped: bool  # match the sides by position
    only: dict[str, tuple[Any, ...]]
    margin: float
    ratio: float
    decide: str
    pairs: str
    correlation: bool = False
    against: str | None = None


@dataclass(frozen=True)
class Claim:
    """Hold a paper's claim in our words, its place in the paper, and its test."""

    id: str
    paper: str
    where: str
    says: str
    suites: tuple[str, ...]
    test: Test
    here: Mapping[str, str] = field(default_factory=dict)  # differences from the paper, by suite
    protocol: str = ""  # name in protocols.yaml of the paper's settings


def read_claims(path: str | Path | None = None) -> tuple[Claim, ...]:
    """Read the claims in a file. Default: the five papers' claims."""
    return _read_file(Path(path) if path is not None else FILE)


@lru_cache(maxsize=4)
def _read_file(path: Path) -> tuple[Claim, ...]:
    import yaml

    try:
        entries = yaml.safe_load(path.read_text(encoding="utf-8"))
    except yaml.YAMLError as error:
        raise InputError(f"{path} is not valid YAML: {error}") from None
    claims = tuple(parse_claim(entry) for entry in entries)
    ids = [claim.id for claim in claims]
    twice = sorted({name for name in ids if ids.count(name) > 1})
    if twice:
        raise InputError(f"{path}: duplicate claim ids: {', '.join(twice)}")
    return claims


def parse_claim(entry: Mapping[str, Any]) -> Claim:
    """Parse a claim; raise InputError for an unknown key."""
    name = str(entry.get("id", "?"))
    try:
        _check_keys(entry, (*KEYS, *OPTIONAL_KEYS))
        for key in KEYS:
            if key not in entry:
                raise InputError(f"{key} is missing")
        if entry["paper"] not in PAPERS:
            raise no_such("paper", str(entry["paper"]), PAPERS)
        return Claim(
            id=name,
            paper=entry["paper"],
            where=str(entry["where"]),
            says=" ".join(str(entry["says"]).split()),
            suites=_to_texts(entry["suites"]),
            test=_parse_test(entry["test"]),
            here=_parse_here(entry),
            protocol=_parse_protocol(entry),
        )
    except InputError as error:
        raise InputError(f"claim {name}: {error}") from None


def _parse_test(entry: Mapping[str, Any]) -> Test:
    _check_keys(entry, TEST_KEYS)
    if "correlation" in entry:
        return _parse_correlation(entry)
    metrics = tuple(check_metric(name) for name in _to_texts(entry.get("metric")))
    left, right = (_parse_side(entry, name) for name in ("left", "right"))
    named = metrics or left.metrics
    if not named:
        raise InputError("metric is missing")
    shared = _to_texts(entry.get("method"))
    for side, name in ((left, "left"), (right, "right")):
        if bool(side.methods) == bool(shared):
            raise InputError(f"set either `method` in {name} or the shared `method`, not both")
    decide, pairs = str(entry.get("decide", "every")), str(entry.get("pairs", "seeds"))
    if decide not in DECIDE:
        raise no_such("way to decide", decide, DECIDE)
    if pairs not in PAIRS:
        raise no_such("kind of pairs", pairs, PAIRS)
    return Test(
        metrics=metrics,
        lower=_parse_better(entry.get("better"), named[0]),
        left=left,
        right=right,
        methods=shared,
        zipped=_parse_zip(entry, left, right),
        only={key: tuple(_to_list(value)) for key, value in (entry.get("only") or {}).items()},
        margin=float(entry.get("margin", 0.0)),
        ratio=float(entry.get("ratio", 1.0)),
        decide=decide,
        pairs=pairs,
    )


def _parse_correlation(entry: Mapping[str, Any]) -> Test:
    metrics = tuple(check_metric(name) for name in _to_texts(entry["correlation"]))
    if len(metrics) != 2:
        raise InputError(f"correlation needs two metrics, found {len(metrics)}")
    side = Side(
        (),
        _to_texts(entry.get("calibrator")) or ("none",),
        str(entry.get("part", "test")),
        (),
        False,
    )
    against = entry.get("against")
    return Test(
        metrics=metrics,
        lower=False,
        left=side,
        right=side,
        methods=_to_texts(entry.get("method")) or ("*",),
        zipped=False,
        only={key: tuple(_to_list(value)) for key, value in (entry.get("only") or {}).items()},
        margin=0.0,
        ratio=1.0,
        decide="mean",
        pairs="settings",
        correlation=True,
        against=None if against is None else check_metric(str(against)),
    )


def _parse_side(entry: Mapping[str, Any], name: str) -> Side:
    own = entry.get(name)
    if not isinstance(own, Mapping):
        raise InputError(f"{name} is missing")
    _check_keys(own, SIDE_KEYS)
    if own.get("pick", "best") != "best":
        raise InputError(f"pick must be best, found {own['pick']!r}")
    return Side(
        methods=_to_texts(own.get("method")),
        calibrators=_to_texts(own.get("calibrator", entry.get("calibrator", "none"))),
        part=str(own.get("part", entry.get("part", "test"))),
        metrics=tuple(check_metric(name) for name in _to_texts(own.get("metric"))),
        best="pick" in own,
    )


def _parse_zip(entry: Mapping[str, Any], left: Side, right: Side) -> bool:
    zipped = bool(entry.get("zip", False))
    sizes = [(len(side.methods), len(side.calibrators)) for side in (left, right)]
    if zipped and sizes[0] != sizes[1]:
        raise InputError("zip needs as many methods and calibrators on the left as on the right")
    return zipped


def _parse_better(better: object, metric: str) -> bool:
    if better is None:
        higher = higher_is_better(metric)
        if higher is None:
            raise InputError(f"set `better` to lower or higher: {metric} has no direction")
        return not higher
    if better not in ("lower", "higher"):
        raise InputError(f"better must be lower or higher, found {better!r}")
    return better == "lower"


def _parse_here(entry: Mapping[str, Any]) -> dict[str, str]:
    notes = entry.get("here", {})
    if isinstance(notes, str):
        notes = {suite: notes for suite in _to_texts(entry["suites"]) if suite != entry["paper"]}
    _check_keys(notes, _to_texts(entry["suites"]))
    return {suite: " ".join(str(words).split()) for suite, words in notes.items()}


def _parse_protocol(entry: Mapping[str, Any]) -> str:
    name = str(entry.get("protocol", entry["paper"]))
    if name not in read_protocols():
        raise no_such("protocol", name, read_protocols())
    return name


def _check_keys(entry: Mapping[str, Any], keys: Iterable[str]) -> None:
    for key in entry:
        if key not in keys:
            raise no_such("key in a claim", str(key), keys)


def _to_texts(value: object) -> tuple[str, ...]:
    return tuple(str(item) for item in _to_list(value)) if value is not None else ()


def _to_list(value: object) -> list[Any]:
    return list(value) if isinstance(value, (list, tuple)) else [value]
