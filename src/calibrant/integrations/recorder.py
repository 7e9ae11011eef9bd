"""The base of callbacks and loggers: figures by name, pictures, tables, the repair."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from calibrant.calibrators import Calibrator, calibrate
from calibrant.calibrators.rank import apply
from calibrant.evaluation import Evaluation, compare, evaluate
from calibrant.predictions import Predictions
from calibrant.report import formatting, pictures, write

if TYPE_CHECKING:
    from matplotlib.figure import Figure

METRICS = ("accuracy", "nll", "ece")
REPORT, CALIBRATOR = "report.html", "calibrator.safetensors"
MakePredictions = Callable[[Any, Any], Predictions]


def list_values(evaluation: Evaluation, *, prefix: str = "") -> dict[str, float]:
    """Return every figure, and both ends of its interval, by a name that loggers accept.

    Args:
        evaluation: The result of `calibrant.evaluate`.
        prefix: Text before every name. Default: '' (nothing).

    >>> import calibrant, numpy as np
    >>> predictions = Predictions.from_logits(3 * np.eye(3)[[0, 1, 2, 0]], [0, 1, 2, 1])
    >>> sorted(list_values(calibrant.evaluate(predictions, metrics=["nll"]), prefix="val_"))
    ['val_nll', 'val_nll_high', 'val_nll_low']
    """
    values = {}
    for name, figure in evaluation.figures.items():
        plain = prefix + re.sub(r"[^\w.-]+", "_", name).strip("_")
        for end, value in (("", figure.value), ("_low", figure.low), ("_high", figure.high)):
            if value is not None:
                values[plain + end] = float(value)
    return values


def draw_pictures(evaluation: Evaluation) -> dict[str, Figure]:
    """Draw every picture that suits an evaluation, by name.

    Args:
        evaluation: The result of `calibrant.evaluate`.
    """
    is_events = evaluation.view == "events"
    draw: dict[str, Any] = {"reliability": pictures.plot_reliability}
    if is_events:
        draw["distribution"] = pictures.plot_distribution
        draw["decision_curve"] = pictures.plot_decision_curve
    else:
        draw["risk_coverage"] = pictures.risk_coverage_curve
        if len(evaluation.classes):
            draw["classes"] = pictures.class_calibration
    if evaluation.groups is not None:
        draw["groups"] = pictures.group_gaps
    return {name: function(evaluation).figure for name, function in draw.items()}


def make_table(evaluation: Evaluation, after: Evaluation | None = None) -> str:
    """Return the figures as a Markdown table, with intervals.

    Args:
        evaluation: The result of `calibrant.evaluate`.
        after: The same rows after a repair. Default: None (no such columns).
    """
    level = formatting.level(evaluation.settings)
    shown = [("", evaluation)] if after is None else [("before", evaluation), ("after", after)]
    lines = [
        "| metric |"
        + "".join(f" {f'{name}, ' if name else ''}{level} interval |" for name, _ in shown)
    ]
    lines.append("|---|" + "---|" * len(shown))
    for name, figure in evaluation.figures.items():
        cells = [_format_figure(figures, name) for _, figures in shown]
        lines.append(f"| {figure.label} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _format_figure(evaluation: Evaluation, name: str) -> str:
    if name not in evaluation.figures:
        return formatting.NOTHING
    figure = evaluation[name]
    value, low, high = (
        formatting.figure_text(name, number) for number in (figure.value, figure.low, figure.high)
    )
    return value if figure.low is None else f"{value} ({low} to {high})"


class Recorder:
    """Judges predictions, writes pictures and the report, and fits a calibrator.

    Args:
        metrics: The names of the metrics to compute.
        intervals: Whether to compute intervals.
        method: The calibrator to fit; ``"auto"`` chooses, None fits none.
        options: Options of `calibrate`.
        seed: Random seed.
    """

    def __init__(
        self,
        *,
        metrics: Sequence[str],
        intervals: bool,
        method: str | None,
        options: Mapping[str, Any] | None,
        seed: int,
    ) -> None:
        self.metrics, self.intervals = tuple(metrics), intervals
        self.method, self.options, self.seed = method, dict(options or {}), seed

    def judge(self, predictions: Predictions) -> Evaluation:
        """Evaluate predictions by the metrics chosen."""
        return evaluate(
            predictions,
            metrics=self.metrics,
            intervals=self.intervals,
            seed=self.seed,
        )

    def fit(self, predictions: Predictions) -> Calibrator:
        """Fit the calibrator on held-out predictions."""
        assert self.method is not None
        return calibrate(predictions, method=self.method, seed=self.seed, **self.options)

    @staticmethod
    def repair(calibrator: Calibrator, predictions: Predictions) -> Predictions:
        """Return calibrated predictions."""
        return replace(apply(calibrator, predictions), name=f"{predictions.name}, repaired")

    def write_report(
        self, predictions: Predictions, path: Path, *, calibrator: Calibrator | None = None
    ) -> tuple[Evaluation, Evaluation | None]:
        """Write the report, before and after a calibrator fitted on other rows.

        Args:
            predictions: Predictions with labels.
            path: The file to write.
            calibrator: A calibrator that has not seen these rows. Default: None (only before).
        """
        # All metrics that suit the rows: the report is written once, not at every validation.
        before = evaluate(predictions, seed=self.seed)
        if calibrator is None:
            write(before, path, predictions=predictions)
            return before, None
        repaired = self.repair(calibrator, predictions)
        after = evaluate(repaired, seed=self.seed)
        choice = getattr(calibrator, "choice_", None)
        write(
            before,
            path,
            after=after,
            comparison=compare(predictions, repaired, seed=self.seed),
            explanation=choice.explanation if choice else f"The calibrator is {calibrator.name}.",
            predictions=predictions,
        )
        return before, after


def save_picture(evaluation: Evaluation, path: Path) -> Path:
    """Write the reliability picture as a PNG file.

    Args:
        evaluation: The result of `calibrant.evaluate`.
        path: The file to write; missing folders are made.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    figure: Any = pictures.plot_reliability(evaluation).figure
    figure.savefig(path)
    return path


def gather_rows(rows: Tensor) -> Tensor:
    """Return the rows of all processes on the CPU, in the order of their ranks.

    Args:
        rows: The rows of this process; every process must call this.
    """
    distributed = torch.distributed
    if not (distributed.is_available() and distributed.is_initialized()):
        return rows.cpu()
    world = distributed.get_world_size()
    on_gpu = distributed.get_backend() == "nccl"
    device = torch.device("cuda", torch.cuda.current_device()) if on_gpu else torch.device("cpu")
    counts = [torch.zeros(1, dtype=torch.int64, device=device) for _ in range(world)]
    distributed.all_gather(counts, torch.tensor([len(rows)], device=device))
    longest = max(int(count) for count in counts)
    padded = torch.zeros((longest, *rows.shape[1:]), dtype=rows.dtype, device=device)
    padded[: len(rows)] = rows.to(device)
    parts = [torch.empty_like(padded) for _ in range(world)]
    distributed.all_gather(parts, padded)
    kept = (part[: int(count)].cpu() for part, count in zip(parts, counts, strict=True))
    return torch.cat(list(kept))
