"""Bench: many runs from one suite file, resumable, into one results store."""

from calibrant.bench import register
from calibrant.bench.loading import splits_of
from calibrant.bench.rows import SCHEMA, Row, make_row
from calibrant.bench.runner import Summary, run_specs, run_suite
from calibrant.bench.spec import Spec
from calibrant.bench.store import Store
from calibrant.bench.suite import Suite, available
from calibrant.bench.table_value import Table
from calibrant.bench.tables import table

__all__ = [
    "SCHEMA",
    "Row",
    "Spec",
    "Store",
    "Suite",
    "Summary",
    "Table",
    "available",
    "make_row",
    "register",
    "run_specs",
    "run_suite",
    "splits_of",
    "table",
]
