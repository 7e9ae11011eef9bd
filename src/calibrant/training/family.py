"""Several runs that are one: members trained each in a folder of its own, then put together."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from calibrant import metrics
from calibrant.functional.errors import InputError
from calibrant.predictions import Predictions
from calibrant.training.checkpoint import write_whole
from calibrant.training.config import Config
from calibrant.training.run import PARTS, Run

FIGURES = ("accuracy", "nll", "ece")


def train_family(
    run: Run,
    members: list[Config],
    how: str,
    train_one: Callable[[Config, Path], Run],
    several: Any = None,
) -> Run:
    """Train the members, those already done left as they are, and put them together.

    ``how``: ``mean`` of their softmaxes, or the one of ``lowest_validation_ece``. Of
    ``several`` processes the first puts them together.
    """
    runs = [
        train_one(member, run.folder / "members" / str(number))
        for number, member in enumerate(members)
    ]
    if several is None or several.is_global_zero:
        _put_together(run, runs, how)
    if several is not None:
        several.barrier()
    return run


def _put_together(run: Run, runs: list[Run], how: str) -> None:
    seconds = sum(one.outcome["seconds"] for one in runs)
    chosen: dict[str, Any] = {"rule": how, "members": len(runs)}
    if how == "lowest_validation_ece":
        if "validation_ece" not in runs[0].outcome["figures"]:
            raise InputError(
                "the two are compared on validation rows, and there are none: set validation to 0, "
                "which interleaves once training rows are known by heart"
            )
        errors = [one.outcome["figures"]["validation_ece"] for one in runs]
        chosen |= {"member": errors.index(min(errors)), "validation_ece": errors}
        runs = [runs[chosen["member"]]]
    write_whole(run.folder / "chosen.json", json.dumps(chosen).encode())
    (run.folder / "predictions").mkdir(exist_ok=True)
    figures: dict[str, float] = {}
    for part in PARTS:
        if not (runs[0].folder / "predictions" / f"{part}.safetensors").is_file():
            continue
        said = mean_prediction([one.predictions(part) for one in runs])
        said.write(run.folder / "predictions" / f"{part}.safetensors")
        for name in FIGURES:
            value = getattr(metrics, name)(said.scores, said.labels, ignore_index=said.ignore_index)
            figures[f"{part}_{name}"] = float(value)
    epochs = [one.outcome["epoch"] for one in runs]
    outcome = {
        "epoch": max(epochs),
        "epochs": epochs,  # of each member
        "rule": how,
        "epochs_rule": runs[0].config.report_epoch,
        "figures": figures,
        "recipe": {key: value for key, value in chosen.items() if isinstance(value, int)},
        "seconds": seconds,
    }
    write_whole(run.folder / "run.json", json.dumps(outcome, indent=1).encode())


def mean_prediction(parts: list[Predictions]) -> Predictions:
    """ln of the mean softmax of several predictions of the same rows, in their order."""
    logs = torch.stack(
        [torch.log_softmax(torch.as_tensor(one.scores).double(), 1) for one in parts]
    )
    mean = torch.logsumexp(logs, 0) - math.log(len(parts))
    first = parts[0]
    return Predictions.from_logits(
        mean.float(),
        first.labels,
        class_names=first.class_names,
        ignore_index=first.ignore_index,
        name=first.name,
    )
