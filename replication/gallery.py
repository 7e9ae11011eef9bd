"""Draw every picture that a suite's results allow, and those of formulas, as SVG text."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from calibrant.bench import Cell, Results, collect_results
from calibrant.bench.tables import series
from calibrant.bench.tables.formatting import label, shown_calibrator
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
from calibrant.bench.tables.pictures import lines as draw_many
from calibrant.bench.tables.pictures import overlay, svg
from calibrant.bench.tables.statistics import mean_of
from replication import pictures
from replication.claims.comparisons import LEARNED
from replication.formulas import compute_effect_sizes, list_names, pool_effects

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

    from calibrant.bench import Suite

SHOWN = ("ece", "accuracy")
# Methods named ``prefix=NUMBER``, with the label of the number.
SWEPT = {"lambda": "λ of r_aurc", "inverse_gamma": "γ of inverse_focal"}
USUAL_MARGIN = ("lambda1=0.1,lambda2=0.01", 10.0)  # its method in a grid of acls's weights
# Swept options of MaC-Cal's head: label, option text that must occur, and text that must not.
FIXED = "schedule=fixed"
OPTIONS = {"gamma": ("γ of mac_cal", "", FIXED), "sparsity": ("share masked", FIXED, None)}
GRIDS = {("eps", "lambda"): "r_aurc", ("lambda1", "lambda2"): "acls"}
PRIMARIES = ("cross_entropy", "focal", "brier")
SECONDARIES = ("mmce", "avuc", "avuc_gs", "sb_ece", "s_avuc")
SOFT_ECE = "adaptive_ece(order=2)"
# Names in the calibrator column of rows measured by `after: [hardest_classes, masked, inactive]`.
HARD, MASKED, INACTIVE = "hardest_classes", "masked", "regulariser"
STRENGTH = "eps=0.05,"  # of the runs in r-aurc's figure 8
KERNELS = ("kde_ece(form=top)", "kde_ece(form=top, bandwidth=0.05)")
# Methods whose reliability diagrams the papers overlay.
OVERLAID = {
    "soft-calibration": (
        "cross_entropy",
        "mmce",
        "cross_entropy+mmce",
        "brier",
        "focal",
        "focal+sb_ece",
        "focal+s_avuc",
    ),
    "acls": ("cross_entropy", "label_smoothing", "cpc", "mdca", "mbls", "crl", "acls"),
}
_GRADIENT = re.compile(r"gradient:(\w+):(\d+)$")
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
        "Smoothing by every regulariser (acls, figure 1 and table 2)": pictures.draw_smoothing,
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
        _draw_margins,
        _draw_watched,
        _draw_gradients,
        _draw_kernel,
        _draw_reliability,
        _draw_calibrated_severities,
        _draw_sparsity,
        _draw_spread,
        _draw_effects,
        _draw_pooled_effects,
        _draw_soft_severities,
        _draw_primary_severities,
        _draw_uncertainty,
        _draw_looks,
        _draw_confidences,
        _draw_geometry,
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


def list_margins(results: Results, metric: str) -> dict[Cell, list[series.Series]]:
    """List a metric against ACLS's margin, of validation and of test rows (acls figure A)."""
    usual, margin = USUAL_MARGIN
    by_cell: dict[Cell, list[series.Series]] = {}
    for part in ("validation", "test"):
        values = results.values(metric, part=part)
        for cell, line in series.by_method(results, "margin", metric, part=part).items():
            points = dict(line.points)
            if own := values.get((cell, usual)):
                points[margin] = mean_of(list(own.values()))
            ordered = dict(sorted(points.items()))
            by_cell.setdefault(cell, []).append(series.Series(f"{part} rows", ordered))
    return by_cell


def _draw_margins(results: Results) -> Iterator[Drawing]:
    """Draw figures against ACLS's margin; acls's figure A is of validation rows."""
    for metric in SHOWN:
        for cell, lines in list_margins(results, metric).items():
            if len(lines[0].points) > 1:
                title = title_of(results, f"{label(metric)} against M of acls", cell)
                yield draw_lines(title, lines, metric, "M of acls")


