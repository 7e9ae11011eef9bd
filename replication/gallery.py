"""Draw every picture that a suite's results allow, and those of formulas, as SVG text."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING

from calibrant.bench import Cell, Results, collect_results
from calibrant.bench.tables import series
from calibrant.bench.tables.formatting import label
from calibrant.bench.tables.gallery import (
    Drawing,
    draw_epochs,
    draw_grids,
    draw_lines,
    draw_severities,
    draw_sweeps,
    render,
    title_of,
)
from calibrant.bench.tables.pictures import svg
from replication import pictures
from replication.formulas import compute_effect_sizes, pool_effects

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

    from calibrant.bench import Suite

SHOWN = ("ece", "accuracy")
# Methods named ``prefix=NUMBER``, with the label of the number.
SWEPT = {
    "lambda": "λ of r_aurc",
    "inverse_gamma": "γ of inverse_focal",
    "margin": "M of acls",
}
# Swept options of MaC-Cal's head: label, option text that must occur, and text that must not.
FIXED = "schedule=fixed"
OPTIONS = {"gamma": ("γ of mac_cal", "", FIXED), "sparsity": ("share masked", FIXED, None)}
GRIDS = {("eps", "lambda"): "r_aurc", ("lambda1", "lambda2"): "acls"}
PRIMARIES = ("cross_entropy", "focal", "brier")
SECONDARIES = ("mmce", "avuc", "avuc_gs", "sb_ece", "s_avuc")
SOFT_ECE = "adaptive_ece(order=2)"
# Names in the calibrator column of rows measured by `after: [hardest_classes, masked, inactive]`.
HARD, MASKED, INACTIVE = "hardest_classes", "masked", "regulariser"
TRACED = {"total loss": "nll", "spread": "classwise_nll_std", "ECE": "ece"}


def draw_formulas() -> dict[str, str]:
    """Draw the pictures that need no runs."""
    drawn: dict[str, Callable[[], Axes]] = {
        "Weight against p (r-aurc, figure 1)": pictures.draw_loss_weights,
        "Gradient against p (r-aurc, figure 3)": pictures.draw_loss_gradients,
        "Soft bins, T = 0.01 (soft-calibration, figure 3)": pictures.draw_soft_bins,
        "Soft bins, T = 0.0001 (soft-calibration, figure 3)": partial(
            pictures.draw_soft_bins, temperature=0.0001
        ),
        "Soft uncertainty (soft-calibration, figure 4)": pictures.draw_soft_threshold,
        "Pull of regularisers (acls, figure 1 and table 2)": pictures.draw_pulls,
    }
    return {title: svg(draw()) for title, draw in drawn.items()}


def draw_gallery(suite: Suite, frame: pd.DataFrame) -> dict[str, str]:
    """Draw every picture that a suite has rows for."""
    return render(list_drawings(collect_results(suite, frame)))


def list_drawings(results: Results) -> Iterator[Drawing]:
    """Yield the title of every picture and the function that draws it."""
    yield from draw_sweeps(results, SWEPT)
    yield from _draw_options(results)
    yield from _draw_mixup(results)
    yield from draw_grids(results, GRIDS)
    yield from draw_epochs(results)
    yield from draw_severities(results)
    for draw in (
        _draw_calibrated_severities,
        _draw_sparsity,
        _draw_spread,
        _draw_effects,
        _draw_pooled_effects,
        _draw_soft_severities,
        _draw_uncertainty,
        _draw_looks,
    ):
        yield from draw(results)


def _draw_options(results: Results) -> Iterator[Drawing]:
    """Draw figures against options of MaC-Cal's head."""
    for metric in SHOWN:
        for option, (what, only, but) in OPTIONS.items():
            swept = series.by_option(
                results, option, metric, method="cross_entropy", only=only, but=but
            )
            for cell, line in swept.items():
                if len(line.points) > 1:
                    title = title_of(results, f"{label(metric)} against {what}", cell)
                    yield draw_lines(title, [line], metric, what)


def _draw_mixup(results: Results) -> Iterator[Drawing]:
    """Draw mixup, MIT, and MaC-Cal on mixup against α (mac-cal figure 6)."""
    for metric in SHOWN:
        lines_by_cell: dict[Cell, list[series.Series]] = {}
        for name, prefix, calibrator in (
            ("mixup", "mixup_alpha", "none"),
            ("mit", "mit_alpha", "none"),
            ("mixup, then mac_cal_head", "mixup_alpha", "mac_cal_head"),
        ):
            swept = series.by_method(results, prefix, metric, calibrator=calibrator)
            for cell, line in swept.items():
                lines_by_cell.setdefault(cell, []).append(series.Series(name, line.points))
        for cell, lines in lines_by_cell.items():
            yield draw_lines(
                title_of(results, f"{label(metric)} against mixing", cell), lines, metric, "α"
            )


def _draw_calibrated_severities(results: Results) -> Iterator[Drawing]:
    """Draw each primary loss under corruptions, calibrated (soft-calibration figure 2)."""
    lines_by_method: dict[tuple[str, Cell], list[series.Series]] = {}
    for calibrator in ("none", "temperature", "temperature(objective=sb_ece)", "mac_cal_head"):
        for cell, lines in series.by_severity(results, SOFT_ECE, calibrator=calibrator).items():
            for line in lines:
                lines_by_method.setdefault((line.name, cell), []).append(
                    series.Series(calibrator, line.points)
                )
    for name in PRIMARIES:
        for (method, cell), lines in lines_by_method.items():
            if method == name and len(lines) > 1:
                title = title_of(results, f"{name} under corruptions, calibrated", cell)
                yield draw_lines(title, lines, SOFT_ECE, "severity")


