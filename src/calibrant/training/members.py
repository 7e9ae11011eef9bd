"""Train several runs as one: each member in its own folder, then combined."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from calibrant import metrics
from calibrant.core.errors import InputError
from calibrant.core.files import write_file
from calibrant.predictions import Predictions
from calibrant.training.config import Config
from calibrant.training.run import FIGURES, PARTS, Run


def train_members(
    run: Run,
    members: list[Config],
    rule: str,
    train_member: Callable[[Config, Path], Run],
    fabric: Any = None,
) -> Run:
    """Train the members that are not finished, then combine all of them.

    Args:
        run: The run that the members become.
        members: The config of each member.
        rule: ``mean`` of their softmaxes, or the member of ``lowest_validation_ece``.
        train_member: Trains one member into a folder.
        fabric: Lightning's Fabric if there are several processes; the first one combines.
    """
    runs = [
        train_member(member, run.folder / "members" / str(number))
        for number, member in enumerate(members)
    ]
    if fabric is None or fabric.is_global_zero:
        _combine(run, runs, rule)
    if fabric is not None:
        fabric.barrier()
    return run


def _combine(run: Run, runs: list[Run], rule: str) -> None:
    seconds = sum(member.outcome["seconds"] for member in runs)
    chosen: dict[str, Any] = {"rule": rule, "members": len(runs)}
    if rule == "lowest_validation_ece":
        if "validation_ece" not in runs[0].outcome["figures"]:
            raise InputError(
                "the two runs are compared on validation rows, and there are none: set validation "
                "to 0, which interleaves once the training rows are memorised"
            )
        errors = [member.outcome["figures"]["validation_ece"] for member in runs]
        chosen |= {"member": errors.index(min(errors)), "validation_ece": errors}
        runs = [runs[chosen["member"]]]
    write_file(run.folder / "chosen.json", json.dumps(chosen).encode())
    (run.folder / "predictions").mkdir(exist_ok=True)
    figures: dict[str, float] = {}
    for part in PARTS:
        if not (runs[0].folder / "predictions" / f"{part}.safetensors").is_file():
            continue
        mean = mean_prediction([member.predictions(part) for member in runs])
        mean.write(run.folder / "predictions" / f"{part}.safetensors")
        for name in FIGURES:
            value = getattr(metrics, name)(
                mean.scores, mean.known_labels, ignore_index=mean.ignore_index
            )
            figures[f"{part}_{name}"] = float(value)
    epochs = [member.outcome["epoch"] for member in runs]
    outcome = {
        "epoch": max(epochs),
        "epochs": epochs,  # of each member
        "rule": rule,
        "epochs_rule": runs[0].config.report_epoch,
        "figures": figures,
        "recipe": {key: value for key, value in chosen.items() if isinstance(value, int)},
        "seconds": seconds,
    }
    write_file(run.folder / "run.json", json.dumps(outcome, indent=1).encode())


def mean_prediction(parts: list[Predictions]) -> Predictions:
    """Compute the logarithm of the mean softmax of several predictions of the same rows."""
    logs = torch.stack(
        [torch.log_softmax(torch.as_tensor(part.scores).double(), 1) for part in parts]
    )
    mean = torch.logsumexp(logs, 0) - math.log(len(parts))
    first = parts[0]
    return Predictions.from_logits(
        mean.float(),
        first.known_labels,
        class_names=first.class_names,
        ignore_index=first.ignore_index,
        name=first.name,
    )
