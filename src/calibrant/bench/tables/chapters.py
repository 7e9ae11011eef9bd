"""The tables of a suite that its results can fill."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from calibrant.bench.tables.results import Results, collect_results
from calibrant.bench.tables.table import Table
from calibrant.bench.tables.tabulate import table

if TYPE_CHECKING:
    import pandas as pd

    from calibrant.bench.suite.suite import Suite

SEVERITIES = tuple(f"test:*:{severity}" for severity in range(1, 6))
FIRST = "Figures of the test rows"


class Chapter(NamedTuple):
    """A table with a title and a sentence about it."""

    title: str
    lead: str
    table: Table


def make_answer(suite: Suite, frame: pd.DataFrame, results: Results, error: str) -> Chapter | None:
    """Make the table of accuracy, NLL and the error that decides; None if there are no results.

    Suites with a single method compare its calibrators.
    """
    if not results.done:
        return None
    metrics = list(dict.fromkeys(("accuracy", "nll", error)))
    answer = table(suite, frame, metrics, calibrators=None)
    lead = "Before any calibrator, and after temperature scaling."
    return Chapter(FIRST, lead if answer.down == "method" else "After each calibrator.", answer)


def make_chapters(
    suite: Suite, frame: pd.DataFrame, results: Results | None = None
) -> list[Chapter]:
    """Make every table that the results can fill; the first is the suite's own."""
    results = results or collect_results(suite, frame)
    if not results.done:
        return []
    return [
        Chapter(title, lead, table(suite, frame, **options))
        for title, lead, options in _list_chapters(suite, results)
    ]


def _list_chapters(suite: Suite, results: Results) -> list[tuple[str, str, dict[str, Any]]]:
    # Measurements that another suite asked for appear on the page of that suite.
    asked = {name for _, spec in suite.specs for name, _ in spec.after}
    parts = {str(part).partition(":")[0] for part in results.rows["part"].unique() if ":" in part}
    chapters: list[tuple[str, str, dict[str, Any]]] = [
        (FIRST, "Before any calibrator, and after temperature scaling.", {})
    ]
    after = results.own_calibrators
    if len(after) > 2 and len(suite.methods) > 1:
        chapters.append(
            (
                "ECE after every calibrator",
                "Each fitted on validation rows.",
                {"metrics": "ece", "calibrators": after},
            )
        )
    trained = _name_tables(suite, part="train", metric="ece")
    if trained and (results.rows["part"] == "train").any():
        chapters.append(
            (
                "Training rows against test rows",
                f"ECE before any calibrator, as in {trained}.",
                {"metrics": "ece", "calibrators": ["none"], "part": ["train", "test"]},
            )
        )
    if "shift" in asked and "test" in parts:
        chapters += [
            (
                "Under corruptions",
                "Means over every kind and severity; calibrators fitted on clean rows.",
                {"metrics": ["accuracy", "nll", "ece"], "part": "test:*"},
            ),
            (
                "ECE by severity",
                "Means over the kinds of corruption.",
                {"metrics": "ece", "part": ["test", *SEVERITIES]},
            ),
        ]
        if len(after) > 2:
            chapters.append(
                (
                    "ECE under corruptions, after every calibrator",
                    "Means over every kind and severity; each fitted on clean validation rows.",
                    {"metrics": "ece", "calibrators": after, "part": "test:*"},
                )
            )
    if "shift" in asked and "official" in parts:
        chapters.append(
            (
                "Under official corruptions",
                "Means over CIFAR-C's files; calibrators fitted on clean rows.",
                {"metrics": ["accuracy", "nll", "ece"], "part": "official:*"},
            )
        )
    if "ood" in asked and "ood" in parts:
        chapters.append(
            (
                "Rows of another data set",
                "Told from the test rows by the largest probability.",
                {"metrics": ["ood_auroc", "fpr95"], "part": "ood:*"},
            )
        )
    return chapters


def _name_tables(suite: Suite, **fields: str) -> str:
    """Name the published tables that have such a figure: ``soft-calibration's table 3``."""
    names = {
        f"{figure.paper}'s {figure.table.lower()}": None
        for source in suite.published
        for figure in source.figures
        if all(getattr(figure, name) == value for name, value in fields.items())
    }
    return ", ".join(names)
