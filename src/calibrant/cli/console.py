"""What the command line prints: words and tables that fit a terminal."""

from __future__ import annotations

import codecs
import os
import sys
import warnings
from typing import TYPE_CHECKING

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from calibrant.calibrators.rank import Ranking
    from calibrant.calibrators.select import Choice
    from calibrant.evaluation import Evaluation, Figure
    from calibrant.evaluation.compare import Comparison

_USUAL_WIDTH = 80
_WIDEST = 100  # longer lines are hard to read
_NARROW = 72  # below this, figures go by their short names alone
_PLAIN = {"−": "-", "–": "-", "∞": "inf", "×": "x", "≤": "<=", "─": "-", "…": "...", "\u00a0": " "}


def speak_plainly() -> None:
    """Where a stream cannot show a sign, write it in letters instead of failing."""

    def replaced(error: UnicodeError) -> tuple[str, int]:
        if not isinstance(error, UnicodeEncodeError):
            raise error
        unknown = error.object[error.start : error.end]
        return "".join(_PLAIN.get(sign, "?") for sign in unknown), error.end

    def said(
        message: Warning | str,
        category: type[Warning],
        filename: str,
        lineno: int,
        line: str | None = None,
    ) -> str:
        about = "" if issubclass(category, UserWarning) else f"{category.__name__}: "
        return f"warning: {about}{message}\n"

    warnings.formatwarning = said  # where in the package it was said helps nobody here
    codecs.register_error("calibrant.plain", replaced)
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors="calibrant.plain")


def make_console(*, stderr: bool = False) -> Console:
    """A console for text that is not ours: nothing in it is taken for markup."""
    console = Console(stderr=stderr, markup=False, highlight=False, emoji=False)
    # Off a terminal, rich would take the width of whatever terminal is nearby.
    told = console.is_terminal or "COLUMNS" in os.environ
    console.width = min(console.width, _WIDEST) if told else _USUAL_WIDTH
    return console


def echo_json(value: object) -> None:
    """Print JSON, and nothing else: UTF-8, whatever the terminal is; undefined values are null."""
    import json

    import typer

    from calibrant.evaluation.value import plain

    typer.echo(json.dumps(plain(value), indent=2, allow_nan=False, ensure_ascii=False).encode())


def show_evaluation(evaluation: Evaluation, console: Console) -> None:
    """Print a verdict, the figures with their intervals, and what to know about them."""
    console.print(_subject(evaluation), style="dim")
    console.print()
    _show_verdict(evaluation, console)
    console.print(figure_table(evaluation, narrow=console.width < _NARROW))
    for line in _footnotes(evaluation):
        console.print(line, style="dim")
    if evaluation.groups is not None:
        from calibrant.cli.group_table import show_groups

        show_groups(evaluation.groups, console)


def show_warnings(evaluation: Evaluation) -> None:
    """Print what is suspect on stderr, but for what reading the file has said already."""
    from calibrant.evaluation.passing import LIKE_PROBABILITIES

    for said in evaluation.warnings:
        if said != LIKE_PROBABILITIES:
            make_console(stderr=True).print(f"warning: {said}", style="yellow", soft_wrap=True)


def figure_table(evaluation: Evaluation, *, narrow: bool = False) -> Table:
    """The figures, one line each; intervals only where there are some."""
    from calibrant.report import words

    figures = evaluation.figures.values()
    bounded = any(figure.low is not None for figure in figures)
    corrected = any(figure.corrected is not None for figure in figures)
    table = make_table()
    if not narrow:
        table.add_column("figure")
    table.add_column("name", style="cyan", no_wrap=True)
    table.add_column("value", justify="right", style="bold")
    if bounded:
        table.add_column(f"{words.level(evaluation.settings)} interval", justify="right")
    if corrected:
        table.add_column("corrected", justify="right")
    for figure in figures:
        cells = [] if narrow else [figure.label]
        cells += [figure.name, words.figure_text(figure.name, figure.value)]
        if bounded:
            cells.append(interval_text(figure.name, figure.low, figure.high))
        if corrected:
            cells.append(words.figure_text(figure.name, figure.corrected))
        table.add_row(*cells)
    return table


def interval_text(name: str, low: float | None, high: float | None) -> str:
    """``0.0123 – 0.0345``, or a dash where there is no interval."""
    from calibrant.report import words

    if low is None or high is None:
        return words.NOTHING
    return f"{words.figure_text(name, low)} – {words.figure_text(name, high)}"


def show_comparison(comparison: Comparison, console: Console) -> None:
    """Print which of two sets is better in what, and the differences with paired intervals."""
    from calibrant.report import words

    console.print(f"A: {comparison.a}\nB: {comparison.b}", style="dim", soft_wrap=True)
    console.print(f"{comparison.num_rows:,} rows, resampled in pairs", style="dim")
    console.print()
    console.print(comparison.headline, style="bold")
    console.print()
    table = make_table()
    table.add_column("name", style="cyan", no_wrap=True)
    for heading in ("A", "B", "B − A", f"{words.level(comparison.settings)} interval"):
        table.add_column(heading, justify="right", style="bold" if heading == "B − A" else "")
    table.add_column("better")
    for name, one in comparison.differences.items():
        table.add_row(
            name,
            *(words.figure_text(name, value) for value in (one.a, one.b, one.difference)),
            interval_text(name, one.low, one.high),
            _winner(comparison, name),
        )
    console.print(table)
    if any(_winner(comparison, name).startswith("(") for name in comparison.differences):
        console.print(
            f"(A), (B): hinted at, not shown among {comparison.num_tested} metrics (Holm)",
            style="dim",
        )
    console.print(
        "Of calibration errors, the values less what chance adds to each are compared.",
        style="dim",
    )


