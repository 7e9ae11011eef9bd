"""Showing an evaluation: matplotlib pictures and one self-contained HTML page."""

from __future__ import annotations

from calibrant.report.comparison_page import Check, render_comparison, write_comparison
from calibrant.report.comparison_tables import Alternatives
from calibrant.report.page import render, write
from calibrant.report.pictures import (
    class_calibration,
    group_gaps,
    plot_decision_curve,
    plot_distribution,
    plot_reliability,
    reliability_diagram,
    risk_coverage_curve,
)
from calibrant.report.record import DataFile, Record, describe_file, make_record

__all__ = [
    "Alternatives",
    "Check",
    "DataFile",
    "Record",
    "class_calibration",
    "describe_file",
    "group_gaps",
    "make_record",
    "plot_decision_curve",
    "plot_distribution",
    "plot_reliability",
    "reliability_diagram",
    "render",
    "render_comparison",
    "risk_coverage_curve",
    "write",
    "write_comparison",
]