def _draw_watched(results: Results) -> Iterator[Drawing]:
    """Draw test rows by epoch (r-aurc figure 8); of a grid of strengths, those of 0.05."""
    for metric in SHOWN:
        for cell, lines in series.by_epoch(results, f"test_{metric}", part="run").items():
            kept = [line for line in lines if _has_usual_strength(line.name)]
            if kept:
                title = title_of(results, f"{label(metric)} of test rows by epoch", cell)
                yield draw_lines(title, kept, metric, "epoch")


def _has_usual_strength(method: str) -> bool:
    return not method.startswith("eps=") or method.startswith(STRENGTH)


def _draw_gradients(results: Results) -> Iterator[Drawing]:
    """Draw gradients of losses on training rows by epoch (r-aurc figure 4)."""
    names = (str(metric) for metric in results.rows["metric"].unique())
    found = sorted(match.groups() for name in names if (match := _GRADIENT.match(name)))
    count = 1 + max((int(place) for _, place in found), default=0)
    points: dict[tuple[Cell, str, str], dict[float, dict[float, list[float]]]] = {}
    for loss, place in found:
        if loss == "rows":
            continue
        middle = (int(place) + 0.5) / max(count, 20)
        traced = series.by_epoch(results, f"gradient:{loss}:{place}", part="run")
        for cell, lines in traced.items():
            for line in lines:
                epochs = points.setdefault((cell, line.name, loss), {})
                for epoch, mean in line.points.items():
                    epochs.setdefault(epoch, {})[middle] = [mean.mean]
    for (cell, method, loss), epochs in points.items():
        lines = [series.series_of(f"epoch {epoch:g}", epochs[epoch]) for epoch in sorted(epochs)]
        title = title_of(results, f"Gradient of {loss} while {method} is trained", cell)
        yield title, partial(pictures.draw_slopes, lines, title=title)


def _draw_kernel(results: Results) -> Iterator[Drawing]:
    """Draw the kernel ECE of the confidence against ε, a line for each λ (r-aurc figure 6)."""
    for metric in KERNELS:
        for cell, table in series.grid(results, ("eps", "lambda"), metric).items():
            shares = dict.fromkeys(share for _, share in table)
            lines = [
                series.Series(
                    f"λ = {share:g}",
                    {eps: mean for (eps, own), mean in table.items() if own == share},
                )
                for share in shares
            ]
            title = title_of(results, f"{label(metric)} against ε", cell)
            yield title, partial(draw_many, lines, metric, title=title, against="ε", log=True)


def _draw_reliability(results: Results) -> Iterator[Drawing]:
    """Overlay reliability diagrams by method (soft-calibration figures 6 and 10, acls figure 2)."""
    for cell, diagrams in series.diagrams(results).items():
        for paper, methods in OVERLAID.items():
            shown = [diagram for diagram in diagrams if diagram.method in methods]
            if len(shown) > 2:
                title = title_of(results, f"Reliability as in {paper}", cell)
                names = [diagram.method for diagram in shown]
                yield title, partial(overlay, shown, highlighted=names, title=title)


def _draw_calibrated_severities(results: Results) -> Iterator[Drawing]:
    """Draw each primary loss under corruptions, calibrated (soft-calibration figures 2 and 9)."""
    calibrators = ("none", "temperature", "temperature(objective=sb_ece)", "mac_cal_head")
    for part, what in series.CORRUPTIONS.items():
        by_method: dict[tuple[str, Cell], list[series.Series]] = {}
        for calibrator in calibrators:
            found = series.by_severity(results, SOFT_ECE, calibrator=calibrator, part=part)
            shown = shown_calibrator(results.find_calibrator(calibrator))
            for cell, lines in found.items():
                for line in lines:
                    by_method.setdefault((line.name, cell), []).append(
                        series.Series(shown, line.points)
                    )
        for name in PRIMARIES:
            for (method, cell), lines in by_method.items():
                if method == name and len(lines) > 1:
                    title = title_of(results, f"{name} under {what}, calibrated", cell)
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
    learned = find_learned(results)
    for (cell, method), runs in results.values(SOFT_ECE).items():
        if (cell, method) in learned:
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


