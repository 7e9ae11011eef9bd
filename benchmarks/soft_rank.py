"""Time of the soft rank, forward and backward, beside torchsort's compiled kernel.

Prints Markdown: the CPU, and CUDA where there is a device. torchsort is built from source
(it needs a C++ compiler and torch at build time) and is left out where it does not import;
its figure is the yardstick of the same run. On CUDA every way is timed, from Python and as a
CUDA graph, the parts of its time are told apart, and its results are compared with the CPU's;
one that is not exact ends the run in an error. ``--quick`` takes the smallest sizes alone.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from statistics import median
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from calibrant.functional.soft_rank import device_pooling
from calibrant.functional.soft_rank import ranks as module
from calibrant.functional.soft_rank.device_pooling import centre_on_device, pool_on_device
from calibrant.functional.soft_rank.ranks import soft_rank
from calibrant.losses.r_aurc import r_aurc
from harness import Contestant, machine, milliseconds, race, share_of_others, shown, table, versions

STRENGTH = 0.05
SIZES = ((1, 128), (1, 512), (1, 4096), (1, 65_536), (32, 128), (32, 512), (32, 4096))
CALLS = 200  # CUDA calls between two waits for the device, at most
WARPS = (2, 4, 8, 16)
WAYS = {"fused": "fused", "sorted first": "sorted"}  # as printed, and as the module has them


PARTS = ("cpu", "cuda", "host", "warps", "dense", "exact")
WARM = 0.3  # seconds of calls before any is timed


def inputs(rows: int, n: int, device: str) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    values, weights = torch.rand(2, rows, n, generator=generator).to(device)
    return values.clone().requires_grad_(), weights


def forward_and_backward(rank: Callable[[Tensor], Tensor], values: Tensor, weights: Tensor):
    def call() -> float:
        values.grad = None
        rank(values).backward(weights)
        return float("nan")

    return call


def ours(values: Tensor) -> Tensor:
    return soft_rank(values, strength=STRENGTH)


def torchsort_rank() -> Callable[[Tensor], Tensor] | None:
    try:
        import torchsort
    except ImportError:
        return None
    return lambda values: torchsort.soft_rank(values, regularization_strength=STRENGTH)


def on_cpu(sizes, rounds: int) -> str:
    peer = torchsort_rank()
    lines = []
    for rows, n in sizes:
        values, weights = inputs(rows, n, "cpu")
        entries = [Contestant("calibrant", forward_and_backward(ours, values, weights))]
        if peer is not None:
            entries.append(
                Contestant("torchsort", forward_and_backward(peer, values, weights), peer=True)
            )
        for entry in entries:
            entry.call()  # imports fall outside the race
        race(entries, rounds=rounds, limit=60, patience=10)
        yardstick = entries[-1].best if peer is not None else float("nan")
        lines.append(
            [
                f"{rows} x {n:,}",
                *(milliseconds(entries[0].best), milliseconds(entries[0].median)),
                milliseconds(yardstick),
                shown(entries[0].best / yardstick, ".2f", "x"),
            ]
        )
    return table(("rows x n", "best ms", "median ms", "torchsort best ms", "ratio"), lines)


@contextmanager
def way(name: str) -> Iterator[None]:
    """Let soft_rank go one way alone, where it has it: fused, sorted first, or plain."""
    chosen = module._find_kernels

    def kernels(values: Tensor, which: str) -> ModuleType | None:
        return chosen(values, which) if which == WAYS.get(name) else None

    module._find_kernels = kernels
    try:
        yield
    finally:
        module._find_kernels = chosen


def ways(values: Tensor) -> list[str]:
    """The ways there are for these values, the one that is shipped first."""
    return [name for name, which in WAYS.items() if module._find_kernels(values, which)] + ["plain"]


def on_cuda(sizes, rounds: int) -> str:
    """Every way at every size in turn, round after round: a host's slow spell strikes them all."""
    calls: dict[tuple[str, str], Callable[[], float]] = {}
    for rows, n in sizes:
        values, weights = inputs(rows, n, "cuda")
        for name in ways(values):
            calls[f"{rows} x {n:,}", name] = forward_and_backward(ours, values, weights)
    eager: dict[tuple[str, str], list[float]] = {key: [] for key in calls}
    for _ in range(rounds):
        for key, call in calls.items():
            with way(key[1]):
                eager[key] += cuda_seconds(call, 1)
    lines, seen = [], set()
    for key, call in calls.items():
        with way(key[1]):
            replayed = graph_seconds(call, rounds)
        times = (median(eager[key]), min(eager[key]), max(eager[key]), median(replayed))
        taken = key[1] if key[0] in seen else f"{key[1]} (taken)"
        seen.add(key[0])
        lines.append([key[0], taken, *(milliseconds(seconds) for seconds in times)])
    return table(
        ("rows x n", "way", "median ms", "least", "most", "as a CUDA graph, median ms"), lines
    )


