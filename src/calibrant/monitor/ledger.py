"""The ledger of a monitor: sums for each batch and group, as plain JSON."""

from __future__ import annotations

import base64
import binascii
import json
import types
import typing
import zlib
from dataclasses import asdict, dataclass, field, fields, is_dataclass
from datetime import datetime, timezone
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from calibrant.core.errors import InputError, show
from calibrant.core.files import write_file
from calibrant.functional.arrays import refuse_half_characters
from calibrant.predictions.files import explain_read_errors

FORMAT = 1
_LARGEST = 1 << 30  # bytes of a state file: ten thousand batches of a hundred groups


@dataclass
class Cell:
    """Sums over the labelled rows of one batch, all of them or a group.

    Args:
        count: The number of units: rows, or clusters.
        sums: Σ x of each error, by name.
        squares: Σ x² of each error.
        logs: Σ log(1 + λ (x − m)) for each λ, by test; empty for a group without a baseline.
    """

    count: int
    sums: dict[str, float]
    squares: dict[str, float]
    logs: dict[str, list[float]] = field(default_factory=dict)


@dataclass
class Batch:
    """Rows that arrived together, by the SHA-256 of their scores and ids.

    Args:
        key: The SHA-256.
        name: The name shown in reports.
        when: The time of the batch, in ISO format.
        num_rows: The number of rows.
        scores: How many scores lie in each bin of the baseline's.
    """

    key: str
    name: str
    when: str
    num_rows: int
    scores: list[int]


@dataclass
class Delivery:
    """Labels of some rows of a batch, which arrived together.

    Args:
        batch: The key of the batch.
        learned: When this was appended, in ISO format.
        num_rows: The number of rows that were labelled.
        rows: The rows as packed bits; None means all.
        scores: How many labelled scores lie in each bin.
        all: The sums of all rows.
        groups: The sums of each group's rows.
        clusters: Digests of the clusters, packed; None if rows are independent.
        num_left_out: Rows of clusters that counted before.
    """

    batch: str
    learned: str
    num_rows: int
    rows: str | None
    scores: list[int]
    all: Cell | None
    groups: dict[str, Cell] = field(default_factory=dict)
    clusters: str | None = None
    num_left_out: int = 0


@dataclass
class Plan:
    """The settings of the tests, fixed when the baseline is read.

    Args:
        task: ``"classes"`` or ``"events"``.
        num_classes: The number of classes.
        event: What the judged probability is the probability of; None for the predicted class.
        positive: The class whose probability is judged.
        class_names: The names of the classes.
        tolerance: How much worse than the baseline is allowed.
        alpha: The probability of any false alarm, ever.
        clustered: Whether clusters count, not rows.
        group_title: What the groups are; None without groups.
        view: The view that was asked for.
        pos_label: The positive class that was asked for.
    """

    task: str
    num_classes: int
    event: str | None
    positive: int | None
    class_names: list[str] | None
    tolerance: float
    alpha: float
    clustered: bool
    group_title: str | None
    view: str | None
    pos_label: int | None


@dataclass
class Baseline:
    """The sums of the baseline, with which batches are compared.

    Args:
        key: The SHA-256 of its scores and ids.
        name: Its name.
        num_rows: The number of rows.
        edges: The inner edges of the bins of scores.
        scores: How many scores lie in each bin.
        counts: The number of units of each group; ``""`` is all.
        means: The mean of each error, by group.
        bounds: m of each test, by group: baseline at its worst, plus the tolerance.
        clusters: Digests of the clusters, packed.
    """

    key: str
    name: str
    num_rows: int
    edges: list[float]
    scores: list[int]
    counts: dict[str, int]
    means: dict[str, dict[str, float]]
    bounds: dict[str, dict[str, float]]
    clusters: str | None = None


