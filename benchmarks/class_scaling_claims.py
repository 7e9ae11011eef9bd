"""What the papers claim, each with a verdict and a sentence made from the measured figures.

A claim about a difference is decided by its mean over the sets: it holds, or its opposite
does, where that mean is more than two standard errors (over sets) from 0.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from class_scaling_fits import (
    FOUR,
    PAPER,
    SCALED,
    VARIANTS,
    Difference,
    Fits,
    Mean,
    mean_of,
    short,
)

CLASSES = {"cifar10": 10, "cifar100": 100, "imagenet5k": 1000}
SIXTEEN = tuple((calibrator, objective) for calibrator in PAPER for objective in FOUR)
GENTLE = tuple((calibrator, objective) for calibrator in PAPER for objective in ("NLL", *VARIANTS))
POINTS = 100.0  # shares as percentage points


def verdict(sign: int, wanted: int) -> str:
    """In words, from the sign of what is clear (0: nothing is)."""
    return "Holds" if sign == wanted else "Opposite" if sign == -wanted else "Not shown"


def combined(signs: Sequence[int], wanted: int) -> str:
    """One verdict of several."""
    if not signs:
        return "Not measured"
    if len(set(signs)) == 1:
        return verdict(signs[0], wanted)
    held = sum(sign == wanted for sign in signs)
    against = sum(sign == -wanted for sign in signs)
    if held:
        return f"Holds in part ({held} of {len(signs)}{f', opposite in {against}' * bool(against)})"
    return f"Not shown, opposite in {against} of {len(signs)}"


def listed(parts: Sequence[str]) -> str:
    return "; ".join(parts)


def line(claim: str, decided: str, evidence: str) -> str:
    return f"- **{claim}** *{decided}.* {evidence}"


def by_calibrator(
    fits: Fits, cell: str, base: str, figure: str, *, relative: bool = False
) -> dict[str, Difference]:
    """Differences of one objective from another, for the paper's calibrators."""
    found = {
        name: fits.difference((name, cell), (name, base), figure, relative=relative)
        for name in PAPER
    }
    return {name: difference for name, difference in found.items() if difference.sets}


def lower_error(fits: Fits) -> str:
    found = by_calibrator(fits, SCALED, "NLL", "ece")
    evidence = listed([f"{name} {gap.show('+.2f', POINTS)}" for name, gap in found.items()])
    return line(
        "Class-wise loss scaling lowers the ECE of every calibrator (table 1: lower in 39 of 40 "
        "cells, by 0.23 in the mean).",
        combined([gap.over_sets.clear for gap in found.values()], -1),
        f"ECE against the likelihood's, in points: {evidence}.",
    )


def lower_error_corrected(fits: Fits) -> str:
    found = by_calibrator(fits, "CS nd corrected", "NLL", "ece")
    evidence = listed([f"{name} {gap.show('+.2f', POINTS)}" for name, gap in found.items()])
    return line(
        "The same with α and β by the corrected estimate (not the paper's).",
        combined([gap.over_sets.clear for gap in found.values()], -1),
        f"ECE against the likelihood's, in points: {evidence}.",
    )


def lower_spread(fits: Fits) -> str:
    inside = by_calibrator(fits, SCALED, "NLL", "fit_spread", relative=True)
    outside = by_calibrator(fits, SCALED, "NLL", "spread", relative=True)
    evidence = listed(
        [
            f"{name} {inside[name].over_sets.show('+.1f', POINTS)} where fitted, "
            f"{outside[name].show('+.1f', POINTS)} on the test half"
            for name in outside
        ]
    )
    signs = [gap.over_sets.clear for gap in (*inside.values(), *outside.values())]
    return line(
        "It lowers the spread of the class-wise losses (section 4).",
        combined(signs, -1),
        f"Change in percent of the likelihood's spread: {evidence}.",
    )


def spread_tracks(fits: Fits) -> str:
    found = correlations(fits, "spread")
    evidence = listed([f"{where}: r = {mean.show('+.2f')}" for where, mean in found.items()])
    return line(
        "The spread of the class-wise losses is highly correlated with ECE (figures 1 and 3).",
        combined([mean.clear for mean in found.values()], 1),
        f"Correlation of the spread with ECE on the test half, mean over sets: {evidence}."
        f"{spread_follows_temperature(fits)}",
    )


