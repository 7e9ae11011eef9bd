"""Act on predictions: thresholds and sets with a guarantee, and changed priors."""

from calibrant.decisions.adapt import ShiftError, Unlabelled, adapt, evaluate_unlabelled
from calibrant.decisions.export import export_onnx
from calibrant.decisions.rule import NoThresholdError, Rule, load
from calibrant.decisions.sets import PredictionSets, prediction_sets
from calibrant.decisions.thresholds import Threshold, decide

__all__ = [
    "NoThresholdError",
    "PredictionSets",
    "Rule",
    "ShiftError",
    "Threshold",
    "Unlabelled",
    "adapt",
    "decide",
    "evaluate_unlabelled",
    "export_onnx",
    "load",
    "prediction_sets",
]
