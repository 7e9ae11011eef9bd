"""`Evaluation`, the result of `evaluate`: figures, tables, groups and a verdict."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from calibrant.core.errors import InputError
from calibrant.core.frames import frame_of_rows
from calibrant.evaluation.curves import Cells
from calibrant.evaluation.groups.value import Groups
from calibrant.evaluation.verdict import Verdict
from calibrant.functional.statistics import wilson

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pandas as pd

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Figure:
    """One number, with an interval of its true value unless intervals were left out.

    ``corrected`` is a calibration error's value less its known upward bias.
    """

    name: str
    label: str
    value: float
    low: float | None = None
    high: float | None = None
    corrected: float | None = None
    better: str = "lower"
    note: str | None = None


@dataclass(frozen=True)
class Tallies:
    """The sums behind the tables."""

    bins: Floats  # (M, 3): rows, confidence, correctness, equal width
    mass_bins: Floats  # (M, 3): the same, equal mass
    mass_edges: Floats  # (M+1,)
    class_bins: Floats  # (K, M, 3)
    class_nll: Floats  # (K, 2): rows, sum
    class_correct: Floats  # (K,)
    class_predicted: Floats  # (K,)
    coverage: Floats  # (C, 3): coverage, risk, threshold
    # (M, 3) of rows with weights or clusters, else None: rows, and the ends of the accuracy's
    # interval.
    bin_units: Floats | None = None
    mass_bin_units: Floats | None = None
    cells: Cells | None = None  # the rows pooled by the judged probability, for curves


@dataclass(frozen=True)
class Evaluation:
    """The figures, intervals and verdict of one set of predictions."""

    name: str
    num_rows: int
    num_ignored: int
    num_classes: int
    kind: str  # "logits" or "probs"
    class_names: tuple[str, ...]
    figures: dict[str, Figure]
    settings: dict[str, Any]
    tallies: Tallies = field(repr=False)
    verdict: Verdict | None = None
    groups: Groups | None = None  # None if evaluate was given no groups
    warnings: tuple[str, ...] = ()  # doubts about the predictions and the groups
    task: str = "classes"  # "classes", "events" or "multilabel"
    view: str = "top"  # what is judged: "top", the predicted class, or "events"
    event: str | None = None  # what the judged probability is the probability of
    num_clusters: int | None = None  # None if rows are independent
    weighted: bool = False
    labels: tuple[Evaluation, ...] = ()  # of each label, where a row has many
    num_options: tuple[int, int] | None = None  # fewest and most of the questions with options

    def __contains__(self, name: object) -> bool:
        return name in self.figures

    def __iter__(self) -> Iterator[str]:
        return iter(self.figures)

    def __str__(self) -> str:
        """Return the verdict and the figures, a line each."""
        lines = [f"{self.name}: {self.num_rows:,} rows"]
        lines += [] if self.verdict is None else [self.verdict.headline]
        for figure in self.figures.values():
            interval = ""
            if figure.low is not None and figure.high is not None:
                interval = f", {self.level:.0%} interval {figure.low:.4g} to {figure.high:.4g}"
            corrected = "" if figure.corrected is None else f" ({figure.corrected:.4g} corrected)"
            lines.append(f"{figure.name}: {figure.value:.4g}{corrected}{interval}")
        return "\n".join(lines)

    def __getitem__(self, name: str) -> Figure:
        if name not in self.figures:
            raise InputError(f"{name!r} was not computed; found {', '.join(self.figures)}")
        return self.figures[name]

    @cached_property
    def bins(self) -> pd.DataFrame:
        """Return the reliability diagram in bins of equal width, with intervals and a band."""
        count = len(self.tallies.bins)
        edges = np.arange(count + 1) / count
        return _bin_table(self.tallies.bins, edges, self.level, self.tallies.bin_units)

    @cached_property
    def mass_bins(self) -> pd.DataFrame:
        """Return the reliability diagram in bins of equal mass."""
        tallies = self.tallies
        return _bin_table(tallies.mass_bins, tallies.mass_edges, self.level, tallies.mass_bin_units)

    @cached_property
    def class_bins(self) -> Floats:
        """Return (K, M, 3): rows, mean probability and frequency of each class's bins."""
        count, mass, hit = np.moveaxis(self.tallies.class_bins, -1, 0)
        with np.errstate(invalid="ignore", divide="ignore"):
            return np.stack((count, mass / count, hit / count), axis=-1)

    @cached_property
    def classes(self) -> pd.DataFrame:
        """Return a row per class: how often it is true, predicted and expected, and its errors.

        There are none of many labels a row, as each label has an evaluation of its own, and none
        of questions with options, which have positions.
        """
        import pandas as pd

        has_classes = self.task != "multilabel" and self.num_options is None
        cells = self.tallies.class_bins
        rows, losses = self.tallies.class_nll.T
        total = cells[..., 0].sum(1)
        mean_probability = cells[..., 1].sum(1) / total
        frequency = rows / total
        with np.errstate(invalid="ignore", divide="ignore"):
            table = pd.DataFrame(
                {
                    "index": np.arange(len(rows)),
                    "name": list(self.class_names) if has_classes else "",
                    "count": np.rint(rows).astype(np.int64),
                    "predicted": np.rint(self.tallies.class_predicted).astype(np.int64),
                    "frequency": frequency,
                    "mean_probability": mean_probability,
                    "gap": mean_probability - frequency,
                    "recall": self.tallies.class_correct / rows,
                    "precision": self.tallies.class_correct / self.tallies.class_predicted,
                    "nll": losses / rows,
                    "ece": np.abs(cells[..., 1] - cells[..., 2]).sum(1) / total,
                }
            )
        return table if has_classes else table.iloc[:0]

    @cached_property
    def risk_coverage(self) -> pd.DataFrame:
        """Return the error rate of the most confident rows, by the share accepted."""
        import pandas as pd

        return pd.DataFrame(self.tallies.coverage, columns=["coverage", "risk", "threshold"])

    @property
    def level(self) -> float:
        """Return the confidence level of the intervals."""
        return float(self.settings["confidence_level"])

    def to_frame(self, *, library: str = "pandas") -> Any:
        """Return the figures as a table, a row for each.

        Args:
            library: ``"pandas"`` or ``"polars"``. Default: 'pandas' (comes with calibrant).
        """
        rows = [asdict(figure) for figure in self.figures.values()]
        return frame_of_rows(rows, index="name", library=library)

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain values that JSON can hold; undefined values are None."""
        everything = {
            "name": self.name,
            "num_rows": self.num_rows,
            "num_ignored": self.num_ignored,
            "num_classes": self.num_classes,
            "kind": self.kind,
            "task": self.task,
            "view": self.view,
            "event": self.event,
            "num_options": None if self.num_options is None else list(self.num_options),
            "num_clusters": self.num_clusters,
            "weighted": self.weighted,
            "class_names": list(self.class_names),
            "warnings": list(self.warnings),
            "verdict": None if self.verdict is None else asdict(self.verdict),
            "groups": None if self.groups is None else self.groups.to_dict(),
            "figures": {name: asdict(figure) for name, figure in self.figures.items()},
            "bins": self.bins.to_dict("records"),
            "mass_bins": self.mass_bins.to_dict("records"),
            "classes": self.classes.to_dict("records"),
            "risk_coverage": self.risk_coverage.to_dict("list"),
            "settings": self.settings,
        }
        if self.labels:
            everything["labels"] = {label.name: label.to_dict() for label in self.labels}
        plain: dict[str, Any] = make_plain(everything)
        return plain

    def to_json(self, *, indent: int | None = 2) -> str:
        """Return `to_dict` as JSON text; infinite values are the strings "inf" and "-inf"."""
        return json.dumps(self.to_dict(), indent=indent, allow_nan=False, ensure_ascii=False)

    def renamed(self, name: str) -> Evaluation:
        """Return the same evaluation under another name."""
        return replace(self, name=name)


def make_plain(value: Any) -> Any:
    """Convert to values that JSON can hold: NaN becomes None, infinities become strings."""
    if isinstance(value, dict):
        return {str(key): make_plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [make_plain(item) for item in value]
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return None if math.isnan(value) else str(value)
    return value


def _bin_table(
    cells: Floats, edges: Floats, level: float, units: Floats | None = None
) -> pd.DataFrame:
    """Return the bins with each accuracy's interval and the band of a calibrated model.

    Args:
        cells: Rows, confidence and correctness of each bin; sums of weights if rows have them.
        edges: The edges of the bins.
        level: The level of the intervals and of the band.
        units: Rows, and both ends of the interval, of each bin of weighted or clustered rows. Their
            band has the width of the interval.
    """
    import pandas as pd
    from scipy.stats import binom

    count, confidence, correct = cells.T
    tail = (1 - level) / 2
    with np.errstate(invalid="ignore", divide="ignore"):
        mean, accuracy = confidence / count, correct / count
    if units is None:
        whole = np.rint(count)
        accuracy_low, accuracy_high = wilson(accuracy, count, level)
        safe, rows = np.clip(np.nan_to_num(mean), 0, 1), np.maximum(whole, 1)
        ends = (binom.ppf(q, rows, safe) / rows for q in (tail, 1 - tail))
        band = [np.where(whole > 0, end, np.nan) for end in ends]
    else:
        whole, accuracy_low, accuracy_high = units.T
        ends = (mean + end - accuracy for end in (accuracy_low, accuracy_high))
        band = [np.clip(end, 0, 1) for end in ends]
    return pd.DataFrame(
        {
            "low": edges[:-1],
            "high": edges[1:],
            "count": whole.astype(np.int64),
            "confidence": mean,
            "accuracy": accuracy,
            "accuracy_low": accuracy_low,
            "accuracy_high": accuracy_high,
            "band_low": band[0],
            "band_high": band[1],
        }
    )
