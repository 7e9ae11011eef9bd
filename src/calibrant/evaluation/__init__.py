"""Evaluation: figures with honest intervals, tables, comparisons and a verdict in words."""

from calibrant.evaluation.compare import (
    ComparedGroup,
    ComparedGroups,
    Comparison,
    Difference,
    compare,
)
from calibrant.evaluation.evaluate import (
    DEFAULT_METRICS,
    EVENT_METRICS,
    default_metrics,
    evaluate,
)
from calibrant.evaluation.groups.files import read_groups
from calibrant.evaluation.groups.value import Group, Groups
from calibrant.evaluation.intervals import bootstrap_interval
from calibrant.evaluation.inversion import Interval
from calibrant.evaluation.shards.evaluate import evaluate_shards
from calibrant.evaluation.value import Evaluation, Figure
from calibrant.evaluation.verdict import Tolerance, Verdict

__all__ = [
    "DEFAULT_METRICS",
    "EVENT_METRICS",
    "ComparedGroup",
    "ComparedGroups",
    "Comparison",
    "Difference",
    "Evaluation",
    "Figure",
    "Group",
    "Groups",
    "Interval",
    "Tolerance",
    "Verdict",
    "bootstrap_interval",
    "compare",
    "default_metrics",
    "evaluate",
    "evaluate_shards",
    "read_groups",
]
