"""Predictions: the one value that flows through everything, its readers and writers."""

from calibrant.predictions.examples import examples
from calibrant.predictions.files import FileScores
from calibrant.predictions.value import Predictions, example

__all__ = ["FileScores", "Predictions", "example", "examples"]
