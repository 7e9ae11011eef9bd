"""Convert the five papers' tables to calibrant's names and units.

``published.csv`` beside this file holds every numeric table of the five papers, in the columns that
`calibrant.bench` reads, without rows that could not be read with certainty. It is made from a file
with the papers' own names, which the mappings below convert to ours:

    python -m replication published PAPERS_FOLDER/published.csv
"""

from __future__ import annotations

import csv
import os
from collections.abc import Mapping
from pathlib import Path

from calibrant.bench import PublishedFigure, canonical_name, read_published

FILE = Path(__file__).with_name("published.csv")
COLUMNS = ("paper", "table", "data", "model", "long_tail", "method", "calibrator", "part")
COLUMNS += ("metric", "variant", "value", "stderr", "unit", "notes")
PAPERS = ("r-aurc", "soft-calibration", "acls", "mac-cal", "class-scaling")
METHODS = {
    "ce": "cross_entropy",
    "mse": "brier",
    "ecp": "confidence_penalty",
    "kde_xe": "kde_ece",
    "cape_bin": "cape",
    "mcdrop": "mc_dropout",
}
METRICS = {
    "cwece": "classwise_ece",
    "cwece_adaptive": "classwise_ece(binning=mass)",
    "ece_l1_equal_width": "ece",
    "ece_l1_equal_width_15": "ece",
    "ece_l1_equal_width_10": "ece(num_bins=10)",
    "ece_l2_equal_mass_15": "adaptive_ece(order=2)",
    "aece": "adaptive_ece",
    # r-aurc prints no bandwidth. The sizes fit 0.05; ours, chosen by likelihood, gives others.
    "ece_kde_l1": "kde_ece(bandwidth=0.05)",
    "mean_sweep_ce": "sweep_ece",
    "auroc": "ood_auroc",
    "seconds": "train_seconds",
    "temperature": "parameter:temperature",
    # In soft-calibration's table 6, only a sum over classes has the printed size.
    "marginal_ece": "marginal_ece(binning=mass,class_reduction=sum)",
    # In r-aurc's tables 9 and 10, the values (up to 3.31) cannot be either AURC.
    "aurc": "published:aurc",
    # In the same tables: defined as a sum over classes, but the sizes fit a mean.
    "brier": "published:brier",
}
MODELS = {
    "wrn28-10": "wrn_28_10",
    "wrn26-10": "wrn_26_10",
    "wrn28": "wrn_28_10",  # in class-scaling's long tail, which does not give the width
    "wrn32": "wrn_32_10",
    "resnet110sd": "resnet110_sd",
    "deeplabv3-resnet50": "deeplabv3_resnet50",
}
# In class-scaling's tables, calibrators are methods and objectives are variants.
CALIBRATORS = {
    "uncalibrated": "none",
    "ts": "temperature",
    "ets": "ensemble_temperature",
    "pts": "parameterized_temperature",
    "cts": "class_temperature",
}
AFTER = {
    "+ts": "temperature",
    "+ts r-aurc": "temperature(objective=ece,on=train)",  # how that paper chooses T
    "+ts acls": "temperature(objective=ece)",
    "+ts_sb_ece": "temperature(objective=sb_ece)",
    "+meta_acc": "meta_cal(accuracy=0.98,form=coverage_accuracy,keep_predictions=False)",
    "+dirichlet": "dirichlet",
    "+mac_cal": "mac_cal_head",
}
# mac-cal's table 5; each row adds to the rows above it.
HEADS = {
    "+masked_retraining": "mac_cal_head(head=linear,restrict_gradient=False,schedule=fixed)",
    "+gradient_restriction": "mac_cal_head(head=linear,schedule=fixed)",
    "+classifier_restructure": "mac_cal_head(schedule=fixed)",
    "+static_adaptive_sparsity": "mac_cal_head(schedule=constant)",
    "+decaying_adaptive_sparsity": "mac_cal_head",
}
SWEPT = ("eps=", "lambda1=")  # variants that sweeps use as method names
LONG_TAIL = 0.1  # class-scaling's ρ


def load_published() -> tuple[PublishedFigure, ...]:
    """Read every figure of the papers."""
    return read_published(FILE)


def find_published(**wanted: str | float | None) -> list[PublishedFigure]:
    """Find every figure whose named fields have these values."""
    return [
        figure
        for figure in load_published()
        if all(getattr(figure, name) == value for name, value in wanted.items())
    ]


