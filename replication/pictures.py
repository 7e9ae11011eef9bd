"""Draw the papers' pictures on given axes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

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
    compute_smoothing,
    compute_uncertainty,
    make_probabilities,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MARKERS = ("o", "s", "^", "D")  # by which as many methods are told apart as there are colours
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
        colour, marker = COLOURS[place % len(COLOURS)], MARKERS[place // len(COLOURS)]
        axes.scatter([entropy], [100 * error], s=22, c=colour, marker=marker, lw=0, label=method)
    add_legend(axes)
    return axes


def draw_slopes(lines: Sequence[Series], ax: Axes | None = None, *, title: str = "") -> Axes:
    """Draw the mean ∂ℓ/∂p of training rows against p, a line an epoch (r-aurc figure 4)."""
    axes = start_axes(ax, title, "probability of the true class", "mean ∂ℓ/∂p")
    for place, line in enumerate(lines):
        axes.plot(line.places, line.means, label=line.name, **line_style(place))
    axes.axhline(0, color=MUTED, lw=0.8)
    axes.set_ylim(-8, 1)
    axes.set_xlim(0, 1)
    add_legend(axes)
    return axes


def draw_histograms(lines: Sequence[Series], ax: Axes | None = None, *, title: str = "") -> Axes:
    """Draw shares of test rows by confidence, in bins of equal width (mac-cal figure 1a)."""
    axes = start_axes(ax, title, "confidence", heading("share"))
    for place, line in enumerate(lines):
        width = 1 / len(line.points)
        edges = np.append(np.array(line.places) * width, 1.0)
        axes.stairs(100 * np.array(line.means), edges, label=line.name, **line_style(place))
    axes.set_xlim(0, 1)
    axes.set_ylim(bottom=0)
    axes.legend(frameon=False, fontsize=8, labelcolor=MUTED, loc="upper left")
    return axes


def draw_angles(angles: NDArray[np.float64], ax: Axes | None = None, *, title: str = "") -> Axes:
    """Draw angles between classes by how far they are from their mean (mac-cal figure 2 b, e).

    Args:
        angles: (K,K) angles in degrees, 0 on the diagonal.
        ax: axes to draw on. Default: None, new ones.
        title: the title. Default: '', none.
    """
    above = angles[np.triu_indices(len(angles), 1)]
    middle = float(above.mean())
    text = f"{title}: {middle:.1f}° ± {float(above.std(ddof=1)):.1f}°"
    axes = start_axes(ax, text, "class", "class")
    away = np.abs(angles - middle)
    np.fill_diagonal(away, np.nan)
    axes.grid(visible=False)
    picture = axes.imshow(away, cmap="Blues", vmin=0, vmax=30)
    axes.figure.colorbar(picture, ax=axes, label="degrees from the mean angle")
    axes.set_xticks(range(len(angles)))
    axes.set_yticks(range(len(angles)))
    return axes


def draw_embedding(
    points: Sequence[tuple[float, float, int, float]], ax: Axes | None = None, *, title: str = ""
) -> Axes:
    """Draw t-SNE of logits: (x, y, class, entropy) of each row (mac-cal figure 2 a and d).

    Colours are classes; the higher its entropy, the less pale a mark.
    """
    from matplotlib import colormaps

    axes = start_axes(ax, title, "", "")
    x, y, labels, entropy = (np.array(column) for column in zip(*points, strict=True))
    colours = colormaps["tab10" if labels.max() < 10 else "tab20"](labels.astype(int) % 20)
    colours[:, 3] = 0.2 + 0.8 * np.clip(entropy, 0, 1)
    axes.scatter(x, y, s=10, c=colours, lw=0)
    axes.set_xticks([])
    axes.set_yticks([])
    return axes


def draw_smoothing(*, largest: float = 20.0) -> Axes:
    """Draw f·C of every regulariser against the logit (acls figure 1 and table 2).

    A panel for each regulariser, and in it what it takes from the target of the predicted class
    and what it adds to another's: by its loss (whole lines) and as table 2 prints it (dashed). Grey
    is where the printed condition of the predicted class does not hold. Return the first axes.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    smoothing = compute_smoothing(largest=largest, points=41)
    figure = Figure(figsize=(12, 5.4), layout="constrained")
    FigureCanvasAgg(figure)
    grid = figure.subplots(2, 4, sharex=True).flatten()
    for ax, (name, curves) in zip(grid, smoothing.items(), strict=True):
        axes = start_axes(ax, name, "logit" if ax in grid[4:] else "", "")
        axes.locator_params(nbins=4)
        z = np.linspace(0, largest, len(curves.predicted))
        for place, (shown, own, printed) in enumerate(
            (
                ("predicted class", curves.predicted, curves.printed_predicted),
                ("another class", curves.other, curves.printed_other),
            )
        ):
            axes.plot(z, own, color=COLOURS[place], lw=1.6, label=shown)
            if np.isfinite(printed).all():
                axes.plot(z, printed, color=COLOURS[place], lw=1.1, ls=(0, (2, 2)))
        axes.axhline(0, color=MUTED, lw=0.8)
        off = z[curves.condition == 0]
        if len(off):
            axes.axvspan(off[0], off[-1], color=MUTED, alpha=0.12, lw=0)
        axes.set_xlim(0, largest)
        if ax is grid[0]:
            add_legend(axes)
    return grid[0]  # type: ignore[no-any-return]
