"""What every training loss costs beside cross-entropy: alone, and in a whole training step.

    python benchmarks/losses.py --json here.json             # CPU, and CUDA where there is one
    python benchmarks/losses.py --devices cuda --parts step --step resnet18 --settings graphed
    python benchmarks/losses.py --report here.json there.json --write benchmarks/LOSSES.md

Alone: forward and backward of random logits, as a ratio to `torch.nn.functional.cross_entropy`
of the same logits, both timed in turn, the median of several rounds. In a step (CUDA, unless
networks are named): a network's whole step (forward, loss, backward, SGD) in bfloat16 with
channels last, in turns with cross-entropy's (see losses_steps.py), and what the host's part of
the loss takes by itself (losses_host.py). What was measured is written as it goes, into a file
that may hold other parts already.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch.nn import functional as F

from losses_host import host_time
from losses_report import HEAD, NAMES, merged, report
from losses_steps import CUDA_ONLY, SETTINGS, STEPS, caller, trainable, whole_steps
from losses_waits import FLAT_ONLY, waits

SIZES = {
    "512x10": (512, 10),
    "512x100": (512, 100),
    "256x1000": (256, 1000),
    "8x12x180x240": (8, 12, 180, 240),
}
MEMORY = {"cpc": (256, 1000), "kde_ece": (1024, 1000)}
PARTS = ("step", "host", "waits", "memory", "alone")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, help="write what was measured here, or add it")
    parser.add_argument("--report", type=Path, nargs="+", help="print tables of such files")
    parser.add_argument("--write", type=Path, help="and write them here")
    parser.add_argument("--note", default="", help="what a reader of the report must know")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--devices", nargs="+", default=["cpu", "cuda"])
    parser.add_argument("--only", nargs="+", default=NAMES, metavar="LOSS")
    parser.add_argument("--rounds", type=int, default=15, help="of each loss alone, at most")
    parser.add_argument("--sizes", nargs="+", default=list(SIZES), metavar="SIZE")
    parser.add_argument("--step", nargs="+", metavar="NETWORK", help="resnet18 and resnet50")
    parser.add_argument("--settings", nargs="+", choices=list(SETTINGS), default=list(SETTINGS))
    parser.add_argument("--batch", type=int, default=512)
    parser.add_argument("--steps", type=int, default=STEPS, help="in a block")
    parser.add_argument("--minutes", type=float, default=1.0, help="for each part, once compiled")
    given = parser.parse_args()
    if given.report:
        text = report(merged([json.loads(path.read_text()) for path in given.report]))
        print(text)
        if given.write:
            note = f"{given.note}\n\n" if given.note else ""
            given.write.write_text(HEAD + note + text + "\n", encoding="utf-8")
        return
    for device in given.devices:
        if device == "cuda" and not torch.cuda.is_available():
            continue
        print(report([measure(torch.device(device), given)]), flush=True)


def measure(device: torch.device, given: argparse.Namespace) -> dict:
    """All figures of one device that were asked for."""
    cuda = device.type == "cuda"
    found: dict = {
        "device": torch.cuda.get_device_name() if cuda else f"CPU ({platform.machine()})",
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "rounds": given.rounds,
    }

    def save() -> None:
        if given.json:
            here = [json.loads(given.json.read_text())] if given.json.exists() else []
            given.json.write_text(json.dumps(merged([*here, [found]]), indent=1))

    if "waits" in given.parts and cuda:
        found["profiled"] = {name: waits(name, device) for name in given.only}
        save()
    if "memory" in given.parts and cuda:
        found["memory"] = {name: memory(name) for name in MEMORY if name in given.only}
        save()
    if "host" in given.parts and cuda:
        found["host"] = {name: host_time(name, device) for name in given.only}
        save()
    if "step" in given.parts:
        networks = given.step or (["resnet18", "resnet50"] if cuda else [])
        settings = [setting for setting in given.settings if cuda or setting not in CUDA_ONLY]
        for setting in settings:
            for network in networks:

                def keep(part: dict, key: str = f"{network}/{setting}") -> None:
                    found.setdefault("steps", {})[key] = part
                    save()

                how = {"minutes": given.minutes, "steps": given.steps, "batch": given.batch}
                whole_steps(network, setting, given.only, device, save=keep, **how)
    if "alone" in given.parts:
        found["alone"] = {}
        for size in given.sizes:
            shape = SIZES.get(size) or tuple(map(int, size.split("x")))
            names = [name for name in given.only if fits(name, shape)]
            each = 60 * given.minutes / len(names)
            found["alone"][size] = {
                name: alone(name, shape, device, given.rounds, each) for name in names
            }
            save()
    return found


def fits(name: str, shape: tuple[int, ...]) -> bool:
    return len(shape) == 2 or name not in FLAT_ONLY


def batch(shape: tuple[int, ...], device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    draw = torch.Generator().manual_seed(0)
    logits = 3 * torch.randn(shape, generator=draw)
    labels = torch.randint(shape[1], (shape[0], *shape[2:]), generator=draw)
    return logits.to(device).requires_grad_(), labels.to(device)


def timed(step: Callable[[], None], device: torch.device, least: float = 0.02) -> float:
    """Seconds of one call, of enough calls in a row to be told."""
    calls = 1
    while True:
        if device.type == "cuda":
            torch.cuda.synchronize()
        begun = time.perf_counter()
        for _ in range(calls):
            step()
        if device.type == "cuda":
            torch.cuda.synchronize()
        taken = time.perf_counter() - begun
        if taken > least:
            return taken / calls
        calls = max(calls * 2, int(calls * least / max(taken, 1e-9)))


def alone(
    name: str, shape: tuple[int, ...], device: torch.device, rounds: int, seconds: float
) -> dict:
    """Forward and backward, and its ratio to torch's cross-entropy; at least three rounds."""
    logits, labels = batch(shape, device)
    loss = caller(trainable(name, shape[0]).to(device), shape[0], device)

    def ours() -> None:
        logits.grad = None
        loss(logits, labels).backward()

    def plain() -> None:
        logits.grad = None
        F.cross_entropy(logits, labels).backward()

    for _ in range(3):
        ours()
        plain()
    until = time.perf_counter() + seconds
    pairs: list[tuple[float, float]] = []
    while len(pairs) < 3 or (len(pairs) < rounds and time.perf_counter() < until):
        pairs.append((timed(ours, device), timed(plain, device)))
    times = [mine for mine, _ in pairs]
    ratios = [mine / other for mine, other in pairs]
    return {"seconds": statistics.median(times), "ratio": statistics.median(ratios)}


def memory(name: str) -> dict:
    """MiB above the logits that a forward and backward take."""
    device = torch.device("cuda")
    shape = MEMORY[name]
    logits, labels = batch(shape, device)
    loss = trainable(name, shape[0]).to(device)
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    loss(logits, labels).backward()
    torch.cuda.synchronize()
    taken = (torch.cuda.max_memory_allocated() - before) / 2**20
    return {"shape": "x".join(map(str, shape)), "mib": taken}


if __name__ == "__main__":
    main()