def make_published(source: str | os.PathLike[str], target: str | os.PathLike[str] = FILE) -> int:
    """Write ``published.csv`` from tables with the papers' own names; return its number of rows.

    Args:
        source: CSV file with the papers' names. Rows whose notes begin with ``uncertain:`` are
            left out.
        target: file to write. Default: ``published.csv``, which the suites read.
    """
    with open(source, encoding="utf-8", newline="") as file:
        rows = [row for row in csv.DictReader(file) if not row["notes"].startswith("uncertain:")]
    with open(target, "w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rename(row) for row in rows)
    return len(rows)


def convert_method(name: str) -> str:
    """Convert a paper's method name, such as primary+secondary, to ours.

    >>> convert_method("ce+none"), convert_method("ce+mmce"), convert_method("mse+s_avuc")
    ('cross_entropy', 'mmce', 'brier+s_avuc')
    """
    primary, _, secondary = name.partition("+")
    primary = METHODS.get(primary, primary)
    if secondary in ("", "none"):
        return primary
    # The bare name of a secondary loss means cross-entropy plus that loss.
    return secondary if primary == "cross_entropy" else f"{primary}+{secondary}"


def rename(row: Mapping[str, str]) -> dict[str, str | float]:
    """Convert a row with a paper's names to ours; percentages stay percentages."""
    method, calibrator, part, variant = _convert_names(row)
    options = [piece for piece in variant.split(",") if piece]
    bins = next((piece[5:] for piece in options if piece.startswith("bins=")), None)
    metric = METRICS.get(row["metric"], row["metric"])
    if bins is not None and (bins == "15" or "ece" in metric):
        options.remove(f"bins={bins}")
        if metric == "adaptive_ece":
            metric = f"adaptive_ece(num_bins={bins})"
    data = row["dataset"]
    return {
        **{name: row[name] for name in ("paper", "table", "value", "stderr", "unit", "notes")},
        "data": data.removesuffix("-lt"),
        "model": MODELS.get(row["model"], row["model"]),
        "long_tail": LONG_TAIL if data.endswith("-lt") else "",
        "method": method,
        "calibrator": calibrator,
        "part": part,
        "metric": canonical_name(metric),
        "variant": ",".join(options),
    }


def _convert_names(row: Mapping[str, str]) -> tuple[str, str, str, str]:
    """Convert names to (method, calibrator, part, rest of the variant)."""
    method, variant, part = row["method"], row["variant"], "test"
    if row["paper"] == "class-scaling":
        # Tables 1 and 3 use published logits; table 2 uses networks trained by the authors.
        network = "logits" if row["table"] in ("Table 1", "Table 3") else "cross_entropy"
        return network, *_convert_class_scaling(method, variant)
    calibrator, _, rest = variant.partition(",")
    if calibrator in AFTER:
        after = AFTER.get(f"{calibrator} {row['paper']}", AFTER[calibrator])
        return convert_method(method), after, part, rest
    if variant in HEADS:
        return "cross_entropy", HEADS[variant], part, ""
    if variant.startswith(SWEPT):
        return variant, "none", part, ""
    if variant.startswith("split="):
        return convert_method(method), "none", variant.removeprefix("split="), ""
    if row["metric"] in ("auroc", "fpr95"):
        part = "ood:*"
    if variant in ("baseline", "vanilla"):
        variant = ""
    name = convert_method(method)
    soft = name in ("s_avuc", "sb_ece") and row["paper"] == "soft-calibration"
    if soft and row["dataset"] != "imagenet":
        name = f"interleaved_{name}"  # these rows are interleaved (appendix B)
    if row["paper"] == "acls" and variant in ("ar_only", "cr_only"):
        name, variant = f"{name}_{variant}", ""
    if variant.startswith("condition="):
        # Each method has its own default among the two conditions.
        condition = variant.removeprefix("condition=")
        own = {"crl": "ranking", "acls": "margin"}[name]
        name, variant = (name if condition == own else f"{name}_{condition}"), ""
    return name, "none", part, variant


def _convert_class_scaling(method: str, variant: str) -> tuple[str, str, str]:
    objective, _, rest = variant.partition(",")
    calibrator = CALIBRATORS.get(method)
    if calibrator is None:  # the average over calibrators
        return "average", "test", variant
    if objective == "base" or calibrator == "none":
        return calibrator, "test", ""
    options = f"objective={objective}"
    normalisation = rest.removeprefix("norm=")
    if normalisation and normalisation != "nd":
        options += f",normalisation={normalisation}"
    return canonical_name(f"{calibrator}({options})"), "test", ""
