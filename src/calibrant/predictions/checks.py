"""Check the values of scores and labels in blocks of rows; errors name the rows."""

from __future__ import annotations

import math
import warnings

import torch

from calibrant.core.errors import InputError, first
from calibrant.functional.arrays import BLOCK_VALUES, Array, row_blocks, to_tensor

_SHOWN = 5
_FEW_SCORES = 20  # fewer logits of one score a row may all lie in [0, 1] by chance
# On a device the transfer per block costs, not the cache.
_DEVICE_BLOCK_VALUES = 1 << 24


def _block_values(array: Array) -> int:
    on_device = isinstance(array, torch.Tensor) and array.device.type != "cpu"
    return _DEVICE_BLOCK_VALUES if on_device else BLOCK_VALUES


class _Fault:
    """Rows with one kind of fault: how many, and the first few with their values."""

    def __init__(self) -> None:
        self.count = 0
        self.shown: list[str] = []

    def add(self, bad: torch.Tensor, start: int, values: torch.Tensor | None = None) -> None:
        """Add the rows where ``bad`` is true; ``values`` has the number to show for each row."""
        rows = bad.nonzero().flatten()
        self.count += len(rows)
        for index in rows[: _SHOWN + 1 - len(self.shown)].tolist():
            value = "" if values is None else f" ({values[index].item():.6g})"
            self.shown.append(f"{start + index}{value}")

    def __str__(self) -> str:
        if self.count == 1:
            return f"1 row: row {self.shown[0]}"
        return f"{self.count} rows (first rows: {first(self.shown, _SHOWN)})"


class ScoreCheck:
    """Check the values of logits or probabilities block by block.

    ``update`` costs one pass over a block in the cache for the extremes, and one for the row sums
    of probabilities; it searches for faulty rows only if these show a fault.

    Args:
        is_logits: Whether the scores are logits (else probabilities).
        absent: Allow logits of −inf, which mark options that a row does not have.
        sums: Whether the probabilities of a row must sum to one.
    """

    def __init__(self, *, is_logits: bool, absent: bool = False, sums: bool = True) -> None:
        self.is_logits = is_logits
        self._absent, self._check_sums = absent, sums
        self._what = "logits" if is_logits else "probabilities"
        self._nan, self._plus, self._minus = _Fault(), _Fault(), _Fault()
        self._outside, self._sums = _Fault(), _Fault()
        self._worst_row, self._worst_sum, self._tolerance = -1, 1.0, 1e-3
        self._all_negative, self._is_percent = True, False
        self._like_probabilities = is_logits  # so far: in [0, 1], and rows sum to one
        self._sums_to_one = sums  # of probabilities; not of one score a row, nor of many labels
        self._is_negative = False
        self._seen = 0

    def update(self, block: Array, start: int) -> None:
        """Check one block whose first row is row ``start``."""
        scores = to_tensor(block)
        low, high = (extreme.item() for extreme in torch.aminmax(scores))
        if not (math.isfinite(low) and math.isfinite(high)):
            rows = scores.reshape(len(scores), -1)
            self._nan.add(rows.isnan().any(1), start)
            self._plus.add((rows == math.inf).any(1), start)
            below = rows == -math.inf
            self._minus.add(below.all(1) if self._absent else below.any(1), start)
        elif not self.is_logits:
            self._check_probabilities(scores, start, low, high)
        if self._like_probabilities:
            self._seen += len(scores)
            self._sums_to_one &= scores.ndim > 1
            self._like_probabilities = self._is_like_probabilities(scores, low, high)

    def _is_like_probabilities(self, scores: torch.Tensor, low: float, high: float) -> bool:
        if self._absent and low == -math.inf and high <= 1 + 1e-2:
            scores = torch.where(scores == -math.inf, 0, scores)  # -inf marks absent options
            low = scores.amin().item()
        if not (low >= 0 and high <= 1 + 1e-2):
            return False
        if not self._sums_to_one:
            return high <= 1 and low < high
        return bool(((scores.sum(1, dtype=torch.float32) - 1).abs() < 1e-2).all())

    def _check_probabilities(
        self, scores: torch.Tensor, start: int, low: float, high: float
    ) -> None:
        half = scores.dtype in (torch.float16, torch.bfloat16)
        self._all_negative &= high <= 0
        self._is_negative |= low < 0
        self._is_percent |= scores.ndim == 1 and low >= 0 and 2 < high <= 100
        # A rounded softmax may exceed 1 by an ulp; 1 - p of a binary score must not be negative.
        limit = 1.0 if scores.ndim == 1 else 1.0 + (1e-2 if half else 1e-6)
        if low < 0 or high > limit:
            rows = scores.reshape(len(scores), -1)
            low_row, high_row = rows.aminmax(dim=1)
            shown = torch.where(low_row < 0, low_row, high_row)
            self._outside.add((low_row < 0) | (high_row > limit), start, shown)
        if scores.ndim == 1 or not self._check_sums:
            return
        self._tolerance = 1e-2 if half else 1e-3
        sums = scores.sum(1, dtype=torch.float32 if half else None).reshape(len(scores), -1)
        errors, position = (sums - 1).abs().max(dim=1)
        worst = int(errors.argmax())
        if errors[worst] > self._tolerance:
            rows_sums = sums.gather(1, position[:, None]).flatten()
            self._sums.add(errors > self._tolerance, start)
            if errors[worst] > abs(self._worst_sum - 1):
                self._worst_row, self._worst_sum = start + worst, rows_sums[worst].item()

    def finish(self) -> None:
        """Raise for the most basic fault; warn of logits that look like probabilities."""
        if self._like_probabilities and self._seen >= (2 if self._sums_to_one else _FEW_SCORES):
            warnings.warn(
                f"every row of these logits lies in [0, 1]{' and sums to one' * self._sums_to_one}"
                f": if they are probabilities, give them as such (from_probs, "
                "is_logits=False, or the name 'probs' in a file)",
                stacklevel=5,
            )
        if self._nan.count:
            raise InputError(
                f"{self._what} have NaN or missing values in {self._nan}: find the cause in the "
                f"model, or drop those rows"
            )
        if self._plus.count:
            raise InputError(f"{self._what} are infinite in {self._plus}: the model overflowed")
        if self._minus.count:
            advice = (
                "every option is absent there"
                if self._absent
                else "-inf is the logarithm of probability 0: give the probabilities themselves "
                "(from_probs); if -inf marks options that a row does not have, use from_options"
                if self.is_logits
                else "if these are log-probabilities, give their exponentials"
            )
            raise InputError(f"{self._what} are -inf in {self._minus}: {advice}")
        if self._outside.count:
            advice = (
                "if these are logits, use from_logits, kind='logits' for a bare array, or the "
                "name 'logits' (columns logit_k) in a file"
            )
            if not self._is_negative:
                advice = f"if these are scores above 0, divide each row by its sum; {advice}"
            if self._is_percent:
                advice = "if these are percentages, divide them by 100"
            if self._all_negative:
                advice = "if these are log-probabilities, they are valid logits: use from_logits"
            raise InputError(f"probabilities outside [0, 1] in {self._outside}: {advice}")
        if self._sums.count:
            raise InputError(
                f"probabilities do not sum to one in {self._sums}; the worst is row "
                f"{self._worst_row} with sum {self._worst_sum:.6g} (tolerance "
                f"{self._tolerance:g}): normalise them, give logits (from_logits), or, if a row "
                f"may have several labels, use from_multilabel"
            )


