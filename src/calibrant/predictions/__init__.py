"""Predictions: the one value that flows through everything, its readers and writers."""

from calibrant.predictions.examples import example, examples
from calibrant.predictions.sources import FileScores
from calibrant.predictions.value import Predictions

__all__ = ["FileScores", "Predictions", "example", "examples"]