def spread_follows_temperature(fits: Fits) -> str:
    """What is behind the correlations, as far as the figures bear it out."""
    text = ""
    follows = [fits.mean(name, "path", "NLL", "path_spread").value for name in fits.sets]
    if follows and max(follows) < -0.5:  # NaN compares false
        text += (
            " The spread falls as T rises, whatever the calibration (r with ln T from "
            f"{min(follows):+.2f} to {max(follows):+.2f} on all {len(follows)} sets)."
        )
    for words, sign in (("too sure", 1), ("not sure enough", -1)):
        chosen = [
            name
            for name in fits.sets
            if sign * (fits.mean(name, "TS", "NLL", "temperature").value - 1) > 0
        ]
        both = [
            mean_of(fits.mean(name, "path", "NLL", f"{part}_spread").value for name in chosen)
            for part in ("toward", "beyond")
        ]
        if both[0].count:
            text += (
                f" On the {len(chosen)} sets whose network is {words} it goes with ECE at r = "
                f"{both[0].show('+.2f')} on the way to the fitted T and {both[1].show('+.2f')} "
                "beyond."
            )
    flat = by_calibrator(fits, "FL", "NLL", "spread", relative=True)
    worse = by_calibrator(fits, "FL", "NLL", "ece")
    evener = bool(flat) and all(gap.over_sets.clear == -1 for gap in flat.values())
    if evener and all(gap.over_sets.clear == 1 for gap in worse.values()):
        text += (
            f" Focal loss lowers the spread by {_reach(flat, -POINTS, '.0f')} percent and raises "
            f"ECE by {_reach(worse, POINTS, '.1f')} points."
        )
    return text


def spread_tracks_best(fits: Fits) -> str:
    spread, loss = correlations(fits, "spread"), correlations(fits, "nll")
    spread = {where: mean for where, mean in spread.items() if where in loss}
    better = [where for where in spread if spread[where].value > loss[where].value]
    evidence = listed(
        [
            f"{where}: {spread[where].value:+.2f} against {loss[where].value:+.2f}"
            for where in spread
        ]
    )
    decided = "Holds" if len(better) == len(spread) else "Does not hold"
    if better and len(better) < len(spread):
        decided = f"Holds in part ({len(better)} of {len(spread)})"
    return line(
        "It is correlated with ECE more than the total loss is, to which ECE is irrelevant "
        "(figure 1, section 4.1).",
        decided,
        f"r of the spread against r of the NLL: {evidence}.",
    )


def correlations(fits: Fits, figure: str) -> dict[str, Mean]:
    """With ECE, in five senses, each the mean over sets with its error over sets."""

    def over(values: dict[str, Mean]) -> Mean:
        return mean_of(mean.value for mean in values.values())

    found = {
        "over the 16 cells of calibrator and objective": over(fits.correlations(SIXTEEN, figure)),
        "over the 28 cells without LS and FL": over(fits.correlations(GENTLE, figure)),
        "over splits, within a cell": mean_of(fits.across_splits(SIXTEEN, figure).values()),
    }
    for part, words in (
        ("toward", "along T from 1 to the fitted one"),
        ("beyond", "as far beyond the fitted T"),
    ):
        found[words] = mean_of(
            fits.mean(name, "path", "NLL", f"{part}_{figure}").value for name in fits.sets
        )
    return {where: mean for where, mean in found.items() if mean.count}


def loss_preserved(fits: Fits) -> str:
    inside = by_calibrator(fits, SCALED, "NLL", "fit_nll", relative=True)
    outside = by_calibrator(fits, SCALED, "NLL", "nll", relative=True)
    evidence = listed(
        [
            f"{name} {inside[name].over_sets.show('+.2f', POINTS)} where fitted, "
            f"{outside[name].show('+.2f', POINTS)} on the test half"
            for name in inside
        ]
    )
    largest = max((gap.over_sets.value for gap in inside.values()), default=math.nan)
    decided = "Holds nearly" if largest < 0.01 else "Does not hold"
    return line(
        "The total loss is preserved (abstract, section 4.1).",
        decided,
        "Where fitted, the likelihood's minimum can only be left (but for PTS, whose fit is "
        "regularised), so the question is by how much; nearly: by less than 1% for every "
        f"calibrator. Change of NLL in percent: {evidence}.",
    )


def accuracy_preserved(fits: Fits) -> str:
    found = by_calibrator(fits, SCALED, "NLL", "accuracy")
    gaps = [abs(mean.value) for gap in found.values() for mean in gap.sets.values()]
    evidence = listed([f"{name} {gap.show('+.2f', POINTS)}" for name, gap in found.items()])
    lost = [name for name, gap in found.items() if gap.over_sets.clear == -1]
    return line(
        "Accuracy is preserved, and sometimes enhanced (abstract).",
        f"Does not hold for {', '.join(lost)}" if lost else "Holds",
        f"Accuracy against the likelihood's, in points (higher is better): {evidence}. The largest "
        f"change on a set is {POINTS * max(gaps, default=math.nan):.2f}.",
    )


