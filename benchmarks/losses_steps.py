"""Whole training steps with each loss, beside cross-entropy's, in turns.

A round is a block of steps with cross-entropy, one with the first loss, one with
cross-entropy, one with the second, and so on to a last one with cross-entropy. A loss's
overhead in a round is its block's time over the mean of the two beside it, so that what a
shared machine does meanwhile strikes both; rounds go on until the time is up.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch
from torch.nn import functional as F

from calibrant import losses, models

# What is done for speed: nothing; the loss by `losses.graphed`, as training does unless it
# compiles; the loss compiled; network and loss compiled into CUDA graphs, as `compile: true` does
# in training on one card. Cross-entropy is torch's own, compiled where the network is. In the
# last the whole step is one CUDA graph, replayed: the host starts it and no kernel, so what is
# measured is the card's time, however busy the host.
SETTINGS = {
    "eager": "network and loss eager",
    "graphed": "network eager, loss by `losses.graphed`, as in training",
    "loss": "network eager, loss compiled",
    "engine": "network and loss compiled into CUDA graphs, as in training with `compile: true`",
    "graph": "network and loss eager, one CUDA graph",
}
CUDA_ONLY = ("graphed", "engine", "graph")
STEPS = 20  # in a block
LEAD_IN = 3  # steps before a block's time is taken
FEWEST_ROUNDS = 3
_compiled: dict[tuple[str, int, str | None], Callable] = {}


def trainable(name: str, rows: int) -> torch.nn.Module:
    """As it is trained: a secondary loss beside cross-entropy."""
    return losses.get(name, num_samples=rows)


def caller(loss: torch.nn.Module, rows: int, device: torch.device) -> Callable:
    """The loss of logits and labels alone."""
    if not getattr(loss, "needs_index", False):
        return loss
    index = torch.arange(rows, device=device)
    return lambda logits, labels: loss(logits, labels, index=index)


def mode(setting: str) -> str | None:
    """The mode of torch.compile."""
    return "reduce-overhead" if setting == "engine" else None


def as_set(name: str, setting: str, batch: int, device: torch.device) -> Callable:
    """The loss as this setting calls it."""
    loss = trainable(name, batch).to(device)
    if setting == "graphed":
        return caller(losses.graphed(loss), batch, device)
    call = caller(loss, batch, device)
    return call if setting in ("eager", "graph") else compiled(name, call, batch, setting)


def compiled(name: str, call: Callable, rows: int, setting: str) -> Callable:
    """One graph of the loss, the same for every network."""
    key = name, rows, mode(setting)
    if key not in _compiled:

        def alone(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
            return call(logits, labels)

        # Graphs are kept by the code they were made of, a few of each: give each loss its own,
        # as a process that trains with one of them has.
        alone.__code__ = alone.__code__.replace(co_name=f"alone_{name}")
        _compiled[key] = torch.compile(alone, fullgraph=True, dynamic=False, mode=mode(setting))
    return _compiled[key]


class Stepper:
    """A network, its optimizer and a batch."""

    def __init__(self, network: str, setting: str, device: torch.device, batch: int) -> None:
        self.device = device
        self._graphs: dict[Callable, torch.cuda.CUDAGraph] | None = None
        self._pool = None
        self._marks = setting == "engine"
        if setting in CUDA_ONLY and device.type != "cuda":
            raise ValueError(f"setting {setting!r} needs a CUDA device, not {device}")
        if setting == "graph":
            self._graphs, self._pool = {}, torch.cuda.graph_pool_handle()
        if device.type == "cuda":
            torch.backends.cudnn.benchmark = True
        net = models.build(network, 100).to(device, memory_format=torch.channels_last)
        self.net = torch.compile(net, mode=mode(setting)) if setting == "engine" else net
        self.optimizer = torch.optim.SGD(
            net.parameters(), lr=1e-4, momentum=0.9, weight_decay=5e-4, nesterov=True
        )
        draw = torch.Generator().manual_seed(0)
        images = torch.randn(batch, 3, 32, 32, generator=draw).to(device)
        self.images = images.to(memory_format=torch.channels_last)
        self.labels = torch.randint(100, (batch,), generator=draw).to(device)

    def step(self, loss: Callable) -> None:
        """Forward, backward, and the optimizer's."""
        if self._graphs is None:
            return self._step(loss)
        if loss not in self._graphs:
            self._graphs[loss] = self._capture(loss)
        return self._graphs[loss].replay()

    def _capture(self, loss: Callable) -> torch.cuda.CUDAGraph:
        """The step as a graph; all share their memory, since no two run at once."""
        aside = torch.cuda.Stream()
        aside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(aside):
            for _ in range(LEAD_IN):  # what is chosen or built at first is chosen now
                self._step(loss)
        torch.cuda.current_stream().wait_stream(aside)
        self.optimizer.zero_grad(set_to_none=True)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool):
            self._step(loss)
        return graph

    def _step(self, loss: Callable) -> None:
        if self._marks:
            torch.compiler.cudagraph_mark_step_begin()
        with torch.autocast(self.device.type, dtype=torch.bfloat16):
            logits = self.net(self.images)
        self.optimizer.zero_grad(set_to_none=True)
        loss(logits, self.labels).backward()
        self.optimizer.step()

    def block(self, loss: Callable, steps: int) -> float:
        """Milliseconds of a step; nothing waits for the device within the block."""
        for _ in range(min(LEAD_IN, steps)):
            self.step(loss)
        if self.device.type != "cuda":
            begun = time.perf_counter()
            for _ in range(steps):
                self.step(loss)
            return 1e3 * (time.perf_counter() - begun) / steps
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        for _ in range(steps):
            self.step(loss)
        end.record()
        end.synchronize()
        return begin.elapsed_time(end) / steps


