"""Evaluation: figures with honest intervals, tables, comparisons and a verdict in words."""

from calibrant.evaluation.compare import Comparison, Difference, compare
from calibrant.evaluation.evaluate import DEFAULT_METRICS, evaluate
from calibrant.evaluation.groups.files import read_groups
from calibrant.evaluation.groups.value import Group, Groups
from calibrant.evaluation.intervals import bootstrap_interval
from calibrant.evaluation.inversion import Interval
from calibrant.evaluation.value import Evaluation, Figure
from calibrant.evaluation.verdict import Verdict

__all__ = [
    "DEFAULT_METRICS",
    "Comparison",
    "Difference",
    "Evaluation",
    "Figure",
    "Group",
    "Groups",
    "Interval",
    "Verdict",
    "bootstrap_interval",
    "compare",
    "evaluate",
    "read_groups",
]
