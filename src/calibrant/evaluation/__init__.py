"""Evaluation: figures with honest intervals, tables, comparisons and a verdict in words."""

from calibrant.evaluation.compare import Comparison, Difference, compare
from calibrant.evaluation.evaluate import evaluate
from calibrant.evaluation.group_files import read_groups
from calibrant.evaluation.groups import Group, Groups
from calibrant.evaluation.intervals import bootstrap_interval
from calibrant.evaluation.inversion import Interval
from calibrant.evaluation.measures import DEFAULT_METRICS
from calibrant.evaluation.value import Evaluation, Figure, Verdict

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