def rivals_hurt(fits: Fits) -> str:
    parts, signs = [], []
    for rival in ("LS", "FL", "FL whole"):
        found = by_calibrator(fits, rival, "NLL", "ece")
        parts += [f"{name}+{rival} {gap.show('+.1f', POINTS)}" for name, gap in found.items()]
        signs += [gap.over_sets.clear for gap in found.values()]
    hotter = []
    for rival in ("LS", "FL", "FL whole"):
        gap = fits.difference(("TS", rival), ("TS", "NLL"), "temperature", relative=True)
        hotter.append(f"{rival} {gap.over_sets.show('+.0f', POINTS)}")
    return line(
        "Label smoothing and focal loss raise ECE, most of all with ETS and PTS (table 1); the "
        "paper puts it down to overfitting and learning rates (section 5.3.1).",
        combined(signs, 1),
        "Here every objective is solved to its optimum, so no learning rate has a part in it. "
        f"ECE against the likelihood's, in points: {listed(parts)}. The T of TS changes by "
        f"{listed(hotter)} percent.",
    )


def state_of_the_art(fits: Fits) -> str:
    lowest, total, best = 0, 0, []
    for name in fits.sets:
        means = {cell: fits.mean(name, *cell, "ece").value for cell in SIXTEEN}
        means = {cell: value for cell, value in means.items() if not math.isnan(value)}
        for calibrator in PAPER:
            own = {cell: value for cell, value in means.items() if cell[0] == calibrator}
            if len(own) == len(FOUR):
                total += 1
                lowest += min(own, key=lambda cell: own[cell])[1] == SCALED
        if len(means) == len(SIXTEEN):
            winner = min(means, key=lambda cell: means[cell])
            best.append((short(name), winner, means[winner]))
    won = sum(winner[1] == SCALED for _, winner, _ in best)
    shown = listed([f"{name} {c} + {o} ({POINTS * v:.2f})" for name, (c, o), v in best])
    decided = "Holds in part" if won else "Does not hold" if best else "Not measured"
    if best and won == len(best):
        decided = "Holds"
    return line(
        "It has the lowest ECE of all (section 5.3.2).",
        decided,
        f"It is the lowest of a calibrator's four objectives in {lowest} of {total} cases, and of "
        f"all sixteen cells on {won} of {len(best)} sets; the lowest of each: {shown}.",
    )


def normalisations(fits: Fits) -> str:
    parts, signs = [], []
    for estimate in ("printed", "corrected"):
        for other in ("mm", "cm"):
            found = by_calibrator(fits, f"CS nd {estimate}", f"CS {other} {estimate}", "ece")
            parts += [
                f"{name}, {estimate}, against {other} {gap.show('+.2f', POINTS)}"
                for name, gap in found.items()
            ]
            if estimate == "printed":
                signs += [gap.over_sets.clear for gap in found.values()]
    return line(
        "Standardising (nd) is better than min-max (mm) and centred min-max (cm) (table 3).",
        combined(signs, -1),
        f"Decided by the printed estimate. ECE of nd less the other's, in points: {listed(parts)}.",
    )


def corner(alpha: float, beta: float, classes: int) -> str:
    """Which bounds α and β lie on."""

    def place(value: float, low: float, high: float) -> str:
        near = 1e-3 * (high - low)
        return "low" if value <= low + near else "high" if value >= high - near else "inside"

    high = math.log(classes) / 2
    return f"α {place(alpha, 0.1, high)}, β {place(beta, 1.5, 2.0)}"


def corners(fits: Fits, estimate: str, calibrators: Sequence[str]) -> dict[str, int]:
    """How many fits by nd ended where."""
    counts: dict[str, int] = {}
    for name in fits.sets:
        for calibrator in calibrators:
            cell = (name, calibrator, f"CS nd {estimate}")
            alphas, betas = fits.values(*cell, "alpha"), fits.values(*cell, "beta")
            for seed in alphas:
                where = corner(alphas[seed], betas[seed], CLASSES[name.split("-")[0]])
                counts[where] = counts.get(where, 0) + 1
    return dict(sorted(counts.items(), key=lambda item: -item[1]))


def opposite_corners(fits: Fits) -> str:
    parts, first = [], []
    for which in (("TS",), ("CTS",)):
        for estimate in ("printed", "corrected"):
            found = corners(fits, estimate, which)
            if found:
                shown = ", ".join(f"{where} in {count}" for where, count in found.items())
                parts.append(f"{which[0]}, {estimate}: {shown}")
                first.append(next(iter(found)))
    opposite = {("α high, β low", "α low, β high"), ("α low, β high", "α high, β low")}
    pairs = list(zip(first[::2], first[1::2], strict=False))
    agreed = sum(pair in opposite for pair in pairs)
    decided = "Holds in part" if agreed else "Does not hold"
    if pairs and agreed == len(pairs):
        decided = "Holds"
    return line(
        "The printed and the corrected estimate settle α and β at opposite corners of their "
        "bounds (expected here, not a claim of the paper).",
        decided,
        f"Decided by the commonest. Fits by nd, over sets and splits: {listed(parts)}. "
        "ETS and PTS settle them as TS does, at one temperature.",
    )