def _draw_sparsity(results: Results) -> Iterator[Drawing]:
    traces = series.by_epoch(results, "sparsity", part="train", calibrator="mac_cal_head")
    for cell, lines in traces.items():
        title = title_of(results, "Sparsity in MaC-Cal's second stage", cell)
        yield draw_lines(title, lines, "sparsity", "epoch of the second stage")


def _draw_spread(results: Results) -> Iterator[Drawing]:
    for cell, points in series.pairs(results, "classwise_nll_std", "ece").items():
        if len(points) >= 4:
            title = title_of(results, "Class-wise loss spread against ECE", cell)
            yield (
                title,
                partial(pictures.draw_spread_against_error, points, title=results.name_of(cell)),
            )


def _draw_effects(results: Results) -> Iterator[Drawing]:
    errors: dict[Cell, dict[str, list[float]]] = {}
    for (cell, method), runs in results.values(SOFT_ECE).items():
        errors.setdefault(cell, {})[method] = list(runs.values())
    for cell, by_method in errors.items():
        effects = {
            primary: sizes
            for primary in PRIMARIES
            if (sizes := compute_effect_sizes(by_method, primary=primary, secondaries=SECONDARIES))
            and any(size == size for size in sizes.values())  # NaN: one run has no spread
        }
        if effects:
            title = title_of(results, "Effect of secondary losses on ECE (Cohen's d)", cell)
            yield title, partial(pictures.draw_effects, effects, title=results.name_of(cell))


def _draw_pooled_effects(results: Results) -> Iterator[Drawing]:
    """Draw Cohen's d pooled over data and primary losses (soft-calibration figure 1)."""
    effects: dict[str, dict[str, float]] = {}
    for calibrator, half in (("none", "as trained"), ("temperature", "after temperature")):
        pairs: dict[str, list[tuple[list[float], list[float]]]] = {}
        values = results.values(SOFT_ECE, calibrator=calibrator)
        for cell, primary, secondary in itertools.product(results.cells, PRIMARIES, SECONDARIES):
            names = [f"{primary}+{secondary}"]
            if primary == "cross_entropy":  # the interleaved runs are the paper's rows
                names = [f"interleaved_{secondary}", secondary]
            runs = [values.get((cell, name)) for name in names]
            own, base = next(filter(None, runs), None), values.get((cell, primary))
            if own and base:
                pairs.setdefault(secondary, []).append(([*base.values()], [*own.values()]))
        sizes = {name: pool_effects(each) for name, each in pairs.items()}
        sizes = {name: size for name, size in sizes.items() if math.isfinite(size)}
        if sizes:
            effects[half] = sizes
    if effects:
        title = "Effect of secondary losses on ECE, pooled over settings (Cohen's d)"
        yield title, partial(pictures.draw_effects, effects, title=title)


def _draw_soft_severities(results: Results) -> Iterator[Drawing]:
    """Draw every method under corruptions by the paper's metric (soft-calibration figure 7)."""
    for cell, lines in series.by_severity(results, SOFT_ECE).items():
        title = title_of(results, "Equal-mass L2 ECE under corruptions", cell)
        yield draw_lines(title, lines, SOFT_ECE, "severity")


def _draw_uncertainty(results: Results) -> Iterator[Drawing]:
    """Draw ECE against mean uncertainty (soft-calibration figure 10)."""
    entropy, errors = results.values("mean_entropy"), results.values(SOFT_ECE)
    points: dict[Cell, list[tuple[str, float, float]]] = {}
    for (cell, method), runs in errors.items():
        if own := entropy.get((cell, method)):
            means = [math.fsum(each.values()) / len(each) for each in (own, runs)]
            points.setdefault(cell, []).append((method, means[0], means[1]))
    for cell, each in points.items():
        if len(each) > 2:
            title = title_of(results, "ECE against mean uncertainty", cell)
            yield title, partial(pictures.draw_uncertainty, each, title=title)


def _draw_looks(results: Results) -> Iterator[Drawing]:
    """Draw mac-cal figure 1, acls figure 3 and class-scaling figure 3."""
    for metric in ("accuracy", "confidence"):
        swept = series.by_epoch(results, metric, part="test", calibrator=MASKED)
        for cell, lines in swept.items():
            title = title_of(
                results, f"{label(metric)} with weights of the classifier masked", cell
            )
            yield draw_lines(title, lines, metric, "% of the weights masked")
    bars = series.by_epoch(results, "share", part="train", calibrator=INACTIVE)
    for cell, lines in bars.items():
        title = title_of(results, "How large acls's regulariser is", cell)
        yield draw_lines(
            title, lines, "share", "its value, in bins of 0.005, the last with all beyond"
        )
    traced: dict[Cell, list[series.Series]] = {}
    for name, metric in TRACED.items():
        for cell, lines in series.by_epoch(results, metric, part="test", calibrator=HARD).items():
            traced.setdefault(cell, []).extend(series.Series(name, line.points) for line in lines)
    for cell, lines in traced.items():
        title = title_of(results, "A temperature learnt on the hardest classes", cell)
        yield title, partial(pictures.draw_shares, lines, title=title, against="step")
