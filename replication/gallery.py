"""Every picture a suite's results allow, as SVG text by title; and those of formulas."""

from __future__ import annotations

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
from replication.formulas import effect_sizes

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

    from calibrant.bench import Suite

SHOWN = ("ece", "accuracy")
# Methods named ``prefix=NUMBER``: what the number is, and whether its axis is logarithmic.
SWEPT = {
    "lambda": "λ of r_aurc",
    "inverse_gamma": "γ of inverse_focal",
    "margin": "M of acls",
}
# Options of MaC-Cal's head that are swept: what they are, and what else marks the sweep or not.
FIXED = "schedule=fixed"
OPTIONS = {"gamma": ("γ of mac_cal", "", FIXED), "sparsity": ("share masked", FIXED, None)}
GRIDS = {("eps", "lambda"): "r_aurc", ("lambda1", "lambda2"): "acls"}
PRIMARIES = ("cross_entropy", "focal", "brier")
SECONDARIES = ("mmce", "avuc", "avuc_gs", "sb_ece", "s_avuc")
SOFT_ECE = "adaptive_ece(order=2)"
# Calibrators that the rows of `after: [hard_classes, masked, inactive]` are named after.
HARD, MASKED, INACTIVE = "hard_classes", "masked", "regulariser"
TRACED = {"total loss": "nll", "spread": "classwise_nll_std", "ECE": "ece"}


def formulas() -> dict[str, str]:
    """Pictures that need no runs."""
    drawn: dict[str, Callable[[], Axes]] = {
        "Weight against p (r-aurc, figure 1)": pictures.loss_weights,
        "Gradient against p (r-aurc, figure 3)": pictures.loss_gradients,
        "Soft bins, T = 0.01 (soft-calibration, figure 3)": pictures.soft_bins,
        "Soft bins, T = 0.0001 (soft-calibration, figure 3)": partial(
            pictures.soft_bins, temperature=0.0001
        ),
        "Soft uncertainty (soft-calibration, figure 4)": pictures.soft_threshold,
    }
    return {title: svg(draw()) for title, draw in drawn.items()}


def gallery(suite: Suite, frame: pd.DataFrame) -> dict[str, str]:
    """Draw a suite's results: every picture that it has rows for."""
    return render(drawings(collect_results(suite, frame)))


def drawings(results: Results) -> Iterator[Drawing]:
    """Give the title of every picture, and what draws it."""
    yield from draw_sweeps(results, SWEPT)
    yield from _options(results)
    yield from _mixup(results)
    yield from draw_grids(results, GRIDS)
    yield from draw_epochs(results)
    yield from draw_severities(results)
    for draw in (_calibrated_severities, _sparsity, _spread, _effects, _looks):
        yield from draw(results)


def _options(found: Results) -> Iterator[Drawing]:
    """Draw figures against options of MaC-Cal's head."""
    for metric in SHOWN:
        for option, (what, only, but) in OPTIONS.items():
            swept = series.by_option(
                found, option, metric, method="cross_entropy", only=only, but=but
            )
            for cell, one in swept.items():
                if len(one.points) > 1:
                    title = title_of(found, f"{label(metric)} against {what}", cell)
                    yield draw_lines(title, [one], metric, what)


def _mixup(found: Results) -> Iterator[Drawing]:
    """mac-cal figure 6: mixup, MIT, and MaC-Cal on mixup, against α."""
    for metric in SHOWN:
        told: dict[Cell, list[series.Series]] = {}
        for name, prefix, calibrator in (
            ("mixup", "mixup_alpha", "none"),
            ("mit", "mit_alpha", "none"),
            ("mixup, then mac_cal_head", "mixup_alpha", "mac_cal_head"),
        ):
            swept = series.by_method(found, prefix, metric, calibrator=calibrator)
            for cell, one in swept.items():
                told.setdefault(cell, []).append(series.Series(name, one.points))
        for cell, lines in told.items():
            yield draw_lines(
                title_of(found, f"{label(metric)} against mixing", cell), lines, metric, "α"
            )


def _calibrated_severities(found: Results) -> Iterator[Drawing]:
    """Draw soft-calibration's figure 2: each primary loss under corruptions, calibrated."""
    told: dict[tuple[str, Cell], list[series.Series]] = {}
    for calibrator in ("none", "temperature", "temperature(objective=sb_ece)", "mac_cal_head"):
        for cell, lines in series.by_severity(found, SOFT_ECE, calibrator=calibrator).items():
            for one in lines:
                told.setdefault((one.name, cell), []).append(series.Series(calibrator, one.points))
    for name in PRIMARIES:
        for (method, cell), lines in told.items():
            if method == name and len(lines) > 1:
                title = title_of(found, f"{name} under corruptions, calibrated", cell)
                yield draw_lines(title, lines, SOFT_ECE, "severity")


def _sparsity(found: Results) -> Iterator[Drawing]:
    traces = series.by_epoch(found, "sparsity", part="train", calibrator="mac_cal_head")
    for cell, lines in traces.items():
        title = title_of(found, "Sparsity in MaC-Cal's second stage", cell)
        yield draw_lines(title, lines, "sparsity", "epoch of the second stage")


def _spread(found: Results) -> Iterator[Drawing]:
    for cell, points in series.pairs(found, "classwise_nll_std", "ece").items():
        if len(points) >= 4:
            title = title_of(found, "Class-wise loss spread against ECE", cell)
            yield title, partial(pictures.spread_against_error, points, title=found.name_of(cell))


def _effects(found: Results) -> Iterator[Drawing]:
    errors: dict[Cell, dict[str, list[float]]] = {}
    for (cell, method), runs in found.values(SOFT_ECE).items():
        errors.setdefault(cell, {})[method] = list(runs.values())
    for cell, by_method in errors.items():
        told = {
            primary: sizes
            for primary in PRIMARIES
            if (sizes := effect_sizes(by_method, primary=primary, secondaries=SECONDARIES))
            and any(size == size for size in sizes.values())  # NaN: one run is no spread
        }
        if told:
            title = title_of(found, "Effect of secondary losses on ECE (Cohen's d)", cell)
            yield title, partial(pictures.effects, told, title=found.name_of(cell))


def _looks(found: Results) -> Iterator[Drawing]:
    """mac-cal figure 1, acls figure 3 and class-scaling figure 3."""
    for metric in ("accuracy", "confidence"):
        swept = series.by_epoch(found, metric, part="test", calibrator=MASKED)
        for cell, lines in swept.items():
            title = title_of(found, f"{label(metric)} with weights of the classifier masked", cell)
            yield draw_lines(title, lines, metric, "% of the weights masked")
    bars = series.by_epoch(found, "share", part="train", calibrator=INACTIVE)
    for cell, lines in bars.items():
        title = title_of(found, "How large acls's regulariser is", cell)
        yield draw_lines(
            title, lines, "share", "its value, in bins of 0.005, the last with all beyond"
        )
    traced: dict[Cell, list[series.Series]] = {}
    for name, metric in TRACED.items():
        for cell, lines in series.by_epoch(found, metric, part="test", calibrator=HARD).items():
            traced.setdefault(cell, []).extend(series.Series(name, one.points) for one in lines)
    for cell, lines in traced.items():
        title = title_of(found, "A temperature learnt on the hardest classes", cell)
        yield title, partial(pictures.shares, lines, title=title, against="step")
