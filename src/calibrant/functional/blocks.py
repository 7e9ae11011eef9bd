"""One pass over predictions in row blocks, shared by every metric.

A block holds the softmax of a few thousand rows and, computed when first asked for, the
per-row quantities metrics are made of. Blocks are small enough to stay in the processor's
cache, so a metric costs little more than reading the logits once, and no second array of
the size of the input is ever made.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from functools import cached_property
from typing import TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from calibrant.functional.checks import check_block, check_shapes
from calibrant.functional.errors import InputError, first

Array: TypeAlias = "Tensor | NDArray[np.generic]"

# Elements a block holds: one or two float32 buffers of this size stay in the cache.
_CPU_ELEMENTS = 1 << 18
_CPU_ELEMENTS_WIDE = 1 << 20
_DEVICE_ELEMENTS = 1 << 24
# Below this many classes a block is transposed: reducing across rows is then vectorised.
_NARROW = 48
_LOOKED_AT = 64  # rows, to tell probabilities given as logits


class Block:
    """Rows after the softmax. Its tensors are valid until the next block is drawn."""

    def __init__(
        self,
        scores: Tensor,
        class_dim: int,
        target: Tensor | None,
        *,
        from_logits: bool,
        nll_only: bool,
        raw: Tensor,
        buffer: Tensor,
    ) -> None:
        self.scores = scores
        self.class_dim = class_dim
        self._target = target
        self.from_logits = from_logits
        self._nll_only = nll_only
        self._buffer = buffer
        self.raw = raw  # (rows, classes) as given: a view of the caller's array where possible

    @property
    def target(self) -> Tensor:
        """The labels of the rows."""
        if self._target is None:
            raise InputError("this metric needs labels; none were given")
        return self._target

    @property
    def num_rows(self) -> int:
        """How many rows the block holds."""
        return self.scores.shape[1 - self.class_dim]

    @property
    def num_classes(self) -> int:
        """How many classes the rows have."""
        return self.scores.shape[self.class_dim]

    def take(self, values: Tensor, index: Tensor) -> Tensor:
        """``values[n, index[n]]`` of each row n, whatever the layout."""
        return values.gather(self.class_dim, index.unsqueeze(self.class_dim)).squeeze(
            self.class_dim
        )

    @cached_property
    def probs(self) -> Tensor:
        """p = softmax(z), in the layout of the scores."""
        if not self.from_logits:
            return self.scores
        return torch.softmax(self.scores, self.class_dim, out=self._buffer)

    @cached_property
    def confidence(self) -> Tensor:
        """c = max_k p_k, in the precision of the block."""
        return self.probs.amax(self.class_dim)

    @cached_property
    def top_score(self) -> Tensor:
        """The largest score as given: the maximum logit, or probability."""
        return self.scores.amax(self.class_dim) if self.from_logits else self.confidence

    @cached_property
    def true_score(self) -> Tensor:
        """The score, as given, of the true class."""
        return self.take(self.scores, self.target)

    @cached_property
    def true_prob(self) -> Tensor:
        """p_y."""
        return self.take(self.probs, self.target)

    @cached_property
    def predicted(self) -> Tensor:
        """ŷ, the first of the largest scores; an argmax is taken of the wrong rows alone."""
        if self._target is None:
            return self._argmax(None)
        predicted = self.target.clone()
        wrong = (~self.correct).nonzero().squeeze(1)
        if wrong.numel():
            predicted[wrong] = self._argmax(wrong)
        return predicted

    @cached_property
    def correct(self) -> Tensor:
        """a = 1[ŷ = y].

        Comparing the true score with the largest is several times cheaper than an argmax.
        The two differ only where the largest is tied, which needs c <= 1/2: those rows
        alone are looked at again.
        """
        hit = self.true_score == self.top_score
        unsure = (hit & (self.confidence < 0.51)).nonzero().squeeze(1)
        if unsure.numel():
            hit[unsure] = self._argmax(unsure) == self.target[unsure]
        return hit

    def _argmax(self, rows: Tensor | None) -> Tensor:
        scores = self.scores
        if rows is not None:
            scores = scores.index_select(1 - self.class_dim, rows)
        if scores.device.type == "cpu" and self.class_dim == 1:
            return torch.from_numpy(scores.numpy().argmax(1))  # vectorised; torch's is not
        return scores.argmax(self.class_dim)

    @cached_property
    def nll(self) -> Tensor:
        """−ln p_y in float64; from logits finite whatever underflows, else inf at p_y = 0."""
        if not self.from_logits:
            return -self.true_prob.double().log()
        if self._nll_only:  # cheaper where nothing else is asked for
            logs = torch.log_softmax(self.scores, self.class_dim, out=self._buffer)
            found = -self.take(logs, self.target).double()
            if bool(torch.isfinite(found.sum())):
                return found
        gap = self.top_score.double() - self.true_score.double()  # float32 could overflow
        return gap - self.confidence.double().log()

    @cached_property
    def brier(self) -> Tensor:
        """Σ_k (p_k − 1[k=y])² = Σ_k p_k² − 2 p_y + 1, in float64."""
        if self.class_dim == 1:
            squares = torch.linalg.vector_norm(self.probs, dim=1).double().square()
        else:
            squares = self.probs.square().sum(0).double()
        return (squares - 2.0 * self.true_prob.double() + 1.0).clamp_min_(0.0)

    @cached_property
    def entropy(self) -> Tensor:
        """h = −Σ_k p_k ln p_k in nats, float64."""
        return torch.special.entr(self.probs).sum(self.class_dim).double()

    @cached_property
    def margin(self) -> Tensor:
        """The largest probability less the second largest."""
        top = self.probs.topk(2, dim=self.class_dim).values
        return top.select(self.class_dim, 0) - top.select(self.class_dim, 1)

    @cached_property
    def log_normaliser(self) -> Tensor:
        """ln Σ_k exp z_k (0 for probabilities), so that ln p_k = z_k − this; float64."""
        if not self.from_logits:
            return torch.zeros(self.num_rows, dtype=torch.float64, device=self.scores.device)
        return self.top_score.double() - self.confidence.double().log()


def to_tensor(values: Array) -> Tensor:
    """Torch as it is, NumPy as a view of the same memory."""
    if isinstance(values, Tensor):
        return values.detach()
    array = np.asarray(values)
    if array.dtype == object or array.dtype.kind not in "fiub":
        raise InputError(
            f"expected an array of numbers, found dtype {array.dtype}; convert it first, "
            "for example with .astype('float32')"
        )
    if array.dtype.byteorder == ">":
        array = array.astype(array.dtype.newbyteorder("="))
    if array.dtype in (np.uint16, np.uint32, np.uint64):
        array = array.astype(np.int64)
    if array.dtype.kind == "f" and array.dtype.itemsize > 8:
        array = array.astype(np.float64)
    if any(stride < 0 or stride % array.itemsize for stride in array.strides):
        array = array.copy()
    with warnings.catch_warnings():
        # A read-only array (a memory map) is never written to here.
        warnings.simplefilter("ignore", UserWarning)
        return torch.from_numpy(array)


def warn_of_probabilities(scores: Array, *, stacklevel: int) -> None:
    """A warning where some rows given as logits are probabilities, by the look of them."""
    if isinstance(scores, Tensor) and scores.device.type != "cpu":
        return  # a look would wait for the device
    if getattr(scores, "ndim", 0) != 2 or not len(scores) >= 2 or scores.shape[1] < 2:
        return
    some = to_tensor(scores[:: max(1, len(scores) // _LOOKED_AT)]).double()
    if bool(((some >= 0).all(1) & ((some.sum(1) - 1).abs() < 1e-3)).all()):
        warnings.warn(
            "rows of these logits lie in [0, 1] and sum to one: if they are probabilities, say so "
            "with from_logits=False",
            stacklevel=stacklevel + 1,
        )


def blocks(
    preds: Array,
    target: Array | None,
    *,
    from_logits: bool = True,
    ignore_index: int | None = None,
    num_labels: int | None = None,
    nll_only: bool = False,
    validate: bool = True,
) -> Iterator[Block]:
    """Draw (N,K), (N,) or (N,K,...) predictions block by block.

    ``num_labels`` bounds the labels where they are not classes (2 for in- and
    out-of-distribution). Rows whose label is ``ignore_index`` are left out. ``nll_only``
    promises that nothing but the negative log-likelihood will be asked for.
    """
    scores = to_tensor(preds)
    labels = None if target is None else to_tensor(target)
    check_shapes(scores, labels)
    if labels is not None and labels.device != scores.device:
        labels = labels.to(scores.device)
    dtype = torch.float32 if scores.dtype.itemsize < 4 else scores.dtype
    start = 0
    buffers: dict[str, Tensor] = {}
    for raw, block_labels, class_dim in _pieces(scores, labels):
        if raw.device.type == "mps":  # no float64 there: the sums are kept on the CPU
            raw, block_labels = raw.cpu(), None if block_labels is None else block_labels.cpu()
        if class_dim == -1:  # one binary score a row: the other class has logit 0
            raw = raw.to(dtype)  # before 1 − p, which half precision would round
            raw = torch.stack((torch.zeros_like(raw) if from_logits else 1 - raw, raw))
            class_dim = 0
        rows, where = raw.shape[1 - class_dim], None
        index = None if block_labels is None else block_labels.long()
        if index is not None and ignore_index is not None:
            keep = index != ignore_index
            if not bool(keep.all()):
                where = keep.nonzero().squeeze(1)
                index = index[where]
                raw = raw.index_select(1 - class_dim, where)
                if index.numel() == 0:
                    start += rows
                    continue
        x = raw if raw.dtype == dtype else raw.to(dtype)
        by_row = raw if class_dim == 1 else raw.t()
        if class_dim == 1 and x.shape[1] < _NARROW and x.device.type == "cpu":
            x = _buffer(buffers, "scores", (x.shape[1], x.shape[0]), x).copy_(x.t())
            class_dim = 0
        if validate:
            check_block(
                x,
                index,
                class_dim,
                from_logits=from_logits,
                bound=num_labels or x.shape[class_dim],
                locate=lambda bad, where=where, start=start: first(  # type: ignore[misc]
                    ((bad if where is None else where[bad]) + start).tolist()
                ),
                tolerance=1e-2 if scores.dtype.itemsize < 4 else 1e-3,
            )
        yield Block(
            x,
            class_dim,
            index,
            from_logits=from_logits,
            nll_only=nll_only,
            raw=by_row,
            buffer=_buffer(buffers, "probs", tuple(x.shape), x),
        )
        start += rows


def _buffer(buffers: dict[str, Tensor], name: str, shape: tuple[int, ...], like: Tensor) -> Tensor:
    if name not in buffers or tuple(buffers[name].shape) != shape:
        buffers[name] = torch.empty(shape, dtype=like.dtype, device=like.device)
    return buffers[name]


def _pieces(scores: Tensor, labels: Tensor | None) -> Iterator[tuple[Tensor, Tensor | None, int]]:
    """Cut predictions into pieces of two dimensions, and say which one is the classes."""
    on_cpu = scores.device.type == "cpu"
    if scores.ndim == 1:
        step = _CPU_ELEMENTS // 2 if on_cpu else _DEVICE_ELEMENTS // 2
        for i in range(0, scores.shape[0], step):
            yield scores[i : i + step], None if labels is None else labels[i : i + step], -1
        return
    classes = scores.shape[1]
    elements = _CPU_ELEMENTS if classes < _NARROW else _CPU_ELEMENTS_WIDE
    step = max(1, (elements if on_cpu else _DEVICE_ELEMENTS) // classes)
    if scores.ndim == 2:
        for i in range(0, scores.shape[0], step):
            yield scores[i : i + step], None if labels is None else labels[i : i + step], 1
        return
    pixels = scores[0, 0].numel()
    images = max(1, step // pixels)
    for i in range(0, scores.shape[0], images):
        some = scores[i : i + images].movedim(1, 0).reshape(classes, -1)
        theirs = None if labels is None else labels[i : i + images].reshape(-1)
        for j in range(0, some.shape[1], max(step, 1)):
            yield some[:, j : j + step], None if theirs is None else theirs[j : j + step], 0
