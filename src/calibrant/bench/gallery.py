"""Every picture a suite's results allow, as SVG text by title; and those of formulas."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING

from calibrant.bench import pictures, series
from calibrant.bench.cells import Cell, Results, results
from calibrant.bench.figures import label
from calibrant.bench.looks import HARD, INACTIVE, MASKED
from calibrant.bench.sweeps import effect_sizes

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

    from calibrant.bench.suite import Suite

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
TRACED = {"total loss": "nll", "spread": "classwise_nll_std", "ECE": "ece"}
EPOCHS = 8  # looked at, for a picture by epoch to say something

Drawing = tuple[str, Callable[[], "Axes"]]


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
    return {title: pictures.svg(draw()) for title, draw in drawn.items()}


def gallery(suite: Suite, frame: pd.DataFrame) -> dict[str, str]:
    """Pictures of a suite's results, those there are rows for."""
    return {title: pictures.svg(draw()) for title, draw in drawings(results(suite, frame))}


def drawings(found: Results) -> Iterator[Drawing]:
    """Titles, and what draws each."""
    made = (_sweeps, _mixup, _grids, _epochs, _severity, _sparsity, _spread, _effects, _looks)
    for make in made:
        yield from make(found)


def _title(found: Results, what: str, cell: Cell) -> str:
    return f"{what}: {found.name_of(cell)}"


def _line(what: str, lines: list[series.Series], metric: str, against: str) -> Drawing:
    return what, partial(pictures.lines, lines, metric, title=what, against=against)


def _sweeps(found: Results) -> Iterator[Drawing]:
    for metric in SHOWN:
        for prefix, what in SWEPT.items():
            for cell, one in series.by_method(found, prefix, metric).items():
                if len(one.points) > 1:
                    title = _title(found, f"{label(metric)} against {what}", cell)
                    yield _line(title, [one], metric, what)
        for option, (what, only, but) in OPTIONS.items():
            swept = series.by_option(
                found, option, metric, method="cross_entropy", only=only, but=but
            )
            for cell, one in swept.items():
                if len(one.points) > 1:
                    title = _title(found, f"{label(metric)} against {what}", cell)
                    yield _line(title, [one], metric, what)


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
            yield _line(_title(found, f"{label(metric)} against mixing", cell), lines, metric, "α")


def _grids(found: Results) -> Iterator[Drawing]:
    for names, what in GRIDS.items():
        for metric in SHOWN:
            for cell, table in series.grid(found, names, metric).items():
                title = _title(found, f"{label(metric)} of {what}, {names[0]} and {names[1]}", cell)
                yield title, partial(pictures.heat, table, metric, names=names, title=title)


def _epochs(found: Results) -> Iterator[Drawing]:
    for metric in SHOWN:
        for cell, lines in series.by_epoch(found, metric).items():
            long = [one for one in lines if len(one.points) >= EPOCHS]
            if long:
                title = _title(found, f"{label(metric)} of validation rows by epoch", cell)
                yield _line(title, long, metric, "epoch")


def _severity(found: Results) -> Iterator[Drawing]:
    for cell, lines in series.by_severity(found, "ece").items():
        yield _line(_title(found, "ECE under corruptions", cell), lines, "ece", "severity")
    told: dict[tuple[str, Cell], list[series.Series]] = {}
    for calibrator in ("none", "temperature", "temperature(objective=sb_ece)", "mac_cal_head"):
        for cell, lines in series.by_severity(found, SOFT_ECE, calibrator=calibrator).items():
            for one in lines:
                told.setdefault((one.name, cell), []).append(series.Series(calibrator, one.points))
    for name in PRIMARIES:
        for (method, cell), lines in told.items():
            if method == name and len(lines) > 1:
                title = _title(found, f"{name} under corruptions, calibrated", cell)
                yield _line(title, lines, SOFT_ECE, "severity")


def _sparsity(found: Results) -> Iterator[Drawing]:
    traces = series.by_epoch(found, "sparsity", part="train", calibrator="mac_cal_head")
    for cell, lines in traces.items():
        title = _title(found, "Sparsity in MaC-Cal's second stage", cell)
        yield _line(title, lines, "sparsity", "epoch of the second stage")


def _spread(found: Results) -> Iterator[Drawing]:
    for cell, points in series.pairs(found, "classwise_nll_std", "ece").items():
        if len(points) >= 4:
            title = _title(found, "Class-wise loss spread against ECE", cell)
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
            title = _title(found, "Effect of secondary losses on ECE (Cohen's d)", cell)
            yield title, partial(pictures.effects, told, title=found.name_of(cell))


def _looks(found: Results) -> Iterator[Drawing]:
    """mac-cal figure 1, acls figure 3 and class-scaling figure 3."""
    for metric in ("accuracy", "confidence"):
        swept = series.by_epoch(found, metric, part="test", calibrator=MASKED)
        for cell, lines in swept.items():
            title = _title(found, f"{label(metric)} with weights of the classifier masked", cell)
            yield _line(title, lines, metric, "% of the weights masked")
    bars = series.by_epoch(found, "share", part="train", calibrator=INACTIVE)
    for cell, lines in bars.items():
        title = _title(found, "How large acls's regulariser is", cell)
        yield _line(title, lines, "share", "its value, in bins of 0.005, the last with all beyond")
    traced: dict[Cell, list[series.Series]] = {}
    for name, metric in TRACED.items():
        for cell, lines in series.by_epoch(found, metric, part="test", calibrator=HARD).items():
            traced.setdefault(cell, []).extend(series.Series(name, one.points) for one in lines)
    for cell, lines in traced.items():
        title = _title(found, "A temperature learnt on the hardest classes", cell)
        yield title, partial(pictures.shares, lines, title=title, against="step")
