"""Write the page of class-scaling's table 2 on its authors' own logits, cell by cell."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from calibrant.bench import Cell, Results
from replication.published import find_published

SUITE = "class-scaling-authors"
PAGE = "pages/class-scaling-table-2.md"
CALIBRATORS = {
    "temperature": "TS",
    "ensemble_temperature": "ETS",
    "parameterized_temperature": "PTS",
    "class_temperature": "CTS",
}
OBJECTIVES = {
    "nll": "likelihood",
    "label_smoothing": "label smoothing",
    "focal": "focal loss",
    "class_scaled": "class-wise scaling",
}
STEPPED = ("temperature", "class_temperature")  # fitted by the paper's steps as printed
NORMALISATIONS = {"nd": "standardised (nd)", "mm": "min-max (mm)", "cm": "centred min-max (cm)"}
CLOSE = 0.0005  # of an ECE: a twentieth of a point; the paper prints hundredths
Pair = tuple[str, str]


ANSWER = """\
# Class-scaling's table 2 on the authors' own logits

[Results](../README.md) · [class-wise loss scaling](class-scaling.md) · [every figure]({table})

**Fitted as the authors' public code fits, {code} cells agree with the paper within 0.05 points of
ECE. The paper's fits of focal loss and label smoothing had not converged. Solved to the optimum, a
temperature fitted with smoothed labels has a lower ECE than one fitted by class-wise scaling on
{lower} networks, where the paper prints the reverse on {reverse}.** ECE in %
({networks}): label smoothing {smoothing}, where the
paper prints {printed}; class-wise scaling {scaled}.

So the table is reproduced, and much of what it shows is the optimiser's:

- TS and CTS run L-BFGS without a line search, which goes a share of the way at each iteration, the
  learning rate. Focal loss and label smoothing get rates of 0.005, 0.003 and 0.001, the others
  0.02. Their {reduced_all} cells ended before the optimum: {reduced_exact} agree with a fit solved
  to its end. There label smoothing has a lower ECE than class-wise scaling on {lower} networks
  with TS and on {lower_classes} with CTS; focal loss is worse than where it was stopped, with TS on
  {worse} networks and with CTS on {worse_classes}.
- PTS is trained by Adam, whose steps do not shrink with the gradient, and ends as one temperature:
  {single} of the paper's PTS cells agree with our TS solved to its end, of label smoothing all
  four. So the paper's own table has label smoothing ahead of class-wise scaling on every network,
  in its PTS rows.
- ETS fits T as TS does, then three weights of the logits (eq. 13), which make up for a T that
  stopped early. Label smoothing is ahead of class-wise scaling on every network there, in the
  paper too.
- Fits at the full rate stop after {fewest} to {most} of 1,000 iterations, where the loss no longer
  moves in single precision: for the likelihood and class-wise scaling that costs hundredths.
- Cells that differ by more: {odd}.
  A misprint would explain it; nothing here shows that it is one.

By the likelihood of the test rows it is otherwise: at the optimum class-wise scaling is ahead of
label smoothing where a whole interval lies below 0 {ahead},
and behind where it lies above {behind}.

- The data: logits of four networks that the authors trained on long-tailed CIFAR-10. Validation
  rows have the long tail and test rows are even, so a fit that counts classes evenly has an
  advantage that is not due to the paper's weights: see `balanced`, every weight 0, in
  [the whole table]({table}).
- *Code*: our fits, written after the authors' public code (SeungjinJung/SCTL), which departs from
  section 5.2 in places: its epochs are iterations of one call of L-BFGS, each rate begins a new
  one, PTS has no weight decay. As the section prints it, {stepped} cells of TS and CTS agree.
- *Optimum*: our fits, solved exactly. {exact} cells agree with the paper. ETS then mixes
  probabilities, as its own authors have it; eq. 13 mixes logits, which at its optimum is TS.
