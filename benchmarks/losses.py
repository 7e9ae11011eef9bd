"""What every training loss costs beside cross-entropy: alone, and in a whole training step.

    python benchmarks/losses.py --json here.json             # CPU, and CUDA where there is one
    python benchmarks/losses.py --report here.json there.json --write benchmarks/LOSSES.md

Alone: forward and backward of random logits, as a ratio to `torch.nn.functional.cross_entropy`
of the same logits, both timed in turn, the median of several rounds. In a step: a network's
whole step (forward, loss, backward, SGD) in bfloat16 with channels last, cross-entropy's step
timed before and after each loss's, the overhead taken of their mean.
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

from calibrant import losses, models
from calibrant.losses.registry import PRIMARY, SECONDARY

SIZES = {
    "512x10": (512, 10),
    "512x100": (512, 100),
    "256x1000": (256, 1000),
    "8x12x180x240": (8, 12, 180, 240),
}
FLAT_ONLY = ("crl", "kde_ece")
ALLOWED = {"r_aurc": 5.0, "kde_ece": 10.0, "cpc": 10.0}  # per cent of a step; 3 for all others
MEMORY = {"cpc": (256, 1000), "kde_ece": (1024, 1000)}
NAMES = [*PRIMARY, *SECONDARY]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, help="write what was measured here")
    parser.add_argument("--report", type=Path, nargs="+", help="print tables of such files")
    parser.add_argument("--write", type=Path, help="and write them here")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--devices", nargs="+", default=["cpu", "cuda"])
    parser.add_argument("--only", nargs="+", default=NAMES)
    given = parser.parse_args()
    if given.report:
        text = "\n\n".join(report(json.loads(path.read_text())) for path in given.report)
        print(text)
        if given.write:
            given.write.write_text(HEAD + text + "\n", encoding="utf-8")
        return
    found = []
    for device in given.devices:
        if device == "cuda" and not torch.cuda.is_available():
            continue
        found.append(measure(torch.device(device), given.only, given.rounds, given.steps))
        print(report([found[-1]]), flush=True)
        if given.json:
            given.json.write_text(json.dumps(found, indent=1))


def measure(device: torch.device, names: list[str], rounds: int, steps: int) -> dict:
    """All figures of one device."""
    where = torch.cuda.get_device_name() if device.type == "cuda" else platform.machine()
    result = {
        "device": where if device.type == "cuda" else f"CPU ({where})",
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "rounds": rounds,
        "alone": {
            size: {name: alone(name, shape, device, rounds) for name in names if fits(name, shape)}
            for size, shape in SIZES.items()
        },
    }
    if device.type == "cuda":
        result["waits"] = {name: waits(name, device) for name in names}
        result["memory"] = {name: memory(name, *MEMORY[name]) for name in MEMORY if name in names}
        result["steps"] = {net: whole_steps(net, names, steps) for net in ("resnet18", "resnet50")}
        result["step_count"] = steps
    return result


def fits(name: str, shape: tuple[int, ...]) -> bool:
    return len(shape) == 2 or name not in FLAT_ONLY


def trainable(name: str, rows: int) -> torch.nn.Module:
    """As it is trained: a secondary loss beside cross-entropy."""
    return losses.get(name, num_samples=rows)


def batch(shape: tuple[int, ...], device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    draw = torch.Generator().manual_seed(0)
    logits = 3 * torch.randn(shape, generator=draw)
    labels = torch.randint(shape[1], (shape[0], *shape[2:]), generator=draw)
    return logits.to(device).requires_grad_(), labels.to(device)


def caller(loss: torch.nn.Module, rows: int, device: torch.device) -> Callable:
    if not getattr(loss, "needs_index", False):
        return loss
    index = torch.arange(rows, device=device)
    return lambda logits, labels: loss(logits, labels, index=index)


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


def alone(name: str, shape: tuple[int, ...], device: torch.device, rounds: int) -> dict:
    """Forward and backward, and its ratio to torch's cross-entropy."""
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
    slow = timed(ours, device) > 0.2
    pairs = [(timed(ours, device), timed(plain, device)) for _ in range(3 if slow else rounds)]
    times = [mine for mine, _ in pairs]
    ratios = [mine / other for mine, other in pairs]
    return {"seconds": statistics.median(times), "ratio": statistics.median(ratios)}


def waits(name: str, device: torch.device) -> bool:
    """Whether the loss ever makes the host wait for the device."""
    logits, labels = batch((512, 100), device)
    loss = caller(trainable(name, 512).to(device), 512, device)
    loss(logits, labels).backward()
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        loss(logits, labels).backward()
    except RuntimeError:
        return True
    finally:
        torch.cuda.set_sync_debug_mode("default")
    return False


