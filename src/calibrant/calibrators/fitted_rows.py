"""Remember which rows fitted a calibrator, in a few kilobytes, and recognise them again.

Each row's scores, in single precision, give a hash of 64 bits. Kept are the SHA-256 of all hashes
in ascending order, and the 256 smallest of those that occur once: a sample of the rows that does
not depend on their order. If a share of the rows is met again, the same share of the sample is.
"""

from __future__ import annotations

import hashlib
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Hashes = NDArray[np.uint64]

_SAMPLE = 256
_MOST_COLUMNS = 64  # of many classes, this many at equal distances
_FEWEST_SHARED, _SMALLEST_SHARE = 3, 0.01


class FittedRows(NamedTuple):
    """The rows that fitted a calibrator.

    Args:
        num_rows: How many there were.
        digest: The SHA-256 of their hashes, whatever their order.
        sample: The smallest hashes of rows that occur once.
    """

    num_rows: int
    digest: str
    sample: tuple[int, ...]

    def count_shared(self, scores: Tensor) -> int:
        """Estimate how many of the fitted rows are among others; 0 if it may be chance.

        Scores with few different values repeat by chance. So it takes a larger share of the sample
        than five times the share of the other rows that repeat among themselves.

        Args:
            scores: (N,K) scores of the other rows.
        """
        hashes = hash_rows(scores)
        if describe_hashes(hashes).digest == self.digest:
            return self.num_rows
        if not self.sample:
            return 0
        unique = np.unique(hashes)
        shared = int(np.isin(np.array(self.sample, dtype=np.uint64), unique).sum())
        share, repeated = shared / len(self.sample), 1 - len(unique) / len(hashes)
        if shared < _FEWEST_SHARED or share <= max(_SMALLEST_SHARE, 5 * repeated):
            return 0
        return max(shared, round(share * self.num_rows))

    def to_dict(self) -> dict[str, Any]:
        """Return what a file holds."""
        return {"rows": self.num_rows, "digest": self.digest, "sample": list(self.sample)}

    @classmethod
    def from_dict(cls, content: Any) -> FittedRows | None:
        """Return what `to_dict` gave; None if it cannot be that, as in older files."""
        if not isinstance(content, dict) or content.keys() != {"rows", "digest", "sample"}:
            return None
        rows, digest, sample = content["rows"], content["digest"], content["sample"]
        if type(rows) is not int or not isinstance(digest, str) or not isinstance(sample, list):
            return None
        if not all(type(digest) is int and 0 <= digest < 2**64 for digest in sample):
            return None
        return cls(rows, digest, tuple(sample))


def describe_rows(scores: Tensor) -> FittedRows:
    """Return the digest and the sample of rows.

    Args:
        scores: (N,K) scores.
    """
    return describe_hashes(hash_rows(scores))


def describe_hashes(hashes: Hashes) -> FittedRows:
    """Return the digest and the sample of rows, from their hashes."""
    unique, repeats = np.unique(hashes, return_counts=True)
    ordered = np.repeat(unique, repeats).astype("<u8")
    sample = unique[repeats == 1][:_SAMPLE]
    return FittedRows(
        len(hashes), hashlib.sha256(ordered.tobytes()).hexdigest(), tuple(sample.tolist())
    )


def hash_rows(scores: Tensor) -> Hashes:
    """Return a hash of each row's scores in single precision.

    Args:
        scores: (N,K) scores.
    """
    width = scores.shape[1]
    if width > _MOST_COLUMNS:
        chosen = torch.linspace(0, width - 1, _MOST_COLUMNS, device=scores.device).long()
        scores = scores[:, chosen]
    values = scores.detach().to(torch.float32).cpu().numpy() + np.float32(0)  # −0 becomes 0
    hashes = np.full(len(values), width, dtype=np.uint64)
    with np.errstate(over="ignore"):
        for column in range(values.shape[1]):
            bits = np.ascontiguousarray(values[:, column]).view(np.uint32).astype(np.uint64)
            # Steele, Lea and Flood's mixing function (2014, SplitMix64).
            hashes += bits + np.uint64(0x9E3779B97F4A7C15)
            hashes = (hashes ^ (hashes >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
            hashes = (hashes ^ (hashes >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
            hashes ^= hashes >> np.uint64(31)
    return hashes
