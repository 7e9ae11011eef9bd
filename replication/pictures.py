"""Draw the papers' pictures on given axes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from calibrant.bench.tables.formatting import heading
from calibrant.bench.tables.pictures import COLOURS, add_legend, line_style, start_axes
from calibrant.bench.tables.series import Series
from calibrant.core.errors import InputError
from calibrant.report.pictures import MUTED, OVER, UNDER
from replication.claims.power_analysis import compute_fisher_z
from replication.formulas import (
    RANKED,
    compute_loss_curves,
    compute_membership,
    compute_pulls,
    compute_uncertainty,
    make_probabilities,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes

R_AURC = ("cross_entropy", "focal(gamma=3)", "inverse_focal(gamma=1.5)", *RANKED)


def draw_loss_weights(ax: Axes | None = None, *, texts: Sequence[str] = R_AURC) -> Axes:
    """Draw the factor of cross-entropy, scaled to mean 1, against p (r-aurc figure 1).

    The paper draws r-AURC's curve for hard ranks; the soft ranks that it trains with are beside.
    """
    axes = start_axes(ax, "Weight of a row", "probability of the true class", "weight, of mean 1")
    p = make_probabilities().numpy()
    for place, (text, curve) in enumerate(compute_loss_curves(texts).items()):
        axes.plot(p, curve.weight, label=text, **line_style(place))
    axes.set_ylim(0, 5)
    axes.set_xlim(0, 1)
    add_legend(axes)
    return axes


def draw_loss_gradients(
    ax: Axes | None = None,
    *,
    texts: Sequence[str] = (
        "cross_entropy",
        "focal(gamma=3)",
        "inverse_focal(gamma=1.5)",
        "inverse_focal(gamma=3.5)",
        *RANKED,
    ),
) -> Axes:
    """Draw ∂ℓ/∂p against p (r-aurc figure 3), from the losses' own derivatives."""
    axes = start_axes(ax, "Gradient of a row", "probability of the true class", "∂ℓ/∂p")
    p = make_probabilities().numpy()
    for place, (text, curve) in enumerate(compute_loss_curves(texts).items()):
        # Leave out the ends, where whole-numbered ranks do not match p.
        axes.plot(p[4:-4], curve.gradient[4:-4], label=text, **line_style(place))
    axes.axhline(0, color=MUTED, lw=0.8)
    axes.set_ylim(-8, 1)
    axes.set_xlim(0, 1)
    add_legend(axes)
    return axes


def draw_soft_bins(ax: Axes | None = None, *, temperature: float = 0.01, num_bins: int = 5) -> Axes:
    """Draw the membership of confidences in each soft bin (soft-calibration figure 3)."""
    axes = start_axes(ax, f"Soft bins, T = {temperature:g}", "confidence", "membership")
    table = compute_membership([temperature], num_bins=num_bins)[temperature]
    places = np.linspace(0, 1, len(table))
    for bin_ in range(num_bins):
        axes.plot(places, table[:, bin_], **line_style(bin_))
        axes.axvline((bin_ + 0.5) / num_bins, color=COLOURS[bin_ % len(COLOURS)], lw=0.6, ls=":")
    axes.set_xlim(0, 1)
    axes.set_ylim(0, 1.02)
    return axes


def draw_soft_threshold(
    ax: Axes | None = None,
    *,
    settings: Sequence[tuple[float, float]] = ((0.5, 1.0), (0.5, 0.1), (0.1, 1.0), (0.1, 0.1)),
) -> Axes:
    """Draw t_κ,T against normalised entropy (soft-calibration figure 4)."""
    axes = start_axes(ax, "Soft uncertainty", "entropy / ln K", "t")
    for place, ((kappa, temperature), curve) in enumerate(compute_uncertainty(settings).items()):
        label = f"κ = {kappa:g}, T = {temperature:g}"
        axes.plot(np.linspace(0, 1, len(curve)), curve, label=label, **line_style(place))
    axes.set_xlim(0, 1)
    axes.set_ylim(0, 1.02)
    add_legend(axes)
    return axes