- Focal loss holds its weight constant and CTS has no penalty, as in the authors' code.
- Each network has one set of logits, so there are no errors over seeds. The intervals below
  are those of test rows."""


class Fit(NamedTuple):
    """A calibrator and an objective, with the names of its figures."""

    calibrator: str
    objective: str

    @property
    def label(self) -> str:
        """Name it as the paper does: ``TS + label smoothing``."""
        return f"{CALIBRATORS[self.calibrator]} + {OBJECTIVES[self.objective]}"

    @property
    def exact(self) -> str:
        """Name the fit that is solved to its optimum, as the store does."""
        options = {"nll": [], "focal": ["detach_weight=True", "objective=focal"]}
        texts = list(options.get(self.objective, [f"objective={self.objective}"]))
        if self.calibrator == "class_temperature":
            texts.append("spread=None")
        return f"{self.calibrator}({','.join(texts)})" if texts else self.calibrator

    @property
    def asked(self) -> str:
        """Name the exact fit as the suite does, which names pairs so."""
        options = ["spread=None"] if self.calibrator == "class_temperature" else []
        if self.objective != "nll":
            options.append(f"objective={self.objective}")
        if self.objective == "focal":
            options.append("detach_weight=True")
        return f"{self.calibrator}({', '.join(options)})" if options else self.calibrator

    @property
    def published(self) -> str:
        """Name it as published figures do."""
        if self.objective == "nll":
            return self.calibrator
        return f"{self.calibrator}(objective={self.objective})"

    @property
    def stepped(self) -> str:
        """Name the fit by the paper's steps as printed."""
        return f"optimiser:{self.calibrator}:{self.objective}"

    @property
    def coded(self) -> str:
        """Name the fit as the authors' code makes it."""
        return f"code:{self.calibrator}:{self.objective}"

    @property
    def forms(self) -> tuple[str, str]:
        """Name the fits that the page shows: the authors' code's, and the optimum."""
        return self.coded, self.exact


FITS = [Fit(*pair) for pair in itertools.product(CALIBRATORS, OBJECTIVES)]


