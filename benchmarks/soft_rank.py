"""Time of the soft rank, forward and backward, beside torchsort's compiled kernel.

Prints Markdown: the CPU, and CUDA where there is a device. torchsort is built from source
(it needs a C++ compiler and torch at build time) and is left out where it does not import;
its figure is the yardstick of the same run. ``--quick`` takes the smallest sizes alone.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import torch
from torch import Tensor

from calibrant.functional import soft_rank as module
from calibrant.functional.soft_rank import soft_rank
from harness import Contestant, machine, milliseconds, race, share_of_others, shown, table, versions

STRENGTH = 0.05
SIZES = ((1, 128), (1, 512), (1, 4096), (1, 65_536), (32, 128), (32, 512), (32, 4096))
CALLS = 200  # CUDA calls between two waits for the device


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


def on_cuda(sizes, rounds: int) -> str:
    lines = []
    chosen = module._kernels
    for rows, n in sizes:
        values, weights = inputs(rows, n, "cuda")
        call = forward_and_backward(ours, values, weights)
        triton = chosen(values) is not None
        shipped, replayed = cuda_seconds(call, rounds), graph_seconds(call, rounds)
        module._kernels = lambda values: None
        try:
            plain, plain_replayed = cuda_seconds(call, rounds), graph_seconds(call, rounds)
        finally:
            module._kernels = chosen
        times = (shipped, replayed, plain, plain_replayed)
        way = "Triton" if triton else "plain"
        lines.append([f"{rows} x {n:,}", way, *(milliseconds(seconds) for seconds in times)])
    header = (
        "rows x n",
        "way taken",
        "ms",
        "as a CUDA graph",
        "plain way, ms",
        "plain, as a graph",
    )
    return table(header, lines)


def cuda_seconds(call: Callable[[], float], rounds: int) -> float:
    """The best mean of a run of calls, from Python, of which the last is waited for."""
    for _ in range(5):
        call()
    best = float("inf")
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    for _ in range(rounds):
        torch.cuda.synchronize()
        start.record()
        for _ in range(CALLS):
            call()
        end.record()
        torch.cuda.synchronize()
        best = min(best, start.elapsed_time(end) / 1e3 / CALLS)
    return best


def graph_seconds(call: Callable[[], float], rounds: int) -> float:
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
    return cuda_seconds(lambda: graph.replay() or float("nan"), rounds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="smallest sizes alone")
    parser.add_argument("--threads", type=int, default=1, help="CPU threads of torch")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    sizes, rounds = (SIZES[:2], 2) if arguments.quick else (SIZES, 12)
    where = machine(arguments.threads)
    where.append(versions(("torch", "numpy", "scipy", "triton", "torchsort")))
    print("# Soft rank, forward and backward\n")
    print("\n".join(f"- {line}" for line in where))
    found: list[str] = []
    others = share_of_others(lambda: found.append(on_cpu(sizes, rounds)))
    print(f"\n## CPU\n\nOther processes used {others:.0%} of the machine.\n\n{found[0]}")
    if torch.cuda.is_available():
        print(f"\n## {torch.cuda.get_device_name()}\n\n{on_cuda(sizes, rounds)}")


if __name__ == "__main__":
    main()