def find_learned(results: Results) -> set[tuple[Cell, str]]:
    """Find the networks with at least half of the best accuracy in their cell.

    The low ECE of a network that guesses is no effect of its loss; claims leave it out as well.
    """
    accuracy = {
        place: mean_of(list(runs.values())).mean
        for place, runs in results.values("accuracy").items()
    }
    best: dict[Cell, float] = {}
    for (cell, _), value in accuracy.items():
        best[cell] = max(best.get(cell, 0.0), value)
    return {place for place, value in accuracy.items() if value >= LEARNED * best[place[0]]}


def pool_results(results: Results) -> dict[str, dict[str, float]]:
    """Pool Cohen's d of secondary losses over data and primary losses, by half of the figure.

    Soft-calibration's figure 1: as trained, and after a temperature.
    """
    effects: dict[str, dict[str, float]] = {}
    learned = find_learned(results)
    for calibrator, half in (("none", "as trained"), ("temperature", "after temperature")):
        pairs: dict[str, list[tuple[list[float], list[float]]]] = {}
        values = results.values(SOFT_ECE, calibrator=calibrator)
        values = {place: runs for place, runs in values.items() if place in learned}
        for cell, primary, secondary in itertools.product(results.cells, PRIMARIES, SECONDARIES):
            runs = [values.get((cell, name)) for name in list_names(primary, secondary)]
            own, base = next(filter(None, runs), None), values.get((cell, primary))
            if own and base:
                pairs.setdefault(secondary, []).append(([*base.values()], [*own.values()]))
        sizes = {name: pool_effects(each) for name, each in pairs.items()}
        sizes = {name: size for name, size in sizes.items() if math.isfinite(size)}
        if sizes:
            effects[half] = sizes
    return effects


def _draw_pooled_effects(results: Results) -> Iterator[Drawing]:
    """Draw Cohen's d pooled over data and primary losses (soft-calibration figure 1)."""
    if effects := pool_results(results):
        title = "Effect of secondary losses on ECE, pooled over settings (Cohen's d)"
        yield title, partial(pictures.draw_effects, effects, title=title)


def _draw_soft_severities(results: Results) -> Iterator[Drawing]:
    """Draw every method under corruptions by the paper's metric (soft-calibration figure 7).

    Cross-entropy after a temperature is beside them, as in the figure.
    """
    for part, what in series.CORRUPTIONS.items():
        calibrated = series.by_severity(results, SOFT_ECE, calibrator="temperature", part=part)
        for cell, lines in series.by_severity(results, SOFT_ECE, part=part).items():
            title = title_of(results, f"Equal-mass L2 ECE under {what}", cell)
            after = [
                series.Series("cross_entropy after temperature", line.points)
                for line in calibrated.get(cell, [])
                if line.name == "cross_entropy"
            ]
            yield draw_lines(title, [*lines[:1], *after, *lines[1:]], SOFT_ECE, "severity")


def _draw_primary_severities(results: Results) -> Iterator[Drawing]:
    """Draw a primary loss and its secondary ones under corruptions (soft-calibration figure 8)."""
    for part, what in series.CORRUPTIONS.items():
        for cell, lines in series.by_severity(results, SOFT_ECE, part=part).items():
            by_name = {line.name: line for line in lines}
            for primary in PRIMARIES:
                names = [primary]
                for secondary in SECONDARIES:
                    names += [name for name in list_names(primary, secondary) if name in by_name]
                if primary in by_name and len(names) > 1:
                    head = f"Secondary losses beside {primary} under {what}"
                    shown = [by_name[name] for name in names]
                    yield draw_lines(title_of(results, head, cell), shown, SOFT_ECE, "severity")


