"""The papers' own figures, under our names and in our units.

``published.csv`` beside this file is every numeric table of the five papers, without the
rows that could not be read with certainty. Its names are the papers'; the tables below
are the one place that turns them into ours, and percent into shares.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal  # 1.12 percent is 0.0112, not 0.011200000000000002
from functools import lru_cache

from calibrant.bench.figures import canonical
from calibrant.functional.errors import InputError

PAPERS = ("r-aurc", "soft-calibration", "acls", "mac-cal", "class-scaling")
UNITS = {"percent": 100, "x100": 100, "raw": 1, "seconds": 1}
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
    "ece_kde_l1": "kde_ece",
    "mean_sweep_ce": "sweep_ece",
    "auroc": "ood_auroc",
    "seconds": "train_seconds",
    "temperature": "parameter:temperature",
    # Of soft-calibration's table 6 only a sum over classes has the size that is printed.
    "marginal_ece": "marginal_ece(binning=mass,class_reduction=sum)",
    # Of r-aurc's tables 9 and 10, which cannot be either AURC (values up to 3.31).
    "aurc": "published:aurc",
    # Of the same tables: defined as a sum over classes, but the sizes fit a mean.
    "brier": "published:brier",
}
MODELS = {
    "wrn28-10": "wrn_28_10",
    "wrn26-10": "wrn_26_10",
    "wrn28": "wrn_28_10",  # of class-scaling's long tail, which does not say how wide
    "wrn32": "wrn_32",
    "resnet110sd": "resnet110_sd",
    "deeplabv3-resnet50": "deeplabv3_resnet50",
}
# class-scaling's calibrators are its methods, and their objectives its variants.
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
# mac-cal's table 5, each row with what the rows above it added.
HEADS = {
    "+masked_retraining": "mac_cal_head(head=linear,restrict_gradient=False,schedule=fixed)",
    "+gradient_restriction": "mac_cal_head(head=linear,schedule=fixed)",
    "+classifier_restructure": "mac_cal_head(schedule=fixed)",
    "+static_adaptive_sparsity": "mac_cal_head(schedule=constant)",
    "+decaying_adaptive_sparsity": "mac_cal_head",
}
SWEPT = ("eps=", "lambda1=")  # variants that suites of sweeps have as names of methods
LONG_TAIL = 0.1  # class-scaling's ρ


@dataclass(frozen=True)
class Figure:
    """One published number, in our units: shares, not percent.

    ``variant`` is what of the paper's description has no name of its own here, such as the
    settings of a sweep; ``printed`` is the number as the paper has it.
    """

    paper: str
    table: str
    data: str
    model: str
    method: str
    metric: str
    value: float | None  # None: the paper prints a dash
    error: float | None = None
    calibrator: str = "none"
    part: str = "test"
    variant: str = ""
    long_tail: float | None = None
    printed: str = ""
    notes: str = ""


def published(
    paper: str,
    table: str,
    data: str,
    model: str,
    method: str,
    metric: str,
    variant: str = "",
    *,
    calibrator: str = "none",
    part: str = "test",
    long_tail: float | None = None,
) -> Figure:
    """The one figure of that description, by our names; an error where there is none."""
    found = find(
        paper=paper,
        table=table,
        data=data,
        model=model,
        method=method,
        metric=canonical(metric),
        variant=variant,
        calibrator=canonical(calibrator),
        part=part,
        long_tail=long_tail,
    )
    if len(found) == 1:
        return found[0]
    told = f"{paper}, {table}, {data}, {model}, {method}, {calibrator}, {metric} {variant}".strip()
    if found:
        raise InputError(f"{len(found)} published figures are described by: {told}")
    near = find(paper=paper, table=table) or find(paper=paper)
    names = {
        side: ", ".join(sorted({str(getattr(one, side)) for one in near}))
        for side in ("table", "data", "model", "method", "metric")
    }
    known = "; ".join(f"{side}: {text}" for side, text in names.items())
    raise InputError(f"no published figure for: {told}. There are {known or PAPERS}")


def find(**wanted: str | float | None) -> list[Figure]:
    """Every figure whose named fields have these values."""
    return [
        one for one in load() if all(getattr(one, name) == value for name, value in wanted.items())
    ]


SIDES = ("paper", "data", "model", "method", "metric", "calibrator", "part", "long_tail")


@lru_cache(maxsize=1)
def _described() -> dict[tuple[str | float | None, ...], list[Figure]]:
    found: dict[tuple[str | float | None, ...], list[Figure]] = {}
    for one in load():
        if not one.variant and one.value is not None:
            found.setdefault(tuple(getattr(one, side) for side in SIDES), []).append(one)
    return found


def of_description(**wanted: str | float | None) -> list[Figure]:
    """Every figure with a value of just this description, in every table, quickly."""
    return _described().get(tuple(wanted[side] for side in SIDES), [])


@lru_cache(maxsize=1)
def load() -> tuple[Figure, ...]:
    """Every published figure."""
    return tuple(_figure(row) for row in rows())


def rows() -> Iterator[dict[str, str]]:
    """The file's rows as they are."""
    from importlib.resources import files

    text = files("calibrant.bench").joinpath("published.csv").read_text(encoding="utf-8")
    yield from csv.DictReader(text.splitlines())


