"""Draw the figures of the results' pages: every method, and each paper's figures beside ours."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from calibrant.bench import Cell, Results
from calibrant.bench.tables import series
from calibrant.bench.tables.formatting import heading, shown_calibrator, unit
from calibrant.bench.tables.pictures import COLOURS, add_legend, lines, scatter, svg
from calibrant.bench.tables.statistics import mean_of
from calibrant.report.pictures import MUTED, add_title, quiet_frame
from replication import pictures, table_2
from replication.gallery import SOFT_ECE, list_margins, list_uncertainties, pool_results
from replication.published import find_published

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from replication.stored import StoredResults

HIGHLIGHTED = (
    "cross_entropy",
    "plp",
    "mit",
    "mac_cal",
    "acls",
    "mbls",
    "focal+s_avuc",
)
# Of soft-calibration's figure 7; each after no calibrator, and cross-entropy after a temperature.
SHIFTED = ("cross_entropy", "mmce", "focal", "focal+sb_ece", "focal+s_avuc")
OBJECTIVES = ("nll", "class_scaled", "label_smoothing", "focal")  # of class-scaling's figure 4


class Beside(NamedTuple):
    """What a figure of a paper shows beside ours."""

    suite: str
    metric: str
    table: str
    model: str  # the paper's network
    data: tuple[str, ...]
    methods: tuple[str, ...]
    theirs: str  # how the paper's runs were made
    ours: str


BESIDE = {
    "r-aurc": Beside(
        "r-aurc-paper",
        "classwise_ece(binning=mass)",
        "Table 1",
        "resnet50",
        ("cifar10", "cifar100"),
        ("cross_entropy", "flsd", "inverse_focal", "r_aurc_msp", "r_aurc_margin", "r_aurc_entropy"),
        "the paper: ResNet-50, 200 epochs",
        "here: ResNet-18, 30 epochs",
    ),
    "soft-calibration": Beside(
        "quick-tune",
        "adaptive_ece(order=2)",
        "Table 2",
        "wrn_28_10",
        ("cifar100",),
        ("cross_entropy", "interleaved_sb_ece", "interleaved_s_avuc"),
        "the paper: WRN-28-10, 200 epochs",
        "here, tuned: ResNet-18, 30 epochs",
    ),
    "acls": Beside(
        "quick-cifar",
        "ece",
        "Table 3",
        "resnet50",
        ("cifar10",),
        ("cross_entropy", "label_smoothing", "focal", "flsd", "mbls", "crl", "cpc", "mdca", "acls"),
        "the paper: ResNet-50, 350 epochs",
        "here: ResNet-18, 30 epochs",
    ),
    "mac-cal": Beside(
        "quick-cifar",
        "ece",
        "Table 1",
        "resnet50",
        ("cifar10", "cifar100"),
        (
            "cross_entropy",
            "label_smoothing",
            "focal",
            "mmce",
            "mbls",
            "acls",
            "mixup",
            "mit",
            "plp",
            "tst",
            "vtst",
            "mac_cal",
        ),
        "the paper: ResNet-50, 350 epochs",
        "here: ResNet-18, 30 epochs",
    ),
}


def draw_figures(results: StoredResults) -> dict[str, str]:
    """Draw every figure as SVG text, by file name without its ending."""
    drawn = {"methods": draw_methods(results.get_results("quick-cifar"))}
    for paper, beside in BESIDE.items():
        drawn[paper] = draw_beside(paper, beside, results.get_results(beside.suite))
    drawn["soft-calibration-shift"] = draw_shift(results.get_results("shift"))
    drawn["soft-calibration-effects"] = draw_effects(results.get_results("quick-papers"))
    drawn["acls-margins"] = draw_margins(results.get_results("acls-grid"))
    authors = results.get_results("class-scaling-authors")
    drawn["class-scaling"] = draw_table_2(authors)
    drawn["class-scaling-epochs"] = draw_epochs(authors)
    drawn["acls-smoothing"] = svg(pictures.draw_smoothing())
    drawn["r-aurc-weights"] = svg(pictures.draw_loss_weights())
    return drawn


def draw_methods(results: Results) -> str:
    """Draw accuracy against ECE and NLL of every method, by data set."""
    cells = results.cells
    figure, grid = _make_grid(len(cells), 2, width=11, height=4.6)
    for row, cell in enumerate(cells):
        for column, metric in enumerate(("ece", "nll")):
            points = [
                replace(point, method=_mark_former(results, cell, point.method))
                for point in series.points(results, metric, ("none", "temperature"))[cell]
            ]
            names = [_mark_former(results, cell, name) for name in HIGHLIGHTED]
            scatter(points, metric, grid[row][column], highlighted=names)
            grid[row][column].set_xlabel(heading(metric))  # without the names of those below
            add_title(grid[row][column], f"{results.name_of(cell)}: accuracy against {metric}")
    return _write(figure)


def _mark_former(results: Results, cell: Cell, method: str) -> str:
    return f"{method} (former)" if (cell, method) in results.former else method


def draw_beside(paper: str, beside: Beside, results: Results) -> str:
    """Draw a paper's figures by method, and ours with standard errors, side by side."""
    figure, ((left, right),) = _make_grid(1, 2, width=10, height=1.4 + 0.28 * len(beside.methods))
    height = np.arange(len(beside.methods))[::-1]
    scale = 100 if unit(beside.metric) == "%" else 1
    cells = {str(results.setting(cell, "data")): cell for cell in results.cells}
    names = [_mark_former(results, results.cells[0], method) for method in beside.methods]
    for place, data in enumerate(beside.data):
        style = {"color": COLOURS[place], "fmt": "o", "ms": 5, "label": data}
        printed = find_theirs(paper, beside, data)
        ours = find_ours(beside, results, cells.get(data))
        left.errorbar(scale * printed, height, **style)
        right.errorbar(scale * ours[0], height, xerr=scale * ours[1], **style)
    for axes, title in ((left, beside.theirs), (right, beside.ours)):
        axes.set_yticks(height, names if axes is left else [""] * len(height))
        axes.set_xlim(left=0)
        axes.set_xlabel(heading(beside.metric))
        quiet_frame(axes)
        add_title(axes, title)
    if len(beside.data) > 1:
        add_legend(right)
    return _write(figure)