def list_uncertainties(results: Results) -> dict[Cell, list[tuple[str, float, float]]]:
    """List (method, mean entropy, ECE) of the paper's losses (soft-calibration figure 10)."""
    entropy, errors = results.values("mean_entropy"), results.values(SOFT_ECE)
    learned = find_learned(results)
    pairs = itertools.product(PRIMARIES, SECONDARIES)
    of_paper = {*PRIMARIES, *(name for pair in pairs for name in list_names(*pair))}
    points: dict[Cell, list[tuple[str, float, float]]] = {}
    for (cell, method), runs in errors.items():
        own = entropy.get((cell, method))
        if own and method in of_paper and (cell, method) in learned:
            means = [mean_of(list(each.values())).mean for each in (own, runs)]
            points.setdefault(cell, []).append((method, means[0], means[1]))
    return points


def _draw_uncertainty(results: Results) -> Iterator[Drawing]:
    """Draw ECE against mean uncertainty (soft-calibration figure 10)."""
    for cell, points in list_uncertainties(results).items():
        if len(points) > 2:
            title = title_of(results, "ECE against mean uncertainty", cell)
            yield title, partial(pictures.draw_uncertainty, points, title=title)


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


def _draw_confidences(results: Results) -> Iterator[Drawing]:
    """Draw how confidences are spread, masked and not (mac-cal figure 1a)."""
    shares = results.rows[results.rows["metric"] == "share"]
    parts = shares["part"].astype(str).str.startswith("test@")
    by_method: dict[tuple[Cell, str], list[series.Series]] = {}
    names = {*map(str, shares.loc[parts, "calibrator"])}
    for name in sorted(names, key=lambda each: (each != "none", "masked" not in each, each)):
        for cell, lines in series.by_epoch(results, "share", part="test", calibrator=name).items():
            for line in lines:
                shown = re.sub(r"masked:(\d+)", r"\1% masked", name)
                shown = "as trained" if name == "none" else shown
                by_method.setdefault((cell, line.name), []).append(
                    series.Series(shown, line.points)
                )
    for (cell, method), lines in by_method.items():
        title = title_of(results, f"Confidences of {method}", cell)
        yield title, partial(pictures.draw_histograms, lines, title=title)


def _draw_geometry(results: Results) -> Iterator[Drawing]:
    """Draw angles between classes, and t-SNE of logits of one seed (mac-cal figure 2)."""
    names = dict.fromkeys(
        map(str, results.rows.loc[results.rows["metric"] == "tsne:x", "calibrator"])
    )
    for name in names:
        after = "as trained" if name == "none" else f"after {name}"
        for what in ("weights", "features"):
            angles = series.by_epoch(results, f"angle:{what}", part="test", calibrator=name)
            for cell, lines in angles.items():
                for line in lines:
                    size = math.isqrt(len(line.points))
                    table = np.array(line.means).reshape(size, size)
                    head = f"Angles of class {what}, {line.name} {after}"
                    title = title_of(results, head, cell)
                    yield (
                        title,
                        partial(pictures.draw_angles, table, title=f"class {what}, {after}"),
                    )
        for (cell, method), points in _read_embeddings(results, name).items():
            title = title_of(results, f"t-SNE of logits, {method} {after}", cell)
            yield title, partial(pictures.draw_embedding, points, title=f"{method} {after}")


Points = list[tuple[float, float, int, float]]


def _read_embeddings(results: Results, name: str) -> dict[tuple[Cell, str], Points]:
    """Read (x, y, class, entropy) of each row of the first seed, by cell and method."""
    rows = results.rows[
        (results.rows["calibrator"] == name)
        & results.rows["metric"].astype(str).str.startswith("tsne:")
    ]
    first: dict[tuple[Cell, str], tuple[int, str]] = {}
    for key in rows["key"].unique():
        for method, cell, seed in results.plan[str(key)]:
            first[cell, method] = min(first.get((cell, method), (seed, str(key))), (seed, str(key)))
    read: dict[tuple[Cell, str], Points] = {}
    for place, (_, key) in first.items():
        own = rows[rows["key"] == key].astype({"part": str, "metric": str})
        table = own.pivot_table(index="part", columns="metric", values="value")
        columns = [table[f"tsne:{column}"] for column in ("x", "y", "label", "entropy")]
        read[place] = [(x, y, int(k), h) for x, y, k, h in zip(*columns, strict=True)]
    return read