def whole_steps(
    network: str,
    setting: str,
    names: list[str],
    device: torch.device,
    *,
    minutes: float,
    steps: int = STEPS,
    batch: int = 512,
    save: Callable[[dict], None] = lambda found: None,
) -> dict:
    """Milliseconds and overheads of every loss; ``save`` is given what there is, each round."""
    stepper = Stepper(network, setting, device, batch)
    plain: Callable = F.cross_entropy
    if setting == "engine":
        plain = compiled("torch", F.cross_entropy, batch, setting)
    begun = time.perf_counter()
    for _ in range(5):
        stepper.step(plain)
    found: dict = {"batch": batch, "steps": steps, "setting": setting, "losses": {}}
    calls: dict[str, Callable] = {}
    for name in names:
        call = as_set(name, setting, batch, device)
        try:
            stepper.step(call)
            stepper.step(call)
        except Exception as error:  # what a compiler may say of one loss stops no other
            found["losses"][name] = {"failure": str(error).strip().splitlines()[0][:200]}
            continue
        calls[name] = call
        found["losses"][name] = {"ms": [], "overhead": []}
    stepper.block(plain, steps)
    found["ready_seconds"] = round(time.perf_counter() - begun, 1)
    until = time.perf_counter() + 60 * minutes
    found["rounds"], found["plain_ms"] = 0, []
    while found["rounds"] < FEWEST_ROUNDS or time.perf_counter() < until:
        before = stepper.block(plain, steps)
        for name, call in calls.items():
            mine, after = stepper.block(call, steps), stepper.block(plain, steps)
            found["losses"][name]["ms"].append(round(mine, 4))
            overhead = 100 * (mine / (0.5 * (before + after)) - 1)
            found["losses"][name]["overhead"].append(round(overhead, 3))
            found["plain_ms"].append(round(after, 4))
            before = after
        found["rounds"] += 1
        save(found)
    return found


def quartiles(values: list[float]) -> tuple[float, float, float]:
    """The first quartile, the median and the third."""
    if len(values) < 2:
        return values[0], values[0], values[0]
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return low, middle, high
