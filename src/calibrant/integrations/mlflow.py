"""MLflow: figures with their intervals, pictures and the report of an evaluation."""

from __future__ import annotations

import re
from typing import Any

from calibrant import report
from calibrant.core.errors import InputError
from calibrant.core.extras import require
from calibrant.evaluation import Evaluation
from calibrant.integrations.recorder import draw_pictures, list_values

__all__ = ["log_evaluation"]

_MOST_CHARACTERS = 5000  # of the value of a tag, in every store of MLflow


def log_evaluation(
    evaluation: Evaluation,
    *,
    step: int = 0,
    prefix: str = "calibration",
    run_id: str | None = None,
    client: Any = None,
    pictures: bool = True,
    write_report: bool = True,
) -> None:
    """Send an evaluation to a run of MLflow.

    Metrics are called ``PREFIX_ece``, ``PREFIX_ece_low`` and ``PREFIX_ece_high``; the tag
    ``PREFIX_verdict`` holds the verdict. Pictures, ``report.html`` and ``evaluation.json`` are
    artifacts in the folder ``PREFIX/STEP``.

    Args:
        evaluation: The result of `calibrant.evaluate`.
        step: The step of training. Default: 0 (a single evaluation).
        prefix: Text before every name, and the folder of the artifacts. Default: 'calibration'.
        run_id: The run. Default: None (the active run).
        client: An ``MlflowClient``. Default: None (one of the current tracking server).
        pictures: Whether to send pictures. Default: True.
        write_report: Whether to send the report and the evaluation as JSON. Default: True.
    """
    mlflow = require("mlflow", extra="mlflow", purpose="logging to MLflow")
    if run_id is None:
        active = mlflow.active_run()
        if active is None:
            raise InputError("no run of MLflow is active: call mlflow.start_run(), or give run_id=")
        run_id = active.info.run_id
    sender = mlflow.MlflowClient() if client is None else client
    name = re.sub(r"[^\w.-]+", "_", prefix)
    folder = f"{name}/{step}"
    for key, value in list_values(evaluation, prefix=f"{name}_").items():
        sender.log_metric(run_id, key, value, step=step)
    if evaluation.verdict is not None:
        headline = evaluation.verdict.headline[:_MOST_CHARACTERS]
        sender.set_tag(run_id, f"{name}_verdict", headline)
    if pictures:
        for key, figure in draw_pictures(evaluation).items():
            sender.log_figure(run_id, figure, f"{folder}/{key}.png")
    if write_report:
        sender.log_text(run_id, report.render(evaluation), f"{folder}/report.html")
        sender.log_text(run_id, evaluation.to_json(), f"{folder}/evaluation.json")