def _winner(comparison: Comparison, name: str) -> str:
    """Which is better: ``B``, or ``(B)`` where that does not hold up among so many metrics."""
    winner = comparison[name].winner
    if winner == "neither":
        return "–"
    return winner.upper() if name in comparison.shown else f"({winner.upper()})"


def show_choice(choice: Choice, console: Console) -> None:
    """Print which calibrator was chosen, why, and the candidates."""
    console.print(choice.explanation, style="bold")
    console.print()
    table = make_table()
    table.add_column("method", style="cyan", no_wrap=True)
    for heading in ("NLL", "± from best", "ECE", "±", "seconds"):
        table.add_column(heading, justify="right")
    table.add_column("")
    for one in sorted(choice.candidates, key=lambda one: (one.nll != one.nll, one.nll)):
        figures = (one.nll, one.nll_error, one.ece, one.ece_error)
        cells = ["–" if value != value else f"{value:.4f}" for value in figures]
        table.add_row(
            one.method, *cells, f"{one.seconds:.2f}", "chosen" if one.chosen else one.note
        )
    console.print(table)
    console.print(
        f"On rows not fitted on: {choice.folds} folds of {choice.num_rows:,} rows.", style="dim"
    )


def show_ranking(ranking: Ranking, console: Console) -> None:
    """Print every calibrator's figures on rows it was not fitted on, best likelihood first."""
    frame = ranking.to_frame()
    table = make_table()
    table.add_column("method", style="cyan", no_wrap=True)
    names = [name for name in frame.columns if not name.endswith("_error")]
    for name in names:
        table.add_column(name, justify="right", overflow="fold")
    for method, row in frame.iterrows():
        cells = []
        for name in names:
            value, digits = float(row[name]), 2 if name == "seconds" else 4
            error = f"{name}_error"
            spread = f" ±{float(row[error]):.{digits}f}" if error in row and name == "nll" else ""
            cells.append(f"{value:.{digits}f}{spread}")
        table.add_row(str(method), *cells)
    if not console.is_terminal:  # a file has no edge
        room = console.options.update(max_width=1000)
        console.width = max(console.width, console.measure(table, options=room).maximum)
    console.print(table)
    splits = ranking.values.shape[1]
    if splits > 1:
        console.print(f"Means over {splits} halvings; ± is one standard error.", style="dim")
    for name, why in ranking.notes.items():
        console.print(f"{name}: {why}", style="dim")


def metric_records() -> list[dict[str, object]]:
    """Every metric's name, which way is better, whether it is computed unasked, what it says."""
    from calibrant.evaluation import DEFAULT_METRICS
    from calibrant.metrics import available, measure

    return [
        {
            "name": name,
            "better": measure(name).better,
            "default": name in DEFAULT_METRICS,
            "says": says,
        }
        for name, says in available().items()
    ]


def show_metrics(console: Console) -> None:
    """Print every metric's name, which way is better, and a line on what it says."""
    table = make_table()
    table.add_column("name", style="cyan", no_wrap=True)
    table.add_column("better")
    table.add_column("what it says")
    for one in metric_records():
        star = "*" if one["default"] else ""
        table.add_row(f"{one['name']}{star}", str(one["better"]), str(one["says"]))
    console.print(table)
    console.print("* computed unless --metric names others", style="dim")


def make_table() -> Table:
    """A table in the style of all."""
    return Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, show_edge=False)


def _subject(evaluation: Evaluation) -> str:
    kind = "probabilities" if evaluation.kind == "probs" else evaluation.kind
    ignored = f" ({evaluation.num_ignored:,} ignored)" if evaluation.num_ignored else ""
    rows = f"{evaluation.num_rows:,} row{'s' if evaluation.num_rows != 1 else ''}"
    return f"{evaluation.name}: {rows}{ignored}, {evaluation.num_classes:,} classes, {kind}"


def _show_verdict(evaluation: Evaluation, console: Console) -> None:
    verdict = evaluation.verdict
    if verdict is None:
        console.print("No verdict: one needs intervals.")
    else:
        fine = verdict.direction == "neither" and verdict.p_value >= 1 - evaluation.level
        fine = fine and not (evaluation.groups and evaluation.groups.off)
        console.print(Text(verdict.headline, style="bold green" if fine else "bold yellow"))
        for sentence in verdict.sentences:
            console.print(sentence)
    console.print()


def _footnotes(evaluation: Evaluation) -> list[str]:
    """What the columns mean, and the notes; a note that several figures share is said once."""
    figures = evaluation.figures.values()
    lines = []
    if any(figure.corrected is not None for figure in figures):
        lines.append("corrected: the value less what chance alone adds to it")
    shared: dict[str, list[Figure]] = {}
    for figure in figures:
        if figure.note is not None:
            shared.setdefault(figure.note, []).append(figure)
    lines += [f"{', '.join(f.name for f in those)}: {note}" for note, those in shared.items()]
    return lines
