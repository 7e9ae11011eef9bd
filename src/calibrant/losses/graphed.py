"""A loss as one CUDA graph: value and gradient for the host's cost of one launch.

With small batches a loss costs what its dozens of kernels cost to launch, and where the host
is slower than the device a training step waits for that. A graph is launched whole.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.autograd.graph import saved_tensors_hooks

from calibrant.core.errors import InputError

WARM_UPS = 3  # calls before a capture, in which kernels are built and chosen
HALF = (torch.float16, torch.bfloat16)
PLAIN = (bool, int, float, str, tuple, type(None))  # options whose values a graph contains
MODULE_ATTRIBUTES = frozenset(vars(nn.Module())) - {"training"}  # these are no options


class Graphed(nn.Module):
    """A loss as a CUDA graph, called as before. See `graphed` for the options."""

    def __init__(self, loss: nn.Module, *, most: int = 8) -> None:
        super().__init__()
        if not isinstance(loss, nn.Module):
            raise InputError(f"graphed needs a loss such as losses.get('acls'), found {loss!r}")
        self.loss, self.most = loss, most
        self._graphs: dict[tuple[Any, ...], _Graph | None] = {}
        self._sides: dict[torch.device, tuple[Any, Any]] = {}  # a stream and memory for graphs

    @property
    def needs_index(self) -> bool:
        """Return whether the loss needs ``index=``, the training sample of each row."""
        return bool(getattr(self.loss, "needs_index", False))

    @property
    def local_batch(self) -> bool:
        """Return whether the loss sees only the rows of its process, under data parallelism."""
        return bool(getattr(self.loss, "local_batch", False))

    def forward(self, input: Tensor, target: Tensor, *, index: Tensor | None = None) -> Tensor:
        """Compute the loss."""
        inputs = (input, target) if index is None else (input, target, index)
        if not _can_replay(*inputs):
            return self._plain(*inputs)
        key = self._key(inputs)
        if key not in self._graphs:
            if len(self._graphs) >= self.most:
                return self._plain(*inputs)
            self._graphs[key] = self._capture(inputs)
        graph = self._graphs[key]
        if graph is None:
            return self._plain(*inputs)
        value: Tensor = _Replay.apply(graph, *inputs)  # type: ignore[no-untyped-call]
        return value

    def _plain(self, input: Tensor, target: Tensor, index: Tensor | None = None) -> Tensor:
        extra = {} if index is None else {"index": index}
        value: Tensor = self.loss(input, target, **extra)
        return value

    def _key(self, inputs: tuple[Tensor, ...]) -> tuple[Any, ...]:
        """Return all that a graph fixes and does not read again: shapes, options, addresses."""
        options = [
            (name, value if isinstance(value, PLAIN) else id(value))
            for module in self.loss.modules()
            for name, value in (("", type(module)), *vars(module).items())
            if name not in MODULE_ATTRIBUTES
        ]
        places = [(buffer.data_ptr(), *_layout(buffer)) for buffer in self.loss.buffers()]
        return tuple(map(_layout, inputs)), tuple(options), tuple(places)

    def _capture(self, inputs: tuple[Tensor, ...]) -> _Graph | None:
        """Capture the graph; None if the loss is no single number, learns or cannot be captured."""
        state = (*self.loss.parameters(), *self.loss.buffers())
        if any(tensor.requires_grad for tensor in state):
            return None
        with torch.no_grad():
            if self._plain(*inputs).ndim:
                return None
        device = inputs[0].device
        with torch.cuda.device(device):
            if device not in self._sides:  # one memory pool for all: no two graphs run at once
                stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
                self._sides[device] = stream, torch.cuda.graph_pool_handle()
            try:
                return _Graph(self, inputs, *self._sides[device])
            except RuntimeError as error:
                why = (str(error).strip().splitlines() or ["no reason given"])[0]
                warnings.warn(
                    f"no CUDA graph can be made of {type(self.loss).__name__}, so it is called "
                    f"directly ({why})",
                    stacklevel=3,
                )
                return None

    def __getstate__(self) -> dict[str, Any]:
        """Return what can be copied and saved; graphs are captured again."""
        return {**self.__dict__, "_graphs": {}, "_sides": {}}


def graphed(loss: nn.Module, *, most: int = 8) -> Graphed:
    """Run a loss as a CUDA graph: the same values and gradients, at next to no cost on the host.

    It is meant for a network that is not compiled, on a CUDA device. Elsewhere, and without a
    gradient to compute, the loss is called directly. A graph is captured for every new shape and
    every changed option, and keeps the memory of one forward and backward pass of the loss.
    Values and gradients belong to the caller: they can be kept, and several calls can come before
    the first backward. There is no second derivative, and a graphed loss serves one thread and
    stream at a time.

    Args:
        loss: The loss, such as ``losses.get("acls")``.
        most: How many graphs to capture; after that the loss is called directly.
            Default: 8 (ours: a few shapes, as of the last batch, with room to spare).
    """
    return Graphed(loss, most=most)


class _Graph:
    """Value and gradient of a loss, of tensors that stay at their addresses."""

    def __init__(self, loss: Graphed, inputs: tuple[Tensor, ...], side: Any, pool: Any) -> None:
        logits, *rest = (tensor.detach() for tensor in inputs)
        # The gradient stays float32, as in the loss: half would lose what a scaler has to enlarge.
        wide = logits.float() if logits.dtype in HALF else logits.clone()
        self.given = wide.requires_grad_(), *(tensor.clone() for tensor in rest)
        self.graph = torch.cuda.CUDAGraph()
        # The graph would miss a cast that autocast has cached; losses cast by themselves.
        with _on_side_stream(side), torch.autocast("cuda", enabled=False):
            with torch.cuda.stream(side), _restore_state(loss.loss, wide.device):
                for _ in range(WARM_UPS):
                    self._compute(loss)
            # Other threads, such as a loader's, may use CUDA meanwhile.
            with torch.cuda.graph(
                self.graph, pool=pool, stream=side, capture_error_mode="thread_local"
            ):
                self.value, self.slope = self._compute(loss)

    def _compute(self, loss: Graphed) -> tuple[Tensor, Tensor]:
        with torch.enable_grad():
            value = loss._plain(*self.given)
            (slope,) = torch.autograd.grad(value, self.given[0])
        return value.detach(), slope

    def __call__(self, *inputs: Tensor) -> tuple[Tensor, Tensor]:
        """Replay the graph; return copies of the value and the gradient."""
        for mine, theirs in zip(self.given, inputs, strict=True):
            mine.copy_(theirs)
        self.graph.replay()
        return self.value.clone(), self.slope.clone()


class _Replay(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, graph: _Graph, *inputs: Tensor) -> Tensor:
        value, slope = graph(*inputs)
        ctx.save_for_backward(slope)
        ctx.dtype = inputs[0].dtype
        return value

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
        (slope,) = ctx.saved_tensors
        grad = torch.mul(slope, upstream, out=torch.empty_like(slope, dtype=ctx.dtype))
        return None, grad, *[None] * (len(ctx.needs_input_grad) - 2)


def _can_replay(input: Tensor, target: Tensor, index: Tensor | None = None) -> bool:
    return (
        all(isinstance(tensor, Tensor) and tensor.is_cuda for tensor in (input, target))
        and (index is None or index.is_cuda)
        and torch.is_grad_enabled()
        and input.requires_grad
        and not target.requires_grad
        and not torch.compiler.is_compiling()
        and not torch.cuda.is_current_stream_capturing()
    )


def _layout(tensor: Tensor) -> tuple[Any, ...]:
    return tensor.shape, tensor.stride(), tensor.dtype, tensor.device


@contextmanager
def _on_side_stream(side: Any) -> Iterator[None]:
    """Switch to a stream beside the caller's, and back to the caller's whatever happens.

    The caller's saved-tensor hooks do not see what is saved for the gradient meanwhile.
    """
    current = torch.cuda.current_stream(side.device)
    side.wait_stream(current)
    try:
        with saved_tensors_hooks(lambda tensor: tensor, lambda tensor: tensor):
            yield
    finally:
        torch.cuda.set_stream(current)  # a capture that fails leaves its own stream current
        current.wait_stream(side)


@contextmanager
def _restore_state(loss: nn.Module, device: torch.device) -> Iterator[None]:
    """Restore what warm-up calls change: the loss's buffers and the device's random state."""
    before = [(buffer, buffer._version, buffer.clone()) for buffer in loss.buffers()]
    try:
        with torch.random.fork_rng([device]):
            yield
    finally:
        with torch.no_grad():
            for buffer, version, saved in before:
                if buffer._version != version:
                    buffer.copy_(saved)