class Table2:
    """Read the figures of the authors' logits, and write the page."""

    def __init__(self, results: Results) -> None:
        self.results = results
        self.cells: list[Cell] = results.cells

    def find_figure(self, cell: Cell, calibrator: str, metric: str) -> float | None:
        """Find a figure of test rows; None if it is not measured."""
        runs = self.results.values(metric, calibrator=calibrator, exact=True)
        values = list(runs.get((cell, "logits"), {}).values())
        return values[0] if values else None

    def find_printed(self, cell: Cell, calibrator: str, metric: str) -> float | None:
        """Find the paper's figure."""
        figures = find_published(
            paper="class-scaling",
            table="Table 2",
            data="cifar10",
            model=self.results.setting(cell, "model"),
            calibrator=calibrator,
            metric=metric,
            variant="",
        )
        return figures[0].value if figures else None

    def write(self) -> str:
        """Write the page as Markdown."""
        parts = [self._write_answer(), *self._write_networks(), self._write_pairs()]
        return "\n\n".join([*parts, self._write_normalisations()]) + "\n"

    def count_close(self, fits: Iterable[Fit], form: str) -> tuple[int, int]:
        """Count the cells whose ECE is the paper's within a twentieth of a point.

        Args:
            fits: calibrators and objectives.
            form: ``exact``, ``stepped`` or ``coded``.
        """
        gaps = [
            abs(ours - printed)
            for cell, fit in itertools.product(self.cells, fits)
            if (ours := self.find_figure(cell, getattr(fit, form), "ece")) is not None
            and (printed := self.find_printed(cell, fit.published, "ece")) is not None
        ]
        return sum(gap <= CLOSE for gap in gaps), len(gaps)

    def _list_apart(self) -> str:
        """Describe the cells in which the authors' code gives another ECE than the paper prints."""
        texts = []
        for cell, fit in itertools.product(self.cells, FITS):
            ours = self.find_figure(cell, fit.coded, "ece")
            printed = self.find_printed(cell, fit.published, "ece")
            if ours is not None and printed is not None and abs(ours - printed) > CLOSE:
                model = self.results.setting(cell, "model")
                texts.append(
                    f"{fit.label} on {model}, {_percent(ours)} where the paper prints "
                    f"{_percent(printed)}"
                )
        return "; ".join(texts) or "none"

    def _count_iterations(self) -> tuple[int, int]:
        """Count the fewest and most iterations of L-BFGS at the full rate."""
        counts = [
            count
            for cell, objective in itertools.product(self.cells, ("nll", "class_scaled"))
            for calibrator in STEPPED
            if (
                count := self.find_figure(
                    cell, Fit(calibrator, objective).coded, "parameter:evaluations"
                )
            )
        ]
        return round(min(counts)), round(max(counts))

    def _write_answer(self) -> str:
        stepped = [fit for fit in FITS if fit.calibrator in STEPPED]
        reduced = [fit for fit in stepped if fit.objective in ("label_smoothing", "focal")]
        smoothing, scaled = (
            Fit("temperature", "label_smoothing"),
            Fit("temperature", "class_scaled"),
        )

        def list_errors(calibrator: str) -> str:
            found = [self.find_figure(cell, calibrator, "ece") for cell in self.cells]
            return ", ".join(_percent(value) for value in found)

        printed = ", ".join(
            _percent(self.find_printed(cell, smoothing.published, "ece")) for cell in self.cells
        )
        networks = ", ".join(str(self.results.setting(cell, "model")) for cell in self.cells)
        exact_close, exact_all = self.count_close(FITS, "exact")
        step_close, step_all = self.count_close(stepped, "stepped")
        reduced_exact, reduced_all = self.count_close(reduced, "exact")
        code_close, code_all = self.count_close(FITS, "coded")
        fewest, most = self._count_iterations()
        lower = f"{self._count_lower(smoothing, scaled)} of {len(self.cells)}"
        by_class = [
            Fit("class_temperature", objective) for objective in ("label_smoothing", "class_scaled")
        ]
        worse, worse_classes = (
            sum(
                (self.find_figure(cell, fit.exact, "ece") or 0.0)
                > (self.find_figure(cell, fit.coded, "ece") or 1.0)
                for cell in self.cells
            )
            for fit in (Fit("temperature", "focal"), Fit("class_temperature", "focal"))
        )
        return ANSWER.format(
            table=f"../tables/{SUITE}.md",
            lower=lower,
            networks=networks,
            reverse=self._count_printed_above(smoothing, scaled),
            ahead=self._count_decided(below=True),
            behind=self._count_decided(below=False),
            smoothing=list_errors(smoothing.exact),
            printed=printed,
            scaled=list_errors(scaled.exact),
            reduced_all=reduced_all,
            reduced_exact=reduced_exact or "none",
            code=f"{code_close} of {code_all}",
            odd=self._list_apart(),
            lower_classes=f"{self._count_lower(*by_class)} of {len(self.cells)}",
            worse=f"{worse} of {len(self.cells)}",
            worse_classes=f"{worse_classes} of {len(self.cells)}",
            fewest=fewest,
            most=most,
            exact=f"{exact_close} of {exact_all}",
            stepped=f"{step_close} of {step_all}",
            single=f"{self._count_single()} of {len(OBJECTIVES) * len(self.cells)}",
        )

    def _count_printed_above(self, first: Fit, second: Fit) -> int:
        pairs = [
            [self.find_printed(cell, fit.published, "ece") or 0.0 for fit in (first, second)]
            for cell in self.cells
        ]
        return sum(a > b for a, b in pairs)

    def _count_decided(self, *, below: bool) -> str:
        """Say on how many networks scaling's NLL is below label smoothing's, or above."""
        texts = []
        for calibrator, label in CALIBRATORS.items():
            fits = [Fit(calibrator, objective) for objective in ("class_scaled", "label_smoothing")]
            name = f"pair:{fits[0].asked}:{fits[1].asked}"
            ends = [
                self.find_figure(cell, name, "nll:high" if below else "nll:low")
                for cell in self.cells
            ]
            count = sum(end is not None and (end < 0 if below else end > 0) for end in ends)
            texts.append(f"{label} {count}")
        return f"({', '.join(texts)} of {len(self.cells)} networks)"

    def _count_single(self) -> int:
        """Count the paper's PTS cells that are our TS at its optimum."""
        gaps = [
            abs(ours - printed)
            for cell, objective in itertools.product(self.cells, OBJECTIVES)
            if (ours := self.find_figure(cell, Fit("temperature", objective).exact, "ece"))
            and (
                printed := self.find_printed(
                    cell, Fit("parameterized_temperature", objective).published, "ece"
                )
            )
        ]
        return sum(gap <= CLOSE for gap in gaps)

    def _count_lower(self, first: Fit, second: Fit) -> int:
        return sum(
            a is not None and b is not None and a < b
            for a, b in (
                [self.find_figure(cell, fit.exact, "ece") for fit in (first, second)]
                for cell in self.cells
            )
        )

    def _write_networks(self) -> list[str]:
        texts = ["## Cell by cell"]
        heads = (
            "",
            "ECE: paper",
            "code",
            "optimum",
            "NLL: code",
            "optimum",
            "accuracy: paper",
            "code",
            "optimum",
        )
        for cell in self.cells:
            rows = [
                [
                    "uncalibrated",
                    _percent(self.find_printed(cell, "none", "ece")),
                    _percent(self.find_figure(cell, "none", "ece")),
                    "–",
                    _decimal(self.find_figure(cell, "none", "nll")),
                    "–",
                    _percent(self.find_printed(cell, "none", "accuracy")),
                    _percent(self.find_figure(cell, "none", "accuracy")),
                    "–",
                ]
            ]
            for fit in FITS:
                rows.append(
                    [
                        fit.label,
                        _percent(self.find_printed(cell, fit.published, "ece")),
                        *(_percent(self.find_figure(cell, name, "ece")) for name in fit.forms),
                        *(_decimal(self.find_figure(cell, name, "nll")) for name in fit.forms),
                        _percent(self.find_printed(cell, fit.published, "accuracy")),
                        *(_percent(self.find_figure(cell, name, "accuracy")) for name in fit.forms),
                    ]
                )
            texts += [f"### {self.results.setting(cell, 'model')}", _make_table(heads, rows)]
        return texts

    def _write_pairs(self) -> str:
        rows = []
        for calibrator in CALIBRATORS:
            scaled = Fit(calibrator, "class_scaled")
            for objective in ("nll", "label_smoothing", "focal"):
                other = Fit(calibrator, objective)
                row = [f"{CALIBRATORS[calibrator]}: scaling less {OBJECTIVES[objective]}"]
                for cell in self.cells:
                    row += [self._write_pair(cell, (scaled, other), metric) for metric in PAIRED]
                rows.append(row)
        heads = [""] + [
            f"{self.results.setting(cell, 'model')}: {label}"
            for cell in self.cells
            for label in PAIRED.values()
        ]
        return (
            "## Differences on the same test rows\n\n"
            "Class-wise scaling less another objective, both at the optimum, with 95% intervals of "
            "resampled rows. Below 0 class-wise scaling is better. ECE is in points and corrected "
            "for its bias, so that differences are not those of the figures above to the digit.\n\n"
            + _make_table(heads, rows)
        )

    def _write_pair(self, cell: Cell, fits: tuple[Fit, Fit], metric: str) -> str:
        name = f"pair:{fits[0].asked}:{fits[1].asked}"
        ends = [self.find_figure(cell, name, metric + end) for end in ("", ":low", ":high")]
        if any(end is None for end in ends):
            return "–"
        scale, digits = (100, 2) if metric == "ece" else (1, 4)
        value, low, high = (
            f"{scale * float(end or 0):+.{digits}f}".replace("-", "−") for end in ends
        )
        return f"{value} ({low} to {high})"

    def _write_normalisations(self) -> str:
        heads = [""] + [str(self.results.setting(cell, "model")) for cell in self.cells]
        rows = []
        for calibrator, how in itertools.product(CALIBRATORS, NORMALISATIONS):
            options = ["objective=class_scaled"] + ["spread=None"] * (
                calibrator == "class_temperature"
            )
            if how != "nd":
                options.insert(0, f"normalisation={how}")
            name = f"{calibrator}({','.join(options)})"
            values = [_percent(self.find_figure(cell, name, "ece")) for cell in self.cells]
            rows.append([f"{CALIBRATORS[calibrator]}, {NORMALISATIONS[how]}", *values])
        return (
            "## Table 3's normalisations\n\n"
            "ECE in %, class-wise scaling at the optimum. The paper has these for other logits, "
            "which are not at hand.\n\n" + _make_table(heads, rows)
        )


PAIRED: Mapping[str, str] = {"ece": "ECE", "nll": "NLL"}


def _make_table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [f"| {' | '.join(heads)} |", f"|---|{'---:|' * (len(heads) - 1)}"]
    return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in rows)])


def _percent(value: float | None) -> str:
    return "–" if value is None else f"{100 * value:.2f}"


def _decimal(value: float | None) -> str:
    return "–" if value is None else f"{value:.4f}"