def draw_shares(
    lines: Sequence[Series], ax: Axes | None = None, *, title: str = "", against: str = ""
) -> Axes:
    """Draw each line as a share of its first value (class-scaling figure 3)."""
    axes = start_axes(ax, title, against, "share of the first value")
    for place, line in enumerate(lines):
        axes.plot(
            line.places,
            [mean / line.means[0] for mean in line.means],
            label=line.name,
            **line_style(place),
        )
    add_legend(axes)
    return axes


def draw_spread_against_error(
    points: Sequence[tuple[str, str, float, float]], ax: Axes | None = None, *, title: str = ""
) -> Axes:
    """Draw class-wise loss spread against ECE, with Pearson's r (class-scaling figure 1)."""
    if not points:
        raise InputError("no class-wise losses to draw")
    spread, error = (np.array([point[side] for point in points]) for side in (2, 3))
    z, _ = compute_fisher_z(spread.tolist(), error.tolist())
    r = math.tanh(z)
    heading_text = " ".join(filter(None, (title, f"(r = {r:.2f})" if math.isfinite(r) else "")))
    axes = start_axes(ax, heading_text, "standard deviation of class-wise losses", heading("ece"))
    plain = np.array([point[1] == "none" for point in points])
    for mask, colour, label in ((plain, OVER, "uncalibrated"), (~plain, UNDER, "calibrated")):
        if mask.any():
            axes.scatter(spread[mask], 100 * error[mask], s=14, color=colour, lw=0, label=label)
    add_legend(axes)
    return axes


def draw_effects(
    effects: Mapping[str, Mapping[str, float]], ax: Axes | None = None, *, title: str = ""
) -> Axes:
    """Draw Cohen's d of secondary losses, grouped by primary (soft-calibration figure 1)."""
    names = list(dict.fromkeys(name for each in effects.values() for name in each))
    if not names:
        raise InputError("no secondary loss beside its primary loss to draw")
    axes = start_axes(ax, title or "Effect on ECE", "", "Cohen's d, above 0: lower ECE")
    width = min(0.8 / len(effects), 0.4)
    for place, (primary, each) in enumerate(effects.items()):
        at = np.arange(len(names)) + (place - (len(effects) - 1) / 2) * width
        heights = [each.get(name, np.nan) for name in names]
        axes.bar(at, heights, width * 0.92, color=COLOURS[place % len(COLOURS)], label=primary)
    axes.axhline(0, color=MUTED, lw=0.8)
    axes.set_xticks(range(len(names)), names)
    axes.set_xlim(-0.6, len(names) - 0.4)
    add_legend(axes)
    return axes


def draw_uncertainty(
    points: Sequence[tuple[str, float, float]], ax: Axes | None = None, *, title: str = ""
) -> Axes:
    """Draw ECE against mean entropy, a mark for each method (soft-calibration figure 10)."""
    if not points:
        raise InputError("no method with a mean entropy to draw")
    axes = start_axes(ax, title, "mean entropy, nats", heading("adaptive_ece(order=2)"))
    for place, (method, entropy, error) in enumerate(points):
        colour = COLOURS[place % len(COLOURS)]
        axes.scatter([entropy], [100 * error], s=18, color=colour, lw=0)
        axes.annotate(
            method,
            (entropy, 100 * error),
            xytext=(4, 3),
            textcoords="offset points",
            fontsize=7,
            color=MUTED,
            parse_math=False,
        )
    return axes


REGULARISERS = (
    "label_smoothing(smoothing=0.05)",
    "cross_entropy+0.1*confidence_penalty",
    "cross_entropy+mbls(margin=10)",
    "cross_entropy+acls(margin=10)",
    "cross_entropy+cpc",
    "cross_entropy+mdca",
)


def draw_pulls(ax: Axes | None = None, *, texts: Sequence[str] = REGULARISERS) -> Axes:
    """Draw how regularisers pull the predicted logit down (acls figure 1, table 2)."""
    title = "Pull of regularisers on the predicted logit"
    axes = start_axes(ax, title, "predicted logit, the others 0", "gradient beside cross-entropy's")
    for place, (text, (own, _)) in enumerate(compute_pulls(texts).items()):
        label = text.removeprefix("cross_entropy+")
        axes.plot(np.linspace(0, 20, len(own)), own, label=label, **line_style(place))
    axes.axhline(0, color=MUTED, lw=0.8)
    axes.set_ylim(-0.05, 0.3)
    axes.set_xlim(0, 20)
    add_legend(axes)
    return axes
