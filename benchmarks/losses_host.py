"""What a loss costs the host to start: what it adds to a step that the host bounds.

Forward and backward are called a few times and not waited for, in turns with torch's own
cross-entropy; few enough for the device's queue to take all their kernels at once. A whole step
of some milliseconds on a restless machine does not show a hundredth of itself; this does.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch
from torch.nn import functional as F

from losses_steps import CUDA_ONLY, as_set

CALLS = 5  # in a row, not waited for
SETTINGS = ("eager", "graphed")


def host_time(
    name: str, device: torch.device, *, rows: int = 512, classes: int = 100, rounds: int = 60
) -> dict:
    """By setting, microseconds of the host, and how many more than cross-entropy's."""
    draw = torch.Generator().manual_seed(0)
    logits = (3 * torch.randn(rows, classes, generator=draw)).to(device, torch.bfloat16)
    logits.requires_grad_()
    labels = torch.randint(classes, (rows,), generator=draw).to(device)

    def issued(loss: Callable) -> float:
        if device.type == "cuda":
            torch.cuda.synchronize()
        begun = time.perf_counter()
        for _ in range(CALLS):
            logits.grad = None
            loss(logits, labels).backward()
        return 1e6 * (time.perf_counter() - begun) / CALLS

    found = {}
    for setting in SETTINGS:
        if setting in CUDA_ONLY and device.type != "cuda":
            continue
        loss = as_set(name, setting, rows, device)
        for _ in range(3):
            issued(loss), issued(F.cross_entropy)
        pairs = [(issued(loss), issued(F.cross_entropy)) for _ in range(rounds)]
        found[setting] = {
            "us": round(statistics.median(mine for mine, _ in pairs), 1),
            "more": round(statistics.median(mine - other for mine, other in pairs), 1),
        }
    return found
