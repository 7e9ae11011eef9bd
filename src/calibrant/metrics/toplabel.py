"""Top-label calibration errors: is a prediction right as often as its confidence says?

Errors over equal-width bins stream with three sums a bin. Equal-mass, sweep, KS and smooth
errors need ranks and store each row's confidence and correctness (`RankState`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from calibrant.core.errors import InputError
from calibrant.functional.arrays import Array
from calibrant.functional.binning import bin_index, bin_sums, check_bins
from calibrant.functional.blocks import Block
from calibrant.functional.ranking import Ranked
from calibrant.metrics.base import (
    Measure,
    State,
    calibration_measure,
    check_choice,
    check_order,
    compute_one,
)
from calibrant.metrics.rank_state import RankState

Floats: TypeAlias = NDArray[np.float64]

# Equal-mass cells that replace the rows where a rank-based error is simulated many times.
FINE = 240


@dataclass
class BinState(State):
    """The rows, the sum of confidence and the sum of correctness of each equal-width bin."""

    num_bins: int = 15
    totals: Tensor | None = field(default=None, init=False, repr=False)  # (M, 3)

    sums = ("totals",)
    weighted = True

    def __post_init__(self) -> None:
        self.num_bins = check_bins(self.num_bins)

    def update(self, block: Block) -> None:
        """Add one block of rows."""
        index = bin_index(block.confidence, self.num_bins)
        if block.weights is not None:
            parts = (torch.ones_like(block.weights), block.confidence.double(), block.correct)
            sums = [bin_sums(index, self.num_bins, block.weights * part) for part in parts]
            self.add("totals", torch.stack(sums, dim=1))
            return
        confidence = bin_sums(index, self.num_bins, block.confidence.double())
        # One count over (bin, right or wrong) gives all rows and the correct ones.
        by_outcome = bin_sums(index * 2 + block.correct, 2 * self.num_bins).view(-1, 2)
        self.add("totals", torch.stack((by_outcome.sum(1), confidence, by_outcome[:, 1]), dim=1))


def bin_gaps(totals: Tensor) -> tuple[Tensor, Tensor]:
    """Compute S_j/N, the share of rows, and |A_j − C_j| of each bin; 0 for an empty bin.

    ``totals`` is (..., M, 3): rows, confidence and correctness of each bin, of one set of rows
    or of many resampled ones at once.
    """
    count, confidence, correct = totals.unbind(-1)
    gap = (correct - confidence).abs() / torch.where(count > 0, count, 1.0)
    return count / count.sum(-1, keepdim=True), gap


def binned_error(totals: Tensor, order: float = 1.0) -> Tensor:
    """Compute ECE_bin,p = (Σ_j S_j/N |A_j − C_j|^p)^(1/p), soft-calibration eq. 6."""
    share, gap = bin_gaps(totals)
    if order == 1:
        return (share * gap).sum(-1)
    if order == float("inf"):
        return gap.amax(-1)
    return (share * gap**order).sum(-1) ** (1.0 / order)


def debiased_error(totals: Tensor, order: float) -> Tensor:
    """Compute the binned calibration error less an estimate of its upward bias.

    Order 2 (Kumar et al. 2019): each bin's squared gap less the variance of its accuracy,
    A(1−A)/(n−1), unbiased for the squared error. Order 1: each bin's |gap| less the mean excess
    of |Normal(gap, variance)| over it, 2|g| − E|Normal(g, s²)|. Bins of one row have no variance
    and are not corrected. A negative total becomes 0.
    """
    count, _, correct = totals.unbind(-1)
    share, gap = bin_gaps(totals)
    mean = correct / count.clamp_min(1.0)
    variance = torch.where(
        count > 1, mean * (1 - mean) / (count - 1).clamp_min(1.0), torch.zeros_like(mean)
    )
    if order == 2:
        return (share * (gap**2 - variance)).sum(-1).clamp_min(0.0).sqrt()
    if order != 1:
        raise InputError(f"debiased_ece takes order 1 or 2, found {order!r}")
    return (share * (2 * gap - folded_normal_mean(gap, variance.sqrt()))).sum(-1).clamp_min(0.0)


def chance_error(totals: Tensor) -> Tensor:
    """Compute the mean ECE of perfect calibration, Σ_j E|Binomial(n_j, C_j)/n_j − C_j| n_j/N.

    De Moivre's closed form of a binomial's mean deviation, with ν = ⌊nC⌋ + 1:
    E|X − nC| = 2 ν (n over ν) C^ν (1 − C)^(n − ν + 1). All rows of a bin are taken to have the
    bin's mean confidence.
    """
    count, confidence, _ = totals.double().unbind(-1)
    chance = (confidence / count.clamp_min(1.0)).clamp(0.0, 1.0)
    number = (count * chance).floor() + 1
    rest = (count - number).clamp_min(0.0)
    ways = torch.lgamma(count + 1) - torch.lgamma(number) - torch.lgamma(rest + 1)
    log = ways + torch.special.xlogy(number, chance) + torch.special.xlogy(rest + 1, 1 - chance)
    sure = (count == 0) | (number > count)
    deviation = torch.where(sure, torch.zeros_like(log), 2 * log.exp())
    return deviation.sum(-1) / count.sum(-1)


def folded_normal_mean(mean: Tensor, deviation: Tensor) -> Tensor:
    """Compute E|X| for X ~ Normal(mean, deviation²)."""
    safe = deviation.clamp_min(1e-300)
    ratio = mean / safe
    spread = safe * (2 / torch.pi) ** 0.5 * torch.exp(-0.5 * ratio**2)
    folded = spread + mean * torch.special.erf(ratio / 2**0.5)
    return torch.where(deviation > 0, folded, mean.abs())


def label_binned_error(state: RankState, num_bins: int, order: float, binning: str) -> Tensor:
    """Compute ECE_lb,p = (1/N Σ_i |A_b(i) − c_i|^p)^(1/p), soft-calibration eq. 7."""
    ranked = state.rank_rows()
    size = ranked.bounds.diff().double()
    if binning == "width":
        index = bin_index(ranked.score, num_bins)
        count = bin_sums(index, num_bins, size)
        right = count - bin_sums(index, num_bins, ranked.values.diff())
        rate = right / torch.where(count > 0, count, 1.0)
        error = rate[index].sub(ranked.score).abs() ** order
        return ((size * error).sum() / size.sum()) ** (1 / order)
    count, _, correct = state.mass_totals(num_bins).unbind(-1)
    # A tie group that a bound cuts lies in two bins: split it into pieces at the bounds.
    ends = count.cumsum(0).round().to(ranked.bounds)
    bounds = torch.unique(torch.cat((ranked.bounds, ends)))
    piece = bounds.diff().double()
    score = ranked.score[torch.searchsorted(ranked.bounds, bounds[:-1], right=True) - 1]
    home = torch.searchsorted(ends, bounds[:-1], right=True).clamp_max(len(ends) - 1)
    error = ((correct / count)[home] - score).abs() ** order
    return ((piece * error).sum() / piece.sum()) ** (1 / order)


def rank_cells(totals: Tensor) -> RankState:
    """Make ranked rows of one set of cells (C, 3), each a group of rows of equal confidence."""
    count, confidence, correct = totals[totals[:, 0] > 0].unbind(-1)
    score = confidence / count

    def cumulative(values: Tensor) -> Tensor:
        return torch.cat((values.new_zeros(1), values.cumsum(0)))

    bounds = cumulative(count).round().long()
    ranked = Ranked(score, bounds, cumulative(count - correct), cumulative(confidence))
    return RankState.from_ranked(ranked)


def ks_of_cells(totals: Tensor) -> Tensor:
    """Compute max_r |1/N Σ_{i<=r} (a_i − c_i)| over cells (..., C, 3) by ascending confidence."""
    count, confidence, correct = totals.unbind(-1)
    return (correct - confidence).cumsum(-1).abs().amax(-1) / count.sum(-1)


def ranked_ks_error(state: RankState) -> Tensor:
    """Compute the same over rows, at the end of each tie group."""
    ranked = state.rank_rows()
    right = ranked.bounds.double() - ranked.values
    cells = torch.stack((ranked.bounds.double(), ranked.scores, right), dim=-1)
    return ks_of_cells(cells.diff(dim=-2))


def sweep_bins(state: RankState) -> int:
    """Find the largest number of equal-mass bins up to which their accuracies are monotone."""
    ranked = state.rank_rows()
    num_rows = ranked.num_rows
    wrong = ranked.values.diff() / ranked.bounds.diff()
    if not bool((wrong.diff() > 0).any()):
        return num_rows  # monotone row by row (for example all correct), so at every number of bins
    for num_bins in range(2, num_rows + 1):
        count, _, correct = state.mass_totals(num_bins).unbind(-1)
        if bool(((correct / count).diff() < -1e-12).any()):
            return num_bins - 1
    return max(num_rows, 1)


def smooth_calibration_error(
    score: Floats, residual: Floats, *, count: int = 4096, tolerance: float = 1e-7
) -> Floats:
    """Compute smECE of Błasiok & Nakkiran (2023), the error smoothed at its own scale.

    smECE_σ = ∫ |1/N Σ_i K_σ(t, c_i) (c_i − a_i)| dt with a Gaussian kernel reflected at 0
    and 1; the value is smECE_σ* where smECE_σ* = σ*, found by bisection (smECE_σ falls as σ
    grows). A cosine transform applies the reflected kernel exactly: cosines are its
    eigenvectors.

    Args:
        score: (G,) distinct confidences.
        residual: (..., G) residuals (c_i − a_i)/N summed over the rows of each confidence.
        count: Cells of the grid over [0, 1].
        tolerance: Width of the last interval of the bisection.
    """
    from scipy.fft import dct, idct

    spectrum = dct(share_on_grid(score, residual, count), type=2, norm="ortho")
    frequency = np.pi * np.arange(count)

    def error(width: Floats) -> Floats:
        damped = spectrum * np.exp(-0.5 * (width[..., None] * frequency) ** 2)
        total: Floats = np.abs(idct(damped, type=2, norm="ortho")).sum(-1)
        return total

    low = np.zeros(residual.shape[:-1])
    high = np.ones_like(low)
    for _ in range(int(np.ceil(-np.log2(tolerance)))):
        middle = 0.5 * (low + high)
        above = error(middle) > middle
        low, high = np.where(above, middle, low), np.where(above, high, middle)
    return error(0.5 * (low + high))


_SAME = 1e-12  # two ends of a search whose errors differ by less agree but for rounding


def simulated_smooth_errors(score: Floats, residual: Floats, *, count: int = 512) -> Floats:
    """Compute `smooth_calibration_error` of many simulated sets at once, to about four digits.

    The same equation smECE_σ = σ, on a coarser grid, in float32, and solved by false position with
    Illinois' rule, which takes a third of the transforms that bisection does.

    Args:
        score: (G,) distinct confidences.
        residual: (R, G) residuals (c_i − a_i)/N of each set, summed over rows of one confidence.
        count: Cells of the grid over [0, 1].
    """
    from scipy.fft import dct, idct

    grid = share_on_grid(score, residual, count).astype(np.float32)
    spectrum = dct(grid, type=2, norm="ortho")
    decay = (-0.5 * (np.pi * np.arange(count)) ** 2).astype(np.float32)

    def excess(width: Floats) -> Floats:
        damped = np.exp((width**2).astype(np.float32)[:, None] * decay)
        damped *= spectrum
        total = np.abs(idct(damped, type=2, norm="ortho", overwrite_x=True)).sum(1)
        return np.asarray(total.astype(np.float64) - width)

    low, below = np.zeros(len(grid)), np.abs(grid).sum(1).astype(np.float64)
    high = below.copy()  # smECE_σ falls as σ grows, so that the root is no larger
    above = excess(high)
    last = np.zeros(len(grid))
    for _ in range(12):
        fall = below - above
        step = above * (high - low) / np.minimum(-fall, -1e-30)
        middle = high - np.where(fall > _SAME, step, 0.0)
        value = excess(middle)
        upper = value <= 0
        again = np.where(upper, 1.0, -1.0) == last
        below = np.where(upper, np.where(again, below / 2, below), value)
        above = np.where(upper, value, np.where(again, above / 2, above))
        low, high = np.where(upper, low, middle), np.where(upper, middle, high)
        last = np.where(upper, 1.0, -1.0)
        if float(np.abs(value).max(initial=0.0)) < 2e-6:
            break
    return middle


def share_on_grid(score: Floats, residual: Floats, count: int) -> Floats:
    """Share each residual linearly between the two cells next to its score: (..., count)."""
    place = np.clip(score, 0.0, 1.0) * count - 0.5
    left = np.clip(np.floor(place).astype(np.int64), 0, count - 1)
    right = np.minimum(left + 1, count - 1)
    share = np.clip(place - left, 0.0, 1.0)
    if residual.ndim == 1:
        grid = np.zeros(count)
        grid += np.bincount(left, weights=residual * (1 - share), minlength=count)
        grid += np.bincount(right, weights=residual * share, minlength=count)
        return grid
    table = np.zeros((len(score), count))
    table[np.arange(len(score)), left] += 1 - share
    table[np.arange(len(score)), right] += share
    return residual @ table


def _cells(binning: str, num_bins: int) -> tuple[Callable[[], State], Callable[[Any], Tensor]]:
    """Return the state of a binning, and the function that computes (M, 3) cells from it."""
    check_bins(num_bins)
    if check_choice("binning", binning, ("width", "mass")) == "width":
        return partial(BinState, num_bins), lambda state: state.total("totals")
    return RankState, lambda state: state.mass_totals(num_bins)


def ece_measure(
    *, num_bins: int = 15, order: float = 1, binning: str = "width", form: str = "bin"
) -> Measure:
    """Make the measure of `ece`."""
    order = check_order(order)
    cells = _cells(binning, num_bins)
    if check_choice("form", form, ("bin", "label")) == "bin":
        return calibration_measure("ece", *cells, partial(binned_error, order=order))

    def label_form(state: RankState) -> Tensor:
        return label_binned_error(state, num_bins, order, binning)

    return Measure("ece", (RankState,), label_form)


def mce_measure(*, num_bins: int = 15, binning: str = "width") -> Measure:
    """Make the measure of `mce`."""
    error = partial(binned_error, order=float("inf"))
    return calibration_measure("mce", *_cells(binning, num_bins), error)


def adaptive_ece_measure(*, num_bins: int = 15, order: float = 1) -> Measure:
    """Make the measure of `adaptive_ece`."""
    error = partial(binned_error, order=check_order(order))
    return calibration_measure("adaptive_ece", *_cells("mass", num_bins), error)


def debiased_ece_measure(*, num_bins: int = 15, order: float = 2, binning: str = "mass") -> Measure:
    """Make the measure of `debiased_ece`."""
    return calibration_measure(
        "debiased_ece",
        *_cells(binning, num_bins),
        partial(debiased_error, order=order),
        population=partial(binned_error, order=order),
        weighted=False,
    )


def chance_ece_measure(*, num_bins: int = 15) -> Measure:
    """Make the measure of `chance_ece`."""
    state, cells = _cells("width", num_bins)
    return Measure(
        "chance_ece",
        (state,),
        lambda bins: chance_error(cells(bins)),
        "neither",
        weighted=False,
    )


def _fine(state: RankState) -> Tensor:
    return state.mass_totals(FINE)


def ks_error_measure() -> Measure:
    """Make the measure of `ks_error`."""
    return calibration_measure("ks_error", RankState, _fine, ks_of_cells, compute=ranked_ks_error)


def sweep_ece_measure(*, order: float = 2) -> Measure:
    """Make the measure of `sweep_ece`."""
    order = check_order(order)

    def compute(state: RankState) -> Tensor:
        return binned_error(state.mass_totals(sweep_bins(state)), order)

    def error(totals: Tensor) -> Tensor:
        return torch.stack([compute(rank_cells(cells)) for cells in totals])

    # The sweep estimates the error itself, not the error of the bins that it chooses.
    population = partial(binned_error, order=order)
    return calibration_measure(
        "sweep_ece", RankState, _fine, error, population=population, compute=compute
    )


def smooth_ece_measure() -> Measure:
    """Make the measure of `smooth_ece`."""

    def compute(state: RankState) -> Tensor:
        rows = state.rank_rows()
        right = rows.bounds.double() - rows.values
        residual = (rows.scores - right).diff() / rows.num_rows
        value = smooth_calibration_error(rows.score.cpu().numpy(), residual.cpu().numpy())
        return torch.as_tensor(value, dtype=torch.float64, device=rows.bounds.device)

    def error(totals: Tensor) -> Tensor:
        # Simulated sets: a coarser grid, all sets at once; all have the same scores.
        count, confidence, correct = (tensor.numpy() for tensor in totals.unbind(-1))
        score = confidence.sum(0) / np.maximum(count.sum(0), 1.0)
        residual = (confidence - correct) / count.sum(-1, keepdims=True)
        return torch.from_numpy(simulated_smooth_errors(score, residual))

    return calibration_measure("smooth_ece", RankState, _fine, error, compute=compute)


def ece(
    preds: Array,
    target: Array,
    *,
    num_bins: int = 15,
    order: float = 1,
    binning: str = "width",
    form: str = "bin",
    from_logits: bool = True,
    ignore_index: int | None = None,
    view: str | None = None,
    pos_label: int | None = None,
    weights: Array | None = None,
) -> Any:
    """Compute the expected calibration error of order p, of the predicted class or of an event.

    ``form="bin"``: (Σ_j S_j/N |A_j − C_j|^p)^(1/p), soft-calibration eq. 6, with S_j rows,
    accuracy A_j and mean confidence C_j in bin j. ``form="label"``:
    (1/N Σ_i |A_b(i) − c_i|^p)^(1/p), eq. 7, never smaller. The plug-in value is biased upward:
    see ``debiased_ece`` and the intervals of ``calibrant.evaluate``.

    Args:
        preds: Scores of shape (N,K), (N,) (binary) or (N,K,...) (dense).
        target: Integer labels of shape (N,) or (N,...).
        num_bins: Number of bins M. Default: 15 (Guo et al. 2017, table 1).
        order: The order p, at least 1. Default: 1 (Guo et al. 2017, eq. 3).
        binning: ``"width"``, bins of equal width, which stream; or ``"mass"``, bins of equal mass,
            which store confidences; rows tied in confidence share their mean. Default: 'width'
            (Guo et al. 2017, eq. 3).
        form: ``"bin"`` or ``"label"``, as above. Default: 'bin' (Guo et al. 2017, eq. 3).
        from_logits: Whether ``preds`` are logits; False for probabilities. Default: True (ours:
            networks give logits).
        ignore_index: The label of rows to leave out. Default: None (ours: every row counts).
        view: ``"events"`` judges the probability of the positive class, ``"top"`` that of the
            predicted class. Default: None (ours: events for (N,) scores and two classes).
        pos_label: The positive class of two. Default: None (ours: class 1).
        weights: A positive sampling or importance weight for each row, free of scale; not a number
            of repetitions. Default: None (ours: rows count the same).

    >>> import torch
    >>> logits = torch.tensor([[2.0, 0, 0], [2.0, 0, 0], [0, 2.0, 0], [2.0, 0, 0]])
    >>> round(ece(logits, torch.tensor([0, 0, 1, 1])).item(), 4)  # sure .7870, right .75
    0.037
    """
    measure = ece_measure(num_bins=num_bins, order=order, binning=binning, form=form)
    return compute_one(
        measure,
        preds,
        target,
        from_logits=from_logits,
        ignore_index=ignore_index,
        view=view,
        pos_label=pos_label,
        weights=weights,
    )


def mce(
    preds: Array,
    target: Array,
    *,
    num_bins: int = 15,
    binning: str = "width",
    from_logits: bool = True,
    ignore_index: int | None = None,
    view: str | None = None,
    pos_label: int | None = None,
    weights: Array | None = None,
) -> Any:
    """Compute the maximum calibration error, the largest |A_j − C_j| of a bin with rows.

    Args:
        preds: Scores of shape (N,K), (N,) (binary) or (N,K,...) (dense).
        target: Integer labels of shape (N,) or (N,...).
        num_bins: Number of bins M. Default: 15 (Guo et al. 2017, table 1).
        binning: ``"width"`` or ``"mass"``, as in `ece`. Default: 'width' (Guo et al. 2017, eq. 5).
        from_logits: Whether ``preds`` are logits; False for probabilities. Default: True (ours:
            networks give logits).
        ignore_index: The label of rows to leave out. Default: None (ours: every row counts).
        view: ``"events"`` judges the probability of the positive class, ``"top"`` that of the
            predicted class. Default: None (ours: events for (N,) scores and two classes).
        pos_label: The positive class of two. Default: None (ours: class 1).
        weights: A positive sampling or importance weight for each row, free of scale; not a number
            of repetitions. Default: None (ours: rows count the same).
    """
    measure = mce_measure(num_bins=num_bins, binning=binning)
    return compute_one(
        measure,
        preds,
        target,
        from_logits=from_logits,
        ignore_index=ignore_index,
        view=view,
        pos_label=pos_label,
        weights=weights,
    )


def adaptive_ece(
    preds: Array,
    target: Array,
    *,
    num_bins: int = 15,
    order: float = 1,
    from_logits: bool = True,
    ignore_index: int | None = None,
    view: str | None = None,
    pos_label: int | None = None,
    weights: Array | None = None,
) -> Any:
    """Compute ECE with bins of equal mass (AECE): bin j holds ranks floor(jN/M) to floor((j+1)N/M).

    Args:
        preds: Scores of shape (N,K), (N,) (binary) or (N,K,...) (dense).
        target: Integer labels of shape (N,) or (N,...).
        num_bins: Number of bins M. Default: 15 (acls, table 3).
        order: The order p, at least 1. Default: 1 (Guo et al. 2017, eq. 3).
        from_logits: Whether ``preds`` are logits; False for probabilities. Default: True (ours:
            networks give logits).
        ignore_index: The label of rows to leave out. Default: None (ours: every row counts).
        view: ``"events"`` judges the probability of the positive class, ``"top"`` that of the
            predicted class. Default: None (ours: events for (N,) scores and two classes).
        pos_label: The positive class of two. Default: None (ours: class 1).
        weights: A positive sampling or importance weight for each row, free of scale; not a number
            of repetitions. Default: None (ours: rows count the same).
    """
    measure = adaptive_ece_measure(num_bins=num_bins, order=order)
    return compute_one(
        measure,
        preds,
        target,
        from_logits=from_logits,
        ignore_index=ignore_index,
        view=view,
        pos_label=pos_label,
        weights=weights,
    )


def debiased_ece(
    preds: Array,
    target: Array,
    *,
    num_bins: int = 15,
    order: float = 2,
    binning: str = "mass",
    from_logits: bool = True,
    ignore_index: int | None = None,
    view: str | None = None,
    pos_label: int | None = None,
    weights: Array | None = None,
) -> Any:
    """Compute ECE less an estimate of its upward bias (Kumar et al. 2019 for order 2).

    See `debiased_error` for the formulas.

    Args:
        preds: Scores of shape (N,K), (N,) (binary) or (N,K,...) (dense).
        target: Integer labels of shape (N,) or (N,...).
        num_bins: Number of bins M. Default: 15 (Guo et al. 2017, table 1).
        order: The order p, 1 or 2. Default: 2 (Kumar et al. 2019, their ℓ2 error).
        binning: ``"width"`` or ``"mass"``, as in `ece`. Default: 'mass' (Kumar et al. 2019,
            uniform-mass binning).
        from_logits: Whether ``preds`` are logits; False for probabilities. Default: True (ours:
            networks give logits).
        ignore_index: The label of rows to leave out. Default: None (ours: every row counts).
        view: ``"events"`` judges the probability of the positive class, ``"top"`` that of the
            predicted class. Default: None (ours: events for (N,) scores and two classes).
        pos_label: The positive class of two. Default: None (ours: class 1).
        weights: A positive sampling or importance weight for each row, free of scale; not a number
            of repetitions. Default: None (ours: rows count the same).
    """
    measure = debiased_ece_measure(num_bins=num_bins, order=order, binning=binning)
    return compute_one(
        measure,
        preds,
        target,
        from_logits=from_logits,
        ignore_index=ignore_index,
        view=view,
        pos_label=pos_label,
        weights=weights,
    )


def chance_ece(
    preds: Array,
    target: Array,
    *,
    num_bins: int = 15,
    from_logits: bool = True,
    ignore_index: int | None = None,
    view: str | None = None,
    pos_label: int | None = None,
    weights: Array | None = None,
) -> Any:
    """Compute the mean ECE that a perfectly calibrated classifier shows on these rows by chance.

    Even if a prediction of confidence c is right with probability c, the accuracy of a bin
    differs from its confidence, more so the fewer rows it has. An ECE about as low cannot be
    distinguished from perfect calibration. The value uses the confidences alone, so confidences
    that are too high make it too low. Labels only mark the rows to ignore.

    Args:
        preds: Scores of shape (N,K), (N,) (binary) or (N,K,...) (dense).
        target: Integer labels of shape (N,) or (N,...).
        num_bins: Number of bins M. Default: 15 (Guo et al. 2017, table 1).
        from_logits: Whether ``preds`` are logits; False for probabilities. Default: True (ours:
            networks give logits).
        ignore_index: The label of rows to leave out. Default: None (ours: every row counts).
        view: ``"events"`` judges the probability of the positive class, ``"top"`` that of the
            predicted class. Default: None (ours: events for (N,) scores and two classes).
        pos_label: The positive class of two. Default: None (ours: class 1).
        weights: A positive sampling or importance weight for each row, free of scale; not a number
            of repetitions. Default: None (ours: rows count the same).
    """
    measure = chance_ece_measure(num_bins=num_bins)
    return compute_one(
        measure,
        preds,
        target,
        from_logits=from_logits,
        ignore_index=ignore_index,
        view=view,
        pos_label=pos_label,
        weights=weights,
    )


def ks_error(
    preds: Array,
    target: Array,
    *,
    from_logits: bool = True,
    ignore_index: int | None = None,
    view: str | None = None,
    pos_label: int | None = None,
    weights: Array | None = None,
) -> Any:
    """Compute the KS calibration error, max_r |1/N Σ_{i<=r} (a_i − c_i)| (Gupta et al. 2021).

    Rows are ordered by confidence; there are no bins.

    Args:
        preds: Scores of shape (N,K), (N,) (binary) or (N,K,...) (dense).
        target: Integer labels of shape (N,) or (N,...).
        from_logits: Whether ``preds`` are logits; False for probabilities. Default: True (ours:
            networks give logits).
        ignore_index: The label of rows to leave out. Default: None (ours: every row counts).
        view: ``"events"`` judges the probability of the positive class, ``"top"`` that of the
            predicted class. Default: None (ours: events for (N,) scores and two classes).
        pos_label: The positive class of two. Default: None (ours: class 1).
        weights: A positive sampling or importance weight for each row, free of scale; not a number
            of repetitions. Default: None (ours: rows count the same).
    """
    return compute_one(
        ks_error_measure(),
        preds,
        target,
        from_logits=from_logits,
        ignore_index=ignore_index,
        view=view,
        pos_label=pos_label,
        weights=weights,
    )


def sweep_ece(
    preds: Array,
    target: Array,
    *,
    order: float = 2,
    from_logits: bool = True,
    ignore_index: int | None = None,
    view: str | None = None,
    pos_label: int | None = None,
    weights: Array | None = None,
) -> Any:
    """Compute the monotone-sweep ECE (Roelofs et al. 2020): the data choose the number of bins.

    The number of equal-mass bins grows while their accuracies stay monotone; the last number
    before the first failure is used.

    Args:
        preds: Scores of shape (N,K), (N,) (binary) or (N,K,...) (dense).
        target: Integer labels of shape (N,) or (N,...).
        order: The order p, at least 1. Default: 2 (soft-calibration, table 4).
        from_logits: Whether ``preds`` are logits; False for probabilities. Default: True (ours:
            networks give logits).
        ignore_index: The label of rows to leave out. Default: None (ours: every row counts).
        view: ``"events"`` judges the probability of the positive class, ``"top"`` that of the
            predicted class. Default: None (ours: events for (N,) scores and two classes).
        pos_label: The positive class of two. Default: None (ours: class 1).
        weights: A positive sampling or importance weight for each row, free of scale; not a number
            of repetitions. Default: None (ours: rows count the same).
    """
    measure = sweep_ece_measure(order=order)
    return compute_one(
        measure,
        preds,
        target,
        from_logits=from_logits,
        ignore_index=ignore_index,
        view=view,
        pos_label=pos_label,
        weights=weights,
    )


def smooth_ece(
    preds: Array,
    target: Array,
    *,
    from_logits: bool = True,
    ignore_index: int | None = None,
    view: str | None = None,
    pos_label: int | None = None,
    weights: Array | None = None,
) -> Any:
    """Compute the smooth calibration error (Błasiok & Nakkiran 2023): a kernel replaces bins.

    See `smooth_calibration_error` for the formula.

    Args:
        preds: Scores of shape (N,K), (N,) (binary) or (N,K,...) (dense).
        target: Integer labels of shape (N,) or (N,...).
        from_logits: Whether ``preds`` are logits; False for probabilities. Default: True (ours:
            networks give logits).
        ignore_index: The label of rows to leave out. Default: None (ours: every row counts).
        view: ``"events"`` judges the probability of the positive class, ``"top"`` that of the
            predicted class. Default: None (ours: events for (N,) scores and two classes).
        pos_label: The positive class of two. Default: None (ours: class 1).
        weights: A positive sampling or importance weight for each row, free of scale; not a number
            of repetitions. Default: None (ours: rows count the same).
    """
    return compute_one(
        smooth_ece_measure(),
        preds,
        target,
        from_logits=from_logits,
        ignore_index=ignore_index,
        view=view,
        pos_label=pos_label,
        weights=weights,
    )