def find_theirs(paper: str, beside: Beside, data: str) -> np.ndarray:
    """Find the paper's figure of each method, NaN if it prints none."""
    values = []
    for method in beside.methods:
        figures = find_published(
            paper=paper,
            table=beside.table,
            data=data,
            model=beside.model,
            method=method,
            metric=beside.metric,
            calibrator="none",
            part="test",
            variant="",
        )
        value = figures[0].value if figures else None
        values.append(np.nan if value is None else value)
    return np.array(values)


def find_ours(beside: Beside, results: Results, cell: Cell | None) -> tuple[np.ndarray, np.ndarray]:
    """Find our mean and standard error of each method, NaN if it has no runs."""
    runs = results.values(beside.metric)
    means = [
        mean_of(list(own.values())) if cell and (own := runs.get((cell, method))) else None
        for method in beside.methods
    ]
    return (
        np.array([mean.mean if mean else np.nan for mean in means]),
        np.array([mean.error or 0.0 if mean else 0.0 for mean in means]),
    )


def draw_shift(results: Results) -> str:
    """Draw ECE under corruptions by the paper's metric (soft-calibration figures 7, 2 and 9)."""
    figure, grid = _make_grid(len(results.cells), 3, width=14, height=3.4)
    plain = series.by_severity(results, SOFT_ECE)
    for row, cell in enumerate(results.cells):
        data = str(results.setting(cell, "data"))
        after = _list_calibrated(results, cell, "cross_entropy")
        named = {line.name: line for line in plain[cell]}
        shown = [
            series.Series(_mark_former(results, cell, name), named[name].points)
            for name in SHIFTED
            if name in named
        ]
        beside = [
            series.Series(f"cross_entropy, {line.name}", line.points)
            for line in after
            if line.name == "temperature"
        ]
        panels = {
            f"{data}: by method": [*shown[:1], *beside, *shown[1:]],
            "cross_entropy, calibrated": after,
            "focal, calibrated": _list_calibrated(results, cell, "focal"),
        }
        for axes, (title, drawn) in zip(grid[row], panels.items(), strict=True):
            against = "severity" if row == len(results.cells) - 1 else ""
            lines(drawn, SOFT_ECE, axes, title=title, against=against)
            if row and axes.get_legend() is not None and axes is not grid[row][0]:
                axes.get_legend().remove()
    return _write(figure)


def _list_calibrated(results: Results, cell: Cell, method: str) -> list[series.Series]:
    """List a method's ECE by severity: as trained, after TS and after TS-SB-ECE."""
    listed = []
    for calibrator in ("none", "temperature", "temperature(objective=sb_ece)"):
        name = shown_calibrator(results.find_calibrator(calibrator))
        by_cell = series.by_severity(results, SOFT_ECE, calibrator=calibrator)
        listed += [
            series.Series("as trained" if calibrator == "none" else name, line.points)
            for line in by_cell.get(cell, [])
            if line.name == method
        ]
    return listed


