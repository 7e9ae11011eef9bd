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
from torch.autograd.graph import saved_tensors_hooks

from calibrant.functional.errors import InputError

WARM_UPS = 3  # calls before a capture, in which kernels are built and chosen
HALF = (torch.float16, torch.bfloat16)
PLAIN = (bool, int, float, str, tuple, type(None))  # options whose values a graph has in it
OF_MODULES = frozenset(vars(nn.Module())) - {"training"}  # attributes that are no options


class Graphed(nn.Module):
    """A loss, called as before; see `graphed`."""

    def __init__(self, loss: nn.Module, *, most: int = 8) -> None:
        super().__init__()
        if not isinstance(loss, nn.Module):
            raise InputError(
                f"a graph is made of a loss such as losses.get('acls'), found {loss!r}"
            )
        self.loss, self.most = loss, most
        self._graphs: dict[tuple[Any, ...], _Graph | None] = {}
        self._sides: dict[torch.device, tuple[Any, Any]] = {}  # a stream and memory for graphs

    @property
    def needs_index(self) -> bool:
        """Whether it wants ``index=``, which training sample each row is."""
        return bool(getattr(self.loss, "needs_index", False))

    @property
    def local_batch(self) -> bool:
        """Whether it sees the rows of its own process only, under data parallelism."""
        return bool(getattr(self.loss, "local_batch", False))

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
        options = [
            (name, one if isinstance(one, PLAIN) else id(one))
            for module in self.loss.modules()
            for name, one in (("", type(module)), *vars(module).items())
            if name not in OF_MODULES
        ]
        places = [(one.data_ptr(), *_form(one)) for one in self.loss.buffers()]
        return tuple(map(_form, given)), tuple(options), tuple(places)

    def _capture(self, given: tuple[Tensor, ...]) -> _Graph | None:
        """The graph; None where the loss has no value of a batch, or learns, or cannot."""
        if any(one.requires_grad for one in (*self.loss.parameters(), *self.loss.buffers())):
            return None
        with torch.no_grad():
            if self._plain(*given).ndim:
                return None
        device = given[0].device
        with torch.cuda.device(device):
            if device not in self._sides:  # one memory for all: no two graphs run at once
                stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
                self._sides[device] = stream, torch.cuda.graph_pool_handle()
            try:
                return _Graph(self, given, *self._sides[device])
            except RuntimeError as error:
                why = (str(error).strip().splitlines() or ["no reason given"])[0]
                warnings.warn(
                    f"no CUDA graph can be made of {type(self.loss).__name__}, which is called as "
                    f"it is then ({why})",
                    stacklevel=3,
                )
                return None

    def __getstate__(self) -> dict[str, Any]:
        """What can be copied and saved: graphs are made again."""
        return {**self.__dict__, "_graphs": {}, "_sides": {}}


def graphed(loss: nn.Module, *, most: int = 8) -> Graphed:
    """The loss as a CUDA graph: the same values and gradients, for next to nothing on the host.

    For a network that is not compiled, on a CUDA device; elsewhere, and wherever there is no
    gradient to compute, the loss is called as it is. A graph is captured when a shape is seen
    first, or an option is changed, at most ``most`` times (after that the loss is called as it
    is), and keeps the memory of one forward and backward of the loss. Values and gradients are
    the caller's own: they can be kept, and several calls can come before the first backward.
    There is no second derivative, and one of these serves one thread and stream at a time.
    """
    return Graphed(loss, most=most)


class _Graph:
    """Value and gradient of a loss of tensors that stay where they are."""

    def __init__(self, loss: Graphed, given: tuple[Tensor, ...], side: Any, pool: Any) -> None:
        logits, *rest = (one.detach() for one in given)
        # In float32 as in the loss: what a gradient scaler has yet to enlarge is not lost in half.
        wide = logits.float() if logits.dtype in HALF else logits.clone()
        self.given = wide.requires_grad_(), *(one.clone() for one in rest)
        self.graph = torch.cuda.CUDAGraph()
        # A cast that autocast remembers would be missing from the graph; losses do their own.
        with _set_apart(side), torch.autocast("cuda", enabled=False):
            with torch.cuda.stream(side), _as_it_was(loss.loss, wide.device):
                for _ in range(WARM_UPS):
                    self._compute(loss)
            # Other threads, such as a loader's, may go on with what is theirs.
            with torch.cuda.graph(
                self.graph, pool=pool, stream=side, capture_error_mode="thread_local"
            ):
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
        all(isinstance(one, Tensor) and one.is_cuda for one in (input, target))
        and (index is None or index.is_cuda)
        and torch.is_grad_enabled()
        and input.requires_grad
        and not target.requires_grad
        and not torch.compiler.is_compiling()
        and not torch.cuda.is_current_stream_capturing()
    )


def _form(one: Tensor) -> tuple[Any, ...]:
    return one.shape, one.stride(), one.dtype, one.device


@contextmanager
def _set_apart(side: Any) -> Iterator[None]:
    """A stream beside the caller's, which is the caller's again whatever happens meanwhile.

    Nor do the caller's own hooks see what is saved for a gradient meanwhile.
    """
    here = torch.cuda.current_stream(side.device)
    side.wait_stream(here)
    try:
        with saved_tensors_hooks(lambda one: one, lambda one: one):
            yield
    finally:
        torch.cuda.set_stream(here)  # a capture that fails does not leave its own
        here.wait_stream(side)


@contextmanager
def _as_it_was(loss: nn.Module, device: torch.device) -> Iterator[None]:
    """What calls change meanwhile, a loss's memory and the device's random numbers, is put back."""
    before = [(one, one._version, one.clone()) for one in loss.buffers()]
    try:
        with torch.random.fork_rng([device]):
            yield
    finally:
        with torch.no_grad():
            for one, version, kept in before:
                if one._version != version:
                    one.copy_(kept)