def check_scores(
    scores: Array, *, is_logits: bool, absent: bool = False, sums: bool = True
) -> None:
    """Check an array in memory without a second array of its size; see `ScoreCheck`."""
    check = ScoreCheck(is_logits=is_logits, absent=absent, sums=sums)
    for start, block in row_blocks(scores, _block_values(scores)):
        check.update(block, start)
    check.finish()


def check_labels(labels: Array, num_classes: int, ignore_index: int | None) -> None:
    """Check that every label is in 0..K-1 or ``ignore_index``, and that at least one counts."""
    bad_count, valid_count, lowest = 0, 0, num_classes
    fault, values = _Fault(), set[int]()
    for start, block in row_blocks(labels, _block_values(labels)):
        index = to_tensor(block).to(torch.int64)
        low, high = (int(extreme) for extreme in torch.aminmax(index))
        lowest = min(lowest, low)
        counted = None if ignore_index is None else index != ignore_index
        valid_count += index.numel() if counted is None else int(counted.sum())
        if low < 0 or high >= num_classes:
            bad = (index < 0) | (index >= num_classes)
            if counted is not None:
                bad &= counted
            bad_count += int(bad.sum())
            values.update(torch.unique(index[bad]).tolist())
            fault.add(bad.reshape(len(bad), -1).any(1), start)
    if bad_count:
        shown = first(sorted(values))
        raise InputError(
            f"labels out of range: must lie in 0 to {num_classes - 1} (K = {num_classes} "
            f"classes), found {shown} in {fault}"
            f"{_label_hint(values, lowest, num_classes)}"
        )
    if valid_count == 0:
        raise InputError(f"no label is left: all equal ignore_index ({ignore_index})")


def _label_hint(bad: set[int], lowest: int, num_classes: int) -> str:
    if bad == {num_classes} and lowest >= 1:
        return ": they seem to start at 1, subtract 1"
    if bad == {-1} and num_classes == 2 and lowest == -1:
        return (
            ": if -1 marks rows to leave out, give ignore_index=-1; "
            "if it is the negative class, give (labels + 1) // 2"
        )
    if len(bad) == 1 and next(iter(bad)) in (255, -1, -100):
        value = next(iter(bad))
        return f": if {value} marks rows to leave out, give ignore_index={value}"
    return ": are there more classes than columns of scores?"