def method_name(name: str) -> str:
    """Our name of a method that a paper writes as primary+secondary, or by its own name.

    >>> method_name("ce+none"), method_name("ce+mmce"), method_name("mse+s_avuc")
    ('cross_entropy', 'mmce', 'brier+s_avuc')
    """
    primary, _, secondary = name.partition("+")
    primary = METHODS.get(primary, primary)
    if secondary in ("", "none"):
        return primary
    # A secondary loss's bare name is cross-entropy and it.
    return secondary if primary == "cross_entropy" else f"{primary}+{secondary}"


def _figure(row: dict[str, str]) -> Figure:
    scale = UNITS[row["unit"]]
    method, calibrator, part, variant = _placed(row)
    options = [piece for piece in variant.split(",") if piece]
    bins = next((piece[5:] for piece in options if piece.startswith("bins=")), None)
    metric = METRICS.get(row["metric"], row["metric"])
    if bins is not None and (bins == "15" or "ece" in metric):
        options.remove(f"bins={bins}")
        if metric == "adaptive_ece":
            metric = f"adaptive_ece(num_bins={bins})"
    data, tail = row["dataset"].removesuffix("-lt"), row["dataset"].endswith("-lt")
    return Figure(
        paper=row["paper"],
        table=row["table"],
        data=data,
        model=MODELS.get(row["model"], row["model"]),
        method=method,
        metric=canonical(metric),
        value=float(Decimal(row["value"]) / scale) if row["value"] else None,
        error=float(Decimal(row["stderr"]) / scale) if row["stderr"] else None,
        calibrator=calibrator,
        part=part,
        variant=",".join(options),
        long_tail=LONG_TAIL if tail else None,
        printed=row["value"],
        notes=row["notes"],
    )


def _placed(row: dict[str, str]) -> tuple[str, str, str, str]:
    """Method, calibrator, part and what is left of the variant."""
    method, variant, part = row["method"], row["variant"], "test"
    if row["paper"] == "class-scaling":
        # Tables 1 and 3 are of other people's logits; table 2 of networks trained for it.
        network = "logits" if row["table"] in ("Table 1", "Table 3") else "cross_entropy"
        return network, *_class_scaling(method, variant)
    calibrator, _, rest = variant.partition(",")
    if calibrator in AFTER:
        after = AFTER.get(f"{calibrator} {row['paper']}", AFTER[calibrator])
        return method_name(method), after, part, rest
    if variant in HEADS:
        return "cross_entropy", HEADS[variant], part, ""
    if variant.startswith(SWEPT):
        return variant, "none", part, ""
    if variant.startswith("split="):
        return method_name(method), "none", variant.removeprefix("split="), ""
    if row["metric"] in ("auroc", "fpr95"):
        part = "ood:*"
    if variant in ("baseline", "vanilla"):
        variant = ""
    name = method_name(method)
    soft = name in ("s_avuc", "sb_ece") and row["paper"] == "soft-calibration"
    if soft and row["dataset"] != "imagenet":
        name = f"interleaved_{name}"  # what these rows are: appendix B
    if row["paper"] == "acls" and variant in ("ar_only", "cr_only"):
        name, variant = f"{name}_{variant}", ""
    if variant.startswith("condition="):
        # Each method has one of the two conditions as its own.
        condition = variant.removeprefix("condition=")
        own = {"crl": "ranking", "acls": "margin"}[name]
        name, variant = (name if condition == own else f"{name}_{condition}"), ""
    return name, "none", part, variant


def _class_scaling(method: str, variant: str) -> tuple[str, str, str]:
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
    return canonical(f"{calibrator}({options})"), "test", ""
