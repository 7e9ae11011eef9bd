"""One pass over predictions in row blocks, shared by every metric.

A block holds the softmax of a few thousand rows and, computed when first used, the per-row
quantities that metrics need. Blocks are small enough to stay in the processor's cache, so a
metric costs little more than reading the logits once, and no second array of the size of the
input is ever made.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from calibrant.core.errors import InputError, first, show
from calibrant.functional.arrays import Array, row_slices, to_tensor
from calibrant.functional.binning import bin_sums, find_true

# Elements a block holds: one or two float32 buffers of this size stay in the cache.
_CPU_ELEMENTS = 1 << 18
_CPU_ELEMENTS_WIDE = 1 << 20
_DEVICE_ELEMENTS = 1 << 24
# Below this many classes a block is transposed: reducing across rows is then vectorised.
_NARROW = 48
_SAMPLED = 64  # rows to check for probabilities given as logits


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
        weights: Tensor | None = None,
    ) -> None:
        self.scores = scores
        self.class_dim = class_dim
        self._target = target
        self.from_logits = from_logits
        self._nll_only = nll_only
        self._buffer = buffer
        self.raw = raw  # (rows, classes) as given: a view of the caller's array where possible
        self.weights = weights  # (rows,) float64; None if every row counts the same

    @property
    def target(self) -> Tensor:
        """Return the labels of the rows."""
        if self._target is None:
            raise InputError("this metric needs labels; none were given")
        return self._target

    @property
    def num_rows(self) -> int:
        """Return the number of rows in the block."""
        return self.scores.shape[1 - self.class_dim]

    @property
    def num_classes(self) -> int:
        """Return the number of classes."""
        return self.scores.shape[self.class_dim]

    def take(self, values: Tensor, index: Tensor) -> Tensor:
        """Return ``values[n, index[n]]`` of each row n, whatever the layout."""
        return values.gather(self.class_dim, index.unsqueeze(self.class_dim)).squeeze(
            self.class_dim
        )

    @cached_property
    def probs(self) -> Tensor:
        """Return p = softmax(z), in the layout of the scores."""
        if not self.from_logits:
            return self.scores
        return torch.softmax(self.scores, self.class_dim, out=self._buffer)

    @cached_property
    def top_prob(self) -> Tensor:
        """Return max_k p_k, in the precision of the block."""
        return self.probs.amax(self.class_dim)

    @property
    def confidence(self) -> Tensor:
        """Return c, the probability that is judged: that of the predicted class."""
        return self.top_prob

    @property
    def correct(self) -> Tensor:
        """Return a, whether what ``confidence`` is the probability of came true."""
        return self.right

    @cached_property
    def top_score(self) -> Tensor:
        """Return the largest score as given: the maximum logit, or probability."""
        return self.scores.amax(self.class_dim) if self.from_logits else self.top_prob

    @cached_property
    def true_score(self) -> Tensor:
        """Return the score, as given, of the true class."""
        return self.take(self.scores, self.target)

    @cached_property
    def true_prob(self) -> Tensor:
        """Return p_y."""
        return self.take(self.probs, self.target)

    @cached_property
    def predicted(self) -> Tensor:
        """Return ŷ, the first of the largest scores; only wrong rows need an argmax."""
        if self._target is None:
            return self._argmax(None)
        predicted = self.target.clone()
        wrong = find_true(~self.right)
        if wrong.numel():
            predicted[wrong] = self._argmax(wrong)
        return predicted

    @cached_property
    def class_outcomes(self) -> Tensor:
        """Return (K, 2): how many rows of each true class were predicted wrong, and right."""
        key = self.target * 2 + self.right
        return bin_sums(key, 2 * self.num_classes).view(-1, 2)

    @cached_property
    def right(self) -> Tensor:
        """Return 1[ŷ = y].

        Comparing the true score with the largest is several times cheaper than an argmax.
        The two differ only where the largest is tied, which needs c <= 1/2: only those rows are
        checked again.
        """
        hit = self.true_score == self.top_score
        unsure = find_true(hit & (self.top_prob < 0.51))
        if unsure.numel():
            hit[unsure] = self._argmax(unsure) == self.target[unsure]
        return hit

    def _argmax(self, rows: Tensor | None) -> Tensor:
        scores = self.scores
        if rows is not None:
            scores = scores.index_select(1 - self.class_dim, rows)
        if scores.device.type == "cpu" and self.class_dim == 1:
            return torch.from_numpy(scores.numpy().argmax(1))  # vectorised; torch's is not
        return scores.max(self.class_dim).indices  # the first; several times faster than argmax

    @cached_property
    def nll(self) -> Tensor:
        """Return −ln p_y in float64: finite from logits, inf at p_y = 0 from probabilities."""
        if not self.from_logits:
            return -self.true_prob.double().log()
        if self._nll_only:  # cheaper if nothing else is needed
            logs = torch.log_softmax(self.scores, self.class_dim, out=self._buffer)
            nll = -self.take(logs, self.target).double()
            if bool(torch.isfinite(nll.sum())):
                return nll
        gap = self.top_score.double() - self.true_score.double()  # float32 could overflow
        return gap - self.top_prob.double().log()

    @cached_property
    def brier(self) -> Tensor:
        """Return Σ_k (p_k − 1[k=y])² = Σ_k p_k² − 2 p_y + 1, in float64."""
        if self.class_dim == 1:
            squares = torch.linalg.vector_norm(self.probs, dim=1).double().square()
        else:
            squares = self.probs.square().sum(0).double()
        return (squares - 2.0 * self.true_prob.double() + 1.0).clamp_min_(0.0)

    @cached_property
    def entropy(self) -> Tensor:
        """Return h = −Σ_k p_k ln p_k in nats, float64."""
        return torch.special.entr(self.probs).sum(self.class_dim).double()

    @cached_property
    def margin(self) -> Tensor:
        """Return the largest probability less the second largest."""
        top = self.probs.topk(2, dim=self.class_dim).values
        return top.select(self.class_dim, 0) - top.select(self.class_dim, 1)

    @cached_property
    def log_normaliser(self) -> Tensor:
        """Return ln Σ_k exp z_k (0 for probabilities), so that ln p_k = z_k − this; float64."""
        if not self.from_logits:
            return torch.zeros(self.num_rows, dtype=torch.float64, device=self.scores.device)
        return self.top_score.double() - self.top_prob.double().log()


class EventBlock(Block):
    """Rows judged as events: the probability of one class, and whether it is the true class."""

    positive = 1

    @cached_property
    def confidence(self) -> Tensor:
        """Return p, the probability of the event."""
        return self.probs.select(self.class_dim, self.positive)

    @cached_property
    def correct(self) -> Tensor:
        """Return whether the event happened."""
        return self.target == self.positive

    @cached_property
    def brier(self) -> Tensor:
        """Return (p − y)², in float64."""
        return (self.confidence.double() - self.correct.double()).square()


def find_view(shape: tuple[int, ...], view: str | None, pos_label: int | None) -> int | None:
    """Return the positive class if the rows are judged as events; None for the predicted class.

    Args:
        shape: The shape of the scores.
        view: ``"events"``, ``"top"``, or None: events for (N,) scores and two classes.
        pos_label: The class whose probability is judged; class 1 if None.
    """
    if view not in (None, "top", "events"):
        raise InputError(f"view must be 'top' or 'events', found {view!r}")
    if not shape:
        return None  # a single number, which `blocks` refuses
    binary = len(shape) == 1 or shape[1] == 2
    if view == "top" or (view is None and not binary):
        if pos_label is not None:
            reason = "view='top' judges the predicted class" if binary else f"there are {shape[1]}"
            raise InputError(f"pos_label names the positive one of two classes; {reason}")
        return None
    if not binary:
        raise InputError(
            f"view='events' needs one probability a row or two classes, found {shape[1]} classes; "
            "give the probability of the class in question, shape (N,), and whether it is true"
        )
    if pos_label not in (None, 0, 1):
        raise InputError(f"pos_label must be 0 or 1, found {pos_label!r}")
    return 1 if pos_label is None else int(pos_label)


def warn_of_probabilities(scores: Array, *, stacklevel: int, wait: bool = False) -> None:
    """Warn if rows given as logits look like probabilities.

    Args:
        scores: (N,K) or (N,K,...); one score a row shows nothing.
        stacklevel: The caller to blame, as `warnings.warn` counts.
        wait: Also read values from a device, which waits for it.
    """
    if isinstance(scores, Tensor) and scores.device.type != "cpu" and not wait:
        return
    shape = tuple(getattr(scores, "shape", ()))
    if len(shape) < 2 or shape[0] * math.prod(shape[2:]) < 2 or shape[1] < 2:
        return
    few = (slice(None, None, max(1, shape[0] // _SAMPLED)), slice(None))
    sample = to_tensor(scores[few + (slice(0, 4),) * (len(shape) - 2)])
    if not sample.is_floating_point():
        return  # refused elsewhere
    tolerance = 1e-2 if sample.dtype.itemsize < 4 else 1e-3
    sample = sample.cpu().double()
    if bool(((sample >= 0).all(1) & ((sample.sum(1) - 1).abs() < tolerance)).all()):
        warnings.warn(
            "rows of these logits lie in [0, 1] and sum to one: if they are probabilities, set "
            "from_logits=False",
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
    weights: Array | None = None,
    positive: int | None = None,
    absent: bool = False,
) -> Iterator[Block]:
    """Yield (N,K), (N,) or (N,K,...) predictions block by block.

    Args:
        preds: Scores; (N,) are binary ones.
        target: Class indices, (N,...), or None.
        from_logits: Whether the scores are logits; if not, they are probabilities.
        ignore_index: Leave out rows with this label.
        num_labels: The number of labels if they are not classes (2 for in- and
            out-of-distribution).
        nll_only: Promise to use nothing but the negative log-likelihood.
        validate: Check the values of scores and labels.
        weights: A positive weight for each row, or image; None if all count the same.
        positive: Judge rows as events of this class (`EventBlock`); None judges the predicted
            class.
        absent: Allow logits of −inf, which mark options that a row does not have.
    """
    scores = to_tensor(preds)
    labels = None if target is None else to_tensor(target)
    if ignore_index is not None:
        _check_ignore_index(ignore_index)
    _check_shapes(scores, labels)
    row_weights = None if weights is None else _check_weights(weights, scores)
    if labels is not None and labels.device != scores.device:
        labels = labels.to(scores.device)
    dtype = torch.float32 if scores.dtype.itemsize < 4 else scores.dtype
    start = 0
    buffers: dict[str, Tensor] = {}
    for raw, block_labels, block_weights, class_dim in _pieces(scores, labels, row_weights):
        if raw.device.type == "mps":  # no float64 there: sum on the CPU
            raw, block_labels = raw.cpu(), None if block_labels is None else block_labels.cpu()
        if class_dim == -1:  # one binary score per row: the other class has logit 0
            raw = raw.to(dtype)  # before 1 − p, which half precision would round
            raw = torch.stack((torch.zeros_like(raw) if from_logits else 1 - raw, raw))
            class_dim = 0
        rows, where = raw.shape[1 - class_dim], None
        index = None if block_labels is None else block_labels.long()
        if index is not None and ignore_index is not None:
            keep = index != ignore_index
            if not bool(keep.all()):
                where = find_true(keep)
                index = index[where]
                raw = raw.index_select(1 - class_dim, where)
                block_weights = None if block_weights is None else block_weights[where]
                if index.numel() == 0:
                    start += rows
                    continue
        x = raw if raw.dtype == dtype else raw.to(dtype)
        by_row = raw if class_dim == 1 else raw.t()
        if class_dim == 1 and x.shape[1] < _NARROW and x.device.type == "cpu":
            x = _buffer(buffers, "scores", (x.shape[1], x.shape[0]), x).copy_(x.t())
            class_dim = 0
        if validate:
            _check_block(
                x,
                index,
                class_dim,
                from_logits=from_logits,
                bound=num_labels or x.shape[class_dim],
                locate=lambda bad, where=where, start=start: first(  # type: ignore[misc]
                    ((bad if where is None else where[bad]) + start).tolist()
                ),
                tolerance=1e-2 if scores.dtype.itemsize < 4 else 1e-3,
                absent=absent,
            )
        block = (Block if positive is None else EventBlock)(
            x,
            class_dim,
            index,
            from_logits=from_logits,
            nll_only=nll_only,
            raw=by_row,
            buffer=_buffer(buffers, "probs", tuple(x.shape), x),
            weights=block_weights,
        )
        if isinstance(block, EventBlock):
            block.positive = positive or 0
        yield block
        start += rows


def _check_weights(weights: Array, scores: Tensor) -> Tensor:
    """Return the weights of the rows in float64, on the device of the scores."""
    tensor = to_tensor(weights)
    if tuple(tensor.shape) != (scores.shape[0],):
        raise InputError(
            f"weights must have shape ({scores.shape[0]},), one for each row, found "
            f"{tuple(tensor.shape)}"
        )
    values = tensor.to(device="cpu" if scores.device.type == "mps" else scores.device).double()
    if not bool((torch.isfinite(values) & (values > 0)).all()):
        bad = (~(torch.isfinite(values) & (values > 0))).nonzero().squeeze(1)
        raise InputError(
            f"weights must be positive and finite, found {float(values[bad[0]]):.4g}, first in "
            f"rows {first(bad.tolist())}; leave out rows that must not count"
        )
    return values


def _buffer(buffers: dict[str, Tensor], name: str, shape: tuple[int, ...], like: Tensor) -> Tensor:
    if name not in buffers or tuple(buffers[name].shape) != shape:
        buffers[name] = torch.empty(shape, dtype=like.dtype, device=like.device)
    return buffers[name]


def _pieces(
    scores: Tensor, labels: Tensor | None, weights: Tensor | None
) -> Iterator[tuple[Tensor, Tensor | None, Tensor | None, int]]:
    """Cut predictions into pieces of two dimensions.

    Each comes with its labels, its weights and the dimension of its classes.
    """
    classes = scores.shape[1] if scores.ndim > 1 else 2
    elements = _CPU_ELEMENTS if classes < _NARROW else _CPU_ELEMENTS_WIDE
    elements = elements if scores.device.type == "cpu" else _DEVICE_ELEMENTS
    if scores.ndim <= 2:
        class_dim = 1 if scores.ndim == 2 else -1
        for rows in row_slices((scores.shape[0], classes), elements):
            piece_weights = None if weights is None else weights[rows]
            yield scores[rows], None if labels is None else labels[rows], piece_weights, class_dim
        return
    for images in row_slices(scores.shape, elements):
        table = scores[images].movedim(1, 0).reshape(classes, -1)
        flat = None if labels is None else labels[images].reshape(-1)
        size = table.shape[1]
        pixel_weights = None
        if weights is not None:
            pixel_weights = weights[images].repeat_interleave(size // len(weights[images]))
        for pixels in row_slices((size, classes), elements):
            piece_weights = None if pixel_weights is None else pixel_weights[pixels]
            yield table[:, pixels], None if flat is None else flat[pixels], piece_weights, 0


def _check_ignore_index(value: object) -> None:
    """Raise an error unless it can be the label of a row."""
    whole = isinstance(value, (int, np.integer)) and not isinstance(value, bool)
    if not whole or not -(2**63) <= int(value) < 2**63:  # type: ignore[call-overload]
        raise InputError(f"ignore_index must be a whole number of 64 bits, found {show(value)}")


def _check_shapes(preds: Tensor, target: Tensor | None) -> None:
    """Raise an error that says what is wrong with the shapes or dtypes of scores and labels."""
    if not preds.is_floating_point():
        raise InputError(
            f"scores must be floating point, found {preds.dtype}; "
            "if these are predicted classes, metrics of confidence cannot be computed from them"
        )
    if preds.ndim == 0:
        raise InputError("scores must have at least one dimension, found a single number")
    if preds.shape[0] == 0 or preds.numel() == 0:
        raise InputError(f"no rows: scores have shape {tuple(preds.shape)}")
    if preds.ndim >= 2 and preds.shape[1] < 2:
        raise InputError(
            f"scores of shape {tuple(preds.shape)} have {preds.shape[1]} class; for a binary "
            "score give shape (N,), for two classes (N, 2)"
        )
    if target is None:
        return
    if target.is_floating_point() or target.is_complex():
        raise InputError(
            f"labels must be integers, found {target.dtype}; convert with .long() or "
            ".astype('int64')"
        )
    wanted = (preds.shape[0], *preds.shape[2:])
    if tuple(target.shape) != wanted:
        hint = ""
        if tuple(target.shape) == tuple(preds.shape) and preds.ndim == 2:
            hint = (
                "; one-hot labels: give labels.argmax(1); many labels: Predictions.from_multilabel"
            )
        raise InputError(
            f"scores of shape {tuple(preds.shape)} need labels of shape {wanted}, "
            f"found {tuple(target.shape)}{hint}"
        )


def _check_block(
    x: Tensor,
    index: Tensor | None,
    class_dim: int,
    *,
    from_logits: bool,
    bound: int,
    locate: Callable[[Tensor], str],
    tolerance: float,
    absent: bool,
) -> None:
    """Raise an error that says what is wrong with a block; ``locate`` names rows of the whole."""
    kind = "logits" if from_logits else "probabilities"
    # A finite sum proves finite logits in a third of the time that their extremes take.
    certain = from_logits and np.isfinite(float(x.sum()))
    low, high = (0.0, 0.0) if certain else (float(v) for v in torch.aminmax(x))
    if absent and from_logits and low == -np.inf and np.isfinite(high):
        bad = (x == -np.inf).all(class_dim).nonzero().squeeze(1)
        if bad.numel():
            raise InputError(f"every option is absent (-inf) in rows {locate(bad)}")
        if index is not None:
            chosen = x.gather(
                class_dim, index.clamp(0, x.shape[class_dim] - 1).unsqueeze(class_dim)
            )
            bad = (chosen.squeeze(class_dim) == -np.inf).nonzero().squeeze(1)
            if bad.numel():
                raise InputError(f"the true option is absent (-inf) in rows {locate(bad)}")
    elif not (np.isfinite(low) and np.isfinite(high)):
        bad = (~torch.isfinite(x)).any(class_dim).nonzero().squeeze(1)
        hint = (
            "; -inf is the log of probability 0: give probabilities instead, or, if it marks "
            "options that a row does not have, use Predictions.from_options"
            if from_logits and low == -np.inf and high < np.inf
            else ""
        )
        raise InputError(f"{kind} hold NaN or infinity, first in rows {locate(bad)}{hint}")
    if not from_logits:
        if low < -1e-6 or high > 1 + tolerance:
            bad = ((x < -1e-6) | (x > 1 + tolerance)).any(class_dim).nonzero().squeeze(1)
            raise InputError(
                f"probabilities must lie in [0, 1], found {low:.4g} to {high:.4g}, first in "
                f"rows {locate(bad)}; are these logits?"
            )
        total = x.sum(class_dim)
        worst = (total - 1.0).abs().argmax()
        if abs(float(total[worst]) - 1.0) > tolerance:
            raise InputError(
                f"probabilities must sum to one in each row; row {locate(worst.view(1))} sums "
                f"to {float(total[worst]):.4g}. Divide each row by its sum, or give logits"
            )
    if index is not None:
        bottom, top = (int(v) for v in torch.aminmax(index))
        if bottom < 0 or top >= bound:
            bad = ((index < 0) | (index >= bound)).nonzero().squeeze(1)
            wrong = first(sorted(set(index[bad].tolist())))
            raise InputError(
                f"labels must lie in 0..{bound - 1}, found {wrong}, "
                f"first in rows {locate(bad)}; if that marks rows to leave out, set "
                "ignore_index"
            )
