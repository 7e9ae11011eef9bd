"""Sums by key, which merge: of score cells, of clusters, of groups of clusters."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

Floats: TypeAlias = NDArray[np.float64]
Keys: TypeAlias = NDArray[Any]

# Constants that hash rows and clusters to random numbers; sums merge only if they share them.
_MIX = (np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB))


@dataclass
class KeyedSums:
    """Sums of each key, ascending.

    Parts are kept as they come and joined when they are asked for. Parts of equal size are joined
    on the way, in an order that depends on their sizes alone.
    """

    keys: list[Keys] = field(default_factory=list)
    sums: list[Floats] = field(default_factory=list)

    def add(self, keys: Keys, values: Floats) -> None:
        """Add values (n, q) to the sums of their keys (n,)."""
        self._append(*sum_by_key(keys, values))

    def merge(self, other: KeyedSums) -> None:
        """Add the sums of another."""
        self._append(*other.whole())

    def _append(self, keys: Keys, sums: Floats) -> None:
        if not len(keys):
            return
        self.keys.append(keys)
        self.sums.append(sums)
        while len(self.keys) > 1 and len(self.keys[-2]) <= 2 * len(self.keys[-1]):
            self._join(2)

    def _join(self, number: int) -> None:
        keys, sums = np.concatenate(self.keys[-number:]), np.concatenate(self.sums[-number:])
        self.keys[-number:], self.sums[-number:] = [], []
        keys, sums = sum_by_key(keys, sums)
        self.keys.append(keys)
        self.sums.append(sums)

    def whole(self) -> tuple[Keys, Floats]:
        """Return all keys, ascending, and their sums."""
        if not self.keys:
            return np.empty(0, dtype=np.int64), np.empty((0, 0))
        if len(self.keys) > 1:
            self._join(len(self.keys))
        return self.keys[0], self.sums[0]


def sum_by_key(keys: Keys, values: Floats) -> tuple[Keys, Floats]:
    """Return the different keys, ascending, and the sums of their values.

    Values of a key are added in the order in which they stand.

    Args:
        keys: (n,) keys.
        values: (n, q) values.
    """
    order = np.argsort(keys, kind="stable")
    ordered = keys[order]
    begins = np.flatnonzero(np.concatenate(([True], ordered[1:] != ordered[:-1])))
    if not len(ordered):
        return keys, values
    return ordered[begins], np.add.reduceat(values[order], begins, axis=0)


def mix(values: NDArray[np.uint64], seed: int) -> NDArray[np.uint64]:
    """Return a random-looking number for each whole number (splitmix64; Steele et al. 2014).

    Args:
        values: Whole numbers.
        seed: Another seed gives other numbers.
    """
    with np.errstate(over="ignore"):
        start = np.uint64((0x9E3779B97F4A7C15 * (seed + 1)) % (1 << 64))
        mixed = values + start
        mixed = (mixed ^ (mixed >> np.uint64(30))) * _MIX[0]
        mixed = (mixed ^ (mixed >> np.uint64(27))) * _MIX[1]
        return mixed ^ (mixed >> np.uint64(31))


def draw_rows(start: int, number: int, seed: int) -> NDArray[np.uint64]:
    """Return a random 64-bit number for each of consecutive rows.

    It comes from Philox, a generator whose counter is the row's number (Salmon et al. 2011): a row
    has the same number in every worker, and however the rows are cut.

    Args:
        start: The number of the first row.
        number: The number of rows.
        seed: The generator's key.
    """
    before = start % 4  # a step of the counter makes four numbers
    generator = np.random.Philox(key=seed)
    generator.advance(start // 4)
    drawn: NDArray[np.uint64] = generator.random_raw(number + before)[before:]
    return drawn


def encode_keys(clusters: NDArray[Any], seed: int = 0) -> NDArray[np.uint64]:
    """Return a 64-bit key for each cluster's name, the same on every machine.

    Args:
        clusters: Whole numbers or text.
        seed: Another seed gives other keys.
    """
    if clusters.dtype.kind in "iu":
        return mix(clusters.astype(np.int64).view(np.uint64), seed)
    import hashlib

    names, place = np.unique(clusters, return_inverse=True)
    digests = b"".join(
        hashlib.blake2b(str(name).encode(), digest_size=8).digest() for name in names.tolist()
    )
    keys = np.frombuffer(digests, dtype="<u8").astype(np.uint64)
    return mix(keys, seed)[place.reshape(-1)]
