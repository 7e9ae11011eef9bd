"""Evaluation: figures with honest intervals, tables, comparisons and a verdict in words."""

from calibrant.evaluation.compare import Comparison, Difference, compare
from calibrant.evaluation.evaluate import DEFAULT_METRICS, evaluate
from calibrant.evaluation.intervals import bootstrap_interval
from calibrant.evaluation.inversion import Interval
from calibrant.evaluation.value import Evaluation, Figure, Verdict

__all__ = [
    "DEFAULT_METRICS",
    "Comparison",
    "Difference",
    "Evaluation",
    "Figure",
    "Interval",
    "Verdict",
    "bootstrap_interval",
    "compare",
    "evaluate",
]
