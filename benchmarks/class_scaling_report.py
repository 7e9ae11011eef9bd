"""How the results of ``class_scaling.py`` are written: sentences first, then the tables."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import class_scaling_fits
from class_scaling_claims import GENTLE, SIXTEEN, sentences
from class_scaling_fits import FOUR, PAPER, VARIANTS, Fits, mean_of, short
from harness import table

LIBRARY = ("ETS of probabilities", "CTS drawn to TS")
LABELS = {"CS nd printed": "CS"}


def write(records: Iterable[dict[str, Any]], folder: Path) -> str:
    """``class_scaling.csv`` from the cache's records, and ``CLASS_SCALING.md`` from that file."""
    path = folder / "class_scaling.csv"
    class_scaling_fits.write(records, path)
    text = report(Fits(class_scaling_fits.read(path)))
    (folder / "CLASS_SCALING.md").write_text(text)
    return text


def report(fits: Fits) -> str:
    missing = incomplete(fits)
    sixteen = [("uncalibrated", "none"), *SIXTEEN]
    variants = [(calibrator, objective) for calibrator in PAPER for objective in VARIANTS]
    library = [(name, objective) for name in LIBRARY for objective in FOUR]
    parts = [
        "# Class-wise loss scaling",
        "Written by `python benchmarks/class_scaling.py` and then `--report`; every number and "
        "every sentence below is made from `class_scaling.csv`, a row a fit.",
        describe(fits),
        f"**Incomplete: {missing} fits of these tables are missing.**" if missing else "",
        "## Claims",
        DECISIONS,
        sentences(fits),
        NOT_MEASURED,
        "## Four calibrators by four objectives",
        "ECE-15 on the test half, in percent:",
        grid(fits, sixteen, "ece", scale=100),
        "NLL:",
        grid(fits, sixteen, "nll", form=".4f"),
        "Class-wise ECE, in percent:",
        grid(fits, sixteen, "classwise_ece", form=".3f", scale=100),
        "Accuracy, in percent:",
        grid(fits, sixteen, "accuracy", scale=100),
        "Spread of the class-wise losses (`classwise_nll_std`):",
        grid(fits, sixteen, "spread", form=".4f"),
        "Difference of ECE-15 from the same calibrator's by likelihood, in points, paired by "
        "split; the last column over sets:",
        differences(fits),
        "## Normalisations and estimates",
        "ECE-15 on the test half, in percent:",
        grid(fits, variants, "ece", scale=100),
        "NLL:",
        grid(fits, variants, "nll", form=".4f"),
        "α / β that were settled, mean over splits (bounds: α from 0.1 to ln(K)/2, which is "
        "1.15, 2.30 and 3.45 here; β from 1.5 to 2):",
        settled(fits),
        "## ETS and CTS as the library has them",
        "Probabilities mixed in place of logits; each class temperature drawn to the one of TS. "
        "ECE-15 in percent, then NLL:",
        grid(fits, library, "ece", scale=100),
        grid(fits, library, "nll", form=".4f"),
        "Focal loss with the derivative through its weight (FL above holds it constant, as the "
        "paper's code does), ECE-15 in percent:",
        grid(fits, [(name, "FL whole") for name in (*PAPER, *LIBRARY)], "ece", scale=100),
        "## Correlation with ECE",
        CORRELATIONS,
        correlation_table(fits),
        "## One temperature by binned ECE",
        "`temperature` with objective `sb_ece` (form `bin`) and `ece`, both chosen on the fitted "
        "half, against the likelihood's. ECE-15 in percent, equal-mass L2 ECE in percent (as "
        "soft-calibration measures), NLL, T:",
        binned(fits),
        "## Fits that need a remark",
        remarks(fits),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def describe(fits: Fits) -> str:
    return (
        f"{len(fits.sets)} sets of logits (CIFAR: 10,000 rows; ImageNet: 5,000, so 2 or 3 a class "
        f"in each half), each split in halves {len(fits.seeds)} times by seed, stratified: "
        "fitted on one half, measured on the other. ± is the standard error over splits, which "
        "share rows: it tells how much the split matters, not how much another sample would. "
        "TS, ETS (eq. 13 of class-scaling, a mixture of logits), PTS and CTS (unregularised) by "
        "likelihood (NLL), label smoothing 0.05 (LS), focal loss γ = 3 with its weight held "
        "constant (FL) and class-wise loss scaling (CS: `nd`, α and β by eq. 6 as printed). All "
        "are solved to their optimum or fixed point; the paper runs 1,000 epochs, on 25,000 rows. "
        "PTS is regularised as the library does it, which is not the paper's weight decay."
    )


DECISIONS = (
    "Differences are paired by split, averaged within a set, then over sets; ± is here the "
    "standard error over sets (three networks share each CIFAR test set, two the ImageNet one: "
    "it is a little optimistic). A claim *holds*, or its *opposite* does, where that mean is more "
    "than two standard errors from 0; else it is *not shown*. [5/8]: the figure is lower "
    "on 5 of 8 sets."
)
FIGURES = re.compile(r" from [\d.]+ to [\d.]+")
NOT_MEASURED = (
    "Not measured here: long-tailed sets (table 2) and behaviour over epochs (figure 4): the sets "
    "are balanced, and exact solvers have no epochs."
)
CORRELATIONS = (
    "Pearson's r (ranks: Spearman's) of the spread of the class-wise losses, and of the NLL, with "
    "ECE-15, all on the test half. *16 cells*: over the calibrators and objectives of the table, "
    "in each split by itself, mean ± standard error over splits. *28 cells*: NLL and the six "
    "kinds of class-wise scaling, without LS and FL. *Splits*: each cell's deviations from its "
    "own mean over splits, the 16 cells pooled. *Toward*: one temperature at 11 points even in "
    "ln T from 1 to the fitted one; *beyond*: from there as far again."
)


def grid(
    fits: Fits,
    lines: Sequence[tuple[str, str]],
    figure: str,
    *,
    form: str = ".2f",
    scale: float = 1.0,
) -> str:
    """A figure of (calibrator, objective) lines, a column a set, mean ± standard error."""
    rows = []
    for calibrator, objective in lines:
        cell = ("none", "none") if objective == "none" else (calibrator, objective)
        means = [fits.mean(name, *cell, figure) for name in fits.sets]
        if any(mean.count for mean in means):
            name = LABELS.get(objective, objective)
            name = calibrator if objective in ("none", "NLL") else f"{calibrator} + {name}"
            rows.append((name, *(mean.show(form, scale) for mean in means)))
    return table(("", *(short(name) for name in fits.sets)), rows) if rows else ""


def differences(fits: Fits) -> str:
    chosen = ("LS", "FL", "CS nd printed", "CS nd corrected")
    lines = [(name, objective) for name in (*PAPER, *LIBRARY) for objective in chosen]
    rows = []
    for calibrator, objective in [*lines, ("TS", "SB-ECE"), ("TS", "HB-ECE")]:
        gap = fits.difference((calibrator, objective), (calibrator, "NLL"), "ece")
        if gap.sets:
            cells = [gap.sets[s].show("+.2f", 100) if s in gap.sets else "-" for s in fits.sets]
            rows.append((f"{calibrator} + {objective}", *cells, gap.over_sets.show("+.2f", 100)))
    return table(("", *(short(name) for name in fits.sets), "all"), rows) if rows else ""


def settled(fits: Fits) -> str:
    rows = []
    for calibrator in ("TS", "CTS", "CTS drawn to TS"):
        for objective in VARIANTS:
            cells = []
            for name in fits.sets:
                alpha, beta = (
                    fits.mean(name, calibrator, objective, x).value for x in ("alpha", "beta")
                )
                cells.append("-" if alpha != alpha else f"{alpha:.2f} / {beta:.2f}")
            if set(cells) != {"-"}:
                rows.append((f"{calibrator} + {objective}", *cells))
    return table(("", *(short(name) for name in fits.sets)), rows)


def correlation_table(fits: Fits) -> str:
    rows = []
    for figure, title in (("spread", "spread"), ("nll", "NLL")):
        found = {
            "16 cells": fits.correlations(SIXTEEN, figure),
            "16 cells, ranks": fits.correlations(SIXTEEN, figure, ranked=True),
            "28 cells": fits.correlations(GENTLE, figure),
            "28 cells, ranks": fits.correlations(GENTLE, figure, ranked=True),
            "splits": {
                name: mean_of([value])
                for name, value in fits.across_splits(SIXTEEN, figure).items()
            },
            "toward": {s: fits.mean(s, "path", "NLL", f"toward_{figure}") for s in fits.sets},
            "beyond": {s: fits.mean(s, "path", "NLL", f"beyond_{figure}") for s in fits.sets},
        }
        for name, means in found.items():
            cells = [means[s].show("+.2f") if s in means else "-" for s in fits.sets]
            rows.append((f"{title}, {name}", *cells))
    return table(("", *(short(name) for name in fits.sets)), rows)


def binned(fits: Fits) -> str:
    figures = (("ece", ".2f", 100), ("ece_mass_l2", ".2f", 100), ("nll", ".4f", 1))
    rows = []
    for name in fits.sets:
        for objective, title in (("NLL", "TS"), ("SB-ECE", "TS-SB-ECE"), ("HB-ECE", "TS-HB-ECE")):
            means = [
                fits.mean(name, "TS", objective, figure).show(form, scale)
                for figure, form, scale in (*figures, ("temperature", ".3f", 1))
            ]
            rows.append((f"{short(name)}, {title}", *means))
    return table(("", "ECE", "equal-mass L2 ECE", "NLL", "T"), rows)


def remarks(fits: Fits) -> str:
    lines = []
    for kind in ("failure", "note"):
        counts: dict[tuple[str, str, str], int] = {}
        for row in fits.rows:
            if row[kind]:
                said = FIGURES.sub("", row[kind])  # of one split, where there are five
                cell = (row["set"], f"{row['calibrator']} + {row['objective']}", said)
                counts[cell] = counts.get(cell, 0) + 1
        lines += [
            f"- {short(name)}, {cell}, {count} of {len(fits.seeds)} splits"
            f"{' failed' * (kind == 'failure')}: {said}"
            for (name, cell, said), count in counts.items()
        ]
    return "\n".join(lines) if lines else "None."


def incomplete(fits: Fits) -> int:
    """Fits of the tables that the file does not hold."""
    cells = [(c, o) for c in (*PAPER, *LIBRARY) for o in (*FOUR, "FL whole", *VARIANTS[1:])]
    held = sum(len(fits.values(name, *cell, "ece")) for name in fits.sets for cell in cells)
    return len(fits.sets) * len(fits.seeds) * len(cells) - held