def draw_effects(results: Results) -> str:
    """Draw pooled effects of secondary losses, and ECE against uncertainty.

    Soft-calibration's figures 1 and 10, the latter on CIFAR-100.
    """
    figure, ((left, right),) = _make_grid(1, 2, width=12, height=3.8)
    pictures.draw_effects(pool_results(results), left, title="Cohen's d over settings")
    uncertainties = list_uncertainties(results)
    cell = next(cell for cell in results.cells if results.setting(cell, "data") == "cifar100")
    points = [
        (_mark_former(results, cell, name), *numbers) for name, *numbers in uncertainties[cell]
    ]
    pictures.draw_uncertainty(points, right, title="cifar100: ECE against mean uncertainty")
    return _write(figure)


def draw_margins(results: Results) -> str:
    """Draw ECE of validation and test rows against ACLS's margin (acls figure A)."""
    ((_, drawn),) = list_margins(results, "ece").items()
    figure, ((axes,),) = _make_grid(1, 1, width=5.4, height=3.2)
    lines(drawn, "ece", axes, title="ACLS on CIFAR-100", against="M")
    return _write(figure)


def draw_table_2(results: Results) -> str:
    """Draw the paper's ECE against ours: solved exactly, and as the authors' code fits."""
    table = table_2.Table2(results)
    figure, ((left, right),) = _make_grid(1, 2, width=10, height=4.4)
    for axes, form in ((left, "exact"), (right, "coded")):
        for place, (objective, name) in enumerate(table_2.OBJECTIVES.items()):
            pairs = [
                (table.find_printed(cell, fit.published, "ece"), ours)
                for cell in table.cells
                for fit in table_2.FITS
                if fit.objective == objective
                and (ours := table.find_figure(cell, getattr(fit, form), "ece")) is not None
            ]
            x, y = ([100 * pair[side] for pair in pairs if None not in pair] for side in (0, 1))
            axes.scatter(x, y, s=22, color=COLOURS[place], label=name, lw=0)
        axes.plot([0, 20], [0, 20], color=MUTED, lw=0.8, zorder=1)
        axes.set_xlim(0, 13)
        axes.set_ylim(0, 25 if form == "exact" else 13)
        axes.set_xlabel("ECE in the paper's table 2, %")
        axes.set_ylabel("ECE here, %")
        quiet_frame(axes)
    add_title(left, "Solved to the optimum: four calibrators")
    add_title(right, "As the authors' code fits")
    add_legend(left)
    return _write(figure)


def draw_epochs(results: Results, *, model: str = "resnet110") -> str:
    """Draw loss, spread and ECE by epoch, fitted as the authors' code does (its figure 4).

    The paper draws one calibrator, which it does not name, on a ResNet-110 of even CIFAR-10.

    Args:
        results: those of the authors' logits.
        model: the network. Default: resnet110, the paper's.
    """
    metrics = ("nll", "classwise_nll_std", "ece")
    cell = next(cell for cell in results.cells if results.setting(cell, "model") == model)
    figure, grid = _make_grid(len(table_2.CALIBRATORS), 3, width=12, height=2.3)
    for row, (calibrator, name) in enumerate(table_2.CALIBRATORS.items()):
        for column, metric in enumerate(metrics):
            axes = grid[row][column]
            drawn = [
                series.Series(objective, line.points)
                for objective in OBJECTIVES
                for line in series.by_epoch(
                    results, metric, part="test", calibrator=f"code:{calibrator}:{objective}"
                ).get(cell, [])
            ]
            last = row == len(table_2.CALIBRATORS) - 1
            lines(drawn, metric, axes, title="", against="iteration" * last)
            if axes.get_legend() is not None and (row, column) != (0, 2):
                axes.get_legend().remove()
            if column == 0:
                add_title(axes, name)
    return _write(figure)


def _make_grid(
    rows: int, columns: int, *, width: float, height: float
) -> tuple[Figure, Sequence[Sequence[Axes]]]:
    """Make axes in rows and columns, outside pyplot."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height * rows), layout="constrained")
    FigureCanvasAgg(figure)
    grid: Sequence[Sequence[Axes]] = figure.subplots(rows, columns, squeeze=False)
    return figure, grid


def _write(figure: Figure) -> str:
    return svg(figure.axes[0])