@dataclass
class Ledger:
    """Everything a monitor knows; ``deliveries`` are in the order in which they were learned."""

    plan: Plan
    baseline: Baseline
    batches: list[Batch] = field(default_factory=list)
    deliveries: list[Delivery] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values that JSON can hold."""
        return {"calibrant_monitor": FORMAT, **asdict(self)}

    def write(self, path: Path) -> None:
        """Write the state file whole: a kill leaves the old one or the new one."""
        text = json.dumps(self.to_dict(), allow_nan=False, separators=(",", ":"))
        write_file(path, (text + "\n").encode())

    @classmethod
    def read(cls, path: Path) -> Ledger:
        """Read a state file; raise an error if it is not one."""
        if path.is_dir():
            raise InputError(f"{path}: is a directory, expected a state file of the monitor")
        if not path.exists():
            raise InputError(
                f"{path}: no such state file; make one with --baseline, or Monitor(baseline)"
            )
        with explain_read_errors(path):
            if path.stat().st_size > _LARGEST:
                raise InputError("a state file of the monitor is smaller than 1 GiB")
            try:
                content = json.loads(path.read_bytes())
            except (ValueError, RecursionError) as error:
                raise InputError(f"this is no state file of the monitor: {error}") from None
            return cls.from_dict(content)

    @classmethod
    def from_dict(cls, content: Any) -> Ledger:
        """Make a ledger of what `to_dict` returned; raise an error if it cannot be."""
        if not isinstance(content, dict) or "calibrant_monitor" not in content:
            raise InputError("this is no state file of the monitor")
        version = content["calibrant_monitor"]
        if version != FORMAT:
            raise InputError(
                f"the state has format {version!r:.20}, this version of calibrant reads {FORMAT}: "
                "update calibrant, or begin a new state"
            )
        try:
            ledger = cls(
                Plan(**content["plan"]),
                Baseline(**content["baseline"]),
                [Batch(**batch) for batch in content["batches"]],
                [_make_delivery(delivery) for delivery in content["deliveries"]],
                [str(note) for note in content["notes"]],
            )
            ledger.check()
        except (TypeError, KeyError, ValueError, AttributeError) as error:
            if isinstance(error, InputError):
                raise
            raise InputError(f"the state file is damaged: {str(error)[:200]}") from None
        return ledger

    def check(self) -> None:
        """Raise an error if the state cannot be one that a monitor wrote."""
        _check_values(self, Ledger, "the state")
        self._check_plan()
        self._check_batches()

    def _check_plan(self) -> None:
        """Raise an error if the baseline does not have what the plan tests."""
        plan, baseline = self.plan, self.baseline
        if not (
            plan.task in ("classes", "events")
            and 2 <= plan.num_classes < 1 << 24
            and 0 <= plan.tolerance < 1
            and 0 < plan.alpha < 1
            and (plan.positive is None or 0 <= plan.positive < plan.num_classes)
            and (plan.class_names is None or len(plan.class_names) == plan.num_classes)
        ):
            raise InputError("the state file is damaged: its plan cannot be")
        figures = {"gap", "brier"} | ({"error"} if plan.positive is None else set())
        tests = {"over", "under", "brier"} | (figures & {"error"})
        if not (
            baseline.edges == sorted(set(baseline.edges))
            and len(baseline.scores) == len(baseline.edges) + 1
            and "" in baseline.bounds
            and baseline.bounds.keys() <= baseline.counts.keys()
            and baseline.means.keys() == baseline.counts.keys()
            and all(means.keys() == figures for means in baseline.means.values())
            and all(bounds.keys() == tests for bounds in baseline.bounds.values())
            and all(count > 0 for count in baseline.counts.values())
        ):
            raise InputError("the state file is damaged: its baseline does not fit its plan")
        lengths = set()
        for delivery in self.deliveries:
            for name, cell in (("", delivery.all), *delivery.groups.items()):
                if cell is None:
                    continue
                bounds = baseline.bounds.get(name, {})
                if cell.sums.keys() != figures or cell.squares.keys() != figures:
                    raise InputError("the state file is damaged: a sum is missing")
                if cell.logs.keys() - bounds.keys() or cell.count < 1:
                    raise InputError(
                        "the state file is damaged: sums of a test that the plan lacks"
                    )
                lengths |= {len(logs) for logs in cell.logs.values()}
        if len(lengths) > 1 or 0 in lengths:
            raise InputError("the state file is damaged: sums of a test have different lengths")

    def _check_batches(self) -> None:
        """Raise an error if a batch occurs twice, or labels have no batch."""
        for batch in self.batches:
            format_time(batch.when)
        num_bins = len(self.baseline.edges) + 1
        keys = [batch.key for batch in self.batches]
        if len(set(keys)) < len(keys):
            raise InputError("the state file is damaged: a batch occurs twice")
        counted = [batch.scores for batch in self.batches]
        counted += [delivery.scores for delivery in self.deliveries]
        if any(len(counts) != num_bins for counts in counted):
            raise InputError("the state file is damaged: counts of scores have a wrong length")
        known = set(keys)
        if any(delivery.batch not in known for delivery in self.deliveries):
            raise InputError("the state file is damaged: labels of an unknown batch")
        for batch in self.batches:
            self.labelled_rows(batch.key)
        self.seen_clusters()

    def find_batch(self, key: str) -> Batch | None:
        """Return the batch of a key, or None."""
        return next((batch for batch in self.batches if batch.key == key), None)

    def labelled_rows(self, key: str) -> NDArray[np.bool_]:
        """Return which rows of a batch have been labelled."""
        batch = self.find_batch(key)
        count = 0 if batch is None else batch.num_rows
        known = np.zeros(count, dtype=bool)
        for delivery in self.deliveries:
            if delivery.batch == key:
                known |= unpack_rows(delivery.rows, count)
        return known

    def seen_clusters(self) -> NDArray[np.uint64]:
        """Return the digests of every cluster that counted."""
        packed = [self.baseline.clusters, *(delivery.clusters for delivery in self.deliveries)]
        parts = [unpack_digests(text) for text in packed if text is not None]
        return np.concatenate(parts) if parts else np.empty(0, dtype=np.uint64)


def _check_values(value: Any, hint: Any, what: str) -> None:
    """Raise an error if a value, or one in it, is not of the type that its class declares."""
    origin, parts = typing.get_origin(hint), typing.get_args(hint)
    if origin is types.UnionType:
        if value is None and type(None) in parts:
            return
        hint = next(part for part in parts if part is not type(None))
        _check_values(value, hint, what)
    elif is_dataclass(hint):
        hints = typing.get_type_hints(hint)
        for entry in fields(hint):
            _check_values(getattr(value, entry.name), hints[entry.name], f"{what}.{entry.name}")
    elif origin is list and isinstance(value, list):
        for item in value:
            _check_values(item, parts[0], what)
    elif origin is dict and isinstance(value, dict):
        for key, item in value.items():
            _check_values(key, parts[0], what)
            _check_values(item, parts[1], what)
    else:
        allowed = (int, float) if hint is float else (hint if origin is None else origin,)
        fits = type(value) in allowed and (
            not isinstance(value, (int, float)) or abs(value) < 1 << 62
        )  # not for NaN and infinity
        if not fits or (hint is int and value < -1):
            raise InputError(f"the state file is damaged: {what} cannot be {show(value)}")
        if hint is str:
            refuse_half_characters([value], what)


def _make_delivery(content: dict[str, Any]) -> Delivery:
    cells = {name: Cell(**cell) for name, cell in content["groups"].items()}
    whole = None if content["all"] is None else Cell(**content["all"])
    return Delivery(**{**content, "all": whole, "groups": cells})


def format_time(when: str | None) -> str:
    """Return a time in ISO format, in UTC where it has a zone; now if None."""
    if when is None:
        return datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
    text = str(when).strip()
    try:
        time = datetime.fromisoformat(text.removesuffix("Z") + ("+00:00" * text.endswith("Z")))
    except ValueError:
        raise InputError(
            f"when must be a date or a time such as 2026-08-21 or 2026-08-21T06:00, found "
            f"{text[:40]!r}"
        ) from None
    if time.tzinfo is not None:
        return time.astimezone(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
    return text if len(text) == 10 else time.isoformat(timespec="seconds")


def pack_rows(rows: NDArray[np.bool_]) -> str | None:
    """Return rows as text, a bit each and compressed; None if they are all."""
    if rows.all():
        return None
    return base64.b64encode(zlib.compress(np.packbits(rows).tobytes(), 9)).decode()


def unpack_rows(text: str | None, count: int) -> NDArray[np.bool_]:
    """Return the rows of `pack_rows`."""
    if text is None:
        return np.ones(count, dtype=bool)
    size = (count + 7) // 8
    try:
        unpack = zlib.decompressobj()
        packed = unpack.decompress(base64.b64decode(text, validate=True), size + 1)
    except (ValueError, zlib.error, binascii.Error):
        packed = b""
    if len(packed) != size:
        raise InputError("the state file is damaged: labelled rows of a wrong length")
    return np.unpackbits(np.frombuffer(packed, dtype=np.uint8), count=count).astype(bool)


def pack_digests(digests: NDArray[np.uint64]) -> str:
    """Return digests of clusters as text, five bytes each."""
    shifts = np.arange(0, 40, 8, dtype=np.uint64)
    octets = (np.sort(digests)[:, None] >> shifts) & np.uint64(255)
    return base64.b64encode(octets.astype(np.uint8).tobytes()).decode()


@lru_cache(maxsize=1024)
def unpack_digests(text: str) -> NDArray[np.uint64]:
    """Return the digests of `pack_digests`."""
    try:
        octets = np.frombuffer(base64.b64decode(text, validate=True), dtype=np.uint8)
        parts = octets.reshape(-1, 5).astype(np.uint64)
    except ValueError:
        raise InputError("the state file is damaged: digests of clusters are cut") from None
    shifts = np.arange(0, 40, 8, dtype=np.uint64)
    return np.asarray((parts << shifts).sum(1), dtype=np.uint64)