def same_temperature(fits: Fits) -> str:
    gaps, free = [], []
    for name in fits.sets:
        for objective in ("NLL", "LS"):
            temperatures = fits.values(name, "TS", objective, "temperature")
            for kept, cell in ((gaps, "ETS"), (free, "ETS free")):
                two = fits.values(name, cell, objective, "temperature")
                kept += [
                    abs(two[seed] / temperatures[seed] - 1)
                    for seed in temperatures.keys() & two.keys()
                ]
    ece = fits.difference(("ETS", "LS"), ("TS", "LS"), "ece")
    worst = max((abs(mean.value) for mean in ece.sets.values()), default=math.nan)
    agrees = bool(free) and max(free) < 1e-4 and worst < 1e-4
    return line(
        "TS and ETS of eq. 13 must agree under every objective, being one temperature (expected "
        "here; table 1 has .44 and 8.27 for TS+LS and ETS+LS of one network).",
        "Holds" if agrees else "Does not hold",
        f"With T, w1 and w2 all free, started from T = 1 and equal weights, eq. 13 comes to the "
        f"temperature of TS {_within(free)} ({len(free)} fits by NLL and LS), the library's ETS "
        f"{_within(gaps)}; test ECE of ETS+LS and TS+LS differs by {POINTS * worst:.4f} points "
        f"at most.{' So the gap in the paper must be its optimiser, stopped early.' * agrees}",
    )


def binned(fits: Fits) -> list[str]:
    """Of soft-calibration, section 5 and appendix C."""
    lines = []
    for name, claim in (
        ("SB-ECE", "TS-SB-ECE beats TS in ECE (soft-calibration table 2: in 35 of 42 settings)."),
        ("HB-ECE", "TS-HB-ECE may be promising (soft-calibration appendix C)."),
    ):
        cell, base = ("TS", name), ("TS", "NLL")
        width, mass = (fits.difference(cell, base, f) for f in ("ece", "ece_mass_l2"))
        nll = fits.difference(cell, base, "nll", relative=True)
        lines.append(
            line(
                claim,
                combined([gap.over_sets.clear for gap in (width, mass) if gap.sets], -1),
                f"Against TS by likelihood: ECE-15 {width.show('+.2f', POINTS)} points; equal-mass "
                f"L2 ECE, the paper's, {mass.show('+.2f', POINTS)}; NLL "
                f"{nll.show('+.2f', POINTS)} percent.",
            )
        )
    spread = {
        name: [_relative_error(fits.mean(each, "TS", name, "temperature")) for each in fits.sets]
        for name in ("SB-ECE", "HB-ECE", "NLL")
    }
    pairs = list(zip(spread["HB-ECE"], spread["SB-ECE"], strict=True))
    more, known = sum(hard > soft for hard, soft in pairs), sum(a == a for a, _ in pairs)
    shown = listed([f"{name} {POINTS * mean_of(x).value:.2f}%" for name, x in spread.items()])
    lines.append(
        line(
            "TS-HB-ECE varies more than TS-SB-ECE (soft-calibration appendix C).",
            f"On {more} of {known} sets",
            f"Standard error of T over splits, in percent of T, mean over sets: {shown}.",
        )
    )
    return lines


def _relative_error(mean: Mean) -> float:
    return mean.error / mean.value


def _within(gaps: Sequence[float]) -> str:
    """The largest relative gap, of numbers kept to six digits."""
    largest = max(gaps, default=math.nan)
    return f"within {largest:.0e} of it" if largest > 1e-6 else "to six digits"


def _reach(found: dict[str, Difference], scale: float, form: str) -> str:
    values = [scale * gap.over_sets.value for gap in found.values()]
    return f"{min(values):{form}} to {max(values):{form}}"


def sentences(fits: Fits) -> str:
    """All claims of class-scaling that these sets can speak to, then soft-calibration's."""
    makers = (
        spread_tracks,
        spread_tracks_best,
        lower_spread,
        lower_error,
        lower_error_corrected,
        loss_preserved,
        accuracy_preserved,
        rivals_hurt,
        state_of_the_art,
        normalisations,
        opposite_corners,
        same_temperature,
    )
    return "\n".join([*(make(fits) for make in makers), *binned(fits)])