def cuda_seconds(call: Callable[[], object], rounds: int) -> list[float]:
    """Means over runs of calls from Python, of which the last is waited for, run by run."""
    warm = time.perf_counter() + WARM
    while time.perf_counter() < warm:  # also the host's clock, which rises under load
        call()
    torch.cuda.synchronize()
    started = time.perf_counter()
    call()
    torch.cuda.synchronize()
    calls = int(min(CALLS, max(3, 0.1 / (time.perf_counter() - started))))
    means = []
    for _ in range(rounds):
        torch.cuda.synchronize()
        started = time.perf_counter()
        for _ in range(calls):
            call()
        torch.cuda.synchronize()
        means.append((time.perf_counter() - started) / calls)
    return means


def graph_seconds(call: Callable[[], object], rounds: int) -> list[float]:
    """The same with the launches recorded once and replayed: what the device itself takes."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            call()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    return cuda_seconds(graph.replay, rounds)


class Untouched(torch.autograd.Function):
    """What autograd itself costs: nothing is computed."""

    @staticmethod
    def forward(ctx: Any, values: Tensor) -> Tensor:
        """The values."""
        return values.view_as(values)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        """The gradient."""
        return grad


class NoKernel:
    """Stands in for a kernel and starts nothing."""

    def __getitem__(self, grid: object) -> Callable[..., None]:
        return lambda *arguments, **options: None


def host_parts(n: int, rounds: int) -> str:
    """Where the time of a fused call goes on the host: parts are left out in turn."""
    values, weights = inputs(1, n, "cuda")
    fused = module._find_kernels(values, "fused")
    if fused is None:
        return "No fused kernels here."
    call = forward_and_backward(ours, values, weights)
    ranks, packed = fused.pool_packed(values.detach(), STRENGTH)

    def timed(what: Callable[[], object], **stand_ins: object) -> str:
        kept = {name: getattr(fused, name) for name in stand_ins}
        for name, stand_in in stand_ins.items():
            setattr(fused, name, stand_in)
        try:
            return milliseconds(median(cuda_seconds(what, rounds)))
        finally:
            for name, thing in kept.items():
                setattr(fused, name, thing)

    stubs = {"_pool_fused": NoKernel(), "_centre_fused": NoKernel()}
    made = {
        "pool_packed": lambda values, strength: (ranks.view_as(values), packed),
        "centre_packed": lambda grad, packed, strength: grad,
    }
    detached = values.detach()
    lines = [
        ["forward and backward", timed(call)],
        ["... without starting the kernels", timed(call, **stubs)],
        ["... nor making any tensor", timed(call, **made)],
        [
            "a Function that does nothing, forward and backward",
            timed(forward_and_backward(Untouched.apply, values, weights)),
        ],
        ["forward kernel with its tensors", timed(lambda: fused.pool_packed(detached, STRENGTH))],
        ["... without starting it", timed(lambda: fused.pool_packed(detached, STRENGTH), **stubs)],
        [
            "backward kernel with its tensors",
            timed(lambda: fused.centre_packed(weights, packed, STRENGTH)),
        ],
        [
            "... without starting it",
            timed(lambda: fused.centre_packed(weights, packed, STRENGTH), **stubs),
        ],
    ]
    return table((f"part, n = {n}", "median ms"), lines)


def by_warps(sizes: tuple[int, ...], rounds: int) -> str:
    """Device time of the fused kernels by the number of warps of a program."""
    lines = []
    for n in sizes:
        values, weights = inputs(1, n, "cuda")
        fused = module._find_kernels(values, "fused")
        if fused is None:
            return "No fused kernels here."
        kept = fused._launch
        times = []
        for warps in WARPS:
            block = kept(n, 32, 16)[0]
            fused._launch = lambda n, *_, block=block, warps=warps: (block, warps)
            try:
                replayed = graph_seconds(forward_and_backward(ours, values, weights), rounds)
            finally:
                fused._launch = kept
            times.append(milliseconds(median(replayed)))
        lines.append([f"{n}", f"{kept(n, 32, 16)[1]}", *times])
    return table(("n", "warps taken", *(f"{warps} warps, ms" for warps in WARPS)), lines)


def exactness(sizes) -> tuple[str, bool]:
    """Largest errors of every way against the CPU in float64, and whether all are small."""
    lines, fine = [], True
    for rows, n in sizes:
        for dtype in (torch.float32, torch.float64):
            probe = torch.zeros(rows, n, dtype=dtype, device="cuda")
            for name in ways(probe):
                errors = [0.0, 0.0]
                for seed in range(5):
                    values, weights = tied(rows, n, dtype, seed)
                    expected = rank_and_slope(values.double(), weights.double())
                    with way(name):
                        found = rank_and_slope(values.cuda(), weights.cuda())
                    for i, (some, other) in enumerate(zip(found, expected, strict=True)):
                        error = (some.cpu().double() - other).abs().max() / other.abs().max()
                        errors[i] = max(errors[i], float(error.nan_to_num(nan=math.inf)))
                good = max(errors) < (1e-6 if dtype == torch.float32 else 1e-11)
                fine = fine and good
                kind = str(dtype).removeprefix("torch.")
                verdict = "yes" if good else "NO"
                shown_errors = (f"{error:.1e}" for error in errors)
                lines.append([f"{rows} x {n:,}", kind, name, *shown_errors, verdict])
    header = ("rows x n", "values", "way", "ranks off by", "gradient off by", "exact")
    return table(header, lines), fine


def tied(rows: int, n: int, dtype: torch.dtype, seed: int) -> tuple[Tensor, Tensor]:
    """Values of which a third are tied, none of them a whole number of places apart."""
    generator = torch.Generator().manual_seed(1000 * n + seed)
    values = torch.rand(rows, n, generator=generator, dtype=torch.float64)
    grid = (values * 40).round() * (math.sqrt(2) / 60)
    tie = torch.rand(rows, n, generator=generator) < 1 / 3
    weights = torch.randn(rows, n, generator=generator, dtype=torch.float64)
    return torch.where(tie, grid, values).to(dtype), weights.to(dtype)


def rank_and_slope(values: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    leaf = values.detach().clone().requires_grad_()
    ranks = soft_rank(leaf, strength=0.002)
    ranks.backward(weights)
    assert leaf.grad is not None
    return ranks.detach(), leaf.grad


def dense(rounds: int) -> str:
    """The loss r_aurc on 8 x 12 x 180 x 240 logits: one row of 345,600 ranks, and its parts."""
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(8, 12, 180, 240, generator=generator).cuda().requires_grad_()
    target = torch.randint(12, (8, 180, 240), generator=generator).cuda()
    confidence = logits.detach().softmax(1).amax(1).reshape(1, -1)
    weights = torch.rand_like(confidence)
    pooled = pool_on_device(confidence, STRENGTH)
    wide = confidence.double()

    def loss(function: Callable[[Tensor, Tensor], Tensor]) -> Callable[[], None]:
        def call() -> None:
            logits.grad = None
            function(logits, target).backward()

        return call

    parts: dict[str, Callable[[], object]] = {
        "r_aurc, forward and backward": loss(r_aurc),
        "cross-entropy, forward and backward": loss(torch.nn.functional.cross_entropy),
        "soft rank, forward": lambda: pool_on_device(confidence, STRENGTH),
        "soft rank, backward": lambda: centre_on_device(weights, *pooled[1:], STRENGTH),
        "the sort in it": lambda: confidence.sort(dim=-1),
        "one running maximum, as it is": lambda: device_pooling._running_max(wide),
        "one running maximum, by cummax": lambda: wide.cummax(-1),
    }
    lines = []
    for name, call in parts.items():
        seconds = cuda_seconds(call, rounds)
        lines.append([name, milliseconds(median(seconds)), milliseconds(min(seconds))])
    return table(("8 x 12 x 180 x 240", "median ms", "least"), lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="smallest sizes alone")
    parser.add_argument("--threads", type=int, default=1, help="CPU threads of torch")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    arguments = parser.parse_args()
    parts = arguments.parts
    torch.set_num_threads(arguments.threads)
    sizes, rounds = (SIZES[:2], 2) if arguments.quick else (SIZES, 12)
    where = machine(arguments.threads)
    where.append(versions(("torch", "numpy", "scipy", "triton", "torchsort")))
    print("# Soft rank, forward and backward\n")
    print("\n".join(f"- {line}" for line in where))
    if "cpu" in parts:
        found: list[str] = []
        others = share_of_others(lambda: found.append(on_cpu(sizes, rounds)))
        print(f"\n## CPU\n\nOther processes used {others:.0%} of the machine.\n\n{found[0]}")
    if not torch.cuda.is_available():
        return
    rounds = 7 if arguments.quick else 12
    sizes = SIZES[:3] if arguments.quick else SIZES
    print(f"\n## {torch.cuda.get_device_name()}")
    if "cuda" in parts:
        print(f"\n{on_cuda(sizes, rounds)}")
    if "host" in parts:
        print(f"\n### On the host\n\n{host_parts(128, rounds)}")
    if "warps" in parts:
        print(f"\n### On the device, as CUDA graphs\n\n{by_warps((128, 512, 1024), rounds)}")
    if "dense" in parts:
        print(f"\n### Dense\n\n{dense(rounds)}")
    if "exact" in parts:
        errors, fine = exactness(((1, 128), (3, 512), (2, 1000), (1, 2048), (1, 4096)))
        print(f"\n### Against the CPU in float64, with ties\n\n{errors}")
        if not fine:
            raise SystemExit("a way is not exact")


if __name__ == "__main__":
    main()
