"""What the five papers claim and our runs can test: read from ``claims.yaml``, judged, written.

A claim is a comparison: ``left`` has a better figure than ``right``. Its test says

- ``metric``: one or several; the better way is the metric's own unless ``better`` says;
- ``left``, ``right``: the sides, each any of ``method``, ``calibrator``, ``part`` and
  ``metric``, one or several. Every left is compared with every right. ``pick: best`` takes
  the one of several methods with the best figure on validation rows, of those that learned
  (with half of the highest accuracy); what it loses so stays open while one it could pick has
  no runs;
- ``method``: methods that both sides share, ``"*"`` being all of the suite: each is compared
  with itself, as before and after a calibrator;
- ``zip: true``: the first left with the first right, and so on, not every one with every one;
- ``only``: the settings the claim is about, such as ``{data: cifar10}``;
- ``margin``: how much worse left may be, and ``ratio``: left against so many times right;
- ``decide``: ``every`` comparison must come out for left (the default), their ``mean``,
  ``some`` comparison, or the ``count`` of those that do, against half of them, which stays
  open while comparisons to come could turn it;
- ``pairs``: ``seeds`` (the default), or ``settings``, where every comparison is one pair (but
  seeds in a suite of fewer than three settings, which has three seeds and more);
- or ``correlation``: two metrics that go together over methods and ``calibrator``s, and
  ``against``, a third that goes with the second less.

``protocol`` names the settings of the paper's own runs in ``protocols.yaml`` (default: those of the
paper). What differs in ours is derived from them; ``here`` adds what settings do not tell, by
suite, or for every suite but the paper's own.
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
    """One side of a comparison; no methods: those that the test shares."""

    methods: tuple[str, ...]
    calibrators: tuple[str, ...]
    part: str
    metrics: tuple[str, ...]  # none: the test's
    best: bool  # of the methods, by validation rows


@dataclass(frozen=True)
class Test:
    """How a claim is tested."""

    metrics: tuple[str, ...]
    lower: bool
    left: Side
    right: Side
    methods: tuple[str, ...]  # shared by both sides; ("*",): all
    zipped: bool  # sides are matched by position
    only: dict[str, tuple[Any, ...]]
    margin: float
    ratio: float
    decide: str
    pairs: str
    correlation: bool = False
    against: str | None = None


@dataclass(frozen=True)
class Claim:
    """A sentence of a paper, in our words, where it stands, and its test."""

    id: str
    paper: str
    where: str
    says: str
    suites: tuple[str, ...]
    test: Test
    here: Mapping[str, str] = field(default_factory=dict)  # by suite: what differs from the paper
    protocol: str = ""  # of protocols.yaml: how the paper made the runs it rests on


def read_claims(path: str | Path | None = None) -> tuple[Claim, ...]:
    """The claims of a file; those of the five papers when left out."""
    return _read(Path(path) if path is not None else FILE)


@lru_cache(maxsize=4)
def _read(path: Path) -> tuple[Claim, ...]:
    import yaml

    try:
        found = yaml.safe_load(path.read_text(encoding="utf-8"))
    except yaml.YAMLError as error:
        raise InputError(f"{path}: not YAML: {error}") from None
    claims = tuple(parse(one) for one in found)
    ids = [one.id for one in claims]
    twice = sorted({one for one in ids if ids.count(one) > 1})
    if twice:
        raise InputError(f"{path}: claims of the same id: {', '.join(twice)}")
    return claims


def parse(found: Mapping[str, Any]) -> Claim:
    """A claim from its mapping; unknown words are errors."""
    name = str(found.get("id", "?"))
    try:
        _known(found, (*KEYS, *OPTIONAL_KEYS))
        for key in KEYS:
            if key not in found:
                raise InputError(f"{key} is missing")
        if found["paper"] not in PAPERS:
            raise no_such("paper", str(found["paper"]), PAPERS)
        return Claim(
            id=name,
            paper=found["paper"],
            where=str(found["where"]),
            says=" ".join(str(found["says"]).split()),
            suites=_several(found["suites"]),
            test=_test(found["test"]),
            here=_here(found),
            protocol=_protocol(found),
        )
    except InputError as error:
        raise InputError(f"claim {name}: {error}") from None


def _test(found: Mapping[str, Any]) -> Test:
    _known(found, TEST_KEYS)
    if "correlation" in found:
        return _correlation(found)
    metrics = tuple(check_metric(one) for one in _several(found.get("metric")))
    left, right = (_side(found, name) for name in ("left", "right"))
    named = metrics or left.metrics
    if not named:
        raise InputError("metric is missing")
    shared = _several(found.get("method"))
    for side, name in ((left, "left"), (right, "right")):
        if bool(side.methods) == bool(shared):
            raise InputError(f"{name} names its methods, or both sides share `method`, not both")
    decide, pairs = str(found.get("decide", "every")), str(found.get("pairs", "seeds"))
    if decide not in DECIDE:
        raise no_such("way to decide", decide, DECIDE)
    if pairs not in PAIRS:
        raise no_such("kind of pairs", pairs, PAIRS)
    return Test(
        metrics=metrics,
        lower=_lower(found.get("better"), named[0]),
        left=left,
        right=right,
        methods=shared,
        zipped=_zipped(found, left, right),
        only={key: tuple(_values(value)) for key, value in (found.get("only") or {}).items()},
        margin=float(found.get("margin", 0.0)),
        ratio=float(found.get("ratio", 1.0)),
        decide=decide,
        pairs=pairs,
    )


def _correlation(found: Mapping[str, Any]) -> Test:
    metrics = tuple(check_metric(one) for one in _several(found["correlation"]))
    if len(metrics) != 2:
        raise InputError(f"correlation is of two metrics, found {len(metrics)}")
    side = Side(
        (),
        _several(found.get("calibrator")) or ("none",),
        str(found.get("part", "test")),
        (),
        False,
    )
    against = found.get("against")
    return Test(
        metrics=metrics,
        lower=False,
        left=side,
        right=side,
        methods=_several(found.get("method")) or ("*",),
        zipped=False,
        only={key: tuple(_values(value)) for key, value in (found.get("only") or {}).items()},
        margin=0.0,
        ratio=1.0,
        decide="mean",
        pairs="settings",
        correlation=True,
        against=None if against is None else check_metric(str(against)),
    )


def _side(found: Mapping[str, Any], name: str) -> Side:
    own = found.get(name)
    if not isinstance(own, Mapping):
        raise InputError(f"{name} is missing")
    _known(own, SIDE_KEYS)
    if own.get("pick", "best") != "best":
        raise InputError(f"pick is best, found {own['pick']!r}")
    return Side(
        methods=_several(own.get("method")),
        calibrators=_several(own.get("calibrator", found.get("calibrator", "none"))),
        part=str(own.get("part", found.get("part", "test"))),
        metrics=tuple(check_metric(one) for one in _several(own.get("metric"))),
        best="pick" in own,
    )


def _zipped(found: Mapping[str, Any], left: Side, right: Side) -> bool:
    zipped = bool(found.get("zip", False))
    sizes = [(len(side.methods), len(side.calibrators)) for side in (left, right)]
    if zipped and sizes[0] != sizes[1]:
        raise InputError("zip wants as many methods and calibrators on the left as on the right")
    return zipped


def _lower(better: object, metric: str) -> bool:
    if better is None:
        higher = higher_is_better(metric)
        if higher is None:
            raise InputError(f"say `better: lower` or `higher`: {metric} has no better way")
        return not higher
    if better not in ("lower", "higher"):
        raise InputError(f"better is lower or higher, found {better!r}")
    return better == "lower"


def _here(found: Mapping[str, Any]) -> dict[str, str]:
    told = found.get("here", {})
    if isinstance(told, str):
        told = {suite: told for suite in _several(found["suites"]) if suite != found["paper"]}
    _known(told, _several(found["suites"]))
    return {suite: " ".join(str(words).split()) for suite, words in told.items()}


def _protocol(found: Mapping[str, Any]) -> str:
    name = str(found.get("protocol", found["paper"]))
    if name not in read_protocols():
        raise no_such("protocol", name, read_protocols())
    return name


def _known(found: Mapping[str, Any], keys: Iterable[str]) -> None:
    for key in found:
        if key not in keys:
            raise no_such("word of a claim", str(key), keys)


def _several(found: object) -> tuple[str, ...]:
    return tuple(str(one) for one in _values(found)) if found is not None else ()


def _values(found: object) -> list[Any]:
    return list(found) if isinstance(found, (list, tuple)) else [found]
