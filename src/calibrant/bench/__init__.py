"""Bench: many runs from one suite file, resumable, into one results store.

Besides the names below, these modules are public: `calibrant.bench.tables.statistics`,
`.formatting`, `.series`, `.pictures` and `.gallery`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from calibrant.bench import register
    from calibrant.bench.measure.measurement import Measurement
    from calibrant.bench.measure.steps import register_measurement
    from calibrant.bench.measure.subject import FilesGone, Parts, Subject, splits_of
    from calibrant.bench.run.runner import Summary, run_specs, run_suite
    from calibrant.bench.run.status import run_seconds, status
    from calibrant.bench.select.choices import open_test_rows, read_choice, write_choice
    from calibrant.bench.select.combine import choose_combinations
    from calibrant.bench.select.combine_report import describe_choice, report_choice
    from calibrant.bench.select.tune import with_choices
    from calibrant.bench.store.rows import SCHEMA, Row, make_row
    from calibrant.bench.store.store import Store
    from calibrant.bench.suite.key import result_settings
    from calibrant.bench.suite.lookup import available
    from calibrant.bench.suite.published import PublishedFigure, read_published
    from calibrant.bench.suite.spec import Spec, distinct
    from calibrant.bench.suite.suite import Suite
    from calibrant.bench.tables.chapters import Chapter, make_chapters
    from calibrant.bench.tables.formatting import canonical_name
    from calibrant.bench.tables.page import describe_coverage, render_page, write_page
    from calibrant.bench.tables.results import Cell, Results, Runs, code_columns, collect_results
    from calibrant.bench.tables.table import Table
    from calibrant.bench.tables.tabulate import table

__all__ = [
    "SCHEMA",
    "Cell",
    "Chapter",
    "FilesGone",
    "Measurement",
    "Parts",
    "PublishedFigure",
    "Results",
    "Row",
    "Runs",
    "Spec",
    "Store",
    "Subject",
    "Suite",
    "Summary",
    "Table",
    "available",
    "canonical_name",
    "choose_combinations",
    "code_columns",
    "collect_results",
    "describe_choice",
    "describe_coverage",
    "distinct",
    "make_chapters",
    "make_row",
    "open_test_rows",
    "read_choice",
    "read_published",
    "register",
    "register_measurement",
    "render_page",
    "report_choice",
    "result_settings",
    "run_seconds",
    "run_specs",
    "run_suite",
    "splits_of",
    "status",
    "table",
    "with_choices",
    "write_choice",
    "write_page",
]

# Imported when first asked for: a run needs no tables, and a table no training.
_MODULES = {
    "measure.measurement": "Measurement",
    "measure.steps": "register_measurement",
    "measure.subject": "FilesGone Parts Subject splits_of",
    "run.runner": "Summary run_specs run_suite",
    "run.status": "run_seconds status",
    "select.choices": "open_test_rows read_choice write_choice",
    "select.combine": "choose_combinations",
    "select.combine_report": "describe_choice report_choice",
    "select.tune": "with_choices",
    "store.rows": "Row SCHEMA make_row",
    "store.store": "Store",
    "suite.key": "result_settings",
    "suite.lookup": "available",
    "suite.published": "PublishedFigure read_published",
    "suite.spec": "Spec distinct",
    "suite.suite": "Suite",
    "tables.chapters": "Chapter make_chapters",
    "tables.formatting": "canonical_name",
    "tables.page": "describe_coverage render_page write_page",
    "tables.results": "Cell Results Runs code_columns collect_results",
    "tables.table": "Table",
    "tables.tabulate": "table",
}
_HOME = {name: module for module, names in _MODULES.items() for name in names.split()}


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(import_module(f"calibrant.bench.{_HOME[name]}"), name)
    if name == "register":
        return import_module("calibrant.bench.register")
    raise AttributeError(f"module 'calibrant.bench' has no attribute {name!r}")
