"""Draw the figures of the results' pages: every method, and each paper's figures beside ours."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from calibrant.bench import Cell, Results
from calibrant.bench.tables import series
from calibrant.bench.tables.formatting import heading, unit
from calibrant.bench.tables.pictures import COLOURS, add_legend, lines, scatter, svg
from calibrant.bench.tables.statistics import mean_of
from calibrant.report.pictures import MUTED, add_title, quiet_frame
from replication import table_2
from replication.pictures import draw_loss_weights, draw_pulls
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
    authors = results.get_results("class-scaling-authors")
    drawn["class-scaling"] = draw_table_2(authors)
    drawn["class-scaling-epochs"] = draw_epochs(authors)
    drawn["r-aurc-weights"] = svg(draw_loss_weights())
    drawn["acls-pulls"] = svg(draw_pulls())
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


def draw_table_2(results: Results) -> str:
    """Draw the paper's ECE against ours for each fit: solved exactly, and by the paper's steps."""
    table = table_2.Table2(results)
    figure, ((left, right),) = _make_grid(1, 2, width=10, height=4.4)
    for axes, form, fits in (
        (left, "exact", table_2.FITS),
        (right, "stepped", [fit for fit in table_2.FITS if fit.calibrator in table_2.STEPPED]),
    ):
        for place, (objective, name) in enumerate(table_2.OBJECTIVES.items()):
            pairs = [
                (table.find_printed(cell, fit.published, "ece"), ours)
                for cell in table.cells
                for fit in fits
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
    add_title(right, "By the paper's steps: TS and CTS")
    add_legend(left)
    return _write(figure)


def draw_epochs(results: Results) -> str:
    """Draw loss, spread and ECE of TS by epoch, fitted by the paper's steps (its figure 4)."""
    metrics = ("nll", "classwise_nll_std", "ece")
    cells = results.cells
    figure, grid = _make_grid(len(cells), 3, width=12, height=2.6)
    for row, cell in enumerate(cells):
        for column, metric in enumerate(metrics):
            axes = grid[row][column]
            drawn = [
                series.Series(objective, line.points)
                for objective in OBJECTIVES
                for line in series.by_epoch(
                    results, metric, part="test", calibrator=f"optimiser:temperature:{objective}"
                ).get(cell, [])
            ]
            lines(drawn, metric, axes, title="", against="epoch" * (row == len(cells) - 1))
            if axes.get_legend() is not None and (row, column) != (0, 2):
                axes.get_legend().remove()
            if column == 0:
                add_title(axes, str(results.setting(cell, "model")))
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
