"""A loss as one CUDA graph: its value and its gradient for what it costs the host to start one.

Small batches cost a loss what its dozens of kernels cost to launch, and where the host is the
slower of the two a training step waits for that. A graph is launched whole.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

WARM_UPS = 3  # calls before a capture, in which kernels are built and chosen
HALF = (torch.float16, torch.bfloat16)
PLAIN = (bool, int, float, str, tuple, type(None))  # options that a graph has in it


class Graphed(nn.Module):
    """Any loss of this package, called as before; see `graphed`."""

    def __init__(self, loss: nn.Module, *, most: int = 8) -> None:
        super().__init__()
        self.loss, self.most = loss, most
        self.needs_index: bool = getattr(loss, "needs_index", False)
        self._graphs: dict[tuple[Any, ...], _Graph | None] = {}
        self._pool: Any = None

    def forward(self, input: Tensor, target: Tensor, *, index: Tensor | None = None) -> Tensor:
        """The loss."""
        given = (input, target) if index is None else (input, target, index)
        if not _can_replay(*given):
            return self._plain(*given)
        key = self._key(given)
        if key not in self._graphs:
            if len(self._graphs) >= self.most:
                return self._plain(*given)
            self._graphs[key] = self._capture(given)
        graph = self._graphs[key]
        if graph is None:
            return self._plain(*given)
        value: Tensor = _Replay.apply(graph, *given)  # type: ignore[no-untyped-call]
        return value

    def _plain(self, input: Tensor, target: Tensor, index: Tensor | None = None) -> Tensor:
        extra = {} if index is None else {"index": index}
        value: Tensor = self.loss(input, target, **extra)
        return value

    def _key(self, given: tuple[Tensor, ...]) -> tuple[Any, ...]:
        """All that a graph has in it and does not read anew: shapes, options, addresses."""
        options = tuple(
            one
            for module in self.loss.modules()
            for one in vars(module).values()
            if type(one) in PLAIN
        )
        places = tuple(buffer.data_ptr() for buffer in self.loss.buffers())
        forms = tuple((one.shape, one.stride(), one.dtype, one.device) for one in given)
        return forms, options, places

    def _capture(self, given: tuple[Tensor, ...]) -> _Graph | None:
        """The graph; None where the loss has no value of a batch, or learns, or cannot."""
        if any(one.requires_grad for one in self.loss.parameters()):
            return None
        with torch.cuda.device(given[0].device):
            if self._pool is None:  # one for all: no two of them run at once
                self._pool = torch.cuda.graph_pool_handle()
            with _as_it_was(self.loss, given[0].device):
                if self._plain(*given).ndim:
                    return None
            try:
                return _Graph(self, given, self._pool)
            except RuntimeError as error:
                why = str(error).strip().splitlines()[0]
                warnings.warn(
                    f"no CUDA graph can be made of {type(self.loss).__name__}, which is called as "
                    f"it is then ({why})",
                    stacklevel=3,
                )
                return None

    def __getstate__(self) -> dict[str, Any]:
        """What can be copied and saved: graphs are made again."""
        return {**self.__dict__, "_graphs": {}, "_pool": None}


def graphed(loss: nn.Module, *, most: int = 8) -> Graphed:
    """The loss as a CUDA graph: the same values and gradients, for next to nothing on the host.

    For a network that is not compiled, on a CUDA device; elsewhere, and wherever there is no
    gradient to compute, the loss is called as it is. A graph is captured when a shape is seen
    first, for at most ``most`` shapes (others are computed as they are), and keeps the memory of
    one forward and backward of the loss. Values and gradients are the caller's own: they can be
    kept, and several calls can come before the first backward. There is no second derivative.
    """
    return Graphed(loss, most=most)


class _Graph:
    """Value and gradient of a loss of tensors that stay where they are."""

    def __init__(self, loss: Graphed, given: tuple[Tensor, ...], pool: Any) -> None:
        logits, *rest = (one.detach() for one in given)
        # In float32 as in the loss: what a gradient scaler has yet to enlarge is not lost in half.
        wide = logits.float() if logits.dtype in HALF else logits.clone()
        self.given = wide.requires_grad_(), *(one.clone() for one in rest)
        device = given[0].device
        aside = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        aside.wait_stream(torch.cuda.current_stream(device))
        # A cast that autocast remembers would be missing from the graph; losses do their own.
        with torch.autocast("cuda", enabled=False):
            with torch.cuda.stream(aside), _as_it_was(loss.loss, device):
                for _ in range(WARM_UPS):
                    self._compute(loss)
            torch.cuda.current_stream(device).wait_stream(aside)
            self.graph = torch.cuda.CUDAGraph()
            # Other threads, such as a loader's, may go on with what is theirs.
            with torch.cuda.graph(self.graph, pool=pool, capture_error_mode="thread_local"):
                self.value, self.slope = self._compute(loss)

    def _compute(self, loss: Graphed) -> tuple[Tensor, Tensor]:
        with torch.enable_grad():
            value = loss._plain(*self.given)
            (slope,) = torch.autograd.grad(value, self.given[0])
        return value.detach(), slope

    def __call__(self, *given: Tensor) -> tuple[Tensor, Tensor]:
        """The value and the gradient, of their own memory."""
        for mine, theirs in zip(self.given, given, strict=True):
            mine.copy_(theirs)
        self.graph.replay()
        return self.value.clone(), self.slope.clone()


class _Replay(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, graph: _Graph, *given: Tensor) -> Tensor:
        value, slope = graph(*given)
        ctx.save_for_backward(slope)
        ctx.dtype = given[0].dtype
        return value

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
        (slope,) = ctx.saved_tensors
        found = torch.mul(slope, upstream, out=torch.empty_like(slope, dtype=ctx.dtype))
        return None, found, *[None] * (len(ctx.needs_input_grad) - 2)


def _can_replay(input: Tensor, target: Tensor, index: Tensor | None = None) -> bool:
    return (
        input.is_cuda
        and target.is_cuda
        and (index is None or index.is_cuda)
        and torch.is_grad_enabled()
        and input.requires_grad
        and not target.requires_grad
        and not torch.compiler.is_compiling()
        and not torch.cuda.is_current_stream_capturing()
    )


@contextmanager
def _as_it_was(loss: nn.Module, device: torch.device) -> Iterator[None]:
    """What calls change meanwhile, a loss's memory and the device's random numbers, is put back."""
    before = [(one, one.clone()) for one in loss.buffers()]
    try:
        with torch.random.fork_rng([device]):
            yield
    finally:
        with torch.no_grad():
            for one, kept in before:
                one.copy_(kept)
