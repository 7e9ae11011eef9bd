"""TensorBoard: figures with their intervals, pictures and the report of an evaluation."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from calibrant import report
from calibrant.core.errors import InputError
from calibrant.evaluation import Evaluation
from calibrant.integrations.recorder import draw_pictures, list_values, make_table

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter

__all__ = ["log_evaluation"]


def log_evaluation(
    evaluation: Evaluation,
    writer: SummaryWriter,
    *,
    step: int = 0,
    prefix: str = "calibration",
    pictures: bool = True,
    write_report: bool = True,
) -> Path | None:
    """Send an evaluation to TensorBoard and return the path of the report.

    Scalars are called ``PREFIX/ece``, ``PREFIX/ece_low`` and ``PREFIX/ece_high``. The verdict and
    a table of the figures are text. TensorBoard shows no HTML: the report is a file beside the
    events, ``PREFIX-report-STEP.html``, and the text names it.

    Args:
        evaluation: The result of `calibrant.evaluate`.
        writer: A ``torch.utils.tensorboard.SummaryWriter``.
        step: The step of training. Default: 0 (a single evaluation).
        prefix: The group that TensorBoard shows everything in. Default: 'calibration'.
        pictures: Whether to send pictures. Default: True.
        write_report: Whether to write the report. Default: True.
    """
    if not hasattr(writer, "add_scalar"):
        raise InputError(
            f"writer must be a torch.utils.tensorboard.SummaryWriter, found {type(writer).__name__}"
        )
    sender: Any = writer  # its methods are not typed
    for name, value in list_values(evaluation).items():
        sender.add_scalar(f"{prefix}/{name}", value, step)
    if pictures:
        for name, figure in draw_pictures(evaluation).items():
            sender.add_figure(f"{prefix}/{name}", figure, step)
    parts = [] if evaluation.verdict is None else [evaluation.verdict.headline]
    parts.append(make_table(evaluation))
    path = None
    if write_report:
        name = prefix.replace("/", "-")
        path = report.write(evaluation, Path(sender.get_logdir()) / f"{name}-report-{step}.html")
        parts.append(f"Report: `{path}`")
    sender.add_text(f"{prefix}/summary", "\n\n".join(parts), step)
    return path
