"""Act on predictions: thresholds and sets with a guarantee, and changed priors."""

from calibrant.decisions.rule import Rule, load
from calibrant.decisions.thresholds import NoThresholdError, Threshold, decide

__all__ = ["NoThresholdError", "Rule", "Threshold", "decide", "load"]