def memory(name: str, rows: int, classes: int) -> float:
    """MiB above the logits that a forward and backward take."""
    device = torch.device("cuda")
    logits, labels = batch((rows, classes), device)
    loss = trainable(name, rows).to(device)
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    loss(logits, labels).backward()
    torch.cuda.synchronize()
    return (torch.cuda.max_memory_allocated() - before) / 2**20


def whole_steps(network: str, names: list[str], steps: int) -> dict[str, dict]:
    """A training step with each loss, beside cross-entropy's."""
    device = torch.device("cuda")
    torch.backends.cudnn.benchmark = True
    net = models.build(network, 100).to(device, memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-4, momentum=0.9, weight_decay=5e-4)
    images = torch.randn(512, 3, 32, 32, device=device).to(memory_format=torch.channels_last)
    labels = torch.randint(100, (512,), device=device)

    def step(loss: Callable) -> None:
        with torch.autocast("cuda", dtype=torch.bfloat16):
            logits = net(images)
        optimizer.zero_grad(set_to_none=True)
        loss(logits, labels).backward()
        optimizer.step()

    def per_step(loss: Callable) -> float:
        for _ in range(3):
            step(loss)
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        for _ in range(steps):
            step(loss)
        end.record()
        torch.cuda.synchronize()
        return begin.elapsed_time(end) / steps

    for _ in range(10):
        step(F.cross_entropy)
    found = {}
    for name in names:
        loss = caller(trainable(name, 512).to(device), 512, device)
        overheads, times = [], []
        for _ in range(3):
            before, mine, after = (
                per_step(F.cross_entropy),
                per_step(loss),
                per_step(F.cross_entropy),
            )
            times.append(mine)
            overheads.append(100 * (mine / (0.5 * (before + after)) - 1))
        found[name] = {
            "ms": statistics.median(times),
            "overhead": statistics.median(overheads),
            "low": min(overheads),
            "high": max(overheads),
        }
    return found


HEAD = """# What the losses cost

Printed by `benchmarks/losses.py`. A secondary loss is measured as it is trained, with
cross-entropy beside it. Ratios are to `torch.nn.functional.cross_entropy` on the same logits,
in the same run.

"""


def report(found: list[dict]) -> str:
    parts = []
    for one in found:
        parts.append(
            f"## {one['device']}, torch {one['torch']}"
            + (f", {one['threads']} threads" if one["device"].startswith("CPU") else "")
        )
        sizes = list(one["alone"])
        lines = [
            f"Forward and backward alone, median of {one['rounds']} rounds: milliseconds, and "
            "times cross-entropy's.",
            "",
            "| loss | " + " | ".join(sizes) + " |",
            "|---|" + "---:|" * len(sizes),
        ]
        for name in NAMES:
            cells = []
            for size in sizes:
                cell = one["alone"][size].get(name)
                shown = (
                    "" if cell is None else f"{1e3 * cell['seconds']:.3f} ({cell['ratio']:.1f}x)"
                )
                cells.append(shown)
            if any(cells):
                lines.append(f"| `{name}` | " + " | ".join(cells) + " |")
        parts.append("\n".join(lines))
        if "steps" in one:
            parts.append(step_table(one))
            waiting = [name for name, does in one["waits"].items() if does]
            parts.append(
                "Losses that make the host wait for the device: "
                + (", ".join(waiting) or "none")
                + "."
            )
            told = ", ".join(
                f"`{name}` {value:,.0f} MiB at {'x'.join(map(str, MEMORY[name]))}"
                for name, value in one["memory"].items()
            )
            parts.append(
                f"Memory above the logits, forward and backward: {told} (target: 1,024 MiB)."
            )
    return "\n\n".join(parts)


def step_table(one: dict) -> str:
    nets = list(one["steps"])
    lines = [
        f"A whole step at batch 512 in bfloat16, three times {one['step_count']} steps: "
        "milliseconds, and overhead over cross-entropy's step (median, lowest to highest).",
        "",
        "| loss | " + " | ".join(nets) + " | allowed | met |",
        "|---|" + "---:|" * len(nets) + "---:|---|",
    ]
    for name in NAMES:
        if name not in one["steps"][nets[0]]:
            continue
        allowed = ALLOWED.get(name, 3.0)
        cells, worst = [], 0.0
        for net in nets:
            cell = one["steps"][net][name]
            worst = max(worst, cell["overhead"])
            spread = f"{cell['low']:+.1f} to {cell['high']:+.1f}"
            cells.append(f"{cell['ms']:.2f} ({cell['overhead']:+.1f}%, {spread})")
        met = "yes" if worst <= allowed else "no"
        lines.append(f"| `{name}` | " + " | ".join(cells) + f" | {allowed:g}% | {met} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
